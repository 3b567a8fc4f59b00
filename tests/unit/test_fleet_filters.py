"""The filters of filter_plugins/fleet.py: each is documented as it is, and its errors carry its name."""

from __future__ import annotations

import importlib.util
import inspect
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

pytest.importorskip("ansible", reason="ansible is not installed for this Python")

from instinct_fleet import (
    acceptance,
    benchmarking,
    building,
    pinning,
    rccl_check,
    releases,
    runtime_sets,
    serving,
    tuning,
    wheelhouse,
)

FOLDER = Path(__file__).resolve().parents[2] / "filter_plugins"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


FLEET = load("fleet")
FILTERS = FLEET.FilterModule().filters()


def function(name: str) -> Any:
    if name == "runtime_set":
        return runtime_sets.describe
    return next(
        getattr(m, name)
        for m in (acceptance, benchmarking, building, pinning, rccl_check, releases, serving, tuning, wheelhouse, FLEET)
        if hasattr(m, name)
    )


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.py")), ids=lambda p: p.stem)
def test_every_filter_has_a_sidecar(path: Path) -> None:
    for name in load(path.stem).FilterModule().filters():
        assert (FOLDER / f"{name}.yml").is_file(), name


@pytest.mark.parametrize("name", sorted(FILTERS))
def test_a_sidecar_says_what_the_function_takes(name: str) -> None:
    document = yaml.safe_load((FOLDER / f"{name}.yml").read_text())
    options = document["DOCUMENTATION"]["options"]
    parameters = list(inspect.signature(function(name)).parameters.values())
    assert document["DOCUMENTATION"]["name"] == name
    assert set(options) - {"_input"} == {p.name for p in parameters[1:]}
    for parameter in parameters[1:]:
        required = parameter.default is inspect.Parameter.empty
        assert options[parameter.name].get("required", False) is required
    (example,) = yaml.safe_load(document["EXAMPLES"])
    assert f"| {name}" in example["ansible.builtin.debug"]["msg"]


def test_an_error_names_the_filter() -> None:
    from ansible.errors import AnsibleFilterError

    with pytest.raises(AnsibleFilterError, match="runtime_set: runtime set is 'x', expected one of"):
        FILTERS["runtime_set"]("x")
