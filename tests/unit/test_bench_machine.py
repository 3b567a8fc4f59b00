"""The emulated machine of the test bench: GPUs where the profile has them, and no process of others ended."""

from __future__ import annotations

import dataclasses
import importlib
import os
import socket
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


def test_a_machine_that_grub_boots_has_gpus_that_are_counted_and_a_disk_that_is_kept(
    machine: ModuleType, tmp_path: Path
) -> None:
    argv = machine.qemu("a", tmp_path, tmp_path / "base", mi300x_8(), ssh_port=22200, boot="disk")
    assert not {"-kernel", "-initrd", "-append"} & set(argv)
    # Reboots with a thread for each CPU do not always come back.
    assert argv[argv.index("-accel") + 1] == "tcg,thread=single"
    assert f"file={tmp_path}/disk.img,cache=unsafe,format=raw,if=none,id=disk" in argv
    assert sum(option.startswith("ati-vga,") for option in argv) == 8
    argv = machine.qemu("a", tmp_path, tmp_path / "base", mi300x_8(), ssh_port=22200, boot="kernel")
    assert argv[argv.index("-append") + 1] == machine.CMDLINE
    # Written to for a while only: other machines boot from it too.
    assert f"file={tmp_path}/base/disk.img,snapshot=on,format=raw,if=none,id=disk" in argv


def test_a_machine_that_grub_boots_begins_without_what_is_to_be_configured(machine: ModuleType) -> None:
    for option in ("iommu=pt", "pci=realloc=off", "numa_balancing=disable"):
        assert option in machine.CMDLINE.split()
        assert option not in machine.BARE_CMDLINE.split()


def test_the_first_sector_has_the_code_and_one_bootable_partition(machine: ModuleType) -> None:
    sector = machine.boot_sector(bytes(range(256)) * 2)
    assert len(sector) == 512
    assert sector[:440] == (bytes(range(256)) * 2)[:440]
    assert sector[510:] == b"\x55\xaa"
    entry, others = sector[446:462], sector[462:510]
    assert (entry[0], entry[4]) == (0x80, 0x83)
    start, size = (int.from_bytes(entry[at : at + 4], "little") for at in (8, 12))
    assert (start, (start + size) * 512) == (2048, machine.DISK_MIB << 20)
    assert not any(others)


def test_a_boot_loader_that_does_not_fit_is_refused(
    machine: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "run", lambda *_arguments: "")
    grub = tmp_path / "boot/grub/i386-pc"
    grub.mkdir(parents=True)
    (grub / "boot.img").write_bytes(bytes(512))
    (grub / "core.img").write_bytes(b"core" * 1000)
    machine.make_bootable_disk(tmp_path, tmp_path / "disk.img")
    with (tmp_path / "disk.img").open("rb") as handle:
        assert handle.read(516)[508:] == b"\0\0\x55\xaacore"
    (grub / "core.img").write_bytes(bytes(2048 * 512))
    with pytest.raises(Exception, match="GRUB has 1048576 bytes, expected at most 1048064"):
        machine.make_bootable_disk(tmp_path, tmp_path / "disk.img")


def test_a_port_on_which_something_listens_is_left_to_it(machine: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        monkeypatch.setattr(machine, "PORTS", range(port, port + 2))
        assert port not in list(machine.free_ports())
    assert port in list(machine.free_ports())


def test_the_next_port_is_taken_where_another_program_was_quicker(
    machine: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[str] = []

    def run(title: str, argv: list[str]) -> str:
        if title == "starting a":
            tried.append(next(option for option in argv if "hostfwd" in option).split(":")[2])
            if len(tried) == 1:
                raise machine.BenchError("Could not set up host forwarding rule 'tcp:127.0.0.1:22207-:22'")
        return "running"

    (tmp_path / "host_key.pub").write_text("ssh-ed25519 AAAA root@a\n")
    monkeypatch.setattr(machine, "run", run)
    monkeypatch.setattr(machine, "free_ports", lambda: iter([22207, 22209]))
    monkeypatch.setattr(machine, "wait_for_ssh", lambda *_arguments: None)
    machine.start("a", tmp_path, tmp_path, profile="mi300x_8", boot="disk")
    assert tried == ["22207-", "22209-"]
    assert "    Port 22209\n" in (tmp_path / "ssh_config").read_text()
    assert (tmp_path / "known_hosts").read_text() == "[127.0.0.1]:22209 ssh-ed25519 AAAA\n"
    monkeypatch.setattr(machine, "free_ports", lambda: iter([]))
    with pytest.raises(Exception, match=r"no port of 127\.0\.0\.1 is free, expected one from 22200 to 22299"):
        machine.start("a", tmp_path, tmp_path, profile="mi300x_8", boot="disk")


def test_a_machine_without_a_disk_of_its_own_is_not_restarted(
    machine: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "MACHINES", tmp_path)
    with pytest.raises(Exception, match="there is no machine a; `up a --boot disk` makes one"):
        machine.restart("a")
    (tmp_path / "a").mkdir()
    (tmp_path / "a/booted").write_text("0123 mi300x_8 kernel\n")
    with pytest.raises(Exception, match="a loses its disk with its power"):
        machine.restart("a")


def test_a_process_that_is_not_the_machine_is_left_alone(machine: ModuleType, tmp_path: Path) -> None:
    assert machine.pid_of(tmp_path) is None
    (tmp_path / "pid").write_text(f"{os.getpid()}\n")
    assert machine.pid_of(tmp_path) is None
    argv = [sys.executable, "-c", "print(flush=True); input()", str(tmp_path / "pid")]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        # For a moment after its start a program has no command line.
        assert process.stdout is not None
        process.stdout.readline()
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


def test_only_a_node_of_the_suite_that_serves_has_what_vllm_needs(
    machine: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = machine.bench
    monkeypatch.setattr(bench, "SUITE", "bookworm")
    assert set(bench.packages_of("bookworm")) - set(bench.packages_of("trixie")) == {
        "g++",
        "python3-dev",
        "python3-venv",
    }
    # A node that was asked for with another release is not taken for the one that runs.
    asked: list[list[str]] = []
    monkeypatch.setattr(bench, "ask", lambda argv: asked.append(argv) or subprocess.CompletedProcess(argv, 0))
    names = [bench.image(suite) for suite in ("bookworm", "trixie")]
    assert [name.split(":")[1].split("-")[0] for name in names] == ["bookworm", "trixie"]
    assert len({name.rpartition("-")[2] for name in names}) == 2
