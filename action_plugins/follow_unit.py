# Copyright the instinct-fleet contributors
# SPDX-License-Identifier: Apache-2.0
"""Controller side of ``follow_unit``: asks again and again, shows progress, and outlives a lost connection."""

from __future__ import annotations

import time
from typing import Any

from ansible.errors import AnsibleConnectionFailure
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

display = Display()


class ActionModule(ActionBase):
    """See library/follow_unit.py for the documentation."""

    TRANSFERS_FILES = False

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Follow until the unit has ended, or nobody could be asked for too long."""
        super().run(tmp, task_vars)
        patience = float(self._task.args.get("patience", 600))
        arguments = {key: value for key, value in self._task.args.items() if key != "patience"}
        lost_since: float | None = None
        shown = ""
        while True:
            try:
                result: dict[str, Any] = self._execute_module(
                    module_name="follow_unit", module_args=arguments, task_vars=task_vars or {}
                )
            except AnsibleConnectionFailure:
                now = time.monotonic()
                lost_since = lost_since or now
                if now - lost_since > patience:
                    raise
                # The unit goes on without us.
                time.sleep(min(10.0, patience))
                continue
            lost_since = None
            if result.get("failed") or not result.get("running"):
                return result
            if result.get("progress") and result["progress"] != shown:
                shown = result["progress"]
                display.display(f"    {(task_vars or {}).get('inventory_hostname', '')}: {shown}")
