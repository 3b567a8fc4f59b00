"""What a tool, the shell or the driver says *instead of* data, and the collection findings made of it.

Codes are stable. Severity: ``error`` where nothing could be read, ``unknown`` where a part is missing, ``warning``
for noise around full data.
"""

from __future__ import annotations

import re

from instinct_fleet.model import Finding, Severity
from instinct_fleet.parse.base import Reading

REMEDIES: dict[str, str] = {
    "collect_tool_missing": "install the tool (role `rocm`), or name its folder in `tool_paths` of node_probe",
    "collect_permission": "collect as root, or add the user to the groups render and video",
    "collect_driver_not_loaded": "`modprobe amdgpu`, read `dmesg | grep -i amdgpu`; role `rocm` installs the driver",
    "collect_empty": "run the command by hand and read its stderr",
    "collect_truncated": "collect again and keep the whole output",
    "collect_unsupported_layout": "collect with a command that the message names",
    "collect_unexpected": "collect again; if it stays, the tool's release is not known here: report it with the text",
    "collect_library_error": "run the command by hand as root; read `dmesg | grep -i amdgpu`",
    "collect_exit_code": "run the command by hand as root; read `dmesg | grep -i amdgpu`",
    "collect_noise": "read the remark",
    "collect_asymmetric": "collect again; if it stays, one GPU cannot map the other's memory: read `dmesg`",
    "collect_inconsistent": "collect again and leave the text as it is",
    "collect_changed_meanwhile": "collect again while no partition change, driver reload or GPU reset runs",
}

_NOT_FOUND = re.compile(
    r"(?:^|[\s:/])(?P<tool>[\w.-]+): (?:command not found|not found|No such file or directory)\s*$", re.M
)
_PERMISSION = re.compile(r"^.*(?:Permission denied|Operation not permitted|not member of \"?render).*$", re.M | re.I)
_NO_DRIVER = re.compile(
    r"^.*(?:ROCk module is NOT loaded|[Dd]river not initialized|amdgpu not found in modules|"
    r"/dev/kfd read-write: (?:No such file or directory|Invalid argument)).*$",
    re.M,
)
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def quote(text: str, limit: int = 160) -> str:
    """Return text from a tool as it may stand in a message: one line, no control characters, not long."""
    line = _CONTROL.sub("?", " ".join(text.split()))
    return line if len(line) <= limit else line[: limit - 1] + "…"


def note(code: str, severity: Severity, subject: str, message: str, *, remedy: str | None = None) -> Finding:
    """Make one collection finding; the remedy is the code's own unless given."""
    return Finding(code, severity, subject, message, remedy or REMEDIES[code])


def refuse(kind: str, tool: str, finding: Finding) -> Reading:
    """Make the reading of a text that cannot be used as this kind."""
    return Reading(kind=kind, tool=tool, complete=False, findings=(finding,), refused=True)


def instead_of_data(kind: str, tool: str, text: str, *, stderr: str = "", rc: int | None = None) -> Reading | None:
    """Recognise what stands where data should be; None means that the text must be read.

    Call it when the text holds none of the data of the kind: a permission message above data is only noise.
    """
    said = f"{text}\n{stderr}"
    missing = _NOT_FOUND.search(said)
    if (missing and missing["tool"] == tool) or rc == 127:
        seen = quote(missing[0]) if missing else "exit code 127"
        return refuse(kind, tool, note("collect_tool_missing", "error", tool, f"{tool} is not there: {seen}"))
    driver = _NO_DRIVER.search(said)
    if driver:
        message = f"{tool} found no driver: {quote(driver[0])}"
        return refuse(kind, tool, note("collect_driver_not_loaded", "error", tool, message))
    permission = _PERMISSION.search(said)
    if permission:
        message = f"{tool} was not allowed to read the GPUs: {quote(permission[0])}"
        return refuse(kind, tool, note("collect_permission", "error", tool, message))
    if not text.strip():
        detail = f"; stderr: {quote(stderr)}" if stderr.strip() else "; stderr is empty too"
        exit_code = "" if rc is None else f" with exit code {rc}"
        return refuse(kind, tool, note("collect_empty", "error", tool, f"{tool} printed nothing{exit_code}{detail}"))
    return None


def unsupported(kind: str, tool: str, text: str, expected: str) -> Reading:
    """Refuse a text that is not of this kind, saying what it starts with and what was expected."""
    start = quote(text.strip().splitlines()[0] if text.strip() else "", 80)
    message = f"not readable as {kind}: the text starts with {start!r}; expected {expected}"
    return refuse(kind, tool, note("collect_unsupported_layout", "error", tool, message))
