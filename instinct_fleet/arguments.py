"""Are these `vllm serve` arguments right for this vLLM release, on ROCm, before anything is stopped for them?

What each release knows comes from ``data/serve_options.json`` (extracted from vLLM's own sources by
``tools/extract_serve_options.py``), what to do about it from ``data/serve_advice.yml``. The arguments are read the way
vLLM reads them: ``--a_b`` is ``--a-b``, ``--json-option.key value`` builds a document, a mapping that goes into the
``--config`` file is turned into arguments with the rules (and gaps) of that release.

A pass here is not the last word: the release's own parser has it, on the node, before a drain.
"""

from __future__ import annotations

import difflib
import functools
import importlib.resources
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml
from packaging.version import Version

from instinct_fleet.model import Finding, Severity, sort_findings

#: Where a bare key of the document may stand for a long option.
_OPTION = re.compile(r"--[A-Za-z0-9][\w.+-]*")
_NEGATIVE_NUMBER = re.compile(r"-\d+|-\d*\.\d+")  # argparse takes these for values
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.S)
_SIZE = re.compile(r"\d+(?:\.\d+)?[kmgt]|\d+[KMGT]|[+-]?\d+")


@dataclass(frozen=True)
class Table:
    """What one release of vLLM knows.

    ``release`` is the release that was read; ``options`` maps a main spelling to what its value must be; ``aliases``
    maps every other spelling (``-tp``, ``--no-x``) to the main one; ``features`` are abilities of its parser.
    """

    release: str
    options: Mapping[str, Mapping[str, Any]]
    aliases: Mapping[str, str]
    environment: frozenset[str]
    rocm_quantization: frozenset[str]
    entry_points: frozenset[str]
    features: frozenset[str]


@dataclass(frozen=True)
class _Data:
    document: Mapping[str, Any]
    advice: Mapping[str, Any]
    releases: tuple[Version, ...]


@functools.cache
def _data() -> _Data:
    files = importlib.resources.files("instinct_fleet.data")
    document = json.loads(files.joinpath("serve_options.json").read_text(encoding="utf-8"))
    advice = yaml.safe_load(files.joinpath("serve_advice.yml").read_text(encoding="utf-8"))
    return _Data(document, advice, tuple(Version(release) for release in document["releases"]))


def known_releases() -> tuple[str, ...]:
    """Return the vLLM releases whose options are known, oldest first."""
    return tuple(_data().document["releases"])


def nearest_release(version: str) -> str | None:
    """Return the newest known release that is not newer than ``version``; None when there is none or it is unknown.

    A local part (``+rocm723``) does not count. A version after the newest known release is unknown as well: what it
    dropped or added cannot be told.
    """
    try:
        wanted = Version(version.strip().removeprefix("v"))
    except ValueError:  # no version, or a number of thousands of digits
        return None
    releases = _data().releases
    public = Version(wanted.public)
    # A development build of the release after the newest known one still has, mostly, the options of that.
    if Version(wanted.base_version) > releases[-1] or public < releases[0]:
        return None
    return known_releases()[max(i for i, release in enumerate(releases) if release <= public)]


@functools.cache
def table_for(release: str) -> Table:
    """Return what a known release knows.

    Raises:
        ValueError: the release is not in :func:`known_releases`.
    """
    document = _data().document
    number = document["releases"].index(release)

    def at(rows: Iterable[Sequence[Any]]) -> Sequence[Any] | None:
        return next((row for row in rows if row[0] <= number <= row[1]), None)

    options = {
        name: document["specs"][row[2]] for name, rows in document["options"].items() if (row := at(rows)) is not None
    }
    aliases = {name: str(row[2]) for name, rows in document["aliases"].items() if (row := at(rows)) is not None}
    features = frozenset(name for name, rows in document["features"].items() if at(rows))
    for name in [*options, *aliases]:
        spec = options[aliases.get(name, name)]
        if spec["type"] == "bool" and name.startswith("--"):
            aliases.setdefault(f"--no-{name[2:]}", aliases.get(name, name))
            if "disable_for_enable" in features and (match := re.fullmatch(r"--(enable|disable)-(.+)", name)):
                other = "disable" if match.group(1) == "enable" else "enable"
                if f"--{other}-{match.group(2)}" not in options:
                    aliases.setdefault(f"--{other}-{match.group(2)}", aliases.get(name, name))
    return Table(
        release=release,
        options=options,
        aliases=aliases,
        environment=frozenset(name for name, rows in document["environment"].items() if at(rows)),
        rocm_quantization=frozenset(name for name, rows in document["rocm_quantization"].items() if at(rows)),
        entry_points=frozenset(name for name, rows in document["entry_points"].items() if at(rows)),
        features=features,
    )


