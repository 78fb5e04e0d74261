"""The `coupled` rule: chosen cases by hand, and its exact law in a three-symbol world by enumeration."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from fractions import Fraction
from itertools import product

import pytest

from decoding.tree import DraftTree, Selection
from decoding.verify import Verdict, accept_coupled


def tree_of(*levels: list[tuple[int, int]]) -> Selection:
    """All nodes of a tree whose levels list (token, parent), the root being node 0 with token 9."""
    tree = DraftTree(9)
    for level in levels:
        tree.add_level([token for token, _ in level], [parent for _, parent in level], [0.0] * len(level))
    return tree.select(tree.size)


def verdict(selection: Selection, answers: dict[int, int], end_ids: tuple[int, ...] = ()) -> Verdict:
    """`answers[row]` = the target's token after that row; rows that are not there must not be asked for."""

    def choose(row: int, depth: int) -> int:
        assert depth == selection.depths[row]
        return answers[row]

    return accept_coupled(selection, choose, end_ids.__contains__)


#                 0 ── 1:a=1 ── 4:c=3 ── 6:d=4
#                 ├─── 2:b=2 ── 5:c=3
#                 └─── 3:a=1 (again)
TREE = tree_of([(1, 0), (2, 0), (1, 0)], [(3, 1), (3, 2)], [(4, 4)])


@pytest.mark.parametrize(
    ("answers", "emitted", "rows", "accepted"),
    [
        ({0: 7}, [7], [0], (False,)),
        ({0: 2, 2: 8}, [2, 8], [0, 2], (True, False)),
        ({0: 2, 2: 3, 5: 6}, [2, 3, 6], [0, 2, 5], (True, True)),
        ({0: 1, 1: 3, 4: 4, 6: 0}, [1, 3, 4, 0], [0, 1, 4, 6], (True, True, True)),
        ({0: 1, 1: 3, 4: 5}, [1, 3, 5], [0, 1, 4], (True, True, False)),
    ],
)
def test_path_follows_the_targets_tokens(
    answers: dict[int, int], emitted: list[int], rows: list[int], accepted: tuple[bool, ...]
) -> None:
    """The first of two siblings with one token stands for both; a leaf closes with a bonus token."""
    assert verdict(TREE, answers) == Verdict(emitted, rows, accepted, finished=False)


def test_no_drafted_node_is_a_plain_step() -> None:
    assert verdict(tree_of(), {0: 4}) == Verdict([4], [0], (), finished=False)


@pytest.mark.parametrize(
    ("end", "emitted", "rows", "accepted"),
    [
        (1, [1], [0], (True,)),
        (3, [1, 3], [0, 1], (True, True)),
        (4, [1, 3, 4], [0, 1, 4], (True, True, True)),
        (0, [1, 3, 4, 0], [0, 1, 4, 6], (True, True, True)),
    ],
)
def test_end_of_text_cuts_an_accepted_path(
    end: int, emitted: list[int], rows: list[int], accepted: tuple[bool, ...]
) -> None:
    """The ending id is the last emitted; that it was drafted rightly is still counted."""
    answers = {0: 1, 1: 3, 4: 4, 6: 0}
    assert verdict(TREE, answers, (end,)) == Verdict(emitted, rows, accepted, finished=True)


def test_end_of_text_as_a_correction() -> None:
    assert verdict(TREE, {0: 7}, (7,)) == Verdict([7], [0], (False,), finished=True)


# The exact law: three symbols, contexts of the last token, probabilities with denominator 6; the noise of a
# position is one of 6 equally likely values, and the target's token is the inverse CDF there. Every noise
# table is enumerated.
DENOMINATOR = 6
WEIGHTS = {0: (3, 2, 1), 1: (1, 1, 4), 2: (0, 5, 1)}
LENGTH = 4
Choose = Callable[[int, int], int]
Noise = tuple[int, ...]
Draft = Callable[[list[int], Noise], DraftTree]


def target_token(context: int, noise: int) -> int:
    """Inverse CDF of the context's law at `noise` of 6."""
    reached = 0
    for symbol, weight in enumerate(WEIGHTS[context]):
        reached += weight
        if noise < reached:
            return symbol
    raise AssertionError


def plain_block(noise: Noise) -> tuple[int, ...]:
    text = [0]
    for value in noise:
        text.append(target_token(text[-1], value))
    return tuple(text[1:])


def full_tree(text: list[int], noise: Noise) -> DraftTree:
    tree = DraftTree(text[-1])
    for _ in range(2):
        above = tree.level(tree.depth)
        tree.add_level(
            [0, 1, 2] * len(above), [node for node in above for _ in range(3)], [-1.0] * 3 * len(above)
        )
    return tree


def noise_reading_chain(text: list[int], noise: Noise) -> DraftTree:
    """Drafts well or badly according to the very noise that the target will meet."""
    tree = DraftTree(text[-1])
    for depth, value in enumerate(noise[:3]):
        right = target_token(tree.tokens[-1], value)
        tree.add_level([right if value % 2 else (right + 1) % 3], [tree.size], [-float(depth)])
    return tree


def duplicating(text: list[int], noise: Noise) -> DraftTree:
    tree = DraftTree(text[-1])
    tree.add_level([1, 1, 2], [0, 0, 0], [-1.0, -0.5, -2.0])
    tree.add_level([0, 2, 1], [1, 2, 2], [-1.5, -0.6, -2.0])
    return tree


def nothing(text: list[int], noise: Noise) -> DraftTree:
    return DraftTree(text[-1])


def everything(tree: DraftTree, noise: Noise) -> int:
    return tree.size


def by_noise(tree: DraftTree, noise: Noise) -> int:
    """The worst case: verifies more or less according to the noise it should not know."""
    return sum(noise) % 5


def by_value(tree: DraftTree, noise: Noise) -> int:
    return 0 if 2 in tree.tokens[1:2] else 2


def blocks(draft: Draft, size: Callable[[DraftTree, Noise], int]) -> Iterator[tuple[Noise, tuple[int, ...]]]:
    """Every noise table with the text that cycles of draft, selection and verification make of it."""
    for noise in product(range(DENOMINATOR), repeat=LENGTH):
        text = [0]
        while len(text) <= LENGTH:
            ahead = noise[len(text) - 1 :]
            tree = draft(text, ahead)
            selection = tree.select(size(tree, ahead))
            # Beyond the table's end the noise is not drawn: any fixed value serves, the text is cut there.
            values = (*ahead, 0, 0, 0)

            def choose(row: int, depth: int, selection: Selection = selection, values: Noise = values) -> int:
                return target_token(selection.tokens[row], values[depth])

            text.extend(accept_coupled(selection, choose, lambda token: False).emitted)
        yield noise, tuple(text[1 : LENGTH + 1])


@pytest.mark.parametrize("size", [everything, by_noise, by_value])
@pytest.mark.parametrize("draft", [full_tree, noise_reading_chain, duplicating, nothing])
def test_every_block_is_plain_decodings_and_the_law_is_the_targets(
    draft: Draft, size: Callable[[DraftTree, Noise], int]
) -> None:
    """All 1296 noise tables; drafters and controllers that read the noise included. Exact fractions."""
    counts: Counter[tuple[int, ...]] = Counter()
    for noise, block in blocks(draft, size):
        assert block == plain_block(noise)
        counts[block] += 1
    for block in product(range(3), repeat=LENGTH):
        probability = Fraction(1)
        for context, symbol in zip((0, *block), block, strict=False):
            probability *= Fraction(WEIGHTS[context][symbol], DENOMINATOR)
        assert Fraction(counts[block], DENOMINATOR**LENGTH) == probability
