"""Does a model fit: weights, KV cache and what is left, on each GPU, before anything is deployed.

Counted in bytes on the fullest GPU of the tensor and pipeline groups, the way vLLM divides a model:
:func:`fit` takes the ``config.json`` and, where there are any, the real tensor sizes. It says what it leaves out.

Findings have codes ``fit_...``; those of :mod:`instinct_fleet.model_config` are passed on. A model that cannot be
judged is ``unknown``, never a pass.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from instinct_fleet.model import Finding, Severity, sort_findings, verdict
from instinct_fleet.model_config import (
    DTYPE_BYTES,
    CacheLayer,
    Model,
    Quantisation,
    Tensor,
    Weight,
    partition,
    read_config,
    weights_of_tensors,
)

GIB = 1024**3

#: Bytes of one element in the KV cache (vllm/config/cache.py: on ROCm fp8 is the same as fp8_e4m3).
KV_BYTES: Mapping[str, float] = {
    **{"float32": 4, "float16": 2, "half": 2, "bfloat16": 2},
    **{"fp8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1, "fp8_inc": 1, "int8_per_token_head": 1, "fp8_per_token_head": 1},
}

#: HIP graphs: about 6 GiB were seen on MI300X (vllm issue 19579). Newer releases take less.
GRAPH_BYTES = 6 * GIB
#: The HIP context, RCCL's buffers and what PyTorch holds besides tensors: vLLM reports 1 to 2 GiB as non-torch memory.
RUNTIME_BYTES = 2 * GIB

#: Fewer sequences of full length at once than these make a server of little use.
_ENOUGH_SEQUENCES = 4

#: What :func:`fit` does not count.
NEGLECTED = (
    "activations are estimated from shapes, not measured: vLLM measures them when it starts",
    "encoders for images and sound, LoRA adapters, draft models and multi-token prediction layers",
    "memory that other processes hold on the same GPU",
    "padding of the vocabulary and of quantised weights by kernels",
)


@dataclass(frozen=True)
class Reserve:
    """A part of a GPU's memory that is set aside: ``source`` says where the figure comes from."""

    what: str
    nbytes: int
    source: str


@dataclass(frozen=True)
class Suggestion:
    """The smallest set-up that holds the model with a few sequences of full length, or with one when none has more."""

    tensor_parallel_size: int
    pipeline_parallel_size: int
    max_model_len: int
    max_num_seqs: int


@dataclass(frozen=True)
class Fit:
    """The memory of one instance. Bytes are those of the fullest GPU unless they say otherwise.

    ``weight_source`` is ``formula`` (from config.json), ``index`` (the same, scaled to the size that the index
    states) or ``tensors`` (each tensor's own size). ``max_tokens`` is how many tokens the cache holds in sequences of
    ``max_model_len``, as vLLM prints it; ``max_sequences`` how many such sequences run at once. ``fits`` is None when
    it cannot be told. ``instances`` is how many copies the GPUs have room for.
    """

    gpus: int
    vram_bytes: int
    tensor_parallel_size: int
    pipeline_parallel_size: int
    gpu_memory_utilization: float
    kv_cache_dtype: str
    architecture: str | None = None
    parameters: int | None = None
    weight_source: str | None = None
    weight_bytes_total: int | None = None
    weight_bytes: int | None = None
    budget_bytes: int | None = None
    reserves: tuple[Reserve, ...] = ()
    kv_bytes_per_token: int | None = None
    kv_heads: int | None = None
    kv_pool_bytes: int | None = None
    block_size: int = 16
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    max_tokens: int | None = None
    max_sequences: float | None = None
    instances: int | None = None
    fits: bool | None = None
    suggestion: Suggestion | None = None
    findings: tuple[Finding, ...] = ()
    neglected: tuple[str, ...] = field(default=NEGLECTED)


