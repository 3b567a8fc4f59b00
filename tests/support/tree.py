"""The sections of a ``node_probe`` document that come from ``/sys``, read by the module's own code from a fake tree."""

from __future__ import annotations

import copy
import importlib.util
import tempfile
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from support.profile import Profile
from support.render_sys import write_tree

NODE_PROBE = Path(__file__).parents[2] / "library" / "node_probe.py"


@cache
def node_probe() -> ModuleType:
    """Load the module; it is not part of a package."""
    spec = importlib.util.spec_from_file_location("node_probe", NODE_PROBE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_READ: dict[str, dict[str, Any]] = {}


def sections(profile: Profile) -> dict[str, Any]:
    """Return ``kfd``, ``pci``, ``numa`` and ``cpu`` as ``node_probe`` reads them on this machine.

    A profile's name tells it and its faults apart, so each tree is written once; the caller may change what it gets.
    """
    if profile.name not in _READ:
        _READ[profile.name] = _read(profile)
    return copy.deepcopy(_READ[profile.name])


def _read(profile: Profile) -> dict[str, Any]:
    module = node_probe()
    with tempfile.TemporaryDirectory() as folder:
        root = str(Path(folder).resolve())
        write_tree(profile, Path(root))
        return {
            "kfd": module.read_kfd(root),
            "pci": module.read_pci(root),
            "numa": module.read_numa(root),
            "cpu": module.read_cpu(root),
        }
