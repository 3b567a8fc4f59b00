from __future__ import annotations

from collections import Counter

import pytest
from support.profile import PROFILES, mi300x_8
from support.render_sys import device_paths, render_commands
from support.tree import sections

from instinct_fleet.parse import pci, read
from instinct_fleet.parse.merge import merge
from instinct_fleet.structure import structural

LSPCI = "lspci -D -vv -d 1002:"
ROOT = "/sys/devices/pci0000:00/0000:00:01.1"
SWITCH = f"{ROOT}/0000:01:00.0"
MODULE = f"{SWITCH}/0000:02:00.0/0000:03:00.0/0000:04:00.0"


@pytest.mark.parametrize(
    ("path_a", "path_b", "numa", "expected"),
    [
        # below one switch
        (f"{SWITCH}/0000:02:00.0/0000:05:00.0", f"{SWITCH}/0000:02:01.0/0000:09:00.0", (0, 0), "PIX"),
        # a module with a switch of its own, and a card at the switch above
        (f"{MODULE}/0000:05:00.0", f"{SWITCH}/0000:02:01.0/0000:09:00.0", (0, 0), "PXB"),
        (f"{MODULE}/0000:05:00.0", "/sys/devices/pci0000:00/0000:00:01.2/0000:09:00.0", (0, 0), "PHB"),
        # the root complex is one although the NUMA node is not known
        (f"{MODULE}/0000:05:00.0", "/sys/devices/pci0000:00/0000:00:01.2/0000:09:00.0", (None, None), "PHB"),
        (f"{MODULE}/0000:05:00.0", "/sys/devices/pci0000:20/0000:20:01.1/0000:21:00.0", (0, 0), "NODE"),
        (f"{MODULE}/0000:05:00.0", "/sys/devices/pci0000:20/0000:20:01.1/0000:21:00.0", (0, 1), "SYS"),
        (f"{MODULE}/0000:05:00.0", "/sys/devices/pci0000:20/0000:20:01.1/0000:21:00.0", (0, None), "UNKNOWN"),
        (f"{MODULE}/0000:05:00.0", None, (0, 0), "UNKNOWN"),
        ("", "", (0, 0), "UNKNOWN"),
        ("/sys/devices/pci0000:00", "/sys/devices/pci0000:00", (0, 0), "UNKNOWN"),
        (f"{MODULE}/garbage", f"{MODULE}/0000:05:00.0", (0, 0), "UNKNOWN"),
        # partitions of one GPU
        (f"{MODULE}/0000:05:00.0", f"{MODULE}/0000:05:00.3", (0, 0), "PIX"),
        (f"{ROOT}/0000:05:00.0", f"{ROOT}/0000:05:00.3", (0, 0), "PIX"),
        # two devices on root ports of their own
        (f"{ROOT}/0000:05:00.0", "/sys/devices/pci0000:00/0000:00:01.2/0000:09:00.0", (1, 1), "PHB"),
        # the same bus numbers in two domains are two places
        (f"{ROOT}/0000:05:00.0", "/sys/devices/pci0001:00/0001:00:01.1/0001:05:00.0", (0, 1), "SYS"),
    ],
)
def test_class_of_a_pair(path_a: str, path_b: str | None, numa: tuple[int | None, int | None], expected: str) -> None:
    assert pci.pair_class(path_a, path_b, *numa) == expected
    assert pci.pair_class(path_b, path_a, *reversed(numa)) == expected


def test_each_gpu_of_an_mi300x_has_one_card_and_it_is_pxb() -> None:
    reading = pci.from_probe(sections(mi300x_8())["pci"])

    for position, classes in enumerate(reading.facts["gpu_nic"].values()):
        assert Counter(classes.values()) == {"PXB": 1, "NODE": 3, "SYS": 4}
        assert list(classes.values())[position] == "PXB"


@pytest.mark.parametrize("name", sorted(PROFILES))
def test_probe_section_of_every_profile(name: str) -> None:
    profile = PROFILES[name]()
    reading = pci.from_probe(sections(profile)["pci"])
    physical = sorted(set(profile.physical))

    assert reading.complete
    assert reading.findings == ()
    assert [gpu.bdf for gpu in reading.gpus] == physical
    assert {gpu.device_id for gpu in reading.gpus} == {profile.device_id}
    numa = dict(zip(profile.physical, profile.numa, strict=True))
    assert [gpu.numa_node for gpu in reading.gpus] == [numa[bdf] for bdf in physical]
    assert {gpu.vram_bytes for gpu in reading.gpus} == {profile.vram_bytes * profile.partitions_per_gpu}
    assert {(v["speed_gts"], v["width"]) for v in reading.facts["pcie"].values()} == {(profile.pcie_gts, 16)}
    assert reading.facts["without_driver"] == ()
    assert {counts["ue"] for blocks in reading.facts["ras"].values() for counts in blocks.values()} == {0}
    across = {c for classes in reading.facts["pair_classes"].values() for c in classes.values()}
    assert across <= {"NODE", "SYS"}


