"""What is to be gained, before a policy is trained, by replay: from constants, constants by category and by
prompt, rules, a large model, and the best schedule of all.

Legend: T texts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from scipy.stats import bootstrap

from decoding.controller import RootChoice
from decoding.setting import Setting

REACHABLE = "reachable"


@dataclass(frozen=True)
class Replayed:
    """Seconds of the same texts under all that they were replayed with.

    Attributes:
        categories: of the texts, "" where unknown.
        tokens_T: that each has.
        constants: (T) of each constant, the plain step among them.
        clairvoyant_T: of the best schedule.
        rules: by name (T), in the order that they are to be shown in: what decides without knowing the text.
    """

    categories: tuple[str, ...]
    tokens_T: np.ndarray
    constants: Mapping[Setting, np.ndarray]
    clairvoyant_T: np.ndarray
    rules: Mapping[str, np.ndarray] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.categories:
            raise ValueError("there are no texts: the recording is empty")
        if not any(setting.choice == RootChoice.PLAIN for setting in self.constants):
            raise ValueError("the plain step is not among the constants: there is nothing to compare with")
        if not all((seconds_T > 0).all() for seconds_T in self.constants.values()):
            raise ValueError("the profile's costs are 0: profile again")

    @property
    def plain_T(self) -> np.ndarray:
        """(T) of plain decoding."""
        plain = next(one for one in self.constants if one.choice == RootChoice.PLAIN)
        return self.constants[plain]

    @property
    def best(self) -> Setting:
        """The best constant, in hindsight."""
        return min(self.constants, key=lambda one: float(self.constants[one].sum()))


@dataclass(frozen=True, slots=True)
class Arm:
    """One row of the table.

    Attributes:
        ratio, low, high: tokens per second over plain decoding's, of all texts together, with its 95 %
            interval over prompts.
        setting: what it is, for constants.
        of_reachable, of_clairvoyant: the seconds that it saves against the best constant, over those that
            the reachable bound, or the best schedule, saves; None where there is nothing to save, no bound.
    """

    name: str
    tokens_per_second: float
    ratio: float
    low: float
    high: float
    setting: str = ""
    of_reachable: float | None = None
    of_clairvoyant: float | None = None


def headroom(replayed: Replayed) -> list[Arm]:
    """Plain decoding, then what each kind of knowledge would give; all constants are chosen in hindsight."""
    constant_TA = np.stack(list(replayed.constants.values()), axis=1)
    best, by_category_T = replayed.best, np.zeros(len(replayed.categories))
    for category in set(replayed.categories):
        those_T = np.array([one == category for one in replayed.categories])
        by_category_T[those_T] = constant_TA[those_T, constant_TA[those_T].sum(axis=0).argmin()]
    arms = {
        "best constant": replayed.constants[best],
        "best constant of each category": by_category_T,
        "best constant of each prompt": constant_TA.min(axis=1),
        **replayed.rules,
        "clairvoyant": replayed.clairvoyant_T,
    }
    return [
        _arm("plain", replayed, replayed.plain_T),
        *(
            _arm(name, replayed, seconds_T, str(best) if name == "best constant" else "", shares=True)
            for name, seconds_T in arms.items()
        ),
    ]


def best_of_each_choice(replayed: Replayed) -> list[Arm]:
    """The best constant of every root choice, and of the composite, in the order of the constants."""
    kinds: dict[str, list[Setting]] = {}
    for setting in replayed.constants:
        name = "composite" if setting.composite else setting.choice.name.lower()
        kinds.setdefault(name, []).append(setting)
    arms = []
    for name, settings in kinds.items():
        best = min(settings, key=lambda one: float(replayed.constants[one].sum()))
        arms.append(_arm(name, replayed, replayed.constants[best], str(best)))
    return arms


def edges(replayed: Replayed) -> list[str]:
    """Warnings where the best constant lies on the edge of its grid: a wider one may hold a better."""
    best = replayed.best
    same = [one for one in replayed.constants if (one.choice, one.composite) == (best.choice, best.composite)]
    said = []
    for name in ("draft_depth", "verification_size"):
        values = sorted({getattr(one, name) for one in same})
        if len(values) > 1 and getattr(best, name) == values[-1]:
            said.append(
                f"the best constant, {best}, has the grid's largest {name}: a wider grid may hold a better"
            )
    return said


def _arm(
    name: str, replayed: Replayed, seconds_T: np.ndarray, setting: str = "", shares: bool = False
) -> Arm:
    plain_T, tokens_T = replayed.plain_T, replayed.tokens_T
    ratio = float(plain_T.sum() / seconds_T.sum())
    low = high = ratio
    if len(tokens_T) > 1 and not np.array_equal(plain_T, seconds_T):

        def over(plain: np.ndarray, mine: np.ndarray, axis: int = -1) -> np.ndarray:
            return plain.sum(axis=axis) / mine.sum(axis=axis)

        interval = bootstrap(
            (plain_T, seconds_T), over, paired=True, method="percentile", n_resamples=2000, rng=0
        ).confidence_interval
        low, high = float(interval.low), float(interval.high)
    of_reachable = of_clairvoyant = None
    if shares:
        of_reachable = _share(replayed, seconds_T, replayed.rules.get(REACHABLE))
        of_clairvoyant = _share(replayed, seconds_T, replayed.clairvoyant_T)
    speed = float(tokens_T.sum() / seconds_T.sum())
    return Arm(name, speed, ratio, low, high, setting, of_reachable, of_clairvoyant)


def share_of_saving(constant: float, seconds: float, bound: float) -> float | None:
    """What `seconds` saves against a constant, over what a bound saves; None where that saves nothing."""
    return (constant - seconds) / (constant - bound) if bound < constant else None


def _share(replayed: Replayed, seconds_T: np.ndarray, bound_T: np.ndarray | None) -> float | None:
    constant = float(replayed.constants[replayed.best].sum())
    if bound_T is None:
        return None
    return share_of_saving(constant, float(seconds_T.sum()), float(bound_T.sum()))
