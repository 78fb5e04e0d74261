"""Many requests replayed at once: the walk that decisions take over recorded texts, in numpy.

The twin of a live session's cycles, see `replay_session.py`, for decisions of a table.

Legend: B requests side by side (lanes), F features, A actions, T texts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from decoding.controller import HISTORY
from decoding.cycle_features import HISTORY_NAMES
from decoding.decision_costs import DecisionCosts
from decoding.decision_table import ROOT_NODE, DecisionTable, Nodes
from decoding.decisions import PLAIN_ACTION

# Of a batch of questions the answers: (features (B, F), allowed (B, A)) -> actions (B).
Decide = Callable[[np.ndarray, np.ndarray], np.ndarray]


_LANES = ("place_B", "node_B", "cycle_seconds_B", "end_B", "recent_B4", "cycles_B", "since_draft_B")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a step of all lanes did.

    Attributes:
        seconds_B: of the decision: up to the next question, or to the cycle's end; at a text's end with the
            plain step of a last token that nobody is asked about.
        emitted_B: int64, tokens committed; 0 while the cycle goes on.
        ended_B: bool, whether the cycle ended.
        finished_B: bool, whether the text did.
        draft_B, select_B, commit_B: parts of `seconds_B`; of the rest the question takes
            `DecisionCosts.question`, and what then is left verification.
    """

    seconds_B: np.ndarray
    emitted_B: np.ndarray
    ended_B: np.ndarray
    finished_B: np.ndarray
    draft_B: np.ndarray
    select_B: np.ndarray
    commit_B: np.ndarray


