"""A walk over a table asks what a replayed session asks, shows the same and takes the same time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from decoding.controller import DraftView, QuestionKind, RootChoice
from decoding.cycle_features import CycleFeatures
from decoding.decision_costs import decision_costs
from decoding.decision_table import ROOT_NODE, DecisionTable, decision_table, joined_tables
from decoding.decision_walk import DecisionWalk, Outcome, replay_with
from decoding.decisions import DecisionController, Decisions
from decoding.profile import CostProfile
from decoding.replay_session import ReplaySession
from decoding.session import driven
from tests.test_replay_session import profile
from tests.test_replay_table import traced
from tests.traced_worlds import CHOICES, DEPTH, MERGED, PROMPTS, WORLDS, Case, session_of

SIZES = (1, 2, 5, 9, 24)
RATIOS = (0.5, 20.0)
DEEPEST = DEPTH + 2  # beyond the recording: a draft that went no further


@dataclass
class Asked:
    """One question to the decider, and its answer."""

    features: np.ndarray
    allowed: list[bool]
    action: int


@dataclass
class CycleFacts:
    """A cycle of the session; `seconds` with the decider's questions alone, `parts` of them: draft, select,
    commit."""

    emitted: int
    seconds: float
    parts: np.ndarray
    asked: list[Asked]


@dataclass
class AtRandom:
    """Draws among the allowed actions; deep drafts are likely enough."""

    features: CycleFeatures
    rng: np.random.Generator
    asked: list[Asked] = field(default_factory=list)

    def decide(self, kind: QuestionKind, view: DraftView, allowed: Sequence[bool]) -> int:
        actions = np.flatnonzero(allowed)
        go_on = kind == "level" and allowed[len(allowed) - 1 - len(SIZES)] and self.rng.random() < 0.6
        action = int(actions[0] if go_on else self.rng.choice(actions))
        self.asked.append(Asked(self.features(view), list(allowed), action))
        return action


def decisions_of(name: str, which: Sequence[int], max_depth: int) -> Decisions:
    choices = tuple(CHOICES[i] for i in which) if name in MERGED else (RootChoice.ALL,)
    return Decisions(choices, max_depth, SIZES)


@cache
def tokens_of(case: Case) -> int:
    """Its limit: the context ends some texts before their limit of tokens does."""
    return session_of(case).tokens_left


@cache
def table_of(case: Case, decisions: Decisions) -> DecisionTable:
    features = CycleFeatures(SIZES, decisions.max_depth, case.temperature, RATIOS)
    return decision_table(
        [traced(case)], decisions, features, tokens_of(case), case.world.startswith("composite")
    )


def by_session(case: Case, table: DecisionTable, costs: CostProfile, seed: int) -> list[CycleFacts]:
    """The text's cycles. The session asks as deep as a live one; the decisions end where they end."""
    decider = AtRandom(table.features, np.random.default_rng([seed, case.prompt]))
    controller = DecisionController(table.decisions, decider)
    session = ReplaySession(
        traced(case),
        costs,
        max_new_tokens=tokens_of(case),
        draft_depth=DEEPEST,
        composite=case.world.startswith("composite"),
    )
    cycles = []
    while not session.finished:
        record, before = driven(session.cycle(), controller), len(decider.asked)
        asked, decider.asked = decider.asked[:before], []
        seconds = record.seconds.total - record.seconds.policy + costs.policy * len(asked)
        parts = np.array([record.seconds.draft, record.seconds.select, record.seconds.commit])
        cycles.append(CycleFacts(record.emitted, seconds, parts, asked))
    return cycles