# --- reading the arguments --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Given:
    """One option as it was given: its main spelling, as written, and its values (None: the option has none)."""

    option: str
    written: str
    values: tuple[str, ...] | None
    negated: bool = False
    dotted: bool = False


@dataclass
class _Reader:
    """Reads tokens as the release's argparse parser does, and notes what it would not take."""

    table: Table
    version: str
    in_config: bool = False
    findings: list[Finding] = field(default_factory=list)
    given: list[_Given] = field(default_factory=list)
    positional: list[str] = field(default_factory=list)

    def say(self, code: str, severity: Severity, subject: str, message: str, remedy: str) -> None:
        self.findings.append(Finding(f"serve_args_{code}", severity, subject, message, remedy))

    def read(self, tokens: Sequence[str]) -> None:
        """Take the tokens apart into options with values, and positional arguments."""
        position = 0
        while position < len(tokens):
            token = tokens[position]
            position += 1
            if token == "--":  # noqa: S105 - the end of options, not a secret
                self.positional += tokens[position:]
                return
            if not _looks_like_option(token):
                self.positional.append(token)
                continue
            if re.fullmatch(r"-O=?\w+", token):
                continue  # the optimisation level, in one word with its option; every release takes it
            name, equals, value = token.partition("=")
            main, _, path = self.normal(name).partition(".")
            option = self._find(main, token)
            if option is None:
                # Its value, if it has one, is no positional argument.
                first = position
                position = self._skip(tokens, position, equals)
                self._never_valid(main, value if equals else " ".join(tokens[first:position]))
                continue
            spec = self.table.options[option]
            if path:
                position = self._dotted(option, name, tokens, position, attached=bool(equals))
                continue
            rest = tokens[position:] if not equals else []
            values = self._values(spec, rest)
            if equals:
                values = (value,)
            elif values is not None:
                position += len(values)
            negated = main.startswith("--no-") and option != main
            self._accept(_Given(option, token if not equals else name, values, negated), spec)

    @staticmethod
    def normal(name: str) -> str:
        """Turn underscores before the first dot of a long option into dashes."""
        if not name.startswith("--"):
            return name
        main, dot, path = name.partition(".")
        return main.replace("_", "-") + dot + path

    def _find(self, name: str, token: str) -> str | None:
        """Return the main spelling of an option; None, with a finding, when the release has no such option."""
        if name == "-O":
            # vLLM rewrites it before argparse sees it, to whatever the level or the configuration is called by then.
            level, document = "--optimization-level", "--compilation-config"
            return level if level in self.table.options and not token.startswith("-O.") else document
        found = self.table.aliases.get(name, name)
        if found in self.table.options:
            if name == "--disable-log-requests" and found == "--enable-log-requests":
                self.say(
                    "fragile",
                    "warning",
                    name,
                    f"{self.table.release} takes it as the opposite of --enable-log-requests, which is off by default; "
                    "releases 0.17.0 to 0.32.0 do not take it",
                    "leave it out",
                )
            return found
        # argparse takes any beginning that only one option has.
        prefixed = {n for n in [*self.table.options, *self.table.aliases] if len(name) > 1 and n.startswith(name)}
        if len(prefixed) == 1:
            (full,) = prefixed
            self.say(
                "abbreviated",
                "warning",
                name,
                f"is an abbreviation of {full} that stops working when another option begins like it",
                f"write {full}",
            )
            return self.table.aliases.get(full, full)
        self._unknown(name)
        return None

    def _unknown(self, name: str) -> None:
        """Say why the release has no such option: gone, not there yet, or never there."""
        base = name
        rows = _rows(base)
        if rows is None and name.startswith("--no-"):
            base = f"--{name[5:]}"
            rows = _rows(base)
        advice = _data().advice
        releases = _data().document["releases"]
        if rows is not None:
            number = releases.index(self.table.release)
            last = max((row[1] for row in rows if row[1] < number), default=None)
            if last is not None:
                gone = advice["gone"].get(base, {})
                code = "renamed" if gone.get("renamed") else "removed"
                self.say(
                    code,
                    "error",
                    name,
                    f"is gone since {releases[last + 1]} (last in {releases[last]}); {self.version} does not take it",
                    _remedy(gone),
                )
            else:
                first = min(row[0] for row in rows)
                self.say(
                    "not_yet",
                    "error",
                    name,
                    f"came with {releases[first]}; {self.version} does not take it",
                    f"leave it out, or run vLLM {releases[first]} or newer",
                )
            return
        if base in advice["never"]:
            self.say(
                "never_valid",
                "error",
                name,
                "was never an option of `vllm serve`",
                _remedy(advice["never"][base]),
            )
            return
        near = difflib.get_close_matches(name, [*self.table.options, *self.table.aliases], n=1, cutoff=0.7)
        self.say(
            "unknown",
            "error",
            name,
            f"is no option of `vllm serve` in {self.version}" + (f"; the nearest is {near[0]}" if near else ""),
            f"write {near[0]}" if near else "leave it out; `vllm serve --help=all` lists the options",
        )

    def _never_valid(self, name: str, value: str) -> None:
        """Say of an option that is gone that its value never was one."""
        for rule in _data().advice["values"]:
            if rule["option"] == name and rule["code"].endswith("never_valid") and re.fullmatch(rule["pattern"], value):
                self.say("never_valid", rule["severity"], f"{name} {value}", rule["message"], _remedy(rule))

    @staticmethod
    def _skip(tokens: Sequence[str], position: int, equals: str) -> int:
        """Step over the values that seem to belong to an unknown option."""
        if not equals:
            while position < len(tokens) and not _looks_like_option(tokens[position]):
                position += 1
        return position

    @staticmethod
    def _values(spec: Mapping[str, Any], rest: Sequence[str]) -> tuple[str, ...] | None:
        """Return the tokens that argparse gives to an option; None for one without a value."""
        if spec["type"] in ("bool", "flag"):
            return None
        end = 0
        while end < len(rest) and (
            not rest[end].startswith("-") or _NEGATIVE_NUMBER.fullmatch(rest[end]) or rest[end] == "-"
        ):
            end += 1
        nargs = spec.get("nargs")
        if nargs in ("+", "*"):
            return tuple(rest[:end])
        return tuple(rest[: min(end, nargs if isinstance(nargs, int) else 1)])

    def _dotted(self, option: str, name: str, tokens: Sequence[str], position: int, *, attached: bool) -> int:
        """Take ``--option.key value``; it always has one value. Return the position after it."""
        spec = self.table.options[option]
        if spec["type"] not in ("json", "str"):
            self.say(
                "bad_value",
                "error",
                name,
                f"{option} takes {_wanted(spec)}, not a document with keys",
                f"write {option} and its value",
            )
        if not attached:
            if position >= len(tokens):
                self.say("missing_value", "error", name, "has no value; expected one", f"give {name} a value")
            position += 1
        self.given.append(_Given(option, name, (), dotted=True))
        return position

    def _accept(self, given: _Given, spec: Mapping[str, Any]) -> None:
        """Note an option, and check the number and the kind of its values."""
        if any(g.option == given.option and not g.dotted for g in self.given) and spec.get("action") != "append":
            self.say(
                "duplicate",
                "warning",
                given.option,
                "is given more than once; the last one counts",
                "give it once",
            )
        self.given.append(given)
        if given.values is None:
            return
        if spec["type"] in ("bool", "flag"):
            self.say(
                "bad_value",
                "error",
                given.written,
                f"takes no value, got {given.values[0]!r}",
                f"write {given.option}" + (f" or --no-{given.option[2:]}" if spec["type"] == "bool" else ""),
            )
            return
        if not given.values and spec.get("nargs") not in ("?", "*"):
            self.say(
                "missing_value",
                "error",
                given.written,
                f"has no value; expected {_wanted(spec)}",
                f"give {given.written} a value",
            )
        for value in given.values:
            if not _fits(value, spec):
                self.say(
                    "bad_value",
                    "error",
                    given.written,
                    f"is {value!r}, expected {_wanted(spec)}",
                    f"correct the value of {given.option}",
                )


