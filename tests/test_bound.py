"""The reachable bound's trees: they find what can be seen, and do not see what is not there."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from decoding.decision_costs import DecisionCosts, decision_costs
from decoding.decision_schedule import shortest_seconds
from decoding.decision_table import DecisionTable, split_texts
from decoding.decision_walk import Decide, replay_texts
from decoding.profile import CostProfile
from policies.baselines import best_constant
from policies.bound import BoundSettings, fit_trees
from policies.full_information import FullInformationSettings
from policies.reachable import reachable
from policies.tree_rule import Member, TreeRule
from tests.decision_world import DECISIONS, FEATURES, NODES, flat_profile, made_up_table

QUICK = BoundSettings(trees=30, leaf_rows=5, learning_rate=0.2)


def learned(
    table: DecisionTable, profile: CostProfile, settings: BoundSettings, seed: int = 0
) -> tuple[TreeRule, float]:
    """From the first half of the texts; and tokens per second of their best constant."""
    part = split_texts(table, range(table.texts // 2))
    costs = decision_costs(part, profile, 0.0)
    best, seconds = best_constant(part, costs)
    rate = part.positions / float(seconds[best].sum())
    return fit_trees(part, costs, profile, rate, settings, seed), rate


def other_half(table: DecisionTable, profile: CostProfile) -> tuple[DecisionTable, DecisionCosts]:
    part = split_texts(table, range(table.texts // 2, table.texts))
    return part, decision_costs(part, profile, 0.0)


def test_what_is_seen_is_used() -> None:
    """Three kinds of places that scores call the same: nothing is accepted; one token; four at the second
    level. A constant can be right at one of them only; of all rules that do one thing at each kind the trees
    find the best."""
    lengths = [40] * 16
    kind_P = np.random.default_rng(0).integers(0, 3, sum(lengths))
    emitted_PNS = np.ones((len(kind_P), NODES, 2))
    emitted_PNS[kind_P == 1, 1:] = 2
    emitted_PNS[kind_P == 2, 1] = 2
    emitted_PNS[kind_P == 2, 2] = [2, 5]
    table = made_up_table(emitted_PNS, kind_P / 2, lengths)
    profile = flat_profile(0.2, {1: 1.0, 2: 1.1, 5: 1.6})
    rule, _ = learned(table, profile, QUICK)
    texts, costs = other_half(table, profile)
    mine = replay_texts(texts, costs, rule).sum()
    best, seconds = best_constant(texts, costs)
    assert mine < 0.9 * seconds[best].sum()
    rules = [by_kind(plan) for plan in product(range(5), repeat=3)]
    assert mine == pytest.approx(min(replay_texts(texts, costs, one).sum() for one in rules), rel=0.01)


def by_kind(plan: tuple[int, ...]) -> Decide:
    """Of each kind: 0 = a plain step; else one level or two, one node or four."""
    share, depth = (FEATURES.names.index(name) for name in ("match_share", "draft_depth"))

    def decide(features_BF: np.ndarray, allowed_BA: np.ndarray) -> np.ndarray:
        way_B = np.array(plan)[np.rint(2 * features_BF[:, share]).astype(int)]
        deeper_B = (way_B > 2) & (features_BF[:, depth] < 0.9)
        later_B = np.where(deeper_B, DECISIONS.continue_action, DECISIONS.verify_action(1) + (way_B + 1) % 2)
        actions_B: np.ndarray = np.where(features_BF[:, depth] == 0, np.minimum(way_B, 1), later_B)
        return actions_B

    return decide


def noise() -> tuple[DecisionTable, CostProfile]:
    """What is accepted has nothing to do with what is seen, and drafting pays just so."""
    rng = np.random.default_rng(1)
    lengths = [50] * 80
    positions = sum(lengths)
    emitted_PNS = np.ones((positions, NODES, 2))
    emitted_PNS[:, 1] += (rng.random(positions) < 0.5)[:, None]
    emitted_PNS[:, 2] = emitted_PNS[:, 1] + (emitted_PNS[:, 1] > 1) * (rng.random(positions) < 0.5)[:, None]
    table = made_up_table(emitted_PNS, rng.random(positions), lengths)
    return table, flat_profile(0.2, {1: 1.0, 2: 1.05, 5: 1.2})


def test_nothing_is_made_of_noise() -> None:
    """Whoever believes what the training texts showed by chance is slower than the best constant."""
    table, profile = noise()
    rule, _ = learned(table, profile, BoundSettings(leaf_rows=50))
    texts, costs = other_half(table, profile)
    best, seconds = best_constant(texts, costs)
    assert replay_texts(texts, costs, rule).sum() < 1.02 * seconds[best].sum()


def test_no_text_is_planned_by_trees_that_saw_it() -> None:
    """What is accepted where the number is high in one fold is accepted where it is low in the other: each
    fold's trees are right about their own texts, and wrong about those that they plan."""
    lengths = [40] * 16
    rng = np.random.default_rng(5)
    fold_T = np.random.default_rng(0).permutation(16) % 2  # as `fit_trees` draws them
    seen_P = rng.integers(0, 2, sum(lengths))
    accepted_P = seen_P ^ np.repeat(fold_T, lengths)
    emitted_PNS = np.ones((sum(lengths), NODES, 2))
    emitted_PNS[:, 1:] += 2 * accepted_P[:, None, None]
    table, profile = made_up_table(emitted_PNS, seen_P, lengths), flat_profile(0.3, {1: 1.0, 2: 1.2, 5: 1.4})
    costs = decision_costs(table, profile, 0.0)
    best, seconds = best_constant(table, costs)
    rate = table.positions / float(seconds[best].sum())
    told: list[float] = []
    fit_trees(table, costs, profile, rate, replace(QUICK, rounds=1), 0, lambda _, speed: told.append(speed))
    assert told[0] < 0.95 * rate