def test_unknown_numa_node_makes_pairs_unknown() -> None:
    reading = pci.from_probe(sections(mi300x_8().with_faults("numa_unknown"))["pci"])

    assert {gpu.numa_node for gpu in reading.gpus} == {None}
    assert {c for classes in reading.facts["pair_classes"].values() for c in classes.values()} == {"UNKNOWN"}
    assert {Counter(classes.values())["PXB"] for classes in reading.facts["gpu_nic"].values()} == {1}


def test_faults_show_in_the_probe_section() -> None:
    profile = mi300x_8().with_faults("pcie_downgraded", "kfd_missing_gpu", "xgmi_down", "vram_leaked")
    reading = pci.from_probe(sections(profile)["pci"])

    assert reading.facts["without_driver"] == ("0000:df:00.0",)
    link = reading.facts["pcie"]["0000:22:00.0"]
    assert (link["speed_gts"], link["width"], link["max_speed_gts"], link["max_width"]) == (16.0, 8, 32.0, 16)
    assert link["slowest"] == "0000:22:00.0"
    assert reading.facts["ras"]["0000:0c:00.0"]["xgmi_wafl"]["ue"] == 3
    assert reading.facts["vram_used_bytes"]["0000:0c:00.0"] > 100 * 1024**3


def test_slow_bridge_above_the_module_counts() -> None:
    section = sections(mi300x_8())["pci"]
    section["0000:0a:00.0"]["current_link_width"] = "8"
    link = pci.from_probe(section).facts["pcie"]["0000:0c:00.0"]

    assert (link["width"], link["slowest"]) == (8, "0000:0a:00.0")


def test_unreadable_link_is_none_and_no_device_is_an_error() -> None:
    section = sections(mi300x_8())["pci"]
    section["0000:0c:00.0"]["current_link_speed"] = "Unknown"

    assert pci.from_probe(section).facts["pcie"]["0000:0c:00.0"] is None
    assert [(f.code, f.severity) for f in pci.from_probe({}).findings] == [("collect_empty", "error")]


@pytest.mark.parametrize("name", sorted(PROFILES))
def test_lspci_of_every_profile(name: str) -> None:
    profile = PROFILES[name]()
    text = render_commands(profile)[LSPCI][0]
    reading = pci.parse(text, rc=0)

    assert pci.sniff(text)
    assert reading.complete
    assert [gpu.bdf for gpu in reading.gpus] == sorted(set(profile.physical))
    assert {gpu.device_id for gpu in reading.gpus} == {profile.device_id}
    assert {(v["speed_gts"], v["width"]) for v in reading.facts["pcie"].values()} == {(profile.pcie_gts, 16)}
    assert set(reading.facts["drivers"].values()) == {"amdgpu"}
    assert not any(reading.facts["acs"].values())


def test_faults_show_in_lspci() -> None:
    profile = mi300x_8().with_faults("pcie_downgraded", "pcie_fatal_error", "kfd_missing_gpu", "acs_on")
    facts = pci.parse(render_commands(profile)[LSPCI][0]).facts

    assert facts["pcie_downgraded"] == ("0000:22:00.0",)
    assert (facts["pcie"]["0000:22:00.0"]["speed_gts"], facts["pcie"]["0000:22:00.0"]["width"]) == (16.0, 8)
    assert facts["pcie_fatal"] == ("0000:22:00.0",)
    assert facts["without_driver"] == ("0000:df:00.0",)
    assert set(facts["acs"].values()) == {True}


def test_lspci_without_root_knows_no_link() -> None:
    reading = pci.parse(render_commands(mi300x_8().with_faults("lspci_no_root"))[LSPCI][0])

    assert set(reading.facts["pcie"].values()) == {None}
    assert "pcie_link" not in reading.collects
    assert [(f.code, f.severity) for f in reading.findings] == [("collect_permission", "unknown")]


def test_link_lines_without_devices() -> None:
    ok = "\t\tLnkSta: Speed 32GT/s (ok), Width x16 (ok)\n"
    bad = "\t\tLnkSta:\tSpeed 16GT/s (downgraded), Width x8 (downgraded)\n"
    reading = pci.parse(ok * 7 + bad)

    assert [v["width"] for v in reading.facts["pcie"].values()] == [16] * 7 + [8]
    assert reading.facts["pcie_downgraded"] == ("#7",)
    assert reading.collects == {"pcie_link"}


