# Copyright the instinct-fleet contributors
# SPDX-License-Identifier: Apache-2.0
"""Say what is being waited for, whenever a task takes longer than a few seconds."""

from __future__ import annotations

DOCUMENTATION = r"""
name: progress
type: aggregate
short_description: Say what is being waited for
description:
  - Prints a line to standard error when a task has run for some seconds, and again from time to time.
  - On a terminal the line is overwritten, so that nothing of it stays on the screen.
options:
  after:
    description: Seconds after which a task is worth a line.
    type: float
    default: 5
    env: [{name: INSTINCT_FLEET_PROGRESS_AFTER}]
    ini: [{section: callback_progress, key: after}]
  every:
    description: Seconds between two lines where standard error is not a terminal.
    type: float
    default: 15
    env: [{name: INSTINCT_FLEET_PROGRESS_EVERY}]
    ini: [{section: callback_progress, key: every}]
"""

import sys
import threading
import time
from typing import Any

from ansible.plugins.callback import CallbackBase


class CallbackModule(CallbackBase):
    """One thread that looks once a second whether the running task deserves a line."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "aggregate"
    CALLBACK_NAME = "progress"
    CALLBACK_NEEDS_ENABLED = True

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()
        self._task: str | None = None
        self._since = 0.0
        self._said = 0.0
        self._hosts: set[str] = set()
        self._drawn = False
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def _watch(self) -> None:
        after, every = float(self.get_option("after")), float(self.get_option("every"))
        terminal = sys.stderr.isatty()
        while not self._stop.wait(1):
            with self._lock:
                now = time.monotonic()
                if self._task is None or now - self._since < after or (not terminal and now - self._said < every):
                    continue
                hosts = sorted(self._hosts)
                who = ", ".join(hosts[:3]) + (f" and {len(hosts) - 3} more" if len(hosts) > 3 else "")
                line = f"... {self._task} ({who or 'controller'}): {now - self._since:.0f} s"
                sys.stderr.write(f"\r\033[K{line}" if terminal else f"{line}\n")
                sys.stderr.flush()
                self._said = now
                self._drawn = terminal

    def _clear(self) -> None:
        if self._drawn:
            sys.stderr.write("\r\033[K")
            sys.stderr.flush()
            self._drawn = False

    def _begin(self, task: Any) -> None:
        with self._lock:
            self._clear()
            self._task, self._since, self._said = task.get_name().strip(), time.monotonic(), 0.0
            self._hosts = set()
        if self._thread is None:
            self._thread = threading.Thread(target=self._watch, daemon=True)
            self._thread.start()

    def v2_playbook_on_task_start(self, task: Any, is_conditional: bool) -> None:
        """Begin to watch a task."""
        self._begin(task)

    def v2_playbook_on_handler_task_start(self, task: Any) -> None:
        """Begin to watch a handler."""
        self._begin(task)

    def v2_runner_on_start(self, host: Any, task: Any) -> None:
        """Note a host that is being waited for."""
        with self._lock:
            self._hosts.add(host.get_name())

    def _done(self, result: Any, **_options: Any) -> None:
        with self._lock:
            self._clear()
            self._hosts.discard(result._host.get_name())

    v2_runner_on_ok = v2_runner_on_failed = v2_runner_on_skipped = v2_runner_on_unreachable = _done

    def v2_runner_retry(self, result: Any) -> None:
        """Clear the line before the retry is printed."""
        with self._lock:
            self._clear()

    def v2_playbook_on_stats(self, stats: Any) -> None:
        """Stop watching."""
        self._stop.set()
        with self._lock:
            self._clear()
            self._task = None
