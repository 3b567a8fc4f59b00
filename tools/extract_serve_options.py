"""Read from vLLM's source distributions which `vllm serve` options and environment variables each release knows.

    python tools/extract_serve_options.py fetch            # sources of each release -> .cache/vllm-sources/<version>
    python tools/extract_serve_options.py extract          # those -> instinct_fleet/data/serve_options.json
    python tools/extract_serve_options.py show 0.33.0      # what was read of one release, for a look by eye

Nothing of vLLM is imported or run (that would need torch): the parser code is read with :mod:`ast`. The shapes it is
written in have changed often; each is read here, and `extract` stops when a release yields less than it must.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import os
import re
import shutil
import ssl
import subprocess
import sys
import tarfile
import tempfile
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from packaging.version import InvalidVersion, Version

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ROOT / ".cache" / "vllm-sources"
DATA = ROOT / "instinct_fleet" / "data" / "serve_options.json"

#: 0.9.2 is one release below what the project supports: it shows what 0.10.0 had already dropped.
OLDEST = Version("0.9.2")

#: The only parts of a source distribution that are read; the rest is 40 MB of kernels and tests.
KEPT = (
    "vllm/envs.py",
    "vllm/engine/",
    "vllm/entrypoints/",
    "vllm/config/",
    "vllm/config.py",
    "vllm/utils/",
    "vllm/utils.py",
    "vllm/platforms/",
    "vllm/reasoning/__init__.py",
    "vllm/v1/attention/backends/registry.py",
    "vllm/attention/backends/registry.py",
    "vllm/v1/sample/",
    "vllm/model_executor/layers/quantization/__init__.py",
    "vllm/model_executor/model_loader/__init__.py",
    "vllm/multimodal/",
)


# --- fetching ---------------------------------------------------------------------------------------------------


def index_url() -> str:
    """Return the package index that pip is configured for (environment and files), or PyPI."""
    asked = subprocess.run(
        [sys.executable, "-m", "pip", "config", "get", "global.index-url"], capture_output=True, text=True, check=False
    )
    return (os.environ.get("PIP_INDEX_URL") or asked.stdout.strip() or "https://pypi.org/simple").rstrip("/")


def download(url: str, accept: str = "*/*") -> bytes:
    """Return the body of ``url``. Only http(s) is asked, whatever the index page links to."""
    if urllib.parse.urlsplit(url).scheme not in ("http", "https"):
        raise SystemExit(f"not a web address: {url}")
    request = urllib.request.Request(url, headers={"Accept": accept})  # noqa: S310 - scheme checked above
    with urllib.request.urlopen(request, timeout=120, context=ssl.create_default_context()) as answer:  # noqa: S310
        return bytes(answer.read())


def releases() -> dict[str, tuple[str, str]]:
    """Return version -> (address, SHA-256) of every final source distribution from OLDEST on."""
    page = download(f"{index_url()}/vllm/", "application/vnd.pypi.simple.v1+json")
    found: dict[str, tuple[str, str]] = {}
    for file in json.loads(page)["files"]:
        name = str(file["filename"])
        if not name.endswith(".tar.gz"):
            continue
        try:
            version = Version(name.removeprefix("vllm-").removesuffix(".tar.gz"))
        except InvalidVersion:
            continue
        if version >= OLDEST and not version.is_prerelease:
            found[str(version)] = (urllib.parse.urljoin(f"{index_url()}/vllm/", file["url"]), file["hashes"]["sha256"])
    return found


def fetch(_: argparse.Namespace) -> int:
    """Unpack the needed files of each release that is not there yet."""
    for version, (address, sha256) in sorted(releases().items(), key=lambda item: Version(item[0])):
        target = SOURCES / version
        if target.exists():
            continue
        body = download(address)
        if hashlib.sha256(body).hexdigest() != sha256:
            raise SystemExit(f"vllm {version}: SHA-256 is {hashlib.sha256(body).hexdigest()}, the index says {sha256}")
        SOURCES.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=SOURCES) as scratch, tempfile.NamedTemporaryFile(dir=SOURCES) as archive:
            archive.write(body)
            archive.flush()
            with tarfile.open(archive.name) as tar:
                for member in tar:
                    inner = member.name.partition("/")[2]
                    if member.isfile() and inner.endswith(".py") and inner.startswith(KEPT):
                        tar.extract(member, scratch, filter="data")
            (unpacked,) = Path(scratch).iterdir()
            shutil.move(unpacked, target)
        print(f"vllm {version}: {len(body) / 1e6:.0f} MB read", file=sys.stderr)
    return 0


# --- reading Python without running it --------------------------------------------------------------------------


@dataclass
class Module:
    """One source file: what its top level assigns, defines and imports."""

    name: str
    tree: ast.Module
    names: dict[str, ast.expr] = field(default_factory=dict)
    classes: dict[str, ast.ClassDef] = field(default_factory=dict)
    imports: dict[str, tuple[str, str | None]] = field(default_factory=dict)

    @classmethod
    def read(cls, name: str, path: Path) -> Module:
        module = cls(name, ast.parse(path.read_text(encoding="utf-8")))
        package = name if path.name == "__init__.py" else name.rpartition(".")[0]
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ImportFrom):
                base = package.rsplit(".", node.level - 1)[0] if node.level > 1 else package
                origin = f"{base}.{node.module or ''}".rstrip(".") if node.level else node.module or ""
                for alias in node.names:
                    module.imports.setdefault(alias.asname or alias.name, (origin, alias.name))
            elif isinstance(node, ast.Import):
                for alias in node.names:
                    module.imports.setdefault(alias.asname or alias.name, (alias.name, None))
        # Also what stands in `if TYPE_CHECKING:` and the like; the first definition counts, as the real one is first.
        for node in _statements(module.tree.body):
            if isinstance(node, ast.ClassDef):
                module.classes.setdefault(node.name, node)
            elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                module.names.setdefault(node.targets[0].id, node.value)
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
                module.names.setdefault(node.target.id, node.value)
        return module


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    for node in body:
        yield node
        if isinstance(node, ast.If):
            # The branch for type checkers is `Any` in the other one; put the one with the real type first.
            typing_only = "TYPE_CHECKING" in ast.unparse(node.test)
            branches = (node.body, node.orelse) if typing_only else (node.orelse, node.body)
            for branch in branches:
                yield from _statements(branch)


#: What a value of an option must be: see `instinct_fleet/arguments.py`, which reads it.
Spec = dict[str, Any]


class Release:
    """The sources of one vLLM release."""

    def __init__(self, version: str) -> None:
        self.version = version
        self.root = SOURCES / version
        self._modules: dict[str, Module | None] = {}

    def module(self, name: str) -> Module | None:
        """Return a module by its dotted name; None when it is not among the sources."""
        if name not in self._modules:
            path = self.root / name.replace(".", "/")
            files = [f for f in (path.with_suffix(".py"), path / "__init__.py") if f.is_file()]
            self._modules[name] = Module.read(name, files[0]) if files else None
        return self._modules[name]

    def lookup(self, module: Module, name: str, depth: int = 0) -> tuple[Module, ast.expr | ast.ClassDef] | None:
        """Find what a name stands for, through imports; None when it comes from outside vLLM."""
        if depth > 8:
            return None
        if name in module.classes:
            return module, module.classes[name]
        if name in module.names:
            return module, module.names[name]
        origin, original = module.imports.get(name, ("", None))
        if original is None:
            return None
        source = self.module(origin)
        if source is not None:
            found = self.lookup(source, original, depth + 1)
            if found is not None:
                return found
        return None

    # --- types of the configuration classes ---

    def hints(self, module: Module, node: ast.expr) -> list[tuple[Module, ast.expr | ast.ClassDef | str]]:
        """Take a type annotation apart: its alternatives, with names of vLLM resolved and builtins as text."""
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            return self.hints(module, ast.parse(node.value, mode="eval").body)
        if isinstance(node, ast.Constant) and node.value is None:
            return [(module, "None")]
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
            return self.hints(module, node.left) + self.hints(module, node.right)
        if isinstance(node, ast.Subscript):
            head = ast.unparse(node.value).rpartition(".")[2]
            items = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
            if head == "Optional":
                return [*self.hints(module, items[0]), (module, "None")]
            if head == "Union":
                return [hint for item in items for hint in self.hints(module, item)]
            if head in ("Annotated", "SkipValidation", "ClassVar", "InitVar"):
                return self.hints(module, items[0])
            return [(module, node)]
        if isinstance(node, ast.Attribute):
            owner = module.imports.get(ast.unparse(node.value))
            source = self.module(".".join(filter(None, owner))) if owner else None
            return self.hints(source, ast.Name(node.attr)) if source else [(module, ast.unparse(node))]
        if isinstance(node, ast.Name):
            found = self.lookup(module, node.id)
            if found is None:
                return [(module, node.id)]
            if isinstance(found[1], ast.ClassDef):
                return [found]
            if isinstance(found[1], ast.Name) and found[1].id == node.id:
                return [(module, node.id)]
            return self.hints(found[0], found[1])
        return [(module, ast.unparse(node))]

    def literals(self, module: Module, node: ast.Subscript) -> list[Any]:
        """Return the values of a ``Literal[...]``, those of other literals within it included."""
        items = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        values: list[Any] = []
        for item in items:
            if isinstance(item, ast.Constant):
                values.append(item.value)
                continue
            for owner, hint in self.hints(module, item):
                if isinstance(hint, ast.Subscript):
                    values += self.literals(owner, hint)
                else:
                    raise ValueError(f"not a literal: {ast.unparse(item)}")
        return values

    def spec(self, module: Module, annotation: ast.expr, name: str) -> Spec:
        """Return what vLLM's get_kwargs makes of a configuration field of this type; the same order of questions."""
        hints = self.hints(module, annotation)
        texts = [hint if isinstance(hint, str) else None for _, hint in hints]
        heads = [ast.unparse(h.value).rpartition(".")[2] if isinstance(h, ast.Subscript) else None for _, h in hints]
        classes = [h for _, h in hints if isinstance(h, ast.ClassDef)]
        optional = "None" in texts

        def subscript(*wanted: str) -> tuple[Module, ast.Subscript] | None:
            found = [(m, h) for (m, h), head in zip(hints, heads, strict=True) if head in wanted]
            return (found[0][0], found[0][1]) if found and isinstance(found[0][1], ast.Subscript) else None

        json_spec = {"type": "json", **({"optional": True} if optional else {})}
        if any(self._is_dataclass(cls) for cls in classes):
            return json_spec
        if self._optional_valued_flags and set(texts) == {"bool", "str", "None"}:
            return {"type": "str", "nargs": "?"}
        if "bool" in texts:
            return {"type": "bool"}
        if literal := subscript("Literal"):
            return self._choices(self.literals(*literal), "str" in texts, optional)
        if sequence := subscript("tuple", "Tuple", "list", "List", "set", "Set", "frozenset", "Sequence"):
            return self._sequence(*sequence)
        if {"list", "tuple", "set"} & set(texts):
            return {"type": "str", "nargs": "+"}
        if "int" in texts:
            kind = "int"
            if name == "max_model_len":
                kind = "size_or_auto" if "human_readable_int_or_auto" in self._engine_text else "size"
            elif re.search(rf'"{name}"', self._size_names):
                kind = "size"
            return {"type": kind, **({"optional": True} if optional else {})}
        if "float" in texts:
            return {"type": "float", **({"optional": True} if optional else {})}
        if any(self._is_dict(cls) for cls in classes):
            return json_spec
        if all(text in ("dict", "None") or head in ("dict", "Dict") for text, head in zip(texts, heads, strict=True)):
            return json_spec
        # Other enumerations are made from values, not names, in ways of their own.
        if enum := [cls for cls in classes if self._is_enum(cls) and cls.name.endswith("BackendEnum")]:
            members = [t.targets[0].id for t in enum[0].body if isinstance(t, ast.Assign)]  # type: ignore[attr-defined]
            return {"type": "str", "choices": sorted({m.lower() for m in members} | {"auto"}), "case": "ignore"}
        return {"type": "str"}

    def _choices(self, values: list[Any], other_text: bool, optional: bool) -> Spec:
        if other_text:
            return {"type": "str"}  # vLLM only shows the values then, and takes any text
        spec: Spec = {"type": type(next(v for v in values if v is not None)).__name__}
        spec["choices"] = sorted({v for v in values if v is not None})
        return {**spec, **({"optional": True} if optional or None in values else {})}

    def _sequence(self, module: Module, node: ast.Subscript) -> Spec:
        items = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        element = self.hints(module, items[0])
        kinds = {hint for _, hint in element if isinstance(hint, str)}
        if len(element) == 1 and isinstance(element[0][1], ast.Subscript):
            head = ast.unparse(element[0][1].value).rpartition(".")[2]
            if head == "Literal":
                return {**self._choices(self.literals(element[0][0], element[0][1]), False, False), "nargs": "+"}
        kind = next(iter(kinds)) if len(element) == 1 and len(kinds) == 1 else "str"
        return {"type": kind if kind in ("int", "float") else "str", "nargs": "+"}

    @staticmethod
    def _is_dataclass(node: ast.ClassDef) -> bool:
        return any("dataclass" in ast.unparse(d) or ast.unparse(d).startswith("config") for d in node.decorator_list)

    @staticmethod
    def _is_dict(node: ast.ClassDef) -> bool:
        return any(re.match(r"(?:dict|Dict)\b", ast.unparse(base)) for base in node.bases)

    @staticmethod
    def _is_enum(node: ast.ClassDef) -> bool:
        return any("Enum" in ast.unparse(base) for base in node.bases)

    @cached_property
    def _engine(self) -> Module:
        module = self.module("vllm.engine.arg_utils")
        if module is None:
            raise ValueError(f"vllm {self.version}: no vllm/engine/arg_utils.py")
        return module

    @cached_property
    def _engine_text(self) -> str:
        return (self.root / "vllm/engine/arg_utils.py").read_text(encoding="utf-8")

    @cached_property
    def _size_names(self) -> str:
        """The source of the set of field names that take sizes such as 16k."""
        found = re.search(
            r"human_readable_int_args = \{.*?\}|if name in \{\"max_model_len\".*?\}", self._engine_text, re.S
        )
        return found.group() if found else ""

    @cached_property
    def _optional_valued_flags(self) -> bool:
        return "type_hints == {bool, str, type(None)}" in self._engine_text

    def fields(self, module: Module, node: ast.ClassDef) -> dict[str, tuple[Spec, str]]:
        """Return name -> (spec, documentation) of the fields of a configuration class and its bases."""
        fields: dict[str, tuple[Spec, str]] = {}
        for base in node.bases:
            found = self.lookup(module, base.id) if isinstance(base, ast.Name) else None
            if found and isinstance(found[1], ast.ClassDef):
                fields |= self.fields(found[0], found[1])
        for statement, following in zip(node.body, [*node.body[1:], None], strict=True):
            if not isinstance(statement, ast.AnnAssign) or not isinstance(statement.target, ast.Name):
                continue
            if ast.unparse(statement.annotation).startswith("ClassVar"):
                continue
            text = ""
            if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
                text = str(following.value.value)
            name = statement.target.id
            fields[name] = (self.spec(module, statement.annotation, name), text)
        return fields

    # --- the parser ---

    def options(self) -> dict[str, Spec]:
        """Return option -> spec of `vllm serve`: the spec has ``flags`` (all spellings, the main one first)."""
        found: dict[str, Spec] = {}
        (path,) = sorted((self.root / "vllm/entrypoints").rglob("cli_args.py"))
        name = ".".join(path.relative_to(self.root).with_suffix("").parts)
        frontend = self.module(name)
        if frontend is None:
            raise ValueError(f"vllm {self.version}: {path} cannot be read")
        function = next(n for n in frontend.tree.body if isinstance(n, ast.FunctionDef) and n.name == "make_arg_parser")
        for option in self._calls(frontend, function):
            found.setdefault(option["flags"][0], option)
        if "FrontendArgs" in frontend.classes:
            for option in self._frontend_fields(frontend):
                found.setdefault(option["flags"][0], option)
        for cls in ("EngineArgs", "AsyncEngineArgs"):
            node = self._engine.classes[cls]
            method = next(n for n in node.body if isinstance(n, ast.FunctionDef) and n.name == "add_cli_args")
            for option in self._calls(self._engine, method):
                found.setdefault(option["flags"][0], option)
        return found

    def _frontend_fields(self, module: Module) -> Iterator[Spec]:
        """The front end's options are the fields of a class, with a few changed by hand afterwards."""
        names = [n for n in module.classes if n.endswith("FrontendArgs")]
        text = "\n".join(ast.unparse(module.classes[n]) for n in names)
        for name, (spec, doc) in self.fields(module, module.classes["FrontendArgs"]).items():
            changed = dict(spec)
            entry = rf"frontend_kwargs\['{name}'\]"
            if re.search(rf"del {entry}\['nargs'\]", text):
                changed.pop("nargs", None)
            if kind := re.search(rf"{entry}\['type'\] = (.+)", text):
                changed = _with_type(changed, kind.group(1))
            if action := re.search(rf"{entry}\['action'\] = '(\w+)'", text):
                changed["action"] = action.group(1)
            flags = [f"--{name.replace('_', '-')}"]
            if more := re.search(rf"{entry}\['flags'\] = (\[.*?\])", text):
                flags += ast.literal_eval(more.group(1))
            yield {"flags": flags, **changed, **_deprecation(doc)}

    def _calls(self, module: Module, function: ast.FunctionDef) -> Iterator[Spec]:
        """Read the ``add_argument`` calls of a function in their order."""
        sources: dict[str, dict[str, tuple[Spec, str]]] = {}
        changed: dict[tuple[str, str], str] = {}
        for node in _in_order(function):
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                target, value = node.targets[0].id, node.value
                if isinstance(value, ast.Subscript) and isinstance(value.value, (ast.Name, ast.Call)):
                    owner = self._class_fields(module, value.value) if isinstance(value.value, ast.Call) else None
                    owner = owner or sources.get(ast.unparse(value.value))
                    key = ast.literal_eval(value.slice) if isinstance(value.slice, ast.Constant) else None
                    if owner and key in owner:
                        sources[target] = {"": owner[key]}
                elif isinstance(value, ast.Call) and (fields := self._class_fields(module, value)) is not None:
                    sources[target] = fields
            elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Subscript):
                # for example vllm_kwargs["speculative_config"]["type"] = optional_type(json.loads)
                path = re.fullmatch(r"(\w+)(?:\['(\w+)'\])?\['type'\]", ast.unparse(node.targets[0]))
                if path:
                    changed[path.group(1), path.group(2) or ""] = ast.unparse(node.value)
            elif (
                isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "add_argument"
            ):
                yield from self._option(module, function, node, sources, changed)

    def _class_fields(self, module: Module, call: ast.Call) -> dict[str, tuple[Spec, str]] | None:
        if ast.unparse(call.func) != "get_kwargs" or not isinstance(call.args[0], ast.Name):
            return None
        found = self.lookup(module, call.args[0].id)
        if found is None or not isinstance(found[1], ast.ClassDef):
            raise ValueError(f"vllm {self.version}: {ast.unparse(call)}: no such class in the sources")
        return self.fields(found[0], found[1])

    def _option(
        self,
        module: Module,
        function: ast.FunctionDef,
        call: ast.Call,
        sources: dict[str, dict[str, tuple[Spec, str]]],
        changed: dict[tuple[str, str], str],
    ) -> Iterator[Spec]:
        if not all(isinstance(a, ast.Constant) for a in call.args):
            yield from self._looped(function, call)
            return
        flags = [str(a.value) for a in call.args if isinstance(a, ast.Constant)]
        if not flags[0].startswith("-"):
            return
        spec: Spec = {"type": "str"}
        doc = ""
        keywords: dict[str, ast.expr] = {}
        for keyword in call.keywords:
            if keyword.arg is not None:
                keywords[keyword.arg] = keyword.value
                continue
            parts: list[ast.expr] = [keyword.value]
            if isinstance(keyword.value, ast.Dict):
                for key, value in zip(keyword.value.keys, keyword.value.values, strict=True):
                    if key is None:
                        parts.append(value)
                    else:
                        keywords[ast.literal_eval(key)] = value
                parts = parts[1:]
            for part in parts:
                owner = ast.unparse(part.value) if isinstance(part, ast.Subscript) else ast.unparse(part)
                key = str(ast.literal_eval(part.slice)) if isinstance(part, ast.Subscript) else ""
                if key not in sources.get(owner, {}):
                    raise ValueError(f"vllm {self.version}: {ast.unparse(call)[:120]}: {owner}[{key!r}] is not known")
                spec, doc = sources[owner][key]
                if (owner, key) in changed:
                    spec = _with_type(spec, changed[owner, key])
        if "choices" in keywords:
            spec = {**spec, "choices": self._computed_choices(module, keywords["choices"])}
        spec = _with_keywords(dict(spec), keywords)
        if "help" in keywords:
            text = keywords["help"]
            found = self.lookup(module, text.id) if isinstance(text, ast.Name) else None
            doc = ast.unparse(found[1]) if found else ast.unparse(text)
        if "deprecated" in keywords:
            spec["deprecated"] = True
        dashed = sorted(flags, key=lambda f: not f.startswith("--"))
        yield {"flags": dashed, **spec, **_deprecation(doc)}

    def _computed_choices(self, module: Module, node: ast.expr) -> list[Any] | None:
        """Return the choices of an ``add_argument`` call; None when only vLLM itself can tell, as it runs."""
        computed = re.fullmatch(r"get_args\((\w+)\)|\[f\.value for f in (\w+)\]", ast.unparse(node))
        found = self.lookup(module, computed.group(1) or computed.group(2)) if computed else None
        if found is not None and isinstance(found[1], ast.Subscript):
            return sorted(self.literals(found[0], found[1]))
        if found is not None and isinstance(found[1], ast.ClassDef):
            values = [s.value for s in found[1].body if isinstance(s, ast.Assign)]
            return sorted(v.value for v in values if isinstance(v, ast.Constant) and isinstance(v.value, str))
        try:
            return sorted(ast.literal_eval(node))
        except ValueError:
            return None

    def _looped(self, function: ast.FunctionDef, call: ast.Call) -> Iterator[Spec]:
        """Options added in a loop over a list of (flag, type)."""
        for loop in ast.walk(function):
            if isinstance(loop, ast.For) and call in ast.walk(loop) and isinstance(loop.iter, (ast.List, ast.Tuple)):
                for item in loop.iter.elts:
                    flag, kind = item.elts if isinstance(item, ast.Tuple) else (item, None)
                    spec = {"flags": [ast.literal_eval(flag)], "type": ast.unparse(kind) if kind else "str"}
                    if spec["type"] == "bool":
                        spec["type"] = "str"  # type=bool takes any text
                    if any(k.arg == "deprecated" for k in call.keywords):
                        spec["deprecated"] = True
                    yield spec
                return
        if "flags" not in ast.unparse(call) and "key.replace" not in ast.unparse(call):
            raise ValueError(f"vllm {self.version}: cannot read {ast.unparse(call)[:120]}")

    # --- everything else ---

    def environment(self) -> list[str]:
        """Return the environment variables of vllm/envs.py (VLLM_ and others)."""
        module = self.module("vllm.envs")
        table = module.names.get("environment_variables") if module else None
        if not isinstance(table, ast.Dict):
            raise ValueError(f"vllm {self.version}: no environment_variables in vllm/envs.py")
        return sorted(str(ast.literal_eval(key)) for key in table.keys if isinstance(key, ast.Constant))

    def rocm_quantization(self) -> list[str]:
        """Return the quantization methods that the ROCm platform class accepts."""
        module = self.module("vllm.platforms.rocm")
        node = module.classes.get("RocmPlatform") if module else None
        names: set[str] = set()
        for statement in ast.walk(node) if node else ():
            if (
                isinstance(statement, (ast.AnnAssign, ast.AugAssign))
                and ast.unparse(statement.target) == "supported_quantization"
                and isinstance(statement.value, ast.List)
            ):
                names |= set(ast.literal_eval(statement.value))
        if not names:
            raise ValueError(f"vllm {self.version}: no supported_quantization in vllm/platforms/rocm.py")
        return sorted(names)

    def entry_points(self) -> list[str]:
        """Return the modules that start a server with `python -m`."""
        names = ("vllm.entrypoints.api_server", "vllm.entrypoints.openai.api_server")
        return [n for n in names if (self.root / f"{n.replace('.', '/')}.py").is_file()]

    def features(self) -> list[str]:
        """Return what this release's reader of the YAML file and its parser can do."""
        files = [self.root / "vllm/utils/argparse_utils.py", self.root / "vllm/utils/__init__.py"]
        text = next(f for f in files if f.is_file() and "FlexibleArgumentParser" in f.read_text()).read_text()
        loader = re.search(r"def _?load_config_file.*?return processed_args", text, re.S)
        body = loader.group() if loader else ""
        wanted = {
            "config_lists": "isinstance(value, list)" in body,
            "config_maps": "isinstance(value, dict)" in body,
            "config_false": "--no-" in body,
            "disable_for_enable": "EnableDisableAction" in text,
        }
        return sorted(name for name, there in wanted.items() if there)


