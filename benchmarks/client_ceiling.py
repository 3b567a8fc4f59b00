"""What the client costs and how far its times are from the server's: tokens/s and TTFT error on one pinned core.

The simulated server runs as its own process on another core, with a step of 10 ms unless told; the client is pinned
to one core. For each request the server knows the time from the arrival of the request to its first token by its own
clock; the client's TTFT is compared with it, quantile by quantile. The floor is measured in the same run: a bare
asyncio reader that only counts bytes, on the same server.

Goals (exit 1 when the best of the rounds misses one): 20,000 tokens/s, TTFT off by at most 2 ms at p50 and 15 ms at
p99.

    python benchmarks/client_ceiling.py [--concurrency 220] [--itl-ms 10] [--seconds 5] [--rounds 3] [--no-uvloop]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from instinct_fleet.load.client import Endpoint  # noqa: E402 - the path comes first
from instinct_fleet.load.dataset import body_of, random_prompts  # noqa: E402
from instinct_fleet.load.driver import Driver, new_event_loop  # noqa: E402
from instinct_fleet.load.level import Ask, Level, Limits  # noqa: E402
from instinct_fleet.load.stats import quantile  # noqa: E402

OUTPUT = 64


def start_server(slots: int, itl: float, core: int | None) -> tuple[subprocess.Popen[str], int]:
    """Start the simulated server on a core of its own; return it and its port."""
    command = [
        sys.executable,
        str(ROOT / "tests/support/simulator.py"),
        "--physics",
        f"slots={slots},itl={itl},prefill=0.0,prefill_budget=1000000",
        "--truth",
    ]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    if core is not None:
        os.sched_setaffinity(server.pid, {core})
    assert server.stdout is not None
    return server, int(json.loads(server.stdout.readline())["port"])


def cpu() -> float:
    """CPU seconds of this process."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


async def ours(port: int, concurrency: int, seconds: float) -> tuple[Level, float, float]:
    """Load with the real client; return the level, its CPU seconds and its wall seconds."""
    prompts = random_prompts(input_len=32, output_len=OUTPUT)
    bodies = (body_of(p, model="sim", api="completions", fixed_length=True) for p in prompts)
    driver = Driver(Endpoint(f"http://127.0.0.1:{port}", "sim"), bodies, limits=Limits(max_lag=1.0))
    used, started = cpu(), time.perf_counter()
    level = await driver.measure(
        Ask(concurrency, "ladder", precision=0.0, finest=0.0, min_seconds=seconds, max_seconds=seconds)
    )
    spent, wall = cpu() - used, time.perf_counter() - started
    await driver.close()
    return level, spent, wall


async def bare(port: int, concurrency: int, seconds: float) -> tuple[float, float]:
    """Read the same streams and only count bytes; return (CPU seconds, tokens) as the floor."""
    body = body_of(
        next(random_prompts(input_len=32, output_len=OUTPUT)), model="sim", api="completions", fixed_length=True
    )
    head = Endpoint(f"http://127.0.0.1:{port}", "sim").head("POST", "/v1/completions", len(body))
    until = time.perf_counter() + seconds
    tokens = 0

    async def worker() -> None:
        nonlocal tokens
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        while time.perf_counter() < until:
            writer.write(head + body)
            tail = b""
            while not tail.endswith(b"0\r\n\r\n"):
                data = await reader.read(65536)
                tail = (tail + data)[-16:]
            tokens += OUTPUT
        writer.close()

    used = cpu()
    await asyncio.gather(*(worker() for _ in range(concurrency)))
    return cpu() - used, float(tokens)


def one_round(args: argparse.Namespace, cores: list[int]) -> dict[str, Any]:
    """Measure once on a fresh server."""
    factory = asyncio.new_event_loop if args.no_uvloop else new_event_loop
    server, port = start_server(args.concurrency, args.itl_ms / 1e3, cores[1] if len(cores) > 1 else None)
    try:
        with asyncio.Runner(loop_factory=factory) as runner:
            level, spent, wall = runner.run(ours(port, args.concurrency, args.seconds))
    finally:
        server.terminate()
        out, _ = server.communicate(timeout=60)
    truth = sorted(json.loads(out.splitlines()[-1])["first"])
    server, port = start_server(args.concurrency, args.itl_ms / 1e3, cores[1] if len(cores) > 1 else None)
    try:
        with asyncio.Runner(loop_factory=factory) as runner:
            floor_cpu, floor_tokens = runner.run(bare(port, args.concurrency, min(3.0, args.seconds)))
    finally:
        server.terminate()
        server.communicate(timeout=60)
    tokens = level.throughput.value * wall
    measured = sorted(level.ttfts)
    error = {q: ((quantile(measured, q) or 0.0) - (quantile(truth, q) or 0.0)) * 1e3 for q in (0.5, 0.99)}
    return {
        "tokens_per_second": level.throughput.value,
        "us_per_token": spent / tokens * 1e6 if tokens else math.nan,
        "floor_us_per_token": floor_cpu / floor_tokens * 1e6 if floor_tokens else math.nan,
        "core_share": spent / wall,
        "ttft_p50_ms": (level.ttft_p50 or 0) * 1e3,
        "ttft_p50_error_ms": error[0.5],
        "ttft_p99_error_ms": error[0.99],
        "lag_p99_ms": (level.lag_p99 or 0) * 1e3,
        "requests": level.requests,
        "void": list(level.void),
    }


def main() -> int:
    """Run and print; return 1 when a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--concurrency", type=int, default=220)
    parser.add_argument("--itl-ms", type=float, default=10.0, help="step of the server (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--no-uvloop", action="store_true")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[0]})
    rounds = []
    for _ in range(args.rounds):
        found = one_round(args, cores)
        rounds.append(found)
        print(
            f"{found['tokens_per_second']:8.0f} tokens/s, {found['us_per_token']:.1f} us CPU a token (bare reader "
            f"{found['floor_us_per_token']:.1f}, ratio {found['us_per_token'] / found['floor_us_per_token']:.2f}), "
            f"core {found['core_share']:.0%} busy; TTFT p50 {found['ttft_p50_ms']:.1f} ms, off by "
            f"{found['ttft_p50_error_ms']:+.2f} ms at p50 and {found['ttft_p99_error_ms']:+.2f} ms at p99; "
            f"loop lag p99 {found['lag_p99_ms']:.1f} ms"
        )
        for reason in found["void"]:
            print(f"  void: {reason}")
    missed = []
    if max(r["tokens_per_second"] for r in rounds) < 20_000:
        missed.append("20,000 tokens/s")
    if min(abs(r["ttft_p50_error_ms"]) for r in rounds) > 2:
        missed.append("TTFT p50 within 2 ms")
    if min(abs(r["ttft_p99_error_ms"]) for r in rounds) > 15:
        missed.append("TTFT p99 within 15 ms")
    for text in missed:
        print(f"MISSED {text}")
    if args.json:
        print(json.dumps({"rounds": rounds, "missed": missed}))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
