"""Builds from source: what is built in which order, with which environment and how many jobs, and its errors in words.

The plan goes to the builder as JSON; ``roles/vllm_build/files/build_components.py`` carries it out there, in a
transient systemd unit. ``runtime`` is what ``runtime_set`` returned, ``probe`` what module ``node_probe`` read.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from instinct_fleet.parse.base import parse_cpu_list
from instinct_fleet.wheelhouse import hide_credentials, pip_options, vendor_indexes

#: Variables of the builder that change what is built, or for which GPU; the unit does not inherit them.
FOREIGN = (
    "CUDA_HOME",
    "CUDA_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES",
    "HSA_OVERRIDE_GFX_VERSION",
    "ROCR_VISIBLE_DEVICES",
)


def max_jobs(probe: Mapping[str, Any], *, gib_per_job: float) -> int:
    """Return how many compilers may run at once: no more than CPUs, and no more than memory holds.

    A compiler that the kernel kills for want of memory leaves an error that names neither.

    Raises:
        ValueError: CPUs or memory of the builder could not be read; the message names the variable that sets it.
    """
    cpus = parse_cpu_list((probe.get("cpu") or {}).get("online") or "")
    found = re.search(r"^MemAvailable:\s+(\d+) kB", (probe.get("proc") or {}).get("meminfo") or "", re.M)
    if not cpus or found is None:
        raise ValueError("CPUs or memory of the builder could not be read; set vllm_build_jobs")
    return max(1, min(len(cpus), int(int(found[1]) / 1024**2 / gib_per_job)))


def build_environment(runtime: Mapping[str, Any], *, jobs: int) -> dict[str, str]:
    """Return the variables that every component is built with.

    The sources are vLLM's Dockerfile.rocm_base (architectures, prebuilt kernels, no triton of AITER's own), its
    setup.py (MAX_JOBS would be all CPUs) and its installation guide (the target device).
    """
    gfx = str(runtime["gfx"] or "")
    environment = {
        "VLLM_TARGET_DEVICE": runtime["accelerator"],
        "MAX_JOBS": str(jobs),
        "CMAKE_BUILD_PARALLEL_LEVEL": str(jobs),
        # Rust's linker takes a job's memory several times.
        "CARGO_BUILD_JOBS": str(min(4, jobs)),
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PIP_NO_INPUT": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    if gfx:
        # Plain, without the features that the driver reports (gfx942:sramecc+:xnack-).
        names = ("PYTORCH_ROCM_ARCH", "GPU_ARCHS", "AITER_ROCM_ARCH", "MORI_GPU_ARCHS", "HIP_ARCHITECTURES")
        environment |= dict.fromkeys(names, gfx)
    return environment


def build_plan(
    runtime: Mapping[str, Any],
    probe: Mapping[str, Any],
    *,
    path: str,
    work: str,
    python: str,
    index_url: str,
    vendor_index_urls: Mapping[str, Any],
    jobs: int = 0,
    gib_per_job: float = 4.0,
) -> dict[str, Any]:
    """Return what the builder does, as build_components.py reads it.

    Args:
        runtime: the set.
        probe: the builder.
        path: folder of the wheelhouse.
        work: folder for sources, logs and what is finished so far.
        python: the interpreter that builds; it must be of the minor version that the wheels are for.
        index_url: package index; empty for pip's own.
        vendor_index_urls: mirrors of vendors' indexes.
        jobs: compilers at once; 0 to compute it.
        gib_per_job: memory that one compiler is given for that.
    """
    built = [component["name"] for component in runtime["components"]]
    index = ["--index-url", index_url] if index_url else []
    extra = [word for url in vendor_indexes(runtime, vendor_index_urls) for word in ("--extra-index-url", url)]
    # What the components are built against: all pins that are not built, before any of them.
    fetched = [line for line in runtime["requirements"] if re.split(r"[\[=<>~ ]", line, maxsplit=1)[0] not in built]
    environment = build_environment(runtime, jobs=jobs or max_jobs(probe, gib_per_job=gib_per_job))
    steps = []
    previous = ""
    # How many compilers run at once changes nothing of what they make.
    compared = {name: value for name, value in environment.items() if not name.endswith(("_JOBS", "_LEVEL"))}
    for component in runtime["components"]:
        # A component is built against those before it, so a change of one is a change of all that follow.
        content = json.dumps([component, compared, fetched, list(runtime["tools"]), previous])
        previous = hashlib.sha256(content.encode()).hexdigest()
        steps.append({**component, "fingerprint": previous})
    return {
        "release": runtime["release"],
        "path": path,
        "work": work,
        "python": python,
        "version": runtime["python"],
        "environment": environment,
        "unset": list(FOREIGN),
        "index": [*index, *extra],
        "tools": list(runtime["tools"]),
        "fetched": fetched,
        "constraints": list(runtime["constraints"]),
        "installer": runtime["installer"],
        "pip_options": pip_options(runtime),
        "gfx": runtime["gfx"],
        "components": steps,
    }


def build_unit(runtime: Mapping[str, Any]) -> str:
    """Return the name of the transient unit that builds a release."""
    return f"vllm-build-{runtime['release']}.service"


def build_command(plan: Mapping[str, Any], *, unit: str, script: str) -> list[str]:
    """Return the command that starts the build apart from the connection that asked for it.

    Args:
        plan: what :func:`build_plan` returned.
        unit: name of the unit.
        script: path of build_components.py on the builder.
    """
    log = f"{plan['work']}/build.log"
    command = ["systemd-run", f"--unit={unit}", "--collect", f"--description=Build {plan['release']}", "--quiet"]
    command += [f"--property=StandardOutput=append:{log}", f"--property=StandardError=append:{log}"]
    # The build is killed as a whole, and gives way to whatever else the machine does.
    command += ["--property=KillMode=control-group", "--property=OOMPolicy=stop", "--nice=10"]
    return [*command, plan["python"], "-B", script, f"{plan['work']}/plan.json"]


def built_components(result: str | None) -> list[dict[str, Any]]:
    """Return what provenance says of the components, from the result that the build wrote."""
    try:
        return list(json.loads(result or "{}").get("components") or [])
    except (ValueError, AttributeError):
        return []


_CAUSES: Sequence[tuple[str, str]] = (
    (
        r"None of the detected ROCm architectures|not supported.*ROCm architectures",
        "the compiler does not know this GPU target: the ROCm that it found is not the one of the set",
    ),
    (
        r"CUDA_HOME is not set|nvcc",
        "a component was configured for CUDA: the torch it saw is not a ROCm build, so the vendor's index was not used",
    ),
    (
        r"Killed|signal 9|out of memory|cannot allocate memory",
        "a compiler was killed for want of memory; lower vllm_build_jobs or raise vllm_build_memory_per_job_gib",
    ),
    (r"No space left on device", "the disk is full; free some room, or set vllm_build_work_root to another place"),
    (
        r"SHA-256|sha256",
        "a source has another SHA-256 than the one pinned; do not use it before you know why",
    ),
    (
        r"Could not resolve host|NameResolutionError|Failed to establish|Connection refused|unable to access",
        "an index or a source cannot be reached; set vllm_build_index_url or vllm_build_vendor_index_urls to a mirror",
    ),
    (
        r"No module named|command not found|No such file or directory: '",
        "the builder lacks a tool; see vllm_build_packages",
    ),
)


def build_failure_text(result: str | None, log: str, *, host: str, unit: str) -> str:
    """Say in words why a build did not end well.

    Args:
        result: the text of result.json, None where the build did not come to write it.
        log: the end of the build's log.
        host: the builder.
        unit: name of the unit.
    """
    try:
        document = json.loads(result or "{}")
    except ValueError:
        document = {}
    message = str(document.get("message") or "it ended without a result: it was killed, or the machine went down")
    message = hide_credentials(message)
    lines = [hide_credentials(line.strip()) for line in log.splitlines() if line.strip()]
    text = f"{message}\n{log}"
    cause = next((f" Usually {words}." for pattern, words in _CAUSES if re.search(pattern, text)), "")
    return (
        f"{host}: {unit} failed: {message}.{cause} What was finished is kept; run again to go on. The last lines of "
        f"the log were: {' / '.join(lines[-4:])[:800] or '(nothing)'}"
    )
