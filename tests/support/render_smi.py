"""Profile -> what amd-smi and rocm-smi of each release print for that machine: (stdout, stderr, exit code).

Layouts follow the tools' own releases; where the captures are at hand, ``tests/captures`` compares byte for byte.

``Profile.faults`` understood here; those without a number are also shown by :mod:`support.render_sys`:

====================== ==================================================================================
``no_driver``          amdgpu is not loaded
``kfd_missing_gpu``    the last GPU failed its probe: the tools number the others as if it had never been there
``kfd_no_permission``  the user may not open the device nodes: amd-smi gives no data, rocm-smi (sysfs) works
``xgmi_down``          GPU 0 counts uncorrectable XGMI errors, and its first link is down; ``xgmi_down:A-B``
                       only the link between A and B, at both ends
``ecc_uncorrectable``  GPU 0 counts uncorrectable memory errors
``vram_leaked``        three quarters of the memory of GPU 0 are taken though nothing runs
``numa_unknown``       the kernel knows no NUMA node of any GPU
``no_tools``           the tools are not installed (the shell's answer, exit code 127)
``group_warning``      the user is not in ``render`` and ``video``, yet the tool prints its data (ROCm 6.4)
``low_power``          the GPUs are runtime-suspended; the data is still there
``library_error``      one pair makes the library fail, which ends amd-smi's JSON output
``unreadable:N``       every read of GPU N fails
====================== ==================================================================================
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from support.profile import Pair, Profile

Output = tuple[str, str, int]

AMD_SMI_RELEASES = ("5.7", "6.0", "6.1", "6.1.1", "6.2", "6.3", "6.4", "7.0", "7.1", "7.2")
ROCM_SMI_RELEASES = ("4.5", "5.4", "5.7", "6.0", "6.2", "7.0", "7.2")

#: What a pair looks like to a tool that could not read it.
UNREADABLE = Pair(type="N/A", weight=None, hops=None, accessible=None, bandwidth=None)
GROUP_WARNING = (
    "WARNING: User is missing the following required groups: render, video. Please add user to these groups.\n"
)
#: What amd-smi 6.1 to 6.3 print, unpadded, for a bandwidth they could not read.
STATUS_TEXT = "AMDSMI_STATUS_NOT_SUPPORTED - Feature not supported"
MIB = 1024**2


def at_least(release: str, wanted: str) -> bool:
    """Whether ``release`` is ``wanted`` or newer; both like ``6.1.1``."""

    def parts(text: str) -> tuple[int, ...]:
        numbers = [int(p) for p in text.split(".")]
        return tuple(numbers + [0] * (3 - len(numbers)))

    return parts(release) >= parts(wanted)


def seen(profile: Profile) -> Profile:
    """The machine as the tools see it."""
    if "numa_unknown" in profile.faults:
        profile = replace(profile, numa=(None,) * profile.count)
    if "kfd_missing_gpu" not in profile.faults:
        return profile
    left = profile.count - profile.partitions_per_gpu
    return replace(
        profile,
        bdfs=profile.bdfs[:left],
        numa=profile.numa[:left],
        hip_ids=profile.hip_ids[:left],
        oam_ids=profile.oam_ids[:left],
        pairs={pair: link for pair, link in profile.pairs.items() if max(pair) < left},
    )


def fault_args(profile: Profile, name: str) -> tuple[str, ...]:
    """Arguments of every fault called ``name``: ``xgmi_down:2-5`` -> ``("2-5",)``."""
    return tuple(sorted(f.split(":", 1)[1] for f in profile.faults if f.startswith(name + ":")))


def fault_gpus(profile: Profile, name: str) -> frozenset[int]:
    """GPU numbers named by the faults called ``name``; of pairs, both ends."""
    return frozenset(int(n) for arg in fault_args(profile, name) for n in arg.split("-"))


def seen_pair(profile: Profile, a: int, b: int) -> Pair:
    """The path between two GPUs as a tool sees it, which is not at all when a GPU cannot be read."""
    return UNREADABLE if {a, b} & fault_gpus(profile, "unreadable") else profile.pair(a, b)


def or_na(value: Any) -> str:
    return "N/A" if value is None else str(value)


def bandwidth_text(pair: Pair) -> str:
    return "N/A" if pair.bandwidth is None else f"{pair.bandwidth[0]}-{pair.bandwidth[1]}"


def as_json(document: Any) -> str:
    return json.dumps(document, indent=4) + "\n"


def _amd_failure(profile: Profile, release: str) -> Output | None:
    """What every amd-smi command answers when it cannot work at all, or None when it can."""
    if "no_tools" in profile.faults:
        return "", "bash: line 1: amd-smi: command not found\n", 127
    if "no_driver" in profile.faults:
        return "", "ERROR:root:Unable to get devices, driver not initialized (amdgpu not found in modules)\n", 255
    if "kfd_no_permission" in profile.faults:
        if at_least(release, "7.1"):
            lines = ["Permission needed to access required GPU device node(s):"]
            for i in range(profile.count):
                lines.append(f"  - /dev/dri/renderD{128 + i}: Permission denied; owner=root(0):render(110);")
            lines += ["You can try:", "  - Adding the user to the group that owns the device", ""]
            return "\n".join(lines), "", 10
        return "RuntimeError: " + GROUP_WARNING, "", 1
    return None


def amd_output(profile: Profile, release: str, body: str) -> Output:
    """Add what comes before the data of any amd-smi command."""
    failure = _amd_failure(profile, release)
    if failure is not None:
        return failure
    return (GROUP_WARNING if "group_warning" in profile.faults else "") + body, "", 0


def _wrap(release: str, documents: list[dict[str, Any]], *, since: str = "7.0") -> Any:
    """static, metric and monitor are wrapped in ``gpu_data`` since 7.0."""
    return {"gpu_data": documents} if at_least(release, since) else documents


# --- amd-smi topology ---------------------------------------------------------------------------------------------


def _topology_tables(release: str) -> dict[str, Callable[[Pair], str]]:
    tables: dict[str, Callable[[Pair], str]] = {
        "ACCESS": lambda p: {True: "ENABLED", False: "DISABLED", None: "N/A"}[p.accessible],
        "WEIGHT": lambda p: or_na(p.weight),
        "HOPS": lambda p: or_na(p.hops),
        "LINK TYPE": lambda p: p.type,
        "NUMA BW": bandwidth_text,
    }
    if at_least(release, "6.3"):
        known = {
            "CACHE COHERENCY" if at_least(release, "7.2") else "CACHE COHERANCY": ("C", "NC"),
            "ATOMICS": ("64,32", "64,32"),
            "DMA": ("T", "T"),
            "BI-DIRECTIONAL": ("T", "T"),
        }
        for title, (xgmi, pcie) in known.items():
            tables[title] = lambda p, x=xgmi, o=pcie: {"XGMI": x, "PCIE": o}.get(p.type, "N/A")  # type: ignore[misc]
    return tables


DIAGONAL = {"ACCESS": "ENABLED", "WEIGHT": "0", "HOPS": "0", "NUMA BW": "N/A"}


def amd_smi_topology_text(profile: Profile, release: str) -> Output:
    """``amd-smi topology`` as people read it."""
    profile = seen(profile)
    if release == "5.7":
        return amd_output(profile, release, _topology_lists(profile))
    blocks = []
    for title, cell in _topology_tables(release).items():
        lines = [f"{title} TABLE:", " " * 12 + "".join(f"{bdf:>13}" for bdf in profile.bdfs)]
        for i, bdf in enumerate(profile.bdfs):
            cells = []
            for j in range(profile.count):
                text = DIAGONAL.get(title, "SELF") if i == j else cell(seen_pair(profile, i, j))
                if title == "NUMA BW" and i != j and seen_pair(profile, i, j).type == "N/A":
                    text = STATUS_TEXT if not at_least(release, "6.4") else "N/A"
                cells.append(f"{text:>13}" if release == "6.0" else f"{text:<13}")
            row = bdf + "".join(cells) if release == "6.0" else f"{bdf} " + "".join(cells).rstrip()
            lines.append(row)
        blocks.append("\n".join(lines) + "\n")
    body = "".join(b + "\n" for b in blocks) if not at_least(release, "6.2") else "".join(blocks)
    if at_least(release, "6.3"):
        coherent = "Coherent / Non-Coherent" if at_least(release, "7.2") else "Coherant / Non-Coherant"
        body += (
            "\n\nLegend:\n  SELF = Current GPU\n  ENABLED / DISABLED = Link is enabled or disabled\n"
            f"  N/A = Not supported\n  T/F = True / False\n  C/NC = {coherent} io links\n"
            "  64,32 = 64 bit and 32 bit atomic support\n  <BW from>-<BW to>\n"
        )
    return amd_output(profile, release, body)


def _topology_lists(profile: Profile) -> str:
    cells: dict[str, tuple[str, Callable[[Pair], str]]] = {
        "LINK_ACCESSIBILITY": ("true", lambda p: "N/A" if p.accessible is None else str(p.accessible).lower()),
        "WEIGHT": ("0", lambda p: or_na(p.weight)),
        "HOPS": ("0", lambda p: or_na(p.hops)),
        "LINK_TYPE": ("SELF", lambda p: p.type),
        "NUMA_BANDWIDTH": ("N/A", bandwidth_text),
    }
    blocks = []
    for i in range(profile.count):
        lines = [f"GPU: {i}"]
        for title, (own, cell) in cells.items():
            lines.append(f"{title}:")
            for j in range(profile.count):
                lines.append(f"    GPU_{j}: {own if i == j else cell(seen_pair(profile, i, j))}")
        blocks.append("\n".join(lines) + "\n")
    return "\n".join(blocks) + "\n\n"


def amd_smi_topology_json(profile: Profile, release: str, fields: Iterable[str] | None = None) -> Output:
    """``amd-smi topology --json``. ``fields`` limits the keys of a link, as ``-a -t`` and the like do (6.1.1+)."""
    profile = seen(profile)
    if fault_gpus(profile, "unreadable") or "library_error" in profile.faults:
        # The JSON path gives up at the first failed read, on stdout and with exit code 0.
        error = {"error": "AMDSMI has returned error '-1002' - 'Command not supported'", "code": -1002}
        return amd_output(profile, release, json.dumps(error) + "\n")
    documents: list[dict[str, Any]] = []
    for i, bdf in enumerate(profile.bdfs):
        entry: dict[str, Any] = {"gpu": i}
        if at_least(release, "6.1.1"):
            entry["bdf"] = bdf
            entry["links"] = [_json_link(profile, release, i, j, fields) for j in range(profile.count)]
        else:
            old = at_least(release, "6.0")
            own: dict[str, Any] = {
                "link_accessibility": "ENABLED" if old else True,
                "weight": 0,
                "hops": 0,
                "link_type": "SELF",
                "numa_bandwidth": "N/A",
            }
            for key, value in own.items():
                entry[key] = {
                    f"gpu_{j}": value if i == j else _old_value(seen_pair(profile, i, j), key, old)
                    for j in range(profile.count)
                }
        documents.append(entry)
    return amd_output(profile, release, as_json(documents))


def _old_value(pair: Pair, key: str, words: bool) -> Any:
    if key == "link_accessibility":
        if pair.accessible is None:
            return "N/A"
        return ("ENABLED" if pair.accessible else "DISABLED") if words else pair.accessible
    value: Any = {"weight": pair.weight, "hops": pair.hops, "link_type": pair.type}.get(key, bandwidth_text(pair))
    return "N/A" if value is None else value


def _json_link(profile: Profile, release: str, i: int, j: int, fields: Iterable[str] | None) -> dict[str, Any]:
    link: dict[str, Any] = {"gpu": j, "bdf": profile.bdfs[j]}
    if i == j:
        values: dict[str, Any] = {
            "weight": 0,
            "link_status": "ENABLED",
            "link_type": "SELF",
            "num_hops": 0,
            "bandwidth": "N/A",
        }
        extra = dict.fromkeys(("coherent", "atomics", "dma", "bi_dir"), "SELF")
    else:
        pair = seen_pair(profile, i, j)
        values = {
            "weight": "N/A" if pair.weight is None else pair.weight,
            "link_status": {True: "ENABLED", False: "DISABLED", None: "N/A"}[pair.accessible],
            "link_type": pair.type,
            "num_hops": "N/A" if pair.hops is None else pair.hops,
            "bandwidth": bandwidth_text(pair),
        }
        extra = {"coherent": "C" if pair.type == "XGMI" else "NC", "atomics": "64,32", "dma": "T", "bi_dir": "T"}
    if at_least(release, "6.3"):
        values |= extra
    wanted = set(values) if fields is None else set(fields)
    return link | {key: value for key, value in values.items() if key in wanted}


# --- rocm-smi -----------------------------------------------------------------------------------------------------


def rocm_width(release: str) -> int:
    """Width of rocm-smi's banners."""
    return 90 if at_least(release, "6.0") else 84 if at_least(release, "5.7") else 80


