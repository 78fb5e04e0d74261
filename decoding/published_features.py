"""What the published method's policies see (Learning to Draft, arXiv 2603.01639), and nothing else.

Cumulative log-probabilities as they are, in the tree's own order, absent ones 0; the depth over 10 and the
context length over 1000, as in the authors' code, which shows each of the two several times: here once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from decoding.controller import DraftView
from decoding.features import DepthFeatures, SizeFeatures, check_shape, describe_entries

# No drafter gives so low a number: what is below is a drafter at fault, and a space needs finite bounds.
LOWEST = -1000.0
DEPTH_SCALE = 10.0
LENGTH_SCALE = 1000.0
LONGEST = float(2**20)
_SCORE_BOUNDS = (LOWEST, 0.0)


@dataclass(frozen=True)
class PublishedDepthFeatures(DepthFeatures):
    """What the depth policy sees after a level. Before the first it is not asked: there is always a draft."""

    asks_at_root: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_shape("beam_width", self.beam_width)
        check_shape("max_depth", self.max_depth)
        scores = [(f"level_log_prob_{i}", *_SCORE_BOUNDS) for i in range(self.beam_width**2)]
        describe_entries(self, [*scores, *_common_entries(self.max_depth)])

    def __call__(self, view: DraftView) -> np.ndarray:
        """float32 (len(names),), finite and within the bounds whatever the scores are."""
        tree = view.tree
        level = tree.scores[tree.level_starts[tree.depth] :] if tree.depth else []
        return _entries(level, self.beam_width**2, view, self.max_depth)


@dataclass(frozen=True)
class PublishedSizeFeatures(SizeFeatures):
    """What the size policy sees of a complete draft; `max_size`: all nodes that a draft can have."""

    def __post_init__(self) -> None:
        check_shape("max_depth", self.max_depth)
        check_shape("max_size", self.max_size, MOST_NODES)
        scores = [(f"tree_log_prob_{i}", *_SCORE_BOUNDS) for i in range(self.max_size)]
        describe_entries(self, [*scores, *_common_entries(self.max_depth)])

    def __call__(self, view: DraftView) -> np.ndarray:
        """float32 (len(names),), finite and within the bounds whatever the scores are."""
        return _entries(view.tree.scores[1:], self.max_size, view, self.max_depth)


MOST_NODES = 32 + 31 * 32**2  # of the widest and deepest drafts


def drafted_nodes(beam_width: int, max_depth: int) -> int:
    """Of a whole draft: the root has one child for each place in the beam, every level below W for each."""
    return beam_width + (max_depth - 1) * beam_width**2


def _common_entries(max_depth: int) -> list[tuple[str, float, float]]:
    return [
        ("draft_depth_tenths", 0.0, max_depth / DEPTH_SCALE),
        ("context_length_thousands", 0.0, LONGEST / LENGTH_SCALE),
    ]


def _entries(scores: Sequence[float], count: int, view: DraftView, max_depth: int) -> np.ndarray:
    # Of hundreds of nodes, so in numpy; fmax and fmin take the number where the other is NaN.
    entries = np.zeros(count + 2, dtype=np.float32)
    held = np.array(scores[:count], dtype=np.float64)
    entries[: len(held)] = np.fmin(np.fmax(held, LOWEST), 0.0)
    entries[count] = min(view.tree.depth, max_depth) / DEPTH_SCALE
    entries[count + 1] = min(float(view.context_length), LONGEST) / LENGTH_SCALE
    return entries
