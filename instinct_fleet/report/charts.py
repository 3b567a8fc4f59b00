"""The charts, as SVG that takes its colours from the page's CSS variables (so that one chart serves light and dark).

matplotlib draws with placeholder colours, which are then replaced by ``var(--...)``. Text stays text.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Placeholder -> CSS variable. No chart may use another colour.
_COLOURS = {
    "ink": "#0a0b01",
    "muted": "#0a0b02",
    "grid": "#0a0b03",
    "paper": "#0a0b04",
    "one": "#0a0b11",
    "two": "#0a0b12",
    "three": "#0a0b13",
    "mark": "#0a0b21",
    "miss": "#0a0b22",
}
#: Width and height in inches at 72 units an inch; the narrow one is for phones.
SIZES = {"wide": (8.0, 4.7), "narrow": (5.0, 4.4)}


@dataclass(frozen=True)
class Marks:
    """What is marked in the charts: concurrencies of knee and limit, and the TTFT objective in milliseconds."""

    knee: int | None = None
    limit: int | None = None
    interval: tuple[int, int] | None = None
    objective_ms: float | None = None


#: A point as plain data. Only those that count are drawn; the caller leaves out the others.
Point = Mapping[str, Any]


@contextmanager
def _figure(size: str, salt: str) -> Iterator[tuple[Figure, Axes]]:
    from matplotlib import rc_context  # noqa: PLC0415 - a second of import that only a report needs
    from matplotlib.figure import Figure  # noqa: PLC0415 - as above

    style = {
        "svg.fonttype": "none",
        "svg.hashsalt": f"{salt}-{size}",
        "font.size": 11,
        "axes.edgecolor": _COLOURS["muted"],
        "axes.labelcolor": _COLOURS["ink"],
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "axes.axisbelow": True,
        "grid.color": _COLOURS["grid"],
        "grid.linewidth": 0.8,
        "text.color": _COLOURS["ink"],
        "xtick.color": _COLOURS["muted"],
        "ytick.color": _COLOURS["muted"],
        "xtick.labelcolor": _COLOURS["ink"],
        "ytick.labelcolor": _COLOURS["ink"],
        "figure.facecolor": "none",
        "axes.facecolor": "none",
        "legend.facecolor": _COLOURS["paper"],
        "legend.edgecolor": "none",
        "legend.framealpha": 0.85,
        "legend.fancybox": False,
        "lines.linewidth": 2,
        "lines.markersize": 6,
    }
    with rc_context(style):  # type: ignore[arg-type, unused-ignore]
        figure = Figure(figsize=SIZES[size], layout="constrained")
        yield figure, figure.add_subplot()


def _svg(figure: Figure, name: str, size: str) -> str:
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    for variable, colour in _COLOURS.items():
        text = text.replace(colour, f"var(--{variable})")
    # Ids must be unique in the page, which holds several charts, each in two sizes.
    text = re.sub(r'id="([^"]+)"', rf'id="{name}-{size}-\1"', text)
    text = re.sub(r'xlink:href="#([^"]+)"', rf'href="#{name}-{size}-\1"', text)
    text = re.sub(r"url\(#([^)]+)\)", rf"url(#{name}-{size}-\1)", text)
    text = re.sub(r'<svg [^>]*viewBox="([^"]+)"[^>]*>', rf'<svg class="{size}" viewBox="\1" role="img">', text, count=1)
    return re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)


def _concurrency_axis(axes: Axes, values: Sequence[float], size: str) -> None:
    from matplotlib.ticker import FixedLocator, NullFormatter, NullLocator  # noqa: PLC0415 - as above

    axes.set_xlabel("concurrency (requests in flight)")
    if len(values) < 2 or max(values) <= 4 * min(values):
        return
    axes.set_xscale("log", base=2)
    ticks = []
    tick = 1
    while tick <= max(values) * 1.01:
        if tick >= min(values) * 0.99:
            ticks.append(tick)
        tick *= 2 if size == "wide" else 4
    axes.xaxis.set_major_locator(FixedLocator(ticks))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xticks(ticks, [str(t) for t in ticks])


def _mark(axes: Axes, marks: Marks) -> None:
    """Draw knee and limit. The knee is the larger, so its label goes to the right and the limit's to the left."""
    if marks.knee is None:
        return
    if marks.interval is not None and marks.interval[1] > marks.interval[0]:
        axes.axvspan(*marks.interval, color=_COLOURS["mark"], alpha=0.14, linewidth=0, zorder=0)
    at_top = axes.get_xaxis_transform()
    axes.axvline(marks.knee, color=_COLOURS["mark"], linewidth=1.6, gid="knee-line")
    axes.text(marks.knee, 1.02, f" knee {marks.knee}", transform=at_top, color=_COLOURS["ink"], ha="left")
    if marks.limit is not None and marks.limit != marks.knee:
        axes.axvline(marks.limit, color=_COLOURS["mark"], linewidth=1.6, linestyle=(0, (4, 3)), gid="limit-line")
        axes.text(marks.limit, 1.02, f"limit {marks.limit} ", transform=at_top, color=_COLOURS["ink"], ha="right")


def _series(points: Sequence[Point], key: str) -> tuple[list[float], list[float]]:
    pairs = [(float(p["concurrency"]), float(p[key])) for p in points if p.get(key) is not None]
    return [c for c, _ in pairs], [v for _, v in pairs]


