"""Texts drafted by chains, made by hand: of every token it is said whether a draft would have foretold it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from decoding.controller import RootChoice
from decoding.cycle_features import CycleFeatures
from decoding.decision_table import DecisionTable
from decoding.decisions import Decisions

CONTEXT = 10


def runs_of(foretold: Sequence[bool], most: int) -> list[int]:
    """At each position, tokens in a row that a chain of `most` has accepted there."""
    runs = [0] * (len(foretold) + 1)
    for place in range(len(foretold) - 1, -1, -1):
        runs[place] = runs[place + 1] + 1 if foretold[place] else 0
    return [min(most, run) for run in runs[:-1]]


def chain_table(texts: Sequence[Sequence[bool]], depth: int) -> DecisionTable:
    """Chains of up to `depth` tokens, all of them verified; the same context everywhere."""
    decisions, features = Decisions((RootChoice.ALL,), depth, (depth,)), CycleFeatures((depth,), depth)
    lengths = [len(text) for text in texts]
    starts = np.cumsum([0, *lengths])
    positions, nodes = int(starts[-1]), depth + 1
    left_P = np.repeat(starts[1:], lengths) - np.arange(positions)
    run_P = np.array([run for text in texts for run in runs_of(text, depth)])
    levels_N = np.arange(nodes)
    features_PNF = np.zeros((positions, nodes, len(features.names)), dtype=np.float32)
    features_PNF[:, 0, features.names.index("at_root")] = 1.0
    features_PNF[:, :, features.names.index("draft_depth")] = levels_N / depth
    allowed_NA = np.zeros((nodes, len(decisions)), dtype=bool)
    allowed_NA[0, :2] = True
    allowed_NA[1:, -1] = True
    allowed_NA[1:-1, decisions.continue_action] = True
    asked_P = left_P > 1
    emitted_PN = np.minimum(np.minimum(run_P[:, None], levels_N) + 1, left_P[:, None])
    emitted_PN[:, 0] = 1
    return DecisionTable(
        decisions,
        features,
        tuple(f"q{number}" for number in range(len(texts))),
        ("",) * len(texts),
        ("",) * len(texts),
        starts,
        context_P=np.full(positions, CONTEXT),
        features_PNF=features_PNF,
        allowed_PNA=allowed_NA & asked_P[:, None, None],
        emitted_PNS=emitted_PN[:, :, None].astype(np.int16),
        size_PNS=np.broadcast_to(levels_N[None, :, None], (positions, nodes, 1)).astype(np.int16),
        levels_PN=np.broadcast_to(levels_N, (positions, nodes)).astype(np.int16),
        lookup_PN=np.zeros((positions, nodes), dtype=bool),
        asked_P=asked_P,
    )
