"""Find out what a text is by what it says, and read it with the parser for it.

Neither the file name nor the command typed decides: a capture is often renamed, and a tool that fails prints another
tool's, or the shell's, words. Both serve as hints where the text itself says nothing.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterator
from typing import Protocol, cast

from instinct_fleet.parse import smi
from instinct_fleet.parse.base import Reading


class Parser(Protocol):
    """A module that knows one tool."""

    def sniff(self, text: str) -> bool:
        """Whether the text is this tool's."""

    def parse(self, text: str, *, stderr: str = "", rc: int | None = None) -> Reading:
        """Read it; never raises for what the text holds."""


#: Asked in this order; the first that knows the text reads it. Those with the most unmistakable marks come first.
MODULES = ("rocm_smi", "rocminfo", "rccl", "fabric", "kfd", "pci", "numa", "amd_smi")

#: First word of a command -> the module that reads its answer.
COMMANDS = {
    "amd-smi": "amd_smi",
    "rocm-smi": "rocm_smi",
    "rocminfo": "rocminfo",
    "lspci": "pci",
    "numactl": "numa",
    "lscpu": "numa",
    "all_reduce_perf": "rccl",
}


def _load(name: str) -> Parser | None:
    try:
        return cast(Parser, importlib.import_module(f"instinct_fleet.parse.{name}"))
    except ModuleNotFoundError:
        return None


def _modules() -> Iterator[tuple[str, Parser]]:
    for name in MODULES:
        module = _load(name)
        if module is not None:
            yield name, module


def read(
    text: str, *, stderr: str = "", rc: int | None = None, name: str | None = None, command: str | None = None
) -> Reading:
    """Read the output of any known tool.

    ``rc`` is the exit code, None where nobody kept it. ``name`` (a file name) and ``command`` (what was typed) only
    give a failed output a subject. Never raises for what the text holds: what cannot be used becomes ``collect_...``
    findings of the Reading.
    """
    text = smi.tidy(text.replace("\0", ""))
    if re.search(r"\.stderr(\.txt)?$", name or "") and not stderr:
        text, stderr = "", text
    if text.strip():
        parser = _parser_of(text)
        if parser is not None:
            return parser(text, stderr=stderr, rc=rc)
    return _read_unknown(text, stderr=stderr, rc=rc, name=name, command=command)


def _parser_of(text: str) -> Callable[..., Reading] | None:
    for _name, module in _modules():
        if module.sniff(text):
            return module.parse
    return None


def _tool_of(text: str, command: str | None) -> str:
    words = (command or "").split()
    if words:
        return words[0].rsplit("/", 1)[-1]
    match = re.search(r"\b(amd-smi|rocm-smi|rocminfo|lspci|numactl|lscpu|all_reduce_perf)\b", text)
    return match.group(1) if match else "unknown tool"


def _read_unknown(text: str, *, stderr: str, rc: int | None, name: str | None, command: str | None) -> Reading:
    """Say why a text that no parser knows is of no use."""
    scanned = smi.scan(text, stderr=stderr, rc=rc)
    tool = _tool_of(f"{text}\n{stderr}", command)
    draft = smi.Draft(kind=command or tool, tool=tool)
    clean = scanned.clean.strip()
    foreign = smi.foreign_words(clean)
    if foreign:
        smi.refuse_foreign(draft, foreign)
    elif smi.looks_like_csv(clean):
        smi.refuse_csv(draft)
    smi.report(draft, scanned)
    if not draft.findings and rc in EXIT_CODES:
        code, message, remedy = EXIT_CODES[rc]
        draft.refuse(code, "error", f"exit code {rc} and no text: {message}", remedy)
    if not draft.findings and not clean:
        said = f"; on stderr: {stderr.strip()[:160]}" if stderr.strip() else ""
        draft.refuse(
            "collect_empty",
            "error",
            f"the output is empty{said}; exit code: {'not kept' if rc is None else rc}, and a 0 proves nothing",
            "run the command by hand; rocm-smi without a driver prints nothing and ends with 0",
        )
    if not draft.findings:
        broken = smi.documents(clean)
        if broken.problem == "truncated":
            draft.refuse(
                "collect_truncated",
                "unknown",
                f"the JSON ends in the middle: {broken.detail}",
                "capture the tool's whole output",
            )
        elif broken.problem == "not_json":
            draft.refuse(
                "collect_not_json",
                "error",
                f"the text starts like JSON but is not: {broken.detail}",
                "capture the tool's output again from the node itself",
            )
        else:
            first = clean.split("\n", 1)[0][:120]
            draft.refuse(
                "collect_unrecognised",
                "unknown",
                f"no known tool prints this{f' (file {name})' if name else ''}; it starts with: {first}",
                "give the output of amd-smi, rocm-smi, rocminfo, lspci, numactl, lscpu or rccl-tests, or a bundle",
            )
    draft.refused = True
    return draft.freeze()


#: Exit codes that say something by themselves, for a tool that printed nothing.
#: 127 and 124 are the shell's and timeout(1)'s; 193-253 is amd-smi's band in ROCm 10.
EXIT_CODES: dict[int | None, tuple[str, str, str]] = {
    127: ("collect_tool_missing", "the tool is not on PATH", "add /opt/rocm/bin to node_probe's tool_paths"),
    126: ("collect_permission", "the tool may not be run", "run the collection with become: true"),
    124: ("collect_timeout", "the tool did not end in time", "look for a hung GPU in dmesg"),
    205: ("collect_timeout", "the tool did not end in time", "look for a hung GPU in dmesg"),
    206: ("collect_driver_not_loaded", "the amdgpu driver is not loaded", "load amdgpu (`modprobe amdgpu`)"),
    196: ("collect_no_device", "no device was found", "look for the GPUs in `lspci -d 1002:` and in dmesg"),
}
