"""Real sockets and a saboteur: the search must end without a number rather than with a wrong one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest
from support.live import QUICK, Bench, alongside, bench
from support.simulator import Physics, ServerConfig

from instinct_fleet.load.client import Stream
from instinct_fleet.load.driver import run
from instinct_fleet.load.level import Level, Limits
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


def test_an_honest_server_gets_its_number() -> None:
    outcome, history = searched(lambda b: b.search())
    assert outcome.verdict == "pass", (outcome, [level.void for level in history])
    assert outcome.knee is not None
    assert 7 <= outcome.knee <= 10  # the client's own turn-around adds to the 8 slots
    assert any(level.server_in_flight is not None for level in history)


def test_several_tokens_a_chunk_are_counted_by_usage() -> None:
    async def work(b: Bench) -> Result:
        result = await b.search()
        made = b.server.truth.token_times
        assert made
        return result

    outcome, history = searched(work, config=ServerConfig(tokens_per_chunk=4), output_len=20)
    assert outcome.verdict == "pass", outcome
    assert outcome.knee is not None
    assert 7 <= outcome.knee <= 10
    for level in history:
        assert level.tokens_per_chunk is not None
        assert level.tokens_per_chunk > 2
        assert level.mean_output_tokens == pytest.approx(20, rel=0.2)


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
    assert outcome.verdict == "pass", (outcome, [level.void for level in history])
    assert outcome.knee is not None
    assert outcome.knee <= 11
    assert any(level.stop == "rejected by the server" for level in history)


def test_the_budget_of_requests_is_hard() -> None:
    async def work(b: Bench) -> Result:
        b.driver.max_requests = 40
        return await b.search(SearchConfig(**{**vars(QUICK), "budget_requests": 40}))

    outcome, history = searched(work)
    assert outcome.verdict == "inconclusive"
    assert "budget of 40 requests" in outcome.reasons[0]
    assert sum(level.total_requests for level in history) <= 40
