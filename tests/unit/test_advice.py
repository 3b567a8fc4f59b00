"""What a load test says should be changed: each piece of advice with its number, and none without."""

from __future__ import annotations

from typing import Any

import pytest

from instinct_fleet.advice import Served, advise, served_of
from instinct_fleet.load.level import Level
from instinct_fleet.load.metrics import parse_umc
from instinct_fleet.load.stats import Estimate


def level(concurrency: int, **changes: Any) -> Level:
    known: dict[str, Any] = {
        "purpose": "bracket",
        "window": 10.0,
        "wall": 12.0,
        "requests": 100,
        "throughput": Estimate(1000.0, 1.0, 10),
        "kv_usage_max": 0.3,
        "preemptions": 0.0,
        "server_waiting": 0.0,
        "mean_prompt_tokens": 600.0,
        "mean_output_tokens": 128.0,
    }
    return Level(concurrency, **(known | changes))


def said(*levels: Level, limit: int | None = None, **served: Any) -> list[str]:
    return list(advise(levels, Served(**served), limit=limit))


def test_a_healthy_run_calls_for_nothing() -> None:
    assert said(level(8), level(64), limit=48, max_num_seqs=64, tensor_parallel_size=4) == []
    assert said(limit=None) == []


@pytest.mark.parametrize("sign", [{"preemptions": 12.0}, {"kv_usage_max": 0.97}])
def test_a_full_cache_wants_fewer_sequences(sign: dict[str, float]) -> None:
    (line,) = said(level(32), level(64, **sign), max_num_seqs=64)
    assert ("12 preemptions" in line) or ("97% full" in line)
    assert "at concurrency 64: lower max_num_seqs to about 32" in line


def test_a_queue_beside_an_empty_cache_wants_more_sequences() -> None:
    (line,) = said(level(32), level(80, server_waiting=16.2, queue_mean=0.25), max_num_seqs=64)
    assert line.startswith("16 requests wait for 250 ms each at concurrency 80 while the KV cache is at most 30% full")
    assert "raise max_num_seqs from 64" in line


@pytest.mark.parametrize(
    "changes",
    [
        {"server_waiting": 0.5},  # a reading's accident
        {"server_waiting": 16.0, "kv_usage_max": 0.9},  # no room
        {"server_waiting": 16.0, "kv_usage_max": None},  # not known
        {"server_waiting": 16.0, "void": ("event loop late",)},  # not believed
        {"server_waiting": 16.0, "purpose": "warmup"},
    ],
)
def test_no_more_sequences_without_proof(changes: dict[str, Any]) -> None:
    assert said(level(80, **changes), max_num_seqs=64) == []


def test_what_waits_below_max_num_seqs_waits_for_something_else() -> None:
    assert said(level(40, server_waiting=8.0), max_num_seqs=64) == []


def test_a_knee_far_below_max_num_seqs_wants_fewer() -> None:
    (line,) = said(level(96), level(128), limit=76, max_num_seqs=256)
    assert "the limit is 76, max_num_seqs 256: lower max_num_seqs to about 80" in line
    assert said(level(96), level(128), limit=130, max_num_seqs=256) == []
    # A lower bound only: nobody knows where the knee is.
    assert said(level(64), limit=76, max_num_seqs=256) == []


def test_busy_memory_controllers_want_fp8_unless_it_is() -> None:
    (line,) = said(level(64, umc_activity=0.91), max_num_seqs=64)
    assert "busy 91% of the time at concurrency 64" in line
    assert said(level(64, umc_activity=0.91), max_num_seqs=64, quantization="fp8") == []
    assert said(level(64, umc_activity=0.5), max_num_seqs=64) == []


def test_heavy_weights_want_more_tensor_parallel() -> None:
    (line,) = said(level(8), weights_share=0.73, tensor_parallel_size=4)
    assert "the weights take 73% of the VRAM" in line
    assert "(4 -> 8)" in line


@pytest.mark.parametrize(
    ("prompt", "block", "wanted"),
    [(100.0, 64, "16"), (8000.0, 16, "64"), (1000.0, 32, None), (100.0, 16, None), (100.0, None, None)],
)
def test_block_size_follows_the_requests(prompt: float, block: int | None, wanted: str | None) -> None:
    lines = said(level(8, mean_prompt_tokens=prompt), block_size=block)
    assert bool(lines) == (wanted is not None)
    if wanted:
        assert f"block_size is {block}: {wanted} " in lines[0]


def test_what_is_served_is_read_strictly() -> None:
    options = {"max-num-seqs": "256", "quantization": "fp8", "weights-share": 0.5, "block-size": ""}
    assert served_of(options) == Served(max_num_seqs=256, quantization="fp8", weights_share=0.5)
    with pytest.raises(ValueError, match="got 'max-seqs', expected one of max-num-seqs"):
        served_of({"max-seqs": 1})
    with pytest.raises(ValueError, match="block-size is 'many', expected a number"):
        served_of({"block-size": "many"})


def test_the_exporter_is_read_as_a_share() -> None:
    page = "# TYPE gpu_umc_activity gauge\n" + "".join(
        f'gpu_umc_activity{{gpu_id="{n}"}} {value}\n' for n, value in enumerate((80, 100))
    )
    assert parse_umc(page) == 0.9
    assert parse_umc("gpu_gfx_activity 5\n") is None
    assert parse_umc('gpu_umc_activity{gpu_id="0"} N/A\n') is None
