"""Codes of the findings that readers of amd-smi and rocm-smi make: (usual severity, title, explanation, remedy).

They are about the collection, never about the node. The severity of one finding follows from what was read with it:
``error`` where nothing was, ``unknown`` where a part was, ``warning`` where everything was.
"""

from __future__ import annotations

from collections.abc import Mapping

from instinct_fleet.model import Severity

_AGAIN = "Capture the tool's whole output again, on the node itself, without head, pagers or editing."
_BY_HAND = "Run the command by hand as root and read its stderr and `dmesg | grep amdgpu`."
_GROUPS = "Add the user to the groups `render` and `video` and log in again, or collect with `become: true`."

COLLECTION: Mapping[str, tuple[Severity, str, str, str]] = {
    "collect_tool_missing": (
        "error",
        "A tool is not installed",
        "The shell or the probe did not find the tool. ROCm's tools live in /opt/rocm/bin, which a non-login shell "
        "does not have on PATH.",
        "Install it with the role `rocm`, or name its folder in `tool_paths` of `node_probe`.",
    ),
    "collect_permission": (
        "error",
        "The tool was not allowed to read",
        "The user may not open /dev/kfd or the render nodes, is not in the groups the tool asks for, or the tool shows "
        "this only to root. rocm-smi reads sysfs and works all the same, which proves nothing about a container.",
        _GROUPS,
    ),
    "collect_group_warning": (
        "warning",
        "The user is not in the groups render and video",
        "ROCm 6.4 prints this before its data, on stdout, and before JSON too. The data is whole; a service of this "
        "user may still fail.",
        _GROUPS,
    ),
    "collect_driver_not_loaded": (
        "error",
        "The tool found no driver",
        "amdgpu is not loaded. Older tools look only at /sys/module/amdgpu/initstate, which a driver built into the "
        "kernel does not have.",
        "`modprobe amdgpu`; the role `rocm` installs the driver. With a built-in driver use a newer amd-smi.",
    ),
    "collect_no_device": (
        "error",
        "The tool found no GPU",
        "The driver is there and shows no GPU: none is plugged in, its probe failed, or a container hides it.",
        "Compare `lspci -d 1002:` with `dmesg | grep amdgpu`; pass /dev/kfd and /dev/dri into the container.",
    ),
    "collect_empty": (
        "error",
        "The output is empty",
        "An exit code of 0 proves nothing: rocm-smi without a driver, or with one GPU and --json, prints nothing and "
        "ends with 0.",
        _BY_HAND,
    ),
    "collect_library_error": (
        "error",
        "The tool's library reported an error",
        "amd-smi prints an error dictionary or an exception in place of data, sometimes with exit code 0: one pair "
        "that cannot be read ends its whole JSON output.",
        _BY_HAND,
    ),
    "collect_timeout": (
        "error",
        "A tool did not end in time",
        "A tool that hangs mostly waits for a GPU or for the driver.",
        "Look for a hung GPU in `dmesg`; raise `timeout` of `node_probe` only when the tool ends by itself.",
    ),
    "collect_usage": (
        "error",
        "The tool did not understand its arguments",
        "Commands and options differ per release; `amd-smi --version`, for one, never existed.",
        "Use `amd-smi version`, `amd-smi topology --json`, `amd-smi static --json`.",
    ),
    "collect_truncated": (
        "unknown",
        "The text was cut, or a part is missing",
        "A row, a column, a heading or the end is not there. What was read is shown, and never passes as whole.",
        _AGAIN,
    ),
    "collect_not_json": (
        "error",
        "Not valid JSON",
        "The text starts like JSON and is not. Samples in documentation are often shortened by hand.",
        _AGAIN,
    ),
    "collect_not_amd": (
        "error",
        "Not the output of an AMD tool",
        "The matrix is in nvidia-smi's words (X, PIX, PXB, PHB, NODE, SYS, NV#). AMD's tools print XGMI and PCIE only, "
        "whatever tutorials show; the PCIe class is derived from the PCI tree.",
        "Capture `amd-smi topology --json` on the node.",
    ),
    "collect_unsupported_layout": (
        "error",
        "A layout that does not hold what is needed",
        "CSV drops the matrices, the concise table changes its columns per release, and the answer to a change of "
        "settings says nothing about what is in force.",
        "Capture `amd-smi topology --json` or `rocm-smi --showtopo --json`.",
    ),
    "collect_unrecognised": (
        "unknown",
        "Not the output of a known tool",
        "No parser knows the text.",
        "Give the output of amd-smi, rocm-smi, rocminfo, lspci, numactl, lscpu or rccl-tests, a KFD tree, or a bundle.",
    ),
    "collect_asymmetric": (
        "error",
        "The matrix contradicts itself",
        "A pair has two values, or a GPU has a path to itself. No driver prints that: the text was edited or damaged.",
        _AGAIN,
    ),
    "collect_inconsistent": (
        "error",
        "Parts of the text contradict each other",
        "A GPU is described twice, two GPUs share an address, or a table holds what belongs under another title. "
        "rocm-smi before 6.1 prints one address for several partitions.",
        _AGAIN,
    ),
    "collect_unexpected": (
        "unknown",
        "A value or form that no release prints",
        "The value was not used.",
        "Capture again; if it comes again, report it with the tool's version.",
    ),
    "collect_partial": (
        "unknown",
        "Some values could not be read",
        "The tool printed N/A, None, XXXX, UNKNOWN or an error in their place.",
        _BY_HAND,
    ),
    "collect_partition_unknown": (
        "unknown",
        "Partition mode not shown",
        "The mode is N/A, as amd-smi says without root. Models before MI300 have no modes: there it means nothing.",
        "Collect with `become: true`.",
    ),
    "collect_gpu_unreadable": (
        "error",
        "Nothing could be read of one GPU",
        "All of its links failed while those of other GPUs did not: the GPU is hung, or fell off the bus.",
        "Read `dmesg` for the GPU; reset it (`amd-smi reset --gpureset`), else power-cycle the node.",
    ),
    "collect_subset": (
        "unknown",
        "Only some GPUs were asked for",
        "The GPU numbers have gaps, so the text was made with -g or -d, or a GPU was cut out of it.",
        "Capture without a selection of GPUs.",
    ),
    "collect_low_power": (
        "warning",
        "GPUs are runtime-suspended",
        "rocm-smi says so when all GPUs sleep. It is no fault; the data that follows is right.",
        "None needed.",
    ),
    "collect_noise": (
        "warning",
        "The tool made a remark",
        "Lines that are neither data nor a known error stand between the data, which is whole.",
        "Read the remark.",
    ),
    "collect_exit_code": (
        "warning",
        "The tool failed although its data is whole",
        "Exit codes differ per release (1, 255, 193-253) and prove nothing by themselves.",
        _BY_HAND,
    ),
}
