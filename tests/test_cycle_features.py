"""What a policy of all decisions sees: every entry by hand, and nothing outside its bounds."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from decoding.controller import DraftView, LookupHint
from decoding.cycle_features import HISTORY_NAMES, CycleFeatures
from decoding.records import CycleRecord, PhaseSeconds
from decoding.tree import DraftTree

WILD = st.one_of(
    st.sampled_from([0.0, -1.0, -20.0, math.nan, math.inf, -math.inf, 1e300, -1e300, 3.0]), st.floats(-30, 0)
)


def record(emitted: int) -> CycleRecord:
    return CycleRecord(0, 0, (), tuple(range(emitted)), 10, PhaseSeconds(verify=1.0))


def seen(features: CycleFeatures, view: DraftView) -> dict[str, float]:
    return dict(zip(features.names, features(view).tolist(), strict=True))


FEATURES = CycleFeatures((1, 2, 4), 4, 0.7, (0.25, 100.0))


def tree() -> DraftTree:
    """Two levels: of 3 nodes with e^score .5, .25, .125, and of 2, .4 and .2."""
    made = DraftTree(9)
    made.add_level([1, 2, 3], [0, 0, 0], [math.log(one) for one in (0.25, 0.5, 0.125)])
    made.add_level([4, 5], [2, 2], [math.log(0.2), math.log(0.4)])
    return made


REST = {"temperature": 0.7, "cost_0": 0.25, "cost_1": 8.0}
NO_DRAFT = {
    **dict.fromkeys(("lookup_alone", "draft_depth", "level_best", "level_second", "level_sum"), 0.0),
    **dict.fromkeys(("level_margin", "expected_1", "expected_2", "expected_4"), 0.0),
}


def test_a_draft_by_hand() -> None:
    history = [record(n) for n in (5, 1, 2, 2, 4)]  # 9 / 4 in the last four cycles
    view = DraftView(tree(), 4, 64, 3, history, lookup=LookupHint(3, 0.5, True))
    assert seen(FEATURES, view) == pytest.approx(
        {
            "at_root": 0.0,
            "lookup_alone": 0.0,
            "draft_depth": 2 / 4,
            "level_best": 0.4,
            "level_second": 0.2,
            "level_sum": 0.6,
            "level_margin": math.log(2) / 5,
            "expected_1": 0.5,
            "expected_2": 0.9,
            "expected_4": 1.35,
            "match_length": math.log2(4) / 5,
            "match_share": 0.5,
            "agrees": 1.0,
            "tokens_left": 3 / 10,
            "log2_context_length": (6 - 8) / 4,
            **REST,
            "emitted_last": 4 / 5,
            "emitted_mean_4": 2.25 / 5,
        }
    )


def test_a_root_by_hand() -> None:
    view = DraftView(DraftTree(9), 4, 2**20, 1000, lookup=LookupHint(40, 0.25))
    assert seen(FEATURES, view) == pytest.approx(
        {
            "at_root": 1.0,
            **NO_DRAFT,
            "match_length": 1.0,
            "match_share": 0.25,
            "agrees": 0.0,
            "tokens_left": 1.0,
            "log2_context_length": 3.0,
            **REST,
            "emitted_last": 0.0,
            "emitted_mean_4": 0.0,
        }
    )


def test_a_lookup_without_a_match_reads_as_none() -> None:
    """Whatever else its hint says."""
    views = [DraftView(tree(), 4, 64, 3, lookup=hint) for hint in (None, LookupHint(0, 0.5, True))]
    np.testing.assert_array_equal(FEATURES(views[0]), FEATURES(views[1]))


def test_a_lookup_alone_by_hand() -> None:
    """It is joined, not drafted: of its levels the last is shown."""
    chain = DraftTree(9)
    for level, score in enumerate((-0.5, -1.0, -3.0)):
        chain.add_level([1], [level], [score], joined=True)
    found = seen(FEATURES, DraftView(chain, 4, 1, 2, lookup=LookupHint(1, 2.0, False)))
    probabilities = [math.exp(score) for score in (-0.5, -1.0, -3.0)]
    assert (
        found
        == pytest.approx(
            {
                **NO_DRAFT,
                "at_root": 0.0,
                "lookup_alone": 1.0,
                "level_best": probabilities[2],
                "level_sum": probabilities[2],
                "level_margin": 1.0,  # 17 / 5, cut
                "expected_1": probabilities[0],
                "expected_2": sum(probabilities[:2]),
                "expected_4": sum(probabilities),
                "match_length": 0.2,
                "match_share": 1.0,
                "agrees": -1.0,
                "tokens_left": 0.2,
                "log2_context_length": -2.0,
                **REST,
                "emitted_last": 0.0,
                "emitted_mean_4": 0.0,
            }
        )
    )


def test_of_a_lookup_with_branches_the_whole_last_level_is_shown() -> None:
    branches = DraftTree(9)
    branches.add_level([1, 2, 3], [0, 0, 0], [math.log(one) for one in (0.5, 0.25, 0.125)], joined=True)
    found = seen(FEATURES, DraftView(branches, 4, 64, 3, [], lookup=LookupHint(3, 0.5, None)))
    assert [found[name] for name in ("level_best", "level_second", "level_sum")] == pytest.approx(
        [0.5, 0.25, 0.875]
    )


@given(st.integers(1, 4), st.lists(st.floats(-5, 0), min_size=1, max_size=3))
def test_a_chain_below_the_drafted_levels_is_not_counted(levels: int, chain: list[float]) -> None:
    """The question after a level comes before it is joined; that of the finished draft reads the same."""
    drafted = DraftTree(9)
    for level in range(levels):
        drafted.add_level([1, 2], [drafted.level(level)[0]] * 2, [-0.5 - level, -1.0 - level])
    finished = drafted.upto(levels)
    for score in chain:
        finished.add_level([3], [finished.level(finished.height)[0]], [score], joined=True)
    before, after = (DraftView(one, 9, 30, 9, lookup=LookupHint(2, 0.5)) for one in (drafted, finished))
    np.testing.assert_array_equal(FEATURES(before), FEATURES(after))


@given(
    levels=st.lists(st.lists(WILD, min_size=1, max_size=5), max_size=3),
    joined=st.integers(0, 3),
    guarded=st.booleans(),
    context=st.one_of(st.integers(-1, 3), st.just(1 << 80)),
    left=st.one_of(st.integers(-3, 30), st.just(1 << 40)),
    hint=st.one_of(
        st.none(),
        st.builds(
            LookupHint,
            st.integers(-1, 1 << 40),
            st.one_of(WILD, st.floats()),
            st.sampled_from([None, True, False]),
        ),
    ),
    emitted=st.lists(st.integers(0, 500), max_size=5),
    max_depth=st.integers(1, 4),
    temperature=st.sampled_from([0.0, 0.7, 1e9]),
)
def test_no_view_escapes_the_bounds(
    levels: list[list[float]],
    joined: int,
    guarded: bool,
    context: int,
    left: int,
    hint: LookupHint | None,
    emitted: list[int],
    max_depth: int,
    temperature: float,
) -> None:
    made = DraftTree(1)
    for level, scores in enumerate(levels):
        count = len(scores)
        made.add_level(
            [1] * count, [made.level(level)[0]] * count, scores, joined=level >= len(levels) - joined
        )
    if not guarded:  # past the tree's own guard
        made.scores[1:] = [score for scores in levels for score in scores]
    features = CycleFeatures((1, 3), max_depth, temperature, (0.0, 1e30))
    view = DraftView(made, 4, context, left, [record(n) for n in emitted], lookup=hint)
    values = features(view)
    assert values.shape == features.low.shape == features.high.shape == (len(features.names),)
    assert values.dtype == np.float32
    assert np.isfinite(values).all()
    assert (features.low <= values).all()
    assert (values <= features.high).all()


def test_there_are_at_most_32_entries_and_the_history_is_last() -> None:
    most = CycleFeatures(tuple(range(1, 11)), 8, 1.0, (1.0, 2.0, 3.0, 4.0))
    assert len(most.names) == len(set(most.names)) == 29 <= 32
    assert most.names[-2:] == HISTORY_NAMES
    view = DraftView(tree(), 4, 64, 3, [record(2)])
    np.testing.assert_allclose(most(view), [*most.of_draft(view), *most.of_cycle(view)], rtol=1e-6)
    np.testing.assert_allclose(most(view)[:-2], most.of_position(view), rtol=1e-6)
    with pytest.raises(ValueError, match="read-only"):
        most.low[0] = 1


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"sizes": ()}, "sizes are \\(\\), must be 1 to 10, strictly increasing, from 1 up"),
        ({"sizes": tuple(range(1, 12))}, "must be 1 to 10"),
        ({"sizes": (2, 2)}, "strictly increasing"),
        ({"sizes": (3, 2)}, "strictly increasing"),
        ({"sizes": (0, 2)}, "from 1 up"),
        ({"max_depth": 0}, "max_depth is 0, must be a whole number >= 1"),
        ({"max_depth": 2.5}, "max_depth is 2.5"),
        ({"temperature": -0.1}, "temperature is -0.1, must be finite and >= 0"),
        ({"temperature": math.nan}, "temperature is nan"),
        ({"temperature": math.inf}, "temperature is inf"),
        ({"cost_ratios": (1.0,) * 5}, "must be at most 4, finite and >= 0"),
        ({"cost_ratios": (-1.0,)}, "cost_ratios are \\(-1.0,\\)"),
        ({"cost_ratios": (math.nan,)}, "cost_ratios are"),
        ({"cost_ratios": (math.inf,)}, "cost_ratios are"),
    ],
)
def test_bad_settings_are_refused_in_one_line(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        CycleFeatures(**{"sizes": (1, 2), "max_depth": 4, **changed})
    assert "\n" not in str(caught.value)
