"""Filters about what is installed, written and started. Each is one call into the package."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from ansible.errors import AnsibleFilterError

try:
    import instinct_fleet  # noqa: F401 - is the package installed?
except ImportError:
    # Ansible runs from a checkout without the package installed.
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

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

ROLES = Path(__file__).resolve().parents[1] / "roles"


@cache
def _role_options(role: str) -> frozenset[str]:
    specs = yaml.safe_load((ROLES / role / "meta" / "argument_specs.yml").read_text())["argument_specs"]
    return frozenset(option for spec in specs.values() for option in spec.get("options") or {})


@cache
def _role_exports(role: str) -> frozenset[str]:
    path = ROLES / role / "vars" / "main.yml"
    return frozenset(yaml.safe_load(path.read_text()) or {}) if path.is_file() else frozenset()


def unknown_inputs(names: list[str], *, role: str) -> list[str]:
    """Return the variables that begin like a role's inputs and are none of them."""
    return sorted(set(names) - _role_options(role) - _role_exports(role))


def _call(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function as a filter: its errors carry the filter's name and no traceback."""

    def run(value: Any, *positional: Any, **options: Any) -> Any:
        try:
            return function(value, *positional, **options)
        except (ValueError, TypeError, KeyError) as exc:
            raise AnsibleFilterError(f"{name}: {exc}") from exc

    return run


class FilterModule:
    """The filters of this file."""

    def filters(self) -> Mapping[str, Callable[..., Any]]:
        """Return name -> filter."""
        functions: list[Callable[..., Any]] = [
            acceptance.acceptance_table,
            acceptance.bundle_archive,
            acceptance.policy_problems,
            acceptance.topology_verdict,
            benchmarking.benchmark_files,
            benchmarking.benchmark_jobs,
            benchmarking.benchmark_problems,
            benchmarking.benchmark_reports,
            benchmarking.benchmark_unreachable,
            benchmarking.capacity_files,
            benchmarking.capacity_paths,
            benchmarking.capacity_report,
            benchmarking.client_files,
            benchmarking.regressions,
            building.build_command,
            building.build_failure_text,
            building.build_plan,
            building.build_unit,
            building.built_components,
            pinning.measured_pinning,
            pinning.pinning_files,
            pinning.pinning_outcome,
            pinning.pinning_paths,
            pinning.pinning_plan,
            pinning.pinning_text,
            rccl_check.rccl_files,
            rccl_check.rccl_gpu_sets,
            rccl_check.rccl_jobs,
            rccl_check.rccl_outcome,
            rccl_check.rccl_retries,
            rccl_check.rccl_table,
            releases.install_failure_text,
            releases.node_problems,
            releases.proof_problems,
            releases.python_plan,
            releases.python_refusal_text,
            releases.release_note,
            releases.release_paths,
            releases.release_programs,
            releases.release_record,
            releases.room_problem,
            releases.surplus_releases,
            releases.using_units,
            serving.api_key_problem,
            serving.instance_problems,
            serving.missing_groups,
            serving.missing_packages,
            serving.model_trees,
            serving.parser_refusals,
            serving.rejection_text,
            serving.rejects,
            serving.running_findings,
            serving.running_units,
            serving.serve_files,
            serving.serve_plan,
            serving.serving_rows,
            serving.serving_table,
            serving.surplus_units,
            serving.units_to_start,
            tuning.serving_units,
            serving.unread_configs,
            serving.unknown_inputs_text,
            serving.verify_failure_text,
            unknown_inputs,
            wheelhouse.index_problems,
            wheelhouse.installed_set,
            wheelhouse.pip_download_commands,
            wheelhouse.pip_failure_text,
            wheelhouse.seal_files,
            wheelhouse.vendor_indexes,
            wheelhouse.wheelhouse_check,
            wheelhouse.wheelhouse_files,
            wheelhouse.wheelhouse_inputs,
        ]
        table = {function.__name__: _call(function.__name__, function) for function in functions}
        table["runtime_set"] = _call("runtime_set", runtime_sets.describe)
        return table
