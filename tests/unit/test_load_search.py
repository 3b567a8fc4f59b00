"""The search in virtual time: servers whose truth is known, every end it can have, and its budget."""

from __future__ import annotations

import dataclasses
import math
import re

import pytest
from support.simulator import Physics, even_lengths
from support.virtual import Family, VirtualRunner, families, long_run, search, true_throughput, truth_of

from instinct_fleet.capacity import knee_of, limit_of
from instinct_fleet.load.level import Ask, Level
from instinct_fleet.load.results import capacity_of, points_of
from instinct_fleet.load.search import Outcome, SearchConfig, conclude, ladder, plan, pooled
from instinct_fleet.load.stats import Estimate

FAMILIES = {family.name: family for family in families()}


def level(concurrency: int, throughput: float, **more: object) -> Level:
    """A level that is believed, with an error of 0.2 %."""
    base = Level(
        concurrency=concurrency,
        purpose="bracket",
        window=5.0,
        wall=6.0,
        requests=500,
        throughput=Estimate(throughput, 0.002 * throughput, 9),
        mean_output_tokens=10.0,
        attained=500,
        judged=500,
        achieved=float(concurrency),
        total_requests=500,
    )
    return dataclasses.replace(base, **more)  # type: ignore[arg-type]


def against(curve: object, config: SearchConfig, **more: object) -> tuple[Outcome, list[Level]]:
    """Run the plan against an exact curve without noise."""
    history: list[Level] = []
    while True:
        step = plan(history, config)
        if isinstance(step, Outcome):
            return step, history
        extra = more.get("also")
        change = extra(step) if callable(extra) else {}
        assert callable(curve)
        history.append(level(step.concurrency, curve(step.concurrency), purpose=step.purpose, **change))
        assert len(history) < 60


@pytest.mark.parametrize("name", [n for n in FAMILIES if n not in ("KV cliff", "bursty")])
def test_the_limit_of_a_known_server(name: str) -> None:
    family = FAMILIES[name]
    truth = truth_of(name)
    outcome, history = search(family, SearchConfig(), seed=3)
    assert outcome.verdict == "pass"
    assert outcome.knee is not None
    assert outcome.limit == limit_of(outcome.knee)
    assert outcome.limit == pytest.approx(0.8 * truth.knee, rel=0.1)
    assert outcome.throughput is not None
    assert outcome.throughput.value == pytest.approx(truth.at(outcome.knee), rel=0.03)
    assert outcome.interval is not None
    assert outcome.interval[0] <= outcome.knee <= outcome.interval[1]
    # The record's rule, applied to the points alone, says the same as the search.
    points = points_of(history)
    by_rule = knee_of(points, family.objective * 1e3 if family.objective else None)
    assert by_rule is not None
    assert by_rule.concurrency == outcome.knee


@pytest.mark.parametrize("name", ["hard slots", "growing ITL", "retrograde"])
@pytest.mark.parametrize("concurrency", [3, 40, 90])
def test_the_virtual_server_keeps_its_balance(name: str, concurrency: int) -> None:
    family = FAMILIES[name]
    measured, _ = long_run(family, concurrency, seconds=150)
    assert measured == pytest.approx(true_throughput(family)(concurrency), rel=0.012)


@pytest.mark.parametrize("slots", [1, 2, 3, 5, 9, 20, 47, 128, 300])
def test_hard_slots_of_any_size(slots: int) -> None:
    outcome, history = against(lambda c: 100.0 * min(c, slots), SearchConfig())
    true = math.ceil(0.95 * slots - 1e-9)
    assert outcome.verdict == "pass"
    assert outcome.knee is not None
    assert true <= outcome.knee <= max(true, math.ceil(true * 1.031))
    measured = [x.concurrency for x in history if x.purpose != "warmup"]
    assert len(measured) <= 14
    below = max((c for c in measured if c < outcome.knee), default=None)
    assert measured.count(outcome.knee) >= 2
    assert below is None or measured.count(below) >= 2


@pytest.mark.parametrize("half", [20, 60, 200])
def test_soft_saturation(half: int) -> None:
    # c / (c + half) up to 256, flat beyond.
    def curve(c: int) -> float:
        return 1000.0 * min(c, 256) / (min(c, 256) + half)

    outcome, _ = against(curve, SearchConfig(max_concurrency=512))
    true = next(c for c in range(1, 513) if curve(c) >= 0.95 * curve(256))
    assert outcome.verdict == "pass"
    assert outcome.knee == pytest.approx(true, rel=0.04, abs=1)


def test_a_sharp_peak_between_the_steps_is_found() -> None:
    def curve(c: int) -> float:
        return 1000.0 * c / (40 + 0.2 * c + c * c / 200)

    best = max(curve(c) for c in range(1, 513))
    true = next(c for c in range(1, 513) if curve(c) >= 0.95 * best)
    outcome, _ = against(curve, SearchConfig())
    assert outcome.knee == pytest.approx(true, rel=0.05)


