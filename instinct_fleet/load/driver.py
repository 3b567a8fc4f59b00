"""Drives a live endpoint: persistent workers for a closed loop, Poisson arrivals for an open one.

Levels follow each other without draining: workers are added or leave after their current request, so the server
never sees the burst of a start, and what a level measures begins when it has settled (see
:mod:`instinct_fleet.load.level`).
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import random
from collections.abc import Callable, Iterator
from typing import Any

from instinct_fleet.load.client import Client, Endpoint, EndpointError, Record, clock, fetch
from instinct_fleet.load.level import BUDGET_OF_REQUESTS, BUDGET_OF_SECONDS, Ask, Level, LevelRun, Limits
from instinct_fleet.load.metrics import parse_metrics, parse_umc

#: Seconds between looks at the stop rule, and between timers that measure how late the event loop is.
TICK, LAG_TICK = 0.25, 0.02
#: Seconds that a worker waits after a failed request, so that a dead server is not hammered.
BACKOFF = 0.1

Progress = Callable[[LevelRun], None]


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Return uvloop's event loop when that package is installed (half the CPU a token), else asyncio's own."""
    try:
        import uvloop  # noqa: PLC0415 - optional
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


def run(main: Any) -> Any:
    """Run a coroutine to its end on :func:`new_event_loop`.

    Raises:
        KeyboardInterrupt: it was cancelled, by Ctrl-C or (where SIGTERM cancels) by SIGTERM.
    """
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        try:
            return runner.run(main)
        except asyncio.CancelledError as exc:
            raise KeyboardInterrupt from exc


