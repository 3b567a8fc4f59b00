"""A simulated serving engine whose truth is known: for the load test, the gateway and the rollout tests.

:class:`Engine` is the physics, one scheduler step at a time, without a clock: continuous batching with a number of
slots, a FIFO queue, chunked prefill, a step time that grows with the batch, and a KV cache that runs out and
preempts. :class:`VirtualServer` runs it in virtual time for the quality benchmark; ``python
tests/support/simulator.py`` serves it over HTTP like vLLM does (streaming completions and chat, vLLM's metric names,
``/health``, ``/v1/models``, drain on SIGTERM) with faults on request.

Only the standard library is used, so that it also runs on a bare test node.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import contextlib
import json
import math
import random
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

Fault = str
#: What the HTTP server can do wrong. ``drop``: reset mid-stream; ``stall``: stop sending; ``malformed``: bad JSON;
#: ``no_done``: end without [DONE]; ``no_finish``: no finish_reason; ``no_usage``: no usage; ``error``: HTTP 500;
#: ``full``: HTTP 503; ``die``: close every connection and the listener once.
FAULTS = ("drop", "stall", "malformed", "no_done", "no_finish", "no_usage", "error", "full", "die")


@dataclass(frozen=True)
class Physics:
    """What the engine is.

    A step takes ``itl * (1 + growth * (n - 1) + quadratic * (n - 1)**2)`` seconds for ``n`` sequences, plus
    ``prefill`` seconds a prompt token of that step (at most ``prefill_budget`` tokens a step), times an even random
    factor of 1 -/+ ``jitter``. ``kv_tokens`` bounds the tokens held by running sequences; when it runs out the newest
    sequence is preempted and later recomputed. ``slow``: (factor, mean seconds slow, mean seconds normal), a server
    with moods. ``max_queue``: more waiting requests than this are refused.
    """

    slots: int = 32
    itl: float = 0.02
    growth: float = 0.0
    quadratic: float = 0.0
    prefill: float = 0.0001
    prefill_budget: int = 2048
    jitter: float = 0.0
    kv_tokens: int | None = None
    slow: tuple[float, float, float] | None = None
    max_queue: int | None = None

    def step_seconds(self, sequences: float, prompt_tokens: float = 0.0) -> float:
        """Return the mean time of one step (seconds), moods left out."""
        n = max(0.0, sequences - 1)
        return self.itl * (1 + self.growth * n + self.quadratic * n * n) + self.prefill * prompt_tokens

    def throughput(self, concurrency: float, *, prompt: float, output: float) -> float:
        """Return output tokens/s of a closed loop, by balance: exact while the KV cache does not run out.

        Of ``n`` sequences in a step, ``n / output`` end, so as many prompts are read meanwhile.
        """
        n = min(concurrency, self.slots)
        rate = n / self.step_seconds(n, n / output * prompt)
        if self.slow is not None:
            factor, slow, normal = self.slow
            # Progress is made in the time the steps get: normal time counts whole, slow time by its factor.
            rate *= (normal + slow / factor) / (normal + slow)
        return rate


class Sequence:
    """One request inside the engine. ``owner`` is whatever the caller wants to find again."""

    __slots__ = ("arrived", "entered", "generated", "left", "max_tokens", "owner", "prompt", "running", "since")

    def __init__(self, prompt: int, max_tokens: int, owner: Any = None, arrived: float = 0.0) -> None:
        self.prompt = prompt
        self.max_tokens = max_tokens
        self.owner = owner
        self.arrived = arrived
        self.entered = 0.0  # the engine's time at which it was queued
        self.generated = 0  # when it last entered or left the batch; see Engine.tokens_of
        self.since = 0
        self.left = prompt
        self.running = False


@dataclass
class Step:
    """What one step did: ``decoded`` sequences made a token each, ``first`` made their first, ``ended`` their last."""

    seconds: float
    decoded: int
    first: list[Sequence] = field(default_factory=list)
    ended: list[Sequence] = field(default_factory=list)


class Engine:
    """The scheduler, step by step. ``time`` is the sum of its steps (only moods depend on it)."""

    def __init__(self, physics: Physics, seed: int = 0) -> None:
        self.physics = physics
        self.rng = random.Random(seed)
        self.waiting: collections.deque[Sequence] = collections.deque()
        self.prefilling: collections.deque[Sequence] = collections.deque()
        self.running: dict[Sequence, None] = {}
        self.steps = 0
        self.time = 0.0
        self.held = 0  # tokens in the KV cache
        self.preemptions = 0
        self.queue_seconds = 0.0
        self.queue_count = 0
        self._ends: dict[int, list[Sequence]] = {}
        self._slow_now = False
        self._mood_until = 0.0

    @property
    def num_running(self) -> int:
        """Sequences that hold a slot."""
        return len(self.running) + len(self.prefilling)

    @property
    def idle(self) -> bool:
        """Nothing to do."""
        return not self.waiting and not self.prefilling and not self.running

    def submit(self, sequence: Sequence) -> bool:
        """Queue a request; False when the queue is full."""
        limit = self.physics.max_queue
        if limit is not None and len(self.waiting) >= limit:
            return False
        sequence.entered = self.time
        self.waiting.append(sequence)
        return True

    def abort(self, sequence: Sequence) -> None:
        """Take a request out, wherever it is."""
        with contextlib.suppress(ValueError):
            self.waiting.remove(sequence)
        if sequence in self.running:
            self._leave(sequence)
        elif sequence in self.prefilling:
            self.prefilling.remove(sequence)
            self.held -= sequence.prompt + sequence.generated

    def tokens_of(self, sequence: Sequence) -> int:
        """Return how many tokens a sequence has made."""
        return sequence.generated + (self.steps - sequence.since if sequence.running else 0)

    def _leave(self, sequence: Sequence) -> None:
        sequence.generated = self.tokens_of(sequence)
        sequence.running = False
        del self.running[sequence]
        self.held -= sequence.prompt + sequence.generated

    def _admit(self) -> None:
        physics = self.physics
        while self.waiting and self.num_running < physics.slots:
            candidate = self.waiting[0]
            need = candidate.prompt + candidate.generated
            # One per cent is kept free, as vLLM's watermark does, so that admission does not preempt at once.
            if physics.kv_tokens is not None and self.held + need > 0.99 * physics.kv_tokens and self.num_running:
                return
            self.waiting.popleft()
            if not candidate.generated:  # else it was preempted, and has waited before
                self.queue_seconds += self.time - candidate.entered
                self.queue_count += 1
            candidate.left = need
            self.held += need
            self.prefilling.append(candidate)

    def _make_room(self) -> None:
        limit = self.physics.kv_tokens
        while limit is not None and self.held + len(self.running) > limit and len(self.running) > 1:
            victim = next(reversed(self.running))
            self._leave(victim)
            self.preemptions += 1
            self.waiting.appendleft(victim)

    def _mood(self) -> float:
        if self.physics.slow is None:
            return 1.0
        factor, slow, normal = self.physics.slow
        while self.time >= self._mood_until:
            self._slow_now = not self._slow_now if self.steps else False
            self._mood_until += self.rng.expovariate(1 / (slow if self._slow_now else normal))
        return factor if self._slow_now else 1.0

    def step(self) -> Step:
        """Run one step and return what it did."""
        physics = self.physics
        self._make_room()
        self._admit()
        budget = physics.prefill_budget
        read = 0
        ready: list[Sequence] = []
        while self.prefilling and budget > 0:
            head = self.prefilling[0]
            part = min(budget, head.left)
            head.left -= part
            budget -= part
            read += part
            if head.left:
                break
            ready.append(self.prefilling.popleft())
        decoded = len(self.running)
        seconds = physics.step_seconds(decoded + len(ready), read)
        if physics.jitter:
            seconds *= 1 + physics.jitter * (2 * self.rng.random() - 1)
        seconds *= self._mood()
        self.time += seconds
        self.steps += 1
        self.held += decoded
        result = Step(seconds, decoded)
        for sequence in self._ends.pop(self.steps, ()):
            if sequence.running and self.tokens_of(sequence) >= sequence.max_tokens:
                self._leave(sequence)
                result.ended.append(sequence)
        for sequence in ready:
            if sequence.generated == 0:
                result.first.append(sequence)
                sequence.generated = 1
            else:
                sequence.generated += 1  # recomputed after a preemption, which also makes the next token
                result.decoded += 1
            self.held += 1
            sequence.since = self.steps
            sequence.running = True
            self.running[sequence] = None
            if sequence.generated >= sequence.max_tokens:
                self._leave(sequence)
                result.ended.append(sequence)
            else:
                self._ends.setdefault(self.steps + sequence.max_tokens - sequence.generated, []).append(sequence)
        return result


Lengths = Callable[[random.Random], tuple[int, int]]


def even_lengths(prompt: int, output: int, spread: float = 0.2) -> Lengths:
    """Return a source of (prompt, output) lengths, even around their means."""

    def draw(rng: random.Random) -> tuple[int, int]:
        return (
            max(1, round(prompt * (1 + spread * (2 * rng.random() - 1)))),
            max(1, round(output * (1 + spread * (2 * rng.random() - 1)))),
        )

    return draw


def heavy_lengths(prompt: int, median_output: int, sigma: float = 1.0, limit: int = 4096) -> Lengths:
    """Return a source of lengths whose output is log-normal: a few answers are very long."""

    def draw(rng: random.Random) -> tuple[int, int]:
        return max(1, round(prompt * (0.8 + 0.4 * rng.random()))), min(
            limit, max(2, round(median_output * math.exp(sigma * rng.gauss(0, 1))))
        )

    return draw


def mean_output(lengths: Lengths, seed: int = 1, count: int = 200_000) -> float:
    """Return the mean output length of a source, by drawing from it."""
    rng = random.Random(seed)
    return sum(lengths(rng)[1] for _ in range(count)) / count


class VirtualServer:
    """A closed loop on an :class:`Engine` in virtual time: what the driver does on a live endpoint.

    ``now`` is virtual seconds. :meth:`advance` moves to the next step and yields what the clients saw.
    """

    def __init__(self, physics: Physics, lengths: Lengths, seed: int = 0) -> None:
        self.engine = Engine(physics, seed)
        self.lengths = lengths
        self.rng = random.Random(seed * 7919 + 1)
        self.now = 0.0
        self.target = 0
        self.in_flight = 0
        self._starts: collections.deque[float] = collections.deque()

    def ramp(self, target: int, spread: float) -> float:
        """Set the number of clients; new ones start evenly over ``spread`` seconds. Return when the last one starts."""
        self.target = target
        missing = max(0, target - self.in_flight - len(self._starts))
        while len(self._starts) > max(0, target - self.in_flight):
            self._starts.pop()
        self._starts.extend(self.now + spread * i / max(1, missing) for i in range(missing))
        return self._starts[-1] if self._starts else self.now

    def _submit(self, at: float) -> None:
        prompt, output = self.lengths(self.rng)
        self.engine.submit(Sequence(prompt, output, arrived=at))
        self.in_flight += 1

    def advance(self) -> Step:
        """Run one step; clients whose request ended ask again at once unless there are more than ``target``."""
        if self.engine.idle and self._starts:
            self.now = max(self.now, self._starts[0])
        while self._starts and self._starts[0] <= self.now:
            self._submit(self._starts.popleft())
        step = self.engine.step()
        self.now += step.seconds
        for _ in step.ended:
            self.in_flight -= 1
        for _ in step.ended:
            if self.in_flight + len(self._starts) < self.target:
                self._submit(self.now)
        return step


# ---- the HTTP server --------------------------------------------------------------------------------------------


@dataclass
class ServerConfig:
    """How the HTTP server behaves. ``tokens_per_chunk`` > 1 sends several tokens in one event.

    ``fault`` with probability ``fault_rate`` a request, from ``fault_after`` requests on. ``ready_after`` seconds the
    port answers 503 on /health. ``drain`` seconds running streams may go on after SIGTERM.
    """

    model: str = "sim"
    tokens_per_chunk: int = 1
    fault: Fault | None = None
    fault_rate: float = 1.0
    fault_after: int = 0
    die_after: float | None = None
    api_key: str | None = None
    metrics: bool = True
    drain: float = 30.0
    ready_after: float = 0.0
    tag: str = "x"
    version: str = "0.33.0"
    usage: bool = True
    extra_metrics: int = 0
    #: Words count as tokens in this proportion, and a chat adds ``template_tokens``.
    tokens_per_word: float = 1.0
    template_tokens: int = 0


@dataclass
class Truth:
    """The server's own clock: times (perf_counter seconds) by which clients are judged.

    ``first`` holds, for each request, the time from the arrival of its last byte to its first token written.
    """

    requests: int = 0
    tokens: int = 0
    first: list[float] = field(default_factory=list)
    e2e: list[float] = field(default_factory=list)
    token_times: list[tuple[float, int]] = field(default_factory=list)
    peak_in_flight: int = 0


class _Request:
    __slots__ = ("arrived", "buffered", "chat", "fault", "first", "prompt", "sent", "stream", "usage", "writer")

    def __init__(self, writer: asyncio.Transport, *, chat: bool, usage: bool, stream: bool, prompt: int) -> None:
        self.writer = writer
        self.chat = chat
        self.usage = usage
        self.stream = stream
        self.prompt = prompt
        self.arrived = time.perf_counter()
        self.first = 0.0
        self.sent = 0
        self.buffered = 0
        self.fault: Fault | None = None


class SimServer:
    """Serves an :class:`Engine` in real time. ``truth`` is what really happened, by the server's clock."""

    def __init__(self, physics: Physics, config: ServerConfig | None = None, seed: int = 0) -> None:
        self.engine = Engine(physics, seed)
        self.config = config or ServerConfig()
        self.truth = Truth()
        self.rng = random.Random(seed + 17)
        self.port = 0
        self.seen = 0
        self.draining = False
        self._wake = asyncio.Event()
        self._server: asyncio.Server | None = None
        self._task: asyncio.Task[None] | None = None
        self._started = time.perf_counter()
        self.connections: set[_Connection] = set()

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> int:
        """Listen; return the port."""
        self._server = await asyncio.get_running_loop().create_server(
            lambda: _Connection(self), host, port, backlog=4096
        )
        self.port = self._server.sockets[0].getsockname()[1]
        self._started = time.perf_counter()
        self._task = asyncio.create_task(self._run())
        return self.port

    async def stop(self, drain: float = 0.0) -> None:
        """Refuse new requests, let running streams go on for up to ``drain`` seconds, then close everything."""
        self.draining = True
        deadline = time.perf_counter() + drain
        while not self.engine.idle and time.perf_counter() < deadline:
            await asyncio.sleep(0.02)
        self.die()
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    def die(self) -> None:
        """Close the listener and every connection at once."""
        if self._server is not None:
            self._server.close()
        for connection in list(self.connections):
            if connection.transport is not None:
                connection.transport.abort()

    def submit(self, request: _Request, max_tokens: int) -> Sequence | None:
        """Queue a request; None when the queue is full."""
        self.seen += 1
        self.truth.requests += 1
        config = self.config
        if config.fault and self.seen > config.fault_after and self.rng.random() < config.fault_rate:
            request.fault = config.fault
        sequence = Sequence(request.prompt, max_tokens, owner=request)
        if not self.engine.submit(sequence):
            return None
        self.truth.peak_in_flight = max(self.truth.peak_in_flight, self.engine.num_running + len(self.engine.waiting))
        self._wake.set()
        return sequence

    async def _run(self) -> None:
        engine = self.engine
        due = time.perf_counter()
        while True:
            if self.config.die_after is not None and time.perf_counter() - self._started > self.config.die_after:
                self.die()
                return
            if engine.idle:
                self._wake.clear()
                await self._wake.wait()
                due = time.perf_counter()
            members = list(engine.running)
            step = engine.step()
            # The schedule is kept in absolute time, so that late wake-ups do not add up.
            due = max(due + step.seconds, time.perf_counter() - 0.05)
            wait = due - time.perf_counter()
            await asyncio.sleep(max(0.0, wait))
            now = time.perf_counter()
            ended = set(step.ended)
            for sequence in step.first:
                self._token(sequence, now, last=sequence in ended, first=True)
            made = len(step.first)
            for position, sequence in enumerate(members):
                if position % 16 == 15:
                    # Look at the sockets in between: a request that waits unread would arrive late by this clock.
                    await asyncio.sleep(0)
                if sequence.running or sequence in ended:
                    self._token(sequence, now, last=sequence in ended, first=False)
                    made += 1
            self.truth.tokens += made
            self.truth.token_times.append((now, made))

    def _token(self, sequence: Sequence, now: float, *, last: bool, first: bool) -> None:
        request: _Request = sequence.owner
        if first:
            # Not the time of the step: the tokens of a step are written one after the other.
            request.first = time.perf_counter()
            self.truth.first.append(request.first - request.arrived)
        request.buffered += 1
        if last:
            self.truth.e2e.append(now - request.arrived)
        if not request.stream:
            if last:
                _whole(self, request, sequence.max_tokens)
            return
        per_chunk = self.config.tokens_per_chunk
        # The first token is always sent alone: holding it back would change the time to it.
        if not (first or last or request.buffered >= per_chunk):
            return
        if request.fault == "stall" and request.sent:
            return
        request.sent += 1
        text = f" {self.config.tag}" * request.buffered
        request.buffered = 0
        if request.fault == "drop" and request.sent > 2:
            request.writer.abort()
            return
        if request.fault == "malformed" and request.sent > 1:
            _chunk(request.writer, b'data: {"choices": [{"te\n\n')
            return
        finish = "length" if last and request.fault != "no_finish" else None
        out = _event(self.config.model, request.chat, text, finish)
        if last:
            if request.usage and request.fault != "no_usage" and self.config.usage:
                out += _usage(self.config.model, request.prompt, sequence.max_tokens)
            if request.fault != "no_done":
                out += b"data: [DONE]\n\n"
        _chunk(request.writer, out, end=last)

    def metrics(self) -> bytes:
        """Render vLLM's metric names."""
        engine = self.engine
        kv = engine.held / engine.physics.kv_tokens if engine.physics.kv_tokens else 0.0
        label = f'{{engine="0",model_name="{self.config.model}"}}'
        lines = [
            "# TYPE vllm:num_requests_running gauge",
            f"vllm:num_requests_running{label} {float(engine.num_running)}",
            f"vllm:num_requests_waiting{label} {float(len(engine.waiting))}",
            f"vllm:kv_cache_usage_perc{label} {kv:.6f}",
            f"vllm:num_preemptions_total{label} {float(engine.preemptions)}",
            f"vllm:request_queue_time_seconds_sum{label} {engine.queue_seconds:.6f}",
            f"vllm:request_queue_time_seconds_count{label} {float(engine.queue_count)}",
            f"vllm:generation_tokens_total{label} {float(self.truth.tokens)}",
            f'vllm:request_success_total{{engine="0",finished_reason="length",model_name="{self.config.model}"}} '
            f"{float(len(self.truth.e2e))}",
            f"vllm:time_to_first_token_seconds_sum{label} {sum(self.truth.first):.6f}",
            f"vllm:time_to_first_token_seconds_count{label} {float(len(self.truth.first))}",
        ]
        lines += [f'some_other_metric_bucket{{le="{i}"}} {i}.0' for i in range(self.config.extra_metrics)]
        return ("\n".join(lines) + "\n").encode()


