"""One node's verdict, the table of all of them, who differs from the fleet, and the bundle that is kept."""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import json
import re
import tarfile
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from instinct_fleet import policy as policies
from instinct_fleet.model import Topology, to_json
from instinct_fleet.parse.base import Evidence
from instinct_fleet.parse.merge import evidence_from_probe

#: What must be the same on all nodes of a fleet, and how it is called in the drift list.
FINGERPRINT = ("driver", "ROCm", "kernel", "firmware", "topology")


def topology_hash(topology: Topology) -> str:
    """Return a short hash of what a node is: models, partitions, NUMA nodes and link types, not its addresses."""
    shape = [
        [[g.device_id, g.numa_node, to_json(g.partition)] for g in topology.gpus],
        [[link.a, link.b, link.type] for link in topology.links],
        [[len(node.cpus), list(node.distances)] for node in topology.numa],
    ]
    return hashlib.sha256(json.dumps(shape).encode()).hexdigest()[:8]


def topology_verdict(
    probe: Mapping[str, Any],
    *,
    host: str,
    policy: str,
    overrides: Mapping[str, Any] | None = None,
    accept_unknown: bool = False,
) -> dict[str, Any]:
    """Judge one node.

    Returns:
        ``host``, ``policy``, ``findings`` (worst first), ``stops`` (the findings that refuse the node), ``simulated``,
        and ``fingerprint`` (what must not differ in a fleet; None where it could not be read).
    """
    evidence = evidence_from_probe(probe)
    findings = to_json(policies.evaluate(evidence, policy=policy, overrides=overrides))
    stopping = ("error",) if accept_unknown else ("error", "unknown")
    return {
        "host": host,
        "policy": policy,
        "findings": findings,
        "stops": [f for f in findings if f["severity"] in stopping],
        "simulated": bool(probe.get("simulated")),
        "fingerprint": fingerprint(probe, evidence),
    }


def policy_problems(policy: str, *, overrides: Mapping[str, Any] | None = None) -> list[str]:
    """Say what is wrong with the name of a policy or with corrections of it; nothing is known of a node here."""
    try:
        policies.load_policy(policy, overrides)
    except policies.PolicyError as exc:
        return [str(exc)]
    return []


def fingerprint(probe: Mapping[str, Any], evidence: Evidence | None = None) -> dict[str, str | None]:
    """Return what tells one state of a node from another, by the names of ``FINGERPRINT``; None where not known."""
    evidence = evidence or evidence_from_probe(probe)
    versions = evidence.facts.get("versions") or {}
    return {
        "driver": (probe.get("module") or {}).get("version") or versions.get("amdgpu"),
        "ROCm": versions.get("rocm"),
        "kernel": probe.get("kernel"),
        "firmware": _one_value(evidence.facts.get("firmware")),
        "topology": topology_hash(evidence.topology),
    }


def _one_value(values: Any) -> str | None:
    """Return the firmware of all GPUs as one word; several versions on one node are joined."""
    if isinstance(values, Mapping):
        values = list(values.values())
    if not isinstance(values, (list, tuple)) or not values:
        return str(values) if values else None
    return " and ".join(sorted({str(v) for v in values}))


