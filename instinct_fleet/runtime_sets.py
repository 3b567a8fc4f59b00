"""The pinned sets of wheels that a node can run, and the small wheels that the project makes itself."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import re
import zipfile
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from instinct_fleet.validation import explain, plain


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class MetadataWheel(_Strict):
    """A wheel that holds nothing but its name and version."""

    name: str
    version: str


class Pin(_Strict):
    """One distribution and its version; None: the version that goes with the others."""

    name: str
    version: str | None
    source: str
    extras: tuple[str, ...] = ()

    @property
    def requirement(self) -> str:
        """As pip reads it."""
        extras = f"[{','.join(self.extras)}]" if self.extras else ""
        return f"{self.name}{extras}" + (f"=={self.version}" if self.version else "")


class Constraint(_Strict):
    """A limit for what the pins pull in."""

    pin: str
    source: str


class Component(_Strict):
    """What method ``source`` makes one wheel of: a git commit, an archive with its SHA-256, or a folder."""

    name: str
    git: str | None = None
    commit: str | None = None
    submodules: bool = False
    url: str | None = None
    sha256: str | None = None
    folder: str | None = None
    requirements_file: str | None = None
    prepare: tuple[tuple[str, ...], ...] = ()
    environment: Mapping[str, str] = {}

    @model_validator(mode="after")
    def _one_source(self) -> Component:
        if [self.git is not None, self.url is not None, self.folder is not None].count(True) != 1:
            raise ValueError(f"component {self.name} needs one of git, url and folder")
        if self.git is not None and not self.commit:
            raise ValueError(f"component {self.name} has git and no commit: a branch would not say what was built")
        if self.url is not None and not re.fullmatch(r"[0-9a-f]{64}", self.sha256 or ""):
            raise ValueError(f"component {self.name} has a url and no SHA-256 of 64 hex digits")
        return self


class RuntimeSet(_Strict):
    """One pinned set. ``accelerator`` is ``cpu`` or ``rocm``; ``python`` is the minor version that it installs on.

    ``lock`` is the name of a file in data/locks, or the text of one (it then holds ``==``), or None while nobody has
    pinned the hashes.
    """

    vllm: str
    accelerator: Literal["cpu", "rocm"]
    python: Annotated[str, Field(pattern=r"^3\.\d+$")]
    abi: str
    glibc: Annotated[str, Field(pattern=r"^2\.\d+$")]
    lock: str | None
    gfx: str | None = None
    system_rocm: str | None = None
    indexes: tuple[str, ...] = ()
    pins: tuple[Pin, ...] = ()
    constraints: tuple[Constraint, ...] = ()
    device_code: tuple[str, ...] = ()
    tools: tuple[str, ...] = ()
    components: tuple[Component, ...] = ()
    metadata_wheels: tuple[MetadataWheel, ...] = ()

    @model_validator(mode="after")
    def _usable(self) -> RuntimeSet:
        if self.lock is None and not self.pins:
            raise ValueError("a set needs a lock or pins")
        if (self.accelerator == "rocm") != (self.gfx is not None):
            raise ValueError(f"accelerator is {self.accelerator}, gfx is {self.gfx!r}: a ROCm set names its GPU target")
        return self


class Installer(_Strict):
    """The program that installs wheels on a node, itself a pinned wheel."""

    name: str
    version: str
    hash: str


class Catalogue(_Strict):
    """Everything that data/runtime_sets.yml says."""

    sets: dict[str, RuntimeSet]
    installer: Installer


@cache
def catalogue() -> Catalogue:
    """Read data/runtime_sets.yml."""
    return Catalogue.model_validate(yaml.safe_load((files("instinct_fleet.data") / "runtime_sets.yml").read_text()))


def metadata_wheel(name: str, version: str) -> bytes:
    """Build a wheel that carries only metadata. The same input gives the same bytes, so that it can be pinned."""
    folder = f"{name}-{version}.dist-info"
    parts = {
        f"{folder}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{folder}/WHEEL": "Wheel-Version: 1.0\nGenerator: instinct-fleet\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = ""
    for path, text in parts.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        record += f"{path},sha256={digest},{len(text)}\n"
    parts[f"{folder}/RECORD"] = f"{record}{folder}/RECORD,,\n"
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for path, text in parts.items():
            archive.writestr(zipfile.ZipInfo(path, (1980, 1, 1, 0, 0, 0)), text)
    return buffer.getvalue()


def platform_tags(glibc: str, machine: str = "x86_64") -> list[str]:
    """Return pip's --platform values for wheels that run on a glibc of this version or newer."""
    major, minor = (int(part) for part in glibc.split("."))
    tags = [f"manylinux_{major}_{n}_{machine}" for n in range(minor, 4, -1)]
    return [*tags, f"manylinux2014_{machine}", f"manylinux2010_{machine}", f"manylinux1_{machine}", f"linux_{machine}"]