def _chunk(writer: asyncio.Transport, data: bytes, *, end: bool = False) -> None:
    if not writer.is_closing():
        writer.write(b"%x\r\n%b\r\n%b" % (len(data), data, b"0\r\n\r\n" if end else b""))


def _event(model: str, chat: bool, text: str, finish: str | None) -> bytes:
    stop = f'"{finish}"' if finish else "null"
    if chat:
        return (
            f'data: {{"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"{model}","choices":'
            f'[{{"index":0,"delta":{{"content":"{text}"}},"logprobs":null,"finish_reason":{stop}}}]}}\n\n'
        ).encode()
    return (
        f'data: {{"id":"cmpl-1","object":"text_completion","created":1,"model":"{model}","choices":'
        f'[{{"index":0,"text":"{text}","logprobs":null,"finish_reason":{stop},"stop_reason":null}}]}}\n\n'
    ).encode()


def _usage(model: str, prompt: int, output: int) -> bytes:
    return (
        f'data: {{"id":"1","object":"chunk","created":1,"model":"{model}","choices":[],"usage":'
        f'{{"prompt_tokens":{prompt},"total_tokens":{prompt + output},"completion_tokens":{output}}}}}\n\n'
    ).encode()


def _whole(server: SimServer, request: _Request, output: int) -> None:
    text = f" {server.config.tag}" * output
    choice: dict[str, Any] = {"index": 0, "finish_reason": "length"}
    choice |= {"message": {"role": "assistant", "content": text}} if request.chat else {"text": text}
    usage = {"prompt_tokens": request.prompt, "completion_tokens": output, "total_tokens": request.prompt + output}
    document = {"id": "1", "object": "text_completion", "model": server.config.model}
    _answer(request.writer, 200, json.dumps({**document, "choices": [choice], "usage": usage}).encode())


