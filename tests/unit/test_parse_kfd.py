from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from support.profile import PROFILES, Pair, mi300x_8, mi300x_cpx_64, mi308x_8
from support.render_sys import kfd_files
from support.tree import sections

from instinct_fleet.parse import kfd


@pytest.mark.parametrize("name", sorted(PROFILES))
def test_every_profile_reads_back(name: str) -> None:
    profile = PROFILES[name]()
    reading = kfd.from_tree(kfd_files(profile), {})

    assert reading.complete
    assert reading.findings == ()
    assert [gpu.bdf for gpu in reading.gpus] == list(profile.bdfs)
    assert [gpu.hip_id for gpu in reading.gpus] == list(profile.hip_ids)
    assert {gpu.device_id for gpu in reading.gpus} == {profile.device_id}
    assert {gpu.arch for gpu in reading.gpus} == {profile.arch}
    assert {gpu.vram_bytes for gpu in reading.gpus} == {profile.vram_bytes}
    assert reading.facts["nearest_cpu_node"] == profile.numa
    assert {(link.a, link.b): (link.raw_type, link.weight, link.accessible) for link in reading.links} == {
        key: (pair.type, pair.weight, pair.accessible) for key, pair in profile.pairs.items()
    }
    mode = None if profile.compute_partition == "N/A" else profile.compute_partition
    assert {gpu.partition.compute for gpu in reading.gpus} == {mode}


def test_two_hives_are_joined_over_pcie_and_both_sockets() -> None:
    reading = kfd.from_tree(kfd_files(PROFILES["mi210_2x4"]()), {})

    assert Counter((link.type, link.weight) for link in reading.links) == {("XGMI", 15): 12, ("SYS", 72): 16}
    assert reading.facts["hives"] == (0, 0, 0, 0, 1, 1, 1, 1)
    assert {link.bandwidth_mbps for link in reading.links if link.type == "SYS"} == {None}


def test_domain_and_location_make_the_address() -> None:
    reading = kfd.from_tree(kfd_files(mi308x_8()), {})

    assert reading.gpus[0].bdf == "0000:0a:00.0"
    assert reading.gpus[4].bdf == "0001:0b:00.0"


def test_missing_domain_leaves_the_address_unknown() -> None:
    files = {path: text.replace("domain 1\n", "") for path, text in kfd_files(mi308x_8()).items()}
    reading = kfd.from_tree(files, {})

    assert sum(gpu.bdf is None for gpu in reading.gpus) == 4
    assert not reading.complete
    assert [(f.code, f.severity) for f in reading.findings] == [("collect_truncated", "unknown")]


def test_partitions_share_a_physical_gpu() -> None:
    reading = kfd.from_tree(kfd_files(mi300x_cpx_64()), {})

    assert reading.facts["partitions"] == (8,) * 8
    assert Counter((link.weight, link.bandwidth_mbps) for link in reading.links) == {
        (13, (819200, 819200)): 224,
        (41, (0, 0)): 1792,
    }


def test_lost_partition_is_a_fact_and_still_cpx() -> None:
    whole = mi300x_cpx_64()
    profile = replace(
        whole,
        bdfs=whole.bdfs[:-1],
        numa=whole.numa[:-1],
        hip_ids=whole.hip_ids[:-1],
        pairs={key: pair for key, pair in whole.pairs.items() if 63 not in key},
    )
    reading = kfd.from_tree(kfd_files(profile), {})

    assert reading.findings == ()
    assert len(reading.gpus) == 63
    assert reading.facts["partitions"] == (8, 8, 8, 8, 8, 8, 8, 7)
    assert {gpu.partition.compute for gpu in reading.gpus} == {"CPX"}


def test_absent_peer_links_matter_only_for_pairs_without_a_direct_one() -> None:
    for profile, severity in ((mi300x_8(), "warning"), (PROFILES["mi210_2x4"](), "unknown")):
        files = {p: t for p, t in kfd_files(profile).items() if "p2p_links/" not in p}
        reading = kfd.from_tree(files, {})

        assert [(f.code, f.severity) for f in reading.findings] == [("collect_truncated", severity)]
        assert {link.accessible for link in reading.links if link.raw_type is None} <= {None}


