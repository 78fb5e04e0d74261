"""All constants at once, and the best schedule, over tables of decisions: as walks and texts have it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from decoding.decision_costs import DecisionCosts, decision_costs
from decoding.decision_schedule import shortest_seconds
from decoding.decision_table import DecisionTable, joined_tables
from decoding.decision_walk import replay_texts
from decoding.decisions import Decisions
from decoding.replay import shortest_seconds as shortest_of_text
from policies.baselines import best_constant, constant, settings_of
from policies.constant_seconds import ConstantSeconds
from tests.decision_world import NODES, flat_profile, made_up_table
from tests.test_decision_constants import COSTS, choices_of, grid_of
from tests.test_decision_walk import SIZES, table_of
from tests.test_replay_session import profile
from tests.traced_worlds import DEPTH, MERGED, PROMPTS, WORLDS, Case

NAMES = st.sampled_from([*WORLDS, *MERGED, *MERGED])


def texts_of(name: str, temperature: float, depth: int = DEPTH) -> tuple[DecisionTable, list[Case]]:
    """Every prompt of a world as one table."""
    cases = [Case(name, temperature, 1, prompt) for prompt in range(len(PROMPTS))]
    decisions = Decisions(choices_of(name), depth, SIZES)
    return joined_tables([table_of(case, decisions) for case in cases]), cases


@given(
    name=NAMES,
    temperature=st.sampled_from([0.0, 1.0]),
    depth=st.integers(1, DEPTH + 1),
    head_alone=st.booleans(),
    data=st.data(),
)
@settings(max_examples=80)
def test_a_constant_takes_what_its_walk_takes(
    name: str, temperature: float, depth: int, head_alone: bool, data: st.DataObject
) -> None:
    """Questions and the digest included; also with a profile that knows no lookup."""
    table, _ = texts_of(name, temperature, depth)
    measured = profile(digest=0.007)
    if head_alone:
        measured = replace(measured, levels={"head": measured.levels["head"]})
    costs = decision_costs(table, measured)
    assert costs.question > 0
    assert costs.digest_C.max() > 0
    grid = list(settings_of(table.decisions))
    setting = data.draw(st.sampled_from(grid))
    by_walk = replay_texts(table, costs, constant(table.features, table.decisions, setting))
    assert ConstantSeconds(table, costs)(setting) == pytest.approx(by_walk, rel=1e-6)


def test_the_best_constant_is_the_fastest_walk() -> None:
    table, _ = texts_of("merged-eagle3", 1.0)
    costs = decision_costs(table, profile(digest=0.007))
    best, seconds = best_constant(table, costs)
    assert list(seconds) == list(settings_of(table.decisions))
    walks = {
        one: replay_texts(table, costs, constant(table.features, table.decisions, one)).sum()
        for one in seconds
    }
    assert walks[best] == pytest.approx(min(walks.values()))
    assert max(walks.values()) > 1.1 * walks[best]


@given(name=NAMES, temperature=st.sampled_from([0.0, 1.0]))
@settings(max_examples=20)
def test_the_best_schedule_is_that_of_each_text(name: str, temperature: float) -> None:
    """Texts of different lengths side by side, against each text's grid of actions."""
    table, cases = texts_of(name, temperature)
    found = shortest_seconds(table, decision_costs(table, COSTS))
    assert found == pytest.approx([shortest_of_text(*grid_of(case))[0] for case in cases], rel=1e-5)


@given(seed=st.integers(0, 999), questions=st.booleans())
def test_nobody_is_faster_than_the_best_schedule(seed: int, questions: bool) -> None:
    """Policies at random, with the digest that the bound leaves out; and by trying everything."""
    rng = np.random.default_rng(seed)
    lengths = [5, 1, 3]
    table = made_up_table(rng.integers(1, 4, (9, NODES, 2)), rng.random(9), lengths)
    digested = decision_costs(
        table, flat_profile(0.3, {1: 1.0, 2: 0.9, 5: 1.4}, digest=0.1), 0.05 * questions
    )
    costs = replace(digested, digest_C=np.zeros_like(digested.digest_C))
    found = shortest_seconds(table, costs)

    def decide(features_BF: np.ndarray, allowed_BA: np.ndarray) -> np.ndarray:
        actions_B: np.ndarray = np.where(allowed_BA, rng.random(allowed_BA.shape), -1).argmax(axis=1)
        return actions_B

    for _ in range(5):
        assert (replay_texts(table, digested, decide) >= found - 1e-6).all()
    assert found == pytest.approx([everything(table, costs, text) for text in range(3)], rel=1e-6)


def everything(table: DecisionTable, costs: DecisionCosts, text: int) -> float:
    """The least seconds of all sequences of cycles, by recursion."""
    start, end = table.starts[text], table.starts[text + 1]
    question = costs.question

    def left(place: int) -> float:
        if place == end:
            return 0.0
        begin, plain = costs.start_P[place], costs.plain_P[place]
        if not table.asked_P[place]:
            return float(begin + plain + left(place + 1))
        ways = [begin + question + plain + left(place + 1)]
        drafted = begin + question
        for node in (1, 2):
            drafted += costs.arrive_PN[place, node] + question
            for size in (0, 1):
                finish = costs.finish_PNS[place, node, size]
                ways.append(drafted + finish + left(place + int(table.emitted_PNS[place, node, size])))
        return float(min(ways))

    return left(int(start))
