"""Profiles as the contracts that parsers make of them, for tests of what comes after parsing."""

from __future__ import annotations

from instinct_fleet.model import Gpu, Host, Link, LinkType, NumaNode, Partition, Topology
from instinct_fleet.parse.base import Aspect, Evidence, parse_cpu_list
from support.profile import Profile

#: What a full bundle of a healthy node collects.
WHOLE: frozenset[Aspect] = frozenset(
    {
        "gpu_count", "bdf", "device_id", "arch", "link_type", "link_weight", "link_hops", "link_access",
        "link_bandwidth", "link_status", "gpu_numa", "numa_nodes", "pci_tree", "pcie_link", "partition", "vram", "ecc",
        "driver", "versions", "cmdline", "sysctl", "access", "environment",
    }
)  # fmt: skip


def topology(profile: Profile) -> Topology:
    """Return the topology of a profile as merge makes it from a full bundle."""

    def link_type(a: int, b: int) -> LinkType:
        if profile.pair(a, b).type == "XGMI":
            return "XGMI"
        if profile.pair(a, b).type != "PCIE" or None in (profile.numa[a], profile.numa[b]):
            return "UNKNOWN"
        return "NODE" if profile.numa[a] == profile.numa[b] else "SYS"

    hip = profile.hip_ids or tuple(range(profile.count))
    return Topology(
        gpus=tuple(
            Gpu(
                index=i,
                bdf=bdf,
                device_id=profile.device_id,
                arch=profile.arch,
                numa_node=profile.numa[i],
                vram_bytes=profile.vram_bytes,
                partition=Partition(profile.compute_partition, profile.memory_partition),
                hip_id=hip[i],
                oam_id=profile.oam_ids[i] if profile.oam_ids else None,
            )
            for i, bdf in enumerate(profile.bdfs)
        ),
        links=tuple(
            Link(a, b, link_type(a, b), pair.type, pair.weight, pair.hops, pair.accessible, pair.bandwidth)
            for (a, b), pair in sorted(profile.pairs.items())
        ),
        numa=tuple(
            NumaNode(
                id=i,
                cpus=parse_cpu_list(node.cpus),
                mem_bytes=node.mem_bytes,
                distances=tuple(10 if i == j else profile.socket_distance for j in range(len(profile.nodes))),
            )
            for i, node in enumerate(profile.nodes)
        ),
        host=Host(
            cmdline=profile.cmdline,
            kernel="6.8.0",
            numa_balancing=profile.numa_balancing == "1",
            iommu="pt" if "iommu=pt" in profile.cmdline else None,
            sockets=len(profile.nodes),
            smt=True,
        ),
    )


def evidence(profile: Profile) -> Evidence:
    """Return what merge makes of a full bundle of a profile without any fault beside its topology."""
    top = topology(profile)
    indices = [gpu.index for gpu in top.gpus]
    return Evidence(
        topology=top,
        collects=WHOLE,
        whole=True,
        subject=profile.name,
        facts={
            "link_status": dict.fromkeys(indices, ("X",) + ("U",) * 7),
            "ecc": dict.fromkeys(indices, {"correctable": 0, "uncorrectable": 0}),
            "pcie_link": dict.fromkeys(indices, {"speed_gts": 32.0, "width": 16, "fatal_error": False}),
            "vram_used": dict.fromkeys(indices, 300 * 1024**2),
            "vram_busy": frozenset(),
            "numa_nearest": dict(zip(indices, profile.numa, strict=True)),
            "driver": {"loaded": True, "unbound": ()},
            "runtime_gpus": len(indices),
            "driver_gpus": len(indices),
            "environment": {},
            "acs": {"0000:00:01.1": False},
            "access": {
                "user": "vllm",
                "exists": True,
                "groups": ["render", "vllm"],
                "devices": {
                    path: {"mode": "0660", "owner": "root", "group": "render", "read_write": True}
                    for path in ("/dev/kfd", "/dev/dri/renderD128")
                },
            },
        },
    )
