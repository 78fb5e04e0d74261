"""A bandit over constants that learns online what each of them is worth."""

from __future__ import annotations

import math
from collections.abc import Sequence

from decoding.controller import DraftView, RootChoice
from decoding.records import CycleRecord
from policies.baselines.depth_rule import Frame, check_number

# A setting; None: a plain step.
BanditArm = Frame | None


class Bandit:
    """UCBSpec's statistics, shared by all requests of a run: what it does depends on their order, which
    whoever compares runs must keep. Arms that were never observed come first, in order; then the one with the
    greatest

        mean reward + (L / 2) * sqrt((1 + n) / n^2 * (1 + 2 * log(K * t^2 * sqrt(1 + n) / delta)))

    of K arms after t cycles, n of them its own; of equals the first.

    Source: Hou, Zhang, Du, Zhang, Pan, Pang, Du, Tan, Yang, "BanditSpec: Adaptive Speculative Decoding via
    Bandit Algorithms", arXiv 2505.15141, algorithm 4, equations 5 to 7. There rewards are accepted tokens, in
    a range L, or as in its section 6.2 and here, where arms are lengths, the cycle's tokens per second. They
    are counted in the run's own mean of it, so that one exploration suits every machine. The default
    exploration, L / 2 = 2, is of its greatest length, 4; delta, which it does not state, is 1.

    Args:
        arms: at least one.
        exploration: L / 2, >= 0.
    """

    def __init__(self, arms: Sequence[BanditArm], exploration: float = 2.0) -> None:
        if not arms:
            raise ValueError("there are no arms: give the bandit at least one setting")
        check_number("exploration", exploration, 0, 1000)
        self.arms = tuple(arms)
        self.pulls = [0] * len(self.arms)
        self.rewards = [0.0] * len(self.arms)
        self._exploration = exploration
        self._tokens, self._seconds = 0, 0.0

    def choose(self) -> int:
        """The arm of the next cycle, by its place."""
        bounds = [self.bound(place) for place in range(len(self.arms))]
        return max(range(len(bounds)), key=bounds.__getitem__)

    def bound(self, place: int) -> float:
        """Upper confidence bound of an arm's reward, in the run's mean tokens per second; infinite for one
        that was never observed."""
        pulls = self.pulls[place]
        if not pulls:
            return math.inf
        total = sum(self.pulls)
        spread = 1 + 2 * math.log(len(self.arms) * total**2 * math.sqrt(1 + pulls))
        radius = math.sqrt((1 + pulls) / pulls**2 * spread)
        mean = self.rewards[place] / pulls * self._seconds / self._tokens
        return mean + self._exploration * radius

    def observe(self, place: int, record: CycleRecord) -> None:
        """What the arm's cycle came to."""
        self.pulls[place] += 1
        self.rewards[place] += record.tokens_per_second
        self._tokens += record.emitted
        self._seconds += record.seconds.total


class Ucb:
    """The bandit's controller for one request."""

    def __init__(self, bandit: Bandit) -> None:
        self._bandit = bandit
        self._place: int | None = None
        self._arm: BanditArm = None

    def wants_draft(self, view: DraftView) -> RootChoice:
        if self._place is not None and view.history:
            self._bandit.observe(self._place, view.history[-1])
        self._place = self._bandit.choose()
        self._arm = self._bandit.arms[self._place]
        return RootChoice.PLAIN if self._arm is None else self._arm.choice(view)

    def wants_level(self, view: DraftView) -> bool:
        return self._arm is not None and view.tree.depth < self._arm.max_depth

    def verification_size(self, view: DraftView) -> int:
        return 0 if self._arm is None else self._arm.size
