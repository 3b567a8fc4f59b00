"""What a command does when stdout or the terminal is not what it expects."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.profile import PROFILES
from support.render_smi import amd_smi_topology_json

from instinct_fleet import cli
from instinct_fleet.cli import main

ROOT = Path(__file__).parents[2]
#: A command that finds something, so that its exit code can be lost.
REFUSED = ("check-args", "--vllm-version", "0.33.0", "--", "M", "--swap-space", "4")


def shell(line: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a line of bash, in which "$@" is the command."""
    bare = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "LC_", "LANG"))}
    return subprocess.run(
        ["/bin/bash", "-c", line, "bash", sys.executable, "-m", "instinct_fleet", *arguments],
        cwd=ROOT,
        env=bare | environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


@pytest.fixture
def capture(tmp_path: Path) -> str:
    path = tmp_path / "topology.json"
    path.write_text(amd_smi_topology_json(PROFILES["mi300x_8"](), "7.0")[0])
    return str(path)


@pytest.mark.parametrize("extra", [(), ("--json",)])
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_reader_that_went_away_does_not_turn_findings_into_a_pass(extra: tuple[str, ...], unbuffered: str) -> None:
    done = shell('"$@" | true; exit ${PIPESTATUS[0]}', REFUSED[0], *extra, *REFUSED[1:], PYTHONUNBUFFERED=unbuffered)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr


def test_reader_that_went_away_does_not_turn_a_pass_into_findings(capture: str) -> None:
    done = shell('"$@" | true; exit ${PIPESTATUS[0]}', "inspect", capture)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("arguments", [REFUSED, ("--help",)])
def test_full_disk_is_said(arguments: tuple[str, ...]) -> None:
    done = shell('"$@" > /dev/full', *arguments)
    assert done.returncode == 2
    assert "stdout: cannot be written: No space left on device" in done.stderr
    assert "Traceback" not in done.stderr


def test_closed_streams_drop_what_is_written(capture: str, tmp_path: Path) -> None:
    done = shell('"$@" <&- 2>&-', *REFUSED)
    assert done.returncode == 1
    assert "vLLM 0.33.0: fail" not in done.stdout  # people-text must not move to stdout
    result = tmp_path / "result.json"
    result.write_text(json.dumps({"completed": 0, "duration": 1.0, "max_concurrency": 1, "model_id": "m"}))
    assert shell('"$@" >&-', "knee", str(result)).stderr == ""
    assert shell('"$@" <&- >&-', "inspect", "-").returncode == 1
    assert shell('"$@" >&-', "inspect", capture).returncode == 0


def test_terminal_without_unicode(capture: str) -> None:
    done = shell('"$@"', "inspect", capture, LC_ALL="C", PYTHONCOERCECLOCALE="0", PYTHONUTF8="0")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.isascii()
    assert "0000:0c:00.0  .   XGMI" in done.stdout


def test_interrupt_while_starting(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(_only: str | None) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "build_parser", interrupted)
    assert main(["inspect", "x"]) == 130
    assert capsys.readouterr().err == "instinct-fleet inspect: interrupted\n"


@pytest.mark.parametrize("word", ["topology-view", "check_args", "nothing"])
def test_unknown_command_is_answered_with_all_there_are(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main([word])
    assert caught.value.code == 2
    said = capsys.readouterr().err
    assert all(command in said for command in ("check-args", "inspect", "sweep", "wheelhouse"))
