"""The cost model's predictions beside what was measured, as a table."""

from __future__ import annotations

from collections.abc import Sequence

from rich.box import SIMPLE
from rich.table import Table

from benchmarks.measure import Samples
from evaluation.cross_check import mean_errors
from evaluation.schema_parts import CrossCheck


def printed(title: str, rows: Sequence[CrossCheck]) -> Table:
    """A line a depth."""
    table = Table(title=title, box=SIMPLE)
    columns = ["depth", "measured", "95 %", "tokens a cycle", "predicted", "error"]
    columns += ["constant alpha", "error", "theorem 3.8", "error"]
    for column in columns:
        table.add_column(column, justify="right")
    for row in rows:
        interval = "" if row.low is None or row.high is None else f"{row.low:.3f} .. {row.high:.3f}"
        emitted = "" if row.emitted is None else f"{row.emitted:.3f}"
        cells = [str(row.draft_depth), f"{row.measured:.3f}", interval, emitted]
        for value in (row.joint, row.constant_alpha, row.theorem):
            cells += ["", ""] if value is None else [f"{value:.3f}", f"{value / row.measured - 1:+.1%}"]
        table.add_row(*cells)
    return table


def errors(rows: Sequence[CrossCheck]) -> str:
    """A line on how far off each prediction is."""
    found = mean_errors(rows)
    return (
        f"mean error of the drafting depths: joint prefixes {found['joint']:.1%}, constant alpha"
        f" {found['constant_alpha']:.1%}, theorem 3.8 {found['theorem']:.1%}"
    )


def numbers(rows: Sequence[CrossCheck]) -> Samples:
    """For `--json`: of each depth, in order."""
    names = ("draft_depth", "measured", "low", "high", "joint", "constant_alpha", "theorem", "emitted")
    return {name: [float(getattr(row, name)) for row in rows] for name in names}
