"""Calibrations: files, digests, and what they say between the temperatures at which they were fitted."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from decoding.calibration import CALIBRATION_FILE, Calibration, TemperatureFit, with_calibration
from decoding.noise import NoiseStream
from decoding.scoring import LOOKUP_INPUTS, LevelScale
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
