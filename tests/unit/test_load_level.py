"""What a level measures, when it stops, and when it is void."""

from __future__ import annotations

import dataclasses

import pytest

from instinct_fleet.load.level import BIN, Ask, Level, LevelRun, Limits, Sample, batch_rates, decide
from instinct_fleet.load.stats import Estimate


def drive(
    run: LevelRun,
    *,
    concurrency: int,
    seconds: float,
    service: float = 0.5,
    tokens: int = 50,
    ttft: float = 0.05,
    in_flight: float | None = None,
    lag: float = 0.001,
    server: float | None = None,
    broken: int = 0,
    usage: bool = True,
) -> Level:
    """Feed a perfectly regular server: ``concurrency`` streams, each ending every ``service`` seconds."""
    flight = concurrency if in_flight is None else in_flight
    run.in_flight(0.0, int(flight))
    run.ramp_done(0.0)
    gap = service / tokens
    now, ended, made = 0.0, 0.0, 0.0
    while now < seconds and run.stop is None:
        now += BIN
        ended += concurrency / service * BIN
        made += concurrency / gap * BIN
        while ended >= 1:
            ended -= 1
            run.first(ttft)
            run.end(service, tokens=tokens if usage else None, chunks=tokens, prompt=10)
        run.progress(now, made, gap)
        made = 0.0
        run.lag(lag)
        if server is not None:
            run.server(server)
        if broken and run.measuring:
            for _ in range(broken):
                run.broken("stream ended without [DONE]")
            broken = 0
        run.tick(now)
    return run.level()


def test_a_regular_server_is_measured_exactly() -> None:
    level = drive(LevelRun(Ask(10, "bracket"), 0.0), concurrency=10, seconds=10)
    assert level.void == ()
    assert level.throughput.value == pytest.approx(1000, rel=0.01)
    assert level.request_rate == pytest.approx(20, rel=0.01)
    assert level.ttft_p99 == pytest.approx(0.05)
    assert level.itl_p50 == pytest.approx(0.01, rel=0.02)
    assert level.mean_output_tokens == 50
    assert level.achieved == pytest.approx(10)
    assert level.stop == "interval narrow enough"


def test_settling_is_not_measured() -> None:
    run = LevelRun(Ask(4, "bracket"), 0.0)
    run.in_flight(0.0, 4)
    run.first(9.0)
    run.progress(0.1)
    run.end(9.0, tokens=5, chunks=5)
    assert not run.measuring
    run.ramp_done(1.0)
    for _ in range(3):
        run.end(0.1, tokens=5, chunks=5)
    run.tick(1.1)
    assert not run.measuring  # one short of as many as there are workers
    run.end(0.1, tokens=5, chunks=5)
    run.tick(1.2)
    assert run.measuring
    assert run.level().ttft_p99 is None


def test_several_tokens_a_chunk_count_by_usage() -> None:
    run = LevelRun(Ask(2, "bracket"), 0.0)
    run.in_flight(0.0, 2)
    run.ramp_done(0.0)
    now = 0.0
    for step in range(1, 400):
        now = step * 0.04
        run.progress(now, 2, 0.04)
        if step % 5 == 0:
            for _ in range(2):
                run.first(0.04)
                run.end(0.2, tokens=20, chunks=5)
        run.tick(now)
    level = run.level()
    assert level.tokens_per_chunk == 4
    assert level.throughput.value == pytest.approx(200, rel=0.02)
    assert level.itl_p50 == pytest.approx(0.01, rel=0.02)


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ({"in_flight": 9}, "only 9.0 requests in flight"),
        ({"lag": 0.03}, "event loop was 30.0 ms late"),
        ({"server": 14.0}, "the server counts 14.0 requests"),
        ({"server": 6.0}, "the server counts 6.0 requests"),
        ({"broken": 1}, "1 broken streams"),
        ({"usage": False}, "without `usage`"),
    ],
)
def test_a_level_that_cannot_be_believed_says_why(fault: dict[str, object], words: str) -> None:
    run = LevelRun(Ask(10, "bracket"), 0.0)
    level = drive(run, concurrency=10, seconds=5, **fault)  # type: ignore[arg-type]
    assert words in " ".join(level.void)


