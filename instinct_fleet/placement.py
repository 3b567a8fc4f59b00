"""Which instance gets which GPUs of a node, and how it is bound to the node's memory and CPUs.

An instance lies inside one XGMI group, on as few NUMA nodes as can be, on GPUs as close together as can be, and where
several places are equal it takes the one that leaves the larger whole free for others (best fit). The result depends on
what the instances are, not on the order in which they are listed.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from instinct_fleet.findings import finding
from instinct_fleet.instances import Instance, InstancesError, instance_findings, parse_instances
from instinct_fleet.model import Finding, Gpu, Topology, Unit, sort_findings
from instinct_fleet.parse.base import format_cpu_list, parse_cpu_list
from instinct_fleet.policy import all_links, hives, link_seen, pair_name

#: First port of the APIs; vLLM's own default.
API_PORT_BASE = 8000
#: vLLM counts up from VLLM_PORT for its internal sockets. A stride of 100 keeps instances apart that start together
#: (vllm issue 43206: a probed port is taken by the neighbour before it is used).
VLLM_PORT_BASE, VLLM_PORT_STRIDE = 21000, 100
#: First release whose workers can bind themselves (sdists: absent in 0.19.1, there in 0.20.2; vllm PR 38635, 40015).
NUMA_BIND_SINCE = (0, 20)
#: Up to this many subsets are compared one by one; above it (partitioned nodes) GPUs are filled domain by domain.
MAX_SUBSETS = 3000
GIB = 1024**3

#: What AMD's and vLLM's images set and a bare-metal unit must set itself.
BASE_ENVIRONMENT: Mapping[str, str] = {
    # vLLM's ROCm base image; up to a factor of two in RCCL before ROCm 6.4 (rccl issue 1867), harmless later.
    "HSA_NO_SCRATCH_RECLAIM": "1",
    # vLLM's ROCm image: without it VRAM that was exported to another process stays pinned (rocm-libraries issue 6266).
    "HSA_ENABLE_IPC_MODE_LEGACY": "1",
    # vLLM's ROCm image and AMD's vLLM guide for the MI300 series.
    "HIP_FORCE_DEV_KERNARG": "1",
    "SAFETENSORS_FAST_GPU": "1",
    # vLLM's ROCm base image: torch attaches a profiler that hangs at the end of the process (vllm issue 54087).
    "ROCPROFILER_QUEUE_INTERPOSITION": "0",
    # Nothing leaves the node.
    "VLLM_NO_USAGE_STATS": "1",
    # vLLM's 5 s kill workers in the middle of freeing VRAM on ROCm (vllm issue 55632).
    "VLLM_WORKER_SHUTDOWN_TIMEOUT_SECONDS": "30",
}
#: AMD's workload guide: more RCCL channels, MI300X only, and only where several GPUs talk.
MULTI_GPU_ENVIRONMENT: Mapping[str, str] = {"NCCL_MIN_NCHANNELS": "112"}
#: PCI ids of MI300X and its variants, see data/policies.yml.
MI300X_IDS = frozenset({"0x74a1", "0x74a9", "0x74b5", "0x74bd"})


@dataclass(frozen=True)
class Placement:
    """The units by instance name, and what a person should know. An instance that has no unit has an error."""

    units: tuple[Unit, ...]
    findings: tuple[Finding, ...]


def place(
    topology: Topology,
    instances: Iterable[Instance | Mapping[str, Any]],
    *,
    vllm_version: str | None = None,
    port_base: int = API_PORT_BASE,
    vllm_port_base: int = VLLM_PORT_BASE,
    vllm_port_stride: int = VLLM_PORT_STRIDE,
) -> Placement:
    """Give each instance its GPUs, binding, environment and ports.

    Args:
        topology: the node.
        instances: what shall run there.
        vllm_version: release that will run it, as ``0.33.0``; None when the caller does not know.
        port_base: first port for APIs of instances without one.
        vllm_port_base: first internal port.
        vllm_port_stride: internal ports an instance gets.

    Raises:
        InstancesError: the instances themselves are not usable.
    """
    wanted = parse_instances(list(instances))
    node = _Node(topology)
    found: list[Finding] = [f for instance in wanted for f in instance_findings(instance)]
    placed: dict[str, tuple[tuple[int, ...], tuple[str, ...]]] = {}
    free = {gpu.index for gpu in topology.gpus}
    # The most constrained first: named GPUs, then the largest, since small ones fit the gaps that large ones leave.
    for instance in sorted(wanted, key=lambda i: (i.gpus is None, -i.world_size, i.name)):
        choice = _chosen(node, instance, free) if instance.gpus is None else _named(node, instance)
        found.extend(choice.findings)
        if choice.gpus:
            placed[instance.name] = (choice.gpus, choice.reasons)
            free -= set(choice.gpus)
    ports = _ports(wanted, port_base, vllm_port_base, vllm_port_stride)
    units = []
    for instance in wanted:
        if instance.name not in placed:
            continue
        gpus, reasons = placed[instance.name]
        port, vllm_port = ports[instance.name]
        binding = _binding(node, instance, gpus, vllm_version)
        found.extend(binding.findings)
        if any(f.severity == "error" for f in binding.findings):
            continue
        hip = _hip_ids(node, instance, gpus)
        found.extend(hip.findings)
        units.append(
            Unit(
                instance=instance.name,
                gpus=gpus,
                hip_visible_devices=",".join(map(str, hip.ids)),
                numa_nodes=binding.nodes,
                cpus=binding.cpus,
                numactl=binding.numactl,
                numa_bind_args=binding.args,
                env=_environment(node, instance, gpus, hip.ids, vllm_port),
                host=instance.host,
                port=port,
                vllm_port=vllm_port,
                tensor_parallel_size=instance.tensor_parallel_size,
                pipeline_parallel_size=instance.pipeline_parallel_size,
                reasons=(*reasons, *binding.reasons),
            )
        )
    return Placement(units=tuple(units), findings=sort_findings(found))


class _Node:
    """A topology with the look-ups that placement needs."""

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self.gpus: dict[int, Gpu] = {gpu.index: gpu for gpu in topology.gpus}
        self.links = all_links(topology)
        self.hives = hives(topology)
        self.numa = {node.id: node for node in topology.numa}
        self.hive_of = {index: n for n, hive in enumerate(self.hives) for index in hive}

    def numa_of(self, index: int) -> int | None:
        return self.gpus[index].numa_node

    def device_of(self, index: int) -> str:
        """The physical GPU: partitions of one device differ in the function number only."""
        bdf = self.gpus[index].bdf
        return bdf.rsplit(".", 1)[0] if bdf else f"#{index}"

    def xgmi(self, a: int, b: int) -> bool:
        return self.links[min(a, b), max(a, b)].type == "XGMI"

    def weight(self, a: int, b: int) -> int:
        return self.links[min(a, b), max(a, b)].weight or 0

    def nodes(self, gpus: Iterable[int]) -> tuple[int | None, ...]:
        """NUMA nodes in the order in which the GPUs first use them."""
        return tuple(dict.fromkeys(self.numa_of(g) for g in gpus))

    def cpus(self, nodes: Iterable[int] | None = None) -> tuple[int, ...]:
        """CPUs of some NUMA nodes, or of all."""
        wanted = self.numa if nodes is None else nodes
        return tuple(sorted(cpu for n in wanted for cpu in self.numa[n].cpus))

    def bad_pairs(self, gpus: Sequence[int], tensor: int) -> list[tuple[int, int]]:
        """Pairs of one tensor parallel group that XGMI does not connect."""
        groups = [gpus[i : i + tensor] for i in range(0, len(gpus), tensor)]
        return [(a, b) for group in groups for a, b in itertools.combinations(sorted(group), 2) if not self.xgmi(a, b)]


@dataclass(frozen=True)
class _Choice:
    gpus: tuple[int, ...] = ()
    reasons: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()


def _named(node: _Node, instance: Instance) -> _Choice:
    """Take the GPUs that the user names, if the node has them and XGMI joins them."""
    gpus = instance.gpus or ()
    absent = [g for g in gpus if g not in node.gpus]
    if absent:
        has = format_cpu_list(sorted(node.gpus)) or "none"
        text = f"gpus names {', '.join(map(str, absent))}, the node has {has}"
        return _Choice(findings=(finding("placement_gpu_absent", instance.name, text),))
    refused = _refuse(node, instance, gpus)
    if refused:
        return _Choice(findings=refused)
    return _Choice(gpus, (f"GPUs {_list(gpus)} are named by the instance",), _across(node, instance, gpus))


def _refuse(node: _Node, instance: Instance, gpus: Sequence[int]) -> tuple[Finding, ...]:
    """Say why these GPUs cannot serve together, or nothing."""
    bad = node.bad_pairs(gpus, instance.tensor_parallel_size)
    if not bad:
        return ()
    a, b = bad[0]
    link = node.links[a, b]
    code = "placement_across_hives" if _known(node, bad) else "placement_links_unknown"
    text = (
        f"tensor_parallel_size {instance.tensor_parallel_size} on GPUs {_list(gpus)}: {pair_name(a, b)} has "
        f"{link_seen(link)}, expected XGMI between all"
    )
    return (finding(code, instance.name, text),)


def _known(node: _Node, pairs: Iterable[tuple[int, int]]) -> bool:
    return any(node.links[p].type != "UNKNOWN" or (node.links[p].raw_type or "").upper() == "PCIE" for p in pairs)


def _across(node: _Node, instance: Instance, gpus: Sequence[int]) -> tuple[Finding, ...]:
    used = {node.hive_of[g] for g in gpus}
    if len(used) < 2:
        return ()
    text = (
        f"{instance.pipeline_parallel_size} pipeline stages lie in {len(used)} XGMI groups; expected one where it fits"
    )
    return (finding("placement_pipeline_across_hives", instance.name, text),)


def _chosen(node: _Node, instance: Instance, free: set[int]) -> _Choice:
    """Choose GPUs for an instance out of those that are free."""
    size, tensor = instance.world_size, instance.tensor_parallel_size
    if size > len(free):
        text = f"needs {size} GPUs, {len(free)} of {len(node.gpus)} are free ({_list(sorted(free)) or 'none'})"
        return _Choice(findings=(finding("placement_no_room", instance.name, text),))
    best = _best(node, free, size)
    if best is None and instance.pipeline_parallel_size > 1:
        best = _staged(node, free, instance)
    if best is None:
        return _Choice(findings=(_why_not(node, instance, free, tensor),))
    return _Choice(best, _reasons(node, best, free), _across(node, instance, best))


def _why_not(node: _Node, instance: Instance, free: set[int], tensor: int) -> Finding:
    pairs = list(itertools.combinations(sorted(free), 2))
    groups = [sorted(set(hive) & free) for hive in node.hives]
    sizes = ", ".join("{" + _list(g) + "}" for g in groups if g)
    if not _known(node, pairs):
        text = f"needs {tensor} GPUs joined by XGMI, no link between the free GPUs {_list(sorted(free))} is known"
        return finding("placement_links_unknown", instance.name, text)
    broken = [(a, b) for g in groups for a, b in itertools.combinations(g, 2) if not node.xgmi(a, b)]
    hint = f"; {pair_name(*broken[0])} has {link_seen(node.links[broken[0]])}" if broken else ""
    text = f"needs {tensor} GPUs joined by XGMI, free are the groups {sizes}{hint}"
    return finding("placement_across_hives", instance.name, text)


def _best(node: _Node, free: set[int], size: int) -> tuple[int, ...] | None:
    """Return the best set of GPUs that are all joined by XGMI, or None."""
    candidates: set[tuple[int, ...]] = set()
    for hive in node.hives:
        members = [g for g in hive if g in free]
        if len(members) < size:
            continue
        if math.comb(len(members), size) <= MAX_SUBSETS:
            candidates.update(
                c
                for c in itertools.combinations(members, size)
                if all(node.xgmi(a, b) for a, b in itertools.combinations(c, 2))
            )
        else:
            candidates.update(_filled(node, members, size))
    return min(candidates, key=lambda c: _score(node, c, free), default=None)


def _filled(node: _Node, members: Sequence[int], size: int) -> Iterator[tuple[int, ...]]:
    """Build candidates for a node with many partitions: fill NUMA node by node and device by device."""
    nodes = list(dict.fromkeys(node.numa_of(g) for g in members))
    per_node = {n: [g for g in members if node.numa_of(g) == n] for n in nodes}
    devices = list(dict.fromkeys(node.device_of(g) for g in members))
    per_device = {d: [g for g in members if node.device_of(g) == d] for d in devices}

    def order(scope: Sequence[int]) -> list[int]:
        """Devices that hold the whole instance first, the fullest of them; else the emptiest first."""
        inside = {d: [g for g in per_device[d] if g in scope] for d in devices}
        ranked = sorted(
            (d for d in devices if inside[d]),
            key=lambda d: (len(inside[d]) < size, len(inside[d]) if len(inside[d]) >= size else -len(inside[d])),
        )
        return [g for d in ranked for g in inside[d]]

    scopes: list[Sequence[int]] = [per_node[n] for n in nodes]
    # Over several nodes: the fullest first, so that as few as can be are used.
    scopes.append([g for n in sorted(nodes, key=lambda n: -len(per_node[n])) for g in order(per_node[n])])
    for number, scope in enumerate(scopes):
        chosen: list[int] = []
        for gpu in order(scope) if number < len(nodes) else scope:
            if len(chosen) < size and all(node.xgmi(gpu, other) for other in chosen):
                chosen.append(gpu)
        if len(chosen) == size:
            yield tuple(sorted(chosen))


def _score(node: _Node, gpus: tuple[int, ...], free: set[int]) -> tuple[Any, ...]:
    """Smaller is better: few NUMA nodes, few devices, short links, little left over where it lies, low numbers."""
    used = set(node.nodes(gpus))
    hive = node.hive_of[gpus[0]]
    rest = free - set(gpus)
    return (
        # A GPU whose node is not known counts as a node of its own: known beats unknown.
        len(used) + (None in used),
        len({node.device_of(g) for g in gpus}),
        sum(node.weight(a, b) for a, b in itertools.combinations(gpus, 2)),
        sum(1 for g in rest if node.numa_of(g) in used and node.hive_of[g] == hive),
        sum(1 for g in rest if node.hive_of[g] == hive),
        # Of a device that is used in part, as little as can be is left over.
        sum(1 for g in rest if node.device_of(g) in {node.device_of(x) for x in gpus}),
        gpus,
    )


def _staged(node: _Node, free: set[int], instance: Instance) -> tuple[int, ...] | None:
    """Choose stage by stage where no XGMI group holds the whole pipeline."""
    left, chosen = set(free), []
    for _stage in range(instance.pipeline_parallel_size):
        stage = _best(node, left, instance.tensor_parallel_size)
        if stage is None:
            return None
        chosen.append(stage)
        left -= set(stage)
    return tuple(g for stage in sorted(chosen) for g in stage)


def _reasons(node: _Node, gpus: tuple[int, ...], free: set[int]) -> tuple[str, ...]:
    """Say why these GPUs."""
    reasons = []
    nodes = node.nodes(gpus)
    if len(gpus) == 1:
        reasons.append(f"GPU {gpus[0]}: one GPU needs no link")
    elif len({node.hive_of[g] for g in gpus}) == 1:
        weights = sorted({node.weight(a, b) for a, b in itertools.combinations(sorted(gpus), 2)})
        reasons.append(f"GPUs {_list(gpus)}: all pairs are XGMI (weight {', '.join(map(str, weights))})")
    else:
        reasons.append(f"GPUs {_list(gpus)}: each pipeline stage lies in one XGMI group")
    if None in nodes:
        reasons.append("the NUMA node of at least one of them is not known")
    elif len(nodes) == 1:
        left = sum(1 for g in free if node.numa_of(g) == nodes[0]) - len(gpus)
        after = f"{left} GPUs stay free there" if left else "which they fill"
        reasons.append(f"all on NUMA node {nodes[0]}, {after}")
    else:
        room = max(sum(1 for g in free if node.numa_of(g) == n) for n in nodes)
        reasons.append(
            f"on NUMA nodes {_list([n for n in nodes if n is not None])}, since no node has {len(gpus)} free GPUs "
            f"in one XGMI group (at most {room})"
        )
    devices = {node.device_of(g) for g in gpus}
    if len(devices) < len(gpus):
        reasons.append(f"on {len(devices)} physical GPUs, as few as can be")
    return tuple(reasons)


# --- binding ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Binding:
    nodes: tuple[int, ...] = ()
    cpus: tuple[int, ...] = ()
    numactl: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()


def _binding(node: _Node, instance: Instance, gpus: Sequence[int], vllm_version: str | None) -> _Binding:
    """Decide the numactl prefix and vLLM's own binding."""
    all_cpus = node.cpus()
    per_gpu = [node.numa_of(g) for g in gpus]
    nodes = tuple(n for n in dict.fromkeys(per_gpu) if n is not None)
    unknown = [g for g, n in zip(gpus, per_gpu, strict=True) if n is None]
    foreign = [n for n in nodes if n not in node.numa or not node.numa[n].cpus]
    if instance.numactl is not None:
        return _own_numactl(node, instance, nodes, unknown, all_cpus)
    if instance.numa == "off":
        return _Binding(nodes, all_cpus, reasons=("not bound, since the instance says numa: off",))
    if unknown or foreign:
        seen = (
            f"NUMA node of GPU {_list(unknown)} is not known"
            if unknown
            else f"NUMA node {_list(foreign)} has no CPUs on this host"
        )
        text = f"{seen}, expected a node with CPUs; the unit is not bound"
        return _Binding(
            nodes,
            all_cpus,
            reasons=("not bound: " + seen,),
            findings=(finding("placement_numa_unknown", instance.name, text),),
        )
    if len(nodes) == 1:
        return _one_node(node, instance, nodes[0])
    return _several_nodes(node, instance, [n for n in per_gpu if n is not None], vllm_version)