def banner(title: str, release: str) -> str:
    # rocm-smi centres with str.center.
    return f" {title} ".center(rocm_width(release), "=")


def rocm_failure(profile: Profile) -> Output | None:
    if "no_tools" in profile.faults:
        return "", "bash: line 1: rocm-smi: command not found\n", 127
    if "no_driver" in profile.faults:
        stderr = (
            "cat: /sys/module/amdgpu/initstate: No such file or directory\n"
            "ERROR:root:Driver not initialized (amdgpu not found in modules)\n"
        )
        return "", stderr, 0
    return None


LOW_POWER_70 = "WARNING: AMD GPUs visible, but data is inaccessible. Check power control/runtime_status\n"
LOW_POWER_72 = "WARNING: AMD GPU device(s) is/are in a low-power state. Check power control/runtime_status\n"

#: Block -> (title, diagonal, word of a failed read, line that a failed read leaves on stdout, word on stderr)
ROCM_MATRICES: dict[str, tuple[str, str, str, str, str]] = {
    "weight": ("Weight between two GPUs", "0", "N/A", "get_link_weight_topology", "Link Weight"),
    "hops": ("Hops between two GPUs", "0", "N/A", "get_link_type_topology", "Link Hops"),
    "type": ("Link Type between two GPUs", "0", "XXXX", "get_link_topology_type", "Link Type"),
    "access": ("Link accessibility between two GPUs", "True", "N/A", "is_P2P_accessible", "Link accessibility"),
    "bandwidth": ("Bandwidth", "N/A", "N/A", "get_min_max_bandwidth", "Bandwidth"),
}


