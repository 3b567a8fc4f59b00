"""The search for the knee: a pure function from what was measured to what to measure next.

:func:`plan` looks at the whole history and returns an :class:`~instinct_fleet.load.level.Ask` or an
:class:`Outcome`. It keeps no state and reads no clock, so that it can be stopped, resumed, replayed and tested in
virtual time.

The way it goes:

1. *Warm-up*, then a *bracket*: 1, 4, 16, ... as long as throughput keeps up, then doubling, until the objective is
   missed, the server refuses, throughput stops growing (less than 2 % a doubling), or the maximum is reached.
2. Where the objective is missed while throughput might still grow, the border of the *objective* is narrowed. Where
   the best level stands alone, its neighbourhood is probed for a higher *peak*; a flat top behind a sharp corner
   hides none, and its levels together are the best throughput.
3. The *boundary* is bisected on pass or fail: a level passes when its throughput is within 5 % of the best level that
   meets the objective, and it meets the objective itself. The next probe lies between two bounds that hold for every
   closed system whose response time grows with load: the ray through the last failing level (throughput per request
   cannot rise) and the straight line of response time between the two.
4. Both sides of the boundary are measured again until two levels *confirm* each of them; where the curve is so flat
   that noise could move the knee by more than the resolution, the knee and the best level are measured longer.

The knee is the smallest measured concurrency that passes. Curve fits never decide anything.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from instinct_fleet.capacity import GROWTH, HEADROOM, TOLERANCE, limit_of, still_growing, stopped_growing
from instinct_fleet.load.level import BUDGET_OF_REQUESTS, BUDGET_OF_SECONDS, Ask, Level, Purpose
from instinct_fleet.load.stats import Estimate, clean_requests_needed, pool, ratio, t95, wilson

#: The time of a request stands still where it rises by less than this share of what it rises by behind a corner.
CORNER = 0.15

SearchVerdict = Literal["pass", "fail", "inconclusive", "lower bound only"]
Objective = Literal["meets", "misses", "unclear"]


@dataclass(frozen=True)
class SearchConfig:
    """What is searched and what it may cost.

    ``objective`` is the TTFT objective in seconds (None: throughput alone decides) that a share ``attainment`` of the
    requests must meet. ``tolerance``: within this share of the best throughput is good enough. ``resolution`` is how
    close, as a share, the failing side must come to the knee. ``headroom`` is taken off the knee for the limit.
    ``growth``: throughput that grows less than this share a doubling has stopped growing.
    """

    max_concurrency: int = 512
    objective: float | None = None
    attainment: float = 0.99
    tolerance: float = TOLERANCE
    headroom: float = HEADROOM
    resolution: float = 0.03
    growth: float = GROWTH
    budget_seconds: float = 600.0
    budget_requests: int = 200_000
    max_levels: int = 28
    agree: int = 2
    warmup: int = 4
    warmup_seconds: float = 30.0
    min_level_seconds: float = 1.0
    max_level_seconds: float = 30.0
    max_void: int = 3
    max_broken: int = 2


@dataclass(frozen=True)
class Pooled:
    """All levels that were measured at one concurrency, taken together."""

    concurrency: int
    levels: tuple[Level, ...]
    throughput: Estimate
    attained: int
    judged: int
    rejected: bool

    def objective(self, config: SearchConfig) -> Objective:
        """Return whether the objective is met: by Wilson's interval when it decides, else by the share seen.

        Where several levels did not decide it, the server is at the edge of what was asked. That counts as a miss, so
        that the search steps down to where the objective can be shown.
        """
        if self.rejected:
            return "misses"
        if config.objective is None:
            return "meets"
        if not self.judged:
            return "unclear"
        low, high = wilson(self.attained, self.judged)
        if high < config.attainment:
            return "misses"
        tried = len(self.levels) >= 2 * config.agree
        if self.attained < config.attainment * self.judged:
            return "misses" if tried else "unclear"
        # Too few requests say nothing against it, and fewer in flight would give fewer still.
        many = self.judged >= 2 * clean_requests_needed(config.attainment)
        return "misses" if tried and many and low < config.attainment and self.concurrency > 1 else "meets"

    def certified(self, config: SearchConfig) -> bool:
        """Return whether Wilson's lower bound shows the objective."""
        return config.objective is None or wilson(self.attained, self.judged)[0] >= config.attainment


