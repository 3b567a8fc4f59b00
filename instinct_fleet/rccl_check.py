"""What the role ``rccl_check`` runs on a node, when it runs it again, and what it concludes.

Each function takes and returns plain lists and dictionaries, as Ansible's filters pass them.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from instinct_fleet.acceptance import fingerprint
from instinct_fleet.api import as_topology
from instinct_fleet.instances import parse_instances
from instinct_fleet.model import LOCAL_FACTS, Finding, sort_findings, to_json, verdict
from instinct_fleet.parse import rccl
from instinct_fleet.placement import place

#: Where the results of a node are kept.
FACT = f"{LOCAL_FACTS}/instinct_rccl.fact"
#: What ``timeout`` ends with when it ended the program.
TIMED_OUT = frozenset({124, 137})
#: Settings under which RCCL starts where its tuner or a network plugin keeps it from doing so. There is no
#: RCCL_NET_PLUGIN: RCCL reads NCCL's names (rccl src/plugin/net.cc).
CONSERVATIVE: Mapping[str, str] = {"NCCL_ALGO": "Ring", "NCCL_NET_PLUGIN": "none"}
_INIT_FAILED = re.compile(r"unhandled (?:system|cuda|hip) error|timed? ?out|internal error|bootstrap", re.I)
#: A record counts for what runs next unless it failed; what was not judged is tried again.
_STANDING = ("pass",)


def rccl_gpu_sets(topology: Any, *, instances: Any) -> list[list[int]]:
    """Return the sets of GPUs to test, as HIP numbers those of each instance that has several.

    A node without such an instance is tested as a whole.
    """
    node = as_topology(topology)
    units = place(node, parse_instances(instances)).units if instances else ()
    found = sorted({tuple(int(n) for n in unit.hip_visible_devices.split(",")) for unit in units if len(unit.gpus) > 1})
    if not found and len(node.gpus) > 1:
        known = [gpu.hip_id for gpu in node.gpus]
        found = [tuple(h for h in known if h is not None) if None not in known else tuple(range(len(known)))]
    return [list(gpus) for gpus in found]


def _said(probe: Mapping[str, Any], call: str) -> tuple[str, int | None]:
    """Return stdout and exit code of a call in a probe."""
    entry = (probe.get("commands") or {}).get(call) or {}
    return str(entry.get("stdout") or ""), entry.get("rc")


def _records(text: str | None) -> dict[str, dict[str, Any]]:
    """Return the records of a fact file by key; what cannot be read is no record."""
    try:
        document = json.loads(text or "")
    except ValueError:
        return {}
    sets = document.get("sets") if isinstance(document, dict) else None
    if not isinstance(sets, list):
        return {}
    whole = {"key": str, "gpus": list, "findings": list, "verdict": str}
    found = [e for e in sets if isinstance(e, dict) and all(isinstance(e.get(k), kind) for k, kind in whole.items())]
    return {entry["key"]: entry for entry in found}


def rccl_jobs(
    gpu_sets: Sequence[Sequence[int]],
    *,
    probe: Mapping[str, Any],
    tools: Mapping[str, Any],
    program: str,
    launcher: str = "auto",
    max_bytes: str = "8G",
    timeout: int = 600,
    environment: Mapping[str, str] | None = None,
    judged_by: Any = None,
    again: bool = False,
) -> list[dict[str, Any]]:
    """Return one job a set of GPUs: its command line, its key, and its last record where that still stands.

    Args:
        gpu_sets: HIP indexes of the GPUs of each run.
        probe: what ``topology`` read.
        tools: what this role read: ``mpirun --version``, ``ldd PROGRAM``, checksum of the program, last records.
        program: path of ``all_reduce_perf``.
        launcher: ``mpi`` for one rank a GPU, ``threads`` for ``-g``, ``auto`` for MPI where it is there and the program
            is linked with it.
        max_bytes: the largest message, as rccl-tests reads it.
        timeout: seconds that a run may take.
        environment: more variables of the run.
        judged_by: what the verdict depends on besides, as policy and floors: a record made under others does not stand.
        again: run although there is a record.

    Raises:
        ValueError: the launcher is none of the three, or a set of GPUs names one twice.
    """
    if launcher not in ("auto", "mpi", "threads"):
        raise ValueError(f"launcher is {launcher!r}, expected auto, mpi or threads (rccl_check_launcher)")
    state = fingerprint(probe)
    if launcher == "auto":
        linked, _rc = _said(tools, f"ldd {program}")
        _text, code = _said(tools, "mpirun --version")
        launcher = "mpi" if code == 0 and "libmpi" in linked else "threads"
    checksum = ((tools.get("files") or {}).get(program) or {}).get("checksum")
    records = _records((tools.get("paths") or {}).get(FACT))
    jobs = []
    for gpus in gpu_sets:
        if len(gpus) != len(set(gpus)):
            raise ValueError(f"a set of GPUs is {list(gpus)}, expected each GPU once (rccl_check_gpu_sets)")
        bound = {"gpus": list(gpus), "program": checksum, "max_bytes": max_bytes, "judged_by": judged_by, **state}
        key = hashlib.sha256(json.dumps(bound, sort_keys=True, default=str).encode()).hexdigest()[:16]
        test = [program, "-b", "8", "-e", max_bytes, "-f", "2"]
        if launcher == "mpi":
            # A node is tested by root; each rank binds itself to the NUMA node of its GPU.
            start = ["mpirun", "--allow-run-as-root", "-np", str(len(gpus)), "--bind-to", "numa"]
            argv = [*start, *test, "-g", "1"]
        else:
            argv = [*test, "-g", str(len(gpus))]
        last = records.get(key)
        jobs.append(
            {
                "gpus": list(gpus),
                "label": "GPUs " + ",".join(map(str, gpus)),
                "key": key,
                "versions": state,
                "launcher": launcher,
                "program": program,
                "argv": ["timeout", "--kill-after=10", str(timeout), *argv],
                "environment": {"HIP_VISIBLE_DEVICES": ",".join(map(str, gpus)), **(environment or {})},
                "timeout": timeout,
                "last": last,
                "fresh": bool(last and last.get("verdict") in _STANDING and not again),
            }
        )
    return jobs


def _rows(result: Mapping[str, Any]) -> int:
    return len(rccl.parse(str(result.get("stdout") or "")).facts.get("points") or ())


def rccl_retries(results: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the jobs that RCCL did not even start, with the settings under which it may.

    A run counts as not started when it ended without one row of results, at its time-out or with an error of the
    library. A missing program is no such case.
    """
    jobs = []
    for result in results:
        said = f"{result.get('stdout') or ''}\n{result.get('stderr') or ''}"
        stuck = result.get("rc") in TIMED_OUT or (result.get("rc") not in (0, 127) and _INIT_FAILED.search(said))
        if stuck and _rows(result) == 0 and not _missing(result):
            job = dict(result["item"])
            jobs.append({**job, "environment": {**job["environment"], **CONSERVATIVE}})
    return jobs