def _rocm_cell(pair: Pair, block: str) -> str | None:
    """The word that rocm-smi prints for a pair, or None for a failed read."""
    if block == "type":
        return None if pair.type == "N/A" else pair.type
    if block == "bandwidth":
        return None if pair.type == "N/A" else bandwidth_text(pair)
    value = {"weight": pair.weight, "hops": pair.hops, "access": pair.accessible}[block]
    return None if value is None else str(value)


def rocm_smi_text(
    profile: Profile, release: str, blocks: tuple[str, ...] = ("weight", "hops", "type", "numa")
) -> Output:
    """``rocm-smi --showtopo`` and its parts; ``blocks`` are those of :data:`ROCM_MATRICES` and ``numa``."""
    profile = seen(profile)
    failure = rocm_failure(profile)
    if failure is not None:
        return failure
    out = ["", "", banner("ROCm System Management Interface", release)]
    errors: list[str] = []
    stderr = ""
    if "low_power" in profile.faults:
        if at_least(release, "7.2"):
            out.append(LOW_POWER_72.rstrip("\n"))
        else:
            stderr = LOW_POWER_70
    for position, block in enumerate(blocks):
        if block == "numa":
            out.append(banner("Numa Nodes", release))
            out += _rocm_numa_lines(profile, release, errors)
            continue
        title, diagonal, failed, noise, word = ROCM_MATRICES[block]
        out.append(banner(title, release))
        rows = []
        for i in range(profile.count):
            cells = []
            for j in range(profile.count):
                cell = diagonal if i == j else _rocm_cell(seen_pair(profile, i, j), block)
                if cell is None:
                    out.append(f"{noise}, Not supported on the given system")
                    errors.append(f"ERROR: GPU[{i}]\t: Cannot read {word}: Not supported on this machine")
                    # Before 5.4 a failed read of a number could not be told from a zero.
                    cell = "0" if failed == "N/A" and not at_least(release, "5.4") else failed
                cells.append(f"{cell:<13}")
            rows.append(f"GPU{i}".ljust(7) + "".join(cells))
        out.append(" " * 7 + "".join(f"GPU{i}".ljust(13) for i in range(profile.count)))
        out += rows
        if position + 1 < len(blocks):
            out.append("")
    out.append(banner("End of ROCm SMI Log", release))
    return "\n".join(out) + "\n", "".join(e + "\n" for e in errors) + stderr, 0


