"""Hand-written rules decide as a plain loop, or a hand, would."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from decoding.controller import DraftView, RootChoice
from decoding.cycle_features import MATCH_SCALE
from decoding.decision_table import ROOT_NODE, DecisionTable, Nodes
from decoding.decision_walk import replay_texts
from decoding.decisions import PLAIN_ACTION, Decisions
from decoding.replay import action_grid, constant_seconds, seconds_of_actions, text_table
from decoding.setting import Setting
from decoding.tree import DraftTree
from envs.synthetic import WORLDS
from envs.synthetic_optimum import optimal_rate
from policies.baselines import (
    ExpectedGain,
    best_constant,
    constant,
    controller,
    fit_expected_gain,
    settings_of,
)
from tests.random_tables import MERGED, random_costs, random_table, walk_text

ONLY_ALL = (RootChoice.ALL,)


def by_constant(table: DecisionTable, setting: Setting, depths: Sequence[int], place: int, node: int) -> int:
    """What a constant answers, in words: its draft where it may, all of it to its depth, its size."""
    decisions, allowed = table.decisions, table.allowed_PNA[place, node]
    if node == ROOT_NODE:
        match = table.features_PNF[place, node, table.features.names.index("match_length")]
        wanted = [setting.choice]
        if setting.composite and match > 0:
            wanted = [RootChoice.LOOKUP]
        elif setting.choice == RootChoice.HEAD and RootChoice.ALL in decisions.choices:
            wanted.append(RootChoice.ALL)
        actions = [decisions.draft_action(choice) for choice in wanted]
        return next((action for action in actions if allowed[action]), PLAIN_ACTION)
    if depths[node] < setting.draft_depth and allowed[decisions.continue_action]:
        return decisions.continue_action
    sizes = [
        s for s in decisions.sizes if s <= setting.verification_size and allowed[decisions.verify_action(s)]
    ]
    return decisions.verify_action(max(sizes))


@given(seed=st.integers(0, 9999), choices=st.sampled_from([MERGED, ONLY_ALL]))
def test_constants_are_those_of_a_plain_loop(seed: int, choices: tuple[RootChoice, ...]) -> None:
    """Every one of the grid, text by text: the rule in replay and the seconds that are told without it."""
    rng = np.random.default_rng(seed)
    table = random_table(rng, texts=3, tokens=6, choices=choices)
    costs = random_costs(rng, table)
    depths = Nodes.of(table.decisions).depth
    best, seconds = best_constant(table, costs)
    totals = {}
    for setting in settings_of(table.decisions):
        answers = partial(by_constant, table, setting, depths)
        expected = [float(walk_text(table, costs, text, answers)[1]) for text in range(table.texts)]
        rule = constant(table.features, table.decisions, setting)
        np.testing.assert_allclose(replay_texts(table, costs, rule), expected, rtol=1e-6)
        np.testing.assert_allclose(seconds[setting], expected, rtol=1e-6)
        totals[setting] = sum(expected)
    assert totals[best] == pytest.approx(min(totals.values()))
    assert set(seconds) == set(totals)


def test_the_grid_of_constants() -> None:
    names = [str(one) for one in settings_of(Decisions(MERGED, 2, (4, 8)))]
    assert names == [
        "plain",
        *("all 1x4", "all 1x8", "all 2x4", "all 2x8"),
        *("lookup 4", "lookup 8"),
        *("head 1x4", "head 1x8", "head 2x4", "head 2x8"),
        *("composite 1x4", "composite 1x8", "composite 2x4", "composite 2x8"),
    ]
    assert len(list(settings_of(Decisions(ONLY_ALL, 2, (4, 8))))) == 5


def test_only_those_that_are_asked_for_are_tried() -> None:
    table = random_table(np.random.default_rng(0))
    some = [Setting(RootChoice.ALL, 1, 1), Setting(RootChoice.PLAIN, 0, 0)]
    assert list(best_constant(table, random_costs(np.random.default_rng(0), table), some)[1]) == some


@pytest.mark.parametrize("name", WORLDS)
def test_constants_take_what_the_replay_of_traces_says(name: str) -> None:
    """An independent path: the trace, its grid of actions, the profile."""
    world = replace(WORLDS[name], tokens=20)
    kinds_TW, accepted_TW = world.draw(2, np.random.default_rng(5))
    table = world.table(2, np.random.default_rng(5))
    _, seconds = best_constant(table, world.costs(table))
    grid = action_grid(ONLY_ALL, range(1, world.max_depth + 1), world.sizes)
    for text, (kinds_W, accepted_W) in enumerate(zip(kinds_TW, accepted_TW, strict=True)):
        actions = text_table(world.recorded(kinds_W, accepted_W), grid, world.tokens)
        totals = constant_seconds(actions, seconds_of_actions(actions, world.profile))
        for action, total in zip(grid, totals, strict=True):
            setting = Setting(action.choice, action.draft_depth, action.verification_size)
            assert seconds[setting][text] == pytest.approx(total)


# --- expected gain ----------------------------------------------------------------------------------------

WORLD = replace(WORLDS["cliff"], sizes=(1, 3, 8))  # a level .05, a forward 1, from six rows on 2.5
ROOTS = (0, 1, 1, 0, 1)  # by match: none, 1..2, 3..4, 5..8, more


def rule(rate: float = 2.0, growth: float = 0.5) -> ExpectedGain:
    return ExpectedGain(WORLD.features(0), WORLD.decisions, WORLD.profile, rate, growth, ROOTS)


def answer(expected: ExpectedGain, allowed: str, **features: float) -> str:
    """The name of the action; `allowed`: a letter for each that is, p d c 1 3 8."""
    names = WORLD.features(0).names
    row = np.zeros((1, len(names)), dtype=np.float32)
    for name, value in features.items():
        row[0, names.index(name)] = value
    mask = np.array([[letter in allowed for letter in "pdc138"]])
    return WORLD.decisions.names[int(expected(row, mask)[0])]


@pytest.mark.parametrize(
    ("level_sum", "depth", "decision"),
    [
        (0.21, 1, "continue"),  # half of it, .105 tokens, for .05 seconds at 2 tokens per second
        (0.19, 1, "verify 1"),
        (0.21, 7, "continue"),
        (0.21, 8, "continue"),  # of a level that was never measured: the cost of the deepest
    ],
)
def test_a_level_is_drafted_if_its_tokens_are_worth_its_time(
    level_sum: float, depth: int, decision: str
) -> None:
    seen = {"level_sum": level_sum, "draft_depth": depth / 8, "expected_1": 0.5}
    assert answer(rule(), "c138", **seen) == decision
    assert answer(rule(), "138", **seen) == "verify 1"


def test_growth_and_rate_price_a_level() -> None:
    seen = {"level_sum": 0.3, "draft_depth": 0.25, "expected_1": 0.5}
    assert answer(rule(growth=0.4), "c1", **seen) == "continue"  # .12 against .1
    assert answer(rule(growth=0.3), "c1", **seen) == "verify 1"  # .09
    assert answer(rule(rate=4.0), "c1", **seen) == "verify 1"  # .15 against .2


def test_the_size_is_the_one_of_most_worth() -> None:
    """Eight nodes take 1.5 seconds longer than three, 3 tokens at that rate."""
    seen = {"draft_depth": 1.0, "expected_1": 0.9, "expected_3": 2.0}
    assert answer(rule(), "138", expected_8=4.9, **seen) == "verify 3"
    assert answer(rule(), "138", expected_8=5.1, **seen) == "verify 8"
    assert answer(rule(), "1", expected_8=5.1, **seen) == "verify 1"


def test_the_root_is_decided_by_the_match() -> None:
    for match in (0, 1, 2, 3, 4, 5, 8, 9, 31):
        decision = "plain" if match in (0, 5, 8) else "draft all"
        seen = {"at_root": 1.0, "match_length": np.log2(1 + match) / MATCH_SCALE}
        assert answer(rule(), "pd", **seen) == decision, match
        assert answer(rule(), "p", **seen) == "plain"


@pytest.mark.parametrize(
    ("name", "least", "most"),
    [("constant", 0.97, 1.01), ("cliff", 0.8, 0.9), ("hopeless", 1.0, 1.0), ("free", 0.97, 1.01)],
)
def test_fitted_it_comes_close_to_the_optimum_but_for_a_cliff(name: str, least: float, most: float) -> None:
    """It prices a level without the forward that the level calls for: it drafts past a cliff. No text has a
    match: the other buckets are empty."""
    world = WORLDS[name]
    table = world.table(150, np.random.default_rng(0))
    costs = world.costs(table)
    setting, seconds = best_constant(table, costs)
    fitted = fit_expected_gain(table, costs, world.profile, table.positions / seconds[setting].sum())
    found = table.positions / replay_texts(table, costs, fitted).sum()
    assert least <= found / float(optimal_rate(world)) <= most
    assert fitted.root_actions[1:] == (PLAIN_ACTION,) * 4
    assert fitted.root_actions[0] == (PLAIN_ACTION if name == "hopeless" else 1)


def test_a_rule_decides_in_a_session_as_in_replay() -> None:
    tree = DraftTree(1)
    tree.add_level([1], [0], [np.log(0.9)])
    decides = controller(rule(), WORLD.features(0), WORLD.decisions)
    view = DraftView(tree, 8, 40, 9)
    assert decides.wants_level(view)  # .45 tokens for .05 seconds
    dear = controller(rule(rate=20.0), WORLD.features(0), WORLD.decisions)
    assert not dear.wants_level(view)
    assert dear.verification_size(view) == 1
