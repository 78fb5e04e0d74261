"""How far off a logit must be to change the choice of a token, and how far off the logits of a target are.

The second is measured between forwards of one row and of several, in the dtype and on the machine at hand.

Legend: R rows of a forward, V vocabulary, N some tokens.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

import torch

from decoding.sampling import TokenChooser
from decoding.session import Session
from decoding.target import TargetModel

# Groupings of rows that the error of a logit is measured with: what small and large trees come to.
ROWS = (2, 3, 5, 9, 17)
# The first texts are measured, until so many tokens were.
MEASURED_TOKENS = 192
# Those of a position that are likely to be chosen. Logits far below are rougher, and hardly ever contested.
BEST_TOKENS = 64
_HALVINGS = 16


def measured_error(target: TargetModel, sessions: Sequence[Session]) -> tuple[float, int]:
    """Half of the largest change of a gap between two of a position's best tokens, from one row at a time to
    R rows at a time, over the first texts; and the number of positions that it was measured at.

    Logits that are each off by at most e change gaps by at most 2 e; what all of them share changes none.
    Rows follow one another, without a tree: the measure must not rest on the mask that it helps to judge.
    """
    largest, positions = 0.0, 0
    for session in sessions:
        ids, start = session.committed, session.prompt_length - 1
        single = list(grouped_logits(target, ids, start, 1))
        for rows in ROWS:
            for one_V, other_V in zip(single, grouped_logits(target, ids, start, rows), strict=True):
                best = one_V.topk(min(BEST_TOKENS, len(one_V))).indices
                largest = max(largest, half_range(other_V[best] - one_V[best]))
        positions += len(single)
        if positions >= MEASURED_TOKENS:
            break
    return largest, positions


def half_range(change_N: torch.Tensor) -> float:
    """Half of the largest change of a gap between two of N logits that changed by `change_N`."""
    return (change_N.max() - change_N.min()).item() / 2


def grouped_logits(target: TargetModel, ids: Sequence[int], start: int, rows: int) -> Iterator[torch.Tensor]:
    """Logits (V), at least float32, after each of `ids[start:-1]`, computed `rows` at a time on a cache.

    With `rows` = 1 these are the forwards of plain decoding.
    """
    cache = target.new_cache()
    if start:
        target.forward(ids[:start], cache, last_logits_only=True)
    borders = [*range(start, len(ids) - 1, rows), len(ids) - 1]
    for first, after in pairwise(borders):
        logits_RV = target.forward(ids[first:after], cache).logits_RV
        yield from logits_RV.to(torch.promote_types(logits_RV.dtype, torch.float32))


def needed_error(
    logits_V: torch.Tensor,
    chooser: TokenChooser,
    index: int,
    context: Sequence[int],
    token: int,
    farthest: float,
) -> float:
    """The smallest error of a logit with which `token` could be chosen, by halving; infinite beyond
    `farthest`.

    Args:
        logits_V: of plain decoding at this position.
        chooser: of the request.
        index: of the generated token.
        context: the tokens before it.
        token: the one chosen elsewhere.
    """
    if not could_choose(logits_V, chooser, index, context, token, farthest):
        return math.inf
    low, high = 0.0, farthest
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if could_choose(logits_V, chooser, index, context, token, middle):
            high = middle
        else:
            low = middle
    return high


def could_choose(
    logits_V: torch.Tensor,
    chooser: TokenChooser,
    index: int,
    context: Sequence[int],
    token: int,
    error: float,
) -> bool:
    """Whether some logits within `error` of these make `token` the choice.

    Tried: the token raised against all others; the plain choice lowered against all others (it may drop out
    at the border of top-k, top-p or min-p); the border of top-p moved as far as the errors of the
    probabilities that it sums can move it. Two of these at once are rarer than is worth the leniency.
    """
    (plain_token,) = chooser.choose(logits_V[None], [index], [context])
    raised_V, lowered_V = logits_V.clone(), logits_V.clone()
    raised_V[token] += 2 * error
    lowered_V[plain_token] -= 2 * error
    tried = [(chooser, raised_V), (chooser, lowered_V)]
    tried += [(moved, logits_V) for moved in _moved_borders(chooser, error)]
    return any(moved.choose(near_V[None], [index], [context]) == [token] for moved, near_V in tried)


def _moved_borders(chooser: TokenChooser, error: float) -> list[TokenChooser]:
    sampling = chooser.sampling
    if sampling.temperature == 0 or sampling.top_p is None or sampling.top_p >= 1:
        return []
    # Errors e of the logits move a probability p at temperature T by a factor of exp(2 e / T) at most.
    factor = math.exp(min(2 * error / sampling.temperature, 700.0))
    borders = (sampling.top_p / factor, 1 - (1 - sampling.top_p) / factor)
    return [TokenChooser(replace(sampling, top_p=max(border, 1e-300)), chooser.noise) for border in borders]
