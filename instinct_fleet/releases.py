"""Releases of vLLM on a node: what an installation needs, what proves it, what may go, and its errors in words.

Each function takes and returns plain lists and dictionaries, as Ansible's filters pass them. ``runtime`` is what
``runtime_set`` returned, ``probe`` what module ``node_probe`` read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

#: Written when a release is proven, and what tells when it was installed.
NOTE, RECORD = "complete.sha256", "release.json"
#: Above the sizes of the files: folders, scripts, and what a package manager keeps meanwhile.
_MARGIN = 1.05
_SPARE = 256 << 20


def release_paths(root: str) -> list[str]:
    """Return the files that node_probe must read so that :mod:`instinct_fleet.releases` can judge a node."""
    names = (NOTE, RECORD, "pyvenv.cfg")
    return [
        *(f"{root}/releases/*/{name}" for name in names),
        f"{root}/tools/installer.txt",
        "/etc/systemd/system/vllm-*.service",
    ]


def release_programs(runtime: Mapping[str, Any]) -> list[str]:
    """Return the programs that node_probe must look for."""
    return [f"python{runtime['python']}", "apt-get", "dnf"]


def release_note(probe: Mapping[str, Any], path: str) -> str | None:
    """Return what the note of a release says, or None where the release is not complete."""
    text = (probe.get("paths") or {}).get(f"{path}/{NOTE}")
    return str(text) if text is not None else None


def using_units(probe: Mapping[str, Any], path: str) -> list[str]:
    """Return the units that run, or would run, a program below a folder."""
    below = f"{path.rstrip('/')}/"
    found = set()
    for name, state in (probe.get("units") or {}).items():
        state = state or {}  # noqa: PLW2901 - a unit that is not loaded is None
        texts = [state.get("ExecStart") or "", *(p.get("cmdline") or "" for p in state.get("processes") or [])]
        if any(below in text for text in texts):
            found.add(str(name))
    for file, text in (probe.get("paths") or {}).items():
        if file.endswith(".service") and text and below in text:
            found.add(file.rpartition("/")[2])
    return sorted(found)


def units_that_run(probe: Mapping[str, Any], path: str) -> list[str]:
    """Return the units of which a process runs a program below a folder."""
    below = f"{path.rstrip('/')}/"
    return sorted(
        str(name)
        for name, state in (probe.get("units") or {}).items()
        if any(below in (process.get("cmdline") or "") for process in (state or {}).get("processes") or [])
    )


def node_problems(runtime: Mapping[str, Any], probe: Mapping[str, Any], *, path: str) -> list[str]:
    """Return why a release cannot be installed on a node, before anything is moved; one line each.

    Args:
        runtime: the set.
        probe: the node.
        path: the folder of the release.
    """
    problems = []
    libc = str(probe.get("libc") or "")
    match = re.fullmatch(r"glibc (\d+)\.(\d+).*", libc)
    needed = tuple(int(part) for part in runtime["glibc"].split("."))
    if match is None:
        problems.append(f"its C library is {libc or 'unknown'}, expected glibc {runtime['glibc']} or newer")
    elif (int(match[1]), int(match[2])) < needed:
        problems.append(
            f"it has {libc}, and the wheels of set {runtime['name']} need glibc {runtime['glibc']} or newer: use a "
            "newer distribution, or a set that needs less (instinct_fleet/data/runtime_sets.yml)"
        )
    units = using_units(probe, path)
    note = release_note(probe, path)
    if units and note is not None and runtime["complete_note"] is not None and note != runtime["complete_note"]:
        problems.append(
            f"{path} is in use by {', '.join(units)} and was made from another lock; a release that serves is never "
            "changed: give the changed set a name of its own (vllm_build_sets, vllm_runtime_sets)"
        )
    running = units_that_run(probe, path)
    if running and note is None:
        # Without its note a release counts as half installed, and would be removed to be made anew.
        problems.append(
            f"{path} has no {NOTE}, as after an interrupted installation, and {', '.join(running)} runs from it; a "
            "release that serves is never removed: drain and stop it, then run again"
        )
    return problems


def python_plan(runtime: Mapping[str, Any], probe: Mapping[str, Any], *, python: str = "") -> dict[str, Any]:
    """Return the Python that a release is made with and the packages that bring it.

    Args:
        runtime: the set.
        probe: the node.
        python: full path that a site gives; empty to find one.

    Returns:
        ``path`` of the interpreter; ``packages`` to install first, empty where it is there.
    """
    name = f"python{runtime['python']}"
    programs = probe.get("programs") or {}
    found = python or programs.get(name)
    if found:
        return {"path": found, "packages": []}
    parts = ("", "-devel") if programs.get("dnf") and not programs.get("apt-get") else ("", "-venv", "-dev")
    return {"path": f"/usr/bin/{name}", "packages": [f"{name}{part}" for part in parts]}


def python_refusal_text(result: Mapping[str, Any], runtime: Mapping[str, Any], *, host: str) -> str:
    """Say that a node has no Python that the wheels are for, from the result of the failed task."""
    said = " ".join(str(result.get("msg") or "").split())[:300]
    return (
        f"{host}: the wheels of set {runtime['name']} are for Python {runtime['python']} only; this node has no "
        f"python{runtime['python']} and its package sources have none ({said}). On another Python an installer takes "
        "the CUDA wheel without a word, so nothing was installed. Add a source that has it (Ubuntu 24.04 and RHEL 9 "
        "do), or name an interpreter in vllm_runtime_python"
    )


def room_problem(
    probe: Mapping[str, Any], *, root: str, moved_bytes: int, unpacked_bytes: int, release: str
) -> str | None:
    """Return why a release would not fit on the node's disk, or None.

    Args:
        probe: the node, read before anything is moved.
        root: folder below which releases lie.
        moved_bytes: bytes of the wheels that the node lacks.
        unpacked_bytes: bytes of all wheels, unpacked.
        release: its name, for the message.
    """
    seen = (probe.get("filesystems") or {}).get(root) or {}
    free = seen.get("free_bytes")
    need = int((moved_bytes + unpacked_bytes) * _MARGIN) + _SPARE
    if free is None:
        return f"the free space below {root} cannot be read ({seen.get('error', 'it was not asked for')})"
    if free < need:
        return (
            f"{root} has {free >> 20} MiB free, and {release} needs {need >> 20} MiB ({moved_bytes >> 20} MiB to move, "
            f"{unpacked_bytes >> 20} MiB unpacked, and a margin); nothing was moved and what serves is untouched. Free "
            "some room (vllm_runtime_remove_allowed=true removes old releases) or set vllm_runtime_root to another disk"
        )
    return None


def proof_problems(said: str, runtime: Mapping[str, Any]) -> list[str]:
    """Return where an installed release differs from its pin, given what prove_release.py said as JSON.

    The CUDA wheel slips in where an index offers it first; ``torch.version.hip`` and ``.cuda`` tell (vLLM issue 44660).
    """
    try:
        seen = json.loads(said)
        version, torch, hip, cuda = (seen[key] for key in ("vllm", "torch", "hip", "cuda"))
        python, started, exposed = str(seen["python"]), seen["help"], list(seen["exposed"])
    except (ValueError, KeyError, TypeError):
        return [f"the installed release said {said[-300:]!r}, expected a JSON object with vllm, torch, hip and cuda"]
    problems = []
    if seen.get("error"):
        problems.append(f"its Python cannot import it: {seen['error']}{_cause(str(seen['error']))}")
    elif str(version).split("+", 1)[0] != runtime["vllm"]:
        problems.append(f"vLLM is {version}, expected {runtime['vllm']}")
    if python.rpartition(".")[0] != runtime["python"]:
        problems.append(f"its Python is {python}, expected {runtime['python']}")
    if runtime["accelerator"] == "rocm" and not hip and not seen.get("error"):
        kind = f"a CUDA {cuda} wheel" if cuda else "a CPU wheel"
        problems.append(
            f"torch {torch} is {kind}, not a ROCm build (torch.version.hip is empty): the index that the wheelhouse "
            "was made from offered it first; make the wheelhouse again with the vendor's index"
        )
    if runtime["accelerator"] == "cpu" and (hip or cuda):
        problems.append(f"torch {torch} is built for a GPU, expected the CPU build")
    if started.get("rc") != 0:
        text = " / ".join(str(started.get("tail") or "").splitlines()[-3:])
        problems.append(
            f"`vllm serve --help` ended with {started.get('rc')}: {text or 'it said nothing'}{_cause(text)}"
        )
    if exposed:
        problems.append(
            f"{len(exposed)} of its files could be changed by others than root, first {exposed[0]}: whoever serves "
            "must not change what it runs; remove the release and install again"
        )
    return problems


def _cause(text: str) -> str:
    """Return the usual reason for an import error, in brackets, or nothing."""
    causes = (
        (r"libcudart|libcuda\.so|libnv", "a CUDA wheel"),
        (r"GLIBC_[\d.]+'? not found", "a wheel for a newer C library than this node has"),
        (r"libamdhip64|librocm|libhsa", "ROCm's libraries are missing: its SDK wheels, or role rocm for a system ROCm"),
        (r"libnuma", "package libnuma1 is missing"),
        (r"No module named 'torch'", "the lock lacks torch"),
        (r"hipErrorNoBinaryForGpu|invalid device function", "the device extra for this GPU is missing"),
    )
    return next((f" ({cause})" for pattern, cause in causes if re.search(pattern, text)), "")


def release_record(runtime: Mapping[str, Any], said: str, *, installed: str) -> str:
    """Return the text of a release's release.json: what it is, what it proved to be, and when it was installed."""
    seen = json.loads(said)
    kept = {key: seen[key] for key in ("vllm", "torch", "hip", "python", "libc")}
    document = {
        "schema": 1,
        "set": runtime["name"],
        "release": runtime["release"],
        "installed": installed,
        "proof": kept,
    }
    return json.dumps(document, indent=2, sort_keys=True) + "\n"


