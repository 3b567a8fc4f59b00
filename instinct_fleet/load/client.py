"""A streaming client for OpenAI-compatible servers on the standard library's asyncio.

One connection carries one request at a time and is kept open. A stream counts as good only when the server sent a
``finish_reason`` and ``data: [DONE]`` and ended the response; anything else is a broken stream with its reason.
Tokens come from ``usage``, never from counting chunks: a chunk may hold several tokens.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import json
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from json.scanner import make_scanner  # the C scanner where there is one
from typing import Any, Literal, cast
from urllib.parse import urlsplit

Api = Literal["completions", "chat"]

#: HTTP statuses by which a server says that it is full. Everything else that is not 200 is a fault.
FULL = frozenset({429, 503})

clock = time.perf_counter
#: What json.loads comes down to, without its looks at encodings: half the time, for every token.
_scan: Callable[[str, int], tuple[Any, int]] = make_scanner(cast(Any, json.JSONDecoder()))


class EndpointError(Exception):
    """The endpoint cannot be used at all; the text says what was asked, what came back and what was expected."""


@dataclass(slots=True)
class Record:
    """One request's life, in seconds of :data:`clock`. ``intended`` is when the load model wanted it to start."""

    intended: float
    sent: float = 0.0
    first: float = 0.0
    last: float = 0.0
    end: float = 0.0
    chunks: int = 0
    output_tokens: int | None = None
    prompt_tokens: int | None = None
    finish_reason: str | None = None
    done: bool = False
    status: int = 0
    error: str | None = None

    @property
    def ok(self) -> bool:
        """The stream was complete."""
        return self.error is None

    @property
    def full(self) -> bool:
        """The server refused the request because it is full."""
        return self.status in FULL


@dataclass(frozen=True)
class Endpoint:
    """Where and how to ask. ``headers`` may hold a secret and are kept out of ``repr``."""

    base_url: str
    model: str
    api: Api = "completions"
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    ca_file: str | None = None
    insecure: bool = False

    def __post_init__(self) -> None:
        try:
            parts = urlsplit(self.base_url)
            usable = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 0) >= 0
        except ValueError:  # a port that is no number, or half an address in brackets
            usable = False
        if not usable:
            raise EndpointError(
                f"base URL: got {self.base_url!r}, expected http://HOST:PORT or https://HOST[:PORT], "
                "without or with the final /v1"
            )

    @property
    def host(self) -> str:
        """Host name or address."""
        return str(urlsplit(self.base_url).hostname)

    @property
    def port(self) -> int:
        """TCP port, 80 or 443 when the URL names none."""
        return urlsplit(self.base_url).port or (443 if self.tls else 80)

    @property
    def tls(self) -> bool:
        """True for https."""
        return urlsplit(self.base_url).scheme == "https"

    @property
    def prefix(self) -> str:
        """The path before /v1, without a final slash."""
        return urlsplit(self.base_url).path.rstrip("/").removesuffix("/v1")

    def context(self) -> ssl.SSLContext | None:
        """Return the TLS context, or None for plain http.

        Raises:
            EndpointError: the CA file cannot be read.
        """
        if not self.tls:
            return None
        try:
            context = ssl.create_default_context(cafile=self.ca_file)
        except (OSError, ssl.SSLError) as exc:
            raise EndpointError(f"CA file: {self.ca_file}: {exc}; expected certificates in PEM form") from exc
        if self.insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context

    def head(self, method: str, path: str, length: int | None = None) -> bytes:
        """Return the request line and headers for ``path`` under the base URL."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        default = 443 if self.tls else 80
        lines = [
            f"{method} {self.prefix}{path} HTTP/1.1",
            f"Host: {host}" if self.port == default else f"Host: {host}:{self.port}",
            "User-Agent: instinct-fleet",
            *(f"{name}: {value}" for name, value in self.headers.items()),
        ]
        if length is not None:
            lines += ["Content-Type: application/json", "Accept: text/event-stream", f"Content-Length: {length}"]
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")

    @property
    def path(self) -> str:
        """Path of the generating call, below the prefix."""
        return "/v1/chat/completions" if self.api == "chat" else "/v1/completions"


OnFirst = Callable[[Record, float], None]
OnChunk = Callable[[float, float], None]


def content_of(choice: Mapping[str, Any]) -> bool:
    """Return whether a streamed choice carries content: text, a reasoning delta or a tool call."""
    if choice.get("text"):
        return True
    delta = choice.get("delta")
    if not isinstance(delta, dict):
        return False
    return bool(
        delta.get("content") or delta.get("reasoning") or delta.get("reasoning_content") or delta.get("tool_calls")
    )


def _count(usage: Any, name: str) -> int | None:
    """Return a count of a stream's usage, None where it is not given; ValueError for what is no count."""
    count = usage.get(name) if isinstance(usage, dict) else usage
    if count is not None and not isinstance(count, int):
        raise ValueError(f"usage {str(usage)[:60]}, expected usage to hold counts of tokens")
    return count


