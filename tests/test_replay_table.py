"""Replay: tables of a trace are what live sessions do; walks and bounds are what plain loops find."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from decoding.controller import FixedController, RootChoice
from decoding.replay import (
    PLAIN,
    Action,
    TextTable,
    action_grid,
    constant_seconds,
    shortest_seconds,
    text_table,
)
from decoding.trace_file import TracedText
from tests.test_merged_traces import AtRandom
from tests.traced_worlds import DEPTH, MERGED, PROMPTS, TOKENS, WORLDS, Case, positions_of, session_of

SIZES = (1, 2, 5, 9, 24)


def traced(case: Case) -> TracedText:
    positions = tuple(positions_of(case))
    return TracedText("q", "code", None, positions, ((),) * len(positions))


def table_of(case: Case, choices: tuple[RootChoice, ...] = (RootChoice.ALL,)) -> TextTable:
    actions = action_grid(choices, range(1, DEPTH + 1), SIZES)
    # The context ends some of these texts before their limit of tokens does.
    return text_table(
        traced(case), actions, session_of(case).tokens_left, composite=case.world.startswith("composite")
    )


@given(
    name=st.sampled_from(WORLDS),
    temperature=st.sampled_from([0.0, 1.0]),
    prompt=st.integers(0, len(PROMPTS) - 1),
    depth=st.integers(0, DEPTH),
    size=st.sampled_from(SIZES),
)
@settings(max_examples=60)
def test_a_constant_walks_as_it_does_live(
    name: str, temperature: float, prompt: int, depth: int, size: int
) -> None:
    case = Case(name, temperature, 1, prompt)
    table = table_of(case)
    action = Action(RootChoice.ALL, depth, size) if depth else PLAIN
    column, place = table.actions.index(action), 0
    for record in session_of(case).run(FixedController(depth, size)):
        here = (place, column)
        assert table.context_P[place] == record.context_length
        assert (table.emitted_PA[here], table.depth_PA[here], table.size_PA[here]) == (
            record.emitted,
            record.draft_depth,
            record.verification_size,
        )
        place += record.emitted
    assert place == table.tokens


@given(
    name=st.sampled_from(MERGED),
    temperature=st.sampled_from([0.0, 1.0]),
    prompt=st.integers(0, len(PROMPTS) - 1),
    seed=st.integers(0, 99),
)
@settings(max_examples=40)
def test_any_schedule_of_a_merged_drafter_walks_as_it_does_live(
    name: str, temperature: float, prompt: int, seed: int
) -> None:
    case, controller = Case(name, temperature, 1, prompt), AtRandom(seed)
    actions = action_grid(tuple(RootChoice)[1:], range(1, DEPTH + 1), range(1, 16))
    left = session_of(case).tokens_left
    table = text_table(traced(case), actions, left)
    place = 0
    for record in session_of(case).run(controller):
        plan = controller.plan(record.context_length)
        levels = plan.depth if plan.choice in (RootChoice.ALL, RootChoice.HEAD) else 0
        drafts = plan.choice != RootChoice.PLAIN and plan.size > 0
        action = Action(plan.choice, levels, plan.size) if drafts else PLAIN
        here = (place, actions.index(action))
        assert (table.emitted_PA[here], table.size_PA[here]) == (record.emitted, record.verification_size)
        if place + 1 < left:  # else there is nothing to draft for
            assert table.lookup_PA[here] == (drafts and plan.choice == RootChoice.LOOKUP)
        place += record.emitted
    assert place == table.tokens


def random_table(rng: np.random.Generator, count: int, actions: int) -> tuple[TextTable, np.ndarray]:
    emitted = rng.integers(1, 5, (count, actions))
    emitted[:, 0] = 1
    emitted = np.minimum(emitted, count - np.arange(count)[:, None])
    grid = (PLAIN, *(Action(RootChoice.ALL, 1, size) for size in range(1, actions)))
    nothing = np.zeros_like(emitted)
    table = TextTable("q", None, None, grid, emitted, nothing, nothing, nothing > 0, np.arange(count))
    return table, rng.uniform(0.5, 3, (count, actions))


def walk(table: TextTable, seconds: np.ndarray, choose: object) -> float:
    total, place, step = 0.0, 0, 0
    while place < table.tokens:
        column = choose(step)  # type: ignore[operator]
        total += seconds[place, column]
        place += int(table.emitted_PA[place, column])
        step += 1
    return total


@given(seed=st.integers(0, 9999), count=st.integers(1, 7), actions=st.integers(1, 3))
def test_the_bound_is_the_best_of_all_schedules(seed: int, count: int, actions: int) -> None:
    """By trying every sequence of actions."""
    table, seconds = random_table(np.random.default_rng(seed), count, actions)
    every = [walk(table, seconds, plan.__getitem__) for plan in product(range(actions), repeat=count)]
    bound, schedule = shortest_seconds(table, seconds)
    assert bound == pytest.approx(min(every))
    assert walk(table, seconds, schedule.__getitem__) == pytest.approx(bound)
    constants = [walk(table, seconds, lambda step, column=column: column) for column in range(actions)]
    np.testing.assert_allclose(constant_seconds(table, seconds), constants)
    assert bound <= min(constants) + 1e-12


@pytest.mark.parametrize(
    "wrong",
    [
        (RootChoice.PLAIN, 1, 0),
        (RootChoice.PLAIN, 0, 1),
        (RootChoice.ALL, 0, 4),
        (RootChoice.LOOKUP, 2, 4),
        (RootChoice.HEAD, 2, 0),
    ],
)
def test_actions_that_are_none(wrong: tuple[RootChoice, int, int]) -> None:
    with pytest.raises(ValueError, match="a plain step has depth and size 0"):
        Action(*wrong)


def test_grids_and_names() -> None:
    grid = action_grid((RootChoice.ALL, RootChoice.LOOKUP), (1, 2), (4, 8))
    assert [str(action) for action in grid] == [
        "plain",
        "1x4",
        "1x8",
        "2x4",
        "2x8",
        "lookup 4",
        "lookup 8",
    ]
    assert str(Action(RootChoice.HEAD, 3, 5)) == "head 3x5"


def test_traces_that_lack_something_are_refused() -> None:
    text = traced(Case("eagle3", 0.0, 0, 1))
    with pytest.raises(ValueError, match="question 'q' has no HEAD drafts"):
        text_table(text, action_grid((RootChoice.HEAD,), (1,), (4,)), TOKENS)
    holes = TracedText("q", None, None, (*text.positions[:1], *text.positions[2:]), ())
    with pytest.raises(ValueError, match="has gaps between its positions"):
        text_table(holes, (PLAIN,), TOKENS)
