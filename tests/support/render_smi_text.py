"""What amd-smi and rocm-smi print for people, and the exports that lose what matters: see :mod:`support.render_smi`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

from support.profile import Pair, Profile
from support.render_smi import (
    MIB,
    PROFILE_INDEX,
    Output,
    amd_output,
    amd_smi_list_json,
    amd_smi_version_json,
    at_least,
    bandwidth_text,
    banner,
    leaked,
    or_na,
    rocm_failure,
    rocm_numa,
    seen,
    seen_pair,
)


def _blocks(documents: Iterable[dict[str, Any]]) -> str:
    """Print documents as amd-smi does without --json: ``GPU: n`` and indented keys in upper case."""

    def section(values: dict[str, Any], depth: int) -> list[str]:
        lines = []
        for key, value in values.items():
            indent = " " * 4 * depth
            if isinstance(value, dict) and set(value) == {"value", "unit"}:
                lines.append(f"{indent}{key.upper()}: {value['value']} {value['unit']}")
            elif isinstance(value, dict):
                lines += [f"{indent}{key.upper()}:", *section(value, depth + 1)]
            else:
                lines.append(f"{indent}{key.upper()}: {value}")
        return lines

    blocks = []
    for document in documents:
        rest = {key: value for key, value in document.items() if key != "gpu"}
        blocks.append("\n".join([f"GPU: {document['gpu']}", *section(rest, 1)]) + "\n")
    return "\n".join(blocks) + "\n"


def _before(stdout: str) -> str:
    return stdout[: min(n for n in (stdout.find("[\n"), stdout.find("{\n")) if n >= 0)]


def _documents(stdout: str) -> list[dict[str, Any]]:
    document = json.loads(stdout[len(_before(stdout)) :])
    documents: list[dict[str, Any]] = document["gpu_data"] if isinstance(document, dict) else document
    return documents


def as_text(output: Output) -> Output:
    """Turn the JSON of list, static or metric into what the same command prints for people."""
    stdout, stderr, rc = output
    if rc or "[\n" not in stdout:
        return output
    return _before(stdout) + _blocks(_documents(stdout)), stderr, rc


def amd_smi_list_extended_text(profile: Profile, release: str) -> Output:
    """``amd-smi list -e`` (6.4 and newer), which also tells the HIP number."""
    profile = seen(profile)
    output = amd_smi_list_json(profile, release)
    if output[2]:
        return output
    documents = _documents(output[0])
    for i, document in enumerate(documents):
        document |= {
            "render": f"renderD{128 + i}",
            "card": f"card{i}",
            "hsa_id": len(profile.nodes) + i,
            "hip_id": profile.hip_ids[i] if profile.hip_ids else "N/A",
            "hip_uuid": f"GPU-{i + 1:016x}",
        }
    return amd_output(profile, release, _blocks(documents))


def amd_smi_partition_text(profile: Profile, release: str, *, root: bool = True) -> Output:
    """``amd-smi partition --current`` (as root), or ``--accelerator`` as a user: a box and N/A."""
    profile = seen(profile)
    if not root:
        warning = "ACCELERATOR_PARTITION_PROFILES requires sudo/root permissions to run."
        head = "GPU_ID  PROFILE_INDEX  MEMORY_PARTITION_CAPS  ACCELERATOR_TYPE  PARTITION_ID     NUM_PARTITIONS"
        box = ["*" * 75, f"** {'WARNING:':<69} **", f"** {warning} **", "*" * 75]
        row = "N/A     N/A            N/A                    N/A               0                N/A"
        body = ["", "ACCELERATOR_PARTITION_PROFILES:", "", *box, "", head, row, "", "", "Legend:", "* = Current mode"]
        return amd_output(profile, release, "\n".join(body) + "\n")
    lines = ["CURRENT_PARTITION:", "GPU_ID  MEMORY  ACCELERATOR_TYPE  ACCELERATOR_PROFILE_INDEX  PARTITION_ID"]
    per_gpu, mode = profile.partitions_per_gpu, profile.compute_partition
    for i in range(profile.count):
        number = str(i % per_gpu)
        if not at_least(release, "6.4"):  # all numbers on the first partition, none on the others
            number = "N/A" if i % per_gpu else ",".join(map(str, range(per_gpu)))
        lines.append(f"{i:<8}{profile.memory_partition:<8}{mode:<18}{PROFILE_INDEX.get(mode, 0):<27}{number}")
    return amd_output(profile, release, "\n".join(lines) + "\n")


def amd_smi_version_text(profile: Profile, release: str) -> Output:
    """``amd-smi version``: one line."""
    output = amd_smi_version_json(profile, release)
    if output[2]:
        return output
    values = _documents(output[0])[0]
    line = (
        f"AMDSMI Tool: {values['version']} | AMDSMI Library version: {values['amdsmi_library_version']} | "
        f"ROCm version: {values['rocm_version']} | amdgpu version: {values['amdgpu_version']} | "
        f"amd_hsmp version: {values['amd_hsmp_driver_version']}\n"
    )
    return amd_output(profile, release, line)


def amd_smi_xgmi_metric_text(profile: Profile, release: str) -> Output:
    """``amd-smi xgmi -m``: rates and accumulated traffic; without XGMI the rates are unsigned -1, run together."""
    profile = seen(profile)
    human = at_least(release, "6.4")
    lines = [
        "LINK METRIC TABLE:",
        "       bdf          bit_rate max_bandwidth link_type " + " ".join(profile.bdfs),
    ]
    for i, bdf in enumerate(profile.bdfs):
        linked = [j for j in range(profile.count) if i != j and profile.pair(i, j).type == "XGMI"]
        rates = "32 Gb/s  512 Gb/s      XGMI" if linked else "65535 Gb/s4294967295 Gb/sN/A"
        lines.append(f"GPU{i}".ljust(7) + f"{bdf} {rates}")
        for word, amount in (("Read", "1.123 PB" if human else "2 KB"), ("Write", "229.1 MB" if human else "1 KB")):
            cells = "".join(f"{amount if j in linked else 'N/A':<13}" for j in range(profile.count))
            lines.append(f" {word:<51} " + cells.rstrip())
    return amd_output(profile, release, "\n".join(lines) + "\n\n")


def amd_smi_monitor_text(profile: Profile, release: str) -> Output:
    """``amd-smi monitor -ptuv``: partitions other than the first have no telemetry."""
    profile = seen(profile)
    mib = profile.vram_bytes // MIB
    if not at_least(release, "6.4"):
        lines = ["GPU  POWER  GPU_TEMP  MEM_TEMP  VRAM_USED  VRAM_TOTAL"]
        lines += [f"{i:>3}  140 W     41 °C     35 °C     283 MB   {mib} MB" for i in range(profile.count)]
        return amd_output(profile, release, "\n".join(lines) + "\n")
    lines = ["GPU  POWER   GPU_T   MEM_T   GFX_CLK   GFX%   MEM%   ENC%   DEC%      VRAM_USAGE"]
    for i in range(profile.count):
        if i % profile.partitions_per_gpu:
            row = "  N/A     N/A     N/A       N/A    N/A    N/A    N/A    N/A"
        else:
            row = "140 W   41 °C   35 °C   132 MHz    0 %    0 %    N/A    0 %"
        lines.append(f"{i:>3}  {row}    0.3/{profile.vram_bytes / 1024**3:>5.1f} GB")
    return amd_output(profile, release, "\n".join(lines) + "\n")


def amd_smi_bare_text(profile: Profile, release: str) -> Output:
    """``amd-smi`` without a command (7.0 and newer)."""
    profile = seen(profile)
    mib = profile.vram_bytes // MIB
    line = f" AMD-SMI 26.0.2+39589fda      amdgpu version: {profile.driver_version}  ROCm version: {release}"
    edge, middle = "+" + "-" * 78 + "+", "|" + "-" * 37 + "+" + "-" * 40 + "|"
    out = [
        edge,
        f"|{line:<78}|",
        f"|{' Platform: Linux Baremetal':<78}|",
        middle,
        "| BDF                        GPU-Name | Mem-Uti   Temp   UEC       Power-Usage |",
        "| GPU  HIP-ID  OAM-ID  Partition-Mode | GFX-Uti    Fan               Mem-Usage |",
        "|" + "=" * 37 + "+" + "=" * 40 + "|",
    ]
    for i, bdf in enumerate(profile.bdfs):
        used = mib * 3 // 4 if i in leaked(profile) else 283
        mode = f"{profile.compute_partition}/{profile.memory_partition}"
        hip = or_na(profile.hip_ids[i] if profile.hip_ids else None)
        oam = or_na(profile.oam_ids[i] if profile.oam_ids else None)
        memory = f"{used}/{mib} MB"
        out.append(f"| {bdf} {profile.market_name:>22} | {'0 %':<10}{'41 °C':<8}0        {'140/750 W':>10} |")
        out.append(f"| {i:>3}  {hip:>6}  {oam:>6}  {mode:>14} | {'0 %':<10} N/A {memory:>23} |")
        out.append(middle)
    out += [edge, f"|{' Processes:':<78}|", f"|{'  No running processes found':<78}|", edge]
    return amd_output(profile, release, "\n".join(out) + "\n")


def amd_smi_topology_csv(profile: Profile, release: str) -> Output:
    """``amd-smi topology --csv``."""
    profile = seen(profile)
    names: dict[str, tuple[str, Callable[[Pair], str]]] = {
        "link_accessibility": ("ENABLED", lambda p: "ENABLED" if p.accessible else "DISABLED"),
        "weight": ("0", lambda p: or_na(p.weight)),
        "hops": ("0", lambda p: or_na(p.hops)),
        "link_type": ("SELF", lambda p: p.type),
        "numa_bandwidth": ("N/A", bandwidth_text),
    }
    count = range(profile.count)
    lines = [",".join(["gpu", "bdf", *(f"{name}_gpu_{j}" for name in names for j in count)])]
    for i, bdf in enumerate(profile.bdfs):
        cells = [own if i == j else cell(seen_pair(profile, i, j)) for own, cell in names.values() for j in count]
        lines.append(",".join([str(i), bdf, *cells]))
    return amd_output(profile, release, "\n".join(lines) + "\n\n")


def rocm_smi_csv(profile: Profile, release: str) -> Output:
    """``rocm-smi --showtopo --csv``: the matrices are lost."""
    profile = seen(profile)
    lines = ["device,(Topology) Numa Node,(Topology) Numa Affinity"]
    for i, numa in enumerate(profile.numa):
        lines.append(f"card{i},{0 if numa is None else numa},{rocm_numa(numa, release)}")
    return rocm_failure(profile) or ("\n".join(lines) + "\n\n", "", 0)


def rocm_smi_showbus_text(profile: Profile, release: str) -> Output:
    """``rocm-smi --showbus``: before 6.1 the PCI domain is lost."""
    profile = seen(profile)
    lines = ["", "", banner("ROCm System Management Interface", release), banner("PCI Bus ID", release)]
    for i, bdf in enumerate(profile.bdfs):
        lines.append(f"GPU[{i}]\t\t: PCI Bus: {bdf if at_least(release, '6.1') else '0000' + bdf[4:]}")
    lines.append(banner("End of ROCm SMI Log", release))
    return rocm_failure(profile) or ("\n".join(lines) + "\n", "", 0)


def rocm_smi_concise_text(profile: Profile, release: str) -> Output:
    """``rocm-smi`` without options: two lines a device in 5.7, one since 6.0, with terminal codes in the heading."""
    profile = seen(profile)
    new = at_least(release, "6.0")
    width = 122 if new else 110
    lines = ["", "", " ROCm System Management Interface ".center(width, "="), " Concise Info ".center(width, "=")]
    if new:
        lines.append(
            "Device  Node  IDs           Temp        Power     Partitions          SCLK  Fan  PwrCap  VRAM%  GPU%"
        )
        lines.append("\x1b[3m              (DID,  GUID)  (Junction)  (Socket)  (Mem, Compute, ID)\x1b[0m")
    else:
        lines.append("Device  [Model : Revision]    Temp    Power  Partitions      SCLK    Fan  PwrCap  VRAM%  GPU%  ")
        lines.append("        Name (20 chars)       (Edge)  (Avg)  (Mem, Compute)  ")
    lines.append("=" * width)
    for i in range(profile.count):
        vram = "75%" if i in leaked(profile) else "0%"
        if new:
            modes = f"{profile.memory_partition}, {profile.compute_partition}, 0"
            ids = f"{profile.device_id}, {10000 + i}"
            lines.append(f"{i:<8}{i + 2:<6}{ids}  48.0°C    145.0W    {modes}    132Mhz  0%   750.0W  {vram:<6} 0%")
        else:
            start = f"{i:<8}[0x0c34 : 0x02]       34.0°C  43.0W  N/A, N/A"
            lines.append(f"{start}        800Mhz  0%   300.0W   {vram}   0%    ")
            lines.append(f"        {profile.market_name.removeprefix('AMD '):<60}")
    lines += ["=" * width, " End of ROCm SMI Log ".center(width, "=")]
    return rocm_failure(profile) or ("\n".join(lines) + "\n", "", 0)
