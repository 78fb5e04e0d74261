"""The report on a terminal: the arms, the grid, the verdict."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from evaluation.schema import Report
from evaluation.schema_parts import GridPoint


def print_report(report: Report, console: Console) -> None:
    """Print arms and grids as tables, then what is said about texts, load and speed, a line each."""
    console.print(_arms(report))
    for key in dict.fromkeys((point.drafter, point.lookup_depth) for point in report.grid):
        console.print(_grid([point for point in report.grid if (point.drafter, point.lookup_depth) == key]))
    console.print(Text(f"Exact text: {_texts(report)}"))
    machine = report.machine
    if machine.load_max is not None and machine.load_max > machine.threads + 1:
        busy = f"load average up to {machine.load_max:.1f} with {machine.threads} threads of our own"
        console.print(Text(f"The machine was busy with other work ({busy}): timings are rougher.", "yellow"))
    console.print(Text(f"Real speed: {report.verdict}", "bold"))


def _arms(report: Report) -> Table:
    workload = report.workload
    how = report.dtype + (f", {report.models.path} path" if report.models.path else "")
    table = Table(title=f"{workload.requests} {workload.split} prompts x {workload.repeats}, {how}")
    table.add_column("arm")
    for heading in ("tokens/s", "x plain", "tau", "policy %", "text equal"):
        table.add_column(heading, justify="right")
    fastest = max(arm.tokens_per_second for arm in report.arms.values())
    for name, arm in report.arms.items():
        table.add_row(
            escape(name),
            f"{arm.tokens_per_second:.1f}",
            f"{arm.speedup_vs_plain:.2f}",
            f"{arm.tau:.2f}",
            f"{arm.policy_overhead_fraction * 100:.2f}",
            "yes" if arm.text_equal else f"no ({arm.texts_unequal} of {arm.requests})",
            style="bold" if arm.tokens_per_second == fastest else "",
        )
    return table


def _grid(points: Sequence[GridPoint]) -> Table:
    """Tokens/s of one drafter's fixed settings: a row per draft depth, a column per verification size."""
    lookup = "" if points[0].lookup_depth is None else f", lookup depth {points[0].lookup_depth}"
    table = Table(title=escape(f"fixed settings of {points[0].drafter}{lookup}, tokens/s"))
    sizes = sorted({point.verification_size for point in points})
    rates = {(point.draft_depth, point.verification_size): point.tokens_per_second for point in points}
    best = max(rates.values())
    table.add_column("depth \\ size", justify="right")
    for size in sizes:
        table.add_column(str(size), justify="right")
    for depth in sorted({point.draft_depth for point in points}):
        cells = [
            Text("-")
            if (rate := rates.get((depth, size))) is None
            else Text(f"{rate:.1f}", style="bold" if rate == best else "")
            for size in sizes
        ]
        table.add_row(str(depth), *cells)
    return table


def _texts(report: Report) -> str:
    unequal = [name for name, arm in report.arms.items() if not arm.text_equal]
    if not unequal:
        return "every arm wrote the same tokens as plain decoding."
    return f"{', '.join(unequal)} wrote other tokens than plain decoding in some texts."
