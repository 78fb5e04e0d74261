"""The replayed session is the live one's twin: the same questions, views and records, seconds apart."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from decoding.controller import DraftView, FixedController, PlainController, RootChoice, answer
from decoding.profile import Conditions, CostProfile
from decoding.replay import PLAIN, Action, action_grid, constant_seconds, seconds_of_actions, text_table
from decoding.replay_session import UNKNOWN_TOKEN, ReplaySession, _accepted_by_depth
from decoding.session import Session
from decoding.tree import Selection
from tests.test_replay_table import traced
from tests.traced_worlds import DEPTH, MERGED, PROMPTS, WORLDS, Case, session_of, text_of

ROWS = tuple(range(1, 26))


def profile(digest: float = 0.0) -> CostProfile:
    """Made-up costs, all of them different."""
    levels = tuple((0.002 + 0.0001 * level, 0.004 + 0.0001 * level) for level in range(12))
    return CostProfile(
        fingerprints={"target": "t", "drafter": "d", "tokenizer": "k"},
        conditions=Conditions("cpu", "float32", "fast", 1, 0.0, "merged", 2),
        contexts=(1, 64),
        rows=ROWS,
        start=(0.0001, 0.0002),
        levels={"head": levels, "lookup": tuple((0.0003, 0.0005) for _ in range(12))},
        digest_tokens=(1, 2),
        digest=(0.0, digest),
        selection=(0.00001, 0.000002, 0.000001),
        verification=tuple((0.01 + 0.001 * rows, 0.02 + 0.001 * rows) for rows in ROWS),
        verification_token=0.00005,
        commit=(0.0004, 0.0001),
        policy=0.00003,
    )


def replayed(case: Case, digest: float = 0.0) -> ReplaySession:
    return ReplaySession(
        traced(case),
        profile(digest),
        max_new_tokens=session_of(case).tokens_left,
        draft_depth=DEPTH,
        composite=case.world.startswith("composite"),
    )


class Noting:
    """Answers at random, the same at the same place, and notes everything that it was shown."""

    def __init__(self, seed: int, merged: bool) -> None:
        self.seed, self.merged = seed, merged
        self.seen: list[tuple[Any, ...]] = []

    def _note(self, kind: str, view: DraftView) -> np.random.Generator:
        tree, history = view.tree, [(one.draft_depth, one.emitted) for one in view.history]
        scores = [round(score, 4) for score in tree.scores]
        nodes = (tuple(tree.tokens), tuple(tree.parents), tuple(scores), tuple(tree.level_starts), tree.depth)
        about = (view.context_length, view.tokens_left, view.root_choices, view.lookup, tuple(history))
        if kind != "level" or tree.depth < DEPTH:  # a replay ends there
            self.seen.append((kind, *nodes, *about, min(view.depth_limit, DEPTH)))
        return np.random.default_rng([self.seed, view.context_length, tree.depth])

    def wants_draft(self, view: DraftView) -> RootChoice:
        return RootChoice(int(self._note("draft", view).integers(0, 4 if self.merged else 2)))

    def wants_level(self, view: DraftView) -> bool:
        return self._note("level", view).random() < 0.6 and view.tree.depth < DEPTH

    def verification_size(self, view: DraftView) -> int:
        return int(self._note("size", view).integers(0, 25))


def facts(session: Session | ReplaySession, controller: Noting) -> list[tuple[Any, ...]]:
    return [
        (one.context_length, one.draft_depth, one.verification_size, one.accepted_by_depth, one.emitted)
        for one in session.run(controller)
    ]


@given(
    # A head without a feature is not asked to draft, nor is a small model at the end of its context: a trace
    # has no more to say of them than that they found nothing.
    name=st.sampled_from(sorted({*WORLDS, *MERGED} - {"causal-short", "merged-causal-short"})),
    temperature=st.sampled_from([0.0, 1.0]),
    prompt=st.integers(1, len(PROMPTS) - 1),
    text_seed=st.integers(0, 2),
    seed=st.integers(0, 999),
)
@settings(max_examples=80)
def test_replay_is_the_live_sessions_twin(
    name: str, temperature: float, prompt: int, text_seed: int, seed: int
) -> None:
    case = Case(name, temperature, text_seed, prompt)
    live, twin = (Noting(seed, name in MERGED) for _ in range(2))
    session, replay = session_of(case), replayed(case)
    assert facts(session, live) == facts(replay, twin)
    assert live.seen == twin.seen
    assert replay.finished
    text = text_of(case)
    assert replay.generated[:-1] == text[:-1]
    assert replay.generated[-1] in (text[-1], UNKNOWN_TOKEN)


@given(
    name=st.sampled_from([*WORLDS, *MERGED]),
    prompt=st.integers(0, len(PROMPTS) - 1),
    depth=st.integers(0, DEPTH),
    size=st.sampled_from([1, 3, 9, 24]),
)
@settings(max_examples=40)
def test_seconds_are_those_of_the_table(name: str, prompt: int, depth: int, size: int) -> None:
    """Two ways to add up the same costs; the table leaves out what the head digests."""
    case = Case(name, 1.0, 1, prompt)
    action = Action(RootChoice.ALL, depth, size) if depth else PLAIN
    actions = action_grid((RootChoice.ALL,), range(1, DEPTH + 1), (1, 3, 9, 24))
    composite = name.startswith("composite")
    table = text_table(traced(case), actions, session_of(case).tokens_left, composite)
    by_table = constant_seconds(table, seconds_of_actions(table, profile()))[actions.index(action)]
    records = list(replayed(case).run(FixedController(depth, size)))
    # A fixed controller is asked once more where its depth is the limit's or the drafter has no more.
    asked = sum(record.seconds.policy for record in records)
    total = sum(record.seconds.total for record in records)
    assert total - asked == pytest.approx(by_table - asked_by_table(table, actions.index(action)), rel=1e-9)


def asked_by_table(table: Any, column: int) -> float:
    place, asked = 0, 0
    while place < table.tokens:
        asked += int(table.depth_PA[place, column]) + 2 if table.depth_PA[place, column] else 1
        place += int(table.emitted_PA[place, column])
    return asked * profile().policy


def test_the_head_digests_what_was_committed_since_it_drafted() -> None:
    """Plain steps pile up; a draft takes them all."""
    case = Case("eagle3", 0.0, 0, 1)
    plain = replayed(case, digest=1.0)
    assert sum(one.seconds.draft for one in plain.run(PlainController())) < 0.1
    session = replayed(case, digest=1.0)
    for kind in ("plain", "draft"):
        cycle = session.cycle()
        question = next(cycle)
        controller = PlainController() if kind == "plain" else FixedController(1, 1)
        try:
            while True:
                question = cycle.send(answer(controller, question))
        except StopIteration as done:
            record = done.value
    assert record.seconds.draft > 1


def test_of_siblings_with_one_token_the_first_stands_for_all() -> None:
    """As in verification: the second's child is not on the accepted path."""
    selection = Selection.of([9, 5, 5, 6], [-1, 0, 0, 2])
    assert _accepted_by_depth(selection, [5, 6, 7]) == (True,)
    assert _accepted_by_depth(Selection.of([9, 5, 5, 6], [-1, 0, 0, 1]), [5, 6, 7]) == (True, True)
    assert _accepted_by_depth(selection, [4, 6]) == (False,)


def test_costs_of_the_other_source_stand_in() -> None:
    head_only = replace(profile(), levels={"head": profile().levels["head"]})
    assert (head_only.source(True), head_only.source(False)) == ("head", "head")
    assert (profile().source(True), profile().source(False)) == ("lookup", "head")


def test_a_text_at_its_end_has_no_further_cycle() -> None:
    session = replayed(Case("ngram", 0.0, 0, 1))
    for _ in session.run(PlainController()):
        pass
    with pytest.raises(ValueError, match="the text is at its end"):
        next(session.cycle())
