"""The pinned sets of wheels that a node can run, and the small wheels that the project makes itself."""

from __future__ import annotations

import base64
import hashlib
import io
import zipfile
from functools import cache
from importlib.resources import files
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class MetadataWheel(_Strict):
    """A wheel that holds nothing but its name and version."""

    name: str
    version: str


class RuntimeSet(_Strict):
    """One pinned set. ``accelerator`` is ``cpu`` or ``rocm``; ``python`` is the minor version that it installs on."""

    vllm: str
    accelerator: str
    python: str
    abi: str
    glibc: str
    lock: str
    metadata_wheels: tuple[MetadataWheel, ...] = ()


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


def describe(name: str) -> dict[str, Any]:
    """Return all that the roles need of one set.

    Returns:
        ``vllm``, ``accelerator``, ``python``, ``abi``; ``release`` is the name of the folder on a node; ``lock`` the
        requirements text with hashes for the installer, including the wheels made here; ``download`` the one to
        download; ``complete_note`` the line that a finished folder is marked with; ``wheels`` the made ones
        {file name: base64}; ``platforms`` pip's tags; ``installer`` the installer's requirement line.

    Raises:
        ValueError: the set is unknown; the message lists the known ones.
    """
    known = catalogue()
    if name not in known.sets:
        raise ValueError(f"runtime set is {name!r}, expected one of {', '.join(sorted(known.sets))}")
    chosen = known.sets[name]
    text = (files("instinct_fleet.data") / "locks" / chosen.lock).read_text()
    installer = f"{known.installer.name}=={known.installer.version} --hash={known.installer.hash}\n"
    wheels, own = {}, ""
    for wheel in chosen.metadata_wheels:
        data = metadata_wheel(wheel.name, wheel.version)
        wheels[f"{wheel.name}-{wheel.version}-py3-none-any.whl"] = base64.b64encode(data).decode()
        own += f"{wheel.name}=={wheel.version} --hash=sha256:{hashlib.sha256(data).hexdigest()}\n"
    lock = text + own
    return {
        "name": name,
        "vllm": chosen.vllm,
        "accelerator": chosen.accelerator,
        "python": chosen.python,
        "abi": chosen.abi,
        "release": f"{chosen.vllm}-{name}",
        "lock": lock,
        "complete_note": hashlib.sha256(lock.encode()).hexdigest() + "\n",
        "download": text + installer,
        "installer": installer,
        "wheels": wheels,
        "platforms": platform_tags(chosen.glibc),
    }
