"""Small searches over real sockets, for tests: a fast simulated server and the driver in one event loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from instinct_fleet.load.client import Endpoint
from instinct_fleet.load.dataset import body_of, random_prompts
from instinct_fleet.load.driver import Driver
from instinct_fleet.load.level import Ask, Level, LevelRun, Limits
from instinct_fleet.load.search import Outcome, SearchConfig, plan
from instinct_fleet.load.session import sweep
from support.simulator import Physics, ServerConfig, SimServer, serving

#: 8 slots, 40 ms a request: saturates in a second.
FAST = Physics(slots=8, itl=0.004, prefill=0.00001)
#: Short levels, so that a whole search takes a few seconds.
QUICK = SearchConfig(
    max_concurrency=64, budget_seconds=25.0, min_level_seconds=0.4, max_level_seconds=2.5, warmup=2, max_void=2
)
#: A machine under test load is late: these tests are not about its timers.
PATIENT = Limits(max_lag=10.0)


@dataclass
class Bench:
    """A running server and a driver for it."""

    server: SimServer
    driver: Driver
    endpoint: Endpoint

    async def ladder(self, steps: list[int], *, seconds: float = 1.0) -> list[tuple[Level, float]]:
        """Measure each step; return it with the tokens/s that the server counted in the same window by its clock."""
        found = []
        for step in steps:
            seen: list[LevelRun] = []
            self.driver._on_progress = seen.append
            ask = Ask(step, "ladder", precision=0.0, finest=0.0, min_seconds=seconds, max_seconds=seconds)
            level = await self.driver.measure(ask)
            begin, end = seen[-1].begin, seen[-1].now
            assert begin is not None
            times = [(at, made) for at, made in self.server.truth.token_times if begin <= at <= end]
            made = sum(made for _, made in times[1:])
            found.append((level, made / (times[-1][0] - times[0][0])))
        return found

    async def search(self, config: SearchConfig = QUICK) -> tuple[Outcome, tuple[Level, ...]]:
        """Run the whole search."""
        step, history, _ = await sweep(
            self.driver, lambda h: plan(h, config), on_level=lambda _: None, budget_seconds=config.budget_seconds
        )
        assert isinstance(step, Outcome)
        return step, history


@asynccontextmanager
async def bench(
    *,
    physics: Physics = FAST,
    config: ServerConfig | None = None,
    limits: Limits = PATIENT,
    timeout: float = 5.0,
    output_len: int = 10,
    metrics: bool = True,
) -> AsyncIterator[Bench]:
    """Serve and drive for the length of a block."""
    async with serving(physics, config) as server:
        endpoint = Endpoint(f"http://127.0.0.1:{server.port}", "sim")
        prompts = random_prompts(input_len=10, output_len=output_len, spread=0.2)
        bodies = (body_of(p, model="sim", api="completions", fixed_length=True) for p in prompts)
        driver = Driver(endpoint, bodies, limits=limits, timeout=timeout, metrics=metrics, metrics_interval=0.1)
        try:
            yield Bench(server, driver, endpoint)
        finally:
            await driver.close()


@contextlib.asynccontextmanager
async def alongside(work: Callable[[], Coroutine[Any, Any, None]]) -> AsyncIterator[None]:
    """Run a saboteur beside the block."""
    task = asyncio.create_task(work())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
