"""Recorded outputs of system tools: each must be concluded as the index beside them says.

The recordings are not part of the project. They are looked for in ``INSTINCT_FLEET_CAPTURES`` or beside the checkout;
without them these tests are skipped.
"""

from __future__ import annotations

import os
import tarfile
from collections import Counter
from pathlib import Path

import pytest

from instinct_fleet.model import verdict
from instinct_fleet.parse import fabric, kfd, numa, pci, rccl, rocminfo
from instinct_fleet.parse.base import Reading

FOLDER = Path(os.environ.get("INSTINCT_FLEET_CAPTURES") or Path(__file__).parents[3] / "shared" / "captures")
MODULES = (fabric, kfd, numa, pci, rccl, rocminfo)

if not FOLDER.is_dir():
    pytest.skip(f"no recorded outputs at {FOLDER}", allow_module_level=True)


def text_of(name: str) -> str:
    path = FOLDER / name
    if not path.exists():
        pytest.skip(f"{name} is not among the recorded outputs")
    return path.read_text("utf-8", "replace")


def read(name: str) -> Reading:
    """Read a recording with the one parser that claims it."""
    text = text_of(name)
    claims = [module for module in MODULES if module.sniff(text)]
    assert len(claims) == 1, f"{name} is claimed by {[m.__name__ for m in claims]}"
    return claims[0].parse(text)


def tree(name: str) -> Reading:
    path = FOLDER / name
    if not path.exists():
        pytest.skip(f"{name} is not among the recorded outputs")
    files = {}
    with tarfile.open(path) as archive:
        for member in archive:
            handle = archive.extractfile(member)
            if handle is not None:
                files[member.name] = handle.read().decode("utf-8", "replace")
    return kfd.from_tree(files, {})


def codes(reading: Reading) -> list[tuple[str, str]]:
    return [(f.code, f.severity) for f in reading.findings]


def test_kfd_mi210_two_hives() -> None:
    reading = tree("kfd_topology_mi210_2hive.tar.gz")

    assert reading.complete
    assert Counter((x.type, x.raw_type, x.weight) for x in reading.links) == {
        ("XGMI", "XGMI", 15): 12,
        ("SYS", "PCIE", 72): 16,
    }
    assert reading.facts["hives"] == (0, 0, 0, 0, 1, 1, 1, 1)
    assert {gpu.arch for gpu in reading.gpus} == {"gfx90a"}


def test_kfd_mi300x_cpx_lost_one_partition() -> None:
    reading = tree("kfd_topology_mi300x_cpx63.tar.gz")

    assert len(reading.gpus) == 63
    assert sorted(reading.facts["partitions"]) == [7, 8, 8, 8, 8, 8, 8, 8]
    assert {(x.type, x.weight, x.bandwidth_mbps) for x in reading.links} == {
        ("XGMI", 13, (819200, 819200)),
        ("XGMI", 41, (0, 0)),
    }
    assert {gpu.partition.compute for gpu in reading.gpus} == {"CPX"}
    assert codes(reading) == [("collect_truncated", "warning")], "the recording has no p2p_links"


def test_kfd_mi308x_has_two_domains() -> None:
    reading = tree("kfd_topology_mi308x_cpx32.tar.gz")

    assert reading.complete
    assert Counter((gpu.bdf or "")[:4] for gpu in reading.gpus) == {"0000": 16, "0001": 16}
    assert reading.gpus[0].bdf == "0000:0a:00.0"
    assert {gpu.device_id for gpu in reading.gpus} == {"0x74a2"}
    assert reading.facts["partitions"] == (4,) * 8


def test_kfd_excerpt_is_not_whole() -> None:
    reading = read("kfd_topology_mi210_excerpt.txt")

    assert [gpu.bdf for gpu in reading.gpus] == ["0000:63:00.0"]
    assert codes(reading) == [("collect_truncated", "unknown")]


def test_transferbench_table() -> None:
    reading = read("r06_transferbench_topology_mi300x_text.txt")

    assert reading.complete
    assert Counter((x.type, x.hops) for x in reading.links) == {("XGMI", 1): 28}
    assert [gpu.numa_node for gpu in reading.gpus] == [0] * 4 + [1] * 4


def test_lscpu_nps4() -> None:
    reading = read("r11_lscpu_2socket_nps4.txt")

    assert reading.complete
    assert (reading.host.sockets, len(reading.numa)) == (2, 8)


def test_numactl_nps4_and_mi300a() -> None:
    nps4, apu = read("r12_numactl_H_2socket_nps4.txt"), read("r15_numactl_H_mi300a_4node.txt")

    assert nps4.complete
    assert nps4.numa[0].distances == (10, 12, 12, 12, 32, 32, 32, 32)
    assert apu.complete
    assert {node.distances.count(32) for node in apu.numa} == {3}


def test_rocminfo_of_eight() -> None:
    reading = read("r43_rocminfo_mi300x_8gpu_intel_623.txt")

    assert reading.complete
    assert (reading.facts["cpu_agents"], reading.facts["gpu_agents"]) == (2, 8)
    assert reading.facts["bus_addresses"][0] == "1b:00.0"
    assert {(gpu.device_id, gpu.arch) for gpu in reading.gpus} == {("0x74a1", "gfx942")}


