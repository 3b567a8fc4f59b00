"""follow_unit: it waits for a unit's end, shows progress, and hands over what the unit wrote."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from support.playbook import run_tasks

pytest.importorskip("ansible", reason="ansible is not installed for this Python")


def follow(folder: Path, states: str, *options: str, **arguments: Any) -> dict[str, Any]:
    """Follow a unit whose state is the next word of ``states`` each time somebody asks."""
    (folder / "states").write_text(states)
    systemctl = folder / "systemctl"
    systemctl.write_text(
        f'#!/bin/sh\nread -r word rest < {folder}/states\necho "$word"\n'
        f'[ -z "$rest" ] || echo "$rest" > {folder}/states\n'
    )
    systemctl.chmod(0o755)
    task = {
        "name": "follow",
        "follow_unit": {"name": "x.service", "log": str(folder / "log"), "result": str(folder / "result"), **arguments},
        "environment": {"PATH": f"{folder}:{os.environ['PATH']}"},
    }
    (result,) = run_tasks(folder, [task], *options)
    return result


def test_it_waits_until_the_unit_has_ended(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("== 10:00:00 [1/2] a: building\nnoise\n== 10:01:00 [2/2] b: building\nlast\n")
    (tmp_path / "result").write_text('{"ok": true}')
    result = follow(tmp_path, "active deactivating inactive", wait=1)
    assert result["running"] is False
    assert result["progress"] == "10:01:00 [2/2] b: building"
    assert result["result"] == {"ok": True} or result["result"] == '{"ok": true}'
    assert result["tail"].endswith("last\n")
    assert (tmp_path / "states").read_text().strip() == "inactive"
    assert result["changed"] is False


def test_without_log_and_result_there_is_nothing_to_show(tmp_path: Path) -> None:
    result = follow(tmp_path, "failed")
    assert (result["running"], result["progress"], result["result"], result["tail"]) == (False, "", None, "")


def test_check_mode_waits_for_nothing(tmp_path: Path) -> None:
    assert follow(tmp_path, "active", "--check")["running"] is False
