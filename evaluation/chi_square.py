"""Counts against a known law: Pearson's chi-square, Holm's adjustment over many of them, and their power.

Legend: T outcomes, C cells.
"""

from __future__ import annotations

import numpy as np
from scipy import optimize, stats

# Cochran, Biometrics, 1954: below it the statistic is not distributed as chi-square.
LEAST_EXPECTED = 5
POWER = 0.9


def chi_square(seen_T: np.ndarray, law_T: np.ndarray) -> tuple[float | None, int, float]:
    """Statistic, degrees of freedom and p-value of counts (T) against probabilities (T).

    Texts without probability are no cell: one of them seen makes p 0 (and the statistic None).
    """
    possible_T = law_T > 0
    if seen_T[~possible_T].any():
        return None, int(possible_T.sum()) - 1, 0.0
    groups = cells(law_T * seen_T.sum())
    if len(groups) < 2:
        return 0.0, 0, 1.0
    expected_C = np.array([law_T[group].sum() for group in groups]) * seen_T.sum()
    seen_C = np.array([seen_T[group].sum() for group in groups])
    result = stats.chisquare(seen_C, expected_C * (seen_C.sum() / expected_C.sum()))
    return float(result.statistic), len(groups) - 1, float(result.pvalue)


def cells(expected_T: np.ndarray) -> list[np.ndarray]:
    """Indices of the texts of each cell: one text a cell, but those expected fewer than 5 times are one. If
    they still expect fewer together, the rarest other joins them."""
    possible = np.flatnonzero(expected_T > 0)
    order = possible[np.argsort(expected_T[possible], kind="stable")]
    rare = int((expected_T[order] < LEAST_EXPECTED).sum())
    if rare and expected_T[order[:rare]].sum() < LEAST_EXPECTED:
        rare = min(rare + 1, len(order))
    pooled = [order[:rare]] if rare else []
    return pooled + [order[place : place + 1] for place in range(rare, len(order))]


def detectable(samples: int, degrees: int, level: float) -> float:
    """Total variation that a chi-square test at `level` finds with probability `POWER`, at most 1."""
    beyond = stats.chi2.isf(level, degrees)

    def lacking(shift: float) -> float:
        return float(stats.ncx2.sf(beyond, degrees, shift)) - POWER

    shift = optimize.brentq(lacking, 1e-6, 100 * (beyond + 10))
    return min(1.0, float(np.sqrt(shift / (4 * samples))))
