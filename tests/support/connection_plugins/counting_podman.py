# Copyright the instinct-fleet contributors
# SPDX-License-Identifier: Apache-2.0
"""The podman connection, which also notes every operation on the host in a file."""

from __future__ import annotations

DOCUMENTATION = r"""
name: counting_podman
short_description: Podman, counted
description: Notes each module and each file that goes to a host as one line of the file COUNTING_FILE names.
extends_documentation_fragment: []
options:
  remote_addr:
    description: Name of the container.
    default: inventory_hostname
    vars: [{name: inventory_hostname}, {name: ansible_host}]
  remote_user:
    description: User inside the container.
    vars: [{name: ansible_user}]
  podman_extra_args:
    description: Further arguments of podman.
    default: ""
  podman_executable:
    description: The podman program.
    default: podman
"""

import os
from pathlib import Path
from typing import Any

from ansible_collections.containers.podman.plugins.connection.podman import Connection as Podman


class Connection(Podman):  # type: ignore[misc]
    """Without pipelining each module is one file that is put on the host; so is each file that a role sends."""

    transport = "counting_podman"

    def put_file(self, in_path: str, out_path: str) -> Any:
        """Note what goes to the host, and let it go."""
        with Path(os.environ["COUNTING_FILE"]).open("a") as handle:
            handle.write(f"{Path(os.fsdecode(out_path)).name}\n")
        return super().put_file(in_path, out_path)
