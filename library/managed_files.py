#!/usr/bin/python
# Copyright the instinct-fleet contributors
# SPDX-License-Identifier: Apache-2.0
"""All files of a role in one remote operation."""

from __future__ import annotations

DOCUMENTATION = r"""
module: managed_files
short_description: Manage all files of a role in one remote operation
description:
  - Compares content, owner, group and mode of a list of files, directories and absent paths with what is wanted,
    and changes what differs.
  - Templates are rendered on the controller. An unchanged list costs one remote operation, where
    M(ansible.builtin.template) costs five for each file.
  - All new contents are validated before the first file is replaced, so that a file that does not parse
    leaves the host as it was.
options:
  files:
    description: What is wanted, in the order in which it is made.
    type: list
    elements: dict
    required: true
    suboptions:
      dest:
        description: Absolute path.
        type: path
        required: true
      state:
        description: What is at O(files[].dest) afterwards.
        type: str
        choices: [file, directory, absent]
        default: file
      template:
        description: Template to render on the controller. It is found as M(ansible.builtin.template) finds its own.
        type: str
      content:
        description: The content itself.
        type: str
      content_b64:
        description: The content in base64, for a file that is not text.
        type: str
      vars:
        description: Variables for this file's template.
        type: dict
      owner:
        description: Name of the owner. Without it, the user that the task runs as, who is root on a node.
        type: str
      group:
        description: Name of the group. Without it, the group that the task runs as.
        type: str
      mode:
        description: Mode as a quoted octal number.
        type: str
        required: true
      validate:
        description: Command that checks the new content; V(%s) is the path of a copy with the same file name.
        type: str
      secret:
        description: Whether content and diff are kept out of every output.
        type: bool
        default: false
      notify:
        description: Handler topics to notify when this file changes.
        type: list
        elements: str
        default: []
      guard_unit:
        description: A unit that must not be running when this file changes, unless O(guard_allowed).
        type: str
  guard_allowed:
    description:
      - Whether a running O(files[].guard_unit) is stopped, and its files then changed.
      - It stays stopped, for the caller to start. A run that ends in between leaves a unit that is visibly stopped,
        and never one that runs on with files that it has not read.
    type: bool
    default: false
  guard_remedy:
    description: What the error says mends a refused change.
    type: str
    default: ""
  backup:
    description: Whether to keep a dated copy of each replaced file.
    type: bool
    default: false
author:
  - instinct-fleet contributors (@instinct-fleet)
attributes:
  check_mode:
    support: full
    description: Says what would change, per file.
  diff_mode:
    support: full
    description: Shows each file that is not secret.
"""

EXAMPLES = r"""
- name: Write the unit and its configuration
  managed_files:
    files:
      - dest: /etc/vllm/demo.yaml
        content: "port: 8000\n"
        mode: "0644"
        notify: [vllm restart]
      - dest: /etc/systemd/system/vllm-demo.service
        template: vllm-instance.service.j2
        mode: "0644"
        validate: systemd-analyze verify %s
        notify: [vllm restart]
"""

RETURN = r"""
files:
  description: What happened to each path, keyed by path.
  returned: always
  type: dict
  sample:
    /etc/vllm/demo.yaml:
      changed: true
      changes: [content, mode]
changed_units:
  description: The O(files[].guard_unit) of the files that changed.
  returned: always
  type: list
  elements: str
stopped_units:
  description: Those of them that were stopped for it.
  returned: when something changed
  type: list
  elements: str
"""

import base64
import grp
import os
import pwd
import shlex
import shutil
import stat
import tempfile

from ansible.module_utils.basic import AnsibleModule

#: Larger or binary files are compared, but not shown in a diff.
MAX_DIFF = 104448
#: Any other state of a unit counts as running: one that ends its requests, or waits for its next try, does too.
STOPPED = ("inactive", "failed")


def names(info):
    """Return owner and group of a stat result as names, or as numbers where they have none."""
    try:
        owner = pwd.getpwuid(info.st_uid).pw_name
    except KeyError:
        owner = str(info.st_uid)
    try:
        group = grp.getgrgid(info.st_gid).gr_name
    except KeyError:
        group = str(info.st_gid)
    return owner, group


