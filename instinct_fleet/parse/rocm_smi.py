"""rocm-smi 4.5 to 7.x: ``--showtopo`` and its parts as text or JSON, ``--showbus``, and facts of the concise table.

Facts filled (by GPU number unless said otherwise):

- ``numa_nearest``: node with the nearest KFD link; ``numa_affinity``: the kernel's ``numa_node``. None: not known.
  ``Gpu.numa_node`` is the affinity, or the nearest where a capture shows no affinity.
- ``vram_used_percent``, ``gpu_use_percent``: concise table only, whole percent. Memory that is largely taken on a GPU
  at 0 % is what a hang leaves behind, or a loaded server without requests; the table does not tell which.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from instinct_fleet.parse import smi
from instinct_fleet.parse.base import Aspect, Reading, numa_or_unknown

TOOL = "rocm-smi"
_TITLE = re.compile(r"^\s*=+\s*([^=\s][^=]*?)\s*=+\s*$")
_SYSTEM_KEY = re.compile(
    r"\(Topology\) (Weight|Hops|Link type|Link accessibility) between DRM devices (\d+) and (\d+)", re.IGNORECASE
)
_JSON_ASPECTS: dict[str, Aspect] = {
    "weight": "link_weight",
    "hops": "link_hops",
    "link type": "link_type",
    "link accessibility": "link_access",
}
_NUMA_LINE = re.compile(r"^\s*GPU\[(\d+)\]\s*:\s*(?:\(Topology\)\s*)?(Numa Node|Numa Affinity)\s*:\s*(.*?)\s*$")
_BUS_LINE = re.compile(r"^\s*GPU\[(\d+)\]\s*:\s*PCI Bus:\s*(\S+)\s*$")
_DEVICE_LINE = re.compile(r"^\s*GPU\[(\d+)\]\s*:")


def _aspect_of(title: str) -> Aspect | None:
    """Return what a block of this title holds, None for a block without a matrix."""
    words = title.lower()
    if words.startswith("weight between"):
        return "link_weight"
    if words.startswith("hops between"):
        return "link_hops"
    if words.startswith("link type between"):
        return "link_type"
    if words.startswith("link accessibility between"):
        return "link_access"
    return "link_bandwidth" if words == "bandwidth" else None


def sniff(text: str) -> bool:
    """Whether this text is rocm-smi's, by its banner, its lines or its JSON keys."""
    return bool(
        re.search(
            r"=+ ROCm System Management Interface =+|= End of ROCm SMI Log =|\(Topology\)|between two GPUs ="
            r"|^GPU\[\d+\]\s*:|between DRM devices|No JSON data to report|^device,\(Topology\)"
            r"|^\s*\{\s*\"(card\d+|system)\"\s*:",
            text,
            re.MULTILINE,
        )
    )


def parse(text: str, *, stderr: str = "", rc: int | None = None) -> Reading:
    """Read any rocm-smi output; see the module for the facts it fills."""
    scanned = smi.scan(text, stderr=stderr, rc=rc)
    draft = smi.Draft(kind="rocm-smi showtopo", tool=TOOL)
    clean = scanned.clean
    if re.search(r"Concise (Hardware )?Info", clean):
        _read_concise(draft, clean)
    elif smi.JSON_START.search(clean) and not re.search(r"^\s*=+ ", clean, re.MULTILINE):
        _read_json(draft, clean)
    elif smi.looks_like_csv(clean):
        smi.refuse_csv(draft)
    elif clean.strip():
        _read_text(draft, clean)
    return smi.finish(draft, scanned)


# --- JSON ---------------------------------------------------------------------------------------------------------


