"""An arm over itself, the power of a run, and what may be claimed after them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from decoding.metrics import CycleSummary
from decoding.records import PhaseSeconds
from evaluation.checks import held_to, power, same_arm
from evaluation.protocol import Observation
from evaluation.schema_parts import SameArm
from evaluation.statistics import Comparison


def rows(arm: str, log_seconds: np.ndarray) -> list[Observation]:
    """A question each, ten tokens."""
    return [
        Observation(
            arm, f"q{at}", f"q{at}", None, None, 0, at, 0, 0.1,
            CycleSummary(cycles=10, emitted=10, seconds=PhaseSeconds(verify=float(np.exp(value)))), "", 0.0,
        )
        for at, value in enumerate(log_seconds)
    ]  # fmt: skip


def checked(differences: np.ndarray) -> SameArm:
    base = np.random.default_rng(1).normal(0, 0.5, len(differences))
    both = [*rows("a", base), *rows("b", base + differences)]
    return same_arm("a", "b", both, np.random.default_rng(0))


def test_an_arm_over_itself_by_hand() -> None:
    noise = np.random.default_rng(2).normal(0, 0.02, 60)
    found = checked(noise - noise.mean() + 0.001)
    assert found.ratio == pytest.approx(math.exp(0.001))
    assert found.usable
    assert found.low is not None
    assert found.high is not None
    spread = noise.std(ddof=1) / math.sqrt(60)
    assert math.log(found.high) - 0.001 == pytest.approx(stats.t.isf(0.0005, 59) * spread, rel=0.15)
    assert found.half_width == pytest.approx(stats.t.isf(0.025, 59) * spread, rel=0.1)


def test_a_run_is_unusable_beyond_one_per_cent_or_beyond_its_interval() -> None:
    noise = np.random.default_rng(2).normal(0, 1, 60)
    noise -= noise.mean()
    assert not checked(0.1 * noise + 0.0101).usable  # within the interval, but off by more than 1 %
    assert not checked(0.001 * noise + 0.005).usable  # within 1 %, but not by chance
    assert checked(0.02 * noise + 0.005).usable
    few = checked(0.001 * noise[:3] - 0.001 * noise[:3].mean())
    assert (few.low, few.high, few.half_width, few.usable) == (None, None, None, True)


def test_power_is_that_of_the_normal_approximation() -> None:
    base = np.zeros(50)
    noise = np.random.default_rng(3).normal(0, 0.07, 50)
    found = power("a", "b", [*rows("a", base), *rows("b", base + noise)])
    assert found is not None
    spread = noise.std(ddof=1)
    assert found.spread == pytest.approx(spread)
    assert found.groups_needed == math.ceil(((1.959964 + 0.8416212) * spread / math.log(1.02)) ** 2)
    # It is enough: simulated, four of five such runs see the effect.
    draws = np.random.default_rng(4).normal(math.log(1.02), spread, (4000, found.groups_needed))
    t = draws.mean(axis=1) / (draws.std(axis=1, ddof=1) / math.sqrt(found.groups_needed))
    assert (np.abs(t) > 1.96).mean() == pytest.approx(0.8, abs=0.03)
    assert power("a", "b", [*rows("a", base[:1]), *rows("b", base[:1])]) is None


def test_nothing_is_claimed_below_the_half_width_or_in_an_unusable_run() -> None:
    def row(ratio: float, claimed: bool = True) -> Comparison:
        return Comparison("a", "b", ratio, 0.9, 1.1, claimed, ratio, 30, 0.001)

    rows = [row(1.03), row(1.01), row(1 / 1.03), row(1 / 1.01), row(1.5, claimed=False)]
    usable = SameArm(a="a", b="b", ratio=1.0, low=0.98, high=1.02, half_width=0.02, usable=True)
    assert [one.claimed for one in held_to(rows, usable)] == [True, False, True, False, False]
    assert held_to(rows, None) == rows
    unusable = usable.model_copy(update={"usable": False})
    assert not any(one.claimed for one in held_to(rows, unusable))
    unknown = usable.model_copy(update={"half_width": None})
    assert [one.claimed for one in held_to(rows, unknown)] == [True, True, True, True, False]
