"""The package's functions in plain lists and dictionaries, as Ansible's filters and the command line pass them.

Every error is a ValueError whose text says what was seen, with its type, and what was expected.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from instinct_fleet import binding, placement, serve_args
from instinct_fleet.instances import Instance, parse_instances
from instinct_fleet.model import Topology, Unit, to_json, topology_from_json
from instinct_fleet.parse.merge import evidence_from_probe
from instinct_fleet.policy import evaluate


def as_filter(name: str, function: Callable[..., Any], error: type[Exception]) -> Callable[..., Any]:
    """Return a function of this module as a filter of Ansible: it raises ``error`` with the filter's name in front.

    ``error`` is AnsibleFilterError; it is handed in, since this package does not import Ansible.
    """

    def run(value: Any, *args: Any, **options: Any) -> Any:
        try:
            return function(plain(value), *plain(args), **plain(options))
        except (ValueError, TypeError) as exc:
            # Ansible joins the texts of a chain of causes into one message, which would say everything twice.
            raise error(f"{name}: {exc}") from None

    return run


def plain(value: Any) -> Any:
    """Return plain Python data for Ansible's lazy and tagged containers, whose items C code sees untemplated."""
    if isinstance(value, Mapping):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(entry) for entry in value]
    if isinstance(value, bool) or value is None:
        return value
    for kind in (str, int, float):
        if isinstance(value, kind):
            return kind(value)
    return value


def _mapping(value: Any, what: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ValueError(f"got {str(value)[:60]!r} ({type(value).__name__}); expected {what}")
    return value


def is_bundle(document: Any) -> bool:
    """Tell whether a document is what ``node_probe`` returned (its ``probe``)."""
    return isinstance(document, Mapping) and "commands" in document and "kfd" in document


def as_topology(document: Any) -> Topology:
    """Return the topology of a topology document, of a bundle of ``node_probe``, or of what ``inspect --json`` wrote.

    Raises:
        ValueError: it is none of them.
    """
    value = _mapping(document, "a topology document or the bundle of node_probe")
    if is_bundle(value.get("probe")):
        value = value["probe"]
    if is_bundle(value):
        return evidence_from_probe(value).topology
    if isinstance(value.get("topology"), Mapping):
        value = value["topology"]
    return topology_from_json(value)


def _one_instance(value: Any) -> Instance:
    return parse_instances([_mapping(value, "one instance")])[0]


def unit_from_json(value: Any) -> Unit:
    """Read a unit back from what :func:`place_instances` returned.

    Raises:
        ValueError: it is no unit; the message names the field.
    """
    fields: dict[str, Any] = {
        key: tuple(entry) if isinstance(entry, Sequence) and not isinstance(entry, str) else entry
        for key, entry in _mapping(value, "one of the units of place_instances").items()
    }
    try:
        return Unit(**fields)
    except TypeError as exc:
        raise ValueError(f"not a unit of place_instances: {exc}") from exc


def node_topology(probe: Any) -> dict[str, Any]:
    """Return the topology document of a bundle of ``node_probe``."""
    evidence = evidence_from_probe(_mapping(probe, "the `probe` of node_probe"))
    document: dict[str, Any] = to_json(evidence.topology)
    return document


def topology_findings(
    probe: Any, *, policy: str = "mi300x_8", overrides: Mapping[str, Any] | None = None
) -> list[dict[str, Any]]:
    """Return what is wrong with a node, by a policy."""
    evidence = evidence_from_probe(_mapping(probe, "the `probe` of node_probe"))
    found: list[dict[str, Any]] = to_json(evaluate(evidence, policy=policy, overrides=overrides))
    return found


def place_instances(
    topology: Any,
    *,
    instances: Any,
    vllm_version: str | None = None,
    port_base: int = placement.API_PORT_BASE,
    vllm_port_base: int = placement.VLLM_PORT_BASE,
) -> dict[str, Any]:
    """Return ``units`` and ``findings`` for a node and its instances."""
    result = placement.place(
        as_topology(topology),
        parse_instances(instances),
        vllm_version=vllm_version or None,
        port_base=int(port_base),
        vllm_port_base=int(vllm_port_base),
    )
    document: dict[str, Any] = to_json(result)
    return document


def serve_config(unit: Any, *, for_instance: Any, vllm_version: str | None = None) -> dict[str, Any]:
    """Return the mapping that ``vllm serve --config`` reads for a unit.

    The option is not called ``instance``, which Ansible's own call of a filter uses.
    """
    return serve_args.render_config(
        _one_instance(for_instance), unit_from_json(unit), vllm_version=vllm_version or None
    )


def serve_command(
    unit: Any,
    *,
    for_instance: Any,
    config_path: str,
    vllm_path: str = "/opt/vllm/bin/vllm",
    numactl_path: str | None = None,
) -> list[str]:
    """Return the argv that starts a unit."""
    return list(
        serve_args.command_line(
            _one_instance(for_instance),
            unit_from_json(unit),
            config_path=config_path,
            vllm_path=vllm_path,
            numactl_path=numactl_path or None,
        )
    )


def unit_findings(
    unit: Any, *, state: Any, service_user: str = "vllm", service_uid: int | None = None
) -> list[dict[str, Any]]:
    """Return where a running unit differs from its plan. ``state`` is the entry of ``units`` in node_probe's bundle."""
    if state is not None:
        _mapping(state, "the unit's entry in `units` of node_probe, or null")
    found: list[dict[str, Any]] = to_json(
        binding.verify(unit_from_json(unit), state, service_user=service_user, service_uid=service_uid)
    )
    return found
