"""Kernel command line, limits and reboots of a node: what is wanted, what is in effect, and when a reboot is due.

Pure functions: what `node_probe` read goes in, and what the role `node_tuning` does comes out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError, ValidationInfo, field_validator

from instinct_fleet.binding import runs
from instinct_fleet.rocm import newest_kernel
from instinct_fleet.validation import explain, plain

HEADER = "# Managed by Ansible, role node_tuning.\n"
TOOL = "/usr/local/lib/instinct-fleet/tune-node"
CONFIG = "/etc/instinct-fleet/tuning.json"
CMDLINE_RECORD = "/etc/instinct-fleet/cmdline.json"
UNIT = "instinct-tuning.service"
GRUB_DROP_IN = "/etc/default/grub.d/90-instinct-fleet.cfg"
GRUB_CONFIG = "/boot/grub/grub.cfg"
REBOOT_RECORD = "/etc/ansible/facts.d/instinct_reboot.fact"
BOOT_ID = "/proc/sys/kernel/random/boot_id"
#: Two: one that was wanted, and one for firmware that needs a second boot. A third would be a loop.
MOST_REBOOTS = 2

PROBE_COMMANDS: list[list[str]] = [
    [TOOL, "show"],
    ["ls", "-1", "/boot"],
    ["lscpu"],
    ["modinfo", "-F", "version", "amdgpu"],
    ["systemctl", "show", "--property=DefaultLimitMEMLOCK", "--property=DefaultLimitNOFILE"],
    ["update-grub", "--help"],
]
PROBE_PATHS = [BOOT_ID, CMDLINE_RECORD, GRUB_CONFIG, GRUB_DROP_IN, REBOOT_RECORD]
PROBE_UNITS = [UNIT, "irqbalance.service", "numad.service", "vllm-*.service"]


class Tuning(BaseModel):
    """What is wanted of a node. An empty text or list leaves that setting as the node has it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    boot_loader: str
    iommu: str
    iommu_vendor_option: bool
    pci_realloc_off: bool
    pci_bfsort: bool
    numa_balancing_off: bool
    blacklist_amdgpu: bool
    cmdline_extra: tuple[str, ...]
    sysctl: dict[str, str]
    transparent_hugepage: str
    governor: str
    idle_states_off: tuple[int, ...]
    numad: str
    irqbalance: str
    memlock: str
    nofile: str
    shm_size: str
    acs_off: bool
    swap: str
    root: str

    @field_validator("cmdline_extra")
    @classmethod
    def _plain(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for option in value:
            # It goes into a shell fragment between double quotes.
            if not re.fullmatch(r"[A-Za-z0-9_.,:=/@+-]+", option):
                raise ValueError(f"option {option!r} has characters that a boot loader's file would take for its own")
        return value

    @field_validator("memlock", "nofile")
    @classmethod
    def _limit(cls, value: str, info: ValidationInfo) -> str:
        # systemd and PAM read the same text, and agree on plain numbers only. Without a bound on open files PAM lets
        # nobody in: the kernel refuses more than fs.nr_open.
        words = r"(infinity|\d+)?" if info.field_name == "memlock" else r"\d*"
        if not re.fullmatch(words, value):
            known = "infinity or a number of bytes" if info.field_name == "memlock" else "a number"
            raise ValueError(f"{value!r} is no limit, expected {known}")
        return value

    @field_validator("shm_size")
    @classmethod
    def _size(cls, value: str) -> str:
        if value and not re.fullmatch(r"\d+[KMG]?", value):
            raise ValueError(f"{value!r} is no size, expected such as 64G")
        return value


def _tuning(wanted: Mapping[str, Any]) -> Tuning:
    document = plain(wanted)
    sysctl = document.get("sysctl")
    if isinstance(sysctl, dict):
        # The kernel shows a tab between several values, whatever was written.
        document["sysctl"] = {key: " ".join(str(value).split()) for key, value in sysctl.items()}
    try:
        return Tuning.model_validate(document)
    except ValidationError as exc:
        raise ValueError(explain(exc, Tuning.model_fields)) from exc


def tuning_problems(wanted: Mapping[str, Any]) -> list[str]:
    """Say what cannot be meant by the inputs; nothing is known of a host here."""
    try:
        _tuning(wanted)
    except ValueError as exc:
        return [str(exc)]
    return []


def _bytes(size: str) -> str:
    """Return a size such as 64G in bytes, as text."""
    unit = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(size[-1:], 1)
    return str(int(size.rstrip("KMG")) * unit)


def _said(probe: Mapping[str, Any], argv: Sequence[str]) -> str | None:
    """Return what a command of the probe printed, or None where it could not be run."""
    result = (probe.get("commands") or {}).get(" ".join(argv))
    if not isinstance(result, Mapping) or result.get("path") is None or result.get("error"):
        return None
    return str(result.get("stdout") or "")


# --- kernel command line ---------------------------------------------------------------------------------------------

#: Options whose values add up, over all that is on the line; of any other the last one counts.
_ADDING = ("pci", "modprobe.blacklist", "module_blacklist", "iommu")


def in_effect(cmdline: str, option: str, *, options: Sequence[str] = ()) -> bool:
    """Tell whether an option is in effect on a kernel command line, where a later one can undo an earlier one.

    ``options`` are all that are asked for: one of them undoes no other, since some are given more than once
    (``console=tty0 console=ttyS0``).
    """
    key, _sep, value = option.partition("=")
    values = [word.partition("=")[2] for word in cmdline.split() if word.partition("=")[0] == key]
    if not values:
        return False
    if key in _ADDING:
        parts = [part for text in values for part in text.split(",")]
        if value not in parts:
            return False
        # `iommu=pt iommu=nopt`: both belong to one switch, and the later one holds.
        rivals = {"pt": ("nopt", "off"), "realloc=off": ("realloc=on", "realloc")}.get(value, ())
        after = parts[len(parts) - 1 - parts[::-1].index(value) :]
        return not any(rival in after for rival in rivals)
    if value not in values:
        return False
    ours = {value, *(o.partition("=")[2] for o in options if o.partition("=")[0] == key)}
    return set(values[len(values) - values[::-1].index(value) :]) <= ours


def wanted_options(wanted: Mapping[str, Any], vendor: str | None) -> list[str]:
    """Return the options of the kernel command line, in the order in which they are written.

    Args:
        wanted: inputs, as :class:`Tuning`.
        vendor: CPU vendor as `lscpu` names it, for the option of its IOMMU; None where it is not known.
    """
    tuning = _tuning(wanted)
    options = []
    if tuning.iommu:
        options.append(f"iommu={tuning.iommu}")
    if tuning.iommu_vendor_option and vendor in ("AuthenticAMD", "GenuineIntel"):
        options.append("amd_iommu=on" if vendor == "AuthenticAMD" else "intel_iommu=on")
    if tuning.pci_realloc_off:
        options.append("pci=realloc=off")
    if tuning.pci_bfsort:
        options.append("pci=bfsort")
    if tuning.numa_balancing_off:
        options.append("numa_balancing=disable")
    if tuning.blacklist_amdgpu:
        options.append("modprobe.blacklist=amdgpu")
    # One that stands twice among them is meant twice: each `hugepages=` belongs to the `hugepagesz=` before it.
    return [*options, *(o for o in tuning.cmdline_extra if o not in options)]


def grub_lines(text: str | None) -> list[str]:
    """Return the command lines of a grub.cfg's kernels, without rescue entries (`single`, `recovery`), memory tests."""
    found = re.findall(r"^\s*linux(?:efi|16)?\s+\S*vmlinu\S*[ \t]*(.*)$", text or "", re.M)
    return [line for line in found if not {"single", "recovery"} & set(line.split())]


def _remembered(probe: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the options that this node was given: ``asked`` last time, and ``dropped`` before that."""
    found = _record((probe.get("paths") or {}).get(CMDLINE_RECORD))
    return {key: list(value) if isinstance(value := found.get(key), list) else [] for key in ("asked", "dropped")}


def _dropped(probe: Mapping[str, Any], options: Sequence[str]) -> list[str]:
    """Return the options that were asked for once and are not any more. An option of somebody else's is never here."""
    remembered = _remembered(probe)
    return sorted({*remembered["asked"], *remembered["dropped"]} - set(options))


# --- the plan --------------------------------------------------------------------------------------------------------


def _config(tuning: Tuning) -> dict[str, Any]:
    """Return what tune-node applies."""
    config: dict[str, Any] = {
        "sysctl": tuning.sysctl,
        "transparent_hugepage": tuning.transparent_hugepage,
        "governor": tuning.governor,
        "idle_states": list(tuning.idle_states_off),
        "acs": "off" if tuning.acs_off else "",
        "swap": "off" if tuning.swap == "off" else "",
        "shm_size": _bytes(tuning.shm_size) if tuning.shm_size else "",
        "load_amdgpu": tuning.blacklist_amdgpu,
    }
    return config if tuning.root == "/" else {**config, "root": tuning.root}


def _folder(dest: str) -> dict[str, Any]:
    return {"dest": dest, "state": "directory", "mode": "0755"}


def _file(dest: str, content: str, **more: Any) -> dict[str, Any]:
    """Return an entry for managed_files; a file without content is absent."""
    if not content:
        return {"dest": dest, "state": "absent", "mode": "0644", **more}
    return {"dest": dest, "content": content, "mode": "0644", **more}


def _session_limit(name: str, value: str) -> str:
    """Return a limit as limits.d has it: locked memory in KiB there, and in bytes with systemd."""
    if value == "infinity":
        return "unlimited"
    return str(int(value) // 1024) if name == "memlock" else value


def _files(tuning: Tuning, options: Sequence[str], tool: str) -> list[dict[str, Any]]:
    config = _config(tuning)
    unit = (
        f"{HEADER}[Unit]\nDescription=Settings of the kernel for GPU serving that do not last over a boot\n"
        "After=systemd-sysctl.service systemd-modules-load.service\n\n"
        f"[Service]\nType=oneshot\nRemainAfterExit=yes\nExecStart={TOOL} apply\n\n"
        "[Install]\nWantedBy=multi-user.target\n"
    )
    sysctl = "".join(f"{name} = {value}\n" for name, value in sorted(tuning.sysctl.items()))
    pairs = [(name, value) for name, value in (("memlock", tuning.memlock), ("nofile", tuning.nofile)) if value]
    manager = "".join(f"DefaultLimit{name.upper()}={value}\n" for name, value in pairs)
    limits = "".join(
        f"* {kind} {name} {_session_limit(name, value)}\n" for name, value in pairs for kind in ("soft", "hard")
    )
    found = [
        _folder("/usr/local/lib/instinct-fleet"),
        {**_file(TOOL, tool), "mode": "0755"},
        _folder("/etc/instinct-fleet"),
        _file(CONFIG, json.dumps(config, indent=2, sort_keys=True) + "\n"),
        # systemd looks for the program of a unit, so it is verified only in its place.
        _file(f"/etc/systemd/system/{UNIT}", unit, notify=["node_tuning reload"]),
        _file("/etc/sysctl.d/90-instinct-fleet.conf", sysctl and HEADER + sysctl),
        # systemd gives these to services, which read no limits.conf; limits.d gives them to people's sessions.
        _folder("/etc/systemd/system.conf.d"),
        _file(
            "/etc/systemd/system.conf.d/90-instinct-fleet.conf",
            manager and f"{HEADER}[Manager]\n{manager}",
            notify=["node_tuning reexec"],
        ),
        _folder("/etc/security/limits.d"),
        _file("/etc/security/limits.d/90-instinct-fleet.conf", limits and HEADER + limits),
    ]
    if tuning.boot_loader == "grub":
        line = f'GRUB_CMDLINE_LINUX="$GRUB_CMDLINE_LINUX {" ".join(options)}"\n'
        text = f"{HEADER}# Read by update-grub after /etc/default/grub.\n{line}"
        found += [_folder("/etc/default/grub.d"), _file(GRUB_DROP_IN, text if options else "")]
    return found


def _vendor(probe: Mapping[str, Any]) -> str | None:
    match = re.search(r"^Vendor ID:\s*(\S+)", _said(probe, ["lscpu"]) or "", re.M)
    return match[1] if match else None


def _compare(probe: Mapping[str, Any], tuning: Tuning) -> list[str]:
    """Return a sentence for each setting whose value in effect is not the one wanted."""
    said = _said(probe, [TOOL, "show"])
    try:
        seen = json.loads("{}" if said is None else said)
    except ValueError:
        return [f"what is in effect could not be read: `{TOOL} show` said {(said or 'nothing')[:80]!r}"]
    config = _config(tuning)
    found = []

    def check(name: str, now: Any, wanted: str, variable: str) -> None:
        if now is None and said is None and not name.startswith("systemd"):
            # A bare node. After the first run the tool is there.
            found.append(f"{name} is not known before {TOOL} is there, expected {wanted} ({variable})")
        elif now is None:
            found.append(
                f"{name} could not be read (this node has none, or does not show it), expected {wanted}; "
                f"{variable} leaves it alone when empty"
            )
        elif now != wanted:
            found.append(f"{name} is {now}, expected {wanted} ({variable})")

    for name, value in sorted(tuning.sysctl.items()):
        check(name, (seen.get("sysctl") or {}).get(name), value, "node_tuning_sysctl")
    for name in ("transparent_hugepage", "governor", "acs", "swap", "shm_size"):
        if config[name]:
            variable = {"acs": "node_tuning_acs_off"}.get(name, f"node_tuning_{name}")
            check(name, seen.get(name), config[name], variable)
    if tuning.idle_states_off:
        states = ", ".join(map(str, tuning.idle_states_off))
        check(f"idle state {states}", seen.get("idle_states"), "off", "node_tuning_idle_states_off")
    shown = dict(re.findall(r"^(\w+)=(.*)$", _said(probe, PROBE_COMMANDS[4]) or "", re.M))
    for name, value in (("DefaultLimitMEMLOCK", tuning.memlock), ("DefaultLimitNOFILE", tuning.nofile)):
        if value:
            variable = "node_tuning_memlock" if "MEMLOCK" in name else "node_tuning_nofile"
            check(f"systemd's {name}", shown.get(name), value, variable)
    return found


def _unit_changes(probe: Mapping[str, Any], tuning: Tuning) -> list[dict[str, Any]]:
    """Return the daemons that are not as wanted: {name, state, enabled}. One that is not installed cannot run."""
    changes = []
    for name, policy in (("numad.service", tuning.numad), ("irqbalance.service", tuning.irqbalance)):
        state = (probe.get("units") or {}).get(name) or {}
        if policy == "keep" or state.get("LoadState") in (None, "not-found", "masked"):
            continue
        on = policy == "enabled"
        if (state.get("ActiveState") == "active") != on or (state.get("UnitFileState") == "enabled") != on:
            changes.append({"name": name, "state": "started" if on else "stopped", "enabled": on})
    return changes


def tuning_plan(probe: Mapping[str, Any], *, wanted: Mapping[str, Any], tool: str = "") -> dict[str, Any]:
    """Compare a node with what is wanted on it.

    Args:
        probe: what `node_probe` returned, with :data:`PROBE_COMMANDS`, :data:`PROBE_PATHS` and :data:`PROBE_UNITS`.
        wanted: inputs, as :class:`Tuning`.
        tool: text of the program that applies what does not last.

    Returns:
        ``refusals``; ``options`` of the kernel command line; ``files`` for managed_files, and ``after_grub`` those that
        are written when the boot loader's menu has been; ``units`` to start or stop;
        ``unsettled``: settings whose value in effect is not the one wanted; ``limits_unread``: whether systemd's limits
        are among them; ``grub_stale``: whether the boot loader's
        menu lacks an option (``grub_lacks``) or still has one that was dropped (``grub_leftover``); ``unit_off``:
        whether the unit that applies them at each boot is not enabled or failed.

    Raises:
        ValueError: the inputs are not of their form.
    """
    tuning = _tuning(wanted)
    vendor = _vendor(probe)
    options = wanted_options(wanted, vendor)
    refusals = []
    grub = tuning.boot_loader == "grub"
    if grub and _said(probe, ["update-grub", "--help"]) is None:
        refusals.append(
            "the node has no update-grub, expected Debian's or Ubuntu's GRUB. Set its kernel command line to "
            f"`{' '.join(options)}` by its own means and node_tuning_boot_loader=none"
        )
    if tuning.iommu_vendor_option and vendor not in ("AuthenticAMD", "GenuineIntel"):
        refusals.append(
            f"the CPU's vendor is {vendor or 'not known'}, expected AuthenticAMD or GenuineIntel; "
            "set node_tuning_iommu_vendor_option=false to leave its IOMMU's option out"
        )
    lines = grub_lines((probe.get("paths") or {}).get(GRUB_CONFIG))
    lacking = (
        sorted({o for line in lines for o in options if not in_effect(line, o, options=options)})
        if lines
        else list(options)
    )
    dropped = _dropped(probe, options)
    # Only until it was written once more without them: one that is there then comes from somebody else's file.
    leftover = [o for o in _remembered(probe)["asked"] if o in dropped and any(o in line.split() for line in lines)]
    # For the next run: what it no longer asks for is known as once asked for, and not as somebody else's.
    record = json.dumps({"asked": list(options), "dropped": dropped}, indent=2, sort_keys=True) + "\n"
    remembered = (probe.get("paths") or {}).get(CMDLINE_RECORD)
    state = (probe.get("units") or {}).get(UNIT) or {}
    unsettled = _compare(probe, tuning)
    return {
        "refusals": refusals,
        "options": options,
        "files": _files(tuning, options, tool),
        "after_grub": [_file(CMDLINE_RECORD, record)] if grub and record != remembered else [],
        "units": _unit_changes(probe, tuning),
        "unsettled": unsettled,
        "limits_unread": any(text.startswith("systemd's ") for text in unsettled),
        "grub_stale": grub and bool(lacking or leftover),
        "grub_lacks": lacking if grub else [],
        "grub_leftover": leftover if grub else [],
        "unit_off": state.get("UnitFileState") != "enabled" or state.get("ActiveState") != "active",
    }


def tuning_refusal_text(plan: Mapping[str, Any], *, host: str) -> str:
    """Say why a node is left as it is."""
    return f"{host}: nothing was changed: " + "; ".join(plan["refusals"]) + "."


def tuning_unsettled_text(plan: Mapping[str, Any], *, host: str) -> str:
    """Say what is not in effect although it was applied."""
    problems = list(plan["unsettled"])
    if plan["grub_stale"]:
        problems.append(
            f"{GRUB_CONFIG} has {', '.join(plan['grub_lacks'])} not in effect after update-grub; an option in "
            "/etc/default/grub may undo it: remove it there"
        )
    problems += [f"{unit['name']} is not {unit['state']}" for unit in plan["units"]]
    return f"{host}: after applying: " + "; ".join(problems) + f". `journalctl -u {UNIT}` on the node has more."


# --- reboots ---------------------------------------------------------------------------------------------------------


def gpu_count(probe: Mapping[str, Any]) -> int:
    """Return how many GPUs of AMD are on the PCI bus: accelerators (0x12), and displays (0x0380, 0x0300)."""
    devices = (probe.get("pci") or {}).values()
    return sum(
        d.get("vendor") == "0x1002" and str(d.get("class")).startswith(("0x1200", "0x0380", "0x0300")) for d in devices
    )


def reboot_reasons(probe: Mapping[str, Any], *, wanted: Mapping[str, Any] | None) -> list[str]:
    """Return why a node must be rebooted before what was configured is in effect; empty where it need not be.

    ``wanted`` is None where the node is not tuned, and only the driver counts.
    """
    reasons = []
    cmdline = (probe.get("proc") or {}).get("cmdline")
    if wanted is not None and _tuning(wanted).boot_loader == "grub":
        options = wanted_options(wanted, _vendor(probe))
        if cmdline is None:
            reasons.append("the kernel command line could not be read")
        else:
            lacking = [o for o in dict.fromkeys(options) if not in_effect(cmdline, o, options=options)]
            reasons += [f"kernel command line lacks {o}" for o in lacking]
            kept = [*cmdline.split()]
            given = {o for line in grub_lines((probe.get("paths") or {}).get(GRUB_CONFIG)) for o in line.split()}
            reasons += [
                f"kernel command line still has {o}, which is no longer asked for"
                for o in _dropped(probe, options)
                if o in kept and o not in given
            ]
    module = probe.get("module") or {}
    installed = (_said(probe, PROBE_COMMANDS[3]) or "").strip()
    # The kernel's own driver has no version; one of DKMS has.
    if installed:
        loaded = module.get("version")
        if module.get("amdgpu") and loaded != installed:
            reasons.append(f"driver amdgpu {loaded or 'of the kernel'} is loaded, and {installed} is installed")
        elif not module.get("amdgpu") and gpu_count(probe):
            reasons.append(f"driver amdgpu {installed} is installed and not loaded")
    return reasons


def serving_units(probe: Mapping[str, Any]) -> list[str]:
    """Return the units of vLLM that run, are about to, or end their requests."""
    units = probe.get("units") or {}
    return sorted(name for name, state in units.items() if name.startswith("vllm-") and runs(state))


def _record(text: str | None) -> dict[str, Any]:
    try:
        found = json.loads(text or "{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def reboot_decision(probe: Mapping[str, Any], reasons: Sequence[str], *, drain_allowed: bool = False) -> dict[str, Any]:
    """Decide whether one more reboot may be tried for these reasons.

    Args:
        probe: what node_probe read.
        reasons: why a reboot is needed.
        drain_allowed: whether what serves may be stopped for it.

    Returns:
        ``refusal``: why not, or None; ``drain``: the units to stop before it, which serve; ``record``: the text to keep
        on the node before the reboot.
    """
    record = _record((probe.get("paths") or {}).get(REBOOT_RECORD))
    # A change of which a part came into effect is still the same one.
    known = record.get("reasons")
    same = not record.get("settled") and isinstance(known, list) and set(reasons) <= set(known)
    tried = int(record.get("count") or 0) if same else 0
    refusal = None
    serving = serving_units(probe)
    if serving and not drain_allowed:
        refusal = (
            f"{', '.join(serving)} serves; drain and stop it first, then run again, or set "
            "node_tuning_drain_allowed=true, which stops it when its requests have ended"
        )
    if (probe.get("units") or {}).get(UNIT) is None:
        # systemd tells something of every unit that it is asked for by name, also of one that is not there.
        refusal = "systemd told nothing of the units, so nobody knows whether the node serves; expected their states"
    if tried >= MOST_REBOOTS:
        refusal = (
            f"{tried} reboots did not bring it into effect: {'; '.join(reasons)}. Nothing more is tried. Find out why "
            f"(another boot entry, a read-only /boot, the firmware), then remove {REBOOT_RECORD} on the node"
        )
    kept = known if same and known else reasons
    return {"refusal": refusal, "drain": serving, "record": reboot_record(kept, tried + 1, settled=False)}


def reboot_record(reasons: Sequence[str], count: int, *, settled: bool) -> str:
    """Return the text of the record of reboots: how many there were for which reasons."""
    return json.dumps({"count": count, "reasons": sorted(reasons), "settled": settled}, sort_keys=True) + "\n"


def settled_record(record: str) -> str:
    """Return a record as it is kept once the change is in effect, so that a later change begins to count anew."""
    found = _record(record)
    return reboot_record(found.get("reasons") or [], int(found.get("count", 0)), settled=True)


def reboot_problems(
    before: Mapping[str, Any],
    after: Mapping[str, Any],
    *,
    wanted: Mapping[str, Any] | None,
    expected_gpus: int | None = None,
) -> list[str]:
    """Say what is not as it should be after a reboot: boot id, kernel, command line, driver and number of GPUs."""
    problems = []
    old, new = ((p.get("paths") or {}).get(BOOT_ID) for p in (before, after))
    if not new or old == new:
        problems.append(f"boot id is {str(new).strip()} as before, expected a new one: the node did not reboot")
    kernel = newest_kernel((_said(after, ["ls", "-1", "/boot"]) or "").split())
    if kernel and after.get("kernel") != kernel:
        problems.append(f"kernel {after.get('kernel')} runs, expected {kernel}, the newest in /boot")
    problems += reboot_reasons(after, wanted=wanted)
    expected = gpu_count(before) if expected_gpus is None else expected_gpus
    if gpu_count(after) != expected:
        problems.append(f"{gpu_count(after)} GPUs are on the PCI bus, expected {expected}")
    return problems


def reboot_summary(reasons: Mapping[str, Sequence[str]]) -> str:
    """Say which nodes need a reboot, why, and what allows it."""
    lines = [f"{host}: {'; '.join(why)}" for host, why in sorted(reasons.items()) if why]
    if not lines:
        return "No node needs a reboot."
    count = f"{len(lines)} node{'s need' if len(lines) > 1 else ' needs'} a reboot"
    return (
        f"{count} before what was configured is in effect:\n  "
        + "\n  ".join(lines)
        + "\nSet node_tuning_reboot_allowed=true to reboot them, one after the other."
    )


def tuning_probe_needs(kind: str) -> list[Any]:
    """Return what `node_probe` must read for this module: its ``commands``, ``paths`` or ``units``."""
    needs: dict[str, list[Any]] = {"commands": PROBE_COMMANDS, "paths": PROBE_PATHS, "units": PROBE_UNITS}
    return needs[kind]
