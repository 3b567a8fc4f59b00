"""The inputs of role vllm_serve: what a user says of one ``vllm serve``, checked before anything on a host changes.

Each default carries its reason as the field's description; ``docs`` and argument specs are made from them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from instinct_fleet.arguments import gone_since
from instinct_fleet.findings import finding
from instinct_fleet.model import Finding, sort_findings
from instinct_fleet.validation import explain, plain

#: Above this vLLM has nothing left for graphs and RCCL buffers; 0.92 is vLLM's own default from 0.20 on.
SAFE_GPU_MEMORY_UTILIZATION = 0.92

_HUGGING_FACE = (
    "every user of the node could read it; put the token into /var/cache/vllm/<name>/huggingface/token (mode 0600, "
    "owned by the user that serves), or bring the model's folder"
)
#: Variables that a unit must not set, with the reason.
FORBIDDEN_ENVIRONMENT: Mapping[str, str] = {
    "HSA_OVERRIDE_GFX_VERSION": "it makes the runtime report another gfx target, and kernels then fail or miscompute; "
    "it is never right on Instinct",
    "ROCR_VISIBLE_DEVICES": "vLLM maps GPUs by HIP_VISIBLE_DEVICES only and would ask the wrong ones for NUMA node and "
    "memory; use `gpus`",
    "HIP_VISIBLE_DEVICES": "placement sets it from `gpus`",
    "CUDA_VISIBLE_DEVICES": "a value that differs from HIP_VISIBLE_DEVICES stops vLLM at import; use `gpus`",
    "GPU_DEVICE_ORDINAL": "it renumbers the GPUs behind HIP_VISIBLE_DEVICES; use `gpus`",
    "VLLM_PORT": "it is the base of vLLM's internal ports, which placement keeps apart between instances",
    "VLLM_API_KEY": "a key in the unit can be read by every user; set `vllm_serve_api_key` of the role",
    "HF_TOKEN": _HUGGING_FACE,
    "HUGGING_FACE_HUB_TOKEN": _HUGGING_FACE,
}

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_OPTION = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")


class InstancesError(ValueError):
    """An instance, or two together, that cannot be; the text names the instance, the key and what is allowed."""


class SmokeTest(BaseModel):
    """A question whose answer is known, asked after every start."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    question: Annotated[str, Field(min_length=1)] = Field(description="What to ask, at temperature 0.")
    answer: Annotated[str, Field(min_length=1)] = Field(description="Text that the answer must contain.")


