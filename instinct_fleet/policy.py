"""Is this node fit to serve? Evidence x policy -> findings.

Policies are data (``data/policies.yml``). A rule names the aspects it needs. Where none of the sources collected one,
that is ``not_collected``: for information in a single capture, which is judged by what its tool can show, and unknown
in a full bundle. A fact that was asked for and is N/A is a finding of its own, never a pass.

The facts that the rules read are those that :mod:`instinct_fleet.parse.merge` describes.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from instinct_fleet.findings import CODES, finding
from instinct_fleet.model import Finding, Gpu, Link, Severity, Topology, sort_findings
from instinct_fleet.parse import rccl
from instinct_fleet.parse.base import Aspect, Evidence, format_cpu_list
from instinct_fleet.validation import explain, nearest, plain

#: More pairs than this with one and the same finding are told in one line.
MANY_PAIRS = 12
MIB, GIB = 1024**2, 1024**3


class PolicyError(ValueError):
    """No such policy, or an override that does not fit; the text says what was seen and what is allowed."""


class PcieLink(BaseModel):
    """The PCIe link that a GPU must have: transfer rate in GT/s and lanes."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    speed_gts: float = Field(gt=0)
    width: int = Field(gt=0)


class Policy(BaseModel):
    """What a node must look like. The keys are explained at the head of ``data/policies.yml``."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    name: str = ""
    title: str
    device_ids: tuple[str, ...]
    arch: str
    physical_gpus: int = Field(ge=1)
    hive_size: int = Field(ge=1)
    partitions: Mapping[str, int]
    weights: Mapping[str, tuple[int, ...]] = {}
    compute_partition: str = "SPX"
    memory_partition: str | None = "NPS1"
    numa_nodes: int | None = None
    # AMD's BIOS tables for the MI300 series ask for NPS1.
    nodes_per_socket: int | None = 1
    # AMD's acceptance guide (bios-settings) has SMT off, many hosts come with it on: judged where it is declared.
    smt: bool | None = None
    pcie: PcieLink | None = None
    iommu_passthrough: bool = True
    cmdline_recommended: tuple[str, ...] = ()
    # What the driver itself holds on an idle GPU is a few hundred MiB; a stuck worker holds GiB.
    vram_idle_max_mib: int = Field(default=2048, ge=0)
    #: Aspects that may be missing from a full bundle: then they are a warning, not unknown.
    optional: tuple[Aspect, ...] = ()
    severity: Mapping[str, Severity] = {}

    @model_validator(mode="after")
    def _consistent(self) -> Policy:
        if self.compute_partition not in self.partitions:
            raise ValueError(
                f"compute_partition is {self.compute_partition!r}, this model has {', '.join(sorted(self.partitions))}"
            )
        if self.physical_gpus % self.hive_size:
            raise ValueError(f"physical_gpus {self.physical_gpus} is no multiple of hive_size {self.hive_size}")
        for code in self.severity:
            if code not in CODES:
                raise ValueError(f"severity: no finding has the code {code!r}{nearest(code, CODES)}")
        return self

    @property
    def per_gpu(self) -> int:
        """Logical GPUs per physical GPU in the declared mode."""
        return self.partitions[self.compute_partition]

    @property
    def count(self) -> int:
        """Logical GPUs that the node must show."""
        return self.physical_gpus * self.per_gpu


@cache
def policies() -> Mapping[str, Policy]:
    """Return the shipped policies by name, in the order of the file."""
    text = resources.files("instinct_fleet.data").joinpath("policies.yml").read_text("utf-8")
    document = yaml.safe_load(text)
    return {name: Policy.model_validate({**entry, "name": name}) for name, entry in document["policies"].items()}


def load_policy(name: str, overrides: Mapping[str, Any] | None = None) -> Policy:
    """Return a policy. ``name`` may carry the declared modes: ``mi300x_8/CPX`` or ``mi300x_8/CPX/NPS4``.

    Raises:
        PolicyError: no such policy, or an override that the policy's model refuses.
    """
    base, *modes = str(name).split("/")
    if base not in policies():
        raise PolicyError(
            f"policy: there is no policy {base!r}{nearest(base, policies())}; expected one of {', '.join(policies())}"
        )
    if len(modes) > 2:
        raise PolicyError(f"policy: got {name!r}; expected <policy>[/<compute mode>[/<memory mode>]]")
    declared = dict(zip(("compute_partition", "memory_partition"), (m.upper() for m in modes), strict=False))
    try:
        return Policy.model_validate({**policies()[base].model_dump(), **declared, **plain(overrides or {})})
    except ValidationError as exc:
        raise PolicyError(f"policy {name}: {explain(exc, Policy.model_fields)}") from exc


def guess(evidence: Evidence) -> str | None:
    """Name the policy that the device ids (and where known the partition mode) speak for, or None."""
    gpus = evidence.topology.gpus
    ids = Counter(gpu.device_id for gpu in gpus if gpu.device_id)
    for name, policy in policies().items():
        if any(device in policy.device_ids for device, _count in ids.most_common(1)):
            modes = {gpu.partition.compute for gpu in gpus}
            mode = modes.pop() if len(modes) == 1 else None
            return f"{name}/{mode}" if mode in policy.partitions and mode != policy.compute_partition else name
    return None


def evaluate(evidence: Evidence, *, policy: str, overrides: Mapping[str, Any] | None = None) -> tuple[Finding, ...]:
    """Judge a node by a policy and return all findings, worst first; those of the collection included.

    Args:
        evidence: what :func:`instinct_fleet.parse.merge.merge` made of the sources.
        policy: name, see :func:`load_policy`.
        overrides: values of :class:`Policy` that differ for this host.

    Raises:
        PolicyError: no such policy, or an override that does not fit.
    """
    rules = load_policy(policy, overrides)
    found: list[Finding] = []
    waived: dict[Aspect, Severity] = dict.fromkeys(rules.optional, "warning")
    absent: dict[Aspect, str] = {}
    for rule in RULES:
        if not rule.applies(rules):
            waived |= dict.fromkeys(rule.needs, "info")
            continue
        missing = [aspect for aspect in rule.needs if aspect not in evidence.collects]
        if missing:
            absent.setdefault(missing[0], rule.why)
        else:
            found.extend(_grouped(rule.judge(evidence, rules)))
    for aspect, why in absent.items():
        found.extend(_not_collected(evidence, rules, aspect, why))
    if evidence.simulated:
        found.append(
            finding("simulated_hardware", evidence.subject, "simulated hardware: the GPUs of this node are replayed")
        )
    found.extend(evidence.findings)
    return sort_findings([_with_severity(_waive(f, waived), rules) for f in found])


def _grouped(findings: Iterable[Finding]) -> Iterator[Finding]:
    """Yield findings, three or more GPUs with one and the same told in one."""
    groups: dict[tuple[str, str, str], list[Finding]] = {}
    for item in findings:
        groups.setdefault((item.code, item.severity, item.message), []).append(item)
    for group in groups.values():
        numbers = [int(item.subject[3:]) for item in group if re.fullmatch(r"GPU\d+", item.subject)]
        if len(numbers) == len(group) > 2:
            yield replace(group[0], subject=f"GPUs {format_cpu_list(numbers)}")
        else:
            yield from group


#: Aspect -> (findings that say it is not known, kinds of readings that only serve it). Where the policy makes the
#: aspect optional their `unknown` is a warning; where the model does not have it, it is for information.
UNKNOWN_OF: Mapping[Aspect, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "arch": (("gpu_arch_unknown",), ()),
    "device_id": (("gpu_model_unknown",), ()),
    "link_access": (("link_access_unknown",), ()),
    "link_status": (("xgmi_status_unknown",), ("amd-smi xgmi", "amd-smi xgmi status")),
    "ecc": (("xgmi_errors_unknown",), ("amd-smi metric",)),
    "gpu_numa": (("gpu_numa_unknown",), ()),
    "numa_nodes": (("numa_nodes_unknown",), ()),
    "partition": (("partition_unknown", "collect_partition_unknown"), ("amd-smi partition",)),
    "pcie_link": (("pcie_link_unknown",), ("lspci link",)),
    "vram": (("vram_unknown",), ()),
    "access": (("device_access_unknown",), ()),
}


def _waive(item: Finding, waived: Mapping[Aspect, Severity]) -> Finding:
    """Lower what is unknown of an aspect that this node need not show."""
    if item.severity != "unknown":
        return item
    for aspect, severity in waived.items():
        codes, kinds = UNKNOWN_OF.get(aspect, ((), ()))
        if item.code in codes or (item.code == "collect_partial" and item.subject in kinds):
            return replace(item, severity=severity)
    return item


def _with_severity(item: Finding, policy: Policy) -> Finding:
    severity = policy.severity.get(item.code)
    if severity is None or severity == item.severity:
        return item
    return replace(item, severity=severity)


#: Aspect -> (what it is called, the command that shows it).
ASPECTS: Mapping[str, tuple[str, str]] = {
    "gpu_count": ("the number of GPUs", "amd-smi list"),
    "device_id": ("the GPUs' device ids", "amd-smi static --asic --json"),
    "arch": ("the GPUs' gfx targets", "rocminfo"),
    "link_type": ("the link types", "amd-smi topology --json"),
    "link_access": ("peer access", "amd-smi topology --json"),
    "link_weight": ("the link weights", "amd-smi topology --json"),
    "link_bandwidth": ("the link bandwidths", "amd-smi topology --json"),
    "link_status": ("the XGMI link status", "amd-smi xgmi -l"),
    "ecc": ("the XGMI error counters", "amd-smi metric --ecc --ecc-blocks --json"),
    "gpu_numa": ("the GPUs' NUMA nodes", "cat /sys/bus/pci/devices/*/numa_node"),
    "numa_nodes": ("the host's NUMA nodes", "numactl -H"),
    "partition": ("the partition modes", "amd-smi partition --json"),
    "pcie_link": ("the PCIe links", "lspci -D -vv -d 1002:"),
    "pci_tree": ("the PCI tree", "lspci -D -PP -d 1002:"),
    "vram": ("VRAM use", "amd-smi metric --mem-usage --json"),
    "driver": ("the driver", "cat /sys/module/amdgpu/initstate"),
    "cmdline": ("the kernel command line", "cat /proc/cmdline"),
    "sysctl": ("the sysctls", "sysctl kernel.numa_balancing"),
    "access": ("the service user's rights", "ls -l /dev/kfd /dev/dri"),
    "environment": ("the system's environment files", "grep -r VISIBLE_DEVICES /etc/environment /etc/profile.d"),
    "busbw": ("the bus bandwidth", "all_reduce_perf -b 8 -e 8G -f 2"),
}


def _not_collected(evidence: Evidence, policy: Policy, aspect: Aspect, why: str) -> Iterator[Finding]:
    if aspect == "busbw" or (evidence.whole and aspect in ("link_weight", "link_bandwidth")):
        return  # measured by role rccl_check, or advisory: neither is missing from a bundle
    what, command = ASPECTS[aspect]
    severity: Severity = "info"
    if evidence.whole:
        severity = "warning" if aspect in policy.optional else "unknown"
    tools = ", ".join(sorted({r.tool if evidence.whole else r.kind for r in evidence.readings})) or "nothing"
    yield finding(
        "not_collected",
        evidence.subject,
        f"{what} not collected ({why}); read were: {tools}",
        severity=severity,
        remedy=f"Run `{command}`, or collect the node with `node_probe`.",
    )


# --- names ---------------------------------------------------------------------------------------------------------


def gpu_name(index: int) -> str:
    """Return how a GPU is called in findings."""
    return f"GPU{index}"


def pair_name(a: int, b: int) -> str:
    """Return how a pair of GPUs is called in findings."""
    return f"GPU{min(a, b)}-GPU{max(a, b)}"


def _at(topology: Topology, index: int) -> str:
    gpu = next((g for g in topology.gpus if g.index == index), None)
    return f"GPU{index} ({gpu.bdf})" if gpu and gpu.bdf else f"GPU{index}"


def _pairs(
    code: str, topology: Topology, pairs: list[tuple[int, int]], seen: Callable[[int, int], str], expected: str
) -> Iterator[Finding]:
    """One finding a pair, or one for all where they are many."""
    if len(pairs) > MANY_PAIRS:
        words = Counter(seen(a, b) for a, b in pairs)
        first = ", ".join(pair_name(a, b) for a, b in pairs[:4])
        yield finding(
            code,
            f"{len(pairs)} pairs",
            f"{', '.join(f'{w} ({n} pairs)' for w, n in sorted(words.items()))}; expected {expected}; "
            f"first {first}, last {pair_name(*pairs[-1])}",
        )
        return
    for a, b in pairs:
        yield finding(
            code, pair_name(a, b), f"{_at(topology, a)} and {_at(topology, b)}: {seen(a, b)}, expected {expected}"
        )


def all_links(topology: Topology) -> dict[tuple[int, int], Link]:
    """Return the link of every pair of GPUs, UNKNOWN where the sources have none."""
    known = {(link.a, link.b): link for link in topology.links}
    indices = sorted(gpu.index for gpu in topology.gpus)
    return {(a, b): known.get((a, b)) or Link(a, b, "UNKNOWN") for a, b in itertools.combinations(indices, 2)}


def is_pcie(link: Link) -> bool:
    """Tell whether the pair is known to go over PCIe, with or without its class."""
    return link.type in ("PIX", "PXB", "PHB", "NODE", "SYS") or (link.raw_type or "").upper().startswith("PCIE")


def link_seen(link: Link) -> str:
    """Say what was read of a link."""
    if link.type == "UNKNOWN" and not is_pcie(link):
        return f"link type {link.raw_type or 'not shown'}"
    name = link.raw_type or link.type
    details: list[str] = [link.type] if link.type not in ("UNKNOWN", name) else []
    if link.weight is not None:
        details.append(f"weight {link.weight}")
    if link.hops is not None:
        details.append(f"{link.hops} hops" if link.hops != 1 else "1 hop")
    return f"link type {name}" + (f" ({', '.join(details)})" if details else "")


def hives(topology: Topology) -> tuple[tuple[int, ...], ...]:
    """Return the groups of GPUs that XGMI connects, each in order, sorted by their first GPU."""
    group = {gpu.index: {gpu.index} for gpu in topology.gpus}
    for (a, b), link in all_links(topology).items():
        if link.type == "XGMI" and group[a] is not group[b]:
            group[a] |= group[b]
            for member in group[b]:
                group[member] = group[a]
    return tuple(sorted({tuple(sorted(members)) for members in group.values()}))


# --- rules ---------------------------------------------------------------------------------------------------------


def _gpu_count(e: Evidence, p: Policy) -> Iterator[Finding]:
    seen = len(e.topology.gpus)
    if seen == p.count:
        return
    expected = f"{p.count} ({p.physical_gpus} physical x {p.per_gpu} in {p.compute_partition})"
    if p.per_gpu > 1 and seen == p.count - 1:
        yield finding("gpu_partition_missing", e.subject, f"{seen} GPUs seen, expected {expected}")
        return
    known = ", ".join(gpu.bdf for gpu in e.topology.gpus if gpu.bdf)
    where = f"; seen at {known}" if known and seen < p.count <= 16 else ""
    yield finding("gpu_count", e.subject, f"{seen} GPUs seen, expected {expected}{where}")


def _gpu_model(e: Evidence, p: Policy) -> Iterator[Finding]:
    for gpu in e.topology.gpus:
        name = gpu_name(gpu.index)
        if gpu.device_id is None:
            yield finding("gpu_model_unknown", name, f"device id not known, expected {' or '.join(p.device_ids)}")
        elif gpu.device_id not in p.device_ids:
            yield finding("gpu_model", name, f"device id {gpu.device_id}, expected {' or '.join(p.device_ids)}")


def _gpu_arch(e: Evidence, p: Policy) -> Iterator[Finding]:
    for gpu in e.topology.gpus:
        name = gpu_name(gpu.index)
        if gpu.arch is None:
            yield finding("gpu_arch_unknown", name, f"gfx target not known, expected {p.arch}")
        elif gpu.arch != p.arch:
            yield finding("gpu_arch", name, f"gfx target {gpu.arch}, expected {p.arch}")


def _links(e: Evidence, p: Policy) -> Iterator[Finding]:
    links = all_links(e.topology)
    unknown = [pair for pair, link in links.items() if link.type == "UNKNOWN" and not is_pcie(link)]
    pcie = [pair for pair, link in links.items() if is_pcie(link)]

    def seen(a: int, b: int) -> str:
        return link_seen(links[a, b])

    yield from _pairs("link_unknown", e.topology, unknown, seen, "a link type that was read")
    if p.hive_size == p.physical_gpus:
        yield from _pairs("link_not_xgmi", e.topology, pcie, seen, "XGMI")
        return
    # Several groups: what must hold is their shape; a pair inside a group must be XGMI.
    size = p.hive_size * p.per_gpu
    groups = hives(e.topology)
    inside = [(a, b) for a, b in pcie if any(a in g and b in g for g in groups)]
    yield from _pairs("link_not_xgmi", e.topology, inside, seen, f"XGMI inside a group of {size}")
    wrong = [g for g in groups if len(g) != size]
    if wrong and not unknown and len(e.topology.gpus) == p.count:
        shape = ", ".join("{" + ",".join(str(i) for i in g) + "}" for g in groups)
        yield finding("hive_shape", e.subject, f"XGMI groups {shape}, expected {p.count // size} groups of {size}")


def _access(e: Evidence, _p: Policy) -> Iterator[Finding]:
    links = all_links(e.topology)
    denied = [pair for pair, link in links.items() if link.accessible is False]
    unknown = [pair for pair, link in links.items() if link.accessible is None]
    yield from _pairs("link_not_accessible", e.topology, denied, lambda _a, _b: "no peer access", "peer access")
    yield from _pairs("link_access_unknown", e.topology, unknown, lambda _a, _b: "peer access not known", "peer access")


def _weights(e: Evidence, p: Policy) -> Iterator[Finding]:
    usual = p.weights.get(p.compute_partition, ())
    odd: dict[int, list[tuple[int, int]]] = {}
    for pair, link in all_links(e.topology).items():
        if link.type == "XGMI" and link.weight is not None and usual and link.weight not in usual:
            odd.setdefault(link.weight, []).append(pair)
    for weight, pairs in sorted(odd.items()):
        yield finding(
            "link_weight",
            f"{len(pairs)} pairs" if len(pairs) > 1 else pair_name(*pairs[0]),
            f"XGMI weight {weight}, usual on this model: {', '.join(map(str, usual))}; first {pair_name(*pairs[0])}",
        )
    if any(link.weight == 0 for link in all_links(e.topology).values()):
        yield finding(
            "link_weight",
            e.subject,
            f"weight 0 shown, as ROCm 7.0 does on the MI350 series; usual is {', '.join(str(w) for w in usual if w)}; "
            "it gates nothing",
            severity="warning",
        )


def _bandwidths(e: Evidence, _p: Policy) -> Iterator[Finding]:
    zero = [
        pair
        for pair, link in all_links(e.topology).items()
        if link.type == "XGMI" and link.bandwidth_mbps is not None and link.bandwidth_mbps[1] == 0
    ]
    xgmi = sum(link.type == "XGMI" for link in all_links(e.topology).values())
    if zero:
        # Between partitions of different devices 0-0 is how it is; everywhere it means that the release cannot tell.
        yield finding(
            "link_bandwidth",
            f"{len(zero)} pairs",
            f"bandwidth 0-0 shown for {len(zero)} of {xgmi} XGMI pairs, first {pair_name(*zero[0])}; it gates nothing",
            severity="warning" if len(zero) == xgmi else "info",
        )


def _link_status(e: Evidence, _p: Policy) -> Iterator[Finding]:
    status: Mapping[int, tuple[str | None, ...]] = e.facts.get("link_status", {})
    for gpu in e.topology.gpus:
        ports = status.get(gpu.index, ())
        name = gpu_name(gpu.index)
        down = [str(n) for n, port in enumerate(ports) if port == "D"]
        if down:
            yield finding(
                "xgmi_link_down", name, f"XGMI link {', '.join(down)} of {len(ports)} is D (down), expected U"
            )
        if not ports or any(port not in ("U", "D", "X") for port in ports) or set(ports) == {"X"}:
            shown = " ".join(port or "N/A" for port in ports) or "nothing"
            yield finding("xgmi_status_unknown", name, f"XGMI link status {shown}, expected U (and X for itself)")


def _ecc(e: Evidence, _p: Policy) -> Iterator[Finding]:
    ecc: Mapping[int, Mapping[str, int | None]] = e.facts.get("ecc", {})
    for gpu in e.topology.gpus:
        name = gpu_name(gpu.index)
        counts = ecc.get(gpu.index)
        hard = counts.get("uncorrectable") if counts else None
        soft = counts.get("correctable") if counts else None
        if hard:
            yield finding("xgmi_errors_uncorrectable", name, f"XGMI_WAFL uncorrectable errors {hard}, expected 0")
        if soft:
            yield finding("xgmi_errors_correctable", name, f"XGMI_WAFL correctable errors {soft}, expected 0")
        # The counters of a GPU's partitions are on its first one; N/A on the others is how it is.
        if (hard is None or soft is None) and not _later_partition(gpu):
            yield finding("xgmi_errors_unknown", name, "XGMI_WAFL error counters not known, expected 0 and 0")


def hard_errors(e: Evidence) -> Iterator[Finding]:
    """Findings of uncorrectable errors outside XGMI, which are as bad on every model."""
    for index, blocks in sorted(e.facts.get("ecc_hard", {}).items()):
        if blocks:
            seen = ", ".join(f"{block} {count}" for block, count in sorted(blocks.items()))
            yield finding("gpu_errors_uncorrectable", gpu_name(index), f"uncorrectable errors: {seen}; expected 0")


def _later_partition(gpu: Gpu) -> bool:
    """Tell whether the GPU is a partition other than the first of its device: those have no figures of their own."""
    return gpu.bdf is not None and not gpu.bdf.endswith(".0")


def _gpu_numa(e: Evidence, p: Policy) -> Iterator[Finding]:
    gpus = e.topology.gpus
    hosts = {node.id for node in e.topology.numa}
    unknown = [gpu for gpu in gpus if gpu.numa_node is None]
    if unknown and len(unknown) == len(gpus) > 1:
        yield finding(
            "gpu_numa_unknown", e.subject, f"NUMA node of all {len(gpus)} GPUs unknown, expected a node number"
        )
    else:
        for gpu in unknown:
            yield finding("gpu_numa_unknown", gpu_name(gpu.index), "NUMA node unknown (-1), expected a node number")
    for gpu in gpus:
        if gpu.numa_node is not None and hosts and gpu.numa_node not in hosts:
            yield finding(
                "gpu_numa_not_on_host",
                gpu_name(gpu.index),
                f"NUMA node {gpu.numa_node}, the host has {', '.join(map(str, sorted(hosts)))}",
            )
    nearest: Mapping[int, int | None] = e.facts.get("numa_nearest", {})
    for gpu in gpus:
        near = nearest.get(gpu.index)
        if near is not None and gpu.numa_node is not None and near != gpu.numa_node:
            yield finding(
                "gpu_numa_mismatch",
                gpu_name(gpu.index),
                f"nearest node by KFD is {near}, numa_node of the device is {gpu.numa_node}, expected the same",
            )
    if p.numa_nodes and len(gpus) == p.count and not unknown:
        counts = Counter(gpu.numa_node for gpu in gpus)
        share = p.count // p.numa_nodes
        # A host in another NPS mode has more nodes: that is host_nps, not a wrong spread.
        if (not hosts or len(hosts) == p.numa_nodes) and any(n != share for n in counts.values()):
            seen = ", ".join(f"node {node}: {n}" for node, n in sorted(counts.items(), key=lambda c: str(c[0])))
            yield finding(
                "gpu_numa_spread", e.subject, f"GPUs by NUMA node {seen}; expected {share} on each of {p.numa_nodes}"
            )


def _numa_nodes(e: Evidence, p: Policy) -> Iterator[Finding]:
    nodes = e.topology.numa
    if not nodes or not any(node.cpus for node in nodes):
        yield finding("numa_nodes_unknown", e.subject, "no NUMA node with CPUs was read, expected at least one")
        return
    sockets = e.topology.host.sockets
    with_cpus = [node for node in nodes if node.cpus]
    if p.nodes_per_socket and sockets and len(with_cpus) > sockets * p.nodes_per_socket:
        yield finding(
            "host_nps",
            e.subject,
            f"{len(with_cpus)} NUMA nodes on {sockets} sockets (NPS{len(with_cpus) // sockets}), "
            f"expected {p.nodes_per_socket} a socket",
        )
    sizes = {node.id: node.mem_bytes for node in with_cpus if node.mem_bytes is not None}
    most = max(sizes.values(), default=0)
    if sizes and min(sizes.values()) < most * (1 - MEMORY_TOLERANCE):
        seen = ", ".join(f"node {node}: {size / GIB:.1f} GiB" for node, size in sorted(sizes.items()))
        yield finding("host_memory", e.subject, f"memory by NUMA node {seen}; expected the same on each")
    smt, state = e.topology.host.smt, {True: "on", False: "off", None: "not known"}
    if p.smt is not None and smt is not p.smt:
        yield finding("host_smt", e.subject, f"SMT is {state[smt]}, declared is {state[p.smt]}")


#: What the firmware and the kernel keep for themselves is not the same on each node.
MEMORY_TOLERANCE = 0.1

#: Compute mode -> memory modes that go with it. SPX with NPS4 is refused by the firmware; NPS4 forces CPX.
MEMORY_MODES: Mapping[str, tuple[str, ...]] = {
    "SPX": ("NPS1",),
    "DPX": ("NPS1", "NPS2"),
    "TPX": ("NPS1",),
    "QPX": ("NPS1", "NPS2"),
    "CPX": ("NPS1", "NPS2", "NPS4"),
}


def _partition(e: Evidence, p: Policy) -> Iterator[Finding]:
    for gpu in e.topology.gpus:
        name = gpu_name(gpu.index)
        compute, memory = gpu.partition.compute, gpu.partition.memory
        if compute is None or (memory is None and p.memory_partition is not None):
            # amd-smi shows the modes on the first partition of a device and N/A on the others.
            if not _later_partition(gpu):
                yield finding(
                    "partition_unknown",
                    name,
                    f"partition {compute or 'N/A'}/{memory or 'N/A'}, expected "
                    f"{p.compute_partition}/{p.memory_partition or 'any'}",
                )
            continue
        if compute != p.compute_partition or (p.memory_partition and memory != p.memory_partition):
            yield finding(
                "partition_mode",
                name,
                f"partition {compute}/{memory}, declared is {p.compute_partition}/{p.memory_partition or 'any'}",
            )
        if memory and memory not in MEMORY_MODES.get(compute, (memory,)):
            yield finding(
                "partition_invalid",
                name,
                f"partition {compute} with {memory}, expected {compute} with {' or '.join(MEMORY_MODES[compute])}",
            )


def _pcie_link(e: Evidence, p: Policy) -> Iterator[Finding]:
    if p.pcie is None:
        return
    links: Mapping[int, Mapping[str, Any]] = e.facts.get("pcie_link", {})
    expected = f"{p.pcie.speed_gts:g} GT/s x{p.pcie.width}"
    for gpu in e.topology.gpus:
        if _later_partition(gpu):
            continue  # the link is the device's
        name = gpu_name(gpu.index)
        link = links.get(gpu.index, {})
        speed, width = link.get("speed_gts"), link.get("width")
        shown = f"{f'{speed:g} GT/s' if speed is not None else 'speed N/A'} {f'x{width}' if width else 'width N/A'}"
        if (speed is not None and speed < p.pcie.speed_gts) or (width is not None and width < p.pcie.width):
            yield finding("pcie_link_degraded", name, f"PCIe link {shown}, expected {expected}")
        elif speed is None or width is None:
            yield finding("pcie_link_unknown", name, f"PCIe link {shown}, expected {expected}")
        if link.get("fatal_error"):
            yield finding("pcie_fatal_error", name, "FatalErr+ in the PCIe device status, expected FatalErr-")


def _acs(e: Evidence, _p: Policy) -> Iterator[Finding]:
    crossing = [pair for pair, link in all_links(e.topology).items() if is_pcie(link)]
    if not crossing:
        return
    acs: Mapping[str, bool | None] | None = e.facts.get("acs")
    if not acs or all(value is None for value in acs.values()):
        yield finding(
            "acs_unknown", e.subject, f"{len(crossing)} pairs go over PCIe; ACS of the bridges not read, expected off"
        )
        return
    on = sorted(bdf for bdf, value in acs.items() if value)
    if on:
        more = f" and {len(on) - 4} more" if len(on) > 4 else ""
        yield finding(
            "acs_on",
            e.subject,
            f"ACS redirects requests on {', '.join(on[:4])}{more}; {len(crossing)} pairs go over PCIe; expected off",
        )


def _driver(e: Evidence, _p: Policy) -> Iterator[Finding]:
    driver: Mapping[str, Any] = e.facts.get("driver", {})
    unbound = driver.get("unbound", ())
    if driver.get("loaded") is False:
        seen = f", and {len(unbound)} GPUs in the PCI tree have no driver" if unbound else ""
        yield finding("driver_not_loaded", e.subject, f"module amdgpu is not loaded{seen}; expected it live")
        return
    for bdf in unbound:
        yield finding("gpu_without_driver", bdf, "GPU in the PCI tree has no driver, or not amdgpu; expected amdgpu")


def kernel_log(e: Evidence) -> Iterator[Finding]:
    """Findings of a kernel log: what failed after the driver had taken the GPU holds for every model."""
    for reading in e.readings:
        failed: Mapping[str, tuple[str, ...]] = reading.facts.get("gpu_failed", {})
        for subject, said in sorted(failed.items()):
            more = f" ({len(said)} such lines)" if len(said) > 1 else ""
            yield finding("gpu_failed", subject, f"the kernel log says: {said[0]}{more}; expected no failure")
        for subject, said in sorted(reading.facts.get("gpu_reset", {}).items()):
            if subject not in failed:
                text = f"the kernel log says: {said[0]}; expected no reset, and whether the GPU came back is not known"
                yield finding("gpu_failed", subject, text, severity="unknown")


def _hidden(e: Evidence, p: Policy) -> Iterator[Finding]:
    runtime, driver = e.facts.get("runtime_gpus"), e.facts.get("driver_gpus")
    if runtime is not None and "gpu_count" not in e.collects and runtime < p.count:
        yield finding(
            "gpus_hidden",
            e.subject,
            f"rocminfo shows {runtime} GPUs, expected {p.count}; whether the others are hidden from it or missing is "
            "not known from it alone",
            severity="unknown",
            remedy="Compare with `amd-smi list`; look for ROCR_VISIBLE_DEVICES (`env`, `/etc/environment`).",
        )
        return
    if runtime is None or driver is None or runtime >= driver:
        return
    lines = [
        f"{path}: {line}"
        for path, found in sorted(e.facts.get("environment", {}).items())
        for line in found
        if line.startswith("ROCR_VISIBLE_DEVICES")
    ]
    cause = "; ".join(lines) or "no ROCR_VISIBLE_DEVICES in the system's environment files: look at device rules"
    yield finding(
        "gpus_hidden", e.subject, f"rocminfo shows {runtime} GPUs, the driver has {driver}, expected the same ({cause})"
    )


def _environment(e: Evidence, _p: Policy) -> Iterator[Finding]:
    codes = {"HSA_OVERRIDE_GFX_VERSION": "env_hsa_override", "ROCR_VISIBLE_DEVICES": "env_rocr_visible_devices"}
    for path, lines in sorted(e.facts.get("environment", {}).items()):
        for line in lines:
            variable = line.split("=", 1)[0].strip()
            code = next((c for name, c in codes.items() if variable.startswith(name)), "env_visible_devices")
            if code == "env_visible_devices" and "/vllm-" in path:
                continue  # a unit of ours selects its GPUs; binding.verify judges that
            yield finding(code, path, f"{line} is set, expected no {variable}")


def _access_rights(e: Evidence, _p: Policy) -> Iterator[Finding]:
    section = e.facts.get("access")
    access: Mapping[str, Any] = section if isinstance(section, Mapping) else {}
    user = str(access.get("user") or "vllm")
    listed = access.get("devices")
    # A damaged bundle may hold anything here; what is not a device's state says nothing, which is unknown below.
    devices: dict[str, Mapping[str, Any]] = {
        str(path): state if isinstance(state, Mapping) else {"error": f"not examined ({state!r})"}
        for path, state in (listed.items() if isinstance(listed, Mapping) else ())
    }
    if (devices.get("/dev/kfd") or {"error": "not examined"}).get("error"):
        reason = (devices.get("/dev/kfd") or {}).get("error", "not examined")
        yield finding("kfd_missing", "/dev/kfd", f"{reason}, expected a device node that {user} may read and write")
    if not access.get("exists"):
        yield finding("service_user_absent", user, f"user {user} does not exist, its rights are not judged")
        return
    names = access.get("groups")
    groups = ", ".join(map(str, names if isinstance(names, (list, tuple)) else ())) or "none"
    render = 0
    for path, state in sorted(devices.items()):
        render += path.startswith("/dev/dri/render")
        if state.get("error"):
            if path != "/dev/kfd":
                yield finding("device_access_unknown", path, f"{state['error']}, expected rights that can be read")
        elif state.get("read_write") is None:
            yield finding("device_access_unknown", path, f"rights of {user} not known, expected read and write")
        elif not state["read_write"]:
            yield finding(
                "device_access",
                path,
                f"{user} (groups {groups}) may not read and write it: {state.get('owner')}:{state.get('group')} "
                f"{state.get('mode')}, expected a group of {user} with rw",
            )
    if not render:
        yield finding("device_access", "/dev/dri", "no render node seen, expected one for each GPU")


def _cmdline(e: Evidence, p: Policy) -> Iterator[Finding]:
    host = e.topology.host
    if host.cmdline is None:
        return
    if p.iommu_passthrough and host.iommu not in ("pt", "off"):
        yield finding(
            "iommu_not_passthrough", e.subject, f"kernel command line has no iommu=pt (IOMMU {host.iommu or 'default'})"
        )
    words = host.cmdline.split()
    for option in p.cmdline_recommended:
        name, _sep, value = option.partition("=")
        # pci= options add up, in one word or in several.
        given = [w.partition("=")[2].split(",") for w in words if w.partition("=")[0] == name]
        if not any(value in values for values in given):
            yield finding("cmdline_missing", e.subject, f"kernel command line has no {option}")


def _sysctl(e: Evidence, _p: Policy) -> Iterator[Finding]:
    if e.topology.host.numa_balancing:
        yield finding("numa_balancing_on", e.subject, "kernel.numa_balancing is on, expected 0")


def _vram(e: Evidence, p: Policy) -> Iterator[Finding]:
    used: Mapping[int, int | None] = e.facts.get("vram_used", {})
    busy: frozenset[int] | None = e.facts.get("vram_busy")
    for gpu in e.topology.gpus:
        if _later_partition(gpu):
            continue  # telemetry of later partitions is N/A by design
        name = gpu_name(gpu.index)
        amount = used.get(gpu.index)
        if amount is None:
            yield finding(
                "vram_unknown", name, f"VRAM in use N/A, expected below {p.vram_idle_max_mib} MiB or a process"
            )
        elif amount > p.vram_idle_max_mib * MIB:
            seen = f"{amount / GIB:.1f} GiB VRAM in use"
            if busy is None:
                yield finding("vram_unknown", name, f"{seen}, by which processes is not known, expected a process")
            elif gpu.index not in busy:
                yield finding(
                    "vram_leaked", name, f"{seen} and no process on it, expected below {p.vram_idle_max_mib} MiB"
                )


def _busbw(e: Evidence, p: Policy) -> Iterator[Finding]:
    for reading in e.readings:
        if reading.kind == rccl.KIND:
            yield from rccl.judge(reading, policy=p.name)


@dataclass(frozen=True)
class _Rule:
    """``judge`` runs when all aspects of ``needs`` were collected. ``why`` says what the rule is for."""

    needs: tuple[Aspect, ...]
    why: str
    judge: Callable[[Evidence, Policy], Iterator[Finding]]
    applies: Callable[[Policy], bool] = lambda _policy: True


RULES: tuple[_Rule, ...] = (
    _Rule(("gpu_count",), "is every GPU there", _gpu_count),
    _Rule(("device_id",), "are they the right model", _gpu_model),
    _Rule(("arch",), "is it the gfx target that the code is built for", _gpu_arch),
    _Rule(("link_type",), "is every pair connected as it must be", _links),
    _Rule(("link_access",), "may peers reach each other's memory", _access),
    _Rule(("link_weight",), "advisory", _weights),
    _Rule(("link_bandwidth",), "advisory", _bandwidths),
    _Rule(("link_status",), "is every XGMI link up", _link_status),
    _Rule(("ecc",), "does XGMI count errors", _ecc),
    _Rule((), "do memory and cores count errors", lambda e, _policy: hard_errors(e)),
    _Rule(("gpu_numa",), "where to bind", _gpu_numa),
    _Rule(("numa_nodes",), "where to bind", _numa_nodes),
    _Rule(
        ("partition",),
        "are partitions as declared",
        _partition,
        applies=lambda policy: len(policy.partitions) > 1,
    ),
    _Rule(("pcie_link",), "is the host link at full speed", _pcie_link, applies=lambda policy: policy.pcie is not None),
    _Rule(("link_type",), "does ACS redirect peer traffic", _acs),
    _Rule(("driver",), "does the driver hold every GPU", _driver),
    _Rule((), "does the kernel log hold a failure", lambda e, _policy: kernel_log(e)),
    _Rule((), "does the runtime see every GPU", _hidden),
    _Rule(("environment",), "does the system select or fake GPUs", _environment),
    _Rule(("access",), "may the service user use the GPUs", _access_rights),
    _Rule(("cmdline",), "is the IOMMU out of the way", _cmdline),
    _Rule(("sysctl",), "is NUMA balancing off", _sysctl),
    _Rule(("vram",), "is VRAM free", _vram),
    _Rule(("busbw",), "is the fabric fast", _busbw),
)
