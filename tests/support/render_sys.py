"""What everything but amd-smi and rocm-smi says of a profile: rocminfo, lspci, numactl, lscpu, ``/sys`` and ``/proc``.

Faults that these renderers show, by name in ``Profile.faults`` (a GPU is meant by its physical position):

============================ =========================================================================================
``no_driver``                amdgpu is not loaded: no KFD, no driver bound, rocminfo says so
``kfd_missing_gpu``          the last GPU failed its probe: in PCI without a driver, in neither KFD nor rocminfo
``kfd_no_permission``        rocminfo may not open /dev/kfd
``rocr_hidden``              ROCR_VISIBLE_DEVICES=0,1 hides the other GPUs from rocminfo, and from nothing else
``pcie_downgraded``          GPU 1 came up at half the speed and half the width
``pcie_fatal_error``         GPU 1 has had a fatal PCIe error
``lspci_no_root``            lspci was run by a user: the capabilities are hidden
``acs_on``                   access control services redirect peer traffic at the bridge above each GPU
``numa_unknown``             the firmware names no NUMA node for any PCI device (numa_node is -1)
``iommu_missing``            the kernel command line has no ``iommu=pt``
``numa_balancing_on``        kernel.numa_balancing is 1
``xgmi_down``                GPU 0 has counted uncorrectable XGMI errors (which pairs lost their link is the profile's
                             ``pairs``)
``ecc_uncorrectable``        GPU 0 has counted uncorrectable memory errors
``vram_leaked``              three quarters of the memory of GPU 0 are used
============================ =========================================================================================
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from instinct_fleet.parse.base import format_cpu_list, parse_cpu_list
from support.profile import Profile

#: Device ids with the two bridges of an OAM above the GPU and a switch above those.
OAM_DEVICES = ("0x74a1", "0x74a2", "0x74a5", "0x75a0", "0x75a3")
#: LLVM target -> the number in KFD's gfx_target_version.
GFX_VERSION = {"gfx90a": 90010, "gfx942": 90402, "gfx950": 90500}
#: Device id -> compute units of one physical GPU (AMD Instinct data sheets; rounded to the die for the MI200s).
COMPUTE_UNITS = {"0x74a1": 304, "0x74a2": 80, "0x74a5": 304, "0x74a0": 228, "0x75a3": 256, "0x7408": 110, "0x740f": 104}
RAS_BLOCKS = ("umc", "gfx", "sdma", "mmhub", "pcie_bif", "xgmi_wafl")


@dataclass(frozen=True)
class KfdLink:
    """One link of the KFD tree: ``kind`` 1 HyperTransport, 2 PCIe, 5 UPI, 11 XGMI; bandwidth in MB/s."""

    kind: int
    source: int
    target: int
    weight: int
    low: int = 0
    high: int = 0
    flags: int = 0


@dataclass(frozen=True)
class Device:
    """One PCI device of the fake tree: its address, ``parent`` address (None: on the root bus), and identity."""

    bdf: str
    parent: str | None
    root: str
    vendor: str
    device: str
    pci_class: str
    numa: int | None
    gpu: int | None = None  # physical position


def physical_gpus(profile: Profile) -> list[tuple[str, int | None]]:
    """Return (address, NUMA node) of each physical GPU in order."""
    return list(dict(zip(profile.physical, profile.numa, strict=True)).items())


def failed_gpu(profile: Profile) -> str | None:
    """Return the address of the GPU whose probe failed, or None."""
    return profile.physical[-1] if "kfd_missing_gpu" in profile.faults else None


def driven_gpus(profile: Profile) -> list[int]:
    """Return the logical GPUs that the driver has, in the order of KFD and of the ROCm runtime (the HIP numbers)."""
    if "no_driver" in profile.faults:
        return []
    order = sorted(range(profile.count), key=lambda gpu: profile.hip_ids[gpu] if profile.hip_ids else gpu)
    return [gpu for gpu in order if profile.physical[gpu] != failed_gpu(profile)]


def devices(profile: Profile) -> Iterator[Device]:
    """Build the PCI tree: for each GPU a root port, bridges as its model has them, and one network card.

    An OAM sits below a switch together with its card, with two more bridges of its own between (so that GPU and card
    are PXB, never PIX). A PCIe card brings its two bridges and shares only the root with its network card (PHB). An
    APU is on its root port.
    """
    for position, (gpu, numa) in enumerate(physical_gpus(profile)):
        domain, bus = gpu.split(":")[0], int(gpu.split(":")[1], 16)
        depth = 5 if profile.device_id in OAM_DEVICES else 1 if profile.device_id == "0x74a0" else 3
        root = f"pci{domain}:{bus - depth:02x}"
        make = partial(Device, root=root, numa=None if "numa_unknown" in profile.faults else numa)

        def at(number: int, dev: int = 0, fn: int = 0, *, domain: str = domain) -> str:
            return f"{domain}:{number:02x}:{dev:02x}.{fn}"

        port = at(bus - depth, 1, 1)
        yield make(port, None, vendor="0x1022", device="0x14ab", pci_class="0x060400")
        above = port
        bridges = [("0x1000", "0xc030"), ("0x1000", "0xc030"), ("0x1022", "0x1500"), ("0x1002", "0x1501")]
        for offset, (vendor, device) in enumerate(bridges[4 - (depth - 1) :]):
            bridge = at(bus - depth + 1 + offset)
            yield make(bridge, above, vendor=vendor, device=device, pci_class="0x060400")
            above = bridge
        gpu_class = "0x120000" if profile.arch in ("gfx942", "gfx950") else "0x038000"
        yield make(gpu, above, vendor="0x1002", device=profile.device_id, pci_class=gpu_class, gpu=position)
        card_port = at(bus - 3, 1) if depth == 5 else at(bus - depth, 1, 2)
        upper = at(bus - 4) if depth == 5 else None
        yield make(card_port, upper, vendor="0x1022", device="0x14ab", pci_class="0x060400")
        yield make(at(bus + 1), card_port, vendor="0x15b3", device="0x1021", pci_class="0x020000")


def device_paths(profile: Profile) -> dict[str, str]:
    """Return address -> path below the root of the file system, as the kernel's ``/sys/devices`` has it."""
    paths: dict[str, str] = {}
    for device in devices(profile):
        above = f"sys/devices/{device.root}" if device.parent is None else paths[device.parent]
        paths[device.bdf] = f"{above}/{device.bdf}"
    return paths


