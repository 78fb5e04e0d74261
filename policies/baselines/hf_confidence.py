"""Stop after a level that the drafter was not confident of."""

from __future__ import annotations

from bisect import insort

from decoding.controller import DraftView
from decoding.records import CycleRecord
from policies.baselines.certainty import confidence
from policies.baselines.depth_rule import DepthRule, Frame, accepted_levels, check_number

# What a stop before an accepted token costs over a level that was drafted in vain.
MISSED = 3.0
FEWEST = 6


class HfConfidence(DepthRule):
    """Hugging Face transformers' dynamic speculation: the draft ends with the first token whose probability
    is below a threshold, which follows the request's own hits and misses.

    Source: transformers 5.24, `ConfidenceCriteria` and `AssistedCandidateGenerator`, after Mamou et al.,
    "Dynamic Speculation Lookahead Accelerates Speculative Decoding of Large Language Models", arXiv
    2405.04304. Defaults: `assistant_confidence_threshold` 0.4, at most 20 tokens; with more than 5 tokens
    seen, accepted and rejected ones among them, the threshold becomes the point of the ROC curve with the
    least false positive rate + 3 * false negative rate (costs of 25 % and 75 %), of equals the highest. There
    it outlives the request; here, as for every rule but the bandit, a request begins anew.

    A token's probability is the survival of the level's best node given its parent; a level was right if the
    target followed to it. Under the `rejection` rule, where no size is asked for, the threshold stays.

    Args:
        threshold: of a request's first draft, 0..1.
        adapted: whether it follows the request.
    """

    def __init__(self, frame: Frame, threshold: float = 0.4, adapted: bool = True) -> None:
        super().__init__(frame)
        check_number("threshold", threshold, 0, 1)
        if type(adapted) is not bool:
            raise ValueError(f"adapted is {adapted!r}, must be True or False")
        self.threshold = threshold
        self._adapted = adapted
        self._drafted: list[float] = []
        self._seen: list[tuple[float, bool]] = []

    def goes_on(self, view: DraftView) -> bool:
        return confidence(view.tree, view.tree.depth) >= self.threshold

    def verification_size(self, view: DraftView) -> int:
        if self._adapted:
            # Here, since of the deepest level that is possible nobody is asked.
            tree = view.tree
            self._drafted = [confidence(tree, depth) for depth in range(1, tree.depth + 1)]
        return super().verification_size(view)

    def observe(self, record: CycleRecord) -> None:
        accepted = accepted_levels(record)
        # Of what lies below the first wrong token nobody knows whether it would have been right.
        for depth, sure in enumerate(self._drafted[: accepted + 1], start=1):
            insort(self._seen, (sure, depth <= accepted))
        self._drafted = []
        right = sum(hit for _, hit in self._seen)
        if len(self._seen) >= FEWEST and 0 < right < len(self._seen):
            self.threshold = best_threshold(self._seen)


def best_threshold(seen: list[tuple[float, bool]]) -> float:
    """Of confidences, ascending, with whether the token was right, the one from which on drafting costs
    least; at least one was right and one was wrong."""
    right = sum(hit for _, hit in seen)
    wrong = len(seen) - right
    least, best, hits, misses = float("inf"), 1.0, 0, 0
    for place in range(len(seen) - 1, -1, -1):
        sure, hit = seen[place]
        hits, misses = hits + hit, misses + (not hit)
        if place and seen[place - 1][0] == sure:
            continue  # equal confidences stand on one side of a threshold
        cost = misses / wrong + MISSED * (1 - hits / right)
        if cost < least:
            least, best = cost, sure
    return best
