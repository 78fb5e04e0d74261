"""Made-up worlds: their tables are what recordings of such texts give, their optima what theory says."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from itertools import product

import numpy as np
import pytest

from decoding.controller import RootChoice
from decoding.cost_model import CycleCost, best_depth, constant_prefixes, expected_emitted
from decoding.decision_table import ARRAYS, decision_table, joined_tables
from decoding.decision_walk import replay_texts
from decoding.setting import Setting
from envs.synthetic import RATIOS, WORLDS, World
from envs.synthetic_optimum import Plan, emitted_law, expected_tokens, optimal_rate, optimal_seconds, plans
from policies.baselines import best_constant, constant

EVERY = {**WORLDS, "ratios": RATIOS}


@pytest.mark.parametrize("name", EVERY)
def test_a_table_is_that_of_the_recorded_texts(name: str) -> None:
    world, texts = replace(EVERY[name], tokens=14), 4
    fast = world.table(texts, np.random.default_rng(5))
    kinds_TW, accepted_TW = world.draw(texts, np.random.default_rng(5))
    slow = joined_tables(
        [
            decision_table(
                [world.recorded(kinds_W, accepted_W)],
                world.decisions,
                world.features(int(kinds_W[0])),
                world.tokens,
            )
            for kinds_W, accepted_W in zip(kinds_TW, accepted_TW, strict=True)
        ]
    )
    for array in (*ARRAYS, "starts"):
        np.testing.assert_array_equal(getattr(fast, array), getattr(slow, array), err_msg=array)
        assert getattr(fast, array).dtype == getattr(slow, array).dtype, array


def test_what_is_seen_says_nothing_of_the_outcome() -> None:
    """Texts of the same kinds with other outcomes show and allow the same, and cost the same."""
    for world in WORLDS.values():
        one, other = (world.table(4, np.random.default_rng(seed)) for seed in (1, 2))
        for array in ("features_PNF", "allowed_PNA", "size_PNS"):
            np.testing.assert_array_equal(getattr(one, array), getattr(other, array))
        alone = 0 < sum(world.rates) < len(world.rates)
        assert (one.emitted_PNS != other.emitted_PNS).any() == alone


@pytest.mark.parametrize("name", EVERY)
def test_tokens_are_accepted_as_often_as_the_world_says(name: str) -> None:
    """Of drafts of the second level, within five standard errors."""
    world, texts = EVERY[name], 400
    kinds_TW, accepted_TW = world.draw(texts, np.random.default_rng(3))
    table = world.table(texts, np.random.default_rng(3))
    inside = np.tile(np.arange(world.tokens), texts) < world.tokens - 3
    emitted_P = table.emitted_PNS[:, 2, -1]
    for kind, rate in enumerate(world.rates):
        those = inside & (kinds_TW.ravel() == kind)
        error = 2 / np.sqrt(those.sum())
        assert abs(emitted_P[those].mean() - expected_tokens(rate, 2)) <= 5 * error
        assert abs((accepted_TW.ravel()[those] >= 1).mean() - rate) <= 5 * error


@pytest.mark.parametrize("name", WORLDS)
def test_long_texts_are_best_drafted_as_deep_as_theory_says(name: str) -> None:
    """The optimum, worked out backwards, against the best depth of `cost_model`, an independent computation:
    a text's end costs at most what one deepest cycle does."""
    world = WORLDS[name]
    by_kind = []
    for rate in world.rates:
        one = replace(world, rates=(rate,))
        cost = CycleCost(world.level, lambda depth: world.verification[depth])
        best = best_depth(constant_prefixes(rate, world.max_depth), cost)
        bound = world.tokens / Fraction(best.speedup)
        slack = world.max_depth * world.level + max(world.verification) + world.max_depth
        assert bound - slack <= optimal_seconds(one) <= bound + slack
        longer = optimal_seconds(replace(one, tokens=2 * world.tokens)) - optimal_seconds(one)
        assert longer * best.speedup == pytest.approx(world.tokens, rel=1e-3)
        by_kind.append(best.draft_depth)
    assert by_kind == {
        "constant": [3], "regimes": [4, 0], "cliff": [4], "hopeless": [0], "free": [6]
    }[name]  # fmt: skip