def link_of(profile: Profile, position: int | None) -> tuple[float, int, float, int]:
    """Return (speed, width, best speed, best width) of the PCIe link of a physical GPU, in GT/s and lanes."""
    if position == 1 and "pcie_downgraded" in profile.faults:
        return profile.pcie_gts / 2, 8, profile.pcie_gts, 16
    return profile.pcie_gts, 16, profile.pcie_gts, 16


def write(path: Path, text: str) -> None:
    """Write one file, with the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def write_tree(profile: Profile, root: Path) -> None:
    """Write what the kernel shows of this machine under ``root/sys`` and ``root/proc``, for ``node_probe`` to read."""
    _write_pci(profile, root)
    if "no_driver" not in profile.faults:
        for name, text in kfd_files(profile).items():
            write(root / "sys/class/kfd/kfd/topology" / name, text)
        write(root / "sys/module/amdgpu/initstate", "live\n")
        write(root / "sys/module/amdgpu/version", f"{profile.driver_version}\n")
    _write_system(profile, root)
    proc = root / "proc"
    write(proc / "cmdline", cmdline(profile) + "\n")
    write(proc / "version", "Linux version 6.8.0-60-generic (builder@host) #63-Ubuntu SMP PREEMPT_DYNAMIC\n")
    write(proc / "meminfo", f"MemTotal:       {sum(n.mem_bytes for n in profile.nodes) // 1024} kB\n")
    balancing = "1" if "numa_balancing_on" in profile.faults else profile.numa_balancing
    write(proc / "sys/kernel/numa_balancing", balancing + "\n")
    write(proc / "sys/vm/zone_reclaim_mode", "0\n")
    write(proc / "sys/vm/swappiness", "10\n")
    write(proc / "sys/vm/overcommit_memory", "0\n")
    write(proc / "sys/kernel/sched_autogroup_enabled", "0\n")


def cmdline(profile: Profile) -> str:
    """Return the kernel command line."""
    if "iommu_missing" not in profile.faults:
        return profile.cmdline
    return " ".join(word for word in profile.cmdline.split() if word != "iommu=pt")


def _write_pci(profile: Profile, root: Path) -> None:
    paths = device_paths(profile)
    bus = root / "sys/bus/pci/devices"
    bus.mkdir(parents=True, exist_ok=True)
    for device in devices(profile):
        folder = root / paths[device.bdf]
        speed, width, best_speed, best_width = link_of(profile, device.gpu)
        for name, text in {
            "vendor": device.vendor,
            "device": device.device,
            "class": device.pci_class,
            "numa_node": str(-1 if device.numa is None else device.numa),
            "current_link_speed": f"{speed:.1f} GT/s PCIe",
            "current_link_width": str(width),
            "max_link_speed": f"{best_speed:.1f} GT/s PCIe",
            "max_link_width": str(best_width),
        }.items():
            write(folder / name, text + "\n")
        (bus / device.bdf).symlink_to(Path("../../../..") / paths[device.bdf])
        driver = driver_of(profile, device)
        if driver:
            target = root / "sys/bus/pci/drivers" / driver
            target.mkdir(parents=True, exist_ok=True)
            up = "../" * (paths[device.bdf].count("/") + 1)
            (folder / "driver").symlink_to(f"{up}sys/bus/pci/drivers/{driver}")
        if driver == "amdgpu":
            _write_gpu(profile, device, folder)


def driver_of(profile: Profile, device: Device) -> str | None:
    """Return the kernel driver bound to a device."""
    if device.gpu is not None:
        return None if "no_driver" in profile.faults or device.bdf == failed_gpu(profile) else "amdgpu"
    return "mlx5_core" if device.vendor == "0x15b3" else "pcieport"


def _write_gpu(profile: Profile, device: Device, folder: Path) -> None:
    total = profile.vram_bytes * profile.partitions_per_gpu
    leaked = device.gpu == 0 and "vram_leaked" in profile.faults
    write(folder / "mem_info_vram_total", f"{total}\n")
    write(folder / "mem_info_vram_used", f"{total * 3 // 4 if leaked else 297 * 1024**2}\n")
    if profile.compute_partition != "N/A":
        write(folder / "current_compute_partition", profile.compute_partition + "\n")
        write(folder / "current_memory_partition", profile.memory_partition + "\n")
    for block in RAS_BLOCKS:
        hit = device.gpu == 0 and (
            (block == "xgmi_wafl" and "xgmi_down" in profile.faults)
            or (block == "umc" and "ecc_uncorrectable" in profile.faults)
        )
        write(folder / f"ras/{block}_err_count", f"ue: {3 if hit else 0}\nce: 0\n")


def cpus_of(profile: Profile, node: int) -> tuple[int, ...]:
    """Return the CPU numbers of one NUMA node."""
    return parse_cpu_list(profile.nodes[node].cpus)


def distance(profile: Profile, a: int, b: int) -> int:
    """Return the ACPI distance of two NUMA nodes: 10 inside, 12 in the socket, the profile's across sockets."""
    if a == b:
        return 10
    return 12 if profile.socket_of(a) == profile.socket_of(b) else profile.socket_distance