@dataclass(frozen=True)
class _Asked:
    """The arguments of :func:`fit` that go with a set-up."""

    gpus: int
    vram: int
    tp: int
    pp: int
    utilization: float
    kv_dtype: str
    max_model_len: int | None
    max_num_seqs: int | None
    batched_tokens: int | None
    block_size: int
    enforce_eager: bool
    expert_parallel: bool
    reserve: float | None
    kv_pool: int | None

    @property
    def large(self) -> bool:
        """True for GPUs of MI300X size, for which vLLM's defaults are higher (vllm/engine/arg_utils.py)."""
        return self.vram >= 160 * GIB

    @property
    def sequences(self) -> int:
        """Sequences at once, vLLM's default when none were asked for."""
        return self.max_num_seqs or (1024 if self.large else 256)

    @property
    def step_tokens(self) -> int:
        """Tokens of one step, the server's default when none were asked for."""
        return self.batched_tokens or (16384 if self.large else 8192 if self.vram >= 70 * GIB else 2048)


@dataclass(frozen=True)
class _Sizes:
    """The weights with their sizes in bytes, and where these come from."""

    source: str
    weights: tuple[tuple[Weight, float], ...]
    counted: float

    @property
    def total(self) -> float:
        """All weights together."""
        return sum(nbytes for _, nbytes in self.weights)


def fit(
    config: object,
    *,
    gpus: int,
    vram_gib: float,
    tp: int,
    pp: int = 1,
    max_model_len: int | None = None,
    max_num_seqs: int | None = None,
    max_num_batched_tokens: int | None = None,
    gpu_memory_utilization: float = 0.92,
    kv_cache_dtype: str = "auto",
    block_size: int = 16,
    enforce_eager: bool = False,
    expert_parallel: bool = False,
    reserve_gib: float | None = None,
    kv_cache_memory_bytes: int | None = None,
    tensors: Mapping[str, Tensor] | None = None,
    index_total: int | None = None,
) -> Fit:
    """Judge one set-up of a model.

    Args:
        config: the parsed ``config.json``.
        gpus: GPUs there are; an instance takes ``tp`` x ``pp`` of them.
        vram_gib: memory of one GPU in GiB (MI300X: 192).
        tp: tensor parallel size.
        pp: pipeline parallel size.
        max_model_len: tokens of the longest sequence; None for what the model allows.
        max_num_seqs: sequences at once; None for vLLM's default.
        max_num_batched_tokens: tokens of one step; None for vLLM's default.
        gpu_memory_utilization: as vLLM's option of that name (0.92 from 0.20 on, 0.9 before).
        kv_cache_dtype: as vLLM's option of that name.
        block_size: tokens of one block of the cache.
        enforce_eager: no graphs are captured.
        expert_parallel: experts are spread over the GPUs whole instead of being cut.
        reserve_gib: memory set aside on each GPU in place of the estimate.
        kv_cache_memory_bytes: size of the cache in place of what is left, as vLLM's option of that name.
        tensors: every tensor of the checkpoint, from the safetensors headers.
        index_total: ``metadata.total_size`` of the index, used when the tensors are not there.

    Returns:
        The figures and the findings. Arguments that make no sense are findings too.
    """
    asked = _Asked(
        gpus=gpus,
        vram=int(vram_gib * GIB) if _positive(vram_gib) and vram_gib < 1e6 else 0,
        tp=tp,
        pp=pp,
        utilization=gpu_memory_utilization,
        kv_dtype=kv_cache_dtype,
        max_model_len=max_model_len,
        max_num_seqs=max_num_seqs,
        batched_tokens=max_num_batched_tokens,
        block_size=block_size,
        enforce_eager=enforce_eager,
        expert_parallel=expert_parallel,
        reserve=reserve_gib,
        kv_pool=kv_cache_memory_bytes,
    )
    unusable = _check_arguments(asked)
    model, findings = read_config(config)
    if unusable or model is None:
        return replace(_nothing(asked), findings=sort_findings([*unusable, *findings]))
    sizes = _sizes(model, tensors, index_total)
    result = _measure(model, asked, sizes)
    found = sort_findings(
        [
            *_check_shape(model, asked),
            *_check_sizes(model, sizes),
            *_check_request(model, asked),
            *_check_room(model, asked, sizes, result),
        ]
    )
    severities = {finding.severity for finding in found}
    return replace(
        result,
        fits=False if "error" in severities else None if "unknown" in severities else True,
        suggestion=_suggest(model, asked, sizes, limit=gpus),
        findings=found,
    )


