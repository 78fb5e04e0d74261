"""How a command ends when it is told to: SIGTERM as Ctrl-C, in order, so that the next start goes on."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Terminated(KeyboardInterrupt):
    """SIGTERM came."""


@contextmanager
def orderly_ends() -> Iterator[None]:
    """Within the block SIGTERM raises `Terminated`, and SIGINT KeyboardInterrupt also where an entry point
    had it end the process at once (see `train.py`). Signals that the parent ignores stay ignored."""
    if threading.current_thread() is not threading.main_thread():  # Python has signals there alone
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    if before[signal.SIGINT] is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if before[signal.SIGTERM] is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _terminate)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _terminate(_number: int, _frame: object) -> None:
    raise Terminated
