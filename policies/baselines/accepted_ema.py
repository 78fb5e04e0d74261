"""A few depths, and a smoothed accepted length that moves between them."""

from __future__ import annotations

from collections.abc import Sequence

from decoding.controller import MAX_DRAFT_DEPTH, DraftView
from decoding.records import CycleRecord
from policies.baselines.depth_rule import DepthRule, Frame, accepted_levels, check_number, check_whole


class AcceptedEma(DepthRule):
    """SGLang's adaptive speculation for one request: the depth is one of a few steps. Of the accepted tokens
    of each cycle an exponential moving average is kept; after `warm_up` cycles, every `interval` of them,

    - it moves down while the average is at most (the next lower step) - 0.5 + `down`,
    - else, if it did not, up while the average is above (its own step) - 0.5 + `up`.

    Source: sgl-project/sglang, `AdaptiveSpeculativeParams` (pull requests 21599 and 24055). Defaults for a
    batch of 1: steps 1, 3, 5, 7 (before: 1, 3, 7), smoothing 0.2, interval 5, warm-up 10, up 0, down -0.25. A
    first depth that is no step becomes the middle one; the average begins one below it. There all requests of
    a server share the average; here a request begins anew. Steps above the frame's greatest depth are left
    out.

    Args:
        steps: depths >= 1, strictly increasing.
        smoothing: weight of the last cycle, 0..1.
        interval, warm_up: cycles that the head drafted in.
        up, down: what the average must pass a threshold by, in tokens.
    """

    def __init__(
        self,
        frame: Frame,
        steps: Sequence[int] = (1, 3, 5, 7),
        smoothing: float = 0.2,
        interval: int = 5,
        warm_up: int = 10,
        up: float = 0.0,
        down: float = -0.25,
    ) -> None:
        super().__init__(frame)
        if not steps or list(steps) != sorted(set(steps)):
            raise ValueError(f"steps are {steps!r}, must be strictly increasing, at least one")
        for step in steps:
            check_whole("a step", step, 1, MAX_DRAFT_DEPTH)
        check_number("smoothing", smoothing, 0, 1)
        check_whole("interval", interval, 1, 10**6)
        check_whole("warm_up", warm_up, 0, 10**6)
        check_number("up", up, -10, 10)
        check_number("down", down, -10, 10)
        self._steps = [step for step in steps if step <= frame.max_depth] or [frame.max_depth]
        self._place = len(self._steps) // 2
        self.mean = float(self.depth - 1)
        self._smoothing, self._interval, self._warm_up = smoothing, interval, warm_up
        self._up, self._down = up, down
        self._cycles = 0

    @property
    def depth(self) -> int:
        """Of the next draft."""
        return self._steps[self._place]

    def observe(self, record: CycleRecord) -> None:
        self.mean += self._smoothing * (accepted_levels(record) - self.mean)
        self._cycles += 1
        since = self._cycles - self._warm_up
        if since > 0 and since % self._interval == 0:
            self._move()

    def _move(self) -> None:
        steps, before = self._steps, self._place
        while self._place > 0 and self.mean <= steps[self._place - 1] - 0.5 + self._down:
            self._place -= 1
        if self._place < before:
            return
        while self._place < len(steps) - 1 and self.mean > steps[self._place] - 0.5 + self._up:
            self._place += 1

    def goes_on(self, view: DraftView) -> bool:
        return view.tree.depth < self.depth
