"""Timing outliers are held to the bound that Hampel's identifier draws, by kind of step."""

from __future__ import annotations

import statistics

import numpy as np
import pytest

from envs.outliers import LEAST, WINDOW, Winsoriser

BOUND = 3 * 1.4826


def test_bounds_by_hand() -> None:
    """Median 4.5, the median of the distances .5, .5, 1.5, 1.5, 2.5, 2.5, 3.5, 3.5 is 2."""
    hold = Winsoriser()
    for seconds in (1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0):
        assert hold("level", seconds) == seconds
    assert hold("level", 13.0) == 13.0
    assert hold.held == 0
    hold = Winsoriser()
    for seconds in (1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0):
        hold("level", seconds)
    assert hold("level", 100.0) == pytest.approx(4.5 + 2 * BOUND)
    assert hold.held == 1
    # Now the median is 5, and the distances 4, 3, 2, 1, 0, 1, 2, 3, 95: 2 again.
    assert hold("level", -100.0) == pytest.approx(5 - 2 * BOUND)
    assert hold.held == 2


def test_bounds_are_of_what_was_measured_not_of_what_was_held() -> None:
    """Else a law that changed would pull the bounds after it only slowly."""
    rng = np.random.default_rng(1)
    stream = [
        float(one)
        for one in np.where(rng.random(300) < 0.3, rng.uniform(2, 9, 300), rng.uniform(1, 1.2, 300))
    ]
    hold = Winsoriser()
    for place, seconds in enumerate(stream):
        before = stream[max(0, place - WINDOW) : place]
        expected = seconds
        if place >= LEAST:
            middle = statistics.median(before)
            spread = BOUND * statistics.median(abs(one - middle) for one in before)
            expected = sorted((middle - spread, seconds, middle + spread))[1]
        assert hold("level", seconds) == pytest.approx(expected)
    assert hold.held > 30


def test_the_first_eight_of_a_kind_pass() -> None:
    hold = Winsoriser()
    assert LEAST == 8
    for kind in ("level", "2x4"):
        assert [hold(kind, one) for one in (1.0, 90.0) * 4] == [1.0, 90.0] * 4
    for _ in range(8):
        assert hold("plain", 1.0) == 1.0
    assert hold("plain", 90.0) == 1.0
    assert hold("new", 90.0) == 90.0
    assert hold.held == 1


def test_a_stream_with_outliers_has_bounded_influence() -> None:
    rng = np.random.default_rng(0)
    clean = rng.normal(1.0, 0.05, 2000)
    dirty = np.where(rng.random(2000) < 0.1, clean * rng.uniform(3, 1000, 2000), clean)
    hold = Winsoriser()
    found = np.array([hold("level", float(one)) for one in dirty])
    assert abs(found[LEAST:].mean() - clean.mean()) < 0.05  # raw, the mean is 50 times as much
    assert found[LEAST:].max() < 1.5
    assert hold.held > 150
    # What is usual passes unchanged but for the thousandth of a normal law that lies beyond.
    hold = Winsoriser()
    same = np.array([hold("level", float(one)) for one in clean]) == clean
    assert same.mean() > 0.98


def test_a_change_that_stays_is_followed() -> None:
    """Raw timings are kept, not the held ones: half a window later the new law is the usual one."""
    hold = Winsoriser()
    rng = np.random.default_rng(0)
    for one in rng.normal(1.0, 0.05, 200):
        hold("level", float(one))
    found = [hold("level", float(one)) for one in rng.normal(3.0, 0.05, WINDOW + 8)]
    assert max(found[:5]) < 1.5
    assert min(found[-8:]) > 2.7


@pytest.mark.parametrize("seconds", [float("nan"), float("inf"), -float("inf")])
def test_what_is_no_time_is_refused(seconds: float) -> None:
    with pytest.raises(ValueError, match=f"a step took {seconds} seconds: the clock is at fault"):
        Winsoriser()("level", seconds)
