"""A prepared node of Debian 13 has AMD's packages for noble, held, and a driver for its kernel."""

from __future__ import annotations

from typing import Any

import pytest

testinfra_hosts = ["podman://rocm-debian13"]


def test_the_node_is_what_the_scenario_is_about(host: Any) -> None:
    assert (host.system_info.distribution, host.system_info.codename) == ("debian", "trixie")


@pytest.mark.parametrize(
    ("name", "mark"),
    [("rocm", "70002-56~24.04"), ("rccl", "70002-56~24.04"), ("amdgpu-dkms", "30100200-2212064.24.04")],
)
def test_the_pinned_release_is_installed_for_noble(host: Any, name: str, mark: str) -> None:
    assert host.package(name).version.endswith(mark)


def test_amd_wins_against_a_newer_package_of_the_distribution(host: Any) -> None:
    assert "99.0-1 500" in host.run("apt-cache policy rocminfo").stdout
    assert ".70002-" in host.package("rocminfo").version


def test_an_upgrade_of_everything_moves_nothing_of_amd(host: Any) -> None:
    said = host.run_test("apt-get --simulate dist-upgrade").stdout
    assert not [line for line in said.splitlines() if line.startswith(("Inst", "Remv"))]
    held = set(host.run("apt-mark showhold").stdout.split())
    assert {"amdgpu-dkms", "amdgpu-dkms-firmware", "rocm", "amd-smi-lib"} <= held


def test_the_driver_is_built_for_the_kernel_that_boots(host: Any) -> None:
    said = host.run("dkms status").stdout
    assert "amdgpu/6.14.14.30100200-2212064.24.04, 6.12.48+deb13-amd64, x86_64: installed" in said
