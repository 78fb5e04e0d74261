"""What a policy sees of a draft: one source for training and decoding, scaled with fixed constants.

Both kinds are float32 vectors of about unit range. There are no running statistics: the scale is part of the
definition, so a policy that was trained anywhere sees the same numbers everywhere.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from decoding.controller import DraftView
from decoding.records import CycleRecord

# Path scores are log-probabilities. Below e^-20 a node is as good as absent, and absent nodes read the same.
SCORE_FLOOR = -20.0
SCORE_SCALE = 10.0
# log2 of the context length around 2^8 tokens: 16 tokens read -1, 4096 read 1, 2^24 and more read 4.
CONTEXT_MIDDLE = 8.0
CONTEXT_SCALE = 4.0
CONTEXT_HIGHEST = 4.0
CONTEXT_LOWEST = -CONTEXT_MIDDLE / CONTEXT_SCALE


@dataclass(frozen=True)
class DepthFeatures:
    """What the depth policy sees at the root and after every level.

    Args:
        beam_width: the drafter's, >= 1; a level holds up to beam_width^2 candidates.
        max_depth: greatest draft_depth that the policy may ask for, >= 1.

    Attributes:
        names: the entries, in order.
        low, high: float32 bounds of every entry, (len(names),).
        asks_at_root: whether the policy decides before the first level too; if not, there is always a draft.
    """

    asks_at_root: ClassVar[bool] = True
    beam_width: int
    max_depth: int
    names: tuple[str, ...] = field(init=False, repr=False, compare=False)
    low: np.ndarray = field(init=False, repr=False, compare=False)
    high: np.ndarray = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_shape("beam_width", self.beam_width)
        check_shape("max_depth", self.max_depth)
        scores = [(f"level_score_{i}", *_SCORE_BOUNDS) for i in range(self.beam_width**2)]
        describe_entries(self, [*scores, *_COMMON, ("tokens_left", 0.0, 1.0)])

    def __call__(self, view: DraftView) -> np.ndarray:
        """float32 (len(names),), finite and within the bounds whatever the scores are."""
        tree = view.tree
        level = tree.scores[tree.level_starts[-1] :] if tree.depth else []
        # Beyond twice the deepest cycle the end of the text is too far away to matter.
        left = max(0.0, min(1.0, view.tokens_left / (2 * (self.max_depth + 1))))
        # Lists, and one array at the end: within a cycle every numpy call comes out of memory anew.
        scores = _best_scores(level, self.beam_width**2)
        return np.array([*scores, *_common(view, self.max_depth), left], dtype=np.float32)


@dataclass(frozen=True)
class SizeFeatures:
    """What the size policy sees once the draft is complete.

    Args:
        max_size: path scores shown, >= 1; sensibly the largest verification_size on offer.
        max_depth: greatest draft_depth that the drafts reach, >= 1.

    Attributes:
        names: the entries, in order.
        low, high: float32 bounds of every entry, (len(names),).
    """

    max_size: int
    max_depth: int
    names: tuple[str, ...] = field(init=False, repr=False, compare=False)
    low: np.ndarray = field(init=False, repr=False, compare=False)
    high: np.ndarray = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_shape("max_size", self.max_size)
        check_shape("max_depth", self.max_depth)
        describe_entries(
            self, [*((f"tree_score_{i}", *_SCORE_BOUNDS) for i in range(self.max_size)), *_COMMON]
        )

    def __call__(self, view: DraftView) -> np.ndarray:
        """float32 (len(names),), finite and within the bounds whatever the scores are."""
        scores = _best_scores(view.tree.scores[1:], self.max_size)
        return np.array([*scores, *_common(view, self.max_depth)], dtype=np.float32)


_SCORE_BOUNDS = (SCORE_FLOOR / SCORE_SCALE, 0.0)
_COMMON = (
    ("draft_depth", 0.0, 1.0),
    ("log2_context_length", CONTEXT_LOWEST, CONTEXT_HIGHEST),
    ("emitted_last", 0.0, 1.0),
    ("emitted_mean_4", 0.0, 1.0),
)


def check_shape(name: str, value: int, most: int = 1024) -> None:
    """ValueError unless it is a whole number in 1..most."""
    # A bool is an int to Python, and a policy.json may hold anything.
    if type(value) is not int or not 1 <= value <= most:
        raise ValueError(f"{name} is {value!r}, must be a whole number in 1..{most}")


def describe_entries(features: DepthFeatures | SizeFeatures, entries: list[tuple[str, float, float]]) -> None:
    """Set `names`, `low` and `high` from (name, low, high) of every entry."""
    names, low, high = zip(*entries, strict=True)
    for attribute, values in (("low", low), ("high", high)):
        bounds = np.array(values, dtype=np.float32)
        bounds.setflags(write=False)
        object.__setattr__(features, attribute, bounds)
    object.__setattr__(features, "names", names)


def _best_scores(scores: Sequence[float], count: int) -> list[float]:
    """The best scores, best first, scaled; the rest as if there were nodes at the floor."""
    if not scores:
        return [SCORE_FLOOR / SCORE_SCALE] * count
    # In this order max and min take the number where the other is NaN.
    held = sorted([min(0.0, max(SCORE_FLOOR, score)) for score in scores], reverse=True)[:count]
    return [score / SCORE_SCALE for score in held] + [SCORE_FLOOR / SCORE_SCALE] * (count - len(held))


def _common(view: DraftView, max_depth: int) -> list[float]:
    most = max_depth + 1  # tokens that the deepest cycle can emit
    length, depth = view.context_length, view.tree.depth
    context = (math.log2(length) - CONTEXT_MIDDLE) / CONTEXT_SCALE if length > 1 else CONTEXT_LOWEST
    last, mean = recent_emitted(view.history)
    return [
        depth / max_depth if depth < max_depth else 1.0,
        context if context < CONTEXT_HIGHEST else CONTEXT_HIGHEST,
        last / most if last < most else 1.0,
        mean / most if mean < most else 1.0,
    ]


def recent_emitted(history: Sequence[CycleRecord]) -> tuple[float, float]:
    """Tokens emitted in the last cycle and on average in the last 4 (the request's first cycles: fewer)."""
    if not history:
        return 0.0, 0.0
    total = last = 0
    for record in history if len(history) <= 4 else list(history)[-4:]:
        last = len(record.token_ids)
        total += last
    return last, total / min(4, len(history))
