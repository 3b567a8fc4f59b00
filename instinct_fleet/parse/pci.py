"""PCI: the tree walk that names the path of a pair, ``lspci`` in its forms, ``node_probe``'s section, and dmesg.

Neither rocm-smi nor amd-smi prints PIX, PXB, PHB, NODE or SYS; :func:`pair_class` derives them from the PCI tree as
RCCL does. Facts that a reading holds; every key that is an address is ``dddd:bb:dd.f``:

``pci_paths``        address -> path in ``/sys/devices``
``pcie``             GPU address -> ``{"speed_gts", "width", "max_speed_gts", "max_width", "slowest"}``, the narrowest
                     link between the GPU and the root; None where it cannot be known. In an excerpt of ``lspci``
                     without device lines the keys are ``#0``, ``#1`` ...
``pcie_fatal``       addresses whose device status has ``FatalErr+``
``pcie_downgraded``  addresses that ``lspci`` marks ``(downgraded)``
``drivers``          GPU address -> kernel driver, None for a GPU that no driver took
``without_driver``   addresses of GPUs that amdgpu does not hold
``acs``              bridge address -> whether access control redirects peer traffic
``nics``             addresses of network cards
``nic_numa``         network card address -> NUMA node or None
``pair_classes``     GPU address -> GPU address -> class of the PCI path, for each two physical GPUs
``gpu_nic``          GPU address -> network card address -> class of the PCI path
``vram_used_bytes``  GPU address -> bytes in use
``ras``              GPU address -> block -> ``{"ue": n, "ce": n}``
``probe_failed``     (dmesg) address -> what amdgpu said while it failed to take the GPU
``gpu_failed``       (dmesg) address, or ``dmesg`` where the line has none -> failures of a GPU that had a driver
``gpu_reset``        (dmesg) the same -> resets that began
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Any

from instinct_fleet.model import Finding, Gpu, LinkType, Partition
from instinct_fleet.parse.base import Aspect, Reading, numa_or_unknown
from instinct_fleet.parse.symptoms import instead_of_data, note, quote, refuse, unsupported

TOOL = "lspci"

#: Name between brackets in pci.ids -> device id. Sources: pci.ids; ROCm system-acceptance-docs list of device ids.
DEVICE_NAMES: dict[str, str] = {
    "MI100": "0x738c",
    "MI210": "0x740f",
    "MI210 VF": "0x7410",
    "MI250X/MI250": "0x740c",
    "MI250X": "0x7408",
    "MI250": "0x740c",
    "MI300A": "0x74a0",
    "MI300X": "0x74a1",
    "MI300X VF": "0x74b5",
    "MI300X HF": "0x74a9",
    "MI308X": "0x74a2",
    "MI308X VF": "0x74b6",
    "MI325X": "0x74a5",
    "MI325X VF": "0x74b9",
    "MI350X": "0x75a0",
    "MI355X": "0x75a3",
}
#: Classes under which a GPU can appear: VGA, 3D, display (MI200) and processing accelerator (MI300 and later).
_GPU_CLASSES = ("0x0300", "0x0302", "0x0380", "0x1200")
_GPU_WORDS = ("vga compatible controller", "3d controller", "display controller", "processing accelerator")
_NIC_WORDS = ("ethernet controller", "infiniband controller", "network controller")

_BDF = r"(?:[0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]"
_BDF_FULL = re.compile(r"^[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$")
_HEADER = re.compile(
    rf"^(?P<path>{_BDF}(?:/(?:[0-9a-fA-F]{{2}}:)?[0-9a-fA-F]{{2}}\.[0-7])*)\s+(?P<kind>[^:]+?)(?: \[[0-9a-f]{{4}}\])?:"
    r"\s+(?P<name>.+)$"
)
_LNKSTA = re.compile(
    r"LnkSta:\s*Speed (?P<speed>\d{1,4}(?:\.\d{1,3})?|unknown)(?:GT/s)?\s*(?:\(\w+\))?,\s*Width x(?P<width>\d{1,3})\b",
    re.I,
)
_LNKCAP = re.compile(r"LnkCap:.*?Speed (?P<speed>\d{1,4}(?:\.\d{1,3})?)GT/s.*?Width x(?P<width>\d{1,3})\b")
_PROBE_FAILED = re.compile(
    r"amdgpu[: ].*?(?P<bdf>[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7])(?P<said>.*(?:"
    r"failed with error|Fatal error during GPU init|invalid ip discovery|IP discovery failed|probe failed"
    r"|failed to (?:init|load)|finishing device with error).*)",
    re.I,
)
#: What amdgpu, or PCI for it, says of a GPU that failed at run time. Source: ROCm node-scraper's list for dmesg.
_FAILED_LATER = re.compile(
    r"\bring \S+ timeout|GPU reset\S* failed|GPU [Rr]ecovery [Ff]ailed"
    r"|(?<!\b0 )(?<!\b0 new )uncorrectable hardware error"
    r"|XGMI: .*[Ff]ail|MES failed to respond|GPU [Hh]ang|HW [Ee]xception by GPU|device lost from bus"
    r"|IP block \S+ failed|AER: .*\((?:Non-)?Fatal\)|AER: device recovery failed|severity=Uncorrected",
)
_RESET = re.compile(r"GPU reset begin")
_ANY_BDF = re.compile(r"\b[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]\b")
#: A line of amdgpu in a kernel log, as dmesg prints it (also with -T, -x, --time-format iso) and journalctl -k.
_DMESG = re.compile(
    r"^(?:<\d{1,3}>)?(?:\w+ *:\w+ *: ?)?(?:\[[^\]\n]{1,40}\]\s*|\d{4}-\d\d-\d\dT\S+ )?(?:.{0,80}?kernel: )?"
    r"(?:\[[\s\d.]+\]\s*)?(?:\[drm\] |\[drm:amdgpu_\w+ )?(?:amdgpu[ :]|\[amdgpu\]\])",
    re.M,
)


def strip_partition(bdf: str) -> str:
    """Return the address of the physical device: partitions (CPX ...) differ from it in the function only."""
    return f"{bdf.rpartition('.')[0]}.0"


def _walk(path: str) -> tuple[str | None, str | None, tuple[str, ...]]:
    """Return (device, root, switches from the nearest up) of a ``/sys/devices`` path.

    Every second bridge above the device stands for one switch: of its two bridges, the one that faces the root. The
    root port above the last switch is not a switch.
    """
    parts = [part.lower() for part in path.strip("/").split("/")]
    root = next((i for i, part in enumerate(parts) if re.fullmatch(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}", part)), None)
    if root is None or not parts[root + 1 :] or not all(_BDF_FULL.match(part) for part in parts[root + 1 :]):
        return None, None, ()
    device, above = parts[-1], parts[root + 1 : -1]
    return strip_partition(device), parts[root], tuple(above[::-1][1::2])


def pair_class(path_a: str | None, path_b: str | None, numa_a: int | None, numa_b: int | None) -> LinkType:
    """Name the PCI path between two devices (two GPUs, or a GPU and a network card).

    The walk is RCCL's (``xml.cc``, ``paths.cc``): PIX below one switch, PXB with a switch in common, PHB below one
    root complex, then NODE on one NUMA node and SYS on two. An unknown NUMA node makes UNKNOWN (RCCL would take node 0,
    which would call two sockets one). On an MI300X a GPU and its own network card are PXB, since the module has a
    switch of its own between: that is the best there is, and enough for GPUDirect.

    Args:
        path_a: real path, as ``/sys/devices/pci0000:00/0000:00:01.1/…/0000:0c:00.0``; None: unknown.
        path_b: the other one.
        numa_a: NUMA node of the first device; None: unknown.
        numa_b: NUMA node of the second.
    """
    device_a, root_a, switches_a = _walk(path_a or "")
    device_b, root_b, switches_b = _walk(path_b or "")
    if device_a is not None and device_b is not None:
        if device_a == device_b or (switches_a and switches_b and switches_a[0] == switches_b[0]):
            return "PIX"
        if set(switches_a) & set(switches_b):
            return "PXB"
        if root_a == root_b:
            return "PHB"
        if numa_a is not None and numa_b is not None:
            return "NODE" if numa_a == numa_b else "SYS"
    return "UNKNOWN"


def sniff(text: str) -> bool:
    """Tell whether a text is from ``lspci`` or is a kernel log about amdgpu."""
    lines = text.splitlines()
    header = any(m for line in lines if (m := _HEADER.match(line)) and _is_lspci_kind(m["kind"]))
    return header or any(_LNKSTA.search(line) for line in lines) or _dmesg_like(text)


def parse(text: str, *, stderr: str = "", rc: int | None = None) -> Reading:
    """Read ``lspci`` (plain, ``-vv``, ``-PP``, or only its link lines), or a kernel log with amdgpu's failures."""
    lines = text.splitlines()
    headers = [m for line in lines if (m := _HEADER.match(line)) and _is_lspci_kind(m["kind"])]
    if headers and any("/" in m["path"] for m in headers):
        return _parse_paths(headers, stderr)
    if headers or any(_LNKSTA.search(line) for line in lines):
        return _parse_verbose(lines, stderr)
    if _dmesg_like(text):
        return _parse_dmesg(text)
    return instead_of_data("lspci link", TOOL, text, stderr=stderr, rc=rc) or unsupported(
        "lspci link", TOOL, text, "`lspci -D -vv -d 1002:` or `lspci -PP`"
    )


