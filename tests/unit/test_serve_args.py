"""What goes into the file of `vllm serve --config`, and what on its command line."""

from __future__ import annotations

from typing import Any

import pytest
from support.nodes import topology
from support.profile import mi300x_8

from instinct_fleet.instances import Instance, parse_instances
from instinct_fleet.model import Unit
from instinct_fleet.placement import place
from instinct_fleet.serve_args import command_line, render_config


def planned(**fields: Any) -> tuple[Instance, Unit]:
    (instance,) = parse_instances([{"name": "chat", "model": "/models/chat", **fields}])
    (unit,) = place(topology(mi300x_8()), [instance], vllm_version="0.33.0").units
    return instance, unit


def test_the_file_of_a_plain_instance() -> None:
    assert render_config(*planned(tensor_parallel_size=2)) == {
        "model": "/models/chat",
        "dtype": "auto",
        "gpu-memory-utilization": 0.9,
        "host": "127.0.0.1",
        "kv-cache-dtype": "auto",
        "max-model-len": 8192,
        "max-num-seqs": 256,
        "port": 8000,
        "shutdown-timeout": 60,
        "tensor-parallel-size": 2,
    }


def test_the_file_of_a_full_instance() -> None:
    config = render_config(
        *planned(
            tensor_parallel_size=2, pipeline_parallel_size=2, served_model_name="m", block_size=32, max_model_len=None,
            quantization="fp8", enable_log_requests=True, port=9000,
            extra_args={"enable_prefix_caching": False, "no-async-scheduling": True, "seed": 0, "limit": {"image": 2}},
        )
    )  # fmt: skip
    assert next(iter(config)) == "model"
    assert list(config)[1:] == sorted(list(config)[1:])
    assert config["no-enable-prefix-caching"] is True
    assert "enable-prefix-caching" not in config
    assert (config["no-async-scheduling"], config["seed"], config["limit"]) == (True, 0, {"image": 2})
    assert (config["pipeline-parallel-size"], config["enable-log-requests"], config["port"]) == (2, True, 9000)
    assert "max-model-len" not in config


@pytest.mark.parametrize(
    ("version", "there"), [("0.17.1", False), ("0.18.0", True), (None, True), ("0.33.0+rocm", True)]
)
def test_an_older_vllm_gets_no_option_that_it_does_not_know(version: str | None, there: bool) -> None:
    assert ("shutdown-timeout" in render_config(*planned(), vllm_version=version)) is there


def test_one_node() -> None:
    assert command_line(*planned(), config_path="/etc/vllm/chat.yml", vllm_path="/v") == (
        "numactl", "--cpunodebind=0", "--preferred=0", "/v", "serve", "--config", "/etc/vllm/chat.yml",
    )  # fmt: skip


def test_two_nodes_bind_on_the_command_line_only() -> None:
    instance, unit = planned(tensor_parallel_size=8)
    assert command_line(instance, unit, config_path="/c.yml", vllm_path="/v", numactl_path="/usr/bin/numactl") == (
        "/usr/bin/numactl", "--interleave=0,1", "/v", "serve", "--config", "/c.yml",
        "--numa-bind", "--numa-bind-nodes", "0", "0", "0", "0", "1", "1", "1", "1",
    )  # fmt: skip
    assert not [key for key in render_config(instance, unit) if "numa" in key]


def test_without_binding_there_is_no_prefix() -> None:
    argv = command_line(*planned(numa="off"), config_path="/c.yml", numactl_path="/usr/bin/numactl")
    assert argv == ("/opt/vllm/bin/vllm", "serve", "--config", "/c.yml")


def test_a_unit_of_another_instance_is_refused() -> None:
    _instance, unit = planned()
    (other,) = parse_instances([{"name": "other", "model": "m"}])
    for call in (lambda: render_config(other, unit), lambda: command_line(other, unit, config_path="/c")):
        with pytest.raises(ValueError, match="got instance 'other' and a unit of 'chat'"):
            call()
