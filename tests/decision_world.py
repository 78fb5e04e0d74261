"""Tables of decisions made by hand: one draft of two levels, two sizes, and a number that is seen at the root
and after every level. Costs are what a test says."""

from __future__ import annotations

import numpy as np

from decoding.controller import RootChoice
from decoding.cycle_features import CycleFeatures
from decoding.decision_table import DecisionTable
from decoding.decisions import Decisions
from decoding.profile import Conditions, CostProfile

SIZES = (1, 4)
DECISIONS = Decisions((RootChoice.ALL,), 2, SIZES)
FEATURES = CycleFeatures(SIZES, 2)
NODES = 3  # the root, after each level
CONTEXT = 10


def made_up_table(
    emitted_PNS: np.ndarray, seen_P: np.ndarray, lengths: list[int], expected: float = 0.5
) -> DecisionTable:
    """Texts of these lengths.

    Args:
        emitted_PNS: what a verification would emit, cut here at the text's end.
        seen_P: in 0..1, shown as the share of the matches.
        expected: what the scores say that each size accepts, everywhere.
    """
    starts = np.cumsum([0, *lengths])
    positions = int(starts[-1])
    left_P = np.repeat(starts[1:], lengths) - np.arange(positions)
    names = FEATURES.names
    features_PNF = np.zeros((positions, NODES, len(names)), dtype=np.float32)
    features_PNF[:, 0, names.index("at_root")] = 1.0
    features_PNF[:, :, names.index("draft_depth")] = [0.0, 0.5, 1.0]
    features_PNF[:, :, names.index("match_share")] = seen_P[:, None]
    for size in SIZES:
        features_PNF[:, 1:, names.index(f"expected_{size}")] = expected
    allowed_NA = np.array([[1, 1, 0, 0, 0], [0, 0, 1, 1, 1], [0, 0, 0, 1, 1]], dtype=bool)
    asked_P = left_P > 1
    return DecisionTable(
        DECISIONS,
        FEATURES,
        tuple(f"q{number}" for number in range(len(lengths))),
        ("",) * len(lengths),
        ("",) * len(lengths),
        starts,
        context_P=np.full(positions, CONTEXT),
        features_PNF=features_PNF,
        allowed_PNA=allowed_NA & asked_P[:, None, None],
        emitted_PNS=np.minimum(emitted_PNS, left_P[:, None, None]).astype(np.int16),
        size_PNS=np.broadcast_to(np.array(SIZES, dtype=np.int16), (positions, NODES, 2)).copy(),
        levels_PN=np.broadcast_to(np.array([0, 1, 2], dtype=np.int16), (positions, NODES)).copy(),
        lookup_PN=np.zeros((positions, NODES), dtype=bool),
        asked_P=asked_P,
    )


def flat_profile(level: float, rows: dict[int, float], digest: float = 0.0) -> CostProfile:
    """A level takes `level` seconds, a verification what is said of its rows; all else is free."""
    counts = tuple(range(1, max(rows) + 1))
    seconds = np.interp(counts, list(rows), list(rows.values()))
    return CostProfile(
        fingerprints={"target": "t", "drafter": "d", "tokenizer": "k"},
        conditions=Conditions("cpu", "float32", "fast", 1, 0.0, "eagle", 2),
        contexts=(1, 64),
        rows=counts,
        start=(0.0, 0.0),
        levels={"head": ((level, level), (level, level))},
        digest_tokens=(1, 2),
        digest=(0.0, digest),
        selection=(0.0, 0.0, 0.0),
        verification=tuple((one, one) for one in seconds.tolist()),
        verification_token=0.0,
        commit=(0.0, 0.0),
        policy=0.0,
    )