def test_a_direct_link_says_more_than_a_peer_entry() -> None:
    files = kfd_files(mi300x_8())
    for a, b in ((2, 3), (3, 2)):
        text = files[f"nodes/{a}/p2p_links/0/properties"]
        other = text.split("node_to ")[1].split("\n")[0]
        text = text.replace(f"node_to {other}\n", f"node_to {b}\n").replace("weight 52", "weight 40")
        files[f"nodes/{a}/p2p_links/1/properties"] = text
        files[f"nodes/{a}/properties"] = files[f"nodes/{a}/properties"].replace(
            "p2p_links_count 1", "p2p_links_count 2"
        )
    reading = kfd.from_tree(files, {})

    assert reading.complete, reading.findings
    assert {link.type for link in reading.links} == {"XGMI"}


def test_pair_without_any_link_is_not_accessible() -> None:
    profile = mi300x_8().with_pair(2, 5, Pair(type="PCIE", weight=None, accessible=False), "no_p2p")
    link = next(x for x in kfd.from_tree(kfd_files(profile), {}).links if (x.a, x.b) == (2, 5))

    assert (link.type, link.accessible) == ("UNKNOWN", False)


def test_hidden_gpus_are_not_absent() -> None:
    files = kfd_files(mi300x_8())
    denied = {f"nodes/{n}/{name}": "Operation not permitted" for n in (8, 9) for name in ("gpu_id", "properties")}
    reading = kfd.from_tree({p: t for p, t in files.items() if p not in denied}, denied)

    assert reading.facts["hidden_nodes"] == (8, 9)
    assert len(reading.gpus) == 6
    assert [gpu.hip_id for gpu in reading.gpus] == [None] * 6
    assert [(f.code, f.severity) for f in reading.findings] == [("collect_permission", "unknown")]


def test_nothing_readable_is_a_permission_error() -> None:
    denied = dict.fromkeys(kfd_files(mi300x_8()), "Operation not permitted")
    reading = kfd.from_tree({}, denied)

    assert reading.refused
    assert [(f.code, f.severity) for f in reading.findings] == [("collect_permission", "error")]


def test_a_tree_that_changed_is_not_whole() -> None:
    section = sections(mi300x_8())["kfd"]
    assert kfd.from_probe(section).complete

    reading = kfd.from_probe({**section, "generation_after": "11\n"})
    assert not reading.complete
    assert [f.code for f in reading.findings] == ["collect_changed_meanwhile"]


def test_no_tree_means_no_driver() -> None:
    reading = kfd.from_probe(sections(mi300x_8().with_faults("no_driver"))["kfd"])

    assert reading.refused
    assert [(f.code, f.severity) for f in reading.findings] == [("collect_driver_not_loaded", "error")]


@pytest.mark.parametrize(
    "lost",
    [f"nodes/{path}properties" for path in ("4/", "4/io_links/2/", "4/io_links/0/", "4/p2p_links/0/", "9/")],
)
def test_a_lost_file_is_noticed(lost: str) -> None:
    files = kfd_files(mi300x_8())
    del files[lost]
    reading = kfd.from_tree(files, {})

    assert not reading.complete
    assert any(f.severity == "unknown" for f in reading.findings)


def test_directions_that_differ_make_the_pair_unknown() -> None:
    files = kfd_files(mi300x_8())
    path = next(p for p, t in files.items() if p.startswith("nodes/2/io_links") and "node_to 7\n" in t)
    files[path] = files[path].replace("type 11", "type 2")
    reading = kfd.from_tree(files, {})

    assert next(x for x in reading.links if (x.a, x.b) == (0, 5)).type == "UNKNOWN"
    assert [f.code for f in reading.findings] == ["collect_asymmetric"]


@pytest.mark.parametrize("form", ["### {path}\n{text}", "==> /sys/class/kfd/kfd/topology/{path} <==\n{text}\n", "grep"])
def test_tree_written_out_as_one_text(form: str) -> None:
    files = kfd_files(mi300x_8())
    if form == "grep":
        text = "".join(f"{p}:{line}\n" for p, t in files.items() for line in t.splitlines())
    else:
        text = "".join(form.format(path=p, text=t) for p, t in files.items())

    assert kfd.sniff(text)
    assert kfd.parse(text) == kfd.from_tree(files, {})


def test_other_text_is_refused() -> None:
    reading = kfd.parse("cpu_cores_count 64\nsimd_count 0\n")

    assert reading.refused
    assert [f.code for f in reading.findings] == ["collect_unsupported_layout"]