class Instance(BaseModel):
    """One ``vllm serve``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    # systemd allows more, but a name is also a file name, a metric label and part of a URL.
    name: Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9-]{0,46}[a-z0-9])?$")] = Field(
        description="Name of the instance; its unit is `vllm-<name>.service`. Lower case, digits and inner dashes."
    )
    model: Annotated[str, Field(min_length=1)] = Field(
        description="Folder of the model on the node, or a model id of Hugging Face."
    )
    served_model_name: str | None = Field(
        default=None, description="Name that clients ask for. None: the value of `model`, as vLLM does."
    )
    tensor_parallel_size: Annotated[int, Field(ge=1)] = Field(
        default=1, description="GPUs that share each layer. 1, since the least that holds the model is the fastest."
    )
    pipeline_parallel_size: Annotated[int, Field(ge=1)] = Field(
        default=1, description="Groups of layers. 1, since XGMI makes tensor parallel the better way inside a node."
    )
    gpus: tuple[Annotated[int, Field(ge=0)], ...] | None = Field(
        default=None, description="GPU numbers in PCI address order. None: placement chooses."
    )
    host: Annotated[str, Field(min_length=1)] = Field(
        default="127.0.0.1",
        description="Address to listen on. Loopback, since /metrics and /health are open even with an API key.",
    )
    port: Annotated[int, Field(ge=1024, le=65535)] | None = Field(
        default=None, description="Port of the API. None: the first free one from 8000 on."
    )
    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1)] = Field(
        default=0.90,
        description="Share of VRAM for weights and KV cache. 0.90 leaves room for graphs and RCCL on ROCm.",
    )
    block_size: Literal[16, 32, 64] | None = Field(
        default=None,
        description="Tokens a KV cache block. None: the attention backend's own; 16 for short chats, 64 for long ones.",
    )
    max_num_seqs: Annotated[int, Field(ge=1)] = Field(
        default=256,
        description="Requests in one batch. 256, since vLLM's 1024 on 192 GiB costs graphs and latency before it pays.",
    )
    max_model_len: Annotated[int, Field(ge=1)] | Literal["auto"] | None = Field(
        default=8192,
        description="Longest request in tokens. 8192, since the model's own maximum can cost all of the KV cache.",
    )
    dtype: Literal["auto", "half", "float16", "bfloat16", "float", "float32"] = Field(
        default="auto", description="Type of weights and activations. auto: as the checkpoint says."
    )
    kv_cache_dtype: Annotated[str, Field(min_length=1)] = Field(
        default="auto", description="Type of the KV cache. auto: as the model; fp8 halves it at some loss."
    )
    quantization: str | None = Field(default=None, description="Method of quantization. None: as the checkpoint says.")
    enable_log_requests: bool = Field(
        default=False, description="Log each request. Off, since it writes users' words and costs throughput."
    )
    shutdown_timeout: Annotated[int, Field(ge=0, le=3600)] = Field(
        default=60, description="Seconds that running requests get at a stop. 60; vLLM's own 0 aborts them."
    )
    numa: Literal["auto", "off"] = Field(
        default="auto", description="auto: bind to the NUMA nodes of the GPUs. off: do not bind."
    )
    numactl: tuple[str, ...] | None = Field(
        default=None,
        description="Options of numactl of your own, in place of the planned ones. None: as placement plans.",
    )
    strict_membind: bool = Field(
        default=False,
        description="Bind memory without fallback. Off, since a full node then kills the server (page cache counts).",
    )
    host_memory_gib: Annotated[float, Field(gt=0)] | None = Field(
        default=None, description="Host memory that the instance needs, in GiB. Needed for `strict_membind` only."
    )
    smoke_test: SmokeTest | None = Field(
        default=None, description="Question and answer that prove a start. None: any non-empty answer is right."
    )
    environment: Mapping[str, str] = Field(
        default={}, description="Further variables of the unit, over those that AMD's images set."
    )
    extra_args: Mapping[str, Any] = Field(
        default={}, description="Further long options of `vllm serve`, without dashes in front, with their values."
    )

    @field_validator("environment", mode="before")
    @classmethod
    def _text_values(cls, value: Any) -> Any:
        if not isinstance(value, Mapping):
            return value
        for key, entry in value.items():
            # YAML reads `on` and `no` as booleans: what would be written is not what the user typed.
            if isinstance(entry, bool) or not isinstance(entry, (str, int, float)):
                raise ValueError(f"{key} is {entry!r} ({type(entry).__name__}), expected text: put it in quotes")
        return {str(key): str(entry) for key, entry in value.items()}

    @field_validator("environment")
    @classmethod
    def _allowed_variables(cls, value: Mapping[str, str]) -> Mapping[str, str]:
        for key, entry in value.items():
            if not _VARIABLE.fullmatch(key):
                raise ValueError(f"{key!r} is not a name of a variable")
            if key in FORBIDDEN_ENVIRONMENT:
                raise ValueError(f"{key} must not be set: {FORBIDDEN_ENVIRONMENT[key]}")
            if "\n" in entry or "\0" in entry:
                raise ValueError(f"{key} holds a line break, expected one line")
        return dict(sorted(value.items()))

    @field_validator("numactl", mode="before")
    @classmethod
    def _split_numactl(cls, value: Any) -> Any:
        words = value.split() if isinstance(value, str) else value
        if isinstance(words, Sequence) and words and str(words[0]).rsplit("/", 1)[-1] == "numactl":
            words = words[1:]
        return tuple(words) if isinstance(words, Sequence) else words

    @field_validator("gpus")
    @classmethod
    def _distinct(cls, value: tuple[int, ...] | None) -> tuple[int, ...] | None:
        if value is not None and len(set(value)) != len(value):
            raise ValueError(f"{list(value)} names a GPU twice")
        return value

    @field_validator("extra_args")
    @classmethod
    def _known_options(cls, value: Mapping[str, Any]) -> Mapping[str, Any]:
        options: dict[str, Any] = {}
        for key, entry in value.items():
            name = option_name(key)
            if not _OPTION.fullmatch(name):
                raise ValueError(f"{key!r} is not a long option: write it without dashes in front, value apart")
            refused = refuse_option(name)
            if refused:
                raise ValueError(f"{key}: {refused}")
            if name in options:
                raise ValueError(f"{key} is there twice, with dashes and with underscores")
            options[name] = entry
        return dict(sorted(options.items()))

    @model_validator(mode="after")
    def _gpus_fit(self) -> Instance:
        if self.gpus is not None and len(self.gpus) != self.world_size:
            raise ValueError(
                f"gpus names {len(self.gpus)}, tensor_parallel_size x pipeline_parallel_size is {self.world_size}"
            )
        if self.numactl is not None and self.strict_membind:
            raise ValueError("numactl and strict_membind exclude each other: write --membind into numactl")
        return self

    @property
    def world_size(self) -> int:
        """GPUs that the instance needs."""
        return self.tensor_parallel_size * self.pipeline_parallel_size

    @property
    def api_model_name(self) -> str:
        """The name by which clients ask for the model."""
        return self.served_model_name or self.model


#: Options that the model above owns, by their vLLM name -> the key that sets them.
OWNED_OPTIONS: Mapping[str, str] = {
    "model": "model",
    "served-model-name": "served_model_name",
    "tensor-parallel-size": "tensor_parallel_size",
    "pipeline-parallel-size": "pipeline_parallel_size",
    "host": "host",
    "port": "port",
    "gpu-memory-utilization": "gpu_memory_utilization",
    "device-memory-utilization": "gpu_memory_utilization",
    "block-size": "block_size",
    "max-num-seqs": "max_num_seqs",
    "max-model-len": "max_model_len",
    "dtype": "dtype",
    "kv-cache-dtype": "kv_cache_dtype",
    "quantization": "quantization",
    "enable-log-requests": "enable_log_requests",
    "shutdown-timeout": "shutdown_timeout",
    "numa-bind": "numa",
    "numa-bind-nodes": "numa",
    "numa-bind-cpus": "numa",
    "device-ids": "gpus",
}

#: Options that no instance may carry, with the reason.
UNSAFE_OPTIONS: Mapping[str, str] = {
    "api-key": "it would stand in the process list and in a file; set `vllm_serve_api_key` of the role",
    "config": "the role renders that file",
    "hf-token": _HUGGING_FACE,
    "uds": "readiness and gateway need a port",
    "headless": "an instance is a server",
}


def option_name(key: str) -> str:
    """Return a long option as vLLM's help spells it: dashes, none in front."""
    return str(key).strip().lstrip("-").replace("_", "-")


