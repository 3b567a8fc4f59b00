"""Several sources, one node: put the readings together, cross-check them, and say where they disagree.

Order of trust: ``amd-smi topology --json``, its text, ``rocm-smi --showtopo --json``, its text, KFD; the NUMA node of
a GPU is the kernel's (sysfs) wherever a bundle was read. The class of a pair that is not XGMI comes from the PCI tree.

GPUs are numbered in PCI address order; a tool's own numbers are mapped by address, and by position where it prints
none. A source that shows another number of GPUs is not used, and that is a finding.

``Evidence.facts``, by number of the GPU where not said otherwise:

``link_status``    U, D, X or None of each XGMI port
``ecc``            XGMI_WAFL block: ``{"correctable", "uncorrectable"}``, each a count or None
``ecc_hard``       uncorrectable errors by block other than XGMI_WAFL; those that no block accounts for as ``TOTAL``
``pcie_link``      ``{"speed_gts", "width", "max_speed_gts", "max_width"}``, None where not known; ``fatal_error`` and
                   ``downgraded`` are there where lspci says so
``vram_used``      bytes in use or None
``vram_busy``      (set of numbers) GPUs that a process uses; None where processes could not be read
``numa_nearest``   node with the lightest link, by KFD
``driver``         (one) ``{"loaded": bool | None, "unbound": addresses of GPUs without a driver}``
``runtime_gpus``   (one) GPUs that rocminfo shows; None where it was not read
``driver_gpus``    (one) GPUs that KFD or the tools show
``environment``    (by file) lines of the system's environment files that set a GPU variable
``access``         (one) the ``access`` section of node_probe
``acs``            (by address of a bridge) whether access control redirects peer traffic
``gpu_nic``        (by address of a GPU) address of a network card -> class of the path
``versions``       (by name) versions that the tools told
``firmware``       firmware version
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from instinct_fleet.findings import finding
from instinct_fleet.model import Finding, Gpu, Host, Link, LinkType, NumaNode, Partition, Source, Topology
from instinct_fleet.parse import detect, kfd, numa, pci
from instinct_fleet.parse.base import Aspect, Evidence, Reading

#: Kinds in the order in which they are trusted for GPUs and links; JSON before text of the same kind.
_TRUST = ("amd-smi topology", "rocm-smi showtopo", "kfd", "amd-smi list", "amd-smi static")
#: Kinds that list devices in slots, not the logical GPUs that partitions make of them.
_PHYSICAL = ("pci", "lspci", "lspci link", "lspci path", "dmesg")
#: Kinds that may show fewer GPUs than there are without anything being wrong with the node's hardware.
_FILTERED = ("rocminfo",)

#: What a call of a bundle is for. Where others showed the same, its failure is a warning. A call that is not here (or
#: has ``()``) always counts as it is.
_PURPOSE: Mapping[str, tuple[Aspect, ...]] = {
    "amd-smi topology --json": ("link_type", "link_access"),
    "amd-smi static --json": ("device_id",),
    "amd-smi version --json": ("gpu_count",),
    "amd-smi partition --json": ("partition",),
    "amd-smi list --json": ("gpu_count", "bdf"),
    "amd-smi xgmi -l": ("link_status",),
    "amd-smi metric --ecc --ecc-blocks --json": ("ecc",),
    "amd-smi metric --mem-usage --json": ("vram",),
    "amd-smi process --json": ("gpu_count",),
    "rocm-smi --showtopo --json": ("link_type",),
    "rocm-smi --showtopo": ("link_type",),
    "lspci -D -vv -d 1002:": ("pcie_link", "driver"),
    "numactl -H": ("numa_nodes",),
    "lscpu": ("numa_nodes",),
}
#: Failures that say nothing of the node: the tool is not there, or of a release that does it in another way.
_HARMLESS = ("collect_tool_missing", "collect_usage", "collect_unrecognised", "collect_unsupported_layout")


def evidence_from_probe(probe: Mapping[str, Any]) -> Evidence:
    """Read a whole bundle of ``node_probe``: every tool's answer, the KFD and PCI trees, NUMA nodes and the host.

    Never raises for what the bundle holds; a section that is missing or misshapen is a finding.
    """
    readings: list[Reading] = []
    extra: list[Finding] = []
    subject = str(probe.get("hostname") or "node")

    def section(name: str) -> Mapping[str, Any]:
        value = probe.get(name)
        if isinstance(value, Mapping):
            return value
        extra.append(
            finding("collect_unexpected", name, f"section {name} is {type(value).__name__}, expected a mapping")
        )
        return {}

    for command, entry in sorted(section("commands").items()):
        if isinstance(entry, Mapping):
            readings.append(_read_command(str(command), entry))
        else:
            text = f"entry of {command} is {type(entry).__name__}, expected a mapping"
            extra.append(finding("collect_unexpected", str(command), text))
    tree = section("kfd")
    generation = (tree.get("generation_before"), tree.get("generation_after"))
    readings.append(kfd.from_tree(_texts(tree.get("files")), _texts(tree.get("errors")), generation=generation))
    readings.append(pci.from_probe(section("pci")))
    readings.append(numa.from_probe(section("numa"), section("cpu")))
    evidence = merge(readings, whole=True, subject=subject, simulated=bool(probe.get("simulated")), probe=probe)
    return dataclasses.replace(evidence, findings=(*evidence.findings, *extra))


def _texts(value: Any) -> dict[str, str]:
    return {str(k): v for k, v in value.items() if isinstance(v, str)} if isinstance(value, Mapping) else {}


def _read_command(command: str, entry: Mapping[str, Any]) -> Reading:
    """Read one call of a bundle."""
    tool = command.partition(" ")[0]
    error = entry.get("error")
    stdout, stderr = (str(entry.get(key) or "") for key in ("stdout", "stderr"))
    if error == "not found":
        text = f"{tool} was found neither on PATH nor in tool_paths, expected it for `{command}`"
        return _failed(command, tool, finding("collect_tool_missing", command, text, severity="unknown"))
    if error and "time limit" in str(error):
        text = f"`{command}` did not end within the time limit, expected an answer"
        return _failed(command, tool, finding("collect_timeout", command, text, severity="unknown"))
    rc = entry.get("rc")
    reading = detect.read(stdout, stderr=stderr, rc=rc if isinstance(rc, int) else None, command=command)
    if error:
        text = f"`{command}`: {error}"
        more = finding("collect_unexpected", command, text)
        reading = dataclasses.replace(reading, complete=False, findings=(*reading.findings, more))
    # The kind of a text is told by the text; what was asked for is told by the call.
    facts = {**reading.facts, "command": command}
    return dataclasses.replace(reading, facts=facts)


def _failed(command: str, tool: str, why: Finding) -> Reading:
    return Reading(kind=command, tool=tool, complete=False, facts={"command": command}, findings=(why,), refused=True)


def merge(
    readings: Iterable[Reading],
    *,
    whole: bool,
    subject: str,
    simulated: bool = False,
    probe: Mapping[str, Any] | None = None,
) -> Evidence:
    """Put readings of one node together.

    Args:
        readings: in any order; the order of trust is by kind.
        whole: True for a bundle of ``node_probe``, False for single captures.
        subject: name of the node.
        simulated: the node says of itself that its GPUs are replayed.
        probe: the bundle, for what needs no parser (command line, sysctls, rights, environment).
    """
    ordered = sorted(readings, key=_trust)
    merger = _Merger([r for r in ordered if not r.refused], whole=whole, subject=subject)
    merger.number_gpus()
    merger.join_gpus()
    merger.join_links()
    merger.join_numa()
    merger.gather_facts()
    host = merger.host()
    if probe is not None:
        host = merger.host_of_probe(host, probe)
    topology = Topology(
        gpus=tuple(merger.gpus),
        links=tuple(merger.links),
        numa=tuple(merger.numa),
        host=host,
        sources=tuple(Source(r.kind, r.version, r.complete and not r.refused) for r in ordered),
    )
    collects = frozenset(merger.collects)
    return Evidence(
        topology=topology,
        readings=tuple(ordered),
        facts=merger.facts,
        collects=collects,
        findings=(*_joined(_of_readings(ordered, collects, whole=whole)), *merger.findings),
        whole=whole,
        subject=subject,
        simulated=simulated,
    )


def _trust(reading: Reading) -> tuple[int, int, str, str]:
    try:
        place = _TRUST.index(reading.kind)
    except ValueError:
        place = len(_TRUST) + (reading.kind in _FILTERED) + 2 * (reading.kind in _PHYSICAL)
    is_json = "json" in (reading.layout or "")
    return place, 0 if is_json else 1, reading.kind, str(reading.facts.get("command", ""))


def _of_readings(readings: Sequence[Reading], collects: frozenset[Aspect], *, whole: bool) -> Iterator[Finding]:
    """Yield what the parsers found; the failure of one source among several that showed the same is a warning."""
    for reading in readings:
        command = str(reading.facts.get("command", reading.kind))
        purpose = _PURPOSE.get(command, ())
        covered = whole and reading.refused and bool(purpose) and set(purpose) <= collects
        for item in reading.findings:
            if covered and item.severity in ("error", "unknown") and item.code in _HARMLESS:
                yield dataclasses.replace(
                    item, severity="warning", message=f"{item.message}; other sources showed what it is for"
                )
            else:
                yield item


def _joined(findings: Iterable[Finding]) -> Iterator[Finding]:
    """Yield each finding once, where several calls of a tool failed in the same way."""
    groups: dict[tuple[str, str, str], list[Finding]] = {}
    for item in findings:
        groups.setdefault((item.code, item.severity, item.message), []).append(item)
    for group in groups.values():
        subjects = sorted({item.subject for item in group})
        if len(subjects) < 2:
            yield group[0]
        else:
            yield dataclasses.replace(group[0], subject=f"{subjects[0]} and {len(subjects) - 1} more calls")


@dataclass(frozen=True)
class _Said:
    """What one source says of something."""

    source: str
    value: Any


class _Merger:
    """The node while it is being put together."""

    def __init__(self, readings: Sequence[Reading], *, whole: bool, subject: str) -> None:
        self.readings = readings
        self.whole = whole
        self.subject = subject
        self.findings: list[Finding] = []
        self.gpus: list[Gpu] = []
        self.links: list[Link] = []
        self.numa: list[NumaNode] = []
        self.facts: dict[str, Any] = {}
        self.collects: set[Aspect] = set().union(*(r.collects for r in readings)) if readings else set()
        #: For each reading: its GPU number -> ours. Empty for one that cannot be matched.
        self.numbers: list[dict[int, list[int]]] = []

    def name(self, reading: Reading) -> str:
        return str(reading.facts.get("command") or reading.kind)

    def by_kind(self, *kinds: str) -> Iterator[Reading]:
        return (r for r in self.readings if r.kind in kinds)

    # -- GPUs --------------------------------------------------------------------------------------------------------

    def number_gpus(self) -> None:
        """Choose the list of GPUs and map each source's numbers to it."""
        logical = [r for r in self.readings if r.gpus and r.kind not in _PHYSICAL and r.kind not in _FILTERED]
        base = logical or [r for r in self.readings if r.gpus]
        if not base:
            self.numbers = [{} for _ in self.readings]
            return
        count = len(base[0].gpus)
        # Addresses come from the most trusted source that has one for each of these GPUs.
        with_bdf = next((r for r in base if len(r.gpus) == count and _addresses(r)), None)
        if with_bdf is None:
            order: list[str | None] = [None] * count
        else:
            order = [*sorted(_addresses(with_bdf), key=_bdf_key)]
            for reading in base:
                known = _addresses(reading)
                if known and [*known] != sorted(known, key=_bdf_key):
                    text = f"{self.name(reading)} numbers GPUs as {', '.join(known[:4])}, not in PCI address order"
                    self.findings.append(finding("gpu_index_order", self.subject, text))
                    break
        for reading in base:
            bdfs = [g.bdf for g in reading.gpus if g.bdf]
            doubled = sorted({b for b in bdfs if bdfs.count(b) > 1})
            if doubled:
                text = f"{self.name(reading)} shows {', '.join(doubled[:4])} more than once, expected one address each"
                self.findings.append(finding("gpu_address_duplicate", self.subject, text))
        self.gpus = [Gpu(index=i, bdf=bdf) for i, bdf in enumerate(order)]
        self.numbers = [self._map(reading, order, base[0]) for reading in self.readings]
        # What a source says of GPUs that cannot be matched with ours is as good as not collected.
        self.collects = set().union(
            *(r.collects for r, numbers in zip(self.readings, self.numbers, strict=True) if numbers or not r.gpus)
        )

    def _map(self, reading: Reading, order: Sequence[str | None], first: Reading) -> dict[int, list[int]]:
        place = {bdf: i for i, bdf in enumerate(order) if bdf}
        if reading.kind in _PHYSICAL and order and order[0] is not None:
            return {
                g.index: [i for bdf, i in place.items() if g.bdf and _device(bdf) == _device(g.bdf)]
                for g in reading.gpus
            }
        if reading.kind in _FILTERED and place:
            return self._map_by_bus(reading, place)
        known = _addresses(reading)
        if known and place:
            self._compare_addresses(reading, known, place, first)
            return {g.index: [place[g.bdf]] for g in reading.gpus if g.bdf in place}
        if len(reading.gpus) == len(order):
            return {g.index: [i] for i, g in enumerate(sorted(reading.gpus, key=lambda g: g.index))}
        if reading.gpus and reading.kind not in _FILTERED:
            self._disagree_count(reading, first)
        return {}

    def _map_by_bus(self, reading: Reading, place: Mapping[str, int]) -> dict[int, list[int]]:
        """rocminfo prints addresses without the PCI domain: where two GPUs share the rest, the KFD node tells."""
        buses = reading.facts.get("bus_addresses", ())
        nodes = reading.facts.get("kfd_nodes", ())
        tree = next(self.by_kind("kfd"), None)
        by_node = (
            {node: g.bdf for node, g in zip(tree.facts.get("kfd_nodes", ()), tree.gpus, strict=False)} if tree else {}
        )
        numbers: dict[int, list[int]] = {}
        for position, gpu in enumerate(reading.gpus):
            bus = buses[position] if position < len(buses) else None
            same = [i for bdf, i in place.items() if bus and bdf.partition(":")[2] == bus]
            if len(same) != 1:
                node = nodes[position] if position < len(nodes) else None
                bdf = by_node.get(node)
                same = [place[bdf]] if bdf is not None and bdf in place else []
            numbers[gpu.index] = same
        return numbers

    def _compare_addresses(
        self, reading: Reading, known: Sequence[str], place: Mapping[str, int], first: Reading
    ) -> None:
        if reading.kind in _FILTERED or set(known) == set(place):
            return
        only = sorted(set(known) - set(place))
        lacks = sorted(set(place) - set(known))
        text = f"{self.name(first)} shows {len(place)} GPUs, {self.name(reading)} {len(known)}"
        text += f"; only the second has {', '.join(only[:4])}" if only else ""
        text += f"; only the first has {', '.join(lacks[:4])}" if lacks else ""
        self.findings.append(finding("sources_disagree", self.subject, text))

    def _disagree_count(self, reading: Reading, first: Reading) -> None:
        text = f"{self.name(first)} shows {len(first.gpus)} GPUs, {self.name(reading)} {len(reading.gpus)}"
        self.findings.append(finding("sources_disagree", self.subject, text))

    def join_gpus(self) -> None:
        """Fill each GPU's fields from the sources, the most trusted first."""
        for index, gpu in enumerate(self.gpus):

            def told(get: Callable[[Gpu], Any], index: int = index) -> list[_Said]:
                return [
                    _Said(self.name(reading), value)
                    for reading, numbers in zip(self.readings, self.numbers, strict=True)
                    for g in reading.gpus
                    if index in numbers.get(g.index, ()) and (value := get(g)) is not None
                ]

            name = f"GPU{index}"
            sysfs = [
                _Said("sysfs", g.numa_node)
                for reading, numbers in zip(self.readings, self.numbers, strict=True)
                if reading.kind == "pci"
                for g in reading.gpus
                if index in numbers.get(g.index, ())
            ]
            node = self._agree(
                name, "NUMA node", [s for s in sysfs if s.value is not None] + told(lambda g: g.numa_node)
            )
            self.gpus[index] = dataclasses.replace(
                gpu,
                device_id=self._agree(name, "device id", told(lambda g: g.device_id)),
                arch=self._agree(name, "gfx target", told(lambda g: g.arch)),
                # The kernel's word counts, even where it is "unknown".
                numa_node=sysfs[0].value if sysfs else node,
                vram_bytes=next((s.value for s in told(lambda g: g.vram_bytes)), None),
                partition=Partition(
                    self._agree(name, "compute partition", told(lambda g: g.partition.compute)),
                    self._agree(name, "memory partition", told(lambda g: g.partition.memory)),
                ),
                oam_id=next((s.value for s in told(lambda g: g.oam_id)), None),
                hip_id=self._hip_id(name, index),
            )

    def _hip_id(self, name: str, index: int) -> int | None:
        """HIP's number: KFD order, which is trusted before rocminfo; that only where it shows every GPU."""
        told: list[_Said] = []
        for reading, numbers in zip(self.readings, self.numbers, strict=True):
            if reading.kind in _FILTERED and len(reading.gpus) != len(self.gpus):
                continue
            told += [
                _Said(self.name(reading), g.hip_id)
                for g in reading.gpus
                if g.hip_id is not None and index in numbers.get(g.index, ())
            ]
        value: int | None = self._agree(name, "HIP number", told)
        return value

    def _agree(self, subject: str, what: str, told: Sequence[_Said], *, advisory: bool = False) -> Any:
        """Return the first value; say so when another source differs."""
        if not told:
            return None
        for other in told[1:]:
            if other.value != told[0].value:
                code = "sources_disagree_advisory" if advisory else "sources_disagree"
                text = f"{what} {told[0].value} by {told[0].source}, {other.value} by {other.source}"
                self.findings.append(finding(code, subject, text))
                break
        return told[0].value

    # -- links -------------------------------------------------------------------------------------------------------

    def join_links(self) -> None:
        """Fill each pair from the sources, the most trusted first."""
        told: dict[tuple[int, int], list[tuple[str, Link]]] = {}
        for reading, numbers in zip(self.readings, self.numbers, strict=True):
            for link in reading.links:
                for a, b in itertools.product(numbers.get(link.a, ()), numbers.get(link.b, ())):
                    if a != b:
                        told.setdefault((min(a, b), max(a, b)), []).append((self.name(reading), link))
        paths, devices = self._pci_paths()
        for pair in itertools.combinations(range(len(self.gpus)), 2):
            if pair in told:
                self.links.append(self._link(pair, told[pair], paths, devices))

    def _link(
        self,
        pair: tuple[int, int],
        told: Sequence[tuple[str, Link]],
        paths: Mapping[str, str],
        devices: Mapping[int, str],
    ) -> Link:
        a, b = pair
        name = f"GPU{a}-GPU{b}"

        def values(get: Callable[[Link], Any]) -> list[_Said]:
            return [_Said(source, value) for source, link in told if (value := get(link)) is not None]

        bus = self._agree(name, "link type", values(_bus))
        # The word as the tool printed it, of the source whose type counts; where none knows, of the most trusted.
        raw = next((link.raw_type for _source, link in told if _bus(link) == bus and link.raw_type), None)
        kind: LinkType = "UNKNOWN"
        if bus == "XGMI":
            kind = "XGMI"
        elif bus == "PCIE":
            kind = pci.pair_class(
                paths.get(devices.get(a, "")),
                paths.get(devices.get(b, "")),
                self.gpus[a].numa_node,
                self.gpus[b].numa_node,
            )
            if kind == "UNKNOWN":
                kind = next((link.type for _source, link in told if link.type not in ("UNKNOWN", "XGMI")), "UNKNOWN")
        return Link(
            a=a,
            b=b,
            type=kind,
            raw_type=raw,
            weight=self._agree(name, "link weight", values(lambda link: link.weight), advisory=True),
            hops=self._agree(name, "link hops", values(lambda link: link.hops), advisory=True),
            accessible=self._agree(name, "peer access", values(lambda link: link.accessible)),
            bandwidth_mbps=next((s.value for s in values(lambda link: link.bandwidth_mbps)), None),
        )

    def _pci_paths(self) -> tuple[dict[str, str], dict[int, str]]:
        """Return the sysfs path of each address, and the address of each GPU's physical device."""
        paths: dict[str, str] = {}
        for reading in self.by_kind("pci", "lspci path"):
            for bdf, path in reading.facts.get("pci_paths", {}).items():
                paths.setdefault(bdf, path)
        devices = {}
        for gpu in self.gpus:
            if gpu.bdf:
                devices[gpu.index] = gpu.bdf if gpu.bdf in paths else f"{_device(gpu.bdf)}.0"
        return paths, devices

    # -- NUMA and host -----------------------------------------------------------------------------------------------

    def join_numa(self) -> None:
        """NUMA nodes of the host: sysfs where it was read, else the first tool that shows them."""
        told = [r for r in self.readings if r.numa]
        told.sort(key=lambda r: r.tool != "sysfs")
        if not told:
            return
        self.numa = list(told[0].numa)
        for other in told[1:]:
            mine, theirs = ({n.id: n.cpus for n in r.numa} for r in (told[0], other))
            if set(mine) != set(theirs) or any(mine[n] and theirs[n] and mine[n] != theirs[n] for n in mine):
                first, second = (f"{_nodes(r.numa)} by {self.name(r)}" for r in (told[0], other))
                text = f"NUMA nodes {first}, {second}"
                self.findings.append(finding("sources_disagree", self.subject, text))
        if not any(n.mem_bytes for n in self.numa) or not any(n.distances for n in self.numa):
            more = {n.id: n for r in told[1:] for n in r.numa}
            self.numa = [
                dataclasses.replace(
                    n,
                    mem_bytes=n.mem_bytes or (more[n.id].mem_bytes if n.id in more else None),
                    distances=n.distances or (more[n.id].distances if n.id in more else ()),
                )
                for n in self.numa
            ]

    def host(self) -> Host:
        """The host's facts, of the first source that knows each."""
        values = {}
        for field in dataclasses.fields(Host):
            values[field.name] = next(
                (v for r in self.readings if (v := getattr(r.host, field.name)) is not None), None
            )
        return Host(**values)

    def host_of_probe(self, host: Host, probe: Mapping[str, Any]) -> Host:
        """Add what a bundle says of the host without a parser, and which aspects that covers."""

        def section(name: str) -> Mapping[str, Any]:
            value = probe.get(name)
            return value if isinstance(value, Mapping) else {}

        cmdline = section("proc").get("cmdline")
        if isinstance(cmdline, str) and cmdline.strip():
            self.collects.add("cmdline")
            host = dataclasses.replace(host, cmdline=cmdline.strip(), iommu=iommu_mode(cmdline))
        balancing = section("sysctl").get("kernel.numa_balancing")
        if balancing is not None and str(balancing).strip().isdecimal():
            self.collects.add("sysctl")
            host = dataclasses.replace(host, numa_balancing=int(balancing) != 0)
        kernel = probe.get("kernel")
        if isinstance(kernel, str):
            host = dataclasses.replace(host, kernel=kernel)
        if isinstance(probe.get("environment"), Mapping):
            self.collects.add("environment")
            self.facts["environment"] = {
                str(path): [str(line) for line in lines]
                for path, lines in section("environment").items()
                if isinstance(lines, Sequence) and not isinstance(lines, str)
            }
        if isinstance(section("access").get("devices"), Mapping):
            self.collects.add("access")
            self.facts["access"] = dict(section("access"))
        module = section("module")
        if isinstance(module.get("amdgpu"), bool):
            self.collects.add("driver")
            # A driver that is built into the kernel has no initstate; its folder is there all the same.
            live = module["amdgpu"] and module.get("initstate") in ("live", None)
            self.facts["driver"]["loaded"] = live
            if module.get("version"):
                self.facts.setdefault("versions", {}).setdefault("amdgpu", str(module["version"]))
        return host

    # -- facts -------------------------------------------------------------------------------------------------------

    def gather_facts(self) -> None:
        """Bring the facts of the readings under our numbers."""
        status: dict[int, tuple[Any, ...]] = {}
        ecc: dict[int, dict[str, Any]] = {}
        hard: dict[int, dict[str, int]] = {}
        totals: dict[int, int] = {}
        used: dict[int, int | None] = {}
        nearest: dict[int, int | None] = {}
        firmware: dict[int, str | None] = {}
        busy: set[int] | None = None
        for reading, numbers in zip(self.readings, self.numbers, strict=True):

            def ours(fact: str, reading: Reading = reading, numbers: Any = numbers) -> Iterator[tuple[int, Any]]:
                value = reading.facts.get(fact)
                for number, entry in value.items() if isinstance(value, Mapping) else ():
                    for index in numbers.get(number, ()):
                        yield index, entry

            for index, ports in ours("link_status"):
                status.setdefault(index, tuple(ports or ()))
            for index, counts in ours("ecc"):
                if isinstance(counts, Mapping):
                    ecc[index] = _worse(ecc.get(index), counts)
            for index, blocks in ours("ecc_blocks"):
                for block, counts in blocks.items() if isinstance(blocks, Mapping) else ():
                    _count_hard(hard, index, block, counts)
            for index, counts in ours("ecc_total"):
                total = counts.get("uncorrectable") if isinstance(counts, Mapping) else None
                totals[index] = max(totals.get(index, 0), total or 0)
            for index, amount in ours("vram_used"):
                used[index] = _more(used.get(index), amount)
            for index, node in ours("numa_nearest"):
                nearest.setdefault(index, node)
            for index, version in ours("firmware"):
                firmware.setdefault(index, version)
            if "vram_busy" in reading.facts:
                busy = (busy or set()) | {i for number in reading.facts["vram_busy"] for i in numbers.get(number, ())}
        self._facts_by_address(ecc, hard, used)
        for index, total in totals.items():
            if total > sum(hard.get(index, {}).values()):
                hard.setdefault(index, {})["TOTAL"] = total
        for reading, numbers in zip(self.readings, self.numbers, strict=True):
            if reading.kind == "kfd":
                for gpu, node in zip(reading.gpus, reading.facts.get("nearest_cpu_node", ()), strict=False):
                    for index in numbers.get(gpu.index, ()):
                        nearest.setdefault(index, node)
        runtime = next((r for r in self.by_kind("rocminfo") if r.complete), None)
        kfd_reading = next(self.by_kind("kfd"), None)
        self.facts |= {
            "link_status": status,
            "ecc": ecc,
            "ecc_hard": {i: {b: n for b, n in blocks.items() if b != "XGMI_WAFL"} for i, blocks in hard.items()},
            "vram_used": used,
            "vram_busy": frozenset(busy) if busy is not None else None,
            "numa_nearest": nearest,
            "firmware": firmware,
            "runtime_gpus": len(runtime.gpus) if runtime else None,
            "driver_gpus": len(kfd_reading.gpus) if kfd_reading else len(self.gpus),
            "driver": {"loaded": None, "unbound": self._unbound()},
            "versions": {k: v for r in self.readings for k, v in r.facts.get("versions", {}).items() if v},
        }
        # Totals alone do not tell whether memory leaked.
        if not used:
            self.collects.discard("vram")
        if ecc:
            self.collects.add("ecc")

    def _unbound(self) -> tuple[str, ...]:
        return tuple(sorted({bdf for r in self.readings for bdf in r.facts.get("without_driver", ())}))

    def _facts_by_address(
        self, ecc: dict[int, dict[str, Any]], hard: dict[int, dict[str, int]], used: dict[int, int | None]
    ) -> None:
        """Facts of the PCI tree and of lspci, which name devices by address."""
        links: dict[int, dict[str, Any]] = {}
        acs: dict[str, bool | None] = {}
        gpu_nic: dict[str, Mapping[str, str]] = {}
        for reading, numbers in zip(self.readings, self.numbers, strict=True):
            if reading.kind not in _PHYSICAL:
                continue
            index_of = {g.bdf: numbers.get(g.index, []) for g in reading.gpus if g.bdf}
            # An excerpt of lspci without addresses names its devices #0, #1 ...
            index_of |= {f"#{g.index}": numbers.get(g.index, []) for g in reading.gpus if not g.bdf}

            def ours(fact: str, reading: Reading = reading, index_of: Any = index_of) -> Iterator[tuple[int, Any]]:
                value = reading.facts.get(fact)
                for bdf, entry in value.items() if isinstance(value, Mapping) else ():
                    for index in index_of.get(bdf, ()):
                        yield index, entry

            for index, link in ours("pcie"):
                if link and index not in links:
                    links[index] = {key: link.get(key) for key in ("speed_gts", "width", "max_speed_gts", "max_width")}
                elif link:
                    _slowest(links[index], link)
            for bdf in reading.facts.get("pcie_fatal", ()):
                for index in index_of.get(bdf, ()):
                    links.setdefault(index, {})["fatal_error"] = True
            for bdf in reading.facts.get("pcie_downgraded", ()):
                for index in index_of.get(bdf, ()):
                    links.setdefault(index, {})["downgraded"] = True
            for index, amount in ours("vram_used_bytes"):
                used[index] = _more(used.get(index), amount)
            for index, blocks in ours("ras"):
                counts = _ras(blocks)
                if counts is not None:
                    ecc[index] = _worse(ecc.get(index), counts)
                for block, count in blocks.items() if isinstance(blocks, Mapping) else ():
                    _count_hard(hard, index, block, {"uncorrectable": count.get("ue")})
            acs |= reading.facts.get("acs", {})
            gpu_nic |= reading.facts.get("gpu_nic", {})
        self.facts |= {"pcie_link": links, "acs": acs, "gpu_nic": gpu_nic}


