"""The contracts of the project: what a node is, what is wrong with it, and what runs on it.

Every type is a frozen dataclass and JSON-able through :func:`to_json`. ``None`` always means *unknown*: it is never
a pass. Lists are tuples in a defined order, so that equal nodes give equal documents.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

SCHEMA = 1

LinkType = Literal["XGMI", "PIX", "PXB", "PHB", "NODE", "SYS", "UNKNOWN"]
Severity = Literal["error", "unknown", "warning", "info"]
Verdict = Literal["pass", "fail", "unknown"]
#: Where a node keeps what was found out about it; Ansible reads these files as local facts.
LOCAL_FACTS = "/etc/ansible/facts.d"

LINK_TYPES: tuple[LinkType, ...] = get_args(LinkType)
#: From worst to least; the order in which findings are shown.
SEVERITIES: tuple[Severity, ...] = get_args(Severity)


@dataclass(frozen=True)
class Partition:
    """Partition modes of one physical GPU: ``compute`` SPX|DPX|TPX|QPX|CPX, ``memory`` NPS1|NPS2|NPS4."""

    compute: str | None = None
    memory: str | None = None


@dataclass(frozen=True)
class Gpu:
    """One logical GPU.

    ``index`` is the position in PCI address order. ``hip_id`` (what HIP_VISIBLE_DEVICES takes) and ``oam_id`` (the
    slot on the baseboard) are other numberings and are never derived from it.
    ``bdf`` is ``dddd:bb:dd.f`` in lower case; ``device_id`` is ``0x`` and four hex digits; ``vram_bytes`` is bytes.
    """

    index: int
    bdf: str | None = None
    device_id: str | None = None
    arch: str | None = None
    numa_node: int | None = None
    vram_bytes: int | None = None
    partition: Partition = field(default_factory=Partition)
    hip_id: int | None = None
    oam_id: int | None = None


@dataclass(frozen=True)
class Link:
    """The path between GPUs ``a`` < ``b``.

    ``raw_type`` is the word the tool printed (XGMI, PCIE, XXXX, N/A ...); ``type`` is the class derived from it and,
    for a pair that is not XGMI, from the PCI tree. ``bandwidth_mbps`` is the (min, max) that the tool printed in MB/s.
    """

    a: int
    b: int
    type: LinkType
    raw_type: str | None = None
    weight: int | None = None
    hops: int | None = None
    accessible: bool | None = None
    bandwidth_mbps: tuple[int, int] | None = None


@dataclass(frozen=True)
class NumaNode:
    """One NUMA node. ``cpus`` are the CPU numbers in order; ``distances`` is indexed by the order of the nodes."""

    id: int
    cpus: tuple[int, ...] = ()
    mem_bytes: int | None = None
    distances: tuple[int, ...] = ()


@dataclass(frozen=True)
class Host:
    """What the kernel says of the machine. ``iommu`` is ``pt``, ``on``, ``off``; ``cmdline`` is /proc/cmdline."""

    cmdline: str | None = None
    kernel: str | None = None
    numa_balancing: bool | None = None
    iommu: str | None = None
    sockets: int | None = None
    smt: bool | None = None


@dataclass(frozen=True)
class Source:
    """A tool that was read. ``complete`` is False when it was truncated, failed in part, or could not be read."""

    tool: str
    version: str | None = None
    complete: bool = True


@dataclass(frozen=True)
class Topology:
    """A node: its GPUs, the paths between them, its NUMA nodes, and where each of these facts came from."""

    gpus: tuple[Gpu, ...] = ()
    links: tuple[Link, ...] = ()
    numa: tuple[NumaNode, ...] = ()
    host: Host = field(default_factory=Host)
    sources: tuple[Source, ...] = ()
    schema: int = SCHEMA


@dataclass(frozen=True)
class Finding:
    """Something a person should know.

    ``message`` says what was seen and what was expected; ``remedy`` names the variable or command that mends it.
    ``code`` is stable; each is explained in docs/findings.md. ``subject`` is the host, GPU, pair or tool it is about.
    """

    code: str
    severity: Severity
    subject: str
    message: str
    remedy: str


@dataclass(frozen=True)
class Unit:
    """One ``vllm serve``: the GPUs, the binding and the ports that placement gave to an instance.

    ``numactl`` is the argv prefix (empty: no binding); ``numa_bind_args`` goes on the vLLM command line, since vLLM
    ignores it in a configuration file. ``env`` is what the unit must set. ``cpus`` are the CPUs the processes may
    use, ``numa_nodes`` the nodes in the order of the GPUs' first use. ``reasons`` say why these GPUs were chosen.
    """

    instance: str
    gpus: tuple[int, ...]
    hip_visible_devices: str
    numa_nodes: tuple[int, ...]
    cpus: tuple[int, ...]
    numactl: tuple[str, ...]
    numa_bind_args: tuple[str, ...]
    env: Mapping[str, str]
    host: str
    port: int
    vllm_port: int
    tensor_parallel_size: int
    pipeline_parallel_size: int = 1
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True)
class Point:
    """One level of a load test. Times are milliseconds, rates are per second, ``concurrency`` is what was asked."""

    concurrency: int
    achieved_concurrency: float | None
    requests: int
    failed: int
    request_rate: float
    output_token_rate: float | None
    ttft_p50_ms: float | None
    ttft_p99_ms: float | None
    itl_p50_ms: float | None = None
    itl_p99_ms: float | None = None
    e2e_p50_ms: float | None = None
    e2e_p99_ms: float | None = None
    counts: bool = True
    note: str = ""


@dataclass(frozen=True)
class Capacity:
    """The measured limit of one instance. ``key`` ties it to what was measured; another key means it is stale.

    ``ttft_slo_ms`` is None when throughput alone decided. ``verdict`` is ``pass``, ``fail``, ``inconclusive`` or
    ``lower bound only``; ``knee`` and ``limit`` are None unless it is ``pass`` or ``lower bound only``.
    ``knee_interval`` is where the knee can be at 95 %, when it is known. ``simulated`` says that no real hardware ran.
    """

    instance: str
    key: str
    knee: int | None
    limit: int | None
    headroom: float
    ttft_slo_ms: float | None
    points: tuple[Point, ...]
    tool_versions: Mapping[str, str] = field(default_factory=dict)
    date: str = ""
    run_id: str = ""
    note: str = ""
    verdict: str = ""
    knee_interval: tuple[int, int] | None = None
    simulated: bool = False


def to_json(value: Any) -> Any:
    """Turn a contract object into plain lists, dictionaries and scalars."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_json(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(k): to_json(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_json(v) for v in value]
    return value


