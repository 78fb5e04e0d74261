"""The check of the law on a terminal: p-values by controller, every fault in full, one sentence."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from evaluation.chi_square import POWER
from evaluation.law_check import LENGTH, LEVEL, LawReport, LawRow


def print_law(report: LawReport, console: Console) -> None:
    """A line for each rule, drafter and law with the p-values of its controllers; faults; one sentence.

    Narrow enough for 80 columns: what a row counted besides is in `LawReport.to_json`.
    """
    controllers = list(dict.fromkeys(row.controller for row in report.rows))
    table = Table(
        title=f"p-values before Holm's correction: law of the first {LENGTH} tokens, seed {report.seed}",
        box=None,
        padding=(0, 1, 0, 0),
    )
    for heading in ("rule", "drafter", "law"):
        table.add_column(heading, no_wrap=True)
    for heading in ("kept", *controllers):
        table.add_column(heading, justify="right", no_wrap=True)
    groups: dict[tuple[str, str, str], dict[str, LawRow]] = {}
    for row in report.rows:
        groups.setdefault((row.rule, row.drafter, law_name(row)), {})[row.controller] = row
    for names, rows in groups.items():
        together = rows[controllers[-1]]
        cells = [_p_value(rows[controller]) for controller in controllers]
        table.add_row(*names, f"{together.acceptance_rate:.0%}", *cells)
    console.print(table)
    console.print(
        Text("kept: accepted of all drafted tokens that were offered; all: every controller's texts.")
    )
    for row in report.faults:
        console.print(Text(_fault(row), "red"))
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
        f"{said}; a law {one:.2f} away in total variation, texts too rare to count pooled, is found by a "
        f"controller's row with probability {POWER:.0%}, one {pooled:.2f} away by the row of all."
    )


def law_name(row: LawRow) -> str:
    """Its temperature, and top-k where there is one."""
    return f"T {row.temperature:g}" + (f", k {row.top_k}" if row.top_k is not None else "")


def _p_value(row: LawRow) -> Text:
    value = "exact" if not row.degrees and row.p_value == 1 else f"{row.p_value:.2g}"
    return Text(value, "bold red" if row.fault else "")


def _fault(row: LawRow) -> str:
    seen = (
        "a text was seen that the law does not allow"
        if row.chi2 is None
        else f"chi-square {row.chi2:.1f} with {row.degrees} degrees of freedom"
    )
    return (
        f"FAULT: {row.rule}, {row.drafter}, {law_name(row)}, {row.controller}: p after Holm "
        f"{row.adjusted_p_value:.2g}; {seen}; {row.samples} texts"
        + (f" from seed {row.first_seed}" if row.first_seed is not None else "")
    )