def has_smt(profile: Profile) -> bool:
    """A node whose CPU list has two ranges has the second threads of its cores in the second one."""
    return "," in profile.nodes[0].cpus


def _write_system(profile: Profile, root: Path) -> None:
    system = root / "sys/devices/system"
    count = len(profile.nodes)
    cpus = [(cpu, node) for node in range(count) for cpu in cpus_of(profile, node)]
    for node in range(count):
        folder = system / f"node/node{node}"
        write(folder / "cpulist", profile.nodes[node].cpus + "\n")
        write(folder / "distance", " ".join(str(distance(profile, node, other)) for other in range(count)) + "\n")
        kib = profile.nodes[node].mem_bytes // 1024
        write(folder / "meminfo", f"Node {node} MemTotal:       {kib} kB\nNode {node} MemFree:        {kib // 2} kB\n")
    write(system / "cpu/online", format_cpu_list([cpu for cpu, _node in cpus]) + "\n")
    write(system / "cpu/smt/active", f"{int(has_smt(profile))}\n")
    write(system / "cpu/cpu0/cpufreq/scaling_governor", "performance\n")
    for cpu, node in cpus:
        write(system / f"cpu/cpu{cpu}/topology/physical_package_id", f"{profile.socket_of(node)}\n")
    write(root / "sys/kernel/mm/transparent_hugepage/enabled", "[always] madvise never\n")


