"""`vllm serve` arguments against a release: each kind of finding, and that good arguments have none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from instinct_fleet.arguments import check, known_releases, nearest_release, parse_size, table_for
from instinct_fleet.cli import main
from instinct_fleet.model import Finding


def found(arguments: object, version: str = "0.33.0", **more: object) -> dict[str, Finding]:
    """Return the findings by code and subject."""
    if isinstance(arguments, str):
        arguments = arguments.split()
    findings = check(arguments, version=version, **more)  # type: ignore[arg-type]
    return {f"{f.code.removeprefix('serve_args_')} {f.subject}": f for f in findings}


# --- the table --------------------------------------------------------------------------------------------------


def test_the_releases_that_are_known() -> None:
    releases = known_releases()
    assert len(releases) >= 30
    assert (releases[1], releases[-1]) == ("0.10.0", "0.33.0")


@pytest.mark.parametrize("release", known_releases())
def test_every_release_knows_what_all_have(release: str) -> None:
    table = table_for(release)
    assert table.options["--tensor-parallel-size"] == {"type": "int"}
    assert table.aliases["-tp"] == "--tensor-parallel-size"
    assert table.options["--max-model-len"]["type"].startswith("size")
    assert table.options["--enable-prefix-caching"]["type"] == "bool"
    assert table.options["--served-model-name"]["nargs"] == "+"
    assert table.options["--port"]["type"] == "int"
    assert "VLLM_ROCM_USE_AITER" in table.environment
    assert "fp8" in table.rocm_quantization
    assert len(table.options) > 150


@pytest.mark.parametrize(
    ("version", "release"),
    [
        ("0.33.0", "0.33.0"),
        ("v0.33.0", "0.33.0"),
        ("0.22.1+rocm722", "0.22.1"),
        ("0.15.1", "0.14.1"),
        ("0.20.2.dev7+gabc", "0.20.1"),
        ("0.33.0.dev3", "0.32.0"),
        ("0.34.0", None),
        ("0.9.1", None),
        ("latest", None),
        ("9" * 5000, None),
        ("", None),
    ],
)
def test_the_release_that_a_version_is_checked_against(version: str, release: str | None) -> None:
    assert nearest_release(version) == release


# --- what is accepted -------------------------------------------------------------------------------------------

GOOD = (
    "/models/llama --host 127.0.0.1 --port 8000 --tensor-parallel-size 8 --gpu-memory-utilization 0.9 "
    "--max-model-len 32768 --max-num-seqs 256 --kv-cache-dtype fp8 --served-model-name llama --dtype bfloat16 "
    "--no-enable-prefix-caching --trust-remote-code --disable-log-stats --seed -1"
)


@pytest.mark.parametrize("release", known_releases())
def test_ordinary_arguments_are_good_everywhere(release: str) -> None:
    assert found(GOOD, release) == {}


@pytest.mark.parametrize(
    "arguments",
    [
        "m -tp 8 -pp 2 --nnodes 2 --node-rank 0 --master-addr 10.0.0.1 --master-port 29501",
        "m -tp=8 --max_model_len=32k --served-model-name a b c --shutdown-timeout 60",
        "m --numa-bind --numa-bind-nodes 0 0 0 0 1 1 1 1 --attention-backend ROCM_AITER_FA",
        "m --compilation-config.mode 3 --compilation-config.pass_config.fuse_x true -O3 -cc.mode=3",
        'm --kv-transfer-config {"cpu_bytes_to_use":80m} --max-num-batched-tokens 16K --kv-cache-memory-bytes 256M',
        "m --max-model-len auto --hf-token --enable-lora --moe-backend deep-gemm",
        "m --config serve.yml --device-memory-utilization 0.5 --max-log-len None --uds=",
        "vllm serve m --port 1",
        "/usr/bin/numactl --cpunodebind=0 --preferred=0 -- /opt/vllm/bin/vllm serve m --port 1",
        "serve m",
        "",
    ],
)
def test_what_the_newest_release_takes(arguments: str) -> None:
    assert found(arguments) == {}


# --- unknown, gone, renamed, not there yet -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "version", "key", "words"),
    [
        ("m --disable-log-requests", "0.16.0", "deprecated --disable-log-requests", ["leave it out"]),
        ("m --disable-log-requests", "0.17.0", "removed --disable-log-requests", ["since 0.17.0", "last in 0.16.0"]),
        ("m --disable-log-requests", "0.32.0", "removed --disable-log-requests", ["--enable-log-requests"]),
        ("m --disable-log-requests", "0.33.0", "fragile --disable-log-requests", ["0.17.0 to 0.32.0"]),
        ("m --no-disable-log-requests", "0.20.0", "removed --no-disable-log-requests", ["last in 0.16.0"]),
        ("m --device cuda", "0.10.0", "removed --device", ["last in 0.9.2", "HIP_VISIBLE_DEVICES"]),
        ("m --use-v2-block-manager", "0.10.0", "removed --use-v2-block-manager", ["last in 0.9.2"]),
        ("m --enable-reasoning", "0.33.0", "removed --enable-reasoning", ["--reasoning-parser"]),
        ("m --num-scheduler-steps 8", "0.10.2", "removed --num-scheduler-steps", ["since 0.10.1"]),
        ("m --preemption-mode swap", "0.11.0", "removed --preemption-mode", ["last in 0.10.2"]),
        (
            "m --max-seq-len-to-capture 1",
            "0.11.0",
            "removed --max-seq-len-to-capture",
            ["--max-cudagraph-capture-size"],
        ),
        (
            "m --guided-decoding-backend x",
            "0.12.0",
            "removed --guided-decoding-backend",
            ["--structured-outputs-config"],
        ),
        ("m --task embed", "0.13.0", "removed --task", ["--runner", "--convert"]),
        ("m --cuda-graph-sizes 1 2", "0.13.0", "renamed --cuda-graph-sizes", ["use --cudagraph-capture-sizes"]),
        ("m --swap_space 4", "0.18.0", "removed --swap-space", ["last in 0.17.1", "--kv-offloading-size"]),
        ("m --shutdown-timeout 60", "0.17.1", "not_yet --shutdown-timeout", ["came with 0.18.0"]),
        ("m --numa-bind", "0.19.1", "not_yet --numa-bind", ["came with 0.20.0"]),
        ("m --nnodes 2", "0.11.0", "not_yet --nnodes", ["came with 0.11.1"]),
        ("m --concurrency 4", "0.33.0", "never_valid --concurrency", ["--max-num-seqs"]),
        ("m --tp 4", "0.33.0", "never_valid --tp", ["-tp or --tensor-parallel-size"]),
        ("m --tensor-paralel-size 4", "0.33.0", "unknown --tensor-paralel-size", ["nearest is --tensor-parallel-size"]),
        ("m --xyzzy", "0.33.0", "unknown --xyzzy", ["is no option", "--help=all"]),
        ("m -xyz 4", "0.33.0", "unknown -xyz", ["is no option"]),
        ("m --tensor-par 8", "0.33.0", "abbreviated --tensor-par", ["write --tensor-parallel-size"]),
        ("m -t 8", "0.33.0", "abbreviated -t", ["write -tp"]),
        ("m --log-config-file x", "0.33.0", "deprecated --log-config-file", ["to be gone in 0.33", "--logging-config"]),
        ("--model m", "0.33.0", "deprecated --model", ["first argument"]),
    ],
)
def test_the_name(arguments: str, version: str, key: str, words: list[str]) -> None:
    findings = found(arguments, version)
    assert list(findings) == [key]
    text = f"{findings[key].message} {findings[key].remedy}"
    assert all(word in text for word in words), text
    wanted = "warning" if key.partition(" ")[0] in ("deprecated", "abbreviated", "fragile") else "error"
    assert findings[key].severity == wanted


def test_an_option_that_is_gone_takes_its_value_with_it() -> None:
    assert list(found("m --swap-space 4", "0.33.0")) == ["removed --swap-space"]
    assert list(found("m --num-scheduler-steps=8 --port 1", "0.33.0")) == ["removed --num-scheduler-steps"]


# --- values -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "key", "words"),
    [
        ("m --port http", "bad_value --port", ["is 'http', expected an integer"]),
        ("m --port=80.5", "bad_value --port", ["is '80.5'"]),
        ("m --port=", "bad_value --port", ["is ''"]),
        ("m --max-num-seqs None", "bad_value --max-num-seqs", ["is 'None'"]),
        ("m --max-lora-rank 17", "bad_value --max-lora-rank", ["one of 1, 8, 16"]),
        ("m --port", "missing_value --port", ["expected an integer"]),
        ("m --port --seed 1", "missing_value --port", []),
        ("m --served-model-name", "missing_value --served-model-name", []),
        ("m --gpu-memory-utilization lots", "bad_value --gpu-memory-utilization", ["a number"]),
        ("m --max-model-len 1.5K", "bad_value --max-model-len", ["a size such as 16k"]),
        ("m --dtype bf16", "bad_value --dtype", ["one of auto, bfloat16"]),
        ("m --numa-bind --numa-bind-nodes 0 one", "bad_value --numa-bind-nodes", ["'one'"]),
        ("m --speculative-config {broken", "bad_value --speculative-config", ["a JSON document"]),
        ("m --enforce-eager=true", "bad_value --enforce-eager", ["takes no value", "--no-enforce-eager"]),
        ("m --headless=1", "bad_value --headless", ["takes no value"]),
        ("m --port.x 1", "bad_value --port.x", ["not a document"]),
        ("m --compilation-config.mode", "missing_value --compilation-config.mode", []),
        ("m --attention-backend ROCM_AITER_FAA", "bad_value --attention-backend", ["rocm_aiter_fa"]),
        ("m second", "positional second", ["room for one model"]),
        ("m --enforce-eager true", "positional true", []),
        ("m --port 1 --port 2", "duplicate --port", ["the last one counts"]),
        ("m -tp 1 --tensor_parallel_size 2", "duplicate --tensor-parallel-size", []),
    ],
)
def test_the_value(arguments: str, key: str, words: list[str]) -> None:
    findings = found(arguments)
    assert list(findings) == [key]
    text = f"{findings[key].message} {findings[key].remedy}"
    assert all(word in text for word in words), text


@pytest.mark.parametrize(
    ("text", "size"),
    [("16k", 16000), ("16K", 16384), ("1.5m", 1_500_000), ("2G", 2 * 1024**3), (" 7 ", 7), ("-1", -1), ("1t", 10**12)],
)
def test_sizes_as_vllm_writes_them(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "k", "1.5K", "16kb", "1e3", "1_000k"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(ValueError, match="is no integer and no size"):
        parse_size(text)


def test_options_that_may_be_repeated_or_built_up() -> None:
    assert found("m --middleware a --middleware b -cc.a 1 -cc.b 2") == {}


# --- ROCm, entry points, variables --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "version", "key", "severity"),
    [
        ("m --quantization bitsandbytes", "0.33.0", "rocm --quantization bitsandbytes", "error"),
        ("m --quantization bitsandbytes", "0.20.0", "rocm --quantization bitsandbytes", "warning"),
        ("m -q gptq_marlin", "0.33.0", "rocm --quantization gptq_marlin", "error"),
        ("m -q gptq_marlin", "0.16.0", "rocm --quantization gptq_marlin", "warning"),
        ("m -q petit_nvfp4", "0.33.0", "rocm --quantization petit_nvfp4", "error"),
        ("m --load-format bitsandbytes", "0.33.0", "rocm --load-format bitsandbytes", "error"),
        ("m --kv-cache-dtype fp8_e5m2", "0.33.0", "rocm --kv-cache-dtype fp8_e5m2", "error"),
        ("m --device-ids GPU-1234", "0.33.0", "rocm --device-ids GPU-1234", "error"),
        ("m --device 0,1", "0.9.2", "never_valid --device 0,1", "error"),
        ("m --device 0,1", "0.33.0", "never_valid --device 0,1", "error"),
        ("m --device=cuda:0", "0.12.0", "never_valid --device cuda:0", "error"),
        (
            "python3 -m vllm.entrypoints.openai.api_server",
            "0.33.0",
            "entry_point vllm.entrypoints.openai.api_server",
            "warning",
        ),
        ("python -m vllm.entrypoints.api_server", "0.20.0", "entry_point vllm.entrypoints.api_server", "warning"),
        ("python -m vllm.entrypoints.api_server", "0.25.0", "entry_point vllm.entrypoints.api_server", "error"),
        ("python -m vllm.serve", "0.25.0", "entry_point vllm.serve", "error"),
        ("HSA_OVERRIDE_GFX_VERSION=9.4.2 vllm serve m", "0.33.0", "rocm HSA_OVERRIDE_GFX_VERSION", "error"),
    ],
)
def test_what_is_wrong_on_rocm_or_obsolete(arguments: str, version: str, key: str, severity: str) -> None:
    findings = found(arguments, version)
    assert findings[key].severity == severity
    assert findings[key].remedy


@pytest.mark.parametrize(
    ("name", "version", "severity", "words"),
    [
        ("VLLM_USE_V1", "0.11.1", "warning", ["since 0.11.1", "V1 is the only engine"]),
        ("VLLM_ATTENTION_BACKEND", "0.16.0", "warning", ["use --attention-backend"]),
        ("VLLM_ROCM_CUSTOM_PAGED_ATTN", "0.19.0", "warning", ["since 0.19.0"]),
        (
            "VLLM_ROCM_QUICK_REDUCE_QUANTISATION",
            "0.33.0",
            "warning",
            ["nearest is VLLM_ROCM_QUICK_REDUCE_QUANTIZATION"],
        ),
        ("VLLM_MODEL", "0.33.0", "warning", ["is no variable of vLLM", "name variables of your own differently"]),
        ("VLLM_USE_RUST_BENCH", "0.10.0", "warning", ["came with"]),
    ],
)
def test_variables_that_the_release_does_not_know(name: str, version: str, severity: str, words: list[str]) -> None:
    findings = found("m", version, environment={name: "1", "PATH": "/bin"})
    finding = findings[f"environment {name}"]
    assert len(findings) == 1
    assert finding.severity == severity
    assert all(word in f"{finding.message} {finding.remedy}" for word in words), finding


def test_variables_that_are_known_then() -> None:
    assert found("m", "0.11.0", environment={"VLLM_USE_V1": "1"}) == {}
    assert found("m", "0.14.1", environment={"VLLM_ATTENTION_BACKEND": "X"}) == {}


def test_an_unknown_variable_stops_a_strict_server() -> None:
    finding = found("m --fail-on-environ-validation", environment={"VLLM_MODEL": "x"})["environment VLLM_MODEL"]
    assert finding.severity == "error"
    assert "refuses to start" in finding.message


@pytest.mark.parametrize(
    ("environment", "key"),
    [
        ({"HIP_VISIBLE_DEVICES": "0,1", "CUDA_VISIBLE_DEVICES": "2,3"}, "rocm HIP_VISIBLE_DEVICES"),
        ({"HIP_VISIBLE_DEVICES": "GPU-abc"}, "rocm HIP_VISIBLE_DEVICES"),
        ({"ROCR_VISIBLE_DEVICES": "0"}, "rocm ROCR_VISIBLE_DEVICES"),
    ],
)
def test_variables_that_choose_gpus(environment: dict[str, str], key: str) -> None:
    assert list(found("m", environment=environment)) == [key]
    assert found("m", environment={"HIP_VISIBLE_DEVICES": "0,1", "CUDA_VISIBLE_DEVICES": "0,1"}) == {}


# --- the configuration file ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "version", "key", "words"),
    [
        ({"numa-bind": True}, "0.33.0", "ineffective --numa-bind", ["VLLM_WORKER_MULTIPROC_METHOD=spawn"]),
        (
            {"enable-prefix-caching": False},
            "0.27.1",
            "ineffective --enable-prefix-caching",
            ["0.28.0", "write no-enable-prefix-caching: true"],
        ),
        ({"compilation-config": {"mode": 3}}, "0.14.1", "ineffective --compilation-config", ["0.16.0"]),
        ({"served-model-name": ["a", "b"]}, "0.10.1", "ineffective --served-model-name", ["0.10.2"]),
        ({"swap-space": 4}, "0.33.0", "removed --swap-space", []),
        ({"disable_log_requests": True}, "0.20.0", "removed --disable-log-requests", []),
        ({"--port": 1}, "0.33.0", "unknown --port", ["without dashes"]),
        ({8000: 1}, "0.33.0", "unknown 8000", ["is no key"]),
        ({"port": True}, "0.33.0", "bad_value --port", ["is true, expected an integer"]),
        ({"port": "http"}, "0.33.0", "bad_value --port", []),
        ({"chat-template": "-x"}, "0.33.0", "bad_value --chat-template", ["takes for another option"]),
        ({"enforce-eager": "yes"}, "0.33.0", "positional yes", []),
        ({"config": "other.yml"}, "0.33.0", "ineffective --config", ["not followed"]),
        ({"nonsense": False}, "0.33.0", "unknown --nonsense", []),
        ({"dtype": None}, "0.33.0", "bad_value --dtype", ["'None'"]),
    ],
)
def test_what_is_wrong_in_the_configuration_file(
    arguments: dict[object, object], version: str, key: str, words: list[str]
) -> None:
    findings = found(arguments, version, in_config=True)
    assert key in findings, findings
    text = f"{findings[key].message} {findings[key].remedy}"
    assert all(word in text for word in words), text


def test_a_good_configuration_file() -> None:
    arguments = {
        "model": "/models/m",
        "port": 8000,
        "max_model_len": 32768,
        "enable-prefix-caching": False,
        "trust-remote-code": True,
        "served-model-name": ["a", "b"],
        "compilation-config": {"mode": 3},
        "seed": -1,
        "headless": False,
    }
    assert found(arguments, in_config=True) == {}
    assert found({"no-enable-prefix-caching": True, "no-enable-lora": False}, "0.20.0", in_config=True) == {}


def test_numa_bind_where_it_works() -> None:
    assert found({"numa-bind": True}) == {}
    assert found("m --numa-bind") == {}
    assert found({"numa-bind": False}, in_config=True) == {}
    assert found({"numa-bind": True}, in_config=True, environment={"VLLM_WORKER_MULTIPROC_METHOD": "spawn"}) == {}
    assert list(found("m --numa_bind")) == ["ineffective --numa-bind"]


def test_a_mapping_for_the_command_line() -> None:
    arguments = {"port": 1, "enable-lora": True, "enable-prefix-caching": False, "uds": None, "cc": 3}
    assert list(found(arguments, "0.12.0")) == ["unknown --cc"]


# --- releases -----------------------------------------------------------------------------------------------------


def test_a_release_between_known_ones_is_said() -> None:
    findings = found("m", "0.15.1")
    assert [f.severity for f in findings.values()] == ["info"]
    assert "checked against 0.14.1" in findings["release_nearest 0.15.1"].message


@pytest.mark.parametrize("version", ["0.34.0", "0.8.5", "nightly"])
def test_a_release_outside_the_range_is_unknown(version: str) -> None:
    findings = found("m --nonsense", version)
    assert [(f.code, f.severity) for f in findings.values()] == [("serve_args_release_unknown", "unknown")]


# --- never a traceback --------------------------------------------------------------------------------------------

_WORDS = st.sampled_from(
    [
        *("--", "-", "-tp", "--port", "--no-", "--no-port", "--=", "--.", "-O", "-O.", "-cc.a", "-cc.", "--cc="),
        *("serve", "-m", "vllm", "--served-model-name", "--hf-overrides", "vllm.x", "-1", "8", "{}", "--config"),
        *("--x.y.z=", "--a_b"),
    ]
)


@given(
    st.lists(_WORDS | st.text(max_size=6), max_size=8),
    st.sampled_from([*known_releases()[::6], "0.15.0", "9", "x"]),
    st.dictionaries(st.text(max_size=8) | st.just("VLLM_X"), st.text(max_size=4), max_size=3),
    st.booleans(),
)
@settings(max_examples=300, deadline=None)
def test_no_list_raises(tokens: list[str], version: str, environment: dict[str, str], in_config: bool) -> None:
    check(tokens, version=version, environment=environment, in_config=in_config)


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)


@given(
    st.dictionaries(
        st.sampled_from(["port", "numa-bind", "hf-overrides", "headless", "x", "-", "a.b"])
        | st.text(max_size=4)
        | st.integers(),
        _VALUES,
        max_size=4,
    ),
    st.sampled_from(known_releases()[::6]),
    st.booleans(),
)
@settings(max_examples=300, deadline=None)
def test_no_mapping_raises(arguments: dict[object, object], version: str, in_config: bool) -> None:
    check(arguments, version=version, in_config=in_config)  # type: ignore[arg-type]


# --- the command --------------------------------------------------------------------------------------------------


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check-args", "--vllm-version", "0.33.0", "--", *GOOD.split()]) == 0
    assert "vLLM 0.33.0: pass" in capsys.readouterr().err
    assert main(["check-args", "--vllm-version", "0.33.0", "--json", "--", "m", "--swap-space", "4"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["checked_against"] == "0.33.0"
    assert document["verdict"] == "fail"
    assert document["findings"][0]["code"] == "serve_args_removed"
    assert main(["check-args", "--vllm-version", "0.34.0", "--", "m"]) == 1
    assert main(["check-args", "--vllm-version", "0.33.0", "--env", "VLLM_USE_V1=1", "--", "m"]) == 0
    assert "warning: VLLM_USE_V1" in capsys.readouterr().out
    assert main(["check-args", "--vllm-version", "0.33.0", "--env", "VLLM_USE_V1", "--", "m"]) == 2
    assert "expected NAME=VALUE" in capsys.readouterr().err


def test_the_file_of_config_is_checked_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "serve.yml"

    def run(*arguments: str) -> tuple[int, str]:
        code = main(["check-args", "--vllm-version", "0.33.0", "--", "m", *arguments])
        return code, capsys.readouterr().out

    file.write_text("port: 8000\n")
    assert run("--config", str(file)) == (0, "")
    file.write_text("numa-bind: true\n")
    code, out = run("--config", str(file))
    assert code == 1
    assert "--numa-bind: is in the configuration file" in out
    code, out = run(f"--config={file}")
    assert code == 1
    assert "never followed" in out
    file.write_text("- a\n")
    assert "holds list" in run("--config", str(file))[1]
    file.write_text("a: [\n")
    assert "cannot be read here" in run("--config", str(file))[1]
    assert run("--config", str(tmp_path / "none.yml"))[0] == 1