def slots_curve(c: float, slots: int = 42) -> float:
    return 25.0 * min(c, slots)


@pytest.mark.parametrize("noise", [0.003, -0.003, 0.015])
def test_a_flat_top_behind_a_corner_is_one_level_and_hunts_no_peak(noise: float) -> None:
    outcome, history = against(lambda c: slots_curve(c) * (1 + noise * (c == 128)), SearchConfig())
    assert (outcome.verdict, outcome.knee) == ("pass", 40 if noise < 0.015 else 41)
    assert not [x for x in history if x.purpose == "peak"]
    on_top = [x.concurrency for x in history if x.concurrency >= 64]
    assert sorted(on_top) == [64, 128], on_top  # neither is measured again


def test_a_top_that_only_looks_flat_is_searched_for_its_peak() -> None:
    # 64 and 128 agree, but the time of a request had risen before: the peak lies between them.
    def curve(c: int) -> float:
        return 1000.0 * c / (16 + 0.09 * c + c * c * 0.00195)

    assert curve(64) == pytest.approx(curve(128), rel=0.02)
    outcome, history = against(curve, SearchConfig())
    best = max(range(1, 513), key=curve)
    assert [x for x in history if x.purpose == "peak"]
    assert outcome.best == pytest.approx(best, rel=0.15)


def test_throughput_that_falls_from_the_start_gives_one() -> None:
    outcome, _ = against(lambda c: 100.0 / c, SearchConfig())
    assert (outcome.knee, outcome.limit) == (1, 1)


def test_the_objective_binds_before_saturation() -> None:
    def also(ask: Ask) -> dict[str, object]:
        return {"attained": 500 if ask.concurrency <= 40 else 300}

    config = SearchConfig(objective=0.5)
    outcome, history = against(lambda c: 10.0 * c, config, also=also)
    assert outcome.verdict == "pass"
    assert outcome.best is not None
    assert 39 <= outcome.best <= 40
    assert outcome.knee in (37, 38, 39)
    assert outcome.limit is not None
    assert outcome.limit <= 40
    assert len(history) <= 20


@pytest.mark.parametrize("share", [0.992, 0.988])
def test_a_server_at_the_edge_of_the_objective_is_stepped_down_from(share: float) -> None:
    # From 28 to 30 no number of levels decides: the pooled share is too close to what was asked.
    def also(ask: Ask) -> dict[str, object]:
        met = 1.0 if ask.concurrency < 28 else share if ask.concurrency <= 30 else 0.6
        return {"attained": round(500 * met)}

    outcome, history = against(lambda c: 10.0 * c, SearchConfig(objective=0.5), also=also)
    assert outcome.verdict == "pass"
    assert outcome.knee in (26, 27)
    assert len(history) <= 30


def test_a_full_server_bounds_the_search() -> None:
    def also(ask: Ask) -> dict[str, object]:
        full = ask.concurrency > 24
        return {"stop": "rejected by the server", "rejected": 50, "requests": 0} if full else {}

    outcome, history = against(lambda c: 10.0 * c, SearchConfig(), also=also)
    assert outcome.verdict == "pass"
    assert outcome.knee in (22, 23, 24)
    points = {p.concurrency: p for p in points_of(history)}
    assert not points[max(points)].counts
    assert "refused" in points[max(points)].note


def test_a_miss_at_one_is_a_fail() -> None:
    outcome, _ = against(lambda c: 10.0 * c, SearchConfig(objective=0.1), also=lambda _: {"attained": 100})
    assert outcome.verdict == "fail"
    assert outcome.knee is None
    assert "100 of 500" in outcome.reasons[0]


def test_growing_to_the_maximum_is_a_lower_bound() -> None:
    outcome, _ = against(lambda c: 10.0 * c, SearchConfig(max_concurrency=64))
    assert outcome.verdict == "lower bound only"
    assert outcome.knee in (61, 62, 63)
    assert "--max-concurrency" in outcome.reasons[0]


def test_an_objective_that_cannot_be_shown_gives_no_number() -> None:
    def also(ask: Ask) -> dict[str, object]:
        return {"attained": 20, "judged": 20}

    outcome, _ = against(lambda c: 10.0 * min(c, 16), SearchConfig(objective=0.5), also=also)
    assert outcome.verdict == "inconclusive"
    assert (outcome.knee, outcome.limit) == (None, None)
    assert "it takes 381" in outcome.reasons[0]


def test_repeats_that_disagree_give_no_number() -> None:
    seen: dict[int, int] = {}

    def curve(c: int) -> float:
        seen[c] = seen.get(c, 0) + 1
        return 10.0 * min(c, 16) * (1 if seen[c] == 1 else 1.4)

    outcome, _ = against(curve, SearchConfig())
    assert outcome.verdict == "inconclusive"
    assert "the server changed" in outcome.reasons[0]
    assert outcome.knee is None


