"""`instinct-fleet check-args`: check the arguments of `vllm serve` against a vLLM release."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import yaml

from instinct_fleet.arguments import check, nearest_release
from instinct_fleet.cli import DONE, FINDINGS, UsageError
from instinct_fleet.model import Finding, sort_findings, to_json, verdict


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add this subcommand."""
    parser = subparsers.add_parser(
        "check-args",
        help="check `vllm serve` arguments against a vLLM release",
        description="Check the arguments of `vllm serve` (and the file of --config, when it is there) against the "
        "options of a vLLM release, for ROCm. Nothing is started.",
        epilog="Example: instinct-fleet check-args --vllm-version 0.33.0 -- MODEL -tp 8 --max-model-len 32k",
    )
    parser.add_argument("--vllm-version", required=True, metavar="V", help="the vLLM version that is to take them")
    parser.add_argument(
        "--env", action="append", default=[], metavar="NAME=VALUE", help="a variable of the server (repeatable)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("arguments", nargs="*", metavar="ARGUMENT", help="after --: the arguments of `vllm serve`")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Check and print."""
    environment = {}
    for assignment in args.env:
        name, equals, value = assignment.partition("=")
        if not name or not equals:
            raise UsageError(f"--env: {assignment!r} is no variable; expected NAME=VALUE")
        environment[name] = value
    findings = list(check(args.arguments, version=args.vllm_version, environment=environment))
    findings += _check_config_file(args.arguments, args.vllm_version, environment)
    ordered = sort_findings(findings)
    if args.json:
        document = {
            "vllm_version": args.vllm_version,
            "checked_against": nearest_release(args.vllm_version),
            "findings": to_json(ordered),
            "verdict": verdict(ordered),
        }
        print(json.dumps(document, indent=2, sort_keys=True))
    else:
        for finding in ordered:
            print(f"{finding.severity}: {finding.subject}: {finding.message}; {finding.remedy}")
        print(f"vLLM {args.vllm_version}: {verdict(ordered)}", file=sys.stderr)
    return FINDINGS if {f.severity for f in ordered} & {"error", "unknown"} else DONE


def _check_config_file(arguments: Sequence[str], version: str, environment: dict[str, str]) -> tuple[Finding, ...]:
    """Check the file of ``--config`` too. vLLM follows only the form with a space between option and file."""
    attached = [token for token in arguments if token.replace("_", "-").startswith("--config=")]
    if attached:
        message = "is read by the parser and never followed: vLLM looks for the word --config alone"
        remedy = f"write --config {attached[0].partition('=')[2]}"
        return (Finding("serve_args_ineffective", "error", attached[0], message, remedy),)
    if "--config" not in arguments[:-1]:
        return ()
    name = arguments[list(arguments).index("--config") + 1]
    try:
        content = yaml.safe_load(Path(name).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as exc:  # also a date that no calendar has
        message = f"cannot be read here, so its options were not checked: {exc}"
        return (Finding("serve_args_config", "unknown", name, message, "run this where the file is"),)
    if not isinstance(content, dict):
        message = f"holds {type(content).__name__}, expected a map of option names to values"
        return (Finding("serve_args_config", "error", name, message, "write one option a line, name: value"),)
    return check(content, version=version, environment=environment, in_config=True)
