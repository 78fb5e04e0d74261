"""A profile held against cycles: how far its predictions are from what was measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from decoding.profile import CostProfile, Source, Table
from decoding.timed_cycle import TimedCycle


@dataclass(frozen=True, slots=True)
class ProfileError:
    """|predicted / measured - 1| of whole cycles, policy calls included: `median`, the quartiles `low` and
    `high`; `bias` is the median with its sign."""

    cycles: int
    median: float
    low: float
    high: float
    bias: float


def profile_error(profile: CostProfile, cycles: Sequence[TimedCycle]) -> ProfileError | None:
    """Over those cycles that the profile can predict; None if there are none."""
    known = [one for one in cycles if predictable(profile, one)]
    if not known:
        return None
    measured_N = np.array([one.record.seconds.total for one in known])
    ratios_N = predicted_seconds(profile, known) / measured_N - 1
    low, median, high = np.percentile(np.abs(ratios_N), [25, 50, 75]).tolist()
    return ProfileError(len(known), median, low, high, float(np.median(ratios_N)))


def predicted_seconds(profile: CostProfile, cycles: Sequence[TimedCycle]) -> np.ndarray:
    """(N) what the profile says of whole cycles."""
    return np.array([_predicted(profile, one) for one in cycles])


def _predicted(profile: CostProfile, one: TimedCycle) -> float:
    source: Source = one.source or ("head" if "head" in profile.levels else "lookup")
    seconds = profile.cycle_seconds(
        len(one.levels),
        one.rows - 1,
        one.record.context_length,
        one.emitted_before,
        one.record.emitted,
        source,
        one.questions,
    )
    return float(seconds)


def predictable(profile: CostProfile, one: TimedCycle) -> bool:
    """Whether the profile has measured what such a cycle is made of."""
    if one.rows > profile.rows[-1]:
        return False
    return one.source is None or len(one.levels) <= len(profile.levels.get(one.source, ()))


def spread_of(profile: CostProfile, cycles: Sequence[TimedCycle]) -> dict[str, Table]:
    """Quartiles of measured / predicted: of each part, for each of its counts; 1 where 0 is predicted."""
    cycles = [one for one in cycles if predictable(profile, one)]
    everything = _Columns(cycles)
    depths = np.array([len(one.levels) for one in cycles])
    rows = np.array([one.rows for one in cycles])
    asked = [one for one in cycles if one.questions]
    found = {
        "start": [_quartiles([one.start for one in cycles], profile.start_seconds(everything.context))],
        "selection": [
            _quartiles(
                [one.record.seconds.select for one in cycles], profile.selection_seconds(depths, rows - 1)
            )
        ],
        "commit": [
            _quartiles(
                [one.record.seconds.commit for one in cycles], profile.commit_seconds(everything.emitted)
            )
        ],
        "policy": [
            _quartiles(
                [one.record.seconds.policy / one.questions for one in asked],
                np.full(len(asked), profile.policy),
            )
        ],
    }
    for count in profile.rows:
        own = [one for one in cycles if one.rows == count]
        about = _Columns(own)
        predicted = profile.verification_seconds(count, about.context, about.emitted)
        measured = [one.record.seconds.verify for one in own]
        found.setdefault("verification", []).append(_quartiles(measured, predicted))
    for source in profile.levels:
        found[f"levels of the {source}"] = _levels(profile, cycles, "head" if source == "head" else "lookup")
    return {part: tuple(quartiles) for part, quartiles in found.items()}


def _levels(profile: CostProfile, cycles: Sequence[TimedCycle], source: Source) -> list[tuple[float, ...]]:
    found = []
    for level in range(1, len(profile.levels[source]) + 1):
        own = [one for one in cycles if one.source == source and len(one.levels) >= level]
        about = _Columns(own)
        predicted = profile.level_seconds(level, about.context, about.before, source)
        found.append(_quartiles([one.levels[level - 1] for one in own], predicted))
    return found


class _Columns:
    """What predictions take of cycles: arrays (N)."""

    def __init__(self, cycles: Sequence[TimedCycle]) -> None:
        self.context = np.array([one.record.context_length for one in cycles], dtype=int)
        self.emitted = np.array([one.record.emitted for one in cycles], dtype=int)
        self.before = np.array([one.emitted_before for one in cycles], dtype=int)


def _quartiles(measured: Sequence[float], predicted_N: np.ndarray) -> tuple[float, ...]:
    known_N = predicted_N > 0
    if not known_N.any():
        return (1.0, 1.0)
    return tuple(np.percentile(np.array(measured)[known_N] / predicted_N[known_N], [25, 75]).tolist())
