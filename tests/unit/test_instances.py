"""Instances: strict input, and errors that name what is wrong."""

from __future__ import annotations

from typing import Any

import pytest

from instinct_fleet.arguments import gone_since
from instinct_fleet.instances import (
    OWNED_OPTIONS,
    Instance,
    InstancesError,
    instance_findings,
    parse_instances,
)


def one(**fields: Any) -> Instance:
    return parse_instances([{"name": "chat", "model": "/models/chat", **fields}])[0]


def refuse(*entries: Any) -> str:
    with pytest.raises(InstancesError) as caught:
        parse_instances(list(entries))
    return str(caught.value)


def test_defaults() -> None:
    instance = one()
    assert (instance.gpu_memory_utilization, instance.max_num_seqs, instance.max_model_len) == (0.90, 256, 8192)
    assert (instance.host, instance.port, instance.enable_log_requests) == ("127.0.0.1", None, False)
    assert (instance.numa, instance.strict_membind, instance.world_size) == ("auto", False, 1)
    assert instance.api_model_name == "/models/chat"
    assert instance_findings(instance) == ()


@pytest.mark.parametrize("field", sorted(Instance.model_fields))
def test_every_field_says_why(field: str) -> None:
    assert (Instance.model_fields[field].description or "").endswith(".")


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"tensor_paralel_size": 2}, "unknown key 'tensor_paralel_size' (did you mean 'tensor_parallel_size'?)"),
        ({"zzz": 2}, "unknown key 'zzz'"),
        ({"name": "Chat"}, "instance 'Chat': name is 'Chat'"),
        ({"name": "a/b"}, "name is 'a/b'"),
        ({"name": "-a"}, "name is '-a'"),
        ({"name": "a" * 49}, "name is"),
        ({"model": ""}, "model is ''"),
        ({"tensor_parallel_size": 0}, "tensor_parallel_size is 0: input should be greater than or equal to 1"),
        ({"port": 80}, "port is 80: input should be greater than or equal to 1024"),
        ({"port": 70000}, "port is 70000"),
        ({"gpu_memory_utilization": 1.5}, "gpu_memory_utilization is 1.5: input should be less than or equal to 1"),
        ({"block_size": 8}, "block_size is 8: input should be 16, 32 or 64"),
        ({"numa": "yes"}, "numa is 'yes': input should be 'auto' or 'off'"),
        ({"gpus": [0, 1]}, "gpus names 2, tensor_parallel_size x pipeline_parallel_size is 1"),
        ({"gpus": [1, 1], "tensor_parallel_size": 2}, "gpus: [1, 1] names a GPU twice"),
        ({"environment": {"A": True}}, "environment: A is True (bool), expected text: put it in quotes"),
        ({"environment": {"A": ["x"]}}, "environment: A is ['x'] (list), expected text"),
        ({"environment": {"A-B": "x"}}, "'A-B' is not a name of a variable"),
        ({"environment": {"A": "x\ny"}}, "A holds a line break"),
        ({"environment": {"HSA_OVERRIDE_GFX_VERSION": "9.4.2"}}, "it is never right on Instinct"),
        ({"environment": {"ROCR_VISIBLE_DEVICES": "0"}}, "ROCR_VISIBLE_DEVICES must not be set: vLLM maps GPUs by"),
        ({"environment": {"HIP_VISIBLE_DEVICES": "0"}}, "placement sets it from `gpus`"),
        ({"environment": {"CUDA_VISIBLE_DEVICES": "0"}}, "CUDA_VISIBLE_DEVICES must not be set"),
        ({"environment": {"VLLM_PORT": "1"}}, "VLLM_PORT must not be set"),
        ({"extra_args": {"swap-space": 4}}, "swap-space: vLLM removed it in 0.18.0: leave it out: the V1 engine"),
        ({"extra_args": {"--num_scheduler_steps": 4}}, "--num_scheduler_steps: vLLM removed it in 0.10.1"),
        (
            {"extra_args": {"device": "0,1"}},
            "device: vLLM removed it in 0.10.0: leave it out: the platform",
        ),
        (
            {"extra_args": {"disable-log-requests": True}},
            "vLLM removed it in 0.17.0: leave it out: requests are not",
        ),
        ({"extra_args": {"max-num-seqs": 4}}, "max-num-seqs: set `max_num_seqs` of the instance instead"),
        ({"extra_args": {"no-enable-log-requests": True}}, "set `enable_log_requests` of the instance instead"),
        ({"extra_args": {"numa-bind": True}}, "set `numa` of the instance instead"),
        ({"extra_args": {"hf_token": "x"}}, "hf_token: not allowed: every user of the node could read it"),
        ({"environment": {"HF_TOKEN": "x"}}, "HF_TOKEN must not be set: every user of the node could read it"),
        ({"extra_args": {"api-key": "x"}}, "api-key: not allowed: it would stand in the process list"),
        ({"extra_args": {"enable lora": True}}, "'enable lora' is not a long option"),
        ({"extra_args": {"x": 1, "-x": 2}}, "there twice"),
        ({"numactl": "--membind=0", "strict_membind": True}, "numactl and strict_membind exclude each other"),
    ],
)
def test_an_instance_that_cannot_be(fields: dict[str, Any], text: str) -> None:
    said = refuse({"name": "chat", "model": "/m", **fields})
    assert text in said
    assert "instance " in said