@dataclass(frozen=True)
class Outcome:
    """The end of a search.

    ``knee`` and ``limit`` are None unless the verdict is ``pass`` or ``lower bound only``. ``interval`` holds the
    lowest and highest concurrency that the knee can be at 95 %, as far as the levels show it. ``throughput`` is what
    the knee gives (output tokens/s), ``best`` the best concurrency that meets the objective.
    """

    verdict: SearchVerdict
    reasons: tuple[str, ...]
    knee: int | None = None
    limit: int | None = None
    interval: tuple[int, int] | None = None
    throughput: Estimate | None = None
    best: int | None = None
    seconds: float = 0.0
    requests: int = 0


def usable(history: Sequence[Level]) -> tuple[Level, ...]:
    """Return the levels that may be believed and are not warm-up."""
    return tuple(level for level in history if not level.void and level.purpose != "warmup" and level.rate is None)


def pooled(history: Sequence[Level]) -> tuple[Pooled, ...]:
    """Return the usable levels, taken together by concurrency, in ascending order."""
    groups: dict[int, list[Level]] = {}
    for level in usable(history):
        groups.setdefault(level.concurrency, []).append(level)
    return tuple(
        Pooled(
            concurrency=concurrency,
            levels=tuple(levels),
            throughput=pool([(level.throughput, level.window) for level in levels if level.requests]),
            attained=sum(level.attained for level in levels),
            judged=sum(level.judged for level in levels),
            rejected=any(level.rejected for level in levels),
        )
        for concurrency, levels in sorted(groups.items())
    )


def pooled_ttft(point: Pooled, q: float) -> float | None:
    """Return the time within which a share ``q`` of all first tokens of a point came, seconds.

    No interpolation: it meets an objective exactly when that share of the requests does.
    """
    ordered = sorted(t for level in point.levels for t in level.ttfts)
    return ordered[max(0, math.ceil(round(q * len(ordered), 9)) - 1)] if ordered else None


class _View:
    """The history, digested: points, the best of them, the threshold and the present boundary."""

    def __init__(self, history: Sequence[Level], config: SearchConfig) -> None:
        self.config = config
        self.points = pooled(history)
        self.at = {p.concurrency: p for p in self.points}
        self.eligible = tuple(p for p in self.points if p.objective(config) == "meets" and p.throughput.value > 0)
        self.missing = tuple(p for p in self.points if p.objective(config) == "misses")
        self.best = max(self.eligible, key=lambda p: p.throughput.value, default=None)
        self.plateau = _plateau(self.eligible, self.best, config.growth) if self.best else ()
        #: The best throughput: of the plateau as a whole, or of the best level.
        self.top = _together(self.plateau) if self.plateau else self.best.throughput if self.best else None
        share = 1 - config.tolerance
        self.threshold = (
            Estimate(self.top.value * share, self.top.error * share, self.top.df) if self.top is not None else None
        )
        self.knee = next((p for p in self.eligible if self.passes(p.throughput)), None)
        below = [p for p in self.points if self.knee and p.concurrency < self.knee.concurrency]
        self.below = below[-1] if below else None

    def passes(self, throughput: Estimate) -> bool:
        """Return whether a throughput is within the tolerance of the best."""
        return self.threshold is not None and throughput.value >= self.threshold.value

    def level_passes(self, level: Level) -> bool:
        """Return the verdict on a single level."""
        objective = self.config.objective
        met = objective is None or level.attained >= self.config.attainment * level.judged
        return self.passes(level.throughput) and met and not level.rejected


def response(point: Pooled) -> float:
    """Return concurrency over throughput: by Little's law the time a request takes, in units of one token."""
    return point.concurrency / point.throughput.value


def _together(points: Sequence[Pooled]) -> Estimate:
    return pool([(level.throughput, level.window) for p in points for level in p.levels if level.requests])


