"""Expected gain in a decoder answers as it does in replay."""

from __future__ import annotations

import numpy as np
import pytest

from decoding.cycle_features import CycleFeatures
from decoding.decisions import DecisionController
from policies.baselines import Deciding, ExpectedGain
from policies.baselines.live_expected_gain import LiveExpectedGain
from tests.cycle_world import CASES, DECISIONS
from tests.test_replay_session import profile
from tests.traced_worlds import session_of


class Both:
    """Asks both, and goes on with one of them or at random."""

    def __init__(self, rule: ExpectedGain, features: CycleFeatures, rng: np.random.Generator) -> None:
        self._replayed = Deciding(rule, features)
        self._live = LiveExpectedGain(rule, features)
        self._rng = rng
        self.said: list[tuple[int, int]] = []

    def decide(self, kind: str, view: object, allowed: list[bool]) -> int:
        question = (kind, view, allowed)
        self.said.append((self._replayed.decide(*question), self._live.decide(*question)))  # type: ignore[arg-type]
        options = [self.said[-1][0], *np.flatnonzero(allowed).tolist()]
        return int(self._rng.choice(options))


@pytest.mark.parametrize("rate", [5.0, 40.0, 400.0])
@pytest.mark.parametrize("growth", [0.2, 1.0])
def test_both_answer_alike(rate: float, growth: float) -> None:
    found = []
    for number, case in enumerate(CASES[:4]):
        features = CycleFeatures(DECISIONS.sizes, DECISIONS.max_depth, case.temperature)
        rule = ExpectedGain(features, DECISIONS, profile(), rate, growth, [1, 2, 3, 1, 2])
        both = Both(rule, features, np.random.default_rng(number))
        controller = DecisionController(DECISIONS, both)  # type: ignore[arg-type]
        for _ in session_of(case).run(controller):
            pass
        found += both.said
    assert all(one == other for one, other in found)
    assert len({one for one, _ in found}) > 2  # it does not always say the same


def test_costs_are_those_of_the_nearest_step() -> None:
    features = CycleFeatures(DECISIONS.sizes, DECISIONS.max_depth)
    costs = profile()
    live = LiveExpectedGain(ExpectedGain(features, DECISIONS, costs, 10.0, 0.5, [0] * 5), features)
    for context, step in ((1, 64), (95, 64), (97, 128), (640, 640)):
        sizes, levels = live._costs_at(context)
        rows = np.array(features.sizes) + 1
        np.testing.assert_allclose(sizes, 10.0 * costs.verification_seconds(rows, step))
        assert levels[0] == pytest.approx(10.0 * float(costs.level_seconds(1, step)[()]))