def _missing(result: Mapping[str, Any]) -> bool:
    """Tell whether ``timeout`` (126, 127) or mpirun could not start the program."""
    said = f"{result.get('msg') or ''} {result.get('stderr') or ''}"
    cause = r"No such file|not found|Permission denied|could not find an executable|unable to (?:find|launch)"
    return bool(result.get("rc")) and _rows(result) == 0 and re.search(cause, said, re.I) is not None


def rccl_outcome(
    jobs: Sequence[Mapping[str, Any]],
    results: Sequence[Mapping[str, Any]],
    *,
    retried: Sequence[Mapping[str, Any]] = (),
    policy: str,
    floors: Mapping[Any, float] | None = None,
    date: str,
) -> list[dict[str, Any]]:
    """Judge every job.

    Args:
        jobs: what :func:`rccl_jobs` returned.
        results: the first run of those that were not fresh.
        retried: the second run of those that RCCL did not start.
        policy: the node's policy.
        floors: a site's own floors of the bus bandwidth in GB/s, by number of GPUs.
        date: when this was, UTC.

    Returns:
        One record a job: ``gpus``, ``key``, ``date``, ``busbw`` in GB/s and ``size`` in bytes (None where not judged),
        ``wrong``, ``launcher``, ``versions``, ``degraded``, ``findings``, ``verdict`` (pass, fail or unknown).
    """
    first = {result["item"]["key"]: result for result in results if "item" in result}
    second = {result["item"]["key"]: result for result in retried if "item" in result}
    records: list[dict[str, Any]] = []
    for job in jobs:
        if job["fresh"]:
            records.append(dict(job["last"]))
            continue
        key = job["key"]
        result = second.get(key) or first.get(key)
        findings: list[Finding] = []
        facts: Mapping[str, Any] = {}
        if result is None:
            findings.append(_unknown(job, "it was not run"))
        elif _missing(result):
            findings.append(_absent(job))
        elif result.get("rc") in TIMED_OUT and _rows(result) == 0:
            findings.append(_stuck(job, again=key in second))
        else:
            reading = rccl.parse(
                str(result.get("stdout") or ""), stderr=str(result.get("stderr") or ""), rc=result.get("rc")
            )
            facts = reading.facts
            findings += _judged(reading, job, policy=policy, floors=floors or {})
            if result.get("rc") in TIMED_OUT:
                findings.append(_unknown(job, f"it did not end within {job['timeout']} s"))
        degraded = key in second and not [f for f in findings if f.severity in ("error", "unknown")]
        if degraded:
            findings.append(_degraded(job))
        findings = list(sort_findings(findings))
        records.append(
            {
                "gpus": job["gpus"],
                "key": key,
                "date": date,
                "busbw": facts.get("busbw"),
                "size": facts.get("size"),
                "wrong": facts.get("wrong"),
                "launcher": job["launcher"],
                "versions": job["versions"],
                "degraded": degraded,
                "findings": to_json(findings),
                "verdict": verdict(findings),
            }
        )
    return records


