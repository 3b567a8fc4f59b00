#!/usr/bin/python
# Copyright the instinct-fleet contributors
# SPDX-License-Identifier: Apache-2.0
"""Remote side of push_tree: compare a folder with a manifest, and unpack what was missing."""

from __future__ import annotations

DOCUMENTATION = r"""
module: push_tree
short_description: Bring a folder of the controller to a host, moving only what is missing
description:
  - Compares a folder on the host with the one on the controller, file by file, and moves what differs in one archive.
    Every file that was moved is checked by its SHA-256 before it takes its place.
  - An unchanged folder costs one remote operation, whatever the number of files.
options:
  trees:
    description: The folders. However many there are, an unchanged list is one remote operation.
    type: list
    elements: dict
    required: true
    suboptions:
      src:
        description: Folder on the controller. Only regular files are taken; a link is followed.
        type: path
        required: true
      dest:
        description: Folder on the host.
        type: path
        required: true
  owner:
    description: Owner of everything in O(trees[].dest).
    type: str
    default: root
  group:
    description: Group of everything in O(trees[].dest).
    type: str
    default: root
  verify:
    description:
      - V(size) trusts a file that has the right size and the checksum noted when it was moved.
      - V(sha256) reads every file on the host again, which takes minutes for a large model.
    type: str
    choices: [size, sha256]
    default: size
  siblings:
    description:
      - Whether folders beside O(trees[].dest) may give a file of the same name and SHA-256, which is then linked and
        not moved. For versions of one thing that lie side by side.
    type: bool
    default: false
  prune:
    description: Whether files in O(trees[].dest) that are not in O(trees[].src) are removed.
    type: bool
    default: true
author:
  - instinct-fleet contributors (@instinct-fleet)
attributes:
  check_mode:
    support: full
    description: Says how many files and bytes would move.
  diff_mode:
    support: full
    description: Lists the files that would move.
"""

EXAMPLES = r"""
- name: Bring the model to the node
  push_tree:
    trees:
      - src: models/tiny-v1
        dest: /var/lib/vllm/models/tiny-v1
"""

RETURN = r"""
trees:
  description: What was moved (RV(trees.missing)) and removed (RV(trees.extra)), or would be, keyed by folder.
  returned: always
  type: dict
linked:
  description: How many files a folder beside gave, or would give.
  returned: always
  type: int
bytes:
  description: How much was moved, or would be.
  returned: always
  type: int
"""

import hashlib
import json
import os
import shutil
import tarfile

from ansible.module_utils.basic import AnsibleModule

MANIFEST = ".instinct-fleet-manifest.json"


def sha256(path):
    """Return the SHA-256 of a file in hex."""
    digest = hashlib.sha256()
    with open(path, "rb") as handle:
        for block in iter(lambda: handle.read(1 << 20), b""):
            digest.update(block)
    return digest.hexdigest()


def present_files(dest):
    """Return the relative paths of the regular files below dest, without our own manifest."""
    found = set()
    for folder, _dirs, names in os.walk(dest):
        for name in names:
            relative = os.path.relpath(os.path.join(folder, name), dest)
            if relative != MANIFEST and not relative.endswith(".incoming"):
                found.add(relative)
    return found


def compare(dest, manifest, verify):
    """Return (missing or different files, files that do not belong)."""
    try:
        with open(os.path.join(dest, MANIFEST)) as handle:
            noted = json.load(handle)
    except (OSError, ValueError):
        noted = {}
    missing = []
    for name, (size, digest) in sorted(manifest.items()):
        path = os.path.join(dest, name)
        try:
            good = os.path.getsize(path) == size
        except OSError:
            good = False
        if good:
            good = sha256(path) == digest if verify == "sha256" or name not in noted else noted[name] == digest
        if not good:
            missing.append(name)
    return missing, sorted(present_files(dest) - set(manifest))


def sibling_with(dest, name, digest):
    """Return the path of the same file in a folder beside dest, or None."""
    parent = os.path.dirname(dest.rstrip("/"))
    for folder in sorted(os.listdir(parent)) if os.path.isdir(parent) else []:
        path = os.path.join(parent, folder, name)
        if os.path.join(parent, folder) == dest.rstrip("/") or os.path.islink(path) or not os.path.isfile(path):
            continue
        if sha256(path) == digest:
            return path
    return None


def take_from_siblings(module, tree, missing):
    """Link what a folder beside has already, and return what is still missing."""
    left = []
    for name in missing:
        source = sibling_with(tree["dest"], name, tree["manifest"][name][1])
        if source is None:
            left.append(name)
        elif not module.check_mode:
            target = os.path.join(tree["dest"], name)
            os.makedirs(os.path.dirname(target), exist_ok=True)
            if os.path.exists(target + ".incoming"):
                os.unlink(target + ".incoming")
            os.link(source, target + ".incoming")
            os.replace(target + ".incoming", target)
    return left