def _slowest(have: dict[str, Any], other: Mapping[str, Any]) -> None:
    """Keep the slower of two readings of a link: sysfs follows the path up to the root, lspci shows the device."""
    for key in ("speed_gts", "width"):
        value = other.get(key)
        if value is not None and (have.get(key) is None or value < have[key]):
            have[key] = value


def _addresses(reading: Reading) -> list[str]:
    """Return the address of each GPU, or nothing where one is missing or doubled."""
    known = [g.bdf for g in sorted(reading.gpus, key=lambda g: g.index) if g.bdf]
    return known if len(known) == len(reading.gpus) and len(set(known)) == len(known) else []


def _bdf_key(bdf: str) -> tuple[int, ...]:
    """Return the address as numbers, so that ``0001:00:…`` comes after ``0000:ff:…``."""
    return tuple(int(part, 16) for part in bdf.replace(".", ":").split(":"))


def _device(bdf: str) -> str:
    """Return the address without the function, which numbers the partitions."""
    return bdf.rsplit(".", 1)[0]


def _bus(link: Link) -> str | None:
    """Return XGMI or PCIE, or None where the type of a link is not known."""
    raw = (link.raw_type or "").upper()
    if link.type == "XGMI" or raw == "XGMI":
        return "XGMI"
    if link.type != "UNKNOWN" or raw.startswith("PCIE"):
        return "PCIE"
    return None


