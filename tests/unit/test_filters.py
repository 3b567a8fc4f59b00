"""The filters as Ansible runs them, and their documentation."""

from __future__ import annotations

import functools
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

pytest.importorskip("ansible", reason="ansible is not installed for this Python")

from ansible.errors import AnsibleError
from ansible.parsing.dataloader import DataLoader
from ansible.plugins.loader import filter_loader, init_plugin_loader
from ansible.template import Templar, trust_as_template
from support.bundle import node_probe, probe
from support.profile import mi300x_8, mi300x_one_pair_pcie

from instinct_fleet import api

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "filter_plugins"
NAMES = ("node_topology", "topology_findings", "place_instances", "serve_config", "serve_command", "unit_findings")
INSTANCE = {"name": "chat", "model": "/models/chat", "tensor_parallel_size": 4}


@functools.cache
def _loader() -> None:
    init_plugin_loader()
    filter_loader.add_directory(str(FOLDER))


def render(text: str, **variables: Any) -> Any:
    """Evaluate an expression as a playbook would."""
    _loader()
    return Templar(loader=DataLoader(), variables=variables).template(trust_as_template(text))


def variables() -> dict[str, Any]:
    """Return what the examples speak of."""
    bundle = probe(mi300x_8())
    topology = api.node_topology(bundle)
    plan = api.place_instances(topology, instances=[INSTANCE], vllm_version="0.33.0")
    bundle["units"] = {"vllm-chat.service": None}
    return {"probe": bundle, "topology": topology, "plan": plan}


def sidecar(name: str) -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load((FOLDER / f"{name}.yml").read_text("utf-8"))
    return document


def test_each_filter_has_a_sidecar_and_each_sidecar_a_filter() -> None:
    _loader()
    assert set(NAMES) <= {p.stem for p in FOLDER.glob("*.yml")}
    for name in NAMES:
        assert filter_loader.get(name) is not None, name


@pytest.mark.parametrize("name", NAMES)
def test_a_sidecar_says_what_the_function_takes(name: str) -> None:
    import inspect

    document = sidecar(name)
    assert set(document) == {"DOCUMENTATION", "EXAMPLES", "RETURN"}
    documentation = document["DOCUMENTATION"]
    assert documentation["name"] == name
    parameters = inspect.signature(getattr(api, name)).parameters
    options = {k: v for k, v in documentation["options"].items() if k != "_input"}
    assert set(options) == set(list(parameters)[1:])
    for key, option in options.items():
        default = parameters[key].default
        assert option.get("required", False) is (default is inspect.Parameter.empty), key
        if default not in (inspect.Parameter.empty, None):
            assert option["default"] == default, key
        assert option["description"], key


@pytest.mark.parametrize("name", NAMES)
def test_the_examples_run(name: str) -> None:
    examples = yaml.safe_load(sidecar(name)["EXAMPLES"])
    assert examples
    for key, expression in examples.items():
        result = render(expression, **variables())
        assert result is not None, key
        assert name in expression


def test_ansible_doc_shows_every_filter() -> None:
    program = Path(sys.executable).with_name("ansible-doc")
    result = subprocess.run(
        [str(program), "-t", "filter", "--playbook-dir", str(ROOT), *NAMES],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env={"PATH": "/usr/bin:/bin", "HOME": "/tmp", "ANSIBLE_FILTER_PLUGINS": str(FOLDER), "ANSIBLE_NOCOLOR": "1"},
    )
    assert result.returncode == 0, result.stderr
    for name in NAMES:
        assert f"> FILTER {name}" in result.stdout.replace("\x1b[1m", "").replace("\x1b[0m", ""), result.stdout[:400]


def test_from_probe_to_command() -> None:
    text = (
        "{{ ((probe | node_topology | place_instances(instances=instances, vllm_version='0.33.0')).units | first)"
        " | serve_command(for_instance=instances[0], config_path='/etc/vllm/chat.yml') | join(' ') }}"
    )
    assert render(text, probe=probe(mi300x_8()), instances=[INSTANCE]) == (
        "numactl --cpunodebind=0 --preferred=0 /opt/vllm/bin/vllm serve --config /etc/vllm/chat.yml"
    )


