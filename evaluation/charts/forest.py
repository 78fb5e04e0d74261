"""Comparisons below each other on one axis: a dot with its interval, and the line of no difference."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from evaluation.charts.scale import Tick, logarithmic
from evaluation.roles import roles
from evaluation.schema import Report
from evaluation.schema_parts import ComparisonResult
from evaluation.sentences import bounds, is_claimed, standing, value

# Where all ratios of a chart are below this, its axis is written in per cent, else in multiples.
_PERCENT_BELOW = 1.5


@dataclass(frozen=True, slots=True)
class Row:
    """A comparison: places in per cent of the axis, and what is written beside it.

    Attributes:
        kind: of the first arm.
        apart: the interval does not hold 1.
        claimed: it may be said aloud.
    """

    label: str
    kind: str
    mark: float
    low: float | None
    high: float | None
    value: str
    interval: str
    apart: bool
    claimed: bool
    groups: int
    said: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class Forest:
    """All rows share the axis; `one` is the place of no difference."""

    title: str
    one: float
    ticks: tuple[Tick, ...]
    rows: tuple[Row, ...]


def forest(
    report: Report, title: str, rows: Sequence[tuple[str, ComparisonResult, str]], corrected: bool = True
) -> Forest:
    """Draw (label, comparison, note). `corrected` false: rows outside of Holm's family claim nothing."""
    comparisons = [row for _, row, _ in rows]
    ends = [end for row in comparisons for end in (row.ratio, row.low, row.high) if end is not None]
    scale = logarithmic([1.0, *ends])
    percent = max(row.ratio for row in comparisons) < _PERCENT_BELOW
    return Forest(
        title=title,
        one=scale.place(1.0),
        ticks=tuple(scale.ticks(most=3, percent=percent)),
        rows=tuple(
            Row(
                label=label,
                kind=report.arms[row.a].kind if row.a in report.arms else "learned",
                mark=scale.place(row.ratio),
                low=None if row.low is None else scale.place(row.low),
                high=None if row.high is None else scale.place(row.high),
                value=value(row),
                interval=bounds(row),
                apart=_apart(row),
                claimed=corrected and is_claimed(report, row),
                groups=row.groups,
                said=standing(report, row) if corrected else "",
                note=note,
            )
            for label, row, note in rows
        ),
    )


def comparisons(report: Report) -> list[Forest]:
    """All of them; those with plain decoding, whose ratios are large, on an axis of their own."""
    plain = roles(report).plain
    found = []
    for title, wanted in (("Over other arms", False), ("Over plain decoding", True)):
        rows = [
            (f"{row.a} over {row.b}", row, "") for row in report.comparisons if (row.b == plain) == wanted
        ]
        found += [forest(report, title, rows)] if rows else []
    return found


def slices(report: Report, parts: Mapping[str, Iterable[ComparisonResult]]) -> list[Forest]:
    """A forest for each arm that is compared with, a row for each part of the workload."""
    by_rival: dict[tuple[str, str], list[tuple[str, ComparisonResult, str]]] = {}
    for part, rows in parts.items():
        for row in rows:
            by_rival.setdefault((row.a, row.b), []).append((part, row, ""))
    return [forest(report, f"{a} over {b}", rows, corrected=False) for (a, b), rows in by_rival.items()]


def regimes(report: Report) -> Forest | None:
    """Where learning pays: over the best fixed setting of each regime."""
    if not report.regimes:
        return None
    rows = []
    for regime in report.regimes:
        how = "decoded live" if regime.live else "replayed"
        made = ", made-up costs" if regime.synthetic else ""
        costs = f" ({regime.costs})" if regime.costs else ""
        note = f"{how}{made}{costs}; best fixed {regime.best_fixed}, {regime.best_fixed_vs_plain:.2f}× plain"
        rows.append((regime.name, regime.learned, note))
    return forest(report, "The learned policy over each regime's best fixed setting", rows, corrected=False)


def _apart(row: ComparisonResult) -> bool:
    return row.low is not None and row.high is not None and (row.low > 1 or row.high < 1)
