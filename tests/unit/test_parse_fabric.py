from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator

import pytest
from support.profile import PROFILES, Profile, mi300x_8

from instinct_fleet.parse import fabric


def topology_dump(profile: Profile, *, switch: bool = True) -> str:
    """What NCCL_TOPO_DUMP_FILE holds: each level of bridges is one switch, the network card beside the module."""
    lines = ['<system version="2">']
    for node in sorted({n for n in profile.numa if n is not None}):
        lines.append(f'<cpu numaid="{node}" arch="x86_64">')
        for a, bdf in enumerate(profile.bdfs):
            if profile.numa[a] == node:
                lines += _gpu(profile, a, bdf) if not switch else _switch(profile, a, bdf)
        lines.append("</cpu>")
    return "\n".join([*lines, "</system>", ""])


def _switch(profile: Profile, a: int, bdf: str) -> Iterator[str]:
    domain, bus = bdf[:4], int(bdf[5:7], 16)
    for bridge in (bus - 4, bus - 2):
        yield f'<pci busid="{domain}:{bridge:02x}:00.0" class="0x060400">'
    yield from _gpu(profile, a, bdf)
    yield f'</pci><pci busid="{domain}:{bus + 1:02x}:00.0" class="0x020700">'
    yield f'<nic><net name="mlx5_{a}"/></nic></pci></pci>'


def _gpu(profile: Profile, a: int, bdf: str) -> Iterator[str]:
    yield f'<pci busid="{bdf}" class="0x120000" device="{profile.device_id}"><gpu dev="{a}" gcn="{profile.arch}">'
    for b, peer in enumerate(profile.bdfs):
        if a != b and profile.pair(a, b).type == "XGMI" and profile.pair(a, b).weight in (0, 13, 15):
            yield f'<xgmi target="{peer}" count="1"/>'
    yield "</gpu></pci>"


def test_dump_of_a_full_mesh() -> None:
    reading = fabric.parse(topology_dump(mi300x_8()))

    assert reading.complete, reading.findings
    assert [gpu.bdf for gpu in reading.gpus] == list(mi300x_8().bdfs)
    assert [gpu.numa_node for gpu in reading.gpus] == list(mi300x_8().numa)
    assert {gpu.arch for gpu in reading.gpus} == {"gfx942"}
    assert Counter(link.type for link in reading.links) == {"XGMI": 28}
    assert "link_type" in reading.collects
    for classes in reading.facts["gpu_nic"].values():
        assert Counter(classes.values()) == {"PXB": 1, "NODE": 3, "SYS": 4}


def test_dump_with_a_lost_link() -> None:
    reading = fabric.parse(topology_dump(PROFILES["mi300x_one_pair_pcie"]()))

    assert {(x.a, x.b): x.type for x in reading.links if x.type != "XGMI"} == {(2, 5): "SYS"}


def test_dump_of_dies_shows_direct_links_only_and_judges_no_type() -> None:
    profile = PROFILES["mi250x_8gcd"]()
    reading = fabric.parse(topology_dump(profile, switch=False))

    assert reading.complete
    assert reading.links == ()
    assert "link_type" not in reading.collects
    assert len(reading.facts["xgmi_direct"]) == sum(pair.weight == 15 for pair in profile.pairs.values())


@pytest.mark.parametrize(
    ("change", "code", "severity"),
    [
        (lambda t: t[:-40], "collect_truncated", "error"),
        (lambda t: t.replace('<xgmi target="0000:22:00.0" count="1"/>', "", 1), "collect_truncated", "unknown"),
        (lambda t: t.replace('busid="0000:22:00.0"', 'busid="?"', 1), "collect_truncated", "unknown"),
        (lambda t: '<!DOCTYPE x [<!ENTITY a "b">]>' + t, "collect_unexpected", "error"),
    ],
)
def test_damaged_dump(change: object, code: str, severity: str) -> None:
    reading = fabric.parse(change(topology_dump(mi300x_8())))  # type: ignore[operator]

    assert not reading.complete
    assert [(f.code, f.severity) for f in reading.findings] == [(code, severity)]


