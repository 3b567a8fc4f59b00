# Copyright the instinct-fleet contributors
# SPDX-License-Identifier: Apache-2.0
"""Controller side of ``managed_files``: renders the templates, builds the diffs, notifies per file."""

from __future__ import annotations

import base64
import os
from typing import Any

from ansible.errors import AnsibleActionFail, AnsibleError
from ansible.plugins.action import ActionBase
from ansible.template import generate_ansible_template_vars, trust_as_template

HIDDEN = "[the content of this file is secret]\n"


class ActionModule(ActionBase):
    """See library/managed_files.py for the documentation."""

    TRANSFERS_FILES = False

    def _render(self, entry: dict[str, Any], task_vars: dict[str, Any]) -> str:
        try:
            source = self._find_needle("templates", entry["template"])
        except AnsibleError as exc:
            raise AnsibleActionFail(f"managed_files: template of {entry.get('dest')}: {exc}") from exc
        search = [
            place
            for base in [*task_vars.get("ansible_search_path", []), self._loader.get_basedir(), os.path.dirname(source)]
            for place in (os.path.join(base, "templates"), base)
        ]
        variables = {
            **task_vars,
            **generate_ansible_template_vars(path=entry["template"], fullpath=source, dest_path=entry.get("dest")),
            **(entry.get("vars") or {}),
        }
        templar = self._templar.copy_with_new_env(searchpath=search, available_variables=variables)
        text = templar.template(
            trust_as_template(self._loader.get_text_file_contents(source)),
            escape_backslashes=False,
            overrides={"trim_blocks": True, "lstrip_blocks": True},
        )
        return "" if text is None else str(text)

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Render, hand over, and turn the module's answer into diffs and notifications."""
        super().run(tmp, task_vars)
        task_vars = task_vars or {}
        entries = self._task.args.get("files")
        if not isinstance(entries, list):
            raise AnsibleActionFail(
                f"managed_files: files is {entries!r} ({type(entries).__name__}), expected a list of files"
            )
        rendered = []
        for raw in entries:
            entry = dict(raw)
            sources = [key for key in ("template", "content", "content_b64") if entry.get(key) is not None]
            expected = 1 if entry.get("state", "file") == "file" else 0
            if len(sources) != expected:
                raise AnsibleActionFail(
                    f"managed_files: {entry.get('dest')} has {', '.join(sources) or 'no content'}, "
                    f"expected {'one of template, content, content_b64' if expected else 'none of them'}"
                )
            if entry.get("template") is not None:
                entry["content"] = self._render(entry, task_vars)
            entry.pop("template", None)
            entry.pop("vars", None)
            rendered.append(entry)

        result: dict[str, Any] = self._execute_module(
            module_name="managed_files",
            module_args={**self._task.args, "files": [self._encoded(entry) for entry in rendered]},
            task_vars=task_vars,
        )
        before = result.pop("before_b64", None) or {}
        states = result.get("files") or {}
        touched = [entry for entry in rendered if states.get(entry.get("dest"), {}).get("changed")]
        if self._task.diff:
            result["diff"] = [
                self._diff(entry, before.get(entry["dest"]), states[entry["dest"]]["changes"]) for entry in touched
            ]
        topics = sorted({topic for entry in touched for topic in entry.get("notify") or []})
        result["changed_units"] = sorted({entry["guard_unit"] for entry in touched if entry.get("guard_unit")})
        if topics and not result.get("failed"):
            # The same key the executor sets for a task's own `notify`; here it depends on which file changed.
            result["_ansible_notify"] = topics
        return result

    @staticmethod
    def _encoded(entry: dict[str, Any]) -> dict[str, Any]:
        """Hand text over in base64: a module's log leaves contents out by looking for them in all that it says, and a
        short text would be found in the middle of words."""
        if entry.get("content") is None:
            return entry
        text = str(entry["content"]).encode()
        return {**entry, "content": None, "content_b64": base64.b64encode(text).decode("ascii")}

    @staticmethod
    def _diff(entry: dict[str, Any], before: str | None, changes: list[str]) -> dict[str, Any]:
        dest = entry["dest"]
        if entry.get("state", "file") != "file":
            return {"before_header": dest, "after_header": dest, "before": "", "after": ", ".join(changes) + "\n"}
        old = base64.b64decode(before).decode("utf-8", "replace") if before else ""
        if entry.get("content_b64") is not None:
            new = f"[{len(base64.b64decode(entry['content_b64']))} bytes]\n"
        else:
            new = entry.get("content") or ""
        if entry.get("secret"):
            old, new = (HIDDEN if "created" not in changes else ""), HIDDEN + "[and changes]\n"
        note = "" if changes in (["created"], ["content"]) else f" ({', '.join(changes)})"
        return {"before_header": dest, "after_header": dest + note, "before": old, "after": new}
