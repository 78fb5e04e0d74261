"""Who plays which part in a report: plain decoding, the learned arm, the fixed arms that it must beat."""

from __future__ import annotations

from dataclasses import dataclass

from evaluation.schema import ArmResult, Report
from evaluation.schema_parts import ComparisonResult


@dataclass(frozen=True, slots=True)
class Roles:
    """Names of arms.

    Attributes:
        plain: plain decoding; None in a report that has none.
        learned: the first learned arm, which the claims are about.
        best_fixed: the fastest fixed arm; the A/A pair's second arm is no candidate.
    """

    plain: str | None
    learned: str | None
    best_fixed: str | None

    @property
    def shown(self) -> tuple[str, ...]:
        """The arms that details are shown of, the learned one first."""
        return tuple(name for name in (self.learned, self.best_fixed, self.plain) if name is not None)


def roles(report: Report) -> Roles:
    """Read off the arms' kinds."""
    again = report.aa.b if report.aa else None
    fixed = [name for name, arm in main_arms(report).items() if arm.kind == "fixed" and name != again]
    return Roles(
        plain=_first(report, "plain"),
        learned=_first(report, "learned"),
        best_fixed=max(fixed, key=lambda name: report.arms[name].tokens_per_second, default=None),
    )


def main_arms(report: Report) -> dict[str, ArmResult]:
    """Without those that decoded a few prompts only: their tokens per second are of other texts."""
    main = {name for part in report.by_temperature.values() for name in part} or set(report.arms)
    return {name: arm for name, arm in report.arms.items() if name in main}


def comparison(report: Report, a: str | None, b: str | None) -> ComparisonResult | None:
    """The report's comparison of these two, if it has one."""
    return next((row for row in report.comparisons if (row.a, row.b) == (a, b)), None)


def over_plain(report: Report, name: str) -> ComparisonResult | None:
    """What is known, with an interval, of an arm over plain decoding."""
    return report.arms[name].over_plain or comparison(report, name, roles(report).plain)


def headline(report: Report) -> ComparisonResult | None:
    """The learned arm over the fixed arm that it gains least on; without one, the best fixed over plain."""
    parts = roles(report)
    if parts.learned is None:
        return comparison(report, parts.best_fixed, parts.plain)
    rows = [
        row
        for row in report.comparisons
        if row.a == parts.learned and row.b in report.arms and report.arms[row.b].kind == "fixed"
    ]
    return min(rows, key=lambda row: row.ratio, default=comparison(report, parts.learned, parts.plain))


def _first(report: Report, kind: str) -> str | None:
    return next((name for name, arm in report.arms.items() if arm.kind == kind), None)
