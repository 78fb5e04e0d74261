"""N-gram lookup against trees built by plain loops; pure; ranked; the text is plain decoding's."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import pytest
import torch
from fakes import ScriptController, draw_chain, plain_text, shared_target
from hypothesis import given, settings
from hypothesis import strategies as st
from test_ngram_index import CUTS, RANDOM, SYMBOLS, agreeing
from test_ngram_index import reference as reference_matches

from decoding.controller import FixedController
from decoding.drafters.ngram import Continuation, NgramDrafter, NgramState
from decoding.drafters.ngram_index import Match
from decoding.noise import NoiseStream
from decoding.sampling import Sampling
from decoding.session import Session
from decoding.tree import DraftTree

TEXTS = RANDOM.filter(bool)
make: Any = NgramDrafter  # takes what no type checker would let through
ONE = NgramDrafter(1, vocabulary_size=SYMBOLS)


def state_after(
    text: list[int], cuts: list[int], drafter: NgramDrafter, drafts: int = 0, chain: bool = False
) -> NgramState:
    """A state that took `text` in pieces, with `drafts` levels drafted in between, or drawn as a chain."""
    state = drafter.start(NoiseStream(0, text[:1]), 0.0, 1)
    places = sorted({0, *(cut for cut in cuts if cut < len(text)), len(text)})
    for start, end in pairwise(places):
        state.ingest(text[start:end], None)
        if chain:
            draw_chain(state, drafts)
            state.best_chain(drafts)
            continue
        state.begin()
        for _ in range(drafts):
            state.extend()
    return state


def drafted(state: NgramState, levels: int) -> DraftTree:
    tree = state.begin()
    for depth in range(levels):
        if not state.extend():
            assert tree.depth == depth == 0, "a draft that has begun can go on"
            break
    return tree


def groups(text: list[int], path: list[int], matches: list[Match]) -> dict[int, list[Match]]:
    """Matches by what they propose after text and path: the copy goes on in its own output."""
    written = text + path
    found: dict[int, list[Match]] = {}
    for match in matches:
        found.setdefault(written[match.place + len(path)], []).append(match)
    return found


def weight(matches: list[Match]) -> int:
    return sum(match.length for match in matches)


def reference(text: list[int], drafter: NgramDrafter, levels: int) -> DraftTree:
    """The tree by its definition: every child of every node, ranked, the best of each level kept."""
    tree = DraftTree(text[-1])
    nodes: list[tuple[int, list[int], list[Match]]] = [
        (0, [], reference_matches(text, drafter.min_match, drafter.recent))
    ]
    for _ in range(levels):
        children = []
        for node, path, matches in nodes:
            for token, group in groups(text, path, matches).items():
                score = tree.scores[node] + math.log(weight(group) / (weight(matches) + 1))
                latest = max(match.place for match in group)
                children.append(((-score, node, -latest), token, [*path, token], group))
        kept = sorted(children)[: drafter.branches]
        if not kept:
            break
        level = tree.add_level(
            [child[1] for child in kept], [child[0][1] for child in kept], [-child[0][0] for child in kept]
        )
        nodes = [(node, child[2], child[3]) for node, child in zip(level, kept, strict=True)]
    return tree


DRAFTERS = st.builds(NgramDrafter, st.integers(1, 4), st.integers(1, 6), st.integers(1, 5))


@settings(max_examples=200)
@given(text=TEXTS, cuts=CUTS, drafter=DRAFTERS, levels=st.integers(0, 8))
def test_tree_is_what_a_search_would_find(
    text: list[int], cuts: list[int], drafter: NgramDrafter, levels: int
) -> None:
    tree, expected = drafted(state_after(text, cuts, drafter), levels), reference(text, drafter, levels)
    assert tree.tokens == expected.tokens
    assert tree.parents == expected.parents
    assert tree.scores == expected.scores


@given(text=TEXTS, drafter=DRAFTERS, levels=st.integers(0, 8))
def test_levels_are_ranked_and_bounded_and_siblings_differ(
    text: list[int], drafter: NgramDrafter, levels: int
) -> None:
    tree = drafted(state_after(text, [], drafter), levels)
    for depth in range(1, tree.depth + 1):
        level = tree.level(depth)
        assert 1 <= len(level) <= drafter.branches
        scores = [tree.scores[node] for node in level]
        assert scores == sorted(scores, reverse=True)
        assert all(tree.scores[node] < tree.scores[tree.parents[node]] for node in level)
        assert len({(tree.parents[node], tree.tokens[node]) for node in level}) == len(level)


@given(text=TEXTS, cuts=CUTS, drafts=st.integers(0, 5), chain=st.booleans())
def test_draft_is_pure(text: list[int], cuts: list[int], drafts: int, chain: bool) -> None:
    """Any cycle boundaries and any drafts before: the same draft."""
    history, fresh = state_after(text, cuts, ONE, drafts, chain), state_after(text, [], ONE)
    assert draw_chain(history, 6)[0].tokens == draw_chain(fresh, 6)[0].tokens
    assert history.match_length == fresh.match_length
    assert history.best_chain(6) == fresh.best_chain(6)
    ours, theirs = drafted(history, 6), drafted(fresh, 6)
    assert (ours.tokens, ours.parents, ours.scores) == (theirs.tokens, theirs.parents, theirs.scores)


@given(text=TEXTS, ranks=st.lists(st.integers(0, 2), min_size=1, max_size=8))
def test_a_chain_is_drawn_from_the_weights_of_the_matches_it_has_not_left(
    text: list[int], ranks: list[int]
) -> None:
    tree, asked = draw_chain(state_after(text, [], ONE), 8, ranks)
    matches = reference_matches(text, 1, 4)
    assert len(asked) == (8 if matches else 0)
    for level, logits in enumerate(asked):
        found = groups(text, tree.tokens[1 : level + 1], matches)
        expected = [weight(found.get(token, [])) for token in range(SYMBOLS)]
        assert logits.dtype == torch.float32
        assert logits.exp().tolist() == pytest.approx(expected)
        matches = found[tree.tokens[level + 1]]
    assert tree.scores[1:] == [-0.5 * (level + 1) for level in range(tree.depth)]


def test_a_token_that_leaves_every_match_ends_the_chain() -> None:
    state = state_after([1, 2, 1], [], NgramDrafter(1, vocabulary_size=5))
    tree = state.begin()
    assert state.next_logits() is state.next_logits() is not None
    state.append(4, -1.0)
    assert state.next_logits() is None
    assert not state.extend()
    assert tree.tokens == [1, 4]


def test_without_a_match_nothing_is_proposed() -> None:
    state = state_after([1, 2, 3, 4], [], NgramDrafter(vocabulary_size=5))
    assert drafted(state, 3).size == 0
    assert state.next_logits() is None
    assert state.match_length == 0
    assert state.best_chain(5) == []


def test_a_distribution_needs_the_vocabulary_size() -> None:
    state = state_after([1, 2, 1], [], NgramDrafter(1))
    state.begin()
    with pytest.raises(ValueError, match="built without a vocabulary size") as caught:
        state.next_logits()
    assert "\n" not in str(caught.value)
    assert state.extend(), "drafting by levels needs none"


@given(
    start=st.lists(st.integers(0, 9), max_size=5),
    period=st.lists(st.integers(10, 19), min_size=1, max_size=7, unique=True),
    times=st.integers(2, 6),
)
def test_a_period_is_continued_past_the_end(start: list[int], period: list[int], times: int) -> None:
    state = state_after(start + period * times, [], NgramDrafter(1, branches=1))
    expected = (period * 20)[:20]
    assert drafted(state, 20).tokens[1:] == expected
    assert [one.token for one in state.best_chain(20)] == expected
    assert state.match_length == min(len(period) * (times - 1), 32)


# `1 2` was followed by 7, last, and by 8 twice, once behind an equal 5: weights 2 and 2 + 3.
TWO_WAYS = [5, 1, 2, 8, 0, 3, 1, 2, 8, 4, 6, 1, 2, 7, 9, 5, 1, 2]


def test_children_share_the_weight_of_their_parents_matches() -> None:
    state = state_after(TWO_WAYS, [], NgramDrafter())
    assert state.match_length == 3
    tree = drafted(state, 2)
    assert tree.tokens == [2, 8, 7, 0, 4, 9]
    assert tree.parents == [-1, 0, 0, 1, 1, 2]
    first = [math.log(5 / 8), math.log(2 / 8)]
    second = [first[0] + math.log(3 / 6), first[0] + math.log(2 / 6), first[1] + math.log(2 / 3)]
    assert tree.scores[1:] == pytest.approx(first + second)
    assert state.best_chain(2) == [Continuation(8, 1, 3, 5 / 7, 5), Continuation(0, 2, 3, 3 / 5, 3)]


def test_of_equal_ways_the_one_taken_last_is_first() -> None:
    """`9` was followed by 1, 2, 2 and 1 behind different tokens: all weigh the same."""
    state = state_after([9, 1, 10, 9, 2, 11, 9, 2, 12, 9, 1, 13, 9], [], NgramDrafter(1))
    assert drafted(state, 1).tokens[1:] == [1, 2]
    assert [one.token for one in state.best_chain(2)] == [1, 13]


@given(text=TEXTS, depth=st.integers(0, 8))
def test_the_best_chain_takes_the_best_child_at_every_node(text: list[int], depth: int) -> None:
    """Of a tree wide enough for all; of a tree with one branch it is the whole. The draft stays as it is."""
    state = state_after(text, [], NgramDrafter(1, branches=32))
    tree = drafted(state, 3)
    before = (list(tree.tokens), list(tree.scores))
    chain = state.best_chain(depth)
    assert (tree.tokens, tree.scores) == before
    while tree.depth < depth and state.extend():
        pass
    node, matches = 0, reference_matches(text, 1, 4)
    path: list[int] = []
    for one in chain:
        children = [child for child, parent in enumerate(tree.parents) if parent == node]
        node = max(children, key=lambda child: tree.scores[child])  # the first of equals
        group = groups(text, path, matches)[one.token]
        share = weight(group) / weight(matches)
        longest = max(agreeing(text, match.place) for match in group)
        assert one == Continuation(tree.tokens[node], len(path) + 1, longest, share, weight(group))
        path, matches = [*path, one.token], group
    assert len(chain) == min(depth, tree.depth)
    narrow = drafted(state_after(text, [], NgramDrafter(1, branches=1)), depth)
    assert path == narrow.tokens[1:]


def test_another_survival_ranks_tree_and_chain(monkeypatch: pytest.MonkeyPatch) -> None:
    """One function decides: under one that prefers short matches the other way is the best."""
    monkeypatch.setattr(NgramState, "log_survival", lambda self, one, opinion: -float(one.match_length))
    state = state_after(TWO_WAYS, [], NgramDrafter())
    assert [one.token for one in state.best_chain(2)] == [7, 9]
    assert drafted(state, 1).tokens == [2, 7, 8]


@pytest.mark.parametrize("name", ["min_match", "recent", "branches"])
@pytest.mark.parametrize("value", [0, -1, 65, True, 2.0, "3", None], ids=repr)
def test_bad_settings_are_refused(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=rf"{name} is {value!r}, must be a whole number in 1\.\.") as caught:
        make(**{name: value})
    assert "\n" not in str(caught.value)


def test_settings_reach_to_their_limits_and_are_all_in_the_fingerprint() -> None:
    drafters = [NgramDrafter(), NgramDrafter(32), NgramDrafter(recent=64), NgramDrafter(branches=32)]
    drafters += [NgramDrafter(1, 1, 1), NgramDrafter(1, 11), NgramDrafter(11, 1)]
    assert len({drafter.fingerprint() for drafter in drafters}) == len(drafters)
    assert drafters[0].fingerprint() == "ngram-match2-recent4-branches3"
    for name, value in (("min_match", 33), ("branches", 33)):
        with pytest.raises(ValueError, match=rf"{name} is 33, must be a whole number in 1\.\.32"):
            make(**{name: value})


@given(
    drafter=DRAFTERS,
    temperature=st.sampled_from([0.0, 1.0]),
    draft=st.lists(st.booleans(), min_size=1, max_size=7),
    sizes=st.lists(st.integers(0, 9), min_size=1, max_size=4),
)
def test_the_text_is_plain_decodings(
    drafter: NgramDrafter, temperature: float, draft: list[bool], sizes: list[int]
) -> None:
    prompt, sampling = [3, 4, 5, 3, 4, 6, 3, 4], Sampling(temperature)
    session = Session(
        shared_target(), drafter, prompt, max_new_tokens=12, end_ids=(), sampling=sampling, seed=1
    )
    for _ in session.run(ScriptController(draft, sizes)):
        pass
    assert session.generated == plain_text(shared_target(), prompt, 12, sampling, seed=1)


@pytest.mark.parametrize("way", [9, 10, 11])
def test_any_way_on_that_the_text_has_taken_is_accepted(way: int) -> None:
    """Three equal matches, three branches: whichever the target takes, its first token was drafted."""
    prompt = [7, 8, 9, 7, 8, 10, 7, 8, 11, 7, 8]

    def force(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return torch.full_like(scores, -torch.inf).index_fill(1, torch.tensor([way]), 0.0)

    sampling = Sampling(processors=(force,))
    session = Session(
        shared_target(), NgramDrafter(), prompt, max_new_tokens=4, end_ids=(), sampling=sampling, seed=0
    )
    first = next(session.run(FixedController(1, 3)))
    assert (first.verification_size, first.accepted) == (3, 1)
    assert session.generated == [way, way]
