"""Policies that a grid has too: constants cost what its tables say, nothing beats the best schedule."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from decoding.controller import RootChoice
from decoding.decision_costs import decision_costs
from decoding.decision_table import ROOT_NODE, Nodes
from decoding.decision_walk import DecisionWalk, replay_texts, replay_with
from decoding.decisions import PLAIN_ACTION, Decisions
from decoding.replay import (
    PLAIN,
    Action,
    TextTable,
    action_grid,
    constant_seconds,
    seconds_of_actions,
    shortest_seconds,
    text_table,
)
from tests.test_decision_walk import SIZES, table_of, tokens_of
from tests.test_replay_session import profile
from tests.test_replay_table import traced
from tests.traced_worlds import CHOICES, DEPTH, MERGED, PROMPTS, WORLDS, Case

# Nothing to digest, and questions free: a grid's table knows of neither.
COSTS = replace(profile(), policy=0.0)

Play = Callable[[int], Action]


def choices_of(name: str) -> tuple[RootChoice, ...]:
    return CHOICES if name in MERGED else (RootChoice.ALL,)


@cache
def grid_of(case: Case) -> tuple[TextTable, np.ndarray]:
    """The text under every action, and its seconds (P, A)."""
    actions = action_grid(choices_of(case.world), range(1, DEPTH + 1), SIZES)
    table = text_table(traced(case), actions, tokens_of(case), case.world.startswith("composite"))
    return table, seconds_of_actions(table, COSTS)


def played(case: Case, decisions: Decisions, play: Play) -> float:
    """Seconds of the text, a lane of its own, if the cycle at each place does what `play` says."""
    table, nodes = table_of(case, decisions), Nodes.of(decisions)

    def decide(walk: DecisionWalk) -> np.ndarray:
        (node,), (place,), allowed = walk.node_B, walk.place_B, walk.allowed()[0]
        action = play(int(place))
        if node == ROOT_NODE:
            wanted = decisions.draft_action(action.choice)
            if not allowed[wanted]:
                # Without a match the merged draft is the head alone, and a lookup proposes nothing.
                assert action.choice in (RootChoice.HEAD, RootChoice.LOOKUP)
                all_of_it = decisions.draft_action(RootChoice.ALL)
                wanted = all_of_it if action.choice == RootChoice.HEAD else PLAIN_ACTION
                assert allowed[wanted]
        elif nodes.depth[node] < action.draft_depth and allowed[decisions.continue_action]:
            wanted = decisions.continue_action
        else:
            first = decisions.continue_action + 1
            wanted = decisions.verify_action(action.verification_size)
            while not allowed[wanted]:  # fewer nodes than that: a smaller size verifies all of them
                wanted -= 1
                assert wanted >= first
        return np.array([wanted])

    (seconds,) = replay_with(table, decision_costs(table, COSTS), decide)
    return float(seconds)


@given(
    name=st.sampled_from([*WORLDS, *MERGED, *MERGED]),
    temperature=st.sampled_from([0.0, 1.0]),
    prompt=st.integers(0, len(PROMPTS) - 1),
    data=st.data(),
)
@settings(max_examples=60)
def test_a_constant_takes_what_the_grid_says(
    name: str, temperature: float, prompt: int, data: st.DataObject
) -> None:
    case = Case(name, temperature, 1, prompt)
    table, seconds_PA = grid_of(case)
    by_grid_A = constant_seconds(table, seconds_PA)
    column = data.draw(st.integers(0, len(table.actions) - 1))
    action = table.actions[column]
    # Both with all that the drafter offers, and with this draft alone, which is then always on offer.
    offers = [choices_of(name)]
    offers += [] if action == PLAIN else [(action.choice,)]
    for choices in offers:
        decisions = Decisions(choices, data.draw(st.integers(max(1, action.draft_depth), DEPTH)), SIZES)
        assert played(case, decisions, lambda place: action) == pytest.approx(by_grid_A[column], rel=1e-5)


@given(
    name=st.sampled_from([*WORLDS, *MERGED, *MERGED]),
    temperature=st.sampled_from([0.0, 1.0]),
    prompt=st.integers(0, len(PROMPTS) - 1),
)
@settings(max_examples=40)
def test_no_policy_beats_the_best_schedule_which_a_walk_can_take(
    name: str, temperature: float, prompt: int
) -> None:
    case = Case(name, temperature, 1, prompt)
    table, seconds_PA = grid_of(case)
    bound, schedule = shortest_seconds(table, seconds_PA)
    plan, place = {}, 0
    for column in schedule:
        plan[place] = table.actions[column]
        place += int(table.emitted_PA[place, column])
    decisions = Decisions(choices_of(name), DEPTH, SIZES)
    assert played(case, decisions, plan.__getitem__) == pytest.approx(bound, rel=1e-5)
    found = []
    walked = table_of(case, decisions)
    for seed in range(15):
        rng = np.random.default_rng(seed)

        def decide(
            features_BF: np.ndarray,
            allowed_BA: np.ndarray,
            rng: np.random.Generator = rng,
        ) -> np.ndarray:
            chosen_B: np.ndarray = np.where(allowed_BA, rng.random(allowed_BA.shape), -1).argmax(axis=1)
            return chosen_B

        found.append(float(replay_texts(walked, decision_costs(walked, COSTS), decide)[0]))
    assert min(found) >= bound * (1 - 1e-5)
