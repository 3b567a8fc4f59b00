"""Pinned sets, the wheels made here, pip's command lines, and its errors in words."""

from __future__ import annotations

import base64
import io
import re
import zipfile

import pytest

from instinct_fleet import runtime_sets, wheelhouse

CPU = runtime_sets.describe("cpu")
VENDOR = {"cpu": "https://torch.example/cpu"}


@pytest.mark.parametrize("name", sorted(runtime_sets.catalogue().sets))
def test_every_line_of_a_lock_is_pinned_by_version_and_checksum(name: str) -> None:
    described = runtime_sets.describe(name)
    lines = [line for line in described["lock"].splitlines() if not line.startswith("#")]
    assert len(lines) > 20
    for line in lines:
        assert re.fullmatch(r"[a-z0-9-]+==[^ ]+ --hash=sha256:[0-9a-f]{64}", line), line
    assert described["release"] == f"{described['vllm']}-{name}"


def test_unknown_set() -> None:
    with pytest.raises(ValueError, match="runtime set is 'cpux', expected one of"):
        runtime_sets.describe("cpux")


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


def test_files_of_a_wheelhouse() -> None:
    files = {entry["dest"]: entry for entry in wheelhouse.wheelhouse_files(CPU, path="/w")}
    assert files["/w"]["state"] == "directory"
    assert "torch==2.13.0+cpu" in files["/w/vendor.txt"]["content"]
    assert "torch==" not in files["/w/index.txt"]["content"]
    assert "uv==" in files["/w/index.txt"]["content"]
    made = files["/w/vllm-0.32.0+cpu-py3-none-any.whl"]["content_b64"]
    assert base64.b64decode(made).startswith(b"PK")


def test_pip_takes_what_is_pinned_and_asks_the_vendor_only_for_its_own() -> None:
    index, vendor = wheelhouse.pip_download_commands(
        CPU, path="/w", python="python3", index_url="https://mirror.example/simple", vendor_index_urls=VENDOR
    )
    for command in (index, vendor):
        assert "--require-hashes" in command
        assert command[command.index("--index-url") + 1] == "https://mirror.example/simple"
        assert command[command.index("--python-version") + 1] == "3.11"
    assert "--extra-index-url" not in index
    assert vendor[vendor.index("--extra-index-url") + 1] == VENDOR["cpu"]
    assert (index[-1], vendor[-1]) == ("/w/index.txt", "/w/vendor.txt")


def test_no_index_for_this_kind_of_accelerator() -> None:
    with pytest.raises(ValueError, match="vllm_build_vendor_index_urls has rocm, expected one for 'cpu'"):
        wheelhouse.pip_download_commands(
            CPU, path="/w", python="python3", index_url="", vendor_index_urls={"rocm": "https://x"}
        )


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
