"""What ``all_reduce_perf`` prints on a profile, as text and as JSON.

Faults that this renderer shows, by name in ``Profile.faults``:

=================== ==================================================================================================
``rccl_pcie``       RCCL takes the GPUs to be connected over PCIe: about 24 GB/s
``rccl_numa``       addresses mapped to the wrong NUMA node: about 94 GB/s
``rccl_one_link``   all traffic over one link: about 48 GB/s
``rccl_wrong``      three wrong values at the largest size
``rccl_timeout``    initialisation fails before the first row
=================== ==================================================================================================
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

from support.profile import Profile

MIB = 1024**2
GIB = 1024**3
#: GB/s that one link carries in a collective on a healthy node: 8x MI300X were measured at 313 to 322 with 7 links.
LINK_GBPS = {"gfx942": 45.1, "gfx950": 52.0, "gfx90a": 22.0}
#: A collective starts at about 13 us, and half of the plateau is reached at about this size.
START_US, HALF_SIZE = 13.0, 6 * MIB
FAULT_GBPS = {"rccl_pcie": 24.2, "rccl_numa": 94.1, "rccl_one_link": 47.6}


@dataclass(frozen=True)
class Run:
    """One call of ``all_reduce_perf``."""

    ranks: int = 8
    min_bytes: int = 8
    max_bytes: int = 8 * GIB
    check: bool = True
    host: str = "node01"
    hosts: int = 1


def plateau(profile: Profile, ranks: int) -> float:
    """Return the bus bandwidth in GB/s that large messages reach."""
    for fault, busbw in FAULT_GBPS.items():
        if fault in profile.faults:
            return busbw
    pairs = [profile.pair(a, b) for a in range(ranks) for b in range(a + 1, ranks)]
    if any(pair.type != "XGMI" for pair in pairs):
        return 11.0 if profile.arch == "gfx90a" else 24.2
    return LINK_GBPS[profile.arch] * (ranks - 1)


def rows(profile: Profile, run: Run) -> Iterator[tuple[int, bool, float, float, float, int]]:
    """Yield (size, in place, time in us, algbw, busbw, wrong) of each measurement, with figures that agree."""
    factor = 2 * (run.ranks - 1) / run.ranks
    size = run.min_bytes
    while size <= run.max_bytes:
        for in_place in (False, True):
            best = plateau(profile, run.ranks) * (1.0005 if in_place else 1.0) / factor
            time = START_US + (size + HALF_SIZE * size / (size + HALF_SIZE)) / best / 1000
            algbw = size / time / 1000
            wrong = 3 if "rccl_wrong" in profile.faults and size * 2 > run.max_bytes else 0
            yield size, in_place, time, algbw, algbw * factor, wrong
        size *= 2


def render_text(profile: Profile, run: Run | None = None) -> tuple[str, str, int]:
    """Return (stdout, stderr, exit code) of ``all_reduce_perf`` with one rank a GPU."""
    run = run or Run(ranks=profile.count)
    if "rccl_timeout" in profile.faults:
        said = f"{run.host}: Test NCCL failure common.cu:1198 'unhandled system error'\n .. {run.host}: Test failure\n"
        return _head(profile, run), said, 3
    lines = [_head(profile, run)]
    total, count, bad = 0.0, 0, 0
    half: list[str] = []
    for size, in_place, time, algbw, busbw, wrong in rows(profile, run):
        shown = f"{time:.2f}" if time < 100 else f"{time:.1f}" if time < 10000 else f"{time:.0f}"
        half.append(f"{shown:>9}{algbw:>8.2f}{busbw:>8.2f}{str(wrong) if run.check else 'N/A':>7}")
        total, count, bad = total + busbw, count + 1, bad + wrong
        if in_place:
            lines.append(f"{size:>12}{size // 4:>14}{'float':>10}{'sum':>8}{-1:>8}{''.join(half)}\n")
            half = []
    lines += [
        "# Errors with asterisks indicate errors that have exceeded the maximum threshold.\n",
        f"# Out of bounds values : {bad} {'FAILED' if bad else 'OK'}\n",
        f"# Avg bus bandwidth    : {total / count:g} \n",
        "#\n",
    ]
    return "".join(lines), "", 1 if bad else 0


def _head(profile: Profile, run: Run) -> str:
    lines = [
        f"# nThread 1 nGpus 1 minBytes {run.min_bytes} maxBytes {run.max_bytes} step: 2(factor) warmup iters: 5 "
        f"iters: 20 agg iters: 1 validation: {int(run.check)} graph: 0",
        "#",
        "rccl-tests: Version develop:0000000",
        "# Using devices",
    ]
    for rank in range(run.ranks):
        host = run.host if run.hosts == 1 else f"{run.host}-{rank * run.hosts // run.ranks}"
        device = rank % (run.ranks // run.hosts)
        address = profile.bdfs[device % profile.count].rpartition(".")[0]
        place = f"on {host} device {device:>2} [{address}] {profile.market_name}"
        lines.append(f"#  Rank {rank:>2} Group  0 Pid {7085 + rank:>6} {place}")
    lines += [
        "#",
        f"#{'out-of-place':>74}{'in-place':>31}",
        "#       size         count      type   redop    root" + "     time   algbw   busbw #wrong" * 2,
        "#        (B)    (elements)                          " + "     (us)  (GB/s)  (GB/s)       " * 2,
    ]
    return "\n".join(lines) + "\n"


def render_json(profile: Profile, run: Run | None = None) -> str:
    """Return what ``-Z json`` writes: one object for each measurement."""
    run = run or Run(ranks=profile.count)
    items = [
        {
            "numCycle": 0,
            "name": "AllReduce",
            "size": size,
            "type": "float",
            "redop": "sum",
            "inPlace": int(in_place),
            "time": float(f"{time:.5g}"),
            "algBw": round(algbw, 2),
            "busBw": round(busbw, 2),
            "wrong": str(wrong) if run.check else "N/A",
        }
        for size, in_place, time, algbw, busbw, wrong in rows(profile, run)
    ]
    return json.dumps(items, indent=2) + "\n"


def render_commands(profile: Profile) -> dict[str, tuple[str, str, int]]:
    """Return the answers to `all_reduce_perf` with one process for 2, 4 ... GPUs, as the role rccl_check calls it."""
    sizes = [ranks for ranks in (2, 4, 8) if ranks <= profile.count]
    return {f"all_reduce_perf -b 8 -e 8G -f 2 -g {n}": render_text(profile, Run(ranks=n)) for n in sizes}