class Inbox:
    """Takes the time of bytes when they arrive and leaves the work on them for after the present round of reads.

    A server sends the tokens of all its streams in one burst. Were each chunk worked on before the next socket is
    read, the last of 200 streams would seem several milliseconds slower than it is.
    """

    #: Chunks that are worked on before the sockets are looked at again: well under a millisecond.
    SLICE = 32

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._items: collections.deque[tuple[Stream, bytes, float]] = collections.deque()
        self._scheduled = False

    def put(self, stream: Stream, data: bytes, now: float) -> None:
        """Keep what a stream received at ``now``."""
        self._items.append((stream, data, now))
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._work)

    def _work(self) -> None:
        items = self._items
        for _ in range(min(self.SLICE, len(items))):
            stream, data, now = items.popleft()
            stream.work(data, now)
        self._scheduled = bool(items)
        if items:
            self._loop.call_soon(self._work)

    def flush(self, stream: Stream) -> None:
        """Work at once on all that one stream received: its connection is gone."""
        mine = [item for item in self._items if item[0] is stream]
        if mine:
            self._items = collections.deque(item for item in self._items if item[0] is not stream)
            for _, data, now in mine:
                stream.work(data, now)


class Stream(asyncio.Protocol):
    """One connection: writes a request, reads its response, and says what happened and when.

    ``on_first(record, now)`` is called at the first content, ``on_chunk(now, gap)`` at each later one.
    """

    def __init__(self, on_first: OnFirst, on_chunk: OnChunk, inbox: Inbox) -> None:
        self._on_first = on_first
        self._on_chunk = on_chunk
        self._inbox = inbox
        self._loop = asyncio.get_running_loop()
        self.transport: asyncio.Transport | None = None
        self.open = False
        self.record: Record | None = None
        self._waiter: asyncio.Future[None] | None = None
        self.fresh = True
        self._clear()

    def _clear(self) -> None:
        self._buffer = b""
        self._line = b""
        self._text = b""
        self._in_body = False
        self._chunked = False
        self._left: int | None = None
        self._close = False
        self._event_stream = False

    # ---- asyncio.Protocol -----------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self.transport = cast(asyncio.Transport, transport)
        self.open = True

    def connection_lost(self, exc: Exception | None) -> None:
        """End the request that was under way."""
        self.open = False
        self._inbox.flush(self)
        record = self.record
        if record is None:
            return
        if self._in_body and not self._chunked and self._left is None:
            self._finish(clock())  # a body without a length ends with its connection
        else:
            self._fail(f"connection lost{f': {exc}' if exc else ''}" + (" mid-stream" if record.chunks else ""))

    def eof_received(self) -> bool:
        """Let the transport close."""
        return False

    def data_received(self, data: bytes) -> None:
        """Take the time, and leave the bytes for later."""
        self._inbox.put(self, data, clock())

    def work(self, data: bytes, now: float) -> None:
        """Take bytes apart that arrived at ``now``."""
        if self.record is None:
            # Bytes that nobody asked for: the connection cannot be trusted with another request.
            self._drop()
            return
        try:
            self._feed(self._buffer + data if self._buffer else data, now)
        except ValueError as exc:
            self._fail(f"malformed response: {exc}")

    # ---- HTTP -----------------------------------------------------------------------------------------------------

    def _feed(self, data: bytes, now: float) -> None:
        position = 0
        if not self._in_body:
            end = data.find(b"\r\n\r\n")
            if end < 0:
                if len(data) > 65536:
                    raise ValueError("response headers over 64 KiB")
                self._buffer = data
                return
            self._headers(data[:end])
            position = end + 4
            self._in_body = True
        if not self._chunked:
            self._buffer = b""
            body = data[position:]
            if self._left is not None:
                body = body[: self._left]
                self._left -= len(body)
            self._body(body, now)
            if self._left == 0 and self.record is not None:
                self._finish(now)
            return
        size_of = len(data)
        while True:
            end = data.find(b"\r\n", position)
            if end < 0:
                break
            size = int(data[position:end].split(b";", 1)[0], 16)
            stop = end + 2 + size
            if stop + 2 > size_of:
                break
            if size == 0:
                self._buffer = b""
                self._finish(now)
                return
            self._body(data[end + 2 : stop], now)
            if self.record is None:
                return
            position = stop + 2
        self._buffer = data[position:]

    def _headers(self, head: bytes) -> None:
        record = self.record
        assert record is not None  # noqa: S101 - data_received returned otherwise
        status, *lines = head.decode("latin-1").split("\r\n")
        words = status.split(" ", 2)
        if len(words) < 2 or not words[0].startswith("HTTP/1.") or not words[1].isdecimal():
            raise ValueError(f"status line {status[:80]!r}, expected HTTP/1.x")
        record.status = int(words[1])
        headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        self._chunked = headers.get("transfer-encoding", "").lower() == "chunked"
        length = headers.get("content-length")
        self._left = int(length) if length is not None and not self._chunked else None
        self._close = headers.get("connection", "").lower() == "close" or words[0] == "HTTP/1.0"
        self._event_stream = headers.get("content-type", "").startswith("text/event-stream")

    def _body(self, data: bytes, now: float) -> None:
        record = self.record
        assert record is not None  # noqa: S101 - as above
        if record.status != 200 or not self._event_stream:
            if len(self._text) < 2000:
                self._text += data
            return
        lines = (self._line + data if self._line else data).split(b"\n")
        self._line = lines.pop()
        for raw in lines:
            line = raw.rstrip(b"\r")
            if not line:
                continue
            if line.startswith(b"data:"):
                self._event(line[5:].strip(), now, record)
            elif not line.startswith((b":", b"event:", b"id:", b"retry:")):
                raise ValueError(f"line {line[:60]!r} in the event stream, expected `data:`")
            if self.record is None:
                return

    def _event(self, payload: bytes, now: float, record: Record) -> None:
        if payload == b"[DONE]":
            record.done = True
            return
        text = payload.decode()
        try:
            event, end = _scan(text, 0)
        except StopIteration:
            end = -1
        if end != len(text):
            raise ValueError(f"event {payload[:60]!r}, expected one JSON object")
        if not isinstance(event, dict):
            raise ValueError(f"event {payload[:60]!r}, expected a JSON object")
        if event.get("error"):
            self._fail(f"error in the stream: {_brief(event['error'])}")
            return
        choices = event.get("choices")
        if choices:
            choice = choices[0] if isinstance(choices, list) else None
            if not isinstance(choice, dict):
                raise ValueError(f"event {payload[:60]!r}, expected choices to be a list of JSON objects")
            if content_of(choice):
                if record.chunks:
                    self._on_chunk(now, now - record.last)
                else:
                    record.first = now
                    self._on_first(record, now)
                record.chunks += 1
                record.last = now
            if choice.get("finish_reason"):
                record.finish_reason = str(choice["finish_reason"])
        usage = event.get("usage")
        if usage:
            output, prompt = _count(usage, "completion_tokens"), _count(usage, "prompt_tokens")
            record.output_tokens, record.prompt_tokens = output, prompt

    # ---- ends -----------------------------------------------------------------------------------------------------

    def _finish(self, now: float) -> None:
        record = self.record
        assert record is not None  # noqa: S101 - as above
        if record.status != 200:
            record.error = f"HTTP {record.status}: {self._message()}"
        elif not self._event_stream:
            record.error = f"response is not an event stream: {self._message()}"
        elif record.finish_reason is None:
            record.error = "stream ended without finish_reason"
        elif record.finish_reason in ("abort", "error"):
            # vLLM ends a stream this way when it drops the request, for example while shutting down.
            record.error = f"finish_reason {record.finish_reason}"
        elif not record.done:
            record.error = "stream ended without [DONE]"
        elif record.chunks == 0:
            record.error = "stream without any content"
        if self._close:
            self._drop()
        self._wake(now)

    def _message(self) -> str:
        text = self._text.decode("utf-8", "replace")
        with contextlib.suppress(ValueError):
            document = json.loads(text)
            if isinstance(document, dict):
                return _brief(document.get("error") or document.get("detail") or document)
        return " ".join(text.split())[:200] or "empty body"

    def _fail(self, reason: str) -> None:
        if self.record is not None:
            self.record.error = reason
        self._drop()
        self._wake(clock())

    def _drop(self) -> None:
        self.open = False
        if self.transport is not None:
            self.transport.abort()

    def _wake(self, now: float) -> None:
        record, waiter = self.record, self._waiter
        self.record = self._waiter = None
        if record is not None:
            record.end = now
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    async def send(self, request: bytes, record: Record, timeout: float) -> None:
        """Send one request and wait for its end; the record then tells everything. Never raises for the server."""
        assert self.transport is not None  # noqa: S101 - connect() made it
        self._clear()
        self.record = record
        self._waiter = waiter = self._loop.create_future()
        timer = self._loop.call_later(timeout, self._fail, f"no end within {timeout:g} s")
        record.sent = clock()
        self.transport.write(request)
        self.fresh = False
        try:
            await waiter
        finally:
            timer.cancel()
            if self.record is not None:  # cancelled: half a response is on this connection
                self._fail("cancelled")