def _answer(writer: asyncio.Transport, status: int, body: bytes, kind: str = "application/json") -> None:
    reason = {200: "OK", 401: "Unauthorized", 404: "Not Found", 500: "Internal Server Error", 503: "Unavailable"}
    head = f"HTTP/1.1 {status} {reason.get(status, 'X')}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
    if not writer.is_closing():
        writer.write(head.encode() + body)


class _Connection(asyncio.Protocol):
    """Enough of HTTP/1.1 for one request after another on a kept connection."""

    def __init__(self, server: SimServer) -> None:
        self.server = server
        self.transport: asyncio.Transport | None = None
        self.sequence: Sequence | None = None
        self._buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]
        self.server.connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.server.connections.discard(self)
        if self.sequence is not None:
            self.server.engine.abort(self.sequence)  # like vLLM, which aborts when the client goes away

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head, separator, rest = self._buffer.partition(b"\r\n\r\n")
        if not separator:
            return
        line, *headers = head.decode("latin-1").split("\r\n")
        fields = {k.strip().lower(): v.strip() for k, _, v in (h.partition(":") for h in headers)}
        length = int(fields.get("content-length", 0))
        if len(rest) < length:
            return
        self._buffer = rest[length:]
        method, target, _ = line.split(" ", 2)
        self._handle(method, target.split("?")[0], fields, rest[:length])
        if fields.get("connection", "").lower() == "close" and method == "GET" and self.transport is not None:
            self.transport.close()

    def _handle(self, method: str, path: str, fields: dict[str, str], body: bytes) -> None:
        transport, server, config = self.transport, self.server, self.server.config
        assert transport is not None
        if path in ("/health", "/ping"):
            ready = time.perf_counter() - server._started >= config.ready_after
            _answer(transport, 200 if ready else 503, b"")
        elif path == "/version":
            _answer(transport, 200, json.dumps({"version": config.version}).encode())
        elif path == "/metrics" and config.metrics:
            _answer(transport, 200, server.metrics(), "text/plain; version=0.0.4")
        elif path.startswith("/v1/") and config.api_key and fields.get("authorization") != f"Bearer {config.api_key}":
            _answer(transport, 401, b'{"error": "Unauthorized"}')
        elif path == "/v1/models":
            model = {"id": config.model, "object": "model", "max_model_len": 8192}
            _answer(transport, 200, json.dumps({"object": "list", "data": [model]}).encode())
        elif method == "POST" and path in ("/v1/completions", "/v1/chat/completions"):
            self._generate(json.loads(body), chat=path.endswith("chat/completions"))
        else:
            _answer(transport, 404, b'{"detail": "Not Found"}')

    def _generate(self, body: dict[str, Any], *, chat: bool) -> None:
        transport, server, config = self.transport, self.server, self.server.config
        assert transport is not None
        if server.draining:
            _answer(transport, 503, b'{"error": {"message": "shutting down"}}')
            return
        if body.get("model") != config.model:
            message = f"The model `{body.get('model')}` does not exist."
            _answer(transport, 404, json.dumps({"error": {"message": message, "code": 404}}).encode())
            return
        text = body.get("prompt") or " ".join(str(m.get("content", "")) for m in body.get("messages", []))
        prompt = math.ceil(len(text.split()) * config.tokens_per_word) + (config.template_tokens if chat else 0)
        request = _Request(
            transport,
            chat=chat,
            usage=bool((body.get("stream_options") or {}).get("include_usage")),
            stream=bool(body.get("stream")),
            prompt=max(1, prompt),
        )
        self.sequence = server.submit(request, int(body.get("max_tokens") or 16))
        if self.sequence is None or request.fault == "full":
            self._refuse(503, b'{"error": {"message": "queue is full"}}')
        elif request.fault == "error":
            self._refuse(500, b'{"error": {"message": "internal error"}}')
        elif request.fault == "die":
            server.die()
        elif request.stream:
            transport.write(
                b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
                b"Transfer-Encoding: chunked\r\n\r\n"
            )

    def _refuse(self, status: int, body: bytes) -> None:
        assert self.transport is not None
        if self.sequence is not None:
            self.server.engine.abort(self.sequence)
            self.sequence = None
        _answer(self.transport, status, body)