def _plateau(points: Sequence[Pooled], best: Pooled, growth: float) -> tuple[Pooled, ...]:
    """Return the levels of a flat top behind a sharp corner; empty when the best level may be a peak.

    A server with slots and a queue answers as fast as ever until the slots are full, and beyond gives the same
    throughput at any concurrency. There the best of several levels is only the luckiest, and no peak hides between
    them: what they say together is the best throughput. The signs: the time of a request stood still between the two
    last levels well below the top, rose behind them, and two distant levels agree behind the corner that this means.
    """
    free = [p for p in points if 0 < p.throughput.value <= 0.75 * best.throughput.value]
    if len(free) < 2 or free[-1].concurrency >= best.concurrency:
        return ()
    before, last = free[-2:]
    early = (response(last) - response(before)) / (last.concurrency - before.concurrency)
    late = (response(best) - response(last)) / (best.concurrency - last.concurrency)
    corner = best.throughput.value * response(last)
    top = tuple(
        p
        for p in points
        if p.concurrency >= 1.25 * corner and p.throughput.value * (1 + growth) >= best.throughput.value
    )
    if early > CORNER * late or best not in top or top[-1].concurrency < 1.5 * top[0].concurrency:
        return ()
    return top


def _ask(config: SearchConfig, concurrency: int, purpose: Purpose, **more: object) -> Ask:
    return Ask(
        concurrency=concurrency,
        purpose=purpose,
        objective=config.objective,
        attainment=config.attainment,
        min_seconds=config.min_level_seconds,
        max_seconds=config.max_level_seconds,
        **more,  # type: ignore[arg-type]
    )


def _bracket(view: _View) -> Ask | None:
    """Return the next step of the bracket, or None when it is closed."""
    config, points = view.config, view.points
    if not points or points[0].concurrency != 1:
        return _ask(config, 1, "bracket", precision=0.1)
    bracket = [p for p in points if any(level.purpose in ("bracket", "ladder") for level in p.levels)]
    top = bracket[-1]
    if view.missing or top.concurrency >= config.max_concurrency or _saturated(bracket, config):
        return None
    factor = 4
    if len(bracket) > 1:
        before = bracket[-2]
        kept = top.throughput.value / before.throughput.value / (top.concurrency / before.concurrency)
        if kept < 0.8:
            factor = 2
    # A level that clearly keeps up needs no precision; one that does not may be the best, whose precision decides.
    threshold = Estimate(top.throughput.value * factor * 0.75, top.throughput.error, top.throughput.df)
    concurrency = min(config.max_concurrency, top.concurrency * factor)
    if concurrency < top.concurrency * factor:
        threshold = Estimate(top.throughput.value * concurrency / top.concurrency * 0.9, 0.0, top.throughput.df)
    return _ask(config, concurrency, "bracket", threshold=threshold, above=0.06, below=0.025, finest=0.025)


def _saturated(bracket: Sequence[Pooled], config: SearchConfig) -> bool:
    if len(bracket) < 2:
        return False
    before, top = bracket[-2:]
    return stopped_growing(
        (before.concurrency, before.throughput.value), (top.concurrency, top.throughput.value), growth=config.growth
    )


def _growing(view: _View) -> bool:
    """Return whether throughput still grew at the last level and nothing was missed."""
    curve = [(p.concurrency, p.throughput.value) for p in view.points if p.throughput.value > 0]
    return not view.missing and still_growing(curve, growth=view.config.growth)


def _near(a: int, b: int, resolution: float) -> bool:
    low, high = sorted((a, b))
    return high - low <= 1 or high <= low * (1 + resolution) + 1e-9


def _objective_probe(view: _View) -> Ask | None:
    """Narrow the border of the objective as long as a better level may hide below it."""
    config = view.config
    if not view.missing or view.best is None:
        return None
    ceiling = view.missing[0]
    inside = [p for p in view.eligible if p.concurrency < ceiling.concurrency]
    if not inside:
        return None
    top = inside[-1]
    if _near(top.concurrency, ceiling.concurrency, config.resolution):
        return None
    best = view.best.throughput.value
    reachable = ceiling.throughput.value if ceiling.throughput.value > 0 else math.inf
    # What a level below the border can give at most: no more per request than the last good one.
    reachable = min(reachable, top.throughput.value / top.concurrency * (ceiling.concurrency - 1))
    if reachable <= best * 1.015:
        return None
    # Saturation would begin at the ray through the last good level: there, if that still halves what is left.
    ray = top.concurrency * reachable / top.throughput.value
    left = ceiling.concurrency / top.concurrency
    guess = round(min(max(ray, top.concurrency * left**0.3), top.concurrency * left**0.6))
    guess = min(max(guess, top.concurrency + 1), ceiling.concurrency - 1)
    return _ask(config, guess, "objective", precision=0.02)


