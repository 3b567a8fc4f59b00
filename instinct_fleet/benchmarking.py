"""What the benchmark role runs, writes and says: one job an instance, capacity records as local facts, regressions.

Each function takes and returns plain lists and dictionaries, as Ansible's filters pass them.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import math
import re
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from instinct_fleet import advice
from instinct_fleet.acceptance import topology_hash
from instinct_fleet.api import as_topology
from instinct_fleet.capacity import capacity_key
from instinct_fleet.load.fits import guides
from instinct_fleet.model import LOCAL_FACTS, to_json

#: Name of the archive that brings the load test to a node.
CLIENT = "client.zip"


def fact_path(instance: str) -> str:
    """Return where the capacity record of an instance is kept on its node."""
    return f"{LOCAL_FACTS}/instinct_capacity_{instance.replace('-', '_')}.fact"


def capacity_paths(instances: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the paths of the capacity records of a node's instances."""
    return [fact_path(str(instance["name"])) for instance in instances]


def read_record(text: str | None) -> dict[str, Any] | None:
    """Return a capacity record from its fact file; None where there is none or it cannot be read."""
    try:
        found = json.loads(text or "")
    except ValueError:
        return None
    return found if isinstance(found, dict) and isinstance(found.get("key"), str) else None


def benchmark_jobs(
    units: Sequence[Mapping[str, Any]],
    *,
    probe: Mapping[str, Any],
    topology: Any,
    vllm_version: str,
    host: str,
    only: Sequence[str],
    again: bool,
    output_dir: str,
    python: str,
    key_file: str,
    settings: Mapping[str, Any],
    extra: Sequence[str],
    report: bool = True,
) -> list[dict[str, Any]]:
    """Return one job an instance: its command line, its key, its last record, and whether that record is fresh.

    A record is fresh when its key, a hash of model, vLLM version, arguments, tensor parallel size and topology, is that
    of what runs now, and it was measured for the objective and the headroom that ``settings`` ask for. ``settings`` are
    options of ``instinct-fleet sweep``; an empty value leaves one out, and so does 0, but for the headroom. Without
    ``report`` the load test draws none (:func:`benchmark_reports` does it elsewhere).
    """
    shape = topology_hash(as_topology(topology))
    jobs = []
    for unit in units:
        name = str(unit["instance"])
        if only and name not in only:
            continue
        provenance = {
            "model": str(unit["question"]["model"]),
            "vllm": vllm_version,
            "arguments": hashlib.sha256(str(unit["config"]).encode()).hexdigest()[:16],
            "tp": str(unit["tensor_parallel_size"]),
            "topology": shape,
        }
        key = capacity_key(provenance)
        previous = read_record((probe.get("paths") or {}).get(fact_path(name)))
        argv = [python, "-m", "instinct_fleet", "sweep", "--json", "--base-url", str(unit["url"])]
        argv += ["--model", provenance["model"], "--instance", f"{host}/{name}"]
        argv += ["--output-dir", f"{output_dir}/{host}-{name}"]
        for option, value in sorted(settings.items()):
            if value not in ("", None) and (value or option == "headroom"):
                argv += [f"--{option}", str(value)]
        for item in sorted(provenance.items()):
            argv += ["--provenance", "=".join(item)]
        running = yaml.safe_load(str(unit["config"]))
        for option in advice.NAMES:
            if isinstance(running, Mapping) and running.get(option) is not None:
                argv += ["--served", f"{option}={running[option]}"]
        if key_file:
            argv += ["--api-key-file", key_file]
        if probe.get("simulated"):
            argv.append("--simulated")
        if not report:
            argv.append("--no-report")
        jobs.append(
            {
                "instance": name,
                "key": key,
                "provenance": provenance,
                "previous": previous,
                "fresh": bool(
                    previous and previous["key"] == key and not again and _same_goal(previous, settings, extra)
                ),
                "argv": [*argv, *map(str, extra)],
                "output_dir": f"{output_dir}/{host}-{name}",
            }
        )
    return jobs


def _same_goal(record: Mapping[str, Any], settings: Mapping[str, Any], extra: Sequence[str]) -> bool:
    """Return whether a record was measured for the objective (ms) and the headroom that are asked for now."""
    for option, name in (("ttft-p99-ms", "ttft_slo_ms"), ("headroom", "headroom")):
        if option not in settings or f"--{option}" in extra:
            continue  # not asked for here
        wanted, found = float(settings[option] or 0), float(record.get(name) or 0)
        if not math.isclose(wanted, found, rel_tol=1e-9):  # the sweep counts in seconds
            return False
    return True


