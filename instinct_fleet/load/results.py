"""From levels to what is written down: points, the capacity record, JSON. Pure."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from instinct_fleet.load.level import Level
from instinct_fleet.load.search import Outcome, Pooled, SearchConfig, pooled, pooled_ttft
from instinct_fleet.load.stats import Estimate
from instinct_fleet.model import Capacity, Point, to_json


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1e3


def _weighted(levels: Sequence[Level], name: str) -> float | None:
    """Mean of a field over levels, by their requests; None when any level does not know it."""
    values = [getattr(level, name) for level in levels if level.requests]
    weights = [level.requests for level in levels if level.requests]
    if not values or any(v is None for v in values):
        return None
    return math.fsum(v * w for v, w in zip(values, weights, strict=True)) / sum(weights)


def _worst(levels: Sequence[Level], name: str) -> float | None:
    values = [getattr(level, name) for level in levels if level.requests]
    return None if not values or any(v is None for v in values) else float(max(values))


def mean_output_tokens(history: Sequence[Level]) -> float | None:
    """Return the mean number of output tokens a request over all levels, None when nothing was counted."""
    levels = [level for level in history if level.requests and level.mean_output_tokens is not None]
    return _weighted(levels, "mean_output_tokens")


def _point(group: Pooled, tokens: float | None) -> Point:
    levels = group.levels
    refused = sum(level.rejected for level in levels)
    rate = group.throughput.value / tokens if tokens else 0.0
    return Point(
        concurrency=group.concurrency,
        achieved_concurrency=_weighted(levels, "achieved"),
        requests=sum(level.requests for level in levels),
        failed=refused,
        request_rate=rate,
        output_token_rate=group.throughput.value,
        ttft_p50_ms=_ms(pooled_ttft(group, 0.5)),
        ttft_p99_ms=_ms(pooled_ttft(group, 0.99)),
        itl_p50_ms=_ms(_weighted(levels, "itl_p50")),
        itl_p99_ms=_ms(_worst(levels, "itl_p99")),
        e2e_p50_ms=_ms(_weighted(levels, "e2e_p50")),
        e2e_p99_ms=_ms(_worst(levels, "e2e_p99")),
        counts=not group.rejected,
        note=f"the server refused {refused} requests (HTTP 429 or 503)" if group.rejected else "",
    )


def points_of(history: Sequence[Level]) -> tuple[Point, ...]:
    """Return one point for each concurrency that was measured.

    The request rate is the token rate over the mean number of tokens a request of the whole run: within one short
    level the mix of lengths would blur it. A concurrency of which every level is void gives a point that does not
    count and says why.
    """
    tokens = mean_output_tokens(history)
    points = {group.concurrency: _point(group, tokens) for group in pooled(history)}
    for level in history:
        if level.void and level.purpose != "warmup" and level.rate is None and level.concurrency not in points:
            points[level.concurrency] = Point(
                concurrency=level.concurrency,
                achieved_concurrency=level.achieved,
                requests=level.requests,
                failed=level.broken + level.rejected,
                request_rate=0.0,
                output_token_rate=None,
                ttft_p50_ms=None,
                ttft_p99_ms=None,
                counts=False,
                note="; ".join(level.void),
            )
    return tuple(point for _, point in sorted(points.items()))


def open_loop_points(history: Sequence[Level]) -> tuple[Point, ...]:
    """Return a point for each arrival rate. They carry no knee: nobody asked for a concurrency."""
    return tuple(
        Point(
            concurrency=max(1, round(level.achieved)),
            achieved_concurrency=level.achieved,
            requests=level.requests,
            failed=level.broken + level.rejected,
            request_rate=level.requests / level.window if level.window else 0.0,
            output_token_rate=level.throughput.value,
            ttft_p50_ms=_ms(level.ttft_p50),
            ttft_p99_ms=_ms(level.ttft_p99),
            itl_p50_ms=_ms(level.itl_p50),
            itl_p99_ms=_ms(level.itl_p99),
            e2e_p50_ms=_ms(level.e2e_p50),
            e2e_p99_ms=_ms(level.e2e_p99),
            counts=False,
            note="; ".join([f"open loop, {level.rate:g} requests/s asked", *level.void]),
        )
        for level in history
        if level.rate is not None
    )


def capacity_of(
    history: Sequence[Level],
    outcome: Outcome,
    config: SearchConfig,
    *,
    instance: str = "",
    key: str = "",
    tool_versions: Mapping[str, str] | None = None,
    date: str = "",
    run_id: str = "",
    simulated: bool = False,
) -> Capacity:
    """Return the capacity record of a search. Knee and limit are the outcome's; without a verdict there is neither."""
    return Capacity(
        instance=instance,
        key=key,
        knee=outcome.knee,
        limit=outcome.limit,
        headroom=config.headroom,
        ttft_slo_ms=_ms(config.objective),
        points=points_of(history),
        tool_versions=dict(sorted((tool_versions or {}).items())),
        date=date,
        run_id=run_id,
        note="; ".join(outcome.reasons),
        verdict=outcome.verdict,
        knee_interval=outcome.interval if outcome.knee is not None else None,
        simulated=simulated,
    )