def _one_node(node: _Node, instance: Instance, numa: int) -> _Binding:
    memory, found = f"--preferred={numa}", []
    reason = f"bound to NUMA node {numa}: CPUs strictly, memory by preference, so that a full node does not kill it"
    if instance.strict_membind:
        total, need = node.numa[numa].mem_bytes, instance.host_memory_gib
        if need is not None and total is not None and need * GIB <= total:
            memory = f"--membind={numa}"
            reason = f"bound strictly to NUMA node {numa}: {need:g} GiB needed, the node has {total / GIB:.0f}"
        else:
            has = f"{total / GIB:.0f} GiB" if total is not None else "an unknown amount"
            needs = f"{need:g} GiB" if need is not None else "an unknown amount (host_memory_gib is not set)"
            text = (
                f"strict_membind asked for; the instance needs {needs}, NUMA node {numa} has {has}; --preferred is used"
            )
            found.append(finding("placement_membind_not_used", instance.name, text))
    return _Binding(
        nodes=(numa,),
        cpus=node.cpus((numa,)),
        numactl=("numactl", f"--cpunodebind={numa}", memory),
        reasons=(reason,),
        findings=tuple(found),
    )


def _several_nodes(node: _Node, instance: Instance, per_gpu: list[int], vllm_version: str | None) -> _Binding:
    nodes = tuple(dict.fromkeys(per_gpu))
    found = [
        finding(
            "placement_spans_numa",
            instance.name,
            f"its GPUs are on NUMA nodes {_list(nodes)}, expected one node where it fits",
        )
    ]
    if instance.strict_membind:
        text = (
            f"strict_membind asked for, but its GPUs are on NUMA nodes {_list(nodes)}; vLLM binds each worker strictly"
        )
        found.append(finding("placement_membind_not_used", instance.name, text))
    version = version_tuple(vllm_version)
    if vllm_version is not None and (version is None or version < NUMA_BIND_SINCE):
        text = f"vLLM {vllm_version} on NUMA nodes {_list(nodes)}, expected 0.20 or later; the unit is not bound"
        found.append(finding("placement_vllm_too_old", instance.name, text))
        return _Binding(
            nodes,
            node.cpus(),
            reasons=(f"not bound: vLLM {vllm_version} cannot bind its workers one by one",),
            findings=tuple(found),
        )
    if vllm_version is None:
        text = "vLLM's version was not told; --numa-bind is planned, which needs 0.20 or later"
        found.append(finding("placement_vllm_version_assumed", instance.name, text))
    return _Binding(
        nodes=nodes,
        cpus=node.cpus(nodes),
        # The nodes are named, so vLLM does not look at the affinity it starts with, which numactl leaves open here.
        numactl=("numactl", f"--interleave={','.join(map(str, sorted(nodes)))}"),
        args=("--numa-bind", "--numa-bind-nodes", *map(str, per_gpu)),
        reasons=(
            f"spans NUMA nodes {_list(nodes)}: the server interleaves its memory, each worker is bound to the node of "
            "its GPU",
        ),
        findings=tuple(found),
    )


