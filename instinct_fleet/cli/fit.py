"""`instinct-fleet fit`: does a model fit on these GPUs, and with how much KV cache."""

from __future__ import annotations

import argparse
import json
import math
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from instinct_fleet.arguments import parse_size
from instinct_fleet.cli import DONE, FINDINGS, UsageError
from instinct_fleet.memory import GIB, Fit, fit
from instinct_fleet.model import to_json
from instinct_fleet.model_config import Tensor, index_total, tensors_of_header

#: Far above the header of any checkpoint; a length beyond it is damage.
_LONGEST_HEADER = 256 * 1024 * 1024


def _size(text: str) -> int:
    try:
        return parse_size(text)
    except ValueError as exc:
        raise argparse.ArgumentTypeError(str(exc)) from exc


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError(f"got {text!r}, expected a finite number")
    return value


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add this subcommand."""
    parser = subparsers.add_parser(
        "fit",
        help="does a model fit on these GPUs, and with how much KV cache",
        description="Count a model's weights and KV cache on each GPU before it is deployed. Where the index or the "
        "safetensors files lie next to config.json, their sizes count.",
        epilog="Exits 1 when the model does not fit or that cannot be told.",
    )
    parser.add_argument("--model-config", required=True, type=Path, metavar="FILE", help="the model's config.json")
    parser.add_argument("--gpus", required=True, type=int, metavar="N", help="GPUs there are")
    parser.add_argument("--vram-gib", required=True, type=_number, metavar="G", help="memory of one GPU (MI300X: 192)")
    parser.add_argument("--tp", required=True, type=int, metavar="T", help="tensor parallel size")
    parser.add_argument("--pp", type=int, default=1, metavar="P", help="pipeline parallel size")
    parser.add_argument("--max-model-len", type=_size, metavar="L", help="longest sequence (default: the model's)")
    parser.add_argument("--max-num-seqs", type=int, metavar="S", help="sequences at once (default: vLLM's)")
    parser.add_argument("--max-num-batched-tokens", type=_size, metavar="B", help="tokens of a step (default: vLLM's)")
    parser.add_argument("--gpu-memory-utilization", type=_number, default=0.92, metavar="U", help="default: 0.92")
    parser.add_argument("--kv-cache-dtype", default="auto", metavar="D", help="auto (the model's), fp8 ...")
    parser.add_argument(
        "--kv-cache-memory-bytes", type=_size, metavar="M", help="size of the cache instead of what is left"
    )
    parser.add_argument("--block-size", type=int, default=16, metavar="N", help="tokens of a cache block (default: 16)")
    parser.add_argument(
        "--reserve-gib", type=_number, metavar="R", help="set aside on each GPU instead of the estimate"
    )
    parser.add_argument("--enforce-eager", action="store_true", help="no graphs are captured")
    parser.add_argument("--enable-expert-parallel", action="store_true", help="experts are spread whole, not cut")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Read, judge, print."""
    config = _read_json(args.model_config)
    tensors, total = read_sizes(args.model_config.parent)
    result = fit(
        config,
        gpus=args.gpus,
        vram_gib=args.vram_gib,
        tp=args.tp,
        pp=args.pp,
        max_model_len=args.max_model_len,
        max_num_seqs=args.max_num_seqs,
        max_num_batched_tokens=args.max_num_batched_tokens,
        gpu_memory_utilization=args.gpu_memory_utilization,
        kv_cache_dtype=args.kv_cache_dtype,
        block_size=args.block_size,
        enforce_eager=args.enforce_eager,
        expert_parallel=args.enable_expert_parallel,
        reserve_gib=args.reserve_gib,
        kv_cache_memory_bytes=args.kv_cache_memory_bytes,
        tensors=tensors,
        index_total=total,
    )
    if args.json:
        print(json.dumps(to_json(result), indent=2, sort_keys=True))
    else:
        print("\n".join(describe(result)))
    return DONE if result.fits else FINDINGS


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as exc:
        raise UsageError(f"{path}: cannot be read: {exc.strerror}") from exc
    except (ValueError, RecursionError) as exc:
        raise UsageError(f"{path}: is no JSON document: {exc}") from exc


