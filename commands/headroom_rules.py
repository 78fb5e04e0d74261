"""What `train.py headroom --train` learns: the expected-gain rule and the reachable bound."""

from __future__ import annotations

import numpy as np

from commands.headroom import progress_console
from decoding.decision_costs import decision_costs
from decoding.decision_table import DecisionTable
from decoding.decision_walk import replay_texts
from decoding.profile import CostProfile
from evaluation.headroom import REACHABLE
from policies.baselines import best_constant, constant, fit_expected_gain
from policies.bound import BoundSettings
from policies.full_information import FullInformationSettings
from policies.reachable import reachable

TREES = BoundSettings()
NETWORK = FullInformationSettings(rounds=3, own_worth=0.7)
WIDTH = 128
SEED = 0


def learned_rules(
    train: DecisionTable, table: DecisionTable, profile: CostProfile
) -> tuple[dict[str, np.ndarray], str]:
    """(T) seconds of each rule on the texts of `table`, and a line about them. The constant and the rule pay
    for their questions what a fixed controller does; the bound pays nothing."""
    costs, own_costs = decision_costs(train, profile), decision_costs(table, profile)
    free = decision_costs(table, profile, question_seconds=0.0)
    with progress_console().status("learning") as status:
        chosen, seconds = best_constant(train, costs)
        rate = train.positions / float(seconds[chosen].sum())
        rule = fit_expected_gain(train, costs, profile, rate)
        bound = reachable(train, profile, rate, TREES, NETWORK, WIDTH, SEED, status.update)
    fixed = constant(table.features, table.decisions, chosen)
    found = {
        "constant of the training texts": replay_texts(table, own_costs, fixed),
        "expected gain": replay_texts(table, own_costs, rule),
        REACHABLE: replay_texts(table, free, bound.decide),
    }
    speeds = ", ".join(f"{name} {speed:.1f}" for name, speed in bound.speeds.items())
    return found, (
        f"learned on {train.texts} texts, {train.positions} tokens: constant {chosen}; reachable:"
        f" {bound.name}, the better of (tokens/s on every eighth of these texts, held out) {speeds}"
    )