def _looks_like_option(token: str) -> bool:
    """Return whether argparse takes a token for an option: a dash and more, unless that is a number."""
    return len(token) > 1 and token.startswith("-") and not _NEGATIVE_NUMBER.fullmatch(token)


def _remedy(advice: Mapping[str, Any]) -> str:
    """Return the remedy of an entry of serve_advice.yml: its ``do`` as it is, or its ``use`` made a sentence."""
    if "do" in advice:
        return str(advice["do"])
    use = str(advice.get("use", "nothing"))
    return use.replace("nothing", "leave it out", 1) if use.startswith("nothing") else f"use {use}"


def _rows(name: str) -> list[list[int]] | None:
    """Return the spans of releases in which a name is an option or an alias."""
    document = _data().document
    rows = document["options"].get(name) or document["aliases"].get(name)
    return [list(row) for row in rows] if rows else None


def gone_since(name: str) -> tuple[str, str] | None:
    """Return since which release the newest ones have no such option, and what to do about it.

    Args:
        name: a long option with its dashes, as ``--swap-space``.

    Returns:
        None for an option that the newest known release has, or that never was one.
    """
    releases = known_releases()
    rows = _rows(name)
    if not rows:
        return None
    last = max(row[1] for row in rows)
    if last + 1 >= len(releases):
        return None
    return releases[last + 1], _remedy(_data().advice["gone"].get(name, {}))