_LOCK_LINE = re.compile(
    r"(?P<name>[A-Za-z0-9][\w.-]*)==(?P<version>[^\s;]+)(?P<hashes>(?: --hash=sha256:[0-9a-f]{64})+)"
)


def canonical(name: str) -> str:
    """Return the name of a distribution as package indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def lock_lines(text: str, *, where: str) -> dict[str, tuple[str, tuple[str, ...]]]:
    """Read a lock.

    Args:
        text: requirements, one a line, each ``name==version`` with at least one ``--hash=sha256:``.
        where: how a message names it.

    Returns:
        Distribution -> version and SHA-256 in hex.

    Raises:
        ValueError: a line is not pinned; the message shows it.
    """
    entries: dict[str, tuple[str, tuple[str, ...]]] = {}
    for number, raw in enumerate(text.replace("\\\n", " ").splitlines(), 1):
        line = " ".join(raw.split())
        if not line or line.startswith("#"):
            continue
        match = _LOCK_LINE.fullmatch(line)
        if match is None:
            raise ValueError(
                f"{where}, line {number} is {line[:80]!r}, expected NAME==VERSION --hash=sha256:... (as "
                "`uv pip compile --generate-hashes` or an earlier build's lock.txt has it)"
            )
        name = canonical(match["name"])
        if name in entries and entries[name][0] != match["version"]:
            raise ValueError(f"{where} pins {name} to {entries[name][0]} and to {match['version']}, expected one")
        hashes = tuple(part.rpartition(":")[2] for part in match["hashes"].split())
        entries[name] = (match["version"], (*entries.get(name, ("", ()))[1], *hashes))
    if not entries:
        raise ValueError(f"{where} pins nothing")
    return entries


def site_sets(sets: Mapping[str, Any] | None) -> dict[str, RuntimeSet]:
    """Check the sets that a site adds.

    Raises:
        ValueError: naming the set and the key.
    """
    found = {}
    for name, document in (sets or {}).items():
        if not re.fullmatch(r"[a-z0-9][a-z0-9-]*", str(name)):
            raise ValueError(f"runtime set is called {name!r}, expected lower case letters, digits and dashes")
        try:
            found[str(name)] = RuntimeSet.model_validate(plain(document))
        except ValidationError as exc:
            raise ValueError(f"runtime set {name!r}: {explain(exc, RuntimeSet.model_fields)}") from exc
    return found


def _lock_text(chosen: RuntimeSet) -> str | None:
    if chosen.lock is None or "==" in chosen.lock:
        return chosen.lock
    return (files("instinct_fleet.data") / "locks" / chosen.lock).read_text()


def describe(name: str, *, lock: str | None = None, sets: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return all that the roles need of one set.

    Args:
        name: which set.
        lock: the text of a lock that a site pins, in place of the set's own.
        sets: further sets of the site, by name, as in data/runtime_sets.yml.

    Returns:
        ``vllm``, ``accelerator``, ``python``, ``abi``, ``glibc``, ``gfx``, ``device_code``; ``release`` is the name of
        the folder on a node; ``lock`` the requirements text with hashes for the installer, including the wheels made
        here, or None while the set has none; ``complete_note`` the line that an installed release is marked with (or
        None); ``download`` what to fetch with hashes; ``requirements`` and ``constraints`` what to resolve without;
        ``wheels`` the made ones {file name: base64}; ``platforms`` pip's tags; ``indexes``; ``installer`` the
        installer's requirement line; ``components`` and ``tools`` for builds; ``inputs`` a fingerprint of all of it.

    Raises:
        ValueError: the set is unknown, or the lock does not fit it.
    """
    # Templates ask again and again, and a lock has hundreds of lines.
    return dict(_describe(str(name), None if lock is None else str(lock), json.dumps(plain(sets or {}), default=str)))


