"""Which GPUs an instance gets, how it is bound, and what cannot be."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.nodes import topology
from support.profile import PROFILES, NodeProfile, mi210_2x4, mi250x_8gcd, mi300x_8, mi300x_one_pair_pcie

from instinct_fleet.instances import InstancesError
from instinct_fleet.model import Link, Partition, Topology, Unit
from instinct_fleet.placement import Placement, place, version_tuple
from instinct_fleet.policy import hives

VERSION = "0.33.0"
NODES = {name: topology(make()) for name, make in PROFILES.items()}
MI300X = NODES["mi300x_8"]


def run(node: Topology, *sizes: int, **fields: Any) -> Placement:
    """Place instances a, b, c ... of these sizes."""
    entries = [
        {"name": name, "model": "m", "tensor_parallel_size": size, **fields}
        for name, size in zip("abcdefghijklmnop", sizes, strict=False)
    ]
    return place(node, entries, vllm_version=VERSION)


def single(node: Topology, size: int = 1, version: str | None = VERSION, **fields: Any) -> tuple[Unit, Placement]:
    result = place(node, [{"name": "a", "model": "m", "tensor_parallel_size": size, **fields}], vllm_version=version)
    (unit,) = result.units
    return unit, result


def refused(node: Topology, size: int = 1, **fields: Any) -> str:
    """Return the message of the only finding of an instance that gets no unit."""
    result = place(node, [{"name": "a", "model": "m", "tensor_parallel_size": size, **fields}], vllm_version=VERSION)
    assert result.units == ()
    (item,) = result.findings
    assert (item.severity, item.subject) == ("error", "a")
    return f"{item.code}: {item.message}"


def gpus_of(result: Placement) -> dict[str, tuple[int, ...]]:
    return {unit.instance: unit.gpus for unit in result.units}


def without_links(node: Topology) -> Topology:
    return replace(node, links=tuple(replace(k, type="UNKNOWN", raw_type="N/A") for k in node.links))


# --- choice --------------------------------------------------------------------------------------------------------


def test_small_instances_leave_the_larger_whole_free() -> None:
    assert gpus_of(run(MI300X, 1, 4, 2)) == {"a": (6,), "b": (0, 1, 2, 3), "c": (4, 5)}


def test_a_gap_is_filled_before_a_whole_node_is_broken() -> None:
    result = place(
        MI300X,
        [
            {"name": "fixed", "model": "m", "tensor_parallel_size": 2, "gpus": [4, 6]},
            {"name": "small", "model": "m", "tensor_parallel_size": 2},
        ],
        vllm_version=VERSION,
    )
    assert gpus_of(result) == {"fixed": (4, 6), "small": (5, 7)}


def test_an_instance_spans_nodes_only_when_none_holds_it() -> None:
    result = run(MI300X, 3, 3, 2)
    assert gpus_of(result) == {"a": (0, 1, 2), "b": (4, 5, 6), "c": (3, 7)}
    assert [f.subject for f in result.findings if f.code == "placement_spans_numa"] == ["c"]


def test_gpus_that_others_name_are_not_taken() -> None:
    result = place(
        MI300X,
        [{"name": "a", "model": "m"}, {"name": "z", "model": "m", "gpus": [0]}],
        vllm_version=VERSION,
    )
    assert gpus_of(result)["z"] == (0,)
    assert gpus_of(result)["a"] != (0,)


def test_two_hives_of_mi210_are_not_crossed() -> None:
    assert gpus_of(run(NODES["mi210_2x4"], 4, 4)) == {"a": (0, 1, 2, 3), "b": (4, 5, 6, 7)}
    assert refused(NODES["mi210_2x4"], 8) == (
        "placement_across_hives: needs 8 GPUs joined by XGMI, free are the groups {0,1,2,3}, {4,5,6,7}"
    )


def test_a_pipeline_may_cross_hives_stage_by_stage() -> None:
    unit, result = single(NODES["mi210_2x4"], 4, pipeline_parallel_size=2)
    assert unit.gpus == (0, 1, 2, 3, 4, 5, 6, 7)
    assert "placement_pipeline_across_hives" in {f.code for f in result.findings}
    unit, result = single(NODES["mi210_2x4"], 2, pipeline_parallel_size=2)
    assert unit.gpus == (0, 1, 2, 3)
    assert result.findings == ()


def test_short_links_are_preferred_where_weights_differ() -> None:
    node = topology(mi250x_8gcd())
    near = {(0, 5): 15, (0, 1): 45}
    links = tuple(replace(k, weight=near.get((k.a, k.b), 30)) for k in node.links)
    # Both on one NUMA node, so that only the weight can decide.
    one = replace(node, links=links, gpus=tuple(replace(g, numa_node=0) for g in node.gpus))
    assert single(one, 2)[0].gpus == (0, 5)


def test_one_node_counts_before_filling_gaps() -> None:
    node = topology(replace(mi300x_8(), numa=(0, 1, 2, 2, 2, 2, 2, 2), nodes=tuple(map(NodeProfile, "012"))))
    assert single(node, 2)[0].gpus == (2, 3)


def test_a_pair_that_lost_its_link_is_worked_around() -> None:
    node = topology(mi300x_one_pair_pcie())
    assert refused(node, 8) == (
        "placement_across_hives: needs 8 GPUs joined by XGMI, free are the groups {0,1,2,3,4,5,6,7}; "
        "GPU2-GPU5 has link type PCIE (SYS, weight 72, 3 hops)"
    )
    unit, _result = single(node, 7)
    assert not {2, 5} <= set(unit.gpus)
    assert gpus_of(run(node, 4, 4)) == {"a": (0, 1, 2, 3), "b": (4, 5, 6, 7)}


def test_partitions_of_one_gpu_are_used_before_those_of_another() -> None:
    node = NODES["mi300x_cpx_64"]
    bdf = {gpu.index: str(gpu.bdf).partition(".")[0] for gpu in node.gpus}
    for size in (2, 4, 8):
        unit, _result = single(node, size)
        assert len({bdf[g] for g in unit.gpus}) == 1
    unit, _result = single(node, 16)
    assert len({bdf[g] for g in unit.gpus}) == 2
    result = run(node, *[8] * 8)
    assert len(result.units) == 8
    assert all(len({bdf[g] for g in u.gpus}) == 1 for u in result.units)
    rest = run(node, 8, 4, 3, 1)
    assert all(len({bdf[g] for g in u.gpus}) == 1 for u in rest.units)
    assert len({bdf[g] for u in rest.units for g in u.gpus}) == 2


def test_no_room() -> None:
    result = run(MI300X, 8, 1)
    (item,) = [f for f in result.findings if f.severity == "error"]
    assert (item.subject, item.message) == ("b", "needs 1 GPUs, 0 of 8 are free (none)")
    assert refused(MI300X, 16) == "placement_no_room: needs 16 GPUs, 8 of 8 are free (0,1,2,3,4,5,6,7)"
    assert refused(Topology()) == "placement_no_room: needs 1 GPUs, 0 of 0 are free (none)"


def test_unknown_links_hold_one_gpu_and_no_more() -> None:
    blind = without_links(MI300X)
    assert single(blind)[0].gpus == (0,)
    assert refused(blind, 2) == (
        "placement_links_unknown: needs 2 GPUs joined by XGMI, no link between the free GPUs 0,1,2,3,4,5,6,7 is known"
    )
    assert refused(blind, 2, gpus=[0, 1]) == (
        "placement_links_unknown: tensor_parallel_size 2 on GPUs 0,1: GPU0-GPU1 has link type N/A, expected XGMI "
        "between all"
    )
    assert refused(replace(MI300X, links=()), 2).startswith("placement_links_unknown")


def test_named_gpus_are_checked() -> None:
    assert single(MI300X, 2, gpus=[7, 2])[0].gpus == (7, 2)
    assert refused(MI300X, 2, gpus=[7, 8]) == "placement_gpu_absent: gpus names 8, the node has 0-7"
    assert refused(topology(mi300x_one_pair_pcie()), 2, gpus=[2, 5]).startswith("placement_across_hives: ")
    assert refused(NODES["mi210_2x4"], 4, gpus=[2, 3, 4, 5]).startswith("placement_across_hives: ")


def test_named_gpus_of_a_pipeline_are_checked_stage_by_stage() -> None:
    unit, _result = single(NODES["mi210_2x4"], 2, pipeline_parallel_size=2, gpus=[0, 1, 4, 5])
    assert unit.gpus == (0, 1, 4, 5)
    assert refused(NODES["mi210_2x4"], 2, pipeline_parallel_size=2, gpus=[0, 4, 1, 5]).startswith("placement_across")


def test_reasons_say_why() -> None:
    assert single(MI300X, 2)[0].reasons == (
        "GPUs 0,1: all pairs are XGMI (weight 15)",
        "all on NUMA node 0, 2 GPUs stay free there",
        "bound to NUMA node 0: CPUs strictly, memory by preference, so that a full node does not kill it",
    )
    assert single(MI300X, 8)[0].reasons[1] == (
        "on NUMA nodes 0,1, since no node has 8 free GPUs in one XGMI group (at most 4)"
    )


# --- binding -------------------------------------------------------------------------------------------------------


def test_one_node() -> None:
    unit, result = single(MI300X, 4)
    assert unit.numactl == ("numactl", "--cpunodebind=0", "--preferred=0")
    assert (unit.numa_nodes, unit.numa_bind_args) == ((0,), ())
    assert unit.cpus == MI300X.numa[0].cpus
    assert result.findings == ()


def test_two_nodes() -> None:
    unit, result = single(MI300X, 8)
    assert unit.numactl == ("numactl", "--interleave=0,1")
    assert unit.numa_bind_args == ("--numa-bind", "--numa-bind-nodes", *"00001111")
    assert unit.numa_nodes == (0, 1)
    assert unit.cpus == tuple(range(192))
    assert [f.code for f in result.findings] == ["placement_spans_numa"]


def test_nodes_follow_the_gpus_not_their_numbers() -> None:
    node = topology(replace(mi300x_8(), numa=(1, 1, 1, 1, 0, 0, 0, 0)))
    unit, _result = single(node, 8)
    assert unit.numa_nodes == (1, 0)
    assert unit.numactl == ("numactl", "--interleave=0,1")
    assert unit.numa_bind_args[2:] == tuple("11110000")


@pytest.mark.parametrize("version", ["0.19.1", "0.9.2", "0.19.1+rocm723", "nonsense"])
def test_an_older_vllm_is_not_bound_over_two_nodes(version: str) -> None:
    unit, result = single(MI300X, 8, version=version)
    assert (unit.numactl, unit.numa_bind_args) == ((), ())
    item = next(f for f in result.findings if f.code == "placement_vllm_too_old")
    assert (item.severity, item.message) == (
        "warning",
        f"vLLM {version} on NUMA nodes 0,1, expected 0.20 or later; the unit is not bound",
    )
    assert single(MI300X, 4, version=version)[0].numactl == ("numactl", "--cpunodebind=0", "--preferred=0")


def test_a_version_that_was_not_told_is_assumed_and_said() -> None:
    unit, result = single(MI300X, 8, version=None)
    assert unit.numa_bind_args[0] == "--numa-bind"
    assert "placement_vllm_version_assumed" in {f.code for f in result.findings}


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("0.33.0", (0, 33, 0)),
        ("v0.20", (0, 20)),
        ("0.33.0+rocm723", (0, 33, 0)),
        ("0.33.0rc1", (0, 33, 0)),
        ("x", None),
        ("9" * 5000, None),
    ],
)
def test_version_tuple(text: str, numbers: tuple[int, ...] | None) -> None:
    assert version_tuple(text) == numbers


@pytest.mark.parametrize("size", [1, 8])
def test_unknown_numa_is_not_bound(size: int) -> None:
    node = topology(replace(mi300x_8(), numa=(None,) * 8))
    unit, result = single(node, size)
    assert (unit.numactl, unit.numa_bind_args, unit.numa_nodes) == ((), (), ())
    (item,) = result.findings
    assert (item.code, item.severity) == ("placement_numa_unknown", "warning")
    assert "is not known, expected a node with CPUs; the unit is not bound" in item.message


def test_a_gpu_with_a_known_node_is_preferred() -> None:
    node = topology(replace(mi300x_8(), numa=(None, 0, 0, 0, 1, 1, 1, 1)))
    assert single(node, 3)[0].gpus == (1, 2, 3)


def test_a_node_that_the_host_does_not_have_is_not_bound() -> None:
    node = topology(replace(mi300x_8(), nodes=(NodeProfile("0-95"),)))
    unit, result = single(node, 1, gpus=[7])
    assert unit.numactl == ()
    assert "NUMA node 1 has no CPUs on this host" in result.findings[0].message


def test_numa_off() -> None:
    unit, result = single(MI300X, 8, numa="off")
    assert (unit.numactl, unit.numa_bind_args, result.findings) == ((), (), ())


def test_strict_membind_needs_to_know_that_it_fits() -> None:
    unit, result = single(MI300X, 1, strict_membind=True, host_memory_gib=1024)
    assert unit.numactl == ("numactl", "--cpunodebind=0", "--membind=0")
    assert result.findings == ()
    for fields, text in (
        ({"host_memory_gib": 1025}, "the instance needs 1025 GiB, NUMA node 0 has 1024 GiB; --preferred is used"),
        ({}, "the instance needs an unknown amount (host_memory_gib is not set)"),
    ):
        unit, result = single(MI300X, 1, strict_membind=True, **fields)
        assert unit.numactl[2] == "--preferred=0"
        (item,) = result.findings
        assert item.code == "placement_membind_not_used"
        assert text in item.message
    _unit, result = single(MI300X, 8, strict_membind=True, host_memory_gib=1)
    assert "placement_membind_not_used" in {f.code for f in result.findings}


@pytest.mark.parametrize(
    "numactl",
    [
        "--cpunodebind=0 --membind=0", "-N 0 -m 0", "-N0", "-m 0", "--membind 0", "--membind=+0", "-C 0-47",
        "--physcpubind=0-3", "--cpunodebind=1",
    ],
)  # fmt: skip
def test_a_numactl_of_the_users_own_around_two_sockets_is_refused(numactl: str) -> None:
    said = refused(MI300X, 8, numactl=numactl)
    assert said.startswith("placement_numactl_refused: numactl ")
    assert "around GPUs on NUMA nodes 0,1: the workers of node" in said
    assert "would have neither CPUs nor memory near their GPUs" in said


@pytest.mark.parametrize(
    "numactl", ["--interleave=all", "--cpunodebind=0,1", "--membind=all", "--preferred=0", "-i 0,1", "--localalloc"]
)
def test_a_numactl_of_the_users_own_that_covers_the_gpus_is_used(numactl: str) -> None:
    unit, _result = single(MI300X, 8, numactl=numactl)
    assert unit.numactl == ("numactl", *numactl.split())
    assert unit.numa_bind_args == ()


def test_a_numactl_of_the_users_own_on_one_node_is_used_with_its_cpus() -> None:
    unit, _result = single(MI300X, 4, numactl="--physcpubind=0-3 --membind=0")
    assert unit.cpus == (0, 1, 2, 3)
    assert refused(MI300X, 1, numactl="--cpunodebind=x").startswith("placement_numactl_refused: numactl is")


# --- environment and ports -----------------------------------------------------------------------------------------


def test_environment() -> None:
    unit, _result = single(MI300X, 2, environment={"HSA_NO_SCRATCH_RECLAIM": "0", "MINE": "x"})
    assert unit.env == {
        "HIP_FORCE_DEV_KERNARG": "1",
        "HIP_VISIBLE_DEVICES": "0,1",
        "HSA_ENABLE_IPC_MODE_LEGACY": "1",
        "HSA_NO_SCRATCH_RECLAIM": "0",
        "MINE": "x",
        "NCCL_MIN_NCHANNELS": "112",
        "ROCPROFILER_QUEUE_INTERPOSITION": "0",
        "SAFETENSORS_FAST_GPU": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_PORT": "21000",
        "VLLM_WORKER_SHUTDOWN_TIMEOUT_SECONDS": "30",
    }


def test_channels_are_raised_for_several_mi300x_only() -> None:
    assert "NCCL_MIN_NCHANNELS" not in single(MI300X)[0].env
    assert "NCCL_MIN_NCHANNELS" not in single(NODES["mi325x_8"], 2)[0].env


def test_devices_are_hip_numbers_never_indices() -> None:
    node = topology(replace(mi300x_8(), hip_ids=(3, 2, 1, 0, 7, 6, 5, 4)))
    unit, result = single(node, 2)
    assert (unit.gpus, unit.hip_visible_devices, unit.env["HIP_VISIBLE_DEVICES"]) == ((0, 1), "3,2", "3,2")
    assert "ROCR_VISIBLE_DEVICES" not in unit.env
    assert result.findings == ()


def test_hip_numbers_that_are_not_known_are_assumed_and_said() -> None:
    node = replace(MI300X, gpus=tuple(replace(g, hip_id=None) for g in MI300X.gpus))
    unit, result = single(node, 2)
    assert unit.hip_visible_devices == "0,1"
    assert [(f.code, f.severity) for f in result.findings] == [("hip_id_assumed", "warning")]


def test_ports() -> None:
    result = run(MI300X, 1, 1, 1)
    assert [(u.port, u.vllm_port) for u in result.units] == [(8000, 21000), (8001, 21100), (8002, 21200)]
    result = place(
        MI300X,
        [
            {"name": "a", "model": "m"},
            {"name": "b", "model": "m", "port": 8000},
            {"name": "c", "model": "m", "port": 21150},
            {"name": "d", "model": "m"},
        ],
        vllm_version=VERSION,
    )
    assert [(u.port, u.vllm_port) for u in result.units] == [
        (8001, 21000), (8000, 21200), (21150, 21300), (8002, 21400),
    ]  # fmt: skip


def test_api_ports_stay_out_of_internal_ranges() -> None:
    result = place(MI300X, [{"name": "a", "model": "m"}], vllm_version=VERSION, port_base=21050)
    assert (result.units[0].port, result.units[0].vllm_port) == (21100, 21000)


def test_ports_run_out() -> None:
    with pytest.raises(InstancesError, match="instance 'a': no port is left below 65536"):
        place(MI300X, [{"name": "a", "model": "m"}], vllm_port_base=65500)


def test_findings_of_the_instances_are_told() -> None:
    _unit, result = single(MI300X, gpu_memory_utilization=0.97)
    assert [f.code for f in result.findings] == ["gpu_memory_utilization_high"]


# --- properties ----------------------------------------------------------------------------------------------------


@st.composite
def nodes(draw: st.DrawFn) -> Topology:
    """A node of a profile with some links lost, NUMA nodes unknown, and GPUs missing."""
    node = NODES[draw(st.sampled_from(sorted(set(NODES) - {"mi300x_cpx_64"})))]
    lost = draw(st.sets(st.sampled_from([(k.a, k.b) for k in node.links]), max_size=4))
    to: Link = draw(st.sampled_from([Link(0, 0, "SYS", "PCIE"), Link(0, 0, "UNKNOWN", "N/A")]))
    blind = draw(st.sets(st.integers(0, 7), max_size=3))
    return replace(
        node,
        links=tuple(replace(k, type=to.type, raw_type=to.raw_type) if (k.a, k.b) in lost else k for k in node.links),
        gpus=tuple(replace(g, numa_node=None) if g.index in blind else g for g in node.gpus),
    )


@st.composite
def instance_lists(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Instances of any size, some with a port of their own."""
    names = draw(st.lists(st.sampled_from("abcdefghij"), unique=True, max_size=6))
    ports = draw(st.lists(st.integers(7998, 8006) | st.integers(20990, 21310), unique=True, min_size=6, max_size=6))
    return [
        {
            "name": name,
            "model": "m",
            "tensor_parallel_size": draw(st.sampled_from([1, 1, 2, 3, 4, 8])),
            "pipeline_parallel_size": draw(st.sampled_from([1, 1, 1, 2])),
            **({"port": ports[n]} if draw(st.booleans()) else {}),
        }
        for n, name in enumerate(names)
    ]


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(node=nodes(), entries=instance_lists(), seed=st.integers(0, 99))
def test_whatever_is_asked_no_plan_is_wrong(node: Topology, entries: list[dict[str, Any]], seed: int) -> None:
    result = place(node, entries, vllm_version=VERSION)
    units = {unit.instance: unit for unit in result.units}
    failed = {f.subject for f in result.findings if f.severity == "error"}
    assert set(units) | failed == {e["name"] for e in entries}
    assert not set(units) & failed

    used = [gpu for unit in result.units for gpu in unit.gpus]
    assert len(used) == len(set(used))
    devices = [d for unit in result.units for d in unit.hip_visible_devices.split(",")]
    assert len(devices) == len(set(devices))

    ports = [p for u in result.units for p in (u.port, *range(u.vllm_port, u.vllm_port + 100))]
    assert len(ports) == len(set(ports))

    links = {(k.a, k.b): k.type for k in node.links}
    groups = hives(node)
    for unit in result.units:
        size = unit.tensor_parallel_size
        assert len(unit.gpus) == size * unit.pipeline_parallel_size
        stages = [unit.gpus[i : i + size] for i in range(0, len(unit.gpus), size)]
        for stage in stages:
            assert any(set(stage) <= set(group) for group in groups)
            assert all(links[min(p), max(p)] == "XGMI" for p in itertools.combinations(stage, 2))
        numa = [node.gpus[g].numa_node for g in unit.gpus]
        if None in numa:
            assert unit.numactl == ()
        elif len(set(numa)) == 1:
            assert unit.numactl == ("numactl", f"--cpunodebind={numa[0]}", f"--preferred={numa[0]}")
        else:
            assert unit.numa_bind_args[2:] == tuple(map(str, numa))

    # The order of instances, GPUs and links says nothing.
    shuffle = random.Random(seed)
    mixed = list(entries)
    shuffle.shuffle(mixed)
    turned = replace(
        node,
        gpus=tuple(shuffle.sample(node.gpus, len(node.gpus))),
        links=tuple(shuffle.sample(node.links, len(node.links))),
    )
    assert place(turned, mixed, vllm_version=VERSION) == result