def _read_json(draft: smi.Draft, text: str) -> None:
    draft.layout = "json"
    found = smi.documents(text)
    error = smi.error_document(found.values)
    if error is not None:
        draft.refuse("collect_library_error", "error", f"the tool failed: {error}", "run the tool by hand as root")
        return
    if found.problem is not None:
        _refuse_broken_json(draft, found)
        return
    merged: dict[str, Any] = {}
    for value in found.values:
        if isinstance(value, Mapping):
            merged.update(value)
    cards = {int(k[4:]): v for k, v in merged.items() if re.fullmatch(r"card\d{1,4}", k) and isinstance(v, Mapping)}
    system = merged.get("system")
    tables: dict[Aspect, smi.Cells] = {}
    numbers = set(cards)
    for key, value in system.items() if isinstance(system, Mapping) else ():
        match = _SYSTEM_KEY.fullmatch(str(key).strip())
        if match is None:
            if "between DRM" in str(key) or "(Topology)" in str(key):
                draft.note(
                    "collect_unexpected",
                    "unknown",
                    f"the key {str(key)[:80]!r} is not one that rocm-smi prints",
                    "capture the tool's output again",
                )
            continue
        a, b = sorted((int(match.group(2)), int(match.group(3))))
        numbers |= {a, b}
        cells = tables.setdefault(_JSON_ASPECTS[match.group(1).lower()], {})
        if (a, b) in cells and cells[a, b] != value:
            cells[b, a] = value  # said twice and differently: the contradiction is found below
        cells.setdefault((a, b), value)
    if not numbers:
        draft.refuse(
            "collect_not_json",
            "error",
            "the JSON holds no card and no pair of devices, expected `cardN` and `system`",
            "capture `rocm-smi --showtopo --json`",
        )
        return
    nodes: dict[int, Any] = {}
    affinities: dict[int, Any] = {}
    for number, card in cards.items():
        for key, value in card.items():
            if "Numa Node" in str(key):
                nodes[number] = value
            elif "Numa Affinity" in str(key):
                affinities[number] = value
            elif "PCI Bus" in str(key):
                draft.gpu(number)["bdf"] = smi.bdf_of(value)
                draft.collects.add("bdf")
    if not (tables or nodes or affinities or "bdf" in draft.collects):
        keys = sorted({str(key) for card in cards.values() for key in card})
        draft.refuse(
            "collect_unrecognised",
            "unknown",
            f"the JSON holds cards but nothing of links, NUMA nodes or addresses, only {smi.some(keys) or 'no key'}",
            "capture `rocm-smi --showtopo --json` or `rocm-smi --showbus --json`",
        )
        return
    for number in numbers:
        draft.gpu(number)
    if "bdf" in draft.collects and not (tables or nodes or affinities):
        draft.kind = "rocm-smi showbus"
    draft.collects.add("gpu_count")
    smi.check_numbers(draft, numbers)
    if tables:
        smi.fill_links(draft, tables, numbers, triangle=True)
    if nodes or affinities:
        _fill_numa(draft, nodes, affinities, numbers)


def _refuse_broken_json(draft: smi.Draft, found: smi.Documents) -> None:
    if found.problem == "truncated":
        draft.refuse(
            "collect_truncated",
            "unknown",
            f"the JSON ends in the middle: {found.detail}",
            "capture the tool's whole output (no head, no size limit)",
        )
    else:
        draft.refuse(
            "collect_not_json",
            "error",
            f"the text starts like JSON but is not: {found.detail}",
            "capture the tool's output again from the node itself; samples of documentation are not valid JSON",
        )


# --- text ---------------------------------------------------------------------------------------------------------


