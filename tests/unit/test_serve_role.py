"""Tasks of role vllm_serve around its units: started after a run that ended half-way, looked at in check mode."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.playbook import REPO, run_tasks

pytest.importorskip("ansible", reason="ansible is not installed for this Python")

ROLE = REPO / "roles/vllm_serve"
RUNS = {"LoadState": "loaded", "ActiveState": "active", "UnitFileState": "enabled"}


def tasks(name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = yaml.safe_load((ROLE / "tasks" / f"{name}.yml").read_text())
    return found


def variables(folder: Path, *, state: dict[str, str], changed: list[str]) -> str:
    values = yaml.safe_load((ROLE / "vars/main.yml").read_text())
    values |= {"__vllm_serve_planned": {"units": [{"unit": "vllm-a.service"}]}}
    values |= {"vllm_serve_probe": {"units": {"vllm-a.service": state}, "paths": {}}}
    values |= {"__vllm_serve_files": {"changed_units": changed}}
    (folder / "vars.json").write_text(json.dumps(values))
    return f"@{folder}/vars.json"


@pytest.mark.parametrize(("key", "refused"), [("hunter 2", True), ("hunter2", False)])
def test_a_key_that_cannot_be_used_is_refused_aloud_and_not_shown(tmp_path: Path, key: str, refused: bool) -> None:
    # The task that writes it hides all that it says.
    (step,) = (task for task in tasks("validate") if "key" in task["name"])
    (tmp_path / "vars.json").write_text(json.dumps({"vllm_serve_api_key": key}))
    (result,) = run_tasks(tmp_path, [step], "-e", f"@{tmp_path}/vars.json", "-vvv")
    assert bool(result.get("failed")) is refused
    assert ("vllm_serve_api_key is empty or holds a quote" in str(result)) is refused
    assert "hunter" not in str(result)


@pytest.mark.parametrize(("changed", "verifies"), [([], True), (["vllm-a.service"], False)])
def test_check_mode_does_not_hold_what_runs_against_a_plan_that_is_not_carried_out(
    tmp_path: Path, changed: list[str], verifies: bool
) -> None:
    condition = tasks("verify")[0]["when"]
    one = {"name": "Look", "ansible.builtin.debug": {"msg": "looks"}, "when": condition}
    (result,) = run_tasks(tmp_path, [one], "--check", "-e", variables(tmp_path, state=RUNS, changed=changed))
    assert (result.get("msg") == "looks") is verifies


def test_a_unit_that_a_run_left_stopped_is_read_again_and_started(tmp_path: Path) -> None:
    # Its file was written and the run ended: nothing differs any more, and systemd still has the old unit.
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin/systemctl"
    shown = "LoadState=loaded\\nActiveState=failed\\nUnitFileState=disabled\\n"
    script = f'#!/bin/sh\necho "$*" >>{tmp_path}/asked\n'
    script += f"case $* in *show*) printf '{shown}';; *is-enabled*) echo disabled; exit 1;; esac\n"
    program.write_text(script)
    program.chmod(0o755)
    stopped = {"LoadState": "loaded", "ActiveState": "failed", "UnitFileState": "disabled"}
    path = {"PATH": f"{tmp_path}/bin:{os.environ['PATH']}"}
    steps = [{**task, "environment": path} for task in tasks("service")]
    results = run_tasks(tmp_path, steps, "-e", variables(tmp_path, state=stopped, changed=[]))
    assert not any(result.get("failed") for result in results), json.dumps(results)
    asked = (tmp_path / "asked").read_text().splitlines()
    wanted = ["reset-failed -- vllm-a.service", "--no-block daemon-reload", "--no-block enable vllm-a.service"]
    wanted.append("--no-block start vllm-a.service")
    assert [line for line in asked if line in wanted] == wanted, asked