def test_honest_differences_are_no_reason() -> None:
    level = drive(LevelRun(Ask(10, "bracket"), 0.0), concurrency=10, seconds=5, server=9.0, lag=0.004)
    assert level.void == ()


def test_limits_are_what_decides() -> None:
    strict = Limits(max_lag=0.0005)
    assert drive(LevelRun(Ask(10, "bracket"), 0.0, limits=strict), concurrency=10, seconds=5).void


def test_a_server_that_is_full_gives_an_answer_not_a_fault() -> None:
    run = LevelRun(Ask(100, "bracket"), 0.0)
    run.in_flight(0.0, 100)
    for _ in range(30):
        run.rejected("HTTP 503: queue is full")
    run.tick(0.5)
    level = run.level()
    assert level.stop == "rejected by the server"
    assert level.void == ()


def test_a_level_that_never_settles_ends() -> None:
    run = LevelRun(Ask(4, "bracket", max_seconds=1.0), 0.0)
    assert run.tick(19.9) is None
    assert run.tick(20.1) == "never settled"
    assert "no request ended" in run.level().void[0]


SAMPLE = Sample(
    window=5.0,
    requests=400,
    throughput=Estimate(100.0, 1.0, 9),
    service=0.5,
    attained=400,
    judged=400,
    broken=0,
    rejected=0,
)


@pytest.mark.parametrize(
    ("change", "ask", "stop"),
    [
        ({}, Ask(1, "bracket", precision=0.05), "interval narrow enough"),
        ({}, Ask(1, "bracket", precision=0.01), None),
        ({"window": 0.9}, Ask(1, "bracket"), None),
        ({"service": 2.0}, Ask(1, "bracket"), None),
        ({"window": 31.0}, Ask(1, "bracket", precision=0.001, finest=0.001), "time limit of the level"),
        ({"broken": 3}, Ask(1, "bracket"), "broken streams"),
        ({"rejected": 20}, Ask(1, "bracket"), "rejected by the server"),
        ({"requests": 2}, Ask(1, "bracket"), None),
        ({}, Ask(1, "bracket", max_requests=300), "request limit"),
        ({}, Ask(1, "boundary", threshold=Estimate(90.0, 0.5, 9), above=0.05), "clearly above the threshold"),
        ({}, Ask(1, "boundary", threshold=Estimate(110.0, 0.5, 9), below=0.05), "clearly below the threshold"),
        ({}, Ask(1, "boundary", threshold=Estimate(100.0, 0.5, 9)), None),
        ({}, Ask(1, "boundary", threshold=Estimate(100.0, 0.5, 9), finest=0.03), "interval at its finest"),
        ({"attained": 300}, Ask(1, "bracket", objective=1.0, precision=0.001), "objective missed"),
        ({"judged": 300, "attained": 300}, Ask(1, "confirm", objective=1.0, certify=True), None),
        ({}, Ask(1, "confirm", objective=1.0, certify=True), "interval narrow enough"),
        ({}, Ask(1, "warmup"), "warm"),
    ],
)
def test_the_stop_rule(change: dict[str, object], ask: Ask, stop: str | None) -> None:
    assert decide(dataclasses.replace(SAMPLE, **change), ask) == stop  # type: ignore[arg-type]


def test_a_batch_of_the_server_that_straddles_an_edge_counts_by_its_share() -> None:
    # A step every 130 ms makes 40 tokens: 307.7 tokens/s, whatever the windows of the batches cut.
    counts = [0.0] * round(4.0 / BIN)
    for step in range(1, 31):
        counts[int(step * 0.13 / BIN)] += 40
    rates = batch_rates(counts, gap=0.13, window=4.0, batch=0.5)
    assert len(rates) == 7
    for rate in rates:
        assert rate == pytest.approx(40 / 0.13, rel=0.04)
    assert batch_rates([], gap=0.1, window=4.0, batch=0.5) == ()
    assert batch_rates([1.0], gap=0.1, window=0.05, batch=0.5) == ()
