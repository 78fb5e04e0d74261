"""The part of a report that no clock disturbs: all arms and the whole grid, replayed from recordings.

Legend: T texts.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from decoding.controller import RootChoice
from decoding.setting import Setting
from evaluation.schema import Replay, ReplayArm
from evaluation.schema_parts import ComparisonResult, GridPoint
from evaluation.statistics import bootstrap_interval, compare_all, group_log_ratios


@dataclass(frozen=True, slots=True)
class ReplayedText:
    """One text replayed by one arm; see `statistics.Paired`."""

    arm: str
    question_id: str
    group: str
    category: str | None
    temperature: float
    emitted: int
    seconds: float
    repeat: int = 0


@dataclass(frozen=True)
class Texts:
    """What was replayed: (T) of each."""

    question_ids: tuple[str, ...]
    groups: tuple[str, ...]
    categories: tuple[str, ...]
    temperature_T: np.ndarray
    tokens_T: np.ndarray


@dataclass(frozen=True)
class ReplayedArm:
    """Seconds (T) of an arm. `kind`: plain, fixed, rule, learned or bound."""

    name: str
    kind: str
    seconds_T: np.ndarray
    source: str | None = None
    tuned: str | None = None


def replay_section(
    texts: Texts,
    arms: Sequence[ReplayedArm],
    grid: Mapping[Setting, np.ndarray],
    *,
    best: Sequence[Setting],
    warnings: Sequence[str],
    rng: np.random.Generator,
    confidence: float,
    drafter: str,
    lookup_depth: int | None,
) -> Replay:
    """Everything that replay says.

    Args:
        arms: plain decoding first; a learned arm is compared with all others.
        grid: seconds (T) of every constant on these texts.
        best: the best constants of the validation texts, the best first.
        drafter: name of the recordings'; lookup_depth: of merged drafts.
    """
    rows = [row for arm in arms for row in replayed_texts(arm, texts)]
    learned = next((arm.name for arm in arms if arm.kind == "learned"), None)
    others = [arm.name for arm in arms if arm.name != learned] if learned else []
    compared = compare_all([(learned, other) for other in others if learned], rows, rng, confidence)
    by_name = {row.b: ComparisonResult(**asdict(row)) for row in compared}
    tokens, plain = float(texts.tokens_T.sum()), float(arms[0].seconds_T.sum())
    return Replay(
        texts=len(texts.question_ids),
        tokens=int(tokens),
        arms={
            arm.name: ReplayArm(
                kind=arm.kind,
                tokens_per_second=tokens / float(arm.seconds_T.sum()),
                speedup_vs_plain=plain / float(arm.seconds_T.sum()),
                source=arm.source,
                tuned=arm.tuned,
                learned_over_it=by_name.get(arm.name),
            )
            for arm in arms
        },
        grid=[
            GridPoint(
                drafter=kind_of(setting, drafter),
                lookup_depth=lookup_depth if kind_of(setting, drafter) == "merged" else None,
                draft_depth=setting.draft_depth,
                verification_size=setting.verification_size,
                tokens_per_second=tokens / float(seconds_T.sum()),
            )
            for setting, seconds_T in grid.items()
        ],
        best_by_validation=[str(one) for one in best],
        best_in_hindsight=str(min(grid, key=lambda one: float(grid[one].sum()))),
        best_by_category=_best_by_category(texts, grid),
        warnings=list(warnings),
        not_slower={} if learned is None else not_slower(learned, arms[0].name, rows, rng, confidence),
    )


def replayed_texts(arm: ReplayedArm, texts: Texts) -> list[ReplayedText]:
    """An arm's texts as rows that can be paired."""
    return [
        ReplayedText(
            arm.name,
            texts.question_ids[at],
            texts.groups[at],
            texts.categories[at] or None,
            float(texts.temperature_T[at]),
            int(texts.tokens_T[at]),
            float(arm.seconds_T[at]),
        )
        for at in range(len(texts.question_ids))
    ]


def kind_of(setting: Setting, drafter: str) -> str:
    """What a constant drafts with: plain, composite, merged, head, lookup; the drafter's own name where it
    has no parts."""
    if setting.choice == RootChoice.PLAIN:
        return "plain"
    if setting.composite:
        return "composite"
    parts = {RootChoice.LOOKUP: "lookup", RootChoice.HEAD: "head", RootChoice.ALL: "merged"}
    return parts[setting.choice] if drafter.startswith("merged") else drafter


def edge_warnings(best: Setting, settings: Sequence[Setting]) -> list[str]:
    """Where the best constant has the largest depth or size of its kind: a wider grid may hold a better."""
    same = [one for one in settings if (one.choice, one.composite) == (best.choice, best.composite)]
    said = []
    for name in ("draft_depth", "verification_size"):
        values = {getattr(one, name) for one in same}
        if len(values) > 1 and getattr(best, name) == max(values):
            said.append(f"the best fixed setting, {best}, has the grid's largest {name}")
    return said


def not_slower(
    learned: str,
    plain: str,
    rows: Sequence[ReplayedText],
    rng: np.random.Generator,
    confidence: float,
) -> dict[str, tuple[float, float]]:
    """By category the learned arm over plain decoding, and its lower bound; the bounds hold for all
    categories together (Bonferroni). Categories with too few questions for a bound are left out."""
    parts: dict[str, list[ReplayedText]] = defaultdict(list)
    for row in rows:
        if row.arm in (learned, plain):
            parts[row.category or "(none)"].append(row)
    each = 1 - 2 * (1 - confidence) / len(parts)  # one-sided
    found = {}
    for name, some in sorted(parts.items()):
        log_ratios_G = np.array(group_log_ratios(learned, plain, some))
        interval = bootstrap_interval(log_ratios_G, rng, each)
        if interval is not None:
            found[name] = (math.exp(log_ratios_G.mean()), math.exp(interval.low))
    return found


def _best_by_category(texts: Texts, grid: Mapping[Setting, np.ndarray]) -> dict[str, str]:
    found = {}
    for category in sorted(set(texts.categories)):
        there_T = np.array([one == category for one in texts.categories])
        best = min(grid, key=lambda one: float(grid[one][there_T].sum()))
        found[category or "(none)"] = str(best)
    return found
