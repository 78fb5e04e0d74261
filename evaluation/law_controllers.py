"""Controllers for the check of the law: each decides by something that it is allowed to know, and by it
alone.

Under `rejection` that is what was drawn so far and the distribution of the next token; under `coupled` all
that was drafted, noise included.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from decoding.controller import Controller, DraftView, FixedController

_DEEPEST = 3


class ByValue:
    """Stops after a token of even id; verifies as many nodes as there are odd ones."""

    def wants_draft(self, view: DraftView) -> bool:
        return True

    def wants_level(self, view: DraftView) -> bool:
        return view.tree.depth < _DEEPEST and view.tree.tokens[-1] % 2 == 1

    def verification_size(self, view: DraftView) -> int:
        return sum(token % 2 == 1 for token in view.tree.tokens[1:])


class ByEntropy:
    """Drafts on while the draft is fairly sure: under `rejection` by the next token's distribution, under
    `coupled` by the last level's scores, which know the noise."""

    def wants_draft(self, view: DraftView) -> bool:
        return self._sureness(view) > 0.25

    def wants_level(self, view: DraftView) -> bool:
        return view.tree.depth < _DEEPEST and self._sureness(view) > 0.38

    def verification_size(self, view: DraftView) -> int:
        return sum(score > math.log(0.15) for score in view.tree.scores[1:])

    def _sureness(self, view: DraftView) -> float:
        """The sum of squared probabilities; where only path scores are known, the largest term of it."""
        if view.next_probs is not None:
            probs_V = view.next_probs()
            return 0.0 if probs_V is None else float((probs_V**2).sum())
        tree = view.tree
        if not tree.depth:
            return 1.0  # nothing is known before the first level
        gained = [tree.scores[node] - tree.scores[tree.parents[node]] for node in tree.level(tree.depth)]
        return math.exp(2 * max(gained))


class ByPosition:
    """Depth and size follow from the place in the text."""

    def wants_draft(self, view: DraftView) -> bool:
        return view.context_length % 4 != 0

    def wants_level(self, view: DraftView) -> bool:
        return view.tree.depth < _DEEPEST and (view.context_length + view.tree.depth) % 3 != 0

    def verification_size(self, view: DraftView) -> int:
        return 1 + view.context_length % 3


class ByHistory:
    """Drafts deeper after what was accepted, not at all after a rejection, a token after a plain step."""

    def wants_draft(self, view: DraftView) -> bool:
        return self._depth(view) > 0

    def wants_level(self, view: DraftView) -> bool:
        return view.tree.depth < self._depth(view)

    def verification_size(self, view: DraftView) -> int:
        return 1 + sum(record.accepted for record in view.history)

    def _depth(self, view: DraftView) -> int:
        if not view.history or view.history[-1].draft_depth == 0:
            return 1
        return min(_DEEPEST, 2 * view.history[-1].accepted)


CONTROLLERS: dict[str, Callable[[], Controller]] = {
    "fixed": lambda: FixedController(_DEEPEST, 2 * _DEEPEST),
    "value": ByValue,
    "entropy": ByEntropy,
    "position": ByPosition,
    "history": ByHistory,
}