def surplus_releases(probe: Mapping[str, Any], *, root: str, current: str, keep: int) -> list[dict[str, Any]]:
    """Return the releases that may go, oldest first.

    Never the current one, never one that a unit names, and not the ``keep`` newest of the others. What an interrupted
    installation left may go whatever its age.

    Returns:
        For each ``name``, ``why``, and the ``paths`` that go with it.
    """
    pattern = re.compile(re.escape(f"{root}/releases/") + r"([^/]+)/[^/]+")
    paths = probe.get("paths") or {}
    names = sorted({match[1] for match in map(pattern.fullmatch, paths) if match})
    old, broken = [], []
    for name in names:
        folder = f"{root}/releases/{name}"
        if name == current or using_units(probe, folder):
            continue
        if paths.get(f"{folder}/{NOTE}") is None:
            broken.append((name, "its installation was interrupted"))
            continue
        try:
            installed = str(json.loads(paths.get(f"{folder}/{RECORD}") or "{}").get("installed") or "")
        except (ValueError, AttributeError):
            installed = ""
        old.append((installed, name))
    old.sort()
    going = [(name, f"installed {at or 'at an unknown time'}") for at, name in old[: max(0, len(old) - keep)]]
    return [
        {"name": name, "why": why, "paths": [f"{root}/releases/{name}", f"{root}/wheelhouse/{name}"]}
        for name, why in [*broken, *going]
    ]


