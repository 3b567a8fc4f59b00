"""What the node has in effect after the last run, and what it will have after a boot."""

from __future__ import annotations

import json
from typing import Any

import pytest

testinfra_hosts = ["podman://tuning-default"]


def test_the_unit_ran_and_runs_at_every_boot(host: Any) -> None:
    unit = host.service("instinct-tuning.service")
    assert unit.is_enabled
    assert host.run("systemctl show --value -p Result -p ActiveState instinct-tuning").stdout.split() == [
        "success",
        "active",
    ]


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("proc/sys/kernel/numa_balancing", "0"),
        ("proc/sys/vm/swappiness", "1"),
        ("sys/kernel/mm/transparent_hugepage/enabled", "madvise"),
        ("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "performance"),
        ("sys/devices/system/cpu/cpu1/cpufreq/scaling_governor", "performance"),
        ("sys/devices/system/cpu/cpu1/cpuidle/state2/disable", "1"),
        ("sys/devices/system/cpu/cpu1/cpuidle/state1/disable", "0"),
    ],
)
def test_the_kernel_has_the_value(host: Any, path: str, value: str) -> None:
    assert host.file(f"/srv/tree/{path}").content_string.strip() == value


def test_acs_is_off_and_nothing_else_of_the_device_changed(host: Any) -> None:
    space = host.file("/srv/tree/sys/bus/pci/devices/0000:00:01.1/config").content
    assert space[0x156:0x158] == b"\0\0"
    assert space[0x150:0x154] == (0x000D | 1 << 16).to_bytes(4, "little")


def test_services_and_sessions_get_the_limits(host: Any) -> None:
    said = host.run("systemctl show -p DefaultLimitMEMLOCK -p DefaultLimitNOFILE").stdout.split()
    assert sorted(said) == ["DefaultLimitMEMLOCK=65536", "DefaultLimitNOFILE=1024"]
    # PAM counts in KiB, systemd in bytes.
    assert "* hard memlock 64\n" in host.file("/etc/security/limits.d/90-instinct-fleet.conf").content_string


def test_the_boot_loader_has_the_options_once(host: Any) -> None:
    line = host.file("/boot/grub/grub.cfg").content_string
    for option in ("iommu=pt", "pci=realloc=off", "numa_balancing=disable"):
        assert line.split().count(option) == 1


def test_what_is_applied_lasts(host: Any) -> None:
    host.run_test("echo 1 > /srv/tree/proc/sys/kernel/numa_balancing")
    host.run_test("systemctl restart instinct-tuning")
    shown = json.loads(host.run_test("/usr/local/lib/instinct-fleet/tune-node show").stdout)
    assert shown["sysctl"]["kernel.numa_balancing"] == "0"
