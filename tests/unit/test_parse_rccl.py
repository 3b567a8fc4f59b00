from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest
from support.profile import PROFILES, Profile, mi300x_8
from support.render_rccl import GIB, MIB, Run, render_json, render_text

from instinct_fleet.model import Finding, verdict
from instinct_fleet.parse import rccl


def judged(
    profile: Profile, run: Run | None = None, *, gpus: int | None = None, policy: str | None = None
) -> tuple[Finding, ...]:
    out, err, rc = render_text(profile, run)
    return rccl.judge(rccl.parse(out, stderr=err, rc=rc), gpus=gpus, policy=policy)


def only(findings: tuple[Finding, ...]) -> tuple[str, str]:
    assert len(findings) == 1, findings
    return findings[0].code, findings[0].severity


@pytest.mark.parametrize("name", ["mi300x_8", "mi325x_8", "mi355x_8", "mi250x_8gcd", "mi210_2x4"])
def test_healthy_nodes_with_a_published_floor_pass(name: str) -> None:
    profile = PROFILES[name]()

    assert judged(profile) == ()
    assert judged(profile, gpus=8, policy=name) == ()


def test_text_and_json_hold_the_same_figures() -> None:
    profile = mi300x_8()
    text, document = rccl.parse(render_text(profile)[0]), rccl.parse(render_json(profile))

    assert rccl.sniff(render_json(profile))
    assert text.complete
    assert document.complete
    assert text.facts["ranks_source"] == "devices"
    assert (document.facts["ranks"], document.facts["ranks_source"]) == (8, "figures")
    for key in ("collective", "ranks", "gpus", "size", "busbw", "wrong"):
        assert text.facts[key] == document.facts[key], key
    assert rccl.judge(document, policy="mi300x_8") == ()


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("rccl_pcie", "over PCIe (SYS)"),
        ("rccl_numa", "wrong NUMA node"),
        ("rccl_one_link", "one XGMI link"),
    ],
)
def test_known_low_figures_are_explained(fault: str, said: str) -> None:
    findings = judged(mi300x_8().with_faults(fault))

    assert only(findings) == ("rccl_bandwidth_low", "error")
    assert said in findings[0].message
    assert "304" in findings[0].message


def test_one_lost_link_fails() -> None:
    assert only(judged(PROFILES["mi300x_one_pair_pcie"]())) == ("rccl_bandwidth_low", "error")


def test_the_average_gates_nothing() -> None:
    reading = rccl.parse(render_text(mi300x_8())[0])

    assert reading.facts["average"] < 150
    assert rccl.judge(reading) == ()


def test_wrong_results_fail_whatever_the_speed() -> None:
    assert only(judged(mi300x_8().with_faults("rccl_wrong"))) == ("rccl_wrong_results", "error")


def test_wrong_results_that_only_the_last_line_tells() -> None:
    out = render_text(mi300x_8())[0].replace("values : 0 OK", "values : 7 FAILED")

    assert only(rccl.judge(rccl.parse(out))) == ("rccl_wrong_results", "error")


def test_unchecked_results_are_not_known_to_be_right() -> None:
    assert only(judged(mi300x_8(), Run(check=False))) == ("rccl_not_judged", "unknown")
    document = rccl.parse(render_json(mi300x_8(), Run(check=False)))
    assert only(rccl.judge(document, policy="mi300x_8")) == ("rccl_not_judged", "unknown")


def test_old_releases_print_the_largest_error() -> None:
    out = render_text(mi300x_8())[0]
    old = re.sub(r"(?m)(\s+\d+\.\d\d)\s+0(?=\s|$)", r"\1  5e-07", out.replace("#wrong", " error"))
    reading = rccl.parse(old)

    assert reading.facts["error_column"]
    assert rccl.judge(reading) == ()
    assert only(rccl.judge(rccl.parse(old.replace(" error", "#wrong")))) == ("rccl_not_judged", "unknown")


@pytest.mark.parametrize(
    ("run", "gpus", "policy", "said"),
    [
        (Run(max_bytes=512 * MIB), None, None, "below 1 GiB"),
        (Run(ranks=4), 8, None, "4 ranks, 8 GPUs"),
        (Run(hosts=2), None, None, "2 hosts"),
        (Run(), None, "mi355x_8", "the policy is mi355x_8"),
        (Run(), None, "h100_8", "no floors are known for policy h100_8"),
    ],
)
def test_runs_that_cannot_be_compared(run: Run, gpus: int | None, policy: str | None, said: str) -> None:
    findings = judged(mi300x_8(), run, gpus=gpus, policy=policy)

    assert only(findings) == ("rccl_not_judged", "unknown")
    assert said in findings[0].message