def _fits(value: str, spec: Mapping[str, Any]) -> bool:
    """Return whether argparse would take a value for an option."""
    kind = spec["type"]
    if spec.get("optional") and value in ("", "None"):
        return True
    if "choices" in spec:
        choices = {str(choice) for choice in spec["choices"]}
        if spec.get("case") == "ignore":
            return value.lower().replace("-", "_") in {choice.lower() for choice in choices}
        return value in choices
    try:
        if kind == "int":
            int(value)
        elif kind == "float":
            float(value)
        elif kind == "json":
            try:
                json.loads(value)
            except ValueError:
                # Newer releases also take 80m or 16K for numbers within a document.
                json.loads(re.sub(r"\b\d+(?:\.\d+)?[kKmMgGtT]\b", "0", value))
        elif kind == "size" or (kind == "size_or_auto" and value.strip().lower() != "auto"):
            parse_size(value)
    except (ValueError, RecursionError):
        return False
    return True


def parse_size(text: str) -> int:
    """Read an integer or a size as vLLM writes them: ``16k`` is 16000, ``16K`` is 16384, ``1.5m`` is 1500000.

    Raises:
        ValueError: the text is neither; the message holds it.
    """
    stripped = text.strip()
    if not _SIZE.fullmatch(stripped):
        raise ValueError(f"{text!r} is no integer and no size such as 16k or 16K")
    power = "kmgt".find(stripped[-1].lower()) + 1
    if not power:
        return int(stripped)
    return int(float(stripped[:-1]) * (1000 if stripped[-1].islower() else 1024) ** power)


def _wanted(spec: Mapping[str, Any]) -> str:
    """Say in words what the value of an option must be."""
    if "choices" in spec:
        return "one of " + ", ".join(str(choice) for choice in spec["choices"])
    words = {
        **{"int": "an integer", "float": "a number", "json": "a JSON document", "bool": "no value", "flag": "no value"},
        **{
            "size": "an integer or a size such as 16k or 16K",
            "size_or_auto": "an integer, a size such as 16k, or auto",
        },
    }
    return words.get(str(spec["type"]), "a value")


# --- mappings ---------------------------------------------------------------------------------------------------