def _read_text(draft: smi.Draft, text: str) -> None:
    banners = [len(line.strip()) for line in text.split("\n") if "ROCm System Management Interface" in line]
    width = banners[0] if banners else 0
    draft.layout = {80: "text <=5.4", 84: "text 5.7", 90: "text >=6.0"}.get(width, "text")
    tables: dict[Aspect, smi.Cells] = {}
    columns: dict[Aspect, list[int]] = {}
    nodes: dict[int, Any] = {}
    affinities: dict[int, Any] = {}
    numbers: set[int] = set()
    title: str | None = None
    titles: list[str] = []
    aspect: Aspect | None = None
    stray = 0
    odd: list[str] = []
    ended = False
    buses: dict[int, str] = {}
    for line in text.split("\n"):
        heading = _TITLE.match(line)
        if heading:
            title = heading.group(1)
            titles.append(title)
            ended = ended or title == "End of ROCm SMI Log"
            aspect = _aspect_of(title)
            if aspect is not None:
                tables.setdefault(aspect, {})
            continue
        tokens = line.split()
        if not line.strip("= \t"):
            continue
        numa = _NUMA_LINE.match(line)
        bus = _BUS_LINE.match(line)
        if numa:
            number = int(numa.group(1))
            numbers.add(number)
            (nodes if numa.group(2) == "Numa Node" else affinities)[number] = numa.group(3)
        elif bus:
            buses[int(bus.group(1))] = bus.group(2)
        elif _DEVICE_LINE.match(line):
            match = _DEVICE_LINE.match(line)
            numbers.add(int(match.group(1)) if match else 0)
            stray += 1
        elif all(re.fullmatch(r"GPU\d{1,4}", t) for t in tokens) and line[:1] in (" ", "\t", ""):
            listed = [int(t[3:]) for t in tokens]
            numbers |= set(listed)
            if aspect is None or aspect in columns or len(set(listed)) != len(listed):
                stray += 1
                aspect = None
            else:
                columns[aspect] = listed
        elif re.fullmatch(r"GPU\d{1,4}", tokens[0]):
            number = int(tokens[0][3:])
            numbers.add(number)
            if aspect is None or aspect not in columns:
                stray += 1
                if any(smi.FOREIGN_LINK.match(t) for t in tokens[1:]):
                    smi.refuse_foreign(draft, sorted({t for t in tokens[1:] if smi.FOREIGN_LINK.match(t)}))
                    return
                continue
            cells = tables[aspect]
            if any(key[0] == number for key in cells):
                stray += 1
            elif len(tokens) - 1 == len(columns[aspect]):
                cells.update({(number, j): t for j, t in zip(columns[aspect], tokens[1:], strict=True)})
            # A row of another length has lost a cell, and which one cannot be told: none of it is used.
        elif not re.match(r"Format: min-max|\"0-0\" min-max", line.strip()):
            odd.append(line.strip())
    _finish_text(
        draft,
        tables=tables,
        columns=columns,
        nodes=nodes,
        affinities=affinities,
        numbers=numbers,
        buses=buses,
        titles=titles,
    )
    if draft.refused:
        return
    if stray:
        draft.note(
            "collect_truncated",
            "unknown",
            f"{stray} lines stand where no release prints them, so a title, a heading or a row is missing",
            "capture the tool's whole output",
        )
    if odd:
        draft.note(
            "collect_noise",
            "warning",
            f"{len(odd)} lines are none that rocm-smi prints: {odd[0][:120]}",
            "run the command by hand and read the remark",
        )
    if not ended:
        draft.note(
            "collect_truncated",
            "unknown",
            "the closing line `End of ROCm SMI Log` is missing",
            "capture the tool's whole output",
        )


def _finish_text(
    draft: smi.Draft,
    *,
    tables: dict[Aspect, smi.Cells],
    columns: dict[Aspect, list[int]],
    nodes: dict[int, Any],
    affinities: dict[int, Any],
    numbers: set[int],
    buses: dict[int, str],
    titles: list[str],
) -> None:
    for number in numbers | set(buses):
        draft.gpu(number)
    if buses:
        draft.kind = "rocm-smi showbus"
        _fill_buses(draft, buses)
    if not numbers and not buses:
        draft.refuse(
            "collect_truncated" if titles else "collect_unrecognised",
            "unknown",
            "the text holds no GPU" + (f", only the blocks {smi.some(titles)}" if titles else ""),
            "capture `rocm-smi --showtopo`",
        )
        return
    draft.collects.add("gpu_count")
    smi.check_numbers(draft, numbers | set(buses))
    for aspect in list(tables):
        raw = tables[aspect].values()
        if aspect != "link_type" and any(str(v).upper() in ("XGMI", "PCIE") for v in raw):
            draft.note(
                "collect_inconsistent",
                "error",
                f"the table under `{aspect.removeprefix('link_')}` holds link types, so a title or a table is missing",
                "capture the tool's whole output; the table was not used",
            )
            del tables[aspect]
        elif aspect in columns and set(columns[aspect]) != numbers:
            missing = sorted(numbers - set(columns[aspect]))
            draft.note(
                "collect_truncated",
                "unknown",
                f"the table under `{aspect.removeprefix('link_')}` has no column for GPU {smi.some(missing)}",
                "capture the tool's whole output",
            )
    if tables:
        smi.fill_links(draft, tables, numbers)
    if not draft.refused and ("Numa Nodes" in titles or nodes or affinities):
        _fill_numa(draft, nodes, affinities, numbers)