def passages(texts: int) -> DecisionTable:
    """20 tokens of which four a cycle can be had at the first level, five at the second; then 60 that go one
    by one."""
    kind_P = np.tile(np.repeat([1, 0], [20, 60]), texts)
    left_P = np.tile(np.concatenate([np.arange(20, 0, -1), np.ones(60)]), texts)
    emitted_PNS = np.ones((len(kind_P), NODES, 2))
    emitted_PNS[kind_P == 1, 1] = [1, 4]
    emitted_PNS[kind_P == 1, 2] = [1, 5]
    emitted_PNS = np.minimum(emitted_PNS, left_P[:, None, None])
    return made_up_table(emitted_PNS, kind_P.astype(float), [80] * texts)


def test_tokens_are_worth_what_they_save_where_they_are() -> None:
    """At the text's own rate, 1.2 a second, the fifth token seems worth the half second of a second level:
    elsewhere it would take 0.8. Here it takes a quarter of a second: five cycles of 1 s, not four of 1.5."""
    table = passages(16)
    profile = flat_profile(0.45, {1: 1.0, 2: 1.0, 5: 0.55})
    texts, costs = other_half(table, profile)
    by_share = {}
    for share in (0.0, 1.0):
        rule, _ = learned(table, profile, replace(QUICK, rounds=3, own_worth=share))
        by_share[share] = replay_texts(texts, costs, rule).mean()
    assert by_share[1.0] == pytest.approx(5 * 1.0 + 60, rel=0.005)
    assert by_share[1.0] == pytest.approx(shortest_seconds(texts, costs).mean(), rel=0.005)
    assert by_share[0.0] > by_share[1.0] + 0.4