def _tokens_of_mapping(arguments: Mapping[Any, Any], reader: _Reader) -> Iterator[str]:
    """Turn a mapping into tokens: by the rules of the release's YAML reader, or as a command line is written.

    On a command line True is the option alone, False its ``--no-`` form, None leaves it out. In the YAML file each
    release has its own gaps, which become findings.
    """
    for key, value in arguments.items():
        if not isinstance(key, str) or not key or key.startswith("-") or not _OPTION.fullmatch(f"--{key}"):
            reader.say(
                *("unknown", "error", str(key)),
                f"is no key for an option: {key!r}; expected its long name without dashes",
                "write for example max-model-len",
            )
            continue
        name = f"--{key}"
        main = reader.normal(name).partition(".")[0]
        spec = reader.table.options.get(reader.table.aliases.get(main, main), {})
        if value is None and not reader.in_config:
            continue
        if isinstance(value, bool):
            yield from _boolean(key, value, spec, reader)
        elif isinstance(value, (list, tuple)):
            if reader.in_config and "config_lists" not in reader.table.features:
                _not_in_config(reader, name, "a list", "config_lists")
            elif value:
                yield name
                yield from (str(item) for item in value)
        elif isinstance(value, Mapping):
            if reader.in_config and "config_maps" not in reader.table.features:
                _not_in_config(reader, name, "a map", "config_maps")
            else:
                yield name
                yield json.dumps(value, default=str)
        else:
            yield name
            text = str(value)
            # A value that begins with a dash would be read as an option.
            if text.startswith("-") and not _NEGATIVE_NUMBER.fullmatch(text):
                reader.say(
                    "bad_value",
                    "error",
                    name,
                    f"is {text!r}, which the parser takes for another option",
                    f"give it as {name}={text} on the command line",
                )
            else:
                yield text


def _boolean(key: str, value: bool, spec: Mapping[str, Any], reader: _Reader) -> Iterator[str]:
    name = f"--{key}"
    main = reader.normal(name)
    kind = spec.get("type")
    if value:
        if kind not in ("bool", "flag", None) and spec.get("nargs") != "?":
            reader.say(
                "bad_value",
                "error",
                name,
                f"is true, expected {_wanted(spec)}",
                f"correct the value of {name}",
            )
        else:
            yield name
    elif main.startswith("--no-") and kind == "bool":
        pass  # "no-x: false" says nothing, and every release takes it for that
    elif kind == "bool" and reader.in_config and "config_false" not in reader.table.features:
        reader.say(
            "ineffective",
            "error",
            name,
            f"is false in the configuration file, and {reader.version} passes over it without a word "
            f"(from {_first_release('config_false')} on it is read)",
            f"write no-{key.replace('_', '-')}: true in the file",
        )
    elif kind == "bool" or (kind is None and not reader.in_config):
        yield f"--no-{key}"
    elif kind is None:
        yield name  # not an option at all, which the reader says


def _not_in_config(reader: _Reader, name: str, what: str, feature: str) -> None:
    reader.say(
        "ineffective",
        "error",
        name,
        f"is {what} in the configuration file; {reader.version} reads those only from {_first_release(feature)} on",
        f"put {name} on the command line",
    )


def _first_release(feature: str) -> str:
    document = _data().document
    return str(document["releases"][document["features"][feature][0][0]])


# --- the check --------------------------------------------------------------------------------------------------


