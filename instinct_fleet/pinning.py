"""Is an instance faster bound to its NUMA nodes, or not? What is run to find out, what it says, and what is kept.

Field reports go from +0.7 % to -43 %, so nobody can know without measuring. Each function takes and returns plain lists
and dictionaries, as Ansible's filters pass them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from instinct_fleet.acceptance import topology_hash
from instinct_fleet.api import as_topology
from instinct_fleet.capacity import ResultError, read_results
from instinct_fleet.load.compare import Difference, compare_points
from instinct_fleet.model import LOCAL_FACTS, to_json
from instinct_fleet.serving import serve_plan

#: A is the plan, bound; B is the same instance without binding.
SIDES = ("bound", "unbound")
KEPT = {"A is better": "bound", "B is better": "unbound"}


def pinning_path(instance: str) -> str:
    """Return where the verdict on an instance is kept on its node."""
    return f"{LOCAL_FACTS}/instinct_pinning_{instance.replace('-', '_')}.fact"


def pinning_paths(instances: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the paths of the verdicts on a node's instances."""
    return [pinning_path(str(instance["name"])) for instance in instances]


def _key(instance: Mapping[str, Any], topology: Any, vllm_version: str) -> str:
    """Return a hash of what a verdict is about; of the instance only what bears on where work and memory lie."""
    named = ("model", "tensor_parallel_size", "pipeline_parallel_size", "gpus", "numactl", "strict_membind")
    about = {name: instance.get(name) for name in named}
    about |= {"topology": topology_hash(as_topology(topology)), "vllm": vllm_version}
    return hashlib.sha256(json.dumps(about, sort_keys=True, default=str).encode()).hexdigest()[:16]


def measured_pinning(
    instances: Sequence[Mapping[str, Any]], *, probe: Mapping[str, Any], topology: Any, vllm_version: str
) -> list[dict[str, Any]]:
    """Return the instances, with ``numa: off`` where the node holds a valid verdict that unbound is faster.

    Only instances that leave the choice (``numa: auto``, the default) are changed, and only while model, sizes, GPUs,
    topology and vLLM version are those that were measured.
    """
    found = []
    for instance in instances:
        entry = dict(instance)
        record = _record((probe.get("paths") or {}).get(pinning_path(str(entry.get("name")))))
        left_open = record.get("keep") == "unbound" and entry.get("numa", "auto") == "auto"
        if left_open and record.get("key") == _key(entry, topology, vllm_version):
            entry["numa"] = "off"
        found.append(entry)
    return found


def _record(text: str | None) -> dict[str, Any]:
    try:
        found = json.loads(text or "")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def pinning_plan(
    topology: Any,
    *,
    instances: Sequence[Mapping[str, Any]],
    for_instance: str,
    rounds: int,
    concurrency: int,
    jobs: Sequence[Mapping[str, Any]],
    vllm_version: str,
    vllm_path: str,
    config_dir: str,
    numactl_path: str,
    start_timeout: int,
    with_key: bool,
) -> dict[str, Any]:
    """Return how the two ways of starting an instance are compared.

    Args:
        topology: the topology document of the node.
        instances: the instances of the node, as the inventory has them.
        for_instance: name of the one that is compared (Ansible's own call of a filter uses ``instance``).
        rounds: how often each way is measured, at least 2; an interval needs that.
        concurrency: requests in flight; 0 for the limit of the instance's capacity record.
        jobs: what ``benchmark_jobs`` returned, whose command line is used.
        vllm_version: release that runs.
        vllm_path: path of its program.
        config_dir: folder of the instances' configurations.
        numactl_path: path of numactl.
        start_timeout: seconds that a start may take.
        with_key: whether the instances have a key.

    Returns:
        ``unit``, ``drop_in`` (path), ``key``, ``concurrency`` and ``steps``: in turn A, B, A, B, each with ``side``,
        ``round``, ``content`` of the drop-in, ``argv`` and ``output_dir``.

    Raises:
        ValueError: there is nothing to compare; the message says why and what to do.
    """
    instance = for_instance
    named = [dict(entry) for entry in instances if entry.get("name") == instance]
    if not named:
        known = ", ".join(str(entry.get("name")) for entry in instances) or "none"
        raise ValueError(f"benchmark_pinning_instance is {instance!r}, expected one of the node's instances: {known}")
    if named[0].get("numa", "auto") == "off":
        raise ValueError(f"instance {instance} has numa: off, so there is no binding to compare; set numa: auto")
    if rounds < 2:
        raise ValueError(f"benchmark_pinning_rounds is {rounds}, expected 2 or more: one pair has no interval")
    units = []
    for numa in ("auto", "off"):
        others = [{**entry, "numa": numa} if entry.get("name") == instance else dict(entry) for entry in instances]
        plan = serve_plan(
            topology,
            instances=others,
            vllm_version=vllm_version,
            vllm_path=vllm_path,
            config_dir=config_dir,
            numactl_path=numactl_path,
            start_timeout=start_timeout,
            with_key=with_key,
        )
        units += [unit for unit in plan["units"] if unit["instance"] == instance]
    if len(units) != 2 or units[0]["exec_start"] == units[1]["exec_start"]:
        raise ValueError(
            f"instance {instance} starts the same way with and without binding (the NUMA nodes of its GPUs are not "
            "known, or the node has one); there is nothing to compare"
        )
    job = next((entry for entry in jobs if entry["instance"] == instance), None)
    if job is None:
        raise ValueError(f"instance {instance} has no load test; benchmark_instances leaves it out")
    load = concurrency or int((job.get("previous") or {}).get("limit") or 0)
    if load < 1:
        raise ValueError(
            f"instance {instance} has no capacity record to take the concurrency from; run playbooks/benchmark.yml "
            "first or set benchmark_pinning_concurrency"
        )
    steps = []
    for number in range(1, rounds + 1):
        for side, unit in zip(SIDES, units, strict=True):
            folder = f"{job['output_dir']}-pinning-{number:02d}-{side}"
            steps.append(
                {
                    "side": side,
                    "round": number,
                    "label": f"round {number} of {rounds}, {side}",
                    # Both ways, since the unit on the node may be either.
                    "content": f"[Service]\nExecStart=\nExecStart={unit['exec_start']}\n",
                    "argv": _measure(job["argv"], load, folder),
                    "output_dir": folder,
                }
            )
    name = units[0]["unit"]
    return {
        "instance": instance,
        "unit": name,
        # Below /run: a node that reboots half-way comes back as planned.
        "drop_in": f"/run/systemd/system/{name}.d/compare-pinning.conf",
        "key": _key(named[0], topology, vllm_version),
        "concurrency": load,
        "steps": steps,
    }