def wanted_content(entry):
    """Return the wanted bytes of a file entry."""
    if entry["content_b64"] is not None:
        return base64.b64decode(entry["content_b64"])
    return (entry["content"] or "").encode("utf-8")


def compare(module, entry):
    """Return (list of what differs, bytes that are there now or None)."""
    dest = entry["dest"]
    try:
        info = os.lstat(dest)
    except OSError:
        info = None
    if entry["state"] == "absent":
        return (["removed"] if info is not None else []), None
    if info is None:
        return ["created"], None
    kind = stat.S_ISDIR(info.st_mode)
    if kind != (entry["state"] == "directory") or stat.S_ISLNK(info.st_mode):
        module.fail_json(
            msg="%s is a %s, expected a %s; move it away and run again"
            % (dest, "directory" if kind else "link or another kind of file", entry["state"])
        )
    changes = []
    before = None
    if entry["state"] == "file":
        try:
            with open(dest, "rb") as handle:
                before = handle.read()
        except OSError as exc:
            module.fail_json(msg="%s cannot be read: %s" % (dest, exc.strerror))
        if before != wanted_content(entry):
            changes.append("content")
    owner, group = names(info)
    if owner != entry["owner"]:
        changes.append("owner %s -> %s" % (owner, entry["owner"]))
    if group != entry["group"]:
        changes.append("group %s -> %s" % (group, entry["group"]))
    mode = "%04o" % stat.S_IMODE(info.st_mode)
    if mode != "%04o" % int(entry["mode"], 8):
        changes.append("mode %s -> %s" % (mode, entry["mode"]))
    return changes, before


def running_guards(module, entries, changed):
    """Return the units that run, or of which nobody knows, among those whose files would change."""
    units = sorted({e["guard_unit"] for e in entries if e["guard_unit"] and changed[e["dest"]]})
    if not units or not shutil.which("systemctl"):
        return []
    _rc, out, _err = module.run_command(["systemctl", "is-active", "--", *units])
    states = out.split()
    if len(states) != len(units):
        return units
    return [unit for unit, state in zip(units, states) if state not in STOPPED]


def stop(module, units):
    """Stop units before their files change."""
    rc, out, err = module.run_command(["systemctl", "stop", "--", *units])
    if rc != 0:
        module.fail_json(
            msg="%s could not be stopped (exit code %d: %s); its files were not changed"
            % (", ".join(units), rc, (err or out).strip()[:500])
        )


def validate_all(module, entries, changed, folder):
    """Write each new content to a private folder and run its validator there."""
    for number, entry in enumerate(entries):
        if entry["state"] != "file" or (
            "content" not in changed[entry["dest"]] and "created" not in changed[entry["dest"]]
        ):
            continue
        place = os.path.join(folder, str(number))
        os.mkdir(place, 0o700)
        path = os.path.join(place, os.path.basename(entry["dest"]))
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as handle:
            handle.write(wanted_content(entry))
        entry["__staged"] = path
        if not entry["validate"]:
            continue
        if "%s" not in entry["validate"]:
            module.fail_json(msg="validate of %s has no %%s: %s" % (entry["dest"], entry["validate"]))
        argv = [part.replace("%s", path) for part in shlex.split(entry["validate"])]
        rc, out, err = module.run_command(argv)
        if rc != 0:
            module.fail_json(
                msg="The new %s was refused by `%s` (exit code %d); nothing was changed on this host. It said: %s"
                % (entry["dest"], entry["validate"], rc, (err or out).strip().replace(path, entry["dest"])[:2000])
            )


