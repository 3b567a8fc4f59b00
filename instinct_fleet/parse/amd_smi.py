"""amd-smi 5.7 to 7.x: topology, list, static, partition, version, xgmi, metric, monitor, process and the bare table.

Text and JSON of one command give the same Reading: text in blocks (``GPU: 0`` and indented keys) is first turned into
the documents that the JSON form would have been.

Facts filled (by GPU number unless said otherwise; sizes in bytes; None: asked for, and not known):

- list: ``kfd_ids``, ``kfd_nodes`` (KFD node numbers, not NUMA nodes), ``partition_ids``, ``hsa_ids``, ``render``.
- static: ``market_names``, ``numa_nearest`` (by KFD), ``numa_affinity`` (the kernel's numa_node, as in ``Gpu``),
  ``firmware`` (version of VBIOS or IFWI), ``partition_ids``; not by GPU: ``driver`` {name, version}.
- partition: ``partition_ids`` (tuples of numbers), ``memory_partition_caps``.
- version: ``versions`` {tool, library, rocm, amdgpu}; not by GPU.
- xgmi: ``link_status`` (tuple of U, D, X or None, one a port), ``xgmi_status`` {(a, b): the same for a pair},
  ``xgmi_bit_rate_gbps`` per lane, ``xgmi_link_gbps`` per link and direction, ``xgmi_read_bytes`` and
  ``xgmi_write_bytes`` {(a, b): accumulated}.
- metric: ``ecc`` {correctable, uncorrectable, deferred} of the block XGMI_WAFL, ``ecc_blocks`` {BLOCK: the same},
  ``ecc_total`` the same of all blocks, ``vram_used``, ``vram_total``, ``gpu_use_percent``.
- monitor and the bare table: ``vram_used``, ``vram_total``, ``gpu_use_percent``; bare table: ``ecc_total``.
- process and the bare table: ``processes`` {gpu: ({pid, name, vram}, ...)}; not by GPU: ``vram_busy``, the frozenset of
  GPUs that a process uses, there only when all of them are known.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from instinct_fleet.parse import smi
from instinct_fleet.parse.base import Aspect, Reading, numa_or_unknown

TOOL = "amd-smi"
#: Device ids of MI100 and the MI200s, which have no partition modes: there N/A is all there is to say.
WITHOUT_PARTITIONS = frozenset({"0x738c", "0x7408", "0x740c", "0x740f", "0x7410"})
_AGAIN = "capture `amd-smi topology --json` again, whole"

_TABLE = re.compile(r"^\s*([A-Z][A-Z -]*[A-Z]) TABLE:\s*$")
_TABLE_ASPECT: dict[str, Aspect] = {
    "ACCESS": "link_access",
    "WEIGHT": "link_weight",
    "HOPS": "link_hops",
    "LINK TYPE": "link_type",
    "NUMA BW": "link_bandwidth",
}
#: An error text has blanks of its own and no space after it: it ends where the next cell's value starts.
_STATUS_CELL = re.compile(r"AMDSMI_STATUS_[A-Z_]+(?: - .*?)?(?=AMDSMI_STATUS_|\d+-\d+|N/A|SELF|XGMI|PCIE|\s{2,}|$)")

_JSON_HINT = re.compile(
    r"\"(gpu|gpu_data|gpu_id|cpu_data|link_accessibility|links|amdsmi_library_version|link_metrics|xgmi_metric"
    r"|current_partition|memory_partition|process_list|process_info|ecc_blocks|mem_usage)\"\s*:"
    r"|^\s*\{\s*\"error\"\s*:.*(AMDSMI|\"code\")",
    re.MULTILINE,
)
_TEXT_HINT = re.compile(
    r"^GPU: \d+\s*$|^\s*(ACCESS|WEIGHT|HOPS|LINK TYPE|NUMA BW) TABLE:|^\s*LINK METRIC TABLE:|^\s*GPU LINK PORT STATUS:"
    r"|^\s*XGMI LINK STATUS:|^AMDSMI Tool:|^\s*CURRENT_PARTITION:|^\s*(MEMORY_PARTITION|ACCELERATOR_PARTITION\w*):\s*$"
    r"|^\s*(TIMESTAMP\s+)?GPU\s+(XCP\s+)?POWER\s|^\|\s+AMD-SMI \d|amdsmi_cli_exceptions|AmdSmi\w*Exception"
    r"|AMDSMI_STATUS_|AMDSMI has returned error|User is missing the following required groups"
    r"|Permission needed to access required GPU device node|Unable to get devices, driver not initialized"
    r"|^gpu,(bdf|link_accessibility|uuid|market_name)",
    re.MULTILINE,
)


def sniff(text: str) -> bool:
    """Whether this text is amd-smi's, by its tables, blocks, JSON keys or error texts."""
    return bool(_TEXT_HINT.search(text) or _JSON_HINT.search(text))


def parse(text: str, *, stderr: str = "", rc: int | None = None) -> Reading:
    """Read any amd-smi output; see the module for the facts each command fills."""
    scanned = smi.scan(text, stderr=stderr, rc=rc)
    draft = smi.Draft(kind="amd-smi", tool=TOOL)
    clean = scanned.clean
    if smi.JSON_START.search(clean):
        _read_json(draft, clean)
    elif smi.looks_like_csv(clean):
        smi.refuse_csv(draft)
    elif clean.strip():
        _read_text(draft, clean)
    return smi.finish(draft, scanned)


# --- JSON ---------------------------------------------------------------------------------------------------------


def _read_json(draft: smi.Draft, text: str) -> None:
    found = smi.documents(text)
    error = smi.error_document(found.values)
    if error is not None:
        _refuse_error(draft, error)
        return
    documents = list(_flatten(found.values))
    kind = _kind_of(documents) or _kind_of_text(text)
    if kind:
        draft.kind = f"amd-smi {kind}"
    if found.problem == "truncated":
        draft.refuse(
            "collect_truncated",
            "unknown",
            f"the JSON ends in the middle: {found.detail}",
            "capture the tool's whole output (no head, no size limit)",
        )
        return
    if found.problem == "not_json":
        draft.refuse(
            "collect_not_json",
            "error",
            f"the text starts like JSON but is not: {found.detail}",
            "capture the tool's output again from the node itself; samples of documentation are not valid JSON",
        )
        return
    draft.layout = "json"
    _read_documents(draft, documents)


def _refuse_error(draft: smi.Draft, error: str) -> None:
    code, remedy = "collect_library_error", "run the command by hand as root and read `dmesg | grep amdgpu`"
    if re.search(r"DRIVER_NOT_LOADED|driver not (loaded|initialized)|\(code -?34\)", error, re.IGNORECASE):
        code, remedy = "collect_driver_not_loaded", "load amdgpu (`modprobe amdgpu`) or install it with the role rocm"
    elif re.search(r"NO_PERM|[Pp]ermission", error):
        code, remedy = "collect_permission", "add the user to the groups render and video, or use become: true"
    elif re.search(r"TIMEOUT|timed? ?out", error, re.IGNORECASE):
        code = "collect_timeout"
    draft.refuse(code, "error", f"the tool printed an error in place of data: {error}", remedy)


