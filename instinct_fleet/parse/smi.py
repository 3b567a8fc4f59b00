"""What the readers of amd-smi and rocm-smi share: noise, error messages, JSON in bad company, and link matrices.

The tools mix data with remarks on both streams, and their exit codes differ per release (0, 1, 255, or a band of
193-253), so nothing here believes an exit code alone: it is the shape of the data that makes a reading complete.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from instinct_fleet.model import Finding, Gpu, Link, LinkType, Partition, Severity
from instinct_fleet.parse.base import Aspect, Reading

#: What every tool writes for "not known".
NOTHING = frozenset({"", "N/A", "NA", "NONE", "NULL", "XXXX", "UNKNOWN", "NOT SUPPORTED"})
#: Words of ``nvidia-smi topo -m``. AMD's tools print none of them, whatever tutorials show.
FOREIGN_LINK = re.compile(r"^(X|PIX|PXB|PHB|NODE|SYS|NV\d+)$")
BDF = re.compile(r"\b([0-9a-fA-F]{4,8}):([0-9a-fA-F]{2}):([0-9a-fA-F]{2})\.([0-7])\b")
ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")

CPU_UNITS = {"B": 1, "KB": 1024, "MB": 1024**2, "GB": 1024**3, "TB": 1024**4, "PB": 1024**5}


# --- values -------------------------------------------------------------------------------------------------------


def text_of(value: Any) -> str | None:
    """Return a value as text, or None for what means "not known" (N/A, None, XXXX, UNKNOWN, a failed read)."""
    if value is None or isinstance(value, (dict, list)):
        return None
    text = str(value).strip()
    if text.upper() in NOTHING or text.startswith("AMDSMI_STATUS_"):
        return None
    return text


def int_of(value: Any) -> int | None:
    """Return a whole number from ``15``, ``"15"``, ``"15 MB"``, ``{"value": 15, "unit": "MB"}`` or hex; else None."""
    if isinstance(value, Mapping):
        value = value.get("value")
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    if isinstance(value, float):
        return int(value) if value == int(value) else None
    text = text_of(value)
    if text is None:
        return None
    match = re.fullmatch(r"(-?\d{1,19}|0x[0-9a-fA-F]{1,16})(?:\s+[A-Za-z/%]+)?", text)
    return int(match.group(1), 0 if match.group(1).startswith("0x") else 10) if match else None


def bytes_of(value: Any, *, unit: str = "MB") -> int | None:
    """Return bytes from a number, a text with a unit, or ``{"value", "unit"}``; ``unit`` is for one without any.

    The tools' MB are 2**20 bytes.
    """
    if isinstance(value, Mapping):
        value, unit = value.get("value"), str(value.get("unit") or unit)
    if isinstance(value, bool):
        return None
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGTP]?B)?\s*", str(value), re.IGNORECASE)
    if match is None:
        return None
    factor = CPU_UNITS.get((match.group(2) or unit).upper())
    return int(float(match.group(1)) * factor) if factor else None


def bool_of(value: Any) -> bool | None:
    """Return True for ENABLED/true/True, False for their opposites, None for anything else."""
    return {"ENABLED": True, "TRUE": True, "DISABLED": False, "FALSE": False}.get(str(value).strip().upper())


def bandwidth_of(value: Any) -> tuple[int, int] | None:
    """Return (min, max) MB/s from ``50000-50000``; None for N/A and failed reads."""
    match = re.fullmatch(r"(\d{1,9})-(\d{1,9})", str(value).strip())
    return (int(match.group(1)), int(match.group(2))) if match else None


def bdf_of(value: Any) -> str | None:
    """Return a PCI address as ``dddd:bb:dd.f`` in lower case, or None."""
    match = BDF.fullmatch(str(value).strip())
    return match.group(0).lower() if match else None


def device_id_of(value: Any) -> str | None:
    """Return a PCI device id as ``0x`` and four lower-case hex digits, or None."""
    text = text_of(value)
    match = re.fullmatch(r"(?:0x)?([0-9a-fA-F]{4})", text or "")
    return f"0x{match.group(1).lower()}" if match else None


# --- the growing reading ------------------------------------------------------------------------------------------


@dataclass
class Draft:
    """A Reading while it is being put together."""

    kind: str
    tool: str
    layout: str | None = None
    version: str | None = None
    complete: bool = True
    gpus: dict[int, dict[str, Any]] = field(default_factory=dict)
    links: tuple[Link, ...] = ()
    facts: dict[str, Any] = field(default_factory=dict)
    collects: set[Aspect] = field(default_factory=set)
    findings: list[Finding] = field(default_factory=list)
    refused: bool = False

    def gpu(self, index: int) -> dict[str, Any]:
        """Return the fields of a GPU, making the GPU known."""
        return self.gpus.setdefault(index, {})

    def note(self, code: str, severity: Severity, message: str, remedy: str) -> None:
        """Add a collection finding. An error or an unknown means that something was not read: no longer complete."""
        self.findings.append(Finding(code, severity, self.kind, message, remedy))
        if severity in ("error", "unknown"):
            self.complete = False

    def refuse(self, code: str, severity: Severity, message: str, remedy: str) -> None:
        """Add a finding and give up: nothing else of the text is used."""
        self.note(code, severity, message, remedy)
        self.refused = True

    @property
    def holds_data(self) -> bool:
        """Whether anything at all was read."""
        return bool(not self.refused and (self.gpus or self.links or self.facts))

    def freeze(self) -> Reading:
        """Return the Reading. A refused one keeps nothing but its findings."""
        if self.refused:
            return Reading(
                kind=self.kind,
                tool=self.tool,
                layout=self.layout,
                complete=False,
                findings=tuple(self.findings),
                refused=True,
            )
        return Reading(
            kind=self.kind,
            tool=self.tool,
            layout=self.layout,
            version=self.version,
            complete=self.complete,
            gpus=tuple(Gpu(index=i, **self.gpus[i]) for i in sorted(self.gpus)),
            links=self.links,
            facts=self.facts,
            collects=frozenset(self.collects),
            findings=tuple(self.findings),
        )

    def set_partition(self, index: int, *, compute: str | None, memory: str | None) -> None:
        """Set the partition modes of a GPU, keeping what another section already said."""
        old: Partition = self.gpu(index).get("partition", Partition())
        self.gpu(index)["partition"] = Partition(compute or old.compute, memory or old.memory)


def some(items: Sequence[Any], limit: int = 4) -> str:
    """Write a few of many items: ``a, b, c, d and 12 more``."""
    shown = ", ".join(str(i) for i in items[:limit])
    return shown if len(items) <= limit else f"{shown} and {len(items) - limit} more"


# --- remarks between and instead of data --------------------------------------------------------------------------


@dataclass(frozen=True)
class Rule:
    """A remark the tools make. ``alone`` is its severity where no data came with it.

    With nothing but a pattern it is no remark of the tool's at all, and says nothing.
    """

    pattern: str
    code: str = ""
    with_data: Severity | None = None
    alone: Severity | None = None
    message: str = ""
    remedy: str = ""


_GROUPS = "add the user to the groups render and video and log in again, or run the collection with become: true"
_DRIVER = (
    "load amdgpu (`modprobe amdgpu`, `dmesg | grep amdgpu`) or install it with the role rocm; where amdgpu is built "
    "into the kernel older releases say this wrongly: check /sys/class/kfd"
)

#: In order: the first rule that matches a line takes it.
RULES: tuple[Rule, ...] = (
    Rule(
        r"RuntimeError:.*User is missing the following required groups",
        "collect_permission",
        "warning",
        "error",
        "the tool refused to work: the user is not in the groups it asks for",
        _GROUPS,
    ),
    Rule(
        r"User is missing the following required groups",
        "collect_group_warning",
        "warning",
        "error",
        "the user is not in the groups that the tool asks for",
        _GROUPS,
    ),
    Rule(
        r"Permission needed to access required GPU device node|^\s+- /dev/\S+: |^You can try:|^\s+- Adding the user",
        "collect_permission",
        "warning",
        "error",
        "the user may not open the GPU's device nodes",
        _GROUPS,
    ),
    Rule(
        # A box of asterisks, a remark for who watches, the prompt of who captured.
        r"^\*{20,}\s*$|^\*\* WARNING:\s+\*\*\s*$|'CTRL' \+ 'C' to stop watching"
        r"|^(\S+@\S+[^#$]*|~ *)?[#$>] *(sudo +)?(\S*/)?(amd-smi|rocm-smi)\b"
        r"|^\(?\[?[\w.-]+@[\w.-]+[^#$%]*[#$%](?: .*)?$|^~? *[#$>%] *$|^```\w*$",
    ),
    Rule(
        # What sudo and the shell say of themselves before the tool starts.
        r"^\[sudo\] password for |^sudo: unable to resolve host |^We trust you have received the usual lecture"
        r"|^Administrator\. It usually boils down|^\s+#[123]\) \w+|^For security reasons, the password you type"
        r"|setlocale: |^perl: warning: ",
    ),
    Rule(
        r"requires? sudo/root permissions|[Pp]lease run (the command )?with sudo",
        "collect_permission",
        "unknown",
        "unknown",
        "the tool shows this only to root",
        "run the collection with become: true",
    ),
    Rule(
        r"[Dd]river not initialized|amdgpu not found in modules|AMDSMI_STATUS_(DRIVER_NOT_LOADED|NOT_INIT)\b"
        r"|module is NOT loaded|/sys/module/amdgpu/initstate: No such file",
        "collect_driver_not_loaded",
        "error",
        "error",
        "the amdgpu driver is not loaded",
        _DRIVER,
    ),
    Rule(
        r"command not found|: not found\s*$|No such file or directory: '?\S*(amd-smi|rocm-smi|rocminfo)"
        r"|(amd-smi|rocm-smi|rocminfo)'?: No such file",
        "collect_tool_missing",
        "error",
        "error",
        "the tool is not on PATH",
        "install ROCm's tools (role rocm) or add /opt/rocm/bin to node_probe's tool_paths",
    ),
    Rule(
        r"/dev/kfd|[Pp]ermission denied|Operation not permitted|AMDSMI_STATUS_NO_PERM\b|a password is required",
        "collect_permission",
        "unknown",
        "error",
        "something may not be read by this user",
        _GROUPS,
    ),
    Rule(
        r"No (AMD |supported )?(GPU|device)s? (were )?(specified|detected|found|available)|AMDSMI_STATUS_NO_DEV\w*",
        "collect_no_device",
        "unknown",
        "error",
        "the tool found no GPU",
        "look for the GPUs in `lspci -d 1002:` and for failed probes in `dmesg | grep amdgpu`",
    ),
    Rule(
        r"AmdSmi(Invalid|Required|Unknown)\w*Exception|^usage: |unrecognized arguments",
        "collect_usage",
        "unknown",
        "error",
        "the tool did not understand its arguments, so this is not its data",
        "use a command that this release has: `amd-smi version` (there is no `--version`), `amd-smi topology --json`",
    ),
    Rule(
        r"timed? ?out|AMDSMI_STATUS_TIMEOUT",
        "collect_timeout",
        "unknown",
        "error",
        "the tool did not end within its time",
        "look for a hung GPU (`dmesg | grep -i amdgpu`), then raise node_probe's timeout",
    ),
    Rule(
        r"Too many open files",
        "collect_library_error",
        "unknown",
        "error",
        "the tool died of too many open files; a partition change it was making may be in force all the same",
        "read the partitions again (`amd-smi partition --current`) with a higher `ulimit -n`",
    ),
    Rule(
        r"(AmdSmi\w*Exception|Exception|Error)\b.*|Traceback \(most recent call last\)|AMDSMI has returned error"
        r"|^\[?AMDSMI_STATUS_\w+|^\s*\d+ \| AMDSMI_STATUS_|Attempted to set |returned \d+ \(the expected value is 0\)"
        r"|rsmi_init|[Ff]ailed to initialize|Segmentation fault|core dumped",
        "collect_library_error",
        "unknown",
        "error",
        "the tool's library reported an error",
        "read `dmesg | grep amdgpu`, then run the command by hand as root",
    ),
    Rule(
        r"No JSON data to report",
        "collect_empty",
        "unknown",
        "unknown",
        "the tool had nothing to report: with one GPU there are no links",
        "use `rocm-smi --showtopo` without --json, or `amd-smi topology --json`",
    ),
    Rule(
        r"low-power state|data is inaccessible\. Check power control",
        "collect_low_power",
        "warning",
        "unknown",
        "GPUs are runtime-suspended, which is not a fault",
        "run the collection again while a GPU is in use, or set power/control to on",
    ),
    Rule(
        r"Not supported on the given system|Cannot read |Unable to get |Not supported on this machine",
        "collect_partial",
        "unknown",
        "unknown",
        "the tool could not read some values",
        "read `dmesg | grep amdgpu` for the GPU, then run the tool again as root",
    ),
    Rule(
        r"Unable to find \S*librocm_smi64",
        "collect_noise",
        "warning",
        "unknown",
        "the tool looked for its library in several places",
        "no action is needed; releases from 6.2 do not say this",
    ),
    Rule(
        r"^\s*(\[output truncated\]|\[?\.\.\.\]?)\s*$",
        "collect_truncated",
        "unknown",
        "unknown",
        "the text was cut",
        "capture the tool's whole output",
    ),
    Rule(
        r"^\s*(WARNING|ERROR|Error)\b",
        "collect_noise",
        "warning",
        "unknown",
        "the tool printed a remark",
        "read the remark and run the command by hand",
    ),
)


@dataclass(frozen=True)
class Scan:
    """Text without remarks, and the remarks: (rule, how many lines, the first of them)."""

    clean: str
    remarks: tuple[tuple[Rule, int, str], ...]
    stderr: str
    rc: int | None


def tidy(text: str) -> str:
    """Remove terminal colours, control characters, carriage returns and a byte order mark.

    What is left may stand in a finding and on a person's terminal.
    """
    return CONTROL.sub("", ANSI.sub("", text).replace("\r\n", "\n").replace("\r", "\n")).lstrip("\ufeff")


#: A line of a table or a document, which no rule may take away although an error text stands in a cell.
_DATA_LINE = re.compile(
    r"^(?!\s*\[(?:output|\.\.\.|[A-Z]|sudo\]|[\w.-]+@))\s*(?:[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]\s|[\[\]{}\",]|GPU\d+\s+\S+\s)"
    r"|^\s*GPU\[\d+\]\s*: (?!get_)"
)


def scan(text: str, *, stderr: str = "", rc: int | None = None) -> Scan:
    """Part a tool's output into data and remarks."""
    kept: list[str] = []
    seen: dict[int, tuple[int, str]] = {}

    def match(line: str) -> bool:
        for number, rule in enumerate(RULES):
            if re.search(rule.pattern, line):
                count, first = seen.get(number, (0, line.strip()))
                seen[number] = (count + 1, first)
                return True
        return False

    for line in tidy(text).split("\n"):
        if line.startswith("{") and '"error"' in line[:12]:
            kept.append(line)  # an error document, which the JSON reader names better
        elif _DATA_LINE.match(line) or not match(line):
            kept.append(line)
    for line in tidy(stderr).split("\n"):
        match(line)
    remarks = tuple((RULES[n], count, first) for n, (count, first) in sorted(seen.items()))
    return Scan("\n".join(kept), remarks, tidy(stderr), rc)


