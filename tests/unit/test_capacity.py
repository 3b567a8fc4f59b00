"""From result files of several tools to one capacity record, and what each bad file is told."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from instinct_fleet.capacity import (
    ResultError,
    capacity_key,
    documents,
    guidellm_point,
    knee_of,
    limit_of,
    merge,
    read_results,
    record,
    still_growing,
    stopped_growing,
    vllm_point,
)
from instinct_fleet.model import Point, to_json

CURVE = {1: 2.0, 8: 14.0, 32: 40.0, 64: 58.0, 96: 70.0, 128: 72.0, 192: 71.5}


def vllm(concurrency: int, rate: float | None = None, **more: Any) -> dict[str, Any]:
    """A result of `vllm bench serve` with steady numbers: nearly all requests in flight all the time."""
    rate = CURVE[concurrency] if rate is None else rate
    e2e = 0.97 * concurrency / rate * 1e3
    base: dict[str, Any] = {
        "date": "20260101-000000",
        "backend": "vllm",
        "model_id": "m",
        "num_prompts": 500,
        "request_rate": "inf",
        "max_concurrency": concurrency,
        "duration": 500 / rate,
        "completed": 500,
        "failed": 0,
        "total_input_tokens": 50_000,
        "total_output_tokens": 64_000,
        "request_throughput": rate,
        "output_throughput": rate * 128,
        "mean_ttft_ms": 0.2 * e2e,
        "median_ttft_ms": 0.2 * e2e,
        "p99_ttft_ms": 10.0 * concurrency,
        "mean_tpot_ms": 0.8 * e2e / 127,
        "mean_e2el_ms": e2e,
        "median_e2el_ms": e2e,
    }
    return {k: v for k, v in {**base, **more}.items() if v != "absent"}


def guidellm(streams: int, rate: float, **more: Any) -> dict[str, Any]:
    def part(mean: float, p99: float) -> dict[str, Any]:
        return {"successful": {"mean": mean, "median": mean, "percentiles": {"p50": mean, "p99": p99}}}

    return {
        "config": {"strategy": {"type_": "concurrent", "streams": streams}},
        "metrics": {
            "request_totals": {"successful": 400, "errored": 0, "incomplete": 3, "total": 403},
            "requests_per_second": part(rate, rate),
            "request_latency": part(0.95 * streams / rate, 1.0),
            "time_to_first_token_ms": part(50.0, 10.0 * streams),
            "inter_token_latency_ms": part(5.0, 9.0),
            "output_tokens_per_second": part(rate * 100, 0),
        },
        **more,
    }


def files(*results: Any) -> list[tuple[str, str]]:
    return [(f"r{i}.json", json.dumps(r)) for i, r in enumerate(results)]


def test_the_rule() -> None:
    found = record(read_results(files(*(vllm(c) for c in CURVE))).points, ttft_slo_ms=1500)
    assert (found.knee, found.limit, found.verdict) == (96, 76, "pass")
    assert [p.concurrency for p in found.points] == sorted(CURVE)


def test_the_objective_moves_the_knee() -> None:
    points = read_results(files(*(vllm(c) for c in CURVE))).points
    assert record(points, ttft_slo_ms=700).knee == 64
    none = record(points, ttft_slo_ms=5)
    assert (none.knee, none.limit, none.verdict) == (None, None, "inconclusive")
    assert "seen 10 ms at best" in none.note


@pytest.mark.parametrize("layout", ["lines", "appended", "list", "pretty"])
def test_several_results_in_one_file(layout: str) -> None:
    results = [vllm(c) for c in CURVE]
    text = {
        "lines": "\n".join(json.dumps(r) for r in results) + "\n",
        "appended": "".join(json.dumps(r) for r in results),
        "list": json.dumps(results),
        "pretty": "\n".join(json.dumps(r, indent=1) for r in results),
    }[layout]
    assert record(read_results([("all.json", text)]).points).knee == 96


def test_old_files_without_failed_or_latency() -> None:
    point = vllm_point(
        "f", vllm(32, failed="absent", mean_e2el_ms="absent", median_e2el_ms="absent", **{"request_goodput:": None})
    )
    assert point.counts
    assert point.failed == 0
    assert point.achieved_concurrency == pytest.approx(0.97 * 32, rel=0.01)
    assert "estimated" in point.note
    point = vllm_point("f", vllm(32, failed="absent", completed=499))
    assert (point.failed, point.counts) == (1, False)


def test_detailed_files_give_what_the_summary_leaves_out() -> None:
    detail = vllm(
        8,
        mean_e2el_ms="absent",
        p99_ttft_ms="absent",
        ttfts=[0.1] * 500,
        itls=[[0.44]] * 500,
    )
    point = vllm_point("f", detail)
    assert point.ttft_p99_ms == pytest.approx(100)
    assert point.achieved_concurrency == pytest.approx(14.0 * 0.54)
    assert point.counts


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"failed": 3}, "3 requests failed"),
        ({"mean_e2el_ms": 100.0}, "client- or server-capped"),
        ({"max_concurrency": None}, "sent at once"),
        ({"max_concurrency": "inf"}, "sent at once"),
        ({"max_concurrency": float("inf"), "request_rate": float("inf")}, "sent at once"),
        ({"max_concurrency": None, "request_rate": 4.0}, "open loop at 4.0"),
        ({"completed": 0, "num_prompts": 0, "request_throughput": 0.0}, "no request completed"),
        ({"request_throughput": 80.0}, "contradicts completed / duration"),
        ({"mean_e2el_ms": None, "mean_tpot_ms": None}, "achieved concurrency unknown"),
    ],
)
def test_a_point_that_does_not_count_says_why(change: dict[str, Any], words: str) -> None:
    point = vllm_point("f", vllm(32, **change))
    assert not point.counts
    assert words in point.note
    results = read_results(files(vllm(32, **change)))
    assert results.findings[0].code == "load_point_not_counted"
    assert words in results.findings[0].message


def test_an_unknown_p99_is_not_within_the_objective() -> None:
    points = read_results(files(vllm(8, p99_ttft_ms="absent"), vllm(32))).points
    assert "TTFT p99 unknown" in points[0].note
    assert record(points, ttft_slo_ms=1000).knee == 32
    assert record(points[:1], ttft_slo_ms=1000).knee is None
    assert record(points[:1]).knee == 8


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "the file is empty"),
        ("{", "expected JSON"),
        (json.dumps(vllm(8))[:-30], "line 1: "),
        (json.dumps(vllm(8)) + "\n" + json.dumps(vllm(32))[:50], "line 2 after 1 complete documents"),
        ("3", "got a int, expected a JSON object"),
        ('{"a": 1}', "got the keys a, expected a result of vllm bench serve"),
        (json.dumps(vllm(8, completed="absent")), "key completed: not there"),
        (json.dumps(vllm(8, request_throughput="absent", duration="absent")), "key request_throughput: not there"),
        (json.dumps(vllm(8, request_throughput="fast")), "key request_throughput: got 'fast', expected a number"),
        (json.dumps(vllm(8, duration=-1)), "key duration: got -1"),
        (json.dumps(vllm(8, max_concurrency=8.5)), "key max_concurrency: got 8.5, expected a whole number"),
        (json.dumps(vllm(8, p99_ttft_ms=float("nan"))), "key p99_ttft_ms: got nan"),
        (json.dumps(vllm(8, failed=True)), "key failed: got True"),
        ('{"benchmarks": [1]}', "benchmarks[0]: got a int"),
        ('{"benchmarks": [{"a": 1}]}', "expected config.strategy and metrics"),
        (json.dumps(vllm(8, num_prompts=10**400)), "key num_prompts: got 1000"),
        ('{"capacity": {"points": 3}}', "capacity.points: got int"),
        ('{"capacity": {"points": [], "tool_versions": "x"}}', "key tool_versions: got a str"),
        ('{"capacity": {"points": []}, "settings": [1]}', "key settings: got a list"),
        ('{"capacity": {"points": [{"x": 1}]}}', "capacity.points[0]: got the keys x"),
    ],
)
def test_a_bad_file_is_told_what_is_wrong(text: str, words: str) -> None:
    with pytest.raises(ResultError) as caught:
        read_results([("dir/file.json", text)])
    assert "dir/file.json" in str(caught.value)
    assert words in str(caught.value)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(max_size=8),
        lambda x: (
            st.lists(x)
            | st.dictionaries(
                st.sampled_from(
                    [
                        "completed",
                        "duration",
                        "benchmarks",
                        "metrics",
                        "config",
                        "strategy",
                        "capacity",
                        "points",
                        "max_concurrency",
                    ]
                ),
                x,
            )
        ),
    )
)
def test_no_json_makes_it_raise_anything_else(document: Any) -> None:
    with contextlib.suppress(ResultError):
        read_results([("f", json.dumps(document))])


def test_files_of_different_models_are_refused() -> None:
    with pytest.raises(ResultError, match=r"different models: m in r0.json; other in r1.json"):
        read_results(files(vllm(8), vllm(32, model_id="other")))


def test_guidellm_reports() -> None:
    report = {
        "metadata": {"guidellm_version": "0.8.1"},
        "benchmarks": [guidellm(c, r) for c, r in CURVE.items()],
    }
    results = read_results(files(report))
    assert results.tool_versions == {"guidellm": "0.8.1"}
    found = record(results.points, ttft_slo_ms=1500)
    assert (found.knee, found.limit) == (96, 76)


@pytest.mark.parametrize(
    ("change", "counts", "words"),
    [
        ({"config": {"strategy": {"type_": "synchronous"}}}, True, ""),
        ({"config": {"strategy": {"kind": "throughput", "max_concurrency": 1}}}, True, ""),
        ({"config": {"strategy": {"type_": "poisson", "rate": 4}}}, False, "strategy poisson: no concurrency"),
        ({"args": {"strategy": {"type_": "concurrent", "streams": 1}}, "config": None}, True, ""),
    ],
)
def test_guidellm_strategies(change: dict[str, Any], counts: bool, words: str) -> None:
    point = guidellm_point("f", guidellm(1, 2.0, **change))
    assert (point.counts, words in point.note) == (counts, True)


def test_guidellm_reports_name_their_model() -> None:
    entry, old = guidellm(8, 14.0), {**guidellm(8, 14.0), "worker": {"backend_model": "m"}}
    new = {**entry, "config": {**entry["config"], "backend": {"model": "m"}}}
    for report in (
        {"benchmarks": [new]},
        {"benchmarks": [old]},
        {"args": {"model": "m"}, "benchmarks": [entry]},
        {"args": {"backend_kwargs": {"model": "m"}}, "benchmarks": [entry]},
    ):
        assert read_results(files(report)).model == "m"
    assert read_results(files({"args": 3, "benchmarks": [entry]})).model is None
    with pytest.raises(ResultError, match=r"different models: m in r0.json; other in r1.json"):
        read_results(files({"benchmarks": [new]}, {"args": {"model": "other"}, "benchmarks": [entry]}))


def test_guidellm_failures_do_not_count() -> None:
    entry = guidellm(8, 14.0)
    entry["metrics"]["request_totals"]["errored"] = 2
    assert "2 requests failed" in guidellm_point("f", entry).note
    del entry["metrics"]["request_totals"]["errored"]
    assert "failures cannot be excluded" in guidellm_point("f", entry).note


def test_our_own_record_is_read_back() -> None:
    first = record(read_results(files(*(vllm(c) for c in CURVE))).points, ttft_slo_ms=1500)
    for document in (to_json(first), {"kind": "instinct-fleet sweep", "capacity": to_json(first)}):
        again = record(read_results(files(document)).points, ttft_slo_ms=1500)
        assert again.points == first.points
        assert again.knee == first.knee


def test_a_sweep_that_did_not_trust_itself_stays_a_finding() -> None:
    capacity = to_json(record(read_results(files(vllm(8))).points))
    document = {"kind": "instinct-fleet sweep", "capacity": {**capacity, "verdict": "inconclusive", "note": "late"}}
    findings = read_results(files(document)).findings
    assert [f.code for f in findings] == ["load_sweep_inconclusive"]
    assert "late" in findings[0].message


def test_two_files_of_one_run_are_one_measurement() -> None:
    capacity = {**to_json(record(read_results(files(vllm(8), vllm(32))).points)), "run_id": "20260101-abc"}
    points = read_results(files(capacity, {"kind": "instinct-fleet sweep", "capacity": capacity})).points
    assert [p.requests for p in merge(points)] == [500, 500]
    other = {**capacity, "run_id": "20260102-def"}
    assert [p.requests for p in merge(read_results(files(capacity, other)).points)] == [1000, 1000]


def test_repeated_runs_are_taken_together() -> None:
    points = [vllm_point("a", vllm(32)), vllm_point("b", vllm(32, 44.0, p99_ttft_ms=900.0))]
    (merged,) = merge(points)
    assert merged.request_rate == pytest.approx(42.0)
    assert merged.ttft_p99_ms == 900.0
    assert merged.requests == 1000
    assert "2 runs" in merged.note
    broken = dataclasses.replace(points[0], counts=False, request_rate=1.0)
    assert merge([broken, points[1]]) == (points[1],)


def test_growth_at_the_end_is_a_lower_bound() -> None:
    found = record([vllm_point("f", vllm(c)) for c in (1, 8, 32)])
    assert found.verdict == "lower bound only"
    assert found.knee == 32
    assert "lower bound" in found.note


def test_results_of_different_loads_are_told_apart() -> None:
    short = [vllm_point("f", vllm(c)) for c in (1, 8, 32)]
    long = [vllm_point("f", vllm(c, CURVE[c] / 8, output_throughput=CURVE[c] * 128)) for c in (32, 64, 96)]
    assert "128 to 1024 output tokens" in record([*short, *long]).note
    assert "output tokens" not in record(short).note


def test_one_point_alone_is_a_lower_bound() -> None:
    found = record([vllm_point("f", vllm(96))])
    assert (found.knee, found.verdict) == (96, "lower bound only")
    assert "concurrency 96 alone counts" in found.note
    # A higher one that misses the objective says where it ends.
    assert record([vllm_point("f", vllm(c)) for c in (96, 192)], ttft_slo_ms=1000).verdict == "pass"


def test_what_is_not_known_to_miss_the_objective_is_no_end() -> None:
    points = [vllm_point("f", vllm(c, p99_ttft_ms=None if c > 32 else 10.0 * c)) for c in (1, 8, 32, 64)]
    found = record(points, ttft_slo_ms=1000)
    assert (found.knee, found.verdict) == (32, "lower bound only")
    assert "unknown at concurrency 64" in found.note
    none = record([vllm_point("f", vllm(c, p99_ttft_ms=None)) for c in (1, 8)], ttft_slo_ms=1000)
    assert none.knee is None
    assert "--metric-percentiles 99" in none.note


def test_the_lower_bound_names_the_highest_that_counts() -> None:
    found = record([vllm_point("f", vllm(c, failed=3 if c > 32 else 0)) for c in (1, 8, 32, 64)])
    assert (found.knee, found.verdict) == (32, "lower bound only")
    assert "still grew at concurrency 32, the highest that counts" in found.note


def test_when_throughput_has_stopped_growing() -> None:
    assert stopped_growing((64, 100.0), (128, 101.9))
    assert not stopped_growing((64, 100.0), (128, 102.1))
    assert stopped_growing((16, 100.0), (64, 104.0))
    assert still_growing([(10, 10.0), (20, 20.0)])
    assert not still_growing([(10, 10.0), (100, 99.0), (120, 100.0)])
    assert still_growing([(10, 10.0), (110, 99.0), (120, 100.0)])
    # One level shows no end of growth, and none shows nothing.
    assert still_growing([(10, 10.0)])
    assert not still_growing([])


@pytest.mark.parametrize(("knee", "limit"), [(1, 1), (2, 1), (5, 4), (35, 28), (96, 76), (100, 80), (10**6, 800_000)])
def test_the_limit(knee: int, limit: int) -> None:
    assert limit_of(knee) == limit


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(1, 10**5), st.floats(0, 0.99))
def test_the_limit_is_between_one_and_the_knee(knee: int, headroom: float) -> None:
    assert 1 <= limit_of(knee, headroom) <= knee


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.dictionaries(st.integers(1, 300), st.tuples(st.floats(0.1, 1e3), st.floats(1, 1e4), st.booleans()), max_size=12),
    st.floats(1, 1e4),
)
def test_the_knee_is_the_smallest_that_is_good_enough(curve: dict[int, tuple[float, float, bool]], slo: float) -> None:
    points = [Point(c, float(c), 9, 0, r, None, 1.0, t, counts=k) for c, (r, t, k) in curve.items()]
    knee = knee_of(points, slo)
    good = [p for p in points if p.counts and p.ttft_p99_ms is not None and p.ttft_p99_ms <= slo]
    if knee is None:
        assert not good
        return
    best = max(p.request_rate for p in good)
    assert knee.request_rate >= 0.95 * best
    assert all(p.request_rate < 0.95 * best for p in good if p.concurrency < knee.concurrency)


def test_the_key_follows_what_was_measured() -> None:
    assert capacity_key({"a": 1, "b": [2]}) == capacity_key({"b": [2], "a": 1})
    assert capacity_key({"a": 1}) != capacity_key({"a": 2})


def test_documents_names_each_of_several() -> None:
    assert [where for where, _ in documents("f", "{} {}")] == ["f: document 1", "f: document 2"]
