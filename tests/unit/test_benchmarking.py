"""Jobs, records, regressions and reports of role benchmark."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from support import nodes
from support.profile import PROFILES

from instinct_fleet import benchmarking
from instinct_fleet.model import to_json

ROOT = Path(__file__).resolve().parents[2]
UNIT = {
    "instance": "chat-70b",
    "url": "http://127.0.0.1:8000",
    "config": "model: x\n",
    "tensor_parallel_size": 4,
    "question": {"model": "llama"},
}


def jobs(
    facts: dict[str, str] | None = None, unit: dict[str, Any] | None = None, **options: Any
) -> list[dict[str, Any]]:
    arguments: dict[str, Any] = {
        "probe": {"paths": facts or {}, "simulated": True},
        "topology": to_json(nodes.topology(PROFILES["mi300x_8"]())),
        "vllm_version": "0.33.0",
        "host": "n1",
        "only": [],
        "again": False,
        "output_dir": "out",
        "python": "python3",
        "key_file": "",
        "settings": {"ttft-p99-ms": 2000, "ladder": "", "require-idle": 3},
        "extra": ["--seed", "1"],
        **options,
    }
    return benchmarking.benchmark_jobs([unit or UNIT], **arguments)


def capacity(rate: float, **changes: Any) -> dict[str, Any]:
    points = [{"concurrency": 32, "output_token_rate": rate}]
    record = {"knee": 32, "limit": 25, "headroom": 0.2, "ttft_slo_ms": 2000, "points": points, "date": "2026-01-01"}
    return {**record, **changes}


def measured(job: dict[str, Any], rate: float = 1000.0, **changes: Any) -> dict[str, Any]:
    document = {"capacity": capacity(rate, **changes), "verdict": "pass", "reasons": ["because"]}
    return {"item": job, "rc": 0, "stdout": json.dumps(document), "stderr": ""}


def fact(job: dict[str, Any], rate: float = 1000.0) -> dict[str, str]:
    (_folder, entry) = benchmarking.capacity_files([measured(job, rate)])
    return {entry["dest"]: entry["content"]}


def test_a_job_says_all_that_the_sweep_needs() -> None:
    (job,) = jobs()
    words = " ".join(job["argv"])
    assert words.startswith("python3 -m instinct_fleet sweep --json --base-url http://127.0.0.1:8000 --model llama")
    assert "--instance n1/chat-70b --output-dir out/n1-chat-70b --require-idle 3 --ttft-p99-ms 2000" in words
    assert "--ladder" not in words
    assert "--provenance tp=4" in words
    assert words.endswith("--simulated --seed 1")
    assert not job["fresh"]


def test_the_key_is_in_a_file_and_never_in_the_words() -> None:
    (job,) = jobs(key_file="out/n1.key")
    assert job["argv"][job["argv"].index("--api-key-file") + 1] == "out/n1.key"
    files = benchmarking.benchmark_files([job], output_dir="out", key_file="out/n1.key", api_key="sk-1")
    assert files[-1] == {"dest": "out/n1.key", "content": "sk-1\n", "mode": "0600", "secret": True}
    assert len(benchmarking.benchmark_files([job], output_dir="out", key_file="out/n1.key")) == 2


def test_a_record_of_what_runs_is_fresh() -> None:
    (job,) = jobs()
    (again,) = jobs(fact(job))
    assert again["fresh"]
    assert not jobs(fact(job), again=True)[0]["fresh"]


@pytest.mark.parametrize(
    "change",
    [{"config": "model: y\n"}, {"tensor_parallel_size": 8}, {"question": {"model": "qwen"}}],
)
def test_a_record_of_something_else_is_stale(change: dict[str, Any]) -> None:
    (job,) = jobs()
    assert not jobs(fact(job), unit={**UNIT, **change})[0]["fresh"]
    assert not jobs(fact(job), vllm_version="0.34.0")[0]["fresh"]


def test_a_record_for_another_goal_is_stale() -> None:
    (job,) = jobs()
    goal = {"ttft-p99-ms": 2000, "headroom": 0.2}
    assert jobs(fact(job), settings=goal)[0]["fresh"]
    assert not jobs(fact(job), settings={**goal, "ttft-p99-ms": 500})[0]["fresh"]
    assert not jobs(fact(job), settings={**goal, "ttft-p99-ms": 0})[0]["fresh"]
    assert not jobs(fact(job), settings={**goal, "headroom": 0.3})[0]["fresh"]
    odd = {
        benchmarking.fact_path("chat-70b"): json.dumps(
            {**capacity(1.0, ttft_slo_ms=1001 / 1e3 * 1e3), "key": job["key"]}
        )
    }
    assert jobs(odd, settings={**goal, "ttft-p99-ms": 1001})[0]["fresh"]
    # What the further options ask for is not known here.
    assert jobs(fact(job), settings={**goal, "ttft-p99-ms": 500}, extra=["--ttft-p99-ms", "2000"])[0]["fresh"]


def test_no_headroom_is_a_headroom() -> None:
    (job,) = jobs(settings={"headroom": 0.0, "ttft-p99-ms": 0})
    assert job["argv"][job["argv"].index("--headroom") + 1] == "0.0"
    assert "--ttft-p99-ms" not in job["argv"]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"knee": 1}', None])
def test_a_record_that_cannot_be_read_is_none(text: str | None) -> None:
    assert benchmarking.read_record(text) is None
    assert not jobs({benchmarking.fact_path("chat-70b"): text or ""})[0]["fresh"]


def test_only_the_named_instances() -> None:
    assert jobs(only=["other"]) == []
    assert len(jobs(only=["chat-70b"])) == 1


def test_no_number_is_a_problem_with_its_reason() -> None:
    (job,) = jobs()
    refused = {"item": job, "rc": 2, "stdout": "", "stderr": "warning\ninstinct-fleet sweep: it takes traffic\n"}
    assert benchmarking.benchmark_problems([refused]) == [
        "instance chat-70b: the load test gave no result (exit code 2): instinct-fleet sweep: it takes traffic"
    ]
    undecided = measured(job, limit=None)
    assert benchmarking.benchmark_problems([undecided]) == ["instance chat-70b: pass: because"]
    assert benchmarking.benchmark_problems([measured(job)]) == []
    assert len(benchmarking.capacity_files([refused, undecided])) == 1


def test_slower_than_tolerated_is_a_regression() -> None:
    (job,) = jobs()
    (stale,) = jobs(fact(job, 1000.0), again=True)
    assert benchmarking.regressions([stale], [measured(stale, 950.0)], tolerance=0.1) == []
    (line,) = benchmarking.regressions([stale], [measured(stale, 850.0)], tolerance=0.1)
    assert line == (
        "instance chat-70b: 850 tokens/s at the knee, 15% less than the 1000 of 2026-01-01; at most 10% is tolerated"
    )


def test_another_model_or_objective_is_no_regression() -> None:
    (job,) = jobs()
    (other,) = jobs(fact(job), unit={**UNIT, "question": {"model": "qwen"}})
    assert benchmarking.regressions([other], [measured(other, 100.0)], tolerance=0.1) == []
    (stale,) = jobs(fact(job), settings={"ttft-p99-ms": 500})
    assert benchmarking.regressions([stale], [measured(stale, 100.0, ttft_slo_ms=500)], tolerance=0.1) == []
    (newer,) = jobs(fact(job), vllm_version="0.34.0")
    assert len(benchmarking.regressions([newer], [measured(newer, 100.0)], tolerance=0.1)) == 1


def test_records_are_noted_before_the_run_stops_at_another_instance() -> None:
    tasks = yaml.safe_load((ROOT / "roles/benchmark/tasks/measure.yml").read_text())
    names = [task["name"] for task in tasks]
    noted, stopped = (next(i for i, name in enumerate(names) if word in name) for word in ("Note the", "Stop at"))
    assert noted < stopped


def test_the_report() -> None:
    (job,) = jobs()
    text = benchmarking.capacity_report([job], [measured(job)], tolerance=0.1, simulated=True)
    assert text == (
        "chat-70b: knee 32, limit 25 (TTFT p99 at most 2000 ms, headroom 20%; measured 2026-01-01)\n"
        "Simulated hardware: these figures say nothing of a GPU."
    )
    (fresh,) = jobs(fact(job))
    assert "still valid for what runs" in benchmarking.capacity_report([fresh], [], tolerance=0.1)
    assert benchmarking.capacity_report([job], [], tolerance=0.1) == "chat-70b: not measured"


def test_how_tensor_parallel_scales() -> None:
    records = [{**capacity(rate), "provenance": {"model": "m", "tp": str(tp)}} for tp, rate in ((1, 100.0), (4, 320.0))]
    assert benchmarking.tp_scaling(records) == [
        "m: scaling efficiency against TP 1: TP 1 100 tokens/s (100%), TP 4 320 tokens/s (80%)"
    ]
    assert benchmarking.tp_scaling(records[:1]) == []


def test_an_instance_on_loopback_is_reached_from_its_node_only() -> None:
    units = [UNIT, {**UNIT, "instance": "open", "url": "http://10.0.0.5:8001"}]
    assert benchmarking.benchmark_unreachable(units, only=[]) == ["chat-70b"]
    assert benchmarking.benchmark_unreachable(units, only=["open"]) == []


def test_the_load_test_that_goes_to_a_node_is_always_the_same_bytes() -> None:
    folder, archive = benchmarking.client_files("/var/lib/x")
    assert folder == {"dest": "/var/lib/x", "state": "directory", "mode": "0755"}
    assert archive["dest"] == "/var/lib/x/client.zip"
    assert benchmarking.client_files("/var/lib/x")[1] == archive


def test_it_runs_there_without_the_libraries_that_only_the_controller_has(tmp_path: Path) -> None:
    archive = tmp_path / "client.zip"
    archive.write_bytes(base64.b64decode(benchmarking.client_files("x")[1]["content_b64"]))
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\nfor name in ('matplotlib', 'elftools', 'ansible', 'zstandard', 'packaging'):\n"
        "    sys.modules[name] = None\n"
    )
    server = subprocess.Popen(
        [sys.executable, str(ROOT / "tests/support/simulator.py"), "--physics", "slots=4,itl=0.01"],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert server.stdout is not None
        (job,) = jobs(
            unit={**UNIT, "url": f"http://127.0.0.1:{json.loads(server.stdout.readline())['port']}"},
            python=sys.executable,
            output_dir=str(tmp_path),
            settings={"ladder": "1,2", "level-seconds": 2, "input-len": 8, "output-len": 8, "max-lag-ms": 10000},
            extra=["--model", "sim"],
            report=False,
        )
        process = subprocess.run(
            job["argv"],
            cwd="/",
            env={"PYTHONPATH": f"{tmp_path}:{archive}", "PATH": "/usr/bin:/bin"},
            capture_output=True,
            text=True,
            check=False,
        )
    finally:
        server.terminate()
        server.communicate()
    assert process.returncode in (0, 1), process.stderr
    assert {p.name for p in (tmp_path / "n1-chat-70b").iterdir()} == {"levels.jsonl", "sweep.json", "capacity.json"}
    result = {"item": job, "rc": process.returncode, "stdout": process.stdout}
    files = benchmarking.benchmark_reports([result], output_dir="artifacts", host="n1")
    texts = {f["dest"]: f.get("content", "") for f in files}
    assert "<svg" in texts["artifacts/n1-chat-70b/report.html"]
    assert "Simulated hardware" in texts["artifacts/n1-chat-70b/report.html"]
    assert json.loads(texts["artifacts/n1-chat-70b/sweep.json"])["kind"] == "instinct-fleet sweep"
