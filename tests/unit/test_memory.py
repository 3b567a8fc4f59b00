"""Does a model fit: published sizes, division over GPUs, the cache, refusals, and configurations that are not right."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.public_models import (
    DEEPSEEK_V3,
    GEMMA2_27B,
    GPT_OSS_120B,
    LLAMA_8B,
    LLAMA_70B,
    LLAMA_405B,
    LLAMA_405B_FP8,
    MIXTRAL_8X7B,
    PHI3_MINI,
    PUBLIC_MODELS,
    QWEN3_235B,
    QWEN3_235B_FP8,
    QWEN25_14B,
    QWEN25_72B,
    QWEN25_72B_AWQ,
    TINY_LLAMA,
)

from instinct_fleet.cli import main
from instinct_fleet.memory import GIB, Fit, compare_with_log, fit
from instinct_fleet.model import Finding
from instinct_fleet.model_config import (
    Model,
    Tensor,
    index_total,
    partition,
    read_config,
    tensors_of_header,
    weights_of_tensors,
)


def model(config: dict[str, Any]) -> Model:
    read, findings = read_config(config)
    assert read is not None, findings
    return read


def mi300x(config: object, *, tp: int = 8, gpus: int = 8, **more: Any) -> Fit:
    return fit(config, gpus=gpus, vram_gib=192, tp=tp, **more)


def codes(result: Fit) -> dict[str, Finding]:
    return {f.code.removeprefix("fit_"): f for f in result.findings}


# --- published figures ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PUBLIC_MODELS)
def test_parameters_are_as_published(name: str) -> None:
    public = PUBLIC_MODELS[name]
    exact = isinstance(public.parameters, int)
    assert model(public.config).parameters == pytest.approx(public.parameters, rel=0 if exact else 0.001)


@pytest.mark.parametrize("name", PUBLIC_MODELS)
def test_weights_are_as_published(name: str) -> None:
    public = PUBLIC_MODELS[name]
    read = model(public.config)
    total = sum(read.weight_bytes(weight) for weight in read.weights)
    if public.checkpoint_gib is not None:
        assert total / GIB == pytest.approx(public.checkpoint_gib, rel=0.01)
    elif read.quantisation is None:
        assert total == pytest.approx(public.parameters * 2, rel=0.01)


def test_weights_of_one_gpu_are_as_vllm_reported() -> None:
    # "Loading model weights took 13.9476 GB", vllm issue 13061; vLLM's figure has small buffers in it.
    result = fit(QWEN25_14B, gpus=2, vram_gib=24, tp=2)
    assert result.weight_bytes is not None
    assert result.weight_bytes / GIB == pytest.approx(13.9476, rel=0.02)


@pytest.mark.parametrize(
    ("config", "total"),
    [
        # Attention, embeddings, first and last feed-forward layer in two bytes, the rest in one.
        (
            LLAMA_405B_FP8,
            2 * (2 * 128256 * 16384 + 126 * (2 * 16384**2 + 2 * 16384 * 1024)) + (124 + 2 * 2) * 3 * 16384 * 53248,
        ),
        # Two embeddings, then four bits, a 16-bit scale and a 4-bit zero for each group of 128.
        (
            QWEN25_72B_AWQ,
            4 * 152064 * 8192 + (0.5 + 2.5 / 128) * 80 * (2 * 8192**2 + 2 * 8192 * 1024 + 3 * 8192 * 29696),
        ),
    ],
)
def test_quantised_weights_by_hand(config: dict[str, Any], total: float) -> None:
    read = model(config)
    assert sum(read.weight_bytes(weight) for weight in read.weights) == pytest.approx(total, rel=0.001)


def quantised(**document: Any) -> float:
    """Return the bytes that one weight of a feed-forward layer takes."""
    read = model({**LLAMA_8B, "quantization_config": document})
    weight = next(w for w in read.weights if w.name == "model.layers.3.mlp.up_proj")
    return read.weight_bytes(weight) / weight.count


@pytest.mark.parametrize(
    ("document", "stored"),
    [
        ({"quant_method": "fp8"}, 1),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, 1 + 4 / 16384),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128}, 0.5 + 2.5 / 128),
        ({"quant_method": "gptq", "bits": 8, "group_size": 32}, 1 + 3 / 32),
        ({"quant_method": "awq", "bits": 4, "group_size": 64}, 0.5 + 2.5 / 64),
        ({"quant_method": "fbgemm_fp8", "modules_to_not_convert": ["mlp"]}, 2),
        ({"quant_method": "fp8", "ignored_layers": ["model.layers.3.mlp.up_proj"]}, 2),
        ({"quant_method": "fp8", "ignored_layers": ["model.layers.31.mlp"]}, 1),
        ({"quant_method": "fp8", "ignored_layers": ["re:.*up_proj$"]}, 2),
        ({"quant_method": "fp8", "ignored_layers": ["model.layers.3.mlp.up"]}, 1),
        ({"quant_method": "fp8", "ignored_layers": ["re:(("]}, 1),
        ({"quant_method": "mxfp4"}, 2),  # for experts only
        ({"quant_method": "quark", "global_quant_config": {"weight": {"dtype": "fp8_e4m3"}}}, 1),
        ({"quant_method": "quark", "global_quant_config": {"weight": {"dtype": "fp4"}}}, 0.53125),
        ({"quant_method": "quark", "global_quant_config": {"weight": {"dtype": "int4", "group_size": 128}}}, 0.515625),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {
                    "group_0": {"weights": {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128}}
                },
                "ignore": ["lm_head"],
            },
            0.5 + 2 / 128,
        ),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"group_0": {"weights": {"num_bits": 8, "type": "float", "strategy": "channel"}}},
            },
            1,
        ),
    ],
)
def test_what_a_quantised_weight_takes(document: dict[str, Any], stored: float) -> None:
    assert quantised(**document) == pytest.approx(stored)


# --- over the GPUs --------------------------------------------------------------------------------------------------


def test_the_refusal_says_what_is_needed_and_what_would_do() -> None:
    result = mi300x(LLAMA_405B, tp=4)
    assert result.fits is False
    finding = codes(result)["weights"]
    assert "405.9 billion parameters in bfloat16 need 811 GB (755 GiB) of weights" in finding.message
    assert "4 x 192 GiB hold 706 GiB at 0.92" in finding.message
    assert finding.remedy == "use TP 8 or an FP8 checkpoint"
    assert result.suggestion is not None
    assert result.suggestion.tensor_parallel_size == 8


def test_more_gpus_than_there_are_would_do() -> None:
    result = mi300x(LLAMA_405B, tp=2, gpus=2)
    assert result.suggestion is None
    assert codes(result)["weights"].remedy == "use TP 8"


def test_a_set_up_that_fits() -> None:
    result = mi300x(LLAMA_405B)
    assert result.fits is True
    assert result.findings == ()
    assert result.weight_bytes == pytest.approx(811.7e9 / 8, rel=0.001)
    assert result.kv_heads == 1
    # Two vectors of 128 for one head in 126 layers, two bytes each.
    assert result.kv_bytes_per_token == 2 * 128 * 126 * 2
    assert result.budget_bytes is not None
    assert result.kv_pool_bytes is not None
    assert result.weight_bytes is not None
    taken = result.weight_bytes + result.kv_pool_bytes + sum(r.nbytes for r in result.reserves)
    assert taken == result.budget_bytes
    assert result.max_tokens == pytest.approx(result.kv_pool_bytes / result.kv_bytes_per_token, rel=0.001)
    assert result.instances == 1
    assert all(reserve.source for reserve in result.reserves)
    assert result.neglected


@pytest.mark.parametrize(
    ("config", "tp", "pp", "gib"),
    [
        (LLAMA_70B, 1, 1, 131.4),
        (LLAMA_70B, 8, 1, 16.43),
        # 40 layers and one of two embeddings on each stage.
        (LLAMA_70B, 1, 2, 65.71),
        (MIXTRAL_8X7B, 4, 1, 21.75),
        # 61 layers over 4 stages are 15, 16, 15, 15: three dense ones in the first.
        (DEEPSEEK_V3, 8, 1, 79.5),
    ],
)
def test_weights_on_one_gpu(config: dict[str, Any], tp: int, pp: int, gib: float) -> None:
    result = mi300x(config, tp=tp, pp=pp)
    assert result.weight_bytes is not None
    assert result.weight_bytes / GIB == pytest.approx(gib, rel=0.005)


def test_layers_are_divided_as_vllm_divides_them() -> None:
    assert list(partition(61, 4)) == [15, 15, 16, 15]
    assert list(partition(126, 8)) == [15, 16, 16, 16, 16, 16, 16, 15]
    assert list(partition(80, 2)) == [40, 40]
    assert list(partition(3, 2)) == [2, 1]


def test_tied_embeddings_are_on_both_ends_of_a_pipeline() -> None:
    tied = {**LLAMA_8B, "tie_word_embeddings": True}
    one, two = (fit(tied, gpus=2, vram_gib=192, tp=1, pp=pp) for pp in (1, 2))
    assert one.weight_bytes is not None
    embedding, norm = 128256 * 4096 * 2, 4096 * 2
    layers = one.weight_bytes - embedding - norm
    # The last stage is the fullest: it has the last norm too.
    assert two.weight_bytes == layers // 2 + embedding + norm


def test_repeated_kv_heads_repeat_their_weights() -> None:
    read = model(QWEN3_235B)
    projections = sum(read.weight_bytes(weight) for weight in read.weights if weight.share == "kv")
    four, eight = mi300x(QWEN3_235B, tp=4), mi300x(QWEN3_235B, tp=8)
    assert projections == 94 * 2 * 4096 * 4 * 128 * 2
    assert four.weight_bytes is not None
    assert eight.weight_bytes is not None
    whole = sum(read.weight_bytes(weight) for weight in read.weights if weight.share == "whole")
    split = (four.weight_bytes - whole - projections / 4) * 4
    assert eight.weight_bytes == pytest.approx(whole + projections / 4 + split / 8, abs=8)


def test_mla_weights_are_kept_a_second_time_for_decoding() -> None:
    read = model(DEEPSEEK_V3)
    total = sum(read.weight_bytes(weight) for weight in read.weights)
    copies = 61 * 512 * 128 * (128 + 128) * 2
    assert mi300x(DEEPSEEK_V3, tp=1).weight_bytes == pytest.approx(total + copies, abs=8)


def test_gpt_oss_has_sinks() -> None:
    assert [weight.count for weight in model(GPT_OSS_120B).weights if weight.name.endswith("sinks")] == [64] * 36


@pytest.mark.parametrize(
    ("config", "more", "code", "words"),
    [
        (LLAMA_70B, {"tp": 3}, "heads", ["64 heads cannot be cut into 3", "use TP 1, 2, 4, 8, 16"]),
        (LLAMA_70B, {"tp": 3}, "kv_heads", ["8 KV heads cannot be cut into 3"]),
        (
            {**LLAMA_70B, "num_attention_heads": 72, "num_key_value_heads": 6, "head_dim": 128},
            {"tp": 8},
            "kv_heads",
            ["repeated evenly on 8"],
        ),
        ({**LLAMA_70B, "intermediate_size": 28676}, {"tp": 8}, "intermediate", ["28676 cannot be cut into 8"]),
        (QWEN3_235B_FP8, {"tp": 8}, "quant_group", ["1536 over 8 GPUs leaves 192", "use TP 4, or --enable-expert-par"]),
        ({**QWEN25_72B_AWQ, "intermediate_size": 29568}, {"tp": 8}, "quant_group", ["29568 over 8 GPUs leaves 3696"]),
        (LLAMA_8B, {"tp": 1, "pp": 64, "gpus": 64}, "layers", ["32 layers for 64 stages"]),
        (LLAMA_8B, {"tp": 8, "pp": 2}, "gpus", ["needs 16 GPUs, 8 are there"]),
        (LLAMA_8B, {"max_model_len": 200_000}, "model_len", ["the model allows 131072"]),
        (
            LLAMA_405B_FP8,
            {"tp": 4, "max_model_len": 131072, "reserve_gib": 60},
            "kv_cache",
            ["max-model-len to at most"],
        ),
        (
            LLAMA_8B,
            {"tp": 1, "kv_cache_memory_bytes": 190 * GIB},
            "kv_pool",
            ["190.0 GiB of cache", "do not fit in 192"],
        ),
    ],
)
def test_what_does_not_go(config: dict[str, Any], more: dict[str, Any], code: str, words: list[str]) -> None:
    result = mi300x(config, **more)
    assert result.fits is False
    finding = codes(result)[code]
    assert finding.severity == "error"
    assert all(word in f"{finding.message}; {finding.remedy}" for word in words), finding


def test_the_length_that_a_refusal_names_does_fit() -> None:
    asked: dict[str, Any] = {"tp": 4, "reserve_gib": 60}
    refused = mi300x(LLAMA_405B_FP8, **asked)
    length = int(codes(refused)["kv_cache"].remedy.split("at most ")[1].split(",")[0])
    assert mi300x(LLAMA_405B_FP8, max_model_len=length, **asked).fits is True
    assert mi300x(LLAMA_405B_FP8, max_model_len=length + 1024, **asked).fits is False


def test_experts_that_are_spread_whole_need_no_division() -> None:
    assert mi300x(QWEN3_235B_FP8, expert_parallel=True).fits is True
    assert mi300x(QWEN3_235B_FP8, tp=4).fits is True


def test_padding_of_mxfp4_is_information() -> None:
    result = mi300x(GPT_OSS_120B)
    assert result.fits is True
    assert "it is padded" in codes(result)["quant_group"].message


def test_repeated_kv_heads_hold_no_more() -> None:
    four, eight = mi300x(QWEN3_235B, tp=4), mi300x(QWEN3_235B, tp=8)
    assert four.kv_bytes_per_token == eight.kv_bytes_per_token
    assert "each is kept 2 times" in codes(eight)["kv_repeated"].message
    assert "kv_repeated" not in codes(four)


# --- the cache ------------------------------------------------------------------------------------------------------


def test_mla_keeps_one_vector_a_token_on_every_gpu() -> None:
    one, eight = (mi300x(DEEPSEEK_V3, tp=tp) for tp in (4, 8))
    # 512 latent and 64 rotary values in 61 layers, two bytes each; TP changes nothing.
    assert one.kv_bytes_per_token == eight.kv_bytes_per_token == 576 * 61 * 2
    assert codes(eight)["kv_repeated"].severity == "info"
    assert mi300x(DEEPSEEK_V3, kv_cache_dtype="fp8").kv_bytes_per_token == 576 * 61
    assert mi300x(DEEPSEEK_V3, kv_cache_dtype="fp8_ds_mla").kv_bytes_per_token == 656 * 61


def test_deepseek_v32_keeps_the_keys_of_its_indexer() -> None:
    config = {**DEEPSEEK_V3, "architectures": ["DeepseekV32ForCausalLM"], "index_n_heads": 64, "index_head_dim": 128}
    assert mi300x(config).kv_bytes_per_token == (576 * 2 + 132) * 61


@pytest.mark.parametrize(
    ("dtype", "nbytes"),
    [("auto", 2), ("bfloat16", 2), ("fp8", 1), ("fp8_e4m3", 1), ("float32", 4), ("fp8_per_token_head", 1 + 4 / 128)],
)
def test_bytes_of_a_token(dtype: str, nbytes: float) -> None:
    assert mi300x(LLAMA_70B, tp=1, kv_cache_dtype=dtype).kv_bytes_per_token == 2 * 8 * 128 * 80 * nbytes


def test_an_unknown_cache_type_is_unknown() -> None:
    result = mi300x(LLAMA_8B, kv_cache_dtype="turboquant_3bit")
    assert result.fits is None
    assert codes(result)["kv_dtype"].severity == "unknown"
    assert result.weight_bytes is not None


def test_windows_keep_less_than_the_whole_sequence() -> None:
    windows = mi300x(GPT_OSS_120B, tp=1, max_num_batched_tokens=2048)
    whole = mi300x({**GPT_OSS_120B, "sliding_window": None}, tp=1, max_num_batched_tokens=2048)
    assert windows.max_sequences is not None
    assert whole.max_sequences is not None
    # 18 of 36 layers keep 127 + 2048 tokens instead of 131072.
    assert windows.max_sequences / whole.max_sequences == pytest.approx(2 * 131072 / (131072 + 2175 + 16), rel=0.01)


@pytest.mark.parametrize(
    ("full", "windowed", "group", "rows"),
    [
        (18, 18, 18, (1, 1)),
        (13, 12, 13, (1, 1)),  # nearly equal: both kinds are padded to the larger
        (6, 12, 6, (1, 2)),
        (6, 13, 6, (1, 3)),  # the last row of windowed layers is padded
    ],
)
def test_layers_of_two_kinds_share_blocks(full: int, windowed: int, group: int, rows: tuple[int, int]) -> None:
    kinds = ["full_attention"] * full + ["sliding_attention"] * windowed
    config = {**GPT_OSS_120B, "num_hidden_layers": len(kinds), "layer_types": kinds}
    result = mi300x(config, tp=1, max_num_batched_tokens=2048, kv_cache_memory_bytes=GIB)
    page = 16 * 2 * 8 * 64 * 2
    # 131072 tokens of 16, and 127 + 2048 tokens of 16 and one block more.
    needed = rows[0] * 8192 + rows[1] * (136 + 1)
    assert result.max_sequences == pytest.approx(GIB // (page * group) / needed)


def test_windows_by_pattern_and_by_model() -> None:
    gemma = model(GEMMA2_27B)
    assert [layer.window for layer in gemma.cache[:4]] == [4096, None, 4096, None]
    assert {layer.window for layer in model(QWEN25_72B).cache} == {None}
    qwen = model({**QWEN25_72B, "use_sliding_window": True})
    assert [layer.window for layer in qwen.cache[68:72]] == [None, None, 131072, 131072]
    assert {layer.window for layer in model(PHI3_MINI).cache} == {2047}
    gemma3 = {**GEMMA2_27B, "architectures": ["Gemma3ForCausalLM"], "sliding_window": 1024}
    assert [layer.window for layer in model(gemma3).cache[:6]] == [1024] * 5 + [None]


def test_more_sequences_than_have_room_are_said() -> None:
    result = mi300x(LLAMA_405B, max_num_seqs=256)
    assert result.fits is True
    assert codes(result)["few_sequences"].severity == "warning"
    assert "set max-num-seqs to 9" in codes(result)["few_sequences"].remedy


def test_the_suggestion_fits_and_is_the_smallest() -> None:
    suggestion = mi300x(LLAMA_70B, tp=8).suggestion
    assert suggestion is not None
    assert (suggestion.tensor_parallel_size, suggestion.pipeline_parallel_size) == (2, 1)
    result = mi300x(LLAMA_70B, tp=2, max_model_len=suggestion.max_model_len, max_num_seqs=suggestion.max_num_seqs)
    assert result.fits is True
    assert "few_sequences" not in codes(result)


def test_rope_scaling_and_the_length() -> None:
    scaled = {**LLAMA_8B, "max_position_embeddings": 4096, "rope_scaling": {"type": "linear", "factor": 4}}
    assert model(scaled).max_model_len == 16384
    assert model(LLAMA_8B).max_model_len == 131072
    assert model(DEEPSEEK_V3).max_model_len == 163840
    unknown = {k: v for k, v in LLAMA_8B.items() if k != "max_position_embeddings"}
    assert mi300x(unknown).fits is None
    assert mi300x(unknown, max_model_len=4096).fits is True


def test_graphs_take_room_unless_there_are_none() -> None:
    assert {r.what for r in mi300x(LLAMA_8B).reserves} == {"activations", "runtime", "graphs"}
    assert {r.what for r in mi300x(LLAMA_8B, enforce_eager=True).reserves} == {"activations", "runtime"}
    assert [r.nbytes for r in mi300x(LLAMA_8B, reserve_gib=5).reserves] == [5 * GIB]


# --- what cannot be judged ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "code", "words"),
    [
        ({**LLAMA_8B, "architectures": ["FooForCausalLM"]}, "architecture", ["'FooForCausalLM' is not known"]),
        ({**LLAMA_8B, "architectures": None}, "architecture", ["has no architectures"]),
        ({k: v for k, v in LLAMA_8B.items() if k != "hidden_size"}, "missing_key", ["has no hidden_size"]),
        ({**LLAMA_8B, "hidden_size": "4096"}, "bad_value", ["hidden_size is '4096'"]),
        ({**LLAMA_8B, "num_hidden_layers": 1.5}, "bad_value", ["num_hidden_layers is 1.5"]),
        ({**LLAMA_8B, "num_hidden_layers": 10**6}, "bad_value", ["at most 10000"]),
        ({**LLAMA_8B, "num_attention_heads": 0}, "bad_value", ["expected at least 1"]),
        ({**LLAMA_8B, "vocab_size": float("nan")}, "bad_value", ["vocab_size is nan"]),
        ({**LLAMA_8B, "vocab_size": float("inf")}, "bad_value", ["vocab_size is inf"]),
        ({**DEEPSEEK_V3, "kv_lora_rank": None}, "missing_key", ["has no kv_lora_rank"]),
        ({**QWEN3_235B, "num_experts": None}, "missing_key", ["has no num_experts"]),
        ({**LLAMA_8B, "quantization_config": {"quant_method": "bitsandbytes"}}, "quantisation", ["'bitsandbytes'"]),
        ({**LLAMA_8B, "quantization_config": {"quant_method": "awq", "bits": 5}}, "quantisation", ["5 bits"]),
        ({**LLAMA_8B, "quantization_config": {"quant_method": "quark"}}, "quantisation", ["quark with weights"]),
        (
            {**LLAMA_8B, "quantization_config": {"quant_method": "compressed-tensors", "config_groups": {"a": 1}}},
            "quantisation",
            ["no weights in config_groups"],
        ),
        (
            {**LLAMA_8B, "sliding_window": 4096, "layer_types": ["linear_attention"] * 32},
            "architecture",
            ["linear_attention"],
        ),
        ([], "config", ["is list, expected a JSON object"]),
        (None, "config", ["is NoneType"]),
    ],
)
def test_a_configuration_that_cannot_be_read_is_unknown(config: object, code: str, words: list[str]) -> None:
    result = mi300x(config)
    assert result.fits is None
    assert list(codes(result)) == [code]
    finding = codes(result)[code]
    assert finding.severity == "unknown"
    assert finding.remedy
    assert all(word in finding.message for word in words), finding


@pytest.mark.parametrize(
    ("more", "subject"),
    [
        ({"tp": 0}, "tp"),
        ({"tp": "4"}, "tp"),
        ({"gpus": -1}, "gpus"),
        ({"pp": True}, "pp"),
        ({"vram_gib": 0}, "vram_gib"),
        ({"vram_gib": float("nan")}, "vram_gib"),
        ({"gpu_memory_utilization": 1.2}, "gpu_memory_utilization"),
        ({"max_model_len": 0}, "max_model_len"),
        ({"block_size": 0}, "block_size"),
        ({"reserve_gib": -1}, "reserve_gib"),
        ({"kv_cache_memory_bytes": 0}, "kv_cache_memory_bytes"),
    ],
)
def test_numbers_that_no_set_up_has(more: dict[str, Any], subject: str) -> None:
    result = fit(LLAMA_8B, **{"gpus": 8, "vram_gib": 192, "tp": 8, **more})
    assert not result.fits
    assert [f.subject for f in result.findings if f.code == "fit_argument"] == [subject]


_JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6) | st.just("fp8"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
_KEYS = sorted({*LLAMA_8B, *DEEPSEEK_V3, *GPT_OSS_120B, *QWEN3_235B})


@given(
    st.sampled_from([LLAMA_8B, DEEPSEEK_V3, GPT_OSS_120B, QWEN3_235B_FP8, QWEN25_72B_AWQ, GEMMA2_27B]),
    st.dictionaries(st.sampled_from(_KEYS), _JUNK | st.integers(0, 300), max_size=3),
    st.sampled_from([1, 3, 8]),
)
@settings(max_examples=150, deadline=None)
def test_no_configuration_raises(config: dict[str, Any], edits: dict[str, Any], tp: int) -> None:
    mi300x({**config, **edits}, tp=tp)


@given(
    st.dictionaries(
        st.sampled_from(["quant_method", "bits", "group_size", "config_groups", "ignore", "weight_block_size"]),
        _JUNK | st.sampled_from(["awq", "gptq", "fp8", "compressed-tensors", "quark"]) | st.integers(-2, 200),
    )
)
@settings(max_examples=150, deadline=None)
def test_no_quantisation_raises(document: dict[str, Any]) -> None:
    mi300x({**TINY_LLAMA, "quantization_config": document}, tp=2)


@given(_JUNK)
def test_nothing_else_raises(document: Any) -> None:
    mi300x(document)
    index_total(document)


# --- the tensors ----------------------------------------------------------------------------------------------------


def safetensors(tensors: dict[str, tuple[str, list[int], int]]) -> bytes:
    """Return the header of a safetensors file: name -> (dtype, shape, bytes), and as many zero bytes."""
    document: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    position = 0
    for name, (dtype, shape, nbytes) in tensors.items():
        document[name] = {"dtype": dtype, "shape": shape, "data_offsets": [position, position + nbytes]}
        position += nbytes
    head = json.dumps(document).encode()
    return struct.pack("<Q", len(head)) + head


def tiny_tensors() -> dict[str, tuple[str, list[int], int]]:
    """Return the tensors of the tiny model as they are stored."""
    tensors = {
        "model.embed_tokens.weight": ("BF16", [512, 128], 512 * 128 * 2),
        "lm_head.weight": ("BF16", [512, 128], 512 * 128 * 2),
        "model.norm.weight": ("BF16", [128], 256),
    }
    for layer in range(2):
        base = f"model.layers.{layer}"
        tensors |= {f"{base}.self_attn.{n}_proj.weight": ("BF16", [128, 128], 32768) for n in "qkvo"}
        tensors |= {f"{base}.mlp.{n}_proj.weight": ("BF16", [256, 128], 65536) for n in ("gate", "up", "down")}
        tensors |= {f"{base}.{n}_layernorm.weight": ("BF16", [128], 256) for n in ("input", "post_attention")}
    return tensors


@pytest.mark.parametrize("tp", [1, 2, 4])
def test_tensors_and_shapes_agree(tp: int) -> None:
    tensors, problem = tensors_of_header(safetensors(tiny_tensors()))
    assert problem == ""
    by_tensor = fit(TINY_LLAMA, gpus=4, vram_gib=1, tp=tp, tensors=tensors)
    by_shape = fit(TINY_LLAMA, gpus=4, vram_gib=1, tp=tp)
    assert (by_tensor.weight_source, by_shape.weight_source) == ("tensors", "formula")
    assert by_tensor.weight_bytes == by_shape.weight_bytes
    assert by_tensor.weight_bytes_total == by_shape.weight_bytes_total


def test_tensors_that_vllm_does_not_load_or_loads_otherwise() -> None:
    tensors = {
        "model.layers.0.mlp.up_proj.weight": Tensor("F32", 400),
        "model.layers.0.mlp.up_proj.weight_scale_inv": Tensor("F32", 40),
        "model.layers.61.eh_proj.weight": Tensor("BF16", 1000),
        "model.layers.0.self_attn.kv_a_proj_with_mqa.weight": Tensor("BF16", 20),
    }
    found = {w.name: (w.share, n) for w, n in weights_of_tensors(tensors, layers=61, dtype="bfloat16")}
    assert found == {
        "model.layers.0.mlp.up_proj.weight": ("split", 200),
        "model.layers.0.mlp.up_proj.weight_scale_inv": ("split", 40),
        "model.layers.0.self_attn.kv_a_proj_with_mqa.weight": ("whole", 20),
    }


def test_an_index_scales_the_shapes_and_a_foreign_one_is_said() -> None:
    result = mi300x(LLAMA_8B, tp=1, index_total=16_060_522_496)
    assert result.weight_source == "index"
    assert result.weight_bytes_total == 16_060_522_496
    assert "weights_differ" not in codes(result)
    other = mi300x(LLAMA_8B, tp=1, index_total=8_100_000_000)
    assert "8.1 GB, config.json stands for 16.1 GB" in codes(other)["weights_differ"].message
    assert index_total({"metadata": {"total_size": 5}}) == 5
    assert index_total({"metadata": {"total_size": "5"}}) is None


@pytest.mark.parametrize(
    ("head", "text"),
    [
        (b"\x01", "is 1 bytes long"),
        (struct.pack("<Q", 1 << 60) + b"{}", "says its header has"),
        (struct.pack("<Q", 2) + b"[]", "is no safetensors header"),
        (struct.pack("<Q", 3) + b"{,}", "is no safetensors header"),
        (safetensors({"a": ("BF16", [1], -4)}), "is no safetensors header"),
    ],
)
def test_damaged_headers(head: bytes, text: str) -> None:
    tensors, problem = tensors_of_header(head)
    assert tensors is None
    assert text in problem


# --- against vLLM ---------------------------------------------------------------------------------------------------

#: What vLLM 0.32.0 printed on its CPU backend for the tiny model: TP 2, 1 GiB of cache for each rank, 1024 tokens.
LOG = (
    "(EngineCore pid=31) INFO 11-29 22:01:24 [kv_cache_utils.py:2327] CPU KV cache size: 2,097,152 tokens, "
    "Maximum concurrency for 1,024 tokens per request: 2048.00x\n"
)
#: The two lines of releases before that, with other numbers.
OLD_LOG = (
    "INFO [kv_cache_utils.py:1000] GPU KV cache size: 1,170,160 tokens\n"
    "INFO [kv_cache_utils.py:1005] Maximum concurrency for 131,072 tokens per request: 8.93x\n"
)


def test_the_cache_is_what_vllm_itself_says() -> None:
    result = fit(TINY_LLAMA, gpus=2, vram_gib=8, tp=2, max_model_len=1024, block_size=128, kv_cache_memory_bytes=GIB)
    comparison = compare_with_log(result, f"noise\n{LOG}more noise")
    assert comparison.seen_tokens == comparison.expected_tokens == 2_097_152
    assert comparison.seen_sequences == comparison.expected_sequences == 2048.0
    assert comparison.seen_max_model_len == 1024
    assert comparison.ratio == 1.0


def test_logs_of_older_releases_and_of_none() -> None:
    result = mi300x(LLAMA_405B)
    comparison = compare_with_log(result, OLD_LOG)
    assert comparison.seen_tokens == 1_170_160
    assert comparison.seen_sequences == 8.93
    assert comparison.ratio is not None
    nothing = compare_with_log(result, "Traceback (most recent call last):")
    assert (nothing.seen_tokens, nothing.ratio) == (None, None)


# --- the command ----------------------------------------------------------------------------------------------------


def write(folder: Path, config: object, **files: object) -> str:
    (folder / "config.json").write_text(json.dumps(config))
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))
    return str(folder / "config.json")


def run(path: str, *more: str) -> int:
    return main(["fit", "--model-config", path, "--gpus", "8", "--vram-gib", "192", "--tp", "4", *more])


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, LLAMA_405B)
    assert run(path) == 1
    out = capsys.readouterr().out
    assert "use TP 8 or an FP8 checkpoint" in out
    assert "fits: no" in out
    assert "suggested: --tensor-parallel-size 8" in out
    assert "not counted: " in out
    assert run(path, "--tp", "8", "--max-model-len", "32K", "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["fits"] is True
    assert document["max_model_len"] == 32768
    assert document["weight_source"] == "formula"


def test_the_command_reads_the_files_beside_the_configuration(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path, TINY_LLAMA)
    (tmp_path / "model.safetensors").write_bytes(safetensors(tiny_tensors()))
    assert run(path, "--json") == 0
    assert json.loads(capsys.readouterr().out)["weight_source"] == "tensors"
    index = {"metadata": {"total_size": 920_000}, "weight_map": {"a": "model-00001-of-00002.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert run(path, "--json") == 0
    assert json.loads(capsys.readouterr().out)["weight_source"] == "index"


@pytest.mark.parametrize(
    ("content", "text"),
    [("{", "is no JSON document"), ("[" * 100_000, "is no JSON document"), (None, "cannot be read")],
)
def test_files_that_are_not_usable(
    content: str | None, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "config.json"
    if content is not None:
        path.write_text(content)
    assert run(str(path)) == 2
    assert text in capsys.readouterr().err


def test_a_damaged_checkpoint_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, TINY_LLAMA)
    (tmp_path / "model.safetensors").write_bytes(safetensors(tiny_tensors())[:-10])
    assert run(path) == 2
    assert "model.safetensors: says its header has" in capsys.readouterr().err


def test_an_unknown_architecture_exits_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(write(tmp_path, {"architectures": ["Foo"]})) == 1
    out = capsys.readouterr().out
    assert "unknown: config.json: architecture 'Foo' is not known" in out
    assert "fits: unknown" in out
