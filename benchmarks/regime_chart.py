"""The chart of the cost regimes: where learning pays."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib.style
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.figures import BLUE, GREEN, GREY, ORANGE, STYLE
from decoding.artifacts import atomic_path
from evaluation.schema_parts import ComparisonResult, Regime

# Of a row: field, label, colour, marker.
_ARMS = (
    ("expected_gain", "expected gain over cost (rule)", ORANGE, "s"),
    ("not_retrained", "policy trained for the measured costs", GREY, "D"),
    ("learned", "policy trained for these costs", BLUE, "o"),
)
_APART = 0.17  # between the arms of a regime, in regimes


def save_chart(rows: Sequence[Regime], path: Path) -> None:
    """Write it as SVG, the same bytes for the same rows."""
    with matplotlib.style.context(["default", STYLE]), atomic_path(path) as temporary:
        chart(rows).savefig(temporary, format="svg", metadata={"Date": None, "Creator": None})


def chart(rows: Sequence[Regime]) -> Figure:
    """Each arm over the best fixed setting of its regime; and speeds over plain decoding."""
    figure = Figure(figsize=(13, 5.6), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(1.25, 1))
    _over_fixed(left, rows)
    _over_plain(right, rows)
    names = [f"{row.name}\n{'synthetic' if row.synthetic else 'profile'}" for row in rows]
    for axes in (left, right):
        axes.set_xticks(range(len(rows)), names, fontsize=10)
        axes.grid(axis="y", color="#dddddd")
        axes.set_axisbelow(True)
        axes.set_xlim(-0.5, len(rows) - 0.5)
    return figure


def _over_fixed(axes: Axes, rows: Sequence[Regime]) -> None:
    for number, (field, label, colour, marker) in enumerate(_ARMS):
        shift = (number - (len(_ARMS) - 1) / 2) * _APART
        points = [(place + shift, getattr(row, field)) for place, row in enumerate(rows)]
        known = [(place, found) for place, found in points if found is not None]
        axes.errorbar(
            [place for place, _ in known],
            [_percent(found.ratio) for _, found in known],
            yerr=[[_arm(found, -1) for _, found in known], [_arm(found, 1) for _, found in known]],
            fmt=marker,
            color=colour,
            capsize=4,
            label=label,
        )
    axes.axhline(0, color="black", linewidth=1.2)
    axes.set(title="Where learning pays", ylabel="tokens/s over the best fixed setting, %")
    axes.legend(loc="best", frameon=False, fontsize=11)


def _over_plain(axes: Axes, rows: Sequence[Regime]) -> None:
    for number, (label, colour) in enumerate(
        (("best fixed setting", GREY), ("learned", BLUE), ("clairvoyant", GREEN))
    ):
        places = [place + (number - 1) * 0.26 for place in range(len(rows))]
        axes.bar(places, [_speeds(row)[number] for row in rows], 0.24, color=colour, label=label)
    axes.axhline(1, color="black", linewidth=1.2)
    highest = max(max(_speeds(row)) for row in rows)
    axes.set(title="Over plain decoding", ylabel="tokens/s over plain", ylim=(0, 1.3 * highest))
    axes.legend(loc="upper left", frameon=False, fontsize=11)


def _speeds(row: Regime) -> tuple[float, float, float]:
    """Over plain decoding, of all texts together: best fixed, learned, clairvoyant."""
    fixed = row.best_fixed_vs_plain
    bound = 0.0 if row.clairvoyant is None else row.clairvoyant.ratio_of_sums
    return fixed, fixed * row.learned.ratio_of_sums, fixed * bound


def _percent(ratio: float) -> float:
    return 100 * (ratio - 1)


def _arm(found: ComparisonResult, side: int) -> float:
    """Length of an error bar; 0 where there are too few questions for an interval."""
    end = found.low if side < 0 else found.high
    return 0.0 if end is None else abs(100 * (end - found.ratio))