def _measure(argv: Sequence[str], concurrency: int, output_dir: str) -> list[str]:
    """Return the load test's command line for one fixed concurrency."""
    kept = []
    words = iter(argv)
    for word in words:
        if word in ("--output-dir", "--ladder", "--max-concurrency"):
            next(words, None)
        else:
            kept.append(str(word))
    return [*kept, "--ladder", str(concurrency), "--output-dir", output_dir]


def pinning_outcome(
    steps: Sequence[Mapping[str, Any]], results: Sequence[Mapping[str, Any]], *, key: str, date: str
) -> dict[str, Any]:
    """Compare the measurements pair by pair.

    Args:
        steps: ``steps`` of the plan.
        results: one result of the load test a step, in that order.
        key: ``key`` of the plan.
        date: when this was, UTC.

    Returns:
        ``verdict``; ``keep``: ``bound``, ``unbound`` or None where neither is shown to be better; ``differences``;
        ``void``: what did not count and why; ``key`` and ``date``.
    """
    sides: dict[str, dict[int, Any]] = {side: {} for side in SIDES}
    void = []
    for step, result in zip(steps, results, strict=False):
        try:
            points = read_results([(str(step["label"]), str(result.get("stdout") or ""))]).points
        except ResultError as exc:
            points, why = (), str(exc)
        else:
            why = "; ".join(point.note for point in points if not point.counts) or "it holds no level"
        usable = [point for point in points if point.counts and point.request_rate > 0]
        if usable:
            sides[step["side"]][int(step["round"])] = usable[0]
        else:
            void.append(f"{step['label']}: {why}")
    pairs = [(sides["bound"][n], sides["unbound"][n]) for n in sorted(sides["bound"].keys() & sides["unbound"].keys())]
    differences: tuple[Difference, ...] = compare_points(pairs)
    throughput = next((d for d in differences if d.metric == "requests/s"), None)
    verdict = throughput.verdict if throughput is not None else "inconclusive"
    return {
        "verdict": verdict,
        "keep": KEPT.get(verdict),
        "differences": [to_json(d) for d in differences],
        "void": void,
        "key": key,
        "date": date,
    }


def pinning_files(outcome: Mapping[str, Any], *, for_instance: str) -> list[dict[str, Any]]:
    """Return the local fact that holds the verdict."""
    text = json.dumps({"schema": 1, **outcome}, indent=1, sort_keys=True) + "\n"
    return [
        {"dest": LOCAL_FACTS, "state": "directory", "mode": "0755"},
        {"dest": pinning_path(for_instance), "content": text, "mode": "0644"},
    ]


def pinning_text(outcome: Mapping[str, Any], *, for_instance: str, simulated: bool = False) -> str:
    """Say what was measured and what is kept."""
    lines = []
    for d in outcome["differences"]:
        open_interval = d["low"] is None or d["high"] is None
        interval = "no interval from one pair" if open_interval else f"95 %: {d['low']:+.1%} to {d['high']:+.1%}"
        lines.append(
            f"{d['metric']}: bound {d['a']:.4g}, unbound {d['b']:.4g}, change {d['change']:+.1%} "
            f"({interval}; {d['pairs']} pairs)"
        )
    lines += [f"not counted: {line}" for line in outcome["void"]]
    said = {
        "bound": "bound is faster; the binding stays",
        "unbound": "unbound is faster; the instance is started without binding from now on",
        None: "no measurable difference; the binding stays",
    }
    kept = "inconclusive; the binding stays" if outcome["verdict"] == "inconclusive" else said[outcome["keep"]]
    lines.append(f"{for_instance}: {kept}")
    if simulated:
        lines.append("Simulated hardware: these figures say nothing of a GPU.")
    return "\n".join(lines)