def throughput(
    points: Sequence[Point],
    *,
    marks: Marks,
    size: str,
    intervals: Mapping[str, Sequence[float | None]] | None = None,
    fits: Sequence[Mapping[str, Any]] = (),
) -> str:
    """Draw requests/s (or output tokens/s when every point knows it) by concurrency, with intervals and fits."""
    key = "output_token_rate" if all(p.get("output_token_rate") for p in points) else "request_rate"
    with _figure(size, "throughput") as (figure, axes):
        x, y = _series(points, key)
        top = max(y, default=1.0)
        for fit, style in zip(fits, ((0, (5, 2)), (0, (1, 1.5)), (0, (6, 2, 1, 2))), strict=False):
            curve = [(c, v) for c, v in fit.get("curve") or () if v <= top * 1.15]
            if key == "output_token_rate" and curve:
                axes.plot(
                    [c for c, _ in curve],
                    [v for _, v in curve],
                    color=_COLOURS["muted"],
                    linewidth=1.2,
                    linestyle=style,
                    label=f"{fit['name']} fit (guide)",
                )
        axes.plot(x, y, color=_COLOURS["one"], marker="o", markeredgecolor=_COLOURS["paper"], gid="points")
        if intervals and key == "output_token_rate":
            for c, v in zip(x, y, strict=True):
                low, high = intervals.get(str(int(c)), (None, None))
                if low is not None and high is not None:
                    axes.errorbar(
                        c, v, yerr=[[max(0.0, v - low)], [max(0.0, high - v)]], color=_COLOURS["one"], capsize=3
                    )
        axes.set_ylim(0, top * 1.12)
        _concurrency_axis(axes, x, size)
        axes.set_ylabel("output tokens/s" if key == "output_token_rate" else "requests/s")
        _mark(axes, marks)
        if fits and axes.get_legend_handles_labels()[1]:
            axes.legend(loc="lower right", fontsize=10)
        return _svg(figure, "throughput", size)


def latency(points: Sequence[Point], *, metric: str, label: str, marks: Marks, size: str) -> str:
    """Draw a latency by concurrency: median and tails, the objective as a line when ``marks`` holds one.

    ``metric`` is ``ttft`` or ``itl``: the fields ``<metric>_p50_ms`` and so on of the points.
    """
    with _figure(size, metric) as (figure, axes):
        drawn: list[float] = []
        concurrencies: list[float] = []
        for tail, colour, shape in (("p50", "one", "o"), ("p95", "three", "^"), ("p99", "two", "s")):
            x, y = _series(points, f"{metric}_{tail}_ms")
            if not x:
                continue
            axes.plot(
                x,
                y,
                color=_COLOURS[colour],
                marker=shape,
                markeredgecolor=_COLOURS["paper"],
                label=tail,
                gid=f"points-{tail}",
            )
            drawn += y
            concurrencies = x
        if drawn and min(drawn) > 0 and max(drawn) > 20 * min(drawn):
            from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter  # noqa: PLC0415 - as above

            axes.set_yscale("log")
            axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axes.yaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g}"))
            axes.yaxis.set_minor_formatter(NullFormatter())
        else:
            axes.set_ylim(0, max([*drawn, marks.objective_ms or 0, 1.0]) * 1.12)
        if marks.objective_ms is not None:
            axes.axhline(
                marks.objective_ms,
                color=_COLOURS["miss"],
                linewidth=1.4,
                linestyle=(0, (4, 3)),
                label=f"objective {marks.objective_ms:g} ms at p99",
                gid="objective-line",
            )
        _concurrency_axis(axes, concurrencies, size)
        axes.set_ylabel(f"{label}, ms")
        _mark(axes, marks)
        if axes.get_legend_handles_labels()[1]:
            axes.legend(loc="upper left", fontsize=10)
        return _svg(figure, metric, size)


def breakdown(points: Sequence[Point], *, size: str) -> str:
    """Draw where the time of a median request goes: until the first token, and the tokens after it."""
    rows = [p for p in points if p.get("ttft_p50_ms") is not None and p.get("e2e_p50_ms")]
    with _figure(size, "breakdown") as (figure, axes):
        places = range(len(rows))
        first = [float(p["ttft_p50_ms"]) / 1e3 for p in rows]
        rest = [max(0.0, float(p["e2e_p50_ms"]) / 1e3 - f) for p, f in zip(rows, first, strict=True)]
        axes.bar(places, first, color=_COLOURS["two"], width=0.7, label="until the first token")
        axes.bar(places, rest, bottom=first, color=_COLOURS["one"], width=0.7, label="the tokens after it")
        every = 1 if size == "wide" or len(rows) <= 10 else 2
        axes.set_xticks(list(places)[::every], [str(p["concurrency"]) for p in rows][::every])
        axes.grid(visible=False, axis="x")
        axes.set_xlabel("concurrency (requests in flight)")
        axes.set_ylabel("median request, seconds")
        axes.set_ylim(0, max([f + r for f, r in zip(first, rest, strict=True)], default=1.0) * 1.2)
        axes.legend(loc="upper left", fontsize=10)
        return _svg(figure, "breakdown", size)
