"""Pinned sets, locks, made wheels, pip's command lines, what a wheelhouse may hold, and its errors in words."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import re
import zipfile
from pathlib import Path
from typing import Any

import pytest
from support.device_code import hip_bundle, host_elf, kpack, kpack_reference

from instinct_fleet import runtime_sets, wheelhouse
from instinct_fleet.cli import main

SETS = runtime_sets.catalogue().sets
CPU = runtime_sets.describe("cpu")
ROCM = runtime_sets.describe("rocm100")
SHA = "a" * 64
OTHER = "b" * 64
TINY: dict[str, Any] = {
    "vllm": "1.0.0",
    "accelerator": "rocm",
    "gfx": "gfx942",
    "python": "3.11",
    "abi": "cp311",
    "glibc": "2.36",
    "lock": f"vllm==1.0.0+rocm1 --hash=sha256:{SHA}\ntorch==2.0+rocm1 --hash=sha256:{SHA}\n",
    "device_code": ["torch"],
}


@pytest.mark.parametrize("name", sorted(n for n in SETS if SETS[n].lock))
def test_every_line_of_a_lock_is_pinned_by_version_and_checksum(name: str) -> None:
    described = runtime_sets.describe(name)
    lines = [line for line in described["lock"].splitlines() if not line.startswith("#")]
    assert len(lines) > 20
    for line in lines:
        assert re.fullmatch(r"[a-z0-9-]+==[^ ]+ --hash=sha256:[0-9a-f]{64}", line), line
    assert described["release"] == f"{described['vllm']}-{name}"


@pytest.mark.parametrize("name", ["rocm100", "rocm72"])
def test_a_rocm_set_pins_every_part_with_its_source_and_invents_no_hash(name: str) -> None:
    chosen, described = SETS[name], runtime_sets.describe(name)
    assert {"vllm", "torch", "torchvision", "triton", "amd-aiter", "flash-attn", "amdsmi"} <= {
        p.name for p in chosen.pins
    }
    assert all(entry.source for entry in (*chosen.pins, *chosen.constraints))
    assert (chosen.python, chosen.gfx, described["lock"], described["complete_note"]) == ("3.12", "gfx942", None, None)
    assert [c.name for c in chosen.components][-1] == "vllm"
    assert described["indexes"][0].startswith("https://wheels.vllm.ai/rocm/0.33.0/")


def test_the_device_extra_is_asked_for() -> None:
    assert "torch[device-gfx942]==2.13.0+rocm10.0.0" in ROCM["requirements"]
    assert "vllm==0.33.0+rocm100" in ROCM["requirements"]


def test_unknown_set() -> None:
    with pytest.raises(ValueError, match="runtime set is 'cpux', expected one of"):
        runtime_sets.describe("cpux")


def test_a_site_adds_a_set_and_replaces_one() -> None:
    described = runtime_sets.describe("tiny", sets={"tiny": TINY})
    assert (described["release"], described["gfx"]) == ("1.0.0-tiny", "gfx942")
    assert runtime_sets.describe("cpu", sets={"cpu": TINY})["vllm"] == "1.0.0"


def test_containers_that_resolve_their_values_late() -> None:
    class Late(list):  # type: ignore[type-arg]
        """As Ansible's: what it stores is not what it gives."""

        def __iter__(self) -> Any:
            return iter(["torch"])

    assert runtime_sets.describe("tiny", sets={"tiny": {**TINY, "device_code": Late([object()])}})["device_code"] == [
        "torch"
    ]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"glib": "2.36"}, "runtime set 'tiny': unknown key 'glib' .did you mean 'glibc'"),
        ({"gfx": None}, "accelerator is rocm, gfx is None: a ROCm set names its GPU target"),
        ({"lock": None}, "a set needs a lock or pins"),
        ({"components": [{"name": "x"}]}, "component x needs one of git, url and folder"),
        ({"components": [{"name": "x", "git": "https://g"}]}, "component x has git and no commit"),
        ({"components": [{"name": "x", "url": "https://g"}]}, "component x has a url and no SHA-256"),
        ({"lock": f"vllm==2.0.0+rocm1 --hash=sha256:{SHA}\n"}, "has vllm 2.0.0.rocm1, expected 1.0.0"),
        ({"lock": f"torch==1 --hash=sha256:{SHA}\n"}, "has vllm not at all, expected 1.0.0"),
        ({"lock": f"vllm==1.0.0 --hash=sha256:{SHA}\n"}, "vllm is 1.0.0, a CUDA wheel of the public index"),
        (
            {"lock": TINY["lock"] + f"nvidia-cublas==1 --hash=sha256:{SHA}\n"},
            "it holds nvidia-cublas, which belong to CUDA",
        ),
        ({"lock": "vllm==1.0.0+rocm1\n"}, "line 1 is 'vllm==1.0.0.rocm1', expected NAME==VERSION --hash=sha256"),
    ],
)
def test_a_set_that_cannot_be_is_refused(change: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        runtime_sets.describe("tiny", sets={"tiny": {**TINY, **change}})


def test_two_versions_of_one_distribution_in_a_lock() -> None:
    text = f"Torch==1 --hash=sha256:{SHA}\ntorch==2 --hash=sha256:{SHA}\n"
    with pytest.raises(ValueError, match="the lock pins torch to 1 and to 2, expected one"):
        runtime_sets.lock_lines(text, where="the lock")


def test_a_lock_may_be_written_over_lines_and_with_several_hashes() -> None:
    text = f"# made by uv\nTorch==2.0 \\\n    --hash=sha256:{SHA} \\\n    --hash=sha256:{OTHER}\n"
    assert runtime_sets.lock_lines(text, where="x") == {"torch": ("2.0", (SHA, OTHER))}


def test_a_site_s_lock_takes_the_place_of_none() -> None:
    lock = f"vllm==0.33.0+rocm100 --hash=sha256:{SHA}\n"
    described = runtime_sets.describe("rocm100", lock=lock)
    assert described["lock"] == lock
    assert described["complete_note"] == hashlib.sha256(lock.encode()).hexdigest() + "\n"
    assert described["inputs"] != ROCM["inputs"]


def test_a_lock_that_was_written_by_a_build_is_the_same_lock() -> None:
    # The made wheels are in it already and must not be there twice.
    assert runtime_sets.describe("cpu", lock=CPU["lock"])["lock"] == CPU["lock"]


def test_a_made_wheel_is_a_wheel_and_always_the_same() -> None:
    data = runtime_sets.metadata_wheel("vllm", "0.32.0+cpu")
    assert data == runtime_sets.metadata_wheel("vllm", "0.32.0+cpu")
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        metadata = archive.read("vllm-0.32.0+cpu.dist-info/METADATA").decode()
        record = archive.read("vllm-0.32.0+cpu.dist-info/RECORD").decode()
    assert "Name: vllm\nVersion: 0.32.0+cpu\n" in metadata
    assert record.count("\n") == 3


def test_wheels_run_on_the_node_s_glibc_and_on_nothing_newer() -> None:
    tags = runtime_sets.platform_tags("2.36")
    assert "manylinux_2_36_x86_64" in tags
    assert "manylinux_2_37_x86_64" not in tags
    assert "manylinux2014_x86_64" in tags


# --- fetching ---------------------------------------------------------------------------------------------------


def test_files_of_a_wheelhouse() -> None:
    files = {entry["dest"]: entry for entry in wheelhouse.wheelhouse_files(CPU, path="/w")}
    assert files["/w"]["state"] == "directory"
    assert "torch==2.13.0+cpu" in files["/w/vendor.txt"]["content"]
    assert "torch==" not in files["/w/index.txt"]["content"]
    assert "uv==" in files["/w/index.txt"]["content"]
    made = files["/w/vllm-0.32.0+cpu-py3-none-any.whl"]["content_b64"]
    assert base64.b64decode(made).startswith(b"PK")


def test_files_of_a_wheelhouse_whose_hashes_nobody_knows_yet() -> None:
    files = {entry["dest"]: entry for entry in wheelhouse.wheelhouse_files(ROCM, path="/w")}
    assert "vllm==0.33.0+rocm100\n" in files["/w/requirements.txt"]["content"]
    assert "grpcio==1.78.0\n" in files["/w/constraints.txt"]["content"]
    assert "/w/lock.txt" not in files


def commands(runtime: dict[str, Any], vendor: dict[str, Any] | None = None) -> list[list[str]]:
    return wheelhouse.pip_download_commands(
        runtime,
        path="/w",
        python="python3",
        index_url="https://mirror.example/simple",
        vendor_index_urls=vendor or {},
    )


def test_pip_takes_what_is_pinned_and_asks_the_vendor_only_for_its_own() -> None:
    index, vendor = commands(CPU)
    for command in (index, vendor):
        assert "--require-hashes" in command
        assert "--no-deps" in command
        assert command[command.index("--index-url") + 1] == "https://mirror.example/simple"
        assert command[command.index("--python-version") + 1] == "3.11"
    assert "--extra-index-url" not in index
    assert vendor[vendor.index("--extra-index-url") + 1] == "https://download.pytorch.org/whl/cpu"
    assert (index[-1], vendor[-1]) == ("/w/index.txt", "/w/vendor.txt")


def test_without_a_lock_the_pins_are_resolved_and_the_installer_is_still_pinned() -> None:
    installer, resolve = commands(ROCM)
    assert "--require-hashes" in installer
    assert installer[-1] == "/w/installer.txt"
    assert "--require-hashes" not in resolve
    assert "--no-deps" not in resolve
    # Not `download`: AMD's package rocm is a source distribution.
    assert resolve[:4] == ["python3", "-m", "pip", "wheel"]
    assert resolve[resolve.index("--wheel-dir") + 1] == "/w"
    assert [resolve[i + 1] for i, word in enumerate(resolve) if word == "--extra-index-url"] == ROCM["indexes"]
    assert resolve[-4:] == ["--constraint", "/w/constraints.txt", "--requirement", "/w/requirements.txt"]


@pytest.mark.parametrize("key", ["cpu", "rocm"])
def test_a_mirror_takes_the_place_of_the_vendor_s_index(key: str) -> None:
    runtime = {"cpu": CPU, "rocm": ROCM}[key]
    for urls in ("https://m/x", ["https://m/x"]):
        command = commands(runtime, {key: urls})[-1]
        assert [command[i + 1] for i, word in enumerate(command) if word == "--extra-index-url"] == ["https://m/x"]


def test_a_mirror_that_is_no_url() -> None:
    with pytest.raises(ValueError, match="vllm_build_vendor_index_urls for cpu is 3, expected a URL or a list"):
        commands(CPU, {"cpu": 3})


@pytest.mark.parametrize(
    ("stderr", "expected"),
    [
        (
            "Retrying ... NameResolutionError(...)\nERROR: No matching distribution found for torch==2.13.0+cpu",
            r"cannot be reached; set vllm_build_index_url.*\(it looked for torch==2.13.0\+cpu\)",
        ),
        ("ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE.", "another SHA-256"),
        ("OSError: [Errno 28] No space left on device", "disk is full"),
        ("/usr/bin/python3: No module named pip", "has no pip"),
        ("ERROR: No matching distribution found for regex==1", "does not have a pinned wheel"),
        ("something else\nentirely", "something else / entirely"),
        ("", r"\(nothing\)"),
    ],
)
def test_pip_s_errors_in_words(stderr: str, expected: str) -> None:
    result = {"results": [{"failed": False}, {"failed": True, "stderr": stderr}]}
    text = wheelhouse.pip_failure_text(result, host="builder-1")
    assert text.startswith("builder-1: the wheelhouse is not complete")
    assert re.search(expected, text), text
    assert "Traceback" not in text
    assert "\n" not in text


def test_a_password_of_an_index_is_refused_without_showing_it() -> None:
    vendors = {
        "rocm100": ["https://m.example/a/", "https://u:hunter2@m.example/b/"],
        "cpu": "https://t0ken@m.example/c",
    }
    problems = wheelhouse.index_problems("https://u:hunter2@pypi.example/simple", vendor_index_urls=vendors)
    assert [problem.partition(" holds ")[0] for problem in problems] == [
        "vllm_build_index_url",
        "vllm_build_vendor_index_urls, rocm100",
        "vllm_build_vendor_index_urls, cpu",
    ]
    assert "https://pypi.example/simple" in problems[0]
    assert not any("hunter2" in problem or "t0ken" in problem for problem in problems)
    assert wheelhouse.index_problems("", vendor_index_urls={"cpu": ["https://m.example/a/"]}) == []


# --- sealing ----------------------------------------------------------------------------------------------------


def found(**files: str) -> list[dict[str, str]]:
    return [{"path": f"/w/{name}", "checksum": digest} for name, digest in files.items()]


RECORD = {
    "method": "wheel",
    "host": "builder-1",
    "user": "ops",
    "started": "s",
    "ended": "e",
    "indexes": ["", "https://user:secret@mirror.example/simple?token=x"],
    "commands": {"/usr/bin/python3 --version": {"rc": 0, "stdout": "Python 3.12.1\n"}, "hipcc --version": {"rc": None}},
    "lock_from": "first use",
}
ARRIVED = {
    "vllm-0.33.0+rocm100-cp312-cp312-manylinux_2_34_x86_64.whl": SHA,
    "Numba-0.65.0-cp312-cp312-manylinux2014_x86_64.whl": OTHER,
    "uv-0.13.9-py3-none-manylinux_2_17_x86_64.manylinux2014_x86_64.whl": SHA,
}


def test_what_arrived_is_written_down_once() -> None:
    files = {f["dest"]: f["content"] for f in wheelhouse.seal_files(ROCM, found(**ARRIVED), path="/w", record=RECORD)}
    assert files["/w/lock.txt"] == (f"numba==0.65.0 --hash=sha256:{OTHER}\nvllm==0.33.0+rocm100 --hash=sha256:{SHA}\n")
    assert f"{OTHER}  Numba-0.65.0-cp312-cp312-manylinux2014_x86_64.whl\n" in files["/w/SHA256SUMS"]
    assert list(files)[-1] == "/w/complete.sha256"
    assert files["/w/complete.sha256"] == wheelhouse.wheelhouse_inputs(ROCM, method="wheel")
    document = json.loads(files["/w/provenance.json"])
    assert document["indexes"] == ["https://mirror.example/simple"]
    assert "secret" not in files["/w/provenance.json"]
    assert document["tools"] == {"python3": "Python 3.12.1", "hipcc": None}
    assert (document["host"], document["lock_from"], document["method"]) == ("builder-1", "first use", "wheel")
    # The nodes take that lock, and a release is marked with it.
    installed = wheelhouse.installed_set(ROCM, files["/w/lock.txt"], path="/w")
    assert installed["complete_note"] == runtime_sets.note(files["/w/lock.txt"])


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"vllm-0.33.0-cp38-abi3-manylinux_2_28_x86_64.whl": SHA}, "a CUDA wheel of the public index"),
        ({"vllm-0.32.0+rocm100-cp312-cp312-linux_x86_64.whl": SHA}, "vllm is 0.32.0.rocm100, expected 0.33.0"),
        ({**ARRIVED, "numba-0.66.0-cp312-cp312-linux_x86_64.whl": SHA}, "numba is there twice"),
        ({**ARRIVED, "nvidia_cublas-1-py3-none-any.whl": SHA}, "nvidia-cublas, which belong to CUDA"),
        ({}, "vllm is missing, expected 0.33.0"),
    ],
)
def test_what_arrived_and_is_wrong_is_never_sealed(change: dict[str, str], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        wheelhouse.seal_files(ROCM, found(**change), path="/w", record=RECORD)


def test_a_wheelhouse_of_another_lock_is_refused() -> None:
    with pytest.raises(ValueError, match=r"/w/lock\.txt differs from the lock that set cpu pins"):
        wheelhouse.installed_set(CPU, CPU["lock"] + f"x==1 --hash=sha256:{SHA}\n", path="/w")
    with pytest.raises(ValueError, match="a CUDA wheel"):
        wheelhouse.installed_set(ROCM, f"vllm==0.33.0 --hash=sha256:{SHA}\n", path="/w")
    assert wheelhouse.installed_set(CPU, None, path="/w") == CPU


def test_the_fingerprint_changes_with_the_method_and_with_any_pin() -> None:
    changed = {**TINY, "glibc": "2.35"}
    tiny, other = (runtime_sets.describe("tiny", sets={"tiny": s}) for s in (TINY, changed))
    seen = {wheelhouse.wheelhouse_inputs(r, method=m) for r in (tiny, other) for m in ("wheel", "source")}
    assert len(seen) == 4


def test_a_method_that_builds_writes_the_lock_of_what_it_built() -> None:
    tiny = runtime_sets.describe("tiny", sets={"tiny": TINY})
    built = {"vllm-1.0.0+rocm1-py3-none-any.whl": OTHER}
    files = wheelhouse.seal_files(tiny, found(**built), path="/w", record={**RECORD, "method": "source"})
    assert files[0]["content"] == f"vllm==1.0.0+rocm1 --hash=sha256:{OTHER}\n"


@pytest.mark.parametrize(
    ("files", "text"),
    [
        ({"vllm-1.0.0+rocm1-py3-none-any.whl": OTHER}, f"has SHA-256 {OTHER}, expected {SHA}: the file was changed"),
        ({}, "vllm==1.0.0.rocm1 is missing; run playbooks/build.yml again"),
        ({"vllm-1.0.0+rocm1-cp311-cp311-manylinux_2_39_x86_64.whl": SHA}, "needs glibc 2.39, the nodes have 2.36"),
        (
            {"vllm-1.0.0+rocm1-cp312-cp312-manylinux_2_17_x86_64.whl": SHA},
            "is for cp312, and the nodes run Python 3.11",
        ),
        ({"vllm-1.0.0+rocm1-cp312-abi3-manylinux_2_17_x86_64.whl": SHA}, "is for cp312, and the nodes run"),
    ],
)
def test_problems_of_a_wheelhouse(files: dict[str, str], text: str) -> None:
    lock = f"vllm==1.0.0+rocm1 --hash=sha256:{SHA}\n"
    (problem,) = wheelhouse.wheelhouse_problems(files, lock=lock, python="3.11", glibc="2.36")
    assert re.search(text, problem), problem


@pytest.mark.parametrize("tags", ["py3-none-any", "py2.py3-none-any", "py37-none-any", "cp38-abi3-manylinux1_x86_64"])
def test_wheels_for_more_than_one_python(tags: str) -> None:
    lock = f"a==1 --hash=sha256:{SHA}\n"
    assert wheelhouse.wheelhouse_problems({f"a-1-{tags}.whl": SHA}, lock=lock, python="3.11", glibc="2.36") == []


# --- the command ------------------------------------------------------------------------------------------------


def wheel(folder: Path, name: str, **members: bytes) -> str:
    path = folder / f"{name}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for member, content in members.items():
            archive.writestr(member.replace("__", "/") + ".so", content)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    distribution, version = name.split("-")
    return f"{distribution}=={version} --hash=sha256:{digest}\n"


def check(folder: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, list[str]]:
    tiny = runtime_sets.describe("tiny", sets={"tiny": TINY})
    command = wheelhouse.wheelhouse_check(tiny, path=str(folder), python="python3")
    assert command[:4] == ["python3", "-m", "instinct_fleet", "wheelhouse"]
    code = main(command[3:])
    return code, json.loads(capsys.readouterr().out)["problems"]


DEVICE = host_elf({".hip_fatbin": hip_bundle("gfx942")})


def test_the_command_passes_a_good_wheelhouse_and_refuses_a_changed_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "lock.txt").write_text(wheel(tmp_path, "torch-2.0", torch__lib=DEVICE))
    assert check(tmp_path, capsys) == (0, [])
    path = tmp_path / "torch-2.0-py3-none-any.whl"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    code, problems = check(tmp_path, capsys)
    assert code == 1
    assert "the file was changed or replaced" in problems[0]


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (host_elf({".hip_fatbin": hip_bundle("gfx90a", mach=0x3F)}), "holds device code for gfx90a, expected gfx942"),
        (
            host_elf({".nv_fatbin": b"\x50\xed\x55\xba" + bytes(60)}),
            "holds CUDA code and none for gfx942: it is a CUDA",
        ),
        (host_elf({".text": b"\x90" * 64}), "holds no device code at all, expected some for gfx942: it is a CPU build"),
        (
            host_elf({".rocm_kpack_ref": kpack_reference("torch", ".kpack/torch_@GFXARCH@.kpack")}),
            "extra device-gfx942 is missing",
        ),
    ],
)
def test_the_command_refuses_what_has_no_code_for_the_gpu(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes, text: str
) -> None:
    (tmp_path / "lock.txt").write_text(wheel(tmp_path, "torch-2.0", torch__lib=content))
    code, problems = check(tmp_path, capsys)
    assert code == 1
    assert text in problems[0]


def test_the_device_extra_of_another_wheel_counts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    host = host_elf({".rocm_kpack_ref": kpack_reference("torch", ".kpack/torch_@GFXARCH@.so")})
    lock = wheel(tmp_path, "torch-2.0", torch__lib=host)
    lock += wheel(tmp_path, "extra-1", **{"torch__.kpack__torch_gfx942": kpack({"torch": ["gfx942"]})})
    (tmp_path / "lock.txt").write_text(lock)
    assert check(tmp_path, capsys) == (0, [])


def test_the_command_says_what_it_cannot_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["wheelhouse", str(tmp_path), "--python", "3.11", "--glibc", "2.36"]) == 2
    assert "make it with playbooks/build.yml" in capsys.readouterr().err
    assert main(["wheelhouse", str(tmp_path), "--python", "311", "--glibc", "2.36"]) == 2
    assert "--python: '311' is not a version like 3.12" in capsys.readouterr().err
    assert main(["wheelhouse", str(tmp_path), "--python", "3.11", "--glibc", "2.36", "--require", "942"]) == 2
    assert "--require: '942' is not a target" in capsys.readouterr().err
