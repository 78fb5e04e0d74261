"""Stop where a bound on the acceptance falls below a threshold that follows the request."""

from __future__ import annotations

import math

from decoding.controller import DraftView
from decoding.records import CycleRecord
from policies.baselines.certainty import entropy
from policies.baselines.depth_rule import DepthRule, Frame, accepted_levels, check_number

FACTOR = 0.2
KEEP_RATE, KEEP_THRESHOLD = 0.5, 0.9


class AdaEdl(DepthRule):
    """AdaEDL: stop once 1 - sqrt(0.2 * entropy), about the least that a token's acceptance probability can
    be, is below lambda. After a cycle, with n of d drafted tokens accepted,

        rate   <- 0.5 * rate + 0.5 * n / d
        lambda <- 0.9 * lambda + 0.1 * wanted

    where `wanted` is lambda + step if the rate is below the target, else lambda - step, or lambda itself if
    then a draft of the greatest depth was accepted whole: a lower lambda could not have made it longer.

    Source: Agrawal, Jeon, Lee, "AdaEDL: Early Draft Stopping for Speculative Decoding of Large Language
    Models via an Entropy-based Lower Bound on Token Acceptance Probability", arXiv 2410.18351, algorithm 1.
    Its defaults: factor 0.2, target 0.9, step 0.01, weights 0.5 and 0.9; it tries first values of lambda from
    0.3 to 0.9 and fixes none. Known to us by two public implementations with the same numbers; of the case of
    a full draft they say opposite things, and the one that cites the algorithm is followed.

    There the bound is asked of the next token, before it is drawn; here of the level that was drafted, which
    stays. The rate begins at the target. The entropy is that of the level's best row, see `certainty.py`.

    Args:
        start: lambda of a request's first draft, 0..1.
        target: acceptance rate, 0..1.
        step: of lambda, 0..1.
    """

    def __init__(self, frame: Frame, start: float = 0.5, target: float = 0.9, step: float = 0.01) -> None:
        super().__init__(frame)
        for name, value in (("start", start), ("target", target), ("step", step)):
            check_number(name, value, 0, 1)
        self.threshold, self.rate = start, target
        self._target, self._step = target, step

    def goes_on(self, view: DraftView) -> bool:
        return 1 - math.sqrt(FACTOR * entropy(view.tree, view.tree.depth)) >= self.threshold

    def observe(self, record: CycleRecord) -> None:
        accepted = accepted_levels(record)
        self.rate = KEEP_RATE * self.rate + (1 - KEEP_RATE) * accepted / record.draft_depth
        wanted = self.threshold
        if self.rate < self._target:
            wanted += self._step
        elif accepted < self.frame.max_depth:
            wanted -= self._step
        self.threshold = KEEP_THRESHOLD * self.threshold + (1 - KEEP_THRESHOLD) * wanted