def rocm_numa(value: int | None, release: str) -> str:
    # Up to 5.7 an unknown node (-1) is printed unsigned.
    return ("-1" if at_least(release, "6.0") else "4294967295") if value is None else str(value)


def _rocm_numa_lines(profile: Profile, release: str, errors: list[str]) -> list[str]:
    lines = []
    for i, numa in enumerate(profile.numa):
        if i in fault_gpus(profile, "unreadable"):
            lines.append(f"GPU[{i}]\t\t: get_numa_node_number, Not supported on the given system")
            lines.append("get_numa_affinity_topology, Not supported on the given system")
            errors += [f"ERROR: GPU[{i}]\t: Cannot read Numa Node", f"ERROR: GPU[{i}]\t: Cannot read Numa Affinity"]
            continue
        node = "0" if numa is None else str(numa)
        for line in (
            f"GPU[{i}]\t\t: (Topology) Numa Node: {node}",
            f"GPU[{i}]\t\t: (Topology) Numa Affinity: {rocm_numa(numa, release)}",
        ):
            lines.append(line)
            if not at_least(release, "5.0"):
                lines.append("")
    return lines


def rocm_smi_json(
    profile: Profile, release: str, blocks: tuple[str, ...] = ("weight", "hops", "type", "numa")
) -> Output:
    """``rocm-smi --showtopo --json`` and its parts: upper triangle only, every value a string."""
    profile = seen(profile)
    failure = rocm_failure(profile)
    if failure is not None:
        return failure
    document: dict[str, dict[str, str]] = {}
    if "numa" in blocks:
        for i, numa in enumerate(profile.numa):
            if i in fault_gpus(profile, "unreadable"):
                continue  # the card disappears, its pairs do not
            document[f"card{i}"] = {
                "(Topology) Numa Node": "0" if numa is None else str(numa),
                "(Topology) Numa Affinity": rocm_numa(numa, release),
            }
    words = {"weight": "Weight", "hops": "Hops", "type": "Link type", "access": "Link accessibility"}
    system: dict[str, str] = {}
    for block in blocks:
        for i, j in sorted(profile.pairs) if block in words else ():
            cell = _rocm_cell(seen_pair(profile, i, j), block)
            failed = "XXXX" if block == "type" else "None"
            system[f"(Topology) {words[block]} between DRM devices {i} and {j}"] = failed if cell is None else cell
    if system:
        document["system"] = system
    if not document:
        return "", "WARNING: No JSON data to report\n", 0
    return json.dumps(document) + "\n", LOW_POWER_70 if "low_power" in profile.faults else "", 0


