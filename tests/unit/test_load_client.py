"""The client against bytes, cut anywhere, and against a real socket."""

from __future__ import annotations

import asyncio
import itertools
import ssl
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.simulator import Physics, ServerConfig, serving

from instinct_fleet.load.client import (
    Client,
    Endpoint,
    EndpointError,
    Inbox,
    Record,
    Stream,
    clock,
    content_of,
    fetch,
)
from instinct_fleet.load.dataset import Prompt, body_of
from instinct_fleet.load.driver import run

EVENTS = (
    b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}\n\n',
    b": a comment\n\n",
    b'data: {"choices":[{"index":0,"delta":{"reasoning":"hm"},"finish_reason":null}]}\r\n\r\n',
    b'event: x\nid: 3\ndata:{"choices":[{"index":0,"delta":{"content":"a b"},"finish_reason":null}]}\n\n',
    b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n',
    b'data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":5}}\n\n',
    b"data: [DONE]\n\n",
)
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"


def chunked(*parts: bytes) -> bytes:
    body = b"".join(b"%X;x=y\r\n%b\r\n" % (len(p), p) for p in parts)
    return HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + body + b"0\r\n\r\n"


def feed(data: bytes, cuts: list[int] | None = None, *, eof: bool = False) -> tuple[Record, list[str], bool]:
    """Give bytes to a Stream in pieces; return its record, the events and whether the connection is kept."""
    seen: list[str] = []

    class Transport:
        def write(self, _: bytes) -> None: ...

        def abort(self) -> None:
            seen.append("abort")

    async def go() -> tuple[Record, bool]:
        stream = Stream(lambda _r, _t: seen.append("first"), lambda _t, _g: seen.append("chunk"), Inbox())
        stream.connection_made(Transport())  # type: ignore[arg-type]
        record = Record(clock())
        task = asyncio.create_task(stream.send(b"x", record, 5.0))
        await asyncio.sleep(0)
        edges = [0, *sorted({min(c, len(data)) for c in cuts or []}), len(data)]
        for start, end in itertools.pairwise(edges):
            if data[start:end]:
                stream.data_received(data[start:end])
        if eof:
            stream.connection_lost(None)
        if not task.done():
            await asyncio.wait([task], timeout=0.05)
        if not task.done():
            stream._fail("nothing came")
        await task
        return record, stream.open

    record, kept = asyncio.run(go())
    return record, seen, kept


