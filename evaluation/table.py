"""The report on a terminal: the arms, the grid, the arms in replay, what is claimed, the verdict."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from evaluation import sentences
from evaluation.roles import main_arms
from evaluation.schema import Replay, Report
from evaluation.schema_parts import GridPoint


def print_report(report: Report, console: Console) -> None:
    """Print the tables, then what is said about texts, load, noise and speed, a line each."""
    console.print(_arms(report))
    for drafter, lookup in dict.fromkeys((one.drafter, one.lookup_depth) for one in report.grid):
        points = [one for one in report.grid if (one.drafter, one.lookup_depth) == (drafter, lookup)]
        if report.replay is None:  # else the whole grid was replayed, and the page shows it
            console.print(_grid(points))
    if report.replay is not None:
        console.print(_replay(report.replay))
    if report.comparisons:
        console.print(_comparisons(report))
    console.print(Text(f"Exact text: {sentences.texts(report)}"))
    for warning in (sentences.unfinished(report), sentences.load(report)):
        if warning is not None:
            console.print(Text(warning, "yellow"))
    usable = report.aa is None or report.aa.usable
    console.print(Text(sentences.same_arm(report), "" if usable else "bold red"))
    for said in (
        sentences.power(report),
        sentences.overhead(report),
        sentences.bound(report),
        sentences.speed_and_tau(report),
    ):
        if said is not None:
            console.print(Text(said))
    console.print(Text(f"Real speed: {report.verdict}", "bold"))


def _arms(report: Report) -> Table:
    workload = report.workload
    how = report.dtype + (f", {report.models.path} path" if report.models.path else "")
    table = Table(title=f"{workload.requests} {workload.split} prompts x {workload.repeats}, {how}")
    table.add_column("arm")
    for heading in ("tokens/s", "x plain", "tau", "policy %", "text equal"):
        table.add_column(heading, justify="right")
    main = main_arms(report)
    fastest = max(arm.tokens_per_second for arm in main.values())
    for name, arm in report.arms.items():
        # On other texts than the others' tokens per second: only its multiple of plain decoding compares.
        few = "" if name in main else f" ({arm.requests} texts only)"
        table.add_row(
            escape(name + few),
            f"{arm.tokens_per_second:.1f}",
            f"{arm.speedup_vs_plain:.2f}",
            f"{arm.tau:.2f}",
            f"{arm.policy_overhead_fraction * 100:.2f}",
            "yes" if arm.text_equal else f"no ({arm.texts_unequal} of {arm.requests})",
            style="bold" if name in main and arm.tokens_per_second == fastest else "",
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


def _replay(replay: Replay) -> Table:
    """Fastest first; bounds, which are no arms, last."""
    table = Table(title=f"in replay, {replay.texts} texts")
    table.add_column("arm")
    for heading in ("tokens/s", "x plain", "tau", "learned over it"):
        table.add_column(heading, justify="right")
    for name, arm in replay.in_order():
        over = arm.learned_over_it
        table.add_row(
            escape(name),
            f"{arm.tokens_per_second:.1f}",
            f"{arm.speedup_vs_plain:.2f}",
            "-" if arm.tau is None else f"{arm.tau:.2f}",
            "-" if over is None else sentences.spelled(over),
            style="dim" if arm.kind == "bound" else "",
        )
    return table


def _comparisons(report: Report) -> Table:
    table = Table(title=f"what is claimed, {report.confidence * 100:g} % intervals over questions")
    table.add_column("arms")
    table.add_column("difference", justify="right")
    table.add_column("")
    for row in report.comparisons:
        table.add_row(
            escape(f"{row.a} over {row.b}"),
            sentences.spelled(row),
            sentences.standing(report, row),
            style="bold" if sentences.is_claimed(report, row) else "",
        )
    return table