def _positive(value: float) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value) and value > 0


def _nothing(asked: _Asked) -> Fit:
    """Return a result with nothing but what was asked."""
    return Fit(
        gpus=asked.gpus,
        vram_bytes=asked.vram,
        tensor_parallel_size=asked.tp,
        pipeline_parallel_size=asked.pp,
        gpu_memory_utilization=asked.utilization,
        kv_cache_dtype=asked.kv_dtype,
        block_size=asked.block_size,
    )


def _finding(code: str, severity: Severity, subject: str, message: str, remedy: str) -> Finding:
    return Finding(f"fit_{code}", severity, subject, message, remedy)


def _check_arguments(asked: _Asked) -> list[Finding]:
    """Refuse numbers that no set-up can have."""
    findings = []
    counts: dict[str, int | None] = {
        **{"gpus": asked.gpus, "tp": asked.tp, "pp": asked.pp, "block_size": asked.block_size},
        **{"max_model_len": asked.max_model_len, "max_num_seqs": asked.max_num_seqs},
        "max_num_batched_tokens": asked.batched_tokens,
        "kv_cache_memory_bytes": asked.kv_pool,
    }
    for name, value in counts.items():
        if value is None and name.startswith(("max_", "kv_")):
            continue
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= 2**50:
            remedy = f"give {name} as a whole number of at least 1"
            findings.append(_finding("argument", "error", name, f"is {value!r}, expected at least 1", remedy))
    if not asked.vram:
        message, remedy = "is no amount of memory", "give vram_gib in GiB, 192 for an MI300X"
        findings.append(_finding("argument", "error", "vram_gib", message, remedy))
    if not _positive(asked.utilization) or asked.utilization > 1:
        message = f"is {asked.utilization!r}, expected more than 0 and at most 1"
        findings.append(
            _finding("argument", "error", "gpu_memory_utilization", message, "give for example 0.92, vLLM's default")
        )
    if asked.reserve is not None and asked.reserve != 0 and not _positive(asked.reserve):
        message = f"is {asked.reserve!r}, expected 0 or more"
        findings.append(_finding("argument", "error", "reserve_gib", message, "give it in GiB"))
    return findings


# --- the figures of one set-up ----------------------------------------------------------------------------------


def _sizes(model: Model, tensors: Mapping[str, Tensor] | None, index_total: int | None) -> _Sizes:
    """Size every weight: by the tensors if they are known, else by the shape, scaled to the index if there is one."""
    by_shape = tuple((weight, model.weight_bytes(weight)) for weight in model.weights)
    counted = sum(nbytes for _, nbytes in by_shape)
    if tensors:
        real = weights_of_tensors(tensors, layers=model.layers, dtype=model.dtype)
        return _Sizes("tensors", tuple((weight, float(nbytes)) for weight, nbytes in real), counted)
    if index_total:
        scaled = tuple((weight, nbytes * index_total / counted) for weight, nbytes in by_shape)
        return _Sizes("index", scaled, counted)
    return _Sizes("formula", by_shape, counted)


def _measure(model: Model, asked: _Asked, sizes: _Sizes) -> Fit:
    """Return the figures of a set-up, without judging them."""
    reserves = _reserves(model, asked)
    result = replace(
        _nothing(asked),
        architecture=model.architecture,
        parameters=model.parameters,
        weight_source=sizes.source,
        weight_bytes_total=math.ceil(sizes.total),
        weight_bytes=math.ceil(max(_stages(model, asked, sizes))),
        budget_bytes=int(asked.vram * asked.utilization),
        reserves=reserves,
        kv_heads=_kv_heads(model, asked.tp),
        max_model_len=asked.max_model_len or model.max_model_len,
        max_num_seqs=asked.sequences,
        max_num_batched_tokens=asked.step_tokens,
        instances=asked.gpus // (asked.tp * asked.pp),
    )
    page = _page_bytes(model, asked)
    if page is None:
        return result
    pool = asked.kv_pool if asked.kv_pool is not None else max(_left(result), 0)
    result = replace(
        result, kv_bytes_per_token=page * len(_fullest(model, asked)) // asked.block_size, kv_pool_bytes=pool
    )
    if result.max_model_len is None:
        return result
    sequences = _room(model, asked, pool, page, result.max_model_len)
    return replace(result, max_sequences=sequences, max_tokens=int(sequences * result.max_model_len))