def _flatten(values: Iterable[Any]) -> Iterable[dict[str, Any]]:
    """Yield the per-GPU documents of bare lists, of ``gpu_data`` wrappings, and of single documents."""
    for value in values:
        if isinstance(value, list):
            yield from _flatten(value)
        elif isinstance(value, dict):
            if "gpu" in value or "gpu_id" in value or "tool" in value:
                yield value
                continue
            lists = [v for k, v in value.items() if isinstance(v, (list, dict)) and k != "cpu_data"]
            if lists and len(lists) == len([k for k in value if k != "cpu_data"]):
                yield from _flatten(lists)
            else:
                yield value


_KIND_KEYS: tuple[tuple[str, frozenset[str]], ...] = (
    ("version", frozenset({"amdsmi_library_version", "amdsmi library version"})),
    ("topology", frozenset({"links", "link_accessibility", "link_type", "numa_bandwidth"})),
    ("xgmi", frozenset({"link_metrics", "link_status", "xgmi_link_status", "port_status", "link_port_status"})),
    ("process", frozenset({"process_list", "process_info"})),
    (
        "partition",
        frozenset({"accelerator_type", "memory_partition_caps", "current_memory_partition", "profile_index"}),
    ),
    ("static", frozenset({"asic", "bus", "vbios", "ifwi", "board", "numa", "vram", "driver", "partition", "ras"})),
    ("metric", frozenset({"ecc", "ecc_blocks", "mem_usage", "usage", "power", "temperature", "clock", "xgmi_err"})),
    ("monitor", frozenset({"power_usage", "vram_used", "gfx_util", "hotspot_temperature", "vram_usage"})),
    ("list", frozenset({"uuid", "kfd_id"})),
)


def _kind_of(documents: Iterable[Mapping[str, Any]]) -> str | None:
    keys = {str(k).lower() for d in documents for k in d}
    for kind, marks in _KIND_KEYS:
        if keys & marks:
            return kind
    return None


def _kind_of_text(text: str) -> str | None:
    keys = {k.lower() for k in re.findall(r"\"([A-Za-z_ ]+)\"\s*:", text)}
    return _kind_of([dict.fromkeys(keys)])


def _read_documents(draft: smi.Draft, documents: Sequence[Mapping[str, Any]]) -> None:
    kind = _kind_of(documents)
    if kind is None and any("Successfully set" in str(v) for d in documents for v in d.values()):
        draft.kind = "amd-smi set"
        draft.refuse(
            "collect_unsupported_layout",
            "unknown",
            "this is the answer to a change of settings, which says nothing about what is in force",
            "read the setting: `amd-smi partition --current`",
        )
        return
    if kind is None:
        draft.refuse(
            "collect_unrecognised",
            "unknown",
            "the documents hold none of the keys that a known amd-smi command prints"
            + (f": {smi.some(sorted({str(k) for d in documents for k in d}), 6)}" if documents else ""),
            _AGAIN,
        )
        return
    draft.kind = f"amd-smi {kind}"
    if kind == "version":
        _read_version(draft, documents)
        return
    numbered: list[tuple[int, Mapping[str, Any]]] = []
    nameless = 0
    for document in documents:
        number = smi.int_of(document.get("gpu", document.get("gpu_id")))
        if number is None or not 0 <= number < 4096:
            nameless += 1
        else:
            numbered.append((number, document))
    if nameless and kind != "partition":
        draft.note("collect_unexpected", "unknown", f"{nameless} documents name no GPU", _AGAIN)
    if not numbered:
        if kind == "partition":
            _note_partition_unknown(draft)
        else:
            draft.refuse("collect_unexpected", "unknown", "no document names a GPU", _AGAIN)
        return
    for number, _document in numbered:
        draft.gpu(number)
    {
        "topology": _read_topology,
        "xgmi": _read_xgmi_documents,
        "process": _read_processes,
        "partition": _read_partition,
        "static": _read_static,
        "metric": _read_metric,
        "monitor": _read_monitor_documents,
        "list": _read_list,
    }[kind](draft, numbered)


Numbered = Sequence[tuple[int, Mapping[str, Any]]]


def _once(draft: smi.Draft, documents: Numbered) -> bool:
    """Refuse a text that describes one GPU twice; return whether each is described once."""
    numbers = [n for n, _ in documents]
    twice = sorted({n for n in numbers if numbers.count(n) > 1})
    if twice:
        draft.refuse(
            "collect_inconsistent",
            "error",
            f"GPU {smi.some(twice)} is described more than once, expected once",
            "capture one run of the tool (no -w, no appended files)",
        )
    return not twice


# --- topology -----------------------------------------------------------------------------------------------------

_LINK_KEYS: dict[Aspect, tuple[str, ...]] = {
    "link_type": ("link_type",),
    "link_weight": ("weight",),
    "link_hops": ("num_hops", "hops"),
    "link_access": ("link_status", "link_accessibility"),
    "link_bandwidth": ("bandwidth", "numa_bandwidth"),
}


def _read_topology(draft: smi.Draft, documents: Numbered) -> None:
    draft.collects.add("gpu_count")
    if not _once(draft, documents):
        return
    tables: dict[Aspect, smi.Cells] = {}
    new = any("links" in d for _, d in documents)
    numbers = {n for n, _ in documents}
    bdfs: dict[int, set[str]] = {}
    broken: list[str] = []
    for number, document in documents:
        _remember_bdf(bdfs, number, document.get("bdf"))
        if new:
            _read_link_list(number, document.get("links"), tables=tables, numbers=numbers, bdfs=bdfs, broken=broken)
        else:
            for aspect, names in _LINK_KEYS.items():
                for name in names:
                    row = document.get(name)
                    if not isinstance(row, Mapping):
                        continue
                    cells = tables.setdefault(aspect, {})
                    for key, value in row.items():
                        match = re.fullmatch(r"gpu_(\d{1,4})", str(key).strip().lower())
                        if match is None:
                            broken.append(f"key {str(key)[:40]} in {name} of GPU {number}")
                            continue
                        peer = int(match.group(1))
                        numbers.add(peer)
                        cells[number, peer] = value
    if draft.layout == "json":
        draft.layout = _new_json_layout(documents) if new else _old_json_layout(tables)
    elif not new:
        draft.layout = "text 5.7"
    for number in numbers:
        draft.gpu(number)
    if broken:
        draft.note("collect_unexpected", "unknown", f"entries that name no GPU: {smi.some(broken)}", _AGAIN)
    smi.check_numbers(draft, numbers)
    _fill_bdfs(draft, bdfs, numbers, expected=new)
    if not draft.refused and (tables or len(numbers) > 1):
        smi.fill_links(draft, tables or {"link_type": {}}, numbers)


