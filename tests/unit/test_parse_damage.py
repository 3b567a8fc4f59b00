"""Whatever happens to a tool's output on its way, it is neither an exception nor taken for a healthy node."""

from __future__ import annotations

import itertools
import random
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.mutate import mutate, remove_cell
from support.profile import PROFILES
from support.render_smi import (
    AMD_SMI_RELEASES,
    ROCM_SMI_RELEASES,
    amd_smi_topology_json,
    amd_smi_topology_text,
    render_commands,
    rocm_smi_json,
    rocm_smi_text,
)
from support.render_smi_text import (
    amd_smi_bare_text,
    amd_smi_monitor_text,
    amd_smi_partition_text,
    amd_smi_xgmi_metric_text,
    as_text,
)

from instinct_fleet.parse import read
from instinct_fleet.parse.base import Reading

SMALL = ("mi300x_8", "mi210_2x4", "mi300a_4", "mi355x_8")


@cache
def matrices() -> tuple[tuple[str, str], ...]:
    """Every form in which the tools print links: (name, stdout)."""
    found = []
    for name in SMALL:
        profile = PROFILES[name]()
        for release in AMD_SMI_RELEASES:
            found.append((f"{name} amd-smi text {release}", amd_smi_topology_text(profile, release)[0]))
            found.append((f"{name} amd-smi json {release}", amd_smi_topology_json(profile, release)[0]))
        for release in ROCM_SMI_RELEASES:
            found.append((f"{name} rocm-smi text {release}", rocm_smi_text(profile, release)[0]))
        found.append((f"{name} rocm-smi json", rocm_smi_json(profile, "7.0")[0]))
    return tuple(found)


@cache
def everything() -> tuple[tuple[str, str], ...]:
    """The links, and whatever else the tools print."""
    found = list(matrices())
    for name in SMALL:
        profile = PROFILES[name]()
        for release in ("6.0", "6.4", "7.0"):
            for command, output in render_commands(profile).items():
                found.append((f"{name} {command}", output[0]))
                if "static" in command or "list" in command or "metric" in command:
                    found.append((f"{name} {command} for people", as_text(output)[0]))
            for render in (amd_smi_bare_text, amd_smi_monitor_text, amd_smi_partition_text, amd_smi_xgmi_metric_text):
                found.append((f"{name} {render.__name__} {release}", render(profile, release)[0]))
    return tuple(found)


def passes(reading: Reading) -> bool:
    """Whether a reading is taken for whole and healthy."""
    return (
        not reading.refused
        and reading.complete
        and not any(f.severity in ("error", "unknown") for f in reading.findings)
    )


def holes(reading: Reading) -> list[str]:
    """What a whole reading must not lack: every pair of its GPUs, with a value of every kind it says it collects."""
    numbers = [gpu.index for gpu in reading.gpus]
    if numbers != list(range(len(numbers))):
        return [f"GPUs {numbers}"]
    if not any(aspect.startswith("link_") and aspect != "link_status" for aspect in reading.collects):
        return []
    links = {(link.a, link.b): link for link in reading.links}
    found = []
    for pair in itertools.combinations(numbers, 2):
        link = links.get(pair)
        if link is None:
            found.append(f"{pair} has no link")
            continue
        if "link_type" in reading.collects and (link.raw_type or "").upper() not in ("XGMI", "PCIE"):
            found.append(f"{pair} type {link.raw_type}")
        if "link_weight" in reading.collects and link.weight is None:
            found.append(f"{pair} weight")
        if "link_hops" in reading.collects and link.hops is None:
            found.append(f"{pair} hops")
        if "link_access" in reading.collects and link.accessible is None:
            found.append(f"{pair} access")
        if "link_bandwidth" in reading.collects and link.bandwidth_mbps is None and link.raw_type == "XGMI":
            found.append(f"{pair} bandwidth")
    return found


def damage(seed: int) -> None:
    """Damage one text and read it. The seed is all that is needed to see it again."""
    random_ = random.Random(seed)
    name, text = random_.choice(everything())
    damaged = mutate(text, random_)
    reading = read(damaged, rc=random_.choice((0, None, 1, 255)))
    assert reading.findings or not reading.refused, f"{name} (seed {seed}): refused without a reason"
    assert all(f.code.startswith("collect_") and f.message and f.remedy for f in reading.findings), name
    if passes(reading):
        assert not holes(reading), f"{name} (seed {seed}): passes with {holes(reading)[:3]}"


@pytest.mark.parametrize(("name", "text"), matrices(), ids=[name for name, _text in matrices()])
def test_undamaged_matrices_pass(name: str, text: str) -> None:
    reading = read(text, rc=0)

    assert passes(reading), reading.findings
    assert holes(reading) == []


@pytest.mark.parametrize("block", range(20))
def test_damaged_output_never_raises_nor_hides_holes(block: int) -> None:
    for seed in range(block * 100, block * 100 + 100):
        damage(seed)


@pytest.mark.nightly
@pytest.mark.parametrize("block", range(20))
def test_damaged_output_never_raises_nor_hides_holes_nightly(block: int) -> None:
    for seed in range(10_000 + block * 1000, 10_000 + block * 1000 + 1000):
        damage(seed)


@pytest.mark.parametrize(("name", "text"), matrices(), ids=[name for name, _text in matrices()])
def test_a_missing_cell_is_never_whole(name: str, text: str) -> None:
    for seed in range(8):
        damaged = remove_cell(text, random.Random(seed))
        reading = read(damaged, rc=0)

        assert not passes(reading), f"{name} (seed {seed}) passes without a cell"
        assert reading.findings, f"{name} (seed {seed}) says nothing of the missing cell"


@settings(max_examples=200, deadline=None)
@given(st.text(), st.text(), st.one_of(st.none(), st.integers(0, 255)))
def test_arbitrary_text_is_refused_with_a_reason(text: str, stderr: str, rc: int | None) -> None:
    reading = read(text, stderr=stderr, rc=rc)

    assert reading.refused
    assert reading.findings
