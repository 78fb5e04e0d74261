"""The collapse check: has a policy learned a constant, or less?

Legend: T texts, N questions of a cycle, A actions, K kinds of question: a question and what answers it.
"""

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
        information: nats; mutual information of features and actions, given the question and what answers it:
            the entropy of the actions there, since a greedy policy is a function of the features. A constant
            too does something else where it may not do what it would.
    """

    seconds_T: np.ndarray
    counts_NA: np.ndarray
    information: float


def behaviour(table: DecisionTable, costs: DecisionCosts, decide: Decide) -> Behaviour:
    """Replay the texts and count."""
    actions = len(table.decisions)
    counts_NA = np.zeros((table.levels_PN.shape[1], actions), dtype=np.int64)
    bits_A = 2 ** np.arange(actions, dtype=np.int64)
    counts_KA: dict[int, np.ndarray] = {}

    def choose(walk: DecisionWalk) -> np.ndarray:
        allowed_BA = walk.allowed()
        actions_B = decide(walk.features(), allowed_BA)
        np.add.at(counts_NA, (walk.node_B, actions_B), 1)
        kinds, kind_B = np.unique(walk.node_B * 2**actions + allowed_BA @ bits_A, return_inverse=True)
        for place, kind in enumerate(kinds.tolist()):
            there_A = np.bincount(actions_B[kind_B == place], minlength=actions)
            counts_KA[kind] = counts_KA.get(kind, 0) + there_A
        return actions_B

    seconds_T = replay_with(table, costs, choose)
    counted_KA = np.stack(list(counts_KA.values())) if counts_KA else counts_NA
    return Behaviour(seconds_T, counts_NA, information_of_counts(counted_KA))


def information_of_counts(counts_KA: np.ndarray) -> float:
    """Mean entropy of the actions at a kind of question, in nats, each counted as often as it was asked."""
    asked_K = counts_KA.sum(axis=1)
    shares_KA = counts_KA / np.maximum(asked_K, 1)[:, None]
    entropy_K = -(shares_KA * np.log(np.maximum(shares_KA, 1e-30))).sum(axis=1)
    return float((entropy_K * asked_K).sum() / max(1, asked_K.sum()))


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
    if not gain > 0:  # nor if it is no number
        said.append(f"it is no faster than the best constant on validation texts ({gain:+.2%})")
    return tuple(said)