def test_a_good_stream() -> None:
    record, seen, kept = feed(chunked(*EVENTS))
    assert record.ok
    assert (record.output_tokens, record.prompt_tokens, record.finish_reason) == (5, 7, "stop")
    assert seen == ["first", "chunk"]
    assert record.chunks == 2
    assert kept
    assert record.sent <= record.first <= record.last <= record.end


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, len(chunked(*EVENTS)) - 1), max_size=30))
def test_a_good_stream_cut_anywhere(cuts: list[int]) -> None:
    record, seen, _ = feed(chunked(*EVENTS), cuts)
    assert record.ok, record
    assert seen == ["first", "chunk"]
    assert record.output_tokens == 5


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=200), st.booleans())
def test_no_bytes_raise(data: bytes, head: bool) -> None:
    prefix = HEAD + b"Transfer-Encoding: chunked\r\n\r\n" if head else b""
    record, _, kept = feed(prefix + data, eof=True)
    assert not record.ok
    assert not kept


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (chunked(*EVENTS[:-1]), "without [DONE]"),
        (chunked(*EVENTS[:4], *EVENTS[5:]), "without finish_reason"),
        (chunked(EVENTS[0], *EVENTS[4:]), "without any content"),
        (chunked(b'data: {"choices":[{"delta":{"content":"a"},"finish_reason":"abort"}]}\n\n', EVENTS[-1]), "abort"),
        (chunked(EVENTS[2], b"data: {oops\n\n"), "malformed"),
        (chunked(EVENTS[2], b'data: {"choices":[]} x\n\n'), "expected one JSON object"),
        (chunked(EVENTS[2], b"garbage\n\n"), "expected `data:`"),
        (chunked(EVENTS[2], b"data: [1]\n\n"), "expected a JSON object"),
        (chunked(EVENTS[2], b'data: {"choices":[null]}\n\n'), "expected choices to be a list of JSON objects"),
        (chunked(EVENTS[2], b'data: {"choices":{"0":{}}}\n\n'), "expected choices to be a list of JSON objects"),
        (chunked(EVENTS[2], b'data: {"usage":[5]}\n\n'), "expected usage to hold counts"),
        (chunked(EVENTS[2], b'data: {"usage":{"completion_tokens":"5"}}\n\n'), "expected usage to hold counts"),
        (chunked(b'data: {"error":{"message":"engine died"}}\n\n'), "engine died"),
        (b"HTTP/1.1 503 Busy\r\nContent-Length: 32\r\n\r\n" + b'{"error": {"message": "queue!!"}}'[:32], "HTTP 503"),
        (b'HTTP/1.1 404 No\r\nContent-Length: 22\r\n\r\n{"detail":"Not Found"}', "HTTP 404: Not Found"),
        (b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 4\r\n\r\nhi!!", "not an event stream: hi!!"),
        (b"SSH-2.0-OpenSSH_9.6\r\n\r\n", "status line"),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n", "malformed"),
        (HEAD + b"Content-Length: 0\r\n\r\n", "without finish_reason"),
    ],
)
def test_a_bad_stream_says_what_was_wrong(data: bytes, words: str) -> None:
    record, _, _ = feed(data)
    assert words in str(record.error)


def test_a_body_that_ends_with_its_connection() -> None:
    record, _, kept = feed(HEAD + b"Connection: close\r\n\r\n" + b"".join(EVENTS), eof=True)
    assert record.ok
    assert not kept


def test_a_connection_lost_mid_stream() -> None:
    record, _, kept = feed(chunked(*EVENTS)[:-40], eof=True)
    assert "connection lost" in str(record.error)
    assert "mid-stream" in str(record.error)
    assert not kept


def test_a_full_server_is_told_from_a_broken_one() -> None:
    full, _, _ = feed(b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n")
    broken, _, _ = feed(b"HTTP/1.1 500 Oops\r\nContent-Length: 0\r\n\r\n")
    assert (full.full, broken.full) == (True, False)


@pytest.mark.parametrize(
    ("choice", "content"),
    [
        ({"text": "a"}, True),
        ({"text": ""}, False),
        ({"delta": {"content": "a"}}, True),
        ({"delta": {"reasoning_content": "a"}}, True),
        ({"delta": {"reasoning": "a"}}, True),
        ({"delta": {"tool_calls": [{}]}}, True),
        ({"delta": {"role": "assistant", "content": ""}}, False),
        ({"delta": None}, False),
        ({}, False),
    ],
)
def test_what_counts_as_content(choice: dict[str, Any], content: bool) -> None:
    assert content_of(choice) is content


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "ftp://x", "http://", "http://x:99999", "http://x:a", "http://[::1"])
def test_a_base_url_that_cannot_be_used(url: str) -> None:
    with pytest.raises(EndpointError, match=r"base URL: got .*, expected http"):
        Endpoint(url, "m")


@pytest.mark.parametrize(
    ("url", "path", "host"),
    [
        ("http://h:8000", "/v1/completions", "h:8000"),
        ("http://h:8000/v1/", "/v1/completions", "h:8000"),
        ("http://h/a/b/v1", "/a/b/v1/completions", "h"),
        ("https://h:443", "/v1/completions", "h"),
        ("http://[::1]:8000", "/v1/completions", "[::1]:8000"),
    ],
)
def test_where_a_request_goes(url: str, path: str, host: str) -> None:
    head = Endpoint(url, "m").head("POST", "/v1/completions", 3).decode()
    assert head.startswith(f"POST {path} HTTP/1.1\r\nHost: {host}\r\n")


