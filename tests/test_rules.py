"""Each rule of other papers does by hand-computed observations what its source says."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from decoding.controller import EVERY_CHOICE, USUAL_CHOICES, DraftView, LookupHint, RootChoice
from decoding.records import CycleRecord, PhaseSeconds
from decoding.tree import DraftTree
from policies.baselines.accepted_ema import AcceptedEma
from policies.baselines.adaedl import AdaEdl
from policies.baselines.depth_rule import DepthRule, Frame
from policies.baselines.entropy_stop import EntropyStop
from policies.baselines.gammatune import GammaTune
from policies.baselines.hf_confidence import HfConfidence, best_threshold
from policies.baselines.hf_heuristic import HfHeuristic
from policies.baselines.ucb import Bandit, Ucb

FRAME = Frame("all", 5, 8)
ALL_OF_THEM = 99


def view_of(
    history: Sequence[CycleRecord] = (),
    choices: tuple[RootChoice, ...] = USUAL_CHOICES,
    lookup: LookupHint | None = None,
) -> DraftView:
    return DraftView(DraftTree(1), 20, 10, 100, deque(history), root_choices=choices, lookup=lookup)


def record(depth: int, accepted: int, seconds: float = 1.0) -> CycleRecord:
    hits = (True,) * accepted + (False,) * (accepted < depth)
    return CycleRecord(depth, depth, hits, tuple(range(accepted + 1)), 10, PhaseSeconds(verify=seconds))


def add_level(tree: DraftTree, survivals: Sequence[float]) -> None:
    """The children of the level's first node, with these survivals."""
    parent = tree.level(tree.depth).start
    score = tree.scores[parent]
    tree.add_level([2] * len(survivals), [parent] * len(survivals), [score + math.log(s) for s in survivals])


def depths(rule: DepthRule, accepted: Sequence[int], survivals: Sequence[float] = (0.9,)) -> list[int]:
    """Of drafts one after the other, whose first levels survive as given, all further ones as the last; of
    each so many tokens are accepted."""
    found, history = [], list[CycleRecord]()
    for hits in accepted:
        view = view_of(history)
        assert rule.wants_draft(view) == RootChoice.ALL
        more = True
        while more:
            add_level(view.tree, [survivals[min(view.tree.depth, len(survivals) - 1)]])
            more = rule.wants_level(view)
        assert rule.verification_size(view) == 5
        found.append(view.tree.depth)
        history = [record(view.tree.depth, min(hits, view.tree.depth))]
    return found


# --- what all share ---------------------------------------------------------------------------------------


class Deepest(DepthRule):
    """As deep as it may; counts what it was shown."""

    def __init__(self, frame: Frame) -> None:
        super().__init__(frame)
        self.observed: list[int] = []

    def observe(self, record: CycleRecord) -> None:
        self.observed.append(record.draft_depth)

    def goes_on(self, view: DraftView) -> bool:
        return True


@pytest.mark.parametrize(
    ("root", "match", "choices", "said"),
    [
        ("all", 0, EVERY_CHOICE, RootChoice.ALL),
        ("all", 3, EVERY_CHOICE, RootChoice.ALL),
        ("composite", 0, EVERY_CHOICE, RootChoice.ALL),
        ("composite", 3, EVERY_CHOICE, RootChoice.LOOKUP),
        ("composite", 3, USUAL_CHOICES, RootChoice.ALL),
        ("composite", None, USUAL_CHOICES, RootChoice.ALL),
        ("head", 3, EVERY_CHOICE, RootChoice.HEAD),
        ("head", 3, USUAL_CHOICES, RootChoice.ALL),
    ],
)
def test_a_frame_says_what_is_drafted_with(
    root: str, match: int | None, choices: tuple[RootChoice, ...], said: RootChoice
) -> None:
    hint = None if match is None else LookupHint(match, 1.0)
    rule = Deepest(Frame(root, 5, 3))
    assert rule.wants_draft(view_of(choices=choices, lookup=hint)) == said
    assert depths(Deepest(Frame("all", 5, 3)), [0]) == [3]


