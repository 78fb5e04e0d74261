"""From a value to its place on an axis, in per cent of the axis, and round numbers to write along it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from matplotlib.ticker import MaxNLocator

_MARGIN = 0.05  # of the span, at both ends: marks at the ends are drawn whole


@dataclass(frozen=True, slots=True)
class Tick:
    """A number written along an axis."""

    place: float
    label: str


@dataclass(frozen=True, slots=True)
class Scale:
    """An axis. Values outside of it are drawn at its ends."""

    low: float
    high: float
    logarithmic: bool = False

    def place(self, value: float) -> float:
        """Per cent of the way from low to high."""
        low, high = self.low, self.high
        if self.logarithmic:
            low, high, value = math.log(low), math.log(high), math.log(max(value, low / 2))
        return round(100 * min(1.0, max(0.0, (value - low) / (high - low))), 2)

    def ticks(self, most: int = 4, percent: bool = False) -> list[Tick]:
        """At most about so many round numbers. `percent`: of a ratio, what it is above 1."""
        low, high = ((self.low - 1) * 100, (self.high - 1) * 100) if percent else (self.low, self.high)
        locator = MaxNLocator(most, steps=[1, 2, 2.5, 5, 10])
        values = [float(value) for value in locator.tick_values(low, high)]
        step = values[1] - values[0]
        decimals = max(0, min(6, math.ceil(-math.log10(step) - 1e-9)))
        decimals += round(step * 10**decimals, 6) % 1 > 0  # steps of 2.5
        inside = [value for value in values if low <= value <= high]
        if not percent:
            return [Tick(self.place(value), f"{value + 0:.{decimals}f}") for value in inside]
        labels = [f"{value:+.{decimals}f}" if abs(value) > step / 2 else "0" for value in inside]
        labels[-1:] = [f"{label} %" for label in labels[-1:]]
        return [Tick(self.place(1 + value / 100), label) for value, label in zip(inside, labels, strict=True)]


def linear(values: Iterable[float]) -> Scale:
    """Of all these values, with a little room at both ends."""
    found = list(values)
    low, high = min(found), max(found)
    room = (high - low) * _MARGIN or abs(high) * _MARGIN or 1.0
    return Scale(low - room, high + room)


def logarithmic(values: Iterable[float]) -> Scale:
    """Of the positive ones among these values: equal ratios are equally far apart."""
    logs = [math.log(value) for value in values if value > 0] or [0.0]
    room = (max(logs) - min(logs)) * _MARGIN or _MARGIN
    return Scale(math.exp(min(logs) - room), math.exp(max(logs) + room), logarithmic=True)