def location_id(bdf: str) -> int:
    """Return KFD's and rocminfo's number of an address: bus, device and function without the domain."""
    _domain, bus, rest = bdf.split(":")
    device, function = rest.split(".")
    return int(bus, 16) << 8 | int(device, 16) << 3 | int(function, 16)


def number(*parts: object, bits: int = 32) -> int:
    """Return a stable number that looks like an id and is never 0."""
    return (zlib.crc32("/".join(map(str, parts)).encode()) & ((1 << bits) - 1)) or 1


def hives(profile: Profile) -> list[int]:
    """Return the id of the hive of each GPU; GPUs with an XGMI path between them share one, and 0 is no hive."""
    group = list(range(profile.count))
    joined = set()
    for (a, b), pair in sorted(profile.pairs.items()):
        if pair.type == "XGMI":
            joined |= {a, b}
            old, new = max(group[a], group[b]), min(group[a], group[b])
            group = [new if member == old else member for member in group]
    return [number("hive", group[gpu], bits=31) << 20 if gpu in joined else 0 for gpu in range(profile.count)]


def kfd_files(profile: Profile) -> dict[str, str]:
    """Return the KFD topology tree: path below ``topology/`` to text. CPU nodes come first, one a NUMA node."""
    cpu_nodes = len(profile.nodes)
    gpus = driven_gpus(profile)
    node_of = {gpu: cpu_nodes + position for position, gpu in enumerate(gpus)}
    hive_ids = hives(profile)
    files = {
        "generation_id": f"{cpu_nodes + len(gpus)}\n",
        "system_properties": "platform_oem 35498446626881\nplatform_id 71791775140929\nplatform_rev 2\n",
    }
    io_links: dict[int, list[KfdLink]] = {n: [] for n in range(cpu_nodes + len(gpus))}
    p2p_links: dict[int, list[KfdLink]] = {n: [] for n in range(cpu_nodes + len(gpus))}
    intel = profile.cpu_vendor == "GenuineIntel"
    for a in range(cpu_nodes):
        for b in range(cpu_nodes):
            if a != b:
                io_links[a].append(KfdLink(5 if intel else 1, a, b, cpu_weight(profile, a, b)))
    for gpu, node in node_of.items():
        home = profile.numa[gpu] or 0
        apu = profile.device_id == "0x74a0"
        kind, weight, speed = (11, 13, 512000) if apu else (2, 20, int(profile.pcie_gts * 2000))
        io_links[home].append(KfdLink(kind, home, node, weight, low=312, high=speed, flags=3))
        io_links[node].append(KfdLink(kind, node, home, weight, low=312, high=speed, flags=1))
        for other in range(cpu_nodes):
            if other != home:
                across = weight + cpu_weight(profile, home, other)
                p2p_links[other].append(KfdLink(2, other, node, across, flags=3))
                p2p_links[node].append(KfdLink(2, node, other, across, flags=1))
        for peer, peer_node in node_of.items():
            if peer == gpu:
                continue
            pair = profile.pair(gpu, peer)
            low, high = pair.bandwidth or (0, 0)
            if pair.type == "XGMI":
                io_links[node].append(KfdLink(11, node, peer_node, pair.weight or 0, low=low, high=high, flags=1))
            elif pair.accessible:
                p2p_links[node].append(KfdLink(2, node, peer_node, pair.weight or 0, flags=3))
    for node in range(cpu_nodes + len(gpus)):
        folder = f"nodes/{node}"
        owner = gpus[node - cpu_nodes] if node >= cpu_nodes else None
        files[f"{folder}/gpu_id"] = f"{0 if owner is None else number(profile.bdfs[owner], bits=16)}\n"
        files[f"{folder}/name"] = "\n" if owner is None else f"{_asic_name(profile)}\n"
        files[f"{folder}/properties"] = _node_properties(
            profile,
            gpu=owner,
            cores=len(cpus_of(profile, node)) if owner is None else 0,
            hive_id=0 if owner is None else hive_ids[owner],
            links=(len(io_links[node]), len(p2p_links[node])),
        )
        size = profile.nodes[node].mem_bytes if owner is None else profile.vram_bytes
        files[f"{folder}/mem_banks/0/properties"] = (
            f"heap_type {0 if owner is None else 1}\nsize_in_bytes {size}\nflags 0\nwidth 64\nmem_clk_max 1300\n"
        )
        for name, links in (("io_links", io_links[node]), ("p2p_links", p2p_links[node])):
            for position, link in enumerate(links):
                files[f"{folder}/{name}/{position}/properties"] = _link_properties(link)
    return files


