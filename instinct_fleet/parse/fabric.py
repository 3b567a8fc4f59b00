"""Other tools that show the fabric: RCCL's topology dump, TransferBench, RVS, the metrics exporter, sysfs counters.

Read into the model: the XML of ``NCCL_TOPO_DUMP_FILE`` (kind ``rccl topology``), TransferBench's table of links (kind
``transferbench topology``) and ``rvs -g`` (kind ``rvs list``). Measurements and counters, which no rule judges, are
recognised and declined with what they are and what to collect instead.

Facts: ``xgmi_direct`` (``"a-b"`` -> number of XGMI links that RCCL found between two GPUs), ``pair_classes``,
``gpu_nic``, ``nics``, ``pci_paths`` as in :mod:`instinct_fleet.parse.pci`; ``kfd_nodes`` (RVS: one a GPU).
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from xml.etree import ElementTree as ET

from instinct_fleet.model import Finding, Gpu, Link, LinkType
from instinct_fleet.parse.base import Aspect, Reading, numa_or_unknown
from instinct_fleet.parse.pci import pair_class
from instinct_fleet.parse.symptoms import instead_of_data, note, quote, refuse, unsupported

#: What RCCL calls a target in old dumps -> LLVM target.
_GCN = {"908": "gfx908", "910": "gfx90a", "940": "gfx940", "941": "gfx941", "942": "gfx942", "950": "gfx950"}
#: Targets whose modules have a link from each GPU to each other one, so that a pair without one has lost it.
_FULL_MESH = ("gfx940", "gfx941", "gfx942", "gfx950")

_BDF = r"[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]"
_RVS_GPU = re.compile(
    rf"^(?P<bdf>{_BDF}) - GPU\[\s*(?P<node>\d{{1,6}})\s*-\s*\d+\]\s*(?P<name>.*?)\s*"
    r"\(Device (?P<device>\d{1,6})\)\s*$",
    re.M,
)
_TB_ROW = re.compile(r"^\s*GPU (\d{1,4})\s*\|(.+)$", re.M)
_TB_HEAD = re.compile(r"^\s*\|(?:\s*GPU \d+\s*\|)+.*PCIe Bus ID", re.M)

#: Recognised and declined: pattern, kind, what it is, what to collect instead.
_DECLINED: tuple[tuple[re.Pattern[str], str, str, str], ...] = (
    (
        re.compile(r"copy peak bandwidth GB/s|^TransferBench v", re.M),
        "transferbench",
        "bandwidths that TransferBench measured; their plateaus differ by model, and no rule judges them",
        "`amd-smi topology --json` for the links, `all_reduce_perf` for the bandwidth",
    ),
    (
        re.compile(r"\[RVS-\w+|\bgpup\b \d+ "),
        "rvs",
        "a log of the ROCm Validation Suite; its properties are those of KFD's links",
        "`amd-smi topology --json`, or the KFD tree",
    ),
    (
        re.compile(r"\"srcgpu\"\s*:.*?\"throughput\"\s*:", re.S),
        "rvs pbqt",
        "transfers that RVS pbqt measured, by KFD gpu_id; bidirectional figures are twice those of one direction",
        "`all_reduce_perf -b 8 -e 8G -f 2`",
    ),
    (
        re.compile(r"^(?:amd_)?(?:gpu|pcie)_\w+\{[^}\n]*gpu_id=", re.M),
        "metrics",
        "samples of the metrics exporter; XGMI counters are cumulative KB, and index 0, the GPU itself, is always 0",
        "`amd-smi xgmi -l` for the state of links",
    ),
    (
        re.compile(r"^(?:card\d+:\s*)?(?:[0-9a-f]{2} ){3,}[0-9a-f]{2}\s*$", re.M),
        "xgmi_num_links",
        "numbers of direct XGMI links by peer, in hex; 0 is no direct link, which an MI250 has between many dies",
        "`amd-smi topology --json`",
    ),
)


def sniff(text: str) -> bool:
    """Tell whether a text is from one of these tools."""
    return _reader(text) is not None or any(pattern.search(text) for pattern, *_rest in _DECLINED)


def parse(text: str, *, stderr: str = "", rc: int | None = None) -> Reading:
    """Read or decline a text of one of these tools."""
    reader = _reader(text)
    if reader is not None:
        return reader(text)
    for pattern, kind, what, instead in _DECLINED:
        if pattern.search(text):
            message = f"recognised as {kind}: {what}. Nothing was judged"
            remedy = f"collect {instead}"
            return refuse(kind, kind, note("collect_unsupported_layout", "unknown", kind, message, remedy=remedy))
    return instead_of_data("fabric", "rvs", text, stderr=stderr, rc=rc) or unsupported(
        "fabric", "fabric", text, "an RCCL topology dump, TransferBench's table of links or `rvs -g`"
    )


def _reader(text: str) -> Callable[[str], Reading] | None:
    if re.search(r"<system\s[^>]*version=", text[:4096]):
        return _parse_xml
    if _TB_HEAD.search(text):
        return _parse_transferbench
    if _RVS_GPU.search(text):
        return _parse_rvs_list
    return None


def _parse_xml(text: str) -> Reading:
    kind = tool = "rccl topology"
    if "<!DOCTYPE" in text or "<!ENTITY" in text:
        message = "the XML declares entities, which RCCL never does; it was not read"
        return refuse(kind, tool, note("collect_unexpected", "error", tool, message))
    try:
        # Without declared entities the parser cannot be made to expand anything.
        root = ET.fromstring(text.strip())  # noqa: S314
    except (ET.ParseError, ValueError, RecursionError) as exc:
        message = f"the XML is not whole: {quote(str(exc))}"
        return refuse(kind, tool, note("collect_truncated", "error", tool, message))
    return _Dump(root).reading(kind, tool)


class _Dump:
    """A topology dump while it is read."""

    def __init__(self, root: ET.Element) -> None:
        self.lost: list[str] = []
        self.gpus: dict[str, Gpu] = {}
        self.targets: dict[str, dict[str, int]] = {}
        self.nics: dict[str, int | None] = {}
        self.paths: dict[str, str] = {}
        for cpu in root.findall("cpu"):
            numa = numa_or_unknown(cpu.get("numaid"))
            for device in cpu.findall("pci"):
                self._walk(device, numa, [])

    def _walk(self, device: ET.Element, numa: int | None, above: list[str]) -> None:
        bdf = (device.get("busid") or "").lower()
        if not re.fullmatch(_BDF, bdf) or len(above) > 32:  # far deeper than any chain of switches
            self.lost.append(f"a device has the address {quote(bdf, 40)!r} below {len(above)} bridges")
            return
        # Each level of the dump stands for the two bridges of one switch, which the walk takes every second of.
        top = (above or [bdf])[0]
        root = f"pci{top.rpartition(':')[0]}"
        self.paths[bdf] = "/".join(["/sys/devices", root, top, *itertools.chain(*((b, b) for b in above)), bdf])
        gpu = device.find("gpu")
        if gpu is not None:
            if bdf in self.gpus:
                self.lost.append(f"{bdf} is listed twice")
            gcn = gpu.get("gcn") or ""
            device_id = (device.get("device") or "").lower()
            self.gpus[bdf] = Gpu(
                index=0,
                bdf=bdf,
                device_id=device_id if re.fullmatch(r"0x[0-9a-f]{4}", device_id) else None,
                arch=gcn if gcn.startswith("gfx") else _GCN.get(gcn),
                numa_node=numa,
            )
            self.targets[bdf] = {}
            for link in gpu.findall("xgmi"):
                count = link.get("count") or ""
                self.targets[bdf][(link.get("target") or "").lower()] = (
                    int(count) if re.fullmatch(r"\d{1,3}", count) else 0
                )
        elif (device.get("class") or "").startswith("0x02") or device.find("nic") is not None:
            self.nics[bdf] = numa
        for child in device.findall("pci"):
            self._walk(child, numa, [*above, bdf])

    def reading(self, kind: str, tool: str) -> Reading:
        """Make the reading."""
        order = sorted(self.gpus)
        gpus = tuple(
            Gpu(index, g.bdf, g.device_id, g.arch, g.numa_node) for index, g in enumerate(self.gpus[b] for b in order)
        )
        direct: dict[str, int] = {}
        links: list[Link] = []
        mesh = bool(gpus) and all(gpu.arch in _FULL_MESH for gpu in gpus)
        classes: dict[str, dict[str, LinkType]] = {bdf: {} for bdf in order}
        for a, b in itertools.combinations(range(len(order)), 2):
            there, back = (self.targets[x].get(y) for x, y in ((order[a], order[b]), (order[b], order[a])))
            path = self._class(order[a], order[b], gpus[a].numa_node, gpus[b].numa_node)
            classes[order[a]][order[b]] = classes[order[b]][order[a]] = path
            if there != back:
                self.lost.append(f"the links of {order[a]} and {order[b]} differ by direction")
                links.append(Link(a, b, "UNKNOWN"))
            elif there:
                direct[f"{a}-{b}"] = there
                links.append(Link(a, b, "XGMI", raw_type="XGMI"))
            elif mesh:
                links.append(Link(a, b, path, raw_type="PCIE"))
        unknown = sorted({t for targets in self.targets.values() for t in targets} - set(order))
        if unknown:
            self.lost.append(f"XGMI links lead to {unknown[0] or 'no address'}, which is not in the dump")
        if not gpus:
            self.lost.append("it holds no GPU")
        findings: list[Finding] = []
        if self.lost:
            message = f"the dump is not whole: {'; '.join(self.lost[:3])}"
            findings.append(note("collect_truncated", "unknown", tool, message))
        collects: set[Aspect] = {"gpu_count", "bdf", "arch", "gpu_numa", "pci_tree"}
        if any(gpu.device_id for gpu in gpus):
            collects.add("device_id")
        if mesh:  # elsewhere a pair without a direct link may still be XGMI over another die
            collects.add("link_type")
        return Reading(
            kind=kind,
            tool=tool,
            layout="xml",
            complete=not findings,
            gpus=gpus,
            links=tuple(links) if mesh else (),
            facts={
                "xgmi_direct": direct,
                "pair_classes": classes,
                "nics": tuple(sorted(self.nics)),
                "pci_paths": self.paths,
                "gpu_nic": {
                    gpu: {
                        nic: self._class(gpu, nic, self.gpus[gpu].numa_node, n) for nic, n in sorted(self.nics.items())
                    }
                    for gpu in order
                },
            },
            collects=frozenset(collects),
            findings=tuple(findings),
        )

    def _class(self, a: str, b: str, numa_a: int | None, numa_b: int | None) -> LinkType:
        return pair_class(self.paths.get(a), self.paths.get(b), numa_a, numa_b)


def _parse_transferbench(text: str) -> Reading:
    """Read the table whose cells are ``XGMI-<hops>`` or ``PCIE-<hops>``, and ``-`` on the diagonal."""
    kind = tool = "transferbench topology"
    lost: list[str] = []
    head = _TB_HEAD.search(text)
    columns = [int(n) for n in re.findall(r"GPU (\d{1,4})", head[0])] if head else []
    cells: dict[tuple[int, int], str] = {}
    gpus: list[Gpu] = []
    for name, row in _TB_ROW.findall(text[head.end() if head else 0 :]):
        values = [value.strip() for value in row.split("|")]
        number = len(gpus)
        if int(name) != number or len(values) < len(columns) + 3:
            lost.append(f"the row of GPU {name} has {len(values)} cells or is out of order")
            continue
        cells |= {(number, column): value for column, value in zip(columns, values, strict=False)}
        bdf, _units, closest = values[len(columns) : len(columns) + 3]
        if not re.fullmatch(_BDF, bdf):
            lost.append(f"GPU {name} has the address {quote(bdf, 40)!r}")
        gpus.append(
            Gpu(number, bdf=bdf.lower() if re.fullmatch(_BDF, bdf) else None, numa_node=numa_or_unknown(closest))
        )
    if columns != list(range(len(gpus))):
        lost.append(f"{len(columns)} columns and {len(gpus)} rows; expected a square table")
    addresses = [gpu.bdf or "" for gpu in gpus]
    if addresses != sorted(addresses) or len(set(addresses)) != len(addresses):
        lost.append("the GPUs are not in the order of their addresses")
    links = []
    for a, b in itertools.combinations(range(len(gpus)), 2):
        there, back = cells.get((a, b), ""), cells.get((b, a), "")
        match = re.fullmatch(r"(XGMI|PCIE)-(\d{1,2})", there)
        if match is None or there != back:
            lost.append(f"the cells of GPU {a} and {b} are {quote(there, 20)!r} and {quote(back, 20)!r}")
            links.append(Link(a, b, "UNKNOWN"))
            continue
        links.append(Link(a, b, "XGMI" if match[1] == "XGMI" else "UNKNOWN", raw_type=match[1], hops=int(match[2])))
    if any(cells.get((g, g)) != "-" for g in range(len(gpus))):
        lost.append("the diagonal is not `-`")
    findings: tuple[Finding, ...] = ()
    if lost:
        message = f"the table is not whole: {'; '.join(lost[:3])}"
        findings = (note("collect_truncated", "unknown", tool, message),)
    return Reading(
        kind=kind,
        tool=tool,
        layout="table",
        complete=not lost,
        gpus=tuple(gpus),
        links=tuple(links),
        collects=frozenset(("gpu_count", "bdf", "link_type", "link_hops", "gpu_numa")),
        findings=findings,
    )


def _parse_rvs_list(text: str) -> Reading:
    """Read the list of ``rvs -g``."""
    found = sorted((m["bdf"].lower(), int(m["node"]), int(m["device"])) for m in _RVS_GPU.finditer(text))
    addresses = [bdf for bdf, _node, _device in found]
    findings: tuple[Finding, ...] = ()
    shown = len(re.findall(r"\bGPU\[", text))
    if len(set(addresses)) != len(addresses) or shown != len(found):
        message = f"{shown} GPUs are listed, {len(set(addresses))} with an address of their own"
        findings = (note("collect_truncated", "unknown", "rvs list", message),)
    return Reading(
        kind="rvs list",
        tool="rvs",
        layout="-g",
        complete=not findings,
        gpus=tuple(Gpu(index, bdf, f"0x{device:04x}") for index, (bdf, _node, device) in enumerate(found)),
        facts={"kfd_nodes": tuple(node for _bdf, node, _device in found)},
        collects=frozenset(("gpu_count", "bdf", "device_id")),
        findings=findings,
    )
