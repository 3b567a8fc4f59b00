#!/usr/bin/python
# Copyright the instinct-fleet contributors
# SPDX-License-Identifier: Apache-2.0
"""Wait for the end of a unit, and show what it says meanwhile."""

from __future__ import annotations

DOCUMENTATION = r"""
module: follow_unit
short_description: Wait for the end of a systemd unit and show its progress
description:
  - Asks every few seconds whether a unit still runs, and shows the last line of its log that begins with C(==).
  - The unit does not depend on it. A lost connection is tried again, and a second run follows the same unit.
  - In check mode nothing is waited for.
options:
  name:
    description: Name of the unit.
    type: str
    required: true
  log:
    description: Its log.
    type: path
    required: true
  result:
    description: File that it writes at its end.
    type: path
    required: true
  wait:
    description: Seconds after which an answer is given although it still runs.
    type: int
    default: 10
  patience:
    description: Seconds for which a host that cannot be reached is tried again.
    type: int
    default: 600
author:
  - instinct-fleet contributors (@instinct-fleet)
attributes:
  check_mode:
    support: full
    description: Nothing is changed in any mode.
  diff_mode:
    support: none
    description: Nothing is changed.
"""

EXAMPLES = r"""
- name: Follow the build
  follow_unit:
    name: vllm-build-0.33.0-rocm100.service
    log: /var/lib/instinct-fleet/build/0.33.0-rocm100/build.log
    result: /var/lib/instinct-fleet/build/0.33.0-rocm100/result.json
"""

RETURN = r"""
running:
  description: Whether it still runs.
  returned: always
  type: bool
progress:
  description: The last line of progress.
  returned: always
  type: str
result:
  description: Content of O(result), or null.
  returned: always
  type: str
tail:
  description: The end of the log.
  returned: always
  type: str
"""

import os
import time

from ansible.module_utils.basic import AnsibleModule

TAIL = 16384


def read_end(path, size):
    """Return the end of a file as text; empty where there is none."""
    try:
        with open(path, "rb") as handle:
            handle.seek(max(0, os.path.getsize(path) - size))
            return handle.read().decode("utf-8", "replace")
    except OSError:
        return ""


def main():
    """Entry point of the module."""
    module = AnsibleModule(
        argument_spec={
            "name": {"type": "str", "required": True},
            "log": {"type": "path", "required": True},
            "result": {"type": "path", "required": True},
            "wait": {"type": "int", "default": 10},
            # The action plugin's.
            "patience": {"type": "int", "default": 600},
        },
        supports_check_mode=True,
    )
    params = module.params
    deadline = time.monotonic() + params["wait"]
    running = not module.check_mode
    while running:
        _rc, out, _err = module.run_command(["systemctl", "is-active", "--", params["name"]])
        running = out.strip() in ("active", "activating", "deactivating", "reloading")
        if not running or time.monotonic() >= deadline:
            break
        time.sleep(1)
    tail = read_end(params["log"], TAIL)
    said = [line for line in tail.splitlines() if line.startswith("== ")]
    document = read_end(params["result"], 1 << 20)
    module.exit_json(
        changed=False,
        running=running,
        progress=said[-1][3:] if said else "",
        result=document or None,
        tail=tail,
    )


if __name__ == "__main__":
    main()
