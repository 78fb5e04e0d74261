"""N-gram lookup against a search by plain loops; pure; an index that costs no search."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from decoding.drafters.ngram import NgramDrafter, NgramState
from decoding.noise import NoiseStream

TEXTS = st.lists(st.integers(0, 2), min_size=1, max_size=40)
CUTS = st.lists(st.integers(0, 40), max_size=6)


def state_after(text: list[int], cuts: list[int], drafter: NgramDrafter, drafts: int = 0) -> NgramState:
    """A state that took `text` in pieces, with `drafts` levels drafted in between."""
    state = drafter.start(NoiseStream(0, text[:1]), 0.0, 1)
    places = sorted({0, *(cut for cut in cuts if cut < len(text)), len(text)})
    for start, end in pairwise(places):
        state.ingest(text[start:end], None)
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


@given(text=TEXTS, cuts=CUTS, drafts=st.integers(0, 5))
def test_draft_is_pure(text: list[int], cuts: list[int], drafts: int) -> None:
    """Any cycle boundaries and any drafts before: the same draft."""
    drafter = NgramDrafter(1, 3)
    assert drafted(state_after(text, cuts, drafter, drafts), 6) == drafted(state_after(text, [], drafter), 6)


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
