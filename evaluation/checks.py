"""What a run says of its own measurement: an arm over itself, and how many questions an effect needs.

A/A: the same arm decodes everything twice, under two names, in the same blocks. Its ratio is 1 by definition;
what it is measured as is what the machine does to any ratio of the run.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from scipy import stats

from evaluation.schema_parts import Power, SameArm
from evaluation.statistics import CONFIDENCE, Comparison, Paired, bootstrap_interval, group_log_ratios

USABLE_CONFIDENCE = 0.999
MOST_DRIFT = 0.01  # an A/A further from 1 than this makes a run unusable, interval or not
EFFECT = math.log(1.02)
POWER = 0.8


def same_arm(a: str, b: str, observations: Sequence[Paired], rng: np.random.Generator) -> SameArm:
    """The A/A check of two names of one arm."""
    log_ratios_G = np.array(group_log_ratios(a, b, [row for row in observations if row.arm in (a, b)]))
    ratio = math.exp(log_ratios_G.mean())
    wide = bootstrap_interval(log_ratios_G, rng, USABLE_CONFIDENCE)
    usual = bootstrap_interval(log_ratios_G, rng, CONFIDENCE)
    holds = wide is None or wide.low <= 0 <= wide.high
    return SameArm(
        a=a,
        b=b,
        ratio=ratio,
        low=None if wide is None else math.exp(wide.low),
        high=None if wide is None else math.exp(wide.high),
        half_width=None if usual is None else (usual.high - usual.low) / 2,
        usable=holds and abs(ratio - 1) <= MOST_DRIFT,
    )


def power(
    a: str, b: str, observations: Sequence[Paired], effect: float = EFFECT, confidence: float = CONFIDENCE
) -> Power | None:
    """Questions that a paired comparison of these arms needs to see a log-ratio of `effect` with probability
    0.8: ((z_{1 - alpha/2} + z_{0.8}) s / effect)^2, s the spread over this run's questions. None with less
    than two."""
    log_ratios_G = np.array(group_log_ratios(a, b, [row for row in observations if row.arm in (a, b)]))
    if len(log_ratios_G) < 2:
        return None
    spread = float(log_ratios_G.std(ddof=1))
    quantiles = stats.norm.isf((1 - confidence) / 2) + stats.norm.ppf(POWER)
    needed = max(2, math.ceil((quantiles * spread / effect) ** 2))
    return Power(effect=effect, spread=spread, groups=len(log_ratios_G), groups_needed=needed)


def held_to(comparisons: Sequence[Comparison], same: SameArm | None) -> list[Comparison]:
    """Nothing is claimed in an unusable run, nor a ratio that is nearer to 1 than the A/A's half-width."""
    if same is None:
        return list(comparisons)
    least = math.inf if not same.usable else same.half_width or 0.0
    return [replace(row, claimed=row.claimed and abs(math.log(row.ratio)) > least) for row in comparisons]
