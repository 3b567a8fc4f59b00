"""What to change about an instance after a load test: each piece with the number that led to it. Pure.

Nothing here is applied by itself. Facts: vLLM's documentation on preemption (raise gpu_memory_utilization, lower
max_num_seqs, or more tensor parallel), AMD's vLLM guide for the MI300 series (FP8 where HBM bandwidth bounds decoding).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from instinct_fleet.load.level import Level

#: From here on the KV cache counts as full; vLLM preempts at 1.0 and admits no more before that.
KV_FULL = 0.95
#: Up to here there is room in it.
KV_ROOM = 0.80
#: Shares of a level's requests: this many waiting are a queue, and no accident of a reading.
QUEUE_SHARE = 0.05
#: A memory controller that is busy this share of the time bounds decoding.
UMC_BOUND = 0.80
#: Weights that take this share of what an instance may use leave the KV cache too little.
WEIGHTS_DOMINATE = 0.60
#: Mean tokens of a request (prompt and answer): short up to here, long from there on.
SHORT, LONG = 512, 4096


@dataclass(frozen=True)
class Served:
    """What the instance runs with; None: not known. ``weights_share`` is of its VRAM at the given utilisation."""

    max_num_seqs: int | None = None
    block_size: int | None = None
    tensor_parallel_size: int | None = None
    quantization: str | None = None
    weights_share: float | None = None


def advise(history: Sequence[Level], served: Served, *, limit: int | None) -> tuple[str, ...]:
    """Return advice, the weightiest first; empty where nothing that was measured calls for any.

    Args:
        history: the levels of a sweep; those that are void tell nothing.
        served: what the instance runs with.
        limit: the limit that was found.
    """
    levels = sorted((v for v in history if not v.void and v.purpose != "warmup"), key=lambda v: v.concurrency)
    if not levels:
        return ()
    found = [*_cache(levels), *_queue(levels, served), *_spare(levels, served, limit)]
    found += [*_bandwidth(levels, served), *_weights(served), *_blocks(levels, served)]
    return tuple(found)


def _cache(levels: Sequence[Level]) -> list[str]:
    """Preemptions or a full KV cache: fewer sequences, or more memory for them."""
    hit = next((v for v in levels if (v.preemptions or 0) > 0 or (v.kv_usage_max or 0) >= KV_FULL), None)
    if hit is None:
        return []
    fine = [v.concurrency for v in levels if v.concurrency < hit.concurrency]
    seen = f"{hit.preemptions:.0f} preemptions" if hit.preemptions else f"a KV cache {hit.kv_usage_max:.0%} full"
    lower = f"lower max_num_seqs to about {fine[-1]}, the last level without" if fine else "lower max_num_seqs"
    return [
        f"{seen} at concurrency {hit.concurrency}: {lower}; or give the cache more room: kv_cache_dtype fp8, a shorter "
        "max_model_len, or a higher tensor_parallel_size"
    ]


def _queue(levels: Sequence[Level], served: Served) -> list[str]:
    """Requests wait although the cache has room: max_num_seqs holds them back."""
    for level in levels:
        waiting, kv = level.server_waiting, level.kv_usage_max
        if waiting is None or waiting < max(1.0, QUEUE_SHARE * level.concurrency) or kv is None or kv > KV_ROOM:
            continue
        limit = served.max_num_seqs
        if limit is not None and level.concurrency < limit:
            continue
        queued = f" for {level.queue_mean * 1e3:.0f} ms each" if level.queue_mean is not None else ""
        now = f" from {limit}" if limit is not None else ""
        return [
            f"{waiting:.0f} requests wait{queued} at concurrency {level.concurrency} while the KV cache is at most "
            f"{kv:.0%} full: raise max_num_seqs{now}, and measure again whether the time between tokens stays good"
        ]
    return []


def _spare(levels: Sequence[Level], served: Served, limit: int | None) -> list[str]:
    """The knee is far below max_num_seqs: what comes in above it only makes the others wait."""
    seqs = served.max_num_seqs
    if seqs is None or limit is None or levels[-1].concurrency <= limit or 2 * limit > seqs:
        return []
    return [
        f"the limit is {limit}, max_num_seqs {seqs}: lower max_num_seqs to about {_round_up(limit)}, so that a burst "
        "past the gateway queues instead of slowing every stream; KV cache and graphs take less memory too"
    ]


def _bandwidth(levels: Sequence[Level], served: Served) -> list[str]:
    busy = [(v.umc_activity, v.concurrency) for v in levels if v.umc_activity is not None]
    if not busy or served.quantization:
        return []
    most, where = max(busy)
    if most < UMC_BOUND:
        return []
    return [
        f"the memory controllers are busy {most:.0%} of the time at concurrency {where} (gpu_umc_activity): decoding "
        "is bound by bandwidth, so an FP8 checkpoint (half the bytes a token) brings most"
    ]


def _weights(served: Served) -> list[str]:
    share, tp = served.weights_share, served.tensor_parallel_size
    if share is None or share < WEIGHTS_DOMINATE:
        return []
    more = f" ({tp} -> {2 * tp})" if tp else ""
    return [
        f"the weights take {share:.0%} of the VRAM that the instance may use: a higher tensor_parallel_size{more} or "
        "an FP8 checkpoint leaves more of it to the KV cache"
    ]


def _blocks(levels: Sequence[Level], served: Served) -> list[str]:
    """Advise on the block size only where one is set: vLLM's own choice is the backend's."""
    known = [v for v in levels if v.mean_prompt_tokens is not None and v.mean_output_tokens is not None]
    if not known or served.block_size is None:
        return []
    tokens = (known[-1].mean_prompt_tokens or 0.0) + (known[-1].mean_output_tokens or 0.0)
    wanted = 16 if tokens <= SHORT else 64 if tokens >= LONG else served.block_size
    if wanted == served.block_size:
        return []
    why = "wastes less of the cache at the end of each" if wanted == 16 else "means fewer lookups a token"
    return [f"a request has {tokens:.0f} tokens on average, block_size is {served.block_size}: {wanted} {why}"]


def _round_up(value: int, step: int = 8) -> int:
    return -(-value // step) * step


#: Options of `vllm serve` that advice is about, and ``weights-share``.
NAMES = ("max-num-seqs", "block-size", "tensor-parallel-size", "quantization", "weights-share")


def served_of(options: Mapping[str, Any]) -> Served:
    """Read what an instance runs with: options of `vllm serve` by their long names, as texts or numbers.

    Raises:
        ValueError: an option that is not one of ``NAMES``, or a value that is no number where one is needed.
    """
    unknown = sorted(set(options) - set(NAMES))
    if unknown:
        raise ValueError(f"got {unknown[0]!r}, expected one of {', '.join(NAMES)}")

    def number(name: str, kind: type[int] | type[float]) -> Any:
        value = options.get(name)
        try:
            return None if value in (None, "") else kind(str(value))
        except ValueError:
            raise ValueError(f"{name} is {value!r}, expected a number") from None

    quantization = options.get("quantization")
    return Served(
        max_num_seqs=number("max-num-seqs", int),
        block_size=number("block-size", int),
        tensor_parallel_size=number("tensor-parallel-size", int),
        quantization=str(quantization) if quantization else None,
        weights_share=number("weights-share", float),
    )