def unpack(module, archive, trees, state):
    """Unpack the archive next to the files' places, check each, and only then put them there.

    A member is named NUMBER/PATH: the position of its tree, and its place in it.
    """
    moved = []
    with tarfile.open(archive) as tar:
        for member in tar:
            number, _slash, name = member.name.partition("/")
            dest = trees[int(number)]["dest"]
            manifest = trees[int(number)]["manifest"]
            if name not in state[dest]["missing"] or not member.isreg():
                module.fail_json(msg="push_tree: the archive holds %s, which was not asked for" % member.name)
            target = os.path.join(dest, name)
            os.makedirs(os.path.dirname(target), exist_ok=True)
            with tar.extractfile(member) as source, open(target + ".incoming", "wb") as handle:
                shutil.copyfileobj(source, handle, 1 << 20)
            digest = sha256(target + ".incoming")
            if digest != manifest[name][1]:
                module.fail_json(
                    msg="push_tree: %s arrived with SHA-256 %s, expected %s; nothing in %s was replaced"
                    % (name, digest, manifest[name][1], dest)
                )
            moved.append(target)
    for target in moved:
        os.replace(target + ".incoming", target)


def finish(module, dest, manifest, extra):
    """Remove what does not belong, note the checksums, and set owner and modes."""
    params = module.params
    for name in extra:
        os.unlink(os.path.join(dest, name))
    with open(os.path.join(dest, MANIFEST + ".incoming"), "w") as handle:
        json.dump({name: digest for name, (_size, digest) in sorted(manifest.items())}, handle, indent=0)
    os.replace(os.path.join(dest, MANIFEST + ".incoming"), os.path.join(dest, MANIFEST))
    for folder, dirs, names in os.walk(dest):
        for path in [folder, *[os.path.join(folder, n) for n in dirs + names]]:
            module.set_owner_if_different(path, params["owner"], False)
            module.set_group_if_different(path, params["group"], False)
            module.set_mode_if_different(path, "0755" if os.path.isdir(path) else "0644", False)


def check_room(module, trees, state):
    """Fail before anything is sent if it would not fit."""
    need = {}
    for tree in trees:
        place = tree["dest"]
        while not os.path.isdir(place):
            place = os.path.dirname(place)
        size = sum(tree["manifest"][name][0] for name in state[tree["dest"]]["missing"])
        device = os.stat(place).st_dev
        need[device] = (need.get(device, (0, ""))[0] + size, place)
    for size, place in need.values():
        free = shutil.disk_usage(place).free
        # The archive waits in the remote temporary folder while it is unpacked, so twice the size is needed.
        if free < 2 * size:
            module.fail_json(
                msg="push_tree: %d MiB are missing below %s, which has %d MiB free, and twice the size is needed while "
                "the archive is unpacked; free some room or choose another folder" % (size >> 20, place, free >> 20)
            )


def main():
    """Entry point of the module."""
    module = AnsibleModule(
        argument_spec={
            "trees": {
                "type": "list",
                "elements": "dict",
                "required": True,
                "options": {
                    "src": {"type": "path", "required": True},
                    "dest": {"type": "path", "required": True},
                    # Set by the action plugin: relative path -> [bytes, SHA-256].
                    "manifest": {"type": "dict", "required": True},
                },
            },
            "owner": {"type": "str", "default": "root"},
            "group": {"type": "str", "default": "root"},
            "verify": {"type": "str", "choices": ["size", "sha256"], "default": "size"},
            "siblings": {"type": "bool", "default": False},
            "prune": {"type": "bool", "default": True},
            # Set by the action plugin on its second call.
            "archive": {"type": "path"},
        },
        supports_check_mode=True,
    )
    params = module.params
    trees = params["trees"]
    state, size, linked = {}, 0, 0
    for tree in trees:
        missing, extra = compare(tree["dest"], tree["manifest"], params["verify"])
        lacking = len(missing)
        if params["siblings"]:
            missing = take_from_siblings(module, tree, missing)
        state[tree["dest"]] = {"missing": missing, "extra": extra if params["prune"] else []}
        linked += lacking - len(missing)
        size += sum(tree["manifest"][name][0] for name in missing)
    changed = linked > 0 or any(t["missing"] or t["extra"] for t in state.values())
    result = {"trees": state, "bytes": size, "linked": linked, "changed": changed}
    if not params["archive"] and any(t["missing"] for t in state.values()):
        # First call: tell the controller what to send.
        check_room(module, trees, state)
        module.exit_json(**result)
    if module.check_mode or not result["changed"]:
        module.exit_json(**result)
    os.umask(0o022)
    try:
        for tree in trees:
            os.makedirs(tree["dest"], exist_ok=True)
        if params["archive"]:
            unpack(module, params["archive"], trees, state)
        for tree in trees:
            changes = state[tree["dest"]]
            if changes["missing"] or changes["extra"] or linked:
                finish(module, tree["dest"], tree["manifest"], changes["extra"])
    except (OSError, tarfile.TarError) as exc:
        module.fail_json(msg="push_tree: %s; run again to go on where it stopped" % exc)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