#: numactl options that take CPUs or memory away -> whether the value lists nodes.
_RESTRICTING = {"cpunodebind": True, "membind": True, "physcpubind": False}
_SHORT = {
    "N": "cpunodebind",
    "m": "membind",
    "C": "physcpubind",
    "i": "interleave",
    "p": "preferred",
    "P": "preferred-many",
    "l": "localalloc",
}


def _own_numactl(
    node: _Node, instance: Instance, nodes: tuple[int, ...], unknown: list[int], all_cpus: tuple[int, ...]
) -> _Binding:
    """Use numactl options of the user's own, unless they lock the workers of another socket out."""
    argv = instance.numactl or ()
    allowed, cpus = set(node.numa), set(all_cpus)
    try:
        for option, value in numactl_options(argv):
            if option not in _RESTRICTING:
                continue
            if _RESTRICTING[option]:
                named = set(parse_cpu_list(value)) if value != "all" else set(node.numa)
                allowed &= named
                if option == "cpunodebind":
                    cpus &= {cpu for n in named if n in node.numa for cpu in node.numa[n].cpus}
            elif value != "all":
                cpus &= set(parse_cpu_list(value))
                allowed &= {n.id for n in node.numa.values() if set(n.cpus) & cpus}
    except ValueError as exc:
        text = f"numactl is {' '.join(argv)!r}: {exc}, expected numbers of nodes or CPUs"
        return _Binding(
            findings=(finding("placement_numactl_refused", instance.name, text, remedy="Correct `numactl`."),)
        )
    shut_out = [n for n in nodes if n not in allowed]
    if shut_out:
        text = (
            f"numactl {' '.join(argv)} around GPUs on NUMA nodes {_list(nodes)}: the workers of node "
            f"{_list(shut_out)} would have neither CPUs nor memory near their GPUs; expected --interleave for the "
            "server and --numa-bind for each worker, as placement plans it"
        )
        return _Binding(findings=(finding("placement_numactl_refused", instance.name, text),))
    found: tuple[Finding, ...] = ()
    if unknown:
        text = f"NUMA node of GPU {_list(unknown)} is not known; numactl of the instance is used unchecked"
        found = (finding("placement_numa_unknown", instance.name, text),)
    return _Binding(
        nodes=nodes,
        cpus=tuple(sorted(cpus)),
        numactl=("numactl", *argv) if argv else (),
        reasons=("numactl options are the instance's own",),
        findings=found,
    )