def report(draft: Draft, scanned: Scan) -> None:
    """Add the remarks as findings, each as grave as what was read with it allows."""
    data = draft.holds_data
    codes = set()
    for rule, count, first in scanned.remarks:
        severity = rule.with_data if data else rule.alone
        if severity is None:
            continue
        codes.add(rule.code)
        times = f" ({count} lines)" if count > 1 else ""
        message = f"{rule.message}{times}; it said: {first[:160]}"
        if severity == "error" and draft.refused is False and not data:
            draft.refuse(rule.code, severity, message, rule.remedy)
        else:
            draft.note(rule.code, severity, message, rule.remedy)
    if scanned.rc not in (None, 0) and data and not codes - {"collect_noise"}:
        draft.note(
            "collect_exit_code",
            "warning",
            f"the tool ended with exit code {scanned.rc}, expected 0, though its data is whole",
            "run the command by hand and read its stderr",
        )


def finish(draft: Draft, scanned: Scan) -> Reading:
    """Add the remarks, refuse what held nothing, and return the Reading."""
    report(draft, scanned)
    if not draft.holds_data and not draft.findings:
        start = scanned.clean.strip().split("\n", 1)[0][:80]
        draft.refuse(
            "collect_unrecognised",
            "unknown",
            f"the text holds nothing that {draft.tool} is known to print"
            + (f"; it starts with: {start}" if start else ""),
            "capture the tool's whole output; if it comes again, report it with the tool's version",
        )
    return draft.freeze()


