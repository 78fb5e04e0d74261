"""What somebody who waits for a text sees: time to its first token, the gaps after it, the whole.

A cycle's tokens arrive together. The gap between two tokens is therefore stated twice: per cycle, as the text
jumps on, and amortised, the same time over the tokens that came with it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from decoding.records import CycleRecord
from evaluation.schema_parts import ActionCount, Latency, Quantiles

MILLI = 1e3


def latency(prefills: Sequence[float], requests: Sequence[Sequence[CycleRecord]]) -> Latency:
    """Of an arm's requests.

    Args:
        prefills: seconds before the first cycle, of each request.
        requests: cycles of each, at least one.
    """
    first = [prefill + some[0].seconds.total for prefill, some in zip(prefills, requests, strict=True)]
    total = [
        prefill + sum(one.seconds.total for one in some)
        for prefill, some in zip(prefills, requests, strict=True)
    ]
    # A text of one cycle has no gap: its only wait is the first token's.
    later = [one for some in requests for one in some[1:]] or [some[0] for some in requests]
    gaps = np.array([one.seconds.total for one in later])
    tokens = np.array([one.emitted for one in later])
    return Latency(
        ttft=_quantiles(np.array(first)),
        itl_cycle=_quantiles(gaps),
        itl_amortised=_quantiles(np.repeat(gaps / tokens, tokens)),
        total=_quantiles(np.array(total)),
    )


def emitted_counts(records: Sequence[CycleRecord]) -> list[int]:
    """How many cycles committed 0, 1, 2 .. tokens."""
    return np.bincount([one.emitted for one in records]).tolist()


def action_counts(records: Sequence[CycleRecord]) -> list[ActionCount]:
    """What cycles did, commonest first."""
    pairs, counts = np.unique(
        [(one.draft_depth, one.verification_size) for one in records], axis=0, return_counts=True
    )
    order = np.argsort(-counts, kind="stable")
    return [
        ActionCount(
            draft_depth=int(pairs[at, 0]), verification_size=int(pairs[at, 1]), cycles=int(counts[at])
        )
        for at in order
    ]


def _quantiles(seconds: np.ndarray) -> Quantiles:
    p50, p95, p99 = np.percentile(seconds * MILLI, [50, 95, 99])
    return Quantiles(p50=float(p50), p95=float(p95), p99=float(p99))
