"""Kernel command line, values in effect, and when a reboot is due, allowed, and done."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from instinct_fleet import tuning

REPO = Path(__file__).resolve().parents[2]
DEFAULTS = yaml.safe_load((REPO / "roles/node_tuning/defaults/main.yml").read_text())
NOT_WANTED = ("enabled", "drain_allowed", "reboot_allowed", "reboot_timeout", "expected_gpus", "probe")
OPTIONS = ["iommu=pt", "amd_iommu=on", "pci=realloc=off", "numa_balancing=disable"]
LINE = "root=/dev/sda1 ro quiet " + " ".join(OPTIONS)
SHOWN = {
    "sysctl": {"kernel.numa_balancing": "0", "vm.swappiness": "1"},
    "transparent_hugepage": "madvise",
    "governor": "performance",
    "idle_states": "off",
    "acs": "on (3), off (1)",
    "swap": "off",
    "shm_size": str(64 << 30),
}


def wanted(**changes: Any) -> dict[str, Any]:
    """Return the role's defaults as it hands them over."""
    names = {key.removeprefix("node_tuning_"): value for key, value in DEFAULTS.items()}
    return {**{k: v for k, v in names.items() if k not in NOT_WANTED}, **changes}


def said(stdout: str) -> dict[str, Any]:
    return {"path": "/usr/bin/tool", "rc": 0, "stdout": stdout, "stderr": "", "error": None}


def node(cmdline: str = LINE, shown: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    """Return what node_probe reads of a converged node."""
    commands = {
        f"{tuning.TOOL} show": said(json.dumps({**SHOWN, **(shown or {})})),
        "ls -1 /boot": said("vmlinuz-6.8.0-86-generic\nvmlinuz-6.8.0-9-generic\n"),
        "lscpu": said("Architecture:  x86_64\nVendor ID:     AuthenticAMD\n"),
        "modinfo -F version amdgpu": said("6.14.14\n"),
        " ".join(tuning.PROBE_COMMANDS[4]): said("DefaultLimitNOFILE=1048576\nDefaultLimitMEMLOCK=infinity\n"),
        "update-grub --help": said(""),
        **changes.pop("commands", {}),
    }
    return {
        "kernel": "6.8.0-86-generic",
        "proc": {"cmdline": cmdline},
        "module": {"amdgpu": True, "version": "6.14.14"},
        "pci": {f"0000:{n:02x}:00.0": {"vendor": "0x1002", "class": "0x120000"} for n in range(8)},
        "paths": {
            tuning.GRUB_CONFIG: f"menuentry x {{\n\tlinux\t/boot/vmlinuz {LINE}\n}}\n\tlinux /boot/vmlinuz ro single\n",
            tuning.BOOT_ID: "one\n",
        },
        "units": {tuning.UNIT: {"UnitFileState": "enabled", "ActiveState": "active"}},
        "commands": commands,
        **changes,
    }


def plan(probe: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return tuning.tuning_plan(probe, wanted=wanted(**changes), tool="#!/usr/bin/python3\n")


def content(made: dict[str, Any], dest: str) -> str | None:
    entry = next(f for f in made["files"] if f["dest"] == dest)
    return entry.get("content")


# --- command line ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "option", "expected"),
    [
        ("ro iommu=pt", "iommu=pt", True),
        ("ro", "iommu=pt", False),
        ("iommu=soft,pt", "iommu=pt", True),
        ("iommu=pt iommu=nopt", "iommu=pt", False),
        ("iommu=nopt iommu=pt", "iommu=pt", True),
        ("iommu=pt iommu=off", "iommu=pt", False),
        ("amd_iommu=on amd_iommu=off", "amd_iommu=on", False),
        ("amd_iommu=off amd_iommu=on", "amd_iommu=on", True),
        ("pci=realloc=off pci=bfsort", "pci=realloc=off", True),
        ("pci=bfsort,realloc=off", "pci=realloc=off", True),
        ("pci=realloc=off,bfsort", "pci=bfsort", True),
        ("pci=realloc=off pci=realloc=on", "pci=realloc=off", False),
        ("modprobe.blacklist=nouveau,amdgpu", "modprobe.blacklist=amdgpu", True),
        ("xiommu=pt", "iommu=pt", False),
        ("iommu=ptx", "iommu=pt", False),
        ("quiet", "quiet", True),
    ],
)
def test_the_later_option_counts(line: str, option: str, expected: bool) -> None:
    assert tuning.in_effect(line, option) is expected


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("ro console=tty0 console=ttyS0,115200", True),
        ("ro console=ttyS1 console=tty0 console=ttyS0,115200", True),
        ("ro console=tty0 console=ttyS0,115200 console=ttyS1", False),
        ("ro console=tty0", False),
    ],
)
def test_options_that_are_given_more_than_once(line: str, expected: bool) -> None:
    extra = ["console=tty0", "console=ttyS0,115200"]
    probe = node(paths={tuning.GRUB_CONFIG: f"\tlinux /boot/vmlinuz {LINE} {line}\n"}, cmdline=f"{LINE} {line}")
    assert plan(probe, cmdline_extra=extra)["grub_stale"] is not expected
    assert (tuning.reboot_reasons(probe, wanted=wanted(cmdline_extra=extra)) == []) is expected


