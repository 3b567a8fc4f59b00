"""The small pure parts: prompts, server metrics, curve fits, differences, results."""

from __future__ import annotations

import itertools
import json
import math
import random
from pathlib import Path
from typing import Any

import pytest

from instinct_fleet.load import dataset
from instinct_fleet.load.compare import compare_points, difference, pairs_of
from instinct_fleet.load.dataset import DatasetError, Prompt, Ratio
from instinct_fleet.load.fits import guides, kneedle, segmented, usl
from instinct_fleet.load.level import Level
from instinct_fleet.load.metrics import parse_metrics
from instinct_fleet.load.results import estimate_to_json, level_to_json, open_loop_points, rules
from instinct_fleet.load.search import SearchConfig
from instinct_fleet.load.stats import Estimate
from instinct_fleet.model import Point

# ---- prompts ------------------------------------------------------------------------------------------------------


def test_the_ratio_is_measured() -> None:
    ratio = dataset.measured_ratio([(24, 24 * 1.3 + 9), (120, 120 * 1.3 + 9)])  # type: ignore[list-item]
    assert ratio.per_word == pytest.approx(1.3)
    assert ratio.base == pytest.approx(9)
    assert ratio.words(139) == 100
    assert dataset.measured_ratio([(24, 30)]) == Ratio()
    assert dataset.measured_ratio([(24, 30), (120, 30)]) == Ratio()
    assert Ratio(1.0, 500.0).words(100) == 1


def test_random_prompts_have_the_wanted_length_and_repeat_by_seed() -> None:
    def take(seed: int) -> list[Prompt]:
        return list(
            itertools.islice(
                dataset.random_prompts(input_len=260, output_len=50, spread=0.2, seed=seed, ratio=Ratio(1.3)), 200
            )
        )

    prompts = take(1)
    lengths = [len(p.text.split()) for p in prompts]
    assert sum(lengths) / 200 == pytest.approx(200, rel=0.03)
    assert min(lengths) >= 160
    assert max(lengths) <= 240
    assert all(40 <= p.max_tokens <= 60 for p in prompts)
    assert take(1) == prompts != take(2)
    assert len({p.text for p in prompts}) == 200  # nothing for a prefix cache


class Letters:
    """A tokenizer of one token a character."""

    def encode(self, text: str) -> Any:
        return type("Encoding", (), {"ids": [ord(c) for c in text]})()

    def decode(self, ids: list[int]) -> str:
        return "".join(map(chr, ids))

    def get_vocab_size(self) -> int:
        return 256


def test_a_tokenizer_makes_lengths_exact() -> None:
    text = dataset.text_of(77, random.Random(0), ratio=Ratio(), tokenizer=Letters())
    assert len(text) == 77


def test_shared_prefixes_are_shared() -> None:
    prompts = itertools.islice(
        dataset.shared_prefix_prompts(prefix_len=50, groups=3, input_len=10, output_len=5, seed=2), 100
    )
    prefixes = {" ".join(p.text.split()[:50]) for p in prompts}
    assert len(prefixes) == 3


def test_sharegpt(tmp_path: Path) -> None:
    path = tmp_path / "s.json"
    entries = [
        {"conversations": [{"from": "human", "value": f"q{i}"}, {"from": "gpt", "value": "a " * 20}]} for i in range(5)
    ]
    path.write_text(json.dumps([*entries, {"conversations": []}, {"other": 1}, 3]))
    prompts = list(itertools.islice(dataset.sharegpt_prompts(path, output_len=None, ratio=Ratio(1.5)), 10))
    assert {p.text for p in prompts} == {f"q{i}" for i in range(5)}
    assert {p.max_tokens for p in prompts} == {30}
    assert next(dataset.sharegpt_prompts(path, output_len=7)).max_tokens == 7