def test_a_size_gains_what_all_below_it_gain() -> None:
    """One node .6 tokens for a second, three more .5 for .3 seconds: worth it together, not alone."""
    table = passages(1)
    member = Member(increments=lambda inputs: np.where(inputs[:, -2] == 0, 0.1, 0.5))
    profile = flat_profile(0.1, {1: 1.0, 2: 1.0, 5: 1.3})
    rule = TreeRule(table.features, DECISIONS, profile, 1.0, [member])
    features_QF, allowed_QA = table.features_PNF[:1, 1], table.allowed_PNA[:1, 1]
    assert rule.stop(features_QF, allowed_QA).tolist() == [DECISIONS.verify_action(4)]
    dear = TreeRule(table.features, DECISIONS, flat_profile(0.1, {1: 1.0, 2: 1.0, 5: 1.6}), 1.0, [member])
    assert dear.stop(features_QF, allowed_QA).tolist() == [DECISIONS.verify_action(1)]


def test_a_seed_gives_one_rule() -> None:
    table = passages(8)
    profile = flat_profile(0.45, {1: 1.0, 2: 1.0, 5: 0.55})
    one, other = (learned(table, profile, QUICK, seed=3)[0] for _ in range(2))
    features_QF, allowed_QA = table.features_PNF[:, 1], table.allowed_PNA[:, 1]
    asked = allowed_QA.any(axis=1)
    assert np.array_equal(
        one(features_QF[asked], allowed_QA[asked]), other(features_QF[asked], allowed_QA[asked])
    )


def test_the_better_of_two_models_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    table = passages(16)
    profile = flat_profile(0.45, {1: 1.0, 2: 1.0, 5: 0.55})
    network = FullInformationSettings(rounds=1, epochs=1)
    said: list[str] = []
    found = reachable(table, profile, 1.0, QUICK, network, 4, 0, said.append)
    assert found.speeds["trees"] > found.speeds["network"]  # one step is too few for it
    assert found.name == "trees"
    assert any("round 2 of 2" in one for one in said)
    spoilt = {"fit_trees": lambda *_: lambda features_BF, allowed_BA: allowed_BA.argmax(axis=1)}
    monkeypatch.setattr("policies.reachable.fit_trees", spoilt["fit_trees"])
    better = FullInformationSettings(rounds=2, epochs=30, batch=64)
    assert reachable(table, profile, 1.0, QUICK, better, 16, 0, said.append).name == "network"


def test_mistakes_are_named() -> None:
    table = passages(8)
    profile = flat_profile(0.45, {1: 1.0, 5: 0.55})
    costs = decision_costs(table, profile, 0.0)
    with pytest.raises(ValueError, match="8 texts are too few for 9 folds"):
        fit_trees(table, costs, profile, 1.0, BoundSettings(folds=9), 0)
    few = split_texts(table, range(7))
    with pytest.raises(ValueError, match="7 texts are too few to learn from, give at least 8"):
        reachable(few, profile, 1.0, QUICK, FullInformationSettings(), 4, 0, print)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"rounds": 0}, "rounds is 0, must be a whole number >= 1"),
        ({"folds": 1}, "folds is 1"),
        ({"trees": 2.5}, "trees is 2.5"),
        ({"leaves": 1}, "leaves is 1"),
        ({"learning_rate": float("nan")}, "learning_rate is nan"),
        ({"own_worth": 1.1}, r"own_worth is 1.1, must be in 0\.\.1"),
    ],
)
def test_settings_that_are_none(wrong: dict[str, float], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        BoundSettings(**wrong)  # type: ignore[arg-type]
    if "own_worth" in wrong:
        with pytest.raises(ValueError, match=says):
            FullInformationSettings(**wrong)  # type: ignore[arg-type]


def test_rules_ask_for_what_is_allowed() -> None:
    """Every question of a made-up table, by a rule that learned elsewhere."""
    table = passages(8)
    rule, _ = learned(table, flat_profile(0.45, {1: 1.0, 2: 1.0, 5: 0.55}), QUICK)
    for node in range(NODES):
        asked = table.allowed_PNA[:, node].any(axis=1)
        allowed_QA = table.allowed_PNA[asked, node].copy()
        if node:
            allowed_QA[::2, DECISIONS.verify_action(4)] = False
        actions_Q = rule(table.features_PNF[asked, node], allowed_QA)
        assert allowed_QA[np.arange(len(actions_Q)), actions_Q].all()