def benchmark_files(
    jobs: Sequence[Mapping[str, Any]], *, output_dir: str, key_file: str, api_key: str | None = None
) -> list[dict[str, Any]]:
    """Return the managed files of the load host: the folders of the results, and the key while it is needed."""
    files: list[dict[str, Any]] = [{"dest": output_dir, "state": "directory", "mode": "0755"}]
    files += [{"dest": job["output_dir"], "state": "directory", "mode": "0755"} for job in jobs if not job["fresh"]]
    if api_key:
        files.append({"dest": key_file, "content": f"{api_key}\n", "mode": "0600", "secret": True})
    return files


def benchmark_unreachable(units: Sequence[Mapping[str, Any]], *, only: Sequence[str]) -> list[str]:
    """Return the instances that answer on their own node alone, so that another host cannot load them."""
    loopback = re.compile(r"//(127\.0\.0\.1|localhost|\[::1\])[:/]")
    return [str(u["instance"]) for u in units if (not only or u["instance"] in only) and loopback.search(str(u["url"]))]


def client_files(directory: str) -> list[dict[str, Any]]:
    """Return the managed files that bring the load test to a node: its folder and one archive that Python reads.

    The same sources give the same bytes. The libraries it needs (rich, jinja2, pydantic, yaml) come with vLLM.
    """
    package = Path(__file__).parent
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(package.rglob("*.py")):
            name = zipfile.ZipInfo(f"{package.name}/{path.relative_to(package)}", (1980, 1, 1, 0, 0, 0))
            archive.writestr(name, path.read_bytes(), zipfile.ZIP_DEFLATED)
    content = base64.b64encode(buffer.getvalue()).decode()
    return [
        {"dest": directory, "state": "directory", "mode": "0755"},
        {"dest": f"{directory}/{CLIENT}", "content_b64": content, "mode": "0644"},
    ]


def benchmark_reports(results: Sequence[Mapping[str, Any]], *, output_dir: str, host: str) -> list[dict[str, Any]]:
    """Return the managed files that keep what nodes measured themselves: raw results, record and report."""
    from instinct_fleet.report import render  # noqa: PLC0415 - the load test is imported where nothing draws

    files: list[dict[str, Any]] = [{"dest": output_dir, "state": "directory", "mode": "0755"}]
    for result in results:
        document = _document(result)
        if document is None:
            continue
        # Drawn again, since a node lacks a library that one of the fits needs.
        curve = [(p["concurrency"], p["output_token_rate"]) for p in document["capacity"]["points"] if p.get("counts")]
        document["fits"] = [to_json(f) for f in guides([(c, rate) for c, rate in curve if rate is not None])]
        folder = f"{output_dir}/{host}-{result['item']['instance']}"
        texts = {
            "sweep.json": json.dumps(document, indent=2) + "\n",
            "capacity.json": json.dumps(document["capacity"], indent=2) + "\n",
            "report.html": render(document),
        }
        files.append({"dest": folder, "state": "directory", "mode": "0755"})
        files += [{"dest": f"{folder}/{name}", "content": text, "mode": "0644"} for name, text in texts.items()]
    return files


