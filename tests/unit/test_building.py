"""Builds from source: the plan, and the program that carries it out, on small stand-ins."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.standin_sources import pack, write_source

from instinct_fleet import building, runtime_sets
from instinct_fleet.cli.codeobjects import scan

SCRIPT = Path(__file__).resolve().parents[2] / "roles/vllm_build/files/build_components.py"
ROCM = runtime_sets.describe("rocm100")
PROBE = {"cpu": {"online": "0-15"}, "proc": {"meminfo": "MemTotal: 9 kB\nMemAvailable:   67108864 kB\n"}}


def plan(runtime: Any = ROCM, probe: Any = PROBE, **options: Any) -> dict[str, Any]:
    arguments: dict[str, Any] = {"path": "/w", "work": "/b", "python": "python3.12", "index_url": "https://m/simple"}
    return building.build_plan(runtime, probe, **{**arguments, "vendor_index_urls": {}, **options})


@pytest.mark.parametrize(
    ("cpus", "gib", "per_job", "jobs"),
    [("0-15", 64, 4.0, 16), ("0-15", 20, 4.0, 5), ("0-1", 512, 4.0, 2), ("0-63", 1, 4.0, 1), ("0-3", 8, 1.0, 4)],
)
def test_jobs_by_cpus_and_memory(cpus: str, gib: int, per_job: float, jobs: int) -> None:
    probe = {"cpu": {"online": cpus}, "proc": {"meminfo": f"MemAvailable: {gib * 1024**2} kB\n"}}
    assert building.max_jobs(probe, gib_per_job=per_job) == jobs


def test_jobs_of_a_builder_that_could_not_be_read() -> None:
    with pytest.raises(ValueError, match="set vllm_build_jobs"):
        building.max_jobs({"cpu": {"online": None}, "proc": {}}, gib_per_job=4.0)
    assert plan(probe={}, jobs=3)["environment"]["MAX_JOBS"] == "3"


def test_the_environment_is_for_one_gpu_and_for_rocm() -> None:
    environment = plan()["environment"]
    assert environment["PYTORCH_ROCM_ARCH"] == environment["GPU_ARCHS"] == "gfx942"
    assert environment["VLLM_TARGET_DEVICE"] == "rocm"
    assert environment["MAX_JOBS"] == environment["CMAKE_BUILD_PARALLEL_LEVEL"] == "16"
    assert {"CUDA_HOME", "HSA_OVERRIDE_GFX_VERSION"} <= set(plan()["unset"])


def test_the_order_is_that_of_the_set_and_the_rest_is_fetched() -> None:
    made = plan()
    names = [component["name"] for component in made["components"]]
    assert names == ["triton", "amd-aiter", "flash-attn", "vllm"]
    assert "torch[device-gfx942]==2.13.0+rocm10.0.0" in made["fetched"]
    assert not any(line.startswith(("vllm", "triton", "flash-attn")) for line in made["fetched"])
    assert made["components"][1]["environment"] == {"PREBUILD_KERNELS": "1", "AITER_USE_SYSTEM_TRITON": "1"}
    assert made["index"][:2] == ["--index-url", "https://m/simple"]
    assert "https://stable.repo.amd.com/rocm/whl-next/" in made["index"]
    # ROCm 7.2 is the one below /opt/rocm, for which the set builds PyTorch too, before AITER and vLLM.
    older = [c["name"] for c in plan(runtime_sets.describe("rocm72"))["components"]]
    assert older.index("torch") < older.index("amd-aiter") < older.index("vllm")


def test_a_change_of_a_component_is_one_of_all_that_follow_and_the_number_of_jobs_is_none() -> None:
    before = [c["fingerprint"] for c in plan()["components"]]
    assert [c["fingerprint"] for c in plan(jobs=2)["components"]] == before
    changed = json.loads(json.dumps(ROCM))
    changed["components"][1]["commit"] = "v0.1.27"
    after = [c["fingerprint"] for c in plan(changed)["components"]]
    assert [a == b for a, b in zip(before, after, strict=True)] == [True, False, False, False]


def test_the_unit_is_apart_from_the_connection() -> None:
    command = building.build_command(plan(), unit=building.build_unit(ROCM), script="/b/build_components.py")
    assert command[:2] == ["systemd-run", "--unit=vllm-build-0.33.0-rocm100.service"]
    assert "--property=StandardOutput=append:/b/build.log" in command
    assert command[-4:] == ["python3.12", "-B", "/b/build_components.py", "/b/plan.json"]


@pytest.mark.parametrize(
    ("result", "log", "text"),
    [
        (None, "", "it ended without a result: it was killed"),
        ("{broken", "Killed", "lower vllm_build_jobs"),
        ('{"message": "vllm: `pip` ended with 1"}', "RuntimeError: CUDA_HOME is not set", "is not a ROCm build"),
        ('{"message": "x"}', "None of the detected ROCm architectures: gfx942 is supported", "does not know this GPU"),
        ('{"message": "a: its source has SHA-256 b, expected c"}', "", "do not use it before you know why"),
        ('{"message": "x"}', "fatal: unable to access 'https://u:secret@h/x'", "set vllm_build_index_url"),
        ('{"message": "x"}', "ninja: error: No space left on device", "vllm_build_work_root"),
    ],
)
def test_a_failed_build_in_words(result: str | None, log: str, text: str) -> None:
    said = building.build_failure_text(result, log, host="b1", unit="u.service")
    assert said.startswith("b1: u.service failed: ")
    assert text in said
    assert "u:secret" not in said
    assert "What was finished is kept" in said


def test_a_failing_command_is_told_without_its_token() -> None:
    result = json.dumps({"message": "aiter: `git clone https://u:secret@h/x?token=y /w` ended with 128"})
    said = building.build_failure_text(result, "", host="b1", unit="u.service")
    assert "`git clone https://h/x /w` ended with 128" in said


def test_what_provenance_says_of_components() -> None:
    assert building.built_components('{"components": [{"name": "a"}]}') == [{"name": "a"}]
    assert building.built_components(None) == building.built_components("[]") == building.built_components("{") == []


# --- the program ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index with nothing in it but a stand-in for the installer."""
    folder = tmp_path_factory.mktemp("index")
    wheel = folder / "simple/tiny-installer/tiny_installer-1-py3-none-any.whl"
    wheel.parent.mkdir(parents=True)
    wheel.write_bytes(runtime_sets.metadata_wheel("tiny_installer", "1"))
    (wheel.parent / "index.html").write_text(f'<a href="{wheel.name}">{wheel.name}</a>')
    return folder / "simple"


