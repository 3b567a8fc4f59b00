"""With or without NUMA binding: what is run, what it says, and what stays."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support import nodes
from support.profile import PROFILES

from instinct_fleet import pinning
from instinct_fleet.model import Point, to_json

TOPOLOGY = to_json(nodes.topology(PROFILES["mi300x_8"]()))
INSTANCES = [
    {"name": "chat", "model": "/m", "tensor_parallel_size": 4},
    {"name": "other", "model": "/m", "tensor_parallel_size": 4},
]
JOB = {
    "instance": "chat",
    "previous": {"limit": 40},
    "argv": [
        "python3",
        "sweep",
        "--max-concurrency",
        "512",
        "--output-dir",
        "out/n1-chat",
        "--ladder",
        "1,2",
        "--json",
    ],
    "output_dir": "out/n1-chat",
}


def plan(**changes: Any) -> dict[str, Any]:
    arguments: dict[str, Any] = {
        "instances": INSTANCES,
        "for_instance": "chat",
        "rounds": 2,
        "concurrency": 0,
        "jobs": [JOB],
        "vllm_version": "0.33.0",
        "vllm_path": "/opt/vllm/bin/vllm",
        "config_dir": "/etc/vllm",
        "numactl_path": "/usr/bin/numactl",
        "start_timeout": 600,
        "with_key": False,
    }
    return pinning.pinning_plan(TOPOLOGY, **(arguments | changes))


def test_both_ways_are_measured_in_turn() -> None:
    found = plan()
    assert [(s["round"], s["side"]) for s in found["steps"]] == [
        *[(1, "bound"), (1, "unbound")],
        *[(2, "bound"), (2, "unbound")],
    ]
    bound, unbound = (s["content"] for s in found["steps"][:2])
    assert bound.startswith("[Service]\nExecStart=\nExecStart=/usr/bin/numactl --cpunodebind=")
    assert unbound.startswith("[Service]\nExecStart=\nExecStart=/opt/vllm/bin/vllm serve")
    assert found["drop_in"].startswith("/run/systemd/system/vllm-chat.service.d/")


def test_the_load_is_one_level_at_the_limit_of_the_record() -> None:
    first = plan()["steps"][0]
    assert first["argv"] == [
        *["python3", "sweep", "--json", "--ladder", "40"],
        *["--output-dir", "out/n1-chat-pinning-01-bound"],
    ]
    assert plan(concurrency=7)["steps"][0]["argv"][4] == "7"


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"for_instance": "nobody"}, "expected one of the node's instances: chat, other"),
        ({"for_instance": ""}, "benchmark_pinning_instance is ''"),
        ({"rounds": 1}, "benchmark_pinning_rounds is 1, expected 2 or more"),
        ({"instances": [{**INSTANCES[0], "numa": "off"}]}, "has numa: off"),
        ({"jobs": [{**JOB, "previous": None}]}, "set benchmark_pinning_concurrency"),
        ({"jobs": []}, "benchmark_instances"),
    ],
)
def test_what_cannot_be_compared_is_refused(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        plan(**changes)


def test_a_node_without_numa_has_nothing_to_compare() -> None:
    flat = {**TOPOLOGY, "gpus": [{**gpu, "numa_node": None} for gpu in TOPOLOGY["gpus"]], "numa": []}
    with pytest.raises(ValueError, match="nothing to compare"):
        pinning.pinning_plan(
            flat,
            instances=INSTANCES,
            for_instance="chat",
            rounds=2,
            concurrency=1,
            jobs=[JOB],
            vllm_version="0.33.0",
            vllm_path="/v",
            config_dir="/c",
            numactl_path="/n",
            start_timeout=1,
            with_key=False,
        )


def result(rate: float, ttft: float = 100.0, **changes: Any) -> dict[str, Any]:
    point = to_json(Point(40, 40.0, 100, 0, rate, rate * 100, ttft, ttft * 2, **changes))
    capacity = {"points": [point], "ttft_slo_ms": None, "knee": None}
    return {"stdout": json.dumps({"kind": "instinct-fleet sweep", "settings": {"model": "m"}, "capacity": capacity})}


def outcome(*rates: float, rounds: int = 4) -> dict[str, Any]:
    steps = plan(rounds=rounds)["steps"]
    return pinning.pinning_outcome(steps, [result(r) for r in rates], key="k", date="now")


@pytest.mark.parametrize(
    ("rates", "verdict", "keep"),
    [
        ((10, 9, 10.1, 9.1, 10, 9, 10, 9.05), "A is better", "bound"),
        ((9, 10, 9.1, 10.1, 9, 10, 9.05, 10), "B is better", "unbound"),
        ((10, 9, 9, 10, 10, 9.5, 9.4, 10), "no measurable difference", None),
    ],
)
def test_only_a_difference_that_shows_is_kept(rates: tuple[float, ...], verdict: str, keep: str | None) -> None:
    found = outcome(*rates)
    assert (found["verdict"], found["keep"], found["void"]) == (verdict, keep, [])


def test_a_drift_that_meets_both_is_no_difference() -> None:
    found = outcome(10, 10.05, 8, 7.95, 6, 6.02, 4, 3.99)
    assert found["verdict"] == "no measurable difference"


def test_one_pair_is_inconclusive_and_a_lost_result_is_named() -> None:
    steps = plan(rounds=2)["steps"]
    results = [result(10), result(9), result(10), {"stdout": "Killed"}]
    found = pinning.pinning_outcome(steps, results, key="k", date="now")
    assert (found["verdict"], found["keep"]) == ("inconclusive", None)
    assert found["void"][0].startswith("round 2 of 2, unbound: ")
    assert "inconclusive; the binding stays" in pinning.pinning_text(found, for_instance="chat")


def test_a_level_that_does_not_count_says_why() -> None:
    steps = plan(rounds=2)["steps"]
    results = [result(10), result(9, counts=False, note="event loop late"), result(10), result(9)]
    found = pinning.pinning_outcome(steps, results, key="k", date="now")
    assert found["void"] == ["round 1 of 2, unbound: event loop late"]


def test_nothing_measured_is_inconclusive() -> None:
    assert pinning.pinning_outcome(plan()["steps"], [], key="k", date="now")["verdict"] == "inconclusive"


def keep(verdict: dict[str, Any]) -> dict[str, Any]:
    (_folder, entry) = pinning.pinning_files(verdict, for_instance="chat")
    return {"paths": {entry["dest"]: entry["content"]}}


def applied(probe: dict[str, Any], **changes: Any) -> str:
    instances = [{**INSTANCES[0], **changes.pop("instance", {})}, INSTANCES[1]]
    arguments = {"probe": probe, "topology": TOPOLOGY, "vllm_version": "0.33.0", **changes}
    found = pinning.measured_pinning(instances, **arguments)
    assert found[1] == INSTANCES[1]
    return str(found[0].get("numa", "auto"))


def test_what_was_kept_is_served_until_something_changes() -> None:
    rates = (9, 10, 9.1, 10.1)
    steps = plan()["steps"]
    found = pinning.pinning_outcome(steps, [result(r) for r in rates], key=plan()["key"], date="now")
    unbound = keep({**found, "keep": "unbound"})
    assert applied(unbound) == "off"
    assert applied(keep({**found, "keep": "bound"})) == "auto"
    assert applied(keep({**found, "keep": None})) == "auto"
    assert applied({"paths": {}}) == "auto"
    assert applied(unbound, vllm_version="0.34.0") == "auto"
    assert applied(unbound, instance={"model": "/other"}) == "auto"
    assert applied(unbound, instance={"max_num_seqs": 64}) == "off"


@pytest.mark.parametrize("text", ["", "[]", "{", "null", '{"keep": "unbound"}'])
def test_a_damaged_verdict_changes_nothing(text: str) -> None:
    assert applied({"paths": {pinning.pinning_path("chat"): text}}) == "auto"


def test_the_text_says_interval_and_what_stays() -> None:
    text = pinning.pinning_text(outcome(9, 10, 9.1, 10.1, 9, 10, 9.05, 10), for_instance="chat", simulated=True)
    assert "requests/s: bound 9.037, unbound 10.03, change +10.9% (95 %: +" in text
    assert "chat: unbound is faster; the instance is started without binding from now on" in text
    assert "Simulated hardware" in text
