"""``instinct-fleet inspect``: what a capture or a bundle says of a node, and whether that is fit to serve."""

from __future__ import annotations

import argparse
import io
import json
import re
import sys
import tarfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from rich.console import Console

from instinct_fleet import parse
from instinct_fleet.cli import DONE, FINDINGS, UsageError
from instinct_fleet.cli.topology_view import show
from instinct_fleet.model import Finding, sort_findings, to_json, verdict
from instinct_fleet.parse import kfd
from instinct_fleet.parse.base import Evidence, Reading
from instinct_fleet.parse.merge import evidence_from_probe, merge
from instinct_fleet.policy import PolicyError, evaluate, guess, load_policy, policies
from instinct_fleet.structure import memory, structural

#: A bundle is a few MiB; what is larger is something else and is not read into memory.
MAX_BYTES = 256 * 1024 * 1024
_STREAM = re.compile(r"\.(stdout|stderr)(?=\.|$)")


def add_parser(subparsers: Any) -> None:
    """Add the subcommand."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "inspect",
        help="judge captures of amd-smi, rocm-smi and others, or a bundle of node_probe",
        description="Read captures of one node, recognised by what they say, and judge them: a capture by what its "
        "tool can show, a bundle of node_probe in full. Exit code 0: nothing is wrong or unknown, 1: findings, "
        "2: unusable input.",
    )
    parser.add_argument(
        "paths",
        metavar="PATH",
        nargs="+",
        help="output of a tool (text or JSON; X.stderr.txt beside X.stdout.txt belongs to it), a bundle (JSON, or a "
        "tarball with probe.json), or a tarball of a KFD tree; - reads stdin",
    )
    parser.add_argument(
        "--policy",
        metavar="P",
        help=f"what the node must be: {', '.join(policies())}, with /CPX and /CPX/NPS4 for partition modes (default: "
        "by device ids, else only what is wrong on any model)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document on stdout")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Read, judge, print."""
    if args.policy is not None:
        try:
            load_policy(args.policy)
        except PolicyError as exc:
            raise UsageError(str(exc)) from exc
    evidence = gather(args.paths)
    policy = args.policy or guess(evidence)
    findings = judge(evidence, policy=policy)
    outcome = verdict(findings)
    if args.json:
        document = {
            "topology": to_json(evidence.topology),
            "findings": to_json(findings),
            "verdict": outcome,
            "policy": policy,
        }
        print(json.dumps(document, indent=2, allow_nan=False))
    else:
        note = "given" if args.policy else "by device ids" if policy else "none: model not known"
        show(Console(highlight=False), evidence, findings, outcome, policy=f"{policy} ({note})" if policy else note)
    return DONE if outcome == "pass" else FINDINGS


def judge(evidence: Evidence, *, policy: str | None) -> tuple[Finding, ...]:
    """Return the findings by a policy, or without one those that hold for any model."""
    if policy is None:
        return structural(evidence)
    return sort_findings([*evaluate(evidence, policy=policy), *memory(evidence)])


# --- files --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _File:
    """One text: a file, or a member of a tarball. ``name`` is for messages and for pairing streams."""

    name: str
    text: str


def gather(paths: Sequence[str]) -> Evidence:
    """Read files of one node.

    Raises:
        UsageError: a path cannot be read, holds nothing usable, or is of another node than the rest.
    """
    readings: list[Reading] = []
    probes: list[Mapping[str, Any]] = []
    texts: list[_File] = []
    for path in paths:
        data = _read_bytes(path)
        if data[:2] == b"\x1f\x8b" or _is_tar(data):
            _read_tarball(path, data, texts, readings)
        else:
            texts.append(_File(path, data.decode("utf-8", "replace")))
    left = []
    for file in texts:
        probe = _probe_in(file.text)
        if probe is None:
            left.append(file)
        else:
            probes.append(probe)
    readings += [_read_capture(stdout, stderr) for stdout, stderr in _pair_streams(left)]
    if len(probes) > 1 or (probes and readings):
        raise UsageError(
            f"{len(probes)} bundles and {len(readings)} captures given; expected one bundle alone, or captures of one "
            "node. Run the command once for each node."
        )
    if probes:
        return evidence_from_probe(probes[0])
    subject = _STREAM.sub("", PurePosixPath(paths[0]).name).split(".")[0] or "node"
    return merge(readings, whole=False, subject="stdin" if paths[0] == "-" else subject)