class OneText:
    """Answers a lane as the session's decider did, and compares everything on the way."""

    def __init__(self, cycles: list[CycleFacts], policy: float) -> None:
        self._cycles, self._policy = list(cycles), policy
        self._questions = list(cycles[0].asked)
        self._extra = 0
        self.seconds = 0.0  # of the cycles so far
        self._parts = np.zeros(3)

    def answer(self, walk: DecisionWalk, lane: int, features: np.ndarray, allowed: np.ndarray) -> int:
        here = walk.place_B[lane], walk.node_B[lane]
        if walk.node_B[lane] != ROOT_NODE and not walk.table.size_PNS[here].any():
            # A draft that found nothing: nobody asks there in a session.
            self._extra += 1
            (action,) = np.flatnonzero(allowed)
            return int(action)
        one = self._questions.pop(0)
        np.testing.assert_array_equal(features, one.features)
        assert allowed.tolist() == one.allowed
        return one.action

    def check(self, walk: DecisionWalk, lane: int, outcome: Outcome) -> None:
        """After a step; `outcome` is of the whole batch."""
        self._parts += [part[lane] for part in (outcome.draft_B, outcome.select_B, outcome.commit_B)]
        if not outcome.ended_B[lane]:
            assert outcome.emitted_B[lane] == 0
            assert not outcome.finished_B[lane]
            return
        assert not self._questions
        cycle = self._cycles.pop(0)
        expected = cycle.seconds + self._policy * self._extra
        emitted, self._extra = cycle.emitted, 0
        if self._cycles and not self._cycles[0].asked:  # the last token, which nobody is asked about
            last = self._cycles.pop(0)
            assert not self._cycles
            emitted += last.emitted
            expected += last.seconds
            cycle = replace(cycle, parts=cycle.parts + last.parts)
        self.seconds += expected
        np.testing.assert_allclose(self._parts, cycle.parts, rtol=1e-5, atol=1e-9)
        self._parts[:] = 0.0
        assert walk.cycle_seconds_B[lane] == pytest.approx(expected, rel=1e-5)
        assert outcome.emitted_B[lane] == emitted
        assert outcome.finished_B[lane] == (not self._cycles)
        if self._cycles:
            self._questions = list(self._cycles[0].asked)


def check_walk(
    table: DecisionTable, walk: DecisionWalk, texts: list[list[CycleFacts]], policy: float
) -> np.ndarray:
    """Every text once, lanes going on with the next; (T) seconds."""
    waiting = list(range(table.texts))
    text_of: dict[int, int] = {}
    checks: dict[int, OneText] = {}
    seconds_T = np.zeros(table.texts)

    def begin(lane: int) -> None:
        text_of[lane] = waiting.pop(0)
        checks[lane] = OneText(texts[text_of[lane]], policy)
        walk.start(np.array([lane]), np.array([text_of[lane]]))

    lanes = len(walk.place_B)
    for lane in range(lanes):
        begin(lane)
    while lanes:
        features_BF, allowed_BA = walk.features(), walk.allowed()
        assert features_BF.dtype == np.float32
        actions = [checks[i].answer(walk, i, features_BF[i], allowed_BA[i]) for i in range(lanes)]
        outcome = walk.step(np.array(actions))
        closed = []
        for lane in range(lanes):
            checks[lane].check(walk, lane, outcome)
            seconds_T[text_of[lane]] += outcome.seconds_B[lane]
            if outcome.finished_B[lane]:
                assert walk.place_B[lane] == table.starts[text_of[lane] + 1]
                assert seconds_T[text_of[lane]] == pytest.approx(checks[lane].seconds, rel=1e-5)
            if outcome.finished_B[lane] and waiting:
                begin(lane)
            elif outcome.finished_B[lane]:
                closed.append(lane)
        kept = [lane for lane in range(lanes) if lane not in closed]
        walk.keep(np.array(kept, dtype=np.int64))
        text_of = {place: text_of[lane] for place, lane in enumerate(kept)}
        checks = {place: checks[lane] for place, lane in enumerate(kept)}
        lanes = len(kept)
    return seconds_T


def costs_of(sources: str) -> CostProfile:
    whole = profile(digest=0.004)
    if sources == "both":
        return whole
    return replace(whole, levels={sources: whole.levels[sources]})


@given(
    name=st.sampled_from([*WORLDS, *MERGED, *MERGED]),
    which=st.sampled_from([(0, 1, 2), (0, 1, 2), (0,), (1,), (2,), (1, 2), (2, 0)]),
    temperature=st.sampled_from([0.0, 1.0]),
    max_depth=st.integers(1, DEEPEST),
    sources=st.sampled_from(["both", "both", "head", "lookup"]),
    lanes=st.integers(1, len(PROMPTS)),
    seed=st.integers(0, 999),
)
@settings(max_examples=60)
def test_the_walk_is_the_replayed_sessions_twin(
    name: str,
    which: tuple[int, ...],
    temperature: float,
    max_depth: int,
    sources: str,
    lanes: int,
    seed: int,
) -> None:
    """Questions, features to the bit, masks, tokens, and seconds of every cycle; lanes of several texts, some
    of which end early, near the context's end or at their limit."""
    decisions, costs = decisions_of(name, which, max_depth), costs_of(sources)
    cases = [Case(name, temperature, 1, prompt) for prompt in range(len(PROMPTS))]
    table = joined_tables([table_of(case, decisions) for case in cases])
    texts = [by_session(case, table, costs, seed) for case in cases]
    walk = DecisionWalk(table, decision_costs(table, costs), lanes)
    seconds_T = check_walk(table, walk, texts, costs.policy)
    assert (seconds_T > 0).all()