def test_an_option_that_stands_twice_is_meant_twice() -> None:
    pages = ["hugepagesz=1G", "hugepages=8", "hugepagesz=2M", "hugepages=8"]
    assert tuning.wanted_options(wanted(cmdline_extra=["iommu=pt", *pages]), "AuthenticAMD") == [*OPTIONS, *pages]


def test_each_option_is_a_knob() -> None:
    assert tuning.wanted_options(wanted(), "AuthenticAMD") == OPTIONS
    assert tuning.wanted_options(wanted(), "GenuineIntel")[1] == "intel_iommu=on"
    off = wanted(iommu="", iommu_vendor_option=False, pci_realloc_off=False, numa_balancing_off=False)
    assert tuning.wanted_options(off, "AuthenticAMD") == []
    on = {"pci_bfsort": True, "blacklist_amdgpu": True, "cmdline_extra": ["pcie_aspm=off", "iommu=pt"]}
    more = tuning.wanted_options(wanted(**on), "AuthenticAMD")
    assert more == [*OPTIONS[:3], "pci=bfsort", OPTIONS[3], "modprobe.blacklist=amdgpu", "pcie_aspm=off"]


def test_the_drop_in_keeps_what_the_node_has() -> None:
    text = content(plan(node()), tuning.GRUB_DROP_IN)
    assert text is not None
    assert f'\nGRUB_CMDLINE_LINUX="$GRUB_CMDLINE_LINUX {" ".join(OPTIONS)}"\n' in text
    none = {"iommu": "", "iommu_vendor_option": False, "pci_realloc_off": False, "numa_balancing_off": False}
    assert content(plan(node(), **none), tuning.GRUB_DROP_IN) is None
    assert tuning.GRUB_DROP_IN not in [f["dest"] for f in plan(node(), boot_loader="none")["files"]]


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"cmdline_extra": ['a"; reboot']}, "has characters that a boot loader's file would take for its own"),
        ({"shm_size": "half"}, "'half' is no size, expected such as 64G"),
        ({"idle_states_off": ["C2"]}, "idle_states_off.0 is 'C2'"),
        ({"memlock": "64G"}, "'64G' is no limit, expected infinity or a number of bytes"),
        ({"nofile": "infinity"}, "'infinity' is no limit, expected a number"),
        ({"governer": "performance"}, "unknown key 'governer' (did you mean 'governor'?)"),
    ],
)
def test_values_that_cannot_be_meant(changes: dict[str, Any], text: str) -> None:
    (problem,) = tuning.tuning_problems(wanted(**changes))
    assert text in problem
    assert tuning.tuning_problems(wanted()) == []


# --- the plan --------------------------------------------------------------------------------------------------------


def test_a_converged_node_has_nothing_to_do() -> None:
    made = plan(node())
    assert (made["refusals"], made["unsettled"], made["units"]) == ([], [], [])
    assert not made["grub_stale"]
    assert not made["unit_off"]
    assert tuning.reboot_reasons(node(), wanted=wanted()) == []


