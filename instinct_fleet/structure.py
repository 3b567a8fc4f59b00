"""What can be said of a node whose model nobody knows: only what is wrong or unknown on every model."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

from instinct_fleet.findings import finding
from instinct_fleet.model import Finding, sort_findings
from instinct_fleet.parse import rccl
from instinct_fleet.parse.base import Evidence
from instinct_fleet.policy import (
    ASPECTS,
    all_links,
    gpu_name,
    hard_errors,
    hives,
    is_pcie,
    kernel_log,
    link_seen,
    pair_name,
)

#: Share of a GPU's memory that nothing takes on an idle GPU; a hang was seen to leave 75 % behind.
VRAM_TAKEN_PERCENT = 50


def structural(evidence: Evidence) -> tuple[Finding, ...]:
    """Judge a node without a policy and return all findings, worst first; those of the collection included."""
    found = list(evidence.findings)
    for aspect, judge in (
        ("gpu_count", _count),
        ("link_type", _links),
        ("link_access", _access),
        ("link_status", _status),
        ("ecc", _ecc),
        ("pcie_link", _pcie),
        ("vram", _vram),
        ("gpu_numa", _numa),
    ):
        if aspect in evidence.collects:
            found += judge(evidence)
    found += memory(evidence)
    found += kernel_log(evidence)
    found += hard_errors(evidence)
    found += _not_collected(evidence)
    for reading in evidence.readings:
        if reading.kind == rccl.KIND:
            found += rccl.judge(reading)
    if evidence.simulated:
        found.append(
            finding("simulated_hardware", evidence.subject, "simulated hardware: the GPUs of this node are replayed")
        )
    return sort_findings(found)


def _not_collected(e: Evidence) -> Iterator[Finding]:
    """List what other tools would have shown: for information, and as unknown where a whole bundle lacks it."""
    tools = ", ".join(dict.fromkeys(r.kind for r in e.readings)) or "nothing"
    for aspect, (what, command) in ASPECTS.items():
        if aspect not in e.collects and aspect not in ("busbw", "link_weight", "link_bandwidth"):
            yield finding(
                "not_collected",
                e.subject,
                f"{what} not collected; read were: {tools}",
                severity="unknown" if e.whole else "info",
                remedy=f"Run `{command}`, or collect the node with `node_probe`.",
            )


def _some(names: list[str]) -> str:
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


def _count(e: Evidence) -> Iterator[Finding]:
    """Boards hold 1, 2, 4 or 8 GPUs, partitions make 2, 3, 4 or 8 of each: any other number misses one."""
    count = len(e.topology.gpus)
    odd = count
    while odd and odd % 2 == 0:
        odd //= 2
    if count and odd not in (1, 3):
        yield finding(
            "gpu_count",
            e.subject,
            f"{count} GPUs seen, which no board and no partition mode makes; expected 1, 2, 4 or 8 of them, times the "
            "partitions of each",
            severity="unknown",
        )


def _links(e: Evidence) -> Iterator[Finding]:
    links = all_links(e.topology)
    unknown = [pair_name(*pair) for pair, link in links.items() if link.type == "UNKNOWN" and not is_pcie(link)]
    if unknown:
        yield finding("link_unknown", e.subject, f"link type of {_some(unknown)} not known, expected one that was read")
    # In no model does a group that XGMI joins have a pair in it that goes over PCIe.
    for group in hives(e.topology):
        for a, b in itertools.combinations(group, 2):
            if is_pcie(links[a, b]):
                yield finding(
                    "link_not_xgmi",
                    pair_name(a, b),
                    f"{link_seen(links[a, b])}, expected XGMI as between the other GPUs of its group",
                )


def _access(e: Evidence) -> Iterator[Finding]:
    links = all_links(e.topology)
    denied = [pair_name(*pair) for pair, link in links.items() if link.accessible is False]
    unknown = [pair_name(*pair) for pair, link in links.items() if link.accessible is None]
    if denied:
        yield finding("link_not_accessible", e.subject, f"no peer access between {_some(denied)}, expected peer access")
    if unknown:
        yield finding("link_access_unknown", e.subject, f"peer access not known between {_some(unknown)}")


def _status(e: Evidence) -> Iterator[Finding]:
    status: Mapping[int, tuple[str | None, ...]] = e.facts.get("link_status", {})
    linked = any(set(ports) & {"U", "D"} for ports in status.values())
    for gpu in e.topology.gpus:
        ports = status.get(gpu.index, ())
        down = [str(n) for n, port in enumerate(ports) if port == "D"]
        if down:
            text = f"XGMI link {', '.join(down)} of {len(ports)} is D (down), expected U or X"
            yield finding("xgmi_link_down", gpu_name(gpu.index), text)
        # Ports that are all X are right where no GPU has XGMI, and not beside GPUs that have it.
        if not ports or any(port not in ("U", "D", "X") for port in ports) or (linked and set(ports) == {"X"}):
            shown = " ".join(port or "N/A" for port in ports) or "nothing"
            yield finding("xgmi_status_unknown", gpu_name(gpu.index), f"XGMI link status {shown}, expected U or X")


def _ecc(e: Evidence) -> Iterator[Finding]:
    ecc: Mapping[int, Mapping[str, int | None] | None] = e.facts.get("ecc", {})
    for gpu in e.topology.gpus:
        hard = (ecc.get(gpu.index) or {}).get("uncorrectable")
        if hard:
            text = f"XGMI_WAFL uncorrectable errors {hard}, expected 0"
            yield finding("xgmi_errors_uncorrectable", gpu_name(gpu.index), text)


def _pcie(e: Evidence) -> Iterator[Finding]:
    """A link that lspci marks as downgraded, or that is slower than its own GPU can be, is so on any model."""
    links: Mapping[int, Mapping[str, Any]] = e.facts.get("pcie_link", {})
    for gpu in e.topology.gpus:
        link = links.get(gpu.index, {})
        speed, width = link.get("speed_gts"), link.get("width")
        if speed is None or width is None:
            yield finding("pcie_link_unknown", gpu_name(gpu.index), "PCIe link not read, expected a speed and a width")
        elif link.get("downgraded") or speed < (link.get("max_speed_gts") or 0) or width < (link.get("max_width") or 0):
            known = link.get("max_speed_gts") and link.get("max_width")
            best = f"{link['max_speed_gts']:g} GT/s x{link['max_width']}" if known else "its best"
            text = f"PCIe link {speed:g} GT/s x{width}, expected {best}"
            yield finding("pcie_link_degraded", gpu_name(gpu.index), text)
        if link.get("fatal_error"):
            text = "FatalErr+ in the PCIe device status, expected FatalErr-"
            yield finding("pcie_fatal_error", gpu_name(gpu.index), text)


def _vram(e: Evidence) -> Iterator[Finding]:
    """Memory that is largely taken on a GPU at 0 %: leaked where no process is on it, unknown where none was shown."""
    busy: frozenset[int] | None = e.facts.get("vram_busy")
    for reading in e.readings:
        total: Mapping[int, int | None] = reading.facts.get("vram_total", {})
        for number, used in sorted(reading.facts.get("vram_used", {}).items()):
            share = 100 * used / whole if used is not None and (whole := total.get(number)) else 0
            if share < VRAM_TAKEN_PERCENT or reading.facts.get("gpu_use_percent", {}).get(number):
                continue
            seen = f"{share:.0f} % of its memory is taken"
            if busy is None:
                yield finding("vram_unknown", gpu_name(number), f"{seen}, by which processes is not known")
            elif number not in busy:
                yield finding("vram_leaked", gpu_name(number), f"{seen} and no process is on it, expected little")


def _numa(e: Evidence) -> Iterator[Finding]:
    nearest: Mapping[int, int | None] = e.facts.get("numa_nearest", {})
    unknown = [gpu_name(gpu.index) for gpu in e.topology.gpus if gpu.numa_node is None]
    if unknown:
        yield finding("gpu_numa_unknown", e.subject, f"NUMA node of {_some(unknown)} unknown, expected a node number")
    for gpu in e.topology.gpus:
        near = nearest.get(gpu.index)
        if near is not None and gpu.numa_node is not None and near != gpu.numa_node:
            text = f"nearest node by KFD is {near}, numa_node of the device is {gpu.numa_node}, expected the same"
            yield finding("gpu_numa_mismatch", gpu_name(gpu.index), text)


def memory(e: Evidence) -> Iterator[Finding]:
    """Findings of rocm-smi's concise table: memory largely taken on an idle GPU.

    The table shows percentages and no processes, so that a policy's rule for memory in bytes has nothing to read.
    """
    for reading in e.readings:
        used: Mapping[int, Any] = reading.facts.get("vram_used_percent", {})
        busy: Mapping[int, Any] = reading.facts.get("gpu_use_percent", {})
        for number, percent in sorted(used.items()):
            if percent >= VRAM_TAKEN_PERCENT and busy.get(number) == 0:
                yield finding(
                    "vram_leaked",
                    gpu_name(number),
                    f"{percent} % of its memory is taken while it is at 0 %, expected little; a hang leaves that "
                    "behind, and so does a loaded server without requests",
                )