def by_hash(walk: DecisionWalk) -> np.ndarray:
    """An allowed action, the same at the same question whatever stands beside it."""
    allowed_BA = walk.allowed()
    weights_BA = (walk.place_B * 7919 + walk.node_B * 104729)[:, None] % 997 + 1.0
    weights_BA = weights_BA * np.arange(3, 3 + allowed_BA.shape[1]) % 31
    chosen_B: np.ndarray = np.where(allowed_BA, weights_BA, -1).argmax(axis=1)
    return chosen_B


def mixed_table() -> DecisionTable:
    """Seven texts, among them two of one token at their limit: nobody is asked there."""
    decisions = Decisions(CHOICES, 3, SIZES)
    cases = [
        Case("merged-eagle3", 1.0, seed, prompt) for seed, prompt in ((0, 1), (0, 3), (1, 0), (1, 1), (2, 2))
    ]
    tables = [table_of(case, decisions) for case in cases]
    text = traced(cases[0])
    short = replace(text, positions=tuple(one for one in text.positions if one.index == 0))
    features = CycleFeatures(SIZES, 3, 1.0, RATIOS)
    single = decision_table([short], decisions, features, 1)
    assert not single.asked_P.any()
    return joined_tables([tables[0], single, *tables[1:], single])


def test_texts_replayed_together_take_what_each_takes_alone() -> None:
    """Lanes do not know of each other."""
    table = mixed_table()
    costs = decision_costs(table, profile(0.004))
    together_T = replay_with(table, costs, by_hash)
    for text in range(table.texts):
        first = table.starts[text]
        alone = float(costs.start_P[first] + costs.plain_P[first])
        if table.asked_P[first]:
            walk = DecisionWalk(table, costs, 1)
            walk.start(np.array([0]), np.array([text]))
            alone, finished = 0.0, False
            while not finished:
                outcome = walk.step(by_hash(walk))
                alone, finished = alone + float(outcome.seconds_B[0]), bool(outcome.finished_B[0])
        assert together_T[text] == pytest.approx(alone, rel=1e-6)


def test_outcomes_have_the_types_they_say() -> None:
    """A sum of tokens in 16 bits would overflow one day."""
    table = mixed_table()
    walk = DecisionWalk(table, decision_costs(table, profile()), 2)
    walk.start(np.arange(2), np.array([0, 2]))
    for _ in range(3):
        outcome = walk.step(by_hash(walk))
        assert outcome.emitted_B.dtype == np.int64
        assert outcome.ended_B.dtype == outcome.finished_B.dtype == bool


def test_an_action_that_is_not_allowed_is_refused() -> None:
    table = mixed_table()
    walk = DecisionWalk(table, decision_costs(table, profile()), 2)
    walk.start(np.arange(2), np.array([0, 2]))
    before = walk.place_B.copy(), walk.node_B.copy()
    with pytest.raises(ValueError, match="an action is not allowed at its question: mask the policy"):
        walk.step(np.array([0, table.decisions.continue_action]))
    assert np.array_equal(before[0], walk.place_B)
    assert np.array_equal(before[1], walk.node_B)


def test_every_question_costs_its_seconds() -> None:
    """As many as were answered, of whichever policy; None = the profile's own."""
    table = mixed_table()
    assert decision_costs(table, profile()).question == profile().policy
    free, dear = (decision_costs(table, profile(0.004), question_seconds=one) for one in (0.0, 0.25))
    asked_T = np.zeros(table.texts)

    def counting(walk: DecisionWalk) -> np.ndarray:
        np.add.at(asked_T, np.searchsorted(table.starts, walk.place_B, side="right") - 1, 1)
        return by_hash(walk)

    seconds_T = replay_with(table, free, counting)
    np.testing.assert_allclose(replay_with(table, dear, by_hash), seconds_T + 0.25 * asked_T, rtol=1e-5)
    assert set(np.flatnonzero(asked_T == 0)) == {1, 6}


def test_a_profile_of_fewer_levels_or_rows_is_refused() -> None:
    table, whole = mixed_table(), profile()
    short = replace(whole, levels={"head": whole.levels["head"][:2], "lookup": whole.levels["lookup"]})
    with pytest.raises(ValueError, match="level"):
        decision_costs(table, short)
    with pytest.raises(ValueError, match="rows"):
        decision_costs(table, replace(whole, rows=whole.rows[:8], verification=whole.verification[:8]))
