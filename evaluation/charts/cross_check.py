"""Speed-ups of fixed depths, as two formulas predict them and as they were measured."""

from __future__ import annotations

from dataclasses import dataclass

from evaluation.charts.scale import Tick, linear
from evaluation.schema import Report


@dataclass(frozen=True, slots=True)
class Depth:
    """Three marks on one axis, in per cent, and what they stand for."""

    draft_depth: int
    measured: tuple[float, float]  # place, value
    joint: tuple[float, float]
    constant_alpha: tuple[float, float]
    off: str


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
    scale = linear([value for row in rows for value in (row.measured, row.joint, row.constant_alpha)])

    def mark(value: float) -> tuple[float, float]:
        return scale.place(value), value

    return Predictions(
        ticks=tuple(scale.ticks()),
        depths=tuple(
            Depth(
                draft_depth=row.draft_depth,
                measured=mark(row.measured),
                joint=mark(row.joint),
                constant_alpha=mark(row.constant_alpha),
                off=f"{(row.joint / row.measured - 1) * 100:+.1f} %" if row.measured else "",
            )
            for row in rows
        ),
    )
