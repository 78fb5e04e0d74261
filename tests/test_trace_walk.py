"""The walk along a traced tree against verification's own, on trees of all shapes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from hypothesis import given
from hypothesis import strategies as st

from decoding.drafters.beam import Beam
from decoding.survival import TensorSurvival
from decoding.traces import Position, followed
from decoding.tree import DraftTree
from decoding.verify import accept_coupled
from tests.fakes import VOCABULARY

# Of each level's nodes: which node of the level above it hangs on, its token, its score's loss.
Shape = list[list[tuple[int, int, int]]]
NODE = st.tuples(st.integers(0, 5), st.integers(0, 2), st.integers(0, 2))
SHAPES = st.lists(st.lists(NODE, min_size=1, max_size=6), max_size=4)


def tree_of(shape: Shape, best_first: bool) -> DraftTree:
    tree = DraftTree(0)
    for level in shape:
        above = list(tree.level(tree.height))
        nodes = [(above[parent % len(above)], loss, token) for parent, token, loss in level]
        if best_first:
            nodes.sort()
        tree.add_level(
            [token for _, _, token in nodes],
            [parent for parent, _, _ in nodes],
            [tree.scores[parent] - loss for parent, loss, _ in nodes],
        )
    return tree


def accepted_rows(tree: DraftTree, size: int, following: Sequence[int]) -> list[int]:
    """Rows below the root on the path that verification accepts, if the text is `following`, then an end."""
    tokens = [*following, VOCABULARY]
    verdict = accept_coupled(tree.select(size), lambda row, depth: tokens[depth], lambda token: False)
    return verdict.rows[1:]


@given(shape=SHAPES, following=st.lists(st.integers(0, 2), max_size=5))
def test_the_walk_is_verifications(shape: Shape, following: list[int]) -> None:
    """Siblings with one token among them: the first stands for all. With every node verified, row = node."""
    tree = tree_of(shape, best_first=False)
    path = followed(tree, following)
    assert list(path) == accepted_rows(tree, tree.size, following)
    for depth, (node, token) in enumerate(zip(path, following, strict=False), start=1):
        same = [
            other
            for other in tree.level(depth)
            if tree.parents[other] == tree.parents[node] and tree.tokens[other] == token
        ]
        assert node == min(same)
        assert tree.parents[node] == ((0, *path)[depth - 1])


@given(shape=SHAPES, following=st.lists(st.integers(0, 2), max_size=5), size=st.integers(0, 12))
def test_what_a_size_accepts_is_verifications(shape: Shape, following: list[int], size: int) -> None:
    """Equal scores and all, at every depth; siblings come best first, as drafters add them."""
    whole = tree_of(shape, best_first=True)
    position = Position(0, 1, whole, followed(whole, following), tuple(following), 0.0, 0.0, None)
    for depth in range(whole.height + 2):
        cut = tree_of(shape[:depth], best_first=True)
        assert position.accepted(depth, size) == len(accepted_rows(cut, size, following))


def test_a_beam_row_is_of_the_last_level_alone() -> None:
    """What the recorder relies on: the rows of a level are gone once the next one was drafted."""
    beam = Beam(5, 1)
    first = TensorSurvival(torch.tensor([[-1.0, -2.0, -3.0]]), 1)
    beam.grow(first)
    assert beam.row_of(0) is not None
    beam.grow(first)
    assert beam.row_of(0) is None
    assert beam.row_of(1) is not None