def _brief(value: Any) -> str:
    if isinstance(value, Mapping):
        value = value.get("message") or json.dumps(value)
    return " ".join(str(value).split())[:200]


class Client:
    """Connections to one endpoint, opened as they are needed and kept."""

    def __init__(self, endpoint: Endpoint, *, on_first: OnFirst, on_chunk: OnChunk, timeout: float = 600.0) -> None:
        self.endpoint = endpoint
        self.timeout = timeout
        self._on_first = on_first
        self._on_chunk = on_chunk
        self._context = endpoint.context()
        self._inbox: Inbox | None = None
        self._idle: list[Stream] = []

    async def _connect(self) -> Stream:
        loop = asyncio.get_running_loop()
        inbox = self._inbox = self._inbox or Inbox()
        _, stream = await asyncio.wait_for(
            loop.create_connection(
                lambda: Stream(self._on_first, self._on_chunk, inbox),
                self.endpoint.host,
                self.endpoint.port,
                ssl=self._context,
            ),
            timeout=10,
        )
        return stream

    async def request(self, body: bytes, record: Record) -> Record:
        """Send one request; return its record. Time-outs, refusals and broken streams are in ``record.error``."""
        message = self.endpoint.head("POST", self.endpoint.path, len(body)) + body
        for _ in range(2):
            stream = None
            while self._idle and stream is None:
                candidate = self._idle.pop()
                stream = candidate if candidate.open else None
            reused = stream is not None
            if stream is None:
                try:
                    stream = await self._connect()
                except (OSError, TimeoutError) as exc:
                    record.error = f"connection: {str(exc) or type(exc).__name__}"
                    record.sent = record.sent or clock()
                    record.end = clock()
                    return record
            await stream.send(message, record, self.timeout)
            if stream.open:
                self._idle.append(stream)
            if reused and record.status == 0 and record.error and record.error.startswith("connection lost"):
                # The server had closed the kept connection before it saw the request: not its fault, ask again.
                record.error = None
                continue
            return record
        return record

    def close(self) -> None:
        """Close the idle connections."""
        for stream in self._idle:
            if stream.transport is not None:
                stream.transport.close()
        self._idle.clear()


