"""Progress where there is no terminal: a line now and then, for logs and for whoever waits beside a pipe."""

from __future__ import annotations

import sys
import time
from typing import Any

from rich.progress import Progress, TaskID

EVERY_SECONDS = 30.0
LEAST_SECONDS = 1.0  # what is over sooner needs no line


class PlainProgress(Progress):
    """A `rich` progress display that writes lines to standard error: at most one in `EVERY_SECONDS`, and one
    at the end of what took a while."""

    def __init__(self) -> None:
        super().__init__(disable=True)  # no bar, but the counts and the speed are kept
        self._began_at = self._said_at = time.monotonic()
        self._last: TaskID | None = None  # what has moved since the last line

    def update(self, task_id: TaskID, **changes: Any) -> None:
        super().update(task_id, **changes)
        if self._last not in (None, task_id):
            self._end()  # of the task before
        self._last = task_id
        if time.monotonic() - self._said_at >= EVERY_SECONDS:
            self._say()

    def stop(self) -> None:
        # Not the base's, which ends a bar with an empty line.
        self._end()

    def _end(self) -> None:
        if time.monotonic() - self._began_at >= LEAST_SECONDS:
            self._say()
        self._last, self._began_at = None, time.monotonic()

    def _say(self) -> None:
        if self._last is None:
            return
        task = next(one for one in self.tasks if one.id == self._last)
        self._last, self._said_at = None, time.monotonic()
        line = f"{task.description}: {task.completed:.0f}"
        line += "" if task.total is None else f" of {task.total:.0f}"
        line += f", {task.fields['note']}" if task.fields.get("note") else ""
        if not task.finished and task.time_remaining is not None:
            line += f", {task.time_remaining / 60:.0f} min left"
        print(line, file=sys.stderr, flush=True)