def test_place_instances_takes_a_bundle_too() -> None:
    plan = render("{{ probe | place_instances(instances=i) }}", probe=probe(mi300x_8()), i=[INSTANCE])
    assert plan["units"][0]["gpus"] == [0, 1, 2, 3]


def test_topology_findings_name_the_pair() -> None:
    found = render("{{ probe | topology_findings(policy='mi300x_8') }}", probe=probe(mi300x_one_pair_pcie()))
    assert [(f["code"], f["subject"]) for f in found] == [("link_not_xgmi", "GPU2-GPU5")]


def test_what_the_module_returns_is_what_the_filters_take() -> None:
    module = node_probe()
    documented = set(yaml.safe_load(module.RETURN)["probe"]["contains"])
    assert documented <= set(probe(mi300x_8()))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{{ 7 | node_topology }}", "node_topology: got '7' (int); expected the `probe` of node_probe"),
        ("{{ 'x' | topology_findings }}", "topology_findings: got 'x' (str); expected the `probe` of node_probe"),
        ("{{ {} | topology_findings(policy='mi300x') }}", "topology_findings: policy: there is no policy 'mi300x'"),
        ("{{ {} | topology_findings(polcy='mi300x') }}", "topology_findings: "),
        ("{{ {} | place_instances(instances=[]) }}", "place_instances: topology: schema is None, expected 1"),
        ("{{ topology | place_instances(instances={}) }}", "place_instances: instances: got dict, expected a list"),
        (
            "{{ topology | place_instances(instances=[{'name': 'a', 'model': 'm', 'prt': 1}]) }}",
            "place_instances: instance 'a': unknown key 'prt' (did you mean 'port'?)",
        ),
        ("{{ 1 | serve_config(for_instance={}) }}", "serve_config: instances[0]: name is missing"),
        (
            "{{ {} | serve_command(for_instance={'name': 'a', 'model': 'm'}, config_path='/c') }}",
            "serve_command: not a unit",
        ),
        ("{{ plan.units[0] | unit_findings(state=7) }}", "unit_findings: got '7' (int); expected the unit's entry"),
    ],
)
def test_errors_carry_the_name_of_the_filter(text: str, said: str) -> None:
    with pytest.raises(AnsibleError) as caught:
        render(text, **variables())
    assert said in str(caught.value) or said in repr(caught.value.__cause__)


def test_the_shim_finds_the_package_when_it_is_not_installed(tmp_path: Path) -> None:
    script = (
        "import sys, importlib.util\n"
        "sys.path = [p for p in sys.path if p and p != sys.argv[2]]\n"
        # `pip install --editable` finds the package by a hook instead of a path.
        "sys.meta_path = [f for f in sys.meta_path if 'editable' not in repr(f).lower()]\n"
        "spec = importlib.util.spec_from_file_location('shim', sys.argv[1])\n"
        "shim = importlib.util.module_from_spec(spec); spec.loader.exec_module(shim)\n"
        "print(sorted(shim.FilterModule().filters()), sys.path[0])\n"
    )
    for file in ("topology.py", "placement.py"):
        result = subprocess.run(
            [sys.executable, "-c", script, str(FOLDER / file), str(ROOT)],
            capture_output=True,
            text=True,
            check=False,
            cwd=tmp_path,
        )
        assert result.returncode == 0, result.stderr
        assert result.stdout.strip().endswith(str(ROOT))


def test_a_topology_document_survives_the_round_trip() -> None:
    document = api.node_topology(probe(mi300x_8()))
    assert (
        api.as_topology(document)
        == api.as_topology({"topology": document})
        == api.as_topology({"probe": probe(mi300x_8())})
    )