def cpu_weight(profile: Profile, a: int, b: int) -> int:
    """Return KFD's weight of the link between two CPU nodes: 12 in a socket, 32 AMD and 21 Intel across."""
    if profile.socket_of(a) == profile.socket_of(b):
        return 12
    return 21 if profile.cpu_vendor == "GenuineIntel" else 32


def _asic_name(profile: Profile) -> str:
    return "aldebaran" if profile.arch == "gfx90a" else "ip discovery"


def _node_properties(profile: Profile, *, gpu: int | None, cores: int, hive_id: int, links: tuple[int, int]) -> str:
    simds = 0 if gpu is None else 4 * compute_units(profile)
    values: dict[str, int] = {
        "cpu_cores_count": cores,
        "simd_count": simds,
        "mem_banks_count": 1,
        "caches_count": 0,
        "io_links_count": links[0],
        "p2p_links_count": links[1],
        "wave_front_size": 64 if gpu is not None else 0,
        "simd_per_cu": 4 if gpu is not None else 0,
        "gfx_target_version": 0,
        "vendor_id": 0,
        "device_id": 0,
        "location_id": 0,
        "domain": 0,
        "drm_render_minor": 0,
        "hive_id": 0,
    }
    if gpu is not None:
        bdf = profile.bdfs[gpu]
        values |= {
            "gfx_target_version": GFX_VERSION[profile.arch],
            "vendor_id": 0x1002,
            "device_id": int(profile.device_id, 16),
            "location_id": location_id(bdf),
            "domain": int(bdf.split(":")[0], 16),
            "drm_render_minor": 128 + gpu,
            "hive_id": hive_id,
            "local_mem_size": 0,
            "fw_version": 92,
            "unique_id": number("unique", profile.physical[gpu]) << 24,
            "num_xcc": 1 if profile.arch == "gfx90a" else max(1, 8 // profile.partitions_per_gpu),
        }
    values["max_engine_clk_ccompute"] = 3700
    return "".join(f"{key} {value}\n" for key, value in values.items())


def compute_units(profile: Profile) -> int:
    """Return the compute units of one logical GPU."""
    return COMPUTE_UNITS[profile.device_id] // profile.partitions_per_gpu


def _link_properties(link: KfdLink) -> str:
    values = {
        "type": link.kind,
        "version_major": 0,
        "version_minor": 0,
        "node_from": link.source,
        "node_to": link.target,
        "weight": link.weight,
        "min_latency": 0,
        "max_latency": 0,
        "min_bandwidth": link.low,
        "max_bandwidth": link.high,
        "recommended_transfer_size": 0,
        "recommended_sdma_engine_id_mask": 0,
        "flags": link.flags,
    }
    return "".join(f"{key} {value}\n" for key, value in values.items())


def render_commands(profile: Profile) -> dict[str, tuple[str, str, int]]:
    """Return (stdout, stderr, exit code) of each tool, keyed by the command line that ``node_probe`` runs."""
    return {
        "rocminfo": render_rocminfo(profile),
        "lspci -D -vv -d 1002:": (render_lspci(profile), "", 0),
        "numactl -H": (render_numactl(profile), "", 0),
        "lscpu": (render_lscpu(profile), "", 0),
    }


def cpu_name(profile: Profile) -> str:
    """Return the model name of the host's processor."""
    if profile.device_id == "0x74a0":
        return "AMD Instinct MI300A Accelerator"
    return (
        "Intel(R) Xeon(R) Platinum 8480+" if profile.cpu_vendor == "GenuineIntel" else "AMD EPYC 9654 96-Core Processor"
    )


def render_rocminfo(profile: Profile) -> tuple[str, str, int]:
    """Return what ``rocminfo`` prints, its stderr and its exit code."""
    if "no_driver" in profile.faults:
        return "ROCk module is NOT loaded, possibly no GPU devices\n", "", 1
    head = f"ROCk module version {profile.driver_version} is loaded\n"
    if "kfd_no_permission" in profile.faults:
        return (
            head + 'Unable to open /dev/kfd read-write: Permission denied\nvllm is not member of "render" group, '
            'the default DRM access group. Users must be a member of the "render" group or another DRM access group '
            "in order for ROCm applications to run successfully.\n",
            "",
            1,
        )
    gpus = driven_gpus(profile)
    shown = gpus[:2] if "rocr_hidden" in profile.faults else gpus
    lines = [
        "=====================",
        "HSA System Attributes",
        "=====================",
        _field("Runtime Version:", "1.18", 0),
        _field("Runtime Ext Version:", "1.11", 0),
        _field("System Timestamp Freq.:", "1000.000000MHz", 0),
        _field("Machine Model:", "LARGE", 0),
        _field("System Endianness:", "LITTLE", 0),
        "XNACK enabled:           NO",
        "DMAbuf Support:          YES",
        "",
        "==========",
        "HSA Agents",
        "==========",
    ]
    agents = [_cpu_agent(profile, node) for node in range(len(profile.nodes))]
    agents += [_gpu_agent(profile, gpu, len(profile.nodes) + gpus.index(gpu)) for gpu in shown]
    for position, agent in enumerate(agents, 1):
        lines += ["*******", f"Agent {position}", "*******", *agent]
    lines += ["*** Done ***", ""]
    return head + "\n".join(lines), "", 0


def _field(name: str, value: object, indent: int = 2) -> str:
    return f"{' ' * indent}{name:<25}{value}"


def _cpu_agent(profile: Profile, node: int) -> list[str]:
    kib = profile.nodes[node].mem_bytes // 1024
    return [
        _field("Name:", cpu_name(profile)),
        _field("Uuid:", "CPU-XX"),
        _field("Marketing Name:", cpu_name(profile)),
        _field("Vendor Name:", "CPU"),
        _field("Feature:", "None specified"),
        _field("Node:", node),
        _field("Device Type:", "CPU"),
        _field("Chip ID:", "0(0x0)"),
        _field("BDFID:", 0),
        _field("Internal Node ID:", node),
        _field("Compute Unit:", len(cpus_of(profile, node))),
        "  Pool Info:",
        "    Pool 1",
        _field("Segment:", "GLOBAL; FLAGS: FINE GRAINED", 6),
        _field("Size:", f"{kib}({kib:#x}) KB", 6),
        "  ISA Info:",
    ]


def _gpu_agent(profile: Profile, gpu: int, node: int) -> list[str]:
    kib = profile.vram_bytes // 1024
    chip = int(profile.device_id, 16)
    return [
        _field("Name:", profile.arch),
        _field("Uuid:", f"GPU-{number('uuid', profile.bdfs[gpu]):016x}"),
        _field("Marketing Name:", profile.market_name),
        _field("Vendor Name:", "AMD"),
        _field("Feature:", "KERNEL_DISPATCH"),
        _field("Profile:", "BASE_PROFILE"),
        _field("Max Queue Number:", "128(0x80)"),
        _field("Node:", node),
        _field("Device Type:", "GPU"),
        "  Cache Info:",
        _field("L1:", "32(0x20) KB", 4),
        _field("Chip ID:", f"{chip}({chip:#x})"),
        _field("Cacheline Size:", "128(0x80)"),
        _field("BDFID:", location_id(profile.bdfs[gpu])),
        _field("Internal Node ID:", node),
        _field("Compute Unit:", compute_units(profile)),
        _field("SIMDs per CU:", 4),
        "  Memory Properties:       " + ("APU" if profile.device_id == "0x74a0" else ""),
        "  Workgroup Max Size per Dimension:",
        _field("x", "1024(0x400)", 4),
        "  Pool Info:",
        "    Pool 1",
        _field("Segment:", "GLOBAL; FLAGS: COARSE GRAINED", 6),
        _field("Size:", f"{kib}({kib:#x}) KB", 6),
        _field("Allocatable:", "TRUE", 6),
        "    Pool 2",
        _field("Segment:", "GROUP", 6),
        _field("Size:", "64(0x40) KB", 6),
        "  ISA Info:",
        "    ISA 1",
        _field("Name:", f"amdgcn-amd-amdhsa--{profile.arch}:sramecc+:xnack-", 6),
        _field("Machine Models:", "HSA_MACHINE_MODEL_LARGE", 6),
    ]


def render_lspci(profile: Profile) -> str:
    """Return what ``lspci -D -vv -d 1002:`` prints: each GPU, and the bridge that carries AMD's GPU vendor id."""
    blocks = []
    kept = [d for d in devices(profile) if d.vendor == "0x1002"]
    for device in sorted(kept, key=lambda d: d.bdf):
        if device.gpu is None:
            name, kind = "Device 1501", "PCI bridge"
        else:
            kind = "Processing accelerators" if device.pci_class == "0x120000" else "Display controller"
            name = f"Device {profile.device_id[2:]}" if profile.arch == "gfx950" else _pci_name(profile)
        lines = [f"{device.bdf} {kind}: Advanced Micro Devices, Inc. [AMD/ATI] {name}"]
        if device.gpu is not None:
            lines.append(f"\tSubsystem: Advanced Micro Devices, Inc. [AMD/ATI] {name}")
        lines.append(
            "\tControl: I/O- Mem+ BusMaster+ SpecCycle- MemWINV- VGASnoop- ParErr- Stepping- SERR- FastB2B- DisINTx+"
        )
        if device.numa is not None:
            lines.append(f"\tNUMA node: {device.numa}")
        lines += _lspci_capabilities(profile, device)
        driver = driver_of(profile, device)
        if driver:
            lines.append(f"\tKernel driver in use: {driver}")
        if device.gpu is not None:
            lines.append("\tKernel modules: amdgpu")
        blocks.append("\n".join(lines) + "\n")
    return "\n".join(blocks)


def _pci_name(profile: Profile) -> str:
    chip = "Aldebaran/MI200" if profile.arch == "gfx90a" else "Aqua Vanjaram"
    return f"{chip} [{profile.market_name.removeprefix('AMD ')}]"


def _lspci_capabilities(profile: Profile, device: Device) -> list[str]:
    if "lspci_no_root" in profile.faults:
        return ["\tCapabilities: <access denied>"]
    speed, width, best_speed, best_width = link_of(profile, device.gpu)
    kind = "Endpoint" if device.gpu is not None else "Downstream Port (Slot-)"
    fatal = "+" if device.gpu == 1 and "pcie_fatal_error" in profile.faults else "-"
    lines = [
        f"\tCapabilities: [64] Express (v2) {kind}, MSI 00",
        "\t\tDevCap:\tMaxPayload 512 bytes, PhantFunc 0",
        f"\t\tDevSta:\tCorrErr- NonFatalErr- FatalErr{fatal} UnsupReq- AuxPwr- TransPend-",
        f"\t\tLnkCap:\tPort #0, Speed {best_speed:g}GT/s, Width x{best_width}, ASPM L0s L1",
        f"\t\tLnkSta:\tSpeed {speed:g}GT/s{'' if speed == best_speed else ' (downgraded)'}, "
        f"Width x{width}{'' if width == best_width else ' (downgraded)'}",
        "\t\tLnkSta2: Current De-emphasis Level: -3.5dB, EqualizationComplete+ EqualizationPhase1+",
    ]
    if device.gpu is None:
        on = "+" if "acs_on" in profile.faults else "-"
        lines += [
            "\tCapabilities: [2a0 v1] Access Control Services",
            "\t\tACSCap:\tSrcValid+ TransBlk+ ReqRedir+ CmpltRedir+ UpstreamFwd+ EgressCtrl- DirectTrans-",
            f"\t\tACSCtl:\tSrcValid{on} TransBlk- ReqRedir{on} CmpltRedir{on} UpstreamFwd{on} EgressCtrl- DirectTrans-",
        ]
    return lines


def render_numactl(profile: Profile) -> str:
    """Return what ``numactl -H`` prints, with the blank that ends each row of distances."""
    count = len(profile.nodes)
    span = f"0-{count - 1}" if count > 1 else "0"
    lines = [f"available: {count} nodes ({span})"]
    for node in range(count):
        mib = profile.nodes[node].mem_bytes // 1024**2
        lines.append(f"node {node} cpus: " + " ".join(map(str, cpus_of(profile, node))))
        lines += [f"node {node} size: {mib} MB", f"node {node} free: {mib // 2} MB"]
    lines.append("node distances:")
    lines.append("node " + "".join(f"{node:>3} " for node in range(count)))
    for node in range(count):
        lines.append(f"{node:>3}: " + "".join(f"{distance(profile, node, other):>3} " for other in range(count)))
    return "\n".join(lines) + "\n"


def render_lscpu(profile: Profile) -> str:
    """Return what ``lscpu`` prints of sockets, threads and NUMA nodes."""
    cpus = [cpu for node in range(len(profile.nodes)) for cpu in cpus_of(profile, node)]
    threads = 2 if has_smt(profile) else 1
    rows: list[tuple[str, object]] = [
        ("Architecture:", "x86_64"),
        ("CPU(s):", len(cpus)),
        ("On-line CPU(s) list:", format_cpu_list(cpus)),
        ("Vendor ID:", profile.cpu_vendor),
        ("Model name:", cpu_name(profile)),
        ("Thread(s) per core:", threads),
        ("Core(s) per socket:", len(cpus) // threads // profile.sockets),
        ("Socket(s):", profile.sockets),
        ("NUMA node(s):", len(profile.nodes)),
    ]
    rows += [(f"NUMA node{n} CPU(s):", node.cpus) for n, node in enumerate(profile.nodes)]
    return "".join(f"{name:<24} {value}\n" for name, value in rows)
