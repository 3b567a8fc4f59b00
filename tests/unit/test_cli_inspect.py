"""`instinct-fleet inspect`: captures and bundles in, a verdict and an exit code out."""

from __future__ import annotations

import io
import json
import random
import re
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from support.mutate import mutate
from support.profile import PROFILES, Profile
from support.render_smi import Output, amd_smi_topology_json, amd_smi_topology_text, render_commands, rocm_smi_text
from support.render_smi_text import amd_smi_topology_csv, rocm_smi_concise_text

from instinct_fleet.cli import DONE, FINDINGS, USAGE, main

Capture = pytest.CaptureFixture[str]


def write(folder: Path, output: Output, name: str = "capture.txt") -> str:
    """Write what a tool printed on stdout and return the path."""
    path = folder / name
    path.write_text(output[0])
    return str(path)


def inspect(capsys: Capture, *args: str) -> tuple[int, dict[str, Any]]:
    """Run the command with --json; stdout must be exactly one document."""
    capsys.readouterr()
    code = main(["inspect", *args, "--json"])
    captured = capsys.readouterr()
    assert captured.err == ""
    return code, json.loads(captured.out)


def codes(document: Mapping[str, Any], *severities: str) -> set[str]:
    return {f["code"] for f in document["findings"] if not severities or f["severity"] in severities}


def probe_of(profile: Profile) -> dict[str, Any]:
    """The part of a node_probe document that comes from the tools."""
    commands = {
        command: {
            "argv": command.split(),
            "path": "/opt/rocm/bin/x",
            "rc": rc,
            "stdout": out,
            "stderr": err,
            "error": None,
        }
        for command, (out, err, rc) in render_commands(profile).items()
    }
    return {"schema": 1, "hostname": "node-a", "simulated": True, "commands": commands}


def test_a_healthy_capture_passes(tmp_path: Path, capsys: Capture) -> None:
    path = write(tmp_path, amd_smi_topology_json(PROFILES["mi300x_8"](), "7.0"))

    code, document = inspect(capsys, path, "--policy", "mi300x_8")

    assert (code, document["verdict"]) == (DONE, "pass")
    assert len(document["topology"]["gpus"]) == 8
    assert len(document["topology"]["links"]) == 28
    assert codes(document, "error", "unknown") == set()
    assert "not_collected" in codes(document, "info")


def test_a_lost_link_fails_with_and_without_policy(tmp_path: Path, capsys: Capture) -> None:
    path = write(tmp_path, rocm_smi_text(PROFILES["mi300x_one_pair_pcie"](), "7.0"))

    for args in ([], ["--policy", "mi300x_8"]):
        code, document = inspect(capsys, path, *args)
        assert (code, document["verdict"]) == (FINDINGS, "fail")
        assert [f["subject"] for f in document["findings"] if f["code"] == "link_not_xgmi"] == ["GPU2-GPU5"]


def test_the_policy_is_found_by_device_ids(tmp_path: Path, capsys: Capture) -> None:
    profile = PROFILES["mi300x_8"]()
    static = write(tmp_path, render_commands(profile)["amd-smi static --json"], "static.json")
    topology = write(tmp_path, amd_smi_topology_json(profile, "7.0"), "topology.json")

    code, document = inspect(capsys, static, topology)

    assert (code, document["policy"]) == (DONE, "mi300x_8")


def test_two_hives_are_healthy_only_for_their_model(tmp_path: Path, capsys: Capture) -> None:
    path = write(tmp_path, rocm_smi_text(PROFILES["mi210_2x4"](), "6.2"))

    assert inspect(capsys, path)[0] == DONE
    assert inspect(capsys, path, "--policy", "mi210_2x4")[0] == DONE
    code, document = inspect(capsys, path, "--policy", "mi300x_8")
    assert code == FINDINGS
    assert "link_not_xgmi" in codes(document, "error")


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", "collect_empty"),
        ("bash: line 1: amd-smi: command not found\n", "collect_tool_missing"),
        (amd_smi_topology_csv(PROFILES["mi300x_8"](), "6.3")[0], "collect_unsupported_layout"),
        (amd_smi_topology_json(PROFILES["mi300x_8"](), "7.0")[0][:3000], "collect_truncated"),
        ("        GPU0  GPU1\nGPU0     X    PIX\nGPU1    PIX    X\n", "collect_not_amd"),
        ("hello\n", "collect_unrecognised"),
    ],
    ids=lambda value: value if str(value).startswith("collect") else "",
)
@pytest.mark.parametrize("policy", [[], ["--policy", "mi300x_8"]], ids=["no policy", "policy"])
def test_a_refused_capture_never_passes(
    text: str, code: str, policy: list[str], tmp_path: Path, capsys: Capture
) -> None:
    path = write(tmp_path, (text, "", 0))

    exit_code, document = inspect(capsys, path, *policy)

    assert exit_code == FINDINGS
    assert document["verdict"] in ("fail", "unknown")
    assert code in codes(document)
    assert document["topology"]["gpus"] == []


@pytest.mark.parametrize("fault", ["unreadable:3", "xgmi_down", "kfd_missing_gpu"])
def test_broken_machines_fail(fault: str, tmp_path: Path, capsys: Capture) -> None:
    profile = PROFILES["mi300x_8"]().with_faults(fault)
    paths = [
        write(tmp_path, amd_smi_topology_text(profile, "6.3"), "topology.txt"),
        write(tmp_path, render_commands(profile)["amd-smi xgmi -l"], "xgmi.txt"),
    ]

    code, document = inspect(capsys, *paths, "--policy", "mi300x_8")

    assert (code, document["verdict"]) == (FINDINGS, "fail")