# --- JSON in bad company ------------------------------------------------------------------------------------------


#: ``[AMDSMI_STATUS_...]`` and ``[output truncated]`` start no document.
JSON_START = re.compile(r"^[ \t]*(\[(?=\s*(?:$|[\[{\]\"\d-]))|\{(?=\s*(?:$|[\"}])))", re.MULTILINE)


@dataclass(frozen=True)
class Documents:
    """JSON documents found in a text, in order. ``problem`` is set when one could not be decoded to its end."""

    values: tuple[Any, ...]
    problem: Literal["truncated", "not_json"] | None = None
    detail: str = ""


def documents(text: str) -> Documents:
    """Decode every JSON document of a text, whatever stands before, between and after them.

    A document starts with ``[`` or ``{`` at the start of a line, and with what may follow it in JSON.
    """
    decoder = json.JSONDecoder()
    values: list[Any] = []
    position = 0
    end = len(text.rstrip())
    while (match := JSON_START.search(text, position)) is not None:
        start = match.start(1)
        try:
            value, position = decoder.raw_decode(text, start)
        except (ValueError, RecursionError) as exc:  # no JSON, a number of thousands of digits, or too many brackets
            at = getattr(exc, "pos", start)
            # Cut text fails at its very end, or in the unfinished word or string it ends with.
            rest = text[at:end]
            cut = "\n" not in rest and (len(rest) < 12 or getattr(exc, "msg", "").startswith("Unterminated"))
            line = text.count("\n", 0, at) + 1
            what = "nested too deep" if isinstance(exc, RecursionError) else getattr(exc, "msg", "number too long")
            detail = f"{what} at line {line}"
            return Documents(tuple(values), "truncated" if cut else "not_json", detail)
        values.append(value)
    return Documents(tuple(values))