def test_void_levels_are_tried_again_and_then_given_up() -> None:
    config = SearchConfig(warmup=0)
    void = level(1, 10.0, void=("the client's event loop was late",))
    assert isinstance(plan([void], config), Ask)
    assert isinstance(plan([void, void], config), Ask)
    outcome = plan([void, void, void], config)
    assert isinstance(outcome, Outcome)
    assert outcome.verdict == "inconclusive"
    assert outcome.knee is None
    assert "event loop was late" in outcome.reasons[0]


def test_a_void_level_in_between_is_forgotten() -> None:
    config = SearchConfig(warmup=0)
    void = level(1, 10.0, void=("late",))
    step = plan([void, level(1, 10.0)], config)
    assert isinstance(step, Ask)
    assert step.concurrency == 4


def test_broken_streams_end_the_search() -> None:
    broken = level(4, 40.0, broken=3, void=("3 broken streams",))
    step = plan([level(1, 10.0), broken], SearchConfig(warmup=0))
    assert isinstance(step, Ask)
    outcome = plan([level(1, 10.0), broken, broken], SearchConfig(warmup=0))
    assert isinstance(outcome, Outcome)
    assert outcome.verdict == "inconclusive"
    assert outcome.knee is None


def test_the_budget_is_hard() -> None:
    config = SearchConfig(budget_seconds=20.0, warmup=0)
    step = plan([level(1, 10.0, wall=6.0)], config)
    assert isinstance(step, Ask)
    assert step.max_seconds <= 14.0
    outcome = plan([level(1, 10.0, wall=6.0), level(4, 40.0, wall=14.0)], config)
    assert isinstance(outcome, Outcome)
    assert outcome.verdict == "inconclusive"
    assert "budget of 20 s" in outcome.reasons[0]
    outcome = plan([level(1, 10.0)], SearchConfig(warmup=0, budget_requests=500))
    assert isinstance(outcome, Outcome)
    assert "budget of 500 requests" in outcome.reasons[0]


def test_an_interrupt_keeps_the_interval_but_gives_no_number() -> None:
    history = [level(1, 10.0), level(4, 40.0), level(16, 160.0), level(64, 320.0)]
    outcome = conclude(history, SearchConfig(), stopped="interrupted")
    assert outcome.verdict == "inconclusive"
    assert outcome.knee is None
    assert outcome.interval is not None
    assert outcome.best == 64


def test_warm_up_is_asked_first_and_never_counts() -> None:
    step = plan([], SearchConfig())
    assert isinstance(step, Ask)
    assert step.purpose == "warmup"
    assert pooled([level(4, 40.0, purpose="warmup")]) == ()


def test_the_ladder_measures_its_steps_and_nothing_else() -> None:
    config = SearchConfig(max_concurrency=100, objective=1.0, warmup=0)
    history: list[Level] = []
    while True:
        step = ladder([10, 20, 50, 100], history, config)
        if isinstance(step, Outcome):
            break
        history.append(level(step.concurrency, 10.0 * min(step.concurrency, 40), purpose="ladder"))
    assert [x.concurrency for x in history] == [10, 20, 50, 100]
    assert (step.verdict, step.knee, step.limit) == ("pass", 50, 40)


def test_the_record_of_a_search_without_a_verdict_has_no_number() -> None:
    history = [level(1, 10.0), level(4, 40.0, void=("late",))]
    outcome = conclude(history, SearchConfig(), stopped="interrupted")
    capacity = capacity_of(history, outcome, SearchConfig(objective=0.5), instance="a", key="k")
    assert (capacity.knee, capacity.limit, capacity.verdict) == (None, None, "inconclusive")
    assert capacity.ttft_slo_ms == 500.0
    assert [(p.concurrency, p.counts) for p in capacity.points] == [(1, True), (4, False)]


def test_a_search_is_reproducible() -> None:
    family = Family("small", Physics(slots=6, jitter=0.2), even_lengths(20, 10), 20, 10, highest=64)
    first, second = (search(family, SearchConfig(), seed=11) for _ in range(2))
    assert first == second
    assert VirtualRunner(family, 1).measure(Ask(3, "bracket")).concurrency == 3


@pytest.mark.parametrize(
    ("attained", "judged", "words"),
    [
        (200, 200, "200 requests at concurrency 8 cannot show that 99% meet the objective: it takes 381"),
        (1782, 1800, r"1782 of 1800 requests at concurrency 8 .*98\.42% to 99\.37%.* larger --ttft-p99-ms"),
    ],
)
def test_an_objective_that_is_not_shown_says_what_would_help(attained: int, judged: int, words: str) -> None:
    seen = {"attained": attained, "judged": judged}
    history = [level(1, 10.0, **seen), level(8, 80.0, **seen), level(32, 81.0, **seen)]
    outcome = conclude(history, SearchConfig(objective=0.5))
    assert outcome.verdict == "inconclusive"
    assert re.search(words, outcome.reasons[0])