def read_sizes(directory: Path) -> tuple[Mapping[str, Tensor] | None, int | None]:
    """Read the sizes of a checkpoint's tensors.

    Args:
        directory: where config.json lies.

    Returns:
        Every tensor, when all safetensors files of the index (or any, without an index) are there and whole; else
        None and what the index says of the sum, None when there is no index either.
    """
    index_file = directory / "model.safetensors.index.json"
    index = _read_json(index_file) if index_file.is_file() else None
    files = sorted(path.name for path in directory.glob("*.safetensors"))
    if isinstance(index, Mapping) and isinstance(index.get("weight_map"), Mapping):
        files = sorted({str(name) for name in index["weight_map"].values()})
    tensors: dict[str, Tensor] = {}
    for name in files:
        found = _read_header(directory / name)
        if found is None:
            return None, index_total(index)
        tensors |= found
    return tensors or None, index_total(index)


def model_documents(
    models: Sequence[Mapping[str, Any]], *, root: str, paths: Mapping[str, str | None]
) -> dict[str, dict[str, Any]]:
    """Read the config.json of models that are on the controller or that a node was asked for.

    Args:
        models: ``name`` and ``source`` (a folder on the controller) of each model that a playbook brings.
        root: folder of the models on the node.
        paths: content of files on the node by path; the ones called config.json count.

    Returns:
        Path of the model on the node -> ``config`` (None when it is no JSON) and ``index_total``, the bytes of its
        weights where they are known. A model without a config.json is left out.
    """
    found: dict[str, dict[str, Any]] = {}
    for path, text in paths.items():
        if path.endswith("/config.json") and text is not None:
            found[path.removesuffix("/config.json")] = {"config": _parse(text), "index_total": None}
    for model in models:
        folder = Path(str(model["source"]))
        if (folder / "config.json").is_file():
            tensors, total = read_sizes(folder)
            if tensors is not None:
                total = sum(tensor.nbytes for tensor in tensors.values())
            text = (folder / "config.json").read_text(encoding="utf-8", errors="replace")
            found[f"{root}/{model['name']}"] = {"config": _parse(text), "index_total": total}
    return found


def _parse(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _read_header(path: Path) -> Mapping[str, Tensor] | None:
    """Read the header of one file; None when the file is not there (an index alone is often copied)."""
    if not path.is_file():
        return None
    try:
        with path.open("rb") as file:
            start = file.read(8)
            length = struct.unpack("<Q", start)[0] if len(start) == 8 else 0
            head = start + (file.read(length) if length <= _LONGEST_HEADER else b"")
    except OSError as exc:
        raise UsageError(f"{path}: cannot be read: {exc.strerror}; expected a readable file of weights") from exc
    tensors, problem = tensors_of_header(head)
    if tensors is None:
        raise UsageError(f"{path}: {problem}; copy the file again and compare its checksum")
    return tensors


def describe(result: Fit) -> list[str]:
    """Return the result as lines for people."""

    def gib(nbytes: int | None) -> str:
        return "unknown" if nbytes is None else f"{nbytes / GIB:.1f} GiB"

    lines = []
    if result.parameters is not None and result.weight_bytes_total is not None:
        reserves = sum(reserve.nbytes for reserve in result.reserves)
        lines += [
            f"{result.architecture}, {result.parameters / 1e9:.2f} billion parameters, "
            f"{result.weight_bytes_total / 1e9:.1f} GB of weights (by {result.weight_source})",
            f"TP {result.tensor_parallel_size} x PP {result.pipeline_parallel_size} on {result.gpus} GPUs: "
            f"{result.instances} instances",
            "",
            "on the fullest GPU",
            f"  budget      {gib(result.budget_bytes):>12}  {result.gpu_memory_utilization:g} of the GPU's memory",
            f"  weights     {gib(result.weight_bytes):>12}",
            f"  reserve     {gib(reserves):>12}",
            *(f"    {r.what:<10}{gib(r.nbytes):>12}  {r.source}" for r in result.reserves),
            f"  KV cache    {gib(result.kv_pool_bytes):>12}  {result.kv_bytes_per_token} bytes a token "
            f"({result.kv_cache_dtype})",
            "",
        ]
        if result.max_tokens is not None and result.max_sequences is not None:
            lines.append(
                f"{result.max_tokens} tokens, {result.max_sequences:.2f} sequences of {result.max_model_len} at once"
            )
    if result.suggestion is not None:
        s = result.suggestion
        lines.append(
            f"suggested: --tensor-parallel-size {s.tensor_parallel_size} --pipeline-parallel-size "
            f"{s.pipeline_parallel_size} --max-model-len {s.max_model_len} --max-num-seqs {s.max_num_seqs}"
        )
    lines += [f"{f.severity}: {f.subject}: {f.message}; {f.remedy}" for f in result.findings]
    lines.append(f"fits: {'unknown' if result.fits is None else 'yes' if result.fits else 'no'}")
    lines += [f"not counted: {what}" for what in result.neglected]
    return lines
