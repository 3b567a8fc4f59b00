"""What a model's ``config.json`` says of its size: its weights, how they are stored, what a token leaves in the cache.

Counting is structural: each matrix of the published architecture, by its shape, with the bytes its quantisation gives
it. Counts agree with the parameter counts that the models' publishers state (tests/unit/test_memory.py has them).

Nothing raises for what a configuration holds: :func:`read_config` returns findings instead of a model. Codes:
``fit_config`` (not a usable document), ``fit_architecture`` (not known), ``fit_missing_key``, ``fit_bad_value``,
``fit_quantisation`` (a method whose storage is not known).
"""

from __future__ import annotations

import fnmatch
import json
import math
import re
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from instinct_fleet.model import Finding

#: How a weight lies on the GPUs of a tensor-parallel group: cut into equal parts, cut by KV head (and repeated when
#: there are fewer heads than GPUs), or whole on each.
Share = Literal["split", "kv", "whole"]
#: Where a weight lies in a pipeline: in its layer, with the input embedding, or with the output head.
Stage = Literal["layer", "embedding", "head"]

DTYPE_BYTES: Mapping[str, float] = {
    **{"float32": 4, "float": 4, "float16": 2, "half": 2, "bfloat16": 2},
    **{"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1},
    **{"F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1, "F4": 0.5},
}


@dataclass(frozen=True)
class Weight:
    """One matrix or vector, or the same one of all experts.

    ``count`` is the number of parameters; ``inputs`` and ``outputs`` are the sizes of the matrix before any cut;
    ``cut`` is the side that tensor parallelism cuts; ``quantisable`` is True for what linear layers hold.
    """

    name: str
    count: int
    share: Share = "split"
    stage: Stage = "layer"
    layer: int = 0
    inputs: int = 0
    outputs: int = 0
    cut: Literal["inputs", "outputs", ""] = ""
    quantisable: bool = False


@dataclass(frozen=True)
class CacheLayer:
    """What one layer keeps of a token: ``values`` elements for each KV head, or one shared vector when ``mla``.

    ``window`` is the number of tokens that stay in reach, None for all. ``extra_bytes`` come on top whatever the type
    of the cache (the indexer of DeepSeek V3.2).
    """

    values: int
    mla: bool = False
    window: int | None = None
    extra_bytes: int = 0


@dataclass(frozen=True)
class Quantisation:
    """How quantised weights are stored.

    ``bytes`` is what one weight takes, scales and zero points included; ``block_in`` and ``block_out`` are the sizes
    of a block or group along the inputs and outputs (1: none), which a cut must not divide; ``skip`` are the patterns
    of modules that stay as they are; ``only`` limits it to modules of these patterns.
    """

    method: str
    bytes: float
    block_in: int = 1
    block_out: int = 1
    skip: tuple[str, ...] = ()
    only: tuple[str, ...] = ()
    pads: bool = False

    def applies(self, weight: Weight) -> bool:
        """Return whether this weight is stored quantised."""
        if not weight.quantisable or any(_matches(pattern, weight.name) for pattern in self.skip):
            return False
        return not self.only or any(_matches(pattern, weight.name) for pattern in self.only)


@dataclass(frozen=True)
class Model:
    """A model as far as memory is concerned.

    ``intermediate_sizes`` are the widths of the feed-forward layers that tensor parallelism cuts, by name, those of
    the experts apart. ``max_model_len`` is what vLLM derives; None when the configuration does not say.
    ``absorbed_bytes`` is what vLLM makes of MLA weights in each layer on top of them, for all GPUs together.
    """

    architecture: str
    layers: int
    hidden_size: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab_size: int
    dtype: str
    weights: tuple[Weight, ...]
    cache: tuple[CacheLayer, ...]
    intermediate_sizes: Mapping[str, int]
    expert_size: int | None = None
    experts: int = 0
    experts_per_token: int = 0
    tied: bool = False
    max_model_len: int | None = None
    quantisation: Quantisation | None = None
    absorbed_bytes: int = 0
    notes: tuple[str, ...] = ()

    @property
    def mla(self) -> bool:
        """True when the cache holds one latent vector a token, the same on every GPU."""
        return any(layer.mla for layer in self.cache)

    @property
    def parameters(self) -> int:
        """All parameters, tied ones once."""
        return sum(weight.count for weight in self.weights)

    def weight_bytes(self, weight: Weight) -> float:
        """Return what a weight takes in all."""
        if self.quantisation is not None and self.quantisation.applies(weight):
            return weight.count * self.quantisation.bytes
        return weight.count * DTYPE_BYTES[self.dtype]


@dataclass(frozen=True)
class Tensor:
    """A tensor of a safetensors file: ``dtype`` as the format names it, ``nbytes`` as stored."""

    dtype: str
    nbytes: int


class _UnusableError(Exception):
    """The configuration cannot be read; carries the finding."""

    def __init__(self, code: str, message: str, remedy: str) -> None:
        super().__init__(message)
        self.finding = Finding(f"fit_{code}", "unknown", "config.json", message, remedy)


def _matches(pattern: str, name: str) -> bool:
    """Match a module name as quantisation configurations do: ``re:`` expressions, shell patterns, parts of a name."""
    if pattern.startswith("re:"):
        try:
            return re.match(pattern[3:], name) is not None
        except re.error:
            return False
    if "*" in pattern:
        return fnmatch.fnmatch(name, pattern) or fnmatch.fnmatch(name, f"{pattern}.*")
    # A part of a name ends where the name has a dot, so that "layers.1" does not mean layer 10.
    return f".{pattern}." in f".{name}."


_CORRECT = "correct config.json, or take the one that the model's publisher gives"


class _Keys:
    """Access to a configuration that says what is missing or not a number."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.config = config

    def get(self, *names: str) -> Any:
        """Return the first of the keys that is there and not null."""
        return next((self.config[name] for name in names if self.config.get(name) is not None), None)

    def count(self, *names: str, default: int | None = None, least: int = 1) -> int:
        """Return a whole number of at least ``least``."""
        value = self.get(*names)
        if value is None:
            if default is not None:
                return default
            raise _UnusableError("missing_key", f"has no {names[0]}", "take the config.json of the model as published")
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not float(value).is_integer():
            raise _UnusableError(
                "bad_value", f"{names[0]} is {value!r}, expected a whole number", "correct config.json"
            )
        # Far above any model; keeps the arithmetic, and lists of layers, in bounds.
        if not least <= value <= 2**31:
            raise _UnusableError(
                "bad_value", f"{names[0]} is {value!r}, expected at least {least}", "correct config.json"
            )
        return int(value)

    def flag(self, name: str, default: bool = False) -> bool:
        """Return a boolean; null and a missing key are the default."""
        value = self.config.get(name)
        return default if value is None else bool(value)

    def list_of(self, name: str) -> list[Any]:
        """Return a list; anything else is an empty one."""
        value = self.config.get(name)
        return list(value) if isinstance(value, (list, tuple)) else []

    def map_of(self, *names: str) -> Mapping[str, Any]:
        """Return a mapping; anything else is an empty one."""
        value = self.get(*names)
        return value if isinstance(value, Mapping) else {}


@dataclass(frozen=True)
class _Family:
    """What a group of architectures has in common beyond their keys."""

    experts: Literal["", "mixtral", "qwen", "deepseek", "gpt_oss"] = ""
    mla: bool = False
    tied: bool = False
    qkv_bias: bool = False
    output_bias: bool = False
    qk_norm: bool = False
    norms: int = 2
    head_dim: int | None = None
    sinks: bool = False
    window_every: int | None = None


#: Architectures whose shapes are known. ``qkv_bias`` and the like are what their code does when no key says so.
ARCHITECTURES: Mapping[str, _Family] = {
    "LlamaForCausalLM": _Family(),
    "MistralForCausalLM": _Family(),
    "Phi3ForCausalLM": _Family(),
    "Qwen2ForCausalLM": _Family(qkv_bias=True),
    "Qwen3ForCausalLM": _Family(qk_norm=True),
    "Gemma2ForCausalLM": _Family(tied=True, norms=4, head_dim=256, window_every=2),
    "Gemma3ForCausalLM": _Family(tied=True, norms=4, head_dim=256, qk_norm=True, window_every=6),
    "MixtralForCausalLM": _Family(experts="mixtral"),
    "Qwen2MoeForCausalLM": _Family(experts="qwen", qkv_bias=True),
    "Qwen3MoeForCausalLM": _Family(experts="qwen", qk_norm=True),
    "GptOssForCausalLM": _Family(experts="gpt_oss", qkv_bias=True, output_bias=True, sinks=True, head_dim=64),
    "Glm4MoeForCausalLM": _Family(experts="deepseek"),
    "DeepseekV2ForCausalLM": _Family(experts="deepseek", mla=True),
    "DeepseekV3ForCausalLM": _Family(experts="deepseek", mla=True),
    "DeepseekV32ForCausalLM": _Family(experts="deepseek", mla=True),
}


def read_config(config: object) -> tuple[Model | None, tuple[Finding, ...]]:
    """Read a ``config.json``.

    Args:
        config: the parsed document.

    Returns:
        The model, or None and the findings that say why there is none. A known model comes with no findings.
    """
    try:
        if not isinstance(config, Mapping):
            raise _UnusableError(
                "config",
                f"is {type(config).__name__}, expected a JSON object",
                "give the config.json that lies next to the weights",
            )
        return _model(_Keys(config)), ()
    except _UnusableError as exc:
        return None, (exc.finding,)


def _model(keys: _Keys) -> Model:
    names = keys.list_of("architectures")
    architecture = str(names[0]) if names else ""
    family = ARCHITECTURES.get(architecture)
    if family is None:
        seen = f"architecture {architecture!r} is not known" if names else "has no architectures"
        raise _UnusableError(
            "architecture",
            f"{seen}; known are {', '.join(ARCHITECTURES)}",
            "judge the memory of this model by a trial start, with --max-model-len auto",
        )
    hidden, layers = keys.count("hidden_size"), keys.count("num_hidden_layers")
    if layers > 10_000:
        raise _UnusableError(
            "bad_value", f"num_hidden_layers is {layers}, expected at most 10000", "correct config.json"
        )
    heads = keys.count("num_attention_heads")
    vocabulary = keys.count("vocab_size")
    kv_heads = keys.count("num_key_value_heads", default=heads)
    head_dim = keys.count("head_dim", default=family.head_dim or max(hidden // heads, 1))
    weights: list[Weight] = [
        Weight("model.embed_tokens", vocabulary * hidden, stage="embedding"),
        Weight("model.norm", hidden, "whole", "head"),
    ]
    tied = keys.flag("tie_word_embeddings", family.tied)
    if not tied:
        head = Weight("lm_head", vocabulary * hidden, stage="head", inputs=hidden, outputs=vocabulary, quantisable=True)
        weights.append(head)
    experts = _experts(keys, family, layers)
    for layer in range(layers):
        weights += (
            _mla(keys, layer, hidden, heads)
            if family.mla
            else _attention(keys, family, layer, (hidden, heads, kv_heads, head_dim))
        )
        weights.append(Weight(f"model.layers.{layer}.norms", family.norms * hidden, "whole", layer=layer))
        if experts is not None and layer in experts.at:
            weights += _expert_weights(keys, family, experts, layer, hidden)
        else:
            weights += _feed_forward(f"model.layers.{layer}.mlp", layer, hidden, keys.count("intermediate_size"))
            if keys.flag("mlp_bias"):
                weights.append(
                    Weight(f"model.layers.{layer}.mlp.bias", 2 * keys.count("intermediate_size") + hidden, layer=layer)
                )
    sizes = {}
    if experts is None or len(experts.at) < layers:
        sizes["intermediate_size"] = keys.count("intermediate_size")
    if experts is not None and experts.shared_size:
        sizes["shared expert"] = experts.shared_size
    rank, nope, value = (keys.count(k, default=0, least=0) for k in ("kv_lora_rank", "qk_nope_head_dim", "v_head_dim"))
    dtype = _dtype(keys)
    return Model(
        architecture=architecture,
        layers=layers,
        hidden_size=hidden,
        heads=heads,
        kv_heads=1 if family.mla else kv_heads,
        head_dim=head_dim,
        vocab_size=vocabulary,
        dtype=dtype,
        weights=tuple(weights),
        cache=_cache(keys, family, layers, head_dim),
        intermediate_sizes=sizes,
        expert_size=experts.size if experts else None,
        experts=experts.number if experts else 0,
        experts_per_token=experts.per_token if experts else 0,
        tied=tied,
        max_model_len=_max_model_len(keys),
        quantisation=_quantisation(keys),
        # vLLM keeps the two halves of kv_b_proj a second time, unquantised, for decoding (mla_attention.py).
        absorbed_bytes=int(rank * heads * (nope + value) * DTYPE_BYTES[dtype]) if family.mla else 0,
    )


def _dtype(keys: _Keys) -> str:
    """Return the type that vLLM runs the model in with ``--dtype auto``: float32 checkpoints are run in bfloat16."""
    name = str(keys.get("dtype", "torch_dtype") or "bfloat16").removeprefix("torch.")
    return "bfloat16" if name not in DTYPE_BYTES or DTYPE_BYTES[name] == 4 else name


def _linear(
    name: str, layer: int, inputs: int, outputs: int, *, cut: Literal["inputs", "outputs", ""], share: Share = "split"
) -> Weight:
    return Weight(name, inputs * outputs, share, layer=layer, inputs=inputs, outputs=outputs, cut=cut, quantisable=True)


def _attention(keys: _Keys, family: _Family, layer: int, sizes: tuple[int, int, int, int]) -> list[Weight]:
    """Grouped-query attention: projections, their biases, norms of queries and keys, sinks."""
    hidden, heads, kv_heads, head_dim = sizes
    base = f"model.layers.{layer}.self_attn"
    weights = [
        _linear(f"{base}.q_proj", layer, hidden, heads * head_dim, cut="outputs"),
        _linear(f"{base}.k_proj", layer, hidden, kv_heads * head_dim, cut="outputs", share="kv"),
        _linear(f"{base}.v_proj", layer, hidden, kv_heads * head_dim, cut="outputs", share="kv"),
        _linear(f"{base}.o_proj", layer, heads * head_dim, hidden, cut="inputs"),
    ]
    bias = keys.flag("attention_bias", family.qkv_bias)
    if bias:
        weights.append(Weight(f"{base}.q_bias", heads * head_dim, layer=layer))
        weights.append(Weight(f"{base}.kv_bias", 2 * kv_heads * head_dim, "kv", layer=layer))
    if family.output_bias or (bias and not family.qkv_bias and family.experts != "deepseek"):
        weights.append(Weight(f"{base}.o_bias", hidden, "whole", layer=layer))
    if family.qk_norm or keys.flag("use_qk_norm"):
        weights.append(Weight(f"{base}.qk_norm", 2 * head_dim, "whole", layer=layer))
    if family.sinks:
        weights.append(Weight(f"{base}.sinks", heads, layer=layer))
    return weights


def _mla(keys: _Keys, layer: int, hidden: int, heads: int) -> list[Weight]:
    """Multi-head latent attention: low-rank projections, of which the first ones are whole on each GPU."""
    base = f"model.layers.{layer}.self_attn"
    rank, rope = keys.count("kv_lora_rank"), keys.count("qk_rope_head_dim")
    nope, value = keys.count("qk_nope_head_dim"), keys.count("v_head_dim")
    query = keys.count("q_lora_rank", default=0, least=0)
    weights = [
        _linear(f"{base}.kv_a_proj_with_mqa", layer, hidden, rank + rope, cut="", share="whole"),
        Weight(f"{base}.kv_a_layernorm", rank, "whole", layer=layer),
        _linear(f"{base}.kv_b_proj", layer, rank, heads * (nope + value), cut="outputs"),
        _linear(f"{base}.o_proj", layer, heads * value, hidden, cut="inputs"),
    ]
    if query:
        weights += [
            _linear(f"{base}.q_a_proj", layer, hidden, query, cut="", share="whole"),
            Weight(f"{base}.q_a_layernorm", query, "whole", layer=layer),
            _linear(f"{base}.q_b_proj", layer, query, heads * (nope + rope), cut="outputs"),
        ]
    else:
        weights.append(_linear(f"{base}.q_proj", layer, hidden, heads * (nope + rope), cut="outputs"))
    if keys.get("index_n_heads") is not None:
        number, size = keys.count("index_n_heads"), keys.count("index_head_dim")
        weights += [
            _linear(f"{base}.indexer.wq_b", layer, query or hidden, number * size, cut="", share="whole"),
            _linear(f"{base}.indexer.wk", layer, hidden, size, cut="", share="whole"),
            Weight(f"{base}.indexer.rest", 2 * size + hidden * number, "whole", layer=layer),
        ]
    return weights


def _feed_forward(base: str, layer: int, hidden: int, size: int) -> list[Weight]:
    """A gated feed-forward block, as all these families have it."""
    return [
        _linear(f"{base}.gate_proj", layer, hidden, size, cut="outputs"),
        _linear(f"{base}.up_proj", layer, hidden, size, cut="outputs"),
        _linear(f"{base}.down_proj", layer, size, hidden, cut="inputs"),
    ]


@dataclass(frozen=True)
class _Experts:
    """The experts of a model: how many, how wide, in which layers, and the width of the shared ones together."""

    number: int
    per_token: int
    size: int
    at: frozenset[int]
    shared_size: int = 0


def _experts(keys: _Keys, family: _Family, layers: int) -> _Experts | None:
    every = frozenset(range(layers))
    if family.experts in ("mixtral", "gpt_oss"):
        number = keys.count("num_local_experts")
        per_token = keys.count("num_experts_per_tok", "experts_per_token", default=2)
        return _Experts(number, per_token, keys.count("intermediate_size"), every)
    if family.experts == "qwen":
        step = keys.count("decoder_sparse_step", default=1)
        dense = {layer for layer in keys.list_of("mlp_only_layers") if isinstance(layer, int)}
        at = frozenset(layer for layer in every - dense if (layer + 1) % step == 0)
        shared = keys.count("shared_expert_intermediate_size", default=0, least=0)
        number, size = keys.count("num_experts"), keys.count("moe_intermediate_size")
        return _Experts(number, keys.count("num_experts_per_tok", default=8), size, at, shared)
    if family.experts == "deepseek" and keys.get("n_routed_experts") is not None:
        first = keys.count("first_k_dense_replace", default=0, least=0)
        step = keys.count("moe_layer_freq", default=1)
        at = frozenset(layer for layer in every if layer >= first and layer % step == 0)
        size = keys.count("moe_intermediate_size")
        shared = keys.count("n_shared_experts", default=0, least=0) * size
        return _Experts(keys.count("n_routed_experts"), keys.count("num_experts_per_tok", default=8), size, at, shared)
    return None


def _expert_weights(keys: _Keys, family: _Family, experts: _Experts, layer: int, hidden: int) -> list[Weight]:
    base = f"model.layers.{layer}.{'block_sparse_moe' if family.experts == 'mixtral' else 'mlp'}"
    number, size = experts.number, experts.size

    def all_of(name: str, inputs: int, outputs: int, cut: Literal["inputs", "outputs"]) -> Weight:
        name = f"{base}.experts.0.{name}"
        return Weight(name, number * inputs * outputs, "split", "layer", layer, inputs, outputs, cut, True)

    weights = [
        Weight(f"{base}.gate", number * hidden, "whole", layer=layer),
        all_of("gate_proj", hidden, size, "outputs"),
        all_of("up_proj", hidden, size, "outputs"),
        all_of("down_proj", size, hidden, "inputs"),
    ]
    if family.experts == "gpt_oss":
        weights.append(Weight(f"{base}.router.bias", number, "whole", layer=layer))
        weights.append(Weight(f"{base}.experts.bias", number * (2 * size + hidden), layer=layer))
    if family.experts == "deepseek" and keys.get("topk_method") == "noaux_tc":
        weights.append(Weight(f"{base}.gate.e_score_correction_bias", number, "whole", layer=layer))
    if experts.shared_size:
        weights += _feed_forward(f"{base}.shared_experts", layer, hidden, experts.shared_size)
        if family.experts == "qwen":
            weights.append(Weight(f"{base}.shared_expert_gate", hidden, "whole", layer=layer))
    return weights


# --- the cache --------------------------------------------------------------------------------------------------


def _cache(keys: _Keys, family: _Family, layers: int, head_dim: int) -> tuple[CacheLayer, ...]:
    if family.mla:
        values = keys.count("kv_lora_rank") + keys.count("qk_rope_head_dim")
        # The indexer keeps one fp8 key and a float32 scale for every 128 values (vLLM, deepseek_v2.py).
        size = keys.count("index_head_dim", default=0, least=0)
        return (CacheLayer(values, mla=True, extra_bytes=size + 4 * math.ceil(size / 128)),) * layers
    windows = _windows(keys, family, layers)
    return tuple(CacheLayer(2 * head_dim, window=window) for window in windows)


def _windows(keys: _Keys, family: _Family, layers: int) -> list[int | None]:
    """Return the attention window of each layer; None where a layer sees every token."""
    window = keys.get("sliding_window")
    if not isinstance(window, int) or window is True or window < 1 or not keys.flag("use_sliding_window", True):
        return [None] * layers
    kinds = keys.list_of("layer_types")
    if len(kinds) >= layers:
        unknown = {str(kind) for kind in kinds} - {"sliding_attention", "full_attention"}
        if unknown:
            raise _UnusableError(
                "architecture",
                f"layer_types holds {', '.join(sorted(unknown))}, whose memory is not known",
                "judge the memory of this model by a trial start",
            )
        return [window if kind == "sliding_attention" else None for kind in kinds[:layers]]
    every = keys.count("sliding_window_pattern", default=family.window_every or 0, least=0)
    if every:
        return [None if (layer + 1) % every == 0 else window for layer in range(layers)]
    # Qwen2: only from this layer on, when windows are used at all.
    first = keys.count("max_window_layers", default=0, least=0)
    return [window if layer >= first else None for layer in range(layers)]


def _max_model_len(keys: _Keys) -> int | None:
    """Return the length that vLLM derives (vllm/config/model.py): scaled only where the key is not scaled already."""
    names = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "model_max_length")
    if keys.get(*names) is None:
        return None
    length = keys.count(*names)
    rope = keys.map_of("rope_parameters", "rope_scaling")
    kind = str(rope.get("rope_type", rope.get("type", "default")))
    factor = rope.get("factor")
    if kind in ("linear", "dynamic") and isinstance(factor, (int, float)) and 1 <= factor <= 1e6:
        return int(length * factor)
    return length


# --- quantisation -----------------------------------------------------------------------------------------------


def _quantisation(keys: _Keys) -> Quantisation | None:
    """Read ``quantization_config``; None when the checkpoint is not quantised."""
    document = keys.map_of("quantization_config", "compression_config")
    if not document:
        return None
    inner = _Keys(document)
    method = str(document.get("quant_method", "")).lower()
    reader = _METHODS.get(method)
    if reader is None:
        raise _UnusableError(
            "quantisation",
            f"quant_method is {method!r}, whose storage is not known; known are {', '.join(_METHODS)}",
            "put model.safetensors.index.json and the safetensors files next to config.json: their sizes count then",
        )
    return reader(inner)


def _skipped(keys: _Keys) -> tuple[str, ...]:
    names = ("modules_to_not_convert", "ignored_layers", "ignore", "exclude", "llm_int8_skip_modules")
    patterns = [str(p) for name in names for p in keys.list_of(name)]
    return tuple(dict.fromkeys(["lm_head", *patterns]))


def _fp8(keys: _Keys) -> Quantisation:
    block = keys.list_of("weight_block_size")
    if len(block) == 2 and all(isinstance(side, int) and 1 <= side <= 65536 for side in block):
        # One float32 scale a block, as DeepSeek and Qwen publish them.
        return Quantisation("fp8", 1 + 4 / (block[0] * block[1]), block[1], block[0], _skipped(keys))
    return Quantisation("fp8", 1, skip=_skipped(keys))


def _grouped(method: str, keys: _Keys) -> Quantisation:
    """AWQ and GPTQ: packed integers, one 16-bit scale and one packed zero point a group."""
    bits = keys.count("bits", "w_bit", default=4)
    group = keys.get("group_size", "q_group_size")
    size = group if isinstance(group, int) and group > 0 else 128
    if bits not in (2, 3, 4, 8):
        raise _UnusableError("quantisation", f"{method} with {bits} bits is not known", _CORRECT)
    stored = bits / 8 + (2 + bits / 8) / size
    # GPTQ keeps the group of each input row in g_idx, once a matrix: under a thousandth, and left out.
    skip = _skipped(keys)
    if keys.flag("lm_head"):
        skip = tuple(p for p in skip if p != "lm_head")
    columns = 32 // bits if method == "awq" else 1  # AWQ packs along the outputs
    return Quantisation(method, stored, block_in=size, block_out=columns, skip=skip)


def _compressed_tensors(keys: _Keys) -> Quantisation:
    groups = [group for group in keys.map_of("config_groups").values() if isinstance(group, Mapping)]
    weights = groups[0].get("weights") if groups else None
    if not isinstance(weights, Mapping):
        raise _UnusableError(
            "quantisation", "compressed-tensors has no weights in config_groups", "correct config.json"
        )
    inner = _Keys(weights)
    bits = inner.count("num_bits", default=8)
    strategy = str(weights.get("strategy", "tensor"))
    size = inner.count("group_size", default=0, least=-1)
    block = inner.list_of("block_structure")
    if strategy == "block" and len(block) == 2 and all(isinstance(side, int) and side >= 1 for side in block):
        stored = bits / 8 + 2 / (block[0] * block[1])
        return Quantisation("compressed-tensors", stored, block[1], block[0], _skipped(keys))
    if strategy in ("group", "tensor_group") and size > 0:
        scale = 1.0 if str(weights.get("type")) == "float" and bits == 4 else 2.0
        return Quantisation("compressed-tensors", bits / 8 + scale / size, block_in=size, skip=_skipped(keys))
    return Quantisation("compressed-tensors", bits / 8, skip=_skipped(keys))


def _mxfp4(keys: _Keys) -> Quantisation:
    """Four bits and one 8-bit exponent for every 32 values, for the experts only (the gpt-oss checkpoints)."""
    return Quantisation("mxfp4", 0.5 + 1 / 32, 32, skip=_skipped(keys), only=("*.experts",), pads=True)


def _quark(keys: _Keys) -> Quantisation:
    weight = _Keys(keys.map_of("global_quant_config")).map_of("weight")
    kind = str(weight.get("dtype", ""))
    if kind.startswith("fp8"):
        return Quantisation("quark", 1, skip=_skipped(keys))
    if kind == "fp4":
        return Quantisation("quark", 0.5 + 1 / 32, 32, skip=_skipped(keys))
    if kind in ("int8", "int4", "uint4"):
        size = weight.get("group_size")
        size = size if isinstance(size, int) and size > 0 else 0
        stored = (0.5 if "4" in kind else 1) + (2 / size if size else 0)
        return Quantisation("quark", stored, block_in=size or 1, skip=_skipped(keys))
    raise _UnusableError("quantisation", f"quark with weights in {kind!r} is not known", _CORRECT)


_METHODS: Mapping[str, Callable[[_Keys], Quantisation]] = {
    "fp8": _fp8,
    "fbgemm_fp8": lambda keys: Quantisation("fbgemm_fp8", 1, skip=_skipped(keys)),
    "awq": lambda keys: _grouped("awq", keys),
    "gptq": lambda keys: _grouped("gptq", keys),
    "compressed-tensors": _compressed_tensors,
    "mxfp4": _mxfp4,
    "quark": _quark,
}


# --- the tensors themselves -------------------------------------------------------------------------------------


def tensors_of_header(head: bytes) -> tuple[dict[str, Tensor] | None, str]:
    """Read the header of a safetensors file: 8 bytes with its length, then JSON.

    Args:
        head: the file, or at least its beginning with all of the header.

    Returns:
        The tensors by name, or None and what is wrong.
    """
    if len(head) < 8:
        return None, f"is {len(head)} bytes long, expected a header"
    (length,) = struct.unpack_from("<Q", head)
    if length > len(head) - 8:
        return None, f"says its header has {length} bytes, {len(head) - 8} are there"
    try:
        document = json.loads(head[8 : 8 + length])
        tensors = {}
        for name, entry in document.items():
            if name == "__metadata__":
                continue
            first, last = entry["data_offsets"]
            if not 0 <= first <= last:
                raise ValueError(f"{name}: offsets {first} to {last}")
            tensors[str(name)] = Tensor(str(entry["dtype"]), int(last - first))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as exc:
        return None, f"has a header that is no safetensors header: {exc!r}"
    return tensors, ""


_WHOLE = re.compile(
    r"norm|\.gate\.|router|q_a_proj|kv_a_proj|shared_expert_gate|e_score|indexer|vision|visual|image|audio|o_proj\.bias"
)
_KV = re.compile(r"\.(?:k_proj|v_proj)\.")
_LAYER = re.compile(r"\blayers\.(\d+)\.")


def weights_of_tensors(tensors: Mapping[str, Tensor], *, layers: int, dtype: str) -> list[tuple[Weight, int]]:
    """Turn the tensors of a checkpoint into weights with their real sizes in bytes.

    Layers beyond ``layers`` (multi-token prediction) are left out, as vLLM leaves them out; float32 weights that are
    no scales count as ``dtype``, which vLLM turns them into. Encoders for images and sound count as whole on each GPU.
    """
    found = []
    for name, tensor in sorted(tensors.items()):
        place = _LAYER.search(name)
        if place and int(place.group(1)) >= layers:
            continue
        nbytes = tensor.nbytes
        if tensor.dtype == "F32" and "scale" not in name and "bias" not in name:
            nbytes = int(nbytes / 4 * DTYPE_BYTES[dtype])
        share: Share = "whole" if _WHOLE.search(name) or nbytes < 8 else "kv" if _KV.search(name) else "split"
        if place:
            stage: Stage = "layer"
        else:
            stage = "head" if re.search(r"lm_head|\bnorm\b|output", name) else "embedding"
        layer = int(place.group(1)) if place else 0
        found.append((Weight(name, 0, share, stage, layer), nbytes))
    return found


def index_total(document: object) -> int | None:
    """Return ``metadata.total_size`` of a ``model.safetensors.index.json`` in bytes; None when it does not say."""
    metadata = document.get("metadata") if isinstance(document, Mapping) else None
    total = metadata.get("total_size") if isinstance(metadata, Mapping) else None
    return total if isinstance(total, int) and not isinstance(total, bool) and total > 0 else None


def partition(layers: int, stages: int) -> Sequence[int]:
    """Return how many layers each pipeline stage gets, as vLLM's get_pp_indices divides them.

    A remainder goes to the stages before the last one, backwards, since the last has the output head.
    """
    parts = [layers // stages] * stages
    for i in range(2, layers % stages + 2):
        parts[-i] += 1
    return parts
