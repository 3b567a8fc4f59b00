"""Rules: what each finds, what it says, and that unknown is never a pass."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import pytest
from support.bundle import access, command, probe
from support.profile import (
    PCIE_ACROSS,
    PROFILES,
    NodeProfile,
    Pair,
    Profile,
    mi210_2x4,
    mi300x_8,
    mi300x_cpx_64,
    mi300x_one_pair_pcie,
)
from support.render_smi_text import amd_smi_bare_text, amd_smi_monitor_text

from instinct_fleet.findings import CODES
from instinct_fleet.model import Finding, Gpu, Host, Link, NumaNode, Partition, Topology, verdict
from instinct_fleet.parse import rccl, read
from instinct_fleet.parse.base import Aspect, Evidence, Reading
from instinct_fleet.parse.merge import evidence_from_probe, merge
from instinct_fleet.policy import PolicyError, evaluate, guess, hives, load_policy, policies
from instinct_fleet.structure import structural

#: Profile -> the policy that it is for.
NAMES = {name: "mi300x_8/CPX" if name == "mi300x_cpx_64" else name for name in PROFILES if name in policies()} | {
    "mi300x_cpx_64": "mi300x_8/CPX"
}


@functools.cache
def healthy(name: str = "mi300x_8") -> Evidence:
    return evidence_from_probe(probe(PROFILES[name]()))


def judge(profile: Profile, policy: str = "mi300x_8", overrides: Any = None, **changes: Any) -> tuple[Finding, ...]:
    return evaluate(evidence_from_probe(probe(profile, **changes)), policy=policy, overrides=overrides)


def with_facts(**facts: Any) -> tuple[Finding, ...]:
    """Judge a healthy MI300X node with some facts replaced."""
    evidence = healthy()
    return evaluate(replace(evidence, facts={**evidence.facts, **facts}), policy="mi300x_8")


def with_gpu(index: int, **fields: Any) -> tuple[Finding, ...]:
    """Judge a healthy MI300X node with some fields of one GPU replaced."""
    evidence = healthy()
    gpus = tuple(replace(g, **fields) if g.index == index else g for g in evidence.topology.gpus)
    return evaluate(replace(evidence, topology=replace(evidence.topology, gpus=gpus)), policy="mi300x_8")


def with_link(a: int, b: int, policy: str = "mi300x_8", **fields: Any) -> tuple[Finding, ...]:
    evidence = healthy("mi210_2x4" if policy == "mi210_2x4" else "mi300x_8")
    links = tuple(replace(k, **fields) if (k.a, k.b) == (a, b) else k for k in evidence.topology.links)
    return evaluate(replace(evidence, topology=replace(evidence.topology, links=links)), policy=policy)


def only(findings: tuple[Finding, ...], code: str) -> Finding:
    """Return the finding of a code, which must be the only one above information."""
    assert [f.code for f in findings if f.severity != "info"] == [code]
    return next(f for f in findings if f.code == code)


def capture(*aspects: Aspect, topology: Topology | None = None, **facts: Any) -> Evidence:
    return Evidence(
        topology=topology or Topology(),
        readings=(Reading("some tool", "tool"),),
        collects=frozenset(aspects),
        facts=facts,
        subject="capture",
    )


# --- policies ------------------------------------------------------------------------------------------------------


def test_every_shipped_policy_is_valid_and_named() -> None:
    assert list(policies()) == [
        "mi300x_8", "mi325x_8", "mi350x_8", "mi355x_8", "mi308x_8", "mi250x_8gcd", "mi210_2x4", "mi300a_4",
    ]  # fmt: skip
    ids = [device for policy in policies().values() for device in policy.device_ids]
    assert len(ids) == len(set(ids)), "a device id belongs to one policy"
    for name, policy in policies().items():
        assert policy.name == name
        assert set(policy.weights) == set(policy.partitions)


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("mi300x_8", 8), ("mi300x_8/DPX", 16), ("mi300x_8/QPX", 32), ("mi300x_8/CPX", 64), ("mi308x_8/CPX", 32),
        ("mi300a_4", 4), ("mi300a_4/CPX", 24), ("mi210_2x4", 8), ("mi355x_8/cpx/nps2", 64),
    ],
)  # fmt: skip
def test_expected_count_is_physical_times_partitions(name: str, count: int) -> None:
    assert load_policy(name).count == count


@pytest.mark.parametrize(
    ("name", "overrides", "text"),
    [
        ("mi300", None, "there is no policy 'mi300' (did you mean 'mi300x_8'?); expected one of mi300x_8, mi325x_8"),
        ("mi300x_8/CPX/NPS4/x", None, "expected <policy>[/<compute mode>[/<memory mode>]]"),
        ("mi300x_8/TPX", None, "compute_partition is 'TPX', this model has CPX, DPX, QPX, SPX"),
        ("mi300x_8", {"physical_gpu": 4}, "unknown key 'physical_gpu' (did you mean 'physical_gpus'?)"),
        ("mi300x_8", {"physical_gpus": 0}, "physical_gpus is 0: input should be greater than or equal to 1"),
        ("mi300x_8", {"physical_gpus": 4}, "physical_gpus 4 is no multiple of hive_size 8"),
        (
            "mi300x_8",
            {"severity": {"gpu_cont": "info"}},
            "no finding has the code 'gpu_cont' (did you mean 'gpu_count'?)",
        ),
        ("mi300x_8", {"severity": {"gpu_count": "bad"}}, "input should be 'error', 'unknown', 'warning' or 'info'"),
        ("mi300x_8", {"optional": ["ecx"]}, "optional.0 is 'ecx'"),
    ],
)
def test_a_policy_that_cannot_be_is_an_error_that_names_it(name: str, overrides: Any, text: str) -> None:
    with pytest.raises(PolicyError, match="policy") as caught:
        load_policy(name, overrides)
    assert text in str(caught.value)


@pytest.mark.parametrize("name", sorted(NAMES))
def test_a_healthy_node_passes_its_policy_and_is_recognised(name: str) -> None:
    evidence = healthy(name)
    found = evaluate(evidence, policy=NAMES[name])
    assert [f for f in found if f.severity in ("error", "unknown")] == []
    assert guess(evidence) == NAMES[name]


def test_a_node_of_another_model_fails() -> None:
    found = evaluate(healthy("mi210_2x4"), policy="mi300x_8")
    assert verdict(found) == "fail"
    assert {"gpu_model", "gpu_arch", "link_not_xgmi"} <= {f.code for f in found}


def test_a_model_that_nobody_knows_is_not_guessed() -> None:
    assert guess(capture("gpu_count")) is None


# --- topology ------------------------------------------------------------------------------------------------------


def test_a_pair_over_pcie_is_named_with_addresses() -> None:
    item = only(judge(mi300x_one_pair_pcie()), "link_not_xgmi")
    assert (item.severity, item.subject) == ("error", "GPU2-GPU5")
    assert item.message == (
        "GPU2 (0000:38:00.0) and GPU5 (0000:af:00.0): link type PCIE (SYS, weight 72, 3 hops), expected XGMI"
    )


def test_many_pairs_are_told_in_one_line() -> None:
    profile = mi300x_8()
    all_pcie = replace(profile, pairs=dict.fromkeys(profile.pairs, PCIE_ACROSS))
    found = [f for f in judge(all_pcie) if f.code == "link_not_xgmi"]
    assert [f.subject for f in found] == ["28 pairs"]
    assert "first GPU0-GPU1" in found[0].message
    assert "last GPU6-GPU7" in found[0].message


@pytest.mark.parametrize("raw", ["N/A", "XXXX", None])
def test_a_link_that_was_not_read_is_unknown(raw: str | None) -> None:
    item = only(with_link(0, 3, type="UNKNOWN", raw_type=raw), "link_unknown")
    assert item.severity == "unknown"
    assert f"link type {raw or 'not shown'}" in item.message


def test_a_pair_that_no_source_shows_is_unknown() -> None:
    evidence = healthy()
    top = replace(evidence.topology, links=evidence.topology.links[1:])
    found = evaluate(replace(evidence, topology=top), policy="mi300x_8")
    assert {f.code for f in found} == {"link_unknown", "link_access_unknown"}
    assert {f.subject for f in found} == {"GPU0-GPU1"}


@pytest.mark.parametrize(("value", "code"), [(False, "link_not_accessible"), (None, "link_access_unknown")])
def test_peer_access(value: bool | None, code: str) -> None:
    assert only(with_link(1, 2, accessible=value), code).subject == "GPU1-GPU2"


def test_two_hives_of_four_are_the_design_of_mi210() -> None:
    assert hives(healthy("mi210_2x4").topology) == ((0, 1, 2, 3), (4, 5, 6, 7))
    assert verdict(evaluate(healthy("mi210_2x4"), policy="mi210_2x4")) == "pass"


def test_a_broken_pair_inside_a_hive_of_mi210() -> None:
    found = with_link(1, 2, policy="mi210_2x4", type="NODE", raw_type="PCIE")
    assert [f.subject for f in found if f.severity == "error"] == ["GPU1-GPU2"]
    assert "expected XGMI inside a group of 4" in found[0].message


def test_a_hive_of_the_wrong_size() -> None:
    profile = mi210_2x4()
    pairs = {pair: PCIE_ACROSS if 3 in pair else value for pair, value in profile.pairs.items()}
    found = judge(replace(profile, pairs=pairs), "mi210_2x4")
    (item,) = [f for f in found if f.code == "hive_shape"]
    assert item.message == "XGMI groups {0,1,2}, {3}, {4,5,6,7}, expected 2 groups of 4"


def test_weights_are_advisory() -> None:
    found = with_link(0, 1, weight=45)
    assert verdict(found) == "pass"
    assert [f.message for f in found] == ["XGMI weight 45, usual on this model: 15; first GPU0-GPU1"]


def test_no_weights_and_no_bandwidths_warn_and_pass() -> None:
    found = evaluate(healthy("mi355x_8"), policy="mi355x_8")
    assert verdict(found) == "pass"
    assert {f.code for f in found if f.severity == "warning"} >= {"link_weight", "link_bandwidth"}


def test_zero_bandwidth_between_partitions_is_normal() -> None:
    found = evaluate(healthy("mi300x_cpx_64"), policy="mi300x_8/CPX")
    assert [(f.code, f.severity) for f in found] == [("link_bandwidth", "info")]


def test_a_missing_gpu_is_counted_and_the_seen_ones_named() -> None:
    found = judge(mi300x_8().with_faults("kfd_missing_gpu"))
    assert [f.code for f in found if f.severity == "error"] == ["gpu_without_driver", "gpu_count"]
    count = next(f for f in found if f.code == "gpu_count")
    assert count.message.startswith("7 GPUs seen, expected 8 (8 physical x 1 in SPX); seen at 0000:0c:00.0")


def test_one_missing_partition_is_a_warning() -> None:
    evidence = healthy("mi300x_cpx_64")
    top = evidence.topology
    less = replace(top, gpus=top.gpus[:63], links=tuple(k for k in top.links if k.b != 63))
    item = only(evaluate(replace(evidence, topology=less), policy="mi300x_8/CPX"), "gpu_partition_missing")
    assert (item.severity, item.message) == ("warning", "63 GPUs seen, expected 64 (8 physical x 8 in CPX)")


def test_partitions_that_were_not_declared() -> None:
    found = {f.code: f for f in evaluate(healthy("mi300x_cpx_64"), policy="mi300x_8")}
    assert found["partition_mode"].message == "partition CPX/NPS1, declared is SPX/NPS1"
    assert found["partition_mode"].subject == "GPUs 0-63"
    assert found["gpu_count"].message == "64 GPUs seen, expected 8 (8 physical x 1 in SPX)"


@pytest.mark.parametrize(
    ("fields", "code", "text"),
    [
        ({"device_id": "0x74a5"}, "gpu_model", "device id 0x74a5, expected 0x74a1 or 0x74a9"),
        ({"device_id": None}, "gpu_model_unknown", "device id not known"),
        ({"arch": "gfx90a"}, "gpu_arch", "gfx target gfx90a, expected gfx942"),
        ({"arch": None}, "gpu_arch_unknown", "gfx target not known, expected gfx942"),
        ({"numa_node": None}, "gpu_numa_unknown", "NUMA node unknown (-1)"),
        ({"numa_node": 5}, "gpu_numa_not_on_host", "NUMA node 5, the host has 0, 1"),
        ({"partition": Partition("DPX", "NPS1")}, "partition_mode", "partition DPX/NPS1, declared is SPX/NPS1"),
        (
            {"partition": Partition("SPX", "NPS4")},
            "partition_invalid",
            "partition SPX with NPS4, expected SPX with NPS1",
        ),
        ({"partition": Partition(None, "NPS1")}, "partition_unknown", "partition N/A/NPS1"),
        ({"partition": Partition("SPX", None)}, "partition_unknown", "partition SPX/N/A"),
    ],
)
def test_a_gpu_that_is_not_as_it_must_be(fields: dict[str, Any], code: str, text: str) -> None:
    found = [f for f in with_gpu(2, **fields) if f.code == code]
    assert [f.subject for f in found] == ["GPU2"]
    assert text in found[0].message
    assert found[0].severity == CODES[code].severity


def test_unknown_numa_of_all_gpus_is_one_finding() -> None:
    item = only(judge(mi300x_8().with_faults("numa_unknown")), "gpu_numa_unknown")
    assert item.message == "NUMA node of all 8 GPUs unknown, expected a node number"


def test_gpus_that_are_not_four_and_four() -> None:
    found = judge(replace(mi300x_8(), numa=(0, 0, 0, 0, 0, 1, 1, 1)))
    (item,) = [f for f in found if f.code == "gpu_numa_spread"]
    assert item.message == "GPUs by NUMA node node 0: 5, node 1: 3; expected 4 on each of 2"


def test_nearest_node_and_affinity_differ() -> None:
    item = only(with_facts(numa_nearest={**healthy().facts["numa_nearest"], 1: 1}), "gpu_numa_mismatch")
    assert item.message == "nearest node by KFD is 1, numa_node of the device is 0, expected the same"


def test_nps4_of_the_host() -> None:
    nodes = tuple(NodeProfile(f"{16 * n}-{16 * n + 15}") for n in range(8))
    found = judge(replace(mi300x_8(), nodes=nodes, numa=(0, 1, 2, 3, 4, 5, 6, 7)))
    (item,) = [f for f in found if f.code == "host_nps"]
    assert item.message == "8 NUMA nodes on 2 sockets (NPS4), expected 1 a socket"
    assert "gpu_numa_spread" not in {f.code for f in found}


def test_nps4_is_sold_with_mi210() -> None:
    top = Topology(numa=tuple(NumaNode(n, (n,)) for n in range(8)), host=Host(sockets=2))
    found = evaluate(capture("numa_nodes", topology=top), policy="mi210_2x4")
    assert "host_nps" not in {f.code for f in found}


@pytest.mark.parametrize(
    ("sizes", "told"), [((768, 768), False), ((768, 700), False), ((768, 512), True), ((768, 0), True)]
)
def test_a_socket_with_less_memory_than_the_other(sizes: tuple[int, int], told: bool) -> None:
    nodes = tuple(NodeProfile(f"{8 * n}-{8 * n + 7}", size << 30) for n, size in enumerate(sizes))
    found = judge(replace(mi300x_8(), nodes=nodes))
    messages = [f.message for f in found if f.code == "host_memory"]
    seen = f"memory by NUMA node node 0: 768.0 GiB, node 1: {sizes[1]}.0 GiB; expected the same on each"
    assert messages == ([seen] if told else [])


@pytest.mark.parametrize(
    ("smt", "declared", "message"),
    [
        (True, None, None),
        (False, False, None),
        (True, False, "SMT is on, declared is off"),
        (False, True, "SMT is off, declared is on"),
        (None, False, "SMT is not known, declared is off"),
    ],
)
def test_smt_is_judged_where_it_is_declared(smt: bool | None, declared: bool | None, message: str | None) -> None:
    topology = healthy().topology
    evidence = replace(healthy(), topology=replace(topology, host=replace(topology.host, smt=smt)))
    found = evaluate(evidence, policy="mi300x_8", overrides={"smt": declared})
    assert [f.message for f in found if f.code == "host_smt"] == ([message] if message else [])


def test_no_numa_node() -> None:
    evidence = replace(healthy(), topology=replace(healthy().topology, numa=()))
    assert only(evaluate(evidence, policy="mi300x_8"), "numa_nodes_unknown").severity == "unknown"


# --- XGMI ----------------------------------------------------------------------------------------------------------

UP = ("X", "U", "U", "U", "U", "U", "U", "U")


@pytest.mark.parametrize(
    ("ports", "code", "text"),
    [
        (("X", "U", "D", "U"), "xgmi_link_down", "XGMI link 2 of 4 is D (down), expected U"),
        (("X", None, "U"), "xgmi_status_unknown", "XGMI link status X N/A U, expected U (and X for itself)"),
        ((), "xgmi_status_unknown", "XGMI link status nothing"),
        # All ports disabled: the GPU has no XGMI at all, which on this model is not how it is.
        (("X", "X"), "xgmi_status_unknown", "XGMI link status X X"),
    ],
)
def test_link_status(ports: tuple[str | None, ...], code: str, text: str) -> None:
    item = only(with_facts(link_status={**dict.fromkeys(range(8), UP), 4: ports}), code)
    assert item.subject == "GPU4"
    assert text in item.message


def test_link_status_of_all_gpus_unknown_is_one_finding() -> None:
    assert only(with_facts(link_status={}), "xgmi_status_unknown").subject == "GPUs 0-7"


@pytest.mark.parametrize(
    ("counts", "code", "severity"),
    [
        ({"correctable": 0, "uncorrectable": 1}, "xgmi_errors_uncorrectable", "error"),
        ({"correctable": 5, "uncorrectable": 0}, "xgmi_errors_correctable", "warning"),
        ({"correctable": None, "uncorrectable": 0}, "xgmi_errors_unknown", "unknown"),
        (None, "xgmi_errors_unknown", "unknown"),
    ],
)
def test_xgmi_error_counters(counts: Any, code: str, severity: str) -> None:
    ecc = {**healthy().facts["ecc"], 6: counts}
    item = only(with_facts(ecc=ecc), code)
    assert (item.subject, item.severity) == ("GPU6", severity)


def test_uncorrectable_errors_outside_xgmi_are_an_error_with_and_without_a_policy() -> None:
    facts = {"ecc_hard": {2: {"UMC": 1, "SDMA": 2}, 3: {}}}
    item = only(with_facts(**facts), "gpu_errors_uncorrectable")
    assert (item.subject, item.severity) == ("GPU2", "error")
    assert "SDMA 2, UMC 1" in item.message
    assert item in structural(replace(healthy(), facts={**healthy().facts, **facts}))


# --- host ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "code", "severity"),
    [
        ("HSA_OVERRIDE_GFX_VERSION=9.4.2", "env_hsa_override", "error"),
        ("HSA_OVERRIDE_GFX_VERSION_0=9.4.2", "env_hsa_override", "error"),
        ("ROCR_VISIBLE_DEVICES=0,1", "env_rocr_visible_devices", "warning"),
        ("HIP_VISIBLE_DEVICES=0", "env_visible_devices", "warning"),
    ],
)
def test_gpu_variables_of_the_system(line: str, code: str, severity: str) -> None:
    item = only(judge(mi300x_8(), environment={"/etc/environment": [line]}), code)
    assert (item.subject, item.severity) == ("/etc/environment", severity)
    assert line in item.message


def test_a_unit_of_ours_may_select_its_gpus_but_never_override() -> None:
    path = "/etc/systemd/system/vllm-chat.service"
    assert judge(mi300x_8(), environment={path: ["HIP_VISIBLE_DEVICES=0"]}) == ()
    only(judge(mi300x_8(), environment={path: ["HSA_OVERRIDE_GFX_VERSION=9.4.2"]}), "env_hsa_override")


def test_gpus_hidden_from_the_runtime_name_the_file() -> None:
    lines = {"/etc/environment": ["ROCR_VISIBLE_DEVICES=0,1"]}
    found = judge(mi300x_8().with_faults("rocr_hidden"), environment=lines)
    item = next(f for f in found if f.code == "gpus_hidden")
    assert item.severity == "error"
    assert item.message == (
        "rocminfo shows 2 GPUs, the driver has 8, expected the same (/etc/environment: ROCR_VISIBLE_DEVICES=0,1)"
    )
    assert "gpu_count" not in {f.code for f in found}


def test_a_lone_rocminfo_with_few_gpus_is_not_known() -> None:
    found = evaluate(capture("arch", runtime_gpus=2, driver_gpus=2), policy="mi300x_8")
    item = next(f for f in found if f.code == "gpus_hidden")
    assert (item.severity, verdict(found)) == ("unknown", "unknown")
    assert "rocminfo shows 2 GPUs, expected 8" in item.message


def test_no_driver_is_one_finding_not_one_a_gpu() -> None:
    found = judge(mi300x_8().with_faults("no_driver"))
    item = next(f for f in found if f.code == "driver_not_loaded")
    assert "8 GPUs in the PCI tree have no driver" in item.message
    assert "gpu_without_driver" not in {f.code for f in found}


def rights(**changes: Any) -> dict[str, Any]:
    return access(mi300x_8()) | changes


DENIED = {"mode": "0660", "owner": "root", "group": "render", "read_write": False}


@pytest.mark.parametrize(
    ("section", "code", "subject", "text"),
    [
        (
            rights(groups=["vllm"], devices=access(mi300x_8())["devices"] | {"/dev/kfd": DENIED}),
            "device_access", "/dev/kfd", "vllm (groups vllm) may not read and write it: root:render 0660",
        ),
        (
            rights(devices=access(mi300x_8())["devices"] | {"/dev/kfd": {"error": "No such file or directory"}}),
            "kfd_missing", "/dev/kfd", "No such file or directory, expected a device node",
        ),
        (
            rights(devices={"/dev/kfd": {**DENIED, "read_write": True}}),
            "device_access", "/dev/dri", "no render node seen",
        ),
        (
            rights(devices=access(mi300x_8())["devices"] | {"/dev/dri/renderD130": {**DENIED, "read_write": None}}),
            "device_access_unknown", "/dev/dri/renderD130", "rights of vllm not known",
        ),
        (
            rights(devices=access(mi300x_8())["devices"] | {"/dev/dri/renderD130": {"error": "Permission denied"}}),
            "device_access_unknown", "/dev/dri/renderD130", "Permission denied",
        ),
    ],
)  # fmt: skip
def test_rights_of_the_service_user(section: dict[str, Any], code: str, subject: str, text: str) -> None:
    item = only(judge(mi300x_8(), access=section), code)
    assert item.subject == subject
    assert text in item.message


def test_a_service_user_that_does_not_exist_yet_is_not_judged() -> None:
    found = judge(mi300x_8(), access=rights(exists=False, groups=[]))
    assert [(f.code, f.severity) for f in found] == [("service_user_absent", "info")]


def test_iommu() -> None:
    item = only(judge(mi300x_8().with_faults("iommu_missing")), "iommu_not_passthrough")
    assert item.severity == "error"
    assert "kernel command line has no iommu=pt" in item.message


def test_iommu_is_milder_on_mi210() -> None:
    found = judge(mi210_2x4().with_faults("iommu_missing"), "mi210_2x4")
    assert [f.severity for f in found if f.code == "iommu_not_passthrough"] == ["warning"]


def test_recommended_kernel_options_may_stand_in_one_word() -> None:
    assert judge(replace(mi300x_8(), cmdline="ro iommu=pt pci=bfsort,realloc=off")) == ()
    item = only(judge(replace(mi300x_8(), cmdline="ro iommu=pt pci=bfsort")), "cmdline_missing")
    assert item.message == "kernel command line has no pci=realloc=off"


def test_numa_balancing() -> None:
    only(judge(mi300x_8().with_faults("numa_balancing_on")), "numa_balancing_on")


@pytest.mark.parametrize(
    ("link", "code", "text"),
    [
        ({"speed_gts": 16.0, "width": 16}, "pcie_link_degraded", "PCIe link 16 GT/s x16, expected 32 GT/s x16"),
        ({"speed_gts": 32.0, "width": 8}, "pcie_link_degraded", "PCIe link 32 GT/s x8, expected 32 GT/s x16"),
        ({"speed_gts": None, "width": 16}, "pcie_link_unknown", "PCIe link speed N/A x16"),
        ({}, "pcie_link_unknown", "PCIe link speed N/A width N/A"),
        ({"speed_gts": 32.0, "width": 16, "fatal_error": True}, "pcie_fatal_error", "FatalErr+"),
    ],
)
def test_pcie_link(link: dict[str, Any], code: str, text: str) -> None:
    item = only(with_facts(pcie_link={**healthy().facts["pcie_link"], 3: link}), code)
    assert item.subject == "GPU3"
    assert text in item.message


def test_a_narrow_link_whose_best_speed_was_not_told_is_named_all_the_same() -> None:
    link = {"speed_gts": 16.0, "width": 8, "max_speed_gts": None, "max_width": 16}
    evidence = healthy()
    facts = {**evidence.facts, "pcie_link": {**evidence.facts["pcie_link"], 3: link}}
    item = only(structural(replace(evidence, facts=facts)), "pcie_link_degraded")
    assert item.message == "PCIe link 16 GT/s x8, expected its best"


def test_acs_matters_only_where_peers_use_pcie() -> None:
    assert judge(mi300x_8().with_faults("acs_on")) == ()
    found = judge(mi210_2x4().with_faults("acs_on"), "mi210_2x4")
    (item,) = [f for f in found if f.code == "acs_on"]
    assert "16 pairs go over PCIe" in item.message
    bundle = probe(mi210_2x4())
    bundle["commands"]["lspci -D -vv -d 1002:"] = command("", rc=None, error="not found")
    found = evaluate(evidence_from_probe(bundle), policy="mi210_2x4")
    assert "acs_unknown" in {f.code for f in found}


def test_leaked_memory() -> None:
    used = {**healthy().facts["vram_used"], 5: 144 * 1024**3}
    item = only(with_facts(vram_used=used), "vram_leaked")
    assert item.message == "144.0 GiB VRAM in use and no process on it, expected below 2048 MiB"
    assert with_facts(vram_used=used, vram_busy=frozenset({5})) == ()
    only(with_facts(vram_used=used, vram_busy=None), "vram_unknown")
    only(with_facts(vram_used={**used, 5: None}), "vram_unknown")


def test_simulated_hardware_is_always_told() -> None:
    found = judge(mi300x_8(), simulated=True)
    assert [(f.code, f.severity) for f in found] == [("simulated_hardware", "info")]


# --- whole and single, overrides -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "key", ["amd-smi xgmi -l", "rocminfo", "amd-smi metric --ecc --ecc-blocks --json", "amd-smi process --json"]
)
def test_a_tool_that_is_missing_from_a_bundle_never_makes_it_better(key: str) -> None:
    bundle = probe(mi300x_8())
    bundle["commands"][key] = command("", rc=None, error="not found")
    assert evaluate(evidence_from_probe(bundle), policy="mi300x_8") != ()


@pytest.mark.parametrize("section", ["commands", "kfd", "pci", "numa", "proc", "sysctl", "environment", "access"])
def test_a_section_that_is_missing_from_a_bundle_is_never_a_pass(section: str) -> None:
    bundle = probe(mi300x_8())
    del bundle[section]
    assert verdict(evaluate(evidence_from_probe(bundle), policy="mi300x_8")) != "pass"


def test_an_empty_bundle_is_unknown_in_everything() -> None:
    found = evaluate(evidence_from_probe({}), policy="mi300x_8")
    missing = [f for f in found if f.code == "not_collected"]
    assert {f.severity for f in missing} == {"unknown"}
    assert len(missing) > 12


def test_a_single_capture_is_judged_by_what_it_shows() -> None:
    top = Topology(gpus=(Gpu(0), Gpu(1)), links=(Link(0, 1, "XGMI", "XGMI"),))
    found = evaluate(
        capture("gpu_count", "link_type", topology=top),
        policy="mi300x_8",
        overrides={"physical_gpus": 2, "hive_size": 2},
    )
    assert {(f.code, f.severity) for f in found} == {("not_collected", "info")}
    assert verdict(found) == "pass"
    status = next(f for f in found if "link status" in f.message)
    assert status.message == "the XGMI link status not collected (is every XGMI link up); read were: some tool"
    assert status.remedy == "Run `amd-smi xgmi -l`, or collect the node with `node_probe`."


def test_severity_can_be_set_for_a_host() -> None:
    found = judge(mi300x_8().with_faults("numa_balancing_on"), overrides={"severity": {"numa_balancing_on": "error"}})
    assert [f.severity for f in found] == ["error"]


def test_an_optional_aspect_warns() -> None:
    bundle = probe(mi300x_8())
    bundle["commands"]["amd-smi xgmi -l"] = command("", rc=None, error="not found")
    evidence = evidence_from_probe(bundle)
    assert verdict(evaluate(evidence, policy="mi300x_8")) == "unknown"
    found = evaluate(evidence, policy="mi300x_8", overrides={"optional": ["link_status"]})
    assert [f.severity for f in found if f.code == "not_collected"] == ["warning"]


def test_what_a_model_does_not_have_is_for_information() -> None:
    found = evaluate(healthy("mi210_2x4"), policy="mi210_2x4")
    assert {f.severity for f in found if "partition" in f.code} == {"info"}


def test_the_bandwidth_run_is_judged_with_the_policy_of_the_node() -> None:
    devices = "".join(
        f"#  Rank {r} Group 0 Pid 10 on host device {r} [0000:0{r}:00.0] AMD Instinct MI300X\n" for r in range(8)
    )
    row = "8589934592 2147483648 float sum -1 628000 13.68 23.94 0 628000 13.68 23.94 0"
    text = (
        "# nThread 1 nGpus 8 minBytes 8589934592 maxBytes 8589934592 step: 2(factor) warmup iters: 5 iters: 20\n"
        f"# Using devices\n{devices}"
        "# size count type redop root time algbw busbw #wrong time algbw busbw #wrong\n"
        f"{row}\n# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 23.94\n"
    )
    reading = rccl.parse(text)
    evidence = Evidence(Topology(), readings=(reading,), collects=reading.collects, subject="n")
    found = {f.code: f for f in evaluate(evidence, policy="mi300x_8")}
    assert found["rccl_bandwidth_low"].severity == "error"
    # The devices are MI300X: held against the floor of another model they are not judged.
    assert "rccl_not_judged" in {f.code for f in evaluate(evidence, policy="mi325x_8")}


def test_an_optional_tool_failure_of_another_aspect_is_not_waived() -> None:
    bundle = probe(mi300x_8().with_faults("numa_unknown"))
    found = evaluate(evidence_from_probe(bundle), policy="mi300x_8", overrides={"optional": ["ecc"]})
    assert verdict(found) == "unknown"
    found = evaluate(evidence_from_probe(bundle), policy="mi300x_8", overrides={"optional": ["gpu_numa"]})
    assert verdict(found) == "pass"


def test_findings_are_the_same_twice() -> None:
    profile = mi300x_cpx_64()
    assert judge(profile, "mi300x_8") == judge(profile, "mi300x_8")


def test_pairs_in_two_directions_are_one_pair() -> None:
    odd = mi300x_8().with_pair(5, 2, Pair(type="PCIE", weight=72, hops=3, bandwidth=None), "odd")
    assert [f.subject for f in judge(odd) if f.code == "link_not_xgmi"] == ["GPU2-GPU5"]


def vram_findings(text: str) -> list[tuple[str, str]]:
    found = structural(merge([read(text)], whole=False, subject="node"))
    return [(f.code, f.subject) for f in found if f.code.startswith("vram_")]


def test_taken_memory_is_judged_though_nothing_names_the_model() -> None:
    bare = amd_smi_bare_text(mi300x_8().with_faults("vram_leaked"), "7.0")[0]
    assert vram_findings(bare) == [("vram_leaked", "GPU0")]
    row = f"|{'    0     250236  python3.12   7.9 MB    2.6 GB     2.8 GB  N/A':<78}|"
    assert vram_findings(bare.replace(f"|{'  No running processes found':<78}|", row)) == []
    assert vram_findings(amd_smi_bare_text(mi300x_8(), "7.0")[0]) == []
    monitor = amd_smi_monitor_text(mi300x_8(), "6.4")[0]
    assert vram_findings(monitor) == []
    taken = monitor.replace("0.3/192.0 GB", "180.3/192.0 GB", 1)
    assert vram_findings(taken) == [("vram_unknown", "GPU0")]
    assert vram_findings(taken.replace("0 %", "93 %", 1)) == []


def test_a_gpu_without_any_link_beside_linked_ones_is_unknown_on_any_model() -> None:
    def found(**status: str) -> list[str]:
        ports = {int(gpu[1:]): tuple(states) for gpu, states in status.items()}
        gpus = tuple(Gpu(number) for number in ports)
        reading = Reading(
            "amd-smi xgmi status", "amd-smi", gpus=gpus, facts={"link_status": ports}, collects=LINK_STATUS
        )
        judged = structural(merge([reading], whole=False, subject="node"))
        return [f.subject for f in judged if f.code == "xgmi_status_unknown"]

    assert found(g0="XXXX", g1="XXXX") == []
    assert found(g0="UUUX", g1="XXXX") == ["GPU1"]


LINK_STATUS: frozenset[Aspect] = frozenset(("gpu_count", "link_status"))
