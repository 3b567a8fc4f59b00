"""managed_files: one operation for all files, with check, diff, validation, guards and secrets."""

from __future__ import annotations

import base64
import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.playbook import REPO, run_tasks

# Ansible needs a working installation beside this Python; the unit tests of the package run without one.
pytest.importorskip("ansible", reason="ansible is not installed for this Python")


def task(files: list[dict[str, Any]], **options: Any) -> dict[str, Any]:
    return {"name": "files", "managed_files": {"files": files, **options}}


def test_first_run_changes_second_run_does_not(tmp_path: Path) -> None:
    (tmp_path / "templates").mkdir()
    (tmp_path / "templates/unit.j2").write_text("{{ ansible_managed | comment }}\nvalue={{ value }}\n")
    dest = tmp_path / "out"
    files = [
        {"dest": str(dest), "state": "directory", "mode": "0755"},
        {"dest": str(dest / "a"), "content": "plain\n", "mode": "0644"},
        {"dest": str(dest / "b"), "template": "unit.j2", "vars": {"value": 7}, "mode": "0600", "notify": ["topic"]},
        {"dest": str(dest / "c"), "content_b64": "AAE=", "mode": "0644"},
        {"dest": str(dest / "gone"), "state": "absent", "mode": "0644"},
    ]
    handler = {"name": "handle", "listen": "topic", "ansible.builtin.debug": {"msg": "handled"}}
    first, again, handled = run_tasks(tmp_path, [task(files), task(files)], "--diff", handlers=[handler])
    assert first["changed"] is True
    assert {d: f["changes"] for d, f in first["files"].items() if f["changed"]} == {
        str(dest): ["created"],
        str(dest / "a"): ["created"],
        str(dest / "b"): ["created"],
        str(dest / "c"): ["created"],
    }
    assert (dest / "b").read_text().endswith("value=7\n")
    assert (dest / "b").stat().st_mode & 0o777 == 0o600
    assert (dest / "c").read_bytes() == b"\x00\x01"
    assert [d["after"] for d in first["diff"] if d["after_header"] == str(dest / "a")] == ["plain\n"]
    assert again["changed"] is False
    assert handled["msg"] == "handled"


def test_check_mode_says_what_would_change_and_changes_nothing(tmp_path: Path) -> None:
    target = tmp_path / "a"
    target.write_text("old\n")
    target.chmod(0o644)
    files = [
        {"dest": str(target), "content": "new\n", "mode": "0600"},
        {"dest": str(tmp_path / "missing/b"), "content": "x", "mode": "0644", "owner": "nobody-yet"},
    ]
    (result,) = run_tasks(tmp_path, [task(files)], "--check", "--diff")
    assert result["changed"] is True
    assert result["files"][str(target)]["changes"] == ["content", "mode 0644 -> 0600"]
    assert (result["diff"][0]["before"], result["diff"][0]["after"]) == ("old\n", "new\n")
    assert "mode 0644 -> 0600" in result["diff"][0]["after_header"]
    assert target.read_text() == "old\n"
    assert not (tmp_path / "missing").exists()


def test_a_file_that_is_refused_leaves_all_as_it_was(tmp_path: Path) -> None:
    files = [
        {"dest": str(tmp_path / "good"), "content": "fine\n", "mode": "0644"},
        {"dest": str(tmp_path / "bad.sh"), "content": "if then\n", "mode": "0644", "validate": "sh -n %s"},
    ]
    (result,) = run_tasks(tmp_path, [task(files)])
    assert result["failed"] is True
    assert f"The new {tmp_path}/bad.sh was refused by `sh -n %s`" in result["msg"]
    assert "nothing was changed" in result["msg"]
    assert not (tmp_path / "good").exists()


def test_a_secret_is_in_no_output(tmp_path: Path) -> None:
    files = [{"dest": str(tmp_path / "key"), "content": "K=hunter2\n", "mode": "0600", "secret": True}]
    (result,) = run_tasks(tmp_path, [task(files)], "--diff", "-vvv")
    assert result["changed"] is True
    assert "hunter2" not in repr(result)
    assert "secret" in result["diff"][0]["after"]
    assert (tmp_path / "key").read_text() == "K=hunter2\n"


def test_a_kept_copy_is_named(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("old\n")
    (result,) = run_tasks(
        tmp_path, [task([{"dest": str(tmp_path / "a"), "content": "new\n", "mode": "0644"}], backup=True)]
    )
    assert Path(result["files"][str(tmp_path / "a")]["backup"]).read_text() == "old\n"


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ([{"dest": "/tmp/x", "content": "a", "mode": "rw"}], "expected a quoted octal number"),
        ([{"dest": "/tmp/x", "mode": "0644"}], "has no content, expected one of template, content, content_b64"),
        ([{"dest": "/tmp/x", "content": "a", "content_b64": "YQ==", "mode": "0644"}], "has content, content_b64"),
        ([{"dest": "/tmp/x", "state": "absent", "content": "a", "mode": "0644"}], "expected none of them"),
        ([{"dest": "/tmp/x", "template": "nowhere.j2", "mode": "0644"}], "template of /tmp/x"),
        ([{"dest": "/proc/self", "content": "a", "mode": "0644"}], "expected a file"),
        (
            [{"dest": "/tmp/x", "content": "a", "mode": "0644"}, {"dest": "/tmp/x", "content": "b", "mode": "0644"}],
            "listed twice",
        ),
    ],
)
def test_errors_say_what_was_seen_and_expected(tmp_path: Path, files: list[dict[str, Any]], message: str) -> None:
    (result,) = run_tasks(tmp_path, [task(files)])
    assert result["failed"] is True
    assert message in result["msg"]


