"""A profile made by hand, and cycles whose costs follow a known law."""

from __future__ import annotations

from decoding.profile import Conditions, CostProfile

PRINTS = {"target": "aa", "drafter": "bb", "tokenizer": "cc"}
CONDITIONS = Conditions("a machine", "float32", "fast", 2, 0.0, "eagle", 4)


def small_profile() -> CostProfile:
    """Two contexts, five row counts of which 2 and 3 are dear, two levels."""
    return CostProfile(
        fingerprints=PRINTS,
        conditions=CONDITIONS,
        contexts=(10, 110),
        rows=(1, 2, 3, 4, 5),
        start=(0.001, 0.002),
        levels={"head": ((0.01, 0.02), (0.03, 0.03))},
        digest_tokens=(1, 3),
        digest=(0.0, 0.004),
        selection=(0.001, 0.0001, 0.00001),
        verification=((0.1, 0.2), (0.5, 0.6), (0.45, 0.5), (0.2, 0.3), (0.25, 0.35)),
        verification_token=0.0005,
        commit=(0.002, 0.0003),
        policy=0.0001,
    )
