"""NUMA nodes of the host: ``numactl -H``, ``lscpu``, and what ``node_probe`` read of them in sysfs.

Facts: ``numa_free_bytes`` (numactl: free bytes of each node, by node), ``cpus_online`` (lscpu, sysfs: number of
online CPUs), ``cpu_model`` (lscpu). Sockets and SMT are in ``host``. Only numactl and sysfs know distances and memory.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from instinct_fleet.model import Finding, Host, NumaNode
from instinct_fleet.parse.base import Reading, parse_cpu_list
from instinct_fleet.parse.symptoms import instead_of_data, note, quote, refuse, unsupported

#: ACPI's distance of a node to itself.
LOCAL_DISTANCE = 10

_AVAILABLE = re.compile(r"^available: (\d{1,5}) nodes? \((.*)\)\s*$", re.M)
_CPUS = re.compile(r"^node (\d{1,5}) cpus:([\d \t]*)$", re.M)
_SIZE = re.compile(r"^node (\d{1,5}) (size|free): (\d{1,15}) MB\s*$", re.M)
_ROW = re.compile(r"^[ \t]*(\d{1,5}):((?:[ \t]+\d{1,5})+)[ \t]*$", re.M)
_NODES = re.compile(r"^NUMA node\(s\):[ \t]*(\d{1,9})\s*$", re.M)
_NODE_CPUS = re.compile(r"^NUMA node(\d{1,5}) CPU\(s\):[ \t]*(\S*)\s*$", re.M)


def sniff(text: str) -> bool:
    """Tell whether a text is from ``numactl -H`` or ``lscpu``."""
    return bool(
        _AVAILABLE.search(text)
        or _CPUS.search(text)
        or re.search(r"^[ \t]*(?:\"field\":\s*\")?(?:NUMA node\(s\)|Socket\(s\)|Thread\(s\) per core):", text, re.M)
        or "No NUMA available on this system" in text
    )


def parse(text: str, *, stderr: str = "", rc: int | None = None) -> Reading:
    """Read ``numactl -H`` (kind ``numactl``) or ``lscpu``, also with ``-J`` (kind ``lscpu``)."""
    if "No NUMA available" in f"{text}{stderr}":
        message = "numactl says that the kernel has no NUMA support; expected one node for each socket at least"
        finding = note("collect_unexpected", "unknown", "numactl", message, remedy="boot a kernel with CONFIG_NUMA")
        return refuse("numactl", "numactl", finding)
    if _AVAILABLE.search(text) or _CPUS.search(text):
        return _parse_numactl(text)
    if sniff(text):
        return _parse_lscpu(text)
    tool = "lscpu" if re.search(r"\blscpu\b", f"{text}{stderr}") else "numactl"
    return instead_of_data(tool, tool, text, stderr=stderr, rc=rc) or unsupported(
        tool, tool, text, "`numactl -H` or `lscpu`"
    )


def _parse_numactl(text: str) -> Reading:
    lost: list[str] = []
    cpus: dict[int, tuple[int, ...]] = {}
    for number, listed in _CPUS.findall(text):
        if int(number) in cpus:
            lost.append(f"node {number} is listed twice")
        tokens = listed.split()
        if any(len(token) > 5 for token in tokens):
            lost.append(f"the CPUs of node {number} are not numbers of CPUs")
            continue
        cpus[int(number)] = tuple(sorted({int(cpu) for cpu in tokens}))
    sizes: dict[tuple[int, str], int] = {
        (int(number), what): int(mib) * 1024**2 for number, what, mib in _SIZE.findall(text)
    }
    available = _AVAILABLE.search(text)
    head = re.search(r"^node distances:\s*\n\s*node((?:[ \t]+\d{1,5})*)[ \t]*$", text, re.M)
    order = [int(n) for n in head[1].split()] if head else []
    rows = {int(n): tuple(int(d) for d in row.split()) for n, row in _ROW.findall(text[head.end() :] if head else "")}
    expected = int(available[1]) if available else None
    if expected != len(cpus):
        lost.append(f"{len(cpus)} nodes have a CPU list, the first line says {expected}")
    if sorted(order) != sorted(cpus) or sorted(rows) != sorted(cpus):
        lost.append(f"the distances name nodes {sorted(rows)}, the CPU lists {sorted(cpus)}")
    lost += [f"node {n} has no size" for n in sorted(cpus) if (n, "size") not in sizes]
    nodes = tuple(
        NumaNode(
            id=number,
            cpus=cpus[number],
            mem_bytes=sizes.get((number, "size")),
            distances=rows.get(number, ()) if len(rows.get(number, ())) == len(cpus) else (),
        )
        for number in sorted(cpus)
    )
    findings = _truncated("numactl", lost)
    findings += _check_nodes("numactl", nodes, with_distances=True)
    return Reading(
        kind="numactl",
        tool="numactl",
        layout="-H",
        complete=not findings,
        numa=nodes,
        facts={"numa_free_bytes": {n: sizes.get((n, "free")) for n in sorted(cpus)}},
        collects=frozenset(("numa_nodes",)),
        findings=tuple(findings),
    )


def _parse_lscpu(text: str) -> Reading:
    # `lscpu -J` holds the same pairs, the field names with their colons.
    text = re.sub(r"\"field\":\s*\"([^\"]*)\",\s*\"data\":\s*\"([^\"]*)\"", r"\n\1 \2\n", text)
    # Newer releases indent by group.
    text = re.sub(r"^[ \t]+", "", text, flags=re.M)
    lost: list[str] = []
    cpus: dict[int, tuple[int, ...]] = {}
    for number, listed in _NODE_CPUS.findall(text):
        try:
            cpus[int(number)] = parse_cpu_list(listed)
        except ValueError as exc:
            lost.append(f"NUMA node{number}: {exc}")
    count = _NODES.search(text)
    expected = int(count[1]) if count else None
    if expected != len(cpus):
        lost.append(f"{len(cpus)} NUMA nodes have a CPU list, `NUMA node(s)` is {expected}")
    online = _field(text, r"CPU\(s\)")
    # CPU(s) counts those that are present; with SMT switched off (nosmt) half of them are offline and on no node.
    offline = re.search(r"^Off-line CPU\(s\) list:[ \t]*(\S+)\s*$", text, re.M)
    if online is not None and offline:
        try:
            online -= len(parse_cpu_list(offline[1]))
        except ValueError as exc:
            lost.append(f"Off-line CPU(s) list: {exc}")
    listed_cpus = sum(map(len, cpus.values()))
    if online is not None and cpus and online != listed_cpus:
        lost.append(f"CPU(s) is {online}, the NUMA nodes list {listed_cpus}")
    sockets, threads = _field(text, r"Socket\(s\)"), _field(text, r"Thread\(s\) per core")
    if sockets is None or threads is None:
        lost.append("Socket(s) or Thread(s) per core is missing")
    nodes = tuple(NumaNode(id=number, cpus=cpus[number]) for number in sorted(cpus))
    findings = _truncated("lscpu", lost)
    findings += _check_nodes("lscpu", nodes, with_distances=False)
    model = re.search(r"^Model name:[ \t]*(.+?)\s*$", text, re.M)
    return Reading(
        kind="lscpu",
        tool="lscpu",
        layout="json" if '"lscpu"' in text else "text",
        complete=not findings,
        numa=nodes,
        host=Host(sockets=sockets, smt=None if threads is None else threads > 1),
        facts={"cpus_online": online or listed_cpus, "cpu_model": quote(model[1]) if model else None},
        collects=frozenset(("numa_nodes",)),
        findings=tuple(findings),
    )


def _field(text: str, name: str) -> int | None:
    match = re.search(rf"^{name}:[ \t]*(\d+)\s*$", text, re.M)
    return int(match[1]) if match else None


def from_probe(numa: Mapping[str, Any], cpu: Mapping[str, Any]) -> Reading:
    """Read the ``numa`` and ``cpu`` sections of a ``node_probe`` document (kind ``sysfs numa``).

    ``mem_bytes`` is MemTotal of the node; ``host`` gets sockets and SMT.
    """
    lost: list[str] = []
    nodes = []
    for name in sorted((n for n in numa if re.fullmatch(r"\d{1,5}", str(n))), key=int):
        entry = numa[name] if isinstance(numa[name], Mapping) else {}
        try:
            cpus = parse_cpu_list(str(entry.get("cpulist") or ""))
        except ValueError as exc:
            cpus = ()
            lost.append(f"node{name}: {exc}")
        if entry.get("cpulist") is None:
            lost.append(f"node{name} has no readable cpulist")
        distances = str(entry.get("distance") or "").split()
        total = re.search(r"MemTotal:\s*(\d{1,15}) kB", str(entry.get("meminfo") or ""))
        if total is None:
            lost.append(f"node{name} has no readable MemTotal")
        nodes.append(
            NumaNode(
                id=int(name),
                cpus=cpus,
                mem_bytes=int(total[1]) * 1024 if total else None,
                distances=tuple(int(d) for d in distances)
                if all(re.fullmatch(r"\d{1,5}", d) for d in distances)
                else (),
            )
        )
    if not nodes:
        message = "no NUMA node in /sys/devices/system/node; expected one for each socket at least"
        return refuse("sysfs numa", "sysfs", note("collect_empty", "error", "numa", message))
    online = None
    try:
        online = parse_cpu_list(str(cpu.get("online") or ""))
    except ValueError as exc:
        lost.append(f"cpu/online: {exc}")
    listed = {c for node in nodes for c in node.cpus}
    if online and listed - set(online):
        lost.append(f"{len(listed - set(online))} CPUs of the NUMA nodes are not online")
    findings = _truncated("numa", lost)
    findings += _check_nodes("numa", nodes, with_distances=True)
    smt, sockets = str(cpu.get("smt_active") or "").strip(), cpu.get("sockets")
    return Reading(
        kind="sysfs numa",
        tool="sysfs",
        layout="node_probe",
        complete=not findings,
        numa=tuple(nodes),
        host=Host(
            sockets=sockets if isinstance(sockets, int) and sockets > 0 else None,
            smt={"0": False, "1": True}.get(smt),
        ),
        facts={"cpus_online": len(online) if online else None},
        collects=frozenset(("numa_nodes",)),
        findings=tuple(findings),
    )


def _truncated(subject: str, lost: list[str]) -> list[Finding]:
    if not lost:
        return []
    more = f" (and {len(lost) - 3} more)" if len(lost) > 3 else ""
    return [note("collect_truncated", "unknown", subject, f"the NUMA nodes are not whole: {'; '.join(lost[:3])}{more}")]


def _check_nodes(subject: str, nodes: Iterable[NumaNode], *, with_distances: bool) -> list[Finding]:
    """Find what cannot be: a CPU on two nodes, distances that are not square, symmetric and 10 on the diagonal."""
    nodes = list(nodes)
    wrong: list[str] = []
    every = [cpu for node in nodes for cpu in node.cpus]
    twice = sorted({cpu for cpu in every if every.count(cpu) > 1}) if len(every) != len(set(every)) else []
    if twice:
        wrong.append(f"CPU {twice[0]} is on two nodes")
    if with_distances:
        if any(len(node.distances) != len(nodes) for node in nodes):
            wrong.append("the table of distances is not square")
        else:
            for i, node in enumerate(nodes):
                if node.distances[i] != LOCAL_DISTANCE:
                    wrong.append(f"node {node.id} is {node.distances[i]} from itself, expected {LOCAL_DISTANCE}")
                wrong += [
                    f"nodes {node.id} and {other.id} are {node.distances[j]} and {other.distances[i]} apart"
                    for j, other in enumerate(nodes[:i])
                    if node.distances[j] != other.distances[i]
                ]
    if not wrong:
        return []
    return [note("collect_inconsistent", "error", subject, f"NUMA nodes that cannot be: {'; '.join(wrong[:3])}")]