# --- amd-smi, the other commands ----------------------------------------------------------------------------------


def amd_smi_version_json(profile: Profile, release: str) -> Output:
    """``amd-smi version --json``."""
    profile = seen(profile)
    document = [
        {
            "tool": "AMDSMI Tool",
            "version": "26.0.2+39589fda" if at_least(release, "7.0") else "24.7.1+b446d6c",
            "amdsmi_library_version": "26.0.2" if at_least(release, "7.0") else "24.7.2.0",
            "rocm_version": release,
            "amdgpu_version": profile.driver_version,
            "amd_hsmp_driver_version": "N/A",
        }
    ]
    return amd_output(profile, release, as_json(document))


def amd_smi_list_json(profile: Profile, release: str) -> Output:
    """``amd-smi list --json``: stays a bare list in every release."""
    profile = seen(profile)
    documents: list[dict[str, Any]] = []
    for i, bdf in enumerate(profile.bdfs):
        entry: dict[str, Any] = {"gpu": i, "bdf": bdf, "uuid": _uuid(profile, i)}
        if at_least(release, "6.3"):
            entry |= {
                "kfd_id": 10000 + i,
                "node_id": len(profile.nodes) + i,
                "partition_id": i % profile.partitions_per_gpu,
            }
        documents.append(entry)
    return amd_output(profile, release, as_json(documents))


def _uuid(profile: Profile, i: int) -> str:
    return f"00ff{profile.device_id[2:]}-0000-1000-8000-{i + 1:012d}"


