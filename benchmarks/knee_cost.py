"""What a knee costs: wall time, CPU and requests, ours against what people use today, on the same server in one run.

The server is the simulated one (32 slots, 0.7 s a request), whose knee is known. The floors, measured in the same run:
the ladder that tutorials use (10, 20, 50, 100 in flight), each step one `vllm bench serve` with its own default of 1000
prompts, and guidellm's search for goodput where guidellm is installed. Printed are each one's knee, its error, its
costs, and the ratios. `--fine-ladder` adds one of powers of two with ten prompts for each in flight, which nobody's
tutorial has, for comparison only.

Goal (exit 1 when missed): at most one third of either floor's wall time at no worse error.

    python benchmarks/knee_cost.py [--vllm PROGRAM] [--guidellm PROGRAM] [--fine-ladder] [--json]

Without --vllm the project's own wheelhouse (`make demo` makes it) is installed below .cache once.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from support.simulator import Physics  # noqa: E402 - the paths come first

from instinct_fleet.runtime_sets import describe  # noqa: E402

CACHE = ROOT / ".cache"
TOKENIZER = CACHE / "models/tiny-v1"
PHYSICS = {"slots": 32, "itl": 0.02, "prefill": 0.00002, "jitter": 0.1}
INPUT, OUTPUT = 64, 33
#: Concurrency of each step and its number of prompts: vllm's own default, and ten for each in flight but at least 20.
LADDER = {10: 1000, 20: 1000, 50: 1000, 100: 1000}
FINE_LADDER = {c: max(20, 10 * c) for c in (1, 2, 4, 8, 16, 32, 64, 128)}


@dataclass(frozen=True)
class Cost:
    """What one way took. ``knee`` is None without an answer; ``seconds`` and ``cpu`` are of its processes."""

    name: str
    knee: float | None
    seconds: float
    cpu: float
    requests: int | None


def true_knee() -> int:
    """Return the smallest concurrency within 5 % of the best throughput, by the server's own physics."""
    physics = Physics(**PHYSICS)
    rates = {c: physics.throughput(c, prompt=INPUT, output=OUTPUT) for c in range(1, 4 * physics.slots)}
    return min(c for c, rate in rates.items() if rate >= 0.95 * max(rates.values()))


def timed(argv: list[str], **options: Any) -> tuple[subprocess.CompletedProcess[str], float, float]:
    """Run a program; return what it said, its wall seconds, and the CPU seconds of it and its children."""
    before, started = os.times(), time.perf_counter()
    process = subprocess.run(argv, capture_output=True, text=True, check=False, **options)
    wall, after = time.perf_counter() - started, os.times()
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    return process, wall, cpu


def failed(process: subprocess.CompletedProcess[str]) -> str:
    """Return the last lines of a program that failed."""
    return "\n".join((process.stderr or process.stdout).strip().splitlines()[-5:])


def ours(url: str, folder: Path) -> Cost:
    """Search the knee with `instinct-fleet sweep`."""
    argv = [sys.executable, "-m", "instinct_fleet", "sweep", "--json", "--base-url", url, "--output-dir", str(folder)]
    # The machine of a benchmark is shared: the lag limit is not what is measured here.
    argv += ["--input-len", str(INPUT), "--output-len", str(OUTPUT), "--length-spread", "0", "--max-lag-ms", "100"]
    process, wall, cpu = timed(argv, cwd=ROOT)
    if process.returncode not in (0, 1):
        raise SystemExit(f"instinct-fleet sweep failed:\n{failed(process)}")
    document = json.loads(process.stdout)
    return Cost("instinct-fleet sweep", document["capacity"]["knee"], wall, cpu, document["spent"]["requests"])


def vllm_program() -> str:
    """Return a vllm program, installed once from the wheelhouse that the project made."""
    release = describe("cpu")["release"]
    wheels, venv = CACHE / "wheelhouse" / release, CACHE / "knee-cost"
    program = venv / "bin/vllm"
    if program.is_file():
        return str(program)
    if not (wheels / "lock.txt").is_file():
        raise SystemExit(f"there is no wheelhouse at {wheels}; run `make demo` first, or name a program with --vllm")
    print("installing vLLM for the ladder ...", file=sys.stderr, flush=True)
    shutil.rmtree(venv, ignore_errors=True)
    where = ["--no-index", "--find-links", str(wheels)]
    pip = [str(venv / "bin/python"), "-m", "pip", "install", "-q", "--disable-pip-version-check", *where]
    for argv in (
        [sys.executable, "-m", "venv", str(venv)],
        [*pip, "--require-hashes", "--no-deps", "-r", str(wheels / "lock.txt")],
    ):
        subprocess.run(argv, check=True)
    return str(program)


