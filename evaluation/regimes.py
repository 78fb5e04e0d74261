"""Where learning pays: the same recorded texts replayed at other costs, with constants, expected gain, a
policy that was trained for those costs and one that was not.

Legend: T texts, A actions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import nn

from decoding.decision_costs import DecisionCosts, decision_costs, joined_costs
from decoding.decision_schedule import shortest_seconds
from decoding.decision_table import DecisionTable, joined_tables
from decoding.decision_walk import Decide, replay_texts
from decoding.profile import CostProfile
from decoding.setting import Setting
from evaluation.paired_seconds import claim_all, compare_seconds, groups_of
from evaluation.regime_costs import REGIMES, CostRegime
from evaluation.schema_parts import ComparisonResult, Regime
from policies.baselines import best_constant, fit_expected_gain
from policies.full_information import FullInformationSettings, fit, greedy

FIXED, HINDSIGHT = "best fixed", "best fixed in hindsight"
GAIN, LEARNED, UNTRAINED = "expected gain", "learned", "trained for the measured costs"
CLAIRVOYANT = "clairvoyant"
WIDTH = 64  # the most that a policy's layers have, see design.md section 7

# What is being done.
Say = Callable[[str], None]


@dataclass(frozen=True)
class RegimeTexts:
    """Recorded texts.

    Attributes:
        parts: the table of each recording, with the profile measured at its temperature; at least one.
    """

    parts: tuple[tuple[DecisionTable, CostProfile], ...]

    @cached_property
    def table(self) -> DecisionTable:
        """Of all texts, one recording after the other."""
        tables = [table for table, _ in self.parts]
        return tables[0] if len(tables) == 1 else joined_tables(tables)

    def costs(self, regime: CostRegime, question_seconds: float) -> DecisionCosts:
        """Of all texts, in a regime."""
        return joined_costs(
            [decision_costs(table, regime.profile(one), question_seconds) for table, one in self.parts]
        )


@dataclass(frozen=True)
class Replays:
    """The test texts in one regime.

    Attributes:
        regime: which.
        fixed: the best constant of the training texts; hindsight: of the test texts.
        plain_T: seconds of plain decoding.
        seconds: (T) of each arm, by name.
    """

    regime: CostRegime
    fixed: Setting
    hindsight: Setting
    plain_T: np.ndarray
    seconds: Mapping[str, np.ndarray]


def cost_regimes(
    train: RegimeTexts,
    test: RegimeTexts,
    question_seconds: float,
    settings: FullInformationSettings,
    seed: int,
    say: Say,
    regimes: Sequence[CostRegime] = REGIMES,
) -> list[Regime]:
    """Train and replay in each regime.

    Args:
        train: texts that constants, rule and policies come from. test: those that they are replayed on.
        question_seconds: of a decision, for every arm but the bound.
        settings, seed: of full information.
        regimes: the first is the one whose policy the others try without training.
    """
    found, first = [], None
    for regime in regimes:
        replays, decide = replay_regime(regime, train, test, question_seconds, settings, seed, first, say)
        first = first or decide
        found.append(replays)
    return rows_of(found, groups_of(test.table.names, test.table.languages))


def replay_regime(
    regime: CostRegime,
    train: RegimeTexts,
    test: RegimeTexts,
    question_seconds: float,
    settings: FullInformationSettings,
    seed: int,
    other: Decide | None,
    say: Say,
) -> tuple[Replays, Decide]:
    """Every arm on the test texts, and the policy that was trained. `other`: one trained for other costs."""
    costs, own = (texts.costs(regime, question_seconds) for texts in (train, test))
    say(f"{regime.name}: constants")
    fixed, on_training = best_constant(train.table, costs)
    hindsight, on_test = best_constant(test.table, own)
    rate = train.table.positions / float(on_training[fixed].sum())
    say(f"{regime.name}: expected gain")
    seconds = {
        FIXED: on_test[fixed],
        HINDSIGHT: on_test[hindsight],
        GAIN: _gain_seconds(regime, train, test, question_seconds, rate),
    }
    net = policy_network(train.table, seed)

    def fitted(turn: int, speed: float) -> None:
        say(f"{regime.name}: full information, round {turn} of {settings.rounds}, {speed / rate:.3f} of best")

    fit(net, train.table, costs, settings, seed, rate, fitted, on_training[fixed])
    decide = greedy(net)
    seconds[LEARNED] = replay_texts(test.table, own, decide)
    if other is not None:
        seconds[UNTRAINED] = replay_texts(test.table, own, other)
    seconds[CLAIRVOYANT] = shortest_seconds(test.table, test.costs(regime, 0.0))
    plain = next(iter(on_test))  # `settings_of` begins with it
    return Replays(regime, fixed, hindsight, on_test[plain], seconds), decide


def _gain_seconds(
    regime: CostRegime, train: RegimeTexts, test: RegimeTexts, question_seconds: float, rate: float
) -> np.ndarray:
    """(T) of expected gain, fitted on the training recording of the nearest temperature."""
    found = []
    for table, measured in test.parts:
        temperature = table.features.temperature
        texts, of_training = min(
            train.parts, key=lambda part: abs(part[0].features.temperature - temperature)
        )
        theirs, mine = regime.profile(of_training), regime.profile(measured)
        rule = fit_expected_gain(texts, decision_costs(texts, theirs, question_seconds), theirs, rate)
        found.append(replay_texts(table, decision_costs(table, mine, question_seconds), rule))
    return np.concatenate(found)


def policy_network(table: DecisionTable, seed: int) -> nn.Sequential:
    """Fresh, of the size of a policy that is exported: features to logits of the A actions."""
    inputs, outputs = len(table.features.names), len(table.decisions)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Linear(inputs, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, outputs)
        )


# Of a row: its field, and whose tokens per second over whose.
_PAIRS = {
    "learned": (LEARNED, FIXED),
    "over_hindsight": (LEARNED, HINDSIGHT),
    "expected_gain": (GAIN, FIXED),
    "learned_over_gain": (LEARNED, GAIN),
    "not_retrained": (UNTRAINED, FIXED),
    "retraining": (LEARNED, UNTRAINED),
    "clairvoyant": (CLAIRVOYANT, FIXED),
}


def rows_of(found: Sequence[Replays], groups_T: np.ndarray) -> list[Regime]:
    """A row a regime; claims are adjusted over all comparisons of all regimes. `groups_T`: the question of
    each text."""
    compared: dict[tuple[int, str], ComparisonResult] = {}
    for place, replays in enumerate(found):
        for name, (a, b) in _PAIRS.items():
            if a in replays.seconds and b in replays.seconds:
                mine, theirs = replays.seconds[a], replays.seconds[b]
                rng = np.random.default_rng([place, len(compared)])
                compared[place, name] = compare_seconds(a, b, mine, theirs, groups_T, rng)
    claimed = dict(zip(compared, claim_all(list(compared.values())), strict=True))
    rows = []
    for place, replays in enumerate(found):
        ratios: dict[str, Any] = {name: claimed[place, name] for name in _PAIRS if (place, name) in claimed}
        row = Regime(
            name=replays.regime.name,
            synthetic=replays.regime.synthetic,
            live=False,
            costs=replays.regime.costs,
            best_fixed=str(replays.fixed),
            best_fixed_vs_plain=float(replays.plain_T.sum() / replays.seconds[FIXED].sum()),
            best_hindsight=str(replays.hindsight),
            **ratios,
        )
        rows.append(row)
    return rows
