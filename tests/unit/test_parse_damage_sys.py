"""Whatever happens to the text of a system tool on its way, it is neither an exception nor taken for whole."""

from __future__ import annotations

import random
from functools import cache
from types import ModuleType

import pytest
from support.mutate import mutate
from support.profile import PROFILES, mi300x_8
from support.render_rccl import render_json, render_text
from support.render_sys import kfd_files, render_commands

from instinct_fleet.model import verdict
from instinct_fleet.parse import fabric, kfd, numa, pci, rccl, rocminfo
from instinct_fleet.parse.base import Reading

MODULES = (fabric, kfd, numa, pci, rccl, rocminfo)


@cache
def texts() -> tuple[tuple[str, ModuleType, str], ...]:
    """Return (name, parser, text) of everything that is damaged."""
    found: list[tuple[str, ModuleType, str]] = []
    for name in ("mi300x_8", "mi210_2x4", "mi300a_4"):
        profile = PROFILES[name]()
        commands = render_commands(profile)
        found += [
            (f"{name} rocminfo", rocminfo, commands["rocminfo"][0]),
            (f"{name} lspci", pci, commands["lspci -D -vv -d 1002:"][0]),
            (f"{name} numactl", numa, commands["numactl -H"][0]),
            (f"{name} lscpu", numa, commands["lscpu"][0]),
            (f"{name} kfd", kfd, "".join(f"### {p}\n{t}" for p, t in kfd_files(profile).items())),
        ]
    found.append(("rccl text", rccl, render_text(mi300x_8())[0]))
    found.append(("rccl json", rccl, render_json(mi300x_8())))
    return tuple(found)


def passes(reading: Reading) -> bool:
    """Whether a reading is taken for whole."""
    return reading.complete and not reading.refused and verdict(reading.findings) == "pass"


def holes(reading: Reading) -> list[str]:
    """Return what a reading that is taken for whole must not lack."""
    found = [f"GPU numbers {[g.index for g in reading.gpus]}"] * (
        [g.index for g in reading.gpus] != list(range(len(reading.gpus)))
    )
    if reading.kind == "kfd":
        found += [f"GPU {g.index}: {g}" for g in reading.gpus if None in (g.bdf, g.device_id, g.arch)]
        found += [
            f"link {x.a}-{x.b}"
            for x in reading.links
            if (x.raw_type is None or x.weight is None) and x.accessible is not False
        ]
    if reading.kind == "rocminfo":
        found += [f"GPU {g.index}: {g}" for g in reading.gpus if None in (g.device_id, g.arch)]
        found += ["bus address"] * (None in reading.facts["bus_addresses"])
    if reading.kind == "lspci link":
        found += [f"link of {bdf}" for bdf, link in reading.facts["pcie"].items() if link is None]
    if reading.kind in ("numactl", "lscpu"):
        cpus = [cpu for node in reading.numa for cpu in node.cpus]
        found += ["a CPU on two nodes"] * (len(cpus) != len(set(cpus)))
    if reading.kind == "numactl":
        found += [f"node {n.id}" for n in reading.numa if n.mem_bytes is None or len(n.distances) != len(reading.numa)]
    return found


@cache
def true_bandwidths() -> frozenset[float]:
    """Return what a healthy run may be judged by."""
    rows = rccl.parse(render_text(mi300x_8())[0]).facts["points"]
    return frozenset(row.in_place.busbw for row in rows if row.size >= 1 << 30)


def damage(seed: int) -> None:
    """Damage one text and read it with its own parser. The seed is all that is needed to see it again."""
    random_ = random.Random(seed)
    name, module, text = random_.choice(texts())
    reading = module.parse(mutate(text, random_), rc=random_.choice((0, None, 1)))
    assert reading.findings or not reading.refused, f"{name} (seed {seed}): refused without a reason"
    assert all(f.code.startswith("collect_") and f.message and f.remedy for f in reading.findings), name
    assert all(f.message.isprintable() for f in reading.findings), f"{name} (seed {seed}): control characters"
    if module is rccl:
        findings = rccl.judge(reading, policy="mi300x_8")
        if verdict(findings) == "pass":
            near = min(abs(reading.facts["busbw"] - true) for true in true_bandwidths())
            assert near <= 0.02 * reading.facts["busbw"], f"{name} (seed {seed}): passes with {reading.facts['busbw']}"
    elif passes(reading):
        assert not holes(reading), f"{name} (seed {seed}): passes with {holes(reading)[:3]}"


@pytest.mark.parametrize(("name", "module", "text"), texts(), ids=[name for name, _module, _text in texts()])
def test_undamaged_text_is_whole_and_known_by_one_parser(name: str, module: ModuleType, text: str) -> None:
    reading = module.parse(text, rc=0)

    assert passes(reading), reading.findings
    assert holes(reading) == []
    assert [m for m in MODULES if m.sniff(text)] == [module]


@pytest.mark.parametrize("block", range(20))
def test_damaged_text_never_raises_nor_hides_holes(block: int) -> None:
    for seed in range(block * 100, block * 100 + 100):
        damage(seed)


@pytest.mark.nightly
@pytest.mark.parametrize("block", range(20))
def test_damaged_text_never_raises_nor_hides_holes_nightly(block: int) -> None:
    for seed in range(10_000 + block * 1000, 10_000 + block * 1000 + 1000):
        damage(seed)


@pytest.mark.parametrize("module", MODULES, ids=lambda m: m.__name__.rpartition(".")[2])
def test_odd_texts_are_refused_by_every_parser(module: ModuleType) -> None:
    odd = ["", "\n\n", "\x00", "{" * 3000, "[" * 3000, "<" * 3000, "9" * 5000, "²" * 10, "# " * 2000, "\ufeff{}"]
    odd += [f"node {'9' * 5000} cpus: 1\n", f"### nodes/{'9' * 5000}/properties\nsimd_count {'9' * 5000}\n"]
    for text in odd:
        reading = module.parse(text)
        assert reading.findings, text[:20]
        assert verdict(reading.findings) != "pass", text[:20]