def fleet_drift(verdicts: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return one line for each host and property that differs from what most hosts have.

    With fewer than three hosts there is no majority; then every difference is told once, without taking a side.
    """
    lines: list[str] = []
    for name in FINGERPRINT:
        seen = {v["host"]: v["fingerprint"].get(name) for v in verdicts}
        counts = Counter(value for value in seen.values() if value is not None)
        if len(counts) < 2 and (not counts or None not in seen.values()):
            continue
        ranked = sorted(counts.items(), key=lambda item: (-item[1], str(item[0])))
        tie = len(ranked) > 1 and ranked[0][1] == ranked[1][1]
        if tie:
            parts = [
                f"{value} on {', '.join(sorted(host for host, s in seen.items() if s == value))}"
                for value, _n in ranked
            ]
            groups = "; ".join(parts)
            lines.append(f"{name} differs and no value has a majority: {groups}")
            continue
        majority, count = ranked[0]
        for host in sorted(h for h, value in seen.items() if value != majority):
            value = "unknown" if seen[host] is None else seen[host]
            lines.append(f"{host}: {name} is {value}; {count} of {len(seen)} hosts have {majority}")
    return lines


def acceptance_table(verdicts: Sequence[Mapping[str, Any]]) -> str:
    """Return the table at the end of the acceptance, or an empty text when all is well and alike.

    One line a host that is refused, with its worst finding; then the hosts that differ from the others.
    """
    refused = [v for v in verdicts if v["stops"]]
    lines: list[str] = []
    if refused:
        lines.append(f"{len(refused)} of {len(verdicts)} hosts are not accepted:")
        width = max(len(v["host"]) for v in refused)
        for verdict in sorted(refused, key=lambda v: v["host"]):
            first = verdict["stops"][0]
            rest = len(verdict["stops"]) - 1
            more = f" (and {rest} more)" if rest else ""
            lines.append(f"  {verdict['host'].ljust(width)}  [{first['severity']}] {_told(first)}{more}")
    drift = fleet_drift(verdicts)
    if drift:
        lines.append("Hosts that differ from the others:")
        lines.extend(f"  {line}" for line in drift)
    if lines and any(v["simulated"] for v in verdicts):
        lines.append("Simulated hardware.")
    return "\n".join(lines)


def _told(item: Mapping[str, Any]) -> str:
    text = str(item["message"])
    return text if text.startswith(str(item["subject"])) else f"{item['subject']}: {text}"


#: What identifies one piece of hardware, and what may be a secret, in whatever format a tool prints it.
_REDACTIONS: tuple[tuple[re.Pattern[str], str], ...] = (
    (
        re.compile(r'("(?:[a-z_]*serial[a-z_]*|asic_serial|uuid|hip_uuid|unique_id)"\s*:\s*")[^"]*"', re.I),
        r'\1REDACTED"',
    ),
    (re.compile(r"((?:SERIAL|SERIAL_NUMBER|PRODUCT_SERIAL|UUID|HIP_UUID|Uuid)\s*:\s*)\S+", re.I), r"\1REDACTED"),
    (re.compile(r"^(unique_id )\d+$", re.M), r"\1REDACTED"),
    (
        re.compile(r"((?:password|passwd|token|secret|api[_-]?key)\S*?\s*[=:]\s*[\"']?)[^\s\"',}]+", re.I),
        r"\1REDACTED",
    ),
    (re.compile(r"(Device Serial Number )\S+"), r"\1REDACTED"),
)


def redact(value: Any) -> Any:
    """Return a copy of a bundle without serial numbers, unique ids and anything that looks like a secret."""
    if isinstance(value, Mapping):
        return {key: redact(entry) for key, entry in value.items() if key != "environment_values"}
    if isinstance(value, (list, tuple)):
        return [redact(entry) for entry in value]
    if isinstance(value, str):
        for pattern, replacement in _REDACTIONS:
            value = pattern.sub(replacement, value)
    return value


def bundle_archive(probe: Mapping[str, Any]) -> str:
    """Return a bundle as a gzipped tar with one member, ``probe.json``, redacted, in base64.

    ``instinct-fleet inspect`` reads it. The same bundle gives the same bytes.
    """
    data = json.dumps(redact(probe), indent=1, sort_keys=True).encode()
    buffer = io.BytesIO()
    with gzip.GzipFile(fileobj=buffer, mode="wb", mtime=0) as packed, tarfile.open(fileobj=packed, mode="w") as tar:
        member = tarfile.TarInfo("probe.json")
        member.size = len(data)
        tar.addfile(member, io.BytesIO(data))
    return base64.b64encode(buffer.getvalue()).decode()
