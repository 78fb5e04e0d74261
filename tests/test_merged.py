"""A lookup's chain joined into a head's tree: against plain loops; pure; the text is plain decoding's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise, product

import numpy as np
import pytest
import torch

from decoding.controller import LookupHint, RootChoice
from decoding.drafters.merged import MergedDrafter, MergedState
from decoding.noise import NoiseStream
from decoding.tree import DraftTree
from tests.fakes import draw_chain
from tests.merged_world import (
    CALIBRATIONS,
    HEADS,
    PROMPT_LENGTH,
    HandTree,
    World,
    features_of,
    merged,
    random_text,
    tree_by_hand,
)
from tests.test_ngram_index import reference as matches_of

ALL, LOOKUP, HEAD = RootChoice.ALL, RootChoice.LOOKUP, RootChoice.HEAD
PLACES = [
    (temperature, calibration) for temperature in (0.0, 1.0) for calibration in range(len(CALIBRATIONS))
]


def state_after(
    text: Sequence[int],
    drafter: MergedDrafter,
    temperature: float,
    cuts: Sequence[int] = (),
    between: Sequence[tuple[str, int]] = (("plain", 0),),
) -> MergedState:
    """A state that took `text` in pieces; in between it drafted, by turns, what `between` says."""
    state = drafter.start(NoiseStream(0, text[:PROMPT_LENGTH]), temperature, PROMPT_LENGTH)
    features = features_of(tuple(text)) if drafter.fused_layers else None
    state.ingest(text[:1], None)
    places = sorted({1, *(cut for cut in cuts if PROMPT_LENGTH <= cut < len(text)), len(text)})
    for turn, (start, end) in enumerate(pairwise(places)):
        state.ingest(text[start:end], None if features is None else features[start - 1 : end - 1])
        kind, levels = between[turn % len(between)]
        if kind == "drawn":
            draw_chain(state, levels, (4, 0))
        elif kind == "plain":
            state.begin()
            state.hint()
        else:
            draft(state, RootChoice[kind], levels, levels + 3)
    return state


def draft(state: MergedState, choice: RootChoice, levels: int, limit: int) -> DraftTree:
    tree = state.begin()
    state.choose(choice)
    for _ in range(0 if choice == LOOKUP else levels):
        assert state.extend()
    state.finish(limit)
    return tree


def assert_same(ours: DraftTree, theirs: DraftTree | HandTree, at: object = "") -> None:
    assert ours.tokens == theirs.tokens, at
    assert ours.parents == theirs.parents, at
    assert ours.depths == theirs.depths, at
    np.testing.assert_allclose(ours.scores, theirs.scores, rtol=1e-5, atol=1e-5, err_msg=str(at))


def check_whatever_a_tree_is(tree: DraftTree) -> None:
    """No two siblings with one token; no score above the parent's; every selection is a tree."""
    children = list(zip(tree.parents, tree.tokens, strict=True))
    assert len(set(children)) == len(children)
    for node in range(1, tree.size + 1):
        assert tree.scores[node] <= tree.scores[tree.parents[node]] <= 0
    chosen = {0}
    for node in tree.ranked():
        assert tree.parents[node] in chosen
        chosen.add(node)


@pytest.mark.parametrize("head", HEADS)
def test_tree_is_the_references(head: str) -> None:
    """Nodes, parents and scores; `draft_depth`; the hint; what happened to the chain's tokens, all of it."""
    fates: Counter[str] = Counter()
    for seed in range(48):
        rng = np.random.default_rng(seed)
        temperature, calibration = PLACES[seed % len(PLACES)]
        text, width = random_text(rng), int(rng.choice([2, 5]))
        levels, lookup_depth = int(rng.integers(1, 5)), int(rng.integers(1, 8))
        limit = levels + int(rng.integers(0, 4))
        drafter = merged(head, width, lookup_depth, CALIBRATIONS[calibration])
        world = World(text, drafter, temperature)
        chain = world.chain()
        expected = tree_by_hand(world, levels, limit, chain)
        state = state_after(text, drafter, temperature)
        tree = draft(state, ALL, levels, limit)
        assert_same(tree, expected, (seed, expected.fates))
        check_whatever_a_tree_is(tree)
        assert tree.depth == levels
        assert tree.height == max(levels, min(limit, len(chain))) <= limit
        fates.update(expected.fates)
        on_chain = [0]
        for one in chain[:limit]:
            on_chain.append(children_of(tree, on_chain[-1])[one.token])
            grown = on_chain[-1] in expected.grown
            fates[f"{expected.fates[one.depth - 1]}, grown"] += grown
        for depth in range(levels + 1, tree.height + 1):
            assert list(tree.level(depth)) == [on_chain[depth]], "the chain alone"
        matches = matches_of(text, 1, drafter.lookup.recent)
        if not chain:
            assert state.hint() == LookupHint()
        else:
            agrees = int(world.survival([]).argmax()) == chain[0].token
            assert state.hint() == LookupHint(matches[0].length, chain[0].share, agrees)
    wanted = {"shared", "beside", "cold", "below", "shared, grown", "beside, grown"}
    wanted |= {"unheld", "unheld, grown"} if head == "eagle" else set()
    assert not [fate for fate in wanted if fates[fate] < 2], fates
    assert fates["cold, grown"] == fates["below, grown"] == 0


def children_of(tree: DraftTree, node: int) -> dict[int, int]:
    """Children of a node by their token."""
    parents = enumerate(tree.parents)
    return {tree.tokens[child]: child for child, parent in parents if parent == node}


