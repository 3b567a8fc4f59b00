"""What every parser returns, and the small things they share.

A parser takes text and never raises for what the text holds: whatever it cannot use becomes a *collection* finding
(``collect_...`` codes), apart from findings about the node itself, which only :mod:`instinct_fleet.policy` makes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from instinct_fleet.model import Finding, Gpu, Host, Link, NumaNode, Topology

#: What a source can show. A policy rule asks for aspects; a rule whose aspects nobody collected becomes
#: ``not_collected`` (info) for a single capture and ``unknown`` for a full bundle.
Aspect = Literal[
    "gpu_count",
    "bdf",
    "device_id",
    "arch",
    "link_type",
    "link_weight",
    "link_hops",
    "link_access",
    "link_bandwidth",
    "link_status",
    "gpu_numa",
    "numa_nodes",
    "pci_tree",
    "pcie_link",
    "partition",
    "vram",
    "ecc",
    "driver",
    "versions",
    "cmdline",
    "sysctl",
    "access",
    "environment",
    "busbw",
]


@dataclass(frozen=True)
class Reading:
    """One tool's output, understood.

    ``kind`` is the tool and what was asked, for example ``amd-smi topology``, ``rocm-smi showtopo``, ``rocminfo``,
    ``kfd``, ``lspci link``, ``numactl``, ``lscpu``, ``amd-smi xgmi status``, ``rccl-tests``. ``layout`` names the
    release family the text was recognised by. ``facts`` holds what has no place in the Topology; each parser's
    docstring says which keys it fills and in which unit. ``collects`` is what this output can show even where it
    shows nothing wrong. ``refused`` is True when the text is not usable as this kind at all (then nothing else is set
    but ``findings``, which say why).
    """

    kind: str
    tool: str
    layout: str | None = None
    version: str | None = None
    complete: bool = True
    gpus: tuple[Gpu, ...] = ()
    links: tuple[Link, ...] = ()
    numa: tuple[NumaNode, ...] = ()
    host: Host = Host()  # noqa: RUF009 - frozen, as Partition() in model.py
    facts: Mapping[str, Any] = field(default_factory=dict)
    collects: frozenset[Aspect] = frozenset()
    findings: tuple[Finding, ...] = ()
    refused: bool = False


@dataclass(frozen=True)
class Evidence:
    """All that is known of one node: the merged topology, each source's reading, and what went wrong on the way.

    ``whole`` is True for a bundle of node_probe (judged in full) and False for a single capture (judged by what that
    tool can show). ``facts`` is keyed by aspect or kind, see :func:`instinct_fleet.parse.merge`.
    """

    topology: Topology
    readings: tuple[Reading, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
    collects: frozenset[Aspect] = frozenset()
    findings: tuple[Finding, ...] = ()
    whole: bool = False
    subject: str = "node"
    simulated: bool = False


def parse_cpu_list(text: str) -> tuple[int, ...]:
    """Expand the kernel's CPU list syntax, ``0-3,8`` -> (0, 1, 2, 3, 8).

    Raises:
        ValueError: the text is not a CPU list; the message holds it.
    """
    cpus: set[int] = set()
    for part in filter(None, (p.strip() for p in text.strip().split(","))):
        first, _, last = part.partition("-")
        numbers = all(number.isdecimal() and len(number) < 6 for number in (first, last or first))
        if not numbers or (last and int(last) < int(first)):  # five digits: far above any machine, and cheap to expand
            raise ValueError(f"not a CPU list: {text[:80]!r}")
        cpus.update(range(int(first), int(last or first) + 1))
    return tuple(sorted(cpus))


def format_cpu_list(cpus: tuple[int, ...] | list[int]) -> str:
    """Write CPU numbers as the kernel does, (0, 1, 2, 8) -> ``0-2,8``."""
    parts: list[str] = []
    ordered = sorted(set(cpus))
    start = 0
    for i, cpu in enumerate(ordered):
        if i + 1 == len(ordered) or ordered[i + 1] != cpu + 1:
            first = ordered[start]
            parts.append(str(first) if first == cpu else f"{first}-{cpu}")
            start = i + 1
    return ",".join(parts)


def numa_or_unknown(value: Any) -> int | None:
    """Return a NUMA node number, or None for what means unknown: -1, 4294967295 (ROCm <= 5.7), N/A, nothing."""
    try:
        node = int(str(value).strip())
    except ValueError:
        return None
    return node if 0 <= node < 4096 else None  # far above the kernel's MAX_NUMNODES of 1024
