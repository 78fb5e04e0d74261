"""Remembered costs are the profile's, asked once."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from decoding.profile import CostProfile
from decoding.remembered_costs import RememberedCosts
from decoding.replay_session import ReplaySession
from tests.test_replay_session import Noting, profile, replayed
from tests.test_replay_table import traced
from tests.traced_worlds import DEPTH, MERGED, Case, session_of

NAMES = ("start_seconds", "level_seconds", "selection_seconds", "verification_seconds", "commit_seconds")


@pytest.mark.parametrize("name", ["eagle3", "composite-eagle3", "merged-causal"])
def test_replays_are_equal_and_ask_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case, calls = Case(name, 1.0, 1, 1), Counter[Any]()
    seeds = (0, 1, 0)
    expected = [list(replayed(case, 0.7).run(Noting(seed, name in MERGED))) for seed in seeds]

    def counted(what: str) -> Any:
        asked = getattr(CostProfile, what)

        def ask(self: CostProfile, *given: Any) -> Any:
            calls[what, given] += 1
            return asked(self, *given)

        return ask

    for what in NAMES:
        monkeypatch.setattr(CostProfile, what, counted(what))
    costs = RememberedCosts(profile(0.7))
    for seed, records in zip(seeds, expected, strict=True):
        session = ReplaySession(
            traced(case),
            costs,
            max_new_tokens=session_of(case).tokens_left,
            draft_depth=DEPTH,
            composite=name.startswith("composite"),
        )
        assert list(session.run(Noting(seed, name in MERGED))) == records
    assert {what for what, _ in calls} == set(NAMES)
    assert set(calls.values()) == {1}
