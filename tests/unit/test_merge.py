"""Several sources, one node."""

from __future__ import annotations

import copy
import re
from dataclasses import replace
from typing import Any

import pytest
from support.bundle import command, probe
from support.nodes import topology
from support.profile import PROFILES, Pair, Profile, mi210_2x4, mi300x_8, mi300x_cpx_64, mi308x_8
from support.render_smi import amd_smi_topology_json, rocm_smi_json
from support.render_smi_text import amd_smi_bare_text

from instinct_fleet.model import Gpu, Link, NumaNode, Topology
from instinct_fleet.parse import read
from instinct_fleet.parse.base import Evidence, Reading
from instinct_fleet.parse.merge import evidence_from_probe, iommu_mode, merge


def codes(evidence: Evidence) -> list[str]:
    return [f.code for f in evidence.findings]


def reading(kind: str, *, links: tuple[Link, ...] = (), gpus: int = 2, **fields: Any) -> Reading:
    """Return a reading of GPUs without addresses."""
    return Reading(
        kind=kind,
        tool=kind.partition(" ")[0],
        gpus=fields.pop("gpu_list", tuple(Gpu(i) for i in range(gpus))),
        links=links,
        collects=frozenset({"gpu_count", "link_type"}),
        **fields,
    )


def together(*readings: Reading, whole: bool = False) -> Evidence:
    return merge(readings, whole=whole, subject="node")


@pytest.mark.parametrize("name", sorted(PROFILES))
def test_a_whole_bundle_gives_the_machine_back(name: str) -> None:
    profile = PROFILES[name]()
    evidence = evidence_from_probe(probe(profile))
    expected = topology(profile)
    seen = evidence.topology
    assert (seen.links, seen.numa) == (expected.links, expected.numa)
    for a, b in zip(seen.gpus, expected.gpus, strict=True):
        # The MI200s have no partition modes: their tools say N/A.
        assert replace(a, partition=b.partition if a.partition.compute is None else a.partition) == b
    assert (seen.host.cmdline, seen.host.iommu, seen.host.sockets) == (
        profile.cmdline,
        "pt" if "iommu=pt" in profile.cmdline else None,
        profile.sockets,
    )
    assert evidence.whole
    assert evidence.subject == profile.name


def test_the_order_of_sources_does_not_matter() -> None:
    first = reading("amd-smi topology", links=(Link(0, 1, "XGMI", "XGMI", weight=15),))
    second = reading("rocm-smi showtopo", links=(Link(0, 1, "UNKNOWN", "PCIE", weight=72),))
    one, other = together(first, second), together(second, first)
    assert one.topology == other.topology
    assert one.findings == other.findings


def test_a_disagreement_about_a_link_shows_both_and_gates() -> None:
    evidence = together(
        reading("amd-smi topology", links=(Link(0, 1, "XGMI", "XGMI", weight=15),)),
        reading("rocm-smi showtopo", links=(Link(0, 1, "UNKNOWN", "PCIE", weight=72),)),
    )
    found = {f.code: f for f in evidence.findings}
    assert found["sources_disagree"].subject == "GPU0-GPU1"
    assert found["sources_disagree"].severity == "unknown"
    assert found["sources_disagree"].message == "link type XGMI by amd-smi topology, PCIE by rocm-smi showtopo"
    assert found["sources_disagree_advisory"].message == "link weight 15 by amd-smi topology, 72 by rocm-smi showtopo"
    assert evidence.topology.links[0].type == "XGMI"


def test_a_link_that_the_trusted_source_cannot_read_comes_from_the_next() -> None:
    evidence = together(
        reading("amd-smi topology", links=(Link(0, 1, "UNKNOWN", "N/A"),)),
        reading("rocm-smi showtopo", links=(Link(0, 1, "XGMI", "XGMI", weight=15),)),
    )
    assert (evidence.topology.links[0].type, evidence.topology.links[0].raw_type) == ("XGMI", "XGMI")
    assert codes(evidence) == []