def refuse_option(name: str) -> str | None:
    """Return why an option may not be in ``extra_args``, or None."""
    positive = name.removeprefix("no-")
    for candidate in (name, positive):
        if candidate in OWNED_OPTIONS:
            return f"set `{OWNED_OPTIONS[candidate]}` of the instance instead"
        if candidate in UNSAFE_OPTIONS:
            return f"not allowed: {UNSAFE_OPTIONS[candidate]}"
    gone = gone_since(f"--{name}")
    return f"vLLM removed it in {gone[0]}: {gone[1]}" if gone else None


def parse_instances(document: Any) -> tuple[Instance, ...]:
    """Check a list of instances and return them by name.

    Raises:
        InstancesError: with every problem of the list, one a line.
    """
    if isinstance(document, Mapping) and set(document) == {"instances"}:
        document = document["instances"]
    if isinstance(document, (str, bytes, Mapping)) or not isinstance(document, Sequence):
        raise InstancesError(f"instances: got {type(document).__name__}, expected a list of mappings")
    problems: list[str] = []
    instances: list[Instance] = []
    for number, entry in enumerate(document):
        if isinstance(entry, Instance):
            instances.append(entry)
            continue
        if not isinstance(entry, Mapping):
            problems.append(f"instances[{number}]: got {type(entry).__name__} {entry!r}, expected a mapping")
            continue
        label = f"instance {str(entry['name'])!r}" if "name" in entry else f"instances[{number}]"
        try:
            instances.append(Instance.model_validate(plain(entry)))
        except ValidationError as exc:
            problems.append(f"{label}: {explain(exc, Instance.model_fields)}")
    problems.extend(_conflicts(instances))
    if problems:
        raise InstancesError("\n".join(problems))
    return tuple(sorted(instances, key=lambda i: i.name))


def _conflicts(instances: list[Instance]) -> Iterator[str]:
    """Say which two instances want the same name, port or GPU."""
    names: set[str] = set()
    ports: dict[int, Instance] = {}
    gpus: dict[int, Instance] = {}
    for instance in instances:
        if instance.name in names:
            yield f"two instances are called {instance.name!r}, expected a name for each"
        names.add(instance.name)
        # Two addresses could share a port, but then a change of one `host` breaks the other instance.
        if instance.port is not None:
            other = ports.setdefault(instance.port, instance)
            if other is not instance:
                yield f"instances {other.name!r} and {instance.name!r} both have port {instance.port}, expected two"
        for gpu in instance.gpus or ():
            other = gpus.setdefault(gpu, instance)
            if other is not instance:
                yield f"instances {other.name!r} and {instance.name!r} both have GPU {gpu}, expected different ones"


def instance_findings(instance: Instance) -> tuple[Finding, ...]:
    """Return what is allowed but unwise in one instance."""
    found: list[Finding] = []
    if instance.gpu_memory_utilization > SAFE_GPU_MEMORY_UTILIZATION:
        found.append(
            finding(
                "gpu_memory_utilization_high",
                instance.name,
                f"gpu_memory_utilization is {instance.gpu_memory_utilization:g}, expected at most "
                f"{SAFE_GPU_MEMORY_UTILIZATION:g}: graphs, RCCL buffers and fragmentation are not counted in it and "
                "take several GiB a GPU on ROCm",
            )
        )
    return sort_findings(found)
