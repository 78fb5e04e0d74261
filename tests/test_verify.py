"""The `coupled` rule: chosen cases by hand. Its exact law is in test_coupled_law.py."""

from __future__ import annotations

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
