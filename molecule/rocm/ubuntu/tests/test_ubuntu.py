"""After the move from 22.04 to 24.04 everything of AMD is of noble, and the driver is there for the new kernel."""

from __future__ import annotations

from typing import Any

testinfra_hosts = ["podman://rocm-ubuntu"]


def test_the_suite_is_noble(host: Any) -> None:
    for name in ("rocm", "amdgpu"):
        assert "Suites: noble\n" in host.file(f"/etc/apt/sources.list.d/{name}.sources").content_string


def test_the_packages_are_those_of_noble(host: Any) -> None:
    assert host.package("amdgpu-dkms").version.endswith(".30300300-2300000.24.04")
    assert host.package("amd-smi-lib").version.endswith(".70203-1~24.04")


def test_the_kernel_has_headers_modules_and_driver(host: Any) -> None:
    for name in ("linux-headers-6.8.0-86-generic", "linux-modules-extra-6.8.0-86-generic"):
        assert host.package(name).is_installed
    assert "30300300-2300000.24.04, 6.8.0-86-generic, x86_64: installed" in host.run("dkms status").stdout