def _peak_probe(view: _View) -> Ask | None:
    """Probe beside the best level when a parabola through it and its neighbours promises over 1 % more."""
    best = view.best
    if best is None or view.plateau:
        return None
    # Beyond the border of the objective nothing can become the best.
    inside = [
        p
        for p in view.points
        if p.throughput.value > 0 and (not view.missing or p.concurrency < view.missing[0].concurrency)
    ]
    if best not in inside:
        return None  # a level above one that missed meets the objective: noise, which more probes here cannot mend
    position = inside.index(best)
    first = min(position - 1, len(inside) - 3)
    if first < 0:
        return None
    x0, x1, x2 = (math.log(p.concurrency) for p in inside[first : first + 3])
    y0, y1, y2 = (p.throughput.value for p in inside[first : first + 3])
    slope1, slope2 = (y1 - y0) / (x1 - x0), (y2 - y1) / (x2 - x1)
    curvature = (slope2 - slope1) / (x2 - x0)
    if curvature >= 0:
        return None
    vertex = (x0 + x1) / 2 - slope1 / (2 * curvature)
    promise = y0 + slope1 * (vertex - x0) + curvature * (vertex - x0) * (vertex - x1)
    guess = round(math.exp(min(vertex, x2)))
    near = any(_near(guess, p.concurrency, 0.15) for p in inside)
    # What the noise of the three points can promise by itself is no promise.
    if (
        promise - best.throughput.value <= max(0.01 * best.throughput.value, best.throughput.half)
        or near
        or not math.exp(x0) < guess < math.exp(x2)
    ):
        return None
    return _ask(view.config, guess, "peak", precision=0.02)


def _sharpen(view: _View) -> Ask | None:
    """Measure the best level again: the highest of several noisy levels is too high until it is confirmed."""
    best = view.best
    if best is None or view.plateau or len(best.levels) >= view.config.agree:
        return None
    return _ask(view.config, best.concurrency, "confirm", precision=0.015)


def _boundary_probe(view: _View) -> Ask | None:
    """Return the next probe between the last failing level and the first passing one, or None when they are close."""
    config, knee, below = view.config, view.knee, view.below
    if knee is None or view.threshold is None:
        return None
    if below is None or _near(below.concurrency, knee.concurrency, config.resolution):
        return None
    low, high = below.concurrency, knee.concurrency
    threshold = view.threshold.value
    ray = low * threshold / below.throughput.value if below.throughput.value > 0 else low
    slope = (response(knee) - response(below)) / (high - low)
    rest = 1 - threshold * slope
    line = threshold * (response(below) - slope * low) / rest if rest > 0 else high
    line = min(max(line, ray), high)
    closest = math.floor(high / (1 + config.resolution))
    if ray >= closest:
        guess = closest
    else:
        earlier = [p for p in view.points if p.concurrency < low and p.throughput.value > 0]
        before = (response(below) - response(earlier[-1])) / (low - earlier[-1].concurrency) if earlier else 0.0
        if before <= CORNER * slope:
            guess = math.ceil(ray * 1.01)  # so far each request took the same time: expect a sharp corner
        elif before >= 0.6 * slope:
            guess = round(line * (1 - config.resolution / 2))  # response time grows evenly: the line is the curve
        else:
            guess = round(math.sqrt(ray * line))
    # Whichever way it goes, the probe must bring one side as close as it has to be.
    step = 1 + config.resolution
    if high > low * step * step:
        guess = min(max(guess, math.floor(low * step)), math.ceil(high / step))
    else:
        guess = round(math.sqrt(low * high))
    guess = min(max(guess, low + 1), high - 1)
    return _ask(config, guess, "boundary", threshold=view.threshold, above=0.03, below=0.03)


