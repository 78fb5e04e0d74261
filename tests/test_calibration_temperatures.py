"""What a calibration says between the temperatures at which it was fitted, and beyond them."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from decoding.calibration import Calibration, TemperatureFit, scorer_at
from decoding.drafters.ngram import Continuation
from decoding.noise import NoiseStream
from decoding.scoring import LOOKUP_INPUTS, HeadOpinion, LevelScale, Scorer
from tests.fakes import tiny_calibration
from tests.test_calibration import PRINTS, calibrations, of

NOISE = NoiseStream(1, [4, 2])


def survival(scorer: Scorer, depth: int) -> np.ndarray:
    logits_RV = torch.tensor([[0.3, -1.2, 2.5, 0.0]], dtype=torch.float64)
    found: np.ndarray = scorer.log_survival(logits_RV, depth, NOISE, 3, torch.arange(4)).numpy()
    return found


def all_scores(scorer: Scorer) -> np.ndarray:
    """What a request sees of a calibration: of several depths, of a lookup at some noise."""
    scores = [survival(scorer, depth).ravel() for depth in (1, 2, 3, 4)]
    if scorer.lookup:
        one = Continuation(7, 2, 3, 0.5, 3)
        noise = 0.0 if scorer.temperature == 0 else 0.7 * min(1.0, scorer.temperature)
        scores.append(np.array([scorer.log_lookup(one, HeadOpinion(-1.0, True), noise)]))
    return np.concatenate(scores)


@given(calibrations())
def test_at_a_fitted_temperature_it_is_the_fit(calibration: Calibration) -> None:
    for fit in calibration.fits:
        scorer = calibration.at(fit.temperature)
        assert scorer.temperature == fit.temperature
        for depth, scale in enumerate(fit.levels):
            found = scorer.levels[min(depth, len(scorer.levels) - 1)]
            assert (found.kappa, found.a) == pytest.approx((scale.kappa, scale.a), rel=1e-12)
        if fit.levels:
            assert scorer.levels[-1].kappa == pytest.approx(fit.levels[-1].kappa, rel=1e-12), "deeper"
        if fit.lookup:
            assert scorer.lookup == pytest.approx(fit.lookup)


@given(calibrations(), st.floats(0.01, 2.5))
def test_scores_are_continuous_in_temperature(calibration: Calibration, temperature: float) -> None:
    """Everywhere, at the fits themselves too, whatever was measured at which; and towards 0 as well."""
    for here in (temperature, *(fit.temperature for fit in calibration.fits if fit.temperature)):
        before, after = math.nextafter(here, 0), math.nextafter(here, 9)
        ours = all_scores(calibration.at(here))
        for near in (before, after):
            np.testing.assert_allclose(all_scores(calibration.at(near)), ours, rtol=1e-6, atol=1e-6)
    if not any(fit.levels for fit in calibration.fits):
        return  # uncalibrated logits are divided by the temperature, and have no limit
    cold, greedy = all_scores(calibration.at(1e-7)), all_scores(calibration.at(0.0))
    np.testing.assert_allclose(cold, greedy, rtol=1e-3, atol=1e-3)


@given(calibrations(), st.floats(1.0, 1e3))
def test_hotter_than_every_fit_kappa_stays(calibration: Calibration, times: float) -> None:
    hottest = calibration.fits[-1].temperature
    headed = [fit for fit in calibration.fits if fit.levels]
    scorer, end = calibration.at(hottest * times + 0.5), calibration.at(hottest)
    assert scorer.lookup == end.lookup
    if headed and headed[-1].temperature > 0:
        assert scorer.levels == end.levels


def test_between_two_fits_by_hand() -> None:
    """Linear in the scale of the logits, kappa * T, and kappa itself at 0."""
    cold = TemperatureFit(0.0, (LevelScale(2.0, 0.9),), (0.0,) * len(LOOKUP_INPUTS))
    hot = TemperatureFit(0.8, (LevelScale(1.5, 0.5), LevelScale(4.0, 0.7)), (4.0,) * len(LOOKUP_INPUTS))
    scorer = of(cold, hot).at(0.2)
    scales = [2.0 + (1.2 - 2.0) / 4, 2.0 + (3.2 - 2.0) / 4]
    assert [one.kappa for one in scorer.levels] == pytest.approx([scale / 0.2 for scale in scales])
    assert [one.a for one in scorer.levels] == pytest.approx([0.8, 0.85])
    assert scorer.lookup == pytest.approx((1.0,) * len(LOOKUP_INPUTS))


@pytest.mark.parametrize(
    ("fitted", "asked", "kappa"),
    [(0.5, 0.5, 1.2), (0.5, 0.1, 6.0), (0.5, 0.0, 0.6), (0.5, 2.0, 1.2), (0.0, 0.0, 1.2), (0.0, 2.0, 0.6)],
)
def test_a_single_fit(fitted: float, asked: float, kappa: float) -> None:
    """Its scale of the logits colder, its kappa hotter; of one at 0 there is but the scale."""
    scorer = of(TemperatureFit(fitted, (LevelScale(1.2, 0.8),))).at(asked)
    assert (scorer.temperature, scorer.lookup) == (asked, ())
    assert [(one.kappa, one.a) for one in scorer.levels] == [(pytest.approx(kappa), 0.8)]


def test_what_was_not_measured_is_not_made_up() -> None:
    assert of(TemperatureFit(0.0), TemperatureFit(1.0)).at(0.5) == Scorer(0.5)
    assert scorer_at(None, 0.7) == Scorer(0.7)
    assert scorer_at(tiny_calibration(), 0.7) == tiny_calibration().at(0.7)
    one_sided = of(*tiny_calibration().fits, TemperatureFit(1.5, (LevelScale(3.0),)))
    assert one_sided.at(1.5).lookup == tiny_calibration().fits[1].lookup


@pytest.mark.parametrize(
    ("build", "says"),
    [
        (lambda: of(), "needs ascending temperatures"),
        (lambda: of(TemperatureFit(1.0), TemperatureFit(0.5)), r"has \[1.0, 0.5\]"),
        (lambda: TemperatureFit(math.nan), "temperature is nan"),
        (lambda: TemperatureFit(0.0, (LevelScale(1e7),)), "kappa 10000000.0"),
        (lambda: Calibration((TemperatureFit(0.0),), PRINTS, LOOKUP_INPUTS[:-1]), "lookup inputs are not"),
    ],
)
def test_impossible_ones_are_refused(build: Callable[[], object], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        build()