def _is_lspci_kind(kind: str) -> bool:
    return bool(re.match(r"[A-Z0-9][A-Za-z0-9 /.&-]+$", kind))


def _full_bdf(bdf: str) -> str:
    """Return an address with its domain. lspci leaves the domain out only where all devices are in domain 0."""
    bdf = bdf.lower()
    return bdf if bdf.count(":") == 2 else f"0000:{bdf}"


def _is_amd_gpu(kind: str, name: str) -> bool:
    amd = "AMD/ATI" in name or re.search(r"\[1002:[0-9a-f]{4}\]", name) is not None or "Instinct" in name
    return amd and kind.lower().startswith(_GPU_WORDS)


def _device_id(name: str) -> str | None:
    numeric = re.search(r"\[1002:([0-9a-f]{4})\]", name) or re.search(r"\bDevice ([0-9a-f]{4})\b", name)
    if numeric:
        return f"0x{numeric[1]}"
    known = re.search(r"\[(?:AMD )?Instinct ([^\]]+)\]", name)
    return DEVICE_NAMES.get(known[1].strip()) if known else None


class _Device:
    """One block of ``lspci -vv``."""

    def __init__(self, key: str, kind: str, name: str) -> None:
        self.key = key
        self.kind = kind
        self.name = name
        self.lines: list[str] = []

    @property
    def is_gpu(self) -> bool:
        return self.key.startswith("#") or _is_amd_gpu(self.kind, self.name)

    def first(self, pattern: str) -> re.Match[str] | None:
        """Return the first match of a pattern in the block."""
        return next((m for line in self.lines if (m := re.search(pattern, line))), None)


