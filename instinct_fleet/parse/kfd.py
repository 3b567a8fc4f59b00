"""The kernel's KFD topology tree, ``/sys/class/kfd/kfd/topology``: nodes, ``io_links`` and ``p2p_links``.

The tree is read as a mapping of relative path to text, as ``node_probe`` collects it (:func:`from_probe`,
:func:`from_tree`), or as one text in which a heading names each file (:func:`parse`): ``### nodes/0/properties``,
``==> nodes/0/properties <==`` (``head``, ``tail``), or ``nodes/0/properties:key value`` (``grep -r .``).

Facts that a reading holds, each a tuple with one entry for each GPU in the order of ``gpus``, or as said:

``kfd_nodes``            KFD node number; not a NUMA node
``nearest_cpu_node``     KFD CPU node with the lightest link (what rocm-smi calls "Numa Node"), None when unknown
``render_minors``        number of ``/dev/dri/renderD<n>``
``hives``                XGMI hive, numbered from 0 in order of appearance; None: no hive
``physical``             physical GPU, numbered from 0: the partitions of one GPU share a number
``partitions``           (not per logical GPU) how many partitions each physical GPU shows, in order
``host_link_mbps``       (min, max) MB/s that the driver claims for the path to the nearest CPU
``cpu_nodes``            (one number) CPU nodes in the tree
``hidden_nodes``         (numbers) nodes that the reader may not read: present, but hidden by a device control group
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from instinct_fleet.model import Finding, Gpu, Link, LinkType, Partition
from instinct_fleet.parse.base import Aspect, Reading
from instinct_fleet.parse.symptoms import instead_of_data, note, quote, refuse, unsupported

KIND = TOOL = "kfd"

#: amdkfd kfd_crat.h, CRAT_IOLINK_TYPE_*.
HYPERTRANSPORT, PCIE, UPI, XGMI = 1, 2, 5, 11
AMD_VENDOR = 0x1002

_WANTED = (
    r"(?:generation_id|system_properties"
    r"|nodes/\d{1,5}/(?:gpu_id|name|properties|(?:io_links|p2p_links|mem_banks)/\d{1,5}/properties))"
)
_PATH = re.compile(rf"(?:^|/)({_WANTED})$")
_HEADING = re.compile(r"^(?:#{2,}|==>)\s*(\S+?)\s*(?:<==|#+)?\s*$")
_GREP = re.compile(rf"^(\S*?{_WANTED}):(.*)$")
_DENIED = re.compile(r"not permitted|denied", re.I)

_COLLECTS: frozenset[Aspect] = frozenset(
    ("gpu_count", "bdf", "device_id", "arch", "link_type", "link_weight", "link_access", "link_bandwidth")
)


@dataclass(frozen=True)
class _Edge:
    """One direction of a link as the tree has it."""

    kind: int
    weight: int | None
    low: int | None
    high: int | None
    peer_to_peer: bool


def sniff(text: str) -> bool:
    """Tell whether a text is a KFD tree written out as one."""
    return len(files_of(text)) > 0


def files_of(text: str) -> dict[str, str]:
    """Split a text that holds several files of the tree into path -> content; unknown files are left out."""
    files: dict[str, list[str]] = {}
    current: list[str] | None = None
    for line in text.splitlines():
        heading = _HEADING.match(line)
        if heading:
            path = _PATH.search(heading[1])
            current = files.setdefault(path[1], []) if path else None
            continue
        grep = _GREP.match(line)
        if grep:
            path = _PATH.search(grep[1])
            if path:
                files.setdefault(path[1], []).append(grep[2])
            continue
        if current is not None:
            current.append(line)
    return {path: "\n".join(lines) + "\n" for path, lines in files.items()}


def parse(text: str, *, stderr: str = "", rc: int | None = None) -> Reading:
    """Read a tree that was written out as one text; see :func:`from_tree` for what comes back."""
    files = files_of(text)
    if files:
        return from_tree(files, {})
    return instead_of_data(KIND, TOOL, text, stderr=stderr, rc=rc) or unsupported(
        KIND, TOOL, text, "files of /sys/class/kfd/kfd/topology, each under its name"
    )


def from_probe(section: Mapping[str, Any]) -> Reading:
    """Read the ``kfd`` section of a ``node_probe`` document."""
    files, errors = section.get("files"), section.get("errors")
    if not section.get("present", bool(files)):
        message = "/sys/class/kfd/kfd/topology does not exist: amdgpu is not loaded, or the GPUs are not passed through"
        return refuse(KIND, TOOL, note("collect_driver_not_loaded", "error", TOOL, message))
    return from_tree(
        files if isinstance(files, Mapping) else {},
        errors if isinstance(errors, Mapping) else {},
        generation=(section.get("generation_before"), section.get("generation_after")),
    )


def from_tree(
    files: Mapping[str, str], errors: Mapping[str, str], *, generation: tuple[Any, Any] = (None, None)
) -> Reading:
    """Read a KFD tree.

    Args:
        files: path below ``topology/`` (a leading ``topology/`` or any folders above it are cut) -> text.
        errors: path -> why it could not be read. "Operation not permitted" means hidden, not absent.
        generation: ``generation_id`` before and after the collection; different ones mean that the tree changed.

    Returns:
        A reading of kind ``kfd``: GPUs in PCI address order with ``hip_id`` in KFD order (the ROCm runtime's own),
        and a link for each pair. ``type`` is XGMI, SYS for a PCIe path between the nearest CPUs of two sockets, else
        UNKNOWN, since KFD does not show the PCI tree; ``raw_type`` is XGMI or PCIE. ``accessible`` is False for a
        pair that neither ``io_links`` nor ``p2p_links`` lists.
    """
    tree = {m[1]: str(text) for path, text in files.items() if (m := _PATH.search(str(path)))}
    failed = {m[1]: str(text) for path, text in errors.items() if (m := _PATH.search(str(path)))}
    if not tree:
        if any(_DENIED.search(reason) for reason in failed.values()):
            message = f"no file of the KFD tree may be read: {quote(next(iter(failed.values())))}"
            return refuse(KIND, TOOL, note("collect_permission", "error", TOOL, message))
        message = "the KFD topology tree holds no node; expected one for each CPU socket and GPU"
        return refuse(KIND, TOOL, note("collect_empty", "error", TOOL, message))
    return _Tree(tree, failed, generation).reading()


class _Tree:
    """One tree while it is read; collects what is wrong with it on the way."""

    def __init__(self, files: Mapping[str, str], errors: Mapping[str, str], generation: tuple[Any, Any]) -> None:
        self.findings: list[Finding] = []
        self.truncated: list[str] = []
        self.one_way: list[str] = []
        self.files = files
        self.errors = errors
        self.nodes: dict[int, dict[str, int]] = {}
        self.hidden: list[int] = []
        self.edges: dict[tuple[int, int], _Edge] = {}
        self.p2p_read = False
        self.p2p_promised = False
        self._check_generation(generation)
        self._read_nodes()
        self._read_links()

    def _check_generation(self, generation: tuple[Any, Any]) -> None:
        before, after = (None if g is None else str(g).strip() for g in generation)
        if before != after:
            message = f"generation_id was {before} before and {after} after reading; expected no change"
            self.findings.append(note("collect_changed_meanwhile", "unknown", TOOL, message))

    def _read_nodes(self) -> None:
        paths = [*self.files, *self.errors]
        numbers = sorted({int(m[1]) for path in paths if (m := re.match(r"nodes/(\d+)/", path))})
        for number in numbers:
            name = f"nodes/{number}/properties"
            denied = [self.errors[p] for p in (name, f"nodes/{number}/gpu_id") if p in self.errors]
            if any(_DENIED.search(reason) for reason in denied):
                self.hidden.append(number)
                continue
            values = _properties(self.files.get(name, ""))
            if values.get("simd_count") is None or values.get("cpu_cores_count") is None:
                self.truncated.append(f"{name} has no cpu_cores_count or simd_count")
                continue
            self.nodes[number] = values
        if self.hidden:
            listed = ", ".join(map(str, self.hidden))
            message = f"KFD nodes {listed} may not be read (EPERM): GPUs hidden from this process, not absent"
            self.findings.append(
                note(
                    "collect_permission",
                    "unknown",
                    TOOL,
                    message,
                    remedy="collect on the host as root; in a container pass every /dev/dri/renderD* device",
                )
            )

    def _read_links(self) -> None:
        counted: dict[tuple[int, str], int] = {}
        for path in sorted(self.files):
            match = re.match(r"nodes/(\d+)/(io_links|p2p_links)/(\d+)/properties$", path)
            if not match:
                continue
            source, folder = int(match[1]), match[2]
            counted[source, folder] = counted.get((source, folder), 0) + 1
            self.p2p_read |= folder == "p2p_links"
            values = _properties(self.files[path])
            target, kind = values.get("node_to"), values.get("type")
            if target is None or kind is None or values.get("node_from") != source:
                self.truncated.append(f"{path} does not say type, node_from {source} and node_to")
                continue
            edge = _Edge(
                kind,
                values.get("weight"),
                values.get("min_bandwidth"),
                values.get("max_bandwidth"),
                folder != "io_links",
            )
            known = self.edges.get((source, target))
            if known is None or known.peer_to_peer:  # a direct link says more than a peer-to-peer entry
                self.edges[source, target] = edge
        for number, values in sorted(self.nodes.items()):
            promised = values.get("io_links_count")
            seen = counted.get((number, "io_links"), 0)
            if promised is None or promised != seen:
                self.truncated.append(f"node {number} has {seen} io_links, its properties say {promised}")
            promised = values.get("p2p_links_count") or 0  # kernels before 6.0 have no p2p_links
            seen = counted.get((number, "p2p_links"), 0)
            self.p2p_promised |= promised > 0
            if seen and promised != seen:
                self.truncated.append(f"node {number} has {seen} p2p_links, its properties say {promised}")
        known_nodes = set(self.nodes) | set(self.hidden)
        absent = sorted({target for _source, target in self.edges if target not in known_nodes})
        if absent:
            self.truncated.append(f"links lead to nodes {', '.join(map(str, absent))}, which are not in the tree")
        self.findings += [
            note("collect_truncated", "unknown", TOOL, f"{path} could not be read: {quote(reason)}")
            for path, reason in sorted(self.errors.items())
            if not _DENIED.search(reason)
        ]

    def reading(self) -> Reading:
        """Make the reading."""
        gpu_nodes = [n for n, values in self.nodes.items() if values["simd_count"] > 0]
        cpu_nodes = [n for n, values in self.nodes.items() if values["cpu_cores_count"] > 0]
        order = {node: hip for hip, node in enumerate(sorted(gpu_nodes))}
        bdfs = {node: self._bdf(node) for node in gpu_nodes}
        ordered = sorted(gpu_nodes, key=lambda node: (bdfs[node] is None, bdfs[node] or "", node))
        physical = self._physical(ordered, bdfs)
        sizes = {p: physical.count(p) for p in physical}
        gpus = tuple(
            self._gpu(node, index, bdfs[node], order[node], sizes[physical[index]])
            for index, node in enumerate(ordered)
        )
        nearest = [self._nearest(node, cpu_nodes) for node in ordered]
        links = tuple(
            self._link(a, b, ordered, nearest) for a in range(len(ordered)) for b in range(a + 1, len(ordered))
        )
        if not gpu_nodes and not self.hidden:
            message = f"the KFD tree has {len(cpu_nodes)} CPU nodes and no GPU"
            self.findings.append(
                note("collect_empty", "unknown", TOOL, message, remedy="read `dmesg | grep -i amdgpu`")
            )
        self._check_peer_to_peer(links)
        if self.one_way:
            message = f"the link between nodes differs by direction for {len(self.one_way)} pairs: {self.one_way[0]}"
            self.findings.append(note("collect_asymmetric", "unknown", TOOL, message))
        if self.truncated:
            shown = "; ".join(self.truncated[:3])
            more = f" (and {len(self.truncated) - 3} more)" if len(self.truncated) > 3 else ""
            self.findings.append(
                note("collect_truncated", "unknown", TOOL, f"the KFD tree is not whole: {shown}{more}")
            )
        hive_ids = list(dict.fromkeys(h for node in ordered if (h := self.nodes[node].get("hive_id"))))
        facts: dict[str, Any] = {
            "kfd_nodes": tuple(ordered),
            "nearest_cpu_node": tuple(nearest),
            "render_minors": tuple(self.nodes[node].get("drm_render_minor") for node in ordered),
            "hives": tuple(
                hive_ids.index(h) if (h := self.nodes[node].get("hive_id")) in hive_ids else None for node in ordered
            ),
            "physical": tuple(physical),
            "partitions": tuple(sizes[p] for p in sorted(sizes)),
            "host_link_mbps": tuple(
                (edge.low, edge.high) if n is not None and (edge := self.edges.get((node, n))) else None
                for node, n in zip(ordered, nearest, strict=True)
            ),
            "cpu_nodes": len(cpu_nodes),
            "hidden_nodes": tuple(self.hidden),
        }
        has_memory = bool(gpus) and all(gpu.vram_bytes is not None for gpu in gpus)
        return Reading(
            kind=KIND,
            tool=TOOL,
            layout="sysfs",
            complete=not self.findings or all(f.severity == "warning" for f in self.findings),
            gpus=gpus,
            links=links,
            facts=facts,
            collects=_COLLECTS | (frozenset[Aspect](("vram",)) if has_memory else frozenset()),
            findings=tuple(self.findings),
        )

    def _bdf(self, node: int) -> str | None:
        values = self.nodes[node]
        location, domain = values.get("location_id"), values.get("domain")
        if not location or domain is None or location > 0xFFFF or domain > 0xFFFFFFFF:
            self.truncated.append(f"node {node} has no usable domain and location_id")
            return None
        return f"{domain:04x}:{location >> 8:02x}:{location >> 3 & 0x1F:02x}.{location & 7}"

    def _physical(self, ordered: list[int], bdfs: Mapping[int, str | None]) -> list[int]:
        """Number the physical GPUs. Partitions share ``unique_id``; without one, the address without its function."""
        keys = []
        for node in ordered:
            unique, bdf = self.nodes[node].get("unique_id"), bdfs[node]
            keys.append(f"u{unique}" if unique else bdf.partition(".")[0] if bdf else f"n{node}")
        seen = list(dict.fromkeys(keys))
        return [seen.index(key) for key in keys]

    def _gpu(self, node: int, index: int, bdf: str | None, hip_id: int, siblings: int) -> Gpu:
        values = self.nodes[node]
        vendor, device, version = values.get("vendor_id"), values.get("device_id"), values.get("gfx_target_version")
        if vendor != AMD_VENDOR or not device or not version:
            self.truncated.append(f"node {node} lacks vendor_id {AMD_VENDOR}, device_id or gfx_target_version")
        arch = f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}" if version else None
        banks = [
            _properties(text).get("size_in_bytes")
            for path, text in sorted(self.files.items())
            if path.startswith(f"nodes/{node}/mem_banks/")
        ]
        sizes = [size for size in banks if size]
        return Gpu(
            index=index,
            bdf=bdf,
            device_id=f"0x{device:04x}" if device else None,
            arch=arch,
            vram_bytes=sum(sizes) if sizes and None not in banks else None,
            partition=Partition(compute=_compute_mode(arch, siblings, values.get("num_xcc"))),
            hip_id=hip_id if not self.hidden else None,
        )

    def _nearest(self, node: int, cpu_nodes: list[int]) -> int | None:
        weights = [
            (edge.weight, cpu) for cpu in cpu_nodes if (edge := self.edges.get((node, cpu))) and edge.weight is not None
        ]
        return min(weights)[1] if weights else None

    def _link(self, a: int, b: int, ordered: list[int], nearest: list[int | None]) -> Link:
        there, back = self.edges.get((ordered[a], ordered[b])), self.edges.get((ordered[b], ordered[a]))
        if there is None and back is None:
            unread = self.p2p_promised and not self.p2p_read
            return Link(a, b, "UNKNOWN", accessible=None if unread or self.truncated else False)
        if there is None or back is None or (there.kind, there.weight) != (back.kind, back.weight):
            self.one_way.append(f"{ordered[a]}-{ordered[b]}")
            return Link(a, b, "UNKNOWN", raw_type=_raw_type((there or back or _Edge(0, None, None, None, False)).kind))
        kind: LinkType = "UNKNOWN"
        if there.kind == XGMI:
            kind = "XGMI"
        elif there.kind == PCIE and None not in (nearest[a], nearest[b]) and nearest[a] != nearest[b]:
            kind = "SYS"
        if there.weight is None or there.low is None or there.high is None:
            self.truncated.append(f"the link of nodes {ordered[a]} and {ordered[b]} lacks weight or bandwidth")
        known = there.low is not None and there.high is not None and there.kind == XGMI
        return Link(
            a,
            b,
            kind,
            raw_type=_raw_type(there.kind),
            weight=there.weight,
            accessible=True,
            bandwidth_mbps=(there.low or 0, there.high or 0) if known else None,
        )

    def _check_peer_to_peer(self, links: tuple[Link, ...]) -> None:
        """Absent ``p2p_links`` matter only where a pair has no direct link either."""
        if not self.p2p_promised or self.p2p_read:
            return
        lost = [f"{link.a}-{link.b}" for link in links if link.raw_type is None]
        message = "the tree holds no p2p_links although the nodes have them"
        if lost:
            message += f"; nothing is known of {len(lost)} pairs, first {lost[0]}"
        self.findings.append(note("collect_truncated", "unknown" if lost else "warning", TOOL, message))


def _raw_type(kind: int) -> str | None:
    return {XGMI: "XGMI", PCIE: "PCIE", HYPERTRANSPORT: "HT", UPI: "QPI"}.get(kind)


def _compute_mode(arch: str | None, siblings: int, xcc: int | None) -> str | None:
    """Name the compute mode of an MI300 class GPU from its visible partitions and the XCDs each has.

    A partition of one XCD is CPX however many siblings show (one of 64 may have lost its device node); a lone GPU of
    one XCD may be CPX with hidden siblings, so that stays unknown.
    """
    if arch not in ("gfx942", "gfx950") or not xcc:
        return None
    if xcc == 1:
        return "CPX" if siblings > 1 else None
    return {1: "SPX", 2: "DPX", 3: "TPX", 4: "QPX"}.get(siblings)


def _properties(text: str) -> dict[str, int]:
    """Read ``key value`` lines; a value that is no number is left out."""
    values: dict[str, int] = {}
    for line in text.splitlines():
        key, _, value = line.strip().partition(" ")
        if value.isdecimal() and value.isascii() and len(value) < 40:
            values[key] = int(value)
    return values
