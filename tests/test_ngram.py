"""N-gram lookup against a search by plain loops; pure; an index that costs no search."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from decoding.drafters.ngram import NgramDrafter, NgramState
from decoding.noise import NoiseStream
from tests.fakes import draw_chain

TEXTS = st.lists(st.integers(0, 2), min_size=1, max_size=40)
CUTS = st.lists(st.integers(0, 40), max_size=6)


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
            continue
        state.begin()
        for _ in range(drafts):
            state.extend()
    return state


def drafted(state: NgramState, levels: int) -> list[int]:
    tree = state.begin()
    for depth in range(levels):
        if not state.extend():
            assert tree.depth == depth
            break
    assert tree.parents == list(range(-1, tree.size))
    assert set(tree.scores) == {0.0}
    return tree.tokens[1:]


def reference(text: list[int], shortest: int, longest: int, levels: int) -> list[int]:
    """What followed the latest earlier place of the longest ending, read on into the draft itself."""
    for length in range(longest, shortest - 1, -1):
        if length >= len(text):
            continue
        for start in range(len(text) - length - 1, -1, -1):
            if text[start : start + length] == text[-length:]:
                extended = list(text)
                for level in range(levels):
                    extended.append(extended[start + length + level])
                return extended[len(text) :]
    return []


@given(text=TEXTS, cuts=CUTS, shortest=st.integers(1, 3), more=st.integers(0, 3), levels=st.integers(0, 8))
def test_draft_is_what_a_search_would_find(
    text: list[int], cuts: list[int], shortest: int, more: int, levels: int
) -> None:
    drafter = NgramDrafter(shortest, shortest + more)
    state = state_after(text, cuts, drafter)
    assert drafted(state, levels) == reference(text, shortest, shortest + more, levels)


@given(text=TEXTS, cuts=CUTS, drafts=st.integers(0, 5), chain=st.booleans())
def test_draft_is_pure(text: list[int], cuts: list[int], drafts: int, chain: bool) -> None:
    """Any cycle boundaries and any drafts before: the same draft."""
    drafter = NgramDrafter(1, 3, vocabulary_size=3)
    history, fresh = state_after(text, cuts, drafter, drafts, chain), state_after(text, [], drafter)
    assert draw_chain(history, 6)[0].tokens == draw_chain(fresh, 6)[0].tokens
    assert drafted(history, 6) == drafted(fresh, 6)


@given(text=TEXTS, cuts=CUTS, levels=st.integers(0, 8))
def test_a_chain_is_what_a_search_would_find(text: list[int], cuts: list[int], levels: int) -> None:
    """Each distribution has one token, that of the draft by levels."""
    state = state_after(text, cuts, NgramDrafter(1, 3, vocabulary_size=5))
    tree, asked = draw_chain(state, levels)
    assert tree.tokens[1:] == reference(text, 1, 3, levels)
    assert tree.scores[1:] == [-0.5 * (level + 1) for level in range(tree.depth)]
    for token, logits in zip(tree.tokens[1:], asked, strict=True):
        assert logits.tolist() == [0.0 if number == token else float("-inf") for number in range(5)]


def test_asking_again_gives_the_same_tensor_and_without_a_match_none() -> None:
    state = state_after([1, 2, 1], [], NgramDrafter(1, 1, vocabulary_size=5))
    state.begin()
    assert state.next_logits() is state.next_logits() is not None
    state = state_after([1, 2, 3], [], NgramDrafter(1, 1, vocabulary_size=5))
    state.begin()
    assert state.next_logits() is None


def test_a_distribution_needs_the_vocabulary_size() -> None:
    state = state_after([1, 2, 1], [], NgramDrafter(1, 1))
    state.begin()
    with pytest.raises(ValueError, match="built without a vocabulary size") as caught:
        state.next_logits()
    assert "\n" not in str(caught.value)
    assert state.extend(), "drafting by levels needs none"


def test_a_period_is_continued_past_the_end() -> None:
    assert drafted(state_after([7, 1, 2, 3, 1, 2, 3], [], NgramDrafter(2, 5)), 8) == [1, 2, 3, 1, 2, 3, 1, 2]


def test_the_beginning_of_the_text_is_found_too() -> None:
    assert drafted(state_after([1, 2, 9, 5, 1, 2], [], NgramDrafter(2, 2)), 3) == [9, 5, 1]


def test_without_a_match_nothing_is_drafted() -> None:
    assert drafted(state_after([1, 2, 3, 4], [], NgramDrafter(2, 5)), 3) == []


@pytest.mark.parametrize(("shortest", "longest"), [(0, 3), (3, 2), (-1, -1)])
def test_bad_match_lengths_are_refused(shortest: int, longest: int) -> None:
    with pytest.raises(
        ValueError, match=rf"min_match {shortest} and max_match {longest} must satisfy 1 <= min"
    ):
        NgramDrafter(shortest, longest)
