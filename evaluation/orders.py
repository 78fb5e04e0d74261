"""In which order arms decode: balanced, at random."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np


def balanced_orders(count: int, rng: np.random.Generator) -> Iterator[list[int]]:
    """Endless orders of `count` arms, in which every arm comes at every place, and after every other arm,
    equally often: Williams' squares, each with its arms relabelled and its rows shuffled at random.

    A square has `count` rows (twice that if odd); whoever stops within one has balance in expectation only.
    """
    zigzag = [place // 2 if place % 2 == 0 else count - 1 - place // 2 for place in range(count)]
    rows = [[(start + step) % count for step in zigzag] for start in range(count)]
    if count % 2 and count > 1:
        rows += [row[::-1] for row in rows]
    while True:
        labels = rng.permutation(count)
        for number in rng.permutation(len(rows)):
            yield [int(labels[place]) for place in rows[number]]
