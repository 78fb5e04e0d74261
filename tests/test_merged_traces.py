"""The law of traces for merged drafts: whatever a controller answers at the root, after a level and for the
size, the trace tells the tree, and what of it is accepted."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from decoding.controller import DraftView, RootChoice
from decoding.traces import Position
from tests.traced_worlds import CHOICES, DEPTH, MERGED, PROMPTS, Case, positions_of, session_of, text_of


@dataclass(frozen=True, slots=True)
class Plan:
    choice: RootChoice
    depth: int
    size: int


class AtRandom:
    """Answers at random, the same at the same place, and keeps the trees that it saw last."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.trees: dict[int, tuple[list[int], list[int], list[float]]] = {}

    def plan(self, context_length: int) -> Plan:
        rng = np.random.default_rng([self.seed, context_length])
        choice = RootChoice(rng.choice([0, 1, 1, 2, 3]))
        return Plan(choice, int(rng.integers(1, DEPTH + 1)), int(rng.integers(0, 16)))

    def wants_draft(self, view: DraftView) -> RootChoice:
        return self.plan(view.context_length).choice

    def wants_level(self, view: DraftView) -> bool:
        return view.tree.depth < self.plan(view.context_length).depth

    def verification_size(self, view: DraftView) -> int:
        tree = view.tree
        self.trees[view.context_length] = (list(tree.tokens), list(tree.parents), list(tree.scores))
        return self.plan(view.context_length).size


@given(
    name=st.sampled_from(MERGED),
    temperature=st.sampled_from([0.0, 1.0]),
    text_seed=st.integers(0, 2),
    prompt=st.integers(0, len(PROMPTS) - 1),
    seed=st.integers(0, 999),
)
@settings(max_examples=60)
def test_a_trace_predicts_every_cycle_of_any_controller(
    name: str, temperature: float, text_seed: int, prompt: int, seed: int
) -> None:
    case, controller = Case(name, temperature, text_seed, prompt), AtRandom(seed)
    drafts: dict[tuple[int, RootChoice], Position] = {
        (one.context_length, one.choice): one for one in positions_of(case)
    }
    session = session_of(case)
    left = session.tokens_left
    for record in session.run(controller):
        plan, length = controller.plan(record.context_length), record.context_length
        limit = left - 1
        if plan.choice == RootChoice.PLAIN or limit <= 0:
            assert (record.draft_depth, record.verification_size, record.accepted) == (0, 0, 0)
        else:
            here = drafts[length, plan.choice]
            tree = here.tree_at(plan.depth, limit)
            if length in controller.trees:
                tokens, parents, scores = controller.trees[length]
                assert (tree.tokens, tree.parents) == (tokens, parents)
                assert tree.scores == pytest.approx(scores, abs=1e-5)
            assert record.draft_depth == tree.depth
            assert record.verification_size == min(plan.size, tree.size)
            assert record.accepted == here.accepted(plan.depth, plan.size, limit)
        left -= record.emitted
    assert session.generated == text_of(case)


def test_the_drafts_differ() -> None:
    """Else the law would say little: of every choice some are accepted, and chains go on below the levels."""
    accepted: dict[RootChoice, set[int]] = {choice: set() for choice in CHOICES}
    below = 0
    for name in MERGED:
        for seed in range(3):
            for prompt in range(len(PROMPTS)):
                for one in positions_of(Case(name, 1.0, seed, prompt)):
                    accepted[one.choice].add(one.accepted(2, 16))
                    below += one.choice == RootChoice.ALL and one.tree_at(1).height > 1
                    assert all(math.isfinite(score) for score in one.tree.scores)
    assert all(found >= {0, 1, 2} for found in accepted.values()), accepted
    assert below > 20


def test_positions_come_choice_by_choice() -> None:
    case = Case("merged-eagle3", 0.0, 0, 1)
    positions = positions_of(case)
    assert [one.choice for one in positions[: 2 * len(CHOICES)]] == [*CHOICES, *CHOICES]
    assert len(positions) == len(CHOICES) * len(text_of(case))
    assert all((one.chain is not None) == (one.choice == RootChoice.ALL) for one in positions)
