"""The fake machine is one that node_probe can read, and its faults show where a real one's would."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.profile import PROFILES, mi300x_8
from support.render_sys import kfd_files, render_commands, write_tree
from support.tree import node_probe, sections


def test_commands_are_keyed_as_node_probe_calls_them() -> None:
    calls = {" ".join(argv) for argv in node_probe().DEFAULT_COMMANDS}

    # numactl and lscpu are the node's own: on a simulated node they tell of the machine that it runs on.
    assert set(render_commands(mi300x_8())) - {"numactl -H", "lscpu"} <= calls


@pytest.mark.parametrize("name", sorted(PROFILES))
def test_probe_reads_the_tree_of_every_profile(name: str) -> None:
    profile = PROFILES[name]()
    read = sections(profile)

    assert read["kfd"]["present"]
    assert read["kfd"]["errors"] == {}
    assert read["kfd"]["files"] == {key: read["kfd"]["files"][key] for key in sorted(kfd_files(profile))}
    cards = {bdf: d for bdf, d in read["pci"].items() if d["device"] == profile.device_id}
    assert sorted(cards) == sorted(set(profile.physical))
    assert {d["driver"] for d in cards.values()} == {"amdgpu"}
    assert [int(n) for n in read["numa"]] == list(range(len(profile.nodes)))
    assert read["cpu"]["sockets"] == profile.sockets


def test_two_bridges_of_the_module_are_above_each_gpu() -> None:
    pci = sections(mi300x_8())["pci"]
    for bdf in mi300x_8().bdfs:
        above = [pci[part] for part in pci[bdf]["path"].split("/") if part in pci and part != bdf]
        assert [(d["vendor"], d["device"]) for d in above[-2:]] == [("0x1022", "0x1500"), ("0x1002", "0x1501")]


def test_no_driver_leaves_the_pci_devices_only() -> None:
    read = sections(mi300x_8().with_faults("no_driver"))

    assert not read["kfd"]["present"]
    assert read["kfd"]["files"] == {}
    assert {d["driver"] for d in read["pci"].values() if d["device"] == "0x74a1"} == {None}


def test_files_of_proc_and_module(tmp_path: Path) -> None:
    write_tree(mi300x_8().with_faults("iommu_missing", "numa_balancing_on"), tmp_path)

    assert "iommu=pt" not in (tmp_path / "proc/cmdline").read_text()
    assert (tmp_path / "proc/sys/kernel/numa_balancing").read_text() == "1\n"
    assert (tmp_path / "sys/module/amdgpu/initstate").read_text() == "live\n"