def test_a_link_that_nobody_can_read_stays_unknown() -> None:
    evidence = together(
        reading("amd-smi topology", links=(Link(0, 1, "UNKNOWN", "N/A"),)),
        reading("rocm-smi showtopo", links=(Link(0, 1, "UNKNOWN", "XXXX"),)),
    )
    assert (evidence.topology.links[0].type, evidence.topology.links[0].raw_type) == ("UNKNOWN", "N/A")


def test_another_number_of_gpus_is_a_disagreement_and_that_source_is_not_used() -> None:
    evidence = together(
        reading("amd-smi topology", gpus=8),
        reading("rocm-smi showtopo", gpus=7, links=(Link(0, 1, "UNKNOWN", "PCIE"),)),
    )
    (item,) = evidence.findings
    assert (item.code, item.message) == (
        "sources_disagree",
        "amd-smi topology shows 8 GPUs, rocm-smi showtopo 7",
    )
    assert evidence.topology.links == ()


def test_a_gpu_that_one_source_lacks_is_named() -> None:
    profile = mi300x_8()
    less = replace(
        profile,
        bdfs=profile.bdfs[:7],
        numa=profile.numa[:7],
        pairs={p: v for p, v in profile.pairs.items() if 7 not in p},
        hip_ids=profile.hip_ids[:7],
        oam_ids=profile.oam_ids[:7],
    )
    bundle = probe(profile)
    bundle["commands"]["amd-smi topology --json"] = command(*amd_smi_topology_json(less, "7.0"))
    found = [f for f in evidence_from_probe(bundle).findings if f.code == "sources_disagree"]
    assert any("only the second has 0000:df:00.0" in f.message for f in found)


def test_gpus_are_numbered_by_address_whatever_the_tool_numbers() -> None:
    gpus = (Gpu(0, bdf="0001:0a:00.0"), Gpu(1, bdf="0000:ff:00.0"))
    evidence = together(reading("amd-smi topology", gpu_list=gpus, links=(Link(0, 1, "XGMI", "XGMI"),)))
    assert [g.bdf for g in evidence.topology.gpus] == ["0000:ff:00.0", "0001:0a:00.0"]
    assert (evidence.topology.links[0].a, evidence.topology.links[0].b) == (0, 1)
    assert codes(evidence) == ["gpu_index_order"]


def test_one_address_for_two_gpus_is_no_address() -> None:
    gpus = (Gpu(0, bdf="0000:01:00.1"), Gpu(1, bdf="0000:01:00.1"))
    evidence = together(reading("rocm-smi showbus", gpu_list=gpus))
    assert codes(evidence) == ["gpu_address_duplicate"]
    assert [g.bdf for g in evidence.topology.gpus] == [None, None]


def test_numa_of_a_bundle_is_the_kernels_even_where_it_is_unknown() -> None:
    bundle = probe(mi300x_8())
    for device in bundle["pci"].values():
        device["numa_node"] = "-1"
    evidence = evidence_from_probe(bundle)
    assert {g.numa_node for g in evidence.topology.gpus} == {None}


def test_numa_of_a_single_capture_is_the_tools() -> None:
    evidence = together(reading("rocm-smi showtopo", gpu_list=(Gpu(0, numa_node=1),)))
    assert evidence.topology.gpus[0].numa_node == 1


def test_numa_nodes_that_differ_are_a_disagreement() -> None:
    evidence = together(
        Reading("sysfs numa", "sysfs", numa=(NumaNode(0, (0, 1)),)),
        Reading("numactl", "numactl", numa=(NumaNode(0, (0,)), NumaNode(1, (1,)))),
    )
    (item,) = evidence.findings
    assert item.message == "NUMA nodes 0 by sysfs numa, 0,1 by numactl"
    assert [n.id for n in evidence.topology.numa] == [0]