def error_document(values: Iterable[Any]) -> str | None:
    """Return the text of an error dictionary, which amd-smi prints on stdout in place of data, or None."""
    for value in values:
        if isinstance(value, Mapping) and "error" in value and not isinstance(value["error"], (Mapping, list)):
            return f"{value['error']} (code {value.get('code', 'not given')})"
    return None


# --- matrices of links --------------------------------------------------------------------------------------------

Cells = dict[tuple[int, int], Any]
#: What a link knows, by the aspect it is collected under.
LINK_ASPECTS: tuple[Aspect, ...] = ("link_type", "link_weight", "link_hops", "link_access", "link_bandwidth")
_ASPECT_WORDS = {
    "link_type": "link type",
    "link_weight": "weight",
    "link_hops": "hops",
    "link_access": "accessibility",
    "link_bandwidth": "bandwidth",
}
_READERS = {
    "link_weight": int_of,
    "link_hops": int_of,
    "link_access": bool_of,
    "link_bandwidth": bandwidth_of,
    "link_type": text_of,
}


def _own_is_right(aspect: str, raw: Any) -> bool:
    """Whether the cell of a GPU with itself holds what the tools print there."""
    if aspect == "link_type":
        return str(raw).strip().upper() in {"0", "SELF", "N/A", "NONE"}
    if aspect == "link_access":
        return bool_of(raw) is not False
    if aspect == "link_bandwidth":
        return True
    return int_of(raw) in (0, None)


