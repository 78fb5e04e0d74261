"""How much of the machine other processes take: what is timed beside them is not the machine's own speed."""

from __future__ import annotations

import os
import time
from pathlib import Path

_STAT = Path("/proc/stat")
_BUSY = (0, 1, 2, 5, 6, 7)  # user, nice, system, irq, softirq, steal; not idle and iowait


class OtherLoad:
    """Cores that other processes, and other guests of the same host, used since `start`. Linux alone says;
    elsewhere it is 0. Its clock ticks 100 times a second: ask after a few tenths of one."""

    def __init__(self) -> None:
        self.start()

    def start(self) -> None:
        """Count from now on."""
        self._since = self._read()

    def cores(self) -> float:
        """Cores, e.g. 0.5: half of one core's time."""
        busy, own, wall = (now - then for now, then in zip(self._read(), self._since, strict=True))
        return max(busy - own, 0.0) / wall if wall > 0 else 0.0

    def _read(self) -> tuple[float, float, float]:
        times = os.times()
        own = times.user + times.system
        try:
            first = _STAT.read_text(encoding="ascii").partition("\n")[0].split()[1:]
            busy = sum(int(first[place]) for place in _BUSY) / os.sysconf("SC_CLK_TCK")
        except (OSError, ValueError, IndexError):
            busy = own
        return busy, own, time.perf_counter()
