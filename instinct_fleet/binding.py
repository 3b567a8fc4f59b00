"""Is what runs bound as it was planned? A unit of placement against what ``node_probe`` saw of its processes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from instinct_fleet.findings import finding
from instinct_fleet.model import Finding, Unit, sort_findings
from instinct_fleet.parse.base import format_cpu_list, parse_cpu_list
from instinct_fleet.placement import numactl_options

#: vLLM's own process titles. A worker's rank is in its title: VLLM::Worker_TP1, or VLLM::Worker_PP0_TP1.
WORKER = re.compile(r"VLLM::Worker\w*")
ENGINE = re.compile(r"VLLM::Engine\w*")


def runs(state: Mapping[str, Any] | None) -> bool:
    """Return whether a unit, as ``node_probe`` saw it, runs, is about to, or still ends its requests."""
    return (state or {}).get("ActiveState") in ("active", "activating", "reloading", "deactivating")


def unit_name(unit: Unit) -> str:
    """Return the name of the unit's systemd service."""
    return f"vllm-{unit.instance}.service"


def verify(
    unit: Unit, unit_state: Mapping[str, Any] | None, *, service_user: str = "vllm", service_uid: int | None = None
) -> tuple[Finding, ...]:
    """Compare a running unit with its plan.

    Args:
        unit: the plan.
        unit_state: the unit's entry of ``units`` in a bundle of ``node_probe``; None when it could not be read.
        service_user: the user that the unit runs as, for the messages.
        service_uid: its number; None when not known, then users are not compared.

    Returns:
        Findings, worst first; empty when everything is as planned.
    """
    name = unit_name(unit)
    if unit_state is None:
        return (finding("unit_state_unknown", name, "systemd told nothing of the unit, expected active and enabled"),)
    found = list(_state(name, unit_state))
    if any(f.code in ("unit_absent", "unit_not_active") for f in found):
        return sort_findings(found)
    processes = [p for p in unit_state.get("processes") or () if isinstance(p, Mapping)]
    if not processes:
        found.append(finding("unit_processes_unknown", name, "no process of the unit was read, expected at least one"))
        return sort_findings(found)
    main_pid = str(unit_state.get("MainPID") or "")
    main = next((p for p in processes if str(p.get("pid")) == main_pid), None)
    if main is None:
        text = f"main process {main_pid or 'not told'} is not among those read ({len(processes)})"
        found.append(finding("unit_processes_unknown", name, f"{text}, expected it to be"))
    workers = [p for p in processes if WORKER.search(_title(p))]
    need = unit.tensor_parallel_size * unit.pipeline_parallel_size
    if need > 1 and len(workers) < need:
        text = f"{len(workers)} workers seen, expected {need}, one for each GPU"
        found.append(finding("unit_workers_missing", name, text))
    for process in processes:
        found.extend(_cpus(unit, name, process))
        found.extend(_memory(unit, name, process))
        found.extend(_environment(unit, name, process, is_main=process is main))
        uid = process.get("uid")
        if service_uid is not None and uid != service_uid:
            text = f"{_label(process)} runs as uid {uid}, expected {service_uid} ({service_user})"
            found.append(finding("binding_user", name, text))
    if unit.numa_bind_args:
        found.extend(_worker_nodes(unit, name, workers))
    return sort_findings(found)


def _title(process: Mapping[str, Any]) -> str:
    # The kernel cuts the name after 15 characters, which is just before the rank of a worker.
    return f"{process.get('cmdline') or ''} {process.get('name') or ''}"


def _label(process: Mapping[str, Any]) -> str:
    """Name a process: its vLLM title where it has one, and its number."""
    title = re.search(r"VLLM::\w+", _title(process))
    return f"{title.group(0) if title else process.get('name') or 'process'} (pid {process.get('pid')})"


def _state(name: str, state: Mapping[str, Any]) -> Iterator[Finding]:
    if state.get("LoadState") == "not-found":
        yield finding("unit_absent", name, "systemd has no such unit, expected it loaded")
        return
    active, sub = state.get("ActiveState"), state.get("SubState")
    if active is None:
        yield finding("unit_state_unknown", name, "ActiveState was not told, expected active")
    elif active != "active":
        extra = f", result {state['Result']}" if state.get("Result") not in (None, "", "success") else ""
        yield finding("unit_not_active", name, f"state {active} ({sub}{extra}), expected active (running)")
    enabled = state.get("UnitFileState")
    if not enabled:
        yield finding("unit_state_unknown", name, "UnitFileState was not told, expected enabled")
    elif enabled != "enabled":
        yield finding("unit_not_enabled", name, f"{enabled}, expected enabled")
    if state.get("NeedDaemonReload") == "yes":
        yield finding("unit_needs_reload", name, "NeedDaemonReload is yes, expected no")


def _cpus(unit: Unit, name: str, process: Mapping[str, Any]) -> Iterator[Finding]:
    if not unit.cpus or not (unit.numactl or unit.numa_bind_args):
        return  # nothing was planned
    text = process.get("cpus_allowed")
    try:
        allowed = set(parse_cpu_list(str(text))) if text else set()
    except ValueError:
        allowed = set()
    plan = format_cpu_list(unit.cpus)
    if not allowed:
        yield finding("binding_unknown", name, f"{_label(process)}: CPUs {text or 'not read'}, planned {plan}")
    elif not allowed <= set(unit.cpus):
        yield finding("binding_cpus", name, f"{_label(process)} may run on CPUs {text}, planned {plan}")