@settings(max_examples=60, deadline=None)
@given(sizes=st.lists(st.sampled_from([1, 2, 4]), max_size=8).filter(lambda s: sum(s) <= 8))
def test_powers_of_two_that_fit_are_all_placed_inside_nodes(sizes: list[int]) -> None:
    result = run(MI300X, *sizes)
    assert len(result.units) == len(sizes)
    assert all(len(unit.numa_nodes) == 1 for unit in result.units)


@settings(max_examples=8, deadline=None)
@given(sizes=st.lists(st.sampled_from([1, 2, 4, 8, 16]), min_size=1, max_size=6))
def test_partitioned_nodes_too(sizes: list[int]) -> None:
    result = run(NODES["mi300x_cpx_64"], *sizes)
    used = [gpu for unit in result.units for gpu in unit.gpus]
    assert len(used) == len(set(used)) == sum(sizes)


def test_partitions_do_not_matter_for_what_is_asked() -> None:
    """A node whose partition modes nobody knows is placed like any other."""
    node = replace(MI300X, gpus=tuple(replace(g, partition=Partition()) for g in MI300X.gpus))
    assert gpus_of(run(node, 4, 4)) == gpus_of(run(MI300X, 4, 4))


def test_two_bridges_hold_two_instances_in_any_mix() -> None:
    node = topology(mi210_2x4())
    for sizes in ((4, 2, 2), (2, 2, 2, 2), (4, 4), (3, 3, 1, 1)):
        assert len(run(node, *sizes).units) == len(sizes)