def topology_from_json(document: Mapping[str, Any]) -> Topology:
    """Read a Topology document back.

    Raises:
        ValueError: the document is not a Topology of this schema; the message names the field.
    """
    if document.get("schema") != SCHEMA:
        raise ValueError(f"topology: schema is {document.get('schema')!r}, expected {SCHEMA}")
    try:
        return Topology(
            gpus=tuple(
                Gpu(**{**gpu, "partition": Partition(**(gpu.get("partition") or {}))}) for gpu in document["gpus"]
            ),
            links=tuple(
                Link(
                    **{**link, "bandwidth_mbps": tuple(link["bandwidth_mbps"]) if link.get("bandwidth_mbps") else None}
                )
                for link in document["links"]
            ),
            numa=tuple(
                NumaNode(**{**node, "cpus": tuple(node["cpus"]), "distances": tuple(node["distances"])})
                for node in document["numa"]
            ),
            host=Host(**document["host"]),
            sources=tuple(Source(**source) for source in document["sources"]),
        )
    except (KeyError, TypeError) as exc:
        raise ValueError(f"topology: not a topology document of schema {SCHEMA}: {exc}") from exc


def sort_findings(findings: Mapping[str, Finding] | tuple[Finding, ...] | list[Finding]) -> tuple[Finding, ...]:
    """Order findings worst first, then by subject and code, without repeats."""
    items = findings.values() if isinstance(findings, Mapping) else findings
    unique = {(f.severity, f.code, f.subject, f.message): f for f in items}
    return tuple(sorted(unique.values(), key=lambda f: (SEVERITIES.index(f.severity), f.subject, f.code, f.message)))


def verdict(findings: tuple[Finding, ...] | list[Finding]) -> Verdict:
    """``fail`` when an error stands, else ``unknown`` when something could not be known, else ``pass``."""
    severities = {f.severity for f in findings}
    if "error" in severities:
        return "fail"
    return "unknown" if "unknown" in severities else "pass"