def _old_json_layout(tables: Mapping[Aspect, smi.Cells]) -> str:
    booleans = any(isinstance(value, bool) for value in tables.get("link_access", {}).values())
    return "json 5.7" if booleans else "json 6.0"


def _new_json_layout(documents: Numbered) -> str:
    extended = any(
        "coherent" in link
        for _number, document in documents
        if isinstance(document.get("links"), list)
        for link in document["links"]
        if isinstance(link, Mapping)
    )
    return "json >=6.3" if extended else "json >=6.1.1"


def _remember_bdf(bdfs: dict[int, set[str]], number: int, value: Any) -> None:
    bdf = smi.bdf_of(value)
    if bdf is not None:
        bdfs.setdefault(number, set()).add(bdf)


def _read_link_list(
    number: int,
    links: Any,
    *,
    tables: dict[Aspect, smi.Cells],
    numbers: set[int],
    bdfs: dict[int, set[str]],
    broken: list[str],
) -> None:
    """Read one GPU's ``links``. A peer is known by its number, never by its place in the list."""
    if not isinstance(links, list):
        broken.append(f"links of GPU {number}")
        return
    for link in links:
        peer = smi.int_of(link.get("gpu")) if isinstance(link, Mapping) else None
        if peer is None or not 0 <= peer < 4096:
            broken.append(f"a link of GPU {number}")
            continue
        numbers.add(peer)
        _remember_bdf(bdfs, peer, link.get("bdf"))
        for aspect, names in _LINK_KEYS.items():
            for name in names:
                if name in link:
                    cells = tables.setdefault(aspect, {})
                    if (number, peer) in cells:
                        broken.append(f"GPU {peer} twice among the links of GPU {number}")
                    cells[number, peer] = link[name]


def _fill_bdfs(draft: smi.Draft, bdfs: Mapping[int, set[str]], numbers: Iterable[int], *, expected: bool) -> None:
    if not bdfs and not expected:
        return
    draft.collects.add("bdf")
    several = [f"GPU {n}: {', '.join(sorted(b))}" for n, b in sorted(bdfs.items()) if len(b) > 1]
    owners: dict[str, list[int]] = {}
    for number, found in sorted(bdfs.items()):
        for bdf in found:
            owners.setdefault(bdf, []).append(number)
    shared = [f"{bdf}: GPU {smi.some(n)}" for bdf, n in sorted(owners.items()) if len(n) > 1]
    if several or shared:
        draft.refuse(
            "collect_inconsistent",
            "error",
            f"PCI addresses contradict each other: {smi.some(several + shared)}; expected one address per GPU",
            _AGAIN,
        )
        return
    for number, found in bdfs.items():
        draft.gpu(number)["bdf"] = next(iter(found))
    missing = sorted(set(numbers) - set(bdfs))
    if missing:
        draft.note("collect_partial", "unknown", f"the address of GPU {smi.some(missing)} was not printed", _AGAIN)


# --- text ---------------------------------------------------------------------------------------------------------


def _read_text(draft: smi.Draft, text: str) -> None:
    draft.layout = "text"
    if re.search(r"^\s*LINK METRIC TABLE:|^\s*GPU LINK PORT STATUS:|^\s*XGMI LINK STATUS:", text, re.MULTILINE):
        _read_xgmi_text(draft, text)
    elif any(_TABLE.match(line) for line in text.split("\n")):
        _read_topology_tables(draft, text)
    elif "CURRENT_PARTITION:" in text or re.search(
        r"^\s*(MEMORY_PARTITION|ACCELERATOR_PARTITION\w*):\s*$", text, re.MULTILINE
    ):
        _read_partition_tables(draft, text)
    elif re.search(r"^GPU: \d+\s*$", text, re.MULTILINE):
        _read_documents(draft, _blocks(draft, text))
    elif re.search(r"^\|\s+AMD-SMI \d", text, re.MULTILINE):
        _read_bare_table(draft, text)
    elif re.search(r"^\s*(TIMESTAMP\s+)?GPU\s+(XCP\s+)?POWER\s", text, re.MULTILINE):
        _read_monitor_table(draft, text)
    elif re.search(r"AMDSMI Tool:", text):
        _read_version_line(draft, text)
    # Anything else is a remark, which the scan has taken and report() names.


#: Keys that a section of ``static`` holds once for each power policy (SOC_PSTATE, XGMI_PLPD); in JSON it is a list.
_REPEATED = frozenset({"policy_id", "policy_description"})


def _blocks(draft: smi.Draft, text: str) -> list[dict[str, Any]]:
    """Turn ``GPU: 0`` blocks of indented ``KEY: value`` lines into the documents that --json would print."""
    documents: list[dict[str, Any]] = []
    stack: list[tuple[int, dict[str, Any]]] = []
    odd: list[str] = []
    above: list[str] = []
    for line in text.split("\n"):
        if not line.strip():
            continue
        match = re.match(r"^(\s*)([A-Za-z0-9_#.() /-]+?):(?:\s+(.*?))?\s*$", line)
        if not stack and not line[0].isspace() and not re.match(r"[CG]PU: \d+\s*$", line):
            above.append(line.strip())
            continue
        if match is None and stack and re.match(r"\s*No running process", line) and not stack[-1][1]:
            stack[-1][1]["none"] = line.strip()  # newer releases give it a line of its own below PROCESS_INFO:
            continue
        if match is None:
            odd.append(line.strip())
            continue
        depth, key, value = len(match.group(1).expandtabs(4)), match.group(2).strip().lower(), match.group(3)
        if key in ("gpu", "cpu") and depth == 0:
            document: dict[str, Any] = {key: value}
            # An APU's host cores stand before its GPUs (`cpu_data` in JSON); they are no GPU's facts.
            documents += [document] if key == "gpu" else []
            stack = [(-1, document)]
            continue
        if not stack:
            odd.append(line.strip())
            continue
        while len(stack) > 1 and stack[-1][0] >= depth:
            stack.pop()
        parent = stack[-1][1]
        if value is None:
            child: dict[str, Any] = {}
            # A section may come several times, as PROCESS_INFO does: once for each process.
            before = parent.get(key)
            parent[key] = child if before is None else [*(before if isinstance(before, list) else [before]), child]
            stack.append((depth, child))
        elif key in _REPEATED:
            parent.setdefault(key, []).append(value)
        elif key in parent and parent[key] != value:
            odd.append(line.strip())
        else:
            parent[key] = value
    _note_above(draft, above)
    if odd:
        draft.note(
            "collect_noise",
            "unknown",
            f"{len(odd)} lines are none that amd-smi prints here: {odd[0][:120]}",
            "capture the tool's output again",
        )
    return documents