def test_rocminfo_with_hidden_agents_claims_no_count() -> None:
    reading = read("c44_rocminfo_mi300x_hidden_by_rocr_visible_devices.txt")

    assert reading.complete
    assert reading.facts["gpu_agents"] == 2
    assert "gpu_count" not in reading.collects


def test_rocminfo_excerpt_asserts_no_cache_sizes() -> None:
    reading = read("r45_rocminfo_mi300x_agent_block_not_uniform_excerpt.txt")

    assert len(reading.gpus) == 1
    assert reading.facts["kfd_nodes"] == (2,)
    assert codes(reading) == [("collect_truncated", "unknown")]


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("r46_rocminfo_kfd_permission_denied.txt", "collect_permission"),
        ("r48_rocminfo_no_driver.txt", "collect_driver_not_loaded"),
    ],
)
def test_rocminfo_errors(name: str, code: str) -> None:
    reading = read(name)

    assert reading.refused
    assert codes(reading) == [(code, "error")]


def test_kernel_log() -> None:
    reading = read("r52_dmesg_mi300x_probe_failed.txt")

    assert [f.subject for f in reading.findings] == ["0000:05:00.0"]
    assert codes(reading) == [("collect_driver_not_loaded", "error")]
    assert "-22" in reading.findings[0].message


def test_lspci_paths_pair_each_gpu_with_one_card() -> None:
    reading = read("r54_lspci_PP_mi300x_and_cx7.txt")

    assert reading.complete
    assert len(reading.gpus) == 8
    pairs = {
        gpu: [nic for nic, c in classes.items() if c == "PXB"] for gpu, classes in reading.facts["gpu_nic"].items()
    }
    assert pairs["0000:05:00.0"] == ["0000:09:00.0"]
    assert {len(nics) for nics in pairs.values()} == {1}
    assert not any("PIX" in classes.values() for classes in reading.facts["gpu_nic"].values())


def test_lspci_links() -> None:
    reading = read("r55_lspci_lnksta_mi300x_ok.txt")

    assert reading.complete
    assert [(v["speed_gts"], v["width"]) for v in reading.facts["pcie"].values()] == [(32.0, 16)] * 8
    assert reading.facts["pcie_downgraded"] == ()


def test_rccl_healthy() -> None:
    reading = read("r57_rccl_allreduce_mi300x_8gpu_healthy.txt")

    assert reading.facts["average"] == 110.464
    assert reading.facts["busbw"] == 315.91
    assert rccl.judge(reading) == ()
    assert rccl.judge(reading, gpus=8, policy="mi300x_8") == ()


def test_rccl_degraded() -> None:
    findings = rccl.judge(read("c59_rccl_allreduce_mi300x_degraded_enum_bug.txt"), policy="mi300x_8")

    assert [(f.code, f.severity) for f in findings] == [("rccl_bandwidth_low", "error")]
    assert "PCIe (SYS)" in findings[0].message


def test_rccl_json() -> None:
    reading = read("s_rccl_tests_output_mi300x.json")

    assert rccl.judge(reading, gpus=8, policy="mi300x_8") == ()
    assert verdict(rccl.judge(reading, gpus=4, policy="mi300x_8")) == "unknown"


def test_rccl_topology_of_a_full_mesh() -> None:
    reading = read("r61_rccl_topology_dump_mi300x_940.xml")

    assert reading.complete
    assert Counter(x.type for x in reading.links) == {"XGMI": 28}
    for classes in reading.facts["gpu_nic"].values():
        assert Counter(classes.values()) == {"PXB": 1, "NODE": 3, "SYS": 4}


def test_rccl_topology_of_dies_is_no_full_mesh() -> None:
    reading = read("r62_rccl_topology_dump_mi250_90a.xml")

    assert reading.complete
    assert len(reading.facts["xgmi_direct"]) == 12
    assert "link_type" not in reading.collects


def test_rvs_list() -> None:
    reading = read("r66_rvs_list_mi300x.txt")

    assert [gpu.bdf for gpu in reading.gpus][:2] == ["0000:1b:00.0", "0000:3d:00.0"]
    assert reading.facts["kfd_nodes"] == tuple(range(2, 10))


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("r63_transferbench_p2p_mi250.txt", "plateaus differ by model"),
        ("r64_rvs_gpup_iolink_mi300x.txt", "KFD's links"),
        ("r65_rvs_pbqt_json_tail_mi300x.txt", "twice those of one direction"),
        ("r67_device_metrics_exporter_xgmi_sample.prom", "index 0, the GPU itself, is always 0"),
        ("r69_sysfs_xgmi_num_links_mi250x.txt", "0 is no direct link"),
    ],
)
def test_measurements_are_declined_with_what_they_are(name: str, said: str) -> None:
    reading = read(name)

    assert reading.refused
    assert codes(reading) == [("collect_unsupported_layout", "unknown")]
    assert said in reading.findings[0].message


def test_no_other_recording_is_claimed() -> None:
    others = [p for p in sorted(FOLDER.iterdir()) if p.suffix in (".txt", ".json", ".csv") and "smi" in p.name]
    claimed = [p.name for p in others if any(module.sniff(p.read_text("utf-8", "replace")) for module in MODULES)]

    assert others
    assert claimed == []
