"""Lines between knots: interpolation, and the weights that a fit of such lines needs.

Legend: N values, K knots, X rows of a table.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike


def hat_weights(values: ArrayLike, knots: Sequence[int], below: bool = False) -> np.ndarray:
    """(N, K) weights, rows summing to 1, of linear interpolation between ascending `knots` (K). Above
    the last the last slope goes on, and `below` the first the first; else these are taken for the first."""
    values_N, knots_K = np.asarray(values, dtype=float).ravel(), np.asarray(knots, dtype=float)
    weights_NK = np.zeros((len(values_N), len(knots_K)))
    every = np.arange(len(values_N))
    if len(knots_K) == 1:
        weights_NK[:] = 1
        return weights_NK
    place_N = np.clip(np.searchsorted(knots_K, values_N, side="right") - 1, 0, len(knots_K) - 2)
    share_N = (values_N - knots_K[place_N]) / (knots_K[place_N + 1] - knots_K[place_N])
    share_N = share_N if below else np.maximum(share_N, 0)
    weights_NK[every, place_N], weights_NK[every, place_N + 1] = 1 - share_N, share_N
    return weights_NK


def along(table_XK: np.ndarray, index_N: np.ndarray, at_N: np.ndarray, knots: Sequence[int]) -> np.ndarray:
    """What rows `index_N` of a table say at `at_N`, in the shape that the two broadcast to: linear between
    knots, the first one's below it, and above the last its slope goes on, but never downwards."""
    index_N, at_N = np.broadcast_arrays(index_N, at_N)
    chosen_NK = table_XK[index_N.ravel()]
    seconds_N = (hat_weights(at_N, knots) * chosen_NK).sum(axis=1)
    held_N = np.where(at_N.ravel() > knots[-1], np.maximum(seconds_N, chosen_NK[:, -1]), seconds_N)
    return held_N.reshape(at_N.shape)