def transferbench(profile: Profile) -> str:
    names = [f"GPU {n:02}" for n in range(profile.count)]
    lines = [
        "        | " + " | ".join(names) + " | PCIe Bus ID  | #CUs | Closest NUMA | DMA engines",
        "--------+" + "--------+" * profile.count + "--------------+------+--------------+------------",
    ]
    for a, bdf in enumerate(profile.bdfs):
        cells = [
            "  -   " if a == b else f"{profile.pair(a, b).type}-{profile.pair(a, b).hops}" for b in range(profile.count)
        ]
        lines.append(f" GPU {a:02} | " + " | ".join(cells) + f" | {bdf} |  304 | {profile.numa[a]}            |0,1,2")
    return "\n".join(lines) + "\n"


def test_table_of_transferbench() -> None:
    profile = PROFILES["mi300x_one_pair_pcie"]()
    reading = fabric.parse(transferbench(profile))

    assert reading.complete, reading.findings
    assert [gpu.numa_node for gpu in reading.gpus] == list(profile.numa)
    assert {(x.a, x.b): (x.type, x.raw_type, x.hops) for x in reading.links if x.raw_type != "XGMI"} == {
        (2, 5): ("UNKNOWN", "PCIE", 3)
    }


@pytest.mark.parametrize(
    "change",
    [
        lambda t: t.replace("XGMI-1", "XGMI-2", 1),
        lambda t: "\n".join(t.splitlines()[:-1]),
        lambda t: t.replace("0000:22:00.0", "0000:0c:00.0"),
        lambda t: t.replace("  -   ", "XGMI-1", 1),
    ],
)
def test_damaged_table(change: object) -> None:
    reading = fabric.parse(change(transferbench(mi300x_8())))  # type: ignore[operator]

    assert not reading.complete
    assert [(f.code, f.severity) for f in reading.findings] == [("collect_truncated", "unknown")]


def test_list_of_rvs() -> None:
    lines = [
        f"{bdf} - GPU[{n + 2:2} - {1000 + n:5}] AMD Instinct MI300X (Device 29857)"
        for n, bdf in enumerate(mi300x_8().bdfs)
    ]
    reading = fabric.parse("Supported GPUs available:\n" + "\n".join(lines))

    assert reading.complete
    assert [gpu.bdf for gpu in reading.gpus] == list(mi300x_8().bdfs)
    assert {gpu.device_id for gpu in reading.gpus} == {"0x74a1"}
    assert not fabric.parse("\n".join([*lines, lines[0]])).complete


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("Unidirectional copy peak bandwidth GB/s [Local read]\n GPU 00 -> 23.8\n", "transferbench"),
        ("[RESULT] [ 96.8] [RVS-GPUP-TC1] gpup 28851 0 type 2\n", "rvs"),
        ('{"srcgpu" : "1", "dstgpu" : "2", "throughput" : "91.8 GBps"', "rvs pbqt"),
        ('amd_gpu_xgmi_link_rx{gpu_id="0",link_index="0"} 0\n', "metrics"),
        ("card0: 00 04 01 00\ncard1: 04 00 00 01\n", "xgmi_num_links"),
    ],
)
def test_measurements_are_recognised_and_declined(text: str, kind: str) -> None:
    reading = fabric.parse(text)

    assert fabric.sniff(text)
    assert reading.refused
    assert reading.kind == kind
    assert [(f.code, f.severity) for f in reading.findings] == [("collect_unsupported_layout", "unknown")]
    assert "collect" in reading.findings[0].remedy


def test_kinds_do_not_claim_each_others_text() -> None:
    texts = [topology_dump(mi300x_8()), transferbench(mi300x_8())]

    assert all(fabric.sniff(text) for text in texts)
    assert not any(a == b for a, b in itertools.combinations((fabric.parse(t).kind for t in texts), 2))
    assert not fabric.sniff("hello\n")
    assert fabric.parse("hello\n").findings[0].code == "collect_unsupported_layout"
