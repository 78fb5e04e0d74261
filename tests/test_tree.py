"""The draft tree: selection and attention mask against plain loops, at any scores a drafter may give."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from decoding.attention_mask import additive_mask, array_of, tree_attention_mask
from decoding.drafters.beam import Beam
from decoding.survival import TensorSurvival
from decoding.tree import DraftTree

SCORES = st.one_of(
    st.sampled_from([0.0, -1.0, -1.0, -2.5, -math.inf, math.nan, math.inf, 3.0]), st.floats(-30, 0)
)

FIELDS = ("tokens", "parents", "depths", "scores", "level_starts", "depth")


@st.composite
def trees(draw: st.DrawFn) -> DraftTree:
    """Up to 4 levels of up to 6 nodes; scores may tie, rise, be NaN or infinite."""
    tree = DraftTree(root_token=7)
    for depth in range(draw(st.integers(0, 4))):
        above = tree.level(depth)
        count = draw(st.integers(1, 6))
        parents = draw(st.lists(st.sampled_from(above), min_size=count, max_size=count))
        scores = draw(st.lists(SCORES, min_size=count, max_size=count))
        tokens = draw(st.lists(st.integers(0, 4), min_size=count, max_size=count))
        tree.add_level(tokens, parents, scores)
    return tree


@given(trees())
def test_path_scores_never_exceed_the_parents(tree: DraftTree) -> None:
    """Whatever was given; NaN became -infinity."""
    for node in range(1, len(tree.tokens)):
        assert tree.scores[node] <= tree.scores[tree.parents[node]]


@given(trees(), st.integers(0, 30))
def test_selection_is_a_tree_of_the_best_nodes(tree: DraftTree, size: int) -> None:
    """Against picking, one at a time, the best node left; each selected node's parent is selected."""
    left = list(range(1, len(tree.tokens)))
    picked = [0]
    while left and len(picked) <= size:
        best = left[0]
        for node in left:  # level order: an equal score does not displace
            if tree.scores[node] > tree.scores[best]:
                best = node
        left.remove(best)
        picked.append(best)
        assert tree.parents[best] in picked
    picked.sort()
    selection = tree.select(size)
    assert selection.verification_size == min(size, tree.size) == len(picked) - 1
    assert selection.tokens == [tree.tokens[node] for node in picked]
    assert selection.depths == [tree.depths[node] for node in picked]
    for row, node in enumerate(picked):
        parent = int(selection.parents[row])
        assert parent < row
        assert (parent == -1) == (row == 0)
        if row:
            assert picked[parent] == tree.parents[node]


@given(trees(), st.integers(0, 12))
def test_a_larger_selection_holds_the_smaller(tree: DraftTree, size: int) -> None:
    smaller, larger = tree.ranked()[:size], tree.ranked()[: size + 1]
    assert larger[: len(smaller)] == smaller


def test_equal_scores_select_in_level_order() -> None:
    tree = DraftTree(0)
    tree.add_level([1, 2], [0, 0], [-1.0, -1.0])
    tree.add_level([3, 4, 5], [2, 1, 1], [-1.0, -1.0, -1.0])
    assert tree.ranked() == [1, 2, 3, 4, 5]
    assert tree.select(3).tokens == [0, 1, 2, 3]


def test_of_equal_nodes_the_first_of_the_level_are_grown_from() -> None:
    beam = Beam(0, 2)
    for _ in range(2):
        beam.grow(TensorSurvival(torch.zeros(len(beam.frontier), 5), 2))
    assert beam.tree.parents == [-1, 0, 0, 1, 1, 2, 2]
    assert (beam.frontier, beam.parent_rows) == ([3, 4], [0, 0])


@given(trees(), st.integers(0, 30))
def test_mask_lets_a_row_see_itself_and_its_ancestors(tree: DraftTree, size: int) -> None:
    """Against walking up from every row."""
    parents = tree.select(size).parents
    expected = np.zeros((len(parents), len(parents)), dtype=bool)
    for row in range(len(parents)):
        above = row
        while above >= 0:
            expected[row, above] = True
            above = int(parents[above])
    np.testing.assert_array_equal(array_of(tree_attention_mask(parents)), expected)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_additive_mask_opens_the_cache_to_every_row(dtype: torch.dtype) -> None:
    mask = [bytes([1, 0, 0]), bytes([1, 1, 0]), bytes([1, 0, 1])]
    added = additive_mask(mask, 2, dtype, torch.device("cpu"))
    assert added.dtype == dtype
    low = torch.finfo(dtype).min
    assert added.tolist() == [[[[0, 0, 0, low, low], [0, 0, 0, 0, low], [0, 0, 0, low, 0]]]]


def test_levels_and_sizes() -> None:
    tree = DraftTree(9)
    assert (tree.depth, tree.size, list(tree.level(0))) == (0, 0, [0])
    assert tree.select(5).tokens == [9]
    assert list(tree.add_level([1, 2, 3], [0, 0, 0], [-1, -2, -3])) == [1, 2, 3]
    assert list(tree.add_level([4], [2], [-4])) == [4]
    assert (tree.depth, tree.size) == (2, 4)
    assert [list(tree.level(depth)) for depth in range(3)] == [[0], [1, 2, 3], [4]]
    assert tree.depths == [0, 1, 1, 1, 2]


def test_misuse_is_refused() -> None:
    tree = DraftTree(9)
    tree.add_level([1], [0], [-1.0])
    with pytest.raises(ValueError, match="node 0 is at depth 0, not at 1"):
        tree.add_level([2], [0], [-1.0])
    with pytest.raises(ValueError, match="verification_size is -1, must be >= 0"):
        tree.select(-1)


@given(trees(), st.integers(0, 4), st.integers(-2, 9))
def test_the_first_levels_are_those_of_a_tree_built_anew(tree: DraftTree, joined: int, height: int) -> None:
    """Joined levels stay joined, and the copy shares nothing."""
    whole, expected = DraftTree(tree.tokens[0]), DraftTree(tree.tokens[0])
    for depth in range(1, tree.height + 1):
        level = slice(tree.level(depth).start, tree.level(depth).stop)
        nodes = tree.tokens[level], tree.parents[level], tree.scores[level]
        below = depth > tree.height - joined
        whole.add_level(*nodes, joined=below)
        if depth <= height:
            expected.add_level(*nodes, joined=below)
    before = {name: getattr(whole, name) for name in FIELDS}
    kept = {name: list(value) if isinstance(value, list) else value for name, value in before.items()}
    found = whole.upto(height)
    assert {name: getattr(found, name) for name in FIELDS} == {
        name: getattr(expected, name) for name in FIELDS
    }
    assert (found.height, found.size) == (expected.height, expected.size)
    found.add_level([7], [found.level(found.height)[0]], [-1.0])
    found.scores[0] = found.tokens[0] = -5
    assert {name: getattr(whole, name) for name in FIELDS} == kept
