"""Filters about what a node is. Each is one call into the package; the thinking and its tests are there."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleFilterError

try:
    import instinct_fleet  # noqa: F401 - is the package installed?
except ImportError:
    # Ansible runs from a checkout without the package installed.
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from instinct_fleet import api


def _call(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function as a filter: its errors carry the filter's name and no traceback."""

    def run(value: Any, **options: Any) -> Any:
        try:
            return function(value, **options)
        except (ValueError, TypeError) as exc:
            raise AnsibleFilterError(f"{name}: {exc}") from exc

    return run


class FilterModule:
    """The filters of this file."""

    def filters(self) -> Mapping[str, Callable[..., Any]]:
        """Return name -> filter."""
        return {
            "node_topology": _call("node_topology", api.node_topology),
            "topology_findings": _call("topology_findings", api.topology_findings),
        }
