"""Ratios and intervals: exact small cases, laws, and coverage in simulation."""

import math
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from decoding.metrics import CycleSummary
from decoding.records import PhaseSeconds
from evaluation import statistics
from evaluation.protocol import Observation
from evaluation.statistics import MIN_GROUPS, bootstrap_interval, compare, compare_all, group_log_ratios, holm


@pytest.fixture(scope="module", autouse=True)
def _fewer_resamples() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(statistics, "RESAMPLES", 1_999)
        yield


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def observed(
    arm: str, question: str, emitted: int, seconds: float, group: str | None = None, repeat: int = 0
) -> Observation:
    cycles = CycleSummary(cycles=emitted, emitted=emitted, seconds=PhaseSeconds(verify=seconds))
    return Observation(arm, question, group or question, None, None, repeat, 0, 0, 1.0, cycles, "", 0.0)


def per_group(arm: str, seconds_per_token: list[float]) -> list[Observation]:
    return [observed(arm, f"q{number}", 8, 8 * each) for number, each in enumerate(seconds_per_token)]


# --- ratios by hand ---------------------------------------------------------------------------------------


def test_two_groups_by_hand() -> None:
    rows = [
        observed("a", "q1", 10, 1.0),
        observed("b", "q1", 10, 2.0),  # a is twice as fast
        observed("a", "q2", 40, 1.0),
        observed("b", "q2", 10, 2.0),  # eight times, over other numbers of tokens
    ]
    found = compare("a", "b", rows, rng())
    assert found.ratio == pytest.approx(4.0)  # the geometric mean
    assert found.ratio_of_sums == pytest.approx((50 / 2.0) / (20 / 4.0))
    assert (found.groups, found.low, found.high, found.p_value, found.claimed) == (2, None, None, None, False)


def test_translations_and_repeats_are_one_group() -> None:
    rows = [
        observed(arm, question, emitted, seconds, group="q", repeat=repeat)
        for arm, seconds in (("a", 1.0), ("b", 3.0))
        for question, emitted in (("en-1", 10), ("it-1", 20))
        for repeat in range(2)
    ]
    assert group_log_ratios("a", "b", rows) == [pytest.approx(math.log(3))]
    assert compare("a", "b", rows, rng()).groups == 1


def test_arms_that_decoded_other_requests_cannot_be_paired() -> None:
    rows = [observed("a", "q1", 1, 1.0), observed("a", "q2", 1, 1.0), observed("b", "q1", 1, 1.0)]
    with pytest.raises(ValueError, match="decoded 2 and 1 requests, 1 of them the same"):
        compare("a", "b", rows, rng())
    with pytest.raises(ValueError, match="cannot be paired"):
        compare("c", "d", rows, rng())


# --- laws -------------------------------------------------------------------------------------------------

speeds = st.lists(st.tuples(st.floats(0.01, 1), st.floats(0.01, 1)), min_size=1, max_size=12)


@settings(max_examples=40, deadline=None)
@given(speeds, st.floats(0.1, 10))
def test_laws_of_a_comparison(pairs: list[tuple[float, float]], factor: float) -> None:
    rows = per_group("a", [a for a, _ in pairs]) + per_group("b", [b for _, b in pairs])
    there, back = compare("a", "b", rows, rng()), compare("b", "a", rows, rng())
    assert there.ratio * back.ratio == pytest.approx(1)
    assert there.ratio_of_sums * back.ratio_of_sums == pytest.approx(1)
    assert compare("a", "b", rows[::-1], rng()).ratio == pytest.approx(there.ratio)
    slower = per_group("a", [a * factor for a, _ in pairs]) + per_group("b", [b for _, b in pairs])
    scaled = compare("a", "b", slower, rng())
    assert scaled.ratio == pytest.approx(there.ratio / factor)
    assert (there.low is None) == (len(pairs) < MIN_GROUPS)
    if there.low is not None and there.high is not None and back.low and back.high and scaled.low:
        assert there.low <= there.ratio * (1 + 1e-9)
        assert there.ratio <= there.high * (1 + 1e-9)
        assert there.low * back.high == pytest.approx(1)
        assert scaled.low == pytest.approx(there.low / factor)
        assert there.claimed == back.claimed