def test_custom(tmp_path: Path) -> None:
    path = tmp_path / "c.jsonl"
    path.write_text('{"prompt": "a", "output_tokens": 3}\n\n{"messages": [{"role": "user", "content": "b"}]}\n')
    prompts = list(itertools.islice(dataset.custom_prompts(path, output_len=9), 2))
    assert {(p.text, p.max_tokens) for p in prompts} == {("a", 3), ("", 9)}


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("sharegpt", "{", "expected a JSON list"),
        ("sharegpt", "[]", "no conversation with two turns"),
        ("custom", "{\n", "line 1: "),
        ("custom", '{"prompt": ""}\n', "line 1: got"),
        ("custom", '{"prompt": "a", "output_tokens": 0}', "output_tokens is 0"),
        ("custom", "\n", "no entries"),
    ],
)
def test_a_bad_dataset_names_its_line(name: str, text: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.write_text(text)
    read = dataset.sharegpt_prompts if name == "sharegpt" else dataset.custom_prompts
    with pytest.raises(DatasetError, match="dataset: ") as caught:
        read(path, output_len=5)
    assert words in str(caught.value)


def test_a_missing_dataset(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="No such file"):
        dataset.custom_prompts(tmp_path / "none", output_len=5)


def test_bodies() -> None:
    prompt = Prompt(max_tokens=5, text="hi")
    plain = json.loads(dataset.body_of(prompt, model="m", api="completions", fixed_length=True))
    assert plain["stream_options"] == {"include_usage": True}
    assert (plain["prompt"], plain["ignore_eos"], plain["temperature"]) == ("hi", True, 0.0)
    chat = json.loads(dataset.body_of(prompt, model="m", api="chat", fixed_length=False))
    assert chat["messages"] == [{"role": "user", "content": "hi"}]
    assert "ignore_eos" not in chat


# ---- metrics ------------------------------------------------------------------------------------------------------


def test_metrics_are_summed_over_engines() -> None:
    state = parse_metrics(
        """# HELP vllm:num_requests_running x
vllm:num_requests_running{engine="0",model_name="a b"} 3.0
vllm:num_requests_running{engine="1",model_name="a b"} 4.0
vllm:num_requests_waiting{engine="0",model_name="a b"} 1.0
vllm:num_requests_waiting_by_reason{engine="0",reason="capacity"} 9.0
vllm:kv_cache_usage_perc{engine="0"} 0.25
vllm:kv_cache_usage_perc{engine="1"} 0.75 1700000000
vllm:num_preemptions_total{engine="0"} 2.0
process_cpu_seconds_total 5
"""
    )
    assert (state.running, state.waiting, state.requests) == (7.0, 1.0, 8.0)
    assert (state.kv, state.preemptions) == (0.75, 2.0)


@pytest.mark.parametrize("text", ["", "<html>", "vllm:num_requests_running{} \nvllm:num_requests_waiting", "vllm:"])
def test_metrics_that_say_nothing(text: str) -> None:
    assert parse_metrics(text).requests is None


# ---- fits ---------------------------------------------------------------------------------------------------------


def test_usl_finds_its_own_curve() -> None:
    def curve(c: float) -> float:
        return 50 * c / (1 + 0.02 * (c - 1) + 1e-4 * c * (c - 1))

    fit = usl([(c, curve(c)) for c in (1, 2, 4, 8, 16, 32, 64, 128, 256)])
    assert fit.knee is not None
    best = max(curve(c) for c in range(1, 257))
    true = next(c for c in range(1, 257) if curve(c) >= 0.95 * best)
    assert fit.knee == pytest.approx(true, rel=0.05)
    for c, x in fit.curve:
        assert x == pytest.approx(curve(c), rel=1e-6)


def test_two_segments_find_a_corner() -> None:
    fit = segmented([(c, 10.0 * min(c, 40)) for c in (1, 8, 16, 24, 32, 40, 48, 64, 96)])
    assert fit.knee == pytest.approx(40, rel=0.05)


def test_fits_without_an_answer_say_so() -> None:
    assert usl([(1, 1.0), (2, 2.0)]).note == "2 points, it takes 4"
    assert segmented([(c, c * c * 1.0) for c in (1, 2, 3, 4, 5, 6)]).note == "throughput does not bend"
    assert [f.name for f in guides([])] == ["USL", "two segments", "kneed"]
    assert all(f.knee is None and f.note for f in guides([]))
    assert kneedle([(1, 1.0)]).knee is None
    assert kneedle([(c, 30.0 * min(c, 32)) for c in (1, 2, 4, 8, 16, 32, 64, 128)]).knee == 32


# ---- differences --------------------------------------------------------------------------------------------------


def test_a_difference_that_drift_cannot_hide() -> None:
    rng = random.Random(3)
    pairs = [(100 * 0.97**i, 104 * 0.97**i * (1 + rng.gauss(0, 0.003))) for i in range(6)]
    found = difference("x", pairs)
    assert found is not None
    assert found.verdict == "B is better"
    assert found.low is not None
    assert found.high is not None
    assert found.low < 0.04 < found.high
    other = difference("x", pairs, higher_is_better=False)
    assert other is not None
    assert other.verdict == "A is better"


def test_no_difference_is_said_in_these_words() -> None:
    rng = random.Random(4)
    verdicts = []
    for _ in range(200):
        found = difference("x", [(rng.gauss(100, 1), rng.gauss(100, 1)) for _ in range(6)])
        assert found is not None
        verdicts.append(found.verdict)
    assert verdicts.count("no measurable difference") >= 180


def test_one_pair_is_not_enough() -> None:
    found = difference("x", [(100.0, 150.0)])
    assert found is not None
    assert (found.verdict, found.low) == ("inconclusive", None)
    assert difference("x", [(0.0, 1.0)]) is None


def test_points_are_paired_by_concurrency_and_order() -> None:
    def point(c: int, rate: float, counts: bool = True) -> Point:
        return Point(c, float(c), 100, 0, rate, None, 10.0, 20.0, counts=counts)

    a = [point(8, 10.0), point(8, 11.0), point(16, 20.0), point(32, 1.0, counts=False)]
    b = [point(8, 12.0), point(8, 13.0), point(32, 9.0), point(64, 5.0)]
    pairs = pairs_of(a, b)
    assert [(x.request_rate, y.request_rate) for x, y in pairs] == [(10.0, 12.0), (11.0, 13.0)]
    assert [d.metric for d in compare_points(pairs)] == ["requests/s", "TTFT p50", "TTFT p99"]
    assert compare_points(()) == ()


# ---- results ------------------------------------------------------------------------------------------------------


def test_levels_are_plain_data() -> None:
    level = Level(4, "bracket", 1.0, 2.0, 3, Estimate(5.0, math.inf, 0), ttfts=(0.1,), void=("a",))
    document = json.loads(json.dumps(level_to_json(level), allow_nan=False))
    assert document["throughput"] == {"value": 5.0, "low": None, "high": None}
    assert "ttfts" not in document
    assert document["void"] == ["a"]
    assert estimate_to_json(None) is None


def test_an_open_loop_has_points_but_none_that_counts() -> None:
    level = Level(5, "rate", 10.0, 12.0, 48, Estimate(5.0, 0.1, 9), achieved=3.4, rate=5.0)
    (point,) = open_loop_points([level])
    assert (point.concurrency, point.request_rate, point.counts) == (3, 4.8, False)
    assert "open loop, 5 requests/s" in point.note


def test_the_rules_hold_the_numbers_that_were_used() -> None:
    text = " ".join(rules(SearchConfig(objective=0.75, attainment=0.95, headroom=0.3), max_lag=0.007))
    for part in ("750 ms", "95%", "30%", "7 ms", "factors of four"):
        assert part in text
    assert "10, 20" in " ".join(rules(SearchConfig(), max_lag=0.005, steps=[10, 20]))
