"""node_probe: what it reads, and that nothing a node lacks is an error."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from support import render_sys
from support.playbook import run_tasks
from support.profile import PROFILES

pytest.importorskip("ansible", reason="ansible is not installed for this Python")


def probe(folder: Path, *options: str, **arguments: Any) -> dict[str, Any]:
    (result,) = run_tasks(folder, [{"name": "probe", "node_probe": arguments}], *options)
    assert result["changed"] is False
    found: dict[str, Any] = result["probe"]
    return found


def tool(folder: Path, name: str, script: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)


def test_reads_a_whole_node(tmp_path: Path) -> None:
    render_sys.write_tree(PROFILES["mi300x_8"](), tmp_path / "root")
    tool(tmp_path / "bin", "amd-smi", 'echo "out $*"; echo err >&2; exit 3')
    (tmp_path / "note").write_text("text\n")
    found = probe(
        tmp_path,
        "--check",
        root=str(tmp_path / "root"),
        commands=[["amd-smi", "topology", "--json"], ["rocm-smi-not-there", "--showtopo"]],
        tool_paths=[str(tmp_path / "bin")],
        paths=[str(tmp_path / "note"), str(tmp_path / "missing")],
        files=[str(tmp_path / "note"), str(tmp_path / "missing")],
        service_user="root",
        units=["no-such-unit.service"],
        programs=["sh", "no-such-program"],
        filesystems=["/", "/no/such/place"],
    )
    call = found["commands"]["amd-smi topology --json"]
    assert (call["rc"], call["stdout"], call["stderr"]) == (3, "out topology --json\n", "err\n")
    assert call["path"] == str(tmp_path / "bin/amd-smi")
    missing = found["commands"]["rocm-smi-not-there --showtopo"]
    assert (missing["error"], missing["rc"], missing["path"]) == ("not found", None, None)
    assert sum(1 for d in found["pci"].values() if d["device"] == "0x74a1") == 8
    assert found["pci"]["0000:9f:00.0"]["numa_node"] == "1"
    assert "pci" in found["pci"]["0000:9f:00.0"]["path"]
    assert found["kfd"]["present"]
    assert any(name.endswith("io_links/0/properties") for name in found["kfd"]["files"])
    assert list(found["numa"]) == ["0", "1"]
    assert "iommu=pt" in found["proc"]["cmdline"]
    assert found["sysctl"]["kernel.numa_balancing"] == "0"
    assert found["access"]["exists"] is True
    assert found["paths"] == {str(tmp_path / "note"): "text\n", str(tmp_path / "missing"): None}
    assert found["files"][str(tmp_path / "missing")] is None
    assert found["programs"]["sh"].endswith("/sh")
    assert found["programs"]["no-such-program"] is None
    assert found["filesystems"]["/"]["free_bytes"] > 0
    # Of a place that is not there yet, the folder counts in which it would be made.
    assert found["filesystems"]["/no/such/place"]["device"] == found["filesystems"]["/"]["device"]
    assert found["libc"].startswith("glibc ")
    assert len(found["files"][str(tmp_path / "note")]["checksum"]) == 64


def test_a_bare_machine_is_data_and_no_error(tmp_path: Path) -> None:
    found = probe(tmp_path, root=str(tmp_path / "nothing"), service_user="nobody-of-that-name", tool_paths=[])
    assert found["kfd"] == {
        "present": False,
        "files": {},
        "errors": {},
        "generation_before": None,
        "generation_after": None,
    }
    assert (found["pci"], found["numa"]) == ({}, {})
    assert found["access"]["exists"] is False
    assert all(call["rc"] is None or call["path"] for call in found["commands"].values())


def test_a_tool_that_hangs_ends_at_the_limit(tmp_path: Path) -> None:
    tool(tmp_path / "bin", "amd-smi", "echo begun; exec sleep 60")
    started = time.monotonic()
    found = probe(tmp_path, commands=[["amd-smi", "static"]], tool_paths=[str(tmp_path / "bin")], timeout=1)
    call = found["commands"]["amd-smi static"]
    assert call["error"] == "no end within the time limit"
    assert (call["rc"], call["stdout"]) == (None, "begun\n")
    # Not a test of speed: without the limit it would take a minute.
    assert time.monotonic() - started < 50


@pytest.mark.parametrize(
    ("script", "key", "value"),
    [
        ("printf '\\377\\376 x'", "stdout", "\ufffd\ufffd x"),
        ("kill -9 $$", "rc", -9),
        ("echo $LC_ALL", "stdout", "C.UTF-8\n"),
        ("echo ${HIP_VISIBLE_DEVICES-unset}", "stdout", "unset\n"),
    ],
)
def test_odd_tools(tmp_path: Path, script: str, key: str, value: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HIP_VISIBLE_DEVICES", "3")
    tool(tmp_path / "bin", "amd-smi", script)
    found = probe(tmp_path, commands=[["amd-smi"]], tool_paths=[str(tmp_path / "bin")])
    assert found["commands"]["amd-smi"][key] == value


def test_a_path_with_a_star_is_a_pattern(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "note").write_text(name)
    found = probe(tmp_path, commands=[], paths=[str(tmp_path / "*/note"), str(tmp_path / "*/none")])
    assert found["paths"] == {str(tmp_path / "a/note"): "a", str(tmp_path / "b/note"): "b"}
