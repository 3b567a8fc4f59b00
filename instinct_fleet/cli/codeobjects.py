"""`instinct-fleet codeobjects`: list the gfx targets in files, wheels and whole environments."""

from __future__ import annotations

import argparse
import fnmatch
import json
import mmap
import os
import posixpath
import re
import stat
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path

from instinct_fleet.cli import DONE, FINDINGS, UsageError
from instinct_fleet.codeobjects import MAGICS, FileReport, judge, kpack_patterns, read
from instinct_fleet.model import Finding, to_json, verdict

_ZIP = b"PK\x03\x04"
#: Text that makes up nine files in ten of an environment; to open each of them would take longer than all the rest.
_TEXT = (".py", ".pyc", ".pyi", ".h", ".hpp", ".cuh", ".json", ".txt", ".md", ".rst", ".yml", ".yaml", ".html", ".js")


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add this subcommand."""
    parser = subparsers.add_parser(
        "codeobjects",
        help="list the gfx targets that files, wheels and environments hold device code for",
        description="Read ELF files, static libraries, wheels and whole directories for AMD device code, without "
        "running anything, and list the gfx targets of each file.",
        epilog="Exits 1 when --require is not met or something could not be read.",
    )
    parser.add_argument("path", metavar="PATH", help="shared object, code object, archive, wheel, directory or venv")
    parser.add_argument("--require", metavar="TARGET", help="fail for files with device code, but not for this target")
    parser.add_argument(
        "--allow-missing",
        metavar="PATTERN",
        action="append",
        default=[],
        help="shell pattern of paths, as listed, that may lack the target (repeatable)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.set_defaults(run=run)


def require_target(target: str | None) -> None:
    """Refuse a value of --require that no device code could be for.

    Raises:
        UsageError: it is given, and no target.
    """
    if target is not None and not re.fullmatch(r"gfx[0-9a-z-]+(:(sramecc|xnack)[+-])*", target):
        raise UsageError(f"--require: {target!r} is not a target; expected for example gfx942 or gfx942:xnack-")


def run(args: argparse.Namespace) -> int:
    """Scan, judge, print."""
    require_target(args.require)
    path = Path(args.path)
    try:
        path.stat()
    except OSError as exc:
        raise UsageError(f"{path}: {(exc.strerror or str(exc)).lower()}; expected a file or a directory") from exc
    reports, files = scan(path)
    findings = judge(reports, subject=str(path), require=args.require, allow_missing=args.allow_missing)
    if args.json:
        document = {
            "path": str(path),
            "require": args.require,
            "files_read": files,
            "files": [to_json(report) for report in reports],
            "targets": sorted({target for report in reports for target, _ in report.targets}),
            "findings": to_json(findings),
            "verdict": verdict(findings),
        }
        print(json.dumps(document, indent=2, sort_keys=True))
    else:
        _print(path, reports, files, findings)
    return DONE if verdict(findings) == "pass" else FINDINGS


def _print(path: Path, reports: tuple[FileReport, ...], files: int, findings: tuple[Finding, ...]) -> None:
    for report in reports:
        if report.holds_device_code:
            held = "  ".join(f"{target} x{count}" for target, count in report.targets) or "in a kpack archive"
            print(f"{report.path}: {held}")
        elif report.cuda:
            print(f"{report.path}: CUDA")
    amd = sum(report.holds_device_code for report in reports)
    print(f"{path}: {amd} of {files} files hold AMD device code", file=sys.stderr)
    for finding in findings:
        print(f"{finding.severity}: {finding.subject}: {finding.message}. {finding.remedy}", file=sys.stderr)


def scan(path: Path) -> tuple[tuple[FileReport, ...], int]:
    """Read a file or everything under a directory.

    Returns:
        The reports, sorted by path (relative to a directory that was given), and how many files were looked at.
        kpack archives that a host file refers to are read too, wherever they lie.
    """
    root = path if path.is_dir() else path.parent
    pending = list(_walk(root)) if path.is_dir() else [(str(path), path.name)]
    reports: list[FileReport] = []
    known: set[str] = set()
    files = 0
    while pending:
        found: list[FileReport] = []
        for file, name in pending:
            known.add(name)
            read_files, read_reports = _scan_file(file, name)
            files += read_files
            found += read_reports
        reports += found
        patterns = sorted({pattern for report in found for pattern in kpack_patterns(report)})
        pending = [(file, name) for file, name in _matching(root, patterns) if name not in known]
    return tuple(sorted(reports, key=lambda report: report.path)), files


def _matching(root: Path, patterns: list[str]) -> Iterator[tuple[str, str]]:
    """Yield the files that match patterns of a name in a directory, with their names relative to ``root``."""
    for pattern in patterns:
        folder = root / Path(pattern).parent
        for entry in sorted(folder.iterdir()) if folder.is_dir() else ():
            name = posixpath.join(posixpath.dirname(pattern), entry.name)
            if fnmatch.fnmatch(name, pattern):
                yield str(entry), name


def _walk(root: Path) -> Iterator[tuple[str, str]]:
    """Yield each regular file once, with its name relative to ``root``: not links, nor a second name of an inode."""
    seen: set[tuple[int, int]] = set()
    pending = [""]
    while pending:
        folder = pending.pop()
        try:
            entries = sorted(os.scandir(root / folder), key=lambda entry: entry.name)
        except OSError:
            yield str(root / folder), folder or "."  # reading it fails in the same way, and says so
            continue
        for entry in entries:
            name = f"{folder}/{entry.name}" if folder else entry.name
            if entry.is_dir(follow_symlinks=False):
                pending.append(name)
            elif entry.is_file(follow_symlinks=False) and not name.endswith(_TEXT):
                status = entry.stat(follow_symlinks=False)
                if status.st_nlink > 1:
                    if (status.st_dev, status.st_ino) in seen:
                        continue
                    seen.add((status.st_dev, status.st_ino))
                yield entry.path, name


def _scan_file(file: str, name: str) -> tuple[int, list[FileReport]]:
    """Read one file on disk. Only the first bytes are read of a file that cannot hold device code.

    Returns:
        How many files that was (the members, for a wheel) and the reports.
    """
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK)
        try:
            head = os.read(descriptor, 8)
            if head.startswith(_ZIP):
                return _scan_zip(file, name)
            if not head.startswith(MAGICS) or not stat.S_ISREG(os.fstat(descriptor).st_mode):
                return 1, []
            return 1, _scan_stream(descriptor, name)
        finally:
            os.close(descriptor)
    except (OSError, ValueError) as exc:
        return 1, [_unreadable(name, exc)]


def _scan_stream(descriptor: int, name: str) -> list[FileReport]:
    with mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ) as content:
        return list(read(content, name=name))


def _scan_zip(file: str, name: str) -> tuple[int, list[FileReport]]:
    """Read the members of a wheel that can hold device code; each is unpacked to a temporary file, never to memory."""
    reports: list[FileReport] = []
    files = 0
    try:
        with zipfile.ZipFile(file) as archive:
            for info in archive.infolist():
                files += not info.is_dir()
                if info.file_size < len(MAGICS[0]):
                    continue
                inner = f"{name}!{info.filename}"
                try:
                    reports += _scan_member(archive, info, inner)
                except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, OSError) as exc:
                    reports.append(_unreadable(inner, exc))
    except (zipfile.BadZipFile, zlib.error, NotImplementedError, UnicodeDecodeError) as exc:
        # Many things are zip files. Only a wheel is said to hold code, so only a damaged wheel is a finding.
        if name.endswith((".whl", ".zip")):
            reports.append(_unreadable(name, exc))
    return files, reports


def _scan_member(archive: zipfile.ZipFile, info: zipfile.ZipInfo, name: str) -> list[FileReport]:
    with archive.open(info) as member:
        head = member.read(8)
        if not head.startswith(MAGICS):
            return []
        with tempfile.TemporaryFile() as copy:
            copy.write(head)
            while chunk := member.read(1 << 20):
                copy.write(chunk)
            copy.flush()
            return _scan_stream(copy.fileno(), name)


def _unreadable(name: str, exc: Exception) -> FileReport:
    finding = Finding(
        code="codeobjects_unreadable",
        severity="unknown",
        subject=name,
        message=f"cannot be read: {exc}",
        remedy="run as a user who may read it, or copy the file again",
    )
    return FileReport(path=name, findings=(finding,))