@contextlib.asynccontextmanager
async def serving(physics: Physics, config: ServerConfig | None = None, seed: int = 0) -> Any:
    """Serve for the length of a block, in the caller's event loop."""
    server = SimServer(physics, config, seed)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


def physics_from(text: str) -> Physics:
    """Read ``slots=32,itl=0.02,...`` into a :class:`Physics`."""
    physics = Physics()
    for part in filter(None, text.split(",")):
        name, _, value = part.partition("=")
        changed: dict[str, Any] = {
            name: int(value) if name in ("slots", "prefill_budget", "kv_tokens", "max_queue") else float(value)
        }
        physics = replace(physics, **changed)
    return physics


def _config_from(parts: list[str]) -> ServerConfig:
    config = ServerConfig()
    for part in parts:
        name, _, value = part.partition("=")
        current = getattr(config, name)
        if isinstance(current, bool):
            setattr(config, name, value == "true")
        elif isinstance(current, int):
            setattr(config, name, int(value))
        else:
            setattr(config, name, float(value) if isinstance(current, float) or name == "die_after" else value)
    return config


async def _main(args: argparse.Namespace) -> None:
    server = SimServer(physics_from(args.physics), _config_from(args.set), args.seed)
    port = await server.start(args.host, args.port)
    print(json.dumps({"port": port}), flush=True)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await stop.wait()
    await server.stop(server.config.drain)
    if args.truth:
        truth = {
            "requests": server.truth.requests,
            "tokens": server.truth.tokens,
            "first": server.truth.first,
            "e2e": server.truth.e2e,
            "token_times": server.truth.token_times,
            "peak_in_flight": server.truth.peak_in_flight,
        }
        print(json.dumps(truth), flush=True)


def main(argv: list[str] | None = None) -> int:
    """Serve until SIGTERM, then drain. The first line on stdout is ``{"port": N}``."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--physics", default="", help="slots=32,itl=0.02,growth=0.0,prefill=0.0001,...")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a field of ServerConfig")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--truth", action="store_true", help="print the server's own times as JSON at the end")
    args = parser.parse_args(argv)
    try:
        import uvloop

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_main(args))
    except ImportError:
        asyncio.run(_main(args))
    return 0


if __name__ == "__main__":
    sys.exit(main())
