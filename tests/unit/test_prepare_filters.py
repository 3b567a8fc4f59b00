"""The filters of filter_plugins/prepare.py: each is documented as it is, and its errors carry its name."""

from __future__ import annotations

import importlib.util
import inspect
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

pytest.importorskip("ansible", reason="ansible is not installed for this Python")

from instinct_fleet import openpgp, rocm, tuning

FOLDER = Path(__file__).resolve().parents[2] / "filter_plugins"


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("prepare", FOLDER / "prepare.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


FILTERS = load().FilterModule().filters()


def function(name: str) -> Any:
    return next(getattr(module, name) for module in (openpgp, rocm, tuning) if hasattr(module, name))


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

    with pytest.raises(AnsibleFilterError, match="rocm_plan: stack is 'all', expected one of none, pip, system"):
        FILTERS["rocm_plan"]({}, stack="all", release="7.2.3", urls={}, key_fingerprint="")