def test_a_cycle_without_the_head_teaches_nothing() -> None:
    rule = Deepest(FRAME)
    for history in ([], [record(2, 1)], [record(2, 1), record(0, 0)], [record(0, 0), record(3, 3)]):
        rule.wants_draft(view_of(history))
    assert rule.observed == [2, 3]


# --- Hugging Face -----------------------------------------------------------------------------------------


def test_the_heuristic_adds_two_or_takes_one() -> None:
    rule = HfHeuristic(FRAME)
    assert depths(rule, [ALL_OF_THEM, ALL_OF_THEM, 7, 0, 0]) == [5, 7, 8, 7, 6]
    assert depths(HfHeuristic(FRAME, start=2), [0, 0, 0, 1, 3]) == [2, 1, 1, 1, 3]
    assert depths(HfHeuristic(FRAME, start=2, up=3, down=2), [2, 4, 0]) == [2, 5, 3]


def test_a_lookup_below_the_last_level_is_no_level() -> None:
    """Two levels, of which both were accepted with three looked-up tokens, are a draft accepted whole."""
    rule = HfHeuristic(FRAME, start=2)
    rule.wants_draft(view_of([CycleRecord(2, 5, (True,) * 5, tuple(range(6)), 10, PhaseSeconds())]))
    assert rule.depth == 4


def test_confidence_stops_below_the_threshold() -> None:
    never = [0.9, 0.41, 0.8, 0.39, 0.9]
    assert depths(HfConfidence(FRAME, adapted=False), [0, 0], never) == [4, 4]
    assert depths(HfConfidence(FRAME, threshold=0.5, adapted=False), [0], never) == [2]
    assert depths(HfConfidence(FRAME, threshold=0.0, adapted=False), [0], never) == [8]


def test_the_threshold_follows_the_request() -> None:
    """.9 and .8 right, .3 wrong; .7 right, .35 wrong; .5 right, .39 wrong. From .5 on every right one is
    drafted and no wrong one."""
    rule = HfConfidence(FRAME)
    history: list[CycleRecord] = []
    for survivals, accepted in (([0.9, 0.8, 0.3], 2), ([0.7, 0.35], 1), ([0.5, 0.39], 1)):
        view = view_of(history)
        rule.wants_draft(view)
        for survival in survivals:
            assert view.tree.depth == 0 or rule.wants_level(view)
            add_level(view.tree, [survival])
        assert not rule.wants_level(view)
        rule.verification_size(view)
        history = [record(len(survivals), accepted)]
        assert rule.threshold == 0.4
    rule.wants_draft(view_of(history))
    assert rule.threshold == pytest.approx(0.5)
    rule.wants_draft(view_of(history))  # a lookup's cycle, say: nothing was drafted since
    assert len(rule._seen) == 7


@given(
    st.lists(st.tuples(st.sampled_from([0.1, 0.2, 0.25, 0.5, 0.9, 1.0]), st.booleans()), min_size=2).filter(
        lambda seen: len({hit for _, hit in seen}) == 2
    )
)
def test_the_best_threshold_is_that_of_the_roc_curve(seen: list[tuple[float, bool]]) -> None:
    from sklearn.metrics import roc_curve

    false, true, thresholds = roc_curve([hit for _, hit in seen], [sure for sure, _ in seen])
    costs = false + 3 * (1 - true)
    best = best_threshold(sorted(seen))
    drafted = [hit for sure, hit in seen if sure >= best]
    right = sum(hit for _, hit in seen)
    mine = drafted.count(False) / (len(seen) - right) + 3 * (1 - drafted.count(True) / right)
    assert mine == pytest.approx(costs.min())
    assert best >= thresholds[np.flatnonzero(costs <= costs.min() + 1e-9)[0]] - 1e-9


# --- entropies --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("row", "goes_on"),
    [
        ([0.8], True),  # entropy .5004, sqrt(.15 * .5004) = .274
        ([0.5], False),  # ln 2: .322
        ([0.7], True),  # .6109: .3027, above the default and below .31
        ([0.9, 0.05], True),  # .3944: .243
        ([0.6, 0.2], False),  # .9503: .378
    ],
)
def test_the_entropy_stops_above_the_threshold(row: list[float], goes_on: bool) -> None:
    view = view_of()
    add_level(view.tree, row)
    shares = [*row, 1 - sum(row)]
    bound = math.sqrt(0.15 * -sum(share * math.log(share) for share in shares))
    assert EntropyStop(FRAME).wants_level(view) == (bound <= 0.3)
    assert EntropyStop(FRAME, 0.31).wants_level(view) == goes_on


