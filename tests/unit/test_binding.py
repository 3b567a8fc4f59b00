"""A running unit against its plan."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from support.nodes import topology
from support.profile import mi300x_8

from instinct_fleet.binding import planned_policies, unit_name, verify
from instinct_fleet.model import Finding, Unit
from instinct_fleet.placement import place

NODE = topology(mi300x_8())


def planned(size: int = 2, **fields: Any) -> Unit:
    entry = {"name": "chat", "model": "m", "tensor_parallel_size": size, **fields}
    return place(NODE, [entry], vllm_version="0.33.0").units[0]


def process(pid: int, name: str, unit: Unit, policy: str, **fields: Any) -> dict[str, Any]:
    """Return what node_probe says of a process that is bound as planned."""
    return {
        "pid": pid,
        "ppid": 1,
        "name": name[:15],
        "cmdline": name,
        "uid": 990,
        "cpus_allowed": "0-47,96-143" if unit.numa_nodes == (0,) else "0-191",
        "mems_allowed": "0-1",
        "memory_policies": [policy],
        "environment": {"HIP_VISIBLE_DEVICES": unit.hip_visible_devices, "VLLM_PORT": "21000"},
        "environment_readable": True,
        **fields,
    }


def state(unit: Unit, **fields: Any) -> dict[str, Any]:
    """Return what node_probe says of a unit that runs as planned, as vLLM with its engine and workers shows itself."""
    spread = bool(unit.numa_bind_args)
    own = "interleave:0-1" if spread else "prefer:0"
    workers = [
        process(20 + i, f"VLLM::Worker_TP{i}", unit, f"bind:{unit.numa_bind_args[2 + i]}" if spread else own)
        for i in range(len(unit.gpus))
    ]
    for worker in workers:
        # setproctitle writes over the environment.
        worker |= {"environment": {}, "environment_readable": False}
    engine = process(11, "VLLM::EngineCore", unit, "bind:0-1" if spread else own)
    return {
        "Id": "vllm-chat.service",
        "LoadState": "loaded",
        "ActiveState": "active",
        "SubState": "running",
        "UnitFileState": "enabled",
        "MainPID": "10",
        "Result": "success",
        "NeedDaemonReload": "no",
        "processes": [process(10, "/opt/vllm/bin/vllm serve --config x", unit, own), engine, *workers],
        **fields,
    }


def problems(unit: Unit, unit_state: Any, **options: Any) -> list[Finding]:
    """Return the findings above information."""
    return [f for f in verify(unit, unit_state, **options) if f.severity != "info"]


def changed(unit: Unit, pid: int, **fields: Any) -> dict[str, Any]:
    """Return the state of a unit of which one process differs."""
    unit_state = state(unit)
    unit_state["processes"] = [p | fields if p["pid"] == pid else p for p in unit_state["processes"]]
    return unit_state


@pytest.mark.parametrize("size", [1, 2, 4, 8])
def test_a_unit_that_runs_as_planned(size: int) -> None:
    unit = planned(size)
    assert problems(unit, state(unit), service_uid=990) == []
    told = verify(unit, state(unit))
    assert {(f.code, f.severity) for f in told} == {("binding_environment_unreadable", "info")}


@pytest.mark.parametrize(
    ("fields", "code", "severity", "text"),
    [
        ({"LoadState": "not-found"}, "unit_absent", "error", "systemd has no such unit"),
        ({"ActiveState": "failed", "SubState": "failed", "Result": "exit-code"}, "unit_not_active", "error",
         "state failed (failed, result exit-code), expected active (running)"),
        ({"ActiveState": "activating", "SubState": "start-post"}, "unit_not_active", "error", "state activating"),
        ({"ActiveState": None}, "unit_state_unknown", "unknown", "ActiveState was not told"),
        ({"UnitFileState": "disabled"}, "unit_not_enabled", "error", "disabled, expected enabled"),
        ({"UnitFileState": ""}, "unit_state_unknown", "unknown", "UnitFileState was not told"),
        ({"NeedDaemonReload": "yes"}, "unit_needs_reload", "warning", "NeedDaemonReload is yes"),
        ({"processes": []}, "unit_processes_unknown", "unknown", "no process of the unit was read"),
        ({"processes": None}, "unit_processes_unknown", "unknown", "no process of the unit was read"),
        ({"MainPID": "99"}, "unit_processes_unknown", "unknown", "main process 99 is not among those read (4)"),
    ],
)  # fmt: skip
def test_state_of_the_unit(fields: dict[str, Any], code: str, severity: str, text: str) -> None:
    unit = planned()
    (item,) = problems(unit, state(unit, **fields))
    assert (item.code, item.severity, item.subject) == (code, severity, "vllm-chat.service")
    assert text in item.message


def test_a_unit_that_nobody_knows() -> None:
    (item,) = verify(planned(), None)
    assert (item.code, item.severity) == ("unit_state_unknown", "unknown")


@pytest.mark.parametrize(
    ("pid", "fields", "code", "severity", "text"),
    [
        (21, {"cpus_allowed": "48-95"}, "binding_cpus", "error",
         "VLLM::Worker_TP1 (pid 21) may run on CPUs 48-95, planned 0-47,96-143"),
        (10, {"cpus_allowed": "0-191"}, "binding_cpus", "error", "may run on CPUs 0-191, planned 0-47,96-143"),
        (11, {"cpus_allowed": None}, "binding_unknown", "unknown", "VLLM::EngineCore (pid 11): CPUs not read"),
        (11, {"cpus_allowed": "0-x"}, "binding_unknown", "unknown", "CPUs 0-x, planned"),
        (10, {"memory_policies": ["default"]}, "binding_memory", "error",
         "has memory policy default, planned prefer:0"),
        (10, {"memory_policies": ["bind:0"]}, "binding_memory", "error", "has memory policy bind:0, planned prefer:0"),
        (21, {"memory_policies": ["prefer:1"]}, "binding_memory", "error", "prefer:1, planned prefer:0"),
        (21, {"memory_policies": ["bind:1"]}, "binding_memory", "error", "bind:1, planned prefer:0"),
        (21, {"memory_policies": ["bind:0", "prefer:0"]}, "binding_memory_strict", "warning",
         "VLLM::Worker_TP1 (pid 21) has memory policy bind:0, prefer:0, planned prefer:0: the right nodes, but"),
        (21, {"memory_policies": []}, "binding_unknown", "unknown", "memory policy not read, planned prefer:0"),
        (10, {"environment": {"HIP_VISIBLE_DEVICES": "2,3"}}, "binding_devices", "error",
         "has HIP_VISIBLE_DEVICES=2,3, planned HIP_VISIBLE_DEVICES=0,1"),
        (10, {"environment": {}}, "binding_devices", "error", "has none, planned HIP_VISIBLE_DEVICES=0,1"),
        (10, {"environment_readable": False}, "binding_environment_unknown", "unknown", "environment cannot be read"),
        (11, {"environment": {"HIP_VISIBLE_DEVICES": "0,1", "ROCR_VISIBLE_DEVICES": "0"}}, "binding_rocr", "error",
         "VLLM::EngineCore (pid 11) has ROCR_VISIBLE_DEVICES=0, expected none"),
        (11, {"environment": {"HIP_VISIBLE_DEVICES": "0,1", "HSA_OVERRIDE_GFX_VERSION": "9"}}, "binding_override",
         "error", "has HSA_OVERRIDE_GFX_VERSION=9"),
        (21, {"uid": 0}, "binding_user", "error", "VLLM::Worker_TP1 (pid 21) runs as uid 0, expected 990 (vllm)"),
    ],
)  # fmt: skip
def test_a_process_that_is_not_as_planned(
    pid: int, fields: dict[str, Any], code: str, severity: str, text: str
) -> None:
    unit = planned()
    (item,) = problems(unit, changed(unit, pid, **fields), service_uid=990)
    assert (item.code, item.severity) == (code, severity)
    assert text in item.message


@pytest.mark.parametrize("policy", ["prefer:0", "prefer (many):0", "prefer=static:0", "preferred:0"])
def test_spellings_of_a_policy(policy: str) -> None:
    unit = planned()
    assert problems(unit, changed(unit, 10, memory_policies=[policy])) == []


def test_a_worker_on_the_node_of_another_gpu() -> None:
    unit = planned(8)
    (item,) = problems(unit, changed(unit, 27, memory_policies=["bind:0"]))
    assert item.message == "VLLM::Worker_TP7 (pid 27) has memory policy bind:0, planned bind:1 (the node of GPU 7)"


def test_a_worker_that_vllm_did_not_bind() -> None:
    unit = planned(8)
    found = problems(unit, changed(unit, 27, memory_policies=["interleave:0-1"]))
    assert {f.code for f in found} == {"binding_memory"}


def test_the_server_of_a_spread_unit_interleaves() -> None:
    unit = planned(8)
    (item,) = problems(unit, changed(unit, 10, memory_policies=["bind:0"]))
    assert "has memory policy bind:0, planned interleave:0-1" in item.message


def test_workers_of_pipeline_stages_are_told_apart() -> None:
    unit = planned(4, pipeline_parallel_size=2)
    unit_state = state(unit)
    for i, worker in enumerate(unit_state["processes"][2:]):
        worker["cmdline"] = f"VLLM::Worker_PP{i // 4}_TP{i % 4}"
    assert problems(unit, unit_state) == []
    unit_state["processes"][2 + 4]["memory_policies"] = ["bind:0"]
    (item,) = problems(unit, unit_state)
    assert "(the node of GPU 4)" in item.message


def test_a_worker_that_is_missing() -> None:
    unit = planned(4)
    unit_state = state(unit)
    unit_state["processes"] = unit_state["processes"][:-1]
    (item,) = problems(unit, unit_state)
    assert (item.code, item.message) == ("unit_workers_missing", "3 workers seen, expected 4, one for each GPU")


def test_users_are_compared_only_when_the_number_is_known() -> None:
    unit = planned()
    assert problems(unit, changed(unit, 10, uid=0)) == []


def test_a_unit_without_binding_is_not_held_to_one() -> None:
    unit = planned(numa="off")
    assert problems(unit, changed(unit, 10, cpus_allowed="5", memory_policies=[])) == []


def test_the_plan_of_a_strict_unit() -> None:
    unit = planned(1, strict_membind=True, host_memory_gib=1)
    assert planned_policies(unit) == (frozenset({"bind:0"}), frozenset({"bind:0"}))
    unit_state = state(unit)
    for each in unit_state["processes"]:
        each["memory_policies"] = ["bind:0"]
    assert problems(unit, unit_state) == []
    unit_state["processes"][0]["memory_policies"] = ["prefer:0"]
    (item,) = problems(unit, unit_state)
    assert "has memory policy prefer:0, planned bind:0" in item.message


def test_a_membind_on_the_wrong_node_is_caught() -> None:
    """What a hand-written `numactl --cpunodebind=1 --membind=1` around an instance on node 0 looks like."""
    unit = planned(1)
    found = problems(unit, changed(unit, 10, cpus_allowed="48-95,144-191", memory_policies=["bind:1"]))
    assert {f.code for f in found} == {"binding_cpus", "binding_memory"}


@pytest.mark.parametrize(
    ("argv", "policy"),
    [
        ("-i 0,1", "interleave:0-1"), ("--interleave=0-1", "interleave:0-1"), ("-m1", "bind:1"), ("-p 1", "prefer:1"),
        ("--preferred=+1", "prefer:1"), ("-l", "local"), ("-N 0", "default"), ("-l -N 0", "local"),
    ],
)  # fmt: skip
def test_own_numactl_words_are_understood(argv: str, policy: str) -> None:
    unit = replace(planned(8), numactl=("numactl", *argv.split()), numa_bind_args=())
    assert planned_policies(unit)[0] == frozenset({policy})


def test_interleaving_over_all_nodes_allows_any() -> None:
    unit = replace(planned(1), numactl=("numactl", "--interleave=all"))
    unit_state = state(unit)
    for each in unit_state["processes"]:
        each["memory_policies"] = ["interleave:0-1"]
    assert problems(unit, unit_state) == []


def test_name() -> None:
    assert unit_name(planned()) == "vllm-chat.service"