def _note_above(draft: smi.Draft, lines: Sequence[str]) -> None:
    """Name the remarks above the data. No part of the data stands there, so none of it can be missing."""
    if lines:
        draft.note(
            "collect_noise",
            "warning",
            f"{len(lines)} lines stand before the tool's data: {lines[0][:120]}",
            "run the command by hand and read the remark",
        )


def _read_topology_tables(draft: smi.Draft, text: str) -> None:
    draft.kind = "amd-smi topology"
    draft.collects.add("gpu_count")
    heads: dict[str, list[str]] = {}
    rows: dict[str, dict[str, str]] = {}
    title: str | None = None
    stray: list[str] = []
    aligned_right = False
    odd: list[str] = []
    gaps, gap = 0, False
    legend = False
    for line in text.split("\n"):
        heading = _TABLE.match(line)
        if heading:
            title = heading.group(1)
            gaps, gap = gaps + gap, False
            if title in rows:
                stray.append(line.strip())
            rows.setdefault(title, {})
            legend = False
            continue
        if not line.strip():
            gap = title is not None and bool(rows[title])
            continue
        if line.strip() == "Legend:":
            title, legend = None, True
            continue
        if legend:
            continue
        # Right-aligned cells that fill their width touch the label too.
        label = re.match(r"^\s*([0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7])(.*)$", line)
        if label is None and not smi.BDF.search(line):
            odd.append(line.strip())
        elif title is None or label is None:
            stray.append(line.strip())
        elif title in heads and not smi.BDF.search(label.group(2)):
            bdf = label.group(1).lower()
            if bdf in rows[title]:
                stray.append(line.strip())
            rows[title][bdf] = line[label.end(1) :]
            aligned_right = aligned_right or bool(re.match(r"^ {3,}\S", line[label.end(1) :]))
        elif not re.sub(smi.BDF, "", line).strip() and title not in heads:
            heads[title] = [m.group(0).lower() for m in smi.BDF.finditer(line)]
        else:
            stray.append(line.strip())
    order = max(heads.values(), key=len, default=[])
    if not order:
        draft.refuse(
            "collect_truncated",
            "unknown",
            "the tables have no heading with PCI addresses",
            "capture the tool's whole output",
        )
        return
    draft.layout = _table_layout(rows, aligned_right, gaps)
    if odd:
        draft.note(
            "collect_noise",
            "warning",
            f"{len(odd)} lines are none that amd-smi prints here: {odd[0][:120]}",
            "run the command by hand and read the remark",
        )
    _fill_tables(draft, order, heads, rows, stray, right=aligned_right)


def _table_layout(rows: Mapping[str, Any], aligned_right: bool, gaps: int) -> str:
    if "DMA" in rows or any(t.startswith("CACHE COHER") for t in rows):
        return "text >=6.3"
    if aligned_right:
        return "text 6.0"
    return "text 6.1" if gaps else "text 6.2"


def _fill_tables(
    draft: smi.Draft,
    order: list[str],
    heads: Mapping[str, list[str]],
    rows: Mapping[str, Mapping[str, str]],
    stray: list[str],
    *,
    right: bool,
) -> None:
    index = {bdf: i for i, bdf in enumerate(order)}
    if len(index) != len(order):
        draft.refuse("collect_inconsistent", "error", "a PCI address stands twice in a heading", _AGAIN)
        return
    tables: dict[Aspect, smi.Cells] = {}
    torn: list[str] = []
    for title, lines in rows.items():
        if heads.get(title) != order:
            torn.append(f"heading of {title}")
        aspect = _TABLE_ASPECT.get(title)
        if aspect is not None:
            tables.setdefault(aspect, {})
        unknown = sorted(set(lines) - set(order))
        torn += [f"row {bdf} of {title}" for bdf in unknown]
        columns = heads.get(title, [])
        for bdf in order:
            cells = _row_cells(lines[bdf], len(order), right=right) if bdf in lines and columns == order else None
            if cells is None:
                torn.append(f"row {bdf} of {title}")
            elif aspect is not None:
                tables[aspect].update({(index[bdf], j): cell for j, cell in enumerate(cells)})
    for bdf, i in index.items():
        draft.gpu(i)["bdf"] = bdf
    draft.collects.add("bdf")
    if torn or stray:
        draft.note(
            "collect_truncated",
            "unknown",
            f"{len(torn) + len(stray)} parts of the tables are missing, short or out of place: "
            + smi.some(torn + stray),
            "capture the tool's whole output",
        )
    smi.fill_links(draft, tables, range(len(order)))


def _row_cells(text: str, count: int, *, right: bool) -> list[str] | None:
    """Split a row into its cells, or return None when one is missing and which cannot be told.

    Cells are 13 wide and may fill that to the last, or overflow it with an error text; both then touch the next cell.
    They are left-aligned after one blank, or right-aligned (6.0).
    """
    plain = _STATUS_CELL.sub(lambda _m: " N/A ", text)
    tokens = plain.split()
    if len(tokens) == count:
        return tokens
    start = 0 if right else 1
    raw = [text[start + 13 * i : start + 13 * (i + 1)] for i in range(count)]
    cut = [cell.strip() for cell in raw]
    # Cells may touch only where one fills its width; else the cut went through a word.
    touching = [(a, b) for a, b in itertools.pairwise(raw) if a[-1:].strip() and b[:1].strip()]
    full = all(len((b if right else a).strip()) == 13 for a, b in touching)
    fits = len(text.rstrip()) <= 13 * count + start
    return cut if all(cut) and full and fits and not any(" " in cell for cell in cut) else None


# --- list and static ----------------------------------------------------------------------------------------------


def _take(document: Mapping[str, Any], *path: str) -> Any:
    """Return a value by its path of keys, in lower or upper case, or None."""
    value: Any = document
    for key in path:
        if not isinstance(value, Mapping):
            return None
        value = value.get(key, value.get(key.upper()))
    return value


def _fact(draft: smi.Draft, name: str, number: int, value: Any) -> None:
    draft.facts.setdefault(name, {})[number] = value


def _read_list(draft: smi.Draft, documents: Numbered) -> None:
    draft.collects |= {"gpu_count", "bdf"}
    if not _once(draft, documents):
        return
    bdfs: dict[int, set[str]] = {}
    for number, document in documents:
        _remember_bdf(bdfs, number, document.get("bdf"))
        uuid = re.match(r"^[0-9a-f]{2}ff([0-9a-f]{4})-", str(document.get("uuid", "")).lower())
        if uuid:
            # The UUID embeds the PCI device id; the rest of it identifies the machine and is not kept.
            draft.gpu(number)["device_id"] = f"0x{uuid.group(1)}"
            draft.collects.add("device_id")
        for key, fact in (
            ("kfd_id", "kfd_ids"),
            ("node_id", "kfd_nodes"),
            ("partition_id", "partition_ids"),
            ("hsa_id", "hsa_ids"),
        ):
            if key in document:
                _fact(draft, fact, number, smi.int_of(document[key]))
        if "hip_id" in document:
            draft.gpu(number)["hip_id"] = smi.int_of(document["hip_id"])
        if "render" in document:
            # N/A for partitions above 0 is a fault of 6.4.0's tool, not of the machine.
            _fact(draft, "render", number, smi.text_of(document["render"]))
    smi.check_numbers(draft, [n for n, _ in documents])
    _fill_bdfs(draft, bdfs, [n for n, _ in documents], expected=True)


