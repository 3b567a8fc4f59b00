"""From a node's topology and its instances to files, units and the words that a playbook says about them.

Each function takes and returns plain lists and dictionaries, as Ansible's filters pass them.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import yaml

from instinct_fleet import arguments, binding, memory, serve_args
from instinct_fleet.api import as_topology, unit_from_json
from instinct_fleet.instances import Instance, InstancesError, parse_instances
from instinct_fleet.model import Finding, sort_findings, to_json
from instinct_fleet.placement import place

#: vLLM's workers get 30 s to free their VRAM (VLLM_WORKER_SHUTDOWN_TIMEOUT_SECONDS); systemd must wait longer than
#: the drain and that together before it kills what is left.
TEARDOWN_SECONDS = 60


def instance_problems(instances: Any) -> list[str]:
    """Return what is wrong with a list of instances, one line each; empty when all is well."""
    try:
        parse_instances(instances)
    except InstancesError as exc:
        return str(exc).splitlines()
    return []


def systemd_argv(argv: Iterable[str]) -> str:
    """Write an argv as systemd reads it: quoted where needed, with its ``%`` and ``$`` taken literally."""
    return " ".join(_systemd_word(word).replace("$", "$$") for word in argv)


def _systemd_word(word: str) -> str:
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{escaped}"' if not word or set(word) & set(" \t\"'\\;") else escaped


def client_address(host: str) -> str:
    """Return the address at which a server that listens on ``host`` is asked from its own node."""
    if host in ("0.0.0.0", ""):  # noqa: S104 - compared, not bound
        return "127.0.0.1"
    if host == "::":
        return "[::1]"
    return f"[{host}]" if ":" in host else host


def serve_plan(
    topology: Any,
    *,
    instances: Any,
    vllm_version: str,
    vllm_path: str,
    config_dir: str,
    numactl_path: str,
    start_timeout: int,
    with_key: bool,
    models: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return what a node runs: ``units`` with all that the role writes and checks, and placement's ``findings``.

    ``models`` maps a model's path to its ``config`` and the ``index_total`` of its weights, as ``model_documents``
    returns them: whether such a model fits on its GPUs is among the findings.

    Each unit has the fields of :class:`instinct_fleet.model.Unit` and: ``unit`` the systemd name, ``config_path`` and
    ``config`` (the text of ``--config``), ``exec_start`` and ``exec_ready`` (systemd command lines), ``command`` (the
    argv), ``environment_lines``, ``key_path`` (or None), ``url``, ``start_timeout`` and ``stop_timeout`` in seconds,
    and ``question`` for the check after the start.
    """
    wanted = {i.name: i for i in parse_instances(instances)}
    known = as_topology(topology)
    result = place(known, list(wanted.values()), vllm_version=vllm_version)
    findings = list(result.findings)
    units = []
    for unit in result.units:
        instance = wanted[unit.instance]
        config_path = f"{config_dir}/{unit.instance}.yaml"
        key_path = f"{config_dir}/{unit.instance}.key" if with_key else None
        url = f"http://{client_address(unit.host)}:{unit.port}"
        command = serve_args.command_line(
            instance, unit, config_path=config_path, vllm_path=vllm_path, numactl_path=numactl_path
        )
        config = serve_args.render_config(instance, unit, vllm_version=vllm_version)
        # What this release's parser would refuse is known before anything stops (an unknown release only says so).
        for item in arguments.check(config, version=vllm_version, environment=unit.env, in_config=True):
            findings.append(dataclasses.replace(item, subject=f"{unit.instance} {item.subject}"))
        document = (models or {}).get(instance.model)
        if document is not None:
            vram = [known.gpus[gpu].vram_bytes for gpu in unit.gpus]
            findings.extend(fit_findings(instance, vram=vram, document=document))
        # Through the shell, since systemd-analyze refuses a unit whose programs are only about to be written.
        ready = ["/bin/sh", f"{config_dir}/wait-ready", f"{url}/health", str(start_timeout)]
        test = instance.smoke_test
        units.append(
            {
                **to_json(unit),
                "unit": binding.unit_name(unit),
                "config_path": config_path,
                "config": yaml.safe_dump(config, sort_keys=False, default_flow_style=False, width=1000),
                "command": list(command),
                "exec_start": systemd_argv(command),
                "exec_ready": systemd_argv(ready),
                "environment_lines": [_systemd_assignment(k, v) for k, v in sorted(unit.env.items())],
                "key_path": key_path,
                "url": url,
                "start_timeout": start_timeout,
                "stop_timeout": instance.shutdown_timeout + TEARDOWN_SECONDS,
                "question": {
                    "name": unit.instance,
                    "url": url,
                    "model": instance.api_model_name,
                    **({"question": test.question, "answer": test.answer} if test else {}),
                    "key_file": key_path,
                },
            }
        )
    return {"units": units, "findings": to_json(sort_findings(findings))}


