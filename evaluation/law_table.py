"""The check of the law on a terminal: a row each, then what they say together."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from evaluation.chi_square import POWER
from evaluation.law_check import LENGTH, LEVEL, LawReport, LawRow


def print_law(report: LawReport, console: Console) -> None:
    """Print all rows, faults in red, and one sentence on the exact text."""
    table = Table(title=f"law of the first {LENGTH} tokens, seed {report.seed}")
    for heading in ("rule", "drafter", "law", "controller"):
        table.add_column(heading)
    for heading in ("texts", "accepted %", "tau", "TV", "chi2", "df", "p", "p (Holm)"):
        table.add_column(heading, justify="right")
    for place, row in enumerate(report.rows):
        last = place + 1 == len(report.rows) or _law(report.rows[place + 1]) != _law(row)
        table.add_row(*_cells(row), style="bold red" if row.fault else "", end_section=last)
    console.print(table)
    console.print(Text(f"Exact text: {verdict(report)}", "bold red" if report.faults else "bold"))


def verdict(report: LawReport) -> str:
    """One sentence: rows, faults, the smallest adjusted p-value, what would have been found."""
    rows, faults = len(report.rows), len(report.faults)
    smallest = min(row.adjusted_p_value for row in report.rows)
    follow = f"{faults} of {rows} rows do not follow" if faults else f"all {rows} rows follow"
    said = f"{follow} the target's law (smallest p after Holm {smallest:.2g}, a fault below {LEVEL:g})"
    if all(row.detectable is None for row in report.rows):
        return f"{said}."
    one, pooled = report.detectable(pooled=False), report.detectable(pooled=True)
    return (
        f"{said}; with probability {POWER:.0%} a row finds a law {one:.2f} away in total variation over its "
        f"cells, a row of all controllers one {pooled:.2f} away."
    )


def _law(row: LawRow) -> str:
    return f"T {row.temperature:g}" + (f", top-k {row.top_k}" if row.top_k is not None else "")


def _cells(row: LawRow) -> list[str]:
    return [
        row.rule,
        row.drafter,
        _law(row),
        row.controller,
        str(row.samples),
        f"{row.acceptance_rate:.0%}".removesuffix("%"),
        f"{row.tau:.2f}",
        f"{row.total_variation:.3f}",
        "inf" if row.chi2 is None else f"{row.chi2:.1f}",
        str(row.degrees),
        f"{row.p_value:.2g}",
        f"{row.adjusted_p_value:.2g}",
    ]