@pytest.mark.parametrize("head", HEADS)
def test_the_hint_says_whether_the_heads_best_token_is_the_lookups(head: str) -> None:
    """In texts whose last token was followed by what the head likes there, or by the token next to it."""
    drafter, agreed = merged(head), []
    for last, beside in product(range(14, 24), (0, 1)):
        liked = int(World([31, last, 12, 11, 30, last], drafter, 0.0).survival([]).argmax())
        token = 10 + (liked - 10 + beside) % 30
        if token == last:
            continue
        text = [31, last, token, 11, 30, last]
        state = state_after(text, drafter, 0.0)
        state.begin()
        assert state.hint() == LookupHint(1, 1.0, None)
        assert state.extend()
        agrees = int(World(text, drafter, 0.0).survival([]).argmax()) == token
        assert state.hint() == LookupHint(1, 1.0, agrees)
        assert state.extend()
        assert state.hint().agrees == agrees, "a matter of the first level"
        agreed.append(agrees)
    assert 2 <= sum(agreed) < len(agreed)


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("seed", range(8))
def test_head_alone_is_the_heads_own_tree(head: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    temperature, calibration = PLACES[seed % len(PLACES)]
    text, levels = random_text(rng), int(rng.integers(1, 5))
    drafter = merged(head, 3, 4, CALIBRATIONS[calibration])
    own = drafter.head.start(NoiseStream(0, text[:PROMPT_LENGTH]), temperature, PROMPT_LENGTH)
    own.ingest(text[:1], None)
    own.ingest(text[1:], features_of(tuple(text))[: len(text) - 1] if drafter.fused_layers else None)
    expected = own.begin()
    state = state_after(text, drafter, temperature)
    tree = state.begin()
    state.choose(HEAD)
    world = World(text, drafter, temperature)
    for _ in range(levels):
        assert own.extend()
        assert state.extend()
        agrees = int(world.survival([]).argmax()) == world.chain()[0].token if world.chain() else None
        assert state.hint().agrees == agrees, "a head alone has an opinion too"
    state.finish(9)
    assert (tree.tokens, tree.parents, tree.scores) == (expected.tokens, expected.parents, expected.scores)
    assert tree.depth == tree.height == levels
    assert_same(tree, tree_by_hand(world, levels, 9))


@pytest.mark.parametrize("seed", range(24))
def test_lookup_alone_is_the_lookups_own_tree(seed: int) -> None:
    """To `lookup_depth` levels, or as many as there are tokens left; none of them was drafted."""
    rng = np.random.default_rng(seed)
    temperature, calibration = PLACES[seed % len(PLACES)]
    text, limit, lookup_depth = random_text(rng), int(rng.integers(1, 9)), int(rng.integers(1, 9))
    drafter = merged(HEADS[seed % 2], 3, lookup_depth, CALIBRATIONS[calibration])
    own = drafter.lookup.start(NoiseStream(0, text[:PROMPT_LENGTH]), temperature, PROMPT_LENGTH)
    own.ingest(text, None)
    expected = own.begin()
    while expected.depth < min(limit, lookup_depth) and own.extend():
        pass
    state = state_after(text, drafter, temperature)
    tree = draft(state, LOOKUP, 0, limit)
    assert (tree.tokens, tree.parents, tree.scores) == (expected.tokens, expected.parents, expected.scores)
    assert (tree.depth, tree.height) == (0, expected.depth)
    assert state.hint().agrees is None, "no head was asked"
    check_whatever_a_tree_is(tree)


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("choice", [ALL, LOOKUP, HEAD])
def test_draft_is_pure(head: str, choice: RootChoice) -> None:
    """Any cycle boundaries, any drafts and choices between: the same tree, the same chain drawn."""
    kinds = ["plain", "drawn", "ALL", "LOOKUP", "HEAD"]
    for seed in range(12):
        rng = np.random.default_rng(seed)
        temperature, calibration = PLACES[seed % len(PLACES)]
        text = random_text(rng)
        drafter = merged(head, 3, 5, CALIBRATIONS[calibration])
        cuts = rng.integers(PROMPT_LENGTH, len(text) + 1, 6).tolist()
        between = [(str(rng.choice(kinds)), int(rng.integers(1, 4))) for _ in range(4)]
        history = state_after(text, drafter, temperature, cuts, between)
        fresh = state_after(text, drafter, temperature)
        assert history.begin().size == 0
        assert history.hint() == fresh.hint() or fresh.hint().agrees is None
        assert history.hint().agrees is None, "nothing was drafted at this root"
        assert_same(draft(history, choice, 3, 6), draft(fresh, choice, 3, 6), (seed, between))
        for ours, theirs in zip(draw_chain(history, 3)[1], draw_chain(fresh, 3)[1], strict=True):
            torch.testing.assert_close(ours, theirs)


def test_where_nothing_matches_it_is_the_heads_tree() -> None:
    text = [11, 12, 13, 14, 15]
    trees = []
    for choice in (ALL, HEAD):
        state = state_after(text, merged("eagle"), 0.0)
        trees.append(draft(state, choice, 2, 9))
        assert state.hint() == LookupHint()
    assert_same(*trees)
    assert draft(state, LOOKUP, 0, 9).size == 0


def test_settings() -> None:
    drafter = merged("eagle", 3, 7)
    assert drafter.verification_size == max(drafter.head.verification_size, 7)
    assert drafter.draft_depth == drafter.head.draft_depth
    assert "merged-7-ngram-match1" in drafter.fingerprint()