@pytest.mark.parametrize("groups", range(MIN_GROUPS))
def test_few_groups_give_no_interval_and_no_warning(groups: int) -> None:
    assert bootstrap_interval(np.full(groups, 0.3), rng()) is None


def test_a_confidence_that_the_resamples_cannot_reach_gives_no_interval() -> None:
    ratios = rng().normal(0, 0.1, 8)
    assert bootstrap_interval(ratios, rng(), 0.95) is not None
    assert bootstrap_interval(ratios, rng(), 0.999) is None
    with pytest.raises(ValueError, match="confidence is 95"):
        bootstrap_interval(ratios, rng(), 95)


def test_equal_arms_are_never_claimed_to_differ() -> None:
    rows = per_group("a", [0.5] * 10) + per_group("b", [0.5] * 10)
    found = compare("a", "b", rows, rng())
    assert (found.ratio, found.low, found.high, found.p_value, found.claimed) == (1, 1, 1, 1, False)


def test_a_clear_difference_is_claimed_in_either_direction() -> None:
    slow = [0.2 * (1 + 0.02 * number) for number in range(12)]
    rows = per_group("a", [0.1] * 12) + per_group("b", slow)
    for a, b in (("a", "b"), ("b", "a")):
        found = compare(a, b, rows, rng())
        assert found.low is not None
        assert found.high is not None
        assert found.claimed
        assert (found.low > 1) == (a == "a")
        assert (found.high < 1) == (a == "b")


def test_equal_seeds_give_equal_intervals() -> None:
    ratios = rng(3).normal(0.02, 0.1, 9)
    assert bootstrap_interval(ratios, rng(5)) == bootstrap_interval(ratios, rng(5))
    assert bootstrap_interval(ratios, rng(5)) != bootstrap_interval(ratios, rng(6))


# --- coverage ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("groups", [8, 20])
def test_the_interval_covers_the_truth_as_often_as_it_says(groups: int) -> None:
    generator, truth, trials = rng(11), 0.03, 400
    covered = agreed = 0
    for _ in range(trials):
        found = bootstrap_interval(generator.normal(truth, 0.05, groups), generator)
        assert found is not None
        covered += found.low <= truth <= found.high
        agreed += (found.low > 0 or found.high < 0) == (found.p_value < 0.05)
    assert 0.925 <= covered / trials <= 0.975  # a plain percentile interval: 0.88 and 0.92
    assert agreed / trials >= 0.99  # they may part where a percentile falls between two resamples


# --- Holm -------------------------------------------------------------------------------------------------


def test_holm_by_hand() -> None:
    # in order: .01 < .05/4, .0125 < .05/3, then .03 against .05/2 stops it, and .04 is not asked any more
    assert holm([0.04, 0.01, 0.03, 0.0125]) == [False, True, False, True]
    assert holm([0.04, 0.03]) == [False, False]  # Hochberg's step-up would reject both
    assert holm([0.04]) == [True]
    assert holm([]) == []


def test_what_cannot_be_said_counts_as_a_hypothesis() -> None:
    assert holm([0.03]) == [True]
    assert holm([0.03, None]) == [False, False]


@given(st.lists(st.floats(0, 1), max_size=8))
def test_holm_lies_between_bonferroni_and_no_correction(p_values: list[float]) -> None:
    for p_value, rejected in zip(p_values, holm(p_values), strict=True):
        assert rejected or p_value >= 0.05 / len(p_values)
        assert not rejected or p_value < 0.05


def test_claims_of_a_report_are_corrected_together() -> None:
    # a beats b by a hair that holds alone; twelve more comparisons take the claim away, not the interval
    noise = rng(2).normal(0, 0.05, 12)
    noise = noise - noise.mean() + 0.04
    rows = per_group("b", [0.1] * 12) + per_group("a", list(0.1 / np.exp(noise)))
    (alone,) = compare_all([("a", "b")], rows, rng())
    assert alone.claimed
    many = compare_all([("a", "b")] + [("b", "b")] * 12, rows, rng())[0]
    assert not many.claimed
    assert (many.low, many.high, many.p_value) == (alone.low, alone.high, alone.p_value)
