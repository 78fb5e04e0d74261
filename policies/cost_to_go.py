"""What tokens are worth where they are: the seconds that a policy would take for what is left of a text.

All tokens of a text must be emitted: in a passage that any policy copies in long strides a further token
saves little, in one that goes token by token it saves a whole cycle. With the same worth everywhere a policy
drafts too much in the first and too little in the second. With the policy's own seconds left, from every
position to the text's end,

    worth of e tokens at p = 1 + rate * (left(p + 1) - left(p + e)),

in tokens, so that cycles compare as `rate * seconds - worth`: a step of policy iteration. Where the policy is
equally fast everywhere, e tokens are worth e.

Legend: P positions, N nodes, S sizes, T texts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from decoding.controller import HISTORY
from decoding.cycle_features import HISTORY_NAMES
from decoding.decision_costs import DecisionCosts
from decoding.decision_table import ROOT_NODE, DecisionTable
from decoding.decision_values import realised_costs


@dataclass(frozen=True, slots=True)
class Cycles:
    """The cycle that a policy would take from every position, whether or not its walk begins one there.

    Attributes:
        seconds_P: of it, without the head's digest of several tokens.
        emitted_P: int64, tokens.
    """

    seconds_P: np.ndarray
    emitted_P: np.ndarray


def cycles_of(table: DecisionTable, costs: DecisionCosts, actions_PN: np.ndarray) -> Cycles:
    """Of the policy that answers so."""
    emitted_P = -realised_costs(table, costs, actions_PN, 0.0)[:, ROOT_NODE]
    seconds_P = realised_costs(table, costs, actions_PN, 1.0)[:, ROOT_NODE] + emitted_P
    # Of a text's last token nobody is asked: it is a plain step.
    seconds_P = costs.start_P + np.where(table.asked_P, seconds_P, costs.plain_P)
    return Cycles(seconds_P, np.where(table.asked_P, np.rint(emitted_P), 1).astype(np.int64))


def seconds_left(table: DecisionTable, cycles: Cycles) -> np.ndarray:
    """(P + T) from every position to its text's end. Each text has a slot more, its end, where it is 0:
    position p of text t is at p + t."""
    starts, texts = table.starts, np.arange(table.texts)
    lengths_T = np.diff(starts)
    left = np.zeros(table.positions + table.texts)
    for back in range(1, int(lengths_T.max()) + 1):
        those_T = texts[lengths_T >= back]
        at = starts[those_T + 1] - back
        left[at + those_T] = cycles.seconds_P[at] + left[at + those_T + cycles.emitted_P[at]]
    return left


def speed_of(table: DecisionTable, cycles: Cycles) -> float:
    """Tokens per second."""
    left = seconds_left(table, cycles)
    return table.positions / float(left[table.starts[:-1] + np.arange(table.texts)].sum())


def token_worths(table: DecisionTable, seconds_T: np.ndarray) -> np.ndarray:
    """(P) what a token is worth at each position, over what it is worth on average: the seconds that a token
    takes at the text's temperature over those that it takes in all texts. 1 where there is one temperature.

    With one worth for all, a policy drafts too much where tokens come fast and too little where they come
    slowly. It sees the temperature; what it sees of a text otherwise may mislead, see `with_worths`.

    Args:
        seconds_T: of each text.
    """
    at = table.features.names.index("temperature")
    _, group_T = np.unique(table.features_PNF[table.starts[:-1], ROOT_NODE, at], return_inverse=True)
    lengths_T = np.diff(table.starts)
    seconds_G, tokens_G = (np.bincount(group_T, weights=one) for one in (seconds_T, lengths_T))
    worth_G = seconds_G / tokens_G * (tokens_G.sum() / seconds_G.sum())
    worths_P: np.ndarray = np.repeat(worth_G[group_T], lengths_T).astype(np.float32)
    return worths_P


def with_worths(
    table: DecisionTable, cycles: Cycles, rate: float, share: float, token_P: np.ndarray | None = None
) -> DecisionTable:
    """The same table whose `emitted_PNS` is float32, what the tokens are worth: for `realised_costs` and what
    is fitted to it, not for walks.

    Args:
        cycles: of the policy that takes the rest of the text.
        rate: its tokens per second.
        share: of what these cycles say; the rest is the number of tokens. What one text took is a noisy
            sample of what such a place takes.
        token_P: what each of this number is worth, see `token_worths`; None = 1.
    """
    left = seconds_left(table, cycles)
    slot_P = np.arange(table.positions) + np.repeat(np.arange(table.texts), np.diff(table.starts))
    saved_PNS = left[slot_P + 1][:, None, None] - left[slot_P[:, None, None] + table.emitted_PNS]
    counted_PNS = table.emitted_PNS if token_P is None else table.emitted_PNS * token_P[:, None, None]
    worth_PNS = share * (1.0 + rate * saved_PNS) + (1.0 - share) * counted_PNS
    return replace(table, emitted_PNS=worth_PNS.astype(np.float32))


def history_of(table: DecisionTable, cycles: Cycles) -> np.ndarray:
    """float32 (P, history's features) that the policy sees where it walks; where no cycle begins, what it saw
    at the last that did."""
    seen = np.zeros((table.positions, len(HISTORY_NAMES)), dtype=np.float32)
    most = table.decisions.max_depth + 1
    for start, end in zip(table.starts[:-1].tolist(), table.starts[1:].tolist(), strict=True):
        recent: list[int] = []
        place = start
        while place < end:
            emitted = int(cycles.emitted_P[place])
            if recent:
                mean = sum(recent[-HISTORY:]) / len(recent[-HISTORY:])
                seen[place : place + emitted] = min(1.0, recent[-1] / most), min(1.0, mean / most)
            recent.append(emitted)
            place += emitted
    return seen
