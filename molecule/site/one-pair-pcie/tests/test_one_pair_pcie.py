"""Nothing was installed on the refused node."""

from __future__ import annotations

from typing import Any

import pytest

testinfra_hosts = ["podman://site-one-pair-pcie"]


@pytest.mark.parametrize("path", ["/opt/vllm", "/etc/vllm", "/var/lib/vllm", "/etc/systemd/system/vllm-tiny.service"])
def test_nothing_was_written(host: Any, path: str) -> None:
    assert not host.file(path).exists


def test_no_user_was_made(host: Any) -> None:
    assert not host.user("vllm").exists
