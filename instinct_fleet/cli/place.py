"""``instinct-fleet place``: which GPUs each instance of a node gets, why, and the exact command that binds it."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console
from rich.table import Table
from rich.text import Text

from instinct_fleet import serve_args
from instinct_fleet.api import as_topology
from instinct_fleet.cli import DONE, FINDINGS, UsageError
from instinct_fleet.cli.inspect import gather
from instinct_fleet.instances import Instance, InstancesError, parse_instances
from instinct_fleet.model import Topology, Unit, to_json
from instinct_fleet.parse.base import format_cpu_list
from instinct_fleet.placement import Placement, place, version_tuple

_WHAT = "a topology document, the output of `inspect --json`, or a bundle of node_probe"
_STYLES = {"error": "bold red", "unknown": "bold magenta", "warning": "yellow", "info": "dim"}


def add_parser(subparsers: Any) -> None:
    """Add the subcommand."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "place",
        help="plan which GPUs, NUMA binding and ports each instance of a node gets",
        description="Place instances on a node. Exit code 0: every instance has a unit, 1: one could not be placed, "
        "2: unusable input.",
    )
    parser.add_argument(
        "--topology",
        metavar="FILE",
        required=True,
        help="a topology document, what `inspect --json` wrote, or a bundle of node_probe; - reads stdin",
    )
    parser.add_argument(
        "--instances", metavar="FILE", required=True, help="list of instances as in vllm_serve_instances (YAML or JSON)"
    )
    parser.add_argument("--vllm-version", metavar="V", help="release that will run them, as 0.33.0")
    parser.add_argument("--json", action="store_true", help="print one JSON document on stdout")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Place and print."""
    if args.vllm_version is not None and version_tuple(args.vllm_version) is None:
        raise UsageError(f"--vllm-version is {args.vllm_version!r}, expected a release such as 0.33.0")
    topology = _topology(args.topology)
    try:
        instances = parse_instances(_instances(args.instances))
        placement = place(topology, instances, vllm_version=args.vllm_version)
    except InstancesError as exc:
        raise UsageError(f"{args.instances}:\n{exc}") from exc
    if args.json:
        commands = {u.instance: list(_command(i, u)) for i, u in _pairs(instances, placement)}
        print(json.dumps({**to_json(placement), "commands": commands}, indent=2, allow_nan=False))
    else:
        show(Console(highlight=False), topology, instances, placement)
    return FINDINGS if any(f.severity == "error" for f in placement.findings) else DONE


def _pairs(instances: tuple[Instance, ...], placement: Placement) -> list[tuple[Instance, Unit]]:
    units = {unit.instance: unit for unit in placement.units}
    return [(i, units[i.name]) for i in instances if i.name in units]


def _read(path: str, what: str) -> Any:
    """Read a YAML or JSON file.

    Raises:
        UsageError: it cannot be read, or is neither.
    """
    try:
        text = sys.stdin.read() if path == "-" else Path(path).read_text("utf-8")
    except (OSError, ValueError) as exc:
        reason = getattr(exc, "strerror", None) or str(exc)
        raise UsageError(f"cannot read {path}: {reason}; expected {what}") from exc
    try:
        return json.loads(text) if text.lstrip()[:1] == "{" else yaml.safe_load(text)
    except (ValueError, yaml.YAMLError, RecursionError) as exc:
        line = " ".join(str(exc).split())[:200]
        raise UsageError(f"{path} is not YAML or JSON: {line}; expected {what}") from exc


def _topology(path: str) -> Topology:
    """Read a topology document, or whatever `inspect` can read of a node.

    Raises:
        UsageError: it is neither, or shows no GPU.
    """
    document = _json_in(path)
    try:
        topology = as_topology(document) if document is not None else gather([path]).topology
    except ValueError as exc:
        raise UsageError(f"{path}: {exc}; expected {_WHAT}") from exc
    if not topology.gpus:
        raise UsageError(f"{path} shows no GPU; expected {_WHAT}. `instinct-fleet inspect {path}` says why.")
    return topology


def _json_in(path: str) -> Any:
    """Return the topology document that a file (or stdin) holds, None where it is something else."""
    if path == "-":
        return _read(path, _WHAT)
    try:
        document = json.loads(Path(path).read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        return None  # a tarball or a capture; `gather` says what is wrong with it
    found = isinstance(document, dict) and ("gpus" in document or "topology" in document)
    return document if found or not isinstance(document, (dict, list)) else None


def _instances(path: str) -> Any:
    document = _read(path, "a list of instances")
    # A group_vars file can be given as it is.
    if isinstance(document, dict) and "vllm_serve_instances" in document:
        return document["vllm_serve_instances"]
    return document


def _command(instance: Instance, unit: Unit) -> tuple[str, ...]:
    return serve_args.command_line(instance, unit, config_path=f"/etc/vllm/{instance.name}.yml")


def show(console: Console, topology: Topology, instances: tuple[Instance, ...], placement: Placement) -> None:
    """Print the plan for people: a table, then for each instance why and how, then the findings."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("instance", "GPUs", "NUMA nodes", "URL"):
        table.add_column(column, overflow="fold")
    for unit in placement.units:
        table.add_row(
            unit.instance,
            format_cpu_list(unit.gpus),
            ",".join(map(str, unit.numa_nodes)) or "unknown",
            f"http://{unit.host}:{unit.port}",
        )
    if placement.units:
        console.print(table)
    for instance, unit in _pairs(instances, placement):
        console.print()
        console.print(Text(unit.instance, style="bold"))
        for reason in unit.reasons:
            console.print(Text(f"  - {reason}"))
        console.print(Text(f"  CPUs {format_cpu_list(unit.cpus) or 'all'}"))
        devices = f"HIP_VISIBLE_DEVICES={unit.hip_visible_devices} VLLM_PORT={unit.vllm_port}"
        console.print(Text(f"  {devices}"), soft_wrap=True)
        # One line, whatever the width: it is there to be copied.
        console.print(Text(f"  {shlex.join(_command(instance, unit))}"), soft_wrap=True)
    used = {gpu for unit in placement.units for gpu in unit.gpus}
    free = [gpu.index for gpu in topology.gpus if gpu.index not in used]
    console.print()
    console.print(f"{len(used)} of {len(topology.gpus)} GPUs used, free: {format_cpu_list(free) or 'none'}")
    for item in placement.findings:
        console.print(
            Text(f"{item.severity:<8} {item.code} [{item.subject}] {item.message}", style=_STYLES[item.severity])
        )
        if item.severity != "info":
            console.print(Text(f"         mend: {item.remedy}"))