def _confirm(view: _View) -> Ask | None:
    """Repeat the two sides of the boundary until enough levels agree with what they say together."""
    config, knee = view.config, view.knee
    if knee is None:
        return None
    for point, passing in ((knee, True), (view.below, False)):
        if point is None:
            continue
        agreeing = sum(1 for level in point.levels if view.level_passes(level) == passing)
        if agreeing < config.agree and len(point.levels) < 2 * config.agree:
            certify = passing and not point.certified(config)
            return _ask(
                config,
                point.concurrency,
                "confirm",
                threshold=view.threshold,
                above=0.025,
                below=0.025,
                certify=certify,
            )
    if not knee.certified(config) and len(knee.levels) < 3 * config.agree:
        return _ask(config, knee.concurrency, "confirm", precision=0.02, certify=True)
    return None


def _refine(view: _View) -> Ask | None:
    """Measure best and knee longer where the curve is so flat that their noise moves the knee by more than allowed."""
    config, knee, best = view.config, view.knee, view.best
    if knee is None or best is None or view.top is None or knee is best:
        return None
    slope = _elasticity(view.points, knee, up=False)
    if not slope or math.hypot(knee.throughput.relative, view.top.relative) / slope <= config.resolution:
        return None
    open_ends = [p for p in (knee, best) if len(p.levels) < config.agree + 2]
    if not open_ends:
        return None
    worst = max(open_ends, key=lambda p: p.throughput.relative)
    precision = max(0.005, 0.7 * config.resolution * slope)
    return _ask(config, worst.concurrency, "confirm", precision=precision, finest=precision)


def _unclear(view: _View) -> Ask | None:
    """Measure again where too few requests were seen to tell whether the objective is met."""
    config = view.config
    for point in view.points:
        if point.objective(config) == "unclear" and len(point.levels) < 2 * config.agree:
            return _ask(config, point.concurrency, "objective", precision=0.02, certify=True)
    return None


def _elasticity(points: Sequence[Pooled], at: Pooled, *, up: bool) -> float | None:
    """Return by how many per cent throughput changes a per cent of concurrency, on one side of ``at``.

    It is the slope to a point at least 15 % away. A distant one below would promise too steep a curve, since curves
    flatten on their way up: beyond a factor of 1.5 the slope on the other side is averaged in.
    """
    measured = [p for p in points if p.throughput.value > 0]
    above = next((p for p in measured if p.concurrency >= 1.15 * at.concurrency), None)
    below = next((p for p in reversed(measured) if p.concurrency <= at.concurrency / 1.15), None)

    def slope(other: Pooled | None) -> float | None:
        if other is None:
            return None
        rise = math.log(other.throughput.value / at.throughput.value)
        return max(0.0, rise / math.log(other.concurrency / at.concurrency))

    if up or below is None or above is None or below.concurrency * 1.5 >= at.concurrency:
        return slope(above if up else below)
    return ((slope(above) or 0.0) + (slope(below) or 0.0)) / 2


def knee_interval(
    points: Sequence[Pooled], best: Pooled, top: Estimate, knee: Pooled, config: SearchConfig
) -> tuple[int, int]:
    """Return the lowest and the highest concurrency at which the knee can be, at 95 %.

    It lies above every level that clearly fails, and not above the first that clearly passes; and where neither is
    close, not further away than the uncertainty of the knee's throughput divided by the slope of the curve there.
    """
    share = 1 - config.tolerance
    low, high = 1, best.concurrency
    for point in points:
        if point is best or point.concurrency > best.concurrency or point.throughput.value <= 0:
            continue
        against = ratio(point.throughput, top)
        margin = t95(point.throughput.df) * against.error
        if against.value + margin < share and point.concurrency < knee.concurrency:
            low = max(low, point.concurrency + 1)
        elif against.value - margin >= share and point.objective(config) == "meets":
            high = min(high, point.concurrency)
    inside = [p for p in points if p.concurrency <= best.concurrency]
    against = ratio(knee.throughput, top) if knee is not best else Estimate(1.0, 0.0, 1)
    margin = t95(against.df) * against.error if knee is not best else 0.0
    down, up = _elasticity(inside, knee, up=False), _elasticity(inside, knee, up=True)
    if down:
        low = max(low, math.floor(knee.concurrency * math.exp(-(max(0.0, against.value / share - 1) + margin) / down)))
    if up:
        high = min(high, math.ceil(knee.concurrency * math.exp(max(0.0, margin - (against.value / share - 1)) / up)))
    return min(low, knee.concurrency), max(high, knee.concurrency)


