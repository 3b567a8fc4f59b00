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
    holds every pair. ``faults`` names what is broken, for the renderers that can show it.
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
    faults: frozenset[str] = field(default_factory=frozenset)

    @property
    def count(self) -> int:
        """Number of logical GPUs."""
        return len(self.bdfs)

    def pair(self, a: int, b: int) -> Pair:
        """Return the path between two different GPUs, in either order."""
        return self.pairs[min(a, b), max(a, b)]

    def with_pair(self, a: int, b: int, pair: Pair, name: str) -> Profile:
        """Return a copy under another name in which one pair differs."""
        return replace(self, name=name, pairs={**self.pairs, (min(a, b), max(a, b)): pair})


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


#: Name -> profile. Add a machine here and every renderer can print it.
PROFILES: dict[str, Callable[[], Profile]] = {
    "mi300x_8": mi300x_8,
    "mi300x_one_pair_pcie": mi300x_one_pair_pcie,
}
