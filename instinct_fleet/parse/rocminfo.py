"""``rocminfo``: the agents that the ROCm runtime shows, of any release.

A reading's GPUs are in the order of their bus numbers. rocminfo prints an address without the PCI domain, so ``bdf``
stays None (an MI308X server has GPUs in two domains); ``facts["bus_addresses"]`` has ``bb:dd.f`` to match by.
``hip_id`` is the position among the GPU agents, which is what HIP counts by.

``ROCR_VISIBLE_DEVICES`` and container device rules hide agents, so the number of agents is a fact, never a count of
the GPUs in the machine: ``gpu_count`` is not among what a reading collects.

Facts: ``gpu_agents``, ``cpu_agents`` (numbers); ``bus_addresses``, ``kfd_nodes``, ``uuids_known`` (one entry a GPU);
``driver_version`` (None: the module does not tell); ``isa`` (the full target of each GPU, as
``gfx942:sramecc+:xnack-``); ``done`` (the run ended as it should).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from instinct_fleet.model import Finding, Gpu
from instinct_fleet.parse.base import Aspect, Reading
from instinct_fleet.parse.symptoms import instead_of_data, note, quote, unsupported

KIND = TOOL = "rocminfo"

_AGENT = re.compile(r"^Agent (\d{1,5})\s*$")
_FIELD = re.compile(r"^  (?P<name>[A-Z][\w ().:/-]*?):\s+(?P<value>\S.*?)\s*$")
_POOL_FIELD = re.compile(r"^ {4,}(?P<name>[A-Z][\w .]*?):\s*(?P<value>\S.*?)\s*$")
_NUMBER = re.compile(r"^(\d{1,18})(?:\(0x([0-9a-fA-F]{1,16})\))?(?!\d)")
_MODULE = re.compile(r"^.*ROCk module (?:version (?P<version>\S+) )?is loaded", re.M)
_DONE = re.compile(r"^\*\*\* Done \*\*\*\s*$", re.M)


@dataclass
class _Agent:
    """One block of the listing."""

    number: int | None
    fields: dict[str, str] = field(default_factory=dict)
    pools: list[dict[str, str]] = field(default_factory=list)
    isa: list[str] = field(default_factory=list)

    def whole(self, name: str) -> int | None:
        """Return a number; one that is printed twice, as ``29857(0x74a1)``, must be the same both times."""
        match = _NUMBER.match(self.fields.get(name, ""))
        if match is None or (match[2] and int(match[1]) != int(match[2], 16)):
            return None
        return int(match[1])


def sniff(text: str) -> bool:
    """Tell whether a text is from rocminfo, its errors included."""
    return bool(
        re.search(r"^\s*(?:ROCk module |HSA Agents|HSA System Attributes|  Device Type: +(?:GPU|CPU)\s*$)", text, re.M)
        or "Unable to open /dev/kfd" in text
        or re.search(r"\brocminfo: (?:command )?not found", text)
    )


def parse(text: str, *, stderr: str = "", rc: int | None = None) -> Reading:
    """Read what rocminfo printed; see the module for what a reading holds."""
    agents = _agents(text)
    if not agents:
        refused = instead_of_data(KIND, TOOL, text, stderr=stderr, rc=rc)
        if refused is None and sniff(text):
            failed = re.search(r"^.*(?:hsa|HSA)\S*.*(?:error|fail|returned).*$", f"{text}\n{stderr}", re.M | re.I)
            said = quote(failed[0]) if failed else "no agent is listed"
            finding = note("collect_library_error", "error", TOOL, f"rocminfo showed no agent: {said}")
            refused = Reading(kind=KIND, tool=TOOL, complete=False, findings=(finding,), refused=True)
        return refused or unsupported(KIND, TOOL, text, "the agents that `rocminfo` lists")
    return _reading(agents, text, stderr, rc)


def _agents(text: str) -> list[_Agent]:
    """Split the listing into agents. A block without its heading (an excerpt) starts at a ``Name:`` of level one."""
    agents: list[_Agent] = []
    section = ""
    for line in text.splitlines():
        heading = _AGENT.match(line)
        if heading:
            agents.append(_Agent(int(heading[1])))
            section = ""
            continue
        match = _FIELD.match(line)
        if match:
            name, value = match["name"].rstrip(":"), match["value"]
            section = ""
            if name == "Name" and (not agents or "Name" in agents[-1].fields):
                agents.append(_Agent(None))
            if agents:
                agents[-1].fields.setdefault(name, value)
            continue
        stripped = line.strip()
        if re.match(r"^  \S", line):
            section = stripped.rstrip(":")
        elif agents and section == "Pool Info":
            if stripped.startswith("Pool "):
                agents[-1].pools.append({})
            elif agents[-1].pools and (pool := _POOL_FIELD.match(line)):
                agents[-1].pools[-1].setdefault(pool["name"], pool["value"])
        elif agents and section == "ISA Info" and (isa := _POOL_FIELD.match(line)) and isa["name"] == "Name":
            agents[-1].isa.append(isa["value"])
    return [agent for agent in agents if agent.fields]


def _reading(agents: list[_Agent], text: str, stderr: str, rc: int | None) -> Reading:
    cards = [agent for agent in agents if agent.fields.get("Device Type") == "GPU"]
    hosts = [agent for agent in agents if agent.fields.get("Device Type") == "CPU"]
    findings: list[Finding] = []
    lost: list[str] = []
    done = _DONE.search(text) is not None
    if not done:
        lost.append("the last line `*** Done ***` is missing")
    numbers = [agent.number for agent in agents]
    if numbers != list(range(1, len(agents) + 1)):
        lost.append("the agents are not numbered from 1 on")
    untyped = len(agents) - len(cards) - len(hosts)
    if untyped:
        lost.append(f"{untyped} agents have no Device Type")
    located = []
    for hip_id, agent in enumerate(cards):
        bdfid = agent.whole("BDFID")
        gpu, missing = _gpu(agent, hip_id)
        if bdfid is None or bdfid > 0xFFFF:
            missing.append("BDFID")
        if missing:
            lost.append(f"agent {agent.number} lacks {', '.join(missing)}")
        located.append((bdfid if bdfid is not None else 1 << 16, hip_id, gpu, agent))
    located.sort(key=lambda item: item[:2])
    if lost:
        more = f" (and {len(lost) - 3} more)" if len(lost) > 3 else ""
        message = f"the listing is not whole: {'; '.join(lost[:3])}{more}"
        findings.append(note("collect_truncated", "unknown", TOOL, message))
    if not cards:
        message = f"the ROCm runtime shows {len(hosts)} CPU agents and no GPU; expected each GPU of the node"
        remedy = "check the rights on /dev/kfd and /dev/dri/renderD*, and ROCR_VISIBLE_DEVICES"
        findings.append(note("collect_empty", "unknown", TOOL, message, remedy=remedy))
    if stderr.strip():
        findings.append(note("collect_noise", "warning", TOOL, f"rocminfo also said: {quote(stderr)}"))
    if rc:
        findings.append(note("collect_exit_code", "warning", TOOL, f"rocminfo ended with exit code {rc}; expected 0"))
    collects: set[Aspect] = {"arch", "device_id", "driver"}
    if located and all(gpu.vram_bytes for _bdfid, _hip, gpu, _agent in located):
        collects.add("vram")
    module = _MODULE.search(text)
    return Reading(
        kind=KIND,
        tool=TOOL,
        layout="agents",
        complete=not [f for f in findings if f.severity != "warning"],
        gpus=tuple(
            Gpu(index, device_id=gpu.device_id, arch=gpu.arch, vram_bytes=gpu.vram_bytes, hip_id=gpu.hip_id)
            for index, (_bdfid, _hip, gpu, _agent) in enumerate(located)
        ),
        facts={
            "gpu_agents": len(cards),
            "cpu_agents": len(hosts),
            "bus_addresses": tuple(
                f"{bdfid >> 8:02x}:{bdfid >> 3 & 0x1F:02x}.{bdfid & 7}" if bdfid < 1 << 16 else None
                for bdfid, _hip, _gpu, _agent in located
            ),
            "kfd_nodes": tuple(agent.whole("Node") for _bdfid, _hip, _gpu, agent in located),
            "uuids_known": tuple(
                agent.fields.get("Uuid", "GPU-XX") != "GPU-XX" for _bdfid, _hip, _gpu, agent in located
            ),
            "isa": tuple(
                agent.isa[0].rpartition("--")[2] if agent.isa else None for _bdfid, _hip, _gpu, agent in located
            ),
            "driver_version": module["version"] if module else None,
            "done": done,
        },
        collects=frozenset(collects),
        findings=tuple(findings),
    )


def _gpu(agent: _Agent, hip_id: int) -> tuple[Gpu, list[str]]:
    """Return the GPU of an agent and the names of the fields that it should have and has not.

    Cache sizes and the internal node id are left alone: releases print wrong ones. The target is the one that the ISA
    list confirms.
    """
    missing = []
    arch = agent.fields.get("Name", "")
    if not re.fullmatch(r"gfx[0-9a-f]{3,4}", arch):
        missing.append("Name with a gfx target")
        arch = ""
    targets = {isa.rpartition("--")[2].partition(":")[0] for isa in agent.isa}
    # A release may list generic targets (gfx9-4-generic) beside the real one.
    if agent.isa and arch and arch not in targets:
        missing.append(f"an ISA of its own target {arch}")
        arch = ""
    chip = agent.whole("Chip ID")
    if not chip:
        missing.append("Chip ID")
    sizes = [
        int(size[1]) * 1024
        for pool in agent.pools
        if pool.get("Segment", "").startswith("GLOBAL")
        and (size := re.match(r"(\d{1,15})(?:\(0x\w+\))? ?KB", pool.get("Size", "")))
    ]
    return Gpu(
        index=hip_id,
        device_id=f"0x{chip:04x}" if chip else None,
        arch=arch or None,
        # Each pool of global memory shows the whole of it under other flags.
        vram_bytes=max(sizes) if sizes else None,
        hip_id=hip_id,
    ), missing
