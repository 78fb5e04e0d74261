"""The `coupled` rule: its exact law in worlds of three and four symbols, every table of noise enumerated.

Contexts are of two tokens, probabilities have denominator 6. The noise of a position is one of 6 equally
likely values, and the target's token is the inverse CDF there. Drafters and controllers may read the noise,
the worst case: every block must be plain decoding's all the same, and so the law is the target's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import product

import pytest

from decoding.tree import DraftTree, Selection
from decoding.verify import accept_coupled

DENOMINATOR = 6
LENGTH = 4
Noise = tuple[int, ...]


@dataclass(frozen=True)
class World:
    """Weights of the symbols, in sixths, by context."""

    kinds: tuple[tuple[int, ...], ...]

    @property
    def symbols(self) -> range:
        return range(len(self.kinds[0]))

    def weights(self, context: Sequence[int]) -> tuple[int, ...]:
        before, last = context[-2:]
        return self.kinds[(2 * before + last) % len(self.kinds)]

    def token(self, context: Sequence[int], noise: int) -> int:
        """Inverse CDF of the context's law at `noise` of 6."""
        reached = 0
        for symbol, weight in enumerate(self.weights(context)):
            reached += weight
            if noise < reached:
                return symbol
        raise AssertionError

    def plain_block(self, noise: Noise) -> tuple[int, ...]:
        text = [0, 0]
        for value in noise:
            text.append(self.token(text, value))
        return tuple(text[2:])


THREE = World(((3, 2, 1), (1, 1, 4), (0, 5, 1)))
FOUR = World(((1, 2, 3, 0), (2, 0, 1, 3), (1, 1, 2, 2), (0, 0, 0, 6)))
Draft = Callable[[World, list[int], Noise], DraftTree]
Size = Callable[[DraftTree, Noise], int]


def full_tree(world: World, text: list[int], noise: Noise) -> DraftTree:
    tree, symbols = DraftTree(text[-1]), list(world.symbols)
    for _ in range(2):
        above = tree.level(tree.depth)
        parents = [node for node in above for _ in symbols]
        tree.add_level(symbols * len(above), parents, [-1.0] * len(parents))
    return tree


def noise_reading_chain(world: World, text: list[int], noise: Noise) -> DraftTree:
    """Drafts well or badly according to the very noise that the target will meet."""
    tree, seen = DraftTree(text[-1]), list(text)
    for depth, value in enumerate(noise[:3]):
        right = world.token(seen, value)
        seen.append(right if value % 2 else (right + 1) % len(world.symbols))
        tree.add_level([seen[-1]], [tree.size], [-float(depth)])
    return tree


def duplicating(world: World, text: list[int], noise: Noise) -> DraftTree:
    tree = DraftTree(text[-1])
    tree.add_level([1, 1, 2], [0, 0, 0], [-1.0, -0.5, -2.0])
    tree.add_level([0, 2, 1], [1, 2, 2], [-1.5, -0.6, -2.0])
    return tree


def nothing(world: World, text: list[int], noise: Noise) -> DraftTree:
    return DraftTree(text[-1])


def everything(tree: DraftTree, noise: Noise) -> int:
    return tree.size


def by_noise(tree: DraftTree, noise: Noise) -> int:
    """The worst case: verifies more or less according to the noise it should not know."""
    return sum(noise) % 5


def by_value(tree: DraftTree, noise: Noise) -> int:
    """Drops drafted tokens for what they are, which would bias the `rejection` rule."""
    return 0 if 2 in tree.tokens[1:2] else 2


Place = Callable[[int], int]


def own_place(depth: int) -> int:
    return depth


def blocks(
    world: World, draft: Draft, size: Size, place: Place = own_place
) -> Iterator[tuple[Noise, tuple[int, ...]]]:
    """Every noise table with the text that cycles of draft, selection and verification make of it. `place` =
    where a row at a depth takes its noise from: its own position, if the rule is right."""
    for noise in product(range(DENOMINATOR), repeat=LENGTH):
        text = [0, 0]
        while len(text) < 2 + LENGTH:
            ahead = noise[len(text) - 2 :]
            tree = draft(world, text, ahead)
            selection = tree.select(size(tree, ahead))
            # Beyond the table's end the noise is not drawn: any fixed value serves, the text is cut there.
            values = (*ahead, 0, 0, 0)

            def choose(
                row: int,
                depth: int,
                selection: Selection = selection,
                values: Noise = values,
                text: Sequence[int] = tuple(text),
            ) -> int:
                path, node = [], row
                while node:
                    path.append(selection.tokens[node])
                    node = int(selection.parents[node])
                return world.token([*text, *reversed(path)], values[place(depth)])

            text.extend(accept_coupled(selection, choose, lambda token: False).emitted)
        yield noise, tuple(text[2 : 2 + LENGTH])


@pytest.mark.parametrize("size", [everything, by_noise, by_value])
@pytest.mark.parametrize("draft", [full_tree, noise_reading_chain, duplicating, nothing])
@pytest.mark.parametrize("world", [THREE, FOUR], ids=["three", "four"])
def test_every_block_is_plain_decodings_and_the_law_is_the_targets(
    world: World, draft: Draft, size: Size
) -> None:
    """All 1296 noise tables, and exact fractions of how often each text comes."""
    counts: Counter[tuple[int, ...]] = Counter()
    for noise, block in blocks(world, draft, size):
        assert block == world.plain_block(noise)
        counts[block] += 1
    for block in product(world.symbols, repeat=LENGTH):
        probability, text = Fraction(1), (0, 0, *block)
        for index, symbol in enumerate(block):
            probability *= Fraction(world.weights(text[index : index + 2])[symbol], DENOMINATOR)
        assert Fraction(counts[block], DENOMINATOR**LENGTH) == probability


def test_noise_of_the_wrong_position_fails() -> None:
    """The cycle's first noise for all of its rows: texts differ, and so does the law."""
    wrong = list(blocks(THREE, full_tree, everything, lambda depth: 0))
    assert any(block != THREE.plain_block(noise) for noise, block in wrong)
    assert Counter(block for _, block in wrong) != Counter(THREE.plain_block(noise) for noise, _ in wrong)