def test_a_run_up_to_one_gib_is_judged_by_how_far_it_is_from_the_floor() -> None:
    run = Run(max_bytes=GIB)
    assert judged(mi300x_8(), run) == ()
    assert only(judged(mi300x_8().with_faults("rccl_pcie"), run)) == ("rccl_bandwidth_low", "error")

    slow = rccl.parse(scaled(render_text(mi300x_8(), run)[0], 0.92))
    findings = rccl.judge(slow)
    assert only(findings) == ("rccl_not_judged", "unknown")
    assert "8589934592" in findings[0].message


def scaled(text: str, factor: float) -> str:
    """Slow every row of a run down, so that its figures still agree with each other."""
    lines = []
    for original in text.splitlines():
        line, tokens = original, original.split()
        if re.match(r"^\s+\d", line):
            for base in (5, 9):
                tokens[base] = f"{float(tokens[base]) / factor:.6g}"
                tokens[base + 1] = f"{float(tokens[base + 1]) * factor:.2f}"
                tokens[base + 2] = f"{float(tokens[base + 2]) * factor:.2f}"
            line = "  " + "  ".join(tokens)
        elif line.startswith("# Avg"):
            line = f"# Avg bus bandwidth    : {float(tokens[-1]) * factor:.4f}"
        lines.append(line)
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize(("factor", "passes"), [(0.97, True), (0.95, False)])
def test_the_floor_is_304(factor: float, passes: bool) -> None:
    reading = rccl.parse(scaled(render_text(mi300x_8())[0], factor))

    assert (reading.facts["busbw"] >= 304) is passes
    assert (rccl.judge(reading) == ()) is passes


def test_the_lowest_of_several_cycles_counts() -> None:
    good, bad = (json.loads(render_json(p)) for p in (mi300x_8(), mi300x_8().with_faults("rccl_pcie")))
    document = json.dumps(good + [{**item, "numCycle": 1} for item in bad])

    assert only(rccl.judge(rccl.parse(document), policy="mi300x_8")) == ("rccl_bandwidth_low", "error")


@pytest.mark.parametrize("ranks", [2, 4])
def test_without_a_published_floor_the_model_of_the_links_is_shown(ranks: int) -> None:
    findings = judged(mi300x_8(), Run(ranks=ranks))

    assert only(findings) == ("rccl_no_floor", "warning")
    assert f"{ranks - 1} links x 48 GB/s = {48 * (ranks - 1)}" in findings[0].message


def test_far_below_the_model_is_not_known_to_be_well() -> None:
    findings = judged(mi300x_8().with_faults("rccl_pcie"), Run(ranks=4))

    assert only(findings) == ("rccl_not_judged", "unknown")
    assert "over PCIe" in findings[0].message


def test_the_two_floors_of_the_mi350x_are_both_named() -> None:
    reading = rccl.parse(render_text(mi300x_8())[0].replace("MI300X", "MI350X"))
    findings = rccl.judge(reading)

    assert only(findings) == ("rccl_no_floor", "warning")
    assert "304 and 350" in findings[0].message


def test_unknown_model_shows_what_was_seen() -> None:
    findings = rccl.judge(rccl.parse(render_json(mi300x_8().with_faults("rccl_pcie"))))

    assert only(findings) == ("rccl_not_judged", "unknown")
    assert "--policy" in findings[0].message
    assert "24.19 GB/s" in findings[0].message


def test_other_collectives_have_no_floor() -> None:
    document = render_json(mi300x_8()).replace("AllReduce", "AlltoAll")
    findings = rccl.judge(rccl.parse(document), gpus=8, policy="mi300x_8")

    assert rccl.parse(document).facts["collective"] == "alltoall"
    assert only(findings) == ("rccl_not_judged", "unknown")


