"""Curve fits through the points: a guide for the eye and a cross-check, never the verdict.

On fixed grids such fits err from -64 % to +124 % or give no answer, so all that is asked of them is whether they
agree. Pure; ``kneed`` is used when it is installed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Fit:
    """A fitted curve. ``knee`` is None when the fit has no answer; ``curve`` are (concurrency, throughput) pairs."""

    name: str
    knee: float | None
    curve: tuple[tuple[float, float], ...] = ()
    note: str = ""


Points = Sequence[tuple[float, float]]


def _solve(matrix: list[list[float]], vector: list[float]) -> list[float] | None:
    """Solve a small linear system by elimination; None when it is singular."""
    n = len(vector)
    rows = [[*row, value] for row, value in zip(matrix, vector, strict=True)]
    for i in range(n):
        pivot = max(range(i, n), key=lambda r: abs(rows[r][i]))
        if abs(rows[pivot][i]) < 1e-12 * max(1e-300, *(abs(v) for v in rows[pivot])):
            return None
        rows[i], rows[pivot] = rows[pivot], rows[i]
        for r in range(n):
            if r != i:
                factor = rows[r][i] / rows[i][i]
                rows[r] = [a - factor * b for a, b in zip(rows[r], rows[i], strict=True)]
    return [rows[i][n] / rows[i][i] for i in range(n)]


def _least_squares(features: list[list[float]], targets: list[float]) -> list[float] | None:
    n = len(features[0])
    matrix = [[math.fsum(f[i] * f[j] for f in features) for j in range(n)] for i in range(n)]
    vector = [math.fsum(f[i] * t for f, t in zip(features, targets, strict=True)) for i in range(n)]
    return _solve(matrix, vector)


def _grid(points: Points, count: int = 60) -> list[float]:
    low, high = points[0][0], points[-1][0]
    return [low * math.pow(high / low, i / (count - 1)) for i in range(count)] if high > low else [low]


def usl(points: Points, *, tolerance: float = 0.05) -> Fit:
    """Fit Gunther's universal scalability law; its knee is where the curve comes within ``tolerance`` of its best.

    In concurrency over throughput the law is linear in its three coefficients, so least squares (of relative errors)
    is exact. Negative coefficients have no meaning and are left out.
    """
    usable = sorted((c, x) for c, x in points if x > 0)
    if len(usable) < 4:
        return Fit("USL", None, note=f"{len(usable)} points, it takes 4")
    chosen: list[float] | None = None
    for terms in ((0, 1, 2), (0, 1), (0, 2), (0,)):
        features = [[x / c * (1.0, c - 1, c * (c - 1))[t] for t in terms] for c, x in usable]
        solution = _least_squares(features, [1.0] * len(usable))
        if solution is not None and all(value >= 0 for value in solution) and solution[0] > 0:
            chosen = [0.0, 0.0, 0.0]
            for term, value in zip(terms, solution, strict=True):
                chosen[term] = value
            break
    if chosen is None:
        return Fit("USL", None, note="no fit with meaningful coefficients")
    a, b, d = chosen
    curve = tuple((c, c / (a + b * (c - 1) + d * c * (c - 1))) for c in _grid(usable, 200))
    best = max(x for _, x in curve)
    knee = next(c for c, x in curve if x >= (1 - tolerance) * best)
    return Fit("USL", knee, curve)


def segmented(points: Points) -> Fit:
    """Fit two straight lines that meet; the knee is where they do."""
    usable = sorted((c, x) for c, x in points if x > 0)
    if len(usable) < 5:
        return Fit("two segments", None, note=f"{len(usable)} points, it takes 5")
    best: tuple[float, float, list[float]] | None = None
    for corner in _grid(usable, 200)[1:-1]:
        features = [[1.0, c, max(0.0, c - corner)] for c, _ in usable]
        solution = _least_squares(features, [x for _, x in usable])
        if solution is None:
            continue
        error = math.fsum(
            (x - sum(s * f for s, f in zip(solution, feature, strict=True))) ** 2
            for (_, x), feature in zip(usable, features, strict=True)
        )
        if solution[2] < 0 and (best is None or error < best[0]):
            best = (error, corner, solution)
    if best is None:
        return Fit("two segments", None, note="throughput does not bend")
    _, corner, (offset, slope, bend) = best
    grid = _grid(usable, 200)
    return Fit("two segments", corner, tuple((c, offset + slope * c + bend * max(0.0, c - corner)) for c in grid))


def kneedle(points: Points) -> Fit:
    """Ask the ``kneed`` package, when it is installed."""
    usable = sorted((c, x) for c, x in points if x > 0)
    try:
        from kneed import KneeLocator  # noqa: PLC0415 - optional
    except ImportError:
        return Fit("kneed", None, note="not installed")
    if len(usable) < 4:
        return Fit("kneed", None, note=f"{len(usable)} points, it takes 4")
    located = KneeLocator([c for c, _ in usable], [x for _, x in usable], curve="concave", direction="increasing")
    knee = located.knee
    return Fit("kneed", float(knee) if knee is not None else None, note="" if knee is not None else "no answer")


def guides(points: Points) -> tuple[Fit, ...]:
    """Return all fits."""
    return usl(points), segmented(points), kneedle(points)
