"""Confidence and entropy of a level: by hand, against the drafter's whole rows, live against replayed."""

from __future__ import annotations

import math

import pytest

from decoding.controller import DraftView, RootChoice
from decoding.replay_session import ReplaySession
from decoding.session import Session
from decoding.tree import DraftTree
from policies.baselines.certainty import best_node, confidence, entropy
from policies.baselines.depth_rule import DepthRule, Frame
from policies.baselines.offers import Offers
from policies.baselines.rules import RULES
from tests.test_replay_session import replayed
from tests.test_traces import record
from tests.traced_worlds import DEPTH, MERGED, PROMPTS, Case, session_of, text_of

NAMES = ("causal", "eagle3", "composite-eagle3", "merged-eagle3", "merged-causal")
CASES = [
    Case(name, temperature, 1, prompt) for name in NAMES for temperature in (0.0, 1.0) for prompt in (1, 2, 3)
]


def test_by_hand() -> None:
    tree = DraftTree(1)
    tree.add_level([2, 3], [0, 0], [math.log(0.5), math.log(0.25)])
    tree.add_level([4, 5, 6], [1, 2, 2], [math.log(0.1), math.log(0.2), math.log(0.05)])
    assert (best_node(tree, 1), best_node(tree, 2)) == (1, 4)
    assert confidence(tree, 1) == pytest.approx(0.5)
    assert confidence(tree, 2) == pytest.approx(0.8)
    # 1/2, 1/4 and 1/4 are left; .8, .2 and nothing.
    assert entropy(tree, 1) == pytest.approx(1.5 * math.log(2))
    assert entropy(tree, 2) == pytest.approx(-0.8 * math.log(0.8) - 0.2 * math.log(0.2))


def test_of_equals_the_first_is_best() -> None:
    tree = DraftTree(1)
    tree.add_level([2, 3], [0, 0], [-1.0, -1.0])
    assert best_node(tree, 1) == 1


def test_joined_levels_are_not_the_last_drafted() -> None:
    tree = DraftTree(1)
    tree.add_level([2], [0], [math.log(0.5)])
    tree.add_level([3], [1], [math.log(0.4)], joined=True)
    assert confidence(tree, 1) == pytest.approx(0.5)


def test_a_drafter_at_fault_is_not_sure() -> None:
    tree = DraftTree(1)
    tree.add_level([2, 3], [0, 0], [math.nan, -math.inf])
    tree.add_level([4], [1], [-2.0])
    for depth in (1, 2):
        assert confidence(tree, depth) == 0
        assert entropy(tree, depth) == math.inf


def test_more_than_all_leaves_nothing() -> None:
    """A lookup's own estimate beside a head's may come to more than 1."""
    tree = DraftTree(1)
    tree.add_level([2, 3], [0, 0], [math.log(0.8), math.log(0.7)])
    assert entropy(tree, 1) == pytest.approx(-0.8 * math.log(0.8) - 0.7 * math.log(0.7))


@pytest.mark.parametrize("name", ["causal", "eagle3"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_it_bounds_the_entropy_of_the_whole_row(name: str, temperature: float) -> None:
    """Where the best node's parent is the text's, whose row a recording can keep."""
    compared = 0
    for prompt in range(len(PROMPTS)):
        for position in record(Case(name, temperature, 0, prompt), keep_rows=True):
            for row in position.on_path:
                tree, parent = position.tree, (0, *position.path)[row.depth - 1]
                if tree.parents[best_node(tree, row.depth)] != parent:
                    continue
                children = [node for node in tree.level(row.depth) if tree.parents[node] == parent]
                rest = 1 - sum(math.exp(tree.scores[node] - tree.scores[parent]) for node in children)
                least = entropy(tree, row.depth)
                room = max(0.0, rest) * math.log(len(row.survival_V) - len(children))
                assert least - 1e-5 <= row.entropy <= least + room + 1e-5
                assert confidence(tree, row.depth) == pytest.approx(row.top_probability, rel=1e-5)
                compared += 1
    assert compared > 50


class Noting(DepthRule):
    """As deep as the recording; notes how sure the drafter was of every level."""

    def __init__(self, root: str) -> None:
        super().__init__(Frame(root, 6, DEPTH))
        self.seen: dict[tuple[int, int], tuple[float, float]] = {}

    def note(self, view: DraftView) -> None:
        for depth in range(1, view.tree.depth + 1):
            found = confidence(view.tree, depth), entropy(view.tree, depth)
            assert self.seen.setdefault((view.context_length, depth), found) == found

    def goes_on(self, view: DraftView) -> bool:
        self.note(view)
        return True

    def verification_size(self, view: DraftView) -> int:
        self.note(view)
        return super().verification_size(view)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_live_and_replayed_drafts_are_as_sure(case: Case) -> None:
    for root in ("all", "composite", "head") if case.world in MERGED else ("all",):
        live, twin = Noting(root), Noting(root)
        for session, rule in ((session_of(case), live), (replayed(case), twin)):
            for _ in session.run(rule):
                pass
        assert live.seen.keys() == twin.seen.keys()
        assert live.seen or root == "composite"  # a lookup may draft all of a text
        for key, values in live.seen.items():
            assert twin.seen[key] == pytest.approx(values, rel=1e-4, abs=1e-6)


def cycles(session: Session | ReplaySession, rule: DepthRule) -> list[tuple[int, int, int, int]]:
    return [
        (one.context_length, one.draft_depth, one.verification_size, one.accepted)
        for one in session.run(rule)
    ]


@pytest.mark.parametrize("name", [name for name in RULES if name != "ucb"])
def test_rules_decide_alike_live_and_replayed(name: str) -> None:
    """Cycle by cycle; texts are those of plain decoding."""
    offers, depths = Offers(DEPTH), set()
    for case in CASES[::2]:
        for root in ("all", "composite") if case.world in MERGED else ("all",):
            parameters = {**RULES[name].usual(offers), "root": root, "size": 6}
            rules = [RULES[name].make(parameters, offers)() for _ in range(2)]
            session = session_of(case)
            live = cycles(session, rules[0])
            assert live == cycles(replayed(case), rules[1])
            assert session.generated == text_of(case)
            depths |= {depth for _, depth, _, _ in live}
    assert len(depths) > 2


def test_a_lookup_alone_is_drafted_where_the_frame_says_so() -> None:
    choices = set[RootChoice]()

    class Telling(Noting):
        def wants_draft(self, view: DraftView) -> RootChoice:
            choices.add(super().wants_draft(view))
            return super().wants_draft(view)

    for _ in session_of(Case("merged-eagle3", 0.0, 1, 1)).run(Telling("composite")):
        pass
    assert choices == {RootChoice.ALL, RootChoice.LOOKUP}
