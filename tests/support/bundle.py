"""A whole bundle of ``node_probe`` for a profile: the module's own code over a rendered /sys and /proc."""

from __future__ import annotations

import functools
import importlib.util
import pickle
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

from support import render_smi, render_sys
from support.profile import Profile

ROOT = Path(__file__).resolve().parents[2]


@functools.cache
def node_probe() -> ModuleType:
    """Return the module, which is not in a package."""
    spec = importlib.util.spec_from_file_location("node_probe", ROOT / "library" / "node_probe.py")
    if spec is None or spec.loader is None:
        raise ImportError("library/node_probe.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def command(stdout: str, stderr: str = "", rc: int | None = 0, error: str | None = None) -> dict[str, Any]:
    """Return one entry of ``commands``."""
    return {"argv": [], "path": "/opt/rocm/bin/tool", "rc": rc, "stdout": stdout, "stderr": stderr, "error": error}


def access(profile: Profile, user: str = "vllm") -> dict[str, Any]:
    """Return what the module reports of a user who may use every GPU."""
    state = {"mode": "0660", "owner": "root", "group": "render", "read_write": True}
    paths = ["/dev/kfd", *(f"/dev/dri/renderD{128 + i}" for i in range(profile.count))]
    return {
        "user": user,
        "exists": True,
        "groups": ["render", "video", user],
        "group_ids": {"render": 109, "video": 44},
        "devices": {path: dict(state) for path in paths},
    }


_rendered: dict[str, bytes] = {}


def probe(profile: Profile, **changes: Any) -> dict[str, Any]:
    """Return the bundle; ``changes`` replace whole sections. Each call gives a copy that may be changed."""
    key = repr(profile)
    if key not in _rendered:  # writing and reading a tree of files takes a second
        _rendered[key] = pickle.dumps(_render(profile))
    bundle: dict[str, Any] = pickle.loads(_rendered[key])  # noqa: S301 - made three lines above
    return bundle | changes


def _render(profile: Profile) -> dict[str, Any]:
    module = node_probe()
    params = {
        "commands": [], "tool_paths": [], "timeout": 10, "service_user": "nobody", "files": [], "paths": [],
        "packages": [], "units": [],
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        render_sys.write_tree(profile, Path(folder))
        bundle: dict[str, Any] = module.collect({**params, "root": folder})
    answers = {**render_smi.render_commands(profile), **render_sys.render_commands(profile)}
    return bundle | {
        "hostname": profile.name,
        "simulated": False,
        "commands": {key: command(*answer) for key, answer in sorted(answers.items())},
        "access": access(profile),
        "environment": {},
    }