@pytest.mark.parametrize(
    ("shown", "changes", "text"),
    [
        ({"governor": "performance (1), powersave (1)"}, {},
         "governor is performance (1), powersave (1), expected performance (node_tuning_governor)"),
        ({"governor": None}, {},
         "governor could not be read (this node has none, or does not show it), expected performance; "
         "node_tuning_governor leaves it alone when empty"),
        ({"sysctl": {"kernel.numa_balancing": "1", "vm.swappiness": "1"}}, {},
         "kernel.numa_balancing is 1, expected 0 (node_tuning_sysctl)"),
        ({"idle_states": "on"}, {}, "idle state 2 is on, expected off (node_tuning_idle_states_off)"),
        ({}, {"acs_off": True}, "acs is on (3), off (1), expected off (node_tuning_acs_off)"),
        ({"swap": "on: /dev/sda2"}, {"swap": "off"}, "swap is on: /dev/sda2, expected off (node_tuning_swap)"),
        ({}, {"shm_size": "32G"}, f"shm_size is {64 << 30}, expected {32 << 30} (node_tuning_shm_size)"),
        ({}, {"transparent_hugepage": "always"},
         "transparent_hugepage is madvise, expected always (node_tuning_transparent_hugepage)"),
        ({}, {"memlock": "1024"}, "systemd's DefaultLimitMEMLOCK is infinity, expected 1024 (node_tuning_memlock)"),
    ],
)  # fmt: skip
def test_a_value_that_did_not_take_is_named_with_both(
    shown: dict[str, Any], changes: dict[str, Any], text: str
) -> None:
    made = plan(node(shown=shown), **changes)
    assert made["unsettled"] == [text]
    assert text in tuning.tuning_unsettled_text(made, host="n1")


def test_what_could_not_be_read_is_not_as_wanted() -> None:
    missing = {"path": None, "rc": None, "stdout": "", "stderr": "", "error": "not found"}
    for answer in (said(""), said("Traceback")):
        assert "could not be read: `" in plan(node(commands={f"{tuning.TOOL} show": answer}))["unsettled"][0]
    # A bare node: each value is named, since check mode shows what would become of it.
    bare = plan(node(commands={f"{tuning.TOOL} show": missing}), swap="off")["unsettled"]
    assert f"swap is not known before {tuning.TOOL} is there, expected off (node_tuning_swap)" in bare
    assert len(bare) == 5
    limits = plan(node(commands={" ".join(tuning.PROBE_COMMANDS[4]): missing}))["unsettled"]
    assert limits[0].startswith("systemd's DefaultLimitMEMLOCK could not be read")


def test_the_boot_loaders_menu_is_checked() -> None:
    undone = node(paths={tuning.GRUB_CONFIG: f"\tlinux /boot/vmlinuz {LINE} iommu=nopt\n"})
    made = plan(undone)
    assert made["grub_stale"]
    assert "/boot/grub/grub.cfg has iommu=pt not in effect after update-grub" in tuning.tuning_unsettled_text(
        made, host="n1"
    )
    assert plan(node(paths={}))["grub_lacks"] == OPTIONS
    assert not plan(undone, boot_loader="none")["grub_stale"]


def test_rescue_entries_and_memory_tests_need_no_options() -> None:
    text = (
        "\tlinux\t/boot/vmlinuz-6.1 root=UUID=a ro quiet\n\tlinuxefi /vmlinuz-6.1 ro x\n"
        "\tlinux /boot/vmlinuz-6.1 ro single\n"
        "\tlinux /boot/vmlinuz-6.1 ro recovery nomodeset\n"
        "\tlinux16 /boot/memtest86+.bin\n\tinitrd /boot/initrd.img-6.1\n"
    )
    assert tuning.grub_lines(text) == ["root=UUID=a ro quiet", "ro x"]
    assert tuning.grub_lines(None) == []


def test_a_node_without_grub_or_with_an_unknown_cpu_is_refused() -> None:
    missing = {"path": None, "rc": None, "stdout": "", "stderr": "", "error": "not found"}
    no_grub = plan(node(commands={"update-grub --help": missing}))
    text = tuning.tuning_refusal_text(no_grub, host="n1")
    assert text.startswith("n1: nothing was changed: the node has no update-grub")
    assert f"`{' '.join(OPTIONS)}`" in text
    assert plan(node(commands={"update-grub --help": missing}), boot_loader="none")["refusals"] == []
    cpu = plan(node(commands={"lscpu": said("Vendor ID: Other\n")}))["refusals"][0]
    assert "the CPU's vendor is Other, expected AuthenticAMD or GenuineIntel" in cpu