def _name(pair: tuple[int, int]) -> str:
    return f"{pair[0]}-{pair[1]}"


def fill_links(draft: Draft, tables: Mapping[Aspect, Cells], gpus: Iterable[int], *, triangle: bool = False) -> None:
    """Turn matrices of raw cells into the draft's links, and say what is missing, unreadable or contradictory.

    ``tables`` holds, per aspect that was printed, raw cells by (row, column); a cell that is not there was not
    printed. ``triangle``: only one direction of a pair is printed. A pair that contradicts itself refuses the text.
    """
    numbers = sorted(set(gpus))
    pairs = [(a, b) for n, a in enumerate(numbers) for b in numbers[n + 1 :]]
    foreign = sorted(
        {
            str(raw).strip()
            for (i, j), raw in tables.get("link_type", {}).items()
            if FOREIGN_LINK.match(str(raw).strip().upper()) or (i == j and str(raw).strip().upper() == "X")
        }
    )
    if foreign:
        refuse_foreign(draft, foreign)
        return
    values: dict[Aspect, Cells] = {}
    wrong_own: list[str] = []
    contradictions: list[str] = []
    soft: list[str] = []
    absent: list[str] = []
    unread: dict[tuple[int, int], set[str]] = {}
    strange: list[str] = []
    for aspect in LINK_ASPECTS:
        if aspect not in tables:
            continue
        cells, word, reader = tables[aspect], _ASPECT_WORDS[aspect], _READERS[aspect]
        draft.collects.add(aspect)
        for i in numbers:
            if (i, i) in cells and not _own_is_right(aspect, cells[i, i]):
                wrong_own.append(f"{word} of {i} with itself is {cells[i, i]}")
            elif (i, i) not in cells and not triangle:
                absent.append(f"{word} {i}-{i}")
        values[aspect] = {}
        for a, b in pairs:
            raws = [cells[k] for k in ((a, b), (b, a)) if k in cells]
            if len(raws) < (1 if triangle else 2):
                absent.append(f"{word} {a}-{b}")
            read = [reader(raw) for raw in raws]
            known = [v for v in read if v is not None]
            if aspect == "link_type":
                strange += [f"{word} {a}-{b} is {v}" for v in known if str(v).upper() not in ("XGMI", "PCIE")]
                known = [v for v in (str(v).upper() for v in known) if v in ("XGMI", "PCIE")]
            else:
                strange += [
                    f"{word} {a}-{b} is {raw}"
                    for raw, v in zip(raws, read, strict=True)
                    if v is None and text_of(raw) is not None
                ]
            if len(set(known)) > 1:
                (soft if aspect == "link_bandwidth" else contradictions).append(
                    f"{word} {a}-{b} is {known[0]}, {b}-{a} is {known[1]}"
                )
                continue
            if len(known) == len(raws) and known:
                values[aspect][a, b] = known[0]
            elif raws:
                unread.setdefault((a, b), set()).add(word)
    if wrong_own or contradictions:
        draft.refuse(
            "collect_asymmetric",
            "error",
            "no driver prints a matrix like this: "
            + some(contradictions + wrong_own)
            + "; expected the same value in both directions, and 0 or SELF on the diagonal",
            "capture the tool's output again from the node itself; do not edit it or take it from a web page",
        )
        return
    if soft:
        draft.note(
            "collect_asymmetric",
            "unknown",
            f"bandwidths differ per direction: {some(soft)}",
            "read the KFD io_links of both GPUs",
        )
    links = []
    for a, b in pairs:
        raw = tables.get("link_type", {}).get((a, b), tables.get("link_type", {}).get((b, a)))
        kind = values.get("link_type", {}).get((a, b))
        link_type: LinkType = "XGMI" if kind == "XGMI" else "UNKNOWN"
        links.append(
            Link(
                a=a,
                b=b,
                type=link_type,
                raw_type=None if raw is None else str(kind or raw).strip(),
                weight=values.get("link_weight", {}).get((a, b)),
                hops=values.get("link_hops", {}).get((a, b)),
                accessible=values.get("link_access", {}).get((a, b)),
                bandwidth_mbps=values.get("link_bandwidth", {}).get((a, b)),
            )
        )
        if kind == "PCIE":
            # A path over PCIe has no bandwidth of its own; every release prints N/A or 0-0 there.
            unread.get((a, b), set()).discard("bandwidth")
    draft.links = tuple(links)
    _say_what_is_missing(draft, numbers, absent, {k: v for k, v in unread.items() if v}, strange)


