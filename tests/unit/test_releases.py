"""Releases on a node: what stops an installation before it starts, what proves one, what may go, errors in words."""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from instinct_fleet import releases, runtime_sets

CPU = runtime_sets.describe("cpu")
SCRIPT = Path(__file__).resolve().parents[2] / "roles/vllm_runtime/files/prove_release.py"
LOCK = f"vllm==0.33.0+rocm100 --hash=sha256:{'a' * 64}\n"
ROCM = runtime_sets.describe("rocm100", lock=LOCK)
ROOT = "/opt/vllm"
OLD, NEW = f"{ROOT}/releases/0.32.0-cpu", f"{ROOT}/releases/0.33.0-rocm100"


def unit(path: str, **fields: Any) -> dict[str, Any]:
    argv = f"/usr/bin/numactl --preferred=0 {path}/bin/vllm serve --config /etc/vllm/a.yaml"
    return {"ExecStart": f"{{ path=/usr/bin/numactl ; argv[]={argv} ; }}", "processes": [], **fields}


def node(**fields: Any) -> dict[str, Any]:
    document = {"libc": "glibc 2.36", "paths": {}, "units": {}, "programs": {}, "filesystems": {}}
    return {**document, **fields}


# --- before anything changes ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("libc", "text"),
    [
        ("glibc 2.34", "it has glibc 2.34, and the wheels of set cpu need glibc 2.36 or newer"),
        ("musl 1.2", "its C library is musl 1.2, expected glibc 2.36"),
        (None, "its C library is unknown"),
    ],
)
def test_a_c_library_that_is_too_old_or_unknown(libc: str | None, text: str) -> None:
    (problem,) = releases.node_problems(CPU, node(libc=libc), path=OLD)
    assert problem.startswith(text)


@pytest.mark.parametrize("libc", ["glibc 2.36", "glibc 2.41", "glibc 3.0"])
def test_a_c_library_that_is_new_enough(libc: str) -> None:
    assert releases.node_problems(CPU, node(libc=libc), path=OLD) == []


def test_a_release_that_serves_is_never_made_anew() -> None:
    seen = node(units={"vllm-a.service": unit(OLD)}, paths={f"{OLD}/complete.sha256": "of another lock\n"})
    (problem,) = releases.node_problems(CPU, seen, path=OLD)
    assert "is in use by vllm-a.service and was made from another lock" in problem
    assert "vllm_runtime_sets" in problem
    seen["paths"][f"{OLD}/complete.sha256"] = CPU["complete_note"]
    assert releases.node_problems(CPU, seen, path=OLD) == []


def test_a_release_that_serves_is_never_removed_for_want_of_its_note() -> None:
    serving = [{"cmdline": f"{OLD}/bin/python {OLD}/bin/vllm serve"}, {"cmdline": "VLLM::Worker_TP0"}]
    seen = node(units={"vllm-a.service": unit(OLD, processes=serving), "vllm-b.service": None})
    (problem,) = releases.node_problems(CPU, seen, path=OLD)
    assert f"{OLD} has no complete.sha256" in problem
    assert "vllm-a.service runs from it" in problem
    # One that somebody removed to have it made anew is named by a unit that cannot start.
    assert releases.node_problems(CPU, node(units={"vllm-a.service": unit(OLD)}), path=OLD) == []


@pytest.mark.parametrize(
    "seen",
    [
        {"units": {"vllm-a.service": unit(OLD)}},
        {"units": {"vllm-a.service": {"processes": [{"cmdline": f"{OLD}/bin/python -c x"}]}}},
        {"paths": {"/etc/systemd/system/vllm-a.service": f"ExecStart={OLD}/bin/vllm serve\n"}, "units": {"b": None}},
    ],
)
def test_units_that_run_or_would_run_a_release(seen: dict[str, Any]) -> None:
    assert releases.using_units(node(**seen), OLD) == ["vllm-a.service"]
    # A name that another begins with is not that other.
    assert releases.using_units(node(**seen), OLD[:-1]) == []


@pytest.mark.parametrize(
    ("programs", "python", "path", "packages"),
    [
        ({"python3.12": "/usr/bin/python3.12"}, "", "/usr/bin/python3.12", []),
        ({"python3.12": None}, "/opt/py/bin/python", "/opt/py/bin/python", []),
        (
            {"python3.12": None, "apt-get": "/usr/bin/apt-get"},
            "",
            "/usr/bin/python3.12",
            ["python3.12", "python3.12-venv", "python3.12-dev"],
        ),
        ({"dnf": "/usr/bin/dnf"}, "", "/usr/bin/python3.12", ["python3.12", "python3.12-devel"]),
    ],
)
def test_the_python_of_the_wheels(programs: dict[str, Any], python: str, path: str, packages: list[str]) -> None:
    plan = releases.python_plan(ROCM, node(programs=programs), python=python)
    assert plan == {"path": path, "packages": packages}
    assert "python3.12" in releases.release_programs(ROCM)


