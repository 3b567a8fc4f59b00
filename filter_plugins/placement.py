"""Filters about what runs on a node. Each is one call into the package; the thinking and its tests are there."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleFilterError

try:
    from instinct_fleet import api
except ImportError:
    # Ansible runs from a checkout in whose environment the package is not installed.
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    from instinct_fleet import api


class FilterModule:
    """The filters of this file."""

    def filters(self) -> Mapping[str, Callable[..., Any]]:
        """Return name -> filter."""
        functions = (api.place_instances, api.serve_config, api.serve_command, api.unit_findings)
        return {f.__name__: api.as_filter(f.__name__, f, AnsibleFilterError) for f in functions}