def _say_what_is_missing(
    draft: Draft,
    numbers: Sequence[int],
    absent: Sequence[str],
    unread: Mapping[tuple[int, int], set[str]],
    strange: Sequence[str],
) -> None:
    if absent:
        draft.note(
            "collect_truncated",
            "unknown",
            f"{len(absent)} cells of the matrices are not there: {some(absent)}; expected all {len(numbers)} GPUs "
            "in every row",
            "capture the tool's whole output",
        )
    if strange:
        draft.note(
            "collect_unexpected",
            "unknown",
            f"values that no release prints there: {some(strange)}",
            "capture the tool's output again; if it comes again, report it with `amd-smi version`",
        )
    # A pair cannot be read when either end cannot. An end whose every pair fails is the one to look at, unless all do.
    dead = [i for i in numbers if len(numbers) > 2 and all((min(i, j), max(i, j)) in unread for j in numbers if j != i)]
    if len(dead) < len(numbers) - 1:
        for i in dead:
            draft.note(
                "collect_gpu_unreadable",
                "error",
                f"GPU {i}: none of its {len(numbers) - 1} links could be read, while those of other GPUs could",
                "read `dmesg | grep amdgpu` for this GPU and reset it (`amd-smi reset --gpureset`) or the node",
            )
    else:
        dead = []
    if unread:
        words = sorted(set().union(*unread.values()))
        draft.note(
            "collect_partial",
            "unknown",
            f"{len(unread)} of {len(numbers) * (len(numbers) - 1) // 2} pairs have no {' or no '.join(words)}: "
            + some([_name(pair) for pair in sorted(unread)], 8),
            "read `dmesg | grep amdgpu`, then run the tool again as root",
        )


