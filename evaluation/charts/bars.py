"""Lengths that are compared: an arm's speed-up, where a token's time goes, how many tokens cycles commit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from evaluation.charts.scale import Tick, linear
from evaluation.roles import Roles, over_plain
from evaluation.schema import ArmResult, Report
from evaluation.sentences import spelled

PHASES = ("draft", "select", "verify", "commit", "policy")


@dataclass(frozen=True, slots=True)
class SpeedUp:
    """An arm over plain decoding, on the axis of all arms, and its rank in speed; `said` has its interval."""

    rank: int
    place: float
    low: float | None
    high: float | None
    said: str


@dataclass(frozen=True, slots=True)
class SpeedUps:
    """`one` is the place of plain decoding's speed."""

    one: float
    ticks: tuple[Tick, ...]
    arms: Mapping[str, SpeedUp]


@dataclass(frozen=True, slots=True)
class Stack:
    """Milliseconds of a token, by phase; widths in per cent of the slowest arm."""

    name: str
    total: float
    parts: tuple[tuple[str, float, float, float], ...]  # phase, start, width, milliseconds


@dataclass(frozen=True, slots=True)
class Lengths:
    """Shares of an arm's cycles by tokens committed; widths in per cent of the longest bar."""

    name: str
    shares: tuple[float, ...]
    widths: tuple[float, ...]


def speed_ups(report: Report) -> SpeedUps:
    """Every arm, with an interval where one is known."""
    known = {name: over_plain(report, name) for name in report.arms}
    ends = [end for row in known.values() if row for end in (row.ratio, row.low, row.high) if end is not None]
    scale = linear([1.0, *(arm.speedup_vs_plain for arm in report.arms.values()), *ends])
    # Not by tokens per second: an arm of few prompts has other texts.
    ranks = sorted(report.arms, key=lambda name: report.arms[name].speedup_vs_plain, reverse=True)
    arms = {}
    for name, arm in report.arms.items():
        row = known[name]
        low, high = (row.low, row.high) if row else (None, None)
        arms[name] = SpeedUp(
            rank=ranks.index(name) + 1,
            # an interval belongs to the mean over questions, which is not the ratio of sums
            place=scale.place(row.ratio if row else arm.speedup_vs_plain),
            low=None if low is None else scale.place(low),
            high=None if high is None else scale.place(high),
            said=spelled(row) if row else "",
        )
    return SpeedUps(scale.place(1.0), tuple(scale.ticks()), arms)


def stacks(report: Report) -> list[Stack]:
    """Fastest arm first; arms whose phases took no time are left out."""
    costs = {name: _milliseconds(arm) for name, arm in report.arms.items()}
    totals = {name: sum(phases.values()) for name, phases in costs.items() if sum(phases.values()) > 0}
    longest = max(totals.values(), default=1.0)
    found = []
    for name in sorted(totals, key=lambda arm: totals[arm]):
        parts, start = [], 0.0
        for phase in PHASES:
            milliseconds = costs[name].get(phase, 0.0)
            width = 100 * milliseconds / longest
            parts.append((phase, round(start, 2), round(width, 2), milliseconds))
            start += width
        found.append(Stack(name, totals[name], tuple(parts)))
    return found


def lengths(report: Report, parts: Roles) -> list[Lengths]:
    """Of the learned arm and the best fixed one, where their cycles were counted."""
    counts = {
        name: report.arms[name].emitted for name in (parts.learned, parts.best_fixed) if name is not None
    }
    shares = {name: [count / sum(row) for count in row] for name, row in counts.items() if sum(row)}
    widest = max((share for row in shares.values() for share in row), default=1.0)
    longest = max((len(row) for row in shares.values()), default=0)
    found = []
    for name, row in shares.items():
        padded = tuple(row + [0.0] * (longest - len(row)))
        found.append(Lengths(name, padded, tuple(round(100 * share / widest, 2) for share in padded)))
    return found


def _milliseconds(arm: ArmResult) -> dict[str, float]:
    seconds = sum(arm.seconds_by_phase.values())
    tokens = arm.tokens_per_second * seconds
    if not tokens:
        return {}
    return {phase: 1000 * taken / tokens for phase, taken in arm.seconds_by_phase.items()}
