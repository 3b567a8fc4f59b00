from __future__ import annotations

import json
from dataclasses import replace

import pytest
from support.profile import GIB, PROFILES, NodeProfile, Profile, mi300x_8
from support.render_sys import distance, render_commands
from support.tree import sections

from instinct_fleet.parse import numa
from instinct_fleet.parse.base import parse_cpu_list


def nps4() -> Profile:
    nodes = tuple(NodeProfile(f"{16 * n}-{16 * n + 15},{128 + 16 * n}-{143 + 16 * n}", 64 * GIB) for n in range(8))
    return replace(mi300x_8(), name="nps4", nodes=nodes, numa=(3, 2, 1, 0, 7, 6, 5, 4))


MACHINES = [*(PROFILES[name]() for name in sorted(PROFILES)), nps4()]


@pytest.mark.parametrize("profile", MACHINES, ids=lambda p: p.name)
def test_every_source_shows_the_same_nodes(profile: Profile) -> None:
    commands, read = render_commands(profile), sections(profile)
    full, brief, kernel = (
        numa.parse(commands["numactl -H"][0]),
        numa.parse(commands["lscpu"][0]),
        numa.from_probe(read["numa"], read["cpu"]),
    )

    assert (full.kind, brief.kind, kernel.kind) == ("numactl", "lscpu", "sysfs numa")
    for reading in (full, brief, kernel):
        assert reading.complete, reading.findings
        assert [node.cpus for node in reading.numa] == [parse_cpu_list(n.cpus) for n in profile.nodes]
    for reading in (full, kernel):
        assert [node.mem_bytes for node in reading.numa] == [n.mem_bytes for n in profile.nodes]
        count = range(len(profile.nodes))
        assert [node.distances for node in reading.numa] == [
            tuple(distance(profile, a, b) for b in count) for a in count
        ]
    for reading in (brief, kernel):
        assert reading.host.sockets == profile.sockets
        assert reading.host.smt is ("," in profile.nodes[0].cpus)


def test_lscpu_as_json() -> None:
    text = render_commands(mi300x_8())["lscpu"][0]
    pairs = [
        dict(zip(("field", "data"), (p.strip() for p in line.split(":", 1)), strict=True)) for line in text.splitlines()
    ]
    document = json.dumps({"lscpu": [{**p, "field": p["field"] + ":"} for p in pairs]}, indent=3)

    assert numa.sniff(document)
    assert numa.parse(document).numa == numa.parse(text).numa


def test_node_without_memory_or_cpus_is_whole() -> None:
    text = (
        "available: 2 nodes (0-1)\nnode 0 cpus: 0 1\nnode 0 size: 100 MB\nnode 0 free: 50 MB\nnode 1 cpus:\n"
        "node 1 size: 0 MB\nnode 1 free: 0 MB\nnode distances:\nnode   0   1 \n  0:  10  20 \n  1:  20  10 \n"
    )
    reading = numa.parse(text)

    assert reading.complete
    assert [node.cpus for node in reading.numa] == [(0, 1), ()]


@pytest.mark.parametrize("lines", range(1, 9))
def test_cut_text_is_not_whole(lines: int) -> None:
    text = render_commands(mi300x_8())["numactl -H"][0]
    reading = numa.parse("\n".join(text.splitlines()[:-lines]))

    assert not reading.complete
    assert all(f.severity in ("unknown", "error") for f in reading.findings)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("  1:  32  10 ", "  1:  31  10 ", "31 and 32 apart"),
        ("  0:  10  32 ", "  0:  12  32 ", "12 from itself"),
        ("node 1 cpus: 48 49", "node 1 cpus: 47 49", "CPU 47 is on two nodes"),
        ("node 1 size: 1048576 MB", "node 1 size: ? MB", "node 1 has no size"),
        ("available: 2 nodes (0-1)", "available: 4 nodes (0-3)", "the first line says 4"),
    ],
)
def test_contradictions_are_named(old: str, new: str, said: str) -> None:
    text = render_commands(mi300x_8())["numactl -H"][0]
    assert old in text
    reading = numa.parse(text.replace(old, new))

    assert not reading.complete
    assert said in reading.findings[0].message


def test_lscpu_with_a_lost_node_is_not_whole() -> None:
    text = render_commands(mi300x_8())["lscpu"][0]
    reading = numa.parse(text.replace("NUMA node1 CPU(s):", "NUMA nodeX CPU(s):"))

    assert [(f.code, f.severity) for f in reading.findings] == [("collect_truncated", "unknown")]


def test_probe_without_nodes_and_with_damaged_ones() -> None:
    read = sections(mi300x_8())
    assert [f.code for f in numa.from_probe({}, read["cpu"]).findings] == ["collect_empty"]

    read["numa"]["1"]["cpulist"] = "48-47"
    read["numa"]["0"]["meminfo"] = None
    reading = numa.from_probe(read["numa"], read["cpu"])
    assert not reading.complete
    assert "not a CPU list" in reading.findings[0].message
    assert "node0 has no readable MemTotal" in reading.findings[0].message


@pytest.mark.parametrize("listed", ["0-99999999999", "3-1", "0-", "a", "1-2-3"])
def test_cpu_lists_that_cannot_be(listed: str) -> None:
    with pytest.raises(ValueError, match="not a CPU list"):
        parse_cpu_list(listed)


@pytest.mark.parametrize(
    ("text", "stderr", "rc", "code", "severity"),
    [
        ("", "bash: line 1: numactl: command not found", 127, "collect_tool_missing", "error"),
        ("", "", 0, "collect_empty", "error"),
        ("No NUMA available on this system\n", "", 1, "collect_unexpected", "unknown"),
        ("GPU0 GPU1\n", "", 0, "collect_unsupported_layout", "error"),
    ],
)
def test_what_shows_no_nodes_is_refused(text: str, stderr: str, rc: int, code: str, severity: str) -> None:
    reading = numa.parse(text, stderr=stderr, rc=rc)

    assert reading.refused
    assert [(f.code, f.severity) for f in reading.findings] == [(code, severity)]


@pytest.mark.parametrize(("offline", "complete"), [("4-7", True), ("4-6", False), ("4-", False)])
def test_offline_cpus_are_on_no_node(offline: str, complete: bool) -> None:
    text = f"CPU(s): 8\nOn-line CPU(s) list: 0-3\nOff-line CPU(s) list: {offline}\nThread(s) per core: 1\n"
    text += "Socket(s): 2\nNUMA node(s): 2\nNUMA node0 CPU(s): 0,1\nNUMA node1 CPU(s): 2,3\n"

    assert numa.parse(text).complete is complete
