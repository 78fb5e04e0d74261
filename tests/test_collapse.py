"""The collapse check: a constant is found, whatever may be done where; a policy that looks is not."""

from __future__ import annotations

import math

import numpy as np
import pytest

from decoding.controller import RootChoice
from decoding.decision_costs import decision_costs
from decoding.decision_table import ROOT_NODE
from decoding.decision_walk import DecisionWalk, replay_texts, replay_with
from decoding.setting import Setting
from policies.baselines import constant
from policies.collapse import LEAST_INFORMATION, Behaviour, behaviour, collapse, information_of_counts
from policies.full_information import greedy
from tests.cycle_world import DECISIONS, merged_table, wild_layers
from tests.test_replay_session import profile

CONSTANTS = [
    Setting(RootChoice.PLAIN, 0, 0),
    Setting(RootChoice.ALL, 3, 5),
    Setting(RootChoice.HEAD, 2, 2),
    Setting(RootChoice.LOOKUP, 0, 9),
    Setting(RootChoice.ALL, 2, 24, composite=True),
]


def test_information_by_hand() -> None:
    assert information_of_counts(np.array([[4, 0], [0, 9]])) == 0
    assert information_of_counts(np.array([[2, 2]])) == pytest.approx(math.log(2))
    # Asked 4 times, 2 and 2, and 12 times, 3 and 9; a kind that was never asked counts nothing.
    half, quarter = math.log(2), -(0.25 * math.log(0.25) + 0.75 * math.log(0.75))
    counts = np.array([[2, 2, 0], [0, 3, 9], [0, 0, 0]])
    assert information_of_counts(counts) == pytest.approx((4 * half + 12 * quarter) / 16)
    assert information_of_counts(np.zeros((2, 3), dtype=np.int64)) == 0


def test_counts_are_of_every_answer() -> None:
    table = merged_table()
    costs, layers = decision_costs(table, profile()), wild_layers(0)
    found = behaviour(table, costs, greedy(layers))
    np.testing.assert_array_equal(found.seconds_T, replay_texts(table, costs, greedy(layers)))
    counts = np.zeros_like(found.counts_NA)
    kinds: dict[tuple[int, ...], list[int]] = {}

    def choose(walk: DecisionWalk) -> np.ndarray:
        actions = greedy(layers)(walk.features(), walk.allowed())
        for node, allowed, action in zip(walk.node_B, walk.allowed(), actions, strict=True):
            counts[node, action] += 1
            kinds.setdefault((int(node), *allowed.tolist()), []).append(int(action))
        return actions

    replay_with(table, costs, choose)
    np.testing.assert_array_equal(found.counts_NA, counts)
    assert found.counts_NA[ROOT_NODE, DECISIONS.continue_action :].sum() == 0
    total = sum(map(len, kinds.values()))
    entropy = 0.0
    for answers in kinds.values():
        shares = np.bincount(answers) / len(answers)
        entropy -= len(answers) / total * sum(one * math.log(one) for one in shares if one)
    assert found.information == pytest.approx(entropy)


@pytest.mark.parametrize("setting", CONSTANTS, ids=str)
def test_a_constant_is_found(setting: Setting) -> None:
    """With a match it may do what it may not do without one, and less near a text's end: no information."""
    table = merged_table()
    decide = constant(table.features, DECISIONS, setting)
    found = behaviour(table, decision_costs(table, profile()), decide)
    assert found.information == 0
    (said,) = collapse(found, 0.1)
    assert "it answers alike whatever it sees: 0.0000 nats" in said


def test_a_policy_that_looks_is_not() -> None:
    table = merged_table()
    found = behaviour(table, decision_costs(table, profile()), greedy(wild_layers(0)))
    assert found.information > 0.2
    assert collapse(found, 0.01) == ()


@pytest.mark.parametrize("gain", [0.0, -0.01, float("nan")])
def test_no_gain_is_said(gain: float) -> None:
    seen = Behaviour(np.ones(1), np.ones((1, 2), dtype=np.int64), 0.7)
    (said,) = collapse(seen, gain)
    assert "no faster than the best constant on validation texts" in said
    assert len(collapse(Behaviour(np.ones(1), np.ones((1, 2), dtype=np.int64), 0.0), gain)) == 2


def test_the_least_information_is_enough() -> None:
    seen = Behaviour(np.ones(1), np.ones((1, 2), dtype=np.int64), LEAST_INFORMATION)
    assert collapse(seen, 1e-9) == ()
