"""After the refusals the node recovered: the driver of the last case is installed, and no stranger's is left."""

from __future__ import annotations

from typing import Any

testinfra_hosts = ["podman://rocm-refusals"]


def test_the_last_release_is_installed_and_nothing_is_half_way(host: Any) -> None:
    assert ".30200000-" in host.package("amdgpu-dkms").version
    assert host.run("dpkg --audit").stdout == ""


def test_the_strangers_module_is_gone(host: Any) -> None:
    said = host.run("dkms status").stdout
    assert "6.16.6-1" not in said
    assert "6.1.0-40-amd64, x86_64: installed" in said
