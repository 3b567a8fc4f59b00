"""Run tasks with the project's own plugins on this machine, and return what each said."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

REPO = Path(__file__).resolve().parents[2]


def run_tasks(folder: Path, tasks: list[dict[str, Any]], *options: str, handlers: Any = ()) -> list[dict[str, Any]]:
    """Run tasks on localhost and return one result a task (also of handlers), in order; a failing task ends the run.

    ``folder`` is where the playbook is written; templates are found in its ``templates`` folder.
    """
    book = folder / "play.yml"
    play = {"hosts": "localhost", "connection": "local", "gather_facts": False}
    play |= {"tasks": tasks, "handlers": list(handlers)}
    book.write_text(yaml.safe_dump([play], sort_keys=False))
    env = {
        **os.environ,
        "ANSIBLE_CONFIG": str(REPO / "ansible.cfg"),
        "ANSIBLE_STDOUT_CALLBACK": "ansible.posix.json",
        "ANSIBLE_CALLBACKS_ENABLED": "ansible.posix.json",
        "ANSIBLE_LOCALHOST_WARNING": "false",
        "ANSIBLE_DEPRECATION_WARNINGS": "false",
    }
    program = Path(sys.executable).with_name("ansible-playbook")
    argv = [str(program), "-i", "localhost,", "-e", f"ansible_python_interpreter={sys.executable}", str(book), *options]
    process = subprocess.run(argv, env=env, capture_output=True, text=True, check=False, cwd=REPO)
    start = process.stdout.find("{")
    if start < 0:
        raise AssertionError(process.stdout + process.stderr)
    document = json.JSONDecoder().raw_decode(process.stdout[start:])[0]
    return [task["hosts"]["localhost"] for play in document["plays"] for task in play["tasks"] if task["hosts"]]