def test_memory_left_on_an_idle_gpu_is_told_from_the_concise_table(tmp_path: Path, capsys: Capture) -> None:
    profile = PROFILES["mi300x_8"]().with_faults("vram_leaked")
    path = write(tmp_path, rocm_smi_concise_text(profile, "6.2"))

    code, document = inspect(capsys, path, "--policy", "mi300x_8")

    assert code == FINDINGS
    assert [f["subject"] for f in document["findings"] if f["code"] == "vram_leaked"] == ["GPU0"]


def test_stdout_and_stderr_of_one_run_belong_together(tmp_path: Path, capsys: Capture) -> None:
    output = rocm_smi_text(PROFILES["mi300x_8"]().with_faults("low_power"), "7.0")
    stdout = write(tmp_path, output, "showtopo.stdout.txt")
    (tmp_path / "showtopo.stderr.txt").write_text(output[1])

    code, document = inspect(capsys, stdout, str(tmp_path / "showtopo.stderr.txt"))

    assert code == DONE
    assert len(document["topology"]["sources"]) == 1
    assert codes(document, "warning") == {"collect_low_power"}


@pytest.mark.parametrize("form", ["json", "registered", "tar.gz"])
def test_a_bundle_is_judged_in_full(form: str, tmp_path: Path, capsys: Capture) -> None:
    probe = probe_of(PROFILES["mi300x_8"]())
    path = tmp_path / f"bundle.{form}"
    text = json.dumps({"changed": False, "probe": probe} if form == "registered" else probe)
    if form == "tar.gz":
        with tarfile.open(path, "w:gz") as archive:
            info = tarfile.TarInfo("node-a/probe.json")
            info.size = len(text)
            archive.addfile(info, io.BytesIO(text.encode()))
    else:
        path.write_text(text)

    code, document = inspect(capsys, str(path))

    assert document["policy"] == "mi300x_8"
    assert len(document["topology"]["gpus"]) == 8
    assert "simulated_hardware" in codes(document)
    # What this bundle lacks is unknown, for a bundle is judged in full.
    assert code == FINDINGS
    assert "not_collected" in codes(document, "unknown")


def test_unusable_input_is_a_usage_error(tmp_path: Path, capsys: Capture) -> None:
    good = write(tmp_path, amd_smi_topology_json(PROFILES["mi300x_8"](), "7.0"))
    bundle = tmp_path / "bundle.json"
    bundle.write_text(json.dumps(probe_of(PROFILES["mi300x_8"]())))
    broken = tmp_path / "broken.tar.gz"
    broken.write_bytes(b"\x1f\x8b" + b"0" * 50)

    for args, told in (
        ([str(tmp_path / "absent")], "No such file"),
        ([str(tmp_path)], "is a directory"),
        ([str(broken)], "not a whole tarball"),
        ([good, "--policy", "mi300y_8"], "did you mean"),
        ([good, str(bundle)], "one bundle"),
    ):
        assert main(["inspect", *args, "--json"]) == USAGE
        captured = capsys.readouterr()
        assert captured.out == ""
        assert told in captured.err


@pytest.mark.parametrize("name", sorted(PROFILES))
def test_people_output_fits_a_hundred_columns(
    name: str, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    profile = PROFILES[name]()
    paths = [
        write(tmp_path, output, f"{number}.txt") for number, output in enumerate(render_commands(profile).values())
    ]

    main(["inspect", *paths])

    lines = capsys.readouterr().out.splitlines()
    assert max(len(line) for line in lines) <= 100
    assert lines[-1].startswith("verdict: ")
    assert len(lines) < 100


def test_links_are_a_matrix_of_gpus_or_of_devices(tmp_path: Path, capsys: Capture) -> None:
    main(["inspect", write(tmp_path, amd_smi_topology_json(PROFILES["mi300x_one_pair_pcie"](), "7.0"))])
    small = capsys.readouterr().out
    main(["inspect", write(tmp_path, amd_smi_topology_json(PROFILES["mi300x_cpx_64"](), "7.0"))])
    large = capsys.readouterr().out

    row = next(line for line in small.splitlines() if line.startswith("2  0000:38:00.0"))
    assert re.split(r"\s+", row.strip())[2:] == ["XGMI", "XGMI", "·", "XGMI", "XGMI", "PCIE", "XGMI", "XGMI"]
    assert re.search(r"^8-15 +0000:22:00\.\* XGMI", large, re.MULTILINE)


def test_text_of_a_capture_is_not_read_as_markup(tmp_path: Path, capsys: Capture) -> None:
    path = write(tmp_path, ("[red]boom[/red] [/] \x1b[31m\x07\n", "", 0))

    main(["inspect", path])

    out = capsys.readouterr().out
    assert "[red]boom[/red]" in out
    assert "\x1b" not in out
    assert "\x07" not in out


@pytest.mark.parametrize("block", range(4))
def test_damaged_captures_and_bundles_end_in_a_verdict(block: int, tmp_path: Path, capsys: Capture) -> None:
    texts = [json.dumps(probe_of(PROFILES[name]()), indent=1) for name in ("mi300x_8", "mi210_2x4")]
    texts += [output[0] for name in ("mi300x_8", "mi300a_4") for output in render_commands(PROFILES[name]()).values()]
    for seed in range(block * 25, block * 25 + 25):
        random_ = random.Random(seed)
        path = write(tmp_path, (mutate(random_.choice(texts), random_), "", 0))
        args = random_.choice([[], ["--policy", "mi300x_8"], ["--policy", "mi210_2x4"]])

        assert main(["inspect", path, *args]) in (DONE, FINDINGS)
        assert "verdict: " in capsys.readouterr().out, f"seed {seed}"
        assert main(["inspect", path, *args, "--json"]) in (DONE, FINDINGS)
        assert set(json.loads(capsys.readouterr().out)) >= {"topology", "findings", "verdict"}