@pytest.mark.parametrize(
    ("state", "policy", "expected"),
    [
        ({"LoadState": "loaded", "ActiveState": "active", "UnitFileState": "enabled"}, "disabled", "stopped"),
        ({"LoadState": "loaded", "ActiveState": "inactive", "UnitFileState": "disabled"}, "enabled", "started"),
        ({"LoadState": "loaded", "ActiveState": "inactive", "UnitFileState": "disabled"}, "disabled", None),
        ({"LoadState": "loaded", "ActiveState": "inactive", "UnitFileState": "enabled"}, "disabled", "stopped"),
        ({"LoadState": "not-found", "ActiveState": "inactive"}, "enabled", None),
        ({"LoadState": "loaded", "ActiveState": "active", "UnitFileState": "enabled"}, "keep", None),
        (None, "disabled", None),
    ],
)
def test_daemons(state: dict[str, str] | None, policy: str, expected: str | None) -> None:
    probe = node()
    probe["units"]["irqbalance.service"] = state
    made = plan(probe, irqbalance=policy)["units"]
    assert [unit["state"] for unit in made] == ([expected] if expected else [])


def test_limits_reach_services_and_sessions() -> None:
    made = plan(node())
    manager = content(made, "/etc/systemd/system.conf.d/90-instinct-fleet.conf")
    assert manager is not None
    assert manager.endswith("[Manager]\nDefaultLimitMEMLOCK=infinity\nDefaultLimitNOFILE=1048576\n")
    sessions = content(made, "/etc/security/limits.d/90-instinct-fleet.conf")
    assert sessions is not None
    assert "* soft memlock unlimited\n* hard memlock unlimited\n* soft nofile 1048576\n" in sessions
    assert content(plan(node(), memlock="", nofile=""), "/etc/security/limits.d/90-instinct-fleet.conf") is None
    # systemd counts bytes, limits.d KiB.
    made = plan(node(), memlock=str(64 << 30))
    manager = content(made, "/etc/systemd/system.conf.d/90-instinct-fleet.conf")
    assert manager is not None
    assert "DefaultLimitMEMLOCK=68719476736\n" in manager
    sessions = content(made, "/etc/security/limits.d/90-instinct-fleet.conf")
    assert sessions is not None
    assert "* hard memlock 67108864\n" in sessions


def test_limits_that_systemd_has_not_read_are_told_apart() -> None:
    # They are on the disk already when a run ended between the file and the handler.
    assert plan(node())["limits_unread"] is False
    unread = said("DefaultLimitNOFILE=524288\nDefaultLimitMEMLOCK=infinity\n")
    assert plan(node(commands={" ".join(tuning.PROBE_COMMANDS[4]): unread}))["limits_unread"] is True


# --- reboots ---------------------------------------------------------------------------------------------------------


def test_reasons_for_a_reboot() -> None:
    bare = node(cmdline="root=/dev/sda1 ro quiet")
    assert tuning.reboot_reasons(bare, wanted=wanted()) == [f"kernel command line lacks {o}" for o in OPTIONS]
    assert tuning.reboot_reasons(bare, wanted=None) == []
    assert tuning.reboot_reasons(bare, wanted=wanted(boot_loader="none")) == []
    assert tuning.reboot_reasons(node(proc={}), wanted=wanted()) == ["the kernel command line could not be read"]
    old = node(module={"amdgpu": True, "version": "6.12.12"})
    assert tuning.reboot_reasons(old, wanted=None) == ["driver amdgpu 6.12.12 is loaded, and 6.14.14 is installed"]
    kernels_own = node(module={"amdgpu": True, "version": None})
    assert tuning.reboot_reasons(kernels_own, wanted=None) == [
        "driver amdgpu of the kernel is loaded, and 6.14.14 is installed"
    ]
    unloaded = node(module={"amdgpu": False, "version": None})
    assert tuning.reboot_reasons(unloaded, wanted=None) == ["driver amdgpu 6.14.14 is installed and not loaded"]
    assert tuning.reboot_reasons({**unloaded, "pci": {}}, wanted=None) == []


