"""`instinct-fleet wheelhouse`: is a folder of wheels whole, unchanged, and for the nodes that will install it."""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import sys
import zipfile
from pathlib import Path

from instinct_fleet.cli import DONE, FINDINGS, UsageError
from instinct_fleet.cli.codeobjects import require_target, scan
from instinct_fleet.wheelhouse import LOCK, device_problems, wheelhouse_problems

#: What a release may hold besides what is unpacked: scripts, and folders of a file system with blocks of 4 KiB.
_PER_FILE = 4096


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add this subcommand."""
    parser = subparsers.add_parser(
        "wheelhouse",
        help="is a folder of wheels whole, unchanged, and right for the nodes",
        description="Compare every wheel of a folder with its lock by SHA-256, and look whether its Python, its C "
        "library and its device code suit the nodes.",
        epilog="Exits 1 when something is wrong.",
    )
    parser.add_argument("path", metavar="PATH", type=Path, help="folder with wheels and lock.txt")
    parser.add_argument("--python", required=True, metavar="V", help="minor version of the nodes' Python, as 3.12")
    parser.add_argument("--glibc", required=True, metavar="V", help="version of the nodes' C library, as 2.35")
    parser.add_argument("--lock", metavar="FILE", type=Path, help="the lock (default: lock.txt in PATH)")
    parser.add_argument("--require", metavar="TARGET", help="GPU that device code is needed for, as gfx942")
    parser.add_argument(
        "--device-code", metavar="NAME", action="append", default=[], help="distribution that needs it (repeatable)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Read, judge, print."""
    for option, value, pattern in (("--python", args.python, r"3\.\d+"), ("--glibc", args.glibc, r"2\.\d+")):
        if not re.fullmatch(pattern, value):
            raise UsageError(f"{option}: {value!r} is not a version like {'3.12' if option == '--python' else '2.35'}")
    require_target(args.require)
    lock = args.lock or args.path / LOCK
    try:
        text = lock.read_text(encoding="utf-8")
        wheels = sorted(args.path.glob("*.whl"))
        files = {wheel.name: _sha256(wheel) for wheel in wheels}
        unpacked = sum(_unpacked(wheel) for wheel in wheels)
    except OSError as exc:
        raise UsageError(
            f"{exc.filename or lock}: cannot be read: {exc.strerror}; make it with playbooks/build.yml"
        ) from exc
    except UnicodeDecodeError as exc:
        raise UsageError(f"{lock}: is no text: {exc}; expected the lock.txt that playbooks/build.yml wrote") from exc
    try:
        problems = wheelhouse_problems(files, lock=text, python=args.python, glibc=args.glibc)
        if args.require and not problems:
            reports = {wheel.name: scan(wheel)[0] for wheel in wheels}
            problems = device_problems(reports, gfx=args.require, required=args.device_code)
    except ValueError as exc:
        problems = [str(exc)]
    document = {
        "path": str(args.path),
        "wheels": len(wheels),
        "packed_bytes": sum(wheel.stat().st_size for wheel in wheels),
        "unpacked_bytes": unpacked,
        "problems": problems,
        "verdict": "fail" if problems else "pass",
    }
    if args.json:
        print(json.dumps(document, indent=2, sort_keys=True))
    else:
        for problem in problems:
            print(f"error: {problem}", file=sys.stderr)
        print(f"{args.path}: {len(wheels)} wheels, {unpacked >> 20} MiB unpacked, {document['verdict']}")
    return FINDINGS if problems else DONE


def _sha256(path: Path) -> str:
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def _unpacked(path: Path) -> int:
    """Return what a wheel takes on a disk; a file that is no archive counts as it is, and its checksum will tell."""
    try:
        with zipfile.ZipFile(path) as archive:
            return sum(-(-info.file_size // _PER_FILE) * _PER_FILE for info in archive.infolist())
    except (zipfile.BadZipFile, ValueError):
        return path.stat().st_size
