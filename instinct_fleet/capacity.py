"""The capacity record: from measured points, whoever measured them, to the knee and the concurrency limit.

The rule, the same for our own sweep and for imported result files:

* A point *counts* when no request failed and its achieved concurrency is at least 98 % of the asked one. Result files
  of other tools include the filling and the draining of the server, so for them throughput times mean end-to-end
  latency (Little's law) must reach 90 %. A point that does not count says why.
* The *knee* is the smallest concurrency whose throughput is within 5 % of the best among the counting points that
  meet the TTFT objective (p99).
* The *limit* is the knee less the headroom of 20 %, rounded down, at least 1.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from instinct_fleet.model import Capacity, Finding, Point, to_json

#: Within this share of the best throughput is good enough; the headroom taken off the knee.
TOLERANCE, HEADROOM = 0.05, 0.2
#: Achieved over asked concurrency that a point needs to count: our own steady window, and files with fill and drain.
MIN_ACHIEVED, MIN_ACHIEVED_IMPORTED = 0.98, 0.90
#: Fewer requests than this cannot show a p99: Wilson's lower bound stays below 99 % even without a miss.
REQUESTS_FOR_P99 = 381
#: Throughput that grows by less than this share a doubling has stopped growing.
GROWTH = 0.02
#: No measured number is larger; whole numbers of JSON can be too large for a float.
HUGE = 1e300
#: Mean answers of one load differ less than this factor, also where they end by themselves and few were asked.
MIXED = 2.0
#: What can be read, for the errors about what cannot.
EXPECTED = (
    "a result of vllm bench serve (completed, duration, ...), a guidellm report (benchmarks) or a sweep (capacity)"
)


class ResultError(ValueError):
    """A result file cannot be used; the text names the file, the key, the value seen and what was expected."""


def limit_of(knee: int, headroom: float = HEADROOM) -> int:
    """Return the concurrency limit for a knee: rounded down, at least 1."""
    # 0.8 * 35 is 28.000000000000004 one way and 27.999999999999996 another; neither may decide.
    return max(1, math.floor(round(knee * (1 - headroom), 9)))


def capacity_key(provenance: Mapping[str, Any]) -> str:
    """Return a short hash of what was measured: model version, vLLM version, arguments, TP, topology.

    A record whose key differs from what runs is stale. The order of keys does not matter.
    """
    text = json.dumps(to_json(provenance), sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def meets(point: Point, ttft_slo_ms: float | None) -> bool:
    """Return whether a counting point meets the TTFT objective; an unknown p99 does not."""
    if not point.counts or point.request_rate <= 0:
        return False
    return ttft_slo_ms is None or (point.ttft_p99_ms is not None and point.ttft_p99_ms <= ttft_slo_ms)


def misses(point: Point, ttft_slo_ms: float | None) -> bool:
    """Return whether a counting point is known to miss the TTFT objective."""
    p99 = point.ttft_p99_ms
    return point.counts and ttft_slo_ms is not None and p99 is not None and p99 > ttft_slo_ms


def knee_of(points: Iterable[Point], ttft_slo_ms: float | None, *, tolerance: float = TOLERANCE) -> Point | None:
    """Return the point at the knee, or None when no point counts and meets the objective."""
    eligible = sorted((p for p in points if meets(p, ttft_slo_ms)), key=lambda p: p.concurrency)
    best = max((p.request_rate for p in eligible), default=0.0)
    return next((p for p in eligible if p.request_rate >= best * (1 - tolerance)), None)


def stopped_growing(before: tuple[int, float], top: tuple[int, float], *, growth: float = GROWTH) -> bool:
    """Return whether throughput grew by at most ``growth`` a doubling between two (concurrency, throughput) pairs."""
    doublings = math.log2(top[0] / before[0])
    return top[1] <= before[1] * math.pow(1 + growth, doublings)


def still_growing(curve: Sequence[tuple[int, float]], *, growth: float = GROWTH) -> bool:
    """Return whether (concurrency, throughput) pairs, ascending, still grow at their end: then a knee is a lower bound.

    They do not when some concurrency at least 15 % below the highest gives as much, but for ``growth``. One pair alone
    shows no end of growth.
    """
    if not curve:
        return False
    top, most = curve[-1]
    return all(x * (1 + growth) < most for c, x in curve[:-1] if c * 1.15 <= top)


def merge(points: Iterable[Point]) -> tuple[Point, ...]:
    """Take points of the same concurrency together, in ascending order.

    Only those that count are merged when any does. Rates and medians are averaged over the requests, tails are the
    worst of the runs, which is the careful choice.
    """
    groups: dict[int, list[Point]] = {}
    for point in points:
        groups.setdefault(point.concurrency, []).append(point)
    merged = []
    for _, group in sorted(groups.items()):
        runs = [p for p in group if p.counts] or group
        if len(runs) == 1:
            merged.append(runs[0])
            continue
        weights = [max(1, p.requests) for p in runs]

        def mean(name: str, runs: list[Point] = runs, weights: list[int] = weights) -> Any:
            values = [getattr(p, name) for p in runs]
            if any(v is None for v in values):
                return None
            return math.fsum(v * w for v, w in zip(values, weights, strict=True)) / sum(weights)

        def worst(name: str, runs: list[Point] = runs) -> Any:
            values = [getattr(p, name) for p in runs]
            return None if any(v is None for v in values) else max(values)

        notes = dict.fromkeys(p.note for p in runs if p.note)
        merged.append(
            dataclasses.replace(
                runs[0],
                requests=sum(p.requests for p in runs),
                failed=sum(p.failed for p in runs),
                note="; ".join([f"{len(runs)} runs taken together", *notes]),
                **{n: mean(n) for n in ("achieved_concurrency", "request_rate", "output_token_rate")},
                **{n: mean(n) for n in ("ttft_p50_ms", "itl_p50_ms", "e2e_p50_ms")},
                **{n: worst(n) for n in ("ttft_p99_ms", "itl_p99_ms", "e2e_p99_ms")},
            )
        )
    return tuple(merged)


def record(
    points: Iterable[Point],
    *,
    ttft_slo_ms: float | None = None,
    headroom: float = HEADROOM,
    instance: str = "",
    key: str = "",
    tool_versions: Mapping[str, str] | None = None,
    date: str = "",
    run_id: str = "",
    simulated: bool = False,
) -> Capacity:
    """Return the capacity record of points by the rule. Without a knee, ``note`` says why."""
    points = tuple(points)
    merged = merge(points)
    knee = knee_of(merged, ttft_slo_ms)
    curve = [(p.concurrency, p.request_rate) for p in merged if meets(p, ttft_slo_ms)]
    # Only a point known to miss the objective ends the search for more; one whose p99 nobody knows does not.
    growing = still_growing(curve) and not any(misses(p, ttft_slo_ms) for p in merged if p.concurrency > curve[-1][0])
    return Capacity(
        instance=instance,
        key=key,
        knee=knee.concurrency if knee else None,
        limit=limit_of(knee.concurrency, headroom) if knee else None,
        headroom=headroom,
        ttft_slo_ms=ttft_slo_ms,
        points=merged,
        tool_versions=dict(sorted((tool_versions or {}).items())),
        date=date,
        run_id=run_id,
        verdict="inconclusive" if knee is None else "lower bound only" if growing else "pass",
        simulated=simulated,
        note="; ".join(filter(None, (_note(merged, ttft_slo_ms, knee=knee, growing=growing), _mixed(points)))),
    )


def _mixed(points: Iterable[Point]) -> str:
    """Return what to say when the requests of the points differ too much in length to be one load; else nothing."""
    lengths = [
        p.output_token_rate / p.request_rate for p in points if p.counts and p.output_token_rate and p.request_rate
    ]
    if not lengths or max(lengths) <= MIXED * min(lengths):
        return ""
    return (
        f"requests have {min(lengths):.0f} to {max(lengths):.0f} output tokens from point to point: these are "
        "different loads, whose requests/s cannot be compared; give the results of one load"
    )


def _note(points: Sequence[Point], ttft_slo_ms: float | None, *, knee: Point | None, growing: bool) -> str:
    if knee is None:
        if not points:
            return "no points"
        counting = [p for p in points if p.counts]
        if not counting:
            return f"none of {len(points)} points counts: {points[0].note}"
        seen = min((p.ttft_p99_ms for p in counting if p.ttft_p99_ms is not None), default=None)
        best = (
            "the files do not give it (run vllm bench serve with --metric-percentiles 99)"
            if seen is None
            else f"seen {seen:.0f} ms at best"
        )
        return f"no point meets the TTFT objective of {ttft_slo_ms:g} ms at p99: {best}"
    notes = []
    good = [p.concurrency for p in points if meets(p, ttft_slo_ms)]
    if growing and len(good) == 1:
        notes.append(f"concurrency {good[0]} alone counts, which shows no end of growth: the knee is a lower bound")
    elif growing:
        notes.append(
            f"throughput still grew at concurrency {good[-1]}, the highest that counts: the knee is a lower bound"
        )
    unknown = [str(p.concurrency) for p in points if p.counts and p.ttft_p99_ms is None]
    if ttft_slo_ms is not None and unknown:
        notes.append(
            f"TTFT p99 unknown at concurrency {', '.join(unknown)}, which were left out (run vllm bench serve with "
            "--metric-percentiles 99)"
        )
    if ttft_slo_ms is not None and knee.requests < REQUESTS_FOR_P99:
        notes.append(
            f"{knee.requests} requests at the knee are too few to certify a p99: it takes {REQUESTS_FOR_P99} without a "
            "miss"
        )
    return "; ".join(notes)


# ---- result files -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Results:
    """What result files held: points, the model (None: not said), tool versions, and what to know about them."""

    points: tuple[Point, ...]
    model: str | None = None
    tool_versions: Mapping[str, str] = dataclasses.field(default_factory=dict)
    date: str = ""
    simulated: bool = False
    findings: tuple[Finding, ...] = ()


def documents(name: str, text: str) -> tuple[tuple[str, Any], ...]:
    """Split a file into its JSON documents: one, one a line, or simply one after the other.

    Returns (where, document) pairs; ``where`` names the file and, when there are several, the document.

    Raises:
        ResultError: the text is not JSON from beginning to end.
    """
    decoder = json.JSONDecoder()
    found: list[Any] = []
    position = 0
    text = text.removeprefix("\ufeff")
    while True:
        while position < len(text) and text[position] in " \t\r\n,":
            position += 1
        if position >= len(text):
            break
        try:
            document, position = decoder.raw_decode(text, position)
        except (ValueError, RecursionError) as exc:
            line = text.count("\n", 0, position) + 1
            count = f" after {len(found)} complete documents" if found else ""
            raise ResultError(f"{name}: line {line}{count}: {exc}; expected JSON (is the file truncated?)") from exc
        found += document if isinstance(document, list) else [document]
    if not found:
        raise ResultError(f"{name}: the file is empty; expected a result of vllm bench serve, guidellm or a sweep")
    several = len(found) > 1
    return tuple((f"{name}: document {i}" if several else name, d) for i, d in enumerate(found, 1))


def _number(where: str, mapping: Mapping[str, Any], key: str, *, needed: bool = False) -> float | None:
    """Return a finite number that is not negative, or None when the key is absent or null.

    Raises:
        ResultError: the value is something else, or is needed and absent.
    """
    value = mapping.get(key)
    if value is None:
        if needed:
            raise ResultError(f"{where}: key {key}: not there, expected a number")
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= HUGE:
        raise ResultError(f"{where}: key {key}: got {value!r}, expected a number from 0 on")
    return float(value)


def _whole(where: str, mapping: Mapping[str, Any], key: str) -> int | None:
    value = _number(where, mapping, key)
    if value is not None and value != int(value):
        raise ResultError(f"{where}: key {key}: got {value!r}, expected a whole number")
    return None if value is None else int(value)


def _part(where: str, mapping: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = mapping.get(key)
    if value is not None and not isinstance(value, Mapping):
        raise ResultError(f"{where}: key {key}: got a {type(value).__name__}, expected a JSON object")
    return value or {}


def _seconds(mapping: Mapping[str, Any], key: str) -> list[float]:
    values = mapping.get(key)
    if not isinstance(values, list) or not all(
        isinstance(v, (int, float)) and not isinstance(v, bool) and 0 <= v <= HUGE for v in values
    ):
        return []
    return [float(v) for v in values]


def _percentile(values: Sequence[float], q: float) -> float | None:
    ordered = sorted(values)
    if not ordered:
        return None
    position = (len(ordered) - 1) * q
    low = math.floor(position)
    return ordered[low] + (ordered[min(low + 1, len(ordered) - 1)] - ordered[low]) * (position - low)


def vllm_point(where: str, result: Mapping[str, Any]) -> Point:
    """Read one result of ``vllm bench serve`` (key names of 0.6 to 0.33, and of vllm-rs).

    ``failed`` is newer than 0.6 (then ``num_prompts - completed``); end-to-end latency is only there when it was asked
    for: without it, TTFT plus the time of the other tokens stands in.

    Raises:
        ResultError: a number that is needed is missing or is not a number.
    """
    completed = _whole(where, result, "completed")
    if completed is None:
        raise ResultError(f"{where}: key completed: not there, expected the number of finished requests")
    duration = _number(where, result, "duration")
    rate = _number(where, result, "request_throughput", needed=not duration)
    measured = completed / duration if duration else None
    if rate is None:
        rate = measured or 0.0
    failed = _whole(where, result, "failed")
    prompts = _whole(where, result, "num_prompts")
    if failed is None:
        failed = max(0, prompts - completed) if prompts is not None else 0
    ttfts = _seconds(result, "ttfts")
    tokens = _number(where, result, "total_output_tokens")
    token_rate = _number(where, result, "output_throughput")
    if token_rate is None and tokens is not None and duration:
        token_rate = tokens / duration

    def tail(metric: str, q: int) -> float | None:
        value = _number(where, result, f"p{q}_{metric}_ms")
        if value is None and q == 50:
            value = _number(where, result, f"median_{metric}_ms")
        if value is None and metric == "ttft" and ttfts:
            seconds = _percentile(ttfts, q / 100)
            value = seconds * 1e3 if seconds is not None else None
        return value

    latency, estimated = _vllm_latency(where, result, completed=completed, tokens=tokens, ttfts=ttfts)
    concurrency, reason = _vllm_concurrency(where, result)
    achieved = rate * latency / 1e3 if latency is not None else None
    notes = [reason] if reason else []
    if measured and abs(rate - measured) > 0.05 * measured:
        reason = f"request_throughput {rate:g} contradicts completed / duration = {measured:g} in the same file"
        notes.append(reason)
    asked = concurrency or max(1, round(achieved or 0.0))
    counts, why = _counts(asked, achieved=achieved, failed=failed, completed=completed)
    if why:
        notes.append(why)
    ttft_p99 = tail("ttft", 99)
    if ttft_p99 is None:
        notes.append("TTFT p99 unknown (run with --metric-percentiles 99)")
    if estimated and latency is not None:
        notes.append("end-to-end latency estimated from TTFT and TPOT (add e2el to --percentile-metrics)")
    return Point(
        concurrency=asked,
        achieved_concurrency=achieved,
        requests=completed,
        failed=failed,
        request_rate=rate,
        output_token_rate=token_rate,
        ttft_p50_ms=tail("ttft", 50),
        ttft_p99_ms=ttft_p99,
        itl_p50_ms=tail("itl", 50),
        itl_p99_ms=tail("itl", 99),
        e2e_p50_ms=tail("e2el", 50),
        e2e_p99_ms=tail("e2el", 99),
        counts=counts and not reason,
        note="; ".join(notes),
    )


def _vllm_latency(
    where: str, result: Mapping[str, Any], *, completed: int, tokens: float | None, ttfts: list[float]
) -> tuple[float | None, bool]:
    """Return (mean end-to-end latency in ms, whether it is an estimate)."""
    mean = _number(where, result, "mean_e2el_ms")
    if mean is not None:
        return mean, False
    gaps = result.get("itls")
    if ttfts and isinstance(gaps, list) and len(gaps) == len(ttfts) and all(isinstance(g, list) for g in gaps):
        return math.fsum([*ttfts, *(math.fsum(g) for g in gaps)]) / len(ttfts) * 1e3, False
    ttft, tpot = _number(where, result, "mean_ttft_ms"), _number(where, result, "mean_tpot_ms")
    if ttft is None or tpot is None or not tokens or not completed:
        return None, True
    return ttft + tpot * max(0.0, tokens / completed - 1), True


def _vllm_concurrency(where: str, result: Mapping[str, Any]) -> tuple[int | None, str]:
    """Return (asked concurrency, why the point cannot count)."""
    concurrency = None if _unbounded(result.get("max_concurrency")) else _whole(where, result, "max_concurrency")
    if concurrency:
        return concurrency, ""
    rate = result.get("request_rate")
    if _unbounded(rate):
        return None, "all requests were sent at once: no steady concurrency (run with --max-concurrency)"
    return None, f"open loop at {rate} requests/s: no concurrency was asked (run with --max-concurrency)"


def _unbounded(value: Any) -> bool:
    """Return whether a bound was not set: absent, or infinite as text or as a number."""
    return value in (None, "inf", math.inf)


def _counts(
    asked: int, *, achieved: float | None, failed: int, completed: int, share: float = MIN_ACHIEVED_IMPORTED
) -> tuple[bool, str]:
    if not completed:
        return False, "no request completed"
    if failed:
        return False, f"{failed} requests failed, expected none"
    if achieved is None:
        return False, "achieved concurrency unknown: no latency in the file (add e2el to --percentile-metrics)"
    if achieved < share * asked:
        return False, (
            f"client- or server-capped: {achieved:.1f} in flight on average is {achieved / asked:.0%} of the {asked} "
            f"asked for, expected at least {share:.0%}"
        )
    return True, ""


def guidellm_point(where: str, result: Mapping[str, Any]) -> Point:
    """Read one entry of ``benchmarks`` of a guidellm report (0.2 to 0.8).

    Raises:
        ResultError: a number that is needed is missing or is not a number.
    """
    config = result.get("config") if isinstance(result.get("config"), Mapping) else result.get("args")
    strategy = config.get("strategy") if isinstance(config, Mapping) else None
    metrics = result.get("metrics")
    if not isinstance(strategy, Mapping) or not isinstance(metrics, Mapping):
        raise ResultError(
            f"{where}: got the keys {_keys(result)}, expected config.strategy and metrics, as guidellm 0.2 to 0.8 "
            "writes them"
        )
    kind = str(strategy.get("type_") or strategy.get("kind") or strategy.get("type") or "unknown")

    def part(name: str) -> Mapping[str, Any]:
        metric = metrics.get(name)
        value = metric.get("successful") if isinstance(metric, Mapping) else None
        return value if isinstance(value, Mapping) else {}

    def tail(name: str, q: str, factor: float = 1.0) -> float | None:
        summary = part(name)
        percentiles = summary.get("percentiles")
        value = _number(f"{where}: {name}", percentiles, q) if isinstance(percentiles, Mapping) else None
        if value is None and q == "p50":
            value = _number(f"{where}: {name}", summary, "median")
        return None if value is None else value * factor

    rate = _number(f"{where}: requests_per_second.successful", part("requests_per_second"), "mean", needed=True)
    latency = _number(f"{where}: request_latency.successful", part("request_latency"), "mean")
    totals = metrics.get("request_totals")
    totals = totals if isinstance(totals, Mapping) else result.get("request_totals", {})
    totals = totals if isinstance(totals, Mapping) else {}
    completed = _whole(f"{where}: request_totals", totals, "successful")
    failed = _whole(f"{where}: request_totals", totals, "errored")
    reason = ""
    concurrency: int | None = None
    if kind == "synchronous":
        concurrency = 1
    elif kind in ("concurrent", "throughput"):
        concurrency = _whole(f"{where}: strategy", strategy, "streams") or _whole(
            f"{where}: strategy", strategy, "max_concurrency"
        )
    if concurrency is None:
        reason = f"strategy {kind}: no concurrency was asked (run with the concurrent profile)"
    if completed is None:
        reason = reason or "request_totals.successful unknown"
    if failed is None:
        reason = reason or "request_totals.errored unknown: failures cannot be excluded"
    achieved = rate * latency if rate is not None and latency is not None else None
    asked = concurrency or max(1, round(achieved or 0.0))
    counts, why = _counts(asked, achieved=achieved, failed=failed or 0, completed=completed or 0)
    ttft_p99 = tail("time_to_first_token_ms", "p99")
    notes = [n for n in (reason, why if not reason else "", "" if ttft_p99 is not None else "TTFT p99 unknown") if n]
    return Point(
        concurrency=asked,
        achieved_concurrency=achieved,
        requests=completed or 0,
        failed=failed or 0,
        request_rate=rate or 0.0,
        output_token_rate=_number(
            f"{where}: output_tokens_per_second.successful", part("output_tokens_per_second"), "mean"
        ),
        ttft_p50_ms=tail("time_to_first_token_ms", "p50"),
        ttft_p99_ms=ttft_p99,
        itl_p50_ms=tail("inter_token_latency_ms", "p50"),
        itl_p99_ms=tail("inter_token_latency_ms", "p99"),
        e2e_p50_ms=tail("request_latency", "p50", 1e3),
        e2e_p99_ms=tail("request_latency", "p99", 1e3),
        counts=counts and not reason,
        note="; ".join(notes),
    )


def _guidellm_model(report: Mapping[str, Any], entry: Mapping[str, Any]) -> Any:
    """Return the model of a guidellm report: where an entry has it (0.2, 0.4 on), or its arguments; None if nowhere."""
    for holder, path in (
        (entry, "config.backend.model"),
        (entry, "worker.backend_model"),
        (report, "args.model"),
        (report, "args.backend_kwargs.model"),
    ):
        value: Any = holder
        for name in path.split("."):
            value = value.get(name) if isinstance(value, Mapping) else None
        if isinstance(value, str) and value:
            return value
    return None


def _keys(document: Any) -> str:
    if not isinstance(document, Mapping):
        return f"a {type(document).__name__}"
    names = sorted(str(k) for k in document)
    return ", ".join(names[:8]) + (", ..." if len(names) > 8 else "") if names else "none"


def own_points(where: str, document: Mapping[str, Any]) -> tuple[Point, ...]:
    """Read the points of our own sweep (``sweep.json``) or of a capacity record.

    Raises:
        ResultError: the points are not as this version writes them.
    """
    capacity = document.get("capacity", document)
    points = capacity.get("points") if isinstance(capacity, Mapping) else None
    if not isinstance(points, list):
        raise ResultError(f"{where}: key capacity.points: got {type(points).__name__}, expected a list of points")
    names = {f.name for f in dataclasses.fields(Point)}
    read = []
    for number, point in enumerate(points):
        here = f"{where}: capacity.points[{number}]"
        if not isinstance(point, Mapping) or not set(point) <= names:
            raise ResultError(f"{here}: got the keys {_keys(point)}, expected those of a point")
        for key in ("concurrency", "requests", "failed", "request_rate"):
            _number(here, point, key, needed=True)
        for key in ("achieved_concurrency", "output_token_rate", "ttft_p50_ms", "ttft_p99_ms"):
            _number(here, point, key)
        read.append(Point(**point))
    return tuple(read)


def is_own(document: Mapping[str, Any]) -> bool:
    """Return whether a document is one of our sweeps or capacity records."""
    return document.get("kind") == "instinct-fleet sweep" or "capacity" in document or "ttft_slo_ms" in document


def is_result(document: Any) -> bool:
    """Return whether a document looks like a result of any of the known tools."""
    return isinstance(document, Mapping) and (
        is_own(document)
        or isinstance(document.get("benchmarks"), list)
        or "completed" in document
        or "request_throughput" in document
    )


def read_results(files: Iterable[tuple[str, str]], *, maybe: Collection[str] = ()) -> Results:
    """Read result files, given as (name, text), of any of the known tools.

    A file named in ``maybe`` was not chosen one by one (it lay in a directory): when it holds JSON that is no result it
    is left out, and a finding says so. Two files of one run of our own sweep count once.

    Raises:
        ResultError: a file is not a result, or the files are about different models.
    """
    points: list[Point] = []
    models: dict[str, str] = {}
    versions: dict[str, str] = {}
    dates: list[str] = []
    findings: list[Finding] = []
    simulated = False
    runs: set[str] = set()
    for name, text in files:
        found = documents(name, text)
        if name in maybe and not any(is_result(document) for _, document in found):
            findings.append(
                Finding(
                    code="load_file_no_result",
                    severity="info",
                    subject=name,
                    message=f"got the keys {_keys(found[0][1])}, expected {EXPECTED}; it was left out",
                    remedy="give the result files by name",
                )
            )
            continue
        for where, document in found:
            if not isinstance(document, Mapping):
                raise ResultError(f"{where}: got a {type(document).__name__}, expected a JSON object")
            model: Any = None
            if is_own(document):
                read = own_points(where, document)
                inner = document.get("capacity", document)
                run = str(inner.get("run_id") or "")
                if run and run in runs:
                    # sweep.json holds the record that capacity.json repeats: that is one measurement, not two.
                    continue
                runs.add(run)
                points += read
                model = _part(where, document, "settings").get("model")
                versions |= {str(k): str(v) for k, v in _part(where, inner, "tool_versions").items()}
                dates.append(str(inner.get("date") or ""))
                simulated = simulated or bool(inner.get("simulated"))
                if inner.get("verdict") in ("inconclusive", "fail"):
                    findings.append(
                        Finding(
                            code="load_sweep_inconclusive",
                            severity="unknown" if inner["verdict"] == "inconclusive" else "error",
                            subject=where,
                            message=f"the sweep ended with {inner['verdict']}: "
                            f"{inner.get('note') or 'no reason given'}; expected pass",
                            remedy="repeat the sweep: instinct-fleet sweep --base-url ... --model ...",
                        )
                    )
            elif isinstance(document.get("benchmarks"), list):
                metadata = document.get("metadata")
                version = metadata.get("guidellm_version") if isinstance(metadata, Mapping) else None
                versions["guidellm"] = str(version or "unknown")
                for number, entry in enumerate(document["benchmarks"]):
                    here = f"{where}: benchmarks[{number}]"
                    if not isinstance(entry, Mapping):
                        raise ResultError(f"{here}: got a {type(entry).__name__}, expected a JSON object")
                    points.append(guidellm_point(here, entry))
                    model = model or _guidellm_model(document, entry)
            elif "completed" in document or "request_throughput" in document:
                points.append(vllm_point(where, document))
                versions.setdefault("vllm bench serve", str(document.get("vllm_version") or "unknown"))
                dates.append(str(document.get("date") or ""))
                model = document.get("model_id")
            else:
                raise ResultError(f"{where}: got the keys {_keys(document)}, expected {EXPECTED}")
            if model:
                models.setdefault(str(model), where)
    if len(models) > 1:
        seen = "; ".join(f"{model} in {where}" for model, where in sorted(models.items()))
        raise ResultError(f"the files are about different models: {seen}; expected one model for one record")
    findings += [
        Finding(
            code="load_point_not_counted",
            severity="warning",
            subject=f"concurrency {point.concurrency}",
            message=point.note,
            remedy="measure this concurrency again: instinct-fleet sweep --ladder",
        )
        for point in points
        if not point.counts
    ]
    return Results(
        points=tuple(points),
        model=next(iter(models), None),
        tool_versions=versions,
        date=max(dates, default=""),
        simulated=simulated,
        findings=tuple(findings),
    )
