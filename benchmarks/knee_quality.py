"""How good is the knee? The real search on simulated servers whose truth is known, in virtual time.

For each family of servers and each seed: the error of the limit against 0.8 x the true knee, of the throughput at the
knee against the true throughput there, and whether the interval holds the true knee. The floor is measured in the
same run and on the same servers: a fixed geometric grid, each step once, knee = first step within 5 % of the best,
which is what a ladder of concurrencies does.

Goals (exit 1 when one is missed): limit within 5 % for the typical run and within 10 % for the worst, never above the
true knee; throughput within 2 % for the typical run; the interval holds the truth in at least 90 % of the runs; at
most 14 levels up to 512, for the typical run of the family with 400 slots.

    python benchmarks/knee_quality.py [--seeds 20] [--coverage 200] [--live 2] [--json]
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import math
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from support.virtual import Family, VirtualRunner, families, search, truth_of  # noqa: E402

from instinct_fleet.capacity import limit_of  # noqa: E402 - the paths come first
from instinct_fleet.load.client import Endpoint  # noqa: E402
from instinct_fleet.load.dataset import body_of, random_prompts  # noqa: E402
from instinct_fleet.load.driver import Driver, run  # noqa: E402
from instinct_fleet.load.level import Limits  # noqa: E402
from instinct_fleet.load.search import Outcome, SearchConfig, ladder, plan  # noqa: E402
from instinct_fleet.load.session import sweep  # noqa: E402

GRID = [1, 2, 4, 8, 16, 32, 64, 128, 256]


def one(family: Family, seed: int, config: SearchConfig) -> dict[str, Any]:
    """Search once; return the errors against the truth."""
    truth = truth_of(family.name)
    started = time.process_time()
    outcome, history = search(family, config, seed)
    found: dict[str, Any] = {
        "family": family.name,
        "seed": seed,
        "verdict": outcome.verdict,
        "reasons": outcome.reasons,
        "knee": outcome.knee,
        "true_knee": truth.knee,
        "seconds": outcome.seconds,
        "requests": outcome.requests,
        "levels": sum(1 for level in history if level.purpose != "warmup"),
        "cpu": time.process_time() - started,
    }
    if outcome.knee is not None and outcome.limit is not None and outcome.throughput and outcome.interval:
        low, high = outcome.interval
        found |= {
            "limit_error": outcome.limit / (0.8 * truth.knee) - 1,
            "above": outcome.limit > truth.knee,
            "throughput_error": outcome.throughput.value / truth.at(outcome.knee) - 1,
            "covers": low <= truth.knee <= high,
            "width": (high - low) / truth.knee,
        }
    return found


def grid_error(family: Family, seed: int) -> float | None:
    """Return the error of the limit that a fixed geometric grid gives on the same server."""
    config = SearchConfig(objective=family.objective, budget_seconds=math.inf, budget_requests=10**9)
    runner = VirtualRunner(family, seed)
    history: tuple[Any, ...] = ()
    while True:
        step = ladder(GRID, history, config)
        if isinstance(step, Outcome):
            break
        history = (*history, runner.measure(dataclasses.replace(step, certify=False, max_seconds=20)))
    levels = [level for level in history if level.purpose == "ladder"]
    meeting = [x for x in levels if family.objective is None or (x.ttft_p99 or math.inf) <= family.objective]
    best = max((x.throughput.value for x in meeting), default=0.0)
    knee = next((x.concurrency for x in meeting if x.throughput.value >= 0.95 * best), None)
    return None if knee is None else limit_of(knee) / (0.8 * truth_of(family.name).knee) - 1


def live(runs: int) -> list[dict[str, Any]]:
    """Search over real sockets: 32 slots, 0.7 s a request. Wall and CPU seconds are the client's, imports left out."""
    config = SearchConfig(max_concurrency=512, budget_seconds=300)
    results = []
    for number in range(runs):
        server = subprocess.Popen(
            [
                sys.executable,
                str(ROOT / "tests/support/simulator.py"),
                "--physics",
                "slots=32,itl=0.02,prefill=0.00002,jitter=0.1",
                "--seed",
                str(number),
            ],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert server.stdout is not None
        port = json.loads(server.stdout.readline())["port"]

        async def go(port: int = port, number: int = number) -> tuple[Any, ...]:
            prompts = random_prompts(input_len=64, output_len=33, spread=0.3, seed=number)
            bodies = (body_of(p, model="sim", api="completions", fixed_length=True) for p in prompts)
            # The machine of a benchmark is shared: the lag limit is not what is measured here.
            driver = Driver(Endpoint(f"http://127.0.0.1:{port}", "sim"), bodies, limits=Limits(max_lag=0.1))
            await asyncio.sleep(0)
            return await sweep(driver, lambda h: plan(h, config), on_level=lambda _: None, budget_seconds=300)

        before = resource.getrusage(resource.RUSAGE_SELF)
        started = time.perf_counter()
        outcome, history, _ = run(go())
        wall = time.perf_counter() - started
        after = resource.getrusage(resource.RUSAGE_SELF)
        server.terminate()
        server.wait()
        results.append(
            {
                "verdict": "; ".join([outcome.verdict, *outcome.reasons]),
                "knee": outcome.knee,
                "limit": outcome.limit,
                "wall": wall,
                "cpu": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
                "levels": len(history) - 1,
                "requests": outcome.requests,
            }
        )
    return results


def main() -> int:
    """Run and print; return 1 when a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--coverage", type=int, default=200, help="runs for the coverage, over all families")
    parser.add_argument("--live", type=int, default=0, help="searches over real sockets")
    parser.add_argument("--family", help="only families whose name holds this")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    config = SearchConfig(budget_seconds=900)
    chosen = [f for f in families() if not args.family or args.family in f.name]
    missed: list[str] = []
    errors_of: list[tuple[float, float]] = []
    rows: list[dict[str, Any]] = []
    each = max(args.seeds, math.ceil(args.coverage / max(1, len(chosen))))
    print(
        f"{'family':<22}{'true':>5}{'runs':>6}{'verdicts':>10}{'limit typ.':>11}{'90 %':>7}{'worst':>7}"
        f"{'tput typ.':>10}{'covered':>9}{'width':>7}{'levels':>8}{'virtual s':>10}{'grid typ.':>10}{'ratio':>7}"
    )
    for family in chosen:
        runs = [one(family, seed, config) for seed in range(each)]
        rows += runs
        good = [r for r in runs if "limit_error" in r]
        if not good:
            missed.append(f"{family.name}: no verdict in {len(runs)} runs")
            continue
        errors = sorted(abs(r["limit_error"]) for r in good)
        typical, most, worst = statistics.median(errors), errors[int(0.9 * (len(errors) - 1))], errors[-1]
        throughput = statistics.median(abs(r["throughput_error"]) for r in good)
        covered = sum(r["covers"] for r in good) / len(good)
        grid = [abs(e) for seed in range(min(5, args.seeds)) if (e := grid_error(family, seed)) is not None]
        floor = statistics.median(grid) if grid else math.nan
        print(
            f"{family.name:<22}{truth_of(family.name).knee:>5}{len(runs):>6}{len(good):>10}{typical:>11.1%}{most:>7.1%}"
            f"{worst:>7.1%}{throughput:>10.1%}{covered:>9.0%}{statistics.median(r['width'] for r in good):>7.0%}"
            f"{statistics.mean(r['levels'] for r in good):>8.1f}{statistics.mean(r['seconds'] for r in good):>10.0f}"
            f"{floor:>10.1%}{typical / floor if floor else math.nan:>7.2f}"
        )
        errors_of.append((typical, floor))
        missed += [f"{family.name}: limit typically {typical:.1%} off, goal 5 %"] * (typical > 0.05)
        missed += [f"{family.name}: limit at worst {worst:.1%} off, goal 10 %"] * (worst > 0.1)
        missed += [f"{family.name}: limit above the true knee"] * any(r["above"] for r in good)
        missed += [f"{family.name}: throughput typically {throughput:.1%} off, goal 2 %"] * (throughput > 0.02)
        missed += [f"{family.name}: {len(runs) - len(good)} of {len(runs)} runs without a verdict"] * (
            len(good) < 0.9 * len(runs)
        )
        if family.physics.slots == 400:
            levels = max(r["levels"] for r in runs)
            missed += [f"{family.name}: {levels} levels, goal 14"] * (statistics.median(r["levels"] for r in runs) > 14)
    good = [r for r in rows if "covers" in r]
    if good:
        covered = sum(r["covers"] for r in good) / len(good)
        within = sum(abs(r["limit_error"]) <= 0.05 for r in good) / len(good)
        print(f"\n{len(good)} verdicts in {len(rows)} runs: the interval holds the truth in {covered:.1%}")
        print(f"limit within 5 % of 0.8 x truth in {within:.1%}; CPU {sum(r['cpu'] for r in rows):.0f} s in all")
        mine, grids = (statistics.mean(column) for column in zip(*errors_of, strict=True))
        print(f"mean of the typical errors: ours {mine:.1%}, fixed grid {grids:.1%}, ratio {mine / grids:.2f}")
        missed += [f"coverage {covered:.1%}, goal 90 %"] * (covered < 0.9)
    for row in rows:
        if "limit_error" not in row:
            print(f"  {row['family']} seed {row['seed']}: {row['verdict']}: {'; '.join(row['reasons'])}")
    lives = live(args.live) if args.live else []
    for found in lives:
        print(
            f"live, 32 slots, 0.7 s a request: knee {found['knee']}, limit {found['limit']} ({found['verdict']}), "
            f"{found['wall']:.0f} s wall, {found['cpu']:.2f} CPU-s, {found['levels']} levels, "
            f"{found['requests']} requests"
        )
    if lives:
        missed += ["live: no run within 60 s"] * (min(r["wall"] for r in lives) > 60)
        missed += ["live: no run within 3 CPU-s"] * (min(r["cpu"] for r in lives) > 3)
    for text in missed:
        print(f"MISSED {text}")
    if args.json:
        print(json.dumps({"runs": rows, "live": lives, "missed": missed}))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
