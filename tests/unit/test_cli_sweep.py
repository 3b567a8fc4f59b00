"""The two commands as a person calls them, against a simulated server in a process of its own."""

from __future__ import annotations

import html
import json
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from instinct_fleet.cli import main

ROOT = Path(__file__).resolve().parents[2]
QUICK = ["--input-len", "10", "--output-len", "10", "--level-seconds", "2", "--max-lag-ms", "10000", "--simulated"]

Start = Callable[..., str]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start simulated servers; return the base URL of each. They are stopped at the end."""
    running: list[subprocess.Popen[str]] = []

    def go(physics: str = "slots=8,itl=0.004,prefill=0.00001", *settings: str) -> str:
        command = [sys.executable, str(ROOT / "tests/support/simulator.py"), "--physics", physics]
        for setting in settings:
            command += ["--set", setting]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        running.append(process)
        assert process.stdout is not None
        return f"http://127.0.0.1:{json.loads(process.stdout.readline())['port']}"

    yield go
    for process in running:
        process.kill()
        process.communicate()


def call(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, dict[str, Any], str]:
    code = main([*args, "--json"])
    captured = capsys.readouterr()
    return code, json.loads(captured.out), captured.err


def test_a_ladder_from_end_to_end(start: Start, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    args = ["sweep", "--base-url", start("slots=8,itl=0.02"), "--ladder", "1,4,32", "--output-dir", str(out), *QUICK]
    code, document, err = call(capsys, *args, "--provenance", "tp=8", "--instance", "node1/a")
    assert code == 0, document["reasons"]
    assert document["verdict"] == "lower bound only"
    assert document["capacity"]["knee"] == 32
    assert document["capacity"]["simulated"]
    assert document["settings"]["tp"] == "8"
    assert document["capacity"]["tool_versions"]["vllm"] == "0.33.0"
    assert document["server_metrics"] == "read"
    assert "tokens/s" in err
    assert {p.name for p in out.iterdir()} == {"levels.jsonl", "sweep.json", "capacity.json", "report.html"}
    assert len((out / "levels.jsonl").read_text().splitlines()) == len(document["levels"])
    assert "Simulated hardware" in (out / "report.html").read_text()
    # The other command reads the same record and says the same.
    for source in (out / "sweep.json", out):
        code, again, _ = call(capsys, "knee", str(source))
        assert (code, again["knee"], again["limit"]) == (0, document["capacity"]["knee"], document["capacity"]["limit"])
        assert again["points"] == document["capacity"]["points"]


def test_advice_comes_with_the_numbers_that_led_to_it(
    start: Start, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    args = ["sweep", "--base-url", start("slots=4,itl=0.02,kv_tokens=100000"), "--ladder", "16"]
    args += ["--output-dir", str(tmp_path), "--served", "max-num-seqs=4", *QUICK]
    _code, document, _ = call(capsys, *args)
    (line,) = document["advice"]
    assert re.match(r"1[12] requests wait for \d+ ms each at concurrency 16 while the KV cache is at most", line), line
    assert "raise max_num_seqs from 4" in line
    assert line in html.unescape((tmp_path / "report.html").read_text())


def test_what_is_served_is_checked_before_anything_is_sent(start: Start, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sweep", "--base-url", "http://127.0.0.1:9", "--served", "seqs=4"]) == 2
    assert "--served: got 'seqs', expected one of max-num-seqs" in capsys.readouterr().err


def test_an_open_loop(start: Start, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    args = ["sweep", "--base-url", start(), "--request-rate", "20,60", "--output-dir", str(tmp_path), *QUICK]
    code, document, _ = call(capsys, *args)
    assert code == 0
    assert document["capacity"]["knee"] is None
    first, second = document["capacity"]["points"]
    assert first["request_rate"] == pytest.approx(20, rel=0.5)
    assert second["request_rate"] > first["request_rate"]


def test_an_interrupt_keeps_the_levels(start: Start, tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = [sys.executable, "-m", "instinct_fleet", "sweep", "--base-url", start(), "--output-dir", str(out), *QUICK]
    process = subprocess.Popen(
        # A shell's background jobs ignore SIGINT, and hand that down to the tests that run in one.
        ["env", "--default-signal=INT", *command, "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        if (out / "levels.jsonl").exists() and len((out / "levels.jsonl").read_text().splitlines()) >= 2:
            break
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 130, stderr
    document = json.loads(stdout)
    assert document["interrupted"]
    assert document["verdict"] == "inconclusive"
    assert document["capacity"]["knee"] is None
    assert len(document["levels"]) >= 2
    assert (out / "report.html").exists()


def test_two_live_endpoints_are_compared_in_turns(start: Start, capsys: pytest.CaptureFixture[str]) -> None:
    slow, fast = start("slots=8,itl=0.006"), start("slots=8,itl=0.004")
    args = ["sweep", "--compare", slow, fast, "--concurrency", "4", "--rounds", "3", *QUICK]
    code, document, err = call(capsys, *args)
    assert (code, document["verdict"]) == (0, "B is better"), document
    assert document["differences"][0]["change"] > 0.2
    assert [line.split()[0] for line in err.splitlines() if line[:2] in ("A ", "B ")] == list("ABBAAB")


def test_two_result_files_are_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def result(scale: float) -> list[dict[str, Any]]:
        return [
            {
                "model_id": "m",
                "max_concurrency": c,
                "completed": 100,
                "failed": 0,
                "duration": 100 / (scale * c),
                "request_throughput": scale * c,
                "mean_e2el_ms": 1000 / scale,
                "p99_ttft_ms": 50.0 / scale,
            }
            for c in (1, 2, 4)
        ]

    a, b = tmp_path / "a.json", tmp_path / "b.json"
    a.write_text(json.dumps(result(1.0)))
    b.write_text(json.dumps(result(0.9)))
    code, document, _ = call(capsys, "sweep", "--compare", str(a), str(b))
    assert (code, document["verdict"]) == (0, "A is better")
    assert document["differences"][0]["change"] == pytest.approx(-0.1)
    assert not document["simulated"]
    point = {"concurrency": 1, "requests": 9, "failed": 0, "request_rate": 1.0, "output_token_rate": None}
    point |= {"achieved_concurrency": 1.0, "ttft_p50_ms": None, "ttft_p99_ms": 50.0}
    b.write_text(json.dumps({"capacity": {"points": [point], "simulated": True}}))
    assert call(capsys, "sweep", "--compare", str(a), str(b))[1]["simulated"]
    main(["sweep", "--compare", str(a), str(b)])
    assert "Simulated hardware" in capsys.readouterr().out


def test_a_key_comes_from_a_file_or_the_environment(
    start: Start, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    url = start("slots=8,itl=0.004", "api_key=s3cret")
    out = ["--output-dir", str(tmp_path / "out"), "--ladder", "2,4", *QUICK]
    assert main(["sweep", "--base-url", url, *out]) == 2
    assert "--api-key-file or --api-key-env" in capsys.readouterr().err
    (tmp_path / "key").write_text("s3cret\n")
    code, document, err = call(capsys, "sweep", "--base-url", url, "--api-key-file", str(tmp_path / "key"), *out)
    assert code in (0, 1)
    assert document["levels"]
    written = "".join(p.read_text() for p in (tmp_path / "out").iterdir())
    assert "s3cret" not in json.dumps(document) + err + written
    monkeypatch.setenv("KEY", "wrong")
    assert main(["sweep", "--base-url", url, "--api-key-env", "KEY", *out]) == 2


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--ladder", "1"], "--base-url: not given"),
        (["--base-url", "http://127.0.0.1:1"], "GET /v1/models"),
        (["--base-url", "localhost:8000"], "expected http://HOST:PORT"),
        (["--base-url", "http://u:p@h"], "user name or password"),
        (["--base-url", "http://h", "--api-key-file", "/nonexistent/key"], "--api-key-file"),
        (["--base-url", "http://h", "--api-key-env", "NO_SUCH_NAME"], "got nothing"),
        (["--base-url", "http://h", "--ladder", "1", "--request-rate", "2"], "expected at most one"),
        (["--compare", "http://a", "file.json"], "two result files (or directories) or two base URLs"),
        (["--compare", "http://a", "http://b"], "--concurrency not given"),
        (["--compare", "/nonexistent/a.json", "/nonexistent/b.json"], "/nonexistent/a.json"),
    ],
)
def test_unusable_input(args: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sweep", *args, "--output-dir", str(tmp_path / "out")]) == 2
    captured = capsys.readouterr()
    assert words in captured.err
    assert captured.out == ""


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ("model=other", "model 'sim' is not served; expected one of other"),
        ("fault=no_done", "without [DONE]; expected a complete stream"),
        ("usage=false", "carries no usage"),
    ],
)
def test_an_endpoint_that_cannot_be_measured(
    start: Start, tmp_path: Path, capsys: pytest.CaptureFixture[str], settings: str, words: str
) -> None:
    url = start("slots=8,itl=0.004", settings)
    assert main(["sweep", "--base-url", url, "--output-dir", str(tmp_path / "out"), "--model", "sim"]) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize("name", ["sweep.json", "levels.jsonl"])
def test_a_disk_that_is_full_does_not_cost_the_result(
    name: str, start: Start, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / name).symlink_to("/dev/full")
    args = ["sweep", "--base-url", start(), "--ladder", "2", "--output-dir", str(tmp_path), *QUICK]
    assert main(args) == 2
    captured = capsys.readouterr()
    assert f"--output-dir: {tmp_path / name}: No space left on device; expected room" in captured.err
    assert "tokens/s" in (captured.out if name == "sweep.json" else captured.err)


@pytest.mark.parametrize("value", ["0", "-3", "x", "1,x", ""])
def test_a_ladder_that_is_none(value: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["sweep", "--base-url", "http://h", f"--ladder={value}"])
    assert caught.value.code == 2
    assert "whole number" in capsys.readouterr().err


def test_knee_for_people(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "r.json"
    path.write_text(json.dumps({"completed": 10, "duration": 5.0, "max_concurrency": 4, "mean_e2el_ms": 2000.0}))
    assert main(["knee", str(path)]) == 0
    out = capsys.readouterr().out
    assert "Knee 4, limit 3" in out
    assert main(["knee", str(path), "--report", str(tmp_path / "r.html")]) == 0
    assert "limit 3" in (tmp_path / "r.html").read_text()
    assert main(["knee", str(path), "--report", str(tmp_path / "none" / "r.html")]) == 2
    capsys.readouterr()
    assert main(["knee", str(path), "--ttft-p99-ms", "100"]) == 1
    assert "No knee" in capsys.readouterr().out


def test_knee_without_a_usable_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["knee", str(tmp_path)]) == 2
    assert "no .json or .jsonl file" in capsys.readouterr().err
    assert main(["knee", str(tmp_path / "none.json")]) == 2
    (tmp_path / "x.json").write_text("{")
    assert main(["knee", str(tmp_path)]) == 2
    assert "x.json" in capsys.readouterr().err


def test_knee_of_a_directory_with_other_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = {"completed": 10, "duration": 5.0, "max_concurrency": 4, "mean_e2el_ms": 2000.0}
    (tmp_path / "c4.json").write_text(json.dumps(result))
    (tmp_path / "c4.pytorch.json").write_text(json.dumps([{"benchmark": {"name": "vLLM benchmark"}}]))
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "a"}\n{"prompt": "b"}\n')
    assert main(["knee", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "Knee 4" in out
    assert "prompts.jsonl: got the keys prompt" in out.replace("\n", " ")
    # A file that was asked for by its name has to be a result.
    assert main(["knee", str(tmp_path / "c4.json"), str(tmp_path / "prompts.jsonl")]) == 2
    assert "got the keys prompt" in capsys.readouterr().err


def test_knee_of_a_directory_without_results(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "a"}\n')
    assert main(["knee", str(tmp_path)]) == 2
    assert "none of its 1 .json or .jsonl files is a result" in capsys.readouterr().err
    (tmp_path / "prompts.jsonl").unlink()
    (tmp_path / "concurrency=8").mkdir()
    assert main(["knee", str(tmp_path)]) == 2
    assert "give them by name: concurrency=8" in capsys.readouterr().err


def test_stopped_before_the_first_level(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        command = [sys.executable, "-m", "instinct_fleet", "sweep", "--base-url", url, "--output-dir", str(tmp_path)]
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        silent.settimeout(30)
        connection, _ = silent.accept()
        with connection:
            process.send_signal(signal.SIGTERM)
            _, stderr = process.communicate(timeout=30)
    assert process.returncode == 130, stderr
    assert "Traceback" not in stderr