def _blocks(lines: Sequence[str]) -> list[_Device]:
    """Split the text into devices. Link lines without any device line (as ``grep LnkSta`` leaves them) get numbers."""
    devices: list[_Device] = []
    anonymous: _Device | None = None
    for line in lines:
        header = _HEADER.match(line)
        if header and _is_lspci_kind(header["kind"]):
            devices.append(_Device(_full_bdf(header["path"]), header["kind"], header["name"]))
            anonymous = None
            continue
        if devices and anonymous is None:
            devices[-1].lines.append(line)
            continue
        # DevSta opens a device's link lines where it was kept, else each LnkSta is a device of its own.
        starts = "DevSta:" in line or ("LnkSta:" in line and (anonymous is None or anonymous.first(r"LnkSta:")))
        if starts:
            anonymous = _Device(f"#{len(devices)}", "", "")
            devices.append(anonymous)
        if anonymous is not None:
            anonymous.lines.append(line)
    return devices


def _parse_verbose(lines: Sequence[str], stderr: str) -> Reading:
    """Read device blocks; a plain listing without ``-v`` gives the GPUs only."""
    findings: list[Finding] = []
    devices = _blocks(lines)
    cards = [d for d in devices if d.is_gpu]
    cards.sort(key=lambda d: (d.key.startswith("#"), d.key))
    verbose = any(line.startswith(("\t", "  ")) and line.strip() for line in lines)
    gpus, pcie, drivers = [], {}, {}
    fatal, downgraded, denied, unread = [], [], [], []
    for index, device in enumerate(cards):
        named = not device.key.startswith("#")
        numa = device.first(r"NUMA node: (-?\d{1,10})")
        gpus.append(
            Gpu(
                index=index,
                bdf=device.key if named else None,
                device_id=_device_id(device.name),
                numa_node=numa_or_unknown(numa[1]) if numa else None,
            )
        )
        if not verbose:
            continue
        if named and (driver := device.first(r"Kernel driver in use: (\S+)")):
            drivers[device.key] = driver[1]
        elif named:
            drivers[device.key] = None
        link = _link(device)
        pcie[device.key] = link
        if device.first(r"access denied"):
            denied.append(device.key)
        elif link is None:
            unread.append(device.key)
        if device.first(r"LnkSta:.*\(downgraded\)"):
            downgraded.append(device.key)
    bridges = {d.key: acs for d in devices if (acs := _acs(d)) is not None}
    fatal = [d.key for d in devices if d.first(r"DevSta:.*\bFatalErr\+")]
    keys = [d.key for d in cards]
    repeated = sorted({key for key in keys if keys.count(key) > 1})
    gone = [d.key for d in cards if "(rev ff)" in d.name]
    if gone:
        message = f"{', '.join(gone)} reads as (rev ff): the GPU does not answer on the bus"
        remedy = "power-cycle the node; if it stays, the GPU or its slot needs service"
        findings.append(note("collect_unexpected", "error", TOOL, message, remedy=remedy))
    if repeated:
        message = f"{', '.join(repeated)} listed more than once; expected each device once"
        findings.append(note("collect_inconsistent", "error", TOOL, message))
    if denied:
        message = f"lspci hid the capabilities of {len(denied)} GPUs (access denied): their PCIe links are unknown"
        findings.append(note("collect_permission", "unknown", TOOL, message, remedy="run `lspci -vv` as root"))
    if unread:
        message = f"no readable LnkSta for {', '.join(unread)}: the PCIe link is unknown"
        findings.append(note("collect_truncated", "unknown", TOOL, message))
    if not cards:
        message = "no AMD GPU among the devices that lspci listed"
        findings.append(
            note("collect_empty", "unknown", TOOL, message, remedy="run `lspci -D -vv -d 1002:` on the host")
        )
    collects: set[Aspect] = set()
    if any(gpu.bdf for gpu in gpus):
        collects |= {"gpu_count", "bdf", "device_id"}
    if pcie and not denied:
        collects.add("pcie_link")
    if drivers:
        collects.add("driver")
    if any(gpu.numa_node is not None for gpu in gpus):
        collects.add("gpu_numa")
    return Reading(
        kind="lspci link" if verbose else "lspci",
        tool=TOOL,
        layout="verbose" if verbose else "plain",
        complete=not findings,
        gpus=tuple(gpus),
        facts={
            "pcie": pcie,
            "pcie_fatal": tuple(sorted(fatal)),
            "pcie_downgraded": tuple(downgraded),
            "drivers": drivers,
            "without_driver": _not_held(drivers),
            "acs": bridges,
        },
        collects=frozenset(collects),
        findings=(*findings, *_noise(stderr)),
    )