def test_an_option_that_is_no_longer_asked_for_goes_away_and_stays_away() -> None:
    extra = wanted(cmdline_extra=["pcie_aspm=off"])
    menu = f"\tlinux\t/boot/vmlinuz {LINE} pcie_aspm=off\n"
    (record,) = tuning.tuning_plan(node(), wanted=extra)["after_grub"]
    paths = {tuning.CMDLINE_RECORD: record["content"], tuning.GRUB_CONFIG: menu}
    probe = node(cmdline=f"{LINE} pcie_aspm=off", paths=paths)
    assert not tuning.tuning_plan(probe, wanted=extra)["grub_stale"]
    assert tuning.tuning_plan(probe, wanted=extra)["after_grub"] == []
    made = plan(probe)
    assert (made["grub_stale"], made["grub_leftover"]) == (True, ["pcie_aspm=off"])
    # What is written before the menu tells nothing of it: where that fails, the next run writes it again.
    assert not any("pcie_aspm" in str(entry) for entry in made["files"])
    # Written once more without it: the kernel that runs still has it, the next one will not.
    (record,) = made["after_grub"]
    after = {**node()["paths"], tuning.CMDLINE_RECORD: record["content"]}
    probe = node(cmdline=f"{LINE} pcie_aspm=off", paths=after)
    assert not plan(probe)["grub_stale"]
    assert plan(probe)["after_grub"] == []
    assert tuning.reboot_reasons(probe, wanted=wanted()) == [
        "kernel command line still has pcie_aspm=off, which is no longer asked for"
    ]
    # Somebody else's file asks for it: that is theirs.
    probe["paths"][tuning.GRUB_CONFIG] = menu
    assert not plan(probe)["grub_stale"]
    assert tuning.reboot_reasons(probe, wanted=wanted()) == []


@pytest.mark.parametrize("text", [None, "", "[]", '{"asked": 1}', '{"dropped": []}', "not json"])
def test_a_configuration_of_another_form_names_no_option(text: str | None) -> None:
    probe = node(cmdline=f"{LINE} pcie_aspm=off")
    probe["paths"][tuning.CMDLINE_RECORD] = text
    assert not plan(probe)["grub_stale"]
    assert tuning.reboot_reasons(probe, wanted=wanted()) == []


def test_at_most_two_reboots_for_one_change() -> None:
    reasons = ["kernel command line lacks iommu=pt"]
    probe = node(cmdline="ro")
    counts = []
    for _attempt in range(3):
        decision = tuning.reboot_decision(probe, reasons)
        counts.append((json.loads(decision["record"])["count"], decision["refusal"] is None))
        probe["paths"][tuning.REBOOT_RECORD] = decision["record"]
    assert counts == [(1, True), (2, True), (3, False)]
    refusal = tuning.reboot_decision(node(paths={tuning.REBOOT_RECORD: tuning.reboot_record(
        reasons, 2, settled=False)}), reasons)["refusal"]  # fmt: skip
    assert refusal.startswith("2 reboots did not bring it into effect: kernel command line lacks iommu=pt.")
    assert f"then remove {tuning.REBOOT_RECORD} on the node" in refusal


def test_a_change_of_which_a_part_came_into_effect_is_counted_on() -> None:
    record = tuning.reboot_record(["a", "b"], 1, settled=False)
    decision = tuning.reboot_decision(node(paths={tuning.REBOOT_RECORD: record}), ["b"])
    assert json.loads(decision["record"]) == {"count": 2, "reasons": ["a", "b"], "settled": False}
    more = tuning.reboot_decision(node(paths={tuning.REBOOT_RECORD: record}), ["b", "c"])
    assert json.loads(more["record"])["count"] == 1


@pytest.mark.parametrize(
    "record", ["", "not json", "[]", "null", "{}", '{"reasons": ["other"], "count": 2, "settled": false}']
)
def test_another_change_or_a_damaged_record_begins_anew(record: str) -> None:
    decision = tuning.reboot_decision(node(paths={tuning.REBOOT_RECORD: record}), ["a"])
    assert decision["refusal"] is None
    assert json.loads(decision["record"]) == {"count": 1, "reasons": ["a"], "settled": False}