def refuse_foreign(draft: Draft, words: Sequence[str]) -> None:
    """Refuse a matrix in nvidia-smi's words."""
    draft.refuse(
        "collect_not_amd",
        "error",
        f"the matrix says {some(words)}, which is nvidia-smi's vocabulary; AMD's tools print XGMI, PCIE, XXXX, SELF, "
        "UNKNOWN or N/A",
        "capture `amd-smi topology --json` or `rocm-smi --showtopo` on the node",
    )


def foreign_words(text: str) -> list[str]:
    """Return the words of a matrix in nvidia-smi's vocabulary, none where the text is no such matrix."""
    words: set[str] = set()
    for line in text.split("\n"):
        match = re.match(r"^\s*(?:GPU\d+|NIC\d+|mlx5_\d+)\s+(.+)$", line)
        if match:
            words |= {t for t in match.group(1).split() if FOREIGN_LINK.match(t)}
    return sorted(words) if words - {"X"} else []


def check_numbers(draft: Draft, numbers: Iterable[int]) -> None:
    """Say so when the GPU numbers have gaps: a subset was asked for, or one is missing from the text."""
    present = sorted(set(numbers))
    if present and present != list(range(len(present))):
        gaps = sorted(set(range(present[-1])) - set(present))
        draft.note(
            "collect_subset",
            "unknown",
            f"the text shows GPUs {some(present, 16)} but not {some(gaps, 16)}, expected all from 0",
            "capture the tool's output without a selection of GPUs (-g, -d)",
        )


def refuse_csv(draft: Draft) -> None:
    """Refuse a CSV export."""
    draft.refuse(
        "collect_unsupported_layout",
        "error",
        "this is the CSV form, in which rocm-smi drops the matrices and amd-smi's columns change per release",
        "capture the JSON form: `amd-smi topology --json` or `rocm-smi --showtopo --json`",
    )


def looks_like_csv(text: str) -> bool:
    """Whether a text is one of the tools' CSV exports: a heading ``gpu,...`` or ``device,...`` and rows of the kind."""
    lines: Iterator[str] = (line for line in text.split("\n") if line.strip())
    return any(re.match(r"^(gpu|device|timestamp|gpu_id)(,[^,]*)+$", line.strip()) for line in lines)