def test_hip_numbers_are_kfd_order_not_index() -> None:
    evidence = evidence_from_probe(probe(replace(mi300x_8(), hip_ids=(3, 2, 1, 0, 7, 6, 5, 4))))
    assert [g.hip_id for g in evidence.topology.gpus] == [3, 2, 1, 0, 7, 6, 5, 4]
    assert codes(evidence) == []


def test_hip_numbers_of_a_filtered_rocminfo_are_not_used() -> None:
    evidence = together(
        reading("kfd", gpu_list=tuple(Gpu(i, bdf=f"0000:0{i}:00.0") for i in range(3))),
        Reading("rocminfo", "rocminfo", gpus=(Gpu(0, hip_id=0),), facts={"bus_addresses": ("02:00.0",)}),
    )
    assert [g.hip_id for g in evidence.topology.gpus] == [None, None, None]


def test_addresses_of_two_domains_are_told_apart_by_the_kfd_node() -> None:
    profile = mi308x_8()
    twins = (
        *(f"0000:{b}:00.0" for b in ("0a", "80", "a4", "c8")),
        *(f"0001:{b}:00.0" for b in ("0a", "80", "a4", "c8")),
    )
    evidence = evidence_from_probe(probe(replace(profile, bdfs=twins)))
    assert codes(evidence) == []
    assert [g.hip_id for g in evidence.topology.gpus] == list(range(8))


def test_pcie_class_comes_from_the_pci_tree() -> None:
    links = {(k.a, k.b): k for k in evidence_from_probe(probe(mi210_2x4())).topology.links}
    assert links[0, 1].type == "XGMI"
    assert (links[0, 4].type, links[0, 4].raw_type) == ("SYS", "PCIE")


def test_partitions_share_the_facts_of_their_device() -> None:
    evidence = evidence_from_probe(probe(mi300x_cpx_64()))
    assert len(evidence.topology.gpus) == 64
    assert {g.numa_node for g in evidence.topology.gpus[:32]} == {0}
    assert set(evidence.facts["pcie_link"]) == set(range(64))


@pytest.mark.parametrize("key", sorted(probe(mi300x_8())))
@pytest.mark.parametrize("value", [None, 7, ["text"], {"text": 7}])
def test_a_section_of_any_form_is_no_traceback(key: str, value: Any) -> None:
    bundle = probe(mi300x_8())
    bundle[key] = value
    assert isinstance(evidence_from_probe(bundle).topology, Topology)


def test_an_empty_bundle_is_findings() -> None:
    evidence = evidence_from_probe({})
    assert evidence.topology.gpus == ()
    assert {"collect_unexpected", "collect_empty"} <= set(codes(evidence))


@pytest.mark.parametrize(
    ("name", "entry", "code", "severity"),
    [
        ("amd-smi topology --json", command("", rc=None, error="not found"), "collect_tool_missing", "warning"),
        ("amd-smi xgmi -l", command("", rc=None, error="not found"), "collect_tool_missing", "unknown"),
        ("rocminfo", command("", rc=None, error="not found"), "collect_tool_missing", "unknown"),
        # A hung tool and a failing library say something of the node, whatever other tools showed.
        (
            "rocm-smi --showtopo",
            command("", rc=None, error="no end within the time limit"),
            "collect_timeout",
            "unknown",
        ),
        (
            "amd-smi topology --json",
            command('{"error":"AMDSMI has returned error \'-1002\' - \'Command not supported\'","code":-1002}'),
            "collect_library_error",
            "error",
        ),
        ("amd-smi list --json", command("x", error="output cut at 4194304 bytes"), "collect_unexpected", "unknown"),
    ],
)
def test_a_failed_call_counts_by_what_others_showed(name: str, entry: dict[str, Any], code: str, severity: str) -> None:
    bundle = probe(mi300x_8())
    bundle["commands"][name] = entry
    found = [f for f in evidence_from_probe(bundle).findings if f.code == code]
    assert [f.severity for f in found] == [severity]


