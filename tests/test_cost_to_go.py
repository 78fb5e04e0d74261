"""What tokens are worth: seconds left are those of a walk, worths what a plain loop finds."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from decoding.decision_costs import decision_costs
from decoding.decision_table import DecisionTable
from decoding.decision_values import decided
from decoding.decision_walk import replay_texts
from decoding.decisions import Decisions
from policies.baselines import constant, settings_of
from policies.cost_to_go import (
    Cycles,
    cycles_of,
    history_of,
    seconds_left,
    speed_of,
    token_worths,
    with_worths,
)
from policies.full_information import seen_history
from tests.decision_world import NODES, flat_profile, made_up_table
from tests.test_decision_walk import SIZES, table_of
from tests.test_replay_session import profile
from tests.traced_worlds import CHOICES, DEPTH, Case

LENGTHS = [6, 1, 9]


def random_table(seed: int) -> tuple[np.random.Generator, DecisionTable]:
    rng = np.random.default_rng(seed)
    emitted_PNS = rng.integers(1, 5, (sum(LENGTHS), NODES, 2))
    return rng, made_up_table(emitted_PNS, rng.random(sum(LENGTHS)), LENGTHS)


@given(seed=st.integers(0, 999), share=st.sampled_from([0.0, 0.4, 1.0]))
def test_worths_by_a_plain_loop(seed: int, share: float) -> None:
    rng, table = random_table(seed)
    seconds_P = rng.uniform(0.5, 3, table.positions)
    left_P = np.repeat(table.starts[1:], LENGTHS) - np.arange(table.positions)
    cycles = Cycles(seconds_P, np.minimum(rng.integers(1, 4, table.positions), left_P))

    def left(place: int, end: int) -> float:
        return 0.0 if place >= end else seconds_P[place] + left(place + cycles.emitted_P[place], end)

    worths = with_worths(table, cycles, 1.7, share)
    total = 0.0
    for text, (start, end) in enumerate(zip(table.starts[:-1], table.starts[1:], strict=True)):
        total += left(start, end)
        for place in range(start, end):
            assert seconds_left(table, cycles)[place + text] == pytest.approx(left(place, end))
            for node, size in np.ndindex(NODES, 2):
                emitted = int(table.emitted_PNS[place, node, size])
                own = 1 + 1.7 * (left(place + 1, end) - left(place + emitted, end))
                expected = share * own + (1 - share) * emitted
                assert worths.emitted_PNS[place, node, size] == pytest.approx(expected, abs=1e-5)
    assert speed_of(table, cycles) == pytest.approx(table.positions / total)


def test_a_token_is_worth_what_it_takes_at_its_temperature() -> None:
    """Texts of 6, 1 and 9 tokens in 3, 4 and 9 seconds; the first two are of one temperature."""
    _, table = random_table(0)
    at = table.features.names.index("temperature")
    for text, temperature in enumerate((0.0, 0.0, 1.0)):
        table.features_PNF[table.starts[text] : table.starts[text + 1], :, at] = temperature
    found = token_worths(table, np.array([3.0, 4.0, 9.0]))
    slow, fast, mean = 9 / 9, 7 / 7, 16 / 16
    assert found.tolist() == [1.0] * 16 == [fast / mean] * 7 + [slow / mean] * 9
    found = token_worths(table, np.array([3.0, 0.5, 9.0]))
    mean = 12.5 / 16
    assert found == pytest.approx([0.5 / mean] * 7 + [1 / mean] * 9)
    # One temperature: one worth, whatever the texts take.
    table.features_PNF[:, :, at] = 0.7
    assert token_worths(table, np.array([3.0, 0.1, 9.0])).tolist() == [1.0] * 16


def test_the_number_of_tokens_counts_as_they_are_worth() -> None:
    rng, table = random_table(1)
    cycles = Cycles(np.full(table.positions, 0.5), np.ones(table.positions, dtype=np.int64))
    token_P = rng.uniform(0.5, 2, table.positions).astype(np.float32)
    counted = table.emitted_PNS * token_P[:, None, None]
    none, half = (with_worths(table, cycles, 2.0, share, token_P).emitted_PNS for share in (0.0, 0.5))
    np.testing.assert_allclose(none, counted, rtol=1e-6)
    np.testing.assert_allclose(half, (counted + table.emitted_PNS) / 2, rtol=1e-5)


def test_where_all_is_equally_fast_tokens_are_worth_their_number() -> None:
    _, table = random_table(0)
    cycles = Cycles(np.full(table.positions, 0.5), np.ones(table.positions, dtype=np.int64))
    worths = with_worths(table, cycles, 2.0, 1.0)
    assert np.allclose(worths.emitted_PNS, table.emitted_PNS)


@given(
    seed=st.integers(0, 999),
    prompt=st.integers(0, 2),
    name=st.sampled_from(["merged-causal", "merged-eagle3"]),
)
def test_cycles_and_history_are_those_of_a_walk(seed: int, prompt: int, name: str) -> None:
    """A policy that looks at scores alone, and digests nothing, walks as its cycles say."""
    table = table_of(Case(name, 1.0, 1, prompt), Decisions(CHOICES, DEPTH, SIZES))
    costs = decision_costs(table, profile())
    weights = np.random.default_rng(seed).normal(size=(len(table.features.names), len(table.decisions)))
    weights[-2:] = 0.0  # the history

    def decide(features_BF: np.ndarray, allowed_BA: np.ndarray) -> np.ndarray:
        actions_B: np.ndarray = np.where(allowed_BA, features_BF @ weights, -np.inf).argmax(axis=1)
        return actions_B

    cycles = cycles_of(table, costs, decided(table, decide))
    left = seconds_left(table, cycles)
    by_walk = float(replay_texts(table, costs, decide)[0])
    assert left[0] == pytest.approx(by_walk, rel=1e-5)
    seen, seconds_T = seen_history(table, costs, decide)
    speed = table.positions / seconds_T.sum()
    last = np.flatnonzero(~table.asked_P)  # nobody is asked there, and nobody walks there
    walked = np.setdiff1d(np.arange(table.positions), last)
    assert np.allclose(history_of(table, cycles)[walked], seen[walked])
    assert speed_of(table, cycles) == pytest.approx(table.positions / by_walk, rel=1e-5)
    assert speed > 0


def test_every_constant_of_texts_of_one_token_too() -> None:
    _, table = random_table(3)
    costs = decision_costs(table, flat_profile(0.3, {1: 1.0, 5: 1.4}))
    for setting in settings_of(table.decisions):
        decide = constant(table.features, table.decisions, setting)
        left = seconds_left(table, cycles_of(table, costs, decided(table, decide)))
        by_walk = replay_texts(table, costs, decide)
        assert left[table.starts[:-1] + np.arange(table.texts)] == pytest.approx(by_walk, rel=1e-6)
