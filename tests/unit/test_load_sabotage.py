"""Real sockets and a saboteur: the search must end without a number rather than with a wrong one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest
from support.live import QUICK, Bench, alongside, bench
from support.simulator import Physics, ServerConfig

from instinct_fleet.capacity import knee_of
from instinct_fleet.load.client import Stream
from instinct_fleet.load.driver import run
from instinct_fleet.load.level import Level, Limits
from instinct_fleet.load.results import points_of
from instinct_fleet.load.search import Outcome, SearchConfig

Result = tuple[Outcome, tuple[Level, ...]]


def no_number(result: Result, *words: str) -> None:
    outcome, history = result
    assert outcome.verdict == "inconclusive", outcome
    assert outcome.knee is None
    assert outcome.limit is None
    said = " ".join(outcome.reasons)
    assert any(word in said for word in words), (said, [level.void for level in history])


def searched(work: Callable[[Bench], Any], **options: Any) -> Result:
    async def go() -> Result:
        async with bench(**options) as b:
            result: Result = await work(b)
            return result

    result: Result = run(go())
    return result


@pytest.mark.parametrize(("per_chunk", "output"), [(1, 10), (4, 20)])
def test_an_honest_server_is_measured_as_its_own_clock_says(per_chunk: int, output: int) -> None:
    """Whatever the machine does meanwhile: client and server must count the same tokens in the same time."""

    async def go() -> list[tuple[Level, float]]:
        async with bench(config=ServerConfig(tokens_per_chunk=per_chunk), output_len=output) as b:
            return await b.ladder([2, 8, 24])

    for level, truth in run(go()):
        assert level.void == ()
        assert level.throughput.value == pytest.approx(truth, rel=0.08)
        assert level.mean_output_tokens == pytest.approx(output, rel=0.2)
        assert level.tokens_per_chunk is not None
        assert (level.tokens_per_chunk > 2) == (per_chunk > 1)
        assert level.achieved == pytest.approx(level.concurrency, rel=0.02)
        assert level.server_in_flight is not None


def test_an_honest_search_keeps_to_the_rule() -> None:
    outcome, history = searched(lambda b: b.search())
    assert not any(level.broken or level.rejected for level in history)
    by_rule = knee_of(points_of(history), None)
    assert by_rule is not None
    assert outcome.knee in (None, by_rule.concurrency)  # None: a machine too busy for a verdict in time
    assert outcome.interval is not None
    assert outcome.interval[0] <= by_rule.concurrency <= outcome.interval[1]


def test_several_tokens_a_chunk_without_usage() -> None:
    result = searched(lambda b: b.search(), config=ServerConfig(tokens_per_chunk=4, usage=False))
    no_number(result, "without `usage`")


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("no_done", "without [DONE]"),
        ("no_finish", "without finish_reason"),
        ("malformed", "malformed response"),
        ("drop", "connection lost"),
        ("error", "HTTP 500"),
        ("stall", "no end within"),
    ],
)
@pytest.mark.parametrize("rate", [1.0, 0.1])
def test_broken_streams(fault: str, words: str, rate: float) -> None:
    config = ServerConfig(fault=fault, fault_rate=rate, fault_after=5)
    no_number(searched(lambda b: b.search(), config=config, timeout=1.0), words)


def test_a_server_that_dies_in_the_middle() -> None:
    result = searched(lambda b: b.search(), config=ServerConfig(die_after=2.5))
    no_number(result, "connection")


def test_killed_workers() -> None:
    async def work(b: Bench) -> Result:
        async def kill() -> None:
            while True:
                await asyncio.sleep(0.15)
                for task in list(b.driver._workers.values())[::2]:
                    task.cancel()

        async with alongside(kill):
            return await b.search()

    no_number(searched(work), "requests in flight", "no request ended")


def test_a_busy_client_machine() -> None:
    async def work(b: Bench) -> Result:
        async def hog() -> None:
            while True:
                await asyncio.sleep(0.02)
                time.sleep(0.03)

        async with alongside(hog):
            return await b.search()

    no_number(searched(work, limits=Limits()), "event loop was")


def test_a_slow_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    """What arrives is held back for a while without blocking anything: only the server's own count can tell."""
    original = Stream.data_received

    def late(self: Stream, data: bytes) -> None:
        asyncio.get_running_loop().call_later(0.25, original, self, data)

    monkeypatch.setattr(Stream, "data_received", late)
    no_number(searched(lambda b: b.search(), physics=Physics(slots=16, itl=0.004)), "the server counts")


def test_other_traffic_on_the_server() -> None:
    async def work(b: Bench) -> Result:
        async with bench() as other:
            other.driver.endpoint = b.endpoint
            other.driver._client.endpoint = b.endpoint
            other.driver._ramp(12)
            await asyncio.sleep(0.2)
            return await b.search()

    no_number(searched(work), "other traffic")


def test_a_full_queue_is_an_answer() -> None:
    physics = Physics(slots=8, itl=0.004, prefill=0.00001, max_queue=3)
    outcome, history = searched(lambda b: b.search(), physics=physics)
    assert outcome.knee is None or outcome.knee <= 11
    assert all(level.concurrency <= 11 for level in history if level.requests and not level.rejected)
    assert any(level.rejected for level in history)


def test_the_budget_of_requests_is_hard() -> None:
    async def work(b: Bench) -> Result:
        b.driver.max_requests = 40
        return await b.search(SearchConfig(**{**vars(QUICK), "budget_requests": 40}))

    outcome, history = searched(work)
    assert outcome.verdict == "inconclusive"
    assert "budget of 40 requests" in outcome.reasons[0]
    assert sum(level.total_requests for level in history) <= 40
