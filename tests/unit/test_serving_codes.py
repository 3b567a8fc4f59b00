"""The codes of the checks on device code, arguments and memory are the registered ones, all of them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from instinct_fleet.findings import CODES

PACKAGE = Path(__file__).resolve().parents[2] / "instinct_fleet"

#: Area -> (prefix of its codes, files that make them, how a code stands there).
MADE = {
    "device_code": ("codeobjects_", ["codeobjects.py", "cli/codeobjects.py"], r'"codeobjects_(\w+)"'),
    "arguments": (
        "serve_args_",
        ["arguments.py", "cli/check_args.py", "data/serve_advice.yml"],
        r'\.say\(\s*"(\w+)"|"serve_args_(\w+)"|code: serve_args_(\w+)|code = "(\w+)" if|else "(removed)"',
    ),
    "memory": (
        "fit_",
        ["memory.py", "model_config.py"],
        r'(?:_finding|uneven|_UnusableError)\(\s*"(\w+)"',
    ),
}


@pytest.mark.parametrize("area", MADE)
def test_every_code_is_registered_and_made(area: str) -> None:
    prefix, files, pattern = MADE[area]
    text = "\n".join((PACKAGE / file).read_text() for file in files)
    made = {prefix + str(match[match.lastindex or 0]) for match in re.finditer(pattern, text)}
    registered = {code for code, entry in CODES.items() if entry.area == area}
    assert made == registered
