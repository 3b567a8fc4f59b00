"""Filters about kernel, driver and limits of a node. Each is one call into the package; the tests are there."""

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

from instinct_fleet import openpgp, rocm, tuning


class FilterModule:
    """The filters of this file."""

    def filters(self) -> Mapping[str, Callable[..., Any]]:
        """Return name -> filter."""
        functions: tuple[Callable[..., Any], ...] = (
            openpgp.key_problem,
            rocm.amd_packages,
            rocm.apt_failure_text,
            rocm.combination_problems,
            rocm.combination_text,
            rocm.key_refusal_text,
            rocm.mirror_problems,
            rocm.rocm_dnf_specs,
            rocm.rocm_install,
            rocm.rocm_plan,
            rocm.rocm_probe_needs,
            rocm.rocm_refusal_text,
            rocm.rocm_removal,
            rocm.rocm_removal_text,
            rocm.rocm_unsettled_text,
            tuning.reboot_decision,
            tuning.reboot_problems,
            tuning.reboot_reasons,
            tuning.reboot_summary,
            tuning.settled_record,
            tuning.tuning_plan,
            tuning.tuning_probe_needs,
            tuning.tuning_problems,
            tuning.tuning_refusal_text,
            tuning.tuning_unsettled_text,
        )
        return {f.__name__: api.as_filter(f.__name__, f, AnsibleFilterError) for f in functions}