def runtime(components: list[dict[str, Any]]) -> dict[str, Any]:
    sets = {
        "tiny": {
            "vllm": "1.0.0",
            "accelerator": "rocm",
            "gfx": "gfx942",
            "python": f"{sys.version_info.major}.{sys.version_info.minor}",
            "abi": "cp3",
            "glibc": "2.36",
            "lock": None,
            "pins": [{"name": "vllm", "version": "1.0.0+rocm1", "source": "test"}],
            "components": components,
        }
    }
    return runtime_sets.describe("tiny", sets=sets)


def carry_out(folder: Path, index: Path, components: list[dict[str, Any]]) -> tuple[int, dict[str, Any], str]:
    import hashlib

    made = plan(
        runtime(components),
        path=str(folder / "wheels"),
        work=str(folder / "work"),
        python=sys.executable,
        index_url=index.as_uri(),
        jobs=2,
    )
    digest = hashlib.sha256(runtime_sets.metadata_wheel("tiny_installer", "1")).hexdigest()
    made["installer"] = f"tiny-installer==1 --hash=sha256:{digest}\n"
    (folder / "work").mkdir(exist_ok=True)
    (folder / "work/plan.json").write_text(json.dumps(made))
    # The environment of the machine must not decide what is built.
    env = {**os.environ, "HSA_OVERRIDE_GFX_VERSION": "9.4.2", "PIP_CONFIG_FILE": os.devnull, "PYTORCH_ROCM_ARCH": "x"}
    env = {name: value for name, value in env.items() if name not in ("PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS")}
    argv = [sys.executable, str(SCRIPT), str(folder / "work/plan.json")]
    run = subprocess.run(argv, env=env, capture_output=True, text=True, check=False)
    return run.returncode, json.loads((folder / "work/result.json").read_text()), run.stdout + run.stderr


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_components_are_built_in_order_kept_and_built_again_when_they_change(tmp_path: Path, index: Path) -> None:
    sources = tmp_path / "sources"
    kernels = write_source(sources, "kernels", "2.0")
    git = ["git", "-C", str(kernels), "-c", "user.name=t", "-c", "user.email=t@example.org"]
    for argv in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "one"], ["tag", "v2.0"]):
        subprocess.run([*git, *argv], check=True)
    archive, digest = pack(
        write_source(sources, "vllm", "1.0.0+rocm1", needs=("kernels",), environment={"KERNELS_SRC": str(tmp_path)})
    )
    components = [
        {"name": "kernels", "git": str(kernels), "commit": "v2.0"},
        {"name": "vllm", "url": archive.as_uri(), "sha256": "0" * 64, "environment": {"KERNELS_SRC": "{kernels}"}},
    ]
    code, result, log = carry_out(tmp_path, index, components)
    assert code == 1
    assert f"vllm: its source has SHA-256 {digest}, expected {'0' * 64}" in result["message"]
    assert "[1/2] kernels: built in" in log

    # It goes on after the last finished component; and the variable of the second is not what it wants.
    components[1]["sha256"] = digest
    code, result, log = carry_out(tmp_path, index, components)
    assert code == 1
    assert "[1/2] kernels: kept, its inputs did not change" in log
    assert re.search(r"KERNELS_SRC is '.*/01-kernels/source', expected", log), log

    archive, digest = pack(write_source(tmp_path / "again", "vllm", "1.0.0+rocm1", needs=("kernels",)))
    components[1] |= {"url": archive.as_uri(), "sha256": digest}
    code, result, log = carry_out(tmp_path, index, components)
    assert code == 0, log
    assert [c["name"] for c in result["components"]] == ["kernels", "vllm"]
    assert re.fullmatch(r"[0-9a-f]{40}", result["components"][0]["commit"])
    assert result["components"][1]["sha256"] == digest
    wheels = sorted(p.name for p in (tmp_path / "wheels").glob("*.whl"))
    assert wheels == [
        "kernels-2.0-py3-none-any.whl",
        "tiny_installer-1-py3-none-any.whl",
        "vllm-1.0.0+rocm1-py3-none-any.whl",
    ]
    reports, _ = scan(tmp_path / "wheels/vllm-1.0.0+rocm1-py3-none-any.whl")
    assert [target for report in reports for target, _ in report.targets] == ["gfx942"]

    code, _, log = carry_out(tmp_path, index, components)
    assert code == 0
    assert log.count("kept, its inputs did not change") == 2
    # A finished wheel that was changed since is not trusted.
    (tmp_path / "work/02-vllm/wheel/vllm-1.0.0+rocm1-py3-none-any.whl").write_bytes(b"x")
    code, _, log = carry_out(tmp_path, index, components)
    assert code == 0
    assert "[1/2] kernels: kept" in log
    assert "[2/2] vllm: built in" in log
