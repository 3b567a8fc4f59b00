"""`instinct-fleet`: one command for what the playbooks do and for what they decide with.

Each module of this package with an ``add_parser`` function is one subcommand. People-text goes to stderr or, for a
result that is the purpose of the command, to stdout; ``--json`` prints exactly one document on stdout.
"""

from __future__ import annotations

import argparse
import importlib
import os
import pkgutil
import sys
from collections.abc import Sequence
from typing import Any

from instinct_fleet import __version__

#: Exit codes, the same for every subcommand.
DONE, FINDINGS, USAGE, NEEDS_A_PERSON = 0, 1, 2, 3


class UsageError(Exception):
    """Unusable input. The text says what is wrong, what was seen, what was expected and what mends it."""


def build_parser(only: str | None = None) -> argparse.ArgumentParser:
    """Return the parser with every subcommand of this package, or with one.

    One alone starts faster, and runs where the libraries of the others are missing, as on a node.
    """
    parser = argparse.ArgumentParser(
        prog="instinct-fleet",
        description="Take AMD Instinct nodes from bare metal to a serving vLLM fleet, and keep it healthy.",
        epilog="Exit codes: 0 done or healthy, 1 findings, 2 unusable input or usage, 3 stopped part-way.",
    )
    parser.add_argument("--version", action="version", version=f"instinct-fleet {__version__}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for info in sorted(pkgutil.iter_modules(__path__), key=lambda m: m.name):
        if only is not None and info.name != only:
            continue
        module = importlib.import_module(f"{__name__}.{info.name}")
        add: Any = getattr(module, "add_parser", None)
        if add is not None:
            add(subparsers)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand and return its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    asked = words[0].replace("-", "_") if words else None
    known = {info.name for info in pkgutil.iter_modules(__path__)}
    args = build_parser(asked if asked in known else None).parse_args(words)
    try:
        return int(args.run(args))
    except UsageError as exc:
        print(f"instinct-fleet {args.command}: {exc}", file=sys.stderr)
        return USAGE
    except KeyboardInterrupt:
        print(f"instinct-fleet {args.command}: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader (head, less) went away. Point stdout at nothing, so that the interpreter's last flush is silent.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return DONE