def _read_static(draft: smi.Draft, documents: Numbered) -> None:
    draft.collects.add("gpu_count")
    if not _once(draft, documents):
        return
    bdfs: dict[int, set[str]] = {}
    unread: list[str] = []
    partitions: list[int] = []
    for number, document in documents:
        gpu = draft.gpu(number)
        if "asic" in document:
            asic = document["asic"] if isinstance(document["asic"], Mapping) else {}
            draft.collects.add("device_id")
            gpu["device_id"] = smi.device_id_of(_take(asic, "device_id"))
            if gpu["device_id"] is None:
                unread.append(f"device id of GPU {number}")
            gpu["oam_id"] = smi.int_of(_take(asic, "oam_id"))
            arch = smi.text_of(_take(asic, "target_graphics_version"))
            if arch is not None and re.fullmatch(r"gfx[0-9a-f]{3,4}", arch):
                gpu["arch"] = arch
                draft.collects.add("arch")
            _fact(draft, "market_names", number, smi.text_of(_take(asic, "market_name")))
        if "bus" in document:
            _remember_bdf(bdfs, number, _take(document, "bus", "bdf"))
        if isinstance(document.get("vram"), Mapping):
            gpu["vram_bytes"] = smi.bytes_of(_take(document, "vram", "size"))
            draft.collects.add("vram")
        if isinstance(document.get("numa"), Mapping):
            node = numa_or_unknown(_take(document, "numa", "node"))
            affinity = numa_or_unknown(_take(document, "numa", "affinity"))
            _fact(draft, "numa_nearest", number, node)
            _fact(draft, "numa_affinity", number, affinity)
            gpu["numa_node"] = affinity
            draft.collects.add("gpu_numa")
        if isinstance(document.get("partition"), Mapping):
            _set_partition(draft, number, document["partition"], partitions)
        firmware = document.get("ifwi", document.get("vbios"))
        if isinstance(firmware, Mapping):
            _fact(draft, "firmware", number, smi.text_of(_take(firmware, "version")))
        driver = document.get("driver")
        if isinstance(driver, Mapping):
            draft.facts["driver"] = {
                "name": smi.text_of(_take(driver, "name")),
                "version": smi.text_of(_take(driver, "version")),
            }
            draft.collects.add("driver")
    smi.check_numbers(draft, [n for n, _ in documents])
    if bdfs or any("bus" in d for _, d in documents):
        _fill_bdfs(draft, bdfs, [n for n, _ in documents], expected=True)
    _note_unread(draft, unread)
    _note_partitions(draft, partitions)


def _set_partition(draft: smi.Draft, number: int, section: Mapping[str, Any], unread: list[int]) -> None:
    """Read a ``partition`` section; COMPUTE_PARTITION became ACCELERATOR_PARTITION in 6.4.2."""
    draft.collects.add("partition")
    names = ("compute_partition", "accelerator_partition", "accelerator_type")
    compute = next((t for t in (_mode(_take(section, n)) for n in names) if t), None)
    memory = next((t for t in (_mode(_take(section, n)) for n in ("memory_partition", "memory")) if t), None)
    draft.set_partition(number, compute=compute, memory=memory)
    if (compute is None or memory is None) and draft.gpu(number).get("device_id") not in WITHOUT_PARTITIONS:
        unread.append(number)
    if "partition_id" in section:
        _fact(draft, "partition_ids", number, _ids(section["partition_id"]))


def _mode(value: Any) -> str | None:
    text = (smi.text_of(value) or "").upper().strip("* ")
    return text if re.fullmatch(r"SPX|DPX|TPX|QPX|CPX|NPS[1248]", text) else None


def _ids(value: Any) -> tuple[int, ...] | None:
    """Return the partition numbers of one logical GPU: ``3``, or ``0,1,2,3`` on partition 0 before 6.4."""
    text = smi.text_of(value)
    if text is None or not re.fullmatch(r"\d{1,3}(,\s*\d{1,3})*", text):
        return None
    return tuple(int(n) for n in text.split(","))


def _note_unread(draft: smi.Draft, unread: Sequence[str]) -> None:
    if unread:
        draft.note(
            "collect_partial",
            "unknown",
            f"the tool gave no value for {len(unread)} things: {smi.some(unread)}",
            "run the tool again as root (become: true)",
        )


# --- partition ----------------------------------------------------------------------------------------------------


def _note_partition_unknown(draft: smi.Draft) -> None:
    draft.note(
        "collect_partition_unknown",
        "unknown",
        "the partitions are N/A throughout, expected a mode such as SPX and NPS1; models before MI300 have none",
        "run the collection with become: true",
    )


def _note_partitions(draft: smi.Draft, unread: Sequence[int]) -> None:
    if unread:
        draft.note(
            "collect_partition_unknown",
            "unknown",
            f"the partition of GPU {smi.some(sorted(set(unread)))} is N/A, expected a mode such as SPX and NPS1; "
            "models before MI300 have none",
            "run the collection with become: true",
        )


def _read_partition(draft: smi.Draft, documents: Numbered) -> None:
    # Sections follow each other and name the same GPUs again; profile tables are about modes, not about GPUs.
    unread: list[int] = []
    current: set[int] = set()
    for number, document in documents:
        if "accelerator_type" in document and "profile_index" not in document:
            current.add(number)
            _set_partition(draft, number, document, unread)
        elif "current_memory_partition" in document:
            memory = _mode(document["current_memory_partition"])
            draft.set_partition(number, compute=None, memory=memory)
            draft.collects.add("partition")
            _fact(draft, "memory_partition_caps", number, smi.text_of(document.get("memory_partition_caps")))
            if memory is None:
                unread.append(number)
    if current:
        draft.collects.add("gpu_count")
        smi.check_numbers(draft, current)
    elif "partition" not in draft.collects:
        _note_partition_unknown(draft)
    _note_partitions(draft, unread)


