"""The filters serve_argument_findings and model_fit: thin, documented, and their examples work."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jinja2
import pytest
import yaml

pytest.importorskip("ansible", reason="ansible is not installed for this Python")

from ansible.errors import AnsibleFilterError
from support.public_models import LLAMA_405B

REPO = Path(__file__).resolve().parents[2]


def load() -> dict[str, Callable[..., Any]]:
    spec = importlib.util.spec_from_file_location("serving_filters", REPO / "filter_plugins" / "serving.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    filters: dict[str, Callable[..., Any]] = module.FilterModule().filters()
    return filters


FILTERS = load()


def sidecar(name: str) -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load((REPO / "filter_plugins" / f"{name}.yml").read_text())
    return document


def evaluate(expression: str) -> Any:
    """Evaluate the one expression of an example, with a file lookup that finds a configuration."""
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined)  # noqa: S701 - no HTML here
    environment.filters |= FILTERS | {"from_json": json.loads}
    environment.globals["lookup"] = lambda *_: json.dumps(LLAMA_405B)
    inner = expression.strip().removeprefix("{{").removesuffix("}}")
    return environment.compile_expression(inner)()


@pytest.mark.parametrize("name", sorted(FILTERS))
def test_the_documentation_is_that_of_the_filter(name: str) -> None:
    documentation = sidecar(name)["DOCUMENTATION"]
    assert documentation["name"] == name
    assert documentation["short_description"]
    assert set(sidecar(name)) == {"DOCUMENTATION", "EXAMPLES", "RETURN"}


@pytest.mark.parametrize(
    ("name", "variable", "code"),
    [("serve_argument_findings", "findings", "serve_args_removed"), ("model_fit", "fit", "fit_weights")],
)
def test_the_example_finds_what_it_is_about(name: str, variable: str, code: str) -> None:
    (task,) = yaml.safe_load(sidecar(name)["EXAMPLES"])
    result = evaluate(task["vars"][variable])
    findings = result if name == "serve_argument_findings" else result["findings"]
    assert [finding["code"] for finding in findings] == [code]
    assert set(findings[0]) == {"code", "severity", "subject", "message", "remedy"}


def test_every_option_of_model_fit_is_documented_and_taken() -> None:
    options = sidecar("model_fit")["DOCUMENTATION"]["options"]
    values = {"int": 8, "float": 0.5, "bool": True, "str": "fp8", "dict": {"metadata": {"total_size": 10**12}}}
    given = {name: values[option["type"]] for name, option in options.items() if name != "_input"}
    assert FILTERS["model_fit"](LLAMA_405B, **given)["weight_source"] == "index"


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (
            lambda: FILTERS["serve_argument_findings"]("m --port 1", version="0.33.0"),
            "arguments, got 'm --port 1' (str)",
        ),
        (lambda: FILTERS["serve_argument_findings"](["m"], version="0.33.0", environment=[]), "environment, got []"),
        (lambda: FILTERS["model_fit"](LLAMA_405B, gpus=8), "expected gpus, vram_gib, tp"),
        (lambda: FILTERS["model_fit"](LLAMA_405B, gpus=8, vram_gib=1, tp=1, vram=2), "got gpus, tp, vram, vram_gib"),
    ],
)
def test_misuse_is_said(call: Callable[[], Any], text: str) -> None:
    with pytest.raises(AnsibleFilterError) as caught:
        call()
    assert text in str(caught.value)


def test_values_from_an_inventory() -> None:
    findings = FILTERS["serve_argument_findings"](
        {"port": 8000}, version="0.33.0", environment={"VLLM_USE_V1": 1}, in_config=True
    )
    assert [finding["code"] for finding in findings] == ["serve_args_environment"]
