"""A prepared node has AMD's packages of the pinned releases, held, and a driver for its kernel."""

from __future__ import annotations

from typing import Any

import pytest

testinfra_hosts = ["podman://rocm-default"]
KERNEL = "6.1.0-40-amd64"
PINNED = ["amdgpu-dkms", "amdgpu-dkms-firmware", "rocm", "amd-smi-lib"]


@pytest.mark.parametrize(("name", "token"), [("rocm", "70002"), ("rocminfo", "70002"), ("amdgpu-dkms", "30100200")])
def test_the_pinned_release_is_installed(host: Any, name: str, token: str) -> None:
    assert f".{token}-" in host.package(name).version


def test_amd_wins_against_a_newer_package_of_the_distribution(host: Any) -> None:
    offers = host.run("apt-cache policy rocminfo").stdout
    assert "99.0-1 500" in offers
    assert "600" in offers
    # By its path: the node's replayed tools come first on PATH.
    assert host.run("/opt/rocm/bin/rocminfo").stdout.startswith("rocminfo 1.0.0.70002")


def test_an_upgrade_of_everything_moves_nothing_of_amd(host: Any) -> None:
    said = host.run("apt-get --simulate dist-upgrade").stdout
    assert not [line for line in said.splitlines() if line.startswith(("Inst", "Remv"))]
    assert set(PINNED) <= set(host.run("apt-mark showhold").stdout.split())


def test_the_driver_is_built_for_the_kernel_that_boots(host: Any) -> None:
    assert f"amdgpu/6.14.14.30100200-2212064.22.04, {KERNEL}, x86_64: installed" in host.run("dkms status").stdout


def test_debian_12_takes_the_suite_jammy_and_the_pinned_key(host: Any) -> None:
    text = host.file("/etc/apt/sources.list.d/rocm.sources").content_string
    assert "Suites: jammy" in text
    assert "Signed-By: /etc/apt/keyrings/rocm.asc" in text
    assert host.file("/etc/apt/keyrings/rocm.asc").mode == 0o644


def test_tools_are_found_without_a_login_shell(host: Any) -> None:
    # What PAM gives to a command over ssh.
    assert host.file("/etc/environment").content_string.rstrip().endswith(':/opt/rocm/bin"')
    assert host.run("sh -lc 'command -v amd-smi-lib'").stdout.strip() == "/opt/rocm/bin/amd-smi-lib"
    assert "/opt/rocm/lib" in host.file("/etc/ld.so.conf.d/rocm.conf").content_string
