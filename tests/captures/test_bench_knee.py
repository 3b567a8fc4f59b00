"""A real saturation curve gives the knee and the limit that the design states for it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from instinct_fleet.cli import main

ROOT = Path(__file__).resolve().parents[2]
CAPTURES = Path(os.environ.get("INSTINCT_FLEET_CAPTURES") or ROOT.parent / "shared" / "captures")
BENCH = CAPTURES / "bench_2xh200_tp2"

pytestmark = pytest.mark.skipif(not BENCH.is_dir(), reason=f"no bench results at {BENCH}")


def test_knee_and_limit_of_a_real_curve(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["knee", "--ttft-p99-ms", "2000", "--json", *map(str, sorted(BENCH.glob("*.json")))]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["knee"], found["limit"]) == (96, 76)
    assert found["verdict"] == "pass"
    assert all(point["counts"] for point in found["points"])
    assert found["findings"] == []


def test_a_directory_is_as_good_as_its_files(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["knee", "--ttft-p99-ms", "2000", "--json", str(BENCH)]) == 0
    assert json.loads(capsys.readouterr().out)["limit"] == 76


def test_a_tighter_objective_moves_the_knee(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["knee", "--ttft-p99-ms", "1000", "--json", str(BENCH)]) == 0
    assert json.loads(capsys.readouterr().out)["knee"] == 64
