"""Seconds that the parts of a run took, over all its starts: a kill must not make them look cheap."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from commands.alone import untouched
from decoding.artifacts import read_json, write_json

_MOST = 2**31


class Spent:
    """Counts seconds by part, in a file.

    Args:
        path: of the file; read if it is there.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._open: tuple[str, float] | None = None  # the part that runs, and since when it is not counted
        self.seconds: dict[str, float] = read_json(path, "record of times") if path.exists() else {}
        # NaN is in no range.
        if not all(type(one) in (int, float) and 0 <= one < _MOST for one in self.seconds.values()):
            raise ValueError(f"record of times {path} is damaged: remove it")

    @contextmanager
    def on(self, part: str) -> Iterator[None]:
        """Count what the block takes; not what was not kept yet where it ends in a mistake, which leaves
        nothing behind."""
        self._open = part, time.monotonic()
        try:
            yield
            self.keep()
        except Exception:
            raise
        except BaseException:  # interrupted: the same command goes on from here
            self.keep()
            raise
        finally:
            self._open = None

    def keep(self) -> None:
        """Write what the running part has taken up to now. To be called at its checkpoints: nothing else of
        it outlives a SIGKILL."""
        if self._open is None:
            return
        part, since = self._open
        now = time.monotonic()
        self._open = part, now
        self.seconds[part] = self.seconds.get(part, 0.0) + now - since
        if not untouched(self._path.parent):  # else nothing has been made yet, and a mistake leaves nothing
            write_json(self._path, self.seconds)
