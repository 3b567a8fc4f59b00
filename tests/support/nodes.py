"""Profiles as the Topology that a full bundle of them must give, for tests of what comes after parsing."""

from __future__ import annotations

from instinct_fleet.model import Gpu, Host, Link, LinkType, NumaNode, Partition, Topology
from instinct_fleet.parse.base import parse_cpu_list
from support.profile import Profile


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
            numa_balancing=profile.numa_balancing == "1",
            iommu="pt" if "iommu=pt" in profile.cmdline else None,
            sockets=profile.sockets,
            smt=True,
        ),
    )
