"""A node for people: the matrix of links, the NUMA and PCIe tree, and the findings, within 100 columns."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from rich.console import Console, Group
from rich.markup import escape
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from instinct_fleet.model import SEVERITIES, Finding, Gpu, Link, Topology, Verdict
from instinct_fleet.parse.base import Evidence
from instinct_fleet.policy import all_links, hives, is_pcie

#: What the terminal shows when it does not say how wide it is, and never more than this.
WIDTH = 100
#: More GPUs than this are shown as blocks.
MATRIX_MAX = 16
COLOURS: Mapping[str, str] = {
    "error": "bold red",
    "unknown": "yellow",
    "warning": "cyan",
    "info": "dim",
    "pass": "bold green",
    "fail": "bold red",
}
LINK_COLOURS: Mapping[str, str] = {
    "XGMI": "green",
    "PIX": "cyan",
    "PXB": "cyan",
    "PHB": "yellow",
    "NODE": "yellow",
    "SYS": "magenta",
    "PCIE": "magenta",
    "?": "bold yellow",
}


def show(console: Console, evidence: Evidence, findings: Sequence[Finding], outcome: Verdict, *, policy: str) -> None:
    """Print everything; the verdict comes last, where the eye ends."""
    console.width = min(console.width, WIDTH)
    topology = evidence.topology
    console.print(_heading(evidence, policy))
    if topology.gpus:
        if any(aspect.startswith("link_") for aspect in evidence.collects - {"link_status"}):
            console.print(links_view(topology))
        console.print(tree_view(evidence))
    console.print(findings_view(findings))
    counts = Counter(f.severity for f in findings)
    tally = ", ".join(f"{counts[s]} {s}" for s in SEVERITIES if counts[s]) or "no findings"
    console.print(Text.assemble("verdict: ", (outcome, COLOURS[outcome]), f" ({tally})"))


def _heading(evidence: Evidence, policy: str) -> Group:
    gpus = evidence.topology.gpus
    sources = [
        f"{source.tool}{f' {source.version}' if source.version else ''}{'' if source.complete else ' (incomplete)'}"
        for source in evidence.topology.sources
    ]
    kind = "node" if evidence.whole else "capture"
    lines = [Text.assemble((evidence.subject, "bold"), f"  {kind}, {len(gpus)} GPUs, policy {policy}")]
    if evidence.simulated:
        lines.append(Text("simulated hardware: nothing here is about real GPUs", style="bold magenta"))
    if sources:
        lines.append(Text("read: " + ", ".join(dict.fromkeys(sources)), style="dim"))
    return Group(*lines)


# --- links --------------------------------------------------------------------------------------------------------


def word_of(link: Link) -> str:
    """Return how a link is shown: its class, PCIE where the class is not known, ``?`` where nothing is."""
    if link.type != "UNKNOWN":
        return link.type
    return "PCIE" if is_pcie(link) else "?"


def links_view(topology: Topology) -> Group:
    """Return the matrix of links, of GPUs or of blocks of them, with a line on weights and groups."""
    links = all_links(topology)
    if not links:
        return Group(Text("one GPU, no links"))
    if len(topology.gpus) <= MATRIX_MAX:
        table: Table | Text = _matrix(topology, links)
    else:
        table = _block_matrix(topology, links)
    lines: list[Text] = []
    counts = Counter(word_of(link) for link in links.values())
    summary = Text("pairs: ")
    summary.append(Text(", ").join(Text(f"{n} {word}", style=LINK_COLOURS[word]) for word, n in sorted(counts.items())))
    weights = Counter(link.weight for link in links.values() if link.weight is not None)
    if weights:
        summary.append(f"; weight {', '.join(f'{weight} ({n})' for weight, n in sorted(weights.items()))}")
    denied = sum(link.accessible is False for link in links.values())
    if denied:
        summary.append(f"; no peer access: {denied} pairs", style="bold red")
    lines.append(summary)
    groups = hives(topology)
    if 1 < len(groups) < len(topology.gpus):
        lines.append(Text("XGMI groups: " + ", ".join("{" + ranges(group) + "}" for group in groups)))
    return Group(table, *lines)


def _cell(word: str, *, denied: bool = False) -> Text:
    return Text(word + ("!" if denied else ""), style="bold red" if denied else LINK_COLOURS[word])


def _matrix(topology: Topology, links: Mapping[tuple[int, int], Link]) -> Table:
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="dim")
    small = len(topology.gpus) > 10
    table.add_column("GPU", style="dim", no_wrap=True)
    for gpu in topology.gpus:
        table.add_column(str(gpu.index), justify="center", no_wrap=True, min_width=4)
    for gpu in topology.gpus:
        name = f"{gpu.index}" if small or not gpu.bdf else f"{gpu.index:<2} {gpu.bdf}"
        row = [
            Text("·", style="dim")
            if gpu.index == other.index
            else _link_cell(links[min(gpu.index, other.index), max(gpu.index, other.index)])
            for other in topology.gpus
        ]
        table.add_row(name, *row)
    return table


def _link_cell(link: Link) -> Text:
    return _cell(word_of(link), denied=link.accessible is False)


@dataclass(frozen=True)
class Block:
    """GPUs that are shown as one: the partitions of a device, or a group that XGMI joins closely."""

    gpus: tuple[int, ...]
    name: str


def blocks(topology: Topology, links: Mapping[tuple[int, int], Link]) -> tuple[Block, ...]:
    """Put GPUs together by device where addresses tell, else by the lightest XGMI links."""
    if all(gpu.bdf for gpu in topology.gpus):
        devices: dict[str, list[int]] = {}
        for gpu in topology.gpus:
            devices.setdefault((gpu.bdf or "").rsplit(".", 1)[0], []).append(gpu.index)
        if len(devices) < len(topology.gpus):
            return tuple(Block(tuple(numbers), f"{device}.*") for device, numbers in devices.items())
    weights = sorted({link.weight for link in links.values() if link.type == "XGMI" and link.weight is not None})
    near = {
        pair: link
        for pair, link in links.items()
        if link.type == "XGMI" and (len(weights) < 2 or link.weight == weights[0])
    }
    owner = {gpu.index: {gpu.index} for gpu in topology.gpus}
    for a, b in near:
        if owner[a] is not owner[b]:
            owner[a] |= owner[b]
            for member in owner[b]:
                owner[member] = owner[a]
    found = sorted({tuple(sorted(members)) for members in owner.values()})
    return tuple(Block(group, "") for group in found)


def _block_matrix(topology: Topology, links: Mapping[tuple[int, int], Link]) -> Table | Text:
    parts = blocks(topology, links)
    if len(parts) > MATRIX_MAX:
        return Text(f"{len(topology.gpus)} GPUs in {len(parts)} groups: too many for a matrix", style="dim")
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="dim")
    table.add_column("GPUs", style="dim", no_wrap=True)
    for block in parts:
        table.add_column(ranges(block.gpus), justify="center", no_wrap=True)
    named = any(block.name for block in parts) and len(parts) <= 8
    for block in parts:
        label = f"{ranges(block.gpus):<6} {block.name}" if named else ranges(block.gpus)
        table.add_row(label, *(_block_cell(block, other, links) for other in parts))
    return table


def _block_cell(block: Block, other: Block, links: Mapping[tuple[int, int], Link]) -> Text:
    """Show what joins two blocks: one word where all pairs are alike, else the worst and its share."""
    pairs = {(min(a, b), max(a, b)) for a, b in itertools.product(block.gpus, other.gpus) if a != b}
    if not pairs:
        return Text("·", style="dim")
    counts = Counter(word_of(links[pair]) for pair in pairs)
    denied = any(links[pair].accessible is False for pair in pairs)
    if len(counts) == 1:
        return _cell(next(iter(counts)), denied=denied)
    order = ("?", "PCIE", "SYS", "NODE", "PHB", "PXB", "PIX", "XGMI")
    worst = min(counts, key=order.index)
    return Text(f"{worst} {counts[worst]}/{len(pairs)}", style="bold red" if denied else LINK_COLOURS[worst])


def ranges(numbers: Iterable[int]) -> str:
    """Write numbers as ``0-3,8``."""
    ordered = sorted(numbers)
    out = []
    for _key, run in itertools.groupby(enumerate(ordered), key=lambda item: item[1] - item[0]):
        members = [number for _position, number in run]
        out.append(str(members[0]) if len(members) == 1 else f"{members[0]}-{members[-1]}")
    return ",".join(out)


# --- NUMA and PCIe ------------------------------------------------------------------------------------------------


def tree_view(evidence: Evidence) -> Tree:
    """Return NUMA nodes, their CPUs and memory, the GPUs on them, and each GPU's nearest network card."""
    topology = evidence.topology
    known = {node.id: node for node in topology.numa}
    if "gpu_numa" not in evidence.collects and not known:
        tree = Tree("GPUs (NUMA nodes not in this capture)", guide_style="dim")
        _add_gpus(tree, topology.gpus, evidence)
        return tree
    tree = Tree("NUMA", guide_style="dim")
    by_node: dict[int | None, list[Gpu]] = {}
    for gpu in topology.gpus:
        by_node.setdefault(gpu.numa_node, []).append(gpu)
    numbers = sorted({n for n in by_node if n is not None} | {n for n, node in known.items() if node.cpus})
    for number in numbers:
        node = known.get(number)
        facts = [f"node {number}"]
        if node is not None and node.cpus:
            facts.append(f"CPUs {ranges(node.cpus)}")
        if node is not None and node.mem_bytes:
            facts.append(f"{node.mem_bytes / 1024**3:.0f} GiB")
        _add_gpus(tree.add(Text("  ".join(facts))), by_node.get(number, ()), evidence)
    if None in by_node:
        _add_gpus(tree.add(Text("node not known", style="yellow")), by_node[None], evidence)
    return tree