def test_the_key_is_not_in_the_repr() -> None:
    endpoint = Endpoint("http://h", "m", headers={"Authorization": "Bearer secret"})
    assert "secret" not in repr(endpoint)
    assert b"Authorization: Bearer secret" in endpoint.head("GET", "/x")


@pytest.mark.parametrize("api", ["completions", "chat"])
def test_times_agree_with_the_servers_clock(api: str) -> None:
    async def go() -> None:
        async with serving(Physics(slots=4, itl=0.02), ServerConfig(template_tokens=9)) as server:
            endpoint = Endpoint(f"http://127.0.0.1:{server.port}", "sim", api=api)  # type: ignore[arg-type]
            client = Client(endpoint, on_first=lambda _r, _t: None, on_chunk=lambda _t, _g: None)
            body = body_of(Prompt(max_tokens=6, text="a b c"), model="sim", api=api, fixed_length=True)
            record = await client.request(body, Record(clock()))
            client.close()
            assert record.ok, record
            assert (record.output_tokens, record.prompt_tokens) == (6, 12 if api == "chat" else 3)
            assert record.chunks == 6
            # The client cannot see a token before the server made it.
            assert record.first - record.sent >= server.truth.first[0]
            assert record.end - record.sent >= server.truth.e2e[0]

    run(go())


def test_a_kept_connection_is_used_again_and_a_closed_one_replaced() -> None:
    async def go() -> None:
        async with serving(Physics(slots=4, itl=0.001)) as server:
            endpoint = Endpoint(f"http://127.0.0.1:{server.port}", "sim")
            client = Client(endpoint, on_first=lambda _r, _t: None, on_chunk=lambda _t, _g: None)
            body = body_of(Prompt(max_tokens=3, text="a"), model="sim", api="completions", fixed_length=True)
            for _ in range(3):
                assert (await client.request(body, Record(clock()))).ok
            assert len(server.connections) == 1
            for connection in list(server.connections):
                assert connection.transport is not None
                connection.transport.close()
            await asyncio.sleep(0.05)
            assert (await client.request(body, Record(clock()))).ok
            client.close()

    run(go())


def test_nobody_listens() -> None:
    async def go() -> Record:
        endpoint = Endpoint("http://127.0.0.1:1", "sim")
        client = Client(endpoint, on_first=lambda _r, _t: None, on_chunk=lambda _t, _g: None)
        return await client.request(b"{}", Record(clock()))

    assert "connection" in str(run(go()).error)

    async def get() -> None:
        await fetch(Endpoint("http://127.0.0.1:1", "sim"), "/metrics")

    with pytest.raises(EndpointError, match="GET /metrics"):
        run(get())


def test_https_is_checked_against_the_given_certificates(tmp_path: Path) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    made = subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1"),
            *("-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)),
        ],
        capture_output=True,
        check=False,
    )
    if made.returncode:
        pytest.skip("openssl cannot make a certificate here")

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(chunked(*EVENTS))
        await writer.drain()

    async def go(**how: Any) -> Record:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        server = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=context)
        port = server.sockets[0].getsockname()[1]
        client = Client(
            Endpoint(f"https://127.0.0.1:{port}", "sim", **how),
            on_first=lambda _r, _t: None,
            on_chunk=lambda _t, _g: None,
            timeout=5,
        )
        record = await client.request(b"{}", Record(clock()))
        client.close()
        server.close()
        return record

    assert run(go(ca_file=str(certificate))).ok
    assert run(go(insecure=True)).ok
    assert "certificate" in str(run(go()).error).lower()
    with pytest.raises(EndpointError, match="CA file"):
        Endpoint("https://h", "m", ca_file=str(tmp_path / "none.pem")).context()