def test_the_row_of_the_best_node_counts() -> None:
    """Of two parents the second has the best child, and a row that is sure."""
    view = view_of()
    view.tree.add_level([2, 3], [0, 0], [math.log(0.45), math.log(0.44)])
    first = [math.log(0.45 * 0.3), math.log(0.45 * 0.3)]
    view.tree.add_level([4, 5, 6], [1, 1, 2], [*first, math.log(0.44 * 0.95)])
    assert EntropyStop(FRAME).wants_level(view)
    assert HfConfidence(FRAME, 0.94).wants_level(view)
    assert not HfConfidence(FRAME, 0.96).wants_level(view)


def test_adaedl_moves_its_threshold() -> None:
    """Rates .9 -> .7 -> .85 -> .925 -> .9625; lambda moves by a tenth of the step."""
    rule = AdaEdl(Frame("all", 5, 4), start=0.5)
    found = []
    for depth, accepted in ((4, 2), (2, 2), (2, 2), (4, 4), (1, 0)):
        rule.wants_draft(view_of([record(depth, accepted)]))
        found.append((rule.rate, rule.threshold))
    rates, thresholds = zip(*found, strict=True)
    assert rates == pytest.approx([0.7, 0.85, 0.925, 0.9625, 0.48125])
    assert thresholds == pytest.approx([0.501, 0.502, 0.501, 0.501, 0.502])


def test_adaedl_stops_below_its_threshold() -> None:
    """An even chance: 1 - sqrt(.2 ln 2) = .6277."""
    view = view_of()
    add_level(view.tree, [0.5])
    assert AdaEdl(FRAME, start=0.62).wants_level(view)
    assert not AdaEdl(FRAME, start=0.63).wants_level(view)


# --- accepted lengths -------------------------------------------------------------------------------------


def test_gammatune_widens_at_once_and_narrows_slowly() -> None:
    """3, all: 5. Then 2 of 5: mean .7 * 3 + .3 * 2 = 2.7, so 3. All: 5. Then 0: mean 1.89, so 2; 0: 1.323, so
    2; 0: held to 1; all of that one: 3."""
    rule = GammaTune(FRAME)
    assert depths(rule, [3, 2, 3, 0, 0, 0, 1, 0]) == [3, 5, 3, 5, 2, 2, 1, 3]
    assert depths(GammaTune(FRAME, start=7), [7, 8, 8]) == [7, 8, 8]
    assert depths(GammaTune(FRAME, start=4, smoothing=1.0, widening=0), [3, 3, 1, 1]) == [4, 3, 3, 1]


def test_gammatune_plus_stops_at_an_unsure_token() -> None:
    rule = GammaTune(FRAME, start=4, confidence=0.5)
    assert depths(rule, [2, 0], [0.9, 0.4, 0.9]) == [2, 2]
    assert depths(GammaTune(FRAME, start=4), [0], [0.9, 0.4, 0.9]) == [4]


def test_the_accepted_length_moves_between_steps() -> None:
    """Of 1, 3, 5, 7 it begins with 5, mean 4. All of 5: 4.5, 4.75, 4.875; the third is the second after the
    warm-up: above 4.5, so 7. Then 0, 0: 2.4375, 1.21875: at most 4.25 and 2.25, so 3. Then 0, 0: .305: at
    most .25 it is not."""
    rule = AcceptedEma(FRAME, smoothing=0.5, interval=2, warm_up=1)
    assert depths(rule, [5, 5, 5, 0, 0, 0, 0, 0, 0]) == [5, 5, 5, 7, 7, 3, 3, 3, 3]
    assert rule.mean == pytest.approx(1.21875 / 8)
    rule.wants_draft(view_of([record(3, 0)]))
    assert rule.depth == 1


