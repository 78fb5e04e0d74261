"""Seconds of constants over a table of decisions: what `replay_texts` gives, many times as fast.

A constant decides without looking at scores: where its drafts end is a matter of the table alone, and a text
is a walk over positions whose seconds and tokens are known beforehand.

Legend: P positions, N nodes, S sizes, T texts.
"""

from __future__ import annotations

import numpy as np

from decoding.controller import RootChoice
from decoding.decision_costs import DecisionCosts
from decoding.decision_table import ROOT_NODE, DecisionTable, Nodes
from decoding.setting import Setting


class ConstantSeconds:
    """Any constant's seconds of each text.

    Args:
        table, costs: the texts; costs of the same table.
    """

    def __init__(self, table: DecisionTable, costs: DecisionCosts) -> None:
        self._table, self._costs = table, costs
        decisions, nodes = table.decisions, Nodes.of(table.decisions)
        verify = table.allowed_PNA[:, :, decisions.continue_action + 1 :]
        # The largest allowed size that is not above the wanted one.
        sizes_S = np.arange(len(decisions.sizes), dtype=np.int8)
        self._size_PNS = np.maximum.accumulate(np.where(verify, sizes_S, np.int8(0)), axis=2)
        self._places = np.arange(table.positions)
        match = table.features.names.index("match_length")
        self._matched_P = table.features_PNF[:, ROOT_NODE, match] > 0
        self._ends = {choice: self._ends_of(choice, nodes) for choice in decisions.choices}

    def __call__(self, setting: Setting) -> np.ndarray:
        """(T) seconds."""
        table, costs, places = self._table, self._costs, self._places
        seconds_P = costs.start_P + costs.plain_P
        seconds_P = seconds_P + np.where(table.asked_P, costs.question, 0.0)
        emitted_P = np.ones(table.positions, dtype=np.int64)
        digests_P = np.zeros(table.positions, dtype=bool)
        first = table.decisions.continue_action + 1
        wanted = table.decisions.verify_action(setting.verification_size) - first
        for choice, those_P in self._drafts(setting):
            at = places[those_P]
            levels = 0 if choice == RootChoice.LOOKUP else setting.draft_depth - 1
            node, arrive = (one[at] for one in self._ends[choice][levels])
            size = self._size_PNS[at, node, wanted]
            seconds_P[at] = costs.start_P[at] + costs.question + arrive + costs.finish_PNS[at, node, size]
            emitted_P[at] = table.emitted_PNS[at, node, size]
            digests_P[at] = table.levels_PN[at, node] > 0
            if not costs.lookup_digests:
                digests_P[at] &= ~table.lookup_PN[at, node]
        return self._walk(seconds_P, emitted_P, digests_P)

    def _drafts(self, setting: Setting) -> list[tuple[RootChoice, np.ndarray]]:
        """What is drafted with at which positions; nothing at the others."""
        decisions = self._table.decisions
        allowed_PA = self._table.allowed_PNA[:, ROOT_NODE]
        if setting.choice == RootChoice.PLAIN:
            return []
        order = [setting.choice]
        if setting.choice == RootChoice.HEAD and RootChoice.ALL in decisions.choices:
            order.append(RootChoice.ALL)
        found, left_P = [], self._table.asked_P.copy()
        if setting.composite:
            found.append((RootChoice.LOOKUP, left_P & self._matched_P))
            left_P &= ~self._matched_P
        for choice in order:
            these_P = left_P & allowed_PA[:, decisions.draft_action(choice)]
            found.append((choice, these_P))
            left_P &= ~these_P
        return found

    def _ends_of(self, choice: RootChoice, nodes: Nodes) -> list[tuple[np.ndarray, np.ndarray]]:
        """By levels wanted, from 1: the node that a draft ends at, and the seconds from the first question's
        answer to the last one's, all (P)."""
        costs, places = self._costs, self._places
        more_PN = self._table.allowed_PNA[:, :, self._table.decisions.continue_action]
        first = nodes.choice.index(choice)
        node_P = np.full(len(places), first)
        seconds_P = costs.arrive_PN[:, first] + np.float64(costs.question)
        found = [(node_P, seconds_P)]
        for _ in range(1, nodes.choice.count(choice)):
            goes_on_P = more_PN[places, node_P]
            node_P = node_P + goes_on_P
            seconds_P = seconds_P + np.where(goes_on_P, costs.arrive_PN[places, node_P] + costs.question, 0.0)
            found.append((node_P, seconds_P))
        return found

    def _walk(self, seconds_P: np.ndarray, emitted_P: np.ndarray, digests_P: np.ndarray) -> np.ndarray:
        starts, digest_C = self._table.starts, self._costs.digest_C
        total_T = np.zeros(self._table.texts)
        place_T, since_T = starts[:-1].copy(), np.ones(self._table.texts, dtype=np.int64)
        open_T = np.arange(self._table.texts)
        while len(open_T):
            at = place_T[open_T]
            digested = digest_C[np.minimum(since_T[open_T], len(digest_C) - 1)]
            total_T[open_T] += seconds_P[at] + np.where(digests_P[at], digested, 0.0)
            since_T[open_T] = np.where(digests_P[at], 0, since_T[open_T]) + emitted_P[at]
            place_T[open_T] = at + emitted_P[at]
            open_T = open_T[place_T[open_T] < starts[1:][open_T]]
        return total_T
