"""Tasks of the roles that must not forget, nor end other hosts, and check mode on a host that lacks what they make."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.playbook import REPO, run_tasks

pytest.importorskip("ansible", reason="ansible is not installed for this Python")


def tasks(role: str, name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = yaml.safe_load((REPO / "roles" / role / "tasks" / f"{name}.yml").read_text())
    return found


def run(folder: Path, steps: list[dict[str, Any]], values: dict[str, Any]) -> list[dict[str, Any]]:
    (folder / "vars.json").write_text(json.dumps(values))
    return run_tasks(folder, steps, "--check", "-e", f"@{folder}/vars.json")


def test_packages_are_held_when_all_else_is_done() -> None:
    # The hold is what the next run looks at: whatever came after it would be forgotten when it fails.
    (block,) = (task["block"] for task in tasks("rocm", "install-apt") if task["name"].endswith("Install and hold"))
    assert block[-1]["name"] == "install-apt | Hold them"
    assert any("update-initramfs" in str(task) for task in block[:-1])


def test_handlers_run_before_an_installation_can_fail() -> None:
    assert tasks("rocm", "configure")[-1]["ansible.builtin.meta"] == "flush_handlers"


def test_check_mode_does_not_ask_dnf_for_what_its_repositories_would_bring(tmp_path: Path) -> None:
    plan = {"unsettled": [{"what": "amdgpu-dkms is not installed"}], "unbuilt": [], "headers": [], "packages": {}}
    values = {"__rocm_plan": {**plan, "driver_release": "30.10"}, "rocm_release": "7.0", "rocm_stack": "pip"}
    results = run(tmp_path, tasks("rocm", "install-dnf"), values)
    assert not any(result.get("failed") for result in results), results
    assert results[0]["changed"] is True
    assert "amdgpu-dkms is not installed" in results[0]["msg"]


@pytest.mark.parametrize("role", ["rocm", "vllm_runtime"])
def test_check_mode_puts_nobody_into_a_group_that_would_be_made(tmp_path: Path, role: str) -> None:
    group = "no-such-group"
    values: dict[str, Any] = {"__rocm_plan": {"groups": [group], "members": [{"user": "nobody", "groups": [group]}]}}
    access = {"exists": True, "groups": ["nogroup"], "group_ids": {}}
    values |= {"vllm_runtime_user": "nobody", "vllm_runtime_groups": [group], "vllm_runtime_probe": {"access": access}}
    steps = [
        task for task in tasks(role, "configure" if role == "rocm" else "system") if "ansible.builtin.user" in task
    ]
    results = run(tmp_path, steps, values)
    assert results
    assert not any(result.get("failed") for result in results), results


@pytest.mark.parametrize(("exists", "made"), [(False, True), (True, False)])
def test_a_user_without_groups_is_made_too(tmp_path: Path, exists: bool, made: bool) -> None:
    access = {"exists": exists, "groups": [], "group_ids": {}}
    values = {"vllm_runtime_user": "no-such-user", "vllm_runtime_groups": [], "vllm_runtime_probe": {"access": access}}
    steps = [task for task in tasks("vllm_runtime", "system") if "ansible.builtin.user" in task]
    (result,) = run(tmp_path, steps, values)
    assert bool(result.get("changed")) is made


@pytest.mark.parametrize(
    ("own", "problem"),
    [
        ({"rc": 0, "stdout": '{"problems": []}', "stderr": ""}, None),
        (
            {"rc": 1, "stdout": '{"problems": ["torch is missing"]}', "stderr": ""},
            "nothing was moved: torch is missing",
        ),
        ({"rc": 2, "stdout": "", "stderr": "/w/own/lock.txt: cannot be read"}, "/w/own/lock.txt: cannot be read"),
    ],
)
def test_a_wheelhouse_that_is_not_there_stops_only_who_waits_for_it(
    tmp_path: Path, own: dict[str, Any], problem: str | None
) -> None:
    (check,) = (task for task in tasks("vllm_runtime", "check") if task.get("run_once"))
    assert check["failed_when"].endswith("not in [0, 1, 2]")
    steps = [task for task in tasks("vllm_runtime", "check") if "Stop at a wheelhouse" in task["name"]]
    other = {"rc": 2, "stdout": "", "stderr": "/w/other/lock.txt: cannot be read", "item": {"path": "/w/other"}}
    values = {"__vllm_runtime_checked": {"results": [other, {**own, "item": {"path": "/w/own"}}]}}
    values |= {"__vllm_runtime_source": "/w/own", "__vllm_runtime_waits": True}
    (result,) = run(tmp_path, steps, values)
    assert bool(result.get("failed")) is (problem is not None), result
    assert (problem or "") in str(result)
