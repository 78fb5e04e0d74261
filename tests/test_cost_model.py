"""The cost model against numbers by hand, enumeration and exhaustive search; the figures that show it."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from itertools import accumulate, product
from math import prod
from operator import mul

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from decoding.cost_model import (
    CycleCost,
    Forecast,
    Number,
    best_depth,
    constant_prefixes,
    expected_emitted,
    expected_emitted_from_prefixes,
    forecast,
    marginal_depth,
    mixed_prefixes,
    worth_one_more,
)

MEAN, EASY, HARD = Fraction(7, 10), Fraction(19, 20), Fraction(9, 20)
DEEPEST = 16

rates = st.fractions(0, 1, max_denominator=20)
costs = st.fractions(0, 2, max_denominator=20)
# rates by depth, not prefixes: any joint law of "the first i are accepted" has some
prefix_lists = st.lists(rates, max_size=8).map(lambda row: tuple(accumulate(row, mul)))


def drafting(alpha: Number, cost: CycleCost, deepest: int = DEEPEST) -> Forecast:
    """The best of 1..deepest: plain decoding not allowed."""
    return best_depth(constant_prefixes(alpha, deepest), cost, range(1, deepest + 1))


# --- E ----------------------------------------------------------------------------------------------------


@given(rates, st.integers(0, 12))
def test_expected_emitted_is_equation_1(alpha: Fraction, depth: int) -> None:
    closed = depth + 1 if alpha == 1 else (1 - alpha ** (depth + 1)) / (1 - alpha)
    assert expected_emitted(alpha, depth) == closed


@given(rates, st.integers(0, 6))
def test_expected_emitted_is_the_mean_over_every_sequence(alpha: Fraction, depth: int) -> None:
    mean = Fraction(0)
    for coins in product((True, False), repeat=depth):
        emitted = 1 + (coins.index(False) if False in coins else depth)
        mean += emitted * prod(alpha if coin else 1 - alpha for coin in coins)
    assert expected_emitted(alpha, depth) == mean


@given(st.lists(st.integers(0, 9), min_size=16, max_size=16).filter(any))
def test_any_joint_law_needs_only_its_prefixes(weights: list[int]) -> None:
    law = dict(zip(product((True, False), repeat=4), weights, strict=True))
    total = sum(weights)
    prefixes = [Fraction(sum(w for coins, w in law.items() if all(coins[:i])), total) for i in range(1, 5)]
    emitted = sum(w * (1 + (coins.index(False) if False in coins else 4)) for coins, w in law.items())
    assert expected_emitted_from_prefixes(prefixes) == Fraction(emitted, total)


@given(rates, rates, st.integers(0, 12))
def test_bounds_and_monotony(alpha: Fraction, other: Fraction, depth: int) -> None:
    emitted = expected_emitted(alpha, depth)
    assert 1 <= emitted <= depth + 1
    assert emitted <= expected_emitted(alpha, depth + 1)
    assert expected_emitted(min(alpha, other), depth) <= expected_emitted(max(alpha, other), depth)


def test_the_ends_are_exact() -> None:
    assert [expected_emitted(0.0, depth) for depth in (0, 1, 16)] == [1, 1, 1]
    assert [expected_emitted(1.0, depth) for depth in (0, 1, 16)] == [1, 2, 17]


@pytest.mark.parametrize("gap", [1e-3, 1e-9, 1e-12, 1e-15])
def test_floats_keep_their_digits_near_one(gap: float) -> None:
    alpha = 1 - gap
    assert expected_emitted(alpha, 32) == pytest.approx(
        float(expected_emitted(Fraction(alpha), 32)), rel=1e-14
    )


# --- S and the best depth ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("alpha", "draft", "depth", "emitted", "speedup"),
    [
        (0.3, 0.05, 2, 1.39, 1.264),
        (0.3, 0.20, 1, 1.3, 1.083),
        (0.7, 0.05, 6, 3.058819, 2.353),
        (0.7, 0.20, 3, 2.533, 1.583),
        (0.9, 0.05, 13, 7.712321, 4.674),
        (0.9, 0.20, 7, 5.695328, 2.373),
    ],
)
def test_the_scan(alpha: float, draft: float, depth: int, emitted: float, speedup: float) -> None:
    best = drafting(alpha, CycleCost(draft))
    assert best.draft_depth == depth
    assert best.emitted == pytest.approx(emitted, abs=5e-7)
    assert best.speedup == pytest.approx(speedup, abs=5e-4)


def test_a_dear_verification_makes_a_good_draft_a_loss() -> None:
    cost = CycleCost(Fraction(1, 20), verification=3)
    assert round(float(forecast(constant_prefixes(MEAN, 6), cost, 6).speedup), 3) == 0.927
    assert best_depth(constant_prefixes(MEAN, DEEPEST), cost) == Forecast(0, 1, 1)


def test_a_draft_that_is_never_right_only_costs() -> None:
    worthless = constant_prefixes(0.0, DEEPEST)
    assert drafting(0.0, CycleCost(0.05)) == Forecast(1, 1.0, 1.05)
    assert best_depth(worthless, CycleCost(0.05)).draft_depth == 0
    assert best_depth(worthless, CycleCost(0)).draft_depth == 0  # a tie goes to the smaller


def test_time_is_the_sum_of_its_parts() -> None:
    assert CycleCost(Fraction(1, 5), Fraction(3, 2), Fraction(1, 10)).time(4) == Fraction(12, 5)
    by_rows = CycleCost(Fraction(1, 5), lambda depth: 1 + Fraction(depth, 10))
    assert [by_rows.time(depth) for depth in (0, 1, 2)] == [1, Fraction(13, 10), Fraction(8, 5)]


@given(rates, costs)
def test_a_cheap_verification_pays_iff_alpha_exceeds_c(alpha: Fraction, draft: Fraction) -> None:
    # Leviathan et al., Corollary 3.9
    best = best_depth(constant_prefixes(alpha, 8), CycleCost(draft))
    assert (best.draft_depth > 0) == (alpha > draft)
    if alpha > draft:
        assert best.speedup >= (1 + alpha) / (1 + draft)


# --- the marginal rule ------------------------------------------------------------------------------------


@given(prefix_lists, costs, st.fractions("1/20", 1, max_denominator=20))
def test_the_marginal_rule_finds_the_optimum_of_convex_time(
    prefixes: tuple[Fraction, ...], draft: Fraction, verification: Fraction
) -> None:
    cost = CycleCost(draft, verification)
    assert marginal_depth(prefixes, cost) == best_depth(prefixes, cost)


@given(prefix_lists, st.lists(costs, min_size=8, max_size=8), costs)
def test_from_depth_1_it_needs_convexity_from_there_only(
    prefixes: tuple[Fraction, ...], steps: list[Fraction], overhead: Fraction
) -> None:
    assume(prefixes)
    rows = [Fraction(2), *accumulate(sorted(steps), initial=Fraction(2))]
    cost = CycleCost(0, lambda depth: rows[depth], overhead)
    best = best_depth(prefixes, cost, range(1, len(prefixes) + 1))
    assert marginal_depth(prefixes, cost, start=1) == best


@given(prefix_lists, st.lists(costs.map(lambda cost: cost + 1), min_size=8, max_size=8), st.integers(0, 1))
def test_it_finds_the_first_local_maximum_whatever_the_time(
    prefixes: tuple[Fraction, ...], rows: list[Fraction], start: int
) -> None:
    assume(len(prefixes) >= start)
    cost = CycleCost(Fraction(1, 10), lambda depth: rows[depth - 1])
    speedups = [forecast(prefixes, cost, depth).speedup for depth in range(len(prefixes) + 1)]
    peak = start
    while peak + 1 < len(speedups) and speedups[peak + 1] > speedups[peak]:
        peak += 1
    assert marginal_depth(prefixes, cost, start).draft_depth == peak


def test_two_rows_dearer_than_eight_defeat_it() -> None:
    # as measured on 2 cores (design.md section 5): few rows can cost more than many
    cost = CycleCost(Fraction(1, 20), lambda depth: 3 if depth < 4 else 1)
    prefixes = constant_prefixes(Fraction(9, 10), 8)
    assert marginal_depth(prefixes, cost).draft_depth == 0
    best = best_depth(prefixes, cost)
    assert (best.draft_depth, round(float(best.speedup), 2)) == (8, 4.38)


def test_a_jump_in_the_verification_defeats_it_from_any_start() -> None:
    cost = CycleCost(Fraction(1, 20), lambda depth: 1 if depth < 4 else 2)
    prefixes = constant_prefixes(EASY, DEEPEST)
    assert [marginal_depth(prefixes, cost, start).draft_depth for start in (0, 1)] == [3, 3]
    best = best_depth(prefixes, cost)
    assert best.draft_depth == 16
    assert [round(float(forecast(prefixes, cost, depth).speedup), 1) for depth in (3, 16)] == [3.2, 4.2]


def test_a_fixed_cost_is_not_paid_by_the_first_token_alone() -> None:
    cost = CycleCost(Fraction(1, 20), overhead=Fraction(7, 10))
    prefixes = constant_prefixes(MEAN, 8)
    assert marginal_depth(prefixes, cost).draft_depth == 0  # .7 tokens for .75 of a step
    assert marginal_depth(prefixes, cost, start=1) == best_depth(prefixes, cost)
    assert best_depth(prefixes, cost).speedup > 1


def test_where_cycles_differ_the_price_is_the_throughput_of_the_run() -> None:
    cost = CycleCost(Fraction(1, 5))
    kinds = [constant_prefixes(rate, DEEPEST) for rate in (EASY, HARD)]

    def throughput(depths: Sequence[int]) -> Number:
        rows = [forecast(kind, cost, depth) for kind, depth in zip(kinds, depths, strict=True)]
        return sum(row.emitted for row in rows) / sum(row.time for row in rows)

    def depths_at(price: Number) -> list[int]:
        found = []
        for kind in kinds:
            depth = 0
            while depth < DEEPEST and worth_one_more(
                kind[depth], cost.time(depth + 1) - cost.time(depth), price
            ):
                depth += 1
            found.append(depth)
        return found

    best = max(product(range(DEEPEST + 1), repeat=2), key=throughput)
    assert list(best) == depths_at(throughput(best)) == [13, 0]
    own = [marginal_depth(kind, cost).draft_depth for kind in kinds]
    assert own == [10, 1]
    assert [round(float(throughput(row)), 3) for row in (own, best)] == [2.399, 2.445]


def test_a_tie_is_not_worth_it() -> None:
    assert not worth_one_more(Fraction(1, 2), Fraction(1, 4), 2)
    assert worth_one_more(Fraction(1, 2), Fraction(1, 5), 2)
    assert worth_one_more(0, -1, 2)


# --- the same mean, another E -----------------------------------------------------------------------------


def test_a_mixture_emits_more_than_its_mean_rate() -> None:
    constant = constant_prefixes(MEAN, DEEPEST)
    mixed = mixed_prefixes(constant_prefixes(EASY, DEEPEST), constant_prefixes(HARD, DEEPEST))
    assert mixed[0] == constant[0] == MEAN  # the same mean rate
    # Jensen: a^i is strictly convex from i = 2 on
    assert all(more > less for more, less in zip(mixed[1:], constant[1:], strict=True))
    assert expected_emitted_from_prefixes(mixed[:2]) - expected_emitted(MEAN, 2) == Fraction(1, 16)
    emitted = expected_emitted_from_prefixes(mixed[:6])
    assert float(emitted) == pytest.approx(3.922321, abs=5e-7)
    assert emitted == (expected_emitted(EASY, 6) + expected_emitted(HARD, 6)) / 2
    # accepted / offered weighs the cycles that got far: in the formula it is wrong the other way
    pooled = (emitted - 1) / expected_emitted_from_prefixes(mixed[:5])
    assert expected_emitted(MEAN, 6) < emitted < expected_emitted(pooled, 6)


def test_the_mixture_wants_deeper_drafts() -> None:
    cost = CycleCost(Fraction(1, 5))
    constant = constant_prefixes(MEAN, DEEPEST)
    mixed = mixed_prefixes(constant_prefixes(EASY, DEEPEST), constant_prefixes(HARD, DEEPEST))
    assert [best_depth(row, cost).draft_depth for row in (constant, mixed)] == [3, 6]
    assert [round(float(forecast(mixed, cost, depth).speedup), 3) for depth in (3, 6)] == [1.704, 1.783]


def test_with_rates_by_depth_the_order_decides() -> None:
    falling, rising = (
        tuple(accumulate(map(Fraction, row), mul)) for row in ((".9", ".7", ".5"), (".5", ".7", ".9"))
    )
    assert expected_emitted_from_prefixes(rising) < expected_emitted(MEAN, 3)
    assert expected_emitted(MEAN, 3) < expected_emitted_from_prefixes(falling)


@given(st.lists(rates, min_size=1, max_size=4), st.integers(0, 8))
def test_no_mixture_emits_less(kinds: list[Fraction], depth: int) -> None:
    mixed = mixed_prefixes(*(constant_prefixes(rate, depth) for rate in kinds))
    mean = sum(kinds, Fraction(0)) / len(kinds)
    assert expected_emitted_from_prefixes(mixed) >= expected_emitted(mean, depth)
