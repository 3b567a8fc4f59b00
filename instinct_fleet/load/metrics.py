"""The few things that vLLM's /metrics says about a level, without a Prometheus library."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

#: vLLM names (0.6 to 0.33; counters carry _total on the wire). The cache gauge was renamed with the V1 engine.
RUNNING, WAITING = "vllm:num_requests_running", "vllm:num_requests_waiting"
KV = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")
PREEMPTIONS = "vllm:num_preemptions_total"
QUEUE_SUM, QUEUE_COUNT = "vllm:request_queue_time_seconds_sum", "vllm:request_queue_time_seconds_count"
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
    def requests(self) -> float | None:
        """Requests running and waiting, or None when either is unknown."""
        return None if self.running is None or self.waiting is None else self.running + self.waiting


def _samples(text: str) -> Mapping[str, list[float]]:
    found: dict[str, list[float]] = {}
    for line in text.splitlines():
        if not line.startswith("vllm:"):
            continue
        name = line.split("{", 1)[0].split(" ", 1)[0]
        if name not in _WANTED:
            continue
        try:
            value = float(line.rsplit("}", 1)[-1].split()[0] if "}" in line else line.split()[1])
        except (ValueError, IndexError):
            continue
        found.setdefault(name, []).append(value)
    return found


def parse_metrics(text: str) -> ServerState:
    """Read a /metrics page. A page without vLLM's names gives a state that knows nothing."""
    found = _samples(text)

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