def _add_gpus(branch: Tree, gpus: Sequence[Gpu], evidence: Evidence) -> None:
    """Add one line a GPU; of many GPUs one line a device, and without addresses one line for all that are alike."""
    many = len(evidence.topology.gpus) > MATRIX_MAX
    groups: dict[tuple[str, str], list[Gpu]] = {}
    for gpu in gpus:
        device = gpu.bdf.rsplit(".", 1)[0] if gpu.bdf and many else "" if many else str(gpu.index)
        groups.setdefault((device, _facts_of(gpu)), []).append(gpu)
    for (_device, facts), members in groups.items():
        address = members[0].bdf or ""
        if len(members) > 1 and address:
            address = address.rsplit(".", 1)[0] + ".*"
        parts = [f"GPU {ranges(gpu.index for gpu in members):<5}", address, facts]
        hip = [gpu.hip_id for gpu in members if gpu.hip_id is not None]
        oam = {gpu.oam_id for gpu in members if gpu.oam_id is not None}
        parts += [f"HIP {ranges(hip)}"] if hip else []
        parts += [f"OAM {ranges(oam)}"] if oam else []
        text = Text("  ".join(part for part in parts if part).rstrip())
        nic = _nearest_nic(members[0], evidence)
        if nic:
            text.append(f"  {nic}", style="dim")
        branch.add(text)


