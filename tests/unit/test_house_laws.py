"""The house style as code: what no role, playbook or scenario may do."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jinja2
import pytest
import yaml

from instinct_fleet import docs

REPO = Path(__file__).resolve().parents[2]
ROLES = sorted(p.name for p in (REPO / "roles").iterdir() if p.is_dir())


def yaml_files() -> list[Path]:
    folders = ("roles", "playbooks", "molecule", "inventories")
    return sorted(p for folder in folders for p in (REPO / folder).rglob("*.yml"))


def tasks_of(document: Any) -> Iterator[dict[str, Any]]:
    """Yield every task of a parsed playbook or task file, also inside blocks."""
    for entry in document if isinstance(document, list) else []:
        if not isinstance(entry, dict):
            continue
        for key in ("tasks", "pre_tasks", "post_tasks", "handlers", "block", "rescue", "always"):
            yield from tasks_of(entry.get(key))
        if "hosts" not in entry:
            yield entry


TASKS = [
    pytest.param(task, id=f"{path.relative_to(REPO)}:{task.get('name', '?')}")
    for path in yaml_files()
    if "meta" not in path.parts and "group_vars" not in path.parts
    for task in tasks_of(yaml.safe_load(path.read_text()))
]


@pytest.mark.parametrize("task", TASKS)
def test_no_task_hides_its_failure(task: dict[str, Any]) -> None:
    assert "ignore_errors" not in task
    assert task.get("failed_when") is not False, "name the exit codes that are fine instead"
    if "rescue" in task:
        last = task["rescue"][-1]
        assert any(key.endswith("fail") for key in last), "a rescue must end in fail"


@pytest.mark.parametrize("task", TASKS)
def test_commands_are_argv_lists_that_say_when_they_change(task: dict[str, Any]) -> None:
    assert not {"shell", "ansible.builtin.shell"} & set(task), "use a module or an argv list"
    command = task.get("ansible.builtin.command", task.get("command"))
    if command is None:
        return
    assert isinstance(command, dict), "write the command as argv"
    assert "argv" in command
    assert "changed_when" in task or "creates" in command


@pytest.mark.parametrize("task", TASKS)
def test_tasks_have_imperative_names_and_full_module_names(task: dict[str, Any]) -> None:
    if not any(key.endswith(("import_playbook", "meta")) for key in task):
        assert task.get("name"), task
    own = {path.stem for path in (REPO / "library").glob("*.py")} | {"managed_files", "push_tree"}
    keywords = {
        "name",
        "when",
        "register",
        "loop",
        "loop_control",
        "vars",
        "tags",
        "block",
        "rescue",
        "always",
        "notify",
    }
    keywords |= {
        "until",
        "retries",
        "delay",
        "changed_when",
        "failed_when",
        "no_log",
        "listen",
        "run_once",
        "environment",
    }
    keywords |= {"delegate_to", "become", "become_user", "check_mode", "no_log", "args", "throttle", "any_errors_fatal"}
    actions = [key for key in task if key not in keywords]
    for action in actions:
        assert action in own or action.count(".") >= 2, f"{action}: write the full name of the module"


@pytest.mark.parametrize("task", TASKS)
def test_files_have_modes(task: dict[str, Any]) -> None:
    for module in ("template", "copy", "file"):
        options = task.get(f"ansible.builtin.{module}")
        if isinstance(options, dict) and options.get("state") != "absent":
            assert re.fullmatch(r"0[0-7]{3}", str(options.get("mode"))), f"{module}: quote a mode of four digits"
    options = task.get("managed_files")
    for entry in options["files"] if isinstance(options, dict) and isinstance(options["files"], list) else []:
        assert re.fullmatch(r"0[0-7]{3}", str(entry.get("mode")))


@pytest.mark.parametrize("role", ROLES)
def test_a_role_has_its_files(role: str) -> None:
    folder = REPO / "roles" / role
    for name in ("tasks/main.yml", "defaults/main.yml", "meta/argument_specs.yml", "README.md"):
        assert (folder / name).is_file(), f"{role} lacks {name}"
    for task in yaml.safe_load((folder / "tasks/main.yml").read_text()):
        action = [key for key in task if key.startswith("ansible.builtin.")]
        assert action == ["ansible.builtin.import_tasks"], "tasks/main.yml is a table of contents"
        assert task.get("tags")


def specs(role: str) -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load((REPO / "roles" / role / "meta/argument_specs.yml").read_text())
    return document["argument_specs"]


@pytest.mark.parametrize("role", ROLES)
def test_argument_specs_equal_the_defaults(role: str) -> None:
    options = specs(role)["main"]["options"]
    defaults = yaml.safe_load((REPO / "roles" / role / "defaults/main.yml").read_text()) or {}
    text = (REPO / "roles" / role / "defaults/main.yml").read_text()
    documented = {name: spec["default"] for name, spec in options.items() if "default" in spec}
    assert documented == defaults
    for name, spec in options.items():
        assert name.startswith(f"{role}_")
        assert spec.get("description")
        assert name in text, f"{name} is not mentioned in defaults/main.yml"
        if re.search(r"_(key|password|token|secret)$", name):
            assert "default" not in spec, f"{name} is a secret: it has no default"
            assert spec.get("no_log") is True


@pytest.mark.parametrize("role", ROLES)
def test_every_entry_point_has_a_spec_with_the_same_options(role: str) -> None:
    known = specs(role)
    used = {
        task["ansible.builtin.import_role"]["tasks_from"]
        for path in (REPO / "playbooks").rglob("*.yml")
        for task in tasks_of(yaml.safe_load(path.read_text()))
        if task.get("ansible.builtin.import_role", {}).get("name") == role
        and "tasks_from" in task["ansible.builtin.import_role"]
    }
    assert used <= set(known)
    for entry, spec in known.items():
        for name, option in spec["options"].items():
            assert option == known["main"]["options"][name], f"{entry}: {name} differs from main"


#: What the plays hand on from one role to another, and so is not there before a host is asked.
HANDED_ON = {"node_tuning_probe", "rocm_probe", "vllm_serve_models"}


@pytest.mark.parametrize("role", [role for role in ROLES if "validate" in specs(role)])
def test_every_input_is_checked_before_the_first_change(role: str) -> None:
    # site.yml asks `validate` first; what only the role itself checked was found after other roles had changed hosts.
    needed = {name for name, option in specs(role)["main"]["options"].items() if not option.get("required")}
    assert set(specs(role)["validate"]["options"]) == needed - HANDED_ON


def test_numbers_and_consents_are_converted_where_they_are_used() -> None:
    # `-e x_allowed=false` on a command line is a text, and any text is true; a specification only checks.
    types = {
        name: option["type"]
        for role in ROLES
        for entry in specs(role).values()
        for name, option in entry["options"].items()
        if option["type"] in ("bool", "int", "float")
    }
    names = re.compile(rf"(?<![\w.])({'|'.join(sorted(types))})\b(?!\w)")
    bare = []
    for folder in ("roles", "playbooks"):
        for path in sorted((REPO / folder).rglob("*.yml")):
            if path.name == "argument_specs.yml" or path.parent.name == "defaults":
                continue
            for number, line in enumerate(path.read_text().splitlines(), 1):
                code = line.partition("#")[0]
                for match in names.finditer(code):
                    after = code[match.end() :]
                    # A name that is given a value, and one in a text that tells it.
                    told = after.startswith((":", "=true", " is {{")) or code[: match.start()].endswith("`")
                    kind = types[match[1]]
                    if not told and not re.match(rf"( \| default\([^)]*\))? \| {kind}\b", after):
                        bare.append(f"{path.relative_to(REPO)}:{number}: {match[1]} without `| {kind}`")
    assert bare == []


@pytest.mark.parametrize("role", ROLES)
def test_names_carry_the_role(role: str) -> None:
    pattern = re.compile(rf"^(__)?{role}_")
    folder = REPO / "roles" / role
    for path in [*folder.glob("vars/*.yml"), *folder.glob("defaults/*.yml")]:
        for name in yaml.safe_load(path.read_text()) or {}:
            assert pattern.match(name), f"{path.name}: {name}"
    for path in folder.glob("tasks/*.yml"):
        for task in tasks_of(yaml.safe_load(path.read_text())):
            names = [task["register"]] if "register" in task else []
            names += list(task.get("ansible.builtin.set_fact", {}))
            for name in names:
                assert name.startswith(f"__{role}_"), f"{path.name}: {name} is internal"


@pytest.mark.parametrize("path", sorted(REPO.glob("roles/*/templates/*.j2")), ids=lambda p: p.name)
def test_templates_parse_and_say_who_manages_them(path: Path) -> None:
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True, autoescape=False)  # noqa: S701 - not HTML
    for name in ("comment", "bool", "b64encode", "to_json", "to_nice_yaml", "quote"):
        environment.filters[name] = str
    environment.parse(path.read_text())
    assert "{{ ansible_managed | comment" in path.read_text()


def test_site_is_a_table_of_contents() -> None:
    for play in yaml.safe_load((REPO / "playbooks/site.yml").read_text()):
        assert set(play) == {"name", "ansible.builtin.import_playbook"}
        assert (REPO / "playbooks" / play["ansible.builtin.import_playbook"]).is_file()


def test_nothing_but_yml() -> None:
    folders = ("roles", "playbooks", "molecule", "inventories", "instinct_fleet", "filter_plugins", "docs")
    assert not [p for folder in folders for p in (REPO / folder).rglob("*.yaml")], "files end in .yml"


def test_generated_documents_are_up_to_date() -> None:
    stale = [path for path, text in docs.documents(REPO).items() if path.read_text("utf-8") != text]
    assert not stale, "run `make docs`"


@pytest.mark.parametrize("name", sorted(p.name for p in (REPO / "library").glob("*.py")))
def test_module_documentation_matches_the_code(name: str) -> None:
    text = (REPO / "library" / name).read_text()
    blocks = dict(re.findall(r'^(DOCUMENTATION|EXAMPLES|RETURN) = r"""\n(.*?)"""', text, re.M | re.S))
    documentation = yaml.safe_load(blocks["DOCUMENTATION"])
    assert documentation["module"] == name.removesuffix(".py")
    assert isinstance(yaml.safe_load(blocks["EXAMPLES"]), list)
    assert isinstance(yaml.safe_load(blocks["RETURN"]), dict)
    for option, spec in documentation["options"].items():
        assert f'"{option}": {{' in text, f"{option} is documented and not in argument_spec"
        if "default" in spec and not isinstance(spec["default"], (list, str)):
            assert f'"default": {spec["default"]!r}' in text
    assert "supports_check_mode=True" in text