def _read_partition_tables(draft: smi.Draft, text: str) -> None:
    draft.kind = "amd-smi partition"
    documents: list[dict[str, Any]] = []
    head: list[str] = []
    odd: list[str] = []
    above: list[str] = []
    title = ""
    for line in text.split("\n"):
        tokens = line.split()
        if not tokens or line.strip() in ("Legend:", "* = Current mode"):
            continue
        if re.fullmatch(r"[A-Z_]+:", line.strip()):
            title, head = line.strip(), []
        elif tokens[0] in ("GPU_ID", "RESOURCE_INDEX"):
            head = [t.lower() for t in tokens]
        elif head and len(tokens) == len(head):
            documents.append(dict(zip(head, tokens, strict=True)))
        elif not title and not tokens[0].isdecimal():
            above.append(line.strip())
        elif not title.startswith("ACCELERATOR_PARTITION"):  # whose cells are left empty where they repeat
            odd.append(line.strip())
    _note_above(draft, above)
    numbered = [(n, d) for d in documents if (n := smi.int_of(d.get("gpu_id"))) is not None and 0 <= n < 4096]
    for number, _document in numbered:
        draft.gpu(number)
    if odd:
        draft.note(
            "collect_truncated",
            "unknown",
            f"{len(odd)} lines do not fit their table's heading: {odd[0][:120]}",
            "capture the tool's whole output",
        )
    if numbered:
        _read_partition(draft, numbered)
    else:
        _note_partition_unknown(draft)


# --- version ------------------------------------------------------------------------------------------------------


def _version_facts(draft: smi.Draft, values: Mapping[str, Any]) -> None:
    draft.collects.add("versions")
    draft.facts["versions"] = {key: smi.text_of(value) for key, value in values.items()}
    draft.version = draft.facts["versions"]["tool"]
    if draft.version is None:
        draft.note("collect_partial", "unknown", "the tool's own version is missing", "run `amd-smi version`")


def _read_version(draft: smi.Draft, documents: Sequence[Mapping[str, Any]]) -> None:
    merged: dict[str, Any] = {}
    for document in documents:
        merged.update({str(k).lower().replace(" ", "_"): v for k, v in document.items()})
    _version_facts(
        draft,
        {
            "tool": merged.get("version"),
            "library": merged.get("amdsmi_library_version"),
            "rocm": merged.get("rocm_version"),
            "amdgpu": merged.get("amdgpu_version"),
        },
    )


def _read_version_line(draft: smi.Draft, text: str) -> None:
    draft.kind = "amd-smi version"
    found: dict[str, Any] = {}
    for part in text.replace("\n", "|").split("|"):
        name, _, value = part.partition(":")
        found[name.strip().lower()] = value.strip()
    _version_facts(
        draft,
        {
            "tool": found.get("amdsmi tool"),
            "library": found.get("amdsmi library version"),
            "rocm": found.get("rocm version"),
            "amdgpu": found.get("amdgpu version"),
        },
    )


# --- xgmi ---------------------------------------------------------------------------------------------------------

#: What "no XGMI" looks like in unsigned 16 and 32 bits.
_SENTINELS = (65535, 4294967295)


def _rate(value: Any) -> float | None:
    """Return Gb/s from ``32 Gb/s`` or ``{"value": 32, "unit": "Gb/s"}``; sentinels and N/A are not known."""
    number = smi.int_of(value)
    return None if number is None or number in _SENTINELS or number < 0 else float(number)


def _port_states(values: Iterable[Any]) -> tuple[str | None, ...]:
    return tuple(v if (v := str(value).strip().upper()) in ("U", "D", "X") else None for value in values)


def _note_ports(draft: smi.Draft) -> None:
    """Say which GPUs' link status could not be read (guests print N/A)."""
    ports: Mapping[int, tuple[str | None, ...]] = draft.facts.get("link_status", {})
    bad = sorted(i for i, states in ports.items() if not states or None in states)
    if bad:
        draft.note(
            "collect_partial",
            "unknown",
            f"the link status of GPU {smi.some(bad, 8)} is not all U, D or X",
            "run `amd-smi xgmi -l` on the host, not in a guest",
        )


def _read_xgmi_text(draft: smi.Draft, text: str) -> None:
    draft.kind = "amd-smi xgmi"
    title = ""
    columns: list[str] = []
    torn: list[str] = []
    above: list[str] = []
    last: int | None = None
    for line in text.split("\n"):
        tokens = line.split()
        if not tokens:
            continue
        if re.fullmatch(r"\s*[A-Z ]+:\s*", line) or line.strip() == "Legend:":
            title, columns = line.strip().rstrip(":"), []
            if title in ("GPU LINK PORT STATUS", "XGMI LINK STATUS"):
                draft.collects.add("link_status")
                draft.kind = "amd-smi xgmi status"
            continue
        if title == "Legend" or re.match(r"^\*\s*U:Up", line.strip()):
            continue
        if tokens[0] == "bdf":
            columns = tokens
            continue
        label = re.match(r"^\s*GPU(\d{1,4})\s+([0-9a-fA-F]{4,8}(?::[0-9a-fA-F]{2}){2}\.[0-7])\s*(.*?)\s*$", line)
        if label:
            last = int(label.group(1))
            draft.gpu(last)["bdf"] = label.group(2).lower()
            _read_xgmi_row(draft, title=title, columns=columns, number=last, rest=label.group(3), torn=torn)
        elif re.match(r"^\s*(Read|Write)\s", line) and title == "LINK METRIC TABLE" and last is not None:
            peers = columns[4:]
            amounts = re.findall(r"N/A|\d+(?:\.\d+)?\s*[KMGTP]?B", line)
            if len(amounts) != len(peers):
                torn.append(line.strip())
            fact = "xgmi_read_bytes" if tokens[0] == "Read" else "xgmi_write_bytes"
            for peer, amount in enumerate(amounts[: len(peers)]):
                draft.facts.setdefault(fact, {})[last, peer] = smi.bytes_of(amount, unit="KB")
        elif title or line[0].isspace() or tokens[0].startswith("GPU"):
            torn.append(line.strip())
        else:
            above.append(line.strip())
    _note_above(draft, above)
    if not draft.gpus:
        draft.refuse("collect_truncated", "unknown", "the tables hold no GPU", "capture the tool's whole output")
        return
    draft.collects |= {"gpu_count", "bdf"}
    smi.check_numbers(draft, draft.gpus)
    if torn:
        draft.note(
            "collect_truncated",
            "unknown",
            f"{len(torn)} rows are short or out of place: {torn[0][:120]}",
            "capture the tool's whole output",
        )
    peers = [c for c in columns if c.startswith("GPU") or smi.bdf_of(c)]
    if peers and len(peers) != len(draft.gpus):
        draft.note(
            "collect_truncated",
            "unknown",
            f"the table has {len(peers)} columns of GPUs and {len(draft.gpus)} rows, expected as many",
            "capture the tool's whole output",
        )
    _settle_status(draft)
    _note_ports(draft)


