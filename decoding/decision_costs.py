"""What the decisions of a table cost on one machine: seconds from its profile, and a walk over them.

Legend: P positions, N nodes, A actions, S sizes, C counts of tokens to digest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from decoding.decision_table import DecisionTable, Nodes
from decoding.profile import CostProfile


@dataclass(frozen=True)
class DecisionCosts:
    """Seconds of what is between two questions.

    Attributes:
        start_P: before a cycle's first question.
        plain_P: from the answer `plain` to the cycle's end.
        arrive_PN: of the levels between the question before and this node; the digest comes on top.
        finish_PNS: from a `verify` answer to the cycle's end.
        digest_C: what a head's first level takes more, by tokens committed since it last drafted; up to the
            longest text.
        question: of each question, features and network included.
        lookup_digests: whether a lookup alone is charged as a head, its digest included: a profile that was
            measured with a head only has no other costs.
        selection: seconds of every selection, of each level and of each node: a part of `plain_P` and
            `finish_PNS`; 0: it counts as verification.
        commit: of the first token kept, and of each further one; likewise.
    """

    start_P: np.ndarray
    plain_P: np.ndarray
    arrive_PN: np.ndarray
    finish_PNS: np.ndarray
    digest_C: np.ndarray
    question: float
    lookup_digests: bool = False
    selection: tuple[float, ...] = (0.0, 0.0, 0.0)
    commit: tuple[float, ...] = (0.0, 0.0)


def decision_costs(
    table: DecisionTable, profile: CostProfile, question_seconds: float | None = None
) -> DecisionCosts:
    """The seconds of every decision.

    Args:
        question_seconds: of one question; None = what a fixed controller takes, the profile's own.

    Raises:
        ValueError: the profile was measured with fewer rows or levels than the decisions need.
    """
    context_P, question = table.context_P, profile.policy if question_seconds is None else question_seconds
    graph = Nodes.of(table.decisions)
    nodes, goes_on = len(graph), set(graph.next_NA[1:, table.decisions.continue_action].tolist())
    arrive_PN = np.zeros(table.levels_PN.shape)
    for node in range(1, nodes):
        levels_P, lookup_P = table.levels_PN[:, node], table.lookup_PN[:, node]
        before_P = table.levels_PN[:, node - 1] if node in goes_on else np.zeros_like(levels_P)
        for alone in (False, True):
            for level in range(1, int(levels_P.max(initial=0)) + 1):
                those_P = np.flatnonzero((before_P < level) & (level <= levels_P) & (lookup_P == alone))
                if len(those_P):
                    source = profile.source(alone)
                    if level > (known := len(profile.levels[source])):
                        raise ValueError(
                            f"the profile knows {known} draft levels of the {source}, the recording has"
                            f" {level}: profile again with --set draft.max_depth={level}, or lower it to"
                            f" {known} here"
                        )
                    arrive_PN[those_P, node] += profile.level_seconds(level, context_P[those_P], 1, source)
    size_PNS = table.size_PNS
    # Not added in place: a profile may say its costs in whole numbers.
    finish_PNS = np.zeros(size_PNS.shape)
    finish_PNS += profile.selection_seconds(table.levels_PN[:, :, None], size_PNS)
    finish_PNS += profile.commit_seconds(table.emitted_PNS)
    context_PNS = np.broadcast_to(context_P[:, None, None], size_PNS.shape)
    for node in range(nodes):  # one at a time: the interpolation makes a dozen temporary arrays
        finish_PNS[:, node] += profile.verification_seconds(
            size_PNS[:, node] + 1, context_PNS[:, node], table.emitted_PNS[:, node]
        )
    plain_P = profile.verification_seconds(1, context_P) + profile.selection_seconds(0, 0)
    counts_C = np.arange(1, int(np.diff(table.starts).max()) + 1)
    first_C = profile.level_seconds(1, int(context_P[0]), counts_C, profile.source(False))
    digest_C = np.concatenate([[0.0], first_C - first_C[0]])
    return DecisionCosts(
        profile.start_seconds(context_P).astype(np.float32),
        (plain_P + profile.commit_seconds()).astype(np.float32),
        arrive_PN.astype(np.float32),
        finish_PNS.astype(np.float32),
        digest_C.astype(np.float32),
        float(question),
        profile.source(True) == "head",
        profile.selection,
        profile.commit,
    )


def joined_costs(parts: Sequence[DecisionCosts]) -> DecisionCosts:
    """Of the texts of several tables, one after the other, see `joined_tables`. The digest, and what of a
    cycle's end is selection and commit, are means of the profiles': fractions of a millisecond apart."""
    first = parts[0]
    longest = max(len(one.digest_C) for one in parts)
    digests = [np.interp(np.arange(longest), np.arange(len(one.digest_C)), one.digest_C) for one in parts]
    return DecisionCosts(
        start_P=np.concatenate([one.start_P for one in parts]),
        plain_P=np.concatenate([one.plain_P for one in parts]),
        arrive_PN=np.concatenate([one.arrive_PN for one in parts]),
        finish_PNS=np.concatenate([one.finish_PNS for one in parts]),
        digest_C=np.mean(digests, axis=0).astype(np.float32),
        question=first.question,
        lookup_digests=first.lookup_digests,
        selection=tuple(np.mean([one.selection for one in parts], axis=0).tolist()),
        commit=tuple(np.mean([one.commit for one in parts], axis=0).tolist()),
    )