def _read_bytes(path: str) -> bytes:
    expected = "expected the output of a tool, a bundle of node_probe, or a tarball"
    try:
        if path == "-":
            data = sys.stdin.buffer.read(MAX_BYTES + 1)
        else:
            with Path(path).open("rb") as handle:
                data = handle.read(MAX_BYTES + 1)
    except IsADirectoryError as exc:
        raise UsageError(f"{path} is a directory; {expected}. Give its files, or a tarball of a KFD tree.") from exc
    except OSError as exc:
        raise UsageError(f"cannot read {path}: {exc.strerror or exc}; {expected}") from exc
    except ValueError as exc:  # a NUL in the name
        raise UsageError(f"cannot read {path!r}: {exc}; {expected}") from exc
    if len(data) > MAX_BYTES:
        raise UsageError(f"{path} is larger than {MAX_BYTES >> 20} MiB; {expected}")
    return data


def _is_tar(data: bytes) -> bool:
    return data[257:262] == b"ustar"


def _read_tarball(path: str, data: bytes, texts: list[_File], readings: list[Reading]) -> None:
    """Take a bundle's probe.json, the files of a KFD tree, or else every file as a capture."""
    members: dict[str, str] = {}
    try:
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:*") as archive:
            for member in _regular(path, archive):
                handle = archive.extractfile(member)
                if handle is not None:
                    members[member.name.removeprefix("./")] = handle.read().decode("utf-8", "replace")
    except (tarfile.TarError, OSError, EOFError) as exc:
        raise UsageError(f"{path} is not a whole tarball: {exc}; expected .tar or .tar.gz") from exc
    if not members:
        raise UsageError(f"{path} is a tarball without files; expected probe.json or a KFD tree")
    probes = [name for name in sorted(members) if PurePosixPath(name).name == "probe.json"]
    tree = {name: text for name, text in members.items() if re.search(r"(^|/)nodes/\d+/", name)}
    if probes:
        texts += [_File(f"{path}:{name}", members[name]) for name in probes]
    elif tree:
        files = {name: text for name, text in members.items() if name in tree or "topology" in name}
        readings.append(kfd.from_tree(files, {}))
    else:
        texts += [_File(f"{path}:{name}", members[name]) for name in sorted(members)]


def _regular(path: str, archive: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    size = 0
    for member in archive:
        size += member.size
        if size > MAX_BYTES:
            raise UsageError(f"{path} unpacks to more than {MAX_BYTES >> 20} MiB; expected a bundle or a KFD tree")
        if member.isfile():
            yield member


def _probe_in(text: str) -> Mapping[str, Any] | None:
    """Return the document of node_probe that a text is, bare or as Ansible registers it, else None."""
    if not text.lstrip().startswith("{"):
        return None
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return None
    for candidate in (document, document.get("probe") if isinstance(document, dict) else None):
        if isinstance(candidate, dict) and isinstance(candidate.get("commands"), dict) and "schema" in candidate:
            return candidate
    return None


def _pair_streams(files: Iterable[_File]) -> Iterator[tuple[_File | None, _File | None]]:
    """Put the two streams of one run together by their names; a stream without its partner stands alone."""
    pairs: dict[str, dict[str, _File]] = {}
    for file in files:
        match = _STREAM.search(file.name)
        pairs.setdefault(_STREAM.sub("", file.name), {})[match.group(1) if match else "stdout"] = file
    for slot in pairs.values():
        yield slot.get("stdout"), slot.get("stderr")


def _read_capture(stdout: _File | None, stderr: _File | None) -> Reading:
    named = stdout or stderr
    return parse.read(
        stdout.text if stdout else "",
        stderr=stderr.text if stderr else "",
        name=named.name if named else None,
    )
