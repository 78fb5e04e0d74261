"""A folder that is replaced as a whole: a kill leaves the old one or the new one, never a part of either.

File systems exchange two folders in two renames. Between them the old folder is beside its place, under
another name, where readers find it and the next replacement puts it back.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replaced_folder(folder: Path) -> Iterator[Path]:
    """Yield an empty folder; it takes the place of `folder` only if the block ends well. One process at a
    time may replace a folder."""
    restore(folder)
    fresh, old = _beside(folder)
    fresh.mkdir(parents=True)
    try:
        yield fresh
        if folder.exists():
            folder.rename(old)
        try:
            fresh.rename(folder)
        except OSError:
            restore(folder)
            raise
        _remove(old)
    finally:
        _remove(fresh)


def restore(folder: Path) -> None:
    """Put right what a killed replacement left: the old folder back in its place, unless the new one is
    there, and nothing beside it."""
    fresh, old = _beside(folder)
    if old.exists() and not folder.exists():
        old.rename(folder)
    _remove(old)
    _remove(fresh)


def whole_folder(folder: Path) -> Path:
    """Where to read it: beside its place if a killed replacement left it there. Nothing is moved: the
    replacement may be under way."""
    _, old = _beside(folder)
    return old if old.exists() and not folder.exists() else folder


def _beside(folder: Path) -> tuple[Path, Path]:
    """What is being written, and what was there before."""
    return folder.parent / f".{folder.name}.new", folder.parent / f".{folder.name}.old"


def _remove(path: Path) -> None:
    if path.is_symlink():
        path.unlink()
    elif path.exists():
        shutil.rmtree(path)
