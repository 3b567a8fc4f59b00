"""Plans, files, units and messages of role vllm_serve."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from support import nodes
from support.profile import PROFILES

from instinct_fleet import serving
from instinct_fleet.cli import fit
from instinct_fleet.model import to_json

INSTANCE = {
    "name": "tiny",
    "model": "/models/tiny",
    "served_model_name": "tiny",
    "tensor_parallel_size": 2,
    "port": 8000,
    "smoke_test": {"question": "What is the capital of France?", "answer": "Paris"},
}


def plan(*instances: dict[str, Any], with_key: bool = False, **options: Any) -> dict[str, Any]:
    arguments: dict[str, Any] = {
        "vllm_version": "0.32.0",
        "vllm_path": "/opt/vllm/releases/x/bin/vllm",
        "config_dir": "/etc/vllm",
        "numactl_path": "/usr/bin/numactl",
        "start_timeout": 1800,
        **options,
    }
    topology = to_json(nodes.topology(PROFILES["mi300x_8"]()))
    return serving.serve_plan(topology, instances=list(instances) or [INSTANCE], with_key=with_key, **arguments)


def test_a_plan_has_all_that_the_unit_needs() -> None:
    unit = plan()["units"][0]
    assert unit["unit"] == "vllm-tiny.service"
    assert unit["exec_start"] == (
        "/usr/bin/numactl --cpunodebind=0 --preferred=0 "
        "/opt/vllm/releases/x/bin/vllm serve --config /etc/vllm/tiny.yaml"
    )
    assert unit["url"] == "http://127.0.0.1:8000"
    assert unit["exec_ready"] == "/bin/sh /etc/vllm/wait-ready http://127.0.0.1:8000/health 1800"
    assert '"HIP_VISIBLE_DEVICES=0,1"' in unit["environment_lines"]
    assert yaml.safe_load(unit["config"])["tensor-parallel-size"] == 2
    # The drain of 60 s and the workers' 30 s must end before systemd kills.
    assert unit["stop_timeout"] > 60 + 30
    assert unit["question"] == {
        "name": "tiny",
        "url": "http://127.0.0.1:8000",
        "model": "tiny",
        "question": "What is the capital of France?",
        "answer": "Paris",
        "key_file": None,
    }


def test_tensor_parallel_8_binds_workers_on_the_command_line() -> None:
    unit = plan({**INSTANCE, "tensor_parallel_size": 8})["units"][0]
    assert "--interleave=0,1" in unit["exec_start"] or "--interleave=0-1" in unit["exec_start"]
    assert unit["exec_start"].endswith("--numa-bind --numa-bind-nodes 0 0 0 0 1 1 1 1")
    assert "numa-bind" not in unit["config"]


def test_an_instance_without_a_place_is_an_error_of_the_plan() -> None:
    result = plan({**INSTANCE, "tensor_parallel_size": 16})
    assert result["units"] == []
    assert serving.rejects(result["findings"], accept_unknown=True)


def test_an_option_that_the_release_refuses_is_an_error_of_the_plan() -> None:
    result = plan({**INSTANCE, "extra_args": {"max-num-sqs": 8}})
    (item,) = serving.rejects(result["findings"], accept_unknown=True)
    assert item["code"] == "serve_args_unknown"
    assert "tiny" in item["subject"]
    assert "--max-num-seqs" in item["message"]


@pytest.mark.parametrize(
    ("argv", "text"),
    [
        (["/bin/a", "b"], "/bin/a b"),
        (["/bin/a", "b c"], '/bin/a "b c"'),
        (["/bin/a", "50%", "$HOME", ""], '/bin/a 50%% $$HOME ""'),
        (["/bin/a", 'say "x"', "back\\slash"], '/bin/a "say \\"x\\"" "back\\\\slash"'),
    ],
)
def test_systemd_reads_the_words_that_were_meant(argv: list[str], text: str) -> None:
    assert serving.systemd_argv(argv) == text


@pytest.mark.parametrize(
    ("host", "address"),
    [("127.0.1.11", "127.0.1.11"), ("0.0.0.0", "127.0.0.1"), ("::", "[::1]"), ("fd00::1", "[fd00::1]")],
)
def test_a_server_is_asked_at_an_address_that_answers(host: str, address: str) -> None:
    assert serving.client_address(host) == address


def files(**options: Any) -> dict[str, dict[str, Any]]:
    key = options.get("api_key")
    found = serving.serve_files(
        plan(with_key=key is not None), config_dir="/etc/vllm", user="vllm", groups=["render", "video"], **options
    )
    assert all(entry["mode"].startswith("0") for entry in found)
    return {entry["dest"]: entry for entry in found}


def test_the_key_goes_into_a_file_that_only_root_reads() -> None:
    entry = files(api_key="sk-123")["/etc/vllm/tiny.key"]
    assert (entry["content"], entry["mode"], entry["secret"]) == ("VLLM_API_KEY=sk-123\n", "0600", True)
    others = [e for d, e in files(api_key="sk-123").items() if d != "/etc/vllm/tiny.key"]
    assert "sk-123" not in repr(others)


def test_without_a_key_an_old_key_file_goes_away() -> None:
    assert files()["/etc/vllm/tiny.key"]["state"] == "absent"


@pytest.mark.parametrize("key", ["", "a b", 'a"b', "a$b", "a\nb", "a'b", "a\\b"])
def test_a_key_that_the_file_cannot_carry_is_refused_without_showing_it(key: str) -> None:
    with pytest.raises(ValueError, match="vllm_serve_api_key is empty or holds") as error:
        files(api_key=key)
    assert not key or key not in str(error.value)


def test_every_file_of_an_instance_is_guarded_by_its_unit() -> None:
    guarded = {d for d, e in files().items() if e.get("guard_unit") == "vllm-tiny.service"}
    assert guarded == {"/etc/vllm/tiny.yaml", "/etc/vllm/tiny.key", "/etc/systemd/system/vllm-tiny.service"}


def test_files_of_instances_that_are_gone_are_removed() -> None:
    found = files(surplus=["vllm-old.service"])
    assert {d for d, e in found.items() if e.get("state") == "absent" and "old" in d} == {
        "/etc/systemd/system/vllm-old.service",
        "/etc/vllm/old.yaml",
        "/etc/vllm/old.key",
    }


STATES: dict[str, Any] = {
    "vllm-a.service": {
        "LoadState": "loaded",
        "ActiveState": "active",
        "UnitFileState": "enabled",
        "SubState": "running",
    },
    "vllm-b.service": {"LoadState": "loaded", "ActiveState": "activating", "SubState": "start-post"},
    "vllm-c.service": {"LoadState": "loaded", "ActiveState": "activating", "SubState": "auto-restart"},
    "vllm-d.service": {"LoadState": "not-found", "ActiveState": "inactive"},
    "vllm-e.service": None,
}


def test_units_that_nobody_asks_for() -> None:
    assert serving.surplus_units(STATES, ["vllm-a.service"]) == ["vllm-b.service", "vllm-c.service"]


def test_units_to_start_and_to_stop() -> None:
    assert serving.units_to_start(STATES, ["vllm-a.service", "vllm-d.service"]) == ["vllm-d.service"]
    assert serving.units_to_start(STATES, ["vllm-a.service"], changed=["vllm-a.service"]) == ["vllm-a.service"]
    assert serving.running_units(STATES, ["vllm-a.service", "vllm-d.service", "vllm-e.service"]) == ["vllm-a.service"]


def test_the_cause_is_named_before_its_echoes() -> None:
    journal = "\n".join(
        [
            "INFO starting",
            "(EngineCore pid=1) ERROR 11-29 [core.py:1] Traceback (most recent call last):",
            "(EngineCore pid=1) ERROR 11-29 [core.py:1] RuntimeError: Insufficient space in /dev/shm: 160 MiB required",
            "RuntimeError: Insufficient space in /dev/shm: 160 MiB required",
            "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}",
        ]
    )
    assert serving.root_causes(journal) == ["RuntimeError: Insufficient space in /dev/shm: 160 MiB required"]
    text = serving.verify_failure_text(
        {"msg": "no answer"}, host="n1", units={"vllm-c.service": STATES["vllm-c.service"]}, journal=journal
    )
    assert text.startswith("n1: no answer\nvllm-c.service is activating (auto-restart)")
    assert "What it logged as the cause:\n    RuntimeError: Insufficient space" in text


def test_findings_that_say_the_same_share_a_line() -> None:
    item = {"severity": "unknown", "code": "x", "message": "nothing was read", "remedy": "run it as root"}
    text = serving.rejection_text([{**item, "subject": "GPU0"}, {**item, "subject": "GPU1"}], host="n", policy="p")
    assert text == (
        "n is not accepted (p): 2 findings.\n[unknown] GPU0, GPU1: nothing was read (x)\n    To mend it: run it as root"
    )


def test_the_table_ends_in_a_line_to_paste() -> None:
    rows = serving.serving_rows(plan(), host="node1")
    text = serving.serving_table(rows, simulated=True)
    assert "node1  tiny      0,1   0     numactl --cpunodebind=0 --preferred=0  http://127.0.0.1:8000" in text
    assert "curl -s http://127.0.0.1:8000/v1/chat/completions" in text
    assert "Simulated hardware" in text
    assert "empty" in serving.serving_table([])


def test_what_a_node_lacks() -> None:
    probe = {"packages": {"curl": "1", "numactl": None}, "access": {"group_ids": {"render": 1, "video": None}}}
    assert serving.missing_packages(["curl", "numactl", "python3-venv"], probe) == ["numactl", "python3-venv"]
    assert serving.missing_groups(["render", "video"], probe) == ["video"]
    assert serving.instance_problems([{"name": "a", "modle": "x"}])[0].startswith("instance 'a'")


# --- what a release and a model say before anything changes ------------------------------------------------------

ACCEPT = Path(__file__).resolve().parents[2] / "roles/vllm_serve/files/accept_config.py"


def written(unit: dict[str, Any]) -> dict[str, str | None]:
    lines = [f"ExecStart={unit['exec_start']}", *(f"Environment={line}" for line in unit["environment_lines"])]
    return {unit["config_path"]: unit["config"], f"/etc/systemd/system/{unit['unit']}": "\n".join(lines) + "\n"}


def test_a_converged_node_has_nothing_to_read() -> None:
    made = plan()
    assert serving.unread_configs(made, written(made["units"][0])) == []


@pytest.mark.parametrize(
    "options",
    [
        {"vllm_path": "/opt/vllm/releases/y/bin/vllm"},
        {"instances": [{**INSTANCE, "max_model_len": 4096}]},
        {"instances": [{**INSTANCE, "environment": {"VLLM_LOGGING_LEVEL": "DEBUG"}}]},
    ],
)
def test_another_release_a_configuration_or_a_variable_is_read_again(options: dict[str, Any]) -> None:
    there = written(plan()["units"][0])
    instances = options.pop("instances", [INSTANCE])
    (entry,) = serving.unread_configs(plan(*instances, **options), there)
    assert entry["instance"] == "tiny"
    assert entry["arguments"][:3] == ["serve", "--config", "/etc/vllm/tiny.yaml"]
    assert entry["environment"]["HIP_VISIBLE_DEVICES"] == "0,1"


def test_a_node_that_nothing_is_known_of_is_read() -> None:
    assert len(serving.unread_configs(plan(), {})) == 1


def test_a_refusal_names_instance_argument_and_the_parser_s_own_words() -> None:
    said = (
        'INFO loading\n\n[{"instance": "a", "message": null}, {"instance": "b", "message": "vllm serve: error: x"}]\n'
    )
    (text,) = serving.parser_refusals(said, host="n1", version="0.33.0")
    assert text == (
        "n1: instance b: vLLM 0.33.0 refuses its configuration, in its own words: vllm serve: error: x. Nothing was "
        "changed; correct vllm_serve_instances"
    )


@pytest.mark.parametrize("said", ["", "ModuleNotFoundError: No module named 'vllm.entrypoints'", "[1]", "null"])
def test_a_parser_that_gives_no_answer_is_not_taken_for_a_yes(said: str) -> None:
    (text,) = serving.parser_refusals(said, host="n1", version="0.33.0")
    assert "gave no answer" in text
    assert "vllm_serve_parser_check=false" in text


def test_the_script_asks_the_release_s_own_parser_and_starts_nothing(tmp_path: Path) -> None:
    package = tmp_path / "vllm/entrypoints/cli"
    package.mkdir(parents=True)
    for folder in (tmp_path / "vllm", tmp_path / "vllm/entrypoints", package):
        (folder / "__init__.py").write_text("")
    (package / "serve.py").write_text(
        "import pathlib\nclass ServeSubcommand:\n    @staticmethod\n    def cmd(args):\n"
        f"        pathlib.Path({str(tmp_path / 'started')!r}).touch()\n"
    )
    (package / "main.py").write_text(
        "import argparse, os\nfrom vllm.entrypoints.cli import serve\ndef main():\n"
        "    parser = argparse.ArgumentParser(prog='vllm serve')\n    parser.add_argument('command')\n"
        "    parser.add_argument('--config')\n    parser.add_argument('--numa-bind', action='store_true')\n"
        "    args = parser.parse_args()\n    text = open(args.config).read()\n    print('noise')\n"
        "    if 'bad' in text:\n        parser.error('unrecognized arguments: --bad')\n"
        "    if 'type' in text:\n        raise TypeError('Error: a needs b')\n"
        "    if 'env' in text:\n        assert os.environ['UNIT'] == 'of this instance'\n"
        "    if 'help' in text:\n        raise SystemExit(0)\n"
        "    serve.ServeSubcommand.cmd(args)\n"
    )
    configs = {"good": "a: 1", "bad": "bad: 1", "typed": "type: 1", "env": "env: 1", "help": "help: 1"}
    entries = [
        {
            "instance": name,
            "config": text,
            "config_path": f"/etc/vllm/{name}.yaml",
            "arguments": ["serve", "--config", f"/etc/vllm/{name}.yaml", "--numa-bind"],
            "environment": {"UNIT": "of this instance"},
        }
        for name, text in configs.items()
    ]
    argv = [sys.executable, "-B", "-", json.dumps(entries)]
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    run = subprocess.run(argv, input=ACCEPT.read_text(), env=env, capture_output=True, text=True, check=True)
    answers = {a["instance"]: a["message"] for a in json.loads(run.stdout.splitlines()[-1])}
    assert answers == {
        "good": None,
        "bad": "vllm serve: error: unrecognized arguments: --bad",
        "typed": "TypeError: Error: a needs b",
        "env": None,
        "help": "noise",
    }
    assert not (tmp_path / "started").exists()


LLAMA_405B = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "torch_dtype": "bfloat16",
    "hidden_size": 16384,
    "num_attention_heads": 128,
    "num_key_value_heads": 8,
    "num_hidden_layers": 126,
    "intermediate_size": 53248,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
}


def test_a_model_that_cannot_fit_is_refused_in_the_words_of_fit() -> None:
    big = {**INSTANCE, "model": "/m/big", "tensor_parallel_size": 4}
    made = plan(big, models={"/m/big": {"config": LLAMA_405B, "index_total": None}})
    (refused,) = serving.rejects(made["findings"], accept_unknown=True)
    assert (refused["code"], refused["subject"]) == ("fit_weights", "tiny LlamaForCausalLM")
    assert "need 811 GB" in refused["message"]
    assert "an FP8 checkpoint" in refused["remedy"]
    wide = plan({**big, "tensor_parallel_size": 8}, models={"/m/big": {"config": LLAMA_405B, "index_total": None}})
    assert serving.rejects(wide["findings"], accept_unknown=True) == []


def test_the_keys_of_an_instance_count() -> None:
    model = {"/models/tiny": {"config": {**LLAMA_405B, "num_hidden_layers": 20}, "index_total": None}}

    def codes(**keys: Any) -> set[str]:
        made = plan({**INSTANCE, "max_num_seqs": 1, **keys}, models=model)
        return {f["code"] for f in serving.rejects(made["findings"], accept_unknown=True)}

    assert codes() == set()
    assert codes(max_model_len=200000) == {"fit_model_len"}
    assert codes(gpu_memory_utilization=0.1) == {"fit_weights"}
    assert codes(extra_args={"kv-cache-memory-bytes": "400G"}) == {"fit_kv_pool"}


def test_a_model_whose_size_or_gpus_are_unknown_is_neither_passed_nor_stopped() -> None:
    model = {"/models/tiny": {"config": None, "index_total": None}}
    assert any(f["severity"] in ("unknown", "error") for f in plan(models=model)["findings"])
    instance = serving.parse_instances([INSTANCE])[0]
    (finding,) = serving.fit_findings(instance, vram=[None, 1 << 30], document={"config": LLAMA_405B})
    assert (finding.severity, finding.subject) == ("unknown", "tiny vram_gib")


def test_models_on_the_controller_and_on_the_node_are_read(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a/config.json").write_text('{"hidden_size": 1}')
    (tmp_path / "a/model.safetensors.index.json").write_text(
        '{"metadata": {"total_size": 7}, "weight_map": {"w": "x"}}'
    )
    models = [{"name": "a", "source": str(tmp_path / "a")}, {"name": "none", "source": str(tmp_path / "none")}]
    paths = {"/m/b/config.json": "{", "/m/c/config.json": None, "/etc/vllm/x.yaml": "a: 1"}
    assert fit.model_documents(models, root="/m", paths=paths) == {
        "/m/a": {"config": {"hidden_size": 1}, "index_total": 7},
        "/m/b": {"config": None, "index_total": None},
    }


@pytest.mark.parametrize(
    ("names", "text"),
    [
        (["."], "name is '.', expected letters"),
        (["../x"], "name is '../x', expected letters"),
        ([""], "name is '', expected letters"),
        (["a/"], "name is 'a/', expected letters"),
        (["meta", "meta/llama"], "'meta/llama' lies in the folder of model 'meta', expected one each"),
        (["a", "a"], "'a' lies in the folder of model 'a', expected one each"),
    ],
)
def test_models_do_not_share_a_folder(names: list[str], text: str) -> None:
    # What does not belong to a model is removed from its folder.
    with pytest.raises(ValueError, match=re.escape(text)):
        serving.model_trees([{"name": name, "source": "/s"} for name in names], root="/m")
    good = serving.model_trees([{"name": name, "source": "/s"} for name in ("meta/a", "meta/a-2")], root="/m")
    assert [tree["dest"] for tree in good] == ["/m/meta/a", "/m/meta/a-2"]
