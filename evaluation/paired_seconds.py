"""Who is faster, from the seconds of the same texts: replay's counterpart of `statistics.compare`.

Legend: T texts, G groups of texts (questions).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from decoding.workload import default_group
from evaluation.schema_parts import ComparisonResult
from evaluation.statistics import CONFIDENCE, bootstrap_interval, holm


def groups_of(names: Sequence[str], languages: Sequence[str]) -> np.ndarray:
    """(T) int64, the question of each text: its translations, and its recordings at several temperatures,
    are one. `languages`: "" where unknown."""
    groups = [default_group(name, one or None) for name, one in zip(names, languages, strict=True)]
    numbers: np.ndarray = np.unique(groups, return_inverse=True)[1]
    return numbers


def compare_seconds(
    a: str,
    b: str,
    seconds_a_T: np.ndarray,
    seconds_b_T: np.ndarray,
    groups_T: np.ndarray,
    rng: np.random.Generator,
) -> ComparisonResult:
    """How much faster `a` decodes than `b`; both wrote the same texts, so that a ratio of speeds is one of
    seconds. `claimed` as if it were the only comparison, see `claim_all`."""
    of_a, of_b = (np.bincount(groups_T, weights=seconds) for seconds in (seconds_a_T, seconds_b_T))
    log_ratios_G = np.log(of_b / of_a)
    interval = bootstrap_interval(log_ratios_G, rng)
    return ComparisonResult(
        a=a,
        b=b,
        ratio=math.exp(log_ratios_G.mean()),
        low=None if interval is None else math.exp(interval.low),
        high=None if interval is None else math.exp(interval.high),
        claimed=interval is not None and interval.p_value < 1 - CONFIDENCE,
        ratio_of_sums=float(of_b.sum() / of_a.sum()),
        groups=len(log_ratios_G),
        p_value=None if interval is None else min(1.0, interval.p_value),
    )


def claim_all(found: Sequence[ComparisonResult]) -> list[ComparisonResult]:
    """The same comparisons, `claimed` adjusted by Holm over all of them."""
    claims = holm([one.p_value for one in found])
    return [one.model_copy(update={"claimed": claim}) for one, claim in zip(found, claims, strict=True)]