def test_a_change_that_came_into_effect_is_not_counted_again() -> None:
    record = tuning.settled_record(tuning.reboot_record(["a"], 2, settled=False))
    assert json.loads(record) == {"count": 2, "reasons": ["a"], "settled": True}
    assert tuning.reboot_decision(node(paths={tuning.REBOOT_RECORD: record}), ["a"])["refusal"] is None


@pytest.mark.parametrize(
    ("state", "serves"),
    [
        ("active", True),
        ("activating", True),
        ("reloading", True),
        ("deactivating", True),
        ("failed", False),
        ("inactive", False),
    ],
)
def test_a_node_that_serves_is_not_rebooted(state: str, serves: bool) -> None:
    probe = node()
    probe["units"] |= {
        "vllm-a.service": {"ActiveState": state},
        "vllm-b.service": None,
        "other.service": {"ActiveState": "active"},
    }
    refusal = tuning.reboot_decision(probe, ["a"])["refusal"]
    if not serves:
        assert refusal is None
        return
    assert refusal is not None
    assert refusal.startswith("vllm-a.service serves; drain and stop it first, then run again")
    assert "node_tuning_drain_allowed=true" in refusal
    allowed = tuning.reboot_decision(probe, ["a"], drain_allowed=True)
    assert (allowed["refusal"], allowed["drain"]) == (None, ["vllm-a.service"])


@pytest.mark.parametrize("units", [None, {}, {tuning.UNIT: None}])
def test_a_node_that_systemd_tells_nothing_of_is_not_rebooted(units: dict[str, Any] | None) -> None:
    refusal = tuning.reboot_decision(node(units=units), ["a"], drain_allowed=True)["refusal"]
    assert refusal is not None
    assert refusal.startswith("systemd told nothing of the units")


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"paths": {tuning.BOOT_ID: "one\n"}}, "boot id is one as before, expected a new one: the node did not reboot"),
        ({"kernel": "6.8.0-9-generic"}, "kernel 6.8.0-9-generic runs, expected 6.8.0-86-generic, the newest in /boot"),
        ({"cmdline": LINE.replace("iommu=pt ", "")}, "kernel command line lacks iommu=pt"),
        ({"module": {"amdgpu": False, "version": None}}, "driver amdgpu 6.14.14 is installed and not loaded"),
        ({"pci": {"0000:01:00.0": {"vendor": "0x1002", "class": "0x120000"}}}, "1 GPUs are on the PCI bus, expected 8"),
    ],
)  # fmt: skip
def test_what_came_back_wrong_after_a_reboot(changes: dict[str, Any], problem: str) -> None:
    before = node(cmdline="ro")
    assert tuning.reboot_problems(before, node(paths={tuning.BOOT_ID: "two\n"}), wanted=wanted()) == []
    after = node(**{"paths": {tuning.BOOT_ID: "two\n"}, **changes})
    assert tuning.reboot_problems(before, after, wanted=wanted()) == [problem]


def test_the_expected_number_of_gpus_can_be_given() -> None:
    after = node(paths={tuning.BOOT_ID: "two\n"})
    assert tuning.reboot_problems(node(pci={}), after, wanted=wanted(), expected_gpus=8) == []
    assert tuning.reboot_problems(node(), after, wanted=wanted(), expected_gpus=4) == [
        "8 GPUs are on the PCI bus, expected 4"
    ]


def test_the_list_of_nodes_names_each_and_its_reasons() -> None:
    text = tuning.reboot_summary({"n2": ["b", "c"], "n1": ["a"], "n3": []})
    assert text.startswith("2 nodes need a reboot before what was configured is in effect:\n  n1: a\n  n2: b; c\n")
    assert "n3" not in text
    assert "node_tuning_reboot_allowed=true" in text
    assert tuning.reboot_summary({"n1": []}) == "No node needs a reboot."


# --- the program on the node -----------------------------------------------------------------------------------------