def _not_held(drivers: Mapping[str, str | None]) -> tuple[str, ...]:
    """Return the GPUs that amdgpu does not hold: without a driver, or kept for a guest by vfio-pci."""
    return tuple(bdf for bdf, driver in drivers.items() if driver != "amdgpu")


def _link(device: _Device) -> dict[str, Any] | None:
    status = next((m for line in device.lines if (m := _LNKSTA.search(line))), None)
    if status is None or status["speed"].lower() == "unknown":
        return None
    best = next((m for line in device.lines if (m := _LNKCAP.search(line))), None)
    return {
        "speed_gts": float(status["speed"]),
        "width": int(status["width"]),
        "max_speed_gts": float(best["speed"]) if best else None,
        "max_width": int(best["width"]) if best else None,
        "slowest": device.key,
    }


def _acs(device: _Device) -> bool | None:
    """Tell whether a bridge redirects peer traffic; None where it does not say."""
    control = device.first(r"ACSCtl:\s*(.+)")
    if control is None:
        return None
    return any(flag in control[1] for flag in ("ReqRedir+", "CmpltRedir+", "UpstreamFwd+"))


def _noise(stderr: str) -> tuple[Finding, ...]:
    """A tool that printed its data and complained besides gets one warning."""
    if not stderr.strip():
        return ()
    return (note("collect_noise", "warning", TOOL, f"lspci also said: {quote(stderr)}"),)


