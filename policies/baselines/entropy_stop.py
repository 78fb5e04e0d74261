"""Stop after a level whose tokens the drafter found hard to tell apart."""

from __future__ import annotations

import math

from decoding.controller import DraftView
from policies.baselines.certainty import entropy
from policies.baselines.depth_rule import DepthRule, Frame, check_number

SCALE = 0.15


class EntropyStop(DepthRule):
    """SVIP: the draft ends with the first token that was drawn from a distribution with
    sqrt(c * entropy) > threshold.

    Source: Zhang, Xu, Liang, Chen, He, Wang, Tu, "Draft Model Knows When to Stop: A Self-Verification Length
    Policy for Speculative Decoding", arXiv 2411.18462: the acceptance probability is at least 1 minus
    the root of half the divergence of draft and target (Pinsker), which is about a constant times the draft's
    own entropy. c = 0.15, threshold 0.3 and at most 40 tokens are those of the authors' code
    (Geralt-Targaryen/SVIP).

    The entropy is that of the level's best row, see `certainty.py`.

    Args:
        threshold: >= 0.
    """

    def __init__(self, frame: Frame, threshold: float = 0.3) -> None:
        super().__init__(frame)
        check_number("threshold", threshold, 0, 10)
        self.threshold = threshold

    def goes_on(self, view: DraftView) -> bool:
        return math.sqrt(SCALE * entropy(view.tree, view.tree.depth)) <= self.threshold
