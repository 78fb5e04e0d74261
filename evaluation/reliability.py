"""Does a score mean what it says: predicted probabilities beside what happened.

Legend: N predictions.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from decoding.traces import Position


@dataclass(frozen=True, slots=True)
class Bin:
    """Predictions in [low, high): how many, their mean, and the share that came true."""

    low: float
    high: float
    count: int
    predicted: float
    happened: float


@dataclass(frozen=True, slots=True)
class Reliability:
    """How well predictions fit.

    Attributes:
        bins: of equal width, empty ones left out.
        error: expected calibration error: mean |predicted - happened| over bins, by their counts.
        log_loss: mean, nats.
        count: predictions.
    """

    bins: tuple[Bin, ...]
    error: float
    log_loss: float
    count: int


def reliability(predicted_N: np.ndarray, happened_N: np.ndarray, bins: int = 10) -> Reliability:
    """Compare probabilities with outcomes (0 or 1). ValueError if there are none."""
    if not len(predicted_N):
        raise ValueError("no predictions to compare with what happened")
    edges = np.linspace(0.0, 1.0, bins + 1)
    place_N = np.minimum((predicted_N * bins).astype(int), bins - 1)
    found = []
    for place in range(bins):
        here_N = place_N == place
        if here_N.any():
            means = (float(values[here_N].mean()) for values in (predicted_N, happened_N))
            found.append(Bin(float(edges[place]), float(edges[place + 1]), int(here_N.sum()), *means))
    error = sum(one.count * abs(one.predicted - one.happened) for one in found) / len(predicted_N)
    held_N = np.clip(predicted_N, 1e-9, 1 - 1e-9)
    loss = -np.where(happened_N > 0, np.log(held_N), np.log1p(-held_N)).mean()
    return Reliability(tuple(found), float(error), float(loss), len(predicted_N))


def node_predictions(positions: Iterable[Position]) -> tuple[np.ndarray, np.ndarray]:
    """(predicted, happened) for every drafted node whose fate is known: is it on the accepted path?

    Nodes deeper than the text goes on are left out.
    """
    predicted: list[float] = []
    happened: list[bool] = []
    for position in positions:
        tree, path = position.tree, set(position.path)
        known = min(len(position.following), tree.height)
        nodes = range(1, tree.level(known).stop)
        predicted += np.exp([tree.scores[node] for node in nodes]).tolist()
        happened += [node in path for node in nodes]
    return np.array(predicted), np.array(happened, dtype=float)


def accepted_lengths(
    positions: Sequence[Position], draft_depth: int, verification_size: int
) -> tuple[float, float]:
    """(expected, realised) mean accepted tokens of this setting, over the positions whose text goes on for at
    least `draft_depth` tokens: expected = sum of the path probabilities of the nodes it verifies."""
    whole = [one for one in positions if len(one.following) >= min(draft_depth, one.tree.height)]
    if not whole:
        raise ValueError(f"no position is followed by {draft_depth} tokens")
    expected = []
    for one in whole:
        scores = np.array(one.tree.scores[1 : one.tree.level(min(draft_depth, one.tree.height)).stop])
        expected.append(np.exp(np.sort(scores)[::-1][:verification_size]).sum())
    realised = [one.accepted(draft_depth, verification_size) for one in whole]
    return float(np.mean(expected)), float(np.mean(realised))
