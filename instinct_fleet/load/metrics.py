"""The few things that /metrics of vLLM and of AMD's exporter say about a level, without a Prometheus library."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

#: vLLM names (0.6 to 0.33; counters carry _total on the wire). The cache gauge was renamed with the V1 engine.
RUNNING, WAITING = "vllm:num_requests_running", "vllm:num_requests_waiting"
KV = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")
PREEMPTIONS = "vllm:num_preemptions_total"
QUEUE_SUM, QUEUE_COUNT = "vllm:request_queue_time_seconds_sum", "vllm:request_queue_time_seconds_count"
#: Device Metrics Exporter of AMD: percentage of the time that the memory controller was busy, one a GPU.
UMC = "gpu_umc_activity"
_WANTED = frozenset({RUNNING, WAITING, *KV, PREEMPTIONS, QUEUE_SUM, QUEUE_COUNT})


@dataclass(frozen=True)
class ServerState:
    """Sums over the engines behind the endpoint; None: the server does not say. ``kv``: the fullest engine's, 0..1."""

    running: float | None = None
    waiting: float | None = None
    kv: float | None = None
    preemptions: float | None = None
    queue_seconds: float | None = None
    queue_count: float | None = None

    @property
    def mean_queue(self) -> tuple[float, float] | None:
        """Seconds that requests have waited since the server's start, and how many; None when unknown."""
        if self.queue_seconds is None or self.queue_count is None:
            return None
        return self.queue_seconds, self.queue_count

    @property
    def requests(self) -> float | None:
        """Requests running and waiting, or None when either is unknown."""
        return None if self.running is None or self.waiting is None else self.running + self.waiting


def _samples(text: str, wanted: frozenset[str]) -> Mapping[str, list[float]]:
    found: dict[str, list[float]] = {}
    for line in text.splitlines():
        name = line.split("{", 1)[0].split(" ", 1)[0]
        if name not in wanted:
            continue
        try:
            value = float(line.rsplit("}", 1)[-1].split()[0] if "}" in line else line.split()[1])
        except (ValueError, IndexError):
            continue
        found.setdefault(name, []).append(value)
    return found


def parse_metrics(text: str) -> ServerState:
    """Read a /metrics page. A page without vLLM's names gives a state that knows nothing."""
    found = _samples(text, _WANTED)

    def total(name: str) -> float | None:
        return sum(found[name]) if name in found else None

    kv = [value for name in KV for value in found.get(name, ())]
    return ServerState(
        running=total(RUNNING),
        waiting=total(WAITING),
        kv=max(kv) if kv else None,
        preemptions=total(PREEMPTIONS),
        queue_seconds=total(QUEUE_SUM),
        queue_count=total(QUEUE_COUNT),
    )


def parse_umc(text: str) -> float | None:
    """Return the mean activity of the memory controllers, 0..1, from the exporter's page; None when it says nothing."""
    values = _samples(text, frozenset({UMC})).get(UMC, [])
    return sum(values) / len(values) / 100 if values else None