def _spent(history: Sequence[Level]) -> tuple[float, int]:
    return math.fsum(level.wall for level in history), sum(level.total_requests for level in history)


def _drift(points: Sequence[Pooled]) -> str | None:
    """Return what to say when repeats of one level differ by more than they may."""
    for point in points:
        levels = [level for level in point.levels if level.requests and level.throughput.df >= 1]
        if len(levels) < 2:
            continue
        low = min(levels, key=lambda level: level.throughput.value).throughput
        high = max(levels, key=lambda level: level.throughput.value).throughput
        # Few batches know little of a server with moods: their interval may miss by more.
        if high.low > low.high * (1.05 if min(low.df, high.df) >= 7 else 1.15):
            return (
                f"concurrency {point.concurrency} gave {low.value:.0f} and {high.value:.0f} tokens/s: the server "
                "changed while it was measured; expected repeats whose intervals nearly touch"
            )
    return None


def _uncertified(knee: Pooled, config: SearchConfig) -> str:
    """Return why the requests at the knee do not show that the objective is met, and what would help."""
    needed = clean_requests_needed(config.attainment)
    if knee.judged < needed:
        return (
            f"{knee.judged} requests at concurrency {knee.concurrency} cannot show that {config.attainment:.0%} meet "
            f"the objective: it takes {needed} without a miss. Give a larger --budget-seconds or a lower --attainment"
        )
    # Enough were seen: the server itself is at the edge, which no larger budget changes.
    low, high = wilson(knee.attained, knee.judged)
    return (
        f"{knee.attained} of {knee.judged} requests at concurrency {knee.concurrency} had their first token within "
        f"{(config.objective or 0) * 1e3:g} ms (95 %: {low:.2%} to {high:.2%}), expected to show "
        f"{config.attainment:.0%}: the objective is at the edge of what the server does. Give a larger "
        "--ttft-p99-ms or a lower --attainment"
    )


def conclude(history: Sequence[Level], config: SearchConfig, *, stopped: str | None = None) -> Outcome:
    """Return the outcome that a history supports. ``stopped`` says why the search could not finish."""
    view = _View(history, config)
    seconds, requests = _spent(history)

    def outcome(verdict: SearchVerdict, *reasons: str, number: bool = False) -> Outcome:
        knee = view.knee
        if knee is None or view.best is None or view.top is None:
            return Outcome(verdict, reasons, seconds=seconds, requests=requests)
        interval = knee_interval(view.points, view.best, view.top, knee, config)
        return Outcome(
            verdict,
            reasons,
            knee=knee.concurrency if number else None,
            limit=limit_of(knee.concurrency, config.headroom) if number else None,
            interval=interval,
            throughput=knee.throughput if number else None,
            best=view.best.concurrency,
            seconds=seconds,
            requests=requests,
        )

    first = view.at.get(1)
    if first is not None and first.objective(config) == "misses" and not view.eligible and stopped is None:
        why = (
            "the server refuses requests"
            if first.rejected
            else (
                f"only {first.attained} of {first.judged} requests had their first token within "
                f"{(config.objective or 0) * 1e3:.0f} ms, expected {config.attainment:.0%}"
            )
        )
        return outcome("fail", f"concurrency 1 already misses the objective: {why}")
    if stopped is not None:
        return outcome("inconclusive", stopped)
    if view.knee is None or view.best is None:
        return outcome("inconclusive", "no level both met the objective and could be believed")
    drift = _drift(view.points)
    if drift:
        return outcome("inconclusive", drift)
    if not view.knee.certified(config):
        return outcome("inconclusive", _uncertified(view.knee, config))
    if _growing(view):
        return outcome(
            "lower bound only",
            f"throughput still grows at concurrency {view.points[-1].concurrency}, the highest allowed: the true knee "
            "may be higher. Raise --max-concurrency to find it",
            number=True,
        )
    return outcome("pass", number=True)


