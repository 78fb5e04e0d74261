"""What a policy that takes every decision of a cycle sees: one source for training and decoding.

At most 32 numbers of about unit range, scaled with fixed constants: no running statistics. Path scores are
calibrated log-probabilities, so their exponentials are how likely nodes are on the accepted path, and a sum
of the s largest is how many tokens a verification of s nodes is expected to accept.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from decoding.controller import DraftView
from decoding.features import CONTEXT_HIGHEST, CONTEXT_LOWEST, CONTEXT_MIDDLE, CONTEXT_SCALE, recent_emitted

MOST_SIZES = 10
MOST_COSTS = 4
SCORE_FLOOR = -20.0
MARGIN_SCALE = 5.0
MATCH_SCALE = 5.0  # log2(1 + match): a match of 31 tokens and more reads 1
COST_HIGHEST = 8.0
HISTORY_NAMES = ("emitted_last", "emitted_mean_4")
_exp, _log2 = math.exp, math.log2


@dataclass(frozen=True)
class CycleFeatures:
    """The features of one question.

    Args:
        sizes: verification sizes that the policy chooses from, at most 10.
        max_depth: greatest draft_depth, >= 1.
        temperature: of the request's law.
        cost_ratios: of this machine, at most 4: what some parts of a cycle cost over a plain step's forward;
            they are the same in every question, and let one policy serve several machines.

    Attributes:
        names: the entries, in order: those of the text's position first, the last two of the request's
            history (`HISTORY_NAMES`).
        low, high: float32 bounds, (len(names),).
    """

    sizes: tuple[int, ...]
    max_depth: int
    temperature: float = 0.0
    cost_ratios: tuple[float, ...] = ()
    names: tuple[str, ...] = field(init=False, repr=False, compare=False)
    low: np.ndarray = field(init=False, repr=False, compare=False)
    high: np.ndarray = field(init=False, repr=False, compare=False)
    _tail: list[float] = field(init=False, repr=False, compare=False)
    _no_draft: list[float] = field(init=False, repr=False, compare=False)
    _most: float = field(init=False, repr=False, compare=False)
    _shown: tuple[bool, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        rising = list(self.sizes) == sorted(set(self.sizes))
        if not 1 <= len(self.sizes) <= MOST_SIZES or not rising or self.sizes[0] < 1:
            raise ValueError(
                f"sizes are {self.sizes}, must be 1 to {MOST_SIZES}, strictly increasing, from 1 up"
            )
        if type(self.max_depth) is not int or self.max_depth < 1:
            raise ValueError(f"max_depth is {self.max_depth!r}, must be a whole number >= 1")
        if len(self.cost_ratios) > MOST_COSTS or not all(0 <= one < math.inf for one in self.cost_ratios):
            raise ValueError(
                f"cost_ratios are {self.cost_ratios}, must be at most {MOST_COSTS}, finite and >= 0"
            )
        if not 0 <= self.temperature < math.inf:
            raise ValueError(f"temperature is {self.temperature}, must be finite and >= 0")
        entries = [
            ("at_root", 0.0, 1.0),
            ("lookup_alone", 0.0, 1.0),
            ("draft_depth", 0.0, 1.0),
            ("level_best", 0.0, 1.0),
            ("level_second", 0.0, 1.0),
            ("level_sum", 0.0, 1.0),
            ("level_margin", 0.0, 1.0),
            *((f"expected_{size}", 0.0, float(self.max_depth)) for size in self.sizes),
            ("match_length", 0.0, 1.0),
            ("match_share", 0.0, 1.0),
            ("agrees", -1.0, 1.0),
            ("tokens_left", 0.0, 1.0),
            ("log2_context_length", CONTEXT_LOWEST, CONTEXT_HIGHEST),
            ("temperature", 0.0, 2.0),
            *((f"cost_{place}", 0.0, COST_HIGHEST) for place in range(len(self.cost_ratios))),
            *((name, 0.0, 1.0) for name in HISTORY_NAMES),
        ]
        names, low, high = zip(*entries, strict=True)
        object.__setattr__(self, "names", names)
        for attribute, values in (("low", low), ("high", high)):
            bounds = np.array(values, dtype=np.float32)
            bounds.setflags(write=False)
            object.__setattr__(self, attribute, bounds)
        costs = [min(COST_HIGHEST, one) for one in self.cost_ratios]
        object.__setattr__(self, "_tail", [min(2.0, self.temperature), *costs])
        object.__setattr__(self, "_no_draft", [1.0, *[0.0] * (6 + len(self.sizes))])
        object.__setattr__(self, "_most", float(self.max_depth))
        shown = tuple(size in self.sizes for size in range(1, self.sizes[-1] + 1))
        object.__setattr__(self, "_shown", shown)

    def __call__(self, view: DraftView) -> np.ndarray:
        """float32 (len(names),), finite and within the bounds whatever the scores are."""
        return np.array([*self.of_draft(view), *self.of_cycle(view)], dtype=np.float32)

    def of_position(self, view: DraftView) -> list[float]:
        """All but the history's."""
        return [*self.of_draft(view), *self.of_cycle(view)[: -len(HISTORY_NAMES)]]

    def of_cycle(self, view: DraftView) -> list[float]:
        """The last ones, which all questions of a cycle share; of the history tokens that the last cycle
        emitted, and the last 4 on average, over those of the deepest cycle."""
        most, length = self.max_depth + 1, view.context_length
        left = view.tokens_left / (2 * most)
        context = (_log2(length) - CONTEXT_MIDDLE) / CONTEXT_SCALE if length > 1 else CONTEXT_LOWEST
        last, mean = recent_emitted(view.history)
        return [
            0.0 if left < 0.0 else left if left < 1.0 else 1.0,
            context if context < CONTEXT_HIGHEST else CONTEXT_HIGHEST,
            *self._tail,
            last / most if last < most else 1.0,
            mean / most if mean < most else 1.0,
        ]

    def of_draft(self, view: DraftView) -> list[float]:
        """The first ones: of what is drafted and of the lookup."""
        # In a few long functions of plain arithmetic: within a cycle whatever is called comes out of memory.
        tree, hint = view.tree, view.lookup
        starts, depth = tree.level_starts, tree.depth
        # What is joined to a finished draft is not yet there when a level is asked about: read as absent.
        stop = starts[depth + 1] if 0 < depth < len(starts) - 1 else len(tree.tokens)
        if stop > 1:
            # A lookup alone is joined, not drafted: of its levels the last is shown.
            entries = self._of_tree(tree.scores[1:stop], starts[depth or -1] - 1, depth)
        else:
            entries = self._no_draft.copy()
        if hint is None or hint.match_length <= 0:
            entries += (0.0, 0.0, 0.0)
            return entries
        match, share, agrees = _log2(1 + hint.match_length) / MATCH_SCALE, hint.share, hint.agrees
        entries += (
            match if match < 1.0 else 1.0,
            0.0 if not share > 0.0 else share if share < 1.0 else 1.0,
            0.0 if agrees is None else 2.0 * agrees - 1.0,
        )
        return entries

    def _of_tree(self, scores: list[float], first: int, depth: int) -> list[float]:
        """From `at_root` to the last size; the last level begins at `first`. Likelihoods are e^score, 0 of
        what is at the floor or no number."""
        exp = _exp
        best = second = floor = SCORE_FLOOR
        likely = less = total = 0.0
        for score in scores[first:]:
            if score > floor:
                p = exp(score) if score < 0.0 else 1.0
                total += p
                if score > best:
                    best, second, likely, less = score, best, p, likely
                elif score > second:
                    second, less = score, p
        margin = ((best if best < 0.0 else 0.0) - (second if second < 0.0 else 0.0)) / MARGIN_SCALE
        most = self._most
        entries = [
            0.0,
            0.0 if depth else 1.0,
            depth / most if depth < most else 1.0,
            likely,
            less,
            total if total < 1.0 else 1.0,
            margin if margin < 1.0 else 1.0,
        ]
        scores.sort(reverse=True)
        total = 0.0
        for score, shown in zip(scores, self._shown, strict=False):
            if score > floor:
                total += exp(score) if score < 0.0 else 1.0
            if shown:  # a size ends here
                entries.append(total if total < most else most)
        missing = 7 + len(self.sizes) - len(entries)
        if missing:
            entries += [total if total < most else most] * missing
        return entries