def fit_findings(instance: Instance, *, vram: Sequence[int | None], document: Mapping[str, Any]) -> list[Finding]:
    """Return what speaks against a model on the GPUs that its instance has: the words of ``instinct-fleet fit``.

    Args:
        instance: what is to be served.
        vram: bytes of each of its GPUs, None where they could not be read.
        document: the model's ``config``, and ``index_total``, the bytes of its weights where these are known.
    """
    sizes = [size for size in vram if size is not None]
    if len(sizes) < len(vram) or not sizes:
        message = "the memory of its GPUs could not be read, so nobody knows whether the model fits"
        remedy = "see the findings of the node (instinct-fleet inspect)"
        return [Finding("fit_argument", "unknown", f"{instance.name} vram_gib", message, remedy)]
    options = instance.extra_args

    def size(name: str) -> int | None:
        value = options.get(name)
        return arguments.parse_size(str(value)) if value is not None else None

    result = memory.fit(
        document.get("config"),
        gpus=len(vram),
        vram_gib=min(sizes) / memory.GIB,
        tp=instance.tensor_parallel_size,
        pp=instance.pipeline_parallel_size,
        max_model_len=instance.max_model_len if isinstance(instance.max_model_len, int) else None,
        max_num_seqs=instance.max_num_seqs,
        max_num_batched_tokens=size("max-num-batched-tokens"),
        gpu_memory_utilization=instance.gpu_memory_utilization,
        kv_cache_dtype=instance.kv_cache_dtype,
        block_size=instance.block_size or 16,
        enforce_eager=options.get("enforce-eager") is True,
        expert_parallel=options.get("enable-expert-parallel") is True,
        kv_cache_memory_bytes=size("kv-cache-memory-bytes"),
        index_total=document.get("index_total"),
    )
    return [dataclasses.replace(item, subject=f"{instance.name} {item.subject}") for item in result.findings]


def unread_configs(plan: Mapping[str, Any], paths: Mapping[str, str | None]) -> list[dict[str, Any]]:
    """Return what the release's own parser has to read: the instances whose files on the node differ from the plan.

    What lies on the node was read before it was written, so a converged node has nothing to read.

    Args:
        plan: what ``serve_plan`` returned.
        paths: content of the node's configurations and units by path, as node_probe read them.
    """
    waiting = []
    for unit in plan["units"]:
        there = (paths.get(f"/etc/systemd/system/{unit['unit']}") or "").splitlines()
        lines = [f"ExecStart={unit['exec_start']}", *(f"Environment={line}" for line in unit["environment_lines"])]
        if paths.get(unit["config_path"]) == unit["config"] and all(line in there for line in lines):
            continue
        words = list(unit["command"])
        waiting.append(
            {
                "instance": unit["instance"],
                "config": unit["config"],
                # What follows the program: serve --config FILE and what only the command line can carry.
                "arguments": words[words.index("serve") :],
                "config_path": unit["config_path"],
                "environment": dict(unit["env"]),
            }
        )
    return waiting


