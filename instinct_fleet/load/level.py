"""One level of a load test: what happened, for how long it has to be watched, and whether it may be believed.

A :class:`LevelRun` is fed with events and the time. It lets the level settle (so that neither the filling of the
server nor the draining of the last one is counted), measures, and says when it knows enough. It never looks at a
clock: the driver feeds it with real time, the tests with virtual time.

The rules, which the report repeats:

* *settled*: all workers have started, and as many requests as there are workers have ended since.
* *throughput* is output tokens per second inside the window. Each token counts as made evenly over the gap before it,
  so that a batch of the server that straddles an edge counts by its share. The interval comes from batch means.
* *latencies* belong to the window in which they end (the first token, the next token, the last one).
* a level *stops* when its throughput interval excludes the threshold that it was started to decide, or is narrow
  enough, and the share of requests within the objective is decided by Wilson's interval; or at its time limit.
* a level is *void* when fewer than 98 % of the asked requests were in flight, when the client's event loop was late
  by more than its limit at p99, when the server's own count of requests disagrees, or when any stream was broken.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from instinct_fleet.load.stats import Estimate, Histogram, batch_means, quantile, ratio, t95, wilson

Purpose = Literal["warmup", "bracket", "objective", "peak", "boundary", "confirm", "ladder", "compare", "rate"]

#: Width of the bins in which progress is counted, seconds: a fraction of any inter-token time worth measuring.
BIN = 0.005
MIN_BATCHES, MAX_BATCHES = 5, 20
#: Reasons to stop that mean more than that the level is over.
REFUSED = "rejected by the server"
BUDGET_OF_SECONDS, BUDGET_OF_REQUESTS = "budget of seconds", "budget of requests"


@dataclass(frozen=True)
class Ask:
    """What to measure next, and what would be enough to know.

    ``threshold`` is the throughput (tokens/s) against which the level is decided; ``above`` and ``below`` are the
    relative half widths of the throughput interval that are enough when it lies clearly on that side of it,
    ``precision`` when there is no threshold, and ``finest`` is enough for an undecided level. ``objective`` is the
    TTFT objective in seconds, ``attainment`` the share of requests that must meet it; ``certify`` asks to go on until
    Wilson's lower bound shows it. ``max_seconds`` and ``max_requests`` bound the level. ``rate`` (requests/s) makes
    it an open loop.
    """

    concurrency: int
    purpose: Purpose
    threshold: Estimate | None = None
    precision: float = 0.05
    above: float = 0.05
    below: float = 0.05
    finest: float = 0.015
    objective: float | None = None
    attainment: float = 0.99
    certify: bool = False
    min_seconds: float = 1.0
    max_seconds: float = 30.0
    min_requests: int = 3
    max_requests: int = 100_000
    rate: float | None = None
    attempt: int = 1


@dataclass(frozen=True)
class Limits:
    """When a level is void. Shares of one; ``max_lag`` in seconds.

    98 % and 5 ms are what this client reaches with a wide margin on one core (benchmarks/client_ceiling.py), so less
    means that something is wrong with the client or its machine. The server's own count differs a little for an
    honest reason (requests on their way, tokenized, or just ended), hence the wider ``server_share``.
    """

    min_achieved: float = 0.98
    max_lag: float = 0.005
    server_share: float = 0.15
    server_slack: float = 1.5


@dataclass(frozen=True)
class Level:
    """What one level showed. Times in seconds, rates per second, intervals at 95 %.

    ``requests`` ended well inside the window; ``broken`` streams (transport or protocol) make the level void;
    ``rejected`` requests (HTTP 429 or 503: the server said it is full) make it a failed level. ``window`` is what was
    measured, ``wall`` includes settling. ``batches`` are the batch means of the throughput. ``attained`` of
    ``judged`` requests met the objective. ``void`` says why the level may not be believed; empty: it may.
    """

    concurrency: int
    purpose: Purpose
    window: float
    wall: float
    requests: int
    throughput: Estimate
    batches: tuple[float, ...] = ()
    request_rate: float = 0.0
    mean_output_tokens: float | None = None
    mean_prompt_tokens: float | None = None
    tokens_per_chunk: float | None = None
    ttft_mean: float | None = None
    ttft_p50: float | None = None
    ttft_p95: float | None = None
    ttft_p99: float | None = None
    itl_p50: float | None = None
    itl_p95: float | None = None
    itl_p99: float | None = None
    e2e_mean: float | None = None
    e2e_p50: float | None = None
    e2e_p95: float | None = None
    e2e_p99: float | None = None
    client_queue_p99: float | None = None
    attained: int = 0
    judged: int = 0
    achieved: float = 0.0
    broken: int = 0
    rejected: int = 0
    errors: Mapping[str, int] = field(default_factory=dict)
    lag_p99: float | None = None
    server_in_flight: float | None = None
    kv_usage_max: float | None = None
    preemptions: float | None = None
    server_waiting: float | None = None
    queue_mean: float | None = None
    umc_activity: float | None = None
    total_requests: int = 0
    stop: str = ""
    void: tuple[str, ...] = ()
    rate: float | None = None
    ttfts: tuple[float, ...] = field(default=(), repr=False)


@dataclass(frozen=True)
class Sample:
    """A level so far, as the stop rule sees it. ``service`` is the mean time of a request after its first token, s."""

    window: float
    requests: int
    throughput: Estimate
    service: float | None
    attained: int
    judged: int
    broken: int
    rejected: int


def decide(sample: Sample, ask: Ask) -> str | None:
    """Return why the level may stop now, or None to go on. This is the whole stop rule."""
    if sample.broken >= 3:
        return "broken streams"
    if sample.rejected >= 5 and sample.rejected >= 0.02 * (sample.requests + sample.rejected):
        return REFUSED
    if sample.window >= ask.max_seconds:
        return "time limit of the level"
    if sample.requests >= ask.max_requests:
        return "request limit"
    floor = max(ask.min_seconds, 3 * sample.service if sample.service else 0.0)
    if sample.requests < ask.min_requests or sample.window < min(floor, ask.max_seconds):
        return None
    if ask.purpose == "warmup":
        return "warm"
    objective_missed = False
    if ask.objective is not None:
        low, high = wilson(sample.attained, sample.judged)
        objective_missed = high < ask.attainment
        if ask.certify and not objective_missed and low < ask.attainment:
            return None
    throughput = sample.throughput
    if objective_missed and throughput.relative <= 0.1:
        return "objective missed"
    if ask.threshold is not None:
        against = ratio(throughput, ask.threshold)
        margin = t95(throughput.df) * against.error
        if against.value - margin > 1 and throughput.relative <= ask.above:
            return "clearly above the threshold"
        if against.value + margin < 1 and throughput.relative <= ask.below:
            return "clearly below the threshold"
    elif throughput.relative <= ask.precision:
        return "interval narrow enough"
    return "interval at its finest" if throughput.relative <= ask.finest else None


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None


def _queued(readings: Sequence[tuple[float, float]]) -> float | None:
    """Return the mean seconds that requests of a level waited, from the first and last reading of two counters."""
    if len(readings) < 2:
        return None
    seconds, count = (readings[-1][i] - readings[0][i] for i in (0, 1))
    return seconds / count if count > 0 and seconds >= 0 else None


def batch_rates(counts: Sequence[float], *, gap: float, window: float, batch: float) -> tuple[float, ...]:
    """Return the rates of equally long batches from progress counted in bins of :data:`BIN` seconds.

    ``gap`` is the typical time between two tokens: a count at ``t`` is taken as made evenly over ``[t - gap, t]``.
    ``batch`` is the wanted batch length in seconds; between :data:`MIN_BATCHES` and :data:`MAX_BATCHES` are made.
    """
    usable = window - gap
    if usable <= 0 or not counts:
        return ()
    number = max(MIN_BATCHES, min(MAX_BATCHES, int(usable / batch) if batch > 0 else MAX_BATCHES))
    steps = int(window / BIN)
    cumulative = list(itertools.accumulate(itertools.islice(counts, steps), initial=0.0))
    cumulative += [cumulative[-1]] * (steps + 1 - len(cumulative))
    area = list(itertools.accumulate(cumulative, initial=0.0))
    span = max(1, round(gap / BIN))
    if steps - span < number:
        return ()
    edges = [round(i * (steps - span) / number) for i in range(number + 1)]
    # The count at bin i is known at the bin's end: cumulative[i] is what had been made by i * BIN.
    smooth = [(area[e + span + 1] - area[e + 1]) / span for e in edges]
    return tuple(
        (b - a) / ((j - i) * BIN)
        for (a, b), (i, j) in zip(itertools.pairwise(smooth), itertools.pairwise(edges), strict=True)
    )


class LevelRun:
    """Watches one level from its first worker to its verdict. All times are seconds of one clock."""

    def __init__(self, ask: Ask, now: float, *, limits: Limits | None = None) -> None:
        self.ask = ask
        self.limits = limits or Limits()
        self.started = now
        self.begin: float | None = None
        self.now = now
        self.stop: str | None = None
        self._ramped: float | None = None
        self._since_ramp = 0
        self._total = 0
        self._reset(now)
        self._in_flight = 0
        self._errors: Counter[str] = Counter()
        self._broken = 0
        self._rejected = 0
        self._no_usage = 0

    def _reset(self, now: float) -> None:
        self._bins: list[float] = []
        self._gaps = Histogram()
        self._ttft: list[float] = []
        self._e2e: list[float] = []
        self._queue: list[float] = []
        self._tokens = 0
        self._prompt_tokens = 0
        self._chunks = 0
        self._attained = 0
        self._lags: list[float] = []
        self._server: list[float] = []
        self._kv: list[float] = []
        self._preemptions: list[float] = []
        self._waiting: list[float] = []
        self._queued: list[tuple[float, float]] = []
        self._umc: list[float] = []
        self._area = 0.0
        self._area_at = now

    # ---- events ---------------------------------------------------------------------------------------------------

    @property
    def measuring(self) -> bool:
        """True inside the window."""
        return self.begin is not None

    def ramp_done(self, now: float) -> None:
        """All workers of the level have been started."""
        if self._ramped is None:
            self._ramped = now
            self._since_ramp = 0

    def first(self, ttft: float) -> None:
        """A first token arrived after ``ttft`` seconds, the client's queue included."""
        if self.begin is not None:
            self._ttft.append(ttft)
            if self.ask.objective is not None and ttft <= self.ask.objective:
                self._attained += 1

    def progress(self, now: float, count: float = 1.0, gap: float | None = None) -> None:
        """``count`` chunks with content arrived; ``gap`` is the time since the chunk before, None for a first one."""
        if self.begin is None:
            return
        index = int((now - self.begin) / BIN)
        bins = self._bins
        if index >= len(bins):
            bins.extend([0.0] * (index + 1 - len(bins)))
        bins[index] += count
        if gap is not None:
            self._gaps.add(gap, int(count))

    def end(self, e2e: float, *, tokens: int | None, chunks: int, prompt: int | None = None, queue: float = 0) -> None:
        """A request ended well: seconds, output tokens and prompt tokens by the server's count, chunks seen."""
        self._since_ramp += 1
        self._total += 1
        if self.begin is None:
            return
        self._e2e.append(e2e)
        self._queue.append(queue)
        if tokens is None:
            self._no_usage += 1
        else:
            self._tokens += tokens
            self._chunks += chunks
        self._prompt_tokens += prompt or 0

    def broken(self, reason: str) -> None:
        """A stream broke (connection, protocol, no finish_reason or [DONE], time-out); counted from the start."""
        self._total += 1
        self._broken += 1
        self._errors[reason] += 1

    def rejected(self, reason: str) -> None:
        """The server refused a request because it is full (429, 503)."""
        self._total += 1
        self._rejected += 1
        self._errors[reason] += 1

    def in_flight(self, now: float, count: int) -> None:
        """The number of requests in flight became ``count``."""
        self._area += self._in_flight * (now - self._area_at)
        self._area_at = now
        self._in_flight = count

    def lag(self, seconds: float) -> None:
        """The client's event loop ran a timer this late."""
        if self.begin is not None:
            self._lags.append(seconds)

    def gpu(self, umc: float) -> None:
        """The exporter said how busy the memory controllers are, 0..1."""
        if self.begin is not None:
            self._umc.append(umc)

    def server(
        self,
        requests: float,
        *,
        waiting: float | None = None,
        queue: tuple[float, float] | None = None,
        kv: float | None = None,
        preemptions: float | None = None,
    ) -> None:
        """The server said how many requests it runs and holds waiting; ``queue`` is seconds waited so far, and by how
        many requests."""
        if self.begin is not None:
            self._server.append(requests)
            if waiting is not None:
                self._waiting.append(waiting)
            if queue is not None:
                self._queued.append(queue)
            if kv is not None:
                self._kv.append(kv)
            if preemptions is not None:
                self._preemptions.append(preemptions)

    # ---- time -----------------------------------------------------------------------------------------------------

    def tick(self, now: float, *, stalled: int = 0) -> str | None:
        """Advance; return why the level stops, or None. ``stalled`` requests wait far too long for a first token."""
        self.now = now
        if self.stop is not None:
            return self.stop
        if self.begin is None:
            if self._broken >= 3:
                self.stop = "broken streams"
            elif self._rejected >= max(5, self.ask.concurrency // 10):
                self.stop = REFUSED
            elif self._ramped is not None and self._since_ramp >= self.ask.concurrency:
                self.begin = now
                self._reset(now)
            elif now - self.started > max(20.0, 4 * self.ask.max_seconds):
                self.stop = "never settled"
            return self.stop
        self.stop = decide(self.sample(stalled=stalled), self.ask)
        return self.stop

    def abort(self, reason: str) -> None:
        """End the level for a reason from outside: the budget, an interrupt."""
        self.stop = self.stop or reason

    def _batches(self) -> tuple[float, ...]:
        if self.begin is None:
            return ()
        gap = self._gaps.quantile(0.5) or BIN
        window = self.now - self.begin
        gap = min(gap, window / (2 * MIN_BATCHES))
        per_chunk = self._tokens / self._chunks if self._chunks else 1.0
        rates = batch_rates(self._bins, gap=gap, window=window, batch=max(self._service() or 0.0, 10 * gap, 0.25))
        return tuple(r * per_chunk for r in rates)

    def _service(self) -> float | None:
        """Mean time a request spends being served: its end-to-end time without the wait for the first token."""
        if not self._e2e or not self._ttft:
            return None
        return max(0.0, math.fsum(self._e2e) / len(self._e2e) - math.fsum(self._ttft) / len(self._ttft))

    def sample(self, *, stalled: int = 0) -> Sample:
        """Return the level so far, as the stop rule sees it."""
        return Sample(
            window=self.now - self.begin if self.begin is not None else 0.0,
            requests=len(self._e2e),
            throughput=batch_means(self._batches()),
            service=self._service(),
            attained=self._attained,
            judged=len(self._ttft) + stalled,
            broken=self._broken,
            rejected=self._rejected,
        )

    def level(self, *, stalled: int = 0) -> Level:
        """Return what the level showed, with the reasons why it may not be believed."""
        window = self.now - self.begin if self.begin is not None else 0.0
        self.in_flight(self.now, self._in_flight)
        achieved = self._area / window if window > 0 else 0.0
        batches = self._batches()
        ttft, e2e, queue = sorted(self._ttft), sorted(self._e2e), sorted(self._queue)
        count = len(e2e)
        counted = count - self._no_usage
        per_chunk = self._tokens / self._chunks if self._chunks else None
        mean_e2e = math.fsum(e2e) / count if count else None
        lag = quantile(sorted(self._lags), 0.99)
        server = math.fsum(self._server) / len(self._server) if len(self._server) >= 3 else None

        def itl(q: float) -> float | None:
            gap = self._gaps.quantile(q)
            # A chunk of several tokens was waited for once: the time per token is its share of the gap.
            return gap / max(1.0, per_chunk or 1.0) if gap is not None else None

        level = Level(
            concurrency=self.ask.concurrency,
            purpose=self.ask.purpose,
            window=window,
            wall=self.now - self.started,
            requests=count,
            throughput=batch_means(batches),
            batches=batches,
            request_rate=achieved / mean_e2e if mean_e2e else 0.0,
            mean_output_tokens=self._tokens / counted if counted else None,
            mean_prompt_tokens=self._prompt_tokens / count if count and self._prompt_tokens else None,
            tokens_per_chunk=per_chunk,
            ttft_mean=math.fsum(ttft) / len(ttft) if ttft else None,
            ttft_p50=quantile(ttft, 0.5),
            ttft_p95=quantile(ttft, 0.95),
            ttft_p99=quantile(ttft, 0.99),
            itl_p50=itl(0.5),
            itl_p95=itl(0.95),
            itl_p99=itl(0.99),
            e2e_mean=mean_e2e,
            e2e_p50=quantile(e2e, 0.5),
            e2e_p95=quantile(e2e, 0.95),
            e2e_p99=quantile(e2e, 0.99),
            client_queue_p99=quantile(queue, 0.99),
            attained=self._attained,
            judged=len(ttft) + stalled,
            achieved=achieved,
            broken=self._broken,
            rejected=self._rejected,
            errors=dict(sorted(self._errors.items())),
            lag_p99=lag,
            server_in_flight=server,
            kv_usage_max=max(self._kv) if self._kv else None,
            preemptions=self._preemptions[-1] - self._preemptions[0] if self._preemptions else None,
            server_waiting=_mean(self._waiting),
            queue_mean=_queued(self._queued),
            umc_activity=_mean(self._umc),
            total_requests=self._total,
            stop=self.stop or "",
            rate=self.ask.rate,
            ttfts=tuple(ttft),
        )
        return _with_void(level, self.limits, self._no_usage)


def _with_void(level: Level, limits: Limits, no_usage: int) -> Level:
    """Return the level with the reasons that make it void, each with what was seen and what was expected."""
    reasons: list[str] = []
    if level.broken:
        worst = max(level.errors.items(), key=lambda item: (item[1], item[0]))
        reasons.append(f"{level.broken} broken streams, expected none; most often: {worst[0]}")
    if level.rejected and level.stop == REFUSED:
        # A full server is an answer, not a fault: what was in flight meanwhile does not matter.
        return dataclasses.replace(level, void=tuple(reasons))
    if not level.requests:
        reasons.append(f"no request ended inside the window ({level.window:.1f} s; {level.stop or 'not settled'})")
    elif level.rate is None and level.achieved < limits.min_achieved * level.concurrency:
        reasons.append(
            f"only {level.achieved:.1f} requests in flight on average, expected at least "
            f"{limits.min_achieved:.0%} of {level.concurrency}: the client did not drive the server"
        )
    if no_usage:
        reasons.append(f"{no_usage} responses without `usage`: their tokens cannot be counted")
    if level.lag_p99 is not None and level.lag_p99 > limits.max_lag:
        reasons.append(
            f"the client's event loop was {level.lag_p99 * 1e3:.1f} ms late at p99, expected at most "
            f"{limits.max_lag * 1e3:.0f} ms: its times are not the server's"
        )
    if level.server_in_flight is not None and level.requests:
        allowed = limits.server_share * level.achieved + limits.server_slack
        if abs(level.server_in_flight - level.achieved) > allowed:
            reasons.append(
                f"the server counts {level.server_in_flight:.1f} requests running and waiting, the client "
                f"{level.achieved:.1f}: other traffic, or something between them holds requests back"
            )
    return dataclasses.replace(level, void=tuple(reasons))
