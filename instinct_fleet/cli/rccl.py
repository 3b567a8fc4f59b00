"""``instinct-fleet rccl``: the verdict on a run of rccl-tests."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from instinct_fleet.cli import DONE, FINDINGS, USAGE, UsageError
from instinct_fleet.model import Finding, Verdict, sort_findings, to_json, verdict
from instinct_fleet.parse import rccl
from instinct_fleet.parse.base import Reading

#: A result file is some KiB; a larger one is not read into memory.
MAX_BYTES = 64 * 1024 * 1024
COLOURS = {"error": "red", "unknown": "yellow", "warning": "cyan", "info": "dim", "pass": "green", "fail": "red"}


def add_parser(subparsers: Any) -> None:
    """Add the subcommand."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "rccl",
        help="judge the output of rccl-tests (all_reduce_perf), text or JSON",
        description="Judge a run of rccl-tests: the in-place bus bandwidth at the largest size against the published "
        "floor of the model, and the correctness of every result. Exit code 0: passed, 1: failed or not known, "
        "2: not a run of rccl-tests.",
    )
    parser.add_argument("file", metavar="FILE", help="output of all_reduce_perf, text or JSON; - reads stdin")
    parser.add_argument(
        "--gpus", type=int, metavar="N", help="how many GPUs were to be tested (default: as the run says)"
    )
    parser.add_argument(
        "--policy",
        metavar="P",
        help=f"model of the node: {', '.join(rccl.policies())} (default: by the device names of the run)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document on stdout")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Read the file, judge it, print the verdict."""
    if args.gpus is not None and args.gpus < 1:
        raise UsageError(f"--gpus is {args.gpus}; expected 1 or more")
    if args.policy is not None and args.policy not in rccl.policies():
        raise UsageError(f"--policy is {args.policy!r}; expected one of {', '.join(rccl.policies())}")
    reading = rccl.parse(_read(args.file))
    findings = sort_findings(list(rccl.judge(reading, gpus=args.gpus, policy=args.policy)))
    outcome = verdict(findings)
    points: Sequence[rccl.Row] = reading.facts.get("points", ())
    if args.json:
        document = {"points": to_json(points), "findings": to_json(findings), "verdict": outcome}
        print(json.dumps(document, indent=2, allow_nan=False))
    else:
        _show(Console(), reading, points, findings, outcome)
    if any(item.code == "collect_unsupported_layout" for item in findings):
        return USAGE
    return DONE if outcome == "pass" else FINDINGS


def _read(name: str) -> str:
    try:
        if name == "-":
            data = sys.stdin.buffer.read(MAX_BYTES + 1)
        else:
            with Path(name).open("rb") as handle:
                data = handle.read(MAX_BYTES + 1)
    except OSError as exc:
        reason = exc.strerror or str(exc)
        raise UsageError(f"cannot read {name}: {reason}; expected the output of all_reduce_perf") from exc
    if len(data) > MAX_BYTES:
        raise UsageError(f"{name} is larger than {MAX_BYTES >> 20} MiB; expected the output of all_reduce_perf")
    return data.decode("utf-8", "replace")


def _show(
    console: Console, reading: Reading, points: Sequence[rccl.Row], findings: Sequence[Finding], outcome: Verdict
) -> None:
    facts = reading.facts
    if points:
        devices = ", ".join(facts["devices"]) or "devices not named"
        ranks = facts["ranks"] if facts["ranks"] is not None else "an unknown number of"
        console.print(
            f"[bold]{escape(str(facts['collective'] or 'collective not known'))}[/] on {ranks} GPUs ({escape(devices)})"
        )
        table = Table(box=None, pad_edge=False, header_style="dim")
        for title in ("size", "out-of-place GB/s", "in-place GB/s", "wrong"):
            table.add_column(title, justify="right")
        for row in sorted(points, key=lambda r: r.size)[-5:]:
            table.add_row(
                _size(row.size),
                _bandwidth(row.out_of_place),
                f"[bold]{_bandwidth(row.in_place)}[/]",
                " / ".join(
                    "?" if m is None or m.wrong is None else str(m.wrong) for m in (row.out_of_place, row.in_place)
                ),
            )
        console.print(table)
    listing = Table.grid(padding=(0, 1))
    for item in findings:
        text = f"{escape(item.message)} [dim]({item.code})[/]\n[dim]remedy:[/] {escape(item.remedy)}"
        listing.add_row(f"[{COLOURS[item.severity]}]{item.severity}[/]", text)
    console.print(listing)
    console.print(f"verdict: [bold {COLOURS[outcome]}]{outcome}[/]")


def _bandwidth(measure: rccl.Measure | None) -> str:
    return "-" if measure is None or measure.busbw is None else f"{measure.busbw:.2f}"


def _size(size: int) -> str:
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size >= factor and size % factor == 0:
            return f"{size // factor} {unit}"
    return f"{size} B"