def _fill_buses(draft: smi.Draft, buses: Mapping[int, str]) -> None:
    draft.collects.add("bdf")
    known = {number: smi.bdf_of(bus) for number, bus in buses.items()}
    for number, bdf in known.items():
        draft.gpu(number)["bdf"] = bdf
    bad = sorted(number for number, bdf in known.items() if bdf is None)
    if bad:
        draft.note(
            "collect_unexpected",
            "unknown",
            f"no PCI address could be read for GPU {smi.some(bad)}",
            "capture `rocm-smi --showbus` again",
        )
    seen = [b for b in known.values() if b is not None]
    twice = sorted({b for b in seen if seen.count(b) > 1})
    if twice:
        # Releases before 6.1 drop the PCI domain of partitions.
        draft.note(
            "collect_inconsistent",
            "unknown",
            f"{len(twice)} PCI addresses stand for several GPUs ({smi.some(twice)}), expected one each; rocm-smi "
            "before 6.1 loses the domain of partitions",
            "take the addresses from `amd-smi list --json` or from the KFD tree",
        )
        for number, bdf in known.items():
            if bdf in twice:
                draft.gpu(number)["bdf"] = None


def _fill_numa(draft: smi.Draft, nodes: Mapping[int, Any], affinities: Mapping[int, Any], numbers: set[int]) -> None:
    draft.collects.add("gpu_numa")
    node = {i: numa_or_unknown(v) for i, v in nodes.items()}
    affinity = {i: numa_or_unknown(v) for i, v in affinities.items()}
    draft.facts["numa_nearest"] = {i: node.get(i) for i in sorted(numbers)}
    draft.facts["numa_affinity"] = {i: affinity.get(i) for i in sorted(numbers)} if affinities else {}
    lost = []
    for i in sorted(numbers):
        draft.gpu(i)["numa_node"] = affinity.get(i) if affinities else node.get(i)
        if i not in nodes or (affinities and i not in affinities):
            lost.append(i)
    if lost:
        draft.note(
            "collect_partial",
            "unknown",
            f"the NUMA node of GPU {smi.some(lost)} could not be read",
            "read /sys/bus/pci/devices/<address>/numa_node",
        )


# --- the concise table --------------------------------------------------------------------------------------------


def _read_concise(draft: smi.Draft, text: str) -> None:
    """Read no topology from the concise table, whose columns change per release, but two facts of its row ends."""
    draft.kind, draft.layout = "rocm-smi concise", "concise"
    vram: dict[int, int] = {}
    busy: dict[int, int] = {}
    ends_right = bool(re.search(r"VRAM%\s+GPU%\s*$", text, re.MULTILINE))
    for line in text.split("\n"):
        # Both columns stand at the end of a device's row in every release that has them.
        match = re.match(r"^(\d{1,3})\s.*?\s(\d{1,3})%\s+(\d{1,3})%\s*$", line)
        if match and ends_right:
            vram[int(match.group(1))] = int(match.group(2))
            busy[int(match.group(1))] = int(match.group(3))
    for number in vram:
        draft.gpu(number)
    if vram:
        draft.facts |= {"vram_used_percent": vram, "gpu_use_percent": busy}
        draft.collects.add("vram")
    draft.note(
        "collect_unsupported_layout",
        "unknown",
        "the concise table holds no links, and its columns change with each release; only the use of memory and of "
        "GPUs was read",
        "capture `amd-smi topology --json` or `rocm-smi --showtopo --json`",
    )