def check(
    arguments: Sequence[str] | Mapping[str, Any],
    *,
    version: str,
    environment: Mapping[str, str] | None = None,
    in_config: bool = False,
) -> tuple[Finding, ...]:
    """Check the arguments of one ``vllm serve``.

    Args:
        arguments: the command line as a list, with or without what stands before the options (``vllm serve``,
            ``python -m ...``, ``numactl ...``, ``NAME=value``); or a mapping of long names to values.
        version: the vLLM version that is to take them, such as ``0.33.0`` or ``0.22.1+rocm722``.
        environment: the variables the process will have.
        in_config: the arguments go into the file of ``--config`` instead of onto the command line.

    Returns:
        What is wrong, worst first; empty when nothing is. Codes: ``serve_args_`` and ``unknown``, ``removed``,
        ``renamed``, ``not_yet``, ``never_valid``, ``bad_value``, ``missing_value``, ``ineffective``, ``rocm``,
        ``deprecated``, ``abbreviated``, ``fragile``, ``duplicate``, ``positional``, ``entry_point``,
        ``environment``, ``release_unknown``, ``release_nearest``.
    """
    release = nearest_release(version)
    if release is None:
        known = known_releases()
        return (
            Finding(
                code="serve_args_release_unknown",
                severity="unknown",
                subject=version,
                message=f"vLLM is known from {known[0]} to {known[-1]}: nothing was checked for {version!r}",
                remedy="name a release in that range, or add the release with tools/extract_serve_options.py",
            ),
        )
    table = table_for(release)
    reader = _Reader(table, version, in_config)
    variables = dict(environment or {})
    if Version(version.strip().removeprefix("v")).public != release:
        reader.say(
            "release_nearest",
            "info",
            version,
            f"this release was not read; checked against {release}, the nearest below it",
            "none needed, if nothing about the options changed in between",
        )
    if isinstance(arguments, Mapping):
        tokens = list(_tokens_of_mapping(arguments, reader))
    else:
        tokens = _without_command([str(token) for token in arguments], reader, variables)
    reader.read(tokens)
    _check_positional(reader)
    _check_given(reader, variables)
    _check_environment(reader, variables)
    return sort_findings(reader.findings)


def _without_command(tokens: list[str], reader: _Reader, variables: dict[str, str]) -> list[str]:
    """Drop what stands before the options, and judge the way the server is started."""
    for i, token in enumerate(tokens):
        following = tokens[i + 1] if i + 1 < len(tokens) else ""
        if token == "-m" and following.startswith("vllm."):  # noqa: S105
            _check_entry_point(following, reader)
            rest = tokens[i + 2 :]
        elif token.rpartition("/")[2] == "vllm" and following == "serve":
            rest = tokens[i + 2 :]
        else:
            continue
        variables.update(m.groups() for t in tokens[:i] if (m := _ASSIGNMENT.fullmatch(t)))  # type: ignore[misc]
        return rest
    return tokens[1:] if tokens[:1] == ["serve"] else tokens


def _check_entry_point(module: str, reader: _Reader) -> None:
    if module in reader.table.entry_points:
        reader.say(
            "entry_point",
            "warning",
            module,
            "`python -m` starts of the server are deprecated; some releases have dropped them",
            "start it with `vllm serve MODEL`",
        )
    else:
        rows = _data().document["entry_points"].get(module)
        releases = _data().document["releases"]
        gone = f" (last in {releases[rows[-1][1]]})" if rows else ""
        reader.say(
            "entry_point",
            "error",
            module,
            f"is no module that starts a server in {reader.version}{gone}",
            "start it with `vllm serve MODEL`",
        )


def _check_positional(reader: _Reader) -> None:
    extra = reader.positional if reader.in_config else reader.positional[1:]
    for token in extra:
        reader.say(
            "positional",
            "error",
            token,
            "is not the value of any option, and there is room for one model only",
            "quote values that hold spaces, and check the option before it",
        )


def _check_given(reader: _Reader, variables: Mapping[str, str]) -> None:
    """Judge options that exist but should not be used so: ineffective, deprecated, wrong on ROCm."""
    advice = _data().advice
    for given in reader.given:
        spec = reader.table.options[given.option]
        if spec.get("deprecated") or (given.option == "--model" and not reader.in_config):
            entry = advice["deprecated"].get(given.option) or advice["gone"].get(given.option)
            end = f", to be gone in {spec['gone_in']}" if "gone_in" in spec else ""
            reader.say(
                "deprecated",
                "warning",
                given.option,
                f"is deprecated in {reader.version}{end}",
                _remedy(entry) if entry else "`vllm serve --help=all` says what takes its place",
            )
        if given.option == "--numa-bind" and not given.negated:
            _check_numa_bind(given, reader, variables)
        if given.option == "--config" and given.written == "--config" and reader.in_config:
            reader.say(
                "ineffective",
                "error",
                "--config",
                "is in the configuration file, where it is not followed",
                "put its content into the one file",
            )
        for value in given.values or ():
            _check_value(given, value, reader)


