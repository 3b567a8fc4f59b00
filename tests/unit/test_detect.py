"""A text is recognised by what it says, not by its file name or by the command that was meant."""

from __future__ import annotations

import pytest
from support import render_smi as smi
from support import render_smi_text as people
from support.profile import PROFILES

from instinct_fleet.parse import detect, read

HEALTHY = PROFILES["mi300x_8"]()

KINDS = {
    "amd-smi topology --json": "amd-smi topology",
    "amd-smi static --json": "amd-smi static",
    "amd-smi version --json": "amd-smi version",
    "amd-smi partition --json": "amd-smi partition",
    "amd-smi list --json": "amd-smi list",
    "amd-smi xgmi -l": "amd-smi xgmi status",
    "amd-smi metric --ecc --ecc-blocks --json": "amd-smi metric",
    "amd-smi metric --mem-usage --json": "amd-smi metric",
    "amd-smi process --json": "amd-smi process",
    "rocm-smi --showtopo --json": "rocm-smi showtopo",
    "rocm-smi --showtopo": "rocm-smi showtopo",
}


@pytest.mark.parametrize("name", sorted(PROFILES))
def test_every_command_of_a_bundle_is_recognised(name: str) -> None:
    rendered = smi.render_commands(PROFILES[name]())
    assert set(rendered) == set(KINDS)

    for command, (stdout, stderr, rc) in rendered.items():
        # The hints lie: the content decides.
        reading = read(stdout, stderr=stderr, rc=rc, name="lscpu.txt", command="lspci -vv")
        assert reading.kind == KINDS[command], command
        assert not reading.refused


def test_commands_of_the_probe_are_all_rendered_here_or_by_the_system_renderer() -> None:
    import ast
    from pathlib import Path

    source = Path(__file__).parents[2] / "library" / "node_probe.py"
    tree = ast.parse(source.read_text())
    default = next(
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "DEFAULT_COMMANDS"
    )

    assert {" ".join(c) for c in default if c[0] in ("amd-smi", "rocm-smi")} == set(KINDS)


def test_a_stderr_file_is_read_as_stderr() -> None:
    _stdout, stderr, _rc = smi.rocm_smi_text(HEALTHY.with_faults("no_driver"), "6.2")

    reading = read(stderr, name="showtopo.stderr.txt")

    assert [f.code for f in reading.findings] == ["collect_driver_not_loaded"]


@pytest.mark.parametrize(
    ("text", "tool"),
    [
        ("bash: line 1: amd-smi: command not found\n", "amd-smi"),
        ("sh: 1: rocm-smi: not found\n", "rocm-smi"),
        ("env: 'rocminfo': No such file or directory\n", "rocminfo"),
    ],
)
def test_a_missing_tool_is_named(text: str, tool: str) -> None:
    for reading in (read(text, rc=127), read("", stderr=text, rc=127)):
        assert reading.refused
        assert reading.tool == tool
        assert [(f.code, f.severity) for f in reading.findings] == [("collect_tool_missing", "error")]


@pytest.mark.parametrize(
    "text",
    [
        "\tGPU0\tGPU1\tmlx5_0\tCPU Affinity\nGPU0\t X \tNV18\tPIX\t0-47\nGPU1\tNV18\t X \tSYS\t48-95\n",
        "        GPU0    GPU1\nGPU0     X      NODE\nGPU1    NODE     X\n\nLegend:\n\n  X    = Self\n",
        "== rocm-smi --showtopo ==\nGPU0  X  PHB\nGPU1  PHB  X\n",
    ],
)
def test_nvidia_vocabulary_is_refused_as_such(text: str) -> None:
    reading = read(text, command="rocm-smi --showtopo")

    assert reading.refused
    assert [f.code for f in reading.findings] == ["collect_not_amd"]
    assert "nvidia-smi" in reading.findings[0].message


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", "collect_empty"),
        (" \n\t\n", "collect_empty"),
        ("\0\0\0", "collect_empty"),
        ("Hello, world.\n", "collect_unrecognised"),
        ('{"a": 1, "b"', "collect_truncated"),
        ('[{"a": 1,}, {"b": 2}, {"c": "this goes on for a while"}]\n', "collect_not_json"),
        ('{"a": 1}', "collect_unrecognised"),
        ("[" * 100_000, "collect_not_json"),
    ],
)
def test_unusable_text_says_why(text: str, code: str) -> None:
    reading = read(text)

    assert reading.refused
    assert [f.code for f in reading.findings] == [code]
    assert reading.findings[0].remedy


def test_findings_hold_no_control_characters() -> None:
    reading = read("\x1b[31mboom\x07\x00\x9b31m\nmore\n")

    assert all(c.isprintable() for f in reading.findings for c in f.message)


def test_a_parser_that_is_not_there_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(detect, "MODULES", ("no_such_parser", *detect.MODULES))

    assert read(smi.rocm_smi_text(HEALTHY, "7.0")[0]).kind == "rocm-smi showtopo"


@pytest.mark.parametrize("release", ["6.4", "7.0"])
def test_forms_for_people_are_recognised(release: str) -> None:
    for render, kind in (
        (people.amd_smi_bare_text, "amd-smi"),
        (people.amd_smi_monitor_text, "amd-smi monitor"),
        (people.amd_smi_partition_text, "amd-smi partition"),
        (people.amd_smi_version_text, "amd-smi version"),
        (people.amd_smi_xgmi_metric_text, "amd-smi xgmi"),
        (people.rocm_smi_showbus_text, "rocm-smi showbus"),
        (people.rocm_smi_concise_text, "rocm-smi concise"),
    ):
        assert read(render(HEALTHY, release)[0]).kind == kind