def parser_refusals(said: str, *, host: str, version: str) -> list[str]:
    """Return what the release's own parser refused, one line each, from what accept_config.py printed.

    Args:
        said: one JSON document on the last line.
        host: the node.
        version: the release, for the message.
    """
    lines = [line for line in said.splitlines() if line.strip()]
    try:
        answers: Any = json.loads(lines[-1]) if lines else None
        return [
            f"{host}: instance {answer['instance']}: vLLM {version} refuses its configuration, in its own words: "
            f"{answer['message']}. Nothing was changed; correct vllm_serve_instances"
            for answer in answers
            if answer["message"] is not None
        ]
    except (ValueError, KeyError, TypeError):
        return [
            f"{host}: the parser of vLLM {version} gave no answer ({' / '.join(lines[-2:])[:400] or 'nothing'}), so "
            "nobody knows whether it takes the configuration; vllm_serve_parser_check=false skips the question"
        ]


def _systemd_assignment(name: str, value: str) -> str:
    escaped = f"{name}={value}".replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{escaped}"'


def serve_files(
    plan: Mapping[str, Any],
    *,
    config_dir: str,
    user: str,
    groups: Sequence[str],
    api_key: str | None = None,
    surplus: Sequence[str] = (),
) -> list[dict[str, Any]]:
    """Return the managed files of a node's instances.

    Every file of an instance is guarded by its unit: with Restart=always a changed file would take effect at the next
    crash, at a time that nobody chose.
    """
    files: list[dict[str, Any]] = [
        {"dest": config_dir, "state": "directory", "mode": "0755"},
        {"dest": f"{config_dir}/wait-ready", "template": "wait-ready.sh.j2", "mode": "0644", "validate": "sh -n %s"},
    ]
    for unit in plan["units"]:
        guarded = {"guard_unit": unit["unit"]}
        files.append({"dest": unit["config_path"], "content": unit["config"], "mode": "0644", **guarded})
        if unit["key_path"]:
            content = f"VLLM_API_KEY={_key(api_key)}\n"
            files.append({"dest": unit["key_path"], "content": content, "mode": "0600", "secret": True, **guarded})
        else:
            files.append({"dest": f"{config_dir}/{unit['instance']}.key", "state": "absent", "mode": "0600", **guarded})
        files.append(
            {
                "dest": f"/etc/systemd/system/{unit['unit']}",
                "template": "vllm-instance.service.j2",
                "vars": {"unit": dict(unit), "user": user, "groups": list(groups)},
                "mode": "0644",
                "validate": "systemd-analyze verify --recursive-errors=no %s",
                "notify": ["vllm_serve reload"],
                **guarded,
            }
        )
    for name in surplus:
        instance = name.removeprefix("vllm-").removesuffix(".service")
        for path in (f"/etc/systemd/system/{name}", f"{config_dir}/{instance}.yaml", f"{config_dir}/{instance}.key"):
            files.append({"dest": path, "state": "absent", "mode": "0644", "notify": ["vllm_serve reload"]})
    return files


def api_key_problem(api_key: str | None) -> str | None:
    """Say why an environment file cannot carry a key, or return None. The text never holds the key."""
    key = str(api_key or "")
    if key.strip() and not any(c in key for c in "\n\r\0\"'\\$`# \t"):
        return None
    return (
        "vllm_serve_api_key is empty or holds a quote, backslash, dollar, number sign or white space, which the unit's "
        "environment file cannot carry; expected letters, digits and punctuation such as - _ . ~ + / ="
    )


def _key(api_key: str | None) -> str:
    problem = api_key_problem(api_key)
    if problem:
        raise ValueError(problem)
    return str(api_key)


def surplus_units(states: Mapping[str, Any], wanted: Sequence[str]) -> list[str]:
    """Return the units of instances on the node that nobody asks for any more."""
    return sorted(
        name
        for name, state in states.items()
        if name not in wanted and name.startswith("vllm-") and state and state.get("LoadState") == "loaded"
    )


def running_units(states: Mapping[str, Any], changed: Sequence[str]) -> list[str]:
    """Return the units that run, or try to, among those whose files changed."""
    return sorted(name for name in changed if binding.runs(states.get(name)))