def _check_numa_bind(given: _Given, reader: _Reader, variables: Mapping[str, str]) -> None:
    # vllm/utils/system_utils.py looks for the word "--numa-bind" in sys.argv to choose the start method; without it
    # workers are forked and keep the binding of their parent.
    if variables.get("VLLM_WORKER_MULTIPROC_METHOD") == "spawn":
        return
    if reader.in_config or given.written != "--numa-bind":
        where = "is in the configuration file" if reader.in_config else f"is written {given.written}"
        reader.say(
            "ineffective",
            "error",
            "--numa-bind",
            f"{where}: vLLM looks for the word --numa-bind on its command line, and without it binds nothing",
            "put --numa-bind on the command line, or set VLLM_WORKER_MULTIPROC_METHOD=spawn",
        )


def _check_value(given: _Given, value: str, reader: _Reader) -> None:
    known = reader.table.rocm_quantization
    if given.option == "--quantization" and value not in ("", "None") and value not in known:
        reader.say(
            "rocm",
            "error",
            f"{given.option} {value}",
            f"is no quantization that vLLM {reader.table.release} supports on ROCm: {', '.join(sorted(known))}",
            "use a checkpoint in one of these formats",
        )
        return
    for rule in _data().advice["values"]:
        if rule["option"] == given.option and re.fullmatch(rule["pattern"], value):
            code = rule["code"].removeprefix("serve_args_")
            reader.say(code, rule["severity"], f"{given.option} {value}", rule["message"], _remedy(rule))


def _check_environment(reader: _Reader, variables: Mapping[str, str]) -> None:
    advice = _data().advice["environment"]
    document = _data().document
    strict = any(g.option == "--fail-on-environ-validation" and not g.negated for g in reader.given)
    for name in sorted(variables):
        rule = advice.get(name, {})
        if "code" in rule:
            code = rule["code"].removeprefix("serve_args_")
            reader.say(code, rule["severity"], name, str(rule["message"]), _remedy(rule))
        elif name.startswith("VLLM_") and name not in reader.table.environment:
            rows = document["environment"].get(name)
            if rows:
                number = document["releases"].index(reader.table.release)
                past = [row for row in rows if row[1] < number]
                what = (
                    f"is unknown since {document['releases'][past[-1][1] + 1]}"
                    if past
                    else f"came with {document['releases'][rows[0][0]]}"
                )
            else:
                near = difflib.get_close_matches(name, reader.table.environment, n=1, cutoff=0.85)
                what = "is no variable of vLLM" + (f"; the nearest is {near[0]}" if near else "")
            consequence = "vLLM refuses to start" if strict else "vLLM ignores it with a warning"
            reader.say(
                "environment",
                "error" if strict else "warning",
                name,
                f"{what}: {reader.version} does not know it, and {consequence}",
                _remedy(rule) if rule else "unset it; name variables of your own differently",
            )
    _check_devices(reader, variables)


def _check_devices(reader: _Reader, variables: Mapping[str, str]) -> None:
    """vllm/platforms/rocm.py: both variables are kept in step, and only integers can be mapped to physical devices."""
    hip, cuda = variables.get("HIP_VISIBLE_DEVICES"), variables.get("CUDA_VISIBLE_DEVICES")
    if hip is not None and cuda is not None and hip != cuda:
        reader.say(
            "rocm",
            "error",
            "HIP_VISIBLE_DEVICES",
            f"is {hip!r}, but CUDA_VISIBLE_DEVICES is {cuda!r}: vLLM refuses to start",
            "set HIP_VISIBLE_DEVICES alone",
        )
    if hip is not None and not re.fullmatch(r"\d+(,\d+)*", hip):
        reader.say(
            "rocm",
            "error",
            "HIP_VISIBLE_DEVICES",
            f"is {hip!r}, expected numbers such as 0,1,2,3",
            "write the HIP numbers of the GPUs",
        )
