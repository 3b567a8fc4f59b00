"""Hardware profiles: what a machine *is*, from which renderers make what each tool of each release prints.

A profile is data. Renderers never read captures, so the project builds and tests anywhere; where the captures are at
hand, tests compare the two.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

#: PCI addresses of a published 8x MI300X server, in the order in which every tool lists them.
MI300X_BDFS = tuple(f"0000:{bus}:00.0" for bus in ("0c", "22", "38", "5c", "9f", "af", "bf", "df"))
GIB = 1024**3


@dataclass(frozen=True)
class Pair:
    """The path between two GPUs as the driver knows it; ``bandwidth`` is (min, max) MB/s or None for N/A."""

    type: str = "XGMI"
    weight: int | None = 15
    hops: int | None = 1
    accessible: bool | None = True
    bandwidth: tuple[int, int] | None = (50000, 50000)


#: AMD two-socket server, GPUs on different sockets: 20 + 20 + 32, three hops.
PCIE_ACROSS = Pair(type="PCIE", weight=72, hops=3, bandwidth=None)


@dataclass(frozen=True)
class NodeProfile:
    """One NUMA node of the host: kernel CPU list and bytes of memory."""

    cpus: str
    mem_bytes: int = 1024 * GIB


@dataclass(frozen=True)
class Profile:
    """A machine with AMD GPUs.

    ``numa`` is the NUMA node of each GPU (None: the kernel does not know). ``pairs`` is keyed (i, j) with i < j and
    holds every pair. ``faults`` names what is broken, for the renderers that can show it. ``nodes`` are spread evenly
    over ``sockets``; ``pcie_gts`` is the speed in GT/s of the link between a GPU and the host. ``vram_bytes`` is what
    one logical GPU has.
    """

    name: str
    market_name: str
    device_id: str
    arch: str
    bdfs: tuple[str, ...]
    numa: tuple[int | None, ...]
    nodes: tuple[NodeProfile, ...]
    pairs: Mapping[tuple[int, int], Pair]
    vram_bytes: int = 192 * GIB
    compute_partition: str = "SPX"
    memory_partition: str = "NPS1"
    partitions_per_gpu: int = 1
    hip_ids: tuple[int, ...] = ()
    oam_ids: tuple[int, ...] = ()
    driver_version: str = "6.14.14"
    rocm_version: str = "7.0.2"
    cmdline: str = "BOOT_IMAGE=/boot/vmlinuz-6.8.0 root=/dev/sda1 ro iommu=pt pci=realloc=off"
    numa_balancing: str = "0"
    socket_distance: int = 32
    sockets: int = 2
    cpu_vendor: str = "AuthenticAMD"
    pcie_gts: float = 32.0
    faults: frozenset[str] = field(default_factory=frozenset)

    @property
    def count(self) -> int:
        """Number of logical GPUs."""
        return len(self.bdfs)

    @property
    def physical(self) -> tuple[str, ...]:
        """The address of the physical GPU that each logical GPU is a partition of: function 0 of its device."""
        return tuple(bdf.partition(".")[0] + ".0" for bdf in self.bdfs)

    def socket_of(self, node: int) -> int:
        """Return the socket that a NUMA node belongs to."""
        return node * self.sockets // len(self.nodes)

    def pair(self, a: int, b: int) -> Pair:
        """Return the path between two different GPUs, in either order."""
        return self.pairs[min(a, b), max(a, b)]

    def with_pair(self, a: int, b: int, pair: Pair, name: str) -> Profile:
        """Return a copy under another name in which one pair differs."""
        return replace(self, name=name, pairs={**self.pairs, (min(a, b), max(a, b)): pair})

    def with_faults(self, *names: str) -> Profile:
        """Return a copy, under a name that says so, in which something is broken."""
        return replace(self, name="_".join((self.name, *names)), faults=self.faults | set(names))


def all_pairs(count: int, pair: Callable[[int, int], Pair]) -> dict[tuple[int, int], Pair]:
    """Build the pairs of ``count`` GPUs from a function of (i, j)."""
    return {(a, b): pair(a, b) for a, b in itertools.combinations(range(count), 2)}


def mi300x_8(cpus: tuple[str, str] = ("0-47,96-143", "48-95,144-191")) -> Profile:
    """A healthy 8x MI300X in SPX/NPS1 on two sockets: every pair one XGMI link, four GPUs a socket."""
    return Profile(
        name="mi300x_8",
        market_name="AMD Instinct MI300X",
        device_id="0x74a1",
        arch="gfx942",
        bdfs=MI300X_BDFS,
        numa=(0, 0, 0, 0, 1, 1, 1, 1),
        nodes=tuple(NodeProfile(c) for c in cpus),
        pairs=all_pairs(8, lambda _a, _b: Pair()),
        hip_ids=tuple(range(8)),
        oam_ids=(7, 6, 5, 4, 3, 2, 1, 0),
    )


def mi300x_one_pair_pcie() -> Profile:
    """8x MI300X on which the pair 2-5 lost its XGMI link and goes over PCIe and both sockets."""
    return mi300x_8().with_pair(2, 5, PCIE_ACROSS, "mi300x_one_pair_pcie")


def mi325x_8() -> Profile:
    """A healthy 8x MI325X: the links of the MI300X, with 256 GiB each."""
    return replace(
        mi300x_8(), name="mi325x_8", market_name="AMD Instinct MI325X", device_id="0x74a5", vram_bytes=256 * GIB
    )


def mi355x_8() -> Profile:
    """A healthy 8x MI355X as ROCm 7.0 shows it: XGMI everywhere, but weight 0 and bandwidth 0-0 for every pair."""
    return Profile(
        name="mi355x_8",
        market_name="AMD Instinct MI355X",
        device_id="0x75a3",
        arch="gfx950",
        bdfs=tuple(f"0000:{bus}:00.0" for bus in ("0d", "26", "5d", "75", "8e", "a7", "dc", "f4")),
        numa=(0, 0, 0, 0, 1, 1, 1, 1),
        nodes=(NodeProfile("0-63,128-191"), NodeProfile("64-127,192-255")),
        pairs=all_pairs(8, lambda _a, _b: Pair(weight=0, bandwidth=(0, 0))),
        vram_bytes=288 * GIB,
        hip_ids=(1, 3, 2, 0, 5, 7, 6, 4),
        oam_ids=(7, 5, 6, 2, 0, 4, 1, 3),
        driver_version="6.16.13",
    )


#: Which dies of an MI250X node have 1, 2 or 3 hops between them: the upper triangle, a row per die. Every pair is XGMI.
MI250X_HOPS = ("1221212", "212321", "11212", "2123", "122", "21", "1")


def mi250x_8gcd() -> Profile:
    """A healthy node of four MI250X, eight dies: XGMI everywhere, weights 15, 30 and 45, and rocm-smi's hops of 1."""

    def pair(a: int, b: int) -> Pair:
        hops = int(MI250X_HOPS[a][b - a - 1])
        return Pair(weight=15 * hops, bandwidth=(50000, 200000) if a // 2 == b // 2 else (50000, 50000))

    return Profile(
        name="mi250x_8gcd",
        market_name="AMD Instinct MI250X",
        device_id="0x7408",
        arch="gfx90a",
        bdfs=tuple(f"0000:{bus}:00.0" for bus in ("c1", "c5", "c9", "cd", "d1", "d5", "d9", "dd")),
        numa=(0, 0, 0, 0, 1, 1, 1, 1),
        nodes=(NodeProfile("0-63,128-191", 256 * GIB), NodeProfile("64-127,192-255", 256 * GIB)),
        pairs=all_pairs(8, pair),
        vram_bytes=64 * GIB,
        compute_partition="N/A",
        memory_partition="N/A",
        hip_ids=tuple(range(8)),
        pcie_gts=16.0,
    )


def mi210_2x4() -> Profile:
    """A healthy 8x MI210: two hives of four joined by bridges, and PCIe over both sockets between the hives."""
    return Profile(
        name="mi210_2x4",
        market_name="AMD Instinct MI210",
        device_id="0x740f",
        arch="gfx90a",
        bdfs=tuple(f"0000:{bus}:00.0" for bus in ("03", "26", "43", "63", "83", "a3", "c3", "e3")),
        numa=(0, 0, 0, 0, 1, 1, 1, 1),
        nodes=(NodeProfile("0-63", 512 * GIB), NodeProfile("64-127", 512 * GIB)),
        pairs=all_pairs(8, lambda a, b: Pair() if a // 4 == b // 4 else PCIE_ACROSS),
        vram_bytes=64 * GIB,
        compute_partition="N/A",
        memory_partition="N/A",
        hip_ids=tuple(range(8)),
        pcie_gts=16.0,
    )


def mi300a_4() -> Profile:
    """A healthy 4x MI300A: each APU is a socket, a NUMA node and a PCI domain of its own."""
    return Profile(
        name="mi300a_4",
        market_name="AMD Instinct MI300A",
        device_id="0x74a0",
        arch="gfx942",
        bdfs=tuple(f"{domain:04x}:01:00.0" for domain in range(4)),
        numa=(0, 1, 2, 3),
        nodes=tuple(NodeProfile(f"{24 * n}-{24 * n + 23},{96 + 24 * n}-{119 + 24 * n}", 128 * GIB) for n in range(4)),
        pairs=all_pairs(4, lambda _a, _b: Pair()),
        vram_bytes=128 * GIB,
        hip_ids=tuple(range(4)),
        sockets=4,
    )


def mi308x_8() -> Profile:
    """A healthy 8x MI308X on two Intel sockets: PCI domains 0 and 1 hold four GPUs each."""
    return Profile(
        name="mi308x_8",
        market_name="AMD Instinct MI308X",
        device_id="0x74a2",
        arch="gfx942",
        bdfs=(
            *(f"0000:{bus}:00.0" for bus in ("0a", "80", "a4", "c8")),
            *(f"0001:{bus}:00.0" for bus in ("0b", "81", "a5", "c9")),
        ),
        numa=(0, 0, 0, 0, 1, 1, 1, 1),
        nodes=(NodeProfile("0-55,112-167"), NodeProfile("56-111,168-223")),
        pairs=all_pairs(8, lambda _a, _b: Pair()),
        hip_ids=tuple(range(8)),
        oam_ids=(7, 6, 5, 4, 3, 2, 1, 0),
        cmdline="BOOT_IMAGE=/boot/vmlinuz-6.8.0 root=/dev/sda1 ro intel_iommu=on iommu=pt pci=realloc=off",
        socket_distance=21,
        cpu_vendor="GenuineIntel",
    )


def mi300x_cpx_64() -> Profile:
    """8x MI300X in CPX: 64 logical GPUs, weight 13 inside a module, 41 and bandwidth 0-0 between modules."""
    return replace(
        mi300x_8(),
        name="mi300x_cpx_64",
        bdfs=tuple(f"{bdf[:-1]}{function}" for bdf in MI300X_BDFS for function in range(8)),
        numa=tuple(gpu // 32 for gpu in range(64)),
        pairs=all_pairs(
            64,
            lambda a, b: (
                Pair(weight=13, bandwidth=(819200, 819200)) if a // 8 == b // 8 else Pair(weight=41, bandwidth=(0, 0))
            ),
        ),
        vram_bytes=24 * GIB,
        compute_partition="CPX",
        partitions_per_gpu=8,
        hip_ids=tuple(range(64)),
        oam_ids=tuple(7 - gpu // 8 for gpu in range(64)),
    )


#: Name -> profile. Add a machine here and every renderer can print it.
PROFILES: dict[str, Callable[[], Profile]] = {
    "mi300x_8": mi300x_8,
    "mi300x_one_pair_pcie": mi300x_one_pair_pcie,
    "mi300x_cpx_64": mi300x_cpx_64,
    "mi325x_8": mi325x_8,
    "mi355x_8": mi355x_8,
    "mi308x_8": mi308x_8,
    "mi250x_8gcd": mi250x_8gcd,
    "mi210_2x4": mi210_2x4,
    "mi300a_4": mi300a_4,
}