def units_to_start(states: Mapping[str, Any], wanted: Sequence[str], *, changed: Sequence[str] = ()) -> list[str]:
    """Return the units that are not enabled and active yet, or whose files changed."""
    waiting = []
    for name in wanted:
        state = states.get(name) or {}
        good = state.get("ActiveState") == "active" and state.get("UnitFileState") == "enabled"
        if not good or name in changed:
            waiting.append(name)
    return waiting


def running_findings(plan: Mapping[str, Any], states: Mapping[str, Any], *, user: str) -> list[dict[str, Any]]:
    """Return where the running processes of a node differ from the plan."""
    found: list[dict[str, Any]] = []
    fields = {"instance", "gpus", "hip_visible_devices", "numa_nodes", "cpus", "numactl", "numa_bind_args", "env"}
    fields |= {"host", "port", "vllm_port", "tensor_parallel_size", "pipeline_parallel_size", "reasons"}
    for unit in plan["units"]:
        planned = unit_from_json({k: v for k, v in unit.items() if k in fields})
        found.extend(to_json(binding.verify(planned, states.get(unit["unit"]), service_user=user)))
    return found


def verify_failure_text(result: Mapping[str, Any], *, host: str, units: Mapping[str, Any], journal: str = "") -> str:
    """Say why an instance is not served as planned, with the state of the units and what they logged last."""
    lines = [f"{host}: {str(result.get('msg') or 'the instances are not served as planned').strip()}"]
    for name, seen in sorted(units.items()):
        state = seen or {}
        lines.append(
            f"{name} is {state.get('ActiveState', 'unknown')} ({state.get('SubState', 'unknown')}), result "
            f"{state.get('Result', 'unknown')}, restarted {state.get('NRestarts', '?')} times"
        )
    causes = root_causes(journal)
    if causes:
        lines.append("What it logged as the cause:")
        lines.extend(f"    {cause}" for cause in causes)
    last = [line for line in journal.splitlines() if line.strip()][-8:]
    if last:
        lines.append("The last lines of the journal:")
        lines.extend(f"    {line[:200]}" for line in last)
    return "\n".join(lines)


#: How a Python exception ends, behind whatever vLLM's logger puts in front of it.
_EXCEPTION = re.compile(r"(?:^|\] |\s)((?:\w+\.)*\w*(?:Error|Exception|Interrupt)): (.+)$")


#: How a compiler says what it lacks: a kernel is compiled at run time.
_COMPILER = re.compile(r"(fatal error): (.+)$")


def root_causes(journal: str, *, most: int = 3) -> list[str]:
    """Return the first exceptions that a log holds, without those that only say that another process failed."""
    causes: list[str] = []
    for line in journal.splitlines():
        found = _EXCEPTION.search(line) or _COMPILER.search(line)
        if not found or line.lstrip().startswith("File "):
            continue
        text = f"{found.group(1)}: {found.group(2).strip()}"[:300]
        if "See root cause above" not in text and text not in causes:
            causes.append(text)
    return causes[:most]


def rejects(findings: Sequence[Mapping[str, Any]], *, accept_unknown: bool) -> list[Mapping[str, Any]]:
    """Return the findings that stop: errors, and unknowns unless they are accepted."""
    severities = ("error",) if accept_unknown else ("error", "unknown")
    return [f for f in findings if f["severity"] in severities]


def rejection_text(findings: Sequence[Mapping[str, Any]], *, host: str, policy: str) -> str:
    """Say what stops a host and what mends it. Findings that say the same of several subjects share a line."""
    groups: dict[tuple[str, str, str, str], list[str]] = {}
    for item in findings:
        if item["severity"] in ("error", "unknown"):
            key = (item["severity"], item["code"], item["message"], item["remedy"])
            groups.setdefault(key, []).append(item["subject"])
    count = sum(map(len, groups.values()))
    lines = [f"{host} is not accepted ({policy}): {count} finding{'s' if count != 1 else ''}."]
    for (severity, code, message, remedy), subjects in groups.items():
        text = message
        for subject in subjects:
            # Some messages begin with their subject already.
            text = text.removeprefix(f"{subject}: ")
        lines.append(f"[{severity}] {', '.join(subjects)}: {text} ({code})")
        lines.append(f"    To mend it: {remedy}")
    return "\n".join(lines)