def _parse_paths(headers: Sequence[re.Match[str]], stderr: str) -> Reading:
    """Read ``lspci -PP``: GPUs and network cards with the bridges above each."""
    paths: dict[str, str] = {}
    devices: list[tuple[str, str, str]] = []
    for match in headers:
        steps = match["path"].lower().split("/")
        domain = steps[0].split(":")[0] if steps[0].count(":") == 2 else "0000"
        full = [_full_bdf(steps[0])]
        for step in steps[1:]:
            full.append(f"{domain}:{step}" if ":" in step else f"{domain}:??:{step}")
        bdf = full[-1]
        devices.append((bdf, match["kind"], match["name"]))
        if all(_BDF_FULL.match(step) for step in full):
            root = ":".join(full[0].split(":")[:2])
            paths[bdf] = "/".join(("/sys/devices", f"pci{root}", *full))
    ids = {bdf: _device_id(name) for bdf, kind, name in devices if _is_amd_gpu(kind, name)}
    nics = sorted({bdf for bdf, kind, _name in devices if kind.lower().startswith(_NIC_WORDS)})
    gpus = tuple(Gpu(index=i, bdf=bdf, device_id=ids[bdf]) for i, bdf in enumerate(sorted(ids)))
    findings: list[Finding] = []
    bad = sorted(bdf for bdf, _kind, _name in devices if bdf not in paths)
    if bad:
        message = f"the path of {', '.join(bad)} is not a chain of bridges; expected `lspci -PP`"
        findings.append(note("collect_unexpected", "unknown", TOOL, message))
    if not gpus and not nics:
        message = "neither an AMD GPU nor a network card in the listing"
        findings.append(note("collect_empty", "unknown", TOOL, message))
    collects: set[Aspect] = {"pci_tree"}
    if gpus:
        collects |= {"bdf", "gpu_count", "device_id"}
    return Reading(
        kind="lspci path",
        tool=TOOL,
        layout="-PP",
        complete=not findings,
        gpus=gpus,
        facts={
            "pci_paths": paths,
            "nics": tuple(nics),
            **_classes([(g.bdf, None) for g in gpus if g.bdf], [(nic, None) for nic in nics], paths),
        },
        collects=frozenset(collects),
        findings=(*findings, *_noise(stderr)),
    )


def _classes(
    gpus: Sequence[tuple[str, int | None]], nics: Sequence[tuple[str, int | None]], paths: Mapping[str, str]
) -> dict[str, Any]:
    """Return ``pair_classes`` and ``gpu_nic`` from (address, NUMA node) of each device."""
    pairs: dict[str, dict[str, LinkType]] = {bdf: {} for bdf, _numa in gpus}
    for (a, numa_a), (b, numa_b) in itertools.combinations(gpus, 2):
        pairs[a][b] = pairs[b][a] = pair_class(paths.get(a), paths.get(b), numa_a, numa_b)
    return {
        "pair_classes": pairs,
        "gpu_nic": {
            gpu: {nic: pair_class(paths.get(gpu), paths.get(nic), numa, nic_numa) for nic, nic_numa in nics}
            for gpu, numa in gpus
        },
    }


