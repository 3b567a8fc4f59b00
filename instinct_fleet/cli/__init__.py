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
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO, cast

from instinct_fleet import __version__

#: Exit codes, the same for every subcommand.
DONE, FINDINGS, USAGE, NEEDS_A_PERSON = 0, 1, 2, 3

#: What stands for a character that the terminal's encoding lacks. A question mark would read as an unknown link.
_PLAIN: Mapping[int, str] = {ord("·"): ".", ord("→"): ">", ord("…"): "~", ord("±"): "~"}


class UsageError(Exception):
    """Unusable input. The text says what is wrong, what was seen, what was expected and what mends it."""


class _Output:
    """Stdout or stderr, which may break off, be full, or speak an encoding that lacks a character.

    What a reader that went away (head, less) does not read is dropped: the exit code is that of the command, since a
    node that is not fit must not pass because its findings were cut short.
    """

    def __init__(self, stream: TextIO, name: str) -> None:
        self._stream = stream
        self._name = name

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except UnicodeEncodeError:
            encoding = self._stream.encoding
            plain = text.translate(_PLAIN).encode(encoding, "backslashreplace").decode(encoding)
            return self.write(plain)
        except OSError as exc:
            self._lost(exc)
            return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError as exc:
            self._lost(exc)

    def _lost(self, exc: OSError) -> None:
        # What is buffered goes to nothing, so that the interpreter's last flush is silent.
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, self._stream.fileno())
        os.close(null)
        if not isinstance(exc, BrokenPipeError):
            raise UsageError(f"{self._name}: cannot be written: {exc.strerror}; expected room for the result") from exc


@contextmanager
def _streams() -> Iterator[None]:
    """Wrap what is printed to; a stream that the caller closed reads as empty and drops what is written."""
    before = sys.stdin, sys.stdout, sys.stderr
    with Path(os.devnull).open("r+", encoding="utf-8") as nothing:
        sys.stdin = sys.stdin or nothing
        sys.stdout = cast(TextIO, _Output(sys.stdout or nothing, "stdout"))
        sys.stderr = cast(TextIO, _Output(sys.stderr or nothing, "stderr"))
        try:
            yield
        finally:
            sys.stdin, sys.stdout, sys.stderr = before


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
    # A module that is no command, as the one that draws, was taken for one.
    return parser if subparsers.choices else build_parser()


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand and return its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    known = {info.name.replace("_", "-"): info.name for info in pkgutil.iter_modules(__path__)}
    asked = known.get(words[0]) if words else None
    name = f"instinct-fleet {words[0]}" if asked else "instinct-fleet"
    with _streams():
        try:
            try:
                args = build_parser(asked).parse_args(words)
                return int(args.run(args))
            finally:
                sys.stdout.flush()  # also after --help, whose reader may be gone
        except UsageError as exc:
            print(f"{name}: {exc}", file=sys.stderr)
            return USAGE
        except KeyboardInterrupt:
            print(f"{name}: interrupted", file=sys.stderr)
            return 130