class Driver:
    """Measures levels on one endpoint, one after the other.

    ``bodies`` yields ready request bodies. ``max_requests`` is the hard budget over all levels.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        bodies: Iterator[bytes],
        *,
        limits: Limits | None = None,
        timeout: float = 600.0,
        max_requests: int = 1_000_000,
        metrics: bool = True,
        gpu_metrics: Endpoint | None = None,
        metrics_interval: float = 0.5,
        on_progress: Progress | None = None,
        seed: int = 0,
    ) -> None:
        self.endpoint = endpoint
        self.limits = limits or Limits()
        self.max_requests = max_requests
        self.metrics = metrics
        self.metrics_interval = metrics_interval
        self.gpu_metrics = gpu_metrics
        self.metrics_note = "not asked" if not metrics else "not read yet"
        self.requests = 0
        self._bodies = bodies
        self._client = Client(endpoint, on_first=self._first, on_chunk=self._chunk, timeout=timeout)
        self._on_progress = on_progress
        # The event loop keeps only weak references to tasks: without these sets workers vanish and the server is
        # silently under-driven.
        self._workers: dict[int, asyncio.Task[None]] = {}
        self._arrivals: set[asyncio.Task[None]] = set()
        self._helpers: set[asyncio.Task[None]] = set()
        self._target = 0
        self._live: dict[int, Record] = {}
        self._run: LevelRun | None = None
        self._mean = 0.5
        self._rng = random.Random(seed)  # noqa: S311 - arrival times, not a secret
        self._lag_timer: asyncio.TimerHandle | None = None

    # ---- events ---------------------------------------------------------------------------------------------------

    def _first(self, record: Record, now: float) -> None:
        run = self._run
        if run is not None:
            run.first(now - record.intended)
            run.progress(now)

    def _chunk(self, now: float, gap: float) -> None:
        run = self._run
        if run is not None:
            run.progress(now, 1.0, gap)

    async def _one(self, intended: float) -> Record:
        record = Record(intended)
        key = id(record)
        self._live[key] = record
        self._count()
        self.requests += 1
        try:
            await self._client.request(next(self._bodies), record)
        finally:
            del self._live[key]
            self._count()
        run = self._run
        if run is not None:
            if record.ok:
                run.end(
                    record.end - record.intended,
                    tokens=record.output_tokens,
                    chunks=record.chunks,
                    prompt=record.prompt_tokens,
                    queue=record.sent - record.intended,
                )
                self._mean += 0.1 * (record.end - record.intended - self._mean)
            elif record.full:
                run.rejected(str(record.error))
            else:
                run.broken(str(record.error))
        return record

    def _count(self) -> None:
        if self._run is not None:
            self._run.in_flight(clock(), len(self._live))

    # ---- load -----------------------------------------------------------------------------------------------------

    async def _worker(self, number: int, delay: float) -> None:
        if delay > 0:
            await asyncio.sleep(delay)
        intended = clock()
        while number < self._target and self.requests < self.max_requests:
            record = await self._one(intended)
            if not record.ok:
                await asyncio.sleep(BACKOFF)
            # What the worker itself loses between two requests shows as too few in flight, not as a slow server.
            intended = clock()

    def _ramp(self, target: int) -> float:
        """Bring the number of workers to ``target``; return in how many seconds the last one starts."""
        self._target = target
        self._workers = {n: t for n, t in self._workers.items() if not t.done()}
        missing = [n for n in range(target) if n not in self._workers]
        # New workers are spread over one request, so that they do not march in step.
        spread = min(self._mean, 5.0) if len(missing) > 1 else 0.0
        for position, number in enumerate(missing):
            delay = spread * position / len(missing)
            self._workers[number] = asyncio.create_task(self._worker(number, delay), name=f"worker-{number}")
        return spread

    async def _arrive(self, rate: float) -> None:
        due = clock()
        while self.requests < self.max_requests:
            due += self._rng.expovariate(rate)
            wait = due - clock()
            if wait > 0:
                await asyncio.sleep(wait)
            task = asyncio.create_task(self._swallow(due))
            self._arrivals.add(task)
            task.add_done_callback(self._arrivals.discard)

    async def _swallow(self, due: float) -> None:
        await self._one(due)

    # ---- watching -------------------------------------------------------------------------------------------------

    def _arm_lag(self) -> None:
        loop = asyncio.get_running_loop()
        due = clock() + LAG_TICK

        def fire() -> None:
            if self._run is not None:
                self._run.lag(max(0.0, clock() - due))
                self._arm_lag()

        self._lag_timer = loop.call_later(LAG_TICK, fire)

    async def _watch_server(self, run: LevelRun) -> None:
        while self.metrics:
            try:
                status, body = await fetch(self.endpoint, "/metrics")
            except EndpointError as exc:
                self.metrics_note = str(exc)
                self.metrics = False
                return
            state = parse_metrics(body.decode("utf-8", "replace"))
            if status != 200 or state.requests is None:
                self.metrics_note = f"/metrics: HTTP {status}, no {'vLLM request counts' if status == 200 else 'page'}"
                self.metrics = False
                return
            self.metrics_note = "read"
            run.server(
                state.requests,
                waiting=state.waiting,
                queue=state.mean_queue,
                kv=state.kv,
                preemptions=state.preemptions,
            )
            await self._watch_gpus(run)
            await asyncio.sleep(self.metrics_interval)

    async def _watch_gpus(self, run: LevelRun) -> None:
        """Read the exporter once. It only feeds advice, so one that does not answer is asked no more."""
        if self.gpu_metrics is None:
            return
        try:
            _status, body = await fetch(self.gpu_metrics, "/metrics")
        except EndpointError:
            self.gpu_metrics = None
            return
        umc = parse_umc(body.decode("utf-8", "replace"))
        if umc is not None:
            run.gpu(umc)

    def _stalled(self, run: LevelRun) -> int:
        """Requests of this window that wait for their first token three times as long as the objective allows."""
        objective = run.ask.objective
        if objective is None or run.begin is None:
            return 0
        now = clock()
        return sum(1 for r in self._live.values() if not r.first and r.sent and now - r.intended > 3 * objective)

    # ---- levels ---------------------------------------------------------------------------------------------------

    async def measure(self, ask: Ask, *, deadline: float | None = None) -> Level:
        """Measure one level. ``deadline`` (of :data:`clock`) ends it early; so does a cancellation, which is re-raised.

        After a closed-loop level the workers go on, ready for the next one.
        """
        started = clock()
        run = LevelRun(ask, started, limits=self.limits)
        self._run = run
        self._count()
        self._arm_lag()
        watcher = asyncio.create_task(self._watch_server(run))
        self._helpers.add(watcher)
        arrivals: asyncio.Task[None] | None = None
        if ask.rate is not None:
            self._target = 0
            arrivals = asyncio.create_task(self._arrive(ask.rate))
            self._helpers.add(arrivals)
            ramped = started
        else:
            ramped = started + self._ramp(ask.concurrency)
        gc.collect()
        gc.freeze()
        try:
            while run.stop is None:
                await asyncio.sleep(TICK if run.measuring or clock() - started > 1 else TICK / 5)
                now = clock()
                if ramped <= now and (ask.rate is not None or len(self._live) <= ask.concurrency):
                    run.ramp_done(now)
                if deadline is not None and now >= deadline:
                    run.now = now
                    run.abort(BUDGET_OF_SECONDS)
                elif self.requests >= self.max_requests:
                    run.now = now
                    run.abort(BUDGET_OF_REQUESTS)
                else:
                    run.tick(now, stalled=self._stalled(run))
                if self._on_progress is not None:
                    self._on_progress(run)
        finally:
            for task in filter(None, (watcher, arrivals)):
                task.cancel()
                self._helpers.discard(task)
            run.now = max(run.now, clock())
            self._run = None
            if self._lag_timer is not None:
                self._lag_timer.cancel()
        return run.level(stalled=self._stalled(run))

    async def pause(self) -> None:
        """Let the workers finish their requests and go."""
        self._target = 0
        if self._workers:
            await asyncio.wait(self._workers.values())
        self._workers.clear()

    async def close(self) -> None:
        """Stop all load at once: open streams are dropped, which tells the server to abort them."""
        self._target = 0
        tasks = [*self._workers.values(), *self._arrivals, *self._helpers]
        for task in tasks:
            task.cancel()
        if tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.gather(*tasks, return_exceptions=True)
        self._workers.clear()
        self._client.close()
        gc.unfreeze()