async def fetch(endpoint: Endpoint, path: str, *, timeout: float = 5.0) -> tuple[int, bytes]:
    """GET a small document below the base URL on a connection of its own; return (status, body).

    Raises:
        EndpointError: no answer; the text says why.
    """
    where = f"{endpoint.base_url.rstrip('/')}: GET {endpoint.prefix}{path}"
    try:
        async with asyncio.timeout(timeout):
            reader, writer = await asyncio.open_connection(
                endpoint.host, endpoint.port, ssl=endpoint.context(), limit=2**20
            )
            try:
                head = endpoint.head("GET", path).replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
                writer.write(head)
                raw = await reader.read(-1)
            finally:
                writer.close()
    except (OSError, TimeoutError) as exc:
        raise EndpointError(f"{where}: {str(exc) or f'no answer within {timeout:g} s'}") from exc
    top, _, body = raw.partition(b"\r\n\r\n")
    words = top.split(b" ", 2)
    if len(words) < 2 or not words[1][:3].isdigit():
        raise EndpointError(f"{where}: got {raw[:60]!r}, expected an HTTP response")
    if b"transfer-encoding: chunked" in top.lower():
        body = _unchunk(body)
    return int(words[1][:3]), body


def _unchunk(body: bytes) -> bytes:
    parts = []
    while body:
        size_line, _, rest = body.partition(b"\r\n")
        try:
            size = int(size_line.split(b";", 1)[0], 16)
        except ValueError:
            break
        if size == 0:
            break
        parts.append(rest[:size])
        body = rest[size + 2 :]
    return b"".join(parts)