def test_a_node_without_that_python_is_refused_and_told_why() -> None:
    text = releases.python_refusal_text({"msg": "No package matching 'python3.12'"}, ROCM, host="n1")
    assert text.startswith("n1: the wheels of set rocm100 are for Python 3.12 only")
    assert "No package matching 'python3.12'" in text
    assert "CUDA wheel without a word" in text
    assert "vllm_runtime_python" in text


def test_room_is_checked_with_what_moves_and_what_is_unpacked() -> None:
    def problem(free: int) -> str | None:
        seen = node(filesystems={ROOT: {"free_bytes": free << 20}})
        return releases.room_problem(seen, root=ROOT, moved_bytes=100 << 20, unpacked_bytes=900 << 20, release="r")

    assert problem(1306) is None
    text = problem(1305)
    assert text is not None
    assert "/opt/vllm has 1305 MiB free, and r needs 1306 MiB (100 MiB to move, 900 MiB unpacked" in text
    assert "what serves is untouched" in text
    unknown = releases.room_problem(node(), root=ROOT, moved_bytes=0, unpacked_bytes=0, release="r")
    assert unknown is not None
    assert "cannot be read" in unknown


# --- proofs -----------------------------------------------------------------------------------------------------


def said(**fields: Any) -> str:
    document = {"vllm": "0.33.0+rocm100", "torch": "2.13.0+rocm10.0.0", "hip": "10.0", "cuda": None, "error": None}
    document |= {"python": "3.12.3", "libc": "glibc 2.39", "help": {"rc": 0, "tail": ""}, "exposed": []}
    return json.dumps({**document, **fields})


def test_a_good_release_is_proven_and_recorded() -> None:
    assert releases.proof_problems(said(), ROCM) == []
    record = json.loads(releases.release_record(ROCM, said(), installed="2026-01-02T03:04:05Z"))
    assert record["proof"]["hip"] == "10.0"
    assert (record["set"], record["installed"]) == ("rocm100", "2026-01-02T03:04:05Z")
    cpu = said(vllm="0.32.0+cpu", torch="2.13.0+cpu", hip=None, python="3.11.2")
    assert releases.proof_problems(cpu, CPU) == []


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"vllm": "0.32.0"}, "vLLM is 0.32.0, expected 0.33.0"),
        ({"hip": None, "cuda": "13.0"}, "is a CUDA 13.0 wheel, not a ROCm build .torch.version.hip is empty"),
        ({"hip": None}, "is a CPU wheel, not a ROCm build"),
        ({"python": "3.11.2"}, "its Python is 3.11.2, expected 3.12"),
        ({"error": "ImportError: libcudart.so.13: cannot open"}, "cannot import it: .* .a CUDA wheel.$"),
        ({"error": "ImportError: version `GLIBC_2.38' not found"}, "newer C library than this node has"),
        ({"error": "OSError: libamdhip64.so.7: cannot open"}, "ROCm's libraries are missing"),
        (
            {"help": {"rc": 1, "tail": "a\nRuntimeError: hipErrorNoBinaryForGpu"}},
            "the device extra for this GPU is missing",
        ),
        ({"help": {"rc": None, "tail": ""}}, "`vllm serve --help` ended with None: it said nothing"),
        ({"exposed": ["/opt/x", "/opt/y"]}, "2 of its files could be changed by others than root, first /opt/x"),
    ],
)
def test_a_release_that_is_not_what_was_pinned(fields: dict[str, Any], text: str) -> None:
    (problem,) = releases.proof_problems(said(**fields), ROCM)
    assert re.search(text, problem), problem


def test_a_gpu_build_in_the_cpu_set_and_an_answer_that_is_none() -> None:
    seen = said(vllm="0.32.0", python="3.11.2", cuda="13.0", hip=None)
    assert releases.proof_problems(seen, CPU) == ["torch 2.13.0+rocm10.0.0 is built for a GPU, expected the CPU build"]
    (problem,) = releases.proof_problems("Traceback: no", CPU)
    assert "expected a JSON object" in problem


def test_the_script_says_what_it_is_run_by(tmp_path: Path) -> None:
    # A release in which vllm and torch are small modules; sys.prefix is that of the test's own environment.
    (tmp_path / "torch.py").write_text("class version:\n    hip, cuda = '10.0', None\n__version__ = '2.0'\n")
    metadata = tmp_path / "vllm-0.33.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0.33.0+rocm100\n")
    program = tmp_path / "bin" / "vllm"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho $1 $2 $HOME\n")
    program.chmod(0o755)
    (tmp_path / "open").write_text("")
    (tmp_path / "open").chmod(0o666)
    code = f"import sys; sys.prefix = {str(tmp_path)!r}; exec(open({str(SCRIPT)!r}).read())"
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    run = subprocess.run([sys.executable, "-B", "-c", code], capture_output=True, text=True, env=env, check=True)
    document = json.loads(run.stdout)
    assert (document["vllm"], document["torch"], document["hip"]) == ("0.33.0+rocm100", "2.0", "10.0")
    assert document["help"] == {"rc": 0, "tail": ""}
    assert str(tmp_path / "open") in document["exposed"]
    if os.geteuid() == 0:
        assert document["exposed"] == [str(tmp_path / "open")]
        assert stat.S_IMODE(program.stat().st_mode) == 0o755