def ladder(name: str, url: str, folder: Path, program: str, steps: Mapping[int, int]) -> Cost:
    """Drive each step with `vllm bench serve`, and read the knee off the results by the project's rule."""
    if not TOKENIZER.is_dir():
        raise SystemExit(f"there is no tokenizer at {TOKENIZER}; run `make demo` first")
    seconds = cpu = 0.0
    requests = 0
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "ERROR"}
    for step, count in steps.items():
        argv = [program, "bench", "serve", "--backend", "openai", "--base-url", url, "--model", "sim"]
        argv += ["--tokenizer", str(TOKENIZER), "--dataset-name", "random", "--random-input-len", str(INPUT)]
        argv += ["--random-output-len", str(OUTPUT), "--num-prompts", str(count), "--max-concurrency", str(step)]
        argv += ["--ignore-eos", "--save-result", "--result-dir", str(folder)]
        argv += ["--result-filename", f"{step}.json", "--disable-tqdm"]
        process, wall, used = timed(argv, env=environment)
        if process.returncode != 0:
            raise SystemExit(f"vllm bench serve failed at concurrency {step}:\n{failed(process)}")
        print(f"  ladder {step}: {wall:.1f} s", file=sys.stderr, flush=True)
        seconds, cpu, requests = seconds + wall, cpu + used, requests + count
    argv = [sys.executable, "-m", "instinct_fleet", "knee", "--json", str(folder)]
    process, _wall, _cpu = timed(argv, cwd=ROOT)
    knee = json.loads(process.stdout)["knee"] if process.returncode in (0, 1) else None
    return Cost(name, knee, seconds, cpu, requests)


def guidellm(url: str, folder: Path, program: str) -> Cost:
    """Let guidellm search the concurrency at which 95 % of the requests wait at most 200 ms (its profile goodput).

    Its answer is another one than the knee, and on a server with slots nearly the same number: what waits is what has
    no slot.
    """
    backend = {"kind": "openai_http", "target": url, "model": "sim"}
    data = {"kind": "synthetic_text", "prompt_tokens": INPUT, "output_tokens": OUTPUT}
    result = folder / "guidellm.json"
    argv = [program, "run", "--disable-console", "--backend", json.dumps(backend), "--data", json.dumps(data)]
    argv += ["--tokenizer", json.dumps({"kind": "huggingface_auto", "model": str(TOKENIZER)})]
    argv += ["--profile", "kind=goodput", "--constraint", "kind=max_duration,seconds=8"]
    argv += ["--metrics", json.dumps({"kind": "generative", "slo": {"ttft_ms": 200}})]
    argv += ["--output", json.dumps({"kind": "json", "path": str(result)})]
    folder.mkdir()
    process, wall, cpu = timed(argv, env={**os.environ, "HF_HUB_OFFLINE": "1"})
    if process.returncode != 0:
        raise SystemExit(f"guidellm failed:\n{failed(process)}")
    conclusions = json.loads(result.read_text()).get("conclusions") or [{}]
    return Cost("guidellm goodput", conclusions[0].get("best_passing_streams"), wall, cpu, None)


def error_of(cost: Cost, truth: int) -> float:
    """Return the share by which a knee is off; 1 where there is none."""
    return 1.0 if cost.knee is None else abs(cost.knee / truth - 1)


def report(costs: list[Cost], *, goals: int, truth: int) -> list[str]:
    """Print the costs and the ratios; return what missed the goal, which the first ``goals`` of them bear on."""
    print(f"server: {PHYSICS['slots']} slots, knee {truth} by its own physics")
    mine, missed = costs[0], []
    for cost in costs:
        knee, requests = ("-" if value is None else f"{value:g}" for value in (cost.knee, cost.requests))
        print(
            f"{cost.name:<28} knee {knee:>4}, off by {error_of(cost, truth):6.1%}, {cost.seconds:6.1f} s wall, "
            f"{cost.cpu:6.1f} CPU-s, {requests:>5} requests"
        )
    for number, other in enumerate(costs[1:], 1):
        wall, cpu = mine.seconds / other.seconds, mine.cpu / other.cpu if other.cpu else math.nan
        print(f"ours / {other.name}: wall {wall:.2f}, CPU {cpu:.2f}")
        if number >= goals:
            continue
        missed += [f"wall {wall:.2f} of {other.name}, goal one third"] * (wall > 1 / 3)
        worse = error_of(mine, truth) > error_of(other, truth) + 0.5 / truth
        missed += [f"error {error_of(mine, truth):.1%} is worse than that of {other.name}"] * worse
    return missed


def main() -> int:
    """Run and print; return 1 when the goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vllm", metavar="PROGRAM", help="default: installed from the wheelhouse")
    parser.add_argument("--guidellm", metavar="PROGRAM", default=shutil.which("guidellm"), help="default: if on PATH")
    parser.add_argument("--fine-ladder", action="store_true", help="also a ladder of powers of two; no goal")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    program = args.vllm or vllm_program()
    physics = ",".join(f"{name}={value}" for name, value in PHYSICS.items())
    argv = [sys.executable, str(ROOT / "tests/support/simulator.py"), "--physics", physics]
    server = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        url = f"http://127.0.0.1:{json.loads(server.stdout.readline())['port']}"
        with tempfile.TemporaryDirectory() as folder:
            costs = [ours(url, Path(folder) / "ours")]
            costs.append(ladder("ladder by vllm bench serve", url, Path(folder) / "ladder", program, LADDER))
            if args.guidellm:
                costs.append(guidellm(url, Path(folder) / "guidellm", args.guidellm))
            else:
                print("guidellm is not installed: not compared (--guidellm PROGRAM)")
            shown = list(costs)
            if args.fine_ladder:
                shown.append(ladder("fine ladder (no goal)", url, Path(folder) / "fine", program, FINE_LADDER))
    finally:
        server.terminate()
        server.wait()
    truth = true_knee()
    missed = report(shown, goals=len(costs), truth=truth)
    for text in missed:
        print(f"MISSED {text}")
    if args.json:
        rows: list[Mapping[str, Any]] = [vars(cost) for cost in costs]
        print(json.dumps({"truth": truth, "costs": rows, "missed": missed}))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
