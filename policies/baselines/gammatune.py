"""Follow the accepted length: widen at once, narrow slowly."""

from __future__ import annotations

import math

from decoding.controller import MAX_DRAFT_DEPTH, DraftView
from decoding.records import CycleRecord
from policies.baselines.certainty import confidence
from policies.baselines.depth_rule import DepthRule, Frame, accepted_levels, check_number, check_whole


class GammaTune(DepthRule):
    """GammaTune: after a draft of which all n tokens were accepted the depth is n + widening; after any other

        mean  <- (1 - smoothing) * mean + smoothing * n, held to 1..the greatest depth
        depth <- mean, rounded up

    GammaTune+ also stops after a token whose probability is below `confidence`.

    Source: Gautam, Shrestha, Reddy, "Token-Driven GammaTune: Adaptive Calibration for Enhanced Speculative
    Decoding", arXiv 2504.00030, algorithm 1; smoothing and widening are its eta and delta. Known to us by a
    public implementation of that algorithm: smoothing 0.3, widening 2 and start 3 are its values, and not
    known to be the paper's, which is said to try starts from 1 to 24.

    Args:
        start: depth of a request's first draft, >= 1.
        smoothing: weight of the last cycle, 0..1.
        widening: >= 0.
        confidence: of the level's best node given its parent, 0..1; 0 = GammaTune without the plus.
    """

    def __init__(
        self,
        frame: Frame,
        start: int = 3,
        smoothing: float = 0.3,
        widening: int = 2,
        confidence: float = 0.0,
    ) -> None:
        super().__init__(frame)
        check_whole("start", start, 1, MAX_DRAFT_DEPTH)
        check_whole("widening", widening, 0, MAX_DRAFT_DEPTH)
        check_number("smoothing", smoothing, 0, 1)
        check_number("confidence", confidence, 0, 1)
        self.depth = min(start, frame.max_depth)
        self.mean = float(self.depth)
        self._smoothing, self._widening, self._confidence = smoothing, widening, confidence

    def observe(self, record: CycleRecord) -> None:
        accepted, most = accepted_levels(record), self.frame.max_depth
        if accepted == record.draft_depth:
            self.depth = min(accepted + self._widening, most)
        else:
            mean = (1 - self._smoothing) * self.mean + self._smoothing * accepted
            self.mean = min(max(mean, 1.0), float(most))
            self.depth = math.ceil(self.mean)

    def goes_on(self, view: DraftView) -> bool:
        depth = view.tree.depth
        if depth >= self.depth:
            return False
        return not self._confidence or confidence(view.tree, depth) >= self._confidence