def amd_smi_static_json(profile: Profile, release: str) -> Output:
    """``amd-smi static --json``."""
    profile = seen(profile)
    documents = []
    for i, bdf in enumerate(profile.bdfs):
        numa = profile.numa[i]
        entry: dict[str, Any] = {
            "gpu": i,
            "asic": {
                "market_name": profile.market_name,
                "vendor_id": "0x1002",
                "vendor_name": "Advanced Micro Devices Inc. [AMD/ATI]",
                "subvendor_id": "0x1002",
                "device_id": profile.device_id,
                "rev_id": "0x00",
                "asic_serial": f"0x{i + 1:016x}",
                "oam_id": profile.oam_ids[i] if profile.oam_ids else "N/A",
                "num_compute_units": 304,
                "target_graphics_version": profile.arch,
            },
            "bus": {
                "bdf": bdf,
                "max_pcie_width": 16,
                "max_pcie_speed": {"value": 32, "unit": "GT/s"},
                "pcie_interface_version": "Gen 5",
                "slot_type": "OAM",
            },
            ("ifwi" if at_least(release, "7.0") else "vbios"): {
                "name": "AMD MI300X_HW_SRIOV_CVS_1VF",
                "version": "022.040",
            },
            "driver": {"name": "amdgpu", "version": profile.driver_version},
            "numa": {"node": "NONE" if numa is None else numa, "affinity": "NONE" if numa is None else numa},
            "vram": {"type": "HBM", "vendor": "HYNIX", "size": {"value": profile.vram_bytes // MIB, "unit": "MB"}},
        }
        if not at_least(release, "7.0"):
            entry["partition"] = {
                "compute_partition": profile.compute_partition,
                "memory_partition": profile.memory_partition,
                "partition_id": i % profile.partitions_per_gpu,
            }
        documents.append(entry)
    return amd_output(profile, release, as_json(_wrap(release, documents)))


#: Index that the driver gives to the partition profile of a mode.
PROFILE_INDEX = {"SPX": 0, "DPX": 1, "TPX": 2, "QPX": 2, "CPX": 3}


def amd_smi_partition_json(profile: Profile, release: str) -> Output:
    """``amd-smi partition --json``: one document a section, one after the other, and a legend."""
    profile = seen(profile)
    current = [
        {
            "gpu_id": i,
            "memory": profile.memory_partition,
            "accelerator_type": profile.compute_partition,
            "accelerator_profile_index": PROFILE_INDEX.get(profile.compute_partition, 0),
            "partition_id": str(i % profile.partitions_per_gpu),
        }
        for i in range(profile.count)
    ]
    memory = [
        {
            "gpu_id": i,
            "memory_partition_caps": "NPS1,NPS4",
            "current_memory_partition": profile.memory_partition,
        }
        for i in range(0, profile.count, profile.partitions_per_gpu)
    ]
    return amd_output(profile, release, as_json(current) + as_json(memory) + "\n\nLegend:\n  * = Current mode\n")


def amd_smi_process_json(profile: Profile, release: str) -> Output:
    """``amd-smi process --json`` of a machine on which nothing runs."""
    profile = seen(profile)
    documents = [
        {"gpu": i, "process_list": [{"process_info": "No running processes detected"}]} for i in range(profile.count)
    ]
    return amd_output(profile, release, as_json(documents))


ECC_BLOCKS = ("UMC", "SDMA", "GFX", "MMHUB", "PCIE_BIF", "HDP", "XGMI_WAFL")


def amd_smi_metric_ecc_json(profile: Profile, release: str) -> Output:
    """``amd-smi metric --ecc --ecc-blocks --json``."""
    profile = seen(profile)
    documents = []
    for i in range(profile.count):
        bad = {
            "XGMI_WAFL": 3 if i == 0 and "xgmi_down" in profile.faults else 0,
            "UMC": 1 if i == 0 and "ecc_uncorrectable" in profile.faults else 0,
        }
        blocks = {
            name: {"correctable_count": 0, "uncorrectable_count": bad.get(name, 0), "deferred_count": 0}
            for name in ECC_BLOCKS
        }
        ecc = {
            "total_correctable_count": 0,
            "total_uncorrectable_count": sum(bad.values()),
            "total_deferred_count": 0,
            "cache_correctable_count": "N/A",
            "cache_uncorrectable_count": "N/A",
        }
        documents.append({"gpu": i, "ecc": ecc, "ecc_blocks": blocks})
    return amd_output(profile, release, as_json(_wrap(release, documents)))


def leaked(profile: Profile) -> frozenset[int]:
    """GPUs whose memory is taken though nothing runs."""
    return frozenset({0}) if "vram_leaked" in profile.faults else frozenset()


def amd_smi_metric_memory_json(profile: Profile, release: str) -> Output:
    """``amd-smi metric --mem-usage --json``: whole MB."""
    profile = seen(profile)
    documents = []
    total = profile.vram_bytes // MIB
    for i in range(profile.count):
        used = total * 3 // 4 if i in leaked(profile) else 283
        usage = {
            "total_vram": {"value": total, "unit": "MB"},
            "used_vram": {"value": used, "unit": "MB"},
            "free_vram": {"value": total - used, "unit": "MB"},
        }
        documents.append({"gpu": i, "mem_usage": usage})
    return amd_output(profile, release, as_json(_wrap(release, documents)))


def _down(profile: Profile) -> frozenset[tuple[int, int]]:
    named = [tuple(sorted(int(n) for n in arg.split("-"))) for arg in fault_args(profile, "xgmi_down")]
    pairs = {(pair[0], pair[1]) for pair in named}
    return frozenset(pairs | ({(0, 1)} if "xgmi_down" in profile.faults else set()))


def _port_states(profile: Profile, i: int) -> list[str]:
    """State of the XGMI ports: one a peer on another module, in order, the rest disabled."""
    states = []
    for j in range(0, profile.count, profile.partitions_per_gpu):
        if profile.physical[i] != profile.physical[j] and profile.pair(i, j).type == "XGMI":
            states.append("D" if (min(i, j), max(i, j)) in _down(profile) else "U")
    return (states + ["X"] * 8)[: max(8, len(states))]


def amd_smi_xgmi_status_text(profile: Profile, release: str) -> Output:
    """``amd-smi xgmi -l``: one table in 6.4, ports and a matrix of peers since 7.0."""
    profile = seen(profile)
    if not at_least(release, "7.0"):
        lines = ["", "XGMI LINK STATUS:", "    bdf           link_status"]
        for i, bdf in enumerate(profile.bdfs):
            lines.append(f"GPU{i}".ljust(7) + f"{bdf}  " + "  ".join(_port_states(profile, i)))
        lines += ["", "* U:Up D:Down X:Disabled"]
        return amd_output(profile, release, "\n".join(lines) + "\n")
    lines = ["GPU LINK PORT STATUS:", "       bdf           port_num            "]
    for i, bdf in enumerate(profile.bdfs):
        lines.append(f"GPU{i}".ljust(7) + f"{bdf}  " + "  ".join(_port_states(profile, i)))
    down = _down(profile)
    lines += [
        "",
        "XGMI LINK STATUS:",
        " " * 8 + "bdf".ljust(15) + "".join(f"GPU{j}".ljust(14) for j in range(profile.count)),
    ]
    for i, bdf in enumerate(profile.bdfs):
        cells = []
        for j in range(profile.count):
            state = "N/A" if i == j or profile.pair(i, j).type != "XGMI" else "U"
            if (min(i, j), max(i, j)) in down:
                state = "D"
            cells.append(f"{'SELF' if i == j else state:<14}")
        lines.append(f"GPU{i}\t{bdf}   " + "".join(cells).rstrip())
    lines += ["", "", "Legend:", "  SELF = Current GPU", "  N/A = Not supported"]
    lines += ["  U / D / X = Link is Up / Down / Disabled"]
    return amd_output(profile, release, "\n".join(lines) + "\n")


def render_commands(profile: Profile) -> dict[str, Output]:
    """Answers of the profile's own release, keyed by the command line as ``node_probe`` types it."""
    release = profile.rocm_version
    return {
        "amd-smi topology --json": amd_smi_topology_json(profile, release),
        "amd-smi static --json": amd_smi_static_json(profile, release),
        "amd-smi version --json": amd_smi_version_json(profile, release),
        "amd-smi partition --json": amd_smi_partition_json(profile, release),
        "amd-smi list --json": amd_smi_list_json(profile, release),
        "amd-smi xgmi -l": amd_smi_xgmi_status_text(profile, release),
        "amd-smi metric --ecc --ecc-blocks --json": amd_smi_metric_ecc_json(profile, release),
        "amd-smi metric --mem-usage --json": amd_smi_metric_memory_json(profile, release),
        "amd-smi process --json": amd_smi_process_json(profile, release),
        "rocm-smi --showtopo --json": rocm_smi_json(profile, release),
        "rocm-smi --showtopo": rocm_smi_text(profile, release),
    }
