from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from support.profile import Profile, mi300x_8
from support.render_rccl import render_json, render_text

from instinct_fleet.cli import main


def run_of(tmp_path: Path, profile: Profile) -> str:
    path = tmp_path / "run.txt"
    path.write_text(render_text(profile)[0])
    return str(path)


def test_healthy_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rccl", run_of(tmp_path, mi300x_8())]) == 0
    out = capsys.readouterr().out
    assert "verdict: pass" in out
    assert "315.54" in out


def test_slow_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rccl", run_of(tmp_path, mi300x_8().with_faults("rccl_pcie"))]) == 1
    out = capsys.readouterr().out
    assert "verdict: fail" in out
    assert "rccl_bandwidth_low" in out
    assert max(map(len, out.splitlines())) <= 100


def test_json_is_one_document(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "run.json"
    path.write_text(render_json(mi300x_8()))

    assert main(["rccl", str(path), "--gpus", "8", "--policy", "mi300x_8", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert sorted(document) == ["findings", "points", "verdict"]
    assert document["verdict"] == "pass"
    assert document["points"][-1]["in_place"]["busbw"] == 315.54

    assert main(["rccl", str(path), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["verdict"] == "unknown"


def test_another_number_of_gpus(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rccl", run_of(tmp_path, mi300x_8()), "--gpus", "4"]) == 1
    assert "8 ranks, 4 GPUs" in " ".join(capsys.readouterr().out.split())


def test_stdin(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(render_text(mi300x_8())[0].encode())))

    assert main(["rccl", "-"]) == 0


@pytest.mark.parametrize(
    ("extra", "said"),
    [(["--policy", "h100"], "expected one of"), (["--gpus", "0"], "expected 1 or more")],
)
def test_wrong_options(tmp_path: Path, capsys: pytest.CaptureFixture[str], extra: list[str], said: str) -> None:
    assert main(["rccl", run_of(tmp_path, mi300x_8()), *extra]) == 2
    assert said in capsys.readouterr().err


def test_unusable_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rccl", str(tmp_path / "nothing")]) == 2
    assert "cannot read" in capsys.readouterr().err
    other = tmp_path / "other"
    other.write_bytes(b"\x80\xffhello [/] [red]\x1b[31m\n")
    assert main(["rccl", str(other)]) == 2
    assert "\x1b" not in capsys.readouterr().out
