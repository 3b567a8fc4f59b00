"""The difference between two setups, from interleaved measurements: A against B with its interval. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from instinct_fleet.load.stats import t95
from instinct_fleet.model import Point

ComparisonVerdict = Literal["A is better", "B is better", "no measurable difference", "inconclusive"]


@dataclass(frozen=True)
class Difference:
    """How much B differs from A in one metric, as a share of A (0.05: five per cent more), with its 95 % interval.

    ``low`` and ``high`` are None when a single pair leaves the interval open.
    """

    metric: str
    a: float
    b: float
    change: float
    low: float | None
    high: float | None
    pairs: int
    verdict: ComparisonVerdict


def difference(
    metric: str, pairs: Sequence[tuple[float, float]], *, higher_is_better: bool = True
) -> Difference | None:
    """Compare pairs (a, b) that were measured next to each other, so that slow drifts cancel.

    Student's t on the logarithms of b / a: a drift that scales both leaves no trace. None when no pair is usable.
    """
    usable = [(a, b) for a, b in pairs if a > 0 and b > 0]
    if not usable:
        return None
    logs = [math.log(b / a) for a, b in usable]
    n = len(logs)
    mean = math.fsum(logs) / n
    means = (math.fsum(a for a, _ in usable) / n, math.fsum(b for _, b in usable) / n)
    if n < 2:
        return Difference(metric, *means, math.expm1(mean), None, None, n, "inconclusive")
    error = math.sqrt(math.fsum((v - mean) ** 2 for v in logs) / (n - 1) / n)
    half = t95(n - 1) * error
    low, high = math.expm1(mean - half), math.expm1(mean + half)
    verdict: ComparisonVerdict = "no measurable difference"
    if low > 0 or high < 0:
        verdict = "B is better" if (low > 0) == higher_is_better else "A is better"
    return Difference(metric, *means, math.expm1(mean), low, high, n, verdict)


def pairs_of(a: Sequence[Point], b: Sequence[Point]) -> tuple[tuple[Point, Point], ...]:
    """Pair the counting points of two results: by concurrency, and in their order where one was measured repeatedly."""
    sides: list[Mapping[int, list[Point]]] = []
    for points in (a, b):
        groups: dict[int, list[Point]] = {}
        for point in points:
            if point.counts and point.request_rate > 0:
                groups.setdefault(point.concurrency, []).append(point)
        sides.append(groups)
    left, right = sides
    return tuple(pair for c in sorted(left.keys() & right.keys()) for pair in zip(left[c], right[c], strict=False))


def compare_points(pairs: Sequence[tuple[Point, Point]]) -> tuple[Difference, ...]:
    """Compare throughput and TTFT of paired points."""
    found = [difference("requests/s", [(a.request_rate, b.request_rate) for a, b in pairs])]
    for metric, name in (("TTFT p50", "ttft_p50_ms"), ("TTFT p99", "ttft_p99_ms")):
        values = [(getattr(a, name) or 0.0, getattr(b, name) or 0.0) for a, b in pairs]
        found.append(difference(metric, values, higher_is_better=False))
    return tuple(d for d in found if d is not None)