def _read_xgmi_row(
    draft: smi.Draft, *, title: str, columns: Sequence[str], number: int, rest: str, torn: list[str]
) -> None:
    if title == "LINK METRIC TABLE":
        # Sentinels fill their cells, so that rates and the type run together: 65535 Gb/s4294967295 Gb/sN/A
        match = re.match(r"^(\d+ Gb/s|N/A)\s*(\d+ Gb/s|N/A)\s*(XGMI|PCIE|N/A|UNKNOWN)", rest)
        if match is None:
            torn.append(f"GPU{number} {rest}")
            return
        _fact(draft, "xgmi_bit_rate_gbps", number, _rate(match.group(1)))
        _fact(draft, "xgmi_link_gbps", number, _rate(match.group(2)))
    elif title == "GPU LINK PORT STATUS" or (title == "XGMI LINK STATUS" and "link_status" in columns):
        _fact(draft, "link_status", number, _port_states(rest.split()))
    elif title == "XGMI LINK STATUS":
        peers = [c for c in columns if c.startswith("GPU")]
        cells = rest.split()
        if len(cells) != len(peers):
            torn.append(f"GPU{number} {rest}")
            return
        for peer, cell in zip(peers, cells, strict=True):
            other = int(peer[3:]) if peer[3:].isdecimal() else None
            if other is not None and other != number:
                state = cell.upper() if cell.upper() in ("U", "D", "X") else None
                draft.facts.setdefault("xgmi_directed", {})[number, other] = state


def _settle_status(draft: smi.Draft) -> None:
    """Merge both directions of the status matrix: down beats all, and a side that does not know leaves it unknown."""
    directed: Mapping[tuple[int, int], str | None] = draft.facts.pop("xgmi_directed", {})
    status: dict[tuple[int, int], str | None] = {}
    for (a, b), state in sorted(directed.items()):
        states = {state, directed.get((b, a))}
        status[min(a, b), max(a, b)] = "D" if "D" in states else next(iter(states)) if len(states) == 1 else None
    if status:
        draft.facts["xgmi_status"] = status


def _read_xgmi_documents(draft: smi.Draft, documents: Numbered) -> None:
    draft.collects.add("gpu_count")
    draft.kind = "amd-smi xgmi"
    bdfs: dict[int, set[str]] = {}
    for number, document in documents:
        _remember_bdf(bdfs, number, document.get("bdf"))
        metrics = document.get("link_metrics")
        if isinstance(metrics, Mapping):
            _fact(draft, "xgmi_bit_rate_gbps", number, _rate(metrics.get("bit_rate")))
            _fact(draft, "xgmi_link_gbps", number, _rate(metrics.get("max_bandwidth")))
            links = metrics.get("links")
            for link in links if isinstance(links, list) else ():
                peer = smi.int_of(link.get("gpu")) if isinstance(link, Mapping) else None
                if peer is not None and peer != number:
                    for key in ("read", "write"):
                        amount = smi.bytes_of(link.get(key), unit="KB")
                        draft.facts.setdefault(f"xgmi_{key}_bytes", {})[number, peer] = amount
        for key in ("link_status", "link_port_status", "port_status", "xgmi_link_status"):
            states = document.get(key)
            if isinstance(states, Mapping):
                states = list(states.values())
            if isinstance(states, list):
                draft.collects.add("link_status")
                draft.kind = "amd-smi xgmi status"
                flat = [s.get("status", s.get("link_status")) if isinstance(s, Mapping) else s for s in states]
                _fact(draft, "link_status", number, _port_states(flat))
    smi.check_numbers(draft, draft.gpus)
    _fill_bdfs(draft, bdfs, list(draft.gpus), expected=False)
    _note_ports(draft)


# --- metric, monitor, process -------------------------------------------------------------------------------------


def _counts(section: Any, prefix: str) -> dict[str, int | None] | None:
    """Return the error counts of an ECC section, or None where there is no section."""
    if not isinstance(section, Mapping):
        return None
    names = {"correctable": "correctable_count", "uncorrectable": "uncorrectable_count", "deferred": "deferred_count"}
    return {key: smi.int_of(_take(section, prefix + name)) for key, name in names.items()}


def _read_metric(draft: smi.Draft, documents: Numbered) -> None:
    draft.collects.add("gpu_count")
    if not _once(draft, documents):
        return
    unread: list[str] = []
    for number, document in documents:
        if "ecc" in document:
            totals = _counts(document["ecc"], "total_")
            _fact(draft, "ecc_total", number, totals)
            if totals is None or totals["uncorrectable"] is None:
                unread.append(f"error counts of GPU {number}")
        if "ecc_blocks" in document:
            section = document["ecc_blocks"]
            blocks = (
                {str(name).upper(): _counts(block, "") for name, block in section.items()}
                if isinstance(section, Mapping)
                else None
            )
            draft.collects.add("ecc")
            xgmi = (blocks or {}).get("XGMI_WAFL")
            _fact(draft, "ecc_blocks", number, blocks)
            _fact(draft, "ecc", number, xgmi)
            if xgmi is None or xgmi["uncorrectable"] is None:
                unread.append(f"XGMI_WAFL counts of GPU {number}")
        usage = document.get("mem_usage")
        if usage is not None:
            draft.collects.add("vram")
            _memory(draft, number, _take(usage, "used_vram"), _take(usage, "total_vram"))
            if draft.facts["vram_used"][number] is None:
                unread.append(f"memory use of GPU {number}")
        if isinstance(document.get("usage"), Mapping):
            _fact(draft, "gpu_use_percent", number, smi.int_of(_take(document, "usage", "gfx_activity")))
    smi.check_numbers(draft, [n for n, _ in documents])
    _note_unread(draft, unread)


def _memory(draft: smi.Draft, number: int, used: Any, total: Any) -> None:
    _fact(draft, "vram_used", number, smi.bytes_of(used))
    _fact(draft, "vram_total", number, smi.bytes_of(total))


def _read_monitor_documents(draft: smi.Draft, documents: Numbered) -> None:
    draft.collects.add("gpu_count")
    for number, document in documents:
        if "vram_used" in document or "vram_total" in document:
            draft.collects.add("vram")
            _memory(draft, number, document.get("vram_used"), document.get("vram_total"))
        if "gfx_util" in document or "gfx" in document:
            _fact(draft, "gpu_use_percent", number, smi.int_of(document.get("gfx_util", document.get("gfx"))))
    smi.check_numbers(draft, draft.gpus)