@pytest.mark.parametrize(
    "change",
    [
        lambda t: t.replace("315.54", "915.54"),
        lambda t: t.replace("  180.31  315.54", "  580.31 1015.54"),
        lambda t: re.sub(r"(?m)^  8589934592.*\n", "", t),
        lambda t: t[: t.index("# Errors with")],
        lambda t: t[: t.index("  4294967296")],
        lambda t: t.replace("  180.31  315.54      0", "     N/A     N/A    N/A"),
        lambda t: t.replace("  180.31  315.54      0", ""),
    ],
)
def test_damaged_runs_do_not_pass(change: object) -> None:
    text = render_text(mi300x_8())[0]
    damaged = change(text)  # type: ignore[operator]
    assert damaged != text

    assert verdict(rccl.judge(rccl.parse(damaged))) != "pass"


def test_small_rows_that_are_missing_are_noise() -> None:
    text = re.sub(r"(?m)^ +(?:524288|1048576) .*\n", "", render_text(mi300x_8())[0])
    findings = rccl.judge(rccl.parse(text))

    assert only(findings) == ("collect_truncated", "warning")
    assert "2 rows" in findings[0].message


def test_cut_json_keeps_what_is_whole() -> None:
    text = render_json(mi300x_8())
    reading = rccl.parse(text[: text.rindex('"busBw"')])

    assert len(reading.facts["points"]) == 31
    assert [(f.code, f.severity) for f in reading.findings] == [("collect_truncated", "unknown")]
    assert verdict(rccl.judge(reading, policy="mi300x_8")) == "unknown"


def test_json_one_object_a_line_and_in_an_object() -> None:
    items = json.loads(render_json(mi300x_8()))
    for text in ("\n".join(map(json.dumps, items)), json.dumps({"results": items})):
        assert rccl.judge(rccl.parse(text), policy="mi300x_8") == ()


@pytest.mark.parametrize(
    ("text", "stderr", "rc", "code"),
    [
        ("", "bash: all_reduce_perf: command not found", 127, "collect_tool_missing"),
        ("", "", 0, "collect_empty"),
        ("{}", "", 0, "collect_unsupported_layout"),
        ("# nThread 1 nGpus 8 minBytes 8 maxBytes 16\n", "", 0, "collect_truncated"),
        ("", "node01: Test NCCL failure common.cu:1198 'unhandled system error'", 3, "collect_library_error"),
    ],
)
def test_what_holds_no_row_is_refused(text: str, stderr: str, rc: int, code: str) -> None:
    reading = rccl.parse(text, stderr=stderr, rc=rc)

    assert reading.refused
    assert only(reading.findings) == (code, "error")
    assert rccl.judge(reading) == reading.findings


def test_failed_initialisation_is_named() -> None:
    findings = judged(mi300x_8().with_faults("rccl_timeout"))

    assert only(findings) == ("collect_library_error", "error")
    assert "unhandled system error" in findings[0].message


def test_exit_code_of_a_run_that_looks_well_is_not_ignored() -> None:
    reading = rccl.parse(render_text(mi300x_8())[0], rc=1)

    assert only(rccl.judge(reading)) == ("collect_exit_code", "unknown")


def test_two_ranks_on_one_gpu_are_no_run_of_eight() -> None:
    text = render_text(mi300x_8())[0].replace("device  7 [0000:df:00]", "device  6 [0000:bf:00]")

    assert verdict(rccl.judge(rccl.parse(text))) == "fail"


def test_data_names_only_policies_it_has_figures_for() -> None:
    data = rccl.floors()

    assert {f["policy"] for f in data["floors"]} <= set(rccl.policies())
    assert all(f["source"] and f["busbw"] > 0 and f["size"] >= data["plateau_size"] for f in data["floors"])
    assert replace(mi300x_8(), name="x").name not in rccl.policies()


def test_a_device_without_a_name_hides_no_other_one() -> None:
    reading = rccl.parse(render_text(mi300x_8())[0].replace("AMD Instinct MI300X", ""))

    assert (reading.complete, reading.facts["ranks"], reading.facts["devices"]) == (True, 8, ())
    assert verdict(rccl.judge(reading, policy="mi300x_8")) == "pass"


def test_the_tags_of_mpirun_are_no_part_of_a_line() -> None:
    text = "".join(f"[1,0]<stdout>:{line}\n" for line in render_text(mi300x_8())[0].splitlines())

    assert rccl.sniff(text)
    assert rccl.judge(rccl.parse(text)) == ()
