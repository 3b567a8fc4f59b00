"""Captures of amd-smi and rocm-smi: what the index of the captures concludes, in terms of readings.

The captures are no part of this project. They are read from INSTINCT_FLEET_CAPTURES, else from ``../shared/captures``
beside the repository, and the tests are skipped where neither exists.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support import render_smi as smi
from support.profile import PROFILES
from support.render_smi_text import amd_smi_monitor_text, amd_smi_version_text, amd_smi_xgmi_metric_text

from instinct_fleet.model import Partition
from instinct_fleet.parse import read
from instinct_fleet.parse.base import Reading

FOLDER = Path(os.environ.get("INSTINCT_FLEET_CAPTURES", Path(__file__).parents[2].parent / "shared" / "captures"))

if not (FOLDER / "index.json").is_file():
    pytest.skip(
        f"no captures at {FOLDER}; set INSTINCT_FLEET_CAPTURES to the folder that holds index.json",
        allow_module_level=True,
    )

INDEX: dict[str, dict[str, Any]] = {entry["file"]: entry for entry in json.loads((FOLDER / "index.json").read_text())}
MINE = sorted(name for name in INDEX if re.search(r"amdsmi|rocmsmi|^x_", name))


def load(name: str) -> Reading:
    """Read a capture with what the index knows of its stream and exit code."""
    text = (FOLDER / name).read_text()
    entry = INDEX[name]
    if entry.get("stream") == "stderr":
        return read("", stderr=text, rc=entry.get("rc"), name=name)
    return read(text, rc=entry.get("rc"), name=name)


def codes(reading: Reading, *severities: str) -> list[str]:
    return [f.code for f in reading.findings if not severities or f.severity in severities]


def pairs(reading: Reading, attribute: str) -> set[Any]:
    return {getattr(link, attribute) for link in reading.links}


def full_mesh(reading: Reading) -> None:
    """8 GPUs, every pair XGMI, nothing amiss."""
    assert reading.complete
    assert codes(reading, "error", "unknown") == []
    assert len(reading.gpus) == 8
    assert len(reading.links) == 28
    assert pairs(reading, "type") == {"XGMI"}
    assert pairs(reading, "hops") == {1}


def healthy_mi300x(reading: Reading) -> None:
    full_mesh(reading)
    assert pairs(reading, "weight") == {15}
    if reading.tool == "amd-smi":
        assert pairs(reading, "accessible") == {True}
        assert pairs(reading, "bandwidth_mbps") == {(50000, 50000)}
    else:
        assert [g.numa_node for g in reading.gpus] == [0, 0, 0, 0, 1, 1, 1, 1]


def two_hives(reading: Reading) -> None:
    assert reading.complete
    for link in reading.links:
        if link.a // 4 == link.b // 4:
            assert (link.type, link.weight, link.hops) == ("XGMI", 15, 1)
        else:
            assert (link.raw_type, link.weight, link.hops, link.bandwidth_mbps) == ("PCIE", 72, 3, None)


def one_pair_over_pcie(reading: Reading) -> None:
    assert reading.complete
    assert [(link.a, link.b) for link in reading.links if link.type != "XGMI"] == [(2, 5)]
    assert [(link.raw_type, link.weight, link.hops) for link in reading.links if (link.a, link.b) == (2, 5)] == [
        ("PCIE", 72, 3)
    ]


def cpx_of_two_modules(reading: Reading) -> None:
    assert reading.complete
    assert len(reading.gpus) == 16
    for link in reading.links:
        near = link.a // 8 == link.b // 8
        assert (link.type, link.weight, link.hops) == ("XGMI", 13 if near else 41, 1)
        if reading.tool == "amd-smi":
            assert link.bandwidth_mbps == ((819200, 819200) if near else (0, 0))


def gpu_3_unreadable(reading: Reading) -> None:
    assert not reading.complete
    assert "collect_gpu_unreadable" in codes(reading, "error")
    for link in reading.links:
        assert (link.type == "UNKNOWN") is (3 in (link.a, link.b))
        assert (link.weight is None) is (3 in (link.a, link.b))


def no_peer_access(count: int) -> Callable[[Reading], None]:
    def check(reading: Reading) -> None:
        assert reading.complete
        assert len(reading.gpus) == count
        assert pairs(reading, "accessible") == {False}

    return check


def refused(code: str, *severities: str) -> Callable[[Reading], None]:
    def check(reading: Reading) -> None:
        assert reading.refused
        assert code in codes(reading, *severities)
        assert reading.gpus == ()

    return check


def truncated(gpus: int, **facts: Any) -> Callable[[Reading], None]:
    def check(reading: Reading) -> None:
        assert not reading.refused
        assert not reading.complete
        assert "collect_truncated" in codes(reading, "unknown")
        assert len(reading.gpus) == gpus
        for name, value in facts.items():
            assert reading.facts[name] == value

    return check


def noisy_partial_json(reading: Reading) -> None:
    assert codes(reading) == ["collect_group_warning"]
    assert reading.findings[0].severity == "warning"
    only_access_and_type(reading)


def only_access_and_type(reading: Reading) -> None:
    assert reading.complete
    assert reading.collects == {"gpu_count", "bdf", "link_access", "link_type"}
    assert pairs(reading, "accessible") == {False}
    assert pairs(reading, "weight") == {None}


def concatenated(reading: Reading) -> None:
    assert (reading.kind, reading.complete) == ("amd-smi partition", True)
    assert reading.gpus[0].partition == Partition("SPX", "NPS1")


def broken_tpx(reading: Reading) -> None:
    assert not reading.complete
    assert "collect_inconsistent" in codes(reading, "error")
    assert len(reading.gpus) == 12
    # What cannot be trusted is not there; what can is.
    assert reading.links == ()
    assert (reading.facts["numa_nearest"][4], reading.facts["numa_affinity"][4]) == (0, 3)


def single_gpu(reading: Reading) -> None:
    assert reading.complete
    assert (len(reading.gpus), reading.links) == (1, ())
    assert reading.gpus[0].numa_node is None


def affinity_unknown(reading: Reading) -> None:
    assert reading.complete
    assert {g.numa_node for g in reading.gpus} == {None}
    assert set(reading.facts["numa_nearest"].values()) == {0}


def numa_only(reading: Reading) -> None:
    assert reading.complete
    assert reading.collects == {"gpu_count", "gpu_numa"}
    assert [g.numa_node for g in reading.gpus] == [0, 0, 0, 0, 1, 1, 1, 1]


def numa_reversed(reading: Reading) -> None:
    assert reading.complete
    assert [g.numa_node for g in reading.gpus] == [3, 2, 1, 0, 7, 6, 5, 4]


def numa_mismatch(reading: Reading) -> None:
    assert [g.numa_node for g in reading.gpus] == [1, 1, 1, 1, 0, 0, 0, 0]
    assert list(reading.facts["numa_nearest"].values()) == [0, 0, 0, 0, 1, 1, 1, 1]


def concise(stuck: list[int]) -> Callable[[Reading], None]:
    def check(reading: Reading) -> None:
        assert codes(reading) == ["collect_unsupported_layout"]
        assert not reading.complete
        assert reading.links == ()
        assert [i for i, used in reading.facts["vram_used_percent"].items() if used >= 50] == stuck
        assert set(reading.facts["gpu_use_percent"].values()) == {0}

    return check


def no_xgmi(reading: Reading) -> None:
    assert set(reading.facts["xgmi_link_gbps"].values()) == {None}
    assert set(reading.facts["xgmi_bit_rate_gbps"].values()) == {None}
    assert set(reading.facts["link_status"].values()) == {("X",) * 8}


def xgmi_rates(reading: Reading) -> None:
    assert reading.complete
    # 512 Gb/s are the 64 GB/s of one link in one direction.
    assert set(reading.facts["xgmi_link_gbps"].values()) == {512.0}
    assert set(reading.facts["xgmi_bit_rate_gbps"].values()) == {32.0}
    assert reading.facts["xgmi_read_bytes"][0, 1] == 2 * 1024


def xgmi_human_units(reading: Reading) -> None:
    truncated(2)(reading)
    assert reading.facts["xgmi_read_bytes"][0, 1] == int(1.123 * 1024**5)
    assert reading.facts["xgmi_write_bytes"][0, 1] == int(229.1 * 1024**2)


def xgmi_down(reading: Reading) -> None:
    assert reading.complete
    assert set(reading.facts["link_status"].values()) == {("U", "U", "U", "U", "D", "U", "D", "X")}


def kfd_fields(reading: Reading) -> None:
    assert reading.complete
    # The KFD node is not a NUMA node.
    assert reading.facts["kfd_nodes"] == {0: 1, 1: 2}
    assert {g.numa_node for g in reading.gpus} == {None}


def cut_list(reading: Reading) -> None:
    truncated(3)(reading)
    assert {g.device_id for g in reading.gpus} == {"0x74a1"}


def cut_static(reading: Reading) -> None:
    truncated(1)(reading)
    assert (reading.gpus[0].device_id, reading.gpus[0].oam_id) == ("0x74a1", 7)
    assert reading.facts["market_names"] == {0: "MI300X-O"}


def cpx_nps4(reading: Reading) -> None:
    assert reading.complete
    assert {g.partition for g in reading.gpus} == {Partition("CPX", "NPS4")}
    assert [reading.facts["partition_ids"][i] for i in (0, 7, 8)] == [(0,), (7,), (0,)]


def monitor(gpus: int) -> Callable[[Reading], None]:
    def check(reading: Reading) -> None:
        assert (reading.kind, reading.complete, len(reading.gpus)) == ("amd-smi monitor", True, gpus)

    return check


def metric_list(reading: Reading) -> None:
    assert (reading.kind, reading.complete, len(reading.gpus)) == ("amd-smi metric", True, 1)


def warned_monitor(reading: Reading) -> None:
    assert reading.complete
    assert [(f.code, f.severity) for f in reading.findings] == [("collect_group_warning", "warning")]


def three_numberings(reading: Reading) -> None:
    assert reading.complete
    assert [g.index for g in reading.gpus] == list(range(8))
    assert [g.hip_id for g in reading.gpus] == [1, 3, 2, 0, 5, 7, 6, 4]
    assert [g.oam_id for g in reading.gpus] == [7, 5, 6, 2, 0, 4, 1, 3]
    assert reading.version == "26.0.2+00000000"


def version(reading: Reading) -> None:
    assert reading.version == "24.7.1+b446d6c-dirty"
    assert reading.facts["versions"]["rocm"] is None
    assert reading.facts["versions"]["amdgpu"] == "6.10.10"


def cut_monitor(reading: Reading) -> None:
    truncated(9)(reading)
    assert reading.facts["vram_total"][0] == 192 * 1024**3
    assert reading.facts["vram_total"][1] == 24 * 1024**3


def not_root(reading: Reading) -> None:
    assert not reading.complete
    assert "collect_permission" in codes(reading, "unknown")
    assert "become" in reading.findings[0].remedy


def domain_collision(reading: Reading) -> None:
    assert "collect_inconsistent" in codes(reading, "unknown")
    assert len(reading.gpus) == 24
    known = [g.bdf for g in reading.gpus if g.bdf]
    assert len(known) == len(set(known)) == 4


def seven(reading: Reading) -> None:
    assert reading.complete
    assert len(reading.gpus) == 7


def access_json(reading: Reading) -> None:
    assert reading.complete
    assert reading.collects == {"gpu_count", "link_access"}
    assert pairs(reading, "accessible") == {True}


def mi250(reading: Reading) -> None:
    full_mesh(reading)
    assert pairs(reading, "weight") == {15, 30, 45}


def zero_weights(reading: Reading) -> None:
    full_mesh(reading)
    assert pairs(reading, "weight") == {0}
    assert pairs(reading, "bandwidth_mbps") == {(0, 0)}


def single_vf(reading: Reading) -> None:
    assert reading.complete
    assert (len(reading.gpus), reading.collects) == (1, {"gpu_count", "link_type"})


def stderr_only(reading: Reading) -> None:
    assert codes(reading) == ["collect_partial"]
    assert "44 lines" in reading.findings[0].message


EXPECTED: dict[str, Callable[[Reading], None]] = {
    "c37_amdsmi_topology_json_group_warning_prefix_64.txt": noisy_partial_json,
    "c77_amdsmi_partition_json_concatenated.txt": concatenated,
    "k_amdsmi_topology_mi210_from_kfd_63.json": two_hives,
    "k_amdsmi_topology_mi300x_cpx_first16_63.json": cpx_of_two_modules,
    "k_rocmsmi_showtopo_mi210_from_kfd.json": two_hives,
    "k_rocmsmi_showtopo_mi300x_cpx_first16.txt": cpx_of_two_modules,
    "r02_rocmsmi_showtopo_mi210_8gpu_two_hives.txt": two_hives,
    "r05_rocmsmi_showtopo_mi300a_tpx_broken_noise.txt": broken_tpx,
    "r07_rocmsmi_showtopo_single_gpu_affinity_minus1.txt": single_gpu,
    "r08_rocmsmi_showtopotype_single_gpu_vf.txt": single_vf,
    "r09_rocmsmi_showtoponuma_8gpu.txt": numa_only,
    "r10_rocmsmi_showtoponuma_mi210_nps4_reversed.txt": numa_reversed,
    "r13_rocmsmi_concise_mi210_57.txt": concise([]),
    "r16_amdsmi_topology_mi300x_8gpu_61.txt": healthy_mi300x,
    "r18_amdsmi_topology_2x7900xtx_pcie_disabled.txt": no_peer_access(2),
    "r19_amdsmi_xgmi_2x7900xtx_no_xgmi_sentinels.txt": no_xgmi,
    "r20_amdsmi_xgmi_mi300x_61.txt": xgmi_rates,
    "r21_amdsmi_xgmi_linkstatus_down.txt": xgmi_down,
    "r23_amdsmi_topology_json_60_61_old_layout_2gpu.json": no_peer_access(2),
    "r24_amdsmi_topology_json_611_partial_fields_2gpu.json": only_access_and_type,
    "r25_amdsmi_topology_json_doc_sample_not_valid_json.txt": refused("collect_not_json", "error"),
    "r26_amdsmi_list_mi300x_61.txt": cut_list,
    "r27_amdsmi_list_kfd_fields_63.txt": kfd_fields,
    "r28_amdsmi_static_mi300x_61.txt": cut_static,
    "r29_amdsmi_static_partition_cpx_nps4_first16.txt": cpx_nps4,
    "r30_amdsmi_set_nps4_too_many_open_files.txt": refused("collect_library_error", "error"),
    "r31_amdsmi_set_spx_while_nps4_error.txt": refused("collect_library_error", "error"),
    "r32_amdsmi_monitor_cpx_32of64.txt": monitor(32),
    "r33_amdsmi_metric_json_6x_list.json": metric_list,
    "r34_amdsmi_metric_json_72_gpu_data_truncated.txt": refused("collect_truncated", "unknown"),
    "r35_amdsmi_invalid_flag_not_json.txt": refused("collect_usage", "error"),
    "r36_amdsmi_group_warning_before_output_64.txt": warned_monitor,
    "r39_amdsmi_device_node_permission_711.txt": refused("collect_permission", "error"),
    "r40_amdsmi_watch_prefix.txt": monitor(8),
    "r41_amdsmi_default_mi355x_hipid_oamid_differ.txt": three_numberings,
    "r42_rocmsmi_concise_mi300x_gpu_hang_vram_stuck.txt": concise([1, 2, 3, 4, 6, 7]),
    "r49_rocmsmi_driver_not_initialized_stderr.txt": refused("collect_driver_not_loaded", "error"),
    "r51_amdsmi_driver_not_loaded_stderr.txt": refused("collect_driver_not_loaded", "error"),
    "r68_rocmsmi_showbus_mi300a_domain_collision.txt": domain_collision,
    "r70_amdsmi_partition_current_cpx_old_64.txt": truncated(11),
    "r71_amdsmi_partition_current_cpx_new_64.txt": truncated(11),
    "r72_amdsmi_partition_accelerator_no_root_64.txt": not_root,
    "r73_amdsmi_list_e_cpx_wrong_render_640.txt": truncated(2, render={0: "renderD128", 1: None}),
    "r74_amdsmi_monitor_cpx_na_for_partitions_641.txt": cut_monitor,
    "r75_amdsmi_xgmi_mi300x_human_units_64.txt": xgmi_human_units,
    "r76_amdsmi_version_64.txt": version,
    "s_amdsmi_topology_mi300x_57.txt": healthy_mi300x,
    "s_amdsmi_topology_mi300x_60.json": healthy_mi300x,
    "s_amdsmi_topology_mi300x_61.json": healthy_mi300x,
    "s_amdsmi_topology_mi300x_61.txt": healthy_mi300x,
    "s_amdsmi_topology_mi300x_62.json": healthy_mi300x,
    "s_amdsmi_topology_mi300x_62.txt": healthy_mi300x,
    "s_amdsmi_topology_mi300x_63.csv": refused("collect_unsupported_layout", "error"),
    "s_amdsmi_topology_mi300x_63.json": healthy_mi300x,
    "s_amdsmi_topology_mi300x_63.txt": healthy_mi300x,
    "s_amdsmi_topology_mi300x_gpu3_unreadable_63.txt": gpu_3_unreadable,
    "s_amdsmi_topology_mi300x_one_pair_pcie_63.json": one_pair_over_pcie,
    "s_amdsmi_topology_mi355x_zero_63.json": zero_weights,
    "s_rocmsmi_showtopo_mi250_8gcd.txt": mi250,
    "s_rocmsmi_showtopo_mi300x.csv": refused("collect_unsupported_layout", "error"),
    "s_rocmsmi_showtopo_mi300x_45.txt": healthy_mi300x,
    "s_rocmsmi_showtopo_mi300x_54.txt": healthy_mi300x,
    "s_rocmsmi_showtopo_mi300x_57.txt": healthy_mi300x,
    "s_rocmsmi_showtopo_mi300x_62.txt": healthy_mi300x,
    "s_rocmsmi_showtopo_mi300x_70.json": healthy_mi300x,
    "s_rocmsmi_showtopo_mi300x_70.txt": healthy_mi300x,
    "s_rocmsmi_showtopo_mi300x_7of8.json": seven,
    "s_rocmsmi_showtopo_mi300x_gpu3_unreadable.stderr.txt": stderr_only,
    "s_rocmsmi_showtopo_mi300x_gpu3_unreadable.stdout.txt": gpu_3_unreadable,
    "s_rocmsmi_showtopo_mi300x_lowpower_70.json_stdout.txt": healthy_mi300x,
    "s_rocmsmi_showtopo_mi300x_lowpower_70.txt": healthy_mi300x,
    "s_rocmsmi_showtopo_mi300x_one_pair_pcie.json": one_pair_over_pcie,
    "s_rocmsmi_showtopo_mi300x_one_pair_pcie.txt": one_pair_over_pcie,
    "s_rocmsmi_showtopo_vm_affinity_minus1.json": affinity_unknown,
    "s_rocmsmi_showtopoaccess_mi300x.json": access_json,
    "s_rocmsmi_showtopoaccess_p2p_false.txt": no_peer_access(8),
    "s_rocmsmi_showtoponuma_node_affinity_mismatch.txt": numa_mismatch,
    "x_rocmsmi_showtopo_asymmetric_corrupt.txt": refused("collect_asymmetric", "error"),
    "x_shell_command_not_found.txt": refused("collect_tool_missing", "error"),
    "x_tutorial_fake_pix_matrix.txt": refused("collect_not_amd", "error"),
}


@pytest.mark.parametrize("name", [n for n in EXPECTED if n in INDEX])
def test_conclusion(name: str) -> None:
    EXPECTED[name](load(name))


@pytest.mark.parametrize("name", MINE)
def test_every_capture_is_read_or_refused_with_a_reason(name: str) -> None:
    reading = load(name)

    assert reading.findings or (reading.complete and not reading.refused)
    assert reading.tool in ("amd-smi", "rocm-smi", "unknown tool")
    conclude = INDEX[name]["conclude"]
    if conclude.startswith(("REJECT", "INVALID")):
        assert codes(reading, "error")
    if conclude.startswith("PASS"):
        assert reading.complete


def test_streams_of_one_run_are_read_together() -> None:
    name = "s_rocmsmi_showtopo_mi300x_gpu3_unreadable"
    both = read((FOLDER / f"{name}.stdout.txt").read_text(), stderr=(FOLDER / f"{name}.stderr.txt").read_text(), rc=0)

    gpu_3_unreadable(both)


# --- the renderers print what the tools print ---------------------------------------------------------------------

HEALTHY = PROFILES["mi300x_8"]()
BROKEN = HEALTHY.with_faults("unreadable:3")
ONE_PAIR = PROFILES["mi300x_one_pair_pcie"]()

RENDERED: dict[str, Callable[[], str]] = {
    **{
        f"s_amdsmi_topology_mi300x_{release.replace('.', '')}.txt": (
            lambda release=release: smi.amd_smi_topology_text(HEALTHY, release)[0]  # type: ignore[misc]
        )
        for release in ("5.7", "6.1", "6.2", "6.3")
    },
    **{
        f"s_amdsmi_topology_mi300x_{file}.json": (
            lambda release=release: smi.amd_smi_topology_json(HEALTHY, release)[0]  # type: ignore[misc]
        )
        for file, release in (("60", "6.0"), ("61", "6.1.1"), ("62", "6.2"), ("63", "6.3"))
    },
    **{
        f"s_rocmsmi_showtopo_mi300x_{release.replace('.', '')}.txt": (
            lambda release=release: smi.rocm_smi_text(HEALTHY, release)[0]  # type: ignore[misc]
        )
        for release in ("4.5", "5.4", "5.7", "6.2", "7.0")
    },
    "s_amdsmi_topology_mi300x_gpu3_unreadable_63.txt": lambda: smi.amd_smi_topology_text(BROKEN, "6.3")[0],
    "s_rocmsmi_showtopo_mi300x_70.json": lambda: smi.rocm_smi_json(HEALTHY, "7.0")[0],
    "s_rocmsmi_showtopo_mi300x_7of8.json": lambda: smi.rocm_smi_json(HEALTHY.with_faults("kfd_missing_gpu"), "7.0")[0],
    "s_rocmsmi_showtopo_mi300x_gpu3_unreadable.stderr.txt": lambda: smi.rocm_smi_text(BROKEN, "7.0")[1],
    "s_rocmsmi_showtopo_mi300x_gpu3_unreadable.stdout.txt": lambda: smi.rocm_smi_text(BROKEN, "7.0")[0],
    "s_rocmsmi_showtopo_mi300x_lowpower_70.txt": lambda: smi.rocm_smi_text(HEALTHY.with_faults("low_power"), "7.0")[0],
    "s_rocmsmi_showtopo_mi300x_one_pair_pcie.json": lambda: smi.rocm_smi_json(ONE_PAIR, "7.0")[0],
    "s_rocmsmi_showtopo_mi300x_one_pair_pcie.txt": lambda: smi.rocm_smi_text(ONE_PAIR, "7.0")[0],
    "s_rocmsmi_showtopoaccess_mi300x.json": lambda: smi.rocm_smi_json(HEALTHY, "7.0", ("access",))[0],
    "s_rocmsmi_showtoponuma_node_affinity_mismatch.txt": lambda: re.sub(
        r"Affinity: (\d)",
        lambda match: f"Affinity: {1 - int(match.group(1))}",
        smi.rocm_smi_text(HEALTHY, "7.0", ("numa",))[0],
    ),
}


@pytest.mark.parametrize("name", [n for n in RENDERED if n in INDEX])
def test_rendered_byte_for_byte(name: str) -> None:
    assert RENDERED[name]() == (FOLDER / name).read_text()


def shape(text: str) -> Any:
    """What is left of a text without its values: titles, headings and labels; of JSON its keys and the kinds of value.

    JSON of several documents is compared by the first.
    """
    if text.startswith("["):
        document, _end = json.JSONDecoder().raw_decode(text)
        return _keys(document[0])
    kept = []
    for line in text.split("\n"):
        words = line.split()
        if re.match(r"^\s*=+ ", line):
            kept.append(line.strip().strip("= "))
        elif re.match(r"^\S.*:\s*$", line):
            kept.append(line.strip())
        elif words and re.match(r"^(GPU\d*|Read|Write|bdf)$", words[0]):
            kept.append(f"{words[0].rstrip('0123456789')} {len(words)}")
    return kept


def _keys(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _keys(entry) for key, entry in value.items()}
    return [_keys(value[0])] if isinstance(value, list) else type(value).__name__


SHAPED: dict[str, Callable[[], str]] = {
    "r02_rocmsmi_showtopo_mi210_8gpu_two_hives.txt": lambda: smi.rocm_smi_text(PROFILES["mi210_2x4"](), "6.2")[0],
    "s_rocmsmi_showtopo_mi250_8gcd.txt": lambda: smi.rocm_smi_text(PROFILES["mi250x_8gcd"](), "7.0")[0],
    "s_amdsmi_topology_mi355x_zero_63.json": lambda: smi.amd_smi_topology_json(PROFILES["mi355x_8"](), "6.3")[0],
    "s_amdsmi_topology_mi300x_one_pair_pcie_63.json": lambda: smi.amd_smi_topology_json(ONE_PAIR, "6.3")[0],
    "k_amdsmi_topology_mi300x_cpx_first16_63.json": lambda: smi.amd_smi_topology_json(
        PROFILES["mi300x_cpx_64"](), "6.3"
    )[0],
    "c77_amdsmi_partition_json_concatenated.txt": lambda: smi.amd_smi_partition_json(HEALTHY, "7.0")[0],
    "r16_amdsmi_topology_mi300x_8gpu_61.txt": lambda: smi.amd_smi_topology_text(HEALTHY, "6.1")[0],
    "r20_amdsmi_xgmi_mi300x_61.txt": lambda: amd_smi_xgmi_metric_text(HEALTHY, "6.1")[0],
}


@pytest.mark.parametrize("name", [n for n in SHAPED if n in INDEX])
def test_rendered_in_the_same_shape(name: str) -> None:
    assert shape(SHAPED[name]()) == shape((FOLDER / name).read_text())


def test_rendered_lines_for_people_have_the_same_columns() -> None:
    monitor_head = (FOLDER / "r74_amdsmi_monitor_cpx_na_for_partitions_641.txt").read_text().split("\n")[0]
    version_line = (FOLDER / "r76_amdsmi_version_64.txt").read_text()

    assert amd_smi_monitor_text(PROFILES["mi300x_cpx_64"](), "6.4")[0].split("\n")[0] == monitor_head
    names = [
        [part.partition(":")[0].strip() for part in text.split("|")]
        for text in (amd_smi_version_text(HEALTHY, "6.4")[0], version_line)
    ]
    assert names[0] == names[1]