def _read_monitor_table(draft: smi.Draft, text: str) -> None:
    """Read GPUs and memory of a monitor table. Partitions above 0 print N/A for the rest, which is no fault.

    Memory is what each logical GPU reports; where partition 0 shows the whole GPU's, a sum would count it twice.
    """
    draft.kind, draft.layout = "amd-smi monitor", "text"
    head: list[str] = []
    odd: list[str] = []
    above: list[str] = []
    for line in text.split("\n"):
        tokens = line.split()
        if not tokens:
            continue
        if "GPU" in tokens and "POWER" in tokens:
            head = tokens
            continue
        if not head and not tokens[0].isdecimal():
            above.append(line.strip())
            continue
        if head and line.strip() == "PROCESS INFO:":
            break  # `-q` adds a table of processes, whose rows start with a number too
        shift = 1 if head[:1] == ["TIMESTAMP"] else 0
        number = tokens[shift] if len(tokens) > shift else ""
        if not head or not number.isdecimal() or int(number) >= 4096 or not tokens[0].isdecimal():
            odd.append(line.strip())
            continue
        gpu = int(number)
        draft.gpu(gpu)
        cells = re.split(r"\s{2,}", line.strip())
        activity = dict(zip(head, cells, strict=False)) if len(cells) == len(head) else {}
        if "GFX%" in head or "GFX_UTIL" in head:
            _fact(draft, "gpu_use_percent", gpu, smi.int_of(activity.get("GFX%", activity.get("GFX_UTIL"))))
        if "VRAM_USAGE" in head:
            match = re.search(r"([\d.]+)\s*/\s*([\d.]+)\s*([KMGTP]B)\s*$", line)
            used, total = (f"{match.group(i)} {match.group(3)}" if match else None for i in (1, 2))
            _memory(draft, gpu, used, total)
        elif head[-2:] == ["VRAM_USED", "VRAM_TOTAL"]:
            match = re.search(r"(\d+)\s+MB\s+(\d+)\s+MB\s*$", line)
            _memory(draft, gpu, *(f"{match.group(i)} MB" if match else None for i in (1, 2)))
    _note_above(draft, above)
    if odd:
        draft.note(
            "collect_noise",
            "unknown",
            f"{len(odd)} lines do not fit the table: {odd[0][:120]}",
            "capture the tool's whole output",
        )
    if not draft.gpus:
        draft.refuse("collect_truncated", "unknown", "the table has no rows", "capture the tool's whole output")
        return
    draft.collects.add("gpu_count")
    if "vram_used" in draft.facts:
        draft.collects.add("vram")
    smi.check_numbers(draft, draft.gpus)


def _read_processes(draft: smi.Draft, documents: Numbered) -> None:
    unread: list[str] = []
    for number, document in documents:
        found = document.get("process_list", document.get("process_info"))
        entries = found if isinstance(found, list) else [found]
        processes: list[dict[str, Any]] | None = []
        for entry in entries:
            info = entry.get("process_info", entry) if isinstance(entry, Mapping) else entry
            if isinstance(info, Mapping) and smi.int_of(info.get("pid")) is not None and processes is not None:
                processes.append(
                    {
                        "pid": smi.int_of(info.get("pid")),
                        "name": smi.text_of(info.get("name")),
                        "vram": smi.bytes_of(_take(info, "memory_usage", "vram_mem"), unit="B"),
                    }
                )
            elif not re.search(r"[Nn]o running process", str(info.get("none") if isinstance(info, Mapping) else info)):
                processes = None
        if processes is None:
            unread.append(f"processes of GPU {number}")
        known = tuple(processes) if processes is not None else None
        _fact(draft, "processes", number, known)
    if not unread:
        draft.facts["vram_busy"] = frozenset(n for n, p in draft.facts["processes"].items() if p)
    smi.check_numbers(draft, [n for n, _ in documents])
    _note_unread(draft, unread)


# --- the table of `amd-smi` without a command ---------------------------------------------------------------------


def _read_bare_table(draft: smi.Draft, text: str) -> None:
    """Read the boxes of ``amd-smi``: two lines a GPU, then processes. GPU, HIP and OAM ids are three numberings."""
    draft.kind, draft.layout = "amd-smi", "boxes"
    version = re.search(r"AMD-SMI (\S+)\s+amdgpu version: (\S+)\s+ROCm version: (\S+)", text)
    if version:
        _version_facts(
            draft,
            {"tool": version.group(1), "library": None, "rocm": version.group(3), "amdgpu": version.group(2)},
        )
    pending: tuple[str, str, str] | None = None
    bdfs: dict[int, set[str]] = {}
    torn = 0
    for line in text.split("\n"):
        first = re.match(r"^\|\s+([0-9a-fA-F]{4,8}(?::[0-9a-fA-F]{2}){2}\.[0-7])\s+(.*?)\s*\|(.*)", line)
        second = re.match(r"^\|\s+(\d+)\s+(\d+|N/A)\s+(\d+|N/A)\s+(\S+)\s*\|(.*)\|\s*$", line)
        if first:
            torn += pending is not None
            pending = (first.group(1), first.group(2), first.group(3))
        elif second and pending is not None:
            number = int(second.group(1))
            if number >= 4096 or number in draft.gpus:
                torn += 1
                continue
            gpu = draft.gpu(number)
            _remember_bdf(bdfs, number, pending[0])
            _fact(draft, "market_names", number, smi.text_of(pending[1]))
            gpu["hip_id"], gpu["oam_id"] = smi.int_of(second.group(2)), smi.int_of(second.group(3))
            compute, _, memory = second.group(4).partition("/")
            draft.set_partition(number, compute=_mode(compute), memory=_mode(memory))
            used = re.search(r"(\d+)/(\d+) MB", second.group(5))
            _memory(draft, number, f"{used.group(1)} MB" if used else None, f"{used.group(2)} MB" if used else None)
            # Mem-Uti, Temp, UEC (uncorrectable errors), Power-Usage. A word that cannot be told is N/A.
            errors = re.match(r"\s*(?:\d+ ?%|N/A)\s+(?:\d+ ?\S*C|N/A)\s+(\d+)\s", pending[2])
            total = int(errors.group(1)) if errors else None
            _fact(draft, "ecc_total", number, {"correctable": None, "uncorrectable": total, "deferred": None})
            activity = re.match(r"\s*(\d+) ?%", second.group(5))
            _fact(draft, "gpu_use_percent", number, int(activity.group(1)) if activity else None)
            pending = None
    if not draft.gpus:
        draft.refuse("collect_truncated", "unknown", "the table has no GPU", "capture the tool's whole output")
        return
    draft.collects |= {"gpu_count", "bdf", "partition", "vram"}
    _read_bare_processes(draft, text)
    if torn or pending is not None:
        draft.note(
            "collect_truncated",
            "unknown",
            "a GPU's second line is missing from the table",
            "capture the tool's whole output",
        )
    smi.check_numbers(draft, draft.gpus)
    _fill_bdfs(draft, bdfs, list(draft.gpus), expected=True)


def _read_bare_processes(draft: smi.Draft, text: str) -> None:
    """Read the second box, one row a process and GPU; a box that is not there leaves the processes unknown."""
    box = text.partition("Processes:")[2]
    rows = re.findall(r"^\|\s+(\d{1,4})\s+(\d{1,10})\s+(\S.*?)\s{2,}.*\|\s*$", box, re.MULTILINE)
    if not rows and "No running processes found" not in box:
        return
    found: dict[int, tuple[dict[str, Any], ...]] = dict.fromkeys(sorted(draft.gpus), ())
    for gpu, pid, name in rows:
        found[int(gpu)] = (*found.get(int(gpu), ()), {"pid": int(pid), "name": smi.text_of(name), "vram": None})
    draft.facts |= {"processes": found, "vram_busy": frozenset(n for n, p in found.items() if p)}
