"""Who takes the decisions that the agent is not asked, where it is neither a constant nor a policy."""

from __future__ import annotations

import numpy as np

from decoding.controller import DraftView


class UniformDepth:
    """Drafts to a depth drawn anew in every cycle, uniformly in 1..max_depth; verifies all of it.

    Whoever learns beside it meets all depths equally often. Draws come with the cycle, from the environment's
    generator, which is part of every checkpoint.
    """

    def __init__(self, max_depth: int) -> None:
        if type(max_depth) is not int or max_depth < 1:
            raise ValueError(f"max_depth is {max_depth!r}, must be a whole number >= 1")
        self.max_depth = self.draft_depth = max_depth

    def begin_cycle(self, rng: np.random.Generator) -> None:
        """Draw the depth of the cycle that is about to begin."""
        self.draft_depth = int(rng.integers(1, self.max_depth + 1))

    def wants_draft(self, view: DraftView) -> bool:
        return True

    def wants_level(self, view: DraftView) -> bool:
        return view.tree.depth < self.draft_depth

    def verification_size(self, view: DraftView) -> int:
        return view.tree.size