def test_a_call_of_another_form_is_a_finding() -> None:
    bundle = probe(mi300x_8())
    bundle["commands"]["rocminfo"] = "text"
    found = [f for f in evidence_from_probe(bundle).findings if f.code == "collect_unexpected"]
    assert [f.message for f in found] == ["entry of rocminfo is str, expected a mapping"]


def test_a_change_while_reading_is_told() -> None:
    bundle = probe(mi300x_8())
    bundle["kfd"]["generation_after"] = "99"
    assert "collect_changed_meanwhile" in codes(evidence_from_probe(bundle))


def test_many_calls_that_fail_alike_are_one_finding() -> None:
    bundle = probe(mi300x_8().with_faults("no_driver"))
    found = [f for f in evidence_from_probe(bundle).findings if f.subject.startswith("amd-smi")]
    assert len({f.message for f in found}) == len(found)
    assert any("more calls" in f.subject for f in found)


@pytest.mark.parametrize(
    ("cmdline", "mode"),
    [
        ("ro quiet", None),
        ("ro iommu=pt", "pt"),
        ("amd_iommu=on iommu=pt", "pt"),
        ("iommu=pt amd_iommu=on", "pt"),
        ("iommu.passthrough=1", "pt"),
        ("iommu=pt iommu.passthrough=0", "on"),
        ("iommu=noforce,pt", "pt"),
        ("intel_iommu=on", "on"),
        ("amd_iommu=off", "off"),
        ("iommu=off", "off"),
        ("xiommu=pt", None),
    ],
)
def test_iommu_mode(cmdline: str, mode: str | None) -> None:
    assert iommu_mode(cmdline) == mode


def test_worse_of_two_counters_counts() -> None:
    bundle = copy.deepcopy(probe(mi300x_8()))
    bdf = mi300x_8().bdfs[3]
    bundle["pci"][bdf]["ras"] = {"xgmi_wafl_err_count": "ue: 2\nce: 0\n"}
    assert evidence_from_probe(bundle).facts["ecc"][3] == {"correctable": 0, "uncorrectable": 2}


def test_uncorrectable_errors_outside_xgmi_are_kept_by_block() -> None:
    faulty = evidence_from_probe(probe(mi300x_8().with_faults("ecc_uncorrectable"))).facts["ecc_hard"]
    assert faulty == {0: {"UMC": 3}}  # sysfs says more than amd-smi
    assert evidence_from_probe(probe(mi300x_8())).facts["ecc_hard"] == {}
    assert not evidence_from_probe(probe(mi300x_8().with_faults("xgmi_down"))).facts["ecc_hard"][0]


def test_a_total_of_uncorrectable_errors_counts_where_no_block_accounts_for_it() -> None:
    def hard(text: str) -> Any:
        return merge([read(text)], whole=False, subject="node").facts["ecc_hard"]

    total = "GPU: 0\n    ECC:\n        TOTAL_CORRECTABLE_COUNT: 0\n        TOTAL_UNCORRECTABLE_COUNT: {}\n"
    assert hard(total.format(2)) == {0: {"TOTAL": 2}}
    assert hard(total.format(0)) == hard(total.format("N/A")) == {}
    table = amd_smi_bare_text(mi300x_8(), "7.0")[0]
    assert hard(table) == {}
    assert hard(re.sub(r"(\S*C +)0 ", r"\g<1>7 ", table, count=1)) == {0: {"TOTAL": 7}}


def test_a_json_capture_of_rocm_smi_counts_before_its_text() -> None:
    odd: Profile = mi300x_8().with_pair(0, 1, Pair(weight=99), "odd")
    bundle = probe(mi300x_8())
    del bundle["commands"]["amd-smi topology --json"]
    bundle["commands"]["rocm-smi --showtopo --json"] = command(*rocm_smi_json(odd, "7.0"))
    links = {(k.a, k.b): k for k in evidence_from_probe(bundle).topology.links}
    assert links[0, 1].weight == 99
