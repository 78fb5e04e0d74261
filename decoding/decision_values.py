"""What decisions are worth where they are taken: the cost of a cycle from each of its questions on.

Legend: P positions, N nodes, A actions.
"""

from __future__ import annotations

import numpy as np

from decoding.decision_costs import DecisionCosts
from decoding.decision_table import ROOT_NODE, DecisionTable, Nodes
from decoding.decision_walk import Decide
from decoding.decisions import PLAIN_ACTION

_ROWS = 1 << 18


def decided(table: DecisionTable, decide: Decide) -> np.ndarray:
    """(P, N) the action at every question, with the history that the table's features show; at nodes that
    cannot be reached the first one."""
    positions, nodes = table.levels_PN.shape
    features_QF = table.features_PNF.reshape(positions * nodes, -1)
    allowed_QA = table.allowed_PNA.reshape(positions * nodes, -1)
    actions_Q = np.zeros(positions * nodes, dtype=np.int64)
    reached = np.flatnonzero(allowed_QA.any(axis=1))
    for start in range(0, len(reached), _ROWS):
        some = reached[start : start + _ROWS]
        actions_Q[some] = decide(features_QF[some], allowed_QA[some])
    return actions_Q.reshape(positions, nodes)


def realised_costs(
    table: DecisionTable, costs: DecisionCosts, actions_PN: np.ndarray, rate: float
) -> np.ndarray:
    """(P, N) rate * seconds - emitted, from each question to the cycle's end, its own asking included and
    the cycle's start left out; 0 where nothing is asked.

    Args:
        rate: tokens per second, the worth of a token.
    """
    nodes, first_size = Nodes.of(table.decisions), table.decisions.continue_action + 1
    positions = np.arange(table.positions)
    cost_PN = np.zeros(actions_PN.shape)
    for node in reversed(range(len(nodes))):
        action_P = actions_PN[:, node]
        next_P = nodes.next_NA[node, action_P]
        size_P = np.maximum(action_P - first_size, 0)
        ends_P = rate * costs.finish_PNS[positions, node, size_P] - table.emitted_PNS[positions, node, size_P]
        if node == ROOT_NODE:
            ends_P = np.where(action_P == PLAIN_ACTION, rate * costs.plain_P - 1.0, ends_P)
        goes_on_P = rate * costs.arrive_PN[positions, next_P] + cost_PN[positions, next_P]
        cost_PN[:, node] = rate * costs.question + np.where(next_P < 0, ends_P, goes_on_P)
    cost_PN[~table.allowed_PNA.any(axis=2)] = 0.0
    return cost_PN