class DecisionWalk:
    """B requests, each at a question.

    Args:
        table, costs: of the texts; costs of the same table.
        lanes: B.

    Attributes:
        place_B: int64, the position that each stands at. node_B: the question.
        cycle_seconds_B: of the cycle so far, or of the one that just ended, with what `Outcome` adds to it.
        end_B: where the texts end. recent_B4: tokens of the last cycles. cycles_B: finished.
        since_draft_B: tokens committed since a head last drafted.
    """

    def __init__(self, table: DecisionTable, costs: DecisionCosts, lanes: int) -> None:
        self.table, self.costs = table, costs
        self.place_B = np.zeros(lanes, dtype=np.int64)
        self.node_B = np.zeros(lanes, dtype=np.int64)
        self.cycle_seconds_B = np.zeros(lanes)
        self.end_B = np.zeros(lanes, dtype=np.int64)
        self.recent_B4 = np.zeros((lanes, HISTORY))
        self.cycles_B = np.zeros(lanes, dtype=np.int64)
        self.since_draft_B = np.ones(lanes, dtype=np.int64)
        self._next_NA = Nodes.of(table.decisions).next_NA
        self._most = table.decisions.max_depth + 1
        self._first_size = table.decisions.continue_action + 1

    def start(self, lanes: np.ndarray, texts: np.ndarray) -> None:
        """Put these lanes at the first root of these texts."""
        starts = self.table.starts
        self.place_B[lanes], self.end_B[lanes] = starts[texts], starts[texts + 1]
        self.node_B[lanes] = ROOT_NODE
        self.recent_B4[lanes] = 0.0
        self.cycles_B[lanes] = 0
        self.since_draft_B[lanes] = 1
        self.cycle_seconds_B[lanes] = 0.0

    def keep(self, lanes: np.ndarray) -> None:
        """Go on with these lanes alone."""
        for name in _LANES:
            setattr(self, name, getattr(self, name)[lanes])

    def export_state(self) -> dict[str, np.ndarray]:
        """All that the rest of the walk depends on, beside table and costs."""
        return {name: getattr(self, name).copy() for name in _LANES}

    def restore_state(self, state: dict[str, np.ndarray]) -> None:
        """The inverse."""
        for name in _LANES:
            setattr(self, name, state[name].copy())

    def features(self) -> np.ndarray:
        """float32 (B, F) of the pending questions."""
        features_BF = self.table.features_PNF[self.place_B, self.node_B]
        counted_B = np.minimum(self.cycles_B, HISTORY)
        mean_B = self.recent_B4.sum(axis=1) / np.maximum(counted_B, 1)
        history = np.stack([self.recent_B4[:, -1], mean_B], axis=1) / self._most
        features_BF[:, -len(HISTORY_NAMES) :] = np.minimum(history, 1.0)
        return features_BF

    def allowed(self) -> np.ndarray:
        """bool (B, A) of the pending questions."""
        return self.table.allowed_PNA[self.place_B, self.node_B]

    def step(self, action_B: np.ndarray) -> Outcome:
        """Answer every lane's question; ValueError if an action is not allowed. Finished lanes stand at their
        text's end until they are started again, and must not be stepped."""
        place_B, node_B, costs = self.place_B, self.node_B, self.costs
        if not self.table.allowed_PNA[place_B, node_B, action_B].all():
            raise ValueError("an action is not allowed at its question: mask the policy")
        next_B = self._next_NA[node_B, action_B]
        ended_B = next_B < 0
        seconds_B = np.where(node_B == ROOT_NODE, costs.start_P[place_B], 0.0) + costs.question
        seconds_B += np.where(ended_B, 0.0, costs.arrive_PN[place_B, next_B])
        first_B = ~ended_B & (node_B == ROOT_NODE) & (self.table.levels_PN[place_B, next_B] > 0)
        if not costs.lookup_digests:
            first_B &= ~self.table.lookup_PN[place_B, next_B]
        digested_B = np.minimum(self.since_draft_B, len(costs.digest_C) - 1)
        seconds_B += np.where(first_B, costs.digest_C[digested_B], 0.0)
        self.since_draft_B[first_B] = 0
        draft_B = seconds_B - costs.question
        plain_B = ended_B & (node_B == ROOT_NODE) & (action_B == PLAIN_ACTION)
        size_B = np.maximum(action_B - self._first_size, 0)
        ending_B = np.where(plain_B, costs.plain_P[place_B], costs.finish_PNS[place_B, node_B, size_B])
        seconds_B += np.where(ended_B, ending_B, 0.0)
        verified_B = self.table.emitted_PNS[place_B, node_B, size_B].astype(np.int64)
        emitted_B = np.where(plain_B, 1, verified_B) * ended_B
        select_B = self._selection(ended_B, size_B)
        commit_B = costs.commit[0] * ended_B + costs.commit[1] * (emitted_B - ended_B)
        self.cycle_seconds_B = np.where(self.node_B == ROOT_NODE, 0.0, self.cycle_seconds_B) + seconds_B
        self.node_B = np.where(ended_B, ROOT_NODE, next_B)
        return self._go_on(Outcome(seconds_B, emitted_B, ended_B, ended_B, draft_B, select_B, commit_B))

    def _selection(self, ended_B: np.ndarray, size_B: np.ndarray) -> np.ndarray:
        """(B) seconds of the cycles that end, before the walk goes on. A root has no level and no node."""
        always, of_level, of_node = self.costs.selection
        levels_B = self.table.levels_PN[self.place_B, self.node_B]
        nodes_B = self.table.size_PNS[self.place_B, self.node_B, size_B]
        return ended_B * (always + of_level * levels_B + of_node * nodes_B)

    def _go_on(self, outcome: Outcome) -> Outcome:
        seconds_B, emitted_B, ended_B = outcome.seconds_B, outcome.emitted_B, outcome.ended_B
        place_B = self.place_B + emitted_B
        if ended_B.any():
            recent_E4 = self.recent_B4[ended_B]
            recent_E4[:, :-1] = recent_E4[:, 1:]
            recent_E4[:, -1] = emitted_B[ended_B]
            self.recent_B4[ended_B] = recent_E4
            self.cycles_B += ended_B
            self.since_draft_B += emitted_B
        finished_B = ended_B & (place_B >= self.end_B)
        # Of a text's last token nobody is asked: it is a plain step.
        last_B = ended_B & ~finished_B
        last_B[last_B] = ~self.table.asked_P[place_B[last_B]]
        if last_B.any():
            at = place_B[last_B]
            seconds_B = seconds_B.copy()
            alone_L = self.costs.start_P[at] + self.costs.plain_P[at]
            seconds_B[last_B] += alone_L
            self.cycle_seconds_B[last_B] += alone_L
            outcome.draft_B[last_B] += self.costs.start_P[at]
            outcome.select_B[last_B] += self.costs.selection[0]
            outcome.commit_B[last_B] += self.costs.commit[0]
            place_B[last_B] += 1
            emitted_B = emitted_B + last_B
            finished_B |= last_B
        self.place_B = place_B
        return replace(outcome, seconds_B=seconds_B, emitted_B=emitted_B, finished_B=finished_B)


def replay_texts(table: DecisionTable, costs: DecisionCosts, decide: Decide) -> np.ndarray:
    """(T) seconds that each text takes under these decisions; every text is replayed once."""
    return replay_with(table, costs, lambda walk: decide(walk.features(), walk.allowed()))


def replay_with(
    table: DecisionTable, costs: DecisionCosts, choose: Callable[[DecisionWalk], np.ndarray]
) -> np.ndarray:
    """The same for whoever wants to know where each text stands, as no policy may."""
    seconds_T = np.zeros(table.texts)
    walk = DecisionWalk(table, costs, table.texts)
    open_T = np.flatnonzero(table.asked_P[table.starts[:-1]])
    alone_T = np.setdiff1d(np.arange(table.texts), open_T)
    first = table.starts[alone_T]  # texts of one token
    seconds_T[alone_T] = costs.start_P[first] + costs.plain_P[first]
    walk.start(np.arange(table.texts), np.arange(table.texts))
    walk.keep(open_T)
    while len(open_T):
        outcome = walk.step(choose(walk))
        seconds_T[open_T] += outcome.seconds_B
        if outcome.finished_B.any():
            walk.keep(np.flatnonzero(~outcome.finished_B))
            open_T = open_T[~outcome.finished_B]
    return seconds_T