# --- what may go ------------------------------------------------------------------------------------------------


def many() -> dict[str, Any]:
    paths: dict[str, str | None] = {}
    for name, at in (
        ("a", "2026-01-01"),
        ("b", "2026-03-01"),
        ("c", "2026-02-01"),
        ("used", "2025-01-01"),
        ("now", "2026-04-01"),
    ):
        paths[f"{ROOT}/releases/{name}/complete.sha256"] = "x\n"
        paths[f"{ROOT}/releases/{name}/release.json"] = json.dumps({"installed": at})
    paths[f"{ROOT}/releases/half/pyvenv.cfg"] = "home = /usr/bin\n"
    paths[f"{ROOT}/releases/ancient/complete.sha256"] = "x\n"
    return node(paths=paths, units={"vllm-a.service": unit(f"{ROOT}/releases/used")})


@pytest.mark.parametrize(
    ("keep", "names"),
    [
        (0, ["half", "ancient", "a", "c", "b"]),
        (1, ["half", "ancient", "a", "c"]),
        (2, ["half", "ancient", "a"]),
        (9, ["half"]),
    ],
)
def test_the_oldest_go_and_never_what_is_used_or_current(keep: int, names: list[str]) -> None:
    found = releases.surplus_releases(many(), root=ROOT, current="now", keep=keep)
    assert [entry["name"] for entry in found] == names
    assert found[0]["why"] == "its installation was interrupted"
    assert found[0]["paths"] == [f"{ROOT}/releases/half", f"{ROOT}/wheelhouse/half"]


def test_a_damaged_record_counts_as_the_oldest() -> None:
    seen = many()
    seen["paths"][f"{ROOT}/releases/b/release.json"] = "{"
    found = releases.surplus_releases(seen, root=ROOT, current="now", keep=2)
    assert [entry["name"] for entry in found] == ["half", "ancient", "b"]


def test_what_must_be_read_for_all_that() -> None:
    assert f"{ROOT}/releases/*/complete.sha256" in releases.release_paths(ROOT)
    assert releases.release_note(many(), f"{ROOT}/releases/a") == "x\n"
    assert releases.release_note(many(), f"{ROOT}/releases/half") is None


# --- errors in words --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("result", "text"),
    [
        ({"stderr": "error: failed to write\n  Caused by: No space left on device (os error 28)"}, "the disk is full"),
        ({"stderr": "error: Hash mismatch for `torch==2`\nExpected: a\nComputed: b"}, "it was refused"),
        ({"stderr": "error: torch has no wheels with a matching Python ABI tag"}, "for another platform"),
        ({"stderr": "error: No interpreter found at path /usr/bin/python3.12"}, "vllm_runtime_python"),
        ({"stderr": "cause: Failed to extract archive: a.whl / Bad CRC"}, "a wheel is damaged"),
        ({"stderr": "ensurepip is not available"}, "python3-venv is missing"),
        ({"stderr": "Because numba was not found in the provided package locations"}, "not in the wheelhouse"),
        ({"msg": "n1: too little room"}, "too little room"),
        ({}, "nothing was said"),
    ],
)
def test_a_failed_installation_in_words(result: dict[str, Any], text: str) -> None:
    said_text = releases.install_failure_text(result, host="n1", release="r", serving=["vllm-a.service"], filesystem={})
    assert said_text.startswith("n1: release r is not installed: ")
    assert text in said_text
    assert "vllm-a.service goes on as before" in said_text
    assert "\n" not in said_text


@pytest.mark.parametrize(
    ("filesystem", "full"),
    [
        ({"free_bytes": 1 << 20, "free_inodes": None}, True),
        ({"free_bytes": 1 << 40, "free_inodes": 3}, True),
        ({"free_bytes": 1 << 40, "free_inodes": None}, False),
        ({"error": "No such file or directory"}, False),
    ],
)
def test_a_tool_that_does_not_say_that_the_disk_is_full(filesystem: dict[str, Any], full: bool) -> None:
    result = {"stderr": "Error: Command ensurepip returned non-zero exit status 1."}
    text = releases.install_failure_text(result, host="n1", release="r", serving=[], filesystem=filesystem)
    assert ("the disk is full" in text) is full