def fake_systemctl(folder: Path, state: str) -> dict[str, str]:
    folder.mkdir()
    (folder / "systemctl").write_text(f"#!/bin/sh\necho {state}\n")
    (folder / "systemctl").chmod(0o755)
    return {"PATH": f"{folder}:{os.environ['PATH']}"}


@pytest.mark.parametrize(
    ("state", "allowed", "refused"), [("active", False, True), ("active", True, False), ("inactive", False, False)]
)
def test_a_file_does_not_change_under_a_running_unit(tmp_path: Path, state: str, allowed: bool, refused: bool) -> None:
    files = [{"dest": str(tmp_path / "a"), "content": "new\n", "mode": "0644", "guard_unit": "x.service"}]
    one = task(files, guard_allowed=allowed, guard_remedy="Set consent=true.")
    (result,) = run_tasks(tmp_path, [{**one, "environment": fake_systemctl(tmp_path / "bin", state)}])
    assert bool(result.get("failed")) is refused
    if refused:
        assert (
            "would change while x.service is running; nothing was changed on this host. Set consent=true."
            in result["msg"]
        )
        assert not (tmp_path / "a").exists()
    else:
        assert result["changed_units"] == ["x.service"]


def test_a_unit_is_stopped_before_its_files_change(tmp_path: Path) -> None:
    # A run that is killed in between must leave something that a second run sees.
    target = tmp_path / "a"
    target.write_text("old")
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin/systemctl"
    program.write_text(f'#!/bin/sh\necho "$* $(cat {target})" >>{tmp_path}/asked\necho active\n')
    program.chmod(0o755)
    files = [{"dest": str(target), "content": "new", "mode": "0644", "guard_unit": "x.service"}]
    one = {**task(files, guard_allowed=True), "environment": {"PATH": f"{tmp_path}/bin:{os.environ['PATH']}"}}
    first, again = run_tasks(tmp_path, [one, one])
    assert (tmp_path / "asked").read_text() == "is-active -- x.service old\nstop -- x.service old\n"
    assert target.read_text() == "new"
    assert (first["stopped_units"], again["changed"]) == (["x.service"], False)


@pytest.mark.parametrize(
    ("allowed", "message"), [(False, "while x.service is running"), (True, "could not be stopped")]
)
def test_a_unit_of_which_nobody_knows_counts_as_running(tmp_path: Path, allowed: bool, message: str) -> None:
    environment = fake_systemctl(tmp_path / "bin", "")
    (tmp_path / "bin/systemctl").write_text("#!/bin/sh\necho 'Failed to connect to bus' >&2\nexit 1\n")
    files = [{"dest": str(tmp_path / "a"), "content": "new\n", "mode": "0644", "guard_unit": "x.service"}]
    (result,) = run_tasks(tmp_path, [{**task(files, guard_allowed=allowed), "environment": environment}])
    assert result["failed"] is True
    assert message in result["msg"]
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize("before", [None, 0o644])
def test_a_secret_is_never_there_with_the_rights_of_others(
    tmp_path: Path, before: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ansible.module_utils import basic, testing

    place = REPO / "library/managed_files.py"
    spec = importlib.util.spec_from_file_location("managed_files", place)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    target = tmp_path / "key"
    if before is not None:
        target.write_text("OLD=1\n")
        target.chmod(before)
    seen = []
    real = basic.AnsibleModule.set_mode_if_different

    def watch(self: Any, path: str, *rest: Any) -> Any:
        if path == str(target):
            seen.append(target.stat().st_mode & 0o777)
        return real(self, path, *rest)

    monkeypatch.setattr(basic.AnsibleModule, "set_mode_if_different", watch)
    text = base64.b64encode(b"KEY=hunter2\n").decode()
    files = [{"dest": str(target), "content_b64": text, "mode": "0600", "secret": True}]
    old = os.umask(0o022)
    try:
        with testing.patch_module_args({"files": files}), pytest.raises(SystemExit):
            module.main()
    finally:
        os.umask(old)
    assert target.read_text() == "KEY=hunter2\n"
    assert seen == [0o600]


def test_module_alone_runs_under_this_python() -> None:
    # The node's Python is not the controller's: the modules must at least compile everywhere the tests run.
    for name in ("managed_files", "push_tree", "node_probe", "ask_instances"):
        path = Path(__file__).resolve().parents[2] / "library" / f"{name}.py"
        subprocess.run([sys.executable, "-m", "py_compile", str(path)], check=True)
