"""``rccl-tests`` (``all_reduce_perf`` and its siblings), text and JSON, and the verdict on a run.

The text's headings and device lines drift between releases, so a row is read from its ends: size and count in front,
``time algbw busbw #wrong`` twice at the back, out-of-place and in-place. Each row's figures must agree with each other
(size / time = algbw, busbw = algbw x the collective's factor), or the row is not used.

Facts of a reading:

``points``      one :class:`Row` for each message size, in the order of the run
``collective``  ``all_reduce`` ...; None when neither the text nor the figures tell
``ranks``       number of ranks; None when unknown. ``ranks_source`` says from where: ``devices``, ``figures``
``hosts``       number of hosts that the device lines name, None without such lines
``devices``     names of the devices, without repeats
``out_of_bounds``  (number, whether the tool called it OK); None when the line is missing
``error_column``  whether an old release printed the largest error instead of the number of wrong values
``average``     ``Avg bus bandwidth``. Never a gate: a healthy 8x MI300X shows about 110
``max_bytes``   the largest size that was asked for; None when unknown
``gpus``, ``size``, ``busbw``, ``wrong``  what decides: ranks on one host, the largest size in bytes, the lowest
                in-place bus bandwidth there in GB/s, the wrong values of all rows; each None where not certain
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

import yaml

from instinct_fleet.model import Finding
from instinct_fleet.parse.base import Reading
from instinct_fleet.parse.symptoms import instead_of_data, note, quote, refuse, unsupported

KIND = TOOL = "rccl-tests"

_HEADING = re.compile(r"^#\s+size\s+count\b.*\bbusbw\b.*$", re.M | re.I)
_ROW = re.compile(r"^\s*\d{1,18}\s+\d{1,18}\s+[a-z]\w*\s")
_DEVICE = re.compile(
    r"^#[ \t]+Rank[ \t]+(?P<rank>\d{1,9})[ \t].*?\bon[ \t]+(?P<host>\S+)[ \t]+device[ \t]+(?P<device>\d{1,9})"
    r"[ \t]+\[(?P<bdf>[^\]\n]*)\][ \t]*(?P<name>.*?)[ \t]*$",
    re.M,
)
_ASKED = re.compile(
    r"^#\s*nThread.*?\bminBytes\s+(\d{1,18})\s+maxBytes\s+(\d{1,18})(?:.*?\bstep:\s*(\d{1,18})\((\w+)\))?", re.M
)
_BOUNDS = re.compile(r"^#\s*Out of bounds values\s*:\s*(\d{1,18})\s+(\w+)", re.M)
_AVERAGE = re.compile(r"^#\s*Avg bus bandwidth\s*:\s*([\d.]+)\s*$", re.M)
_STARTING = re.compile(r"Collective test starting:\s*(\w+?)(?:_perf)?\b")
_FAILED = re.compile(
    r"^.*(?:Test NCCL failure|Test CUDA failure|Test HIP failure|NCCL WARN.*(?:error|failed|timed? ?out)"
    r"|unhandled (?:system|cuda|hip) error|Test failure|ORTE does not know|mpirun noticed that process|Aborted).*$",
    re.M | re.I,
)
#: JSON spells collectives in its own way, and not always the same way.
_NAMES = {
    "allgather": "all_gather",
    "allreduce": "all_reduce",
    "alltoall": "alltoall",
    "reducescatter": "reduce_scatter",
    "sendrecv": "sendrecv",
}

#: Figures are printed with two decimals, times with four digits.
RELATIVE, ABSOLUTE = 0.01, 0.02


@dataclass(frozen=True)
class Measure:
    """One half of a row. ``time_us`` microseconds, bandwidths GB/s; ``wrong`` values, None: not checked."""

    time_us: float | None
    algbw: float | None
    busbw: float | None
    wrong: int | None


@dataclass(frozen=True)
class Row:
    """One message size in bytes. ``in_place`` is None where the collective has no such form or was not read."""

    size: int
    dtype: str
    out_of_place: Measure | None
    in_place: Measure | None


#: ``mpirun --tag-output`` puts the rank and the stream before each line.
_TAG = re.compile(r"^\[\d+,\d+\]<std(?:out|err)>: ?", re.M)


def sniff(text: str) -> bool:
    """Tell whether a text is from rccl-tests, as text or as JSON."""
    text = _TAG.sub("", text)
    if _HEADING.search(text) or _AVERAGE.search(text) or _BOUNDS.search(text) or "# nThread" in text:
        return True
    return '"busBw"' in text and '"inPlace"' in text


def parse(text: str, *, stderr: str = "", rc: int | None = None) -> Reading:
    """Read a run of rccl-tests. A run that failed after some rows is kept, with a finding."""
    text = _TAG.sub("", text)
    if '"busBw"' in text and '"inPlace"' in text:
        reading = _parse_json(text)
    elif any(_ROW.match(line) for line in text.splitlines()) and sniff(text):
        reading = _parse_text(text)
    else:
        failed = _FAILED.search(f"{text}\n{stderr}")
        if failed and (sniff(text) or not text.strip()):
            message = f"the run ended before its first result: {quote(failed[0])}"
            return refuse(KIND, TOOL, note("collect_library_error", "error", TOOL, message))
        refused = instead_of_data(KIND, "all_reduce_perf", text, stderr=stderr, rc=rc)
        if refused is None and sniff(text):
            refused = refuse(KIND, TOOL, note("collect_truncated", "error", TOOL, "the run holds no row of results"))
        return refused or unsupported(KIND, TOOL, text, "the table or the JSON of rccl-tests")
    extra: list[Finding] = []
    failed = _FAILED.search(f"{text}\n{stderr}")
    if failed:
        extra.append(note("collect_library_error", "error", TOOL, f"the run failed: {quote(failed[0])}"))
    elif rc and not reading.facts["wrong"]:  # with wrong values it always does
        message = f"the run ended with exit code {rc} although its results are right; expected 0"
        extra.append(note("collect_exit_code", "unknown", TOOL, message))
    findings = (*reading.findings, *extra)
    return Reading(
        kind=KIND,
        tool=TOOL,
        layout=reading.layout,
        version=reading.version,
        complete=not [f for f in findings if f.severity != "warning"],
        facts=reading.facts,
        collects=frozenset(("busbw",)),
        findings=findings,
    )


def _number(token: object) -> float | None:
    try:
        value = float(str(token))
    except ValueError:
        return None
    return value if math.isfinite(value) and 0 <= value < 1e18 else None


def _measure(time: object, algbw: object, busbw: object, wrong: object) -> Measure:
    found = re.fullmatch(r"(\d{1,18})(?:\.0+)?\*?", str(wrong).strip())
    return Measure(_number(time), _number(algbw), _number(busbw), int(found[1]) if found else None)


def _parse_text(text: str) -> Reading:
    rows: list[Row] = []
    bad: list[str] = []
    reduces_to_all = True
    for line in text.splitlines():
        if not _ROW.match(line):
            continue
        tokens = line.split()
        halves = tokens[-8:]
        if len(tokens) < 11 or len(tokens) > 13:
            bad.append(quote(line, 60))
            continue
        reduces_to_all &= len(tokens) == 13 and tokens[3] != "none" and tokens[4] == "-1"
        rows.append(Row(int(tokens[0]), tokens[2], _measure(*halves[:4]), _measure(*halves[4:])))
    devices = [m.groupdict() for m in _DEVICE.finditer(text)]
    asked, bounds, average = _ASKED.search(text), _BOUNDS.search(text), _AVERAGE.search(text)
    starting, heading = _STARTING.search(text), _HEADING.search(text)
    version = re.search(r"^#?\s*(?:rccl-tests|nccl-tests)[: ]+[Vv]ersion:?\s*(\S+)", text, re.M)
    findings = []
    if bad:
        findings.append(
            note("collect_unexpected", "unknown", TOOL, f"{len(bad)} rows have not the columns of a result: {bad[0]!r}")
        )
    if average is None or bounds is None:
        message = "the run does not end with `Out of bounds values` and `Avg bus bandwidth`: it was cut or died"
        findings.append(note("collect_truncated", "unknown", TOOL, message))
    return _reading(
        rows,
        layout="text",
        version=version[1] if version else None,
        devices=devices,
        collective=_collective_name(starting[1]) if starting else None,
        asked=(int(asked[1]), int(asked[2])) if asked else None,
        factor=int(asked[3]) if asked and asked[3] and asked[4] == "factor" else None,
        bounds=(int(bounds[1]), bounds[2] == "OK") if bounds else None,
        reduces_to_all=reduces_to_all,
        error_column=heading is not None and re.search(r"\berror\b", heading[0]) is not None,
        average=float(average[1]) if average and _number(average[1]) is not None else None,
        findings=findings,
    )


def _parse_json(text: str) -> Reading:
    """Read a list of objects, one object a line, or as many whole objects as a cut text still holds."""
    items, cut = _json_objects(text)
    findings = []
    halves: dict[tuple[int, int, str], dict[bool, Measure]] = {}
    names: list[str] = []
    for item in items:
        size, place = item.get("size"), str(item.get("inPlace")).strip().lower()
        if not isinstance(size, int) or isinstance(size, bool) or size < 0 or place not in ("0", "1", "true", "false"):
            cut = True
            continue
        cycle = item.get("numCycle")
        key = (cycle if isinstance(cycle, int) else 0, size, str(item.get("type")))
        measure = _measure(item.get("time"), item.get("algBw"), item.get("busBw"), item.get("wrong"))
        half = halves.setdefault(key, {})
        if (place in ("1", "true")) in half:
            cut = True
        half[place in ("1", "true")] = measure
        names.append(str(item.get("name")))
    rows = [Row(size, dtype, half.get(False), half.get(True)) for (_cycle, size, dtype), half in halves.items()]
    if cut:
        message = f"the JSON is not whole: {len(items)} results could be read, then it breaks off or repeats itself"
        findings.append(note("collect_truncated", "unknown", TOOL, message))
    known = {_collective_name(name) for name in names}
    return _reading(
        rows,
        layout="json",
        collective=known.pop() if len(known) == 1 else None,
        findings=findings,
    )


def _json_objects(text: str) -> tuple[list[dict[str, Any]], bool]:
    """Return the result objects of a text and whether anything in it was not understood."""
    decoder = json.JSONDecoder()
    found: list[dict[str, Any]] = []
    try:
        document, end = decoder.raw_decode(text, len(text) - len(text.lstrip()))
        if isinstance(document, dict):
            document = next((v for v in document.values() if isinstance(v, list)), [document])
        if isinstance(document, list) and not text[end:].strip():
            found = [item for item in document if isinstance(item, dict)]
            return found, len(found) != len(document)
    except (ValueError, RecursionError):
        pass
    whole = not text.lstrip().startswith("[")
    position = text.find("{")
    while position != -1:
        try:
            item, end = decoder.raw_decode(text, position)
        except (ValueError, RecursionError):
            whole = False
            break
        if isinstance(item, dict):
            found.append(item)
        position = text.find("{", end)
    return found, not whole


def _collective_name(name: str) -> str | None:
    lowered = name.lower()
    plain = re.sub(r"[^a-z]", "", lowered).removesuffix("perf")
    if not plain or plain == "none":
        return None
    return _NAMES.get(plain, re.sub(r"\W", "_", lowered).removesuffix("_perf"))


def _reading(
    rows: Sequence[Row],
    *,
    layout: str,
    version: str | None = None,
    devices: Sequence[Mapping[str, str]] = (),
    collective: str | None = None,
    asked: tuple[int, int] | None = None,
    factor: int | None = None,
    bounds: tuple[int, bool] | None = None,
    error_column: bool = False,
    reduces_to_all: bool = False,
    average: float | None = None,
    findings: Sequence[Finding] = (),
) -> Reading:
    found = list(findings)
    ranks: int | None = len(devices) or None
    source = "devices" if devices else None
    deduced = _ranks_of_all_reduce(rows) if collective in (None, "all_reduce") else None
    if deduced is not None:
        collective = "all_reduce"
        if ranks is None:
            ranks, source = deduced, "figures"
    elif collective is None and ranks and reduces_to_all and _busbw_factor(rows) is not None:
        # Two ranks make a factor of 1, as other collectives do; but those reduce to one rank or not at all.
        factor_seen = _busbw_factor(rows) or 0.0
        collective = "all_reduce" if abs(factor_seen - 2 * (ranks - 1) / ranks) < RELATIVE else None
    places = [(device["host"], device["device"]) for device in devices]
    numbers = [int(device["rank"]) for device in devices]
    if len(places) != len(set(places)) or sorted(numbers) != list(range(len(numbers))):
        message = f"the {len(devices)} device lines are not one for each rank and GPU"
        found.append(note("collect_inconsistent", "error", TOOL, message))
    found += _missing_rows(rows, asked, factor, average)
    hosts = len({device["host"] for device in devices}) or None
    certain = ranks is not None and collective == "all_reduce" and hosts in (None, 1)
    largest = max((row.size for row in rows), default=None)
    gate = [row for row in rows if row.size == largest]
    best = [row.in_place.busbw for row in gate if row.in_place and row.in_place.busbw is not None]
    wrong = [m.wrong for row in rows for m in (row.out_of_place, row.in_place) if m is not None]
    if not certain or len(best) != len(gate) or _contradiction(gate, ranks or 0) is not None:
        best = []
    return Reading(
        kind=KIND,
        tool=TOOL,
        layout=layout,
        version=version,
        facts={
            "points": tuple(rows),
            "collective": collective,
            "ranks": ranks,
            "ranks_source": source,
            "hosts": hosts,
            "devices": tuple(sorted({device["name"] for device in devices if device["name"]})),
            "out_of_bounds": bounds,
            "error_column": error_column,
            "average": average,
            "max_bytes": asked[1] if asked else None,
            "gpus": ranks if certain else None,
            "size": largest,
            "busbw": min(best, default=None),
            "wrong": sum(w for w in wrong if w) if any(wrong) else None if None in wrong else 0,
        },
        findings=tuple(found),
    )


def _missing_rows(
    rows: Sequence[Row], asked: tuple[int, int] | None, factor: int | None, average: float | None
) -> list[Finding]:
    """Find rows that were asked for and are not there. That small ones are missing is only noise."""
    sizes = {row.size for row in rows}
    largest = max(sizes, default=0)
    if asked and largest < asked[1] and not (factor and factor > 1 and largest * factor > asked[1]):
        message = f"the run was asked to go up to {asked[1]} bytes, the last row has {largest}"
        return [note("collect_truncated", "unknown", TOOL, message)]
    if asked and factor and factor > 1 and asked[0] > 0:
        expected, size = set(), asked[0]
        while size <= asked[1]:
            expected.add(size)
            size *= factor
        # Sizes are rounded to whole elements of every rank, so a row near an expected size is that size.
        lost = sorted(e for e in expected if not any(e / factor < s <= e for s in sizes) and e > 4096)
        if lost:
            message = f"{len(lost)} rows are missing, the first of {lost[0]} bytes"
            return [note("collect_truncated", "warning", TOOL, message)]
    values = [m.busbw for row in rows for m in (row.out_of_place, row.in_place) if m and m.busbw is not None]
    if average is None or not values:
        return []
    mean = sum(values) / len(values)
    if abs(mean - average) <= ABSOLUTE + RELATIVE * max(mean, average):
        return []
    message = f"the rows average {mean:.2f} GB/s, the tool says {average:.2f}: rows are missing or were changed"
    # Nothing but the average tells whether a larger size was there.
    return [note("collect_truncated", "warning" if asked else "unknown", TOOL, message)]


def _agrees(row: Row, measure: Measure) -> bool:
    """Tell whether time, size and algorithm bandwidth of a measure agree."""
    if measure.time_us is None or measure.algbw is None or measure.busbw is None or measure.time_us <= 0:
        return False
    expected = row.size / measure.time_us / 1000
    return abs(expected - measure.algbw) <= ABSOLUTE + RELATIVE * expected


def _ranks_of_all_reduce(rows: Sequence[Row]) -> int | None:
    """Deduce the ranks from busbw / algbw = 2 (n - 1) / n, which above 1 only all_reduce has; None when it does not."""
    ratio = _busbw_factor(rows)
    if ratio is None or not 1.2 < ratio < 1.97:  # above 64 ranks the figures are too coarse to tell
        return None
    nearest = round(2 / (2 - ratio))
    return nearest if abs(2 * (nearest - 1) / nearest - ratio) <= RELATIVE / 2 else None


def _busbw_factor(rows: Sequence[Row]) -> float | None:
    """Return busbw / algbw of the largest size; None where it cannot be told."""
    for row in sorted(rows, key=lambda r: -r.size):
        for measure in (row.in_place, row.out_of_place):
            if measure is not None and _agrees(row, measure) and (measure.algbw or 0) >= 1:
                return (measure.busbw or 0) / (measure.algbw or 1)
    return None


@cache
def floors() -> dict[str, Any]:
    """Return the data of ``instinct_fleet/data/rccl_floors.yml``."""
    data = resources.files("instinct_fleet").joinpath("data/rccl_floors.yml").read_text("utf-8")
    return dict(yaml.safe_load(data))


def policies() -> tuple[str, ...]:
    """Return the names of the policies that the data knows, in order."""
    return tuple(sorted({*floors()["devices"].values(), *(f["policy"] for f in floors()["floors"])}))


def policy_of(reading: Reading) -> str | None:
    """Return the policy that the device names of a run belong to; None when they tell none or several."""
    found = set()
    for name in reading.facts.get("devices", ()):
        words = re.findall(r"MI\d+[A-Z]?", str(name))
        found |= {floors()["devices"].get(word) for word in words} or {None}
    return found.pop() if len(found) == 1 else None


def signature(busbw: float) -> Mapping[str, Any] | None:
    """Return what a figure of an MI300 class node is known to mean."""
    return next((s for s in floors()["signatures"] if s["low"] <= busbw <= s["high"]), None)


def judge(reading: Reading, *, gpus: int | None = None, policy: str | None = None) -> tuple[Finding, ...]:
    """Judge a run.

    The gate is the in-place bus bandwidth at the largest size; where a size was measured several times, the lowest.
    Results must be right at every size. Nothing passes that was not checked: a run on another number of GPUs, on
    several hosts, with small sizes only, or with ``-c 0`` is ``unknown``.

    Args:
        reading: what :func:`parse` returned.
        gpus: the number of GPUs that the run was meant for; None: as the run says.
        policy: name of the node's policy; None: by the device names of the run.

    Returns:
        The reading's own findings and the verdict's: ``rccl_wrong_results``, ``rccl_bandwidth_low``,
        ``rccl_no_floor`` (no figure is published for this number of GPUs), ``rccl_not_judged``.
    """
    if reading.refused or reading.kind != KIND:
        return reading.findings
    found = list(reading.findings)
    rows: tuple[Row, ...] = reading.facts["points"]
    found += _judge_results(rows, reading.facts["out_of_bounds"], error_column=reading.facts["error_column"])
    policy = policy or policy_of(reading)
    ranks: int | None = reading.facts["ranks"]
    if ranks is None and reading.facts["collective"] == "all_reduce":
        ranks = gpus  # the figures, which depend on it, are held against it below
    reason = _not_comparable(reading, ranks, gpus, policy)
    largest = max((row.size for row in rows), default=0)
    gate = [row for row in rows if row.size == largest]
    measures = [row.in_place for row in gate]
    best = [m.busbw for m in measures if m is not None and m.busbw is not None]
    if reason is not None and best:
        reason += f". Seen: in-place bus bandwidth {min(best):.2f} GB/s at {largest} bytes"
    if reason is None and (not measures or any(m is None or m.busbw is None for m in measures)):
        reason = "the largest size has no in-place result; expected one for the gate"
    if reason is None:
        reason = _contradiction(gate, ranks or 0)
    if reason is None and largest < floors()["plateau_size"]:
        reason = f"the largest size is {largest} bytes; below 1 GiB the bandwidth is not that of the links"
    if reason is not None:
        found.append(_not_judged(reason))
        return tuple(found)
    found += _judge_bandwidth(min(best), largest, ranks or 0, str(policy))
    return tuple(found)


def _not_judged(reason: str, remedy: str = "run `all_reduce_perf -b 8 -e 8G -f 2 -c 1` with one rank a GPU") -> Finding:
    return Finding("rccl_not_judged", "unknown", "rccl", reason, remedy)


def _judge_results(rows: Sequence[Row], bounds: tuple[int, bool] | None, *, error_column: bool) -> list[Finding]:
    measures = [(row.size, m) for row in rows for m in (row.out_of_place, row.in_place) if m is not None]
    wrong = [(size, m.wrong) for size, m in measures if m.wrong]
    found = []
    if wrong or (bounds is not None and (bounds[0] > 0 or not bounds[1])):
        where = f"{wrong[0][1]} wrong values at {wrong[0][0]} bytes" if wrong else f"out of bounds: {bounds}"
        message = f"the collective computed wrong results: {where}; expected 0. Its speed does not matter then"
        remedy = "take the node out of service; check the ECC counters and the RCCL version"
        found.append(Finding("rccl_wrong_results", "error", "rccl", message, remedy))
    unchecked = [size for size, m in measures if m.wrong is None and m.busbw is not None]
    # Old releases print the largest error instead of a count; there the last line tells whether it was too large.
    if unchecked and not (error_column and bounds == (0, True)):
        found.append(
            _not_judged(f"the results of {len(unchecked)} rows were not checked (#wrong is N/A, as with -c 0)")
        )
    return found


def _not_comparable(reading: Reading, ranks: int | None, gpus: int | None, policy: str | None) -> str | None:
    """Return why a run cannot be held against a floor, or None."""
    facts = reading.facts
    collective, hosts = facts["collective"], facts["hosts"]
    if collective is not None and collective != "all_reduce":
        return f"{collective} was run; floors are published for all_reduce"
    if hosts is not None and hosts > 1:
        return f"the run spans {hosts} hosts; floors are for one node"
    if ranks is None:
        return "neither the devices nor the figures tell how many ranks ran; tell it with --gpus"
    if gpus is not None and ranks != gpus:
        return f"the run had {ranks} ranks, {gpus} GPUs were to be tested"
    if collective is None:
        return "neither the text nor the figures tell which collective ran; expected all_reduce"
    if policy is not None and policy not in policies():
        return f"no floors are known for policy {policy}; known are {', '.join(policies())}"
    told = policy_of(reading)
    if policy is not None and told is not None and policy != told:
        return f"the devices are of {told} ({', '.join(facts['devices'])}), the policy is {policy}"
    if policy is None:
        return "the run does not name one known GPU model; tell it with --policy"
    return None


def _contradiction(gate: Sequence[Row], ranks: int) -> str | None:
    """Return what is wrong with the figures of the gating rows, or None."""
    factor = 2 * (ranks - 1) / ranks if ranks else 0.0
    for row in gate:
        measure = row.in_place
        if measure is None or measure.busbw is None or measure.algbw is None:
            continue
        expected = measure.algbw * factor
        if not _agrees(row, measure) or abs(expected - measure.busbw) > ABSOLUTE * factor + RELATIVE * expected:
            return (
                f"the figures at {row.size} bytes contradict each other: {measure.time_us} us, algbw {measure.algbw}, "
                f"busbw {measure.busbw} GB/s with {ranks} ranks; expected busbw = {factor:g} x size / time"
            )
    return None


def _judge_bandwidth(busbw: float, size: int, ranks: int, policy: str) -> list[Finding]:
    floor = next((f for f in floors()["floors"] if f["policy"] == policy and f["gpus"] == ranks), None)
    known = signature(busbw) if policy in floors()["links"] else None
    meaning = f". This figure is known: {known['meaning']}" if known else ""
    usual = "check iommu=pt, ACS, the link types and the RCCL release; run it again on an idle node"
    remedy = known["remedy"] if known else usual
    seen = f"in-place bus bandwidth {busbw:.2f} GB/s at {size} bytes on {ranks} GPUs"
    if floor is None:
        return [_no_floor(busbw, ranks, policy, seen, meaning)]
    expected = f"expected at least {floor['busbw']} ({floor['source']})"
    if busbw >= floor["busbw"]:
        if "doubt" in floor and busbw < floor["doubt"]:
            both = f"{floor['busbw']} and {floor['doubt']}: {floor['note']}"
            message = f"{seen} is between the two floors that AMD publishes, {both}"
            return [Finding("rccl_no_floor", "warning", "rccl", message, "compare with another node of the model")]
        return []
    if size < floor["size"] and busbw >= floor["busbw"] * (1 - floors()["plateau_margin"]) and not known:
        return [_not_judged(f"{seen} is below the floor, {expected}, but the floor is for {floor['size']} bytes")]
    return [Finding("rccl_bandwidth_low", "error", "rccl", f"{seen}, {expected}{meaning}", remedy)]


def _no_floor(busbw: float, ranks: int, policy: str, seen: str, meaning: str) -> Finding:
    """Report a run against RCCL's model of the links: from half of it on it is plausible, below that not known."""
    link = floors()["links"].get(policy)
    remedy = "set a floor from a measurement of a good node (`rccl_check_floors`)"
    if link is None:
        return _not_judged(f"{seen}; no floor is published for {policy} with {ranks} GPUs, and no model of its links")
    model = link * (ranks - 1)
    share = busbw / model if model else 0.0
    part = f"{ranks - 1} links x {link} GB/s = {model}: {share:.0%} of it"
    message = f"{seen}; no floor is published for {ranks} GPUs of {policy}. {part}"
    if share >= 0.5:
        return Finding("rccl_no_floor", "warning", "rccl", message, remedy)
    return _not_judged(f"{message}; expected at least half{meaning}", remedy)
