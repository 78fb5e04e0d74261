"""Calibrations: files, digests, and what they say between the temperatures at which they were fitted."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from decoding.calibration import CALIBRATION_FILE, Calibration, TemperatureFit, scorer_at, with_calibration
from decoding.drafters.ngram import Continuation
from decoding.noise import NoiseStream
from decoding.scoring import LOOKUP_INPUTS, HeadOpinion, LevelScale, Scorer
from tests.fakes import drafter_called, tiny_calibration

PRINTS = {"target": "aa", "drafter": "bb"}
NOISE = NoiseStream(1, [4, 2])
NUMBERS = st.floats(-50, 50)
SCALES = st.builds(LevelScale, st.floats(0.05, 20), st.floats(0.01, 1))
WEIGHTS = st.lists(NUMBERS, min_size=len(LOOKUP_INPUTS), max_size=len(LOOKUP_INPUTS)).map(tuple)


@st.composite
def calibrations(draw: st.DrawFn) -> Calibration:
    """One to four fits, at 0 or not; heads and lookups measured or not, levels as many as they come."""
    places = draw(st.lists(st.integers(0, 40), min_size=1, max_size=4, unique=True))
    fits = [
        TemperatureFit(
            place / 20,
            tuple(draw(st.lists(SCALES, max_size=3))),
            draw(st.just(()) | WEIGHTS),
            draw(st.integers(0, 10**6)),
        )
        for place in sorted(places)
    ]
    note = draw(st.dictionaries(st.text(max_size=5), st.integers() | st.text(max_size=5), max_size=2))
    return Calibration(tuple(fits), PRINTS, note=note)


def of(*fits: TemperatureFit) -> Calibration:
    return Calibration(fits, PRINTS)


# --- files ------------------------------------------------------------------------------------------------


@given(calibrations())
def test_it_survives_its_json(calibration: Calibration) -> None:
    again = Calibration.from_json(json.loads(json.dumps(calibration.to_json(), allow_nan=False)))
    assert again == calibration
    assert again.digest() == calibration.digest()


def test_it_survives_its_file_and_no_file_is_no_calibration(tmp_path: Path) -> None:
    assert Calibration.load(tmp_path) is None
    assert Calibration.load(tmp_path / "nowhere") is None
    calibration = replace(tiny_calibration(), note={"prompts": 60, "words": "é"})
    calibration.save(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [CALIBRATION_FILE]
    assert Calibration.load(tmp_path) == calibration


def test_whole_numbers_and_numpys_have_the_digest_of_the_file() -> None:
    """A policy names the digest: it must be the same before and after the file was written."""
    weights = tuple(np.linspace(0, 1, len(LOOKUP_INPUTS)))
    whole = of(TemperatureFit(0, (LevelScale(2, 1),), weights, np.int64(9)))  # type: ignore[arg-type]
    again = Calibration.from_json(json.loads(json.dumps(whole.to_json())))
    assert again.digest() == whole.digest()


def changed_numbers(calibration: Calibration) -> list[Calibration]:
    """One for each number of the fits, that number changed a little."""
    found: list[Calibration] = []
    for place, fit in enumerate(calibration.fits):
        others = [replace(fit, temperature=fit.temperature + 0.01), replace(fit, positions=fit.positions + 1)]
        for level, scale in enumerate(fit.levels):
            for other in (replace(scale, kappa=scale.kappa + 1e-9), replace(scale, a=scale.a - 1e-9)):
                levels = (*fit.levels[:level], other, *fit.levels[level + 1 :])
                others.append(replace(fit, levels=levels))
        for number, weight in enumerate(fit.lookup):
            lookup = (*fit.lookup[:number], weight + 1e-9, *fit.lookup[number + 1 :])
            others.append(replace(fit, lookup=lookup))
        fits = calibration.fits
        found += [replace(calibration, fits=(*fits[:place], one, *fits[place + 1 :])) for one in others]
    return found


def test_the_digest_changes_with_every_number() -> None:
    calibration = tiny_calibration()
    changed = changed_numbers(calibration)
    assert len(changed) == 2 * (2 + 2 * 2 + len(LOOKUP_INPUTS))
    digests = [one.digest() for one in (calibration, *changed, of(*calibration.fits[:1]))]
    assert len(set(digests)) == len(digests)
    assert all(len(digest) == 8 and int(digest, 16) >= 0 for digest in digests)
    told = replace(calibration, note={"prompts": 1}, fingerprints={"target": "x", "drafter": "y"})
    assert told.digest() == calibration.digest(), "scores do not depend on what is said of them"


def edited(**changes: Any) -> dict[str, Any]:
    return json.loads(json.dumps(tiny_calibration().to_json())) | changes


def edited_fit(**changes: Any) -> dict[str, Any]:
    raw = edited()
    raw["fits"][0] |= changes
    return raw


def without(key: str) -> dict[str, Any]:
    return {name: value for name, value in edited().items() if name != key}


LEVEL = {"kappa": 1.0, "a": 1.0}


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        ({"draft_vocab_size": 100}, "lacks 'schema_version'"),
        (edited(schema_version=2), "the calibration's schema_version is 2, this code reads 1"),
        (edited(lookup_inputs=["one", "two"]), "its lookup inputs are not those that this code computes"),
        (edited(lookup_inputs=5), "not iterable"),
        (without("lookup_inputs"), "lacks 'lookup_inputs'"),
        (without("fits"), "lacks 'fits'"),
        (edited(fits=[]), "needs ascending temperatures"),
        (edited(fits=edited()["fits"][::-1]), "needs ascending temperatures"),
        (edited(fits=edited()["fits"][:1] * 2), "needs ascending temperatures"),
        (edited(fits={"0": {}}), "indices must be integers"),
        (edited(fits=7), "not iterable"),
        (edited(fingerprints={"target": "aa"}), "lacks 'drafter'"),
        (edited(fingerprints=["aa", "bb"]), "indices must be integers"),
        (edited(note="dear"), "cannot be used"),
        (edited_fit(temperature=-0.5), "temperature is -0.5"),
        (edited_fit(temperature=math.inf), "temperature is inf"),
        (edited_fit(temperature=10**400), "int too large"),
        (edited_fit(positions=math.inf), "infinity"),
        (edited_fit(positions="many"), "invalid literal"),
        (edited_fit(levels=[LEVEL | {"kappa": 0.0}]), "kappa 0.0"),
        (edited_fit(levels=[LEVEL | {"kappa": math.nan}]), "kappa nan"),
        (edited_fit(levels=[LEVEL | {"a": 1.5}]), "a 1.5"),
        (edited_fit(levels=[{"kappa": 1.0}]), "lacks 'a'"),
        (edited_fit(levels=None), "not iterable"),
        (edited_fit(lookup=[1.0]), "lookup has 1 weights, must be 9 or none"),
        (edited_fit(lookup=[math.nan] * len(LOOKUP_INPUTS)), "not finite"),
        (edited_fit(lookup="abc"), "could not convert"),
    ],
)
def test_a_file_that_says_something_else_is_one_line(raw: Any, says: str, tmp_path: Path) -> None:
    (tmp_path / CALIBRATION_FILE).write_text(json.dumps(raw), encoding="utf-8")
    refused(tmp_path, says)


@pytest.mark.parametrize("text", ["", "[]", "{", '"dear"', "\0\1"])
def test_a_damaged_file_is_one_line(text: str, tmp_path: Path) -> None:
    (tmp_path / CALIBRATION_FILE).write_text(text, encoding="utf-8")
    refused(tmp_path, "calibration")
    (tmp_path / CALIBRATION_FILE).write_bytes(b"\xff\xfe")
    refused(tmp_path, "not readable JSON")


def refused(folder: Path, says: str) -> None:
    with pytest.raises(ValueError, match="calibration") as caught:
        Calibration.load(folder)
    text = str(caught.value)
    assert says in text
    assert str(folder / CALIBRATION_FILE) in text
    assert "\n" not in text


# --- between the fits -------------------------------------------------------------------------------------


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
    assert scorer == Scorer(asked, (LevelScale(pytest.approx(kappa), 0.8),))


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


# --- drafters ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["eagle", "causal", "ngram", "merged", "composite"])
def test_a_drafters_fingerprint_names_its_calibration(name: str) -> None:
    drafter = drafter_called.__wrapped__(name)  # the shared one stays uncalibrated
    prints = [drafter.fingerprint()]
    for calibration in (tiny_calibration(), tiny_calibration(shift=0.5), None):
        drafter.calibration = calibration
        assert drafter.calibration == calibration
        prints.append(drafter.fingerprint())
    assert prints[0] == prints[3]
    assert len(set(prints)) == 3
    assert all(one != other for one, other in pairwise(prints))
    assert prints[1].endswith(f"-calibrated-{tiny_calibration().digest()}")
    assert with_calibration("x", None) == "x"
