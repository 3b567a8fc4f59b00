"""Inputs as Ansible hands them over, and what the playbook that checks them says before any host is contacted."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support.playbook import REPO, run_tasks

INSTANCE = {
    "name": "a",
    "model": "/m/a",
    "tensor_parallel_size": 2,
    "gpus": [0, 1],
    "numactl": ["--cpunodebind=0"],
    "smoke_test": {"question": "q", "answer": "{{ 'a' }}"},
    "extra_args": {"allowed-origins": ["*"], "compilation-config": {"level": 3}},
}
OVERRIDES = {"optional": ["ecc"], "severity": {"numa_balancing_on": "info"}, "weights": {"XGMI": [15]}}


def test_lists_in_variables_are_read(tmp_path: Path) -> None:
    # Ansible's own lists hold their members unresolved, and a model that does not ask for them one by one refuses them.
    probe = {"schema": 1, "hostname": "n", "commands": {}}
    verdict = "{{ probe | topology_verdict(host='n', policy='mi300x_8', overrides=overrides) }}"
    tasks = [
        {"ansible.builtin.debug": {"msg": "{{ instances | instance_problems }}"}, "vars": {"instances": [INSTANCE]}},
        {"ansible.builtin.debug": {"msg": verdict}, "vars": {"probe": probe, "overrides": OVERRIDES}},
    ]
    problems, verdict_of_node = (result["msg"] for result in run_tasks(tmp_path, tasks))
    assert problems == []
    assert verdict_of_node["policy"] == "mi300x_8"


def validate(*options: str) -> subprocess.CompletedProcess[str]:
    program = Path(sys.executable).with_name("ansible-playbook")
    argv = [str(program), "playbooks/validate.yml", "-i", "inventories/prod", *options]
    return subprocess.run(argv, capture_output=True, text=True, check=False, cwd=REPO)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("topology_polcy=mi300a_4", "mi300x-a01: topology_polcy is not an input of the role"),
        ("topology_policy=mi300", "there is no policy 'mi300' (did you mean 'mi300x_8'?)"),
        ("vllm_serve_restart_allowed=perhaps", "The value 'perhaps' is not a valid boolean"),
        ("vllm_runtime_keep_releases=two", "vllm_runtime_keep_releases"),
        ("rccl_check_timeout=long", "rccl_check_timeout"),
    ],
)
def test_a_wrong_input_stops_before_any_host_is_contacted(given: str, words: str) -> None:
    done = validate("--limit", "mi300x-a01", "-e", given)
    assert done.returncode == 2
    assert words in done.stdout + done.stderr
    assert "unreachable=0" in done.stdout


def test_an_inventory_without_nodes_is_no_success() -> None:
    done = validate("-e", "fleet_gpu_group=gpu_node")
    assert done.returncode == 2
    assert "no host in gpu_node; its groups are builders, gateways, gpu_nodes" in done.stdout + done.stderr
    assert "builder-01" not in done.stdout


def test_a_comparison_refuses_a_misspelt_input_before_anything_is_restarted(tmp_path: Path) -> None:
    task = {"ansible.builtin.import_role": {"name": "benchmark", "tasks_from": "pinning"}}
    given = ["-e", "benchmark_pinning_instance=a", "-e", "benchmark_pinning_round=1"]
    said = run_tasks(tmp_path, [task], *given)
    assert "benchmark_pinning_round is not an input of the role" in said[-1]["msg"]
