"""amd-smi of every release: the same machine gives the same reading, and what is not known is never healthy."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from support import render_smi as smi
from support import render_smi_text as people
from support.profile import PROFILES, Pair, Profile, all_pairs

from instinct_fleet.model import Link, Partition
from instinct_fleet.parse import amd_smi, read
from instinct_fleet.parse.base import Reading

LAYOUTS = {
    "text": {"5.7": "text 5.7", "6.0": "text 6.0", "6.1": "text 6.1", "6.1.1": "text 6.1", "6.2": "text 6.2"},
    "json": {"5.7": "json 5.7", "6.0": "json 6.0", "6.1": "json 6.0", "6.1.1": "json >=6.1.1", "6.2": "json >=6.1.1"},
}
MODELS = ("mi300x_8", "mi300x_one_pair_pcie", "mi355x_8", "mi250x_8gcd", "mi210_2x4", "mi300a_4")


def read_output(output: smi.Output) -> Reading:
    return read(output[0], stderr=output[1], rc=output[2])


def codes(reading: Reading, *severities: str) -> list[str]:
    return [f.code for f in reading.findings if not severities or f.severity in severities]


def expected_links(profile: Profile) -> tuple[Link, ...]:
    """What a topology of this profile must read as: XGMI, or UNKNOWN until the PCI tree tells the class."""
    return tuple(
        Link(a, b, "XGMI" if p.type == "XGMI" else "UNKNOWN", p.type, p.weight, p.hops, p.accessible, p.bandwidth)
        for (a, b), p in sorted(profile.pairs.items())
    )


# --- topology -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("release", smi.AMD_SMI_RELEASES)
@pytest.mark.parametrize("form", ["text", "json"])
@pytest.mark.parametrize("name", MODELS)
def test_every_release_reads_the_same(name: str, form: str, release: str) -> None:
    profile = PROFILES[name]()
    render = smi.amd_smi_topology_text if form == "text" else smi.amd_smi_topology_json

    reading = read_output(render(profile, release))

    assert reading.kind == "amd-smi topology"
    assert reading.layout == LAYOUTS[form].get(release, f"{form} >=6.3")
    assert reading.complete
    assert reading.findings == ()
    assert reading.links == expected_links(profile)
    assert [g.index for g in reading.gpus] == list(range(profile.count))
    with_address = not (release == "5.7" or (form == "json" and not smi.at_least(release, "6.1.1")))
    assert [g.bdf for g in reading.gpus] == [bdf if with_address else None for bdf in profile.bdfs]
    assert ("bdf" in reading.collects) is with_address


def test_cells_that_fill_their_width_are_told_apart() -> None:
    # 819200-819200 takes all 13 columns, so that a row of them has no blank in it.
    profile = PROFILES["mi300x_cpx_64"]()
    for release in ("6.0", "6.1", "6.2", "7.0"):
        stdout = smi.amd_smi_topology_text(profile, release)[0]
        assert "819200-819200819200-819200" in stdout

        reading = read(stdout)

        assert reading.complete
        assert reading.links == expected_links(profile)


@pytest.mark.parametrize("release", [r for r in smi.AMD_SMI_RELEASES if r != "5.7"])
def test_error_texts_in_cells_leave_their_neighbours_alone(release: str) -> None:
    profile = PROFILES["mi300x_8"]().with_faults("unreadable:3")
    output = smi.amd_smi_topology_text(profile, release)
    assert ("supported50000-50000" in output[0]) is (not smi.at_least(release, "6.4") and release != "6.0"), (
        "the renderer glues cells where the releases do"
    )

    reading = read_output(output)

    assert not reading.complete
    assert codes(reading, "error") == ["collect_gpu_unreadable"]
    for link in reading.links:
        assert (link.type == "UNKNOWN") is (3 in (link.a, link.b))
        assert (link.bandwidth_mbps is None) is (3 in (link.a, link.b))


def test_one_unreadable_pair_is_unknown_and_not_a_broken_gpu() -> None:
    profile = PROFILES["mi300x_8"]().with_pair(2, 5, smi.UNREADABLE, "unreadable pair")

    reading = read_output(smi.amd_smi_topology_text(profile, "6.3"))

    assert codes(reading) == ["collect_partial"]
    assert "2-5" in reading.findings[0].message
    assert [link for link in reading.links if link.type == "UNKNOWN"] == [
        Link(2, 5, "UNKNOWN", "N/A", None, None, None, None)
    ]


def test_a_machine_that_shows_no_links_at_all_is_partial() -> None:
    profile = replace(PROFILES["mi300x_8"](), pairs=all_pairs(8, lambda _a, _b: smi.UNREADABLE))

    reading = read_output(smi.amd_smi_topology_text(profile, "7.0"))

    assert codes(reading) == ["collect_partial"]


@pytest.mark.parametrize(
    ("fields", "aspects"),
    [
        (("link_status", "link_type"), {"link_access", "link_type"}),
        (("weight",), {"link_weight"}),
        (("num_hops", "bandwidth"), {"link_hops", "link_bandwidth"}),
    ],
)
def test_fields_that_were_not_asked_for_are_not_collected(fields: tuple[str, ...], aspects: set[str]) -> None:
    reading = read_output(smi.amd_smi_topology_json(PROFILES["mi300x_8"](), "6.2", fields))

    assert reading.complete
    assert reading.collects == aspects | {"gpu_count", "bdf"}


def test_a_peer_is_found_by_its_number_and_not_by_its_place() -> None:
    profile = PROFILES["mi210_2x4"]()
    documents = json.loads(smi.amd_smi_topology_json(profile, "7.0")[0])
    documents.reverse()
    for document in documents:
        document["links"].reverse()

    assert read(json.dumps(documents, indent=4)).links == expected_links(profile)


def test_wrapped_documents_and_single_ones_are_read() -> None:
    profile = PROFILES["mi300x_8"]()
    documents = json.loads(smi.amd_smi_topology_json(profile, "7.0")[0])
    one = {"gpu": 0, "bdf": "0000:0c:00.0", "links": [documents[0]["links"][0]]}

    assert read(json.dumps({"gpu_data": documents, "cpu_data": [{"cpu": 0}]})).links == expected_links(profile)
    assert [g.bdf for g in read(json.dumps(one)).gpus] == ["0000:0c:00.0"]


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda d: d[0]["links"][1].update(weight=13), "collect_asymmetric"),
        (lambda d: d[0]["links"][0].update(weight=15), "collect_asymmetric"),
        (lambda d: d[2]["links"][5].update(link_type="PCIE"), "collect_asymmetric"),
        (lambda d: d[2]["links"][5].update(link_status="DISABLED"), "collect_asymmetric"),
        (lambda d: d[0]["links"][1].update(link_type="PIX"), "collect_not_amd"),
        (lambda d: d[1].update(gpu=0), "collect_inconsistent"),
        (lambda d: d[1].update(bdf="0000:0c:00.0"), "collect_inconsistent"),
        (lambda d: d[0]["links"][3].update(bdf="0000:ee:00.0"), "collect_inconsistent"),
    ],
)
def test_contradictions_refuse_the_text(change: object, code: str) -> None:
    documents = json.loads(smi.amd_smi_topology_json(PROFILES["mi300x_8"](), "6.3")[0])
    change(documents)  # type: ignore[operator]

    reading = read(json.dumps(documents))

    assert reading.refused
    assert reading.gpus == ()
    assert codes(reading) == [code]


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda d: d[0]["links"].pop(3), "collect_truncated"),
        (lambda d: d.pop(4), "collect_truncated"),
        (lambda d: d[0]["links"][1].update(weight="1S"), "collect_unexpected"),
        (lambda d: d[0]["links"][1].update(link_type="WIFI"), "collect_unexpected"),
        (lambda d: d[0]["links"].append({"gpu": "x"}), "collect_unexpected"),
        (lambda d: d[0]["links"][1].update(link_type="UNKNOWN"), "collect_partial"),
        (lambda d: d[0].update(links="N/A"), "collect_truncated"),
        (lambda d: d[0]["links"][1].update(bandwidth="1-2"), "collect_asymmetric"),
    ],
)
def test_holes_are_unknown(change: object, code: str) -> None:
    documents = json.loads(smi.amd_smi_topology_json(PROFILES["mi300x_8"](), "6.3")[0])
    change(documents)  # type: ignore[operator]

    reading = read(json.dumps(documents))

    assert not reading.complete
    assert code in codes(reading, "unknown")
    assert codes(reading, "error") == []


def test_a_selection_of_gpus_is_not_taken_for_the_node() -> None:
    documents = json.loads(smi.amd_smi_topology_json(PROFILES["mi300x_8"](), "6.3")[0])
    chosen = [d for d in documents if d["gpu"] in (2, 5)]
    for document in chosen:
        document["links"] = [link for link in document["links"] if link["gpu"] in (2, 5)]

    assert codes(read(json.dumps(chosen))) == ["collect_subset"]


def test_a_short_row_is_filled_from_the_other_direction_but_not_whole() -> None:
    # An unknown enum value leaves its cell out, so that the rest of the row moves to the left.
    lines = smi.amd_smi_topology_text(PROFILES["mi300x_8"](), "6.2")[0].split("\n")
    title = lines.index("LINK TYPE TABLE:")
    lines[title + 2] = lines[title + 2].replace("XGMI         ", "", 1)

    reading = read("\n".join(lines))

    assert not reading.complete
    assert codes(reading) == ["collect_truncated", "collect_truncated"]
    assert {link.type for link in reading.links} == {"XGMI"}


def test_a_table_cut_at_its_last_row_is_truncated() -> None:
    text = smi.amd_smi_topology_text(PROFILES["mi300x_8"](), "6.2")[0]

    reading = read("\n".join(text.split("\n")[:-2]))

    assert codes(reading, "unknown")
    assert not reading.complete


# --- noise and failures -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", [c for c in smi.render_commands(PROFILES["mi300x_8"]()) if c.startswith("amd-smi")])
@pytest.mark.parametrize(
    ("fault", "release", "code"),
    [
        ("no_driver", "6.2", "collect_driver_not_loaded"),
        ("no_tools", "6.2", "collect_tool_missing"),
        ("kfd_no_permission", "7.0", "collect_permission"),
        ("kfd_no_permission", "7.1", "collect_permission"),
    ],
)
def test_failures_are_named(command: str, fault: str, release: str, code: str) -> None:
    profile = replace(PROFILES["mi300x_8"]().with_faults(fault), rocm_version=release)

    reading = read_output(smi.render_commands(profile)[command])

    assert reading.refused
    assert codes(reading, "error") == [code]
    assert reading.findings[0].remedy


@pytest.mark.parametrize("command", [c for c in smi.render_commands(PROFILES["mi300x_8"]()) if c.startswith("amd-smi")])
def test_the_group_warning_is_noise_before_data(command: str) -> None:
    profile = replace(PROFILES["mi300x_8"](), rocm_version="6.4")
    clean = read_output(smi.render_commands(profile)[command])

    reading = read_output(smi.render_commands(profile.with_faults("group_warning"))[command])

    assert reading.complete
    assert codes(reading) == ["collect_group_warning"]
    assert reading.findings[0].severity == "warning"
    assert (reading.gpus, reading.links, reading.facts) == (clean.gpus, clean.links, clean.facts)


def test_the_group_warning_alone_is_no_permission() -> None:
    reading = read(smi.GROUP_WARNING)

    assert reading.refused
    assert codes(reading, "error") == ["collect_group_warning"]


@pytest.mark.parametrize("prefix", ["'CTRL' + 'C' to stop watching output:\n", "\ufeff", "\r\n"])
def test_what_stands_before_json_is_stripped(prefix: str) -> None:
    reading = read(prefix + smi.amd_smi_topology_json(PROFILES["mi300x_8"](), "7.0")[0])

    assert reading.findings == ()
    assert len(reading.links) == 28


def test_an_error_document_is_a_library_error_though_it_ends_with_zero() -> None:
    stdout, stderr, rc = smi.amd_smi_topology_json(PROFILES["mi300x_8"]().with_faults("library_error"), "6.3")
    assert rc == 0

    reading = read(stdout, stderr=stderr, rc=rc)

    assert reading.refused
    assert codes(reading, "error") == ["collect_library_error"]
    assert "-1002" in reading.findings[0].message


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("amdsmi_cli_exceptions.AmdSmiInvalidParameterException: Parameter '-x' is invalid.\n", "collect_usage"),
        ("amdsmi_exception.AmdSmiLibraryException: Error code:\n\t2 | AMDSMI_STATUS_IO\n", "collect_library_error"),
        ('{"error": "AMDSMI_STATUS_DRIVER_NOT_LOADED - Driver not loaded", "code": 34}', "collect_driver_not_loaded"),
        ('{"error": "AMDSMI_STATUS_NO_PERM - Permission Denied", "code": 10}', "collect_permission"),
        ("Traceback (most recent call last):\nOSError: boom AMDSMI_STATUS_IO\n", "collect_library_error"),
        ("GPU: 0\n    MEMORY_PARTITION: Successfully set memory partition to NPS4\n", "collect_unsupported_layout"),
    ],
)  # fmt: skip
def test_other_failures_are_named(text: str, code: str) -> None:
    reading = read(text)

    assert reading.refused
    assert code in codes(reading, "error", "unknown")


@pytest.mark.parametrize(
    ("rc", "code"),
    [(127, "collect_tool_missing"), (124, "collect_timeout"), (206, "collect_driver_not_loaded"), (0, "collect_empty"),
     (None, "collect_empty"), (1, "collect_empty")],
)  # fmt: skip
def test_an_empty_answer_is_never_nothing(rc: int | None, code: str) -> None:
    reading = read("", rc=rc, command="amd-smi topology --json")

    assert reading.refused
    assert reading.tool == "amd-smi"
    assert codes(reading, "error") == [code]


def test_an_exit_code_alone_does_not_condemn_whole_data() -> None:
    reading = read(smi.amd_smi_topology_json(PROFILES["mi300x_8"](), "7.0")[0], rc=255)

    assert reading.complete
    assert [(f.code, f.severity) for f in reading.findings] == [("collect_exit_code", "warning")]


def test_csv_is_refused() -> None:
    reading = read_output(people.amd_smi_topology_csv(PROFILES["mi300x_8"](), "6.3"))

    assert reading.refused
    assert codes(reading, "error") == ["collect_unsupported_layout"]


@pytest.mark.parametrize("cut", [0.1, 0.5, 0.9, 0.999])
def test_cut_json_is_truncated_and_not_an_empty_node(cut: float) -> None:
    text = smi.amd_smi_topology_json(PROFILES["mi300x_8"](), "7.0")[0]

    reading = read(text[: int(len(text) * cut)])

    assert reading.refused
    assert codes(reading) == ["collect_truncated"]


# --- the other commands -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("release", ["6.0", "6.3", "6.4", "7.0", "7.2"])
@pytest.mark.parametrize("form", ["json", "text"])
def test_static(form: str, release: str) -> None:
    profile = PROFILES["mi300x_8"]()
    output = smi.amd_smi_static_json(profile, release)

    reading = read_output(output if form == "json" else people.as_text(output))

    assert (reading.kind, reading.complete, reading.findings) == ("amd-smi static", True, ())
    gpu = reading.gpus[0]
    assert (gpu.bdf, gpu.device_id, gpu.arch, gpu.oam_id) == ("0000:0c:00.0", "0x74a1", "gfx942", 7)
    assert gpu.vram_bytes == profile.vram_bytes
    assert [g.numa_node for g in reading.gpus] == list(profile.numa)
    assert gpu.partition == (Partition() if smi.at_least(release, "7.0") else Partition("SPX", "NPS1"))
    assert reading.facts["driver"] == {"name": "amdgpu", "version": profile.driver_version}


def test_static_knows_the_model_by_its_device_id_and_not_by_its_name() -> None:
    profile = replace(PROFILES["mi300x_8"](), market_name="MI300X-O")

    assert {g.device_id for g in read_output(smi.amd_smi_static_json(profile, "6.1")).gpus} == {"0x74a1"}


def test_numa_nodes_that_are_not_known_are_none() -> None:
    reading = read_output(smi.amd_smi_static_json(PROFILES["mi300x_8"]().with_faults("numa_unknown"), "7.0"))

    assert "gpu_numa" in reading.collects
    assert {g.numa_node for g in reading.gpus} == {None}


def test_models_without_partitions_are_whole_without_them() -> None:
    profile = PROFILES["mi210_2x4"]()

    assert read_output(smi.amd_smi_static_json(profile, "6.2")).complete
    # The partition command alone does not tell the model.
    assert codes(read_output(smi.amd_smi_partition_json(profile, "7.0"))) == ["collect_partition_unknown"]


@pytest.mark.parametrize("form", ["json", "text"])
@pytest.mark.parametrize("release", ["6.3", "6.4", "7.0"])
def test_partition(form: str, release: str) -> None:
    profile = PROFILES["mi300x_cpx_64"]()
    render = smi.amd_smi_partition_json if form == "json" else people.amd_smi_partition_text

    reading = read_output(render(profile, release))

    assert (reading.kind, reading.complete) == ("amd-smi partition", True)
    assert {g.partition for g in reading.gpus} == {Partition("CPX", "NPS1")}
    assert len(reading.gpus) == 64
    old = form == "text" and not smi.at_least(release, "6.4")
    assert [reading.facts["partition_ids"][i] for i in (0, 1, 8)] == (
        [tuple(range(8)), None, tuple(range(8))] if old else [(0,), (1,), (0,)]
    )


def test_partition_without_root_is_unknown() -> None:
    reading = read_output(people.amd_smi_partition_text(PROFILES["mi300x_8"](), "6.4", root=False))

    assert not reading.complete
    assert set(codes(reading, "unknown")) == {"collect_partition_unknown", "collect_permission"}


@pytest.mark.parametrize("form", ["json", "text"])
@pytest.mark.parametrize("release", ["6.0", "6.3", "7.0"])
def test_list(form: str, release: str) -> None:
    profile = PROFILES["mi308x_8"]()
    output = smi.amd_smi_list_json(profile, release)

    reading = read_output(output if form == "json" else people.as_text(output))

    assert (reading.kind, reading.complete) == ("amd-smi list", True)
    assert [g.bdf for g in reading.gpus] == list(profile.bdfs)
    assert {g.device_id for g in reading.gpus} == {"0x74a2"}


def test_the_three_numberings_are_kept_apart() -> None:
    profile = PROFILES["mi355x_8"]()

    extended = read_output(people.amd_smi_list_extended_text(profile, "7.0"))
    bare = read_output(people.amd_smi_bare_text(profile, "7.0"))

    assert [g.hip_id for g in extended.gpus] == list(profile.hip_ids)
    assert [(g.index, g.hip_id, g.oam_id) for g in bare.gpus] == list(
        zip(range(8), profile.hip_ids, profile.oam_ids, strict=True)
    )
    assert bare.facts["vram_busy"] == frozenset()


@pytest.mark.parametrize("form", ["json", "text"])
def test_version(form: str) -> None:
    render = smi.amd_smi_version_json if form == "json" else people.amd_smi_version_text

    reading = read_output(render(PROFILES["mi300x_8"](), "7.0.2"))

    assert reading.version == "26.0.2+39589fda"
    assert reading.facts["versions"]["rocm"] == "7.0.2"
    assert reading.facts["versions"]["amdgpu"] == "6.14.14"


@pytest.mark.parametrize("release", ["6.4", "7.0", "7.2"])
def test_xgmi_status(release: str) -> None:
    healthy = read_output(smi.amd_smi_xgmi_status_text(PROFILES["mi300x_8"](), release))
    broken = read_output(smi.amd_smi_xgmi_status_text(PROFILES["mi300x_8"]().with_faults("xgmi_down:2-5"), release))

    assert healthy.kind == "amd-smi xgmi status"
    assert healthy.complete
    assert set(healthy.facts["link_status"].values()) == {("U",) * 7 + ("X",)}
    assert [i for i, ports in broken.facts["link_status"].items() if "D" in ports] == [2, 5]
    if smi.at_least(release, "7.0"):
        assert [pair for pair, state in broken.facts["xgmi_status"].items() if state == "D"] == [(2, 5)]


def test_xgmi_status_in_a_guest_is_unknown() -> None:
    text = smi.amd_smi_xgmi_status_text(PROFILES["mi300a_4"](), "6.4")[0].replace("  U", "  N/A")

    reading = read(text)

    assert codes(reading, "unknown")
    assert None in reading.facts["link_status"][0]


def test_xgmi_rates_and_counters() -> None:
    reading = read_output(people.amd_smi_xgmi_metric_text(PROFILES["mi300x_8"](), "6.4"))

    assert reading.complete
    assert (reading.facts["xgmi_bit_rate_gbps"][0], reading.facts["xgmi_link_gbps"][0]) == (32.0, 512.0)
    # Units follow the amount: 1.123 PB is not 1.
    assert reading.facts["xgmi_read_bytes"][0, 1] == int(1.123 * 1024**5)
    assert reading.facts["xgmi_read_bytes"][0, 0] is None


def test_sentinels_are_not_rates() -> None:
    profile = replace(PROFILES["mi210_2x4"](), pairs=all_pairs(8, lambda _a, _b: Pair("PCIE", 72, 3, True, None)))
    output = people.amd_smi_xgmi_metric_text(profile, "7.2")
    assert "65535 Gb/s4294967295 Gb/sN/A" in output[0]

    reading = read_output(output)

    assert set(reading.facts["xgmi_link_gbps"].values()) == {None}
    assert set(reading.facts["xgmi_bit_rate_gbps"].values()) == {None}


@pytest.mark.parametrize("form", ["json", "text"])
@pytest.mark.parametrize("release", ["6.3", "7.0"])
def test_error_counts(form: str, release: str) -> None:
    profile = PROFILES["mi300x_8"]().with_faults("xgmi_down", "ecc_uncorrectable")
    output = smi.amd_smi_metric_ecc_json(profile, release)

    reading = read_output(output if form == "json" else people.as_text(output))

    assert reading.complete
    assert reading.facts["ecc"][0] == {"correctable": 0, "uncorrectable": 3, "deferred": 0}
    assert reading.facts["ecc"][1]["uncorrectable"] == 0
    assert reading.facts["ecc_blocks"][0]["UMC"]["uncorrectable"] == 1
    assert reading.facts["ecc_total"][0]["uncorrectable"] == 4


def test_error_counts_that_are_not_known_are_unknown() -> None:
    documents = json.loads(smi.amd_smi_metric_ecc_json(PROFILES["mi300x_8"](), "7.0")[0])
    documents["gpu_data"][3]["ecc_blocks"]["XGMI_WAFL"] = {"correctable_count": "N/A", "uncorrectable_count": "N/A"}
    documents["gpu_data"][4]["ecc_blocks"] = "N/A"

    reading = read(json.dumps(documents))

    assert codes(reading, "unknown") == ["collect_partial"]
    assert reading.facts["ecc"][3]["uncorrectable"] is None
    assert reading.facts["ecc"][4] is None


@pytest.mark.parametrize("form", ["json", "text"])
@pytest.mark.parametrize("release", ["6.3", "7.0"])
def test_memory_in_use(form: str, release: str) -> None:
    profile = PROFILES["mi300x_8"]().with_faults("vram_leaked")
    output = smi.amd_smi_metric_memory_json(profile, release)

    reading = read_output(output if form == "json" else people.as_text(output))

    assert reading.facts["vram_used"][0] == profile.vram_bytes * 3 // 4
    assert reading.facts["vram_used"][1] == 283 * smi.MIB
    assert reading.facts["vram_total"][1] == profile.vram_bytes


def test_processes() -> None:
    profile = PROFILES["mi300x_8"]()
    documents = json.loads(smi.amd_smi_process_json(profile, "7.0")[0])
    busy = {"process_info": {"name": "vllm", "pid": 42, "memory_usage": {"vram_mem": {"value": 5, "unit": "B"}}}}
    documents[2]["process_list"] = [busy]

    idle = read_output(smi.amd_smi_process_json(profile, "7.0"))
    reading = read(json.dumps(documents))

    assert idle.facts["vram_busy"] == frozenset()
    assert reading.facts["vram_busy"] == {2}
    assert reading.facts["processes"][2] == ({"pid": 42, "name": "vllm", "vram": 5},)
    documents[3]["process_list"] = "N/A"
    assert "vram_busy" not in read(json.dumps(documents)).facts


@pytest.mark.parametrize("release", ["6.3", "6.4", "7.0"])
def test_monitor_does_not_take_missing_telemetry_of_partitions_for_a_fault(release: str) -> None:
    profile = PROFILES["mi300x_cpx_64"]()

    reading = read_output(people.amd_smi_monitor_text(profile, release))

    assert (reading.kind, reading.complete, len(reading.gpus)) == ("amd-smi monitor", True, 64)
    assert reading.facts["vram_total"][1] == 24 * 1024**3


def test_every_finding_code_is_explained() -> None:
    import re
    from pathlib import Path

    from instinct_fleet.parse.codes import COLLECTION

    folder = Path(amd_smi.__file__).parent
    used = {
        code
        for name in ("amd_smi.py", "rocm_smi.py", "smi.py", "detect.py")
        for code in re.findall(r'"(collect_\w+)"', (folder / name).read_text())
    }
    assert used <= set(COLLECTION)


def test_remarks_between_tables_are_noise_and_not_holes() -> None:
    text = "root@node:~# amd-smi topology\n" + smi.amd_smi_topology_text(PROFILES["mi300x_8"](), "6.2")[0]

    clean = read(text)
    noisy = read(text.replace("HOPS TABLE:", "something the driver said\nHOPS TABLE:"))

    assert clean.findings == ()
    assert noisy.complete
    assert [(f.code, f.severity) for f in noisy.findings] == [("collect_noise", "warning")]


@pytest.mark.parametrize("text", ["No AMD GPUs specified\n", "WARNING: No AMD GPUs specified\n", "No devices found\n"])
def test_no_gpu_is_an_error(text: str) -> None:
    reading = read(text, command="rocm-smi --showtopo")

    assert reading.refused
    assert codes(reading, "error") == ["collect_no_device"]


def test_the_table_of_partition_profiles_leaves_repeated_cells_empty() -> None:
    profiles = (
        "\nACCELERATOR_PARTITION_PROFILES:\n"
        "GPU_ID  PROFILE_INDEX  MEMORY_PARTITION_CAPS  ACCELERATOR_TYPE  PARTITION_ID  NUM_PARTITIONS  RESOURCE_TYPE\n"
        "0       0              NPS1                   SPX*              0             1               XCC\n"
        "                                                                                              DMA\n"
    )

    reading = read(people.amd_smi_partition_text(PROFILES["mi300x_8"](), "7.0")[0] + profiles)

    assert (reading.complete, reading.findings) == (True, ())
    assert {g.partition for g in reading.gpus} == {Partition("SPX", "NPS1")}


def test_several_processes_of_a_gpu_in_text() -> None:
    entry = (
        "    PROCESS_INFO:\n        NAME: vllm\n        PID: {}\n        MEMORY_USAGE:\n            VRAM_MEM: 5 GB\n"
    )
    text = (
        "GPU: 0\n" + entry.format(41) + entry.format(42) + "\nGPU: 1\n    PROCESS_INFO: No running processes detected\n"
    )

    reading = read(text)

    assert reading.complete
    assert [p["pid"] for p in reading.facts["processes"][0]] == [41, 42]
    assert reading.facts["vram_busy"] == {0}


#: What the shell, sudo and a login print around a command whose output a person kept.
AROUND = {
    "prompt": ("root@node:~# sudo amd-smi list\n", "root@node:~# \n"),
    "bracketed prompt": ("[me@node ~]$ amd-smi list\n", "[me@node ~]$\n"),
    "bare prompt": ("~$ amd-smi list\n", "$\n"),
    "fence": ("```text\n", "```\n"),
    "sudo": ("sudo: unable to resolve host node7: Name or service not known\n[sudo] password for me: \n", ""),
    "lecture": ("Administrator. It usually boils down to these three things:\n\n    #1) Respect the privacy.\n", ""),
    "locale": ("bash: warning: setlocale: LC_ALL: cannot change locale (en_US.UTF-8)\n", ""),
}
TEXTS = {
    "list": lambda profile: people.as_text(smi.amd_smi_list_json(profile, "6.3")),
    "monitor": lambda profile: people.amd_smi_monitor_text(profile, "6.4"),
    "xgmi": lambda profile: people.amd_smi_xgmi_metric_text(profile, "6.3"),
    "partition": lambda profile: people.amd_smi_partition_text(profile, "7.0"),
    "topology": lambda profile: smi.amd_smi_topology_text(profile, "6.2"),
    "topology json": lambda profile: smi.amd_smi_topology_json(profile, "7.0"),
}


@pytest.mark.parametrize("around", AROUND)
@pytest.mark.parametrize("text", TEXTS)
def test_what_the_shell_says_around_the_data_is_no_finding(text: str, around: str) -> None:
    before, after = AROUND[around]

    reading = read(before + TEXTS[text](PROFILES["mi300x_8"]())[0].rstrip("\n") + "\n" + after)

    assert (reading.complete, reading.findings) == (True, ())
    assert len(reading.gpus) == 8


@pytest.mark.parametrize("text", ["list", "monitor", "xgmi", "partition", "topology"])
def test_a_remark_above_the_data_hides_none_of_it(text: str) -> None:
    reading = read("Last login: Mon Jan  5 10:00:00 from node1\n" + TEXTS[text](PROFILES["mi300x_8"]())[0])

    assert reading.complete
    assert [(f.code, f.severity) for f in reading.findings] == [("collect_noise", "warning")]


@pytest.mark.parametrize("text", ["list", "monitor", "xgmi", "partition"])
def test_data_without_its_heading_is_still_a_hole(text: str) -> None:
    whole = TEXTS[text](PROFILES["mi300x_8"]())[0]

    reading = read("    12  N/A  torn off\n" + whole)

    assert not reading.complete


def test_a_cut_document_before_a_prompt_is_still_cut() -> None:
    text = smi.amd_smi_topology_json(PROFILES["mi300x_8"](), "7.0")[0]

    reading = read(text[: text.index('"weight"') + 9] + "\nroot@node:~# ")

    assert codes(reading) == ["collect_truncated"]


def test_the_cpus_of_an_apu_and_its_power_policies_are_no_noise() -> None:
    """amd-smi README, example of ``amd-smi static`` on MI300A."""
    text = people.as_text(smi.amd_smi_static_json(PROFILES["mi300a_4"](), "6.2"))[0]
    policies = "".join(f"            POLICY_ID: {n}\n            POLICY_DESCRIPTION: plpd_{n}\n" for n in range(3))
    section = f"    XGMI_PLPD:\n        NUM_SUPPORTED: 3\n        PLPDS:\n{policies}"
    clean = read(text)

    reading = read(
        "CPU: 0\n    SMU:\n        FW_VERSION: 85.90.0\n\n" + text.replace("    ASIC:\n", section + "    ASIC:\n")
    )

    assert (reading.complete, reading.findings) == (True, ())
    assert (reading.gpus, reading.facts) == (clean.gpus, clean.facts)


def test_no_process_may_stand_on_a_line_of_its_own() -> None:
    text = "GPU: 0\n    PROCESS_INFO:\n        NAME: python3\n        PID: 12\n        MEMORY_USAGE:\n"
    text += "            VRAM_MEM: 4.0 GB\n\nGPU: 1\n    PROCESS_INFO:\n        No running processes detected\n"

    reading = read(text)

    assert (reading.complete, reading.findings) == (True, ())
    assert reading.facts["vram_busy"] == {0}
    assert reading.facts["processes"][1] == ()


def test_the_processes_below_a_monitor_table_are_not_its_rows() -> None:
    """``amd-smi monitor -q``."""
    processes = "\nPROCESS INFO:\nGPU  NAME  PID  GTT_MEM  MEM_USAGE\n  0  rvs  1564865  0.0 B  1.1 GB\n"

    reading = read(people.amd_smi_monitor_text(PROFILES["mi300x_8"](), "6.4")[0] + processes)

    assert (reading.complete, reading.findings) == (True, ())
    assert len(reading.gpus) == 8


def test_the_use_of_a_monitor_table_is_read() -> None:
    reading = read(people.amd_smi_monitor_text(PROFILES["mi300x_8"](), "6.4")[0].replace("0 %", "93 %", 1))

    assert [reading.facts["gpu_use_percent"][i] for i in range(8)] == [93, *[0] * 7]


def test_the_processes_of_the_bare_table_say_which_gpus_are_busy() -> None:
    none = people.amd_smi_bare_text(PROFILES["mi300x_8"](), "7.0")[0]
    row = "|    1     250236  python3.12             7.9 MB    2.6 GB     2.8 GB  N/A     |"
    some = none.replace(f"|{'  No running processes found':<78}|", row)
    gone = none.replace(f"|{'  No running processes found':<78}|\n", "")

    assert read(none).facts["vram_busy"] == frozenset()
    assert read(some).facts["vram_busy"] == {1}
    assert read(some).facts["processes"][1][0]["pid"] == 250236
    assert "vram_busy" not in read(gone).facts
