"""One command at a time writes into a folder: two would mix their shards, checkpoints and reports."""

from __future__ import annotations

import errno
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

LOCK_FILE = ".draftpace.lock"

# What file systems say that know no locks.
_NO_LOCKS = {errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK, errno.EINVAL}


@contextmanager
def alone_in(folder: Path | None) -> Iterator[None]:
    """Hold `folder`, made if need be, against every other command; None holds nothing.

    It is the operating system's lock that counts, not that its file is there: what a killed command leaves
    stands in nobody's way. Folders that nothing was written into are removed again.

    Raises:
        ValueError: another command has it.
    """
    if folder is None:
        yield
        return
    fresh = [one for one in (folder, *folder.parents) if not one.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / LOCK_FILE, fallback_to_soft=False)
    try:
        _acquire(lock, folder)
        try:
            yield
        finally:
            if lock.is_locked:
                # While it is held: afterwards it may be another's.
                (folder / LOCK_FILE).unlink(missing_ok=True)
            lock.release()
    finally:
        for one in fresh:
            with suppress(OSError):
                one.rmdir()


def untouched(folder: Path) -> bool:
    """Whether nothing has been written into `folder` yet."""
    return not folder.exists() or all(path.name == LOCK_FILE for path in folder.iterdir())


def _acquire(lock: FileLock, folder: Path) -> None:
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise ValueError(
            f"another command is writing into {folder}: wait until it has ended, or choose another --out"
        ) from None
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        print(
            f"warning: {folder} cannot be locked: see to it that no other command writes there",
            file=sys.stderr,
        )
