from __future__ import annotations

import pytest
from support.profile import PROFILES, mi300x_8, mi355x_8
from support.render_sys import render_commands

from instinct_fleet.parse import rocminfo


def text_of(*faults: str) -> str:
    return render_commands(mi300x_8().with_faults(*faults))["rocminfo"][0]


@pytest.mark.parametrize("name", sorted(PROFILES))
def test_every_profile_reads_back(name: str) -> None:
    profile = PROFILES[name]()
    out, err, rc = render_commands(profile)["rocminfo"]
    reading = rocminfo.parse(out, stderr=err, rc=rc)

    assert rocminfo.sniff(out)
    assert reading.complete
    assert reading.findings == ()
    assert len(reading.gpus) == profile.count
    assert {gpu.arch for gpu in reading.gpus} == {profile.arch}
    assert {gpu.device_id for gpu in reading.gpus} == {profile.device_id}
    assert {gpu.vram_bytes for gpu in reading.gpus} == {profile.vram_bytes}
    assert {gpu.bdf for gpu in reading.gpus} == {None}, "the domain is not printed"
    assert sorted(reading.facts["bus_addresses"]) == sorted(bdf[5:] for bdf in profile.bdfs)
    assert reading.facts["cpu_agents"] == len(profile.nodes)
    assert reading.facts["driver_version"] == profile.driver_version


def test_hip_numbers_follow_the_agents() -> None:
    reading = rocminfo.parse(render_commands(mi355x_8())["rocminfo"][0])

    assert [gpu.hip_id for gpu in reading.gpus] == list(mi355x_8().hip_ids)


def test_hidden_agents_are_a_fact_only() -> None:
    reading = rocminfo.parse(text_of("rocr_hidden"))

    assert reading.complete
    assert reading.facts["gpu_agents"] == 2
    assert "gpu_count" not in reading.collects


def test_module_without_a_version() -> None:
    reading = rocminfo.parse(text_of().replace("ROCk module version 6.14.14 is loaded", "ROCk module is loaded"))

    assert reading.complete
    assert reading.facts["driver_version"] is None


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("*** Done ***", "", "Done"),
        ("29857(0x74a1)", "29857(0x74a2)", "Chip ID"),
        ("Name:                    gfx942", "Name:                    AMD GPU", "gfx target"),
        ("--gfx942:", "--gfx1100:", "ISA of its own target gfx942"),
        ("Device Type:             GPU", "Device Type:             ???", "no Device Type"),
        ("Agent 4", "Agent 5", "not numbered"),
        ("BDFID:                   3072", "BDFID:                   N/A", "BDFID"),
    ],
)
def test_damage_is_noticed(old: str, new: str, said: str) -> None:
    text = text_of()
    assert old in text
    reading = rocminfo.parse(text.replace(old, new, 1))

    assert not reading.complete
    assert [(f.code, f.severity) for f in reading.findings] == [("collect_truncated", "unknown")]
    assert said in reading.findings[0].message


def test_override_shows_another_target() -> None:
    reading = rocminfo.parse(text_of().replace("gfx942", "gfx90a"))

    assert {gpu.arch for gpu in reading.gpus} == {"gfx90a"}


def test_uuid_that_is_not_known() -> None:
    reading = rocminfo.parse(
        text_of().replace("Uuid:                    GPU-", "Uuid:                    GPU-XX\n  X:  ", 1)
    )

    assert reading.facts["uuids_known"].count(False) == 1
    assert reading.complete


@pytest.mark.parametrize(
    ("faults", "code"),
    [(("no_driver",), "collect_driver_not_loaded"), (("kfd_no_permission",), "collect_permission")],
)
def test_errors_instead_of_agents(faults: tuple[str, ...], code: str) -> None:
    out, err, rc = render_commands(mi300x_8().with_faults(*faults))["rocminfo"]
    reading = rocminfo.parse(out, stderr=err, rc=rc)

    assert rocminfo.sniff(out)
    assert reading.refused
    assert [(f.code, f.severity) for f in reading.findings] == [(code, "error")]


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("bash: rocminfo: command not found\n", "collect_tool_missing"),
        ("sh: 1: rocminfo: not found\n", "collect_tool_missing"),
        ("", "collect_empty"),
        (
            "ROCk module is loaded\nhsa api call failure at: rocminfo.cc:1150\nCall returned HSA_STATUS_ERROR\n",
            "collect_library_error",
        ),
        ("ROCk module is loaded\nUnable to open /dev/kfd read-write: Invalid argument\n", "collect_driver_not_loaded"),
        ("hello\n", "collect_unsupported_layout"),
    ],
)
def test_what_holds_no_agent_is_refused(text: str, code: str) -> None:
    reading = rocminfo.parse(text)

    assert reading.refused
    assert [(f.code, f.severity) for f in reading.findings] == [(code, "error")]


def test_no_gpu_agent_is_unknown() -> None:
    text = text_of()
    cut = text.index("*******\nAgent 3")
    reading = rocminfo.parse(text[:cut] + "*** Done ***\n")

    assert reading.facts["gpu_agents"] == 0
    assert [(f.code, f.severity) for f in reading.findings] == [("collect_empty", "unknown")]


def test_remarks_around_whole_data_are_warnings() -> None:
    reading = rocminfo.parse(text_of(), stderr="some library said something", rc=1)

    assert reading.complete
    assert [(f.code, f.severity) for f in reading.findings] == [
        ("collect_noise", "warning"),
        ("collect_exit_code", "warning"),
    ]