def _in_order(function: ast.FunctionDef) -> Iterator[ast.AST]:
    """Yield assignments and calls as they stand in the source."""
    nodes = [n for n in ast.walk(function) if isinstance(n, (ast.Assign, ast.Call))]
    yield from sorted(nodes, key=lambda n: (n.lineno, n.col_offset))


def _with_type(spec: Spec, source: str) -> Spec:
    """Return the spec with the type that the source of an argparse ``type`` stands for."""
    wrapped = re.fullmatch(r"(optional_type|parse_type)\((.+)\)", source)
    words = {"int": "int", "float": "float", "json.loads": "json", "human_readable_int": "size"}
    words["human_readable_int_or_auto"] = "size_or_auto"
    changed = {key: value for key, value in spec.items() if key != "optional"}
    changed["type"] = words.get((wrapped.group(2) if wrapped else source).strip(), "str")
    if wrapped and wrapped.group(1) == "optional_type":
        changed["optional"] = True
    if ".lower()" in source:
        changed["case"] = "ignore"
    return changed


def _with_keywords(spec: Spec, keywords: dict[str, ast.expr]) -> Spec:
    """Apply what an ``add_argument`` call says itself; it wins over what comes from the configuration class."""
    if "type" in keywords:
        spec = _with_type(spec, ast.unparse(keywords["type"]))
    if spec.get("choices", ()) is None:
        del spec["choices"]
    if "nargs" in keywords:
        spec["nargs"] = ast.literal_eval(keywords["nargs"])
    action = ast.unparse(keywords["action"]).strip("'") if "action" in keywords else ""
    if action in ("store_true", "store_false"):
        return {"type": "flag"}
    if action.endswith("BooleanOptionalAction"):
        return {"type": "bool"}
    if action == "StoreBoolean":
        return {"type": "str", "nargs": "?", "choices": ["false", "true"], "case": "ignore"}
    if action == "append":
        spec["action"] = "append"
    return spec