def apply(module, entry, backup):
    """Make one path as wanted."""
    dest = entry["dest"]
    saved = None
    if entry["state"] == "absent":
        if os.path.isdir(dest) and not os.path.islink(dest):
            shutil.rmtree(dest)
        else:
            if backup:
                saved = module.backup_local(dest)
            os.unlink(dest)
        return saved
    if entry["state"] == "directory":
        os.makedirs(dest, exist_ok=True)
    elif entry.get("__staged"):
        # The rights are set before the file is moved to its place, so that it is never there with others.
        module.set_owner_if_different(entry["__staged"], entry["owner"], False)
        module.set_group_if_different(entry["__staged"], entry["group"], False)
        module.set_mode_if_different(entry["__staged"], entry["mode"], False)
        if backup and os.path.exists(dest):
            saved = module.backup_local(dest)
        # Ansible would give it the rights of the file that it replaces, and a new one those of the umask.
        umask = os.umask(0o077)
        try:
            module.atomic_move(entry["__staged"], dest, keep_dest_attrs=False)
        finally:
            os.umask(umask)
    module.set_owner_if_different(dest, entry["owner"], False)
    module.set_group_if_different(dest, entry["group"], False)
    module.set_mode_if_different(dest, entry["mode"], False)
    return saved


def main():
    """Entry point of the module."""
    module = AnsibleModule(
        argument_spec={
            "files": {
                "type": "list",
                "elements": "dict",
                "required": True,
                "options": {
                    "dest": {"type": "path", "required": True},
                    "state": {"type": "str", "choices": ["file", "directory", "absent"], "default": "file"},
                    "template": {"type": "str"},
                    "content": {"type": "str", "no_log": True},
                    "content_b64": {"type": "str", "no_log": True},
                    "vars": {"type": "dict", "no_log": True},
                    "owner": {"type": "str"},
                    "group": {"type": "str"},
                    "mode": {"type": "str", "required": True},
                    "validate": {"type": "str"},
                    "secret": {"type": "bool", "default": False},
                    "notify": {"type": "list", "elements": "str", "default": []},
                    "guard_unit": {"type": "str"},
                },
            },
            "guard_allowed": {"type": "bool", "default": False},
            "guard_remedy": {"type": "str", "default": ""},
            "backup": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    entries = module.params["files"]
    seen = set()
    for entry in entries:
        entry["owner"] = entry["owner"] or pwd.getpwuid(os.geteuid()).pw_name
        entry["group"] = entry["group"] or grp.getgrgid(os.getegid()).gr_name
        if entry["dest"] in seen:
            module.fail_json(msg="%s is listed twice in files" % entry["dest"])
        seen.add(entry["dest"])
        try:
            int(entry["mode"], 8)
        except ValueError:
            module.fail_json(
                msg="mode of %s is %r, expected a quoted octal number such as '0644'" % (entry["dest"], entry["mode"])
            )
    changed, before = {}, {}
    for entry in entries:
        changed[entry["dest"]], before[entry["dest"]] = compare(module, entry)
    result = {
        "changed": any(changed.values()),
        "files": {d: {"changed": bool(c), "changes": c} for d, c in changed.items()},
        "before_b64": {},
    }
    for entry in entries:
        text = before[entry["dest"]]
        if changed[entry["dest"]] and text is not None and not entry["secret"] and len(text) <= MAX_DIFF:
            result["before_b64"][entry["dest"]] = base64.b64encode(text).decode("ascii")
    if not result["changed"]:
        module.exit_json(**result)

    running = running_guards(module, entries, changed)
    if running and not module.params["guard_allowed"]:
        which = ", ".join(d for d, c in changed.items() if c)
        message = "%s would change while %s is running; nothing was changed on this host. %s" % (
            which,
            ", ".join(running),
            module.params["guard_remedy"],
        )
        if module.check_mode:
            module.warn(message)
        else:
            module.fail_json(msg=message.strip(), **result)
    if module.check_mode:
        module.exit_json(**result)

    result["stopped_units"] = running
    folder = tempfile.mkdtemp(prefix="managed-files-", dir=module.tmpdir)
    try:
        validate_all(module, entries, changed, folder)
        if running:
            stop(module, running)
        for entry in entries:
            if changed[entry["dest"]]:
                saved = apply(module, entry, module.params["backup"])
                if saved:
                    result["files"][entry["dest"]]["backup"] = saved
    except OSError as exc:
        module.fail_json(msg="%s: %s" % (exc.filename or "file", exc.strerror or exc), **result)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
