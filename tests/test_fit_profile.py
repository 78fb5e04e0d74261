"""Fitting a cost profile: known laws are found again, and held-out cycles are not looked at."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from decoding.check_profile import predictable, predicted_seconds, profile_error, spread_of
from decoding.fit_profile import along_knots, fit_profile, median_regression
from decoding.profile import CostProfile
from decoding.timed_cycle import TimedCycle
from tests.profile_world import (
    CONDITIONS,
    PRINTS,
    held_out,
    law_of_level,
    law_of_rows,
    made_up_cycle,
    made_up_cycles,
)

CONTEXTS = (64, 400, 1600)


def fitted(cycles: list[TimedCycle]) -> CostProfile:
    return fit_profile(cycles, CONTEXTS, PRINTS, CONDITIONS)


def test_a_median_regression_passes_through_the_majority() -> None:
    rng = np.random.default_rng(0)
    design = np.column_stack([np.ones(60), rng.uniform(0, 1, 60)])
    seconds = design @ [2.0, 3.0]
    seconds[:20] *= 5
    np.testing.assert_allclose(median_regression(design, seconds), [2, 3], rtol=1e-3)


def test_knots_without_values_are_filled_in_from_the_others() -> None:
    at = [10] * 9 + [30] * 9
    np.testing.assert_allclose(along_knots(at, [1.0] * 9 + [3.0] * 9, (10, 20, 30, 40)), [1, 2, 3, 3])
    np.testing.assert_allclose(along_knots([22] * 5, [7.0] * 5, (10, 20, 30)), [7, 7, 7])


@pytest.mark.parametrize("slow_share", [0.0, 0.2])
def test_known_laws_are_found_again(slow_share: float) -> None:
    profile = fitted(made_up_cycles(np.random.default_rng(3), CONTEXTS, slow_share=slow_share))
    near = 0.03 if slow_share else 0.003
    assert profile.rows == tuple(range(1, 19))
    assert len(profile.levels["head"]) == 4
    for context in (*CONTEXTS, 200, 1000):
        for rows in profile.rows:
            want = law_of_rows(rows, context)
            assert profile.verification_seconds(rows, context) == pytest.approx(want, rel=near)
        for level in range(1, 5):
            for before in (1, 2, 5, 7):
                got = profile.level_seconds(level, context, before)
                assert got == pytest.approx(law_of_level(level, context, before), rel=near)
    assert profile.verification_seconds(2, 64) > profile.verification_seconds(8, 64)  # not made monotone
    assert profile.verification_token == pytest.approx(2e-4, rel=0.1)
    assert profile.selection == pytest.approx((5e-5, 1e-5, 2e-6), rel=0.05)
    assert profile.commit == pytest.approx((1e-4, 3e-5), rel=0.05)
    assert profile.policy == pytest.approx(4e-5)
    assert profile.start == pytest.approx([1e-4] * 3, rel=1e-3)


def test_cycles_it_never_saw_are_predicted() -> None:
    rng = np.random.default_rng(4)
    seen = made_up_cycles(rng, CONTEXTS)
    unseen = [held_out(one) for one in made_up_cycles(rng, (150, 800), most_rows=6)]
    profile = fitted([*seen, *unseen])
    error = profile_error(profile, unseen)
    assert error is not None
    assert error.cycles == len(unseen)
    assert error.median < 0.01
    dearer = [held_out(made_up_cycle(2, 4, 150, 1, 1, slow=1.25)) for _ in range(3)]
    wrong = profile_error(profile, dearer)
    assert wrong is not None
    assert wrong.median == pytest.approx(0.2, abs=0.01)
    assert wrong.bias == pytest.approx(-0.2, abs=0.01)
    assert profile_error(profile, []) is None


def test_held_out_cycles_leave_the_fit_as_it_is() -> None:
    seen = made_up_cycles(np.random.default_rng(5), CONTEXTS, most_rows=3)
    strange = [made_up_cycle(1, 3, 64, 1, 1, slow=50, held_out=True) for _ in range(99)]
    assert fitted([*strange, *seen]) == fitted(seen)


def test_disturbed_cycles_count_only_where_there_are_too_few_others() -> None:
    seen = made_up_cycles(np.random.default_rng(5), CONTEXTS, most_rows=4)
    slow = [made_up_cycle(1, 3, 400, 1, 1, slow=2, disturbed=True) for _ in range(99)]
    assert fitted([*seen, *slow]) == fitted(seen)
    rare = [made_up_cycle(1, 5, context, 1, 1, slow=2, disturbed=True) for context in CONTEXTS * 3]
    profile = fitted([*seen, *rare])
    assert profile.rows[-1] == 5
    assert profile.verification_seconds(5, 400) == pytest.approx(2 * law_of_rows(5, 400), rel=0.01)


def test_the_spread_is_that_of_the_cycles() -> None:
    calm = fitted(made_up_cycles(np.random.default_rng(6), CONTEXTS))
    rough = fitted(made_up_cycles(np.random.default_rng(6), CONTEXTS, slow_share=0.4))
    assert set(calm.spread) == {
        "start",
        "levels of the head",
        "selection",
        "verification",
        "commit",
        "policy",
    }
    assert [len(calm.spread[part]) for part in ("levels of the head", "verification")] == [4, 18]
    assert max(high for _, high in calm.spread["verification"]) < 1.02
    assert max(high for _, high in rough.spread["verification"]) > 1.5


def test_a_spread_is_measured_over_predicted() -> None:
    cycles = made_up_cycles(np.random.default_rng(6), CONTEXTS)
    slow = [made_up_cycle(2, 4, 400, 1, 1, slow=1.5) for _ in range(9)]
    spread = spread_of(fitted(cycles), slow)
    assert spread["verification"][3] == pytest.approx((1.5, 1.5), rel=0.01)
    assert spread["levels of the head"][1] == pytest.approx((1.5, 1.5), rel=0.01)
    assert spread["policy"][0] == pytest.approx((1.5, 1.5), rel=0.01)


def test_row_counts_seen_too_rarely_are_left_out_with_all_above() -> None:
    cycles = [one for one in made_up_cycles(np.random.default_rng(7), CONTEXTS) if one.rows not in (5, 18)]
    rare = made_up_cycle(3, 5, 64, 1, 1)
    profile = fitted([*cycles, rare])
    assert profile.rows == (1, 2, 3, 4)
    assert not predictable(profile, rare)
    assert predictable(profile, replace(rare, record=replace(rare.record, verification_size=3)))
    assert not predictable(profile, replace(rare, source="lookup"))


def test_a_cycle_without_draft_is_predicted_as_a_plain_step() -> None:
    profile = fitted(made_up_cycles(np.random.default_rng(8), CONTEXTS))
    plain = made_up_cycle(0, 1, 400, 3, 1)
    assert predicted_seconds(profile, [plain])[0] == pytest.approx(plain.record.seconds.total, rel=0.01)


def test_too_few_cycles_are_one_line() -> None:
    cycles = made_up_cycles(np.random.default_rng(9), CONTEXTS)
    with pytest.raises(ValueError, match=r"no plain step was measured: raise profile\.rounds"):
        fitted([one for one in cycles if one.rows > 1])
    with pytest.raises(ValueError, match="no draft was measured: the drafter has nothing to propose"):
        fitted([one for one in cycles if one.rows == 1])
