"""Speed-ups of fixed depths, as two formulas predict them and as they were measured."""

from __future__ import annotations

from dataclasses import dataclass

from evaluation.charts.scale import Tick, linear
from evaluation.schema import Report
from evaluation.schema_parts import CrossCheck


@dataclass(frozen=True, slots=True)
class Depth:
    """Three marks on one axis, in per cent, and what they stand for. `low`, `high`: of the measured."""

    setting: str
    low: float | None
    high: float | None
    measured: tuple[float, float]  # place, value
    joint: tuple[float, float]
    constant_alpha: tuple[float, float]
    off: str
    theorem: str


@dataclass(frozen=True, slots=True)
class Predictions:
    """All depths share the axis."""

    ticks: tuple[Tick, ...]
    depths: tuple[Depth, ...]


def predictions(report: Report) -> Predictions | None:
    """None where nothing was cross-checked."""
    rows = report.cross_check
    if not rows:
        return None
    ends = [end for row in rows for end in (row.low, row.high) if end is not None]
    scale = linear(
        [*ends, *(value for row in rows for value in (row.measured, row.joint, row.constant_alpha))]
    )

    def mark(value: float) -> tuple[float, float]:
        return scale.place(value), value

    return Predictions(
        ticks=tuple(scale.ticks()),
        depths=tuple(
            Depth(
                setting=_setting(row),
                low=None if row.low is None else scale.place(row.low),
                high=None if row.high is None else scale.place(row.high),
                measured=mark(row.measured),
                joint=mark(row.joint),
                constant_alpha=mark(row.constant_alpha),
                off=f"{(row.joint / row.measured - 1) * 100:+.1f} %" if row.measured else "",
                theorem="" if row.theorem is None else f"{row.theorem:.2f}",
            )
            for row in rows
        ),
    )


def _setting(row: CrossCheck) -> str:
    size = "" if row.verification_size is None else f", size {row.verification_size}"
    return f"{row.drafter}, depth {row.draft_depth}{size}"