def _given_up(history: Sequence[Level], config: SearchConfig) -> str | None:
    """Return why no level can be believed any more (broken streams, or void again and again), or None."""
    broken = [level for level in history if level.broken]
    if len(broken) >= config.max_broken:
        return f"streams broke in {len(broken)} levels: {broken[-1].void[0]}"
    if not history or not history[-1].void or history[-1].purpose == "warmup" or _spent_up(history, config):
        return None
    voids = [level for level in history if level.void and level.purpose != "warmup"]
    same = [level for level in voids if level.concurrency == voids[-1].concurrency]
    if len(same) < config.max_void and len(voids) < 2 * config.max_void:
        return None
    return (
        f"concurrency {same[-1].concurrency} could not be measured in {len(same)} attempts: {'; '.join(same[-1].void)}"
    )


def _spent_up(history: Sequence[Level], config: SearchConfig) -> str | None:
    """Return which budget has ended, or None."""
    seconds, requests = _spent(history)
    last = history[-1].stop if history else ""
    if requests >= config.budget_requests or last == BUDGET_OF_REQUESTS:
        return f"the budget of {config.budget_requests} requests (--budget-requests) ended"
    if seconds >= config.budget_seconds - 0.5 * config.min_level_seconds or last == BUDGET_OF_SECONDS:
        return f"the budget of {config.budget_seconds:.0f} s (--budget-seconds) ended"
    return None


def plan(history: Sequence[Level], config: SearchConfig) -> Ask | Outcome:
    """Return what to measure next, or the outcome."""
    seconds, requests = _spent(history)
    stopped = _given_up(history, config)
    if stopped is not None:
        return conclude(history, config, stopped=stopped)
    if not history and config.warmup:
        ask = _ask(config, min(config.warmup, config.max_concurrency), "warmup", min_requests=2 * config.warmup)
        return _within(ask, config, seconds, requests)
    view = _View(history, config)
    ask_or_none = (
        _bracket(view)
        or _unclear(view)
        or _objective_probe(view)
        or _peak_probe(view)
        or _sharpen(view)
        or _boundary_probe(view)
        or _confirm(view)
    )
    if ask_or_none is None and seconds < 0.5 * config.budget_seconds and len(usable(history)) < 0.6 * config.max_levels:
        ask_or_none = _refine(view)  # a wish, not a need: half of the budget is enough for it
    if ask_or_none is None:
        return conclude(history, config)
    goal = {"bracket": "the bracket was closed", "confirm": "the boundary was confirmed"}.get(
        ask_or_none.purpose, "the boundary was found"
    )
    stopped = _spent_up(history, config)
    if stopped is None and len(usable(history)) >= config.max_levels:
        stopped = f"{config.max_levels} levels were measured"
    if stopped is not None:
        return conclude(history, config, stopped=f"{stopped} before {goal}")
    return _within(ask_or_none, config, seconds, requests)


def _within(ask: Ask, config: SearchConfig, seconds: float, requests: int) -> Ask:
    """Return the ask cut to what is left of the budget."""
    return dataclasses.replace(
        ask,
        max_seconds=max(0.1, min(ask.max_seconds, config.budget_seconds - seconds)),
        max_requests=max(1, min(ask.max_requests, config.budget_requests - requests)),
    )


def ladder(steps: Sequence[int], history: Sequence[Level], config: SearchConfig) -> Ask | Outcome:
    """Measure fixed steps, each once, and apply the same rule to them: the knee can only be one of the steps."""
    seconds, requests = _spent(history)
    if not history and config.warmup:
        return _within(_ask(config, min(config.warmup, max(steps)), "warmup"), config, seconds, requests)
    done = {level.concurrency for level in usable(history)}
    stopped = _given_up(history, config)
    for step in sorted(set(steps)):
        if step in done:
            continue
        spent = _spent_up(history, config)
        stopped = stopped or (f"{spent} before step {step}" if spent else None)
        if stopped is not None:
            return conclude(history, config, stopped=stopped)
        return _within(_ask(config, step, "ladder", precision=0.015, certify=True), config, seconds, requests)
    return conclude(history, config)
