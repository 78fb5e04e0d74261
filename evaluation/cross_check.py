"""The cost model against the clock: what measured prefix probabilities and costs predict of fixed settings,
and what one acceptance rate does, beside what was measured.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np

from decoding.controller import RootChoice
from decoding.cost_model import CycleCost, expected_emitted, expected_emitted_from_prefixes
from decoding.decision_table import DecisionTable
from decoding.profile import CostProfile
from decoding.setting import Setting
from evaluation.fixed_cycles import FixedCycles, fixed_cycles
from evaluation.schema_parts import CrossCheck

Bounds = tuple[float | None, float | None]
# What is 1 of plain decoding.
_PREDICTED = ("joint", "constant_alpha", "theorem", "emitted", "emitted_constant_alpha")


@dataclass(frozen=True, slots=True)
class Prediction:
    """What the cost model says of a fixed setting.

    Attributes:
        draft_depth: gamma, or levels of a tree; >= 1.
        prefixes: P(the first i drafted tokens are all accepted), over the setting's own cycles.
        acceptance_rate: alpha: of a first drafted token, over all positions.
        cost: in plain steps, at the texts' mean context.
    """

    draft_depth: int
    prefixes: tuple[Fraction, ...]
    acceptance_rate: Fraction
    cost: CycleCost

    @property
    def emitted(self) -> Fraction:
        """E, for any joint law: tokens over cycles."""
        return Fraction(expected_emitted_from_prefixes(self.prefixes))

    @property
    def emitted_constant_alpha(self) -> Fraction:
        """E if every token were accepted with one probability, independently (Leviathan, Kalman, Matias, ICML
        2023, arXiv 2211.17192, equation 1)."""
        return Fraction(expected_emitted(self.acceptance_rate, self.draft_depth))

    @property
    def joint(self) -> float:
        """Speed-up over plain decoding."""
        return float(self.emitted) / float(self.cost.time(self.draft_depth))

    @property
    def constant_alpha(self) -> float:
        """The same costs with one acceptance rate."""
        return float(self.emitted_constant_alpha) / float(self.cost.time(self.draft_depth))

    @property
    def theorem(self) -> float:
        """Their Theorem 3.8: besides, a verification costs a plain step, and nothing else costs anything."""
        published = CycleCost(self.cost.draft)
        return float(self.emitted_constant_alpha) / float(published.time(self.draft_depth))


def predict(
    table: DecisionTable, profile: CostProfile, setting: Setting, acceptance_rate: Fraction | None = None
) -> Prediction:
    """Of texts that are in the table.

    Args:
        acceptance_rate: None = this setting's own with one level.

    Raises:
        ValueError: the setting drafts no level: there is nothing to predict of a plain step, and a lookup
            alone has no depth.
    """
    if setting.draft_depth < 1:
        raise ValueError(f"setting {setting} drafts no level, must have a draft_depth of at least 1")
    if acceptance_rate is None:
        acceptance_rate = fixed_cycles(table, replace(setting, draft_depth=1)).first_accepted
    cycles = fixed_cycles(table, setting)
    cost = mean_cost(cycles, profile, setting.draft_depth, round(float(table.context_P.mean())))
    return Prediction(setting.draft_depth, cycles.prefixes(), acceptance_rate, cost)


def mean_cost(cycles: FixedCycles, profile: CostProfile, draft_depth: int, context: int) -> CycleCost:
    """What these cycles cost on average, in plain steps, if all of them had `context` tokens before them:
    `draft` a level of `draft_depth`, `verification` of as many rows as they have, `overhead` all else."""
    plain = float(profile.cycle_seconds(0, 0, context, questions=float(cycles.asked)))
    emitted_N, drafting_N = cycles.emitted_N, np.zeros(len(cycles.emitted_N))
    total_N = np.zeros(len(emitted_N))
    for alone in (False, True):
        those = np.flatnonzero(cycles.lookup_N == alone)
        if not len(those):
            continue
        levels, since, source = cycles.levels_N[those], cycles.since_N[those], profile.source(alone)
        for level in range(1, int(levels.max(initial=0)) + 1):
            seconds = profile.level_seconds(level, context, since, source)
            drafting_N[those] += np.where(levels >= level, seconds, 0.0)
        total_N[those] = profile.cycle_seconds(
            levels, cycles.size_N[those], context, since, emitted_N[those], source, cycles.questions_N[those]
        )
    verifying_N = profile.verification_seconds(cycles.size_N + 1, context, emitted_N)
    drafting, verifying = float(drafting_N.mean()), float(verifying_N.mean())
    return CycleCost(
        draft=drafting / draft_depth / plain,
        verification=verifying / plain,
        overhead=max(0.0, float(total_N.mean()) - drafting - verifying) / plain,
    )


def cross_check(
    table: DecisionTable,
    profile: CostProfile,
    settings: Mapping[int, Setting],
    measured: Mapping[int, float],
    intervals: Mapping[int, Bounds] | None = None,
    drafter: str = "head",
) -> list[CrossCheck]:
    """A row a depth that was measured, ascending.

    Args:
        table: the texts that were decoded, or others like them.
        profile: of the machine that decoded them.
        settings: of each depth, one kind of draft; those of depth 0 are plain steps.
        measured: depth -> tokens per second over plain decoding's, ratios of sums, of the same run.
        intervals: of `measured`, where known.
        drafter: what to call that kind.

    Raises:
        ValueError: a measured depth has no setting.
    """
    missing = sorted(depth for depth in measured if depth and depth not in settings)
    if missing:
        raise ValueError(f"depths {missing} were measured without a setting: give one for each")
    drafted = [depth for depth in sorted(measured) if depth]
    rate: Fraction | None = None
    rows = []
    for depth in sorted(measured):
        low, high = (intervals or {}).get(depth, (None, None))
        about: dict[str, Any] = {"draft_depth": depth, "measured": measured[depth], "low": low, "high": high}
        if not depth:
            rows.append(CrossCheck(**about, **dict.fromkeys(_PREDICTED, 1.0), drafter="plain"))
            continue
        if rate is None:
            shallowest = settings[drafted[0]]
            rate = fixed_cycles(table, replace(shallowest, draft_depth=1)).first_accepted
        said = predict(table, profile, settings[depth], rate)
        rows.append(
            CrossCheck(
                joint=said.joint,
                constant_alpha=said.constant_alpha,
                theorem=said.theorem,
                emitted=float(said.emitted),
                emitted_constant_alpha=float(said.emitted_constant_alpha),
                drafter=drafter,
                verification_size=settings[depth].verification_size,
                **about,
            )
        )
    return rows


def mean_errors(rows: Sequence[CrossCheck]) -> dict[str, float]:
    """Mean of |predicted / measured - 1| over all rows that draft, by way of prediction; ValueError if none
    does."""
    drafting = [row for row in rows if row.draft_depth]
    if not drafting:
        raise ValueError("no row drafts: measure at least one depth above 0")
    ways = ("joint", "constant_alpha", "theorem")
    return {
        way: float(np.mean([abs(getattr(row, way) / row.measured - 1) for row in drafting])) for way in ways
    }


def fixed_settings(
    choices: Sequence[RootChoice], draft_depths: Sequence[int], size: int, drafter: str
) -> dict[str, dict[int, Setting]]:
    """Settings of each depth, by what they draft with: of a merged drafter the head alone, a composite of its
    parts and the merged tree; of any other what it is called.

    Args:
        choices: that the drafter offers at the root.
        size: nodes verified, of all drafted ones; a chain of one node a level has no more than its depth.
    """
    kinds = {drafter: (RootChoice.ALL, False)}
    if RootChoice.HEAD in choices:
        kinds = {
            "head": (RootChoice.HEAD, False),
            "composite": (RootChoice.ALL, True),
            "merged": (RootChoice.ALL, False),
        }
    return {
        name: {depth: Setting(choice, depth, size, composite) for depth in draft_depths if depth}
        for name, (choice, composite) in kinds.items()
    }
