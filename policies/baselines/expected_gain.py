"""Expected gain over cost, the strongest hand-written rule.

A function of a policy's features alone, so that the same code decides in replay, a batch at a time, and in a
decoder (`Deciding`).

Legend: B questions, A actions, F features, S sizes, K buckets of match lengths.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from decoding.cycle_features import MATCH_SCALE, CycleFeatures
from decoding.decision_costs import DecisionCosts
from decoding.decision_table import ROOT_NODE, DecisionTable, Nodes
from decoding.decision_values import decided, realised_costs
from decoding.decision_walk import replay_texts
from decoding.decisions import PLAIN_ACTION, Decisions
from decoding.features import CONTEXT_MIDDLE, CONTEXT_SCALE
from decoding.profile import CostProfile

# Upper ends of the buckets of match lengths; 0 = no match.
MATCH_BUCKETS = (0, 2, 4, 8)
CONTEXT_STEP = 64
# The growth of a level's expected tokens that is assumed; the best on training texts is kept.
GROWTHS = (0.2, 0.35, 0.5, 0.65, 0.8, 1.0)


class ExpectedGain:
    """Stop when the next level's expected tokens are worth less than its time; verify the size whose
    expected tokens, less its time, are most (CAST, arXiv 2510.26577; vLLM's adaptive verification).

    Args:
        features: of the questions.
        decisions: what can be answered.
        profile: the machine's costs.
        rate: tokens per second, the worth of a token.
        growth: what a level is expected to add, over what the one before it added.
        root_actions: at the root, for each bucket of match lengths (`MATCH_BUCKETS`, and above).
    """

    def __init__(
        self,
        features: CycleFeatures,
        decisions: Decisions,
        profile: CostProfile,
        rate: float,
        growth: float,
        root_actions: Sequence[int],
    ) -> None:
        self.decisions, self.profile = decisions, profile
        self.rate, self.growth, self.root_actions = rate, growth, tuple(root_actions)
        self._max_depth = features.max_depth
        names = ("draft_depth", "level_sum", "match_length", "log2_context_length")
        self._depth, self._level, self._match, self._context = map(features.names.index, names)
        first = features.names.index(f"expected_{features.sizes[0]}")
        self._expected = slice(first, first + len(features.sizes))
        self._rows = np.array(features.sizes) + 1

    @property
    def fitted(self) -> dict[str, Any]:
        """What training texts said: `rate`, `growth` and `root_actions`; JSON values."""
        return {"rate": self.rate, "growth": self.growth, "root_actions": list(self.root_actions)}

    def __call__(self, features_BF: np.ndarray, allowed_BA: np.ndarray) -> np.ndarray:
        more = self.decisions.continue_action
        context_B = rounded_context(features_BF[:, self._context])
        seconds_BS = self.profile.verification_seconds(self._rows[None], context_B[:, None])
        worth_BS = features_BF[:, self._expected] - self.rate * seconds_BS
        verify_B = more + 1 + np.where(allowed_BA[:, more + 1 :], worth_BS, -np.inf).argmax(axis=1)
        level_B = np.rint(features_BF[:, self._depth] * self._max_depth).astype(np.int64)
        deepest = len(self.profile.levels[self.profile.source(False)])
        next_B = np.minimum(level_B + 1, deepest)
        cost_B = self.profile.level_seconds(next_B, context_B, 1, self.profile.source(False))
        gain_B = self.growth * features_BF[:, self._level]
        continues_B = allowed_BA[:, more] & (gain_B > self.rate * cost_B)
        match_B = np.rint(2.0 ** (features_BF[:, self._match] * MATCH_SCALE) - 1)
        first_B = np.array(self.root_actions)[np.searchsorted(MATCH_BUCKETS, match_B)]
        first_B = np.where(allowed_BA[np.arange(len(first_B)), first_B], first_B, PLAIN_ACTION)
        later_B = np.where(continues_B, more, verify_B)
        # Not by the features: a draft that found nothing looks like its root.
        actions_B: np.ndarray = np.where(allowed_BA[:, PLAIN_ACTION], first_B, later_B)
        return actions_B


def fit_expected_gain(
    table: DecisionTable, costs: DecisionCosts, profile: CostProfile, rate: float
) -> ExpectedGain:
    """The rule with the growth and the root's actions that are best on these texts.

    Args:
        rate: tokens per second to begin with, e.g. of the best constant.
    """
    rules = []
    for growth in GROWTHS:
        rule = _with_roots(table, costs, profile, rate, growth)
        seconds = float(replay_texts(table, costs, rule).sum())
        rules.append((seconds, growth))
    seconds, growth = min(rules)
    return _with_roots(table, costs, profile, max(rate, table.positions / seconds), growth)


def _with_roots(
    table: DecisionTable, costs: DecisionCosts, profile: CostProfile, rate: float, growth: float
) -> ExpectedGain:
    """Before a draft nothing is known of it: of each bucket of matches the draft that cost least there."""
    decisions, nodes = table.decisions, Nodes.of(table.decisions)
    blank = [PLAIN_ACTION] * (len(MATCH_BUCKETS) + 1)
    rule = ExpectedGain(table.features, decisions, profile, rate, growth, blank)
    cost_PN = realised_costs(table, costs, decided(table, rule), rate)
    match = table.features.names.index("match_length")
    match_P = np.rint(2.0 ** (table.features_PNF[:, ROOT_NODE, match] * MATCH_SCALE) - 1)
    bucket_P = np.searchsorted(MATCH_BUCKETS, match_P)
    actions = []
    for bucket in range(len(blank)):
        there_P = (bucket_P == bucket) & table.asked_P
        if not there_P.any():
            actions.append(PLAIN_ACTION)
            continue
        means = {PLAIN_ACTION: (rate * (costs.plain_P[there_P] + costs.question) - 1.0).mean()}
        for choice in decisions.choices:
            action, first = decisions.draft_action(choice), nodes.choice.index(choice)
            if table.allowed_PNA[there_P, ROOT_NODE, action].all():
                arrive_P = rate * (costs.arrive_PN[there_P, first] + costs.question)
                means[action] = (arrive_P + cost_PN[there_P, first]).mean()
        actions.append(min(means, key=lambda one: means[one]))
    return ExpectedGain(table.features, decisions, profile, rate, growth, actions)


def rounded_context(feature_B: np.ndarray) -> np.ndarray:
    """Of the feature the committed tokens, to whole `CONTEXT_STEP`s: costs hardly change within one, and a
    decoder looks them up."""
    context_B = np.rint(2.0 ** (feature_B.astype(np.float64) * CONTEXT_SCALE + CONTEXT_MIDDLE))
    steps_B: np.ndarray = np.maximum(1, np.rint(context_B / CONTEXT_STEP)).astype(np.int64)
    return steps_B * CONTEXT_STEP
