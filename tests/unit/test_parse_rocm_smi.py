"""rocm-smi 4.5 to 7.x: text and JSON of the same machine agree, and what was not read is never healthy."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from support import render_smi as smi
from support import render_smi_text as people
from support.profile import PROFILES, Profile

from instinct_fleet.model import Link
from instinct_fleet.parse import read
from instinct_fleet.parse.base import Reading

MODELS = ("mi300x_8", "mi300x_one_pair_pcie", "mi355x_8", "mi250x_8gcd", "mi210_2x4", "mi300a_4", "mi300x_cpx_64")
LINKS = ("weight", "hops", "type", "numa")


def read_output(output: smi.Output) -> Reading:
    return read(output[0], stderr=output[1], rc=output[2])


def codes(reading: Reading, *severities: str) -> list[str]:
    return [f.code for f in reading.findings if not severities or f.severity in severities]


def expected_links(profile: Profile) -> tuple[Link, ...]:
    """`--showtopo` tells neither peer access nor bandwidth."""
    return tuple(
        Link(a, b, "XGMI" if p.type == "XGMI" else "UNKNOWN", p.type, p.weight, p.hops)
        for (a, b), p in sorted(profile.pairs.items())
    )


@pytest.mark.parametrize("release", smi.ROCM_SMI_RELEASES)
@pytest.mark.parametrize("form", ["text", "json"])
@pytest.mark.parametrize("name", MODELS)
def test_every_release_reads_the_same(name: str, form: str, release: str) -> None:
    profile = PROFILES[name]()
    render = smi.rocm_smi_text if form == "text" else smi.rocm_smi_json

    reading = read_output(render(profile, release))

    assert reading.kind == "rocm-smi showtopo"
    assert (reading.complete, reading.findings) == (True, ())
    assert reading.links == expected_links(profile)
    assert [g.numa_node for g in reading.gpus] == list(profile.numa)
    assert reading.collects == {"gpu_count", "gpu_numa", "link_type", "link_weight", "link_hops"}
    if form == "text":
        width = {"4.5": "text <=5.4", "5.4": "text <=5.4", "5.7": "text 5.7"}
        assert reading.layout == width.get(release, "text >=6.0")


@pytest.mark.parametrize("form", ["text", "json"])
@pytest.mark.parametrize("release", ["5.4", "5.7", "6.2", "7.0"])
def test_a_gpu_that_cannot_be_read_is_an_error(form: str, release: str) -> None:
    profile = PROFILES["mi300x_8"]().with_faults("unreadable:3")
    render = smi.rocm_smi_text if form == "text" else smi.rocm_smi_json

    reading = read_output(render(profile, release))

    assert codes(reading, "error") == ["collect_gpu_unreadable"]
    assert len(reading.gpus) == 8, "a GPU whose NUMA read failed is still counted"
    assert {(link.a, link.b) for link in reading.links if link.type == "UNKNOWN"} == {
        (a, b) for a in range(8) for b in range(a + 1, 8) if 3 in (a, b)
    }
    assert [g.index for g in reading.gpus if g.numa_node is None] == [3]


def test_before_54_a_failed_number_reads_as_zero_but_its_type_still_tells() -> None:
    reading = read_output(smi.rocm_smi_text(PROFILES["mi300x_8"]().with_faults("unreadable:3"), "4.5"))

    assert "collect_gpu_unreadable" in codes(reading, "error") or "collect_partial" in codes(reading, "unknown")
    assert not reading.complete


@pytest.mark.parametrize("form", ["text", "json"])
@pytest.mark.parametrize("release", ["5.7", "6.0", "7.0"])
def test_minus_one_in_any_spelling_is_not_a_node(form: str, release: str) -> None:
    profile = PROFILES["mi300x_8"]().with_faults("numa_unknown")
    render = smi.rocm_smi_text if form == "text" else smi.rocm_smi_json
    output = render(profile, release)
    assert ("4294967295" if release == "5.7" else "-1") in output[0]

    reading = read_output(output)

    assert reading.complete
    assert {g.numa_node for g in reading.gpus} == {None}
    assert set(reading.facts["numa_nearest"].values()) == {0}


def test_nearest_node_and_affinity_are_both_told() -> None:
    text = smi.rocm_smi_text(PROFILES["mi300x_8"](), "7.0", ("numa",))[0].replace("Affinity: 0", "Affinity: 1")

    reading = read(text)

    assert reading.collects == {"gpu_count", "gpu_numa"}
    assert (reading.facts["numa_nearest"][0], reading.facts["numa_affinity"][0]) == (0, 1)
    assert reading.gpus[0].numa_node == 1


@pytest.mark.parametrize("form", ["text", "json"])
@pytest.mark.parametrize(
    ("blocks", "aspects"),
    [
        (("weight",), {"link_weight"}),
        (("hops",), {"link_hops"}),
        (("type",), {"link_type"}),
        (("access",), {"link_access"}),
        (("numa",), {"gpu_numa"}),
        (("type", "numa"), {"link_type", "gpu_numa"}),
    ],
)
def test_blocks_may_be_missing(form: str, blocks: tuple[str, ...], aspects: set[str]) -> None:
    render = smi.rocm_smi_text if form == "text" else smi.rocm_smi_json

    reading = read_output(render(PROFILES["mi300x_8"](), "7.0", blocks))

    assert reading.complete
    assert reading.collects == aspects | {"gpu_count"}


def test_peer_access_and_bandwidth_blocks() -> None:
    profile = PROFILES["mi300x_8"]()
    denied = profile.with_pair(0, 1, replace(profile.pair(0, 1), accessible=False), "denied")

    access = read_output(smi.rocm_smi_text(denied, "7.0", ("access",)))
    bandwidth = read_output(smi.rocm_smi_text(profile, "7.0", ("bandwidth",)))

    assert [link.accessible for link in access.links] == [False] + [True] * 27
    assert {link.bandwidth_mbps for link in bandwidth.links} == {(50000, 50000)}


def test_one_gpu_has_no_links_and_that_is_whole() -> None:
    profile = PROFILES["mi300x_8"]()
    one = replace(profile, bdfs=profile.bdfs[:1], numa=profile.numa[:1], pairs={})

    text = read_output(smi.rocm_smi_text(one, "7.0"))
    document = read_output(smi.rocm_smi_json(one, "7.0"))
    nothing = read_output(smi.rocm_smi_json(one, "7.0", ("type",)))

    assert (text.complete, len(text.gpus), text.links) == (True, 1, ())
    assert (document.complete, len(document.gpus)) == (True, 1)
    assert nothing.refused
    assert codes(nothing) == ["collect_empty"]


def test_a_failed_probe_shows_as_fewer_gpus() -> None:
    reading = read_output(smi.rocm_smi_json(PROFILES["mi300x_8"]().with_faults("kfd_missing_gpu"), "7.0"))

    assert reading.complete
    assert len(reading.gpus) == 7


@pytest.mark.parametrize("release", ["6.2", "7.0", "7.2"])
def test_low_power_is_a_warning(release: str) -> None:
    reading = read_output(smi.rocm_smi_text(PROFILES["mi300x_8"]().with_faults("low_power"), release))

    assert reading.complete
    assert [(f.code, f.severity) for f in reading.findings] == [("collect_low_power", "warning")]


@pytest.mark.parametrize(
    "noise",
    [
        "Unable to find /opt/rocm/bin/../lib/librocm_smi64.so . Trying /opt/rocm*",
        "('Unable to find /opt/rocm/bin/../lib/librocm_smi64.so . Trying /opt/rocm*',)",
    ],
)
@pytest.mark.parametrize("form", ["text", "json"])
def test_old_library_noise_is_a_warning(form: str, noise: str) -> None:
    render = smi.rocm_smi_text if form == "text" else smi.rocm_smi_json

    reading = read(f"{noise}\n{render(PROFILES['mi300x_8'](), '6.0')[0]}")

    assert reading.complete
    assert [(f.code, f.severity) for f in reading.findings] == [("collect_noise", "warning")]


@pytest.mark.parametrize("form", ["text", "json"])
def test_no_driver_is_an_error_though_it_ends_with_zero(form: str) -> None:
    render = smi.rocm_smi_text if form == "text" else smi.rocm_smi_json
    stdout, stderr, rc = render(PROFILES["mi300x_8"]().with_faults("no_driver"), "6.2")
    assert (stdout, rc) == ("", 0)

    reading = read(stdout, stderr=stderr, rc=rc, command="rocm-smi --showtopo")

    assert reading.refused
    assert reading.tool == "rocm-smi"
    assert codes(reading, "error") == ["collect_driver_not_loaded"]


def swap(text: str, old: str, new: str) -> str:
    assert old in text
    return text.replace(old, new, 1)


@pytest.mark.parametrize(
    ("old", "new", "code"),
    [
        ("GPU1   15           0  ", "GPU1   13           0  ", "collect_asymmetric"),
        ("GPU2   15           15           0 ", "GPU2   15           15           15", "collect_asymmetric"),
        ("GPU1   XGMI         0  ", "GPU1   PIX          0  ", "collect_not_amd"),
        ("GPU1   XGMI         0  ", "GPU1   XGMI         X  ", "collect_not_amd"),
    ],
)
def test_contradictions_refuse_the_text(old: str, new: str, code: str) -> None:
    reading = read(swap(smi.rocm_smi_text(PROFILES["mi300x_8"](), "7.0")[0], old, new))

    assert reading.refused
    assert codes(reading) == [code]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("================================= Hops between two GPUs ==================================\n", ""),
        ("================================== End of ROCm SMI Log ===================================\n", ""),
        ("GPU1   XGMI         0  ", "GPU1   0  "),
        ("GPU[3]\t\t: (Topology) Numa Node: 0\n", ""),
        ("GPU[3]\t\t: (Topology) Numa Node: 0\n", "GPU[3]\t\t: get_numa_node_number, Not supported on the given\n"),
        ("       GPU0         GPU1         ", "       GPU0         "),
    ],
)  # fmt: skip
def test_holes_are_unknown(old: str, new: str) -> None:
    reading = read(swap(smi.rocm_smi_text(PROFILES["mi300x_8"](), "7.0")[0], old, new))

    assert not reading.complete
    assert codes(reading, "unknown")


def test_a_table_under_a_wrong_title_is_not_used() -> None:
    lines = smi.rocm_smi_text(PROFILES["mi300x_8"](), "7.0")[0].split("\n")
    weight = next(n for n, line in enumerate(lines) if "Weight between" in line)
    kind = next(n for n, line in enumerate(lines) if "Link Type between" in line)

    reading = read("\n".join(lines[: weight + 1] + lines[kind + 1 :]))

    assert codes(reading, "error") == ["collect_inconsistent"]
    assert reading.links == ()
    assert "gpu_numa" in reading.collects


def test_a_pair_said_twice_and_differently_is_a_contradiction() -> None:
    text = smi.rocm_smi_json(PROFILES["mi300x_8"](), "7.0")[0]
    extra = '"(Topology) Link type between DRM devices 1 and 0": "PCIE", "(Topology) Weight'

    reading = read(text.replace('"(Topology) Weight', extra, 1))

    assert codes(reading) == ["collect_asymmetric"]


def test_a_pair_that_is_missing_from_json_is_truncated() -> None:
    document = json.loads(smi.rocm_smi_json(PROFILES["mi300x_8"](), "7.0")[0])
    del document["system"]["(Topology) Link type between DRM devices 2 and 5"]

    reading = read(json.dumps(document))

    assert codes(reading, "unknown") == ["collect_truncated"]
    assert "2-5" in reading.findings[0].message


def test_a_selection_of_devices_is_not_taken_for_the_node() -> None:
    document = json.loads(smi.rocm_smi_json(PROFILES["mi300x_8"](), "7.0", ("numa",))[0])

    reading = read(json.dumps({card: document[card] for card in ("card2", "card5")}))

    assert codes(reading, "unknown") == ["collect_subset"]


@pytest.mark.parametrize("cut", [0.2, 0.7, 0.99])
def test_cut_json_is_truncated(cut: float) -> None:
    text = smi.rocm_smi_json(PROFILES["mi300x_8"](), "7.0")[0]

    reading = read(text[: int(len(text) * cut)])

    assert reading.refused
    assert codes(reading) == ["collect_truncated"]


def test_csv_is_refused() -> None:
    reading = read_output(people.rocm_smi_csv(PROFILES["mi300x_8"](), "7.0"))

    assert reading.refused
    assert codes(reading, "error") == ["collect_unsupported_layout"]


@pytest.mark.parametrize("release", ["5.7", "6.2", "7.0"])
def test_the_concise_table_is_no_topology(release: str) -> None:
    reading = read_output(people.rocm_smi_concise_text(PROFILES["mi300x_8"]().with_faults("vram_leaked"), release))

    assert reading.kind == "rocm-smi concise"
    assert not reading.complete
    assert reading.links == ()
    assert codes(reading, "unknown") == ["collect_unsupported_layout"]
    assert [i for i, used in reading.facts["vram_used_percent"].items() if used > 50] == [0]
    assert set(reading.facts["gpu_use_percent"].values()) == {0}


def test_addresses_by_bus() -> None:
    profile = PROFILES["mi300a_4"]()

    new = read_output(people.rocm_smi_showbus_text(profile, "7.0"))
    old = read_output(people.rocm_smi_showbus_text(profile, "6.0"))

    assert [g.bdf for g in new.gpus] == list(profile.bdfs)
    # Without domains four APUs share one address: no key.
    assert [g.bdf for g in old.gpus] == [None] * 4
    assert codes(old, "unknown") == ["collect_inconsistent"]


def test_json_of_other_options_shows_nothing_of_the_node() -> None:
    """``rocm-smi --showmeminfo vram --json``: cards, but nothing that is judged."""
    reading = read('{"card0": {"VRAM Total Memory (B)": "206141652992", "VRAM Total Used Memory (B)": "206141652000"}}')

    assert reading.refused
    assert [(f.code, f.severity) for f in reading.findings] == [("collect_unrecognised", "unknown")]
