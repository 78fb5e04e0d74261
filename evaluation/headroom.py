"""What is to be gained, before anything is trained, by replay: from constants, constants by category and by
prompt, and the best schedule of all.

Legend: P positions of a text, A actions, T texts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import bootstrap

from decoding.profile import CostProfile
from decoding.replay import (
    Action,
    TextTable,
    constant_seconds,
    seconds_of_actions,
    shortest_seconds,
)


@dataclass(frozen=True, slots=True)
class TextCosts:
    """A text's seconds: of each constant action (A), and of the best schedule. `tokens`: that it has."""

    question_id: str
    category: str | None
    tokens: int
    constant_A: np.ndarray
    clairvoyant: float


@dataclass(frozen=True, slots=True)
class Arm:
    """One row of the table: `ratio` is tokens per second over plain decoding's, of all texts together, with
    its 95 % interval over prompts; `setting` what it is, for constants."""

    name: str
    tokens_per_second: float
    ratio: float
    low: float
    high: float
    setting: str = ""


def text_costs(table: TextTable, profile: CostProfile) -> TextCosts:
    """Of one text."""
    seconds_PA = seconds_of_actions(table, profile)
    return TextCosts(
        table.question_id,
        table.category,
        table.tokens,
        constant_seconds(table, seconds_PA),
        shortest_seconds(table, seconds_PA)[0],
    )


def headroom(texts: Sequence[TextCosts], actions: Sequence[Action]) -> list[Arm]:
    """Plain decoding, then what each kind of knowledge would give; all constants are chosen in hindsight.

    ValueError without a text, or if the first action is not the plain step.
    """
    if not texts:
        raise ValueError("there are no texts: the recording is empty")
    if actions[0].verification_size:
        raise ValueError(f"the first action is {actions[0]}, must be the plain step")
    tokens_T = np.array([one.tokens for one in texts])
    constant_TA = np.array([one.constant_A for one in texts])
    plain_T = constant_TA[:, 0]
    if not (constant_TA > 0).all():
        raise ValueError("the profile's costs are 0: profile again")
    best = int(constant_TA.sum(axis=0).argmin())
    by_category_T = np.zeros(len(texts))
    for category in {one.category for one in texts}:
        those_T = np.array([one.category == category for one in texts])
        by_category_T[those_T] = constant_TA[those_T, constant_TA[those_T].sum(axis=0).argmin()]
    arms = {
        "plain": plain_T,
        "best constant": constant_TA[:, best],
        "best constant of each category": by_category_T,
        "best constant of each prompt": constant_TA.min(axis=1),
        "clairvoyant": np.array([one.clairvoyant for one in texts]),
    }
    return [
        _arm(name, tokens_T, plain_T, seconds_T, str(actions[best]) if name == "best constant" else "")
        for name, seconds_T in arms.items()
    ]


def best_of_each_choice(texts: Sequence[TextCosts], actions: Sequence[Action]) -> list[Arm]:
    """The best constant of every root choice, in the order of the actions."""
    tokens_T = np.array([one.tokens for one in texts])
    constant_TA = np.array([one.constant_A for one in texts])
    total_A = constant_TA.sum(axis=0)
    arms = []
    for choice in dict.fromkeys(action.choice for action in actions):
        those = [column for column, action in enumerate(actions) if action.choice == choice]
        best = min(those, key=lambda column: total_A[column])
        arms.append(
            _arm(choice.name.lower(), tokens_T, constant_TA[:, 0], constant_TA[:, best], str(actions[best]))
        )
    return arms


def edges(texts: Iterable[TextCosts], actions: Sequence[Action]) -> list[str]:
    """Warnings where the best constant lies on the edge of its grid: a wider one may hold a better."""
    total_A = np.sum([one.constant_A for one in texts], axis=0)
    best = actions[int(total_A.argmin())]
    same = [action for action in actions if action.choice == best.choice]
    said = []
    for name in ("draft_depth", "verification_size"):
        values = sorted({getattr(action, name) for action in same})
        if len(values) > 1 and getattr(best, name) == values[-1]:
            said.append(
                f"the best constant, {best}, has the grid's largest {name}: a wider grid may hold a better"
            )
    return said


def _arm(name: str, tokens_T: np.ndarray, plain_T: np.ndarray, seconds_T: np.ndarray, setting: str) -> Arm:
    ratio = float(plain_T.sum() / seconds_T.sum())
    low = high = ratio
    if len(tokens_T) > 1 and not np.array_equal(plain_T, seconds_T):

        def over(plain: np.ndarray, mine: np.ndarray, axis: int = -1) -> np.ndarray:
            return plain.sum(axis=axis) / mine.sum(axis=axis)

        interval = bootstrap(
            (plain_T, seconds_T), over, paired=True, method="percentile", n_resamples=2000, rng=0
        ).confidence_interval
        low, high = float(interval.low), float(interval.high)
    return Arm(name, float(tokens_T.sum() / seconds_T.sum()), ratio, low, high, setting)