def test_the_optimum_is_the_best_of_all_policies_of_a_short_text() -> None:
    """By trying every plan for every count of tokens left, in fractions."""
    world = World((Fraction(3, 5), Fraction(1, 4)), Fraction(1, 10), (Fraction(1),) * 3, (1, 2), 4, False)

    def mean(policy: dict[int, tuple[Plan, ...] | None], left: int) -> Fraction:
        if left == 0:
            return Fraction(0)
        if left == 1 or policy[left] is None:
            return 1 + mean(policy, left - 1)
        total = Fraction(0)
        for rate, plan in zip(world.rates, policy[left] or (), strict=True):
            after = sum(
                share * mean(policy, left - emitted)
                for emitted, share in enumerate(emitted_law(rate, plan.verification_size), start=1)
            )
            total += world.level * plan.draft_depth + 1 + after
        return total / 2

    choices = {left: [None, *product(plans(world, left), repeat=2)] for left in range(2, 5)}
    every = [dict(zip(choices, each, strict=True)) for each in product(*choices.values())]
    assert len(every) == 2 * 10 * 10
    assert min(mean(policy, 4) for policy in every) == optimal_seconds(world)


def test_laws_of_a_cycle() -> None:
    for rate, size in product((Fraction(0), Fraction(1, 3), Fraction(1)), range(5)):
        law = emitted_law(rate, size)
        assert sum(law) == 1
        assert expected_tokens(rate, size) == expected_emitted(rate, size)
    assert emitted_law(Fraction(1, 3), 2) == [Fraction(2, 3), Fraction(2, 9), Fraction(1, 9)]


@pytest.mark.parametrize("name", ["constant", "cliff", "hopeless", "free"])
def test_the_best_constant_is_the_known_one_and_near_the_optimum(name: str) -> None:
    world = WORLDS[name]
    table = world.table(300, np.random.default_rng(0))
    setting, seconds = best_constant(table, world.costs(table))
    assert setting.draft_depth == {"constant": 3, "cliff": 4, "hopeless": 0, "free": 6}[name]
    assert table.positions / seconds[setting].sum() == pytest.approx(float(optimal_rate(world)), rel=0.02)


def test_costs_are_the_worlds() -> None:
    world = WORLDS["cliff"]
    table = world.table(1, np.random.default_rng(0))
    costs = world.costs(table)
    first = table.starts[0]
    assert (costs.plain_P[first], costs.start_P[first], costs.question) == (1, 0, 0)
    np.testing.assert_allclose(costs.arrive_PN[first, 1:], 0.05)
    np.testing.assert_allclose(costs.finish_PNS[first, 8], [1, 1, 2.5])
    np.testing.assert_allclose(costs.finish_PNS[first, 3], [1, 1, 1])


def test_a_text_without_hope_takes_its_tokens_in_plain_steps() -> None:
    world = WORLDS["hopeless"]
    table = world.table(3, np.random.default_rng(0))
    plain = constant(table.features, table.decisions, Setting(RootChoice.PLAIN, 0, 0))
    assert replay_texts(table, world.costs(table), plain).tolist() == [world.tokens] * 3
    assert optimal_seconds(world) == world.tokens


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"rates": ()}, "rates are"),
        ({"rates": (Fraction(3, 2),)}, "must be in 0..1"),
        ({"level": Fraction(-1)}, "costs are"),
        ({"verification": (Fraction(1),)}, "two rows or more"),
        ({"verification": (Fraction(2), Fraction(2))}, "must be 1: it is the unit"),
        ({"tokens": 0}, "tokens is 0"),
    ],
)
def test_worlds_that_are_none(changes: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words) as error:
        replace(WORLDS["constant"], **changes)  # type: ignore[arg-type]
    assert len(str(error.value).splitlines()) == 1
