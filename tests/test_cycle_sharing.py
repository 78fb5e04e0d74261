"""What a policy keeps of a cycle between its questions: only what they share."""

from __future__ import annotations

import numpy as np
import pytest

from decoding import native
from decoding.controller import Asked, DraftView, QuestionKind
from decoding.cycle_features import CycleFeatures
from decoding.exported import Network
from decoding.exported_cycle import ExportedCycle
from decoding.native_network import NativeNetwork
from tests.cycle_world import CASES, DECISIONS, info
from tests.traced_worlds import session_of


def policy() -> ExportedCycle:
    """Of equal outputs."""
    widths = (len(DECISIONS), len(info().features.names))
    layer = (np.zeros(widths, dtype=np.float32), np.zeros(widths[0], dtype=np.float32))
    return ExportedCycle(info(), Network([layer], "relu"))


def view_of(case: int = 1) -> DraftView:
    return next(session_of(CASES[case]).cycle()).view


def test_it_is_seen_once_a_cycle_and_again_where_another_comes_between(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[DraftView] = []
    usual = CycleFeatures.of_cycle

    def of_cycle(features: CycleFeatures, view: DraftView) -> list[float]:
        seen.append(view)
        return usual(features, view)

    monkeypatch.setattr(CycleFeatures, "of_cycle", of_cycle)
    asked, views = policy(), [view_of(), view_of()]
    allowed = [True] * len(DECISIONS)
    questions: list[tuple[QuestionKind, int]] = [("draft", 0), ("level", 0), ("level", 0), ("size", 0)]
    questions += [("level", 1), ("size", 1), ("level", 0), ("draft", 0)]
    for kind, place in questions:
        asked.decide(kind, views[place], allowed)
    assert [view is views[1] for view in seen] == [False, True, False, False]


def test_each_temperature_has_its_own_features() -> None:
    """A controller may serve requests of several."""
    asked, found = policy(), []
    for temperature in (0.0, 0.7, 0.0):
        view = view_of()
        view.temperature = temperature
        asked.decide("draft", view, [True] * len(DECISIONS))
        found.append(asked._cycle[2])
    assert found == [0.0, 0.7, 0.0]


def test_native_code_decides_where_a_decoder_has_loaded_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Asked for at the first decision, no sooner and no more."""
    asked, calls = policy(), list[int]()
    monkeypatch.setattr(native, "loaded", lambda: calls.append(1) or native.library())  # type: ignore[func-returns-value]
    for temperature in (0.0, 0.7, 0.7):
        view = view_of()
        view.temperature = temperature
        asked.decide("draft", view, [True] * len(DECISIONS))
        assert isinstance(asked._native, NativeNetwork)
    assert calls == [1]


def test_a_cycle_asks_its_own_questions_about_one_view() -> None:
    view = view_of()
    asked = Asked.of(view)
    assert [question.kind for question in asked] == ["draft", "level", "size"]
    assert all(question.view is view for question in asked)
