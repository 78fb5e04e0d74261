"""The best schedule of all over a table of decisions, which knows the texts: the clairvoyant bound.

A shortest path, backwards: from a position the least of seconds + what is left after the tokens emitted.

Legend: P positions, N nodes, A actions, S sizes, T texts.
"""

from __future__ import annotations

import numpy as np

from decoding.decision_costs import DecisionCosts
from decoding.decision_table import ROOT_NODE, DecisionTable, Nodes
from decoding.decisions import PLAIN_ACTION


def shortest_seconds(table: DecisionTable, costs: DecisionCosts) -> np.ndarray:
    """(T) seconds of the best schedule of each text.

    What a head's first level takes more after several tokens is left out: it depends on the path, and without
    it the bound stays one.
    """
    arrived_PN, sizes = _arrived_seconds(table, costs), table.decisions.continue_action + 1
    allowed_PNS = table.allowed_PNA[:, :, sizes:]
    starts, texts = table.starts, np.arange(table.texts)
    # A slot more for each text, its end, where nothing is left.
    left = np.zeros(table.positions + table.texts)
    for back in range(1, int(np.diff(starts).max()) + 1):
        those_T = texts[np.diff(starts) >= back]
        at = starts[those_T + 1] - back
        slot = at + those_T
        after = left[slot[:, None, None] + table.emitted_PNS[at]]
        drafted = arrived_PN[at][:, :, None] + costs.finish_PNS[at] + after
        drafted = np.where(allowed_PNS[at], drafted, np.inf)[:, ROOT_NODE + 1 :]
        asked = np.where(table.asked_P[at], costs.question, 0.0)
        plain = costs.start_P[at] + costs.plain_P[at] + asked + left[slot + 1]
        left[slot] = np.minimum(plain, drafted.min(axis=(1, 2), initial=np.inf))
    return left[starts[:-1] + texts]


def _arrived_seconds(table: DecisionTable, costs: DecisionCosts) -> np.ndarray:
    """(P, N) from a cycle's start to the answer at each node; infinite where no answers lead to it."""
    nodes = Nodes.of(table.decisions)
    arrived_PN = np.full(table.levels_PN.shape, np.inf)
    arrived_PN[:, ROOT_NODE] = costs.start_P + costs.question
    for node in range(len(nodes)):
        for action, after in enumerate(nodes.next_NA[node].tolist()):
            if after >= 0 and action != PLAIN_ACTION:
                seconds_P = arrived_PN[:, node] + costs.arrive_PN[:, after] + costs.question
                arrived_PN[:, after] = np.where(table.allowed_PNA[:, node, action], seconds_P, np.inf)
    return arrived_PN
