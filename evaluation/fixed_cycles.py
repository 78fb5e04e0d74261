"""The cycles that a fixed setting takes over recorded texts, with no clock and no costs.

A cycle begins where the one before it ended: a setting meets few of the positions where much is accepted, and
all of those where nothing is. Means over all positions are therefore not means over its cycles.

Legend: P positions, N cycles.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from decoding.decision_table import ROOT_NODE, DecisionTable, Nodes
from decoding.decision_values import decided
from decoding.setting import Setting
from policies.baselines import constant


@dataclass(frozen=True, slots=True)
class FixedCycles:
    """Of all texts, one after the other.

    Attributes:
        emitted_N: tokens, closing token included.
        levels_N: levels drafted or looked up; 0 = a plain step. size_N: nodes verified.
        lookup_N: bool, whether a lookup drafted alone.
        questions_N: that the controller was asked.
        since_N: tokens committed since a head last drafted, see `CostProfile.level_seconds`.
        asked: share of all positions at which somebody is asked; at a text's last token nobody is.
        first_accepted: share of all positions that were asked about at which a draft begins with an accepted
            token, wherever cycles begin.
    """

    emitted_N: np.ndarray
    levels_N: np.ndarray
    size_N: np.ndarray
    lookup_N: np.ndarray
    questions_N: np.ndarray
    since_N: np.ndarray
    asked: Fraction
    first_accepted: Fraction

    def prefixes(self) -> tuple[Fraction, ...]:
        """P(the first i drafted tokens are all accepted), i = 1 .. the most: over all cycles: one that
        could draft less did not accept there, nor is a token accepted that a text's end cut off."""
        accepted_N = self.emitted_N - 1
        counts = [int((accepted_N >= depth).sum()) for depth in range(1, int(accepted_N.max()) + 1)]
        return tuple(Fraction(count, len(accepted_N)) for count in counts)


def fixed_cycles(table: DecisionTable, setting: Setting) -> FixedCycles:
    """Walk every text with this setting; ValueError if no position is asked about."""
    if not table.asked_P.any():
        raise ValueError("every text has one token: nothing can be drafted, give longer ones")
    actions_PN = decided(table, constant(table.features, table.decisions, setting))
    nodes, places = Nodes.of(table.decisions), np.arange(table.positions)
    node_P = np.full(table.positions, ROOT_NODE)
    questions_P = table.asked_P.astype(np.int64)
    while True:
        next_P = nodes.next_NA[node_P, actions_PN[places, node_P]]
        goes_on_P = table.asked_P & (next_P >= 0)
        if not goes_on_P.any():
            break
        node_P = np.where(goes_on_P, next_P, node_P)
        questions_P += goes_on_P
    size_P = np.maximum(actions_PN[places, node_P] - table.decisions.continue_action - 1, 0)
    drafts_P = node_P != ROOT_NODE
    emitted_P = np.where(drafts_P, table.emitted_PNS[places, node_P, size_P], 1).astype(np.int64)
    levels_P = table.levels_PN[places, node_P] * drafts_P
    lookup_P = table.lookup_PN[places, node_P] & drafts_P
    places_N, since_N = _walk(table, emitted_P, (levels_P > 0) & ~lookup_P)
    accepted = int((emitted_P[table.asked_P] >= 2).sum())
    return FixedCycles(
        emitted_P[places_N],
        levels_P[places_N].astype(np.int64),
        (table.size_PNS[places, node_P, size_P] * drafts_P)[places_N].astype(np.int64),
        lookup_P[places_N],
        questions_P[places_N],
        since_N,
        Fraction(int(table.asked_P.sum()), table.positions),
        Fraction(accepted, int(table.asked_P.sum())),
    )


def _walk(
    table: DecisionTable, emitted_P: np.ndarray, by_head_P: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """(N) where cycles begin, and the tokens committed since a head last drafted."""
    places, sinces = [], []
    for start, end in zip(table.starts[:-1].tolist(), table.starts[1:].tolist(), strict=True):
        place, since = start, 1
        while place < end:
            places.append(place)
            sinces.append(since)
            emitted = int(emitted_P[place])
            since = (0 if by_head_P[place] else since) + emitted
            place += emitted
    return np.array(places), np.array(sinces)