def test_plain_and_numeric_listings() -> None:
    text = (
        "05:00.0 Processing accelerators: Advanced Micro Devices, Inc. [AMD/ATI] Aqua Vanjaram [Instinct MI300X]\n"
        "26:00.0 Processing accelerators [1200]: Advanced Micro Devices, Inc. [AMD/ATI] Device [1002:75a3]\n"
        "45:00.0 VGA compatible controller: ASPEED Technology, Inc. ASPEED Graphics Family (rev 52)\n"
        "63:00.0 Display controller: Advanced Micro Devices, Inc. [AMD/ATI] Device 740f\n"
    )
    reading = pci.parse(text)

    assert reading.kind == "lspci"
    assert reading.complete
    assert [(gpu.bdf, gpu.device_id) for gpu in reading.gpus] == [
        ("0000:05:00.0", "0x74a1"),
        ("0000:26:00.0", "0x75a3"),
        ("0000:63:00.0", "0x740f"),
    ]
    assert reading.collects == {"gpu_count", "bdf", "device_id"}


def test_paths_of_lspci() -> None:
    profile = mi300x_8()
    lines = []
    for bdf, path in device_paths(profile).items():
        kind = "Processing accelerators: Advanced Micro Devices, Inc. [AMD/ATI] Aqua Vanjaram [Instinct MI300X]"
        if bdf not in profile.bdfs:
            kind = "Ethernet controller: Mellanox Technologies MT2910 Family [ConnectX-7]"
        if path.count("/") > 4:
            lines.append(f"{'/'.join(path.split('/')[3:]).replace('0000:', '')} {kind}")
    reading = pci.parse("\n".join(lines) + "\n")

    assert reading.kind == "lspci path"
    assert [gpu.bdf for gpu in reading.gpus] == list(profile.bdfs)
    assert {gpu.device_id for gpu in reading.gpus} == {"0x74a1"}
    for bdf in profile.bdfs:
        own = f"{bdf[:5]}{int(bdf[5:7], 16) + 1:02x}:00.0"
        assert reading.facts["gpu_nic"][bdf][own] == "PXB"


def test_kernel_log_names_the_gpu_that_failed() -> None:
    text = (
        "[    7.1] amdgpu 0000:22:00.0: amdgpu: Fatal error during GPU init\n"
        "[    7.2] amdgpu: probe of 0000:22:00.0 failed with error -12\n"
        "[    7.3] amdgpu 0000:38:00.0: amdgpu: VRAM: 196592M\n"
    )
    reading = pci.parse(text)

    assert pci.sniff(text)
    assert list(reading.facts["probe_failed"]) == ["0000:22:00.0"]
    assert [(f.code, f.severity, f.subject) for f in reading.findings] == [
        ("collect_driver_not_loaded", "error", "0000:22:00.0")
    ]


@pytest.mark.parametrize(
    ("text", "stderr", "rc", "code"),
    [
        ("", "bash: line 1: lspci: command not found", 127, "collect_tool_missing"),
        ("", "", 0, "collect_empty"),
        ("hello\n", "", 0, "collect_unsupported_layout"),
        ("", "pcilib: Cannot open /proc/bus/pci: Permission denied", 1, "collect_permission"),
    ],
)
def test_what_is_no_listing_is_refused(text: str, stderr: str, rc: int, code: str) -> None:
    reading = pci.parse(text, stderr=stderr, rc=rc)

    assert reading.refused
    assert [(f.code, f.severity) for f in reading.findings] == [(code, "error")]


#: How one line of amdgpu stands in the kernel logs that people keep.
PREFIXES = {
    "dmesg": "[   12.345678] ",
    "dmesg -T": "[Mon Jan  5 10:00:00 2026] ",
    "dmesg -x": "kern  :err   : [   12.345678] ",
    "dmesg iso": "kern  :err   : 2026-01-07T10:00:15,890123-06:00 ",
    "journalctl": "Jan 05 10:00:00 node1 kernel: ",
    "journalctl iso": "2026-01-05T10:00:00+0000 node1 kernel: ",
    "syslog": "Jan  5 10:00:00 node1 kernel: [   12.345678] ",
    "raw": "<3>[   12.345678] ",
}


def judged(text: str) -> list[tuple[str, str, str]]:
    evidence = merge([read(text)], whole=False, subject="node")
    return [(f.code, f.severity, f.subject) for f in structural(evidence) if f.severity != "info"]


