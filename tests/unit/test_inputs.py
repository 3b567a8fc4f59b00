"""Inputs as Ansible hands them over, and what the playbook that checks them says before any host is contacted."""

from __future__ import annotations

from pathlib import Path

from support.playbook import run_tasks

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
