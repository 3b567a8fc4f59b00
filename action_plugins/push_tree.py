# Copyright the instinct-fleet contributors
# SPDX-License-Identifier: Apache-2.0
"""Controller side of ``push_tree``: hashes the source, packs what the host lacks, and sends it in one file."""

from __future__ import annotations

import hashlib
import tarfile
import tempfile
from pathlib import Path
from typing import Any

from ansible import constants as C  # noqa: N812 - the name that Ansible's own plugins use
from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase


def build_manifest(source: Path) -> dict[str, tuple[int, str]]:
    """Return relative path -> (bytes, SHA-256 in hex) of every regular file below a folder."""
    manifest = {}
    for path in sorted(p for p in source.rglob("*") if p.is_file()):
        digest = hashlib.sha256()
        with path.open("rb") as handle:
            while block := handle.read(1 << 20):
                digest.update(block)
        manifest[str(path.relative_to(source))] = (path.stat().st_size, digest.hexdigest())
    return manifest


class ActionModule(ActionBase):
    """See library/push_tree.py for the documentation."""

    TRANSFERS_FILES = True

    def _trees(self) -> list[dict[str, Any]]:
        trees = []
        for tree in self._task.args.get("trees") or []:
            source = Path(self._loader.path_dwim(str(tree["src"])))
            if not source.is_dir():
                if self._task.check_mode:
                    # What makes the folder did not run in check mode either.
                    continue
                raise AnsibleActionFail(
                    f"push_tree: src {source} is not a folder on the controller; "
                    "make it first (playbooks/build.yml makes a wheelhouse) or correct the variable that names it"
                )
            manifest = build_manifest(source)
            if not manifest:
                raise AnsibleActionFail(f"push_tree: src {source} holds no file")
            trees.append({"src": str(source), "dest": tree["dest"], "manifest": manifest})
        return trees

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Ask the host what it lacks, send it, and let the host check it."""
        super().run(tmp, task_vars)
        trees = self._trees()
        if len(trees) < len(self._task.args.get("trees") or []):
            return {"changed": True, "trees": {}, "bytes": 0, "msg": "the folder would be made on the controller first"}
        arguments = {**self._task.args, "trees": trees}
        result: dict[str, Any] = self._execute_module(
            module_name="push_tree", module_args=arguments, task_vars=task_vars or {}
        )
        if result.get("failed"):
            return result
        state = result["trees"]
        if any(entry["missing"] for entry in state.values()) and not self._task.check_mode:
            self._make_tmp_path()
            with tempfile.NamedTemporaryFile(dir=C.DEFAULT_LOCAL_TMP, suffix=".tar") as archive:
                # Wheels and weights do not shrink, so the archive is not compressed.
                with tarfile.open(archive.name, "w", dereference=True) as tar:
                    for number, tree in enumerate(trees):
                        for name in state[tree["dest"]]["missing"]:
                            tar.add(Path(tree["src"]) / name, arcname=f"{number}/{name}")
                remote = self._connection._shell.join_path(self._connection._shell.tmpdir, "tree.tar")
                self._transfer_file(archive.name, remote)
            result = self._execute_module(
                module_name="push_tree", module_args={**arguments, "archive": remote}, task_vars=task_vars or {}
            )
            self._remove_tmp_path(self._connection._shell.tmpdir)
        if self._task.diff and result.get("changed"):
            result["diff"] = [
                {
                    "before_header": dest,
                    "after_header": dest,
                    "before": "".join(f"{name}\n" for name in entry["extra"]),
                    "after": "".join(f"{name}\n" for name in entry["missing"]),
                }
                for dest, entry in sorted(state.items())
            ]
        return result
