"""The report: one file, no network, and everything it must say."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from typing import Any

import pytest

from instinct_fleet.capacity import record
from instinct_fleet.model import Point, to_json
from instinct_fleet.report import render


def document(**more: Any) -> dict[str, Any]:
    points = [
        Point(c, float(c), 500, 0, 10.0 * min(c, 32), 100.0 * min(c, 32), 5.0 * c, 9.0 * c, 4.0, 6.0, 700.0 + c, 900.0)
        for c in (1, 4, 16, 32, 64, 128)
    ]
    points.append(Point(256, 100.0, 5, 2, 0.0, None, None, None, counts=False, note="<b>broken</b> & void"))
    capacity = record(points, ttft_slo_ms=900.0, instance="node1/a", key="k", **more)
    return {"capacity": to_json(capacity), "title": "Load test of m<1>", "settings": {"model": "m<1>"}}


class Page(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.refs: list[str] = []
        self.ids: list[str] = []
        self.tags: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            if name in ("src", "href", "xlink:href") and value and not value.startswith("#"):
                self.refs.append(value)
            if name == "id" and value:
                self.ids.append(value)


def test_the_page_is_self_contained_and_its_ids_are_unique() -> None:
    text = render(document())
    page = Page(text)
    assert page.refs == []
    assert "script" not in page.tags
    assert "@import" not in text
    assert re.findall(r"url\((?!#)", text) == []
    assert len(page.ids) == len(set(page.ids))


def test_every_chart_is_there_with_its_points_in_both_sizes() -> None:
    text = render(document())
    drawings = re.findall(r"<svg .*?</svg>", text, flags=re.DOTALL)
    assert len(drawings) == 8
    for drawing in drawings:
        ET.fromstring(drawing)  # noqa: S314 - our own text
    for chart, name in (
        ("throughput", "points"),
        ("ttft", "points-p50"),
        ("ttft", "points-p99"),
        ("itl", "points-p99"),
    ):
        for size in ("wide", "narrow"):
            group = re.search(rf'<g id="{chart}-{size}-{name}">.*?</g>\s*</g>', text, flags=re.DOTALL)
            assert group is not None, (name, size)
            assert group.group(0).count("<use ") == 6  # the void point is not drawn
    assert "knee 32" in text
    assert "limit 25" in text


def test_colours_are_the_pages() -> None:
    text = render(document())
    drawings = "".join(re.findall(r"<svg .*?</svg>", text, flags=re.DOTALL))
    assert set(re.findall(r"#[0-9a-f]{6}", drawings)) == set()
    used = set(re.findall(r"var\((--[a-z]+)\)", text))
    light, dark = (
        set(re.findall(r"(--[a-z]+):", block)) for block in re.findall(r":root \{(.*?)\}", text, re.DOTALL)[:2]
    )
    assert used <= light
    assert light == dark


def test_what_it_says() -> None:
    text = render(document())
    assert "node1/a" in text
    assert "&lt;b&gt;broken&lt;/b&gt; &amp; void" in text
    assert "Load test of m&lt;1&gt;" in text
    assert 'id="simulated"' not in text
    assert 'id="simulated"' in render(document(simulated=True))
    assert 'id="simulated"' in render({**document(), "simulated": True})


def test_without_a_number_it_says_so_and_draws_nothing() -> None:
    capacity = to_json(record([], ttft_slo_ms=900.0))
    text = render({"capacity": capacity})
    assert ">inconclusive<" in text
    assert "nothing to draw" in text
    assert "<svg" not in text


@pytest.mark.parametrize("missing", ["output_token_rate", "ttft_p99_ms", "itl_p50_ms", "e2e_p50_ms"])
def test_unknown_values_are_not_drawn_and_not_hidden(missing: str) -> None:
    data = document()
    for point in data["capacity"]["points"]:
        point[missing] = None
    text = render(data)
    assert "unknown" in text
    assert "unknown ms" not in text
    assert "nan" not in text.lower().replace("finance", "")
