"""Expected gain over cost for a decoder: the same decisions as `expected_gain.ExpectedGain`, one at a time.

Its costs are looked up and its sums are a policy's features, so that it is as cheap as a rule can be: a rule
that takes a millisecond would lose for that alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from decoding.controller import DraftView, QuestionKind
from decoding.cycle_features import CycleFeatures
from decoding.decisions import PLAIN_ACTION
from policies.baselines.expected_gain import CONTEXT_STEP, MATCH_BUCKETS, ExpectedGain


class LiveExpectedGain:
    """A `decoding.decisions.Decides`.

    Args:
        rule: what it decides like.
        features: of the request.
    """

    def __init__(self, rule: ExpectedGain, features: CycleFeatures) -> None:
        self._rule, self._features = rule, features
        self._level = features.names.index("level_sum")
        self._first = features.names.index(f"expected_{features.sizes[0]}")
        self._costs: dict[int, tuple[list[float], list[float]]] = {}

    def decide(self, kind: QuestionKind, view: DraftView, allowed: Sequence[bool]) -> int:
        rule = self._rule
        if kind == "draft":
            length = 0 if view.lookup is None else view.lookup.match_length
            bucket = sum(length > end for end in MATCH_BUCKETS)
            action = rule.root_actions[bucket]
            return action if allowed[action] else PLAIN_ACTION
        entries = self._features.of_position(view)
        verification, levels = self._costs_at(view.context_length)
        more = rule.decisions.continue_action
        if allowed[more]:
            following = min(view.tree.depth, len(levels) - 1)
            if rule.growth * entries[self._level] > levels[following]:
                return more
        best, most = more + 1, -np.inf
        for place, cost in enumerate(verification):
            worth = entries[self._first + place] - cost
            if allowed[more + 1 + place] and worth > most:
                best, most = more + 1 + place, worth
        return best

    def _costs_at(self, context: int) -> tuple[list[float], list[float]]:
        """In tokens, of a verification of each size and of each level, at the nearest step of contexts."""
        step = max(1, round(context / CONTEXT_STEP)) * CONTEXT_STEP
        if step not in self._costs:
            profile, rate = self._rule.profile, self._rule.rate
            source = profile.source(False)
            levels = np.arange(1, len(profile.levels[source]) + 1)
            rows = np.array(self._features.sizes) + 1
            self._costs[step] = (
                (rate * profile.verification_seconds(rows, step)).tolist(),
                (rate * profile.level_seconds(levels, step, 1, source)).tolist(),
            )
        return self._costs[step]