def _deprecation(doc: str) -> Spec:
    """Return what an option's documentation says of its end."""
    said = (
        r"\b(?:is|are|was) deprecated\b|\[DEPRECATED\]|^\W*deprecated\b|"
        r"\bdeprecated (?:because|since|and|in favor)\b"
    )
    if not re.search(said, doc[:400], re.I):
        return {}
    gone = re.search(r"removed in v?(\d+\.\d+)", doc)
    return {"deprecated": True, **({"gone_in": gone.group(1)} if gone else {})}


# --- the table --------------------------------------------------------------------------------------------------


def spans(known: dict[str, dict[int, Any]], specs: list[Any]) -> dict[str, list[list[int]]]:
    """Turn name -> {release: value} into name -> [[first release, last release, number of the value]]."""
    table: dict[str, list[list[int]]] = {}
    for name, by_release in sorted(known.items()):
        rows: list[list[int]] = []
        for release, value in sorted(by_release.items()):
            if value not in specs:
                specs.append(value)
            number = specs.index(value)
            if rows and rows[-1][1] == release - 1 and rows[-1][2] == number:
                rows[-1][1] = release
            else:
                rows.append([release, release, number])
        table[name] = rows
    return table


def extract(_: argparse.Namespace) -> int:
    """Read every release and write the table."""
    versions = sorted((p.name for p in SOURCES.iterdir() if p.is_dir()), key=Version)
    kinds = ("options", "environment", "rocm_quantization", "entry_points", "features")
    known: dict[str, dict[str, dict[int, Any]]] = {kind: {} for kind in kinds}
    aliases: dict[str, dict[int, Any]] = {}
    for number, version in enumerate(versions):
        release = Release(version)
        options = release.options()
        environment = release.environment()
        # 0.9.2, the oldest, has 160 options and 110 variables: far fewer means that a shape was not understood.
        if len(options) < 150 or len(environment) < 90:
            raise SystemExit(f"vllm {version}: only {len(options)} options and {len(environment)} variables read")
        for flag, option in options.items():
            others = option.pop("flags")[1:]
            known["options"].setdefault(flag, {})[number] = option
            for other in others:
                aliases.setdefault(other, {})[number] = flag
        for kind in kinds[1:]:
            for name in getattr(release, kind)():
                known[kind].setdefault(name, {})[number] = True
        print(f"vllm {version}: {len(options)} options, {len(environment)} variables", file=sys.stderr)
    specs: list[Any] = []
    targets: list[Any] = []
    document: dict[str, Any] = {
        "schema": 1,
        "source": "vLLM source distributions on PyPI, read by tools/extract_serve_options.py",
        "releases": versions,
        "options": spans(known["options"], specs),
        "aliases": {
            alias: [[first, last, targets[number]] for first, last, number in rows]
            for alias, rows in spans(aliases, targets).items()
        },
        "specs": specs,
    }
    for kind in kinds[1:]:
        document[kind] = {name: [row[:2] for row in rows] for name, rows in spans(known[kind], []).items()}
    lines = json.dumps(document, separators=(",", ":"), sort_keys=True)
    # One line a name: a new release is then a diff that can be read.
    lines = re.sub(r'(?<=[\[{,])("(?:--?|[A-Z_]+)[\w.+-]*":\[\[)', r"\n\1", lines)
    DATA.write_text(lines.replace('{"choices"', '\n{"choices"') + "\n", encoding="utf-8")
    print(f"{DATA.relative_to(ROOT)}: {DATA.stat().st_size} bytes", file=sys.stderr)
    return 0


def show(args: argparse.Namespace) -> int:
    """Print what was read of one release."""
    for flag, option in sorted(Release(args.version).options().items()):
        print(flag, json.dumps({k: v for k, v in option.items() if v != [flag]}))
    return 0


def main() -> int:
    """Run one of the three steps."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    steps = parser.add_subparsers(required=True)
    steps.add_parser("fetch", help="get the sources").set_defaults(run=fetch)
    steps.add_parser("extract", help="write the table").set_defaults(run=extract)
    one = steps.add_parser("show", help="print one release")
    one.add_argument("version")
    one.set_defaults(run=show)
    args: Any = parser.parse_args()
    return int(args.run(args))


if __name__ == "__main__":
    raise SystemExit(main())
