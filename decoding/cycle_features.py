"""What a policy that takes every decision of a cycle sees: one source for training and decoding.

At most 32 numbers of about unit range, scaled with fixed constants: no running statistics. Path scores are
calibrated log-probabilities, so their exponentials are how likely nodes are on the accepted path, and a sum
of the s largest is how many tokens a verification of s nodes is expected to accept.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
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

    def __call__(self, view: DraftView) -> np.ndarray:
        """float32 (len(names),), finite and within the bounds whatever the scores are."""
        return np.array(self.entries(view), dtype=np.float32)

    def entries(self, view: DraftView) -> list[float]:
        """The same as a list: what a decoder asks for, see `native_network.py`."""
        return [*self.of_position(view), *self.of_history(view)]

    def of_position(self, view: DraftView) -> list[float]:
        """All but the history's."""
        # Lists: within a cycle every numpy call comes out of memory anew.
        tree, most = view.tree, self.max_depth
        hint, length = view.lookup, view.context_length
        context = (math.log2(length) - CONTEXT_MIDDLE) / CONTEXT_SCALE if length > 1 else CONTEXT_LOWEST
        match = share = agrees = 0.0
        if hint is not None and hint.match_length > 0:
            match = min(1.0, math.log2(1 + hint.match_length) / MATCH_SCALE)
            share = min(1.0, max(0.0, hint.share))
            agrees = 0.0 if hint.agrees is None else 2.0 * hint.agrees - 1.0
        left = max(0.0, min(1.0, view.tokens_left / (2 * (most + 1))))
        depth = tree.depth
        # What is joined to a finished draft is not yet there when a level is asked about: read as absent.
        stop = len(tree.tokens) if depth in (0, tree.height) else tree.level_starts[depth + 1]
        scores = tree.scores[1:stop]
        if not scores:
            drafted = [1.0, *[0.0] * (6 + len(self.sizes))]
        else:
            first = tree.level_starts[depth or tree.height]
            drafted = [
                0.0,
                0.0 if depth else 1.0,
                min(1.0, depth / most),
                *_level(tree.scores[first:stop]),
                *self._expected(scores),
            ]
        return [*drafted, match, share, agrees, left, min(context, CONTEXT_HIGHEST), *self._tail]

    def of_history(self, view: DraftView) -> list[float]:
        """Tokens that the last cycle emitted, and the last 4 on average, over those of the deepest cycle."""
        last, mean = recent_emitted(view.history)
        most = self.max_depth + 1
        return [min(1.0, last / most), min(1.0, mean / most)]

    def _expected(self, scores: Sequence[float]) -> list[float]:
        best = sorted(scores, reverse=True)[: self.sizes[-1]]
        total, found, start = 0.0, [], 0
        for size in self.sizes:
            for score in best[start:size]:
                total += _probability(score)
            start = size
            found.append(min(float(self.max_depth), total))
        return found


def _level(scores: Sequence[float]) -> list[float]:
    """Best, second, sum (of a level, at most 1 but for miscalibration), margin of the first two."""
    best, second = SCORE_FLOOR, SCORE_FLOOR
    total = 0.0
    for score in scores:
        total += _probability(score)
        if score > best:
            best, second = score, best
        elif score > second:
            second = score
    margin = (min(0.0, best) - min(0.0, second)) / MARGIN_SCALE
    return [_probability(best), _probability(second), min(1.0, total), min(1.0, margin)]


def _probability(score: float) -> float:
    """e^score; 0 of what is at the floor or no number."""
    return math.exp(min(0.0, score)) if score > SCORE_FLOOR else 0.0