#: numactl option -> word in numa_maps.
_POLICIES = {
    "preferred": "prefer",
    "preferred-many": "prefer",
    "membind": "bind",
    "interleave": "interleave",
    "localalloc": "local",
}


def planned_policies(unit: Unit) -> tuple[frozenset[str], frozenset[str]]:
    """Return the memory policies that numa_maps may show: (of server and engine, of workers).

    numa_maps writes ``prefer:0`` (or ``prefer (many):0``), ``bind:0``, ``interleave:0-1`` and ``default``.
    """
    server = {"default"}
    for option, value in numactl_options(unit.numactl[1:]):
        kind = _POLICIES.get(option)
        if kind is not None:
            server = {kind if kind == "local" else f"{kind}:{_nodes(value)}"}
    if not unit.numa_bind_args:
        return frozenset(server), frozenset(server)
    # vLLM binds a worker to the node of its GPU, and the engine to the nodes of all its workers.
    return frozenset(server), frozenset(f"bind:{node}" for node in unit.numa_nodes)


def _nodes(value: str) -> str:
    try:
        return format_cpu_list(parse_cpu_list(value))
    except ValueError:
        return value


def _normal(policy: str) -> str:
    """Write a policy of numa_maps without flags and spellings that differ per kernel."""
    kind, _sep, nodes = str(policy).partition(":")
    kind = kind.split("=")[0].strip()
    kind = {"prefer (many)": "prefer", "preferred": "prefer"}.get(kind, kind)
    return f"{kind}:{_nodes(nodes)}" if nodes else kind


def _memory(unit: Unit, name: str, process: Mapping[str, Any]) -> Iterator[Finding]:
    if not (unit.numactl or unit.numa_bind_args):
        return
    server, worker = planned_policies(unit)
    allowed = server
    if unit.numa_bind_args:
        if WORKER.search(_title(process)):
            allowed = worker
        elif ENGINE.search(_title(process)):
            allowed = server | {f"bind:{format_cpu_list(unit.numa_nodes)}"}
        else:
            allowed = server
    seen = sorted({_normal(p) for p in process.get("memory_policies") or ()})
    plan = " or ".join(sorted(allowed))
    if not seen:
        yield finding("binding_unknown", name, f"{_label(process)}: memory policy not read, planned {plan}")
    elif all(_fits(policy, allowed) for policy in seen):
        return
    elif _narrowed(unit, process) and set(seen) <= allowed | {p.replace("prefer:", "bind:") for p in allowed}:
        text = f"{_label(process)} has memory policy {', '.join(seen)}, planned {plan}: the right nodes, but strictly"
        yield finding("binding_memory_strict", name, text)
    else:
        yield finding("binding_memory", name, f"{_label(process)} has memory policy {', '.join(seen)}, planned {plan}")


def _fits(policy: str, allowed: frozenset[str]) -> bool:
    """Tell whether a policy is among the allowed ones; ``interleave:all`` allows any nodes."""
    return policy in allowed or f"{policy.partition(':')[0]}:all" in allowed


def _narrowed(unit: Unit, process: Mapping[str, Any]) -> bool:
    """Tell whether the process is one that vLLM itself may have bound: a worker or the engine, never the server."""
    return not unit.numa_bind_args and bool(WORKER.search(_title(process)) or ENGINE.search(_title(process)))


def _worker_nodes(unit: Unit, name: str, workers: Sequence[Mapping[str, Any]]) -> Iterator[Finding]:
    """Each worker on the node of its own GPU, by the rank in its title; else the right number on each node."""
    planned = unit.numa_bind_args[2:]
    for process in workers:
        rank = _rank(unit, process)
        if rank is None or rank >= len(planned):
            continue
        seen = sorted({_normal(p) for p in process.get("memory_policies") or ()})
        if seen and seen != [f"bind:{planned[rank]}"]:
            text = f"{_label(process)} has memory policy {', '.join(seen)}, planned bind:{planned[rank]}"
            yield finding("binding_memory", name, f"{text} (the node of GPU {unit.gpus[rank]})")


def _rank(unit: Unit, process: Mapping[str, Any]) -> int | None:
    tensor = re.search(r"_TP(\d+)", _title(process))
    stage = re.search(r"_PP(\d+)", _title(process))
    if tensor is None and stage is None:
        return None
    return int(stage.group(1) if stage else 0) * unit.tensor_parallel_size + int(tensor.group(1) if tensor else 0)


def _environment(unit: Unit, name: str, process: Mapping[str, Any], *, is_main: bool) -> Iterator[Finding]:
    if not process.get("environment_readable"):
        code = "binding_environment_unknown" if is_main else "binding_environment_unreadable"
        text = f"{_label(process)}: environment cannot be read, planned HIP_VISIBLE_DEVICES={unit.hip_visible_devices}"
        yield finding(code, name, text)
        return
    variables = process.get("environment") or {}
    seen = variables.get("HIP_VISIBLE_DEVICES")
    if seen != unit.hip_visible_devices:
        text = (
            f"{_label(process)} has HIP_VISIBLE_DEVICES={seen}" if seen is not None else f"{_label(process)} has none"
        )
        yield finding("binding_devices", name, f"{text}, planned HIP_VISIBLE_DEVICES={unit.hip_visible_devices}")
    for variable, code in (("ROCR_VISIBLE_DEVICES", "binding_rocr"), ("HSA_OVERRIDE_GFX_VERSION", "binding_override")):
        if variable in variables:
            yield finding(code, name, f"{_label(process)} has {variable}={variables[variable]}, expected none")