def program() -> ModuleType:
    spec = importlib.util.spec_from_file_location("tune_node", REPO / "roles/node_tuning/files/tune_node.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


CONFIG: dict[str, Any] = {
    "sysctl": {"kernel.numa_balancing": "0"},
    "transparent_hugepage": "madvise",
    "governor": "performance",
    "idle_states": [2],
    "acs": "off",
    "swap": "off",
}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    files = {
        "proc/sys/kernel/numa_balancing": "1\n",
        "proc/swaps": "Filename\tType\tSize\tUsed\tPriority\n",
        "sys/kernel/mm/transparent_hugepage/enabled": "[always] madvise never\n",
        "dev/shm/keep": "",
    }
    for cpu in (0, 1):
        files[f"sys/devices/system/cpu/cpu{cpu}/cpufreq/scaling_governor"] = "powersave\n"
        files[f"sys/devices/system/cpu/cpu{cpu}/cpuidle/state2/disable"] = "0\n"
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    space = bytearray(4096)
    space[0x100:0x104] = (0x0001 | 0x150 << 20).to_bytes(4, "little")
    space[0x150:0x158] = bytes([0x0D, 0, 1, 0, 0xFF, 0xFF, 0x1D, 0])
    for name, data in (("0000:00:01.0", bytes(space)), ("0000:00:02.0", bytes(256))):
        (tmp_path / "sys/bus/pci/devices" / name).mkdir(parents=True)
        (tmp_path / "sys/bus/pci/devices" / name / "config").write_bytes(data)
    return tmp_path


def test_it_applies_and_reads_back(tree: Path) -> None:
    tune = program().Node(str(tree))
    assert tune.differences(CONFIG) == [
        "kernel.numa_balancing is 1, expected 0",
        "transparent_hugepage is always, expected madvise",
        "governor is powersave, expected performance",
        "acs is on, expected off",
        "idle_states is on, expected off",
    ]
    tune.apply(CONFIG)
    assert tune.differences(CONFIG) == []
    space = (tree / "sys/bus/pci/devices/0000:00:01.0/config").read_bytes()
    assert space[0x150:0x158] == bytes([0x0D, 0, 1, 0, 0xFF, 0xFF, 0, 0])


def test_several_values_are_one_whatever_is_between_them(tree: Path) -> None:
    # The kernel shows a tab where a space was written.
    (tree / "proc/sys/net/ipv4").mkdir(parents=True)
    (tree / "proc/sys/net/ipv4/tcp_rmem").write_text("4096\t131072\t6291456\n")
    shown = program().Node(str(tree)).show({"sysctl": {"net.ipv4.tcp_rmem": "x"}})
    made = plan(node(shown=shown), sysctl={"net.ipv4.tcp_rmem": "4096  131072 6291456"})
    assert [text for text in made["unsettled"] if "tcp_rmem" in text] == []
    config = json.loads(content(made, tuning.CONFIG) or "")
    assert program().Node(str(tree)).differences({"sysctl": config["sysctl"]}) == []


def test_it_creates_nothing_that_the_kernel_does_not_have(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tune = program().Node(str(tree))
    config = {"sysctl": {"kernel.no_such": "1"}}
    tune.apply(config)
    assert not (tree / "proc/sys/kernel/no_such").exists()
    assert "No such file" in capsys.readouterr().err
    assert tune.differences(config) == ["kernel.no_such is None, expected 1"]


def test_it_tells_a_mix_and_what_is_not_there(tree: Path) -> None:
    tune = program().Node(str(tree))
    (tree / "sys/devices/system/cpu/cpu1/cpufreq/scaling_governor").write_text("performance\n")
    (tree / "proc/swaps").write_text("Filename\tType\n/dev/sda2\tpartition\n")
    shown = tune.show({**CONFIG, "idle_states": [7]})
    assert shown["governor"] == "performance (1), powersave (1)"
    assert shown["idle_states"] is None
    assert shown["swap"] == "on: /dev/sda2"


@pytest.mark.parametrize("data", [b"", bytes(64), b"\xff" * 4096, (0x000D | 0x100 << 20).to_bytes(4, "little") * 1024])
def test_configuration_spaces_that_cannot_be(data: bytes) -> None:
    registers = program().acs_registers(data)
    assert len(registers) <= len(data) // 4
