"""Device code in files: every container it comes in, what lacks a target, and damage."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.device_code import (
    BUNDLE_MAGIC,
    bundle,
    code_object,
    compressed,
    hip_bundle,
    host_elf,
    kpack,
    kpack_reference,
    static_library,
)

from instinct_fleet.cli import main
from instinct_fleet.codeobjects import FileReport, judge, kpack_patterns, read, serves

REPO = Path(__file__).resolve().parents[2]


def only(content: bytes, name: str = "lib.so") -> FileReport:
    (report,) = read(content, name=name)
    return report


def targets(content: bytes) -> dict[str, int]:
    return dict(only(content).targets)


# --- the containers ---------------------------------------------------------------------------------------------


def test_every_translation_unit_of_a_fatbin_is_read() -> None:
    fatbin = hip_bundle("gfx942", "gfx950") + hip_bundle("gfx942") + hip_bundle("gfx90a:sramecc+:xnack-", mach=0x3F)
    report = only(host_elf({".text": b"\x90" * 64, ".hip_fatbin": fatbin}))
    # The made code objects are all gfx942 by e_flags, so the entry for gfx950 is seen to be something else.
    assert dict(report.targets) == {"gfx942": 2, "gfx950": 1, "gfx90a:sramecc+:xnack-": 1}
    assert report.kinds == ("bundle",)
    assert [f.message for f in report.findings] == [
        "offload bundle says gfx950, but the code object in it is for gfx942; its device code cannot be told"
    ]


@pytest.mark.parametrize("version", [1, 2, 3])
@pytest.mark.parametrize("method", ["zstd", "zlib"])
def test_compressed_bundles_of_every_version(version: int, method: str) -> None:
    one = compressed(hip_bundle("gfx942", size=200_000), version=version, method=method)
    two = compressed(hip_bundle("gfx942"), version=version, method=method)
    report = only(host_elf({".hip_fatbin": one + bytes(-len(one) % 4096) + two}))
    assert dict(report.targets) == {"gfx942": 2}
    assert report.kinds == ("compressed",)
    assert not report.findings


def test_plain_and_compressed_bundles_in_one_section() -> None:
    fatbin = hip_bundle("gfx942") + compressed(hip_bundle("gfx942")) + bytes(100_000) + hip_bundle("gfx942")
    report = only(host_elf({".hip_fatbin": fatbin}))
    assert dict(report.targets) == {"gfx942": 3}
    assert report.kinds == ("bundle", "compressed")


@pytest.mark.parametrize("content", [hip_bundle("gfx942"), compressed(hip_bundle("gfx942"))])
def test_a_bundle_that_is_the_whole_file(content: bytes) -> None:
    assert targets(content) == {"gfx942": 1}


@pytest.mark.parametrize(
    ("mach", "abi", "features", "expected"),
    [
        (0x4C, 2, 0, "gfx942"),
        (0x4C, 2, 0xC00 | 0x200, "gfx942:sramecc+:xnack-"),
        (0x4C, 3, 0x800 | 0x300, "gfx942:sramecc-:xnack+"),
        (0x4C, 2, 0x400 | 0x100, "gfx942"),  # "any" is no restriction
        (0x3F, 1, 0x200 | 0x100, "gfx90a:sramecc+:xnack+"),  # code object version 3
        (0x4F, 2, 0, "gfx950"),
        (0x5F, 4, 1 << 24, "gfx9-4-generic"),  # the top byte is the generic version
        (0x41, 2, 0, "gfx1100"),
    ],
)
def test_bare_code_objects_by_e_flags(mach: int, abi: int, features: int, expected: str) -> None:
    report = only(code_object(mach, abi=abi, features=features), "k.hsaco")
    assert report.targets == ((expected, 1),)
    assert report.kinds == ("bare",)


def test_a_code_object_embedded_as_data() -> None:
    content = host_elf({".rodata": b"x" * 100 + code_object(0x4C) + code_object(0x4F)})
    assert targets(content) == {"gfx942": 1, "gfx950": 1}
    assert only(content).kinds == ("embedded",)


def test_an_object_file_with_one_section_a_target() -> None:
    content = host_elf({"__CLANG_OFFLOAD_BUNDLE__hipv4-amdgcn-amd-amdhsa--gfx942:xnack-": b"BC\xc0\xde"})
    assert targets(content) == {"gfx942:xnack-": 1}


def test_a_static_library_names_its_members() -> None:
    members = [("a_rather_long_name.o", host_elf({".hip_fatbin": hip_bundle("gfx942")})), ("plain.o", b"odd")]
    (report,) = read(static_library(members), name="libx.a")
    assert report.path == "libx.a(a_rather_long_name.o)"
    assert report.targets == (("gfx942", 1),)


def test_a_file_without_its_section_table_is_searched() -> None:
    assert targets(host_elf({".hip_fatbin": hip_bundle("gfx942")}, section_table=False)) == {"gfx942": 1}


def test_an_empty_entry_is_no_code() -> None:
    content = bundle({"hipv4-amdgcn-amd-amdhsa--gfx942": b"", "hipv4-amdgcn-amd-amdhsa--gfx90a": code_object(0x3F)})
    assert targets(content) == {"gfx90a": 1}


def test_spirv_is_listed_and_serves_no_processor() -> None:
    report = only(bundle({"hip-spirv64-amd-amdhsa--amdgcnspirv": b"\x03\x02\x23\x07"}))
    assert report.targets == (("amdgcnspirv", 1),)
    assert not serves("amdgcnspirv", "gfx942")


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"\x7fELF"[:3], b"#!/bin/sh\n", b"CC"),
        host_elf({".text": b"\x90"}),
        host_elf({".rodata": b"CCOB is text"}),
        host_elf({"__CLANG_OFFLOAD_BUNDLE__sycl-spir64": b"\x03\x02\x23\x07"}),
    ],
)
def test_ordinary_files_say_nothing(content: bytes) -> None:
    assert read(content, name="x") == ()


def test_cuda_code_is_noticed() -> None:
    report = only(host_elf({".nv_fatbin": b"\x50\xed\x55\xba"}))
    assert report.cuda
    assert not report.holds_device_code


# --- damage -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (hip_bundle("gfx942")[:-4096], "truncated: the code for gfx942 ends"),
        (hip_bundle("gfx942")[:40], "truncated in entry 1 of 2"),
        (hip_bundle("gfx942")[:28], "truncated before its table"),
        (BUNDLE_MAGIC + struct.pack("<Q", 1 << 40), "says it has 1099511627776 entries"),
        (BUNDLE_MAGIC + struct.pack("<QQQQ", 1, 0, 0, 1 << 50), "has a name of 1125899906842624 bytes"),
        (compressed(hip_bundle("gfx942"))[:-8], "says"),
        (compressed(hip_bundle("gfx942"))[:20], "truncated within its header"),
        (compressed(hip_bundle("gfx942"), version=1)[:-8], "truncated"),
        (compressed(hip_bundle("gfx942"), version=1, method="zlib")[:-8], "truncated zlib stream"),
        (b"CCOB" + struct.pack("<HHQQQ", 9, 1, 0, 0, 0), "header version 9"),
        (compressed(hip_bundle("gfx942"))[:24] + b"\xff" * 200, "cannot be unpacked"),
        (compressed(b"no bundle at all"), "truncated before its table"),
        (b"CCOB\0\0", "no table of contents"),
        (b"\x7fELF\x02\x01", "ELF header is 6 bytes long"),
        (code_object(0xFE), "unknown processor in e_flags"),
        (host_elf({".hip_fatbin": b"\x01" * 64}), "holds neither an offload bundle nor a code object"),
        (host_elf({".hip_fatbin": hip_bundle("gfx942")})[:-100], "section table is damaged"),
        (b"!<thin>\nlib.o/", "thin archive"),
        (b"!<arch>\n" + b"x" * 80, "no member header"),
        (static_library([("a.o", bytes(100))])[:-20], "static library is truncated"),
        (static_library([("a.o", bytes(100))]) + b"x" * 20, "truncated within a member header"),
        (b"KPAK\x01", "truncated before its table"),
        (kpack({"lib.so": ["gfx942"]})[:-5], "kpack archive cannot be read"),
        (host_elf({".rocm_kpack_ref": b"\xc1"}), "reference to a kpack archive cannot be read"),
    ],
)
def test_damage_is_unknown_never_healthy(content: bytes, text: str) -> None:
    findings = [f for report in read(content, name="lib.so") for f in report.findings]
    assert any(text in f.message for f in findings), findings
    assert {f.severity for f in findings} == {"unknown"}


def test_what_follows_a_damaged_bundle_is_still_found() -> None:
    damaged = BUNDLE_MAGIC + struct.pack("<Q", 1 << 40)
    report = only(host_elf({".hip_fatbin": damaged + code_object(0x4C)}))
    assert dict(report.targets) == {"gfx942": 1}
    assert report.findings
    report = only(host_elf({".hip_fatbin": damaged + hip_bundle("gfx942")}))
    assert dict(report.targets) == {"gfx942": 1}


WHOLE = [
    host_elf({".rodata": code_object(0x4C), ".hip_fatbin": hip_bundle("gfx942") + compressed(hip_bundle("gfx90a"))}),
    compressed(hip_bundle("gfx942", "gfx950"), version=1, method="zlib"),
    static_library([("a.o", host_elf({".hip_fatbin": hip_bundle("gfx942")})), ("b.o", b"")]),
    kpack({"lib.so": ["gfx942", "gfx950"]}),
    host_elf({".rocm_kpack_ref": kpack_reference("lib.so", "../.kpack/x_@GFXARCH@.kpack")}),
    code_object(0x4C),
]


@given(st.sampled_from(WHOLE), st.lists(st.tuples(st.integers(0, 1 << 20), st.binary(max_size=8)), max_size=6))
@settings(max_examples=300, deadline=None)
def test_no_mutation_raises(content: bytes, edits: list[tuple[int, bytes]]) -> None:
    mutated = bytearray(content)
    for position, new in edits:
        at = position % (len(mutated) + 1)
        if new:
            mutated[at : at + len(new)] = new
        else:
            del mutated[at:]
    read(bytes(mutated), name="x")


@pytest.mark.parametrize("content", WHOLE)
def test_no_truncation_raises(content: bytes) -> None:
    for end in {*range(0, min(300, len(content))), *range(0, len(content), 997)}:
        read(content[:end], name="x")


# --- judging ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "device", "expected"),
    [
        ("gfx942", "gfx942", True),
        ("gfx942:sramecc+:xnack-", "gfx942", True),
        ("gfx942:xnack+", "gfx942", False),
        ("gfx942:xnack+", "gfx942:xnack+", True),
        ("gfx942:sramecc-", "gfx942", False),
        ("gfx942", "gfx942:xnack-", True),
        ("gfx9-4-generic", "gfx942", True),
        ("gfx9-4-generic", "gfx90a", False),
        ("gfx9-4-generic:xnack+", "gfx942", False),
        ("gfx950", "gfx942", False),
        ("gfx94", "gfx942", False),
        ("gfx1100", "gfx1100", True),
    ],
)
def test_what_runs_where(target: str, device: str, expected: bool) -> None:
    assert serves(target, device) is expected


def report(path: str, *held: str, **more: object) -> FileReport:
    return FileReport(path=path, targets=tuple((t, 1) for t in held), kinds=("bundle",), **more)  # type: ignore[arg-type]


def test_the_files_that_lack_the_target_are_named() -> None:
    reports = [report("a.so", "gfx942", "gfx950"), report("b.so", "gfx90a"), FileReport(path="c.so", cuda=True)]
    (finding,) = judge(reports, subject="venv", require="gfx942")
    assert (finding.code, finding.severity, finding.subject) == ("codeobjects_missing", "error", "b.so")
    assert finding.message == "holds code for gfx90a, not for gfx942"
    assert judge(reports, subject="venv", require="gfx942", allow_missing=["b.*"]) == ()
    assert judge(reports, subject="venv") == ()


@pytest.mark.parametrize(
    ("reports", "why"),
    [((), "no file holds device code"), ((FileReport(path="x", cuda=True),), "1 files hold CUDA code")],
)
def test_nothing_at_all_fails_a_requirement(reports: tuple[FileReport, ...], why: str) -> None:
    (finding,) = judge(reports, subject="venv", require="gfx942")
    assert finding.code == "codeobjects_none"
    assert why in finding.message


def test_files_made_for_one_processor_are_judged_as_a_set() -> None:
    def bare(path: str, target: str) -> FileReport:
        return FileReport(path=path, targets=((target, 1),), kinds=("bare",))

    both = [bare("rocblas/library/T_gfx942.co", "gfx942"), bare("rocblas/library/T_gfx1100.co", "gfx1100")]
    aiter = [bare("aiter/hsa/gfx942/fmha/a.co", "gfx942"), bare("aiter/hsa/gfx950/mla/b.co", "gfx950")]
    assert judge([*both, *aiter], subject="venv", require="gfx942") == ()
    (finding,) = judge([*aiter, both[1]], subject="venv", require="gfx942")
    assert finding.subject == "rocblas/library/ (1 code objects)"
    (alone,) = judge([bare("kernels/x.co", "gfx950"), *both], subject="venv", require="gfx942")
    assert alone.subject == "kernels/x.co"


def test_kpack_references_are_followed() -> None:
    host = only(
        host_elf({".rocm_kpack_ref": kpack_reference("lib/libx.so", "../.kpack/x_@GFXARCH@.kpack")}),
        "site/_rocm_sdk_libraries/lib/libx.so",
    )
    assert kpack_patterns(host) == ("site/_rocm_sdk_libraries/.kpack/x_*.kpack",)
    there = only(kpack({"lib/libx.so": ["gfx942"]}), "site/_rocm_sdk_libraries/.kpack/x_gfx942.kpack")
    other = only(kpack({"lib/liby.so": ["gfx942"]}), "site/_rocm_sdk_libraries/.kpack/x_gfx942.kpack")
    assert judge([host, there], subject="venv", require="gfx942") == ()
    for reports in ([host], [host, other]):
        (finding,) = judge(reports, subject="venv", require="gfx942")
        assert finding.code == "codeobjects_kpack_absent"
        assert "torch[device-gfx942]" in finding.remedy
    wrong = only(kpack({"lib/libx.so": ["gfx1100"]}), "site/_rocm_sdk_libraries/.kpack/x_gfx1100.kpack")
    (finding,) = (f for f in judge([host, wrong], subject="venv", require="gfx942") if f.subject == host.path)
    assert finding.message == "holds code for gfx1100, not for gfx942"


# --- the command ------------------------------------------------------------------------------------------------


@pytest.fixture
def venv(tmp_path: Path) -> Path:
    """A small environment: one good library, text, a link, a second name, a wheel, a kpack library."""
    root = tmp_path / "venv"
    (root / "lib").mkdir(parents=True)
    (root / ".kpack").mkdir()
    good = host_elf({".hip_fatbin": hip_bundle("gfx942")})
    (root / "lib/good.so").write_bytes(good)
    (root / "lib/link.so").symlink_to("good.so")
    os.link(root / "lib/good.so", root / "lib/hard.so")
    (root / "lib/a.py").write_text("x = 1\n")
    (root / "lib/data.bin").write_bytes(b"abc")
    (root / "lib/k.so").write_bytes(host_elf({".rocm_kpack_ref": kpack_reference("k", "../.kpack/k_@GFXARCH@.kpack")}))
    (root / ".kpack/k_gfx942.kpack").write_bytes(kpack({"k": ["gfx942"]}))
    with zipfile.ZipFile(root / "x.whl", "w", zipfile.ZIP_DEFLATED) as wheel:
        wheel.writestr("pkg/x.so", host_elf({".hip_fatbin": hip_bundle("gfx942") * 30}))
        wheel.writestr("pkg/__init__.py", "")
    return root


def test_a_whole_environment(venv: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["codeobjects", str(venv), "--require", "gfx942", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert {f["path"]: f["targets"] for f in document["files"]} == {
        ".kpack/k_gfx942.kpack": [["gfx942", 1]],
        "lib/good.so": [["gfx942", 1]],
        "lib/k.so": [],
        "x.whl!pkg/x.so": [["gfx942", 30]],
    }
    assert document["targets"] == ["gfx942"]
    assert document["verdict"] == "pass"


def test_the_exit_code_and_the_reasons(venv: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (venv / "lib/bad.so").write_bytes(host_elf({".hip_fatbin": hip_bundle("gfx90a", mach=0x3F)}))
    assert main(["codeobjects", str(venv), "--require", "gfx942"]) == 1
    captured = capsys.readouterr()
    assert "lib/bad.so: gfx90a x1" in captured.out
    assert "error: lib/bad.so: holds code for gfx90a, not for gfx942" in captured.err
    assert main(["codeobjects", str(venv)]) == 0
    assert main(["codeobjects", str(venv), "--require", "gfx942", "--allow-missing", "*/bad.so"]) == 0


def test_a_kpack_archive_beside_a_single_file_is_found(venv: Path) -> None:
    assert main(["codeobjects", str(venv / "lib/k.so"), "--require", "gfx942"]) == 0
    (venv / ".kpack/k_gfx942.kpack").unlink()
    assert main(["codeobjects", str(venv / "lib/k.so"), "--require", "gfx942"]) == 1


def test_a_damaged_wheel_is_unknown(venv: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = bytearray((venv / "x.whl").read_bytes())
    content[60:90] = b"\xff" * 30
    (venv / "x.whl").write_bytes(content)
    assert main(["codeobjects", str(venv / "x.whl")]) == 1
    assert "unknown: x.whl!pkg/x.so: cannot be read" in capsys.readouterr().err
    (venv / "x.whl").write_bytes(content[:-30])
    assert main(["codeobjects", str(venv / "x.whl")]) == 1
    (venv / "x.pt").write_bytes(content[:-30])
    (venv / "x.whl").unlink()
    assert main(["codeobjects", str(venv), "--require", "gfx942"]) == 0


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["/nowhere/at/all"], "/nowhere/at/all: no such file or directory"),
        ([".", "--require", ""], "--require: '' is not a target"),
        ([".", "--require", "mi300x"], "--require: 'mi300x' is not a target; expected for example gfx942"),
    ],
)
def test_unusable_input(arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["codeobjects", *arguments]) == 2
    assert text in capsys.readouterr().err


def test_the_real_wheel_of_amd_mori(capsys: pytest.CaptureFixture[str]) -> None:
    cache = REPO / ".cache" / "wheels"
    if not list(cache.glob("amd_mori-*.whl")):
        asked = subprocess.run(
            f"{sys.executable} -m pip download amd-mori --python-version 3.12 --only-binary=:all: --no-deps --quiet "
            f"--retries 1 --dest {cache}".split(),
            capture_output=True,
            text=True,
            check=False,
        )
        if asked.returncode:
            reason = (asked.stderr.strip().splitlines() or ["no message"])[-1]
            pytest.skip(f"no package index gives the wheel amd-mori: {reason}")
    (wheel, *_) = sorted(cache.glob("amd_mori-*.whl"))
    assert main(["codeobjects", str(wheel), "--require", "gfx942", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert "gfx942" in document["targets"]
    assert all(f["path"].startswith(f"{wheel.name}!mori/") for f in document["files"])
    assert main(["codeobjects", str(wheel), "--require", "gfx1100"]) == 1
