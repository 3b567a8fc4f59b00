"""`instinct-fleet place`."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest
from support.bundle import probe
from support.nodes import topology
from support.profile import mi300x_8

from instinct_fleet.cli import main
from instinct_fleet.model import to_json

INSTANCES = """
- {name: chat, model: /models/chat, tensor_parallel_size: 4}
- {name: embed, model: /models/embed, tensor_parallel_size: 2}
"""


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    """Return a topology, a bundle, a bundle in a tarball, and instances."""
    bundle = json.dumps(probe(mi300x_8())).encode()
    paths = {name: tmp_path / name for name in ("topology.json", "bundle.json", "bundle.tar.gz", "instances.yml")}
    paths["topology.json"].write_text(json.dumps(to_json(topology(mi300x_8()))), "utf-8")
    paths["bundle.json"].write_bytes(bundle)
    with tarfile.open(paths["bundle.tar.gz"], "w:gz") as archive:
        info = tarfile.TarInfo("node/probe.json")
        info.size = len(bundle)
        archive.addfile(info, io.BytesIO(bundle))
    paths["instances.yml"].write_text(INSTANCES, "utf-8")
    return paths


def run(files: dict[str, Path], *options: str, topology_file: str = "topology.json") -> int:
    return main(
        ["place", "--topology", str(files[topology_file]), "--instances", str(files["instances.yml"]), *options]
    )


@pytest.mark.parametrize("source", ["topology.json", "bundle.json", "bundle.tar.gz"])
def test_people_see_why_and_the_exact_command(
    files: dict[str, Path], capsys: pytest.CaptureFixture[str], source: str
) -> None:
    assert run(files, "--vllm-version", "0.33.0", topology_file=source) == 0
    out = capsys.readouterr().out
    for line in (
        "numactl --cpunodebind=0 --preferred=0 /opt/vllm/bin/vllm serve --config /etc/vllm/chat.yml",
        "numactl --cpunodebind=1 --preferred=1 /opt/vllm/bin/vllm serve --config /etc/vllm/embed.yml",
        "  - GPUs 0,1,2,3: all pairs are XGMI (weight 15)",
        "  - all on NUMA node 1, 2 GPUs stay free there",
        "6 of 8 GPUs used, free: 6-7",
    ):
        assert line in out
    assert "http://127.0.0.1:8000" in out


def test_json_is_one_document(files: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(files, "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert [u["instance"] for u in document["units"]] == ["chat", "embed"]
    assert document["commands"]["chat"][:3] == ["numactl", "--cpunodebind=0", "--preferred=0"]
    assert document["findings"] == []


def test_an_instance_that_finds_no_place(files: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    files["instances.yml"].write_text(
        "vllm_serve_instances:\n- {name: a, model: m, tensor_parallel_size: 16}\n", "utf-8"
    )
    assert run(files) == 1
    out = capsys.readouterr().out
    assert "placement_no_room [a] needs 16 GPUs, 8 of 8 are free" in out
    assert "mend: Lower its tensor_parallel_size" in out


def test_an_empty_list_is_no_unit(files: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    files["instances.yml"].write_text("[]", "utf-8")
    assert run(files) == 0
    assert "0 of 8 GPUs used, free: 0-7" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "content", "text"),
    [
        ("instances.yml", "- {name: a, model: m, prt: 1}", "instance 'a': unknown key 'prt' (did you mean 'port'?)"),
        ("instances.yml", "- [", "is not YAML or JSON"),
        ("instances.yml", "text", "instances: got str, expected a list of mappings"),
        ("instances.yml", "", "instances: got NoneType"),
        ("instances.yml", None, "cannot read"),
        ("topology.json", None, "cannot read"),
        ("topology.json", "{}", "shows no GPU; expected a topology document"),
        ("topology.json", '{"gpus": []}', "schema is None, expected 1"),
        ("topology.json", '{"gpus": 7, "schema": 1}', "not a topology document of schema 1"),
        ("topology.json", "hello", "shows no GPU"),
        ("topology.json", "[1]", "shows no GPU"),
        ("topology.json", "7", "got '7' (int); expected a topology document"),
    ],
)
def test_unusable_input_is_one_clear_line(
    files: dict[str, Path], capsys: pytest.CaptureFixture[str], name: str, content: str | None, text: str
) -> None:
    if content is None:
        files[name].unlink()
    else:
        files[name].write_text(content, "utf-8")
    assert run(files) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert text in said.err
    assert str(files[name]) in said.err


def test_a_version_that_is_none(files: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(files, "--vllm-version", "new") == 2
    assert "--vllm-version is 'new', expected a release such as 0.33.0" in capsys.readouterr().err


def test_a_topology_on_stdin(
    files: dict[str, Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    document: Any = {"topology": to_json(topology(mi300x_8())), "findings": []}
    monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps(document)))
    assert main(["place", "--topology", "-", "--instances", str(files["instances.yml"])]) == 0
    assert "6 of 8 GPUs used" in capsys.readouterr().out


@pytest.mark.parametrize("width", ["80", "100"])
def test_commands_are_not_wrapped(
    files: dict[str, Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, width: str
) -> None:
    monkeypatch.setenv("COLUMNS", width)
    files["instances.yml"].write_text("- {name: a, model: m, tensor_parallel_size: 8}", "utf-8")
    assert run(files) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.endswith("--numa-bind --numa-bind-nodes 0 0 0 0 1 1 1 1") for line in lines)
