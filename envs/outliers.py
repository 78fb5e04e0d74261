"""Rewards from a real clock on a machine that others use too: timing outliers are held to what is usual."""

from __future__ import annotations

from collections import deque

import numpy as np

WINDOW = 64
LEAST = 8
# A normal distribution's standard deviation is 1.4826 times its median absolute deviation.
_SIGMA = 1.4826
THRESHOLD = 3.0


class Winsoriser:
    """Hampel's identifier, winsorising (Hampel 1974; Davies, Gather 1993): of each kind of step the last 64
    timings are kept, and one beyond 3 robust standard deviations of their median counts as that bound.

    A preempted cycle would else punish whatever was decided in it; the median of few steps is too rough to
    judge by, so that the first 8 of a kind pass.
    """

    def __init__(self) -> None:
        self.held = 0
        self._recent: dict[str, deque[float]] = {}

    def __call__(self, kind: str, seconds: float) -> float:
        """The timing, or the bound that it lies beyond. ValueError if it is not finite."""
        if not np.isfinite(seconds):
            raise ValueError(f"a step took {seconds} seconds: the clock is at fault")
        recent = self._recent.setdefault(kind, deque(maxlen=WINDOW))
        usual = seconds
        if len(recent) >= LEAST:
            middle = float(np.median(recent))
            spread = THRESHOLD * _SIGMA * float(np.median(np.abs(np.array(recent) - middle)))
            usual = min(max(seconds, middle - spread), middle + spread)
        recent.append(seconds)
        self.held += usual != seconds
        return usual
