"""From measured cycles to a cost profile: regressions through medians, which a disturbed cycle does not move.

Legend: N cycles, C coefficients, K contexts, P counts of tokens to digest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from decoding.check_profile import spread_of
from decoding.piecewise import hat_weights
from decoding.profile import EVERY_ROW_COUNT_TO, SOURCES, Conditions, CostProfile, Table
from decoding.timed_cycle import TimedCycle

_FEWEST = 3  # cycles behind any number of a profile
_DIGEST_TOKENS = (1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32, 48)


def median_regression(design_NC: np.ndarray, seconds_N: np.ndarray) -> np.ndarray:
    """Coefficients (C) of the least absolute error, by reweighted least squares."""
    floor = 1e-4 * float(np.median(np.abs(seconds_N))) + 1e-12
    weights_N = np.ones(len(seconds_N))
    coefficients_C = np.zeros(design_NC.shape[1])
    for _ in range(50):
        scaled = np.sqrt(weights_N)
        before_C = coefficients_C
        coefficients_C = np.linalg.lstsq(design_NC * scaled[:, None], seconds_N * scaled, rcond=None)[0]
        if np.abs(coefficients_C - before_C).max() < floor:
            break
        weights_N = 1 / np.maximum(np.abs(seconds_N - design_NC @ coefficients_C), floor)
    return coefficients_C


def along_knots(at: ArrayLike, seconds: ArrayLike, knots: Sequence[int]) -> np.ndarray:
    """(K) the median at each knot, linear between; knots that hardly any value is near are filled in from
    the others. ValueError if there are no values."""
    at_N, seconds_N = np.asarray(at, dtype=float), np.asarray(seconds, dtype=float)
    kept = covered(at_N, knots)
    # A session's contexts lie around a knot, so that beyond the outer ones too the lines go on.
    fitted_K = np.maximum(median_regression(hat_weights(at_N, kept, below=True), seconds_N), 0)
    return np.interp(knots, kept, fitted_K)


def covered(at_N: np.ndarray, knots: Sequence[int]) -> list[int]:
    """The knots with a few values near each; at least one."""
    kept = list(knots)
    while len(kept) > 1:
        inside_N = np.minimum(at_N, kept[-1])
        near_K = hat_weights(inside_N, kept).sum(axis=0)
        if near_K.min() >= _FEWEST - 0.5:
            break
        kept.pop(int(near_K.argmin()))
    return kept


def fit_profile(
    cycles: Sequence[TimedCycle],
    contexts: Sequence[int],
    fingerprints: Mapping[str, str],
    conditions: Conditions,
    note: Mapping[str, Any] | None = None,
) -> CostProfile:
    """The profile of those cycles that are not held out.

    ValueError if too few of them are of one row.
    """
    used = without_disturbed([cycle for cycle in cycles if not cycle.held_out], contexts)
    tokens = _digest_knots(used)
    levels, digest = _levels(used, contexts, tokens)
    rows, table, per_token = _verification(used, contexts)
    selection_C = median_regression(
        np.array([[1, len(one.levels), one.rows - 1] for one in used], dtype=float),
        np.array([one.record.seconds.select for one in used]),
    )
    commit_C = median_regression(
        np.array([[1, one.record.emitted - 1] for one in used], dtype=float),
        np.array([one.record.seconds.commit for one in used]),
    )
    context_N = [one.record.context_length for one in used]
    asked = [one for one in used if one.questions]
    profile = CostProfile(
        fingerprints=fingerprints,
        conditions=conditions,
        contexts=tuple(contexts),
        rows=rows,
        start=_row(along_knots(context_N, [one.start for one in used], contexts)),
        levels=levels,
        digest_tokens=tokens,
        digest=digest,
        selection=_row(selection_C),
        verification=table,
        verification_token=per_token,
        commit=_row(commit_C),
        policy=float(np.median([one.record.seconds.policy / one.questions for one in asked])),
        note=dict(note or {}),
    )
    return replace(profile, spread=spread_of(profile, used))


def without_disturbed(cycles: Sequence[TimedCycle], contexts: Sequence[int]) -> list[TimedCycle]:
    """The cycles that nothing disturbed, and the others only where too few of these are left of a row count
    near a context."""
    ratios_NK = np.abs(np.log([[one.record.context_length / knot for knot in contexts] for one in cycles]))
    cells = [(one.rows, int(nearest)) for one, nearest in zip(cycles, ratios_NK.argmin(axis=1), strict=True)]
    calm = Counter(cell for one, cell in zip(cycles, cells, strict=True) if not one.disturbed)
    pairs = zip(cycles, cells, strict=True)
    return [one for one, cell in pairs if not one.disturbed or calm[cell] < _FEWEST]


def _verification(
    cycles: Sequence[TimedCycle], contexts: Sequence[int]
) -> tuple[tuple[int, ...], Table, float]:
    """Row counts, their costs (R, K), and what a further emitted token adds."""
    seconds_N = np.array([one.record.seconds.verify for one in cycles])
    context_N = np.array([one.record.context_length for one in cycles])
    further_N = np.array([one.record.emitted - 1 for one in cycles], dtype=float)
    rows_N = np.array([one.rows for one in cycles])
    counts = _enough(rows_N)
    chosen = [rows_N == count for count in counts]
    per_token, table = 0.0, np.zeros((len(counts), len(contexts)))
    for _ in range(15):  # each in turn, given the other
        left_N = seconds_N - per_token * further_N
        table = np.array([along_knots(context_N[own_N], left_N[own_N], contexts) for own_N in chosen])
        slopes = []
        for own_N, row_K in zip(chosen, table, strict=True):
            rest_N = seconds_N[own_N] - hat_weights(context_N[own_N], contexts, below=True) @ row_K
            slopes.append((rest_N, further_N[own_N]))
        rest_N, over_N = (np.concatenate(parts) for parts in zip(*slopes, strict=True))
        per_token = max(float(median_regression(over_N[:, None], rest_N)[0]), 0.0)
    return tuple(counts), tuple(map(_row, table)), per_token


def _enough(rows_N: np.ndarray) -> list[int]:
    """Row counts that were seen often enough; of those up to 17 none is left out below another."""
    counts = [int(count) for count in np.unique(rows_N) if (rows_N == count).sum() >= _FEWEST]
    missing = next(count for count in range(1, 1 << 30) if count not in counts)
    if missing == 1:
        raise ValueError("no plain step was measured: raise profile.rounds")
    return counts if missing > EVERY_ROW_COUNT_TO else [count for count in counts if count < missing]


def _digest_knots(cycles: Sequence[TimedCycle]) -> tuple[int, ...]:
    seen_N = np.array([one.emitted_before for one in _digesting(cycles)] or [1], dtype=float)
    return (1, *(count for count in covered(seen_N, _DIGEST_TOKENS) if count > 1))


def _digesting(cycles: Sequence[TimedCycle]) -> list[TimedCycle]:
    # What came before is a prompt, or a long way without the head: digested in pieces, elsewhere.
    most = 2 * _DIGEST_TOKENS[-1]
    return [one for one in cycles if one.source == "head" and one.emitted_before <= most]


def _levels(
    cycles: Sequence[TimedCycle], contexts: Sequence[int], tokens: Sequence[int]
) -> tuple[dict[str, Table], tuple[float, ...]]:
    """Costs of the levels by what drafted, and of digesting at the head's first."""
    found: dict[str, Table] = {}
    digest_P = np.zeros(len(tokens))
    for source in SOURCES:
        own = [one for one in cycles if one.source == source]
        deepest = _deepest(own)
        if not deepest:
            continue
        table = []
        for level in range(1, deepest + 1):
            drafted = [one for one in own if len(one.levels) >= level]
            if level == 1 and source == "head":
                first_K, digest_P = _first_level(_digesting(own), contexts, tokens)
                table.append(_row(first_K))
                continue
            context_N = [one.record.context_length for one in drafted]
            table.append(_row(along_knots(context_N, [one.levels[level - 1] for one in drafted], contexts)))
        found[source] = tuple(table)
    if not found:
        raise ValueError("no draft was measured: the drafter has nothing to propose")
    return found, _row(digest_P)


def _deepest(cycles: Sequence[TimedCycle]) -> int:
    depth = 0
    while sum(len(one.levels) > depth for one in cycles) >= _FEWEST:
        depth += 1
    return depth


def _first_level(
    cycles: Sequence[TimedCycle], contexts: Sequence[int], tokens: Sequence[int]
) -> tuple[np.ndarray, np.ndarray]:
    """The head's first level: (K) by context after one token, and (P) what digesting more adds."""
    seconds_N = np.array([one.levels[0] for one in cycles])
    context_N = np.array([one.record.context_length for one in cycles], dtype=float)
    before_N = np.array([one.emitted_before for one in cycles], dtype=float)
    kept = covered(context_N, contexts)
    parts = [hat_weights(context_N, kept, below=True), hat_weights(before_N, tokens)[:, 1:]]
    fitted_C = median_regression(np.concatenate(parts, axis=1), seconds_N)
    first_K = np.interp(contexts, kept, np.maximum(fitted_C[: len(kept)], 0))
    return first_K, np.array([0.0, *np.maximum(fitted_C[len(kept) :], 0)])


def _row(values: np.ndarray) -> tuple[float, ...]:
    return tuple(max(float(value), 0.0) for value in values)