def test_hysteresis_holds_a_step() -> None:
    """A mean that stays 3.9 between 3 and 5: up from 3 above 2.5 + up; down from 5 at most 2.5 + down."""

    def after(accepted: int, **given: Any) -> int:
        rule = AcceptedEma(FRAME, steps=(3, 5), smoothing=1.0, interval=1, warm_up=0, **given)
        assert rule.depth == 5
        rule.wants_draft(view_of([record(5, accepted)]))
        return rule.depth

    assert [after(accepted) for accepted in (3, 2)] == [5, 3]
    assert [after(accepted, down=0.5) for accepted in (4, 3)] == [5, 3]
    for up, depth in ((0.0, 5), (1.0, 3)):
        rule = AcceptedEma(FRAME, steps=(3, 5), smoothing=1.0, interval=1, warm_up=0, up=up)
        for accepted in (0, 3):
            rule.wants_draft(view_of([record(5, accepted)]))
        assert rule.depth == depth


def test_steps_that_are_too_deep_are_left_out() -> None:
    assert AcceptedEma(Frame("all", 5, 6)).depth == 3
    assert AcceptedEma(Frame("all", 5, 2), steps=(4, 6)).depth == 2


# --- the bandit -------------------------------------------------------------------------------------------

TWO = Frame("all", 3, 2)


def test_the_bandit_tries_all_then_the_best_bound() -> None:
    """Plain: 1 token a second; two levels: 3 tokens in 2 seconds. In the run's mean, 4 tokens in 3 seconds,
    .75 and 1.125. After two cycles each radius is sqrt(2 * (1 + 2 ln(2 * 4 * sqrt 2))) = 3.4212."""
    bandit = Bandit((None, TWO), exploration=0.1)
    assert bandit.choose() == 0
    bandit.observe(0, record(0, 0))
    assert bandit.choose() == 1
    bandit.observe(1, record(2, 2, seconds=2.0))
    assert bandit.bound(0) == pytest.approx(0.75 + 0.1 * 3.4212, abs=1e-4)
    assert bandit.bound(1) == pytest.approx(1.125 + 0.1 * 3.4212, abs=1e-4)
    assert bandit.choose() == 1
    bandit.observe(1, record(2, 2, seconds=2.0))
    # Now 7 tokens in 5 seconds; of 3 cycles, n = 1: sqrt(2 (1 + 2 ln(18 sqrt 2))); n = 2: sqrt(.75 ..sqrt 3).
    assert bandit.bound(0) == pytest.approx(5 / 7 + 0.1 * 3.8662, abs=1e-4)
    assert bandit.bound(1) == pytest.approx(1.5 * 5 / 7 + 0.1 * 2.4310, abs=1e-4)
    assert bandit.choose() == 1
    eager = Bandit((None, TWO), exploration=2.0)
    for place, one in ((0, record(0, 0)), (1, record(2, 2, 2.0)), (1, record(2, 2, 2.0))):
        eager.observe(place, one)
    assert eager.choose() == 0  # the less known


def test_requests_share_the_bandit() -> None:
    """A request's last cycle is not observed, so that its arm comes again."""
    bandit = Bandit((None, TWO), exploration=0.0)
    first, second = Ucb(bandit), Ucb(bandit)
    assert first.wants_draft(view_of()) == RootChoice.PLAIN
    view = view_of([record(0, 0)])
    assert first.wants_draft(view) == RootChoice.ALL
    assert [first.verification_size(view), bandit.pulls] == [3, [1, 0]]
    add_level(view.tree, [0.5])
    assert first.wants_level(view)
    add_level(view.tree, [0.5])
    assert not first.wants_level(view)
    assert second.wants_draft(view_of()) == RootChoice.ALL
    assert second.wants_draft(view_of([record(2, 0, seconds=2.0)])) == RootChoice.PLAIN
    assert bandit.pulls == [1, 1]
    assert not second.wants_level(view)
    assert second.verification_size(view) == 0


def test_the_bandit_finds_the_best_arm() -> None:
    rng = np.random.default_rng(0)
    arms = tuple(Frame("all", size, 1) for size in (1, 2, 3))
    bandit = Bandit(arms, exploration=0.1)
    for _ in range(600):
        place = bandit.choose()
        bandit.observe(place, record(1, int(rng.random() < (0.2, 0.6, 0.4)[place])))
    assert bandit.pulls[1] > 400
    assert min(bandit.pulls) > 5