def _left(result: Fit) -> int:
    """Return what weights and reserves leave of the budget; negative when they exceed it."""
    reserved = sum(reserve.nbytes for reserve in result.reserves)
    return (result.budget_bytes or 0) - (result.weight_bytes or 0) - reserved


def _share(model: Model, asked: _Asked, weight: Weight) -> float:
    """Return the part of a weight that lies on one GPU of the tensor group."""
    if weight.share == "whole":
        return 1.0
    if weight.share == "kv":
        return 1 / min(asked.tp, model.kv_heads)
    return 1 / asked.tp


def _stages(model: Model, asked: _Asked, sizes: _Sizes) -> list[float]:
    """Return what each pipeline stage has on one GPU, the copies that MLA makes included."""
    parts = partition(model.layers, min(asked.pp, model.layers))
    stage_of = [stage for stage, number in enumerate(parts) for _ in range(number)]
    stages = [0.0] * len(parts)
    for weight, nbytes in sizes.weights:
        part = nbytes * _share(model, asked, weight)
        if weight.stage == "embedding":
            stages[0] += part
            if model.tied and len(parts) > 1:
                stages[-1] += part  # the last stage needs it as its output head
        elif weight.stage == "head":
            stages[-1] += part
        else:
            stages[stage_of[weight.layer]] += part
    return [s + n * model.absorbed_bytes / asked.tp for s, n in zip(stages, parts, strict=True)]