@pytest.mark.parametrize("prefix", PREFIXES.values(), ids=PREFIXES)
def test_a_kernel_log_is_known_however_it_was_kept(prefix: str) -> None:
    good = f"{prefix}amdgpu 0000:05:00.0: amdgpu: Fetched VBIOS from VRAM BAR\n"
    bad = f"{prefix}amdgpu 0000:22:00.0: probe with driver amdgpu failed with error -22\n"

    assert read(good).kind == "dmesg"
    assert judged(good) == []
    assert judged(good + bad) == [("collect_driver_not_loaded", "error", "0000:22:00.0")]


@pytest.mark.parametrize("prefix", PREFIXES.values(), ids=PREFIXES)
@pytest.mark.parametrize(
    ("said", "subject"),
    [
        ("amdgpu 0000:68:00.0: {1}uncorrectable hardware error(ERREVENT_ATHUB_INTERRUPT) detected!", "0000:68:00.0"),
        ("amdgpu 0000:68:00.0: amdgpu: 2 new uncorrectable hardware errors detected in umc block", "0000:68:00.0"),
        ("amdgpu 0000:68:00.0: amdgpu: GPU reset(1) failed", "0000:68:00.0"),
        ("amdgpu 0000:68:00.0: amdgpu: XGMI: Set topology failure on device 1, hive 2, ret -22", "0000:68:00.0"),
        ("[drm:amdgpu_job_timedout [amdgpu]] *ERROR* ring sdma0 timeout, signaled seq=1, emitted seq=3", "dmesg"),
    ],
)
def test_a_failure_of_a_driven_gpu_in_the_kernel_log_is_an_error(prefix: str, said: str, subject: str) -> None:
    assert judged(f"{prefix}{said}\n") == [("gpu_failed", "error", subject)]


def test_a_reset_alone_leaves_the_gpu_unknown_and_no_errors_are_none() -> None:
    start = "[  100.1] amdgpu 0000:68:00.0: amdgpu: "

    assert judged(f"{start}GPU reset begin!\n") == [("gpu_failed", "unknown", "0000:68:00.0")]
    assert judged(f"{start}0 uncorrectable hardware errors detected in umc block\n") == []
    assert judged(f"{start}3 correctable hardware errors detected in umc block\n") == []


GOOD_LINK = "\t\tDevSta: CorrErr- NonFatalErr- FatalErr- UnsupReq-\n\t\tLnkSta: Speed 32GT/s, Width x16\n"
CARD = (
    "0000:05:00.0 VGA compatible controller [0300]: Advanced Micro Devices, Inc. [AMD/ATI] Device [1002:73bf]\n"
    "\t\tDevSta: CorrErr- NonFatalErr- FatalErr- UnsupReq-\n"
    "\t\tLnkCap: Port #0, Speed 16GT/s, Width x16, ASPM L0s L1\n"
    "\t\tLnkSta: Speed {}GT/s, Width x{}\n"
    "\tKernel driver in use: amdgpu\n"
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (GOOD_LINK * 8, []),
        (GOOD_LINK * 7 + GOOD_LINK.replace("FatalErr- Unsup", "FatalErr+ Unsup"), ["pcie_fatal_error"]),
        (GOOD_LINK * 7 + GOOD_LINK.replace("32GT/s", "16GT/s (downgraded)"), ["pcie_link_degraded"]),
        (GOOD_LINK * 7 + GOOD_LINK.replace("x16", "x8 (downgraded)"), ["pcie_link_degraded"]),
        (CARD.format(16, 16), []),
        (CARD.format(8, 16), ["pcie_link_degraded"]),
        (CARD.format(16, 4), ["pcie_link_degraded"]),
    ],
)  # fmt: skip
def test_a_bad_link_is_an_error_though_nothing_names_the_model(text: str, expected: list[str]) -> None:
    """What ``grep`` leaves of ``lspci -vv`` has no device id, so that no policy is known."""
    assert [code for code, severity, _subject in judged(text) if severity == "error"] == expected


def test_a_gpu_that_does_not_answer_or_that_a_guest_has_is_no_healthy_one() -> None:
    name = "0000:05:00.0 Processing accelerators: Advanced Micro Devices, Inc. [AMD/ATI] Device 74a1"
    guest = pci.parse(f"{name}\n\tLnkSta:\tSpeed 32GT/s, Width x16\n\tKernel driver in use: vfio-pci\n")

    assert pci.parse(f"{name}\n").findings == ()
    assert [f.severity for f in pci.parse(f"{name} (rev ff)\n").findings] == ["error"]
    assert guest.facts["without_driver"] == ("0000:05:00.0",)
