"""Decisions of gradient-boosted trees that know the structure of a cycle: of the reachable bound.

One regressor per action was worse than a constant: the best of many noisy predictions is optimistic. So

- what a verification gains grows with its size by what the next nodes bring: one regressor, shared over sizes
  and depths, corrects the increments that the calibrated scores expect, and the seconds of a size are the
  profile's;
- of each depth one regressor says what one level more costs beyond stopping there;
- at the root one, shared over drafts, says what a draft costs beyond a plain step.

All costs are rate * seconds - worth of tokens. Several members, each trained on other texts, are averaged.

Legend: B questions, F features, A actions, S sizes, R rows of a regressor's inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from decoding.cycle_features import CycleFeatures
from decoding.decisions import PLAIN_ACTION, Decisions
from decoding.features import CONTEXT_MIDDLE, CONTEXT_SCALE
from decoding.profile import CostProfile

# Of rows of inputs the values (R).
Regressor = Callable[[np.ndarray], np.ndarray]


@dataclass
class Member:
    """Regressors of one part of the texts.

    Attributes:
        increments: what a size gains beyond its expected increment, of `increment_inputs`.
        levels: by depth, of a question's features: what one level more costs beyond stopping.
        begin: what a draft costs beyond a plain step, of `begin_inputs`.
    """

    increments: Regressor | None = None
    levels: dict[int, Regressor] = field(default_factory=dict)
    begin: Regressor | None = None


class TreeRule:
    """A `decoding.decision_walk.Decide`.

    Args:
        features, decisions: of the questions.
        profile: the machine's costs.
        rate: tokens per second, the worth of a second.
        members: averaged; may be filled in from the deepest level back, as their training does.
    """

    def __init__(
        self,
        features: CycleFeatures,
        decisions: Decisions,
        profile: CostProfile,
        rate: float,
        members: Sequence[Member],
    ) -> None:
        self.features, self.decisions, self.profile, self.rate = features, decisions, profile, rate
        self.members = members
        self._depth, self._context = map(features.names.index, ("draft_depth", "log2_context_length"))

    def alone(self, member: Member) -> TreeRule:
        """The rule of one member."""
        return TreeRule(self.features, self.decisions, self.profile, self.rate, [member])

    def __call__(self, features_BF: np.ndarray, allowed_BA: np.ndarray) -> np.ndarray:
        actions_B = np.full(len(features_BF), self.decisions.continue_action)
        # Not by the features: a draft that found nothing looks like its root.
        root_B = allowed_BA[:, PLAIN_ACTION]
        if root_B.any():
            actions_B[root_B] = self.begin(features_BF[root_B], allowed_BA[root_B])
        later = np.flatnonzero(~root_B)
        if len(later):
            stops = later[~self.goes_on(features_BF[later], allowed_BA[later])]
            if len(stops):
                actions_B[stops] = self.stop(features_BF[stops], allowed_BA[stops])
        return actions_B

    def begin(self, features_BF: np.ndarray, allowed_BA: np.ndarray) -> np.ndarray:
        """(B) the action at roots."""
        costs_BA = np.full((len(features_BF), 1 + len(self.decisions.choices)), np.inf)
        costs_BA[:, PLAIN_ACTION] = 0.0
        regressors = [one.begin for one in self.members if one.begin is not None]
        for choice in self.decisions.choices:
            action = self.decisions.draft_action(choice)
            those = np.flatnonzero(allowed_BA[:, action])
            if len(those):
                costs_BA[those, action] = _mean(regressors, begin_inputs(features_BF[those], action))
        actions_B: np.ndarray = costs_BA.argmin(axis=1)
        return actions_B

    def goes_on(self, features_BF: np.ndarray, allowed_BA: np.ndarray) -> np.ndarray:
        """bool (B) of questions after a level: whether to draft one more."""
        goes_on_B = allowed_BA[:, self.decisions.continue_action].copy()
        depth_B = np.rint(features_BF[:, self._depth] * self.features.max_depth).astype(np.int64)
        for depth in np.unique(depth_B[goes_on_B]).tolist():
            those = np.flatnonzero(goes_on_B & (depth_B == depth))
            regressors = [one.levels[depth] for one in self.members if depth in one.levels]
            # Too deep for anyone to have learned about it: stop.
            goes_on_B[those] = _mean(regressors, features_BF[those]) < 0 if regressors else False
        return goes_on_B

    def stop(self, features_BF: np.ndarray, allowed_BA: np.ndarray) -> np.ndarray:
        """(B) the `verify` action of questions after a level, or of a finished draft."""
        first = self.decisions.continue_action + 1
        verify_BS = allowed_BA[:, first:]
        rows_S = np.array(self.decisions.sizes) + 1
        context_B = np.rint(2.0 ** (features_BF[:, self._context] * CONTEXT_SCALE + CONTEXT_MIDDLE))
        context_B = np.maximum(1, context_B).astype(np.int64)
        seconds_BS = self.profile.verification_seconds(rows_S[None], context_B[:, None])
        seconds_BS = seconds_BS + self.profile.selection_seconds(0, rows_S - 1)
        costs_BS = self.rate * seconds_BS - self._gains(features_BF, verify_BS)
        actions_B: np.ndarray = first + np.where(verify_BS, costs_BS, np.inf).argmin(axis=1)
        return actions_B

    def _gains(self, features_BF: np.ndarray, verify_BS: np.ndarray) -> np.ndarray:
        """(B, S) tokens, or their worth, that a verification brings beyond its first one."""
        at_B, size_B = np.nonzero(verify_BS)
        inputs, expected = increment_inputs(self.features, features_BF, at_B, size_B)
        regressors = [one.increments for one in self.members if one.increments is not None]
        gains_BS = np.zeros(verify_BS.shape)
        gains_BS[at_B, size_B] = expected + _mean(regressors, inputs)
        # A token is also committed, at a cost of its own.
        worth = 1.0 - self.rate * (self.profile.verification_token + self.profile.commit[1])
        total_BS: np.ndarray = worth * np.cumsum(gains_BS, axis=1)
        return total_BS


def increment_inputs(
    features: CycleFeatures, features_BF: np.ndarray, at_R: np.ndarray, size_R: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Of rows, each a question and a size by its place: what the regressor sees, and the increment of tokens
    over the size before that the calibrated scores expect."""
    first = features.names.index(f"expected_{features.sizes[0]}")
    expected_BS = features_BF[:, first : first + len(features.sizes)]
    steps_R = np.diff(expected_BS, axis=1, prepend=np.float32(0))[at_R, size_R]
    return np.column_stack([features_BF[at_R], size_R.astype(np.float32), steps_R]), steps_R


def begin_inputs(features_BF: np.ndarray, action: int) -> np.ndarray:
    """What the regressor of the root sees: the features, and which draft is meant."""
    return np.column_stack([features_BF, np.full(len(features_BF), action, dtype=np.float32)])


def _mean(regressors: Sequence[Regressor], inputs: np.ndarray) -> np.ndarray:
    mean: np.ndarray = np.mean([one(inputs) for one in regressors], axis=0)
    return mean
