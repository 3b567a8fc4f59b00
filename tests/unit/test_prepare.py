"""The prepare playbook: where nothing is asked of it, and what it reboots."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.playbook import run_tasks

pytest.importorskip("ansible", reason="ansible is not installed for this Python")

REPO = Path(__file__).resolve().parents[2]


def test_a_node_of_which_nothing_is_asked_is_not_contacted() -> None:
    # Nobody listens there: a single task on the node would end the run as unreachable.
    nobody = {"ansible_connection": "ssh", "ansible_host": "127.0.0.1", "ansible_port": "1"}
    argv = [str(Path(sys.executable).with_name("ansible-playbook")), "playbooks/prepare.yml", "-i", "inventories/demo"]
    for name, value in nobody.items():
        argv += ["-e", f"{name}={value}"]
    environment = {**os.environ, "ANSIBLE_NOCOLOR": "true", "ANSIBLE_FORCE_COLOR": "false"}
    process = subprocess.run(argv, cwd=REPO, env=environment, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stdout + process.stderr
    assert "changed=0    unreachable=0    failed=0" in process.stdout
    asked = subprocess.run(
        [*argv, "-e", "rocm_stack=pip"], cwd=REPO, env=environment, capture_output=True, text=True, check=False
    )
    assert asked.returncode == 4, asked.stdout + asked.stderr


def harmless(tasks: list[dict[str, Any]], reading: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the tasks with a reading that is given, and with a word for everything that would touch the machine."""
    plain: list[dict[str, Any]] = []
    for task in tasks:
        if "block" in task:
            plain.append({**task, "block": harmless(task["block"], reading)})
        elif "node_probe" in task:
            found = {"name": task["name"], "ansible.builtin.set_fact": {task["register"]: {"probe": reading}}}
            plain.append(found)
        elif "ansible.builtin.set_fact" in task or "ansible.builtin.assert" in task:
            plain.append(task)
        else:
            plain.append({"name": task["name"], "ansible.builtin.debug": {"msg": f"TOUCHED {task['name']}"}})
    return plain


@pytest.mark.parametrize(
    ("serving", "cmdline", "said"),
    [
        (True, "ro", "vllm-a.service serves; drain and stop it first"),
        # Somebody rebooted it meanwhile: nothing is left to do.
        (False, "ro iommu=pt", None),
    ],
)
def test_what_was_read_before_others_were_rebooted_decides_nothing(
    tmp_path: Path, serving: bool, cmdline: str, said: str | None
) -> None:
    role = REPO / "roles/node_tuning"
    state = {"instinct-tuning.service": {"ActiveState": "active"}}
    state |= {"vllm-a.service": {"ActiveState": "active"}} if serving else {}
    now = {"proc": {"cmdline": cmdline}, "paths": {}, "pci": {}, "commands": {}, "units": state}
    options = {
        "node_tuning_enabled": True,
        "node_tuning_reboot_allowed": True,
        "node_tuning_iommu_vendor_option": False,
        "node_tuning_pci_realloc_off": False,
        "node_tuning_numa_balancing_off": False,
        # As where a run begins behind the reading.
        "node_tuning_probe": {},
    }
    variables = {**yaml.safe_load((role / "defaults/main.yml").read_text()), **options}
    variables |= yaml.safe_load((role / "vars/main.yml").read_text())
    (tmp_path / "vars.json").write_text(json.dumps(variables))
    tasks = harmless(yaml.safe_load((role / "tasks/reboot.yml").read_text()), now)
    results = run_tasks(tmp_path, tasks, "-e", f"@{tmp_path}/vars.json")
    assert [result["msg"] for result in results if "TOUCHED" in str(result.get("msg"))] == []
    if said is None:
        assert not any(result.get("failed") for result in results)
    else:
        assert said in results[-1]["msg"]


def test_a_host_that_failed_before_does_not_hide_who_needs_a_reboot(tmp_path: Path) -> None:
    last = yaml.safe_load((REPO / "playbooks/prepare.yml").read_text())[-1]
    needs = "{{ ['kernel command line lacks iommu=pt'] if inventory_hostname == 'h3' else [] }}"
    note = {"name": "Note", "ansible.builtin.set_fact": {"__node_tuning_reboot_reasons": needs}}
    fail = {"name": "Fail", "ansible.builtin.fail": {"msg": "no such driver"}, "when": "inventory_hostname == 'h2'"}
    before = {"hosts": "all", "gather_facts": False, "tasks": [fail, note]}
    book = tmp_path / "play.yml"
    book.write_text(yaml.safe_dump([before, {**last, "hosts": "all"}], sort_keys=False))
    hosts = tmp_path / "hosts.yml"
    hosts.write_text(yaml.safe_dump({"all": {"hosts": {f"h{n}": {"ansible_connection": "local"} for n in (1, 2, 3)}}}))
    argv = [str(Path(sys.executable).with_name("ansible-playbook")), "-i", str(hosts), str(book)]
    environment = {**os.environ, "ANSIBLE_CONFIG": str(REPO / "ansible.cfg"), "PYTHONPATH": str(REPO)}
    process = subprocess.run(argv, cwd=REPO, env=environment, capture_output=True, text=True, check=False)
    assert process.returncode == 2, process.stdout + process.stderr
    assert "1 node needs a reboot before what was configured is in effect" in process.stdout
    assert "h3: kernel command line lacks iommu=pt" in process.stdout