def _kv_heads(model: Model, tp: int) -> int:
    """Return the KV heads on one GPU; MLA has one latent vector on each."""
    return 1 if model.mla else max(model.kv_heads // tp, 1)


def _kv_element_bytes(model: Model, asked: _Asked) -> float | None:
    """Return the bytes of one element of the cache; None for a type whose size is not known."""
    if asked.kv_dtype == "auto":
        return DTYPE_BYTES[model.dtype]
    if model.mla and asked.kv_dtype == "fp8_ds_mla":
        # 512 fp8 values, four float32 scales and 64 bfloat16 values: 656 bytes for what else are 576 elements.
        return 656 / 576
    return KV_BYTES.get(asked.kv_dtype)


def _reserves(model: Model, asked: _Asked) -> tuple[Reserve, ...]:
    """Set memory aside for what runs besides weights and cache.

    The largest tensors of vLLM's profiling step are counted: the residual stream and three more of its width for each
    token of a step, the widest feed-forward layer (for experts: of each token's experts, with vLLM's three buffers),
    and the logits of every sequence, once in the model's type and twice in float32.
    """
    if asked.reserve is not None:
        return (Reserve("set by hand", int(asked.reserve * GIB), "reserve_gib"),)
    element, tokens = DTYPE_BYTES[model.dtype], asked.step_tokens
    stream = tokens * model.hidden_size * 4 * element
    forward = tokens * 3 * max(model.intermediate_sizes.values(), default=0) / asked.tp * element
    if model.expert_size:
        width = model.expert_size if asked.expert_parallel else model.expert_size / asked.tp
        routed = tokens * max(model.experts_per_token, 1)
        forward = max(forward, routed * (max(2 * width, model.hidden_size) + width) * element)
    logits = asked.sequences * model.vocab_size * (element + 8)
    reserves = [
        Reserve("activations", int(stream + forward + logits), "shapes of vLLM's profiling step"),
        Reserve("runtime", RUNTIME_BYTES, "vLLM's non-torch memory, 1 to 2 GiB"),
    ]
    if not asked.enforce_eager:
        reserves.append(Reserve("graphs", GRAPH_BYTES, "HIP graphs on MI300X, vllm issue 19579"))
    return tuple(reserves)


def _fullest(model: Model, asked: _Asked) -> tuple[CacheLayer, ...]:
    """Return the cache layers of the pipeline stage that has most of them: it decides, as all have the same memory."""
    return model.cache[: max(partition(model.layers, min(asked.pp, model.layers)))]


def _page_bytes(model: Model, asked: _Asked) -> int | None:
    """Return what one block takes in one layer on one GPU; None when the type of the cache is not known."""
    element = _kv_element_bytes(model, asked)
    if element is None:
        return None
    layer = model.cache[0]
    scales = 8 if asked.kv_dtype.endswith("per_token_head") and not layer.mla else 0  # float32, for key and for value
    token = (layer.values * element + scales) * _kv_heads(model, asked.tp) + layer.extra_bytes
    return int(token * asked.block_size)


def _blocks_per_sequence(model: Model, asked: _Asked, length: int) -> tuple[int, int]:
    """Return how many blocks one sequence of ``length`` takes, and in how many layers a block lies.

    Layers with the same reach share blocks. With both kinds, vLLM forms groups of equal size (kv_cache_utils.py): of
    the smaller kind's number of layers, or of the larger's when that is less than half as many again.
    """
    kinds: dict[int | None, int] = {}
    for layer in _fullest(model, asked):
        kinds[layer.window] = kinds.get(layer.window, 0) + 1
    group = min(kinds.values())
    if max(kinds.values()) < 1.5 * group:
        group = max(kinds.values())
    blocks = 0
    for window, number in kinds.items():
        if window is None:
            each = math.ceil(length / asked.block_size)
        else:
            # A window keeps what a step in flight adds, and may begin within a block.
            each = math.ceil(min(window - 1 + asked.step_tokens, length) / asked.block_size) + 1
        blocks += math.ceil(number / group) * each
    return blocks, group


def _room(model: Model, asked: _Asked, pool: int, page: int, length: int) -> float:
    """Return how many sequences of ``length`` tokens a cache of ``pool`` bytes holds."""
    needed, group = _blocks_per_sequence(model, asked, length)
    return float(pool // (page * group) / needed)


def _longest(model: Model, asked: _Asked, result: Fit) -> int:
    """Return the longest sequence that has room, in whole kilo-tokens unless it is the longest there is."""
    page, low, high = _page_bytes(model, asked), 0, result.max_model_len or 0
    if page is None or result.kv_pool_bytes is None:
        return 0
    while low < high:
        middle = (low + high + 1) // 2
        if _room(model, asked, result.kv_pool_bytes, page, middle) >= 1:
            low = middle
        else:
            high = middle - 1
    return low // 1024 * 1024 if 1024 <= low < (result.max_model_len or 0) else low


# --- the shape --------------------------------------------------------------------------------------------------


def _check_shape(model: Model, asked: _Asked) -> list[Finding]:
    """Check that heads, widths, quantisation groups and layers can be divided."""
    findings: list[Finding] = []
    tp = asked.tp

    def uneven(code: str, subject: str, message: str, remedy: str) -> None:
        findings.append(_finding(code, "error", subject, message, remedy))

    if model.heads % tp:
        fitting = ", ".join(str(n) for n in (1, 2, 4, 8, 16) if model.heads % n == 0)
        uneven("heads", "num_attention_heads", f"{model.heads} heads cannot be cut into {tp}", f"use TP {fitting}")
    if not model.mla:
        if model.kv_heads >= tp and model.kv_heads % tp:
            message = f"{model.kv_heads} KV heads cannot be cut into {tp}"
            remedy = f"use a TP that divides {model.kv_heads}, or a multiple of it"
            uneven("kv_heads", "num_key_value_heads", message, remedy)
        elif model.kv_heads < tp and tp % model.kv_heads:
            message = f"{model.kv_heads} KV heads cannot be repeated evenly on {tp} GPUs"
            uneven("kv_heads", "num_key_value_heads", message, f"use a TP that is a multiple of {model.kv_heads}")
        elif model.kv_heads < tp:
            findings.append(
                _finding(
                    "kv_repeated",
                    "warning",
                    "num_key_value_heads",
                    f"{model.kv_heads} KV heads on {tp} GPUs: each is kept {tp // model.kv_heads} times, so the cache "
                    f"holds no more than with TP {model.kv_heads}",
                    f"TP {model.kv_heads} and more instances hold more",
                )
            )
    elif tp > 1:
        findings.append(
            _finding(
                "kv_repeated",
                "info",
                "kv_lora_rank",
                f"MLA keeps its cache whole on each of the {tp} GPUs",
                "data parallel attention (--data-parallel-size with --enable-expert-parallel) spreads it",
            )
        )
    sizes = dict(model.intermediate_sizes)
    if model.expert_size and not asked.expert_parallel:
        sizes["expert"] = model.expert_size
    for name, size in sizes.items():
        if size % tp:
            uneven("intermediate", name, f"width {size} cannot be cut into {tp}", f"use a TP that divides {size}")
    if asked.pp > model.layers:
        uneven("layers", "num_hidden_layers", f"{model.layers} layers for {asked.pp} stages", "use a smaller PP")
    if model.quantisation is not None:
        findings += _check_groups(model, asked, model.quantisation)
    return findings


def _check_groups(model: Model, asked: _Asked, quantisation: Quantisation) -> list[Finding]:
    """Check that a cut does not go through a block of quantised weights, which share a scale."""
    found: dict[tuple[int, int, int], Finding] = {}
    for weight in model.weights:
        if asked.tp == 1 or not weight.cut or not quantisation.applies(weight):
            continue
        if ".experts." in weight.name and asked.expert_parallel:
            continue
        parts = min(asked.tp, model.kv_heads) if weight.share == "kv" else asked.tp
        whole = weight.inputs if weight.cut == "inputs" else weight.outputs
        block = quantisation.block_in if weight.cut == "inputs" else quantisation.block_out
        # What cannot be cut at all is said elsewhere; what is no multiple of its block to begin with has been padded.
        if block > 1 and whole % parts == 0 and whole // parts % block and whole % block == 0:
            kind = weight.name.rpartition(".")[2]
            experts = ".experts." in weight.name
            cut = f"{whole} over {parts} GPUs leaves {whole // parts}"
            message = f"{kind}: {cut}, no multiple of the {quantisation.method} block of {block}"
            good = [n for n in (1, 2, 4, 8, 16) if n < asked.tp and (whole // n) % block == 0]
            remedy = f"use TP {good[-1]}" + (", or --enable-expert-parallel" if experts else "")
            severity: Severity = "info" if quantisation.pads else "error"
            if quantisation.pads:
                message, remedy = f"{message}: it is padded", "none needed; the padding takes memory"
            found.setdefault(
                (whole, parts, block), _finding("quant_group", severity, "quantization_config", message, remedy)
            )
    return list(found.values())


# --- judging ----------------------------------------------------------------------------------------------------


def _check_sizes(model: Model, sizes: _Sizes) -> list[Finding]:
    """Say when the checkpoint is not what its configuration describes."""
    if sizes.source == "formula" or abs(sizes.total / sizes.counted - 1) <= 0.03:
        return []
    message = f"the checkpoint has {sizes.total / 1e9:.1f} GB, config.json stands for {sizes.counted / 1e9:.1f} GB"
    remedy = "see whether config.json belongs to these files; the checkpoint's sizes were used"
    return [_finding("weights_differ", "warning", model.architecture, message, remedy)]


def _check_request(model: Model, asked: _Asked) -> list[Finding]:
    """Judge what was asked for apart from memory: GPUs, length, type of the cache."""
    findings = []
    if asked.tp * asked.pp > asked.gpus:
        message = f"needs {asked.tp * asked.pp} GPUs, {asked.gpus} are there"
        remedy = "lower tensor-parallel-size or pipeline-parallel-size, or give the instance more GPUs"
        findings.append(_finding("gpus", "error", f"TP {asked.tp} x PP {asked.pp}", message, remedy))
    derived = model.max_model_len
    if asked.max_model_len is not None and derived is not None and asked.max_model_len > derived:
        message = f"is {asked.max_model_len}, the model allows {derived}: vLLM refuses to start"
        remedy = f"set max-model-len to at most {derived}"
        findings.append(_finding("model_len", "error", "max_model_len", message, remedy))
    if asked.max_model_len is None and derived is None:
        message = "does not say how long a sequence may be (max_position_embeddings)"
        findings.append(_finding("missing_key", "unknown", "config.json", message, "give max_model_len"))
    if _page_bytes(model, asked) is None:
        message = f"is {asked.kv_dtype!r}, whose size is not known; known are auto, {', '.join(KV_BYTES)}"
        remedy = "use auto or fp8, or judge it by a trial start"
        findings.append(_finding("kv_dtype", "unknown", "kv_cache_dtype", message, remedy))
    return findings


def _check_room(model: Model, asked: _Asked, sizes: _Sizes, result: Fit) -> list[Finding]:
    """Judge the figures: weights against the budget, the cache against one sequence and against all."""
    weights, budget = result.weight_bytes or 0, result.budget_bytes or 0
    if weights > budget:
        return [_too_heavy(model, asked, sizes, result)]
    reserved = sum(reserve.nbytes for reserve in result.reserves)
    if asked.kv_pool is not None and weights + reserved + asked.kv_pool > asked.vram:
        message = (
            f"{asked.kv_pool / GIB:.1f} GiB of cache, {weights / GIB:.1f} GiB of weights and {reserved / GIB:.1f} GiB "
            f"reserve do not fit in {asked.vram / GIB:.0f} GiB"
        )
        remedy = "lower kv-cache-memory-bytes, or leave it out"
        return [_finding("kv_pool", "error", "kv_cache_memory_bytes", message, remedy)]
    length, sequences = result.max_model_len, result.max_sequences
    if length is None or sequences is None:
        return []
    if sequences < 1:
        needed = (result.kv_bytes_per_token or 0) * length / GIB
        message = (
            f"{weights / GIB:.1f} GiB of weights and {reserved / GIB:.1f} GiB reserve leave "
            f"{(result.kv_pool_bytes or 0) / GIB:.1f} GiB for the cache; {length} tokens need {needed:.1f} GiB"
        )
        longest = _longest(model, asked, result)
        remedy = f"set max-model-len to at most {longest}, kv-cache-dtype to fp8, or " if longest else ""
        return [_finding("kv_cache", "error", "max_model_len", message, f"{remedy}use a larger TP")]
    if asked.max_num_seqs is not None and sequences < asked.max_num_seqs:
        message = (
            f"is {asked.max_num_seqs}, and {sequences:.1f} sequences of {length} tokens have room: when they all get "
            "long, some are put off and computed again"
        )
        remedy = f"set max-num-seqs to {int(sequences)}, or max-model-len to what requests really need"
        return [_finding("few_sequences", "warning", "max_num_seqs", message, remedy)]
    return []


def _too_heavy(model: Model, asked: _Asked, sizes: _Sizes, result: Fit) -> Finding:
    """The refusal: what the weights need, what the GPUs hold, and what would do."""
    number = asked.tp * asked.pp
    ways = []
    better = _suggest(model, asked, sizes, limit=max(asked.gpus, 64))
    if better is not None:
        pp = better.pipeline_parallel_size
        ways.append(f"TP {better.tensor_parallel_size}" + (f" with PP {pp}" if pp > 1 else ""))
    if model.quantisation is None and DTYPE_BYTES[model.dtype] == 2:
        small = replace(model, quantisation=Quantisation("fp8", 1, skip=("lm_head",)))
        if _holds(small, asked, _sizes(small, None, None)):
            ways.append("an FP8 checkpoint")
    kind = model.quantisation.method if model.quantisation else model.dtype
    message = (
        f"{model.parameters / 1e9:.1f} billion parameters in {kind} need {int(sizes.total / 1e9)} GB "
        f"({int(sizes.total / GIB)} GiB) of weights, {(result.weight_bytes or 0) / GIB:.1f} GiB on the fullest GPU; "
        f"{number} x {asked.vram / GIB:.0f} GiB hold {int(number * asked.vram / GIB * asked.utilization)} GiB at "
        f"{asked.utilization:g}"
    )
    remedy = f"use {' or '.join(ways)}" if ways else "use a smaller or quantised checkpoint, or more GPUs"
    return _finding("weights", "error", model.architecture, message, remedy)


# --- suggestions ------------------------------------------------------------------------------------------------


def _suggest(model: Model, asked: _Asked, sizes: _Sizes, *, limit: int) -> Suggestion | None:
    """Return the set-up with the fewest GPUs, and the least pipelining, that holds the model; None when none does.

    One with room for a few sequences of full length is preferred to one with less.
    """
    powers = [2**n for n in range(limit.bit_length()) if 2**n <= limit]
    # A tensor group stays within a node of eight GPUs.
    options = sorted((tp * pp, pp, tp) for tp in powers if tp <= 8 for pp in powers if tp * pp <= limit)
    found: Suggestion | None = None
    for _, pp, tp in options:
        tried = replace(asked, tp=tp, pp=pp, gpus=limit, kv_pool=None)
        if verdict(_check_shape(model, tried)) == "pass" and (held := _holds(model, tried, sizes)):
            suggestion = Suggestion(tp, pp, *held)
            if suggestion.max_num_seqs >= _ENOUGH_SEQUENCES:
                return suggestion
            found = found or suggestion
    return found


def _holds(model: Model, asked: _Asked, sizes: _Sizes) -> tuple[int, int] | None:
    """Return the longest sequence and the number of them that a set-up holds; None when that is of no use.

    The length is what was asked for or what the model allows, cut down to what the cache holds, but not below 8192.
    """
    lengths = [length for length in (asked.max_model_len, model.max_model_len) if length is not None]
    if not lengths:
        return None
    asked = replace(asked, max_model_len=min(lengths))
    result = _measure(model, asked, sizes)
    page, length = _page_bytes(model, asked), _longest(model, asked, result)
    if page is None or length < min(*lengths, 8192):
        return None
    room = int(_room(model, asked, result.kv_pool_bytes or 0, page, length))
    # Multiples of eight keep to the sizes for which graphs are captured (vllm issue 57355).
    return length, max(min(room // 8 * 8 if room >= 8 else room, asked.sequences), 1)


# --- against vLLM's own log -------------------------------------------------------------------------------------

_LOG_SIZE = re.compile(r"(?:GPU|CPU|XPU|TPU)?(?: \+ host)? ?KV cache size: ([\d,]+) tokens")
_LOG_CONCURRENCY = re.compile(r"Maximum concurrency for ([\d,]+) tokens per request: ([\d.]+)x")


@dataclass(frozen=True)
class LogComparison:
    """What :func:`fit` says beside what vLLM printed. ``ratio`` is expected over seen; None when either is missing."""

    expected_tokens: int | None
    seen_tokens: int | None
    expected_sequences: float | None
    seen_sequences: float | None
    seen_max_model_len: int | None
    ratio: float | None


def compare_with_log(result: Fit, log: str) -> LogComparison:
    """Compare a fit with the lines on the KV cache that vLLM prints when it starts.

    Give :func:`fit` the same ``kv_cache_memory_bytes``, ``block_size`` and ``max_model_len`` that vLLM had: then the
    two must agree to the token, whatever the machine. The CPU backend has blocks of 128 and prints ``CPU KV cache
    size``; releases print one line or two.

    Args:
        result: what :func:`fit` said.
        log: vLLM's output; the last such line counts.
    """
    sizes, limits = _LOG_SIZE.findall(log), _LOG_CONCURRENCY.findall(log)
    seen = int(sizes[-1].replace(",", "")) if sizes else None
    return LogComparison(
        expected_tokens=result.max_tokens,
        seen_tokens=seen,
        expected_sequences=result.max_sequences,
        seen_sequences=float(limits[-1][1]) if limits and limits[-1][1].count(".") <= 1 else None,
        seen_max_model_len=int(limits[-1][0].replace(",", "")) if limits else None,
        ratio=result.max_tokens / seen if seen and result.max_tokens is not None else None,
    )
