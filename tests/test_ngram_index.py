"""The index of earlier places against a search by plain loops; pure; flat in the length of the text."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from decoding.drafters.ngram_index import LONGEST_MATCH, Match, NgramIndex

SYMBOLS = 3
# Left alone, lists are mostly too short to repeat themselves.
RANDOM = st.one_of(
    [st.lists(st.integers(0, SYMBOLS - 1), min_size=least, max_size=60) for least in (0, 10, 30)]
)
# Matches beyond the longest that is counted need texts that repeat themselves.
PERIODIC = st.builds(
    lambda start, period, times, end: start + period * times + end,
    RANDOM,
    st.lists(st.integers(0, SYMBOLS - 1), min_size=1, max_size=20),
    st.integers(2, 40),
    st.lists(st.integers(0, SYMBOLS - 1), max_size=2),
)
TEXTS = st.one_of(RANDOM, PERIODIC)
CUTS = st.lists(st.integers(0, 100), max_size=6)


def index_of(text: list[int], min_match: int, recent: int = 4, cuts: list[int] | None = None) -> NgramIndex:
    """An index that took `text` in pieces."""
    index = NgramIndex(min_match, recent)
    places = sorted({0, *(cut for cut in cuts or () if cut < len(text)), len(text)})
    for start, end in pairwise(places):
        index.extend(text[start:end])
    return index


def agreeing(text: list[int], place: int) -> int:
    """Tokens that agree before `place` and before the end, counted up to LONGEST_MATCH."""
    for length in range(min(place, LONGEST_MATCH), 0, -1):
        if text[place - length : place] == text[len(text) - length :]:
            return length
    return 0


def reference(text: list[int], min_match: int, recent: int) -> list[Match]:
    """Every place tried in turn; for each hashed length the last `recent` of those that fit."""
    places: set[int] = set()
    for length in {min_match, *(n for n in (4, 8) if n > min_match)}:
        fitting = [
            place
            for place in range(length, len(text))
            if text[place - length : place] == text[len(text) - length :]
        ]
        places.update(fitting[-recent:])
    found = [Match(place, agreeing(text, place)) for place in places]
    return sorted(found, key=lambda match: (match.length, match.place), reverse=True)


@settings(max_examples=200)
@given(text=TEXTS, cuts=CUTS, min_match=st.integers(1, 10), recent=st.integers(1, 9))
def test_matches_are_what_a_search_would_find(
    text: list[int], cuts: list[int], min_match: int, recent: int
) -> None:
    index = index_of(text, min_match, recent, cuts)
    assert index.matches() == reference(text, min_match, recent)
    assert [index.token(place) for place in range(len(index))] == text


@given(text=RANDOM, min_match=st.integers(1, 10))
def test_with_places_enough_every_match_is_found(text: list[int], min_match: int) -> None:
    """Whatever lengths are hashed: none of at least `min_match` tokens is missed, none is shorter."""
    every = [Match(place, agreeing(text, place)) for place in range(len(text))]
    long_enough = {match for match in every if match.length >= min_match}
    assert set(index_of(text, min_match, recent=64).matches()) == long_enough


@given(text=TEXTS, min_match=st.sampled_from([1, 2, 4, 7, 32]), recent=st.integers(1, 4))
def test_matches_are_in_order_distinct_bounded_and_have_a_continuation(
    text: list[int], min_match: int, recent: int
) -> None:
    matches = index_of(text, min_match, recent).matches()
    assert all(match.place < len(text) for match in matches)
    assert all(min_match <= match.length <= min(LONGEST_MATCH, match.place) for match in matches)
    assert len({match.place for match in matches}) == len(matches) <= 3 * recent
    for before, after in pairwise(matches):
        assert (before.length, before.place) > (after.length, after.place)


@given(text=TEXTS, cuts=CUTS)
def test_asking_changes_nothing(text: list[int], cuts: list[int]) -> None:
    asked = NgramIndex(2)
    for token in text:
        asked.matches()
        asked.extend([token])
    assert asked.matches() == asked.matches() == index_of(text, 2, cuts=cuts).matches()


def test_the_longest_is_found_behind_many_recent_short_ones() -> None:
    """What the longer hashed n-grams are for: `1 2` alone occurred lately far more often than is kept."""
    long_ago = [5, 6, 7, 8, 9, 3, 1, 2, 30]
    lately = [1, 2, 40, 41] * 50
    (best, *others) = index_of([*long_ago, *lately, 5, 6, 7, 8, 9, 3, 1, 2], 2).matches()
    assert best == Match(place=8, length=8)
    assert [match.length for match in others] == [2] * 4


def test_the_present_ending_is_no_place() -> None:
    assert index_of([], 1).matches() == []
    assert index_of([3], 1).matches() == []
    assert index_of([3, 3], 1).matches() == [Match(1, 1)]
    assert index_of([1, 2, 3, 4], 2).matches() == []
    assert index_of([1, 2, 9, 5, 1, 2], 2).matches() == [Match(2, 2)]


class Counted(int):
    """A token that counts how often tokens are compared, in the index's own code and in dictionaries."""

    comparisons = 0

    def __eq__(self, other: object) -> bool:
        Counted.comparisons += 1
        return int.__eq__(self, other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = int.__hash__


@pytest.mark.parametrize("period", [1, 2, 7])
@pytest.mark.parametrize("recent", [1, 4])
def test_cost_is_flat_in_the_length_of_the_text(period: int, recent: int) -> None:
    """On texts in which every place matches: comparisons of one question and of one more token."""
    costs = set()
    for length in (700, 20_300):  # whole periods both
        index = NgramIndex(2, recent)
        index.extend([Counted(place % period) for place in range(length)])
        Counted.comparisons = 0
        assert len(index.matches()) <= 3 * recent
        asking = Counted.comparisons
        index.extend([Counted(0)])
        costs.add((asking, Counted.comparisons - asking))
    ((asking, entering),) = costs
    assert 0 < asking <= 3 * recent * LONGEST_MATCH + (2 + 4 + 8)
    assert 0 < entering <= 2 * (2 + 4 + 8)  # each hashed n-gram is looked for, then entered