def _facts_of(gpu: Gpu) -> str:
    facts = [gpu.device_id, gpu.arch]
    if gpu.vram_bytes:
        facts.append(f"{gpu.vram_bytes / 1024**3:.0f} GiB")
    modes = [mode for mode in (gpu.partition.compute, gpu.partition.memory) if mode]
    if modes:
        facts.append("/".join(modes))
    return "  ".join(fact for fact in facts if fact)


#: Classes of a GPU's path to a network card, from best to worst.
_NEAREST = ("PIX", "PXB", "PHB", "NODE", "SYS")


def _nearest_nic(gpu: Gpu, evidence: Evidence) -> str:
    paths: Mapping[str, str] = evidence.facts.get("gpu_nic", {}).get(gpu.bdf or "", {})
    known = sorted((_NEAREST.index(kind), nic) for nic, kind in paths.items() if kind in _NEAREST)
    return f"NIC {known[0][1]} {_NEAREST[known[0][0]]}" if known else ""


# --- findings -----------------------------------------------------------------------------------------------------


#: Findings of one kind that are written out; the others are counted.
ALIKE_MAX = 4


def findings_view(findings: Sequence[Finding]) -> Group:
    """Return the findings by kind, worst first, each kind with its remedy; what was only not collected is one line."""
    table = Table.grid(padding=(0, 1))
    table.add_column(no_wrap=True)
    table.add_column()
    quiet = [f for f in findings if f.code == "not_collected" and f.severity == "info"]
    kinds: dict[tuple[str, str], list[Finding]] = {}
    for item in findings:
        if item not in quiet:
            kinds.setdefault((item.severity, item.code), []).append(item)
    # The first of a kind decides where the kind stands, and severities stay together.
    for (severity, code), items in sorted(kinds.items(), key=lambda kind: SEVERITIES.index(kind[1][0].severity)):
        lines = [f"[bold]{escape(f.subject)}[/]: {escape(f.message)}" for f in items[:ALIKE_MAX]]
        lines[0] += f" [dim]({escape(code)})[/]"
        if len(items) > ALIKE_MAX:
            lines.append(f"and {len(items) - ALIKE_MAX} more: {escape(_names(items[ALIKE_MAX:]))}")
        if severity != "info":
            lines += [f"[dim]→ {escape(remedy)}[/]" for remedy in dict.fromkeys(f.remedy for f in items)]
        table.add_row(Text(severity, style=COLOURS[severity]), "\n".join(lines))
    parts: list[Table | Text] = [table] if table.row_count else []
    if quiet:
        what = ", ".join(f.message.split(" not collected", 1)[0] for f in quiet)
        parts.append(Text(f"not in this capture: {what}", style="dim"))
    return Group(*parts)


def _names(items: Sequence[Finding]) -> str:
    names = list(dict.fromkeys(f.subject for f in items))
    return ", ".join(names[:8]) + (" ..." if len(names) > 8 else "")