def test_every_problem_is_told_at_once() -> None:
    said = refuse({"name": "a"}, {"model": "m"}, "text", {"name": "b", "model": "m", "port": 1})
    assert said.splitlines() == [
        "instance 'a': model is missing",
        "instances[1]: name is missing",
        "instances[2]: got str 'text', expected a mapping",
        "instance 'b': port is 1: input should be greater than or equal to 1024",
    ]


@pytest.mark.parametrize(
    ("a", "b", "text"),
    [
        ({"name": "x"}, {"name": "x"}, "two instances are called 'x', expected a name for each"),
        ({"port": 9000}, {"port": 9000}, "instances 'a' and 'b' both have port 9000, expected two"),
        # Another address does not help: it may change.
        ({"port": 9000, "host": "127.0.0.2"}, {"port": 9000}, "both have port 9000"),
        ({"gpus": [3]}, {"gpus": [3]}, "instances 'a' and 'b' both have GPU 3, expected different ones"),
    ],
)
def test_two_instances_that_cannot_be_together(a: dict[str, Any], b: dict[str, Any], text: str) -> None:
    assert text in refuse({"name": "a", "model": "m", **a}, {"name": "b", "model": "m", **b})


@pytest.mark.parametrize(("document", "seen"), [("text", "str"), ({"a": 1}, "dict"), (None, "NoneType"), (7, "int")])
def test_what_is_no_list(document: Any, seen: str) -> None:
    with pytest.raises(InstancesError, match=f"instances: got {seen}, expected a list of mappings"):
        parse_instances(document)


def test_instances_come_back_by_name() -> None:
    assert [i.name for i in parse_instances([{"name": n, "model": "m"} for n in ("c", "a", "b")])] == ["a", "b", "c"]


def test_numbers_become_text_in_the_environment() -> None:
    assert one(environment={"B": 2, "A": 0.5}).environment == {"A": "0.5", "B": "2"}


def test_numactl_may_be_text_with_its_own_name() -> None:
    assert one(numactl="/usr/bin/numactl --interleave=all").numactl == ("--interleave=all",)
    assert one(numactl=["numactl", "-N", "0"]).numactl == ("-N", "0")
    assert one(numactl="").numactl == ()


@pytest.mark.parametrize(("share", "warned"), [(0.9, False), (0.92, False), (0.93, True), (1, True)])
def test_a_high_share_of_memory_warns_and_says_why(share: float, warned: bool) -> None:
    found = instance_findings(one(gpu_memory_utilization=share))
    assert bool(found) is warned
    if warned:
        assert (found[0].severity, found[0].subject) == ("warning", "chat")
        assert f"gpu_memory_utilization is {share:g}, expected at most 0.92: graphs, RCCL buffers" in found[0].message


def test_owned_options_name_real_keys_and_are_options_of_the_newest_vllm() -> None:
    assert set(OWNED_OPTIONS.values()) <= set(Instance.model_fields)
    for name in OWNED_OPTIONS:
        assert gone_since(f"--{name}") is None, name


def test_an_option_of_the_newest_vllm_may_be_given_and_one_that_never_was_is_not_called_removed() -> None:
    assert one(extra_args={"enforce-eager": True}).extra_args == {"enforce-eager": True}
    assert one(extra_args={"of-the-future": 1}).extra_args == {"of-the-future": 1}


def test_a_field_of_several_types_is_called_by_its_own_name() -> None:
    assert refuse({"name": "a", "model": "m", "max_model_len": -1}).startswith("instance 'a': max_model_len is -1: ")
    assert "literal[" not in refuse({"name": "a", "model": "m", "max_model_len": -1})
