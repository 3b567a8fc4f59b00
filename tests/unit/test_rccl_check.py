"""The fabric test of a node: what is run, what is run again, what passes, and what is kept."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from support import bundle, render_rccl
from support.profile import PROFILES

from instinct_fleet import rccl_check

PROGRAM = "/opt/rccl-tests/build/all_reduce_perf"
PROFILE = PROFILES["mi300x_8"]()
DATE = "2026-11-30T00:00:00Z"


def probe() -> dict[str, Any]:
    return bundle.probe(PROFILE)


def jobs(sets: list[list[int]], tools: dict[str, Any] | None = None, **options: Any) -> list[dict[str, Any]]:
    return rccl_check.rccl_jobs(sets, probe=probe(), tools=tools or {}, program=PROGRAM, **options)


def ran(job: dict[str, Any], *faults: str, **more: Any) -> dict[str, Any]:
    profile = dataclasses.replace(PROFILE, faults=frozenset(faults))
    stdout, stderr, rc = render_rccl.render_text(profile, render_rccl.Run(ranks=len(job["gpus"])))
    return {"item": job, "stdout": stdout, "stderr": stderr, "rc": rc, **more}


def outcome(job: dict[str, Any], result: dict[str, Any], **options: Any) -> dict[str, Any]:
    (record,) = rccl_check.rccl_outcome([job], [result], policy="mi300x_8", date=DATE, **options)
    return record


def codes(record: dict[str, Any]) -> list[str]:
    return [f["code"] for f in record["findings"]]


ALL = list(range(8))


def test_each_instance_with_several_gpus_is_tested_on_its_own() -> None:
    topology = rccl_check.as_topology(probe())
    two = [
        {"name": "a", "model": "/m", "tensor_parallel_size": 4},
        {"name": "b", "model": "/m", "tensor_parallel_size": 2},
        {"name": "c", "model": "/m", "tensor_parallel_size": 1},
    ]
    sets = rccl_check.rccl_gpu_sets(rccl_check.to_json(topology), instances=two)
    assert sorted(map(len, sets)) == [2, 4]
    assert rccl_check.rccl_gpu_sets(rccl_check.to_json(topology), instances=[]) == [ALL]


def test_gpus_are_named_by_their_hip_numbers() -> None:
    topology = rccl_check.as_topology(probe())
    gpus = tuple(dataclasses.replace(g, hip_id=7 - g.index) for g in topology.gpus)
    document = rccl_check.to_json(dataclasses.replace(topology, gpus=gpus))
    instances = [{"name": "a", "model": "/m", "tensor_parallel_size": 2, "gpus": [0, 1]}]
    assert rccl_check.rccl_gpu_sets(document, instances=instances) == [[7, 6]]


def test_one_process_for_all_gpus_without_mpi() -> None:
    (job,) = jobs([[2, 3]])
    assert job["argv"] == [
        *["timeout", "--kill-after=10", "600", PROGRAM],
        *["-b", "8", "-e", "8G", "-f", "2", "-g", "2"],
    ]
    assert job["environment"] == {"HIP_VISIBLE_DEVICES": "2,3"}


@pytest.mark.parametrize(
    ("linked", "code", "launcher"),
    [("libmpi.so.40 =>", 0, "mpi"), ("libc.so.6", 0, "threads"), ("libmpi", 1, "threads")],
)
def test_one_rank_a_gpu_where_mpi_is_there_and_linked(linked: str, code: int, launcher: str) -> None:
    commands = {f"ldd {PROGRAM}": {"stdout": linked, "rc": 0}, "mpirun --version": {"stdout": "", "rc": code}}
    (job,) = jobs([ALL], {"commands": commands})
    assert job["launcher"] == launcher
    assert ("-np" in job["argv"]) == (launcher == "mpi")


def test_inputs_that_cannot_be_meant_are_refused() -> None:
    with pytest.raises(ValueError, match="rccl_check_launcher"):
        jobs([ALL], launcher="slurm")
    with pytest.raises(ValueError, match="rccl_check_gpu_sets"):
        jobs([[1, 1]])


def test_a_healthy_node_passes_and_its_record_says_of_what() -> None:
    (job,) = jobs([ALL])
    record = outcome(job, ran(job))
    assert (record["verdict"], record["findings"], record["degraded"]) == ("pass", [], False)
    assert record["busbw"] > 304
    assert record["size"] == 8 * 1024**3
    assert record["versions"]["topology"]
    assert record["date"] == DATE


@pytest.mark.parametrize(
    ("fault", "code", "says"),
    [
        ("rccl_pcie", "rccl_bandwidth_low", "PCIe"),
        ("rccl_numa", "rccl_bandwidth_low", "wrong NUMA node"),
        ("rccl_one_link", "rccl_bandwidth_low", "one XGMI link"),
        ("rccl_wrong", "rccl_wrong_results", "wrong values"),
        ("rccl_timeout", "collect_library_error", "unhandled system error"),
    ],
)
def test_a_known_fault_fails_and_is_named(fault: str, code: str, says: str) -> None:
    (job,) = jobs([ALL])
    record = outcome(job, ran(job, fault))
    assert record["verdict"] == "fail"
    assert says in next(f["message"] for f in record["findings"] if f["code"] == code)


def test_two_gpus_have_no_published_floor_and_are_not_gated() -> None:
    (job,) = jobs([[0, 1]])
    record = outcome(job, ran(job))
    assert (record["verdict"], codes(record)) == ("pass", ["rccl_no_floor"])
    assert "rccl_check_floors" in record["findings"][0]["remedy"]


@pytest.mark.parametrize(("floor", "verdict"), [(44, "pass"), (60, "fail")])
def test_a_floor_of_the_site_gates(floor: float, verdict: str) -> None:
    (job,) = jobs([[0, 1]])
    record = outcome(job, ran(job), floors={"2": floor})
    assert record["verdict"] == verdict
    assert codes(record) == ([] if verdict == "pass" else ["rccl_bandwidth_low"])
    # 45 GB/s is the sign of a fault on eight GPUs; two have one link.
    assert not [f for f in record["findings"] if "one XGMI link" in f["message"]]


@pytest.mark.parametrize(
    ("result", "again"),
    [
        ({"stdout": "", "stderr": "", "rc": 124}, True),
        ({"stdout": "", "stderr": "", "rc": 137}, True),
        ({"stdout": "", "stderr": "Test NCCL failure common.cu:1 'unhandled system error'", "rc": 3}, True),
        (
            {
                "stdout": "",
                "stderr": f"timeout: failed to run command '{PROGRAM}': No such file or directory",
                "rc": 127,
            },
            False,
        ),
        ({"stdout": "", "stderr": "invalid option", "rc": 2}, False),
    ],
)
def test_only_what_rccl_did_not_start_is_run_again(result: dict[str, Any], again: bool) -> None:
    (job,) = jobs([ALL], environment={"NCCL_DEBUG": "WARN"})
    found = rccl_check.rccl_retries([{"item": job, **result}])
    assert bool(found) == again
    if again:
        assert found[0]["environment"] == {
            "HIP_VISIBLE_DEVICES": "0,1,2,3,4,5,6,7",
            "NCCL_DEBUG": "WARN",
            "NCCL_ALGO": "Ring",
            "NCCL_NET_PLUGIN": "none",
        }


def test_a_run_that_was_only_slow_is_not_run_again_and_not_judged() -> None:
    (job,) = jobs([ALL])
    result = ran(job) | {"rc": 124}
    assert rccl_check.rccl_retries([result]) == []
    assert outcome(job, result)["verdict"] == "unknown"


def test_what_passes_only_with_conservative_settings_is_degraded() -> None:
    (job,) = jobs([ALL])
    record = outcome(job, {"item": job, "stdout": "", "stderr": "", "rc": 124}, retried=[ran(job)])
    assert (record["verdict"], record["degraded"], codes(record)) == ("pass", True, ["rccl_degraded"])
    assert "degraded" in rccl_check.rccl_table([record])


def test_what_never_starts_fails() -> None:
    (job,) = jobs([ALL])
    stuck = {"item": job, "stdout": "", "stderr": "", "rc": 124}
    record = outcome(job, stuck, retried=[stuck])
    assert (record["verdict"], codes(record), record["degraded"]) == ("fail", ["rccl_init_timeout"], False)
    assert "NCCL_NET_PLUGIN=none" in record["findings"][0]["message"]


@pytest.mark.parametrize(
    ("rc", "said"),
    [
        (127, "timeout: failed to run command: No such file or directory"),
        (126, "timeout: failed to run command: Permission denied"),
        (134, "mpirun was unable to find the specified executable file, could not find an executable"),
    ],
)
def test_a_missing_program_is_unknown_and_says_what_to_set(rc: int, said: str) -> None:
    (job,) = jobs([ALL])
    record = outcome(job, {"item": job, "stdout": "", "stderr": said, "rc": rc})
    assert (record["verdict"], codes(record)) == ("unknown", ["collect_tool_missing"])
    assert "rccl_check_program" in record["findings"][0]["remedy"]


def test_a_job_without_a_result_is_unknown() -> None:
    (job,) = jobs([ALL])
    (record,) = rccl_check.rccl_outcome([job], [], policy="mi300x_8", date=DATE)
    assert record["verdict"] == "unknown"


def stored(*records: dict[str, Any]) -> dict[str, Any]:
    return {"paths": {rccl_check.FACT: rccl_check.rccl_files(records)[1]["content"]}}


def test_what_passed_is_not_run_again_until_something_changes() -> None:
    (job,) = jobs([ALL])
    record = outcome(job, ran(job))
    (fresh,) = jobs([ALL], stored(record))
    assert fresh["fresh"]
    assert rccl_check.rccl_outcome([fresh], [], policy="mi300x_8", date="later") == [record]
    changed = probe() | {"kernel": "6.8.0-99-generic"}
    (other,) = rccl_check.rccl_jobs([ALL], probe=changed, tools=stored(record), program=PROGRAM)
    assert not other["fresh"]
    assert not jobs([ALL], stored(record), max_bytes="1G")[0]["fresh"]
    assert not jobs([ALL], stored(record) | {"files": {PROGRAM: {"checksum": "new"}}})[0]["fresh"]
    assert not jobs([ALL], stored(record), again=True)[0]["fresh"]
    assert not jobs([ALL], stored(record), judged_by={"floors": {"8": 320}})[0]["fresh"]
    assert not jobs([[0, 1]], stored(record))[0]["fresh"]


def test_what_failed_is_run_again() -> None:
    (job,) = jobs([ALL])
    assert not jobs([ALL], stored(outcome(job, ran(job, "rccl_pcie"))))[0]["fresh"]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"sets": 3}', '{"sets": [1, {"key": 2}]}', "null"])
def test_a_damaged_record_is_none(text: str) -> None:
    assert not jobs([ALL], {"paths": {rccl_check.FACT: text}})[0]["fresh"]


def test_the_table_says_figure_verdict_finding_and_that_it_is_simulated() -> None:
    (job,) = jobs([ALL])
    text = rccl_check.rccl_table([outcome(job, ran(job, "rccl_pcie"))], simulated=True)
    assert "GPUs 0,1,2,3,4,5,6,7: 24.2 GB/s at 8192 MiB: fail" in text
    assert "rccl_bandwidth_low" in text
    assert "Simulated hardware" in text


# --- as the role runs it --------------------------------------------------------------------------------------------

playbook = pytest.importorskip("support.playbook")
pytest.importorskip("ansible", reason="ansible is not installed for this Python")


def role(folder: Path, program: Path, *options: str, **inputs: Any) -> list[dict[str, Any]]:
    (folder / "probe.json").write_text(json.dumps(probe()))
    tasks = [
        {
            "name": "Check the fabric",
            "ansible.builtin.import_role": {"name": "rccl_check", "tasks_from": part},
            "vars": {
                "rccl_check_enabled": True,
                "rccl_check_program": str(program),
                "rccl_check_policy": "mi300x_8",
                "rccl_check_instances": [],
                "rccl_check_probe": "{{ lookup('file', '%s') | from_json }}" % (folder / "probe.json"),
                **inputs,
            },
        }
        for part in ("gather", "measure")
    ]
    found: list[dict[str, Any]] = playbook.run_tasks(folder, tasks, *options)
    return found


def test_the_role_tries_again_with_conservative_settings(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.write_text(render_rccl.render_text(PROFILE)[0])
    program = tmp_path / "all_reduce_perf"
    program.write_text(f'#!/bin/sh\n[ "$NCCL_ALGO $NCCL_NET_PLUGIN" = "Ring none" ] || exec sleep 60\ncat {out}\n')
    program.chmod(0o755)
    # Check mode, since the record is for a node: what would be run is said, and nothing is run.
    said = role(tmp_path, program, "--check", rccl_check_timeout=1)
    assert "all_reduce_perf -b 8 -e 8G -f 2 -g 8" in json.dumps(said)
    commands = [
        {
            "ansible.builtin.command": {"argv": "{{ item.argv }}"},
            "environment": "{{ item.environment }}",
            "loop": jobs([ALL], timeout=1),
            "register": "first",
            "failed_when": "first.rc is not defined",
        },
        {
            "ansible.builtin.command": {"argv": "{{ item.argv }}"},
            "environment": "{{ item.environment }}",
            "loop": "{{ first.results | rccl_retries }}",
            "register": "second",
        },
        {
            "ansible.builtin.debug": {
                "msg": "{{ [first.results[0].item] | rccl_outcome(first.results, retried=second.results, "
                "policy='mi300x_8', date='now') }}"
            }
        },
    ]
    text = json.dumps(commands).replace(PROGRAM, str(program))
    (record,) = playbook.run_tasks(tmp_path, json.loads(text))[-1]["msg"]
    assert (record["verdict"], record["degraded"]) == ("pass", True)


def test_the_role_names_a_missing_program(tmp_path: Path) -> None:
    said = role(tmp_path, tmp_path / "absent", "--check")
    assert str(tmp_path / "absent") in json.dumps(said)
