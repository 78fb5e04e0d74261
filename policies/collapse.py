"""The collapse check: has a policy learned a constant, or less?"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from decoding.decision_costs import DecisionCosts
from decoding.decision_table import DecisionTable
from decoding.decision_walk import Decide, DecisionWalk, replay_with

# Of a greedy policy; a choice of two taken once in 400 questions has 0.017 nats.
LEAST_INFORMATION = 0.01


@dataclass(frozen=True, slots=True)
class Behaviour:
    """What a greedy policy does on some texts.

    Attributes:
        seconds_T: of each text.
        counts_NA: how often it answered a question of the cycle with an action.
        information: nats; mutual information of features and actions, given the question: the entropy of the
            actions there, since a greedy policy is a function of the features.
    """

    seconds_T: np.ndarray
    counts_NA: np.ndarray
    information: float


def behaviour(table: DecisionTable, costs: DecisionCosts, decide: Decide) -> Behaviour:
    """Replay the texts and count."""
    counts_NA = np.zeros((table.levels_PN.shape[1], len(table.decisions)), dtype=np.int64)

    def choose(walk: DecisionWalk) -> np.ndarray:
        actions_B = decide(walk.features(), walk.allowed())
        np.add.at(counts_NA, (walk.node_B, actions_B), 1)
        return actions_B

    seconds_T = replay_with(table, costs, choose)
    return Behaviour(seconds_T, counts_NA, information_of_counts(counts_NA))


def information_of_counts(counts_NA: np.ndarray) -> float:
    """Mean entropy of the actions at a question, in nats, each question counted as often as it was asked."""
    asked_N = counts_NA.sum(axis=1)
    shares_NA = counts_NA / np.maximum(asked_N, 1)[:, None]
    entropy_N = -(shares_NA * np.log(np.maximum(shares_NA, 1e-30))).sum(axis=1)
    return float((entropy_N * asked_N).sum() / max(1, asked_N.sum()))


def collapse(found: Behaviour, gain: float) -> tuple[str, ...]:
    """What is wrong with a policy, a sentence each; empty: nothing.

    Args:
        gain: its tokens per second over those of the best constant, on validation texts, less 1.
    """
    said = []
    if found.information < LEAST_INFORMATION:
        said.append(
            f"it answers alike whatever it sees: {found.information:.4f} nats of information between features"
            f" and actions, at least {LEAST_INFORMATION} are expected"
        )
    if gain <= 0:
        said.append(f"it is no faster than the best constant on validation texts ({gain:+.2%})")
    return tuple(said)
