"""One plain sentence: who won, by how much, how sure, and what favours whom."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from evaluation.schema_parts import ComparisonResult, SameArm
from evaluation.statistics import CONFIDENCE, MIN_GROUPS

# An interval over so few questions is honest about chance, not about which questions were asked.
FEW_GROUPS = 20


def verdict(
    rates: Mapping[str, float],
    comparisons: Sequence[ComparisonResult],
    *,
    plain: str,
    learned: str | None,
    best_fixed: tuple[str, str] | None,
    confidence: float = CONFIDENCE,
    never_drafted: bool = False,
    same: SameArm | None = None,
) -> str:
    """The sentence for these arms.

    Args:
        rates: tokens per second of every arm.
        comparisons: those among the arms named below, corrected together.
        plain, learned, best_fixed: names of arms; None = not in the run. `best_fixed` comes with its setting
            and how it was chosen.
        never_drafted: the learned arm took plain steps alone: it collapsed to plain decoding.
        same: the check of the measurement itself; None = not in the run.
    """
    subject = learned or (best_fixed[0] if best_fixed else None)
    if subject is None:
        return "Only plain decoding was measured, so there is nothing to compare."
    names = {plain: "plain decoding"}
    rivals = [plain]
    if learned:
        names[learned] = "the learned policy"
    if best_fixed:
        names[best_fixed[0]] = f"the best fixed setting ({best_fixed[1]})"
        if learned:
            rivals.append(best_fixed[0])
    rivals.sort(key=lambda name: rates[name], reverse=True)  # the one to beat comes first
    rows = [_between(subject, rival, comparisons) for rival in rivals]
    clauses = [
        f"{_gain(row.ratio)} than {names[row.b]} {_certainty(row, len(comparisons), confidence, same)}"
        for row in rows
    ]
    join = "and" if (rows[0].ratio >= 1) == (rows[-1].ratio >= 1) else "but"
    groups = rows[0].groups
    few = f"; {groups} independent questions are few" if MIN_GROUPS <= groups < FEW_GROUPS else ""
    collapsed = "; it never drafted: it is plain decoding under another name" if never_drafted else ""
    said = f"{_opening(rows[0], names[subject])} {f', {join} '.join(clauses)}{few}{collapsed}."
    return said if same is None or same.usable else f"{_unusable(same)}; {said[0].lower()}{said[1:]}"


def _opening(row: ComparisonResult, who: str) -> str:
    if row.low is None or row.high is None:
        many = f"{row.groups} independent question{'s' if row.groups > 1 else ''}"
        return f"Nothing can be said: on {many}, too few for an interval, {who} decoded"
    if row.claimed and row.ratio > 1:
        return f"{who[0].upper()}{who[1:]} won: it decoded"
    if row.claimed:
        return f"{who[0].upper()}{who[1:]} lost: it decoded"
    return f"Undecided: {who} decoded"


def _gain(ratio: float) -> str:
    word = "more" if ratio >= 1 else "fewer"
    return f"{abs(ratio - 1) * 100:.1f} % {word} tokens per second"


def _certainty(row: ComparisonResult, comparisons: int, confidence: float, same: SameArm | None) -> str:
    if row.low is None or row.high is None:
        return "(no interval)"
    excludes = row.low > 1 or row.high < 1
    says = "excludes 0" if excludes else "includes 0"
    if excludes and not row.claimed:
        says += f", but {_why_not(row, comparisons, same)}"
    low, high = (row.low - 1) * 100, (row.high - 1) * 100
    return f"({confidence * 100:g} % interval {low:+.1f} % to {high:+.1f} %, which {says})"


def _why_not(row: ComparisonResult, comparisons: int, same: SameArm | None) -> str:
    """What keeps a ratio whose interval excludes 1 from being a claim."""
    if same is not None and not same.usable:
        return "this run shows nothing"
    if same is not None and same.half_width is not None and abs(math.log(row.ratio)) <= same.half_width:
        return "one arm measured twice differs from itself by as much"
    return f"not after Holm's correction for {comparisons} comparisons"


def _unusable(same: SameArm) -> str:
    off = (same.ratio - 1) * 100
    return f"Unusable: one arm measured twice differs from itself by {off:+.1f} %, so nothing is claimed"


def _between(a: str, b: str, comparisons: Sequence[ComparisonResult]) -> ComparisonResult:
    for row in comparisons:
        if (row.a, row.b) == (a, b):
            return row
    raise ValueError(f"no comparison of {a!r} with {b!r} among {[(row.a, row.b) for row in comparisons]}")