_CAUSES = (
    (
        r"No space left on device|Errno 28|os error 28|disk is full",
        "the disk is full, of bytes or of inodes; free some room (vllm_runtime_remove_allowed=true removes old "
        "releases) and run again: wheels that arrived are kept",
    ),
    (
        r"[Hh]ash mismatch|was not replaced|DO NOT MATCH THE HASHES|arrived with SHA-256",
        "a wheel has another SHA-256 than the one pinned, so it was refused; find out who changed it, then run "
        "playbooks/build.yml again",
    ),
    (r"Bad CRC|Failed to extract archive", "a wheel is damaged; run again, and what differs is moved again"),
    (
        r"no wheels? with a matching|not compatible with the current platform|manylinux",
        "a wheel is for another platform: another Python, or a newer C library than this node's",
    ),
    (r"No interpreter found|not a Python|Querying Python", "the interpreter cannot be used; see vllm_runtime_python"),
    (r"ensurepip is not available|No module named venv", "package python3-venv is missing"),
    (
        r"not found in the (?:registry|provided package locations)|no version of",
        "a pinned wheel is not in the wheelhouse",
    ),
)


#: With less than this free, whatever failed did so for want of room, also where a tool does not say it (ensurepip).
_FULL_BYTES, _FULL_INODES = 16 << 20, 16


def install_failure_text(
    result: Mapping[str, Any], *, host: str, release: str, serving: Sequence[str], filesystem: Mapping[str, Any]
) -> str:
    """Say in words why a release could not be installed, from the result of the failed task.

    Args:
        result: what the task returned.
        host: the node.
        release: name of the release.
        serving: units that run another release.
        filesystem: the room that is left afterwards, as node_probe reads it.
    """
    text = "\n".join(str(result.get(key) or "") for key in ("stderr", "stdout", "msg"))
    free, inodes = filesystem.get("free_bytes"), filesystem.get("free_inodes")
    if (free is not None and free < _FULL_BYTES) or (inodes is not None and inodes < _FULL_INODES):
        text += "\nNo space left on device"
    untouched = f" {', '.join(serving)} {'goes' if len(serving) == 1 else 'go'} on as before." if serving else ""
    start = f"{host}: release {release} is not installed"
    for pattern, cause in _CAUSES:
        if re.search(pattern, text):
            return f"{start}: {cause}.{untouched} The last line was: {_last(text)}"
    return f"{start}: {_last(text, 3)}.{untouched}"


def _last(text: str, count: int = 1) -> str:
    lines = [" ".join(line.split()) for line in text.splitlines() if line.strip()]
    return " / ".join(lines[-count:])[:600] or "(nothing was said)"