def _dmesg_like(text: str) -> bool:
    return _DMESG.search(text) is not None


def _parse_dmesg(text: str) -> Reading:
    """Read amdgpu's failures to take a GPU, and those at run time, out of a kernel log."""
    failed: dict[str, list[str]] = {}
    later: dict[str, list[str]] = {}
    resets: dict[str, list[str]] = {}
    for line in (whole[:2000] for whole in text.splitlines()):
        bdf = _ANY_BDF.search(line)
        subject = bdf[0].lower() if bdf else "dmesg"
        match = _PROBE_FAILED.search(line)
        if match:
            failed.setdefault(match["bdf"].lower(), []).append(quote(line))
        elif _FAILED_LATER.search(line):
            later.setdefault(subject, []).append(quote(line))
        elif _RESET.search(line):
            resets.setdefault(subject, []).append(quote(line))
    findings = [
        note(
            "collect_driver_not_loaded",
            "error",
            bdf,
            f"amdgpu did not take the GPU at {bdf}: {said[-1]}; expected a driver on every GPU, so tools show one less",
            remedy="power-cycle the node; if it stays, the GPU or its firmware needs service",
        )
        for bdf, said in sorted(failed.items())
    ]
    return Reading(
        kind="dmesg",
        tool="dmesg",
        layout="kernel log",
        facts={
            "probe_failed": {bdf: tuple(said) for bdf, said in sorted(failed.items())},
            "gpu_failed": {bdf: tuple(said) for bdf, said in sorted(later.items())},
            "gpu_reset": {bdf: tuple(said) for bdf, said in sorted(resets.items())},
        },
        collects=frozenset(("driver",)) if failed else frozenset(),
        findings=tuple(findings),
    )


def from_probe(pci: Mapping[str, Any]) -> Reading:
    """Read the ``pci`` section of a ``node_probe`` document.

    Returns:
        A reading of kind ``pci``: one GPU for each *physical* GPU in address order with NUMA node, total VRAM and
        partition modes, and the facts that the module lists. A section without devices is refused.
    """
    devices = {str(k).lower(): v for k, v in pci.items() if isinstance(v, Mapping)}
    findings: list[Finding] = []
    if not devices:
        message = "no PCI device was collected; expected /sys/bus/pci/devices to list GPUs, bridges and network cards"
        return refuse("pci", "sysfs", note("collect_empty", "error", "pci", message))
    cards = sorted(b for b, d in devices.items() if _text(d, "vendor") == "0x1002" and _class_of(d) in _GPU_CLASSES)
    nics = sorted(b for b, d in devices.items() if _class_of(d).startswith("0x02"))
    paths = {bdf: path for bdf, d in devices.items() if _walk(path := _text(d, "path"))[0] is not None}
    numa = {bdf: numa_or_unknown(d.get("numa_node")) for bdf, d in devices.items()}
    gpus = tuple(
        Gpu(
            index=index,
            bdf=bdf,
            device_id=_text(devices[bdf], "device") or None,
            numa_node=numa[bdf],
            vram_bytes=_whole(devices[bdf].get("mem_info_vram_total")),
            partition=Partition(
                compute=_text(devices[bdf], "current_compute_partition").upper() or None,
                memory=_text(devices[bdf], "current_memory_partition").upper() or None,
            ),
        )
        for index, bdf in enumerate(cards)
    )
    lost = [bdf for bdf in cards if bdf not in paths]
    if lost:
        message = f"the path of {', '.join(lost)} in /sys/devices is unknown; the PCI class of its pairs is too"
        findings.append(note("collect_unexpected", "unknown", "pci", message))
    if not cards:
        message = f"none of the {len(devices)} PCI devices is an AMD GPU"
        findings.append(
            note("collect_empty", "error", "pci", message, remedy="check `lspci -d 1002:` and the BMC's inventory")
        )
    drivers = {bdf: _text(devices[bdf], "driver") or None for bdf in cards}
    ras = {bdf: counters for bdf in cards if (counters := _ras(devices[bdf].get("ras")))}
    collects: set[Aspect] = {"gpu_count", "bdf", "device_id", "gpu_numa", "pci_tree", "pcie_link", "driver"}
    if any(gpu.vram_bytes is not None for gpu in gpus):
        collects.add("vram")
    if any(gpu.partition.compute for gpu in gpus):
        collects.add("partition")
    if ras:
        collects.add("ecc")
    return Reading(
        kind="pci",
        tool="sysfs",
        layout="node_probe",
        complete=not findings,
        gpus=gpus,
        facts={
            "pci_paths": paths,
            "pcie": {bdf: _worst_link(bdf, devices, paths) for bdf in cards},
            "drivers": drivers,
            "without_driver": _not_held(drivers),
            "nics": tuple(nics),
            "nic_numa": {bdf: numa[bdf] for bdf in nics},
            "vram_used_bytes": {bdf: _whole(devices[bdf].get("mem_info_vram_used")) for bdf in cards},
            "ras": ras,
            **_classes([(bdf, numa[bdf]) for bdf in cards], [(bdf, numa[bdf]) for bdf in nics], paths),
        },
        collects=frozenset(collects),
        findings=tuple(findings),
    )


