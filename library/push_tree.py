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
  src:
    description: Folder on the controller. Only regular files are taken; a link is followed.
    type: path
    required: true
  dest:
    description: Folder on the host.
    type: path
    required: true
  owner:
    description: Owner of everything in O(dest).
    type: str
    default: root
  group:
    description: Group of everything in O(dest).
    type: str
    default: root
  verify:
    description:
      - V(size) trusts a file that has the right size and the checksum noted when it was moved.
      - V(sha256) reads every file on the host again, which takes minutes for a large model.
    type: str
    choices: [size, sha256]
    default: size
  prune:
    description: Whether files in O(dest) that are not in O(src) are removed.
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
    src: models/tiny-v1
    dest: /var/lib/vllm/models/tiny-v1
"""

RETURN = r"""
missing:
  description: Files that were moved, or would be.
  returned: always
  type: list
  elements: str
extra:
  description: Files that were removed, or would be.
  returned: always
  type: list
  elements: str
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


def unpack(module, archive, dest, manifest, missing):
    """Unpack the archive next to the files' places, check each, and only then put them there."""
    moved = []
    with tarfile.open(archive) as tar:
        for member in tar:
            if member.name not in missing or not member.isreg():
                module.fail_json(msg="push_tree: the archive holds %s, which was not asked for" % member.name)
            target = os.path.join(dest, member.name)
            os.makedirs(os.path.dirname(target), exist_ok=True)
            with tar.extractfile(member) as source, open(target + ".incoming", "wb") as handle:
                shutil.copyfileobj(source, handle, 1 << 20)
            digest = sha256(target + ".incoming")
            if digest != manifest[member.name][1]:
                module.fail_json(
                    msg="push_tree: %s arrived with SHA-256 %s, expected %s; nothing in %s was replaced"
                    % (member.name, digest, manifest[member.name][1], dest)
                )
            moved.append(target)
    for target in moved:
        os.replace(target + ".incoming", target)


def main():
    """Entry point of the module."""
    module = AnsibleModule(
        argument_spec={
            "src": {"type": "path", "required": True},
            "dest": {"type": "path", "required": True},
            "owner": {"type": "str", "default": "root"},
            "group": {"type": "str", "default": "root"},
            "verify": {"type": "str", "choices": ["size", "sha256"], "default": "size"},
            "prune": {"type": "bool", "default": True},
            # Set by the action plugin.
            "manifest": {"type": "dict", "required": True},
            "archive": {"type": "path"},
        },
        supports_check_mode=True,
    )
    params = module.params
    dest, manifest = params["dest"], params["manifest"]
    missing, extra = compare(dest, manifest, params["verify"])
    extra = extra if params["prune"] else []
    size = sum(manifest[name][0] for name in missing)
    result = {"missing": missing, "extra": extra, "bytes": size, "changed": bool(missing or extra)}
    if missing and not params["archive"]:
        # First call: tell the controller what to send.
        place = dest
        while not os.path.isdir(place):
            place = os.path.dirname(place)
        free = shutil.disk_usage(place).free
        # The archive lands in the remote temporary folder and is unpacked from there, so twice the size is needed.
        if free < 2 * size:
            module.fail_json(
                msg="push_tree: %s needs %d MiB more than is there, and %s has %d MiB free (twice the size is needed "
                "while it is unpacked); free some room or choose another folder" % (dest, size >> 20, place, free >> 20)
            )
        module.exit_json(**result)
    if module.check_mode or not result["changed"]:
        module.exit_json(**result)
    os.umask(0o022)
    os.makedirs(dest, exist_ok=True)
    try:
        if missing:
            unpack(module, params["archive"], dest, manifest, set(missing))
        for name in extra:
            os.unlink(os.path.join(dest, name))
        with open(os.path.join(dest, MANIFEST + ".incoming"), "w") as handle:
            json.dump({name: digest for name, (_size, digest) in sorted(manifest.items())}, handle, indent=0)
        os.replace(os.path.join(dest, MANIFEST + ".incoming"), os.path.join(dest, MANIFEST))
    except (OSError, tarfile.TarError) as exc:
        module.fail_json(msg="push_tree: %s: %s; run again to go on where it stopped" % (dest, exc))
    for folder, dirs, names in os.walk(dest):
        for path in [folder, *[os.path.join(folder, n) for n in dirs + names]]:
            module.set_owner_if_different(path, params["owner"], False)
            module.set_group_if_different(path, params["group"], False)
            module.set_mode_if_different(path, "0755" if os.path.isdir(path) else "0644", False)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