def numactl_options(argv: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield (long option without dashes, value) of numactl's arguments; ``+`` before numbers is dropped."""
    words = iter(argv)
    for word in words:
        name, sep, value = word.partition("=")
        if word.startswith("--"):
            option = name[2:]
        elif len(word) >= 2 and word[0] == "-" and word[1] in _SHORT:
            option, value, sep = _SHORT[word[1]], word[2:].lstrip("="), "=" if len(word) > 2 else ""
        else:
            continue
        if option in ("localalloc", "all"):
            yield option, ""
        else:
            yield option, (value if sep else next(words, "")).lstrip("+")


def version_tuple(version: str | None) -> tuple[int, ...] | None:
    """Return the numbers of ``0.33.0+rocm723`` as (0, 33, 0), None for what is no version."""
    match = re.match(r"v?(\d{1,9}(?:\.\d{1,9})*)(?!\d)", version.strip()) if version else None
    return tuple(int(n) for n in match.group(1).split(".")) if match else None


# --- environment and ports -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _HipIds:
    ids: tuple[int, ...]
    findings: tuple[Finding, ...] = ()


def _hip_ids(node: _Node, instance: Instance, gpus: Sequence[int]) -> _HipIds:
    """Return what HIP_VISIBLE_DEVICES takes. Known numbers are not mixed with assumed ones: they could collide."""
    known = [node.gpus[g].hip_id for g in gpus]
    ids = tuple(h for h in known if h is not None)
    if len(ids) == len(gpus) and len(set(ids)) == len(ids):
        return _HipIds(ids)
    text = f"HIP numbers of GPUs {_list(gpus)} are not known; assumed to be the same numbers"
    return _HipIds(tuple(gpus), (finding("hip_id_assumed", instance.name, text),))


def _environment(
    node: _Node, instance: Instance, gpus: Sequence[int], hip_ids: Sequence[int], vllm_port: int
) -> dict[str, str]:
    env = dict(BASE_ENVIRONMENT)
    if len(gpus) > 1 and all(node.gpus[g].device_id in MI300X_IDS for g in gpus):
        env.update(MULTI_GPU_ENVIRONMENT)
    env.update(instance.environment)
    env["HIP_VISIBLE_DEVICES"] = ",".join(map(str, hip_ids))
    env["VLLM_PORT"] = str(vllm_port)
    return dict(sorted(env.items()))


def _ports(
    instances: Sequence[Instance], port_base: int, vllm_port_base: int, stride: int
) -> dict[str, tuple[int, int]]:
    """Return (API port, first internal port) of each instance; no two ranges touch.

    Raises:
        InstancesError: the ports run out of the 65535 there are.
    """
    taken = {i.port for i in instances if i.port is not None}
    internal: list[int] = []
    start = vllm_port_base
    for _instance in instances:
        while any(start <= port < start + stride for port in taken):
            start += stride
        internal.append(start)
        start += stride
    ranges = [range(s, s + stride) for s in internal]
    result: dict[str, tuple[int, int]] = {}
    port = port_base
    for instance, first in zip(instances, internal, strict=True):
        api = instance.port
        if api is None:
            while port in taken or any(port in r for r in ranges):
                port += 1
            api = port
            taken.add(api)
        if max(api, first + stride - 1) > 65535:
            raise InstancesError(f"instance {instance.name!r}: no port is left below 65536, lower the bases")
        result[instance.name] = (api, first)
    return result


def _list(numbers: Iterable[int]) -> str:
    return ",".join(str(n) for n in numbers)