def _text(device: Mapping[str, Any], name: str) -> str:
    value = device.get(name)
    return value.strip() if isinstance(value, str) else ""


def _class_of(device: Mapping[str, Any]) -> str:
    return _text(device, "class")[:6]


def _whole(value: Any) -> int | None:
    text = str(value).strip()
    return int(text) if re.fullmatch(r"[0-9]{1,20}", text) else None


def _worst_link(bdf: str, devices: Mapping[str, Mapping[str, Any]], paths: Mapping[str, str]) -> dict[str, Any] | None:
    """Return the slowest link from a GPU up to its root port.

    The GPU's own link is inside the module on an MI300X and always shows its best, so a bad riser or slot shows only
    at the bridges above. The best speed is the GPU's own.
    """
    above = [part for part in paths.get(bdf, f"/{bdf}").split("/") if part in devices]
    links = [
        (speed, width, step)
        for step in above
        if (speed := _speed(devices[step].get("current_link_speed")))
        and (width := _whole(devices[step].get("current_link_width")))
    ]
    own = devices[bdf]
    if bdf not in {step for _speed_, _width, step in links}:
        return None
    return {
        "speed_gts": min(speed for speed, _width, _step in links),
        "width": min(width for _speed_, width, _step in links),
        "max_speed_gts": _speed(own.get("max_link_speed")),
        "max_width": _whole(own.get("max_link_width")),
        "slowest": min(links, key=lambda link: (link[0] * link[1], link[2]))[2],
    }


def _speed(value: Any) -> float | None:
    """Read the kernel's ``32.0 GT/s PCIe`` (or ``8 GT/s``)."""
    match = re.match(r"\s*(\d{1,4}(?:\.\d{1,3})?) GT/s", str(value))
    return float(match[1]) if match else None


def _ras(counters: Any) -> dict[str, dict[str, int]]:
    """Read ``<block>_err_count`` files of ``ue: n`` and ``ce: n`` lines; a block that says less is left out."""
    blocks: dict[str, dict[str, int]] = {}
    for name, text in sorted(counters.items()) if isinstance(counters, Mapping) else ():
        values = dict(re.findall(r"^(ue|ce|de):\s*(\d{1,18})\s*$", text if isinstance(text, str) else "", re.M))
        if {"ue", "ce"} <= set(values):
            blocks[str(name).removesuffix("_err_count")] = {key: int(value) for key, value in sorted(values.items())}
    return blocks
