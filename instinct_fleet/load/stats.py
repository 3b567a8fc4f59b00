"""Intervals and quantiles, in the standard library alone: a load host has nothing else installed.

Every interval is two-sided at 95 % unless it says otherwise.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

#: Standard normal quantile of a two-sided 95 % interval.
Z95 = 1.959963984540054

#: Student t, two-sided 95 %, for 1..30 degrees of freedom (any table of the distribution).
_T95 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
    2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
    2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip


def t95(df: int) -> float:
    """Return the two-sided 95 % quantile of Student's t; infinite when nothing is known (``df`` < 1)."""
    if df < 1:
        return math.inf
    if df <= len(_T95):
        return _T95[df - 1]
    # First term of the Cornish-Fisher expansion around the normal: within 0.002 from 30 degrees of freedom on.
    return Z95 + (Z95**3 + Z95) / (4 * df)


def quantile(ordered: Sequence[float], q: float) -> float | None:
    """Return the ``q`` quantile of an ascending sequence, interpolated linearly; None when it is empty."""
    if not ordered:
        return None
    position = (len(ordered) - 1) * q
    low = math.floor(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


def wilson(good: float, total: float, z: float = Z95) -> tuple[float, float]:
    """Return the Wilson score interval of a proportion; (0, 1) when nothing was seen.

    ``good`` and ``total`` may be effective (fractional) counts.
    """
    if total <= 0:
        return 0.0, 1.0
    p = good / total
    denominator = 1 + z * z / total
    centre = p + z * z / (2 * total)
    half = z * math.sqrt(max(0.0, p * (1 - p) / total + z * z / (4 * total * total)))
    return max(0.0, (centre - half) / denominator), min(1.0, (centre + half) / denominator)


def clean_requests_needed(share: float, z: float = Z95) -> int:
    """Return how many requests without one miss it takes until Wilson's lower bound reaches ``share``.

    73 for 0.95, 381 for 0.99: fewer requests cannot show such an objective, however fast the server is.
    """
    return math.ceil(round(share * z * z / (1 - share), 6))


@dataclass(frozen=True)
class Estimate:
    """A mean with its standard error; ``df`` are the degrees of freedom behind the standard error."""

    value: float
    error: float
    df: int

    @property
    def half(self) -> float:
        """Half width of the 95 % interval; infinite when the error is unknown."""
        return t95(self.df) * self.error if self.df >= 1 else math.inf

    @property
    def low(self) -> float:
        """Lower end of the 95 % interval, never below zero (these are rates)."""
        return max(0.0, self.value - self.half)

    @property
    def high(self) -> float:
        """Upper end of the 95 % interval."""
        return self.value + self.half

    @property
    def relative(self) -> float:
        """Half width as a share of the value; infinite when the value is zero."""
        return self.half / self.value if self.value > 0 else math.inf


def batch_means(batches: Sequence[float]) -> Estimate:
    """Estimate a steady-state mean from the means of successive, equally long batches.

    Batches that still follow each other (convoys, a server with moods) carry less than they seem to: a positive
    lag-1 correlation r widens the standard error by sqrt((1 + r) / (1 - r)), r capped at 0.8.
    """
    n = len(batches)
    if n == 0:
        return Estimate(0.0, math.inf, 0)
    mean = math.fsum(batches) / n
    if n == 1:
        return Estimate(mean, math.inf, 0)
    deviations = [b - mean for b in batches]
    squares = math.fsum(d * d for d in deviations)
    variance = squares / (n - 1) / n
    if squares > 0:
        lag = math.fsum(a * b for a, b in itertools.pairwise(deviations)) / squares
        # The estimator is biased by about -1/n: without this a short run never sees its own correlation.
        r = min(0.8, max(0.0, lag + 1 / n))
        variance *= (1 + r) / (1 - r)
    return Estimate(mean, math.sqrt(variance), n - 1)


def pool(parts: Sequence[tuple[Estimate, float]]) -> Estimate:
    """Combine independent estimates of one quantity, weighted by how long each was measured (seconds)."""
    weight = math.fsum(w for _, w in parts)
    if not parts or weight <= 0:
        return Estimate(0.0, math.inf, 0)
    value = math.fsum(e.value * w for e, w in parts) / weight
    error = math.sqrt(math.fsum((e.error * w / weight) ** 2 for e, w in parts))
    return Estimate(value, error, sum(e.df for e, _ in parts))


def ratio(a: Estimate, b: Estimate) -> Estimate:
    """Return a / b of independent estimates (delta method); the smaller df of the two, which is the careful choice."""
    if b.value <= 0:
        return Estimate(math.inf if a.value > 0 else 0.0, math.inf, 0)
    value = a.value / b.value
    relative = math.hypot(a.error / a.value if a.value > 0 else 0.0, b.error / b.value)
    return Estimate(value, value * relative, min(a.df, b.df))


class Histogram:
    """Times in logarithmic bins of 1 %: constant memory and cost for every token of a long run."""

    #: One microsecond; shorter gaps count as this.
    FLOOR = 1e-6
    _SCALE = 1 / math.log(1.01)
    _SIZE = 2400  # up to about 2e4 seconds

    def __init__(self) -> None:
        self.counts = [0] * self._SIZE
        self.total = 0

    def add(self, seconds: float, count: int = 1) -> None:
        """Count ``count`` gaps of ``seconds``."""
        index = int(math.log(seconds / 1e-6) * self._SCALE) if seconds > self.FLOOR else 0
        self.counts[min(index, self._SIZE - 1)] += count
        self.total += count

    def quantile(self, q: float) -> float | None:
        """Return the ``q`` quantile in seconds, at the middle of its bin; None when nothing was counted."""
        if not self.total:
            return None
        rank = q * (self.total - 1)
        seen = 0
        for index, count in enumerate(self.counts):
            seen += count
            if seen > rank:
                return self.FLOOR * math.exp((index + 0.5) / self._SCALE)
        return None  # pragma: no cover - total > 0 means some bin holds the rank
