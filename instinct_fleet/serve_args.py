"""The arguments of one ``vllm serve``: the YAML for ``--config`` and the command line around it.

Everything goes into the file, where a diff shows it, except what vLLM honours on the command line only: it looks for
the literal ``--numa-bind`` in ``sys.argv`` to start workers by spawn, without which the binding has no effect.
"""

from __future__ import annotations

from typing import Any

from instinct_fleet.instances import Instance
from instinct_fleet.model import Unit
from instinct_fleet.placement import version_tuple

#: First release with --shutdown-timeout (absent in 0.17.1, present in 0.18.1; vllm PR 36666).
SHUTDOWN_TIMEOUT_SINCE = (0, 18)


def render_config(instance: Instance, unit: Unit, *, vllm_version: str | None = None) -> dict[str, Any]:
    """Return the mapping of ``vllm serve --config``: long option names with dashes, sorted, the model first.

    A switch that is off is left out when that is vLLM's default, and written as ``no-<option>: true`` when a user
    turns off one of ``extra_args``: vLLM's loader drops an option whose value is false.
    """
    _same(instance, unit)
    options: dict[str, Any] = {
        "served-model-name": instance.served_model_name,
        "host": unit.host,
        "port": unit.port,
        "tensor-parallel-size": unit.tensor_parallel_size,
        "pipeline-parallel-size": unit.pipeline_parallel_size if unit.pipeline_parallel_size > 1 else None,
        "gpu-memory-utilization": instance.gpu_memory_utilization,
        "block-size": instance.block_size,
        "max-num-seqs": instance.max_num_seqs,
        "max-model-len": instance.max_model_len,
        "dtype": instance.dtype,
        "kv-cache-dtype": instance.kv_cache_dtype,
        "quantization": instance.quantization,
        "enable-log-requests": instance.enable_log_requests or None,
        "shutdown-timeout": instance.shutdown_timeout,
    }
    version = version_tuple(vllm_version)
    if version is not None and version < SHUTDOWN_TIMEOUT_SINCE:
        del options["shutdown-timeout"]
    for name, value in instance.extra_args.items():
        if value is False and not name.startswith("no-"):
            options[f"no-{name}"] = True
        else:
            options[name] = value
    return {"model": instance.model} | {k: options[k] for k in sorted(options) if options[k] is not None}


def command_line(
    instance: Instance,
    unit: Unit,
    *,
    config_path: str,
    vllm_path: str = "/opt/vllm/bin/vllm",
    numactl_path: str | None = None,
) -> tuple[str, ...]:
    """Return the argv that starts the unit: numactl prefix, ``vllm serve --config``, and what only argv can carry.

    ``numactl_path`` is the full path of numactl where the caller needs one.
    """
    _same(instance, unit)
    prefix = unit.numactl
    if prefix and numactl_path:
        prefix = (numactl_path, *prefix[1:])
    return (*prefix, vllm_path, "serve", "--config", config_path, *unit.numa_bind_args)


def _same(instance: Instance, unit: Unit) -> None:
    """Refuse a unit of another instance.

    Raises:
        ValueError: naming both.
    """
    if instance.name != unit.instance:
        raise ValueError(f"serve_args: got instance {instance.name!r} and a unit of {unit.instance!r}, expected one")
