"""Intervals and quantiles against known values and against coverage."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from instinct_fleet.load.stats import (
    Estimate,
    Histogram,
    batch_means,
    clean_requests_needed,
    pool,
    quantile,
    ratio,
    t95,
    wilson,
)


def test_wilson_matches_published_values() -> None:
    # 81 of 263: 0.2553..0.3662 (Newcombe 1998, table I, method 3).
    low, high = wilson(81, 263)
    assert (round(low, 4), round(high, 4)) == (0.2553, 0.3662)
    assert wilson(0, 0) == (0.0, 1.0)


@pytest.mark.parametrize(("share", "needed"), [(0.95, 73), (0.99, 381)])
def test_clean_requests_needed_is_where_wilson_reaches_the_share(share: float, needed: int) -> None:
    assert clean_requests_needed(share) == needed
    assert wilson(needed, needed)[0] >= share > wilson(needed - 1, needed - 1)[0]


def test_t_falls_to_the_normal_quantile() -> None:
    assert math.isinf(t95(0))
    assert t95(4) == 2.776
    assert t95(60) == pytest.approx(2.000, abs=0.002)
    assert t95(10**6) == pytest.approx(1.95996, abs=1e-4)


def test_quantile_interpolates_and_knows_nothing_of_nothing() -> None:
    assert quantile([], 0.5) is None
    assert quantile([1.0, 2.0, 3.0, 4.0], 0.5) == 2.5
    assert quantile([7.0], 0.99) == 7.0


def test_batch_means_cover_the_mean_of_independent_batches() -> None:
    rng = random.Random(5)
    covered = 0
    for _ in range(400):
        estimate = batch_means([rng.gauss(100, 10) for _ in range(8)])
        covered += estimate.low <= 100 <= estimate.high
    assert 0.93 <= covered / 400 <= 1.0


def test_batch_means_are_wider_for_batches_that_follow_each_other() -> None:
    rng = random.Random(6)
    covered = plain = 0
    for _ in range(400):
        value, batches = rng.gauss(0, 1 / math.sqrt(1 - 0.5**2)), []
        for _ in range(12):
            value = 0.5 * value + rng.gauss(0, 1)
            batches.append(100 + 10 * value)
        estimate = batch_means(batches)
        covered += estimate.low <= 100 <= estimate.high
        mean = sum(batches) / 12
        half = t95(11) * math.sqrt(sum((b - mean) ** 2 for b in batches) / 11 / 12)
        plain += abs(mean - 100) <= half
    assert covered > plain
    assert covered / 400 >= 0.85


def test_one_batch_has_no_interval() -> None:
    estimate = batch_means([5.0])
    assert estimate.value == 5.0
    assert math.isinf(estimate.half)
    assert batch_means([]).df == 0


def test_pool_weighs_by_time_and_narrows() -> None:
    a, b = Estimate(10.0, 1.0, 9), Estimate(20.0, 1.0, 9)
    both = pool([(a, 1.0), (b, 3.0)])
    assert both.value == 17.5
    assert both.error < 1.0
    assert both.df == 18
    assert pool([]).df == 0


def test_ratio_adds_relative_errors() -> None:
    found = ratio(Estimate(10.0, 0.3, 5), Estimate(20.0, 0.8, 9))
    assert found.value == 0.5
    assert found.error == pytest.approx(0.5 * math.hypot(0.03, 0.04))
    assert found.df == 5
    assert math.isinf(ratio(Estimate(1.0, 0.0, 1), Estimate(0.0, 0.0, 1)).value)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.floats(2e-6, 1e3), min_size=1, max_size=300), st.floats(0, 1))
def test_histogram_quantile_is_within_a_bin(values: list[float], q: float) -> None:
    histogram = Histogram()
    for value in values:
        histogram.add(value)
    found = histogram.quantile(q)
    exact = sorted(values)[math.floor(q * (len(values) - 1))]
    assert found is not None
    assert found == pytest.approx(exact, rel=0.011)


def test_histogram_of_nothing_and_of_nothing_long() -> None:
    histogram = Histogram()
    assert histogram.quantile(0.5) is None
    histogram.add(0.0)
    histogram.add(1e9)
    assert histogram.total == 2