def level_to_json(level: Level) -> dict[str, Any]:
    """Return a level as plain data: all it knows but the single first-token times."""
    document: dict[str, Any] = to_json(dataclasses.replace(level, ttfts=()))
    del document["ttfts"]
    document["throughput"] = estimate_to_json(level.throughput)
    return document


def estimate_to_json(estimate: Estimate | None) -> dict[str, Any] | None:
    """Return an estimate with its 95 % interval; ends that are unknown are None."""
    if estimate is None:
        return None
    known = math.isfinite(estimate.half)
    return {
        "value": estimate.value,
        "low": estimate.low if known else None,
        "high": estimate.high if known else None,
    }


def rules(config: SearchConfig, *, max_lag: float, steps: Sequence[int] | None = None) -> tuple[str, ...]:
    """Return the rules of a sweep in plain sentences, with the numbers that were used; ``steps`` are a ladder's."""
    objective = (
        "No TTFT objective was given: throughput alone decides."
        if config.objective is None
        else f"A level meets the objective when {config.attainment:.0%} of its requests have their first token within "
        f"{config.objective * 1e3:g} ms; it is shown by the lower end of Wilson's 95 % interval at the knee."
    )
    way = (
        f"Fixed steps were asked for, so the knee can only be one of {', '.join(map(str, steps))}."
        if steps
        else "Concurrency rises from 1 by factors of four and two until the objective is missed or throughput grows "
        f"less than {config.growth:.0%} a doubling; then the boundary is narrowed to {config.resolution:.0%} or one "
        f"request, and both of its sides are repeated until {config.agree} levels agree."
    )
    return (
        f"The knee is the smallest concurrency whose throughput is within {config.tolerance:.0%} of the best among the "
        "levels that count and meet the objective; where the top is flat behind a sharp corner, of what its levels say "
        f"together. The limit is the knee less {config.headroom:.0%}, rounded down.",
        objective,
        "A level is measured once all its workers run and as many requests as workers have ended since; what ends "
        "inside the window counts. Neither filling nor draining is part of it.",
        "Throughput is output tokens (by the server's usage) per second; its 95 % interval comes from batch means, "
        "widened where batches follow each other. A level stops when that interval excludes the threshold it was "
        f"started to decide, or is narrow enough, or after {config.max_level_seconds:g} s.",
        "A level counts only when at least 98 % of the asked requests were in flight, no stream was broken, the "
        f"client's event loop was at most {max_lag * 1e3:g} ms late at p99, and the server's own count of running and "
        "waiting requests agrees where it can be read.",
        way,
        f"Budget: {config.budget_seconds:g} s and {config.budget_requests} requests. Without a verdict there is no "
        "number.",
    )