@cache
def _describe(name: str, lock: str | None, sets: str) -> dict[str, Any]:
    known = catalogue()
    every = {**known.sets, **site_sets(json.loads(sets))}
    if name not in every:
        raise ValueError(f"runtime set is {name!r}, expected one of {', '.join(sorted(every))}")
    chosen = every[name]
    text = lock if lock is not None else _lock_text(chosen)
    installer = f"{known.installer.name}=={known.installer.version} --hash={known.installer.hash}\n"
    wheels, own = {}, ""
    for wheel in chosen.metadata_wheels:
        data = metadata_wheel(wheel.name, wheel.version)
        wheels[f"{wheel.name}-{wheel.version}-py3-none-any.whl"] = base64.b64encode(data).decode()
        own += f"{wheel.name}=={wheel.version} --hash=sha256:{hashlib.sha256(data).hexdigest()}\n"
    whole = None
    if text is not None:
        text = text if text.endswith("\n") else text + "\n"
        whole = text if own and text.endswith(own) else text + own
        text = whole.removesuffix(own) if own else whole
        _check_lock(name, chosen, whole)
    described = {
        "name": name,
        "vllm": chosen.vllm,
        "accelerator": chosen.accelerator,
        "python": chosen.python,
        "abi": chosen.abi,
        "glibc": chosen.glibc,
        "gfx": chosen.gfx,
        "device_code": list(chosen.device_code),
        "release": f"{chosen.vllm}-{name}",
        "lock": whole,
        "complete_note": note(whole) if whole is not None else None,
        "download": text + installer if text is not None else None,
        "requirements": [pin.requirement for pin in chosen.pins],
        "constraints": [constraint.pin for constraint in chosen.constraints],
        "indexes": list(chosen.indexes),
        "installer": installer,
        "wheels": wheels,
        "platforms": platform_tags(chosen.glibc),
        "tools": list(chosen.tools),
        "components": [component.model_dump(mode="json") for component in chosen.components],
    }
    canonical_text = json.dumps(described, sort_keys=True, default=list)
    return {**described, "inputs": hashlib.sha256(canonical_text.encode()).hexdigest()}


def note(lock: str) -> str:
    """Return the line that a release is marked with: it changes with any pin."""
    return hashlib.sha256(lock.encode()).hexdigest() + "\n"


def _check_lock(name: str, chosen: RuntimeSet, text: str) -> None:
    entries = lock_lines(text, where=f"the lock of set {name}")
    version = entries.get("vllm", (None,))[0]
    if version is None or version.split("+", 1)[0] != chosen.vllm:
        raise ValueError(f"the lock of set {name} has vllm {version or 'not at all'}, expected {chosen.vllm}")
    problem = foreign(entries) if chosen.accelerator == "rocm" else None
    if problem:
        raise ValueError(f"the lock of set {name}: {problem}")


def foreign(entries: Mapping[str, tuple[str, tuple[str, ...]]]) -> str | None:
    """Return why a resolved ROCm set is really one for CUDA, or None.

    Where a vendor's index does not answer, or has no wheel for this Python, pip takes the CUDA build of the public
    index without a word (vLLM issue 44660).
    """
    label = entries.get("vllm", ("", ()))[0].partition("+")[2]
    nvidia = sorted(name for name in entries if name.startswith(("nvidia-", "flashinfer", "cuda-")))
    if "rocm" not in label:
        return (
            f"vllm is {entries.get('vllm', ('missing', ()))[0]}, a CUDA wheel of the public index, expected a version "
            "with a label such as +rocm100; the vendor's index did not answer or has no such wheel for this Python: "
            "see vllm_build_vendor_index_urls"
        )
    if nvidia:
        return f"it holds {', '.join(nvidia[:3])}, which belong to CUDA; the vendor's index lacks a pinned wheel"
    return None
