"""The emulated machine of the test bench: GPUs where the profile has them, and no process of others ended."""

from __future__ import annotations

import dataclasses
import importlib
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from support import render_sys
from support.profile import mi300x_8, mi308x_8
from support.tree import node_probe

REPO = Path(__file__).resolve().parents[2]
MIRROR = REPO / "molecule/replay/mirror-root"


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(REPO / "molecule/bench"))
    return importlib.import_module("machine")


def test_each_gpu_is_behind_a_root_on_its_numa_node(machine: ModuleType) -> None:
    options = machine.gpu_devices(mi300x_8())
    roots = [o for o in options if o.startswith("pxb-pcie")]
    assert len(roots) == 8
    # A GPU at 0000:0c:00.0 is on the bus after that of its root, 0x0b.
    assert roots[0] == "pxb-pcie,id=root0,bus_nr=11,numa_node=0,bus=pcie.0"
    assert roots[7] == "pxb-pcie,id=root7,bus_nr=222,numa_node=1,bus=pcie.0"
    assert "pci-testdev,bus=port7" in options


def test_a_profile_that_cannot_be_built_is_refused(machine: ModuleType) -> None:
    with pytest.raises(Exception, match=r"GPU at 0001:0b:00\.0 on NUMA node 1; expected 0000"):
        machine.gpu_devices(mi308x_8())
    with pytest.raises(Exception, match="on NUMA node None"):
        machine.gpu_devices(dataclasses.replace(mi300x_8(), numa=(None,) * 8))


def test_a_process_that_is_not_the_machine_is_left_alone(machine: ModuleType, tmp_path: Path) -> None:
    assert machine.pid_of(tmp_path) is None
    (tmp_path / "pid").write_text(f"{os.getpid()}\n")
    assert machine.pid_of(tmp_path) is None
    argv = [sys.executable, "-c", "input()", str(tmp_path / "pid")]
    with subprocess.Popen(argv, stdin=subprocess.PIPE) as process:
        (tmp_path / "pid").write_text(f"{process.pid}\n")
        assert machine.pid_of(tmp_path) == process.pid
        process.kill()


def mirror(tmp_path: Path, **changes: object) -> subprocess.CompletedProcess[str]:
    """Lay the GPUs of a profile over a machine whose own devices differ by ``changes``."""
    render_sys.write_tree(mi300x_8(), tmp_path / "profile")
    render_sys.write_tree(
        dataclasses.replace(mi300x_8(), faults=frozenset({"no_driver"}), **changes), tmp_path / "machine"
    )
    argv = [sys.executable, str(MIRROR), *(str(tmp_path / name) for name in ("profile", "root", "machine"))]
    return subprocess.run(argv, capture_output=True, text=True, check=False)


def test_numa_comes_from_the_machine_and_the_rest_of_a_gpu_from_the_profile(tmp_path: Path) -> None:
    run = mirror(tmp_path, numa=(1, 1, 1, 1, 0, 0, 0, 0), socket_distance=21)
    assert run.returncode == 0, run.stderr
    root = str(tmp_path.resolve() / "root")
    pci = node_probe().read_pci(root)
    for position, bdf in enumerate(mi300x_8().bdfs):
        assert pci[bdf]["numa_node"] == ("1" if position < 4 else "0")
        assert pci[bdf]["driver"] == "amdgpu"
        assert pci[bdf]["mem_info_vram_total"]
        assert pci[bdf]["path"].startswith("/sys/devices/pci0000:")
        assert pci[bdf]["path"].endswith(bdf)
    assert node_probe().read_numa(root)["0"]["distance"] == "10 21"
    assert node_probe().read_kfd(root)["present"]


def test_a_gpu_without_a_device_is_an_error(tmp_path: Path) -> None:
    # A bridge stands there: the one above the GPU that is one bus further.
    run = mirror(tmp_path, bdfs=("0000:0d:00.0", *mi300x_8().bdfs[1:]))
    assert run.returncode == 1
    assert "no device stands at 0000:0c:00.0" in run.stderr