def _document(result: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return what a sweep printed, or None where it printed no document."""
    try:
        found = json.loads(str(result.get("stdout") or ""))
    except ValueError:
        return None
    return found if isinstance(found, dict) and isinstance(found.get("capacity"), dict) else None


def _record(result: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the capacity record of a finished job, with its provenance, or None where it gave no limit."""
    document = _document(result)
    if document is None or document["capacity"].get("limit") is None:
        return None
    return {**document["capacity"], "key": result["item"]["key"], "provenance": result["item"]["provenance"]}


def benchmark_problems(results: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return why jobs gave no number, one line each."""
    problems = []
    for result in results:
        if _record(result) is not None:
            continue
        document = _document(result)
        name = result["item"]["instance"]
        if document is None:
            said = [line for line in str(result.get("stderr") or "").splitlines() if line.strip()]
            why = said[-1] if said else "it printed nothing"
            problems.append(f"instance {name}: the load test gave no result (exit code {result.get('rc')}): {why}")
        else:
            reasons = "; ".join(document.get("reasons") or ()) or "no reason given"
            problems.append(f"instance {name}: {document.get('verdict')}: {reasons}")
    return problems


def capacity_files(results: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the local facts that hold the new capacity records."""
    files: list[dict[str, Any]] = [{"dest": LOCAL_FACTS, "state": "directory", "mode": "0755"}]
    for result in results:
        record = _record(result)
        if record is not None:
            text = json.dumps(record, indent=1, sort_keys=True) + "\n"
            files.append({"dest": fact_path(result["item"]["instance"]), "content": text, "mode": "0644"})
    return files


def _throughput(record: Mapping[str, Any] | None) -> float | None:
    """Return output tokens/s at the knee of a record."""
    if not record or record.get("knee") is None:
        return None
    rates = [p.get("output_token_rate") for p in record.get("points") or () if p.get("concurrency") == record["knee"]]
    return float(rates[0]) if rates and rates[0] is not None else None


def _current(job: Mapping[str, Any], results: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    for result in results:
        if result["item"]["instance"] == job["instance"]:
            return _record(result)
    return job["previous"] if job["fresh"] else None


def _advice(job: Mapping[str, Any], results: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return what a load test of this run says should be changed."""
    for result in results:
        if result["item"]["instance"] == job["instance"]:
            return [str(line) for line in (_document(result) or {}).get("advice") or ()]
    return []


def _comparable(before: Mapping[str, Any] | None, now: Mapping[str, Any]) -> bool:
    if before is None or before.get("ttft_slo_ms") != now.get("ttft_slo_ms"):
        return False
    models = [(record.get("provenance") or {}).get("model") for record in (before, now)]
    return None in models or models[0] == models[1]


def regressions(
    jobs: Sequence[Mapping[str, Any]], results: Sequence[Mapping[str, Any]], *, tolerance: float
) -> list[str]:
    """Return where throughput at the knee fell by more than ``tolerance`` (a share) since the last record.

    A record of another model or for another objective says nothing about what is slower.
    """
    lines = []
    for job in jobs:
        current = _current(job, results)
        if job["fresh"] or current is None or not _comparable(job["previous"], current):
            continue
        before, now = _throughput(job["previous"]), _throughput(current)
        if before and now is not None and now < before * (1 - tolerance):
            when = (job["previous"] or {}).get("date", "an unknown date")
            lines.append(
                f"instance {job['instance']}: {now:.0f} tokens/s at the knee, {1 - now / before:.0%} less than the "
                f"{before:.0f} of {when}; at most {tolerance:.0%} is tolerated"
            )
    return lines


def tp_scaling(records: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the scaling efficiency of tensor parallel sizes of the same model: tokens/s against TP 1 times TP.

    Without a record for TP 1 the smallest size measured is the base.
    """
    models: dict[str, dict[int, float]] = {}
    for record in records:
        provenance = record.get("provenance") or {}
        rate = _throughput(record)
        if rate and str(provenance.get("tp", "")).isdecimal():
            models.setdefault(str(provenance.get("model")), {})[int(provenance["tp"])] = rate
    lines = []
    for model, rates in sorted(models.items()):
        if len(rates) < 2:
            continue
        base = min(rates)
        parts = [
            f"TP {tp} {rates[tp]:.0f} tokens/s ({rates[tp] / rates[base] * base / tp:.0%})" for tp in sorted(rates)
        ]
        lines.append(f"{model}: scaling efficiency against TP {base}: {', '.join(parts)}")
    return lines


def capacity_report(
    jobs: Sequence[Mapping[str, Any]],
    results: Sequence[Mapping[str, Any]],
    *,
    tolerance: float,
    simulated: bool = False,
) -> str:
    """Say what each instance can carry, where that came from, what got slower, and how tensor parallel scales."""
    lines, records = [], []
    for job in jobs:
        record = _current(job, results)
        if record is None:
            lines.append(f"{job['instance']}: not measured")
            continue
        records.append(record)
        how = f"measured {record.get('date')}" + (", still valid for what runs" if job["fresh"] else "")
        slo = record.get("ttft_slo_ms")
        goal = f"TTFT p99 at most {slo:g} ms" if slo else "no TTFT objective"
        lines.append(
            f"{job['instance']}: knee {record['knee']}, limit {record['limit']} "
            f"({goal}, headroom {record.get('headroom', 0):.0%}; {how})"
        )
        lines += [f"  {line}" for line in _advice(job, results)]
    lines += [f"Slower: {line}" for line in regressions(jobs, results, tolerance=tolerance)]
    lines += tp_scaling(records)
    if simulated:
        lines.append("Simulated hardware: these figures say nothing of a GPU.")
    return "\n".join(lines) or "No instance to measure."
