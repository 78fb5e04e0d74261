"""Wall-clock time that counts the device's work: synchronise, then read `perf_counter`."""

from __future__ import annotations

import time

import torch

from decoding.records import PhaseSeconds

PHASES = ("draft", "select", "verify", "commit", "policy")


def now(device: torch.device) -> float:
    """Seconds on a monotonic clock, after all work queued on `device` is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


class PhaseClock:
    """Splits a cycle into phases. Every moment between `start` and the last `lap` belongs to one phase, so
    that the phases sum to the cycle's wall-clock time."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._waits = device.type == "cuda"
        self._last = 0.0
        self._seconds = dict.fromkeys(PHASES, 0.0)

    def start(self) -> None:
        """Begin a cycle with all phases at zero."""
        self._seconds = dict.fromkeys(PHASES, 0.0)
        self._last = now(self._device)

    def lap(self, phase: str) -> None:
        """Charge the time since the last lap to `phase`."""
        # The clock is read ten times a cycle: without asking the device again what it is.
        moment = now(self._device) if self._waits else time.perf_counter()
        self._seconds[phase] += moment - self._last
        self._last = moment

    def seconds(self) -> PhaseSeconds:
        """The phases so far."""
        return PhaseSeconds(**self._seconds)
