"""push_tree: only what is missing moves, every file is checked, and an unchanged folder is one operation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.playbook import run_tasks

pytest.importorskip("ansible", reason="ansible is not installed for this Python")


def tree(folder: Path, **files: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return folder


def task(*pairs: tuple[Path, Path], **options: Any) -> dict[str, Any]:
    return {"name": "push", "push_tree": {"trees": [{"src": str(s), "dest": str(d)} for s, d in pairs], **options}}


def test_moves_what_is_missing_and_then_nothing(tmp_path: Path) -> None:
    one, two = tree(tmp_path / "one", a="1", sub__b="22"), tree(tmp_path / "two", c="333")
    pairs = [(one, tmp_path / "to/one"), (two, tmp_path / "to/two")]
    first, again = run_tasks(tmp_path, [task(*pairs), task(*pairs)], "--diff")
    assert first["changed"] is True
    assert first["trees"][str(tmp_path / "to/one")]["missing"] == ["a", "sub/b"]
    assert (tmp_path / "to/one/sub/b").read_text() == "22"
    assert (tmp_path / "to/two/c").read_text() == "333"
    assert again["changed"] is False
    assert not list((tmp_path / "to").rglob("*.incoming"))


def test_a_changed_and_a_surplus_file(tmp_path: Path) -> None:
    source, dest = tree(tmp_path / "one", a="1", b="2"), tmp_path / "to"
    run_tasks(tmp_path, [task((source, dest))])
    (source / "a").write_text("x")
    (source / "b").unlink()
    checked = run_tasks(tmp_path, [task((source, dest))], "--check", "--diff")[0]
    assert checked["changed"] is True
    assert (dest / "a").read_text() == "1"
    (result,) = run_tasks(tmp_path, [task((source, dest))])
    # The same size, so only the checksum that was noted tells it.
    assert result["trees"][str(dest)] == {"missing": ["a"], "extra": ["b"]}
    assert (dest / "a").read_text() == "x"
    assert not (dest / "b").exists()


def test_a_file_that_was_damaged_on_the_host(tmp_path: Path) -> None:
    source, dest = tree(tmp_path / "one", a="good"), tmp_path / "to"
    run_tasks(tmp_path, [task((source, dest))])
    (dest / "a").write_text("evil")
    by_size, by_sum = run_tasks(tmp_path, [task((source, dest)), task((source, dest), verify="sha256")])
    assert by_size["changed"] is False
    assert by_sum["trees"][str(dest)]["missing"] == ["a"]
    assert (dest / "a").read_text() == "good"


def test_a_torn_note_is_not_trusted(tmp_path: Path) -> None:
    source, dest = tree(tmp_path / "one", a="good"), tmp_path / "to"
    run_tasks(tmp_path, [task((source, dest))])
    (dest / ".instinct-fleet-manifest.json").write_text(json.dumps({"a": "0"})[:-1])
    (dest / "a").write_text("evil")
    (result,) = run_tasks(tmp_path, [task((source, dest))])
    assert result["trees"][str(dest)]["missing"] == ["a"]


def test_a_source_that_is_not_there(tmp_path: Path) -> None:
    (result,) = run_tasks(tmp_path, [task((tmp_path / "nowhere", tmp_path / "to"))])
    assert "is not a folder on the controller" in result["msg"]
    assert "playbooks/build.yml" in result["msg"]
    (checked,) = run_tasks(tmp_path, [task((tmp_path / "nowhere", tmp_path / "to"))], "--check")
    assert checked["changed"] is True
    (tmp_path / "empty").mkdir()
    (empty,) = run_tasks(tmp_path, [task((tmp_path / "empty", tmp_path / "to"))])
    assert "holds no file" in empty["msg"]


def test_a_folder_beside_gives_what_it_has_and_nothing_else(tmp_path: Path) -> None:
    new = tree(tmp_path / "new", a="1", b="22", c="333")
    beside = tree(tmp_path / "to/old", a="1", b="xx")
    pair = (new, tmp_path / "to/new")
    (would,) = run_tasks(tmp_path, [task(pair, siblings=True)], "--check")
    assert (would["changed"], would["linked"]) == (True, 1)
    assert not (tmp_path / "to/new").exists()
    first, again = run_tasks(tmp_path, [task(pair, siblings=True), task(pair, siblings=True)])
    assert first["trees"][str(tmp_path / "to/new")]["missing"] == ["b", "c"]
    assert [(tmp_path / "to/new" / name).read_text() for name in "abc"] == ["1", "22", "333"]
    assert (tmp_path / "to/new/a").samefile(beside / "a")
    assert (beside / "b").read_text() == "xx"
    assert again["changed"] is False


def test_a_folder_beside_that_has_everything(tmp_path: Path) -> None:
    new = tree(tmp_path / "new", a="1")
    tree(tmp_path / "to/old", a="1")
    pair = (new, tmp_path / "to/new")
    first, again = run_tasks(tmp_path, [task(pair, siblings=True), task(pair, siblings=True)])
    assert (first["changed"], first["linked"], first["bytes"]) == (True, 1, 0)
    assert (tmp_path / "to/new/a").read_text() == "1"
    assert again["changed"] is False
