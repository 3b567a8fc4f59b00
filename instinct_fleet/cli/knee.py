"""``instinct-fleet knee``: existing bench results -> capacity record."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from instinct_fleet.capacity import HEADROOM, ResultError, Results, capacity_key, read_results, record
from instinct_fleet.cli import DONE, FINDINGS, UsageError
from instinct_fleet.load.fits import guides
from instinct_fleet.model import Capacity, Point, sort_findings, to_json


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand."""
    parser = subparsers.add_parser(
        "knee",
        help="make a capacity record from existing bench results",
        description="Read results of `vllm bench serve` (0.6 to 0.33), guidellm reports or our own sweeps, and apply "
        "the project's rule: the knee is the smallest concurrency within 5 % of the best throughput that meets the "
        "TTFT objective; the limit leaves 20 % headroom.",
    )
    parser.add_argument("results", nargs="+", type=Path, metavar="RESULT.json", help="files, or directories of them")
    parser.add_argument("--ttft-p99-ms", type=positive, metavar="MS", help="TTFT objective at p99 (default: none)")
    parser.add_argument("--headroom", type=share, default=HEADROOM, help="taken off the knee (default: %(default)s)")
    parser.add_argument("--instance", default="", help="name of the instance, for the record")
    parser.add_argument("--key", help="key of what was measured (default: a hash of model and tool versions)")
    parser.add_argument("--report", type=Path, metavar="FILE.html", help="also write the report, one file")
    parser.add_argument("--json", action="store_true", help="print the capacity record as one JSON document")
    parser.set_defaults(run=run)


def positive(text: str) -> float:
    """Read a number above zero for argparse."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"got {text!r}, expected a number above 0")
    return value


def share(text: str) -> float:
    """Read a share from 0 up to, not including, 1 for argparse."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1:
        raise argparse.ArgumentTypeError(f"got {text!r}, expected a share from 0 to below 1, for example 0.2")
    return value


def _is_directory(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError as exc:
        raise UsageError(f"{path}: {exc.strerror}; expected bench results, or a readable directory of them") from exc


def files_in(directory: Path) -> list[Path]:
    """Return the .json and .jsonl files of a directory, in order.

    Raises:
        UsageError: the directory cannot be read, or holds none.
    """
    try:
        entries = sorted(directory.iterdir())
    except OSError as exc:
        raise UsageError(f"{directory}: {exc}; expected a readable directory of bench results") from exc
    inside = [p for p in entries if p.suffix in (".json", ".jsonl") and not p.is_dir()]
    if not inside:
        below = [p.name for p in entries if p.is_dir()]
        hint = f" (directories below it are not searched; give them by name: {', '.join(below[:3])})" if below else ""
        raise UsageError(f"{directory}: no .json or .jsonl file in this directory; expected bench results{hint}")
    return inside


def result_files(paths: Iterable[Path]) -> Iterator[tuple[str, str]]:
    """Yield (name, text) of files.

    Raises:
        UsageError: a file cannot be read.
    """
    for path in paths:
        try:
            yield str(path), path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as exc:
            raise UsageError(f"{path}: {exc}; expected a readable JSON file") from exc


def load(paths: list[Path]) -> Results:
    """Read result files, and those of directories, where other JSON may lie beside them.

    Raises:
        UsageError: a file cannot be read or is not a result, or a directory holds no result.
    """
    inside = {path: files_in(path) for path in paths if _is_directory(path)}
    files = [file for path in paths for file in inside.get(path, [path])]
    maybe = {str(file) for group in inside.values() for file in group}
    try:
        results = read_results(result_files(files), maybe=maybe)
    except ResultError as exc:
        raise UsageError(str(exc)) from exc
    others = {f.subject: f.message for f in results.findings if f.code == "load_file_no_result"}
    for path, group in inside.items():
        if all(str(file) in others for file in group):
            first = str(group[0])
            raise UsageError(
                f"{path}: none of its {len(group)} .json or .jsonl files is a result; {first}: {others[first]}"
            )
    return results


def points_table(points: Sequence[Point], *, knee: int | None) -> Table:
    """Return points as a table for people, the knee marked."""
    table = Table(box=None, pad_edge=False)
    for name in ("concurrency", "in flight", "req/s", "tokens/s", "TTFT p50", "TTFT p99", "ITL p99", ""):
        table.add_column(name, justify="right" if name else "left", no_wrap=bool(name))

    def text(value: float | None, digits: int = 0, unit: str = "") -> str:
        return "-" if value is None else f"{value:.{digits}f}{unit}"

    for point in points:
        mark = "<- knee" if point.concurrency == knee else point.note
        table.add_row(
            str(point.concurrency),
            text(point.achieved_concurrency, 1),
            text(point.request_rate, 2),
            text(point.output_token_rate),
            text(point.ttft_p50_ms, unit=" ms"),
            text(point.ttft_p99_ms, unit=" ms"),
            text(point.itl_p99_ms, 1, unit=" ms"),
            mark,
            style=None if point.counts else "dim",
        )
    return table


def run(args: argparse.Namespace) -> int:
    """Print the capacity record; 0 when there is a knee, 1 when there is none."""
    results = load(args.results)
    inconclusive = [f for f in results.findings if f.code == "load_sweep_inconclusive"]
    capacity = record(
        results.points,
        ttft_slo_ms=args.ttft_p99_ms,
        headroom=args.headroom,
        instance=args.instance,
        key=args.key or capacity_key({"model": results.model, "tools": results.tool_versions}),
        tool_versions=results.tool_versions,
        date=results.date,
        simulated=results.simulated,
    )
    if inconclusive:
        # A sweep that did not trust itself stays without a number, however good its points look.
        capacity = _without_number(capacity, "; ".join(f.message for f in inconclusive))
    findings = sort_findings(results.findings)
    if args.report:
        _write_report(args.report, results, capacity)
    if args.json:
        print(json.dumps({**to_json(capacity), "findings": to_json(findings)}, indent=2))
    else:
        console = Console(file=sys.stdout, width=None if sys.stdout.isatty() else 200, highlight=False)
        console.print(points_table(capacity.points, knee=capacity.knee))
        objective = "no TTFT objective" if args.ttft_p99_ms is None else f"TTFT p99 at most {args.ttft_p99_ms:g} ms"
        if capacity.knee is None:
            console.print(f"No knee ({objective}): {capacity.note}")
        else:
            console.print(
                f"Knee {capacity.knee}, limit {capacity.limit} ({objective}, headroom {capacity.headroom:.0%}): "
                f"{capacity.verdict}"
            )
            if capacity.note:
                console.print(f"Note: {capacity.note}")
        for finding in findings:
            if finding.code == "load_file_no_result":
                console.print(f"Left out: {finding.subject}: {finding.message}")
    return DONE if capacity.knee is not None else FINDINGS


def _write_report(path: Path, results: Results, capacity: Capacity) -> None:
    document = {
        "title": f"Load test of {results.model or 'an unnamed model'}",
        "capacity": to_json(capacity),
        "settings": {"model": results.model},
        "fits": [
            to_json(f)
            for f in guides([(p.concurrency, p.output_token_rate or 0.0) for p in capacity.points if p.counts])
        ],
    }
    try:
        # Here, since a node that runs the load test alone lacks the library that draws.
        from instinct_fleet.report import render  # noqa: PLC0415

        path.write_text(render(document), encoding="utf-8")
    except OSError as exc:
        raise UsageError(f"--report: {exc}; expected a file that can be written") from exc


def _without_number(capacity: Capacity, note: str) -> Capacity:
    return dataclasses.replace(capacity, knee=None, limit=None, verdict="inconclusive", note=note)
