"""Tables of decisions: texts taken apart and joined stay what they are; what cannot be one is refused."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from decoding.controller import RootChoice
from decoding.cycle_features import CycleFeatures
from decoding.decision_costs import decision_costs
from decoding.decision_table import (
    ARRAYS,
    ROOT_NODE,
    DecisionTable,
    Nodes,
    decision_table,
    joined_tables,
    split_texts,
)
from decoding.decision_walk import replay_texts
from decoding.decisions import Decisions
from decoding.trace_file import TracedText
from tests.test_replay_session import profile
from tests.test_replay_table import traced
from tests.traced_worlds import CHOICES, TOKENS, Case

DECISIONS = Decisions(CHOICES, 3, (1, 2, 5))
FEATURES = CycleFeatures((1, 2, 5), 3)


@cache
def texts() -> list[TracedText]:
    """Four of different lengths, with names of their own."""
    cases = [Case("merged-eagle3", 1.0, seed, prompt) for seed, prompt in ((0, 1), (1, 0), (1, 1), (2, 2))]
    about = [("a", "code", "en"), ("b", None, "de"), ("c", "chat", None), ("d", None, None)]
    return [
        replace(traced(case), question_id=name, category=category, language=language)
        for case, (name, category, language) in zip(cases, about, strict=True)
    ]


def table_of(some: list[TracedText], features: CycleFeatures = FEATURES) -> DecisionTable:
    return decision_table(some, DECISIONS, features, TOKENS)


@cache
def whole() -> DecisionTable:
    return table_of(texts())


def same(one: DecisionTable, other: DecisionTable) -> None:
    assert (one.decisions, one.features) == (other.decisions, other.features)
    assert (one.names, one.categories, one.languages) == (other.names, other.categories, other.languages)
    assert one.starts.tolist() == other.starts.tolist()
    for name in ARRAYS:
        left, right = getattr(one, name), getattr(other, name)
        assert left.dtype == right.dtype
        np.testing.assert_array_equal(left, right)


def test_a_table_says_what_it_is_of() -> None:
    table = whole()
    assert table.names == ("a", "b", "c", "d")
    assert table.categories == ("code", "", "chat", "")
    assert table.languages == ("en", "de", "", "")
    counts = [len(text.by_place()) for text in texts()]
    assert len(set(counts)) > 1
    assert np.diff(table.starts).tolist() == counts
    assert (table.texts, table.positions) == (4, sum(counts))
    assert table.starts[0] == 0
    assert {len(getattr(table, name)) for name in ARRAYS} == {sum(counts)}
    # A text is cut at its limit where nobody is asked, or ended before it.
    for text, count in enumerate(counts):
        asked = table.asked_P[table.starts[text] : table.starts[text + 1]].tolist()
        assert asked == [True] * (count - 1) + [count < TOKENS]


@given(st.lists(st.integers(0, 3), min_size=1, max_size=6))
@settings(max_examples=20)
def test_a_split_is_the_table_of_those_texts(wanted: list[int]) -> None:
    """In any order, twice too."""
    same(split_texts(whole(), wanted), table_of([texts()[one] for one in wanted]))


@given(st.integers(1, 3), st.integers(1, 3))
def test_parts_joined_are_the_whole(first: int, second: int) -> None:
    ends = sorted({first, second})
    parts = [range(start, end) for start, end in zip([0, *ends], [*ends, 4], strict=True)]
    same(joined_tables([split_texts(whole(), part) for part in parts]), whole())
    same(joined_tables([whole()]), whole())


def test_a_split_shares_nothing() -> None:
    part = split_texts(whole(), [0, 1])
    for name in ARRAYS:
        assert not np.shares_memory(getattr(part, name), getattr(whole(), name))


def test_texts_of_a_split_take_the_time_they_took() -> None:
    costs = decision_costs(whole(), profile())
    part = split_texts(whole(), [2])
    alone = split_texts(part, [0])
    same(part, alone)
    by_part = replay_texts(part, decision_costs(part, profile()), _first)
    assert by_part[0] == replay_texts(whole(), costs, _first)[2]


def _first(features_BF: np.ndarray, allowed_BA: np.ndarray) -> np.ndarray:
    """Drafts where it may, as deep as it may."""
    actions = np.arange(allowed_BA.shape[1])
    weights_A = np.where(actions == 0, 1, 1 + len(actions) - actions)
    chosen_B: np.ndarray = np.where(allowed_BA, weights_A, 0).argmax(axis=1)
    return chosen_B


def test_features_may_differ_in_constants() -> None:
    """Those of temperatures and machines are in the arrays."""
    warm = CycleFeatures((1, 2, 5), 3, temperature=0.7)
    joined = joined_tables([whole(), table_of(texts()[:1], warm)])
    assert joined.features == FEATURES
    column = FEATURES.names.index("temperature")
    roots = joined.features_PNF[:, ROOT_NODE, column][joined.asked_P]
    assert set(roots.tolist()) == {0.0, np.float32(0.7)}


def test_tables_of_other_decisions_are_not_joined() -> None:
    other = decision_table(texts()[:1], replace(DECISIONS, choices=CHOICES[:2]), FEATURES, TOKENS)
    with pytest.raises(ValueError, match="cannot be joined"):
        joined_tables([whole(), other])
    more = table_of(texts()[:1], CycleFeatures((1, 2, 5), 3, cost_ratios=(1.0,)))
    with pytest.raises(ValueError, match="cannot be joined"):
        joined_tables([whole(), more])


def test_what_no_table_can_be_made_of() -> None:
    with pytest.raises(ValueError, match="there are no texts: the recording is empty"):
        table_of([])
    for sizes, depth in (((1, 2), 3), ((1, 2, 5), 4)):
        with pytest.raises(ValueError, match=f"the features are of .* and {depth}, not Decisions"):
            decision_table(texts(), DECISIONS, CycleFeatures(sizes, depth), TOKENS)
    with pytest.raises(ValueError, match="the trace of question 'q' has no LOOKUP drafts"):
        table_of([traced(Case("eagle3", 0.0, 0, 1))])
    long = next(text for text in texts() if len(text.by_place()) == TOKENS)
    with pytest.raises(ValueError, match=f"has {TOKENS} tokens, more than max_new_tokens, {TOKENS - 1}"):
        decision_table([long], DECISIONS, FEATURES, TOKENS - 1)


def test_the_graph_of_questions() -> None:
    """Two levels of the merged draft, a lookup, two levels of the head."""
    decisions = Decisions(CHOICES, 2, (4,))
    nodes = Nodes.of(decisions)
    names = [(choice.name, depth) for choice, depth in zip(nodes.choice, nodes.depth, strict=True)]
    assert names == [("PLAIN", 0), ("ALL", 1), ("ALL", 2), ("LOOKUP", 0), ("HEAD", 1), ("HEAD", 2)]
    assert len(nodes) == 6
    # plain, draft all, draft lookup, draft head, continue, verify 4
    assert nodes.next_NA.tolist() == [
        [-1, 1, 3, 4, -1, -1],
        [-1, -1, -1, -1, 2, -1],
        [-1] * 6,
        [-1] * 6,
        [-1, -1, -1, -1, 5, -1],
        [-1] * 6,
    ]
    lookup_only = Nodes.of(Decisions((RootChoice.LOOKUP,), 2, (4,)))
    assert lookup_only.next_NA.tolist() == [[-1, 1, -1, -1], [-1] * 4]


def test_what_is_digested_is_known_up_to_the_longest_text() -> None:
    """With a head's draft after a text of plain steps, all of it."""
    costs = decision_costs(whole(), profile(digest=1.0))
    assert len(costs.digest_C) == 1 + np.diff(whole().starts).max()
    # Of one token 0, of two 1 second, and so on.
    np.testing.assert_allclose(costs.digest_C[1:], np.arange(len(costs.digest_C) - 1), rtol=1e-6)
    assert not costs.lookup_digests
    head = replace(profile(digest=1.0), levels={"head": profile().levels["head"]})
    assert decision_costs(whole(), head).lookup_digests
    lookup = replace(profile(digest=1.0), levels={"lookup": profile().levels["lookup"]})
    assert not decision_costs(whole(), lookup).digest_C.any()