def unknown_inputs_text(names: Sequence[str], *, host: str) -> str:
    """Say which variables no role knows."""
    return (
        f"{host}: {', '.join(names)} {'is' if len(names) == 1 else 'are'} not an input of the role. "
        "Correct the spelling; the inputs are in the role's meta/argument_specs.yml"
    )


def missing_packages(names: Sequence[str], probe: Mapping[str, Any]) -> list[str]:
    """Return the packages that are not installed, or that were not asked about."""
    installed = probe.get("packages") or {}
    return [name for name in names if not installed.get(name)]


def missing_groups(names: Sequence[str], probe: Mapping[str, Any]) -> list[str]:
    """Return the groups that the node does not have."""
    known = (probe.get("access") or {}).get("group_ids") or {}
    return [name for name in names if known.get(name) is None]


def model_trees(models: Sequence[Mapping[str, Any]], *, root: str) -> list[dict[str, str]]:
    """Return source and destination of each model that is brought from the controller.

    Raises:
        ValueError: two would share files; what does not belong to a model is removed from its folder.
    """
    names = [str(m["name"]) for m in models]
    for name in names:
        if not all(re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]*", part) for part in name.split("/")):
            raise ValueError(f"name is {name!r}, expected letters, digits and . _ - (and / for a folder in a folder)")
        inside = [other for other in names if other.startswith(f"{name}/")]
        if inside or names.count(name) > 1:
            raise ValueError(
                f"{inside[0] if inside else name!r} lies in the folder of model {name!r}, expected one each"
            )
    return [{"src": m["source"], "dest": f"{root}/{m['name']}"} for m in models]


def serving_rows(plan: Mapping[str, Any], *, host: str) -> list[dict[str, Any]]:
    """Return one row for each instance of a host, for the table at the end of a run."""
    return [
        {
            "host": host,
            "instance": unit["instance"],
            "gpus": ",".join(map(str, unit["gpus"])),
            "numa": ",".join(map(str, unit["numa_nodes"])) or "unknown",
            "numactl": " ".join(unit["numactl"]) or "(none)",
            "url": unit["url"],
            "model": unit["question"]["model"],
            "question": unit["question"].get("question") or "Hello",
            "with_key": bool(unit["key_path"]),
        }
        for unit in plan["units"]
    ]


def serving_table(rows: Sequence[Mapping[str, Any]], *, simulated: bool = False) -> str:
    """Draw the table of what is served, and a curl line for the first instance that works when pasted."""
    if not rows:
        return "No instance is served: vllm_serve_instances is empty."
    columns = ("host", "instance", "gpus", "numa", "numactl", "url")
    titles = ("HOST", "INSTANCE", "GPUS", "NUMA", "NUMACTL", "URL")
    widths = [
        max(len(title), *(len(str(row[column])) for row in rows)) for column, title in zip(columns, titles, strict=True)
    ]
    lines = ["  ".join(title.ljust(width) for title, width in zip(titles, widths, strict=True)).rstrip()]
    for row in rows:
        cells = (str(row[column]).ljust(width) for column, width in zip(columns, widths, strict=True))
        lines.append("  ".join(cells).rstrip())
    first = rows[0]
    question = str(first["question"]).replace("\\", "\\\\").replace('"', '\\"').replace("'", "'\\''")
    key = ' -H "Authorization: Bearer $VLLM_API_KEY"' if first["with_key"] else ""
    message = f'{{"role": "user", "content": "{question}"}}'
    body = f'{{"model": "{first["model"]}", "messages": [{message}], "temperature": 0}}'
    lines += ["", f"curl -s {first['url']}/v1/chat/completions -H 'Content-Type: application/json'{key} -d '{body}'"]
    if simulated:
        lines += ["", "Simulated hardware: the GPU tools are replayed; vLLM, systemd and numactl are real."]
    return "\n".join(lines)
