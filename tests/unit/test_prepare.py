"""The prepare playbook where nothing is asked of it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

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