def _ras(blocks: Any) -> dict[str, Any] | None:
    """Return the XGMI_WAFL counters of the kernel's ``ras`` folder."""
    counts = blocks.get("xgmi_wafl") if isinstance(blocks, Mapping) else None
    return {"correctable": counts.get("ce"), "uncorrectable": counts.get("ue")} if counts else None


def _count_hard(hard: dict[int, dict[str, int]], index: int, block: str, counts: Any) -> None:
    """Keep the uncorrectable errors of one block; of two sources the higher count."""
    count = counts.get("uncorrectable") if isinstance(counts, Mapping) else None
    if count:
        blocks = hard.setdefault(index, {})
        blocks[block.upper()] = max(blocks.get(block.upper(), 0), count)


def _more(a: int | None, b: int | None) -> int | None:
    """Return the larger of two counts of which either may not be known: of two sources the worse one counts."""
    return max((n for n in (a, b) if n is not None), default=None)


def _worse(have: Mapping[str, Any] | None, other: Mapping[str, Any]) -> dict[str, Any]:
    return {key: _more((have or {}).get(key), other.get(key)) for key in ("correctable", "uncorrectable")}


def _nodes(nodes: Iterable[NumaNode]) -> str:
    return ",".join(str(n.id) for n in nodes)


def iommu_mode(cmdline: str) -> str | None:
    """Return ``pt``, ``on`` or ``off`` as the kernel command line sets it, None where it says nothing.

    The last word counts, as in the kernel; ``iommu.passthrough=1`` is another spelling of ``iommu=pt``.
    """
    mode: str | None = None
    for word in cmdline.split():
        name, _sep, value = word.partition("=")
        values = value.split(",")
        if name == "iommu.passthrough":
            mode = "pt" if value in ("1", "y", "on") else "on"
        elif name == "iommu":
            mode = "pt" if "pt" in values else "off" if "off" in values else "on" if mode is None else mode
        elif name in ("amd_iommu", "intel_iommu"):
            if "off" in values:
                mode = "off"
            elif mode is None and ("on" in values or "force_enable" in values):
                mode = "on"
    return mode
