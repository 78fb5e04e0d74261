"""A constant setting: the same rule for a batch of recorded questions and for one view at a time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from decoding.controller import DraftView, LookupHint, QuestionKind, RootChoice
from decoding.decision_costs import decision_costs
from decoding.decision_table import ROOT_NODE, Nodes
from decoding.decision_walk import replay_texts
from decoding.decisions import Decisions
from decoding.replay_session import ReplaySession
from decoding.setting import Setting, SettingDecider, setting_controller
from decoding.tree import DraftTree
from policies.baselines import constant, settings_of
from tests.cycle_world import SIZES, case_table
from tests.test_decision_walk import tokens_of
from tests.test_replay_session import profile
from tests.test_replay_table import traced
from tests.traced_worlds import CHOICES, DEPTH, MERGED, PROMPTS, WORLDS, Case, session_of, text_of


def view_of(depth: int, matched: bool) -> DraftView:
    """As much of a view as a setting reads."""
    tree = DraftTree(1)
    for _ in range(depth):
        tree.add_level([3], [tree.size], [tree.scores[-1] - 1.0])
    view = DraftView(tree, 8, 20, 20, root_choices=tuple(RootChoice))
    view.lookup = LookupHint(2 if matched else 0, 0.5)
    return view


@given(
    name=st.sampled_from([*WORLDS, *MERGED, *MERGED]),
    which=st.sampled_from([(0, 1, 2), (0, 1, 2), (0,), (1,), (2,), (1, 2), (2, 0)]),
    temperature=st.sampled_from([0.0, 1.0]),
    prompt=st.integers(0, len(PROMPTS) - 1),
    max_depth=st.integers(1, DEPTH),
)
@settings(max_examples=25)
def test_one_rule_decides_over_tables_and_over_views(
    name: str, which: tuple[int, ...], temperature: float, prompt: int, max_depth: int
) -> None:
    choices = tuple(CHOICES[i] for i in which) if name in MERGED else (RootChoice.ALL,)
    decisions = Decisions(choices, max_depth, SIZES)
    table = case_table(Case(name, temperature, 1, prompt), decisions)
    nodes, match = Nodes.of(decisions), table.features.names.index("match_length")
    places, questions = np.nonzero(table.allowed_PNA.any(axis=2))
    some = np.random.default_rng(max_depth).permutation(len(places))[:40]
    places, questions = places[some], questions[some]
    features_QF, allowed_QA = table.features_PNF[places, questions], table.allowed_PNA[places, questions]
    for setting in settings_of(decisions):
        scalar = SettingDecider(setting, decisions)
        found_Q = constant(table.features, decisions, setting)(features_QF, allowed_QA)
        for question, features_F, allowed_A, found in zip(
            questions, features_QF, allowed_QA, found_Q, strict=True
        ):
            if setting.choice == RootChoice.PLAIN and question != ROOT_NODE:
                continue  # it drafts nothing, so nobody asks
            depth = round(float(features_F[2]) * max_depth)
            assert depth <= nodes.depth[question]
            kind: QuestionKind = "draft" if question == ROOT_NODE else "level"
            if question != ROOT_NODE and features_F[0]:
                assert allowed_A.sum() == 1  # it found nothing, and looks like a root
            view = view_of(depth, bool(features_F[match] > 0))
            assert scalar.decide(kind, view, allowed_A.tolist()) == found
            assert allowed_A[found]


@pytest.mark.parametrize(
    ("setting", "matched", "wanted"),
    [
        (Setting(RootChoice.PLAIN, 0, 0), True, "plain"),
        (Setting(RootChoice.ALL, 2, 5), True, "draft all"),
        (Setting(RootChoice.LOOKUP, 0, 5), True, "draft lookup"),
        (Setting(RootChoice.LOOKUP, 0, 5), False, "plain"),
        (Setting(RootChoice.HEAD, 2, 5), True, "draft head"),
        (Setting(RootChoice.HEAD, 2, 5), False, "draft all"),
        (Setting(RootChoice.ALL, 2, 5, composite=True), True, "draft lookup"),
        (Setting(RootChoice.ALL, 2, 5, composite=True), False, "draft all"),
    ],
)
def test_the_root_by_hand(setting: Setting, matched: bool, wanted: str) -> None:
    decisions = Decisions(CHOICES, 3, SIZES)
    view = view_of(0, matched)
    action = SettingDecider(setting, decisions).decide("draft", view, decisions.allowed("draft", view))
    assert decisions.names[action] == wanted


@pytest.mark.parametrize("name", ["ngram", "causal-short", "merged-causal-short", "composite-eagle3"])
def test_a_constant_takes_the_same_time_in_replay_as_asked_cycle_by_cycle(name: str) -> None:
    """Drafts that find nothing among them: nobody is asked there in a session."""
    choices = CHOICES if name in MERGED else (RootChoice.ALL,)
    decisions, costs = Decisions(choices, 2, (2, 9)), replace(profile(), policy=0.0)
    for prompt in range(len(PROMPTS)):
        case = Case(name, 0.0, 1, prompt)
        table = case_table(case, decisions)
        for setting in settings_of(decisions):
            decide = constant(table.features, decisions, setting)
            (seconds,) = replay_texts(table, decision_costs(table, costs), decide)
            session = ReplaySession(
                traced(case),
                costs,
                max_new_tokens=tokens_of(case),
                draft_depth=DEPTH,
                composite=name.startswith("composite"),
            )
            records = session.run(setting_controller(setting, decisions))
            assert seconds == pytest.approx(sum(one.seconds.total for one in records), rel=1e-5)


def test_levels_and_sizes_by_hand() -> None:
    decisions = Decisions(CHOICES, 3, SIZES)
    decider = SettingDecider(Setting(RootChoice.ALL, 2, 6), decisions)
    for depth, wanted in ((1, "continue"), (2, "verify 5"), (3, "verify 5")):
        view = view_of(depth, False)
        allowed = [False] * 4 + [depth < 3, True, True, True, False, False]
        assert decisions.names[decider.decide("level", view, allowed)] == wanted
    # 6 nodes are wanted: the size that has them, once it is allowed.
    assert decisions.names[decider.decide("level", view_of(2, True), [False] * 4 + [True] * 6)] == "verify 9"


@pytest.mark.parametrize(
    "setting", [Setting(CHOICES[0], 2, 5, True), Setting(CHOICES[2], 3, 2), Setting(CHOICES[1], 0, 9)]
)
def test_it_changes_no_text(setting: Setting) -> None:
    case = Case("merged-eagle3", 1.0, 1, 1)
    session = session_of(case)
    records = list(session.run(setting_controller(setting, Decisions(CHOICES, DEPTH, SIZES))))
    assert session.generated == text_of(case)
    assert max(record.draft_depth for record in records) <= setting.draft_depth
    assert 0 < max(record.verification_size for record in records) <= setting.verification_size


def test_names_and_json() -> None:
    named = {
        "plain": Setting(RootChoice.PLAIN, 0, 0),
        "all 2x5": Setting(RootChoice.ALL, 2, 5),
        "lookup 9": Setting(RootChoice.LOOKUP, 0, 9),
        "composite 3x2": Setting(RootChoice.ALL, 3, 2, True),
    }
    for name, setting in named.items():
        assert str(setting) == name
        assert Setting.from_json(setting.to_json()) == setting


@pytest.mark.parametrize(
    "changed",
    [{"draft_depth": -1}, {"draft_depth": 2.0}, {"verification_size": "4"}, {"verification_size": 9999}],
)
def test_a_setting_that_cannot_be_followed_is_refused(changed: dict[str, Any]) -> None:
    raw = Setting(RootChoice.ALL, 2, 5).to_json() | changed
    with pytest.raises(ValueError, match=f"a setting's {next(iter(changed))} is .*, must be a whole number"):
        Setting.from_json(raw)
