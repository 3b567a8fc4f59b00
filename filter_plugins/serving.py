"""Filters on what is about to be served: are its arguments right, does its model fit. Thin shims, no logic."""

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

from instinct_fleet import arguments, memory
from instinct_fleet.cli import UsageError, fit
from instinct_fleet.model import to_json
from instinct_fleet.model_config import index_total


def serve_argument_findings(
    value: Any, *, version: str, environment: Mapping[str, str] | None = None, in_config: bool = False
) -> list[dict[str, Any]]:
    """Return the findings of :func:`instinct_fleet.arguments.check`, worst first."""
    if isinstance(value, (str, bytes)) or not isinstance(value, (list, tuple, Mapping)):
        raise AnsibleFilterError(
            f"serve_argument_findings: arguments, got {value!r} ({type(value).__name__}); "
            "expected a list of words or a map of option names to values"
        )
    if environment is not None and not isinstance(environment, Mapping):
        raise AnsibleFilterError(
            f"serve_argument_findings: environment, got {environment!r} ({type(environment).__name__}); expected a map"
        )
    variables = {str(name): str(content) for name, content in (environment or {}).items()}
    findings = arguments.check(value, version=str(version), environment=variables, in_config=bool(in_config))
    return list(to_json(findings))


def model_fit(config: Any, *, index: Any = None, **options: Any) -> dict[str, Any]:
    """Return :func:`instinct_fleet.memory.fit` as a map."""
    try:
        result = memory.fit(config, index_total=index_total(index), **options)
    except TypeError as exc:
        raise AnsibleFilterError(
            f"model_fit: options, got {', '.join(sorted(options))}; expected gpus, vram_gib, tp and those of the "
            f"documentation (ansible-doc -t filter model_fit): {exc}"
        ) from exc
    return dict(to_json(result))


def model_documents(models: Any, *, root: str, paths: Mapping[str, str | None]) -> dict[str, Any]:
    """Return :func:`instinct_fleet.cli.fit.model_documents`."""
    try:
        return dict(fit.model_documents(models, root=root, paths=paths))
    except (UsageError, KeyError, TypeError, OSError) as exc:
        raise AnsibleFilterError(f"model_documents: {exc}") from exc


class FilterModule:
    """What Ansible loads."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return the filters by name."""
        functions = (serve_argument_findings, model_documents, model_fit)
        return {function.__name__: function for function in functions}
