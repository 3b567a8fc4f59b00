"""Puts a load test's document into the page."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from instinct_fleet.report import charts


def _number(value: Any, digits: int = 0, unit: str = "") -> str:
    if value is None:
        return "unknown"
    return f"{value:,.{digits}f}{unit}" if isinstance(value, (int, float)) else str(value)


def _drawings(document: Mapping[str, Any]) -> list[dict[str, str]]:
    capacity = document["capacity"]
    points: Sequence[Mapping[str, Any]] = [p for p in capacity["points"] if p.get("counts")]
    if not points:
        return []
    interval = capacity.get("knee_interval")
    marks = charts.Marks(
        knee=capacity.get("knee"),
        limit=capacity.get("limit"),
        interval=(int(interval[0]), int(interval[1])) if interval else None,
        objective_ms=capacity.get("ttft_slo_ms"),
    )
    beside = dataclasses.replace(marks, objective_ms=None)
    tails = document.get("ttft_p95_ms") or {}
    points = [{**p, "ttft_p95_ms": tails.get(str(p["concurrency"]))} for p in points]
    drawn = [
        (
            "Throughput",
            "Steady state only: no filling, no draining. Bars are 95 % intervals."
            if document.get("intervals")
            else "As the result files give it.",
            {
                s: charts.throughput(
                    points, marks=marks, size=s, intervals=document.get("intervals"), fits=document.get("fits") or ()
                )
                for s in charts.SIZES
            },
        ),
        (
            "Time to first token",
            "From the moment a client was free to ask, so its own queue is included."
            if document.get("levels")
            else "As the result files give it.",
            {
                s: charts.latency(points, metric="ttft", label="time to first token", marks=marks, size=s)
                for s in charts.SIZES
            },
        ),
        (
            "Time between tokens",
            "A chunk of several tokens counts by its share of the gap.",
            {
                s: charts.latency(points, metric="itl", label="time between tokens", marks=beside, size=s)
                for s in charts.SIZES
            },
        ),
        (
            "Where a request spends its time",
            "The median request of each level.",
            {s: charts.breakdown(points, size=s) for s in charts.SIZES},
        ),
    ]
    return [{"title": title, "note": note, **svg} for title, note, svg in drawn]


def render(document: Mapping[str, Any]) -> str:
    """Return the report of a load test as one HTML file.

    ``document`` holds at least ``capacity`` (a record as plain data); ``levels``, ``settings``, ``rules``, ``advice``,
    ``fits``, ``intervals``, ``throughput``, ``spent``, ``title`` and ``generated`` are shown when they are there.
    """
    environment = Environment(
        loader=PackageLoader("instinct_fleet.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["number"] = _number
    capacity = document["capacity"]
    knee = next((p for p in capacity["points"] if p["concurrency"] == capacity.get("knee")), None)
    return environment.get_template("report.html.j2").render(
        title=document.get("title") or "Load test",
        generated=document.get("generated") or capacity.get("date") or "",
        simulated=bool(document.get("simulated") or capacity.get("simulated")),
        capacity=capacity,
        knee=knee,
        verdict=capacity.get("verdict") or "inconclusive",
        throughput=document.get("throughput"),
        charts=_drawings(document),
        levels=document.get("levels") or (),
        fits=document.get("fits") or (),
        settings=document.get("settings") or {},
        rules=document.get("rules") or (),
        advice=document.get("advice") or (),
        spent=document.get("spent"),
    )
