"""What the last boot, a cold one, has in effect: read from the machine itself, without the code of the role."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

REPO = Path(__file__).resolve().parents[4]
NAME = "tuning-machine"
SSH_CONFIG = REPO / ".cache/machines" / NAME / "ssh_config"
testinfra_hosts = [f"ssh://{NAME}?ssh_config={SSH_CONFIG}&timeout=60"]


def test_grub_booted_it_with_the_options_once_and_no_other(host: Any) -> None:
    line = host.check_output("cat /proc/cmdline").split()
    # What QEMU would have been given says nothing of an image that GRUB found.
    assert line[0].startswith("BOOT_IMAGE=/boot/vmlinuz-")
    for option in ("iommu=pt", "amd_iommu=on", "pci=realloc=off", "numa_balancing=disable"):
        assert line.count(option) == 1
    assert "pcie_aspm=off" not in line


def test_the_unit_applied_what_does_not_last(host: Any) -> None:
    said = host.check_output("systemctl show -p Result -p ActiveState -p UnitFileState instinct-tuning").split()
    assert sorted(said) == ["ActiveState=active", "Result=success", "UnitFileState=enabled"]


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("/proc/sys/kernel/numa_balancing", "0"),
        ("/proc/sys/vm/swappiness", "1"),
        ("/sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never"),
    ],
)
def test_the_kernel_has_the_value(host: Any, path: str, value: str) -> None:
    assert host.check_output(f"cat {path}") == value


def test_shared_memory_has_the_size(host: Any) -> None:
    assert host.check_output("df --output=size -B1 /dev/shm").split()[-1] == str(256 << 20)


def test_swap_that_came_up_at_boot_is_off(host: Any) -> None:
    assert host.check_output("systemctl show --value -p UnitFileState swap.swap") == "enabled"
    assert len(host.check_output("cat /proc/swaps").splitlines()) == 1


def test_services_and_sessions_have_the_limits(host: Any) -> None:
    ask = "grep -E 'locked memory|open files' /proc/self/limits"
    for said in (
        host.check_output(f'systemd-run --quiet --wait --pipe sh -c "{ask}"'),
        # PAM, which reads limits.d, opens this session as it does those of people.
        host.check_output(f'su -s /bin/sh -c "{ask}" nobody'),
    ):
        rows = {line[:17].strip(): line[17:].split()[:2] for line in said.splitlines()}
        assert rows == {"Max locked memory": ["unlimited"] * 2, "Max open files": ["1048576"] * 2}
