"""Seconds that the parts of a run took, over all its starts: a kill must not make them look cheap."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from decoding.artifacts import read_json, write_json

_MOST = 2**31


class Spent:
    """Counts seconds by part, in a file.

    Args:
        path: of the file; read if it is there.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.seconds: dict[str, float] = read_json(path, "record of times") if path.exists() else {}
        # NaN is in no range.
        if not all(type(one) in (int, float) and 0 <= one < _MOST for one in self.seconds.values()):
            raise ValueError(f"record of times {path} is damaged: remove it")

    @contextmanager
    def on(self, part: str) -> Iterator[None]:
        """Count what the block takes; not where it ends in a mistake, which leaves nothing behind."""
        started = time.monotonic()
        try:
            yield
        except Exception:
            raise
        except BaseException:  # interrupted: the same command goes on from here
            self._add(part, time.monotonic() - started)
            raise
        self._add(part, time.monotonic() - started)

    def _add(self, part: str, seconds: float) -> None:
        self.seconds[part] = self.seconds.get(part, 0.0) + seconds
        if self._path.parent.exists():  # else nothing has been made yet, and a mistake should leave nothing
            write_json(self._path, self.seconds)
