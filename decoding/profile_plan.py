"""Which cycles a profile is measured from, and which are held out to check it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from decoding.profile import EVERY_ROW_COUNT_TO

# Beyond the counts that are all measured costs are smoother.
_FEWER_ROWS = (20, *(base << shift for shift in range(8) for base in (24, 32)))
_BLOCK = 8  # cycles at one context before another takes over
_HELD_OUT_PER_ROUND = 10
_LOOKUPS_PER_ROUND = 4
_BURSTS = (3, 6, 12, 24)  # plain steps before a draft: what the head then digests at once


@dataclass(frozen=True, slots=True)
class Setting:
    """One cycle to measure at about `context` tokens. `lookup`: of a merged drafter, the lookup alone."""

    context: int
    draft_depth: int
    size: int
    lookup: bool = False
    held_out: bool = False


def row_counts(max_size: int, sizes: Sequence[int]) -> list[int]:
    """Row counts to measure: every one up to 17, fewer beyond, and those of `sizes`, to `max_size` + 1."""
    counts = {*range(1, EVERY_ROW_COUNT_TO + 1), *_FEWER_ROWS, *(size + 1 for size in sizes)}
    return sorted(count for count in {*counts, max_size + 1} if count <= max_size + 1)


def contexts_between(contexts: Sequence[int]) -> list[int]:
    """Where a profile of these contexts is checked: halfway between neighbours, in ratio; the one itself if
    there is only one."""
    return [round((low * high) ** 0.5) for low, high in pairwise(contexts)] or list(contexts)


def blocks_of_cycles(
    contexts: Sequence[int],
    rows: Sequence[int],
    nodes: Mapping[int, int],
    rounds: int,
    rng: np.random.Generator,
    with_lookup: bool = False,
) -> list[list[Setting]]:
    """Blocks in random order, each of cycles at one context.

    Every round measures each row count at each context once, at a random depth of those that reach it; of
    each count one depth is held out, where there are two. Held-out cycles are at contexts between the
    measured ones and of held-out depths, or of row counts between the measured ones.

    Args:
        nodes: that a draft of each depth >= 1 has.
        rounds: how often.
        with_lookup: a merged drafter's lookup is measured alone as well.
    """
    fitted, held_out = _split(rows, nodes, rng)
    blocks: list[list[Setting]] = []
    for number in range(rounds):
        for context in contexts:
            cycles = [Setting(context, *_one_of(choices, rng)) for choices in fitted.values()]
            if with_lookup:
                cycles.extend([Setting(context, 0, rows[-1] - 1, lookup=True)] * _LOOKUPS_PER_ROUND)
            cycles = [cycles[place] for place in rng.permutation(len(cycles))]
            plain = [Setting(context, 0, 0)] * _BURSTS[number % len(_BURSTS)]
            blocks.extend(_pieces(cycles))
            blocks.append([*plain, Setting(context, 1, 1)])
        for context in contexts_between(contexts):
            chosen = [_one_of(held_out, rng) for _ in range(_HELD_OUT_PER_ROUND)] if held_out else []
            cycles = [Setting(context, *pair, held_out=True) for pair in [(0, 0), *chosen]]
            blocks.extend(_pieces([cycles[place] for place in rng.permutation(len(cycles))]))
    return [blocks[place] for place in rng.permutation(len(blocks))]


Pair = tuple[int, int]


def _split(
    rows: Sequence[int], nodes: Mapping[int, int], rng: np.random.Generator
) -> tuple[dict[int, list[Pair]], list[Pair]]:
    """(depth, size) pairs by row count for the fit, and those held out."""
    fitted: dict[int, list[Pair]] = {1: [(0, 0)]}
    held_out: list[Pair] = []

    def depths(size: int) -> list[int]:
        return [depth for depth, reached in nodes.items() if reached >= size]

    for count in rows[1:]:
        choices = [(depth, count - 1) for depth in depths(count - 1)]
        if len(choices) > 1:
            held_out.append(choices.pop(int(rng.integers(len(choices)))))
        if choices:
            fitted[count] = choices
    for low, high in pairwise(rows):
        between = (low + high) // 2
        if low < between < high:
            held_out.extend((depth, between - 1) for depth in depths(between - 1))
    return fitted, held_out


def _one_of(pairs: Sequence[Pair], rng: np.random.Generator) -> Pair:
    return pairs[int(rng.integers(len(pairs)))]


def _pieces(cycles: list[Setting]) -> Iterator[list[Setting]]:
    return (cycles[start : start + _BLOCK] for start in range(0, len(cycles), _BLOCK))
