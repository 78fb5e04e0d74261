"""Lets a function of a policy's features decide in a session, as any other controller."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from decoding.controller import DraftView, QuestionKind
from decoding.cycle_features import CycleFeatures
from decoding.decision_walk import Decide
from decoding.decisions import DecisionController, Decisions


class Deciding:
    """Lets a rule, or any other function of the features, decide in a session: `decoding.decisions.Decides`.

    Args:
        decide: of a batch of questions.
        features: what it sees.
    """

    def __init__(self, decide: Decide, features: CycleFeatures) -> None:
        self._decide, self._features = decide, features

    def decide(self, kind: QuestionKind, view: DraftView, allowed: Sequence[bool]) -> int:
        return int(self._decide(self._features(view)[None], np.array([allowed]))[0])


def controller(decide: Decide, features: CycleFeatures, decisions: Decisions) -> DecisionController:
    """A controller that decides so."""
    return DecisionController(decisions, Deciding(decide, features))