def _judged(
    reading: Any, job: Mapping[str, Any], *, policy: str, floors: Mapping[Any, float]
) -> tuple[Finding, ...] | list[Finding]:
    """Judge a run by the site's own floor where it has one for this number of GPUs, else by the published one."""
    gpus = len(job["gpus"])
    found = list(rccl.judge(reading, gpus=gpus, policy=policy))
    own = {int(count): float(floor) for count, floor in floors.items()}.get(gpus)
    busbw = reading.facts.get("busbw")
    if own is None or busbw is None:
        return found
    found = [f for f in found if f.code not in ("rccl_no_floor", "rccl_bandwidth_low")]
    if busbw < own:
        known = rccl.signature(busbw)
        if gpus == 2 and known and known["name"].startswith("one_link"):  # two GPUs have no more than one link
            known = None
        message = (
            f"in-place bus bandwidth {busbw:.2f} GB/s at {reading.facts['size']} bytes on {gpus} GPUs, expected at "
            f"least {own:g} (rccl_check_floors){'. This figure is known: ' + known['meaning'] if known else ''}"
        )
        remedy = known["remedy"] if known else "check iommu=pt, ACS, the link types and the RCCL release"
        found.append(Finding("rccl_bandwidth_low", "error", job["label"], message, remedy))
    return found


def _unknown(job: Mapping[str, Any], why: str) -> Finding:
    remedy = "run it again (rccl_check_again=true), with a higher rccl_check_timeout where it is only slow"
    return Finding("rccl_not_judged", "unknown", job["label"], f"all_reduce_perf: {why}", remedy)


def _absent(job: Mapping[str, Any]) -> Finding:
    message = f"{job['program']} is not on the node or cannot be run; expected rccl-tests there"
    remedy = "build rccl-tests and set rccl_check_program to its all_reduce_perf, or set rccl_check_enabled=false"
    return Finding("collect_tool_missing", "unknown", job["label"], message, remedy)


def _stuck(job: Mapping[str, Any], *, again: bool) -> Finding:
    tried = " and again with " + " ".join(f"{k}={v}" for k, v in CONSERVATIVE.items()) if again else ""
    message = f"RCCL did not start within {job['timeout']} s{tried}; expected a first result within seconds"
    remedy = "run it by hand with NCCL_DEBUG=INFO; look for a wrong network interface, iommu=pt and hung GPUs in dmesg"
    return Finding("rccl_init_timeout", "error", job["label"], message, remedy)


def _degraded(job: Mapping[str, Any]) -> Finding:
    said = " ".join(f"{k}={v}" for k, v in CONSERVATIVE.items())
    message = f"RCCL starts only with {said}; the node passes degraded"
    remedy = "give the instances these variables (environment) until the cause is found; update RCCL and its plugins"
    return Finding("rccl_degraded", "warning", job["label"], message, remedy)


def rccl_files(records: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the local facts that hold a node's records."""
    text = json.dumps({"schema": 1, "sets": list(records)}, indent=1, sort_keys=True) + "\n"
    return [
        {"dest": LOCAL_FACTS, "state": "directory", "mode": "0755"},
        {"dest": FACT, "content": text, "mode": "0644"},
    ]


def rccl_table(records: Sequence[Mapping[str, Any]], *, simulated: bool = False) -> str:
    """Say for each set of GPUs what it reached, whether it passed, and what was found."""
    lines = []
    for record in records:
        gpus = ",".join(map(str, record["gpus"]))
        busbw = record.get("busbw")
        reached = f"{busbw:.1f} GB/s at {record['size'] >> 20} MiB" if busbw is not None else "no figure"
        degraded = ", degraded" if record.get("degraded") else ""
        lines.append(f"GPUs {gpus}: {reached}: {record['verdict']}{degraded} ({record.get('date')})")
        lines += [f"  {f['severity']}: {f['message']}. {f['remedy']} ({f['code']})" for f in record["findings"]]
    if simulated:
        lines.append("Simulated hardware: these figures say nothing of a GPU.")
    return "\n".join(lines) or "No set of two or more GPUs to test."
