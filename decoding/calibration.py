"""Calibrations: what `scoring.py` needs, for several temperatures, in a file beside a drafter's weights.

`calibration.json`, schema 1: fingerprints of the target and of the drafter it was measured on, and for every
temperature (kappa, a) by draft level and the weights of the lookup's logistic function.
"""

from __future__ import annotations

import hashlib
import json
import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from decoding.artifacts import read_json, write_json
from decoding.scoring import LOOKUP_INPUTS, LevelScale, Scorer

SCHEMA_VERSION = 1
CALIBRATION_FILE = "calibration.json"


@dataclass(frozen=True, slots=True)
class TemperatureFit:
    """What was fitted at one temperature.

    Attributes:
        levels: by draft level, the first first; empty if no head was measured.
        lookup: weights in the order of `LOOKUP_INPUTS`; empty if lookup was not measured.
        positions: of text, that the fit saw.
    """

    temperature: float
    levels: tuple[LevelScale, ...] = ()
    lookup: tuple[float, ...] = ()
    positions: int = 0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise ValueError(f"temperature is {self.temperature}, must be a finite number >= 0")
        for scale in self.levels:
            if not (0 < scale.kappa < 1e6 and 0 < scale.a <= 1):
                raise ValueError(f"a level has kappa {scale.kappa}, a {scale.a}: must be > 0, and a <= 1")
        if len(self.lookup) not in (0, len(LOOKUP_INPUTS)):
            raise ValueError(f"lookup has {len(self.lookup)} weights, must be {len(LOOKUP_INPUTS)} or none")
        if not all(math.isfinite(weight) for weight in self.lookup):
            raise ValueError("lookup has weights that are not finite")


@dataclass(frozen=True, slots=True)
class Calibration:
    """Fits at one or more temperatures, ascending.

    Attributes:
        fingerprints: of `target` and `drafter` (the head's weights; its beam width is no part of it).
        inputs: names of the lookup's inputs: weights of other inputs would mean something else.
        note: how it was measured; for people.
    """

    fits: tuple[TemperatureFit, ...]
    fingerprints: Mapping[str, str]
    inputs: tuple[str, ...] = LOOKUP_INPUTS
    note: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        temperatures = [fit.temperature for fit in self.fits]
        if not temperatures or temperatures != sorted(set(temperatures)):
            raise ValueError(f"a calibration needs ascending temperatures, has {temperatures}")
        if tuple(self.inputs) != LOOKUP_INPUTS:
            raise ValueError("its lookup inputs are not those that this code computes")

    def at(self, temperature: float) -> Scorer:
        """The scorer for a request: between two fits linear in kappa * temperature (kappa itself at 0: the
        scale of the logits), in a and in the weights. Colder than all fits the coldest's scale of the logits
        goes on; hotter than all, the hottest's kappa, or that scale where all there is was fitted at 0."""
        headed = [fit for fit in self.fits if fit.levels]
        levels = _levels(headed, temperature) if headed else (LevelScale(),)
        looked = [fit for fit in self.fits if fit.lookup]
        return Scorer(temperature, levels, _lookup(looked, temperature) if looked else ())

    def digest(self) -> str:
        """Short hash of all that scores depend on: 8 hexadecimal digits."""
        content = json.dumps(self.to_json()["fits"])
        return hashlib.sha256(content.encode()).hexdigest()[:8]

    def to_json(self) -> dict[str, Any]:
        """The content of the file."""
        return {
            "schema_version": SCHEMA_VERSION,
            "fingerprints": dict(self.fingerprints),
            "lookup_inputs": list(self.inputs),
            "fits": [
                {
                    "temperature": float(fit.temperature),
                    "levels": [{"kappa": float(one.kappa), "a": float(one.a)} for one in fit.levels],
                    "lookup": list(map(float, fit.lookup)),
                    "positions": int(fit.positions),
                }
                for fit in self.fits
            ],
            "note": dict(self.note),
        }

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Calibration:
        """The inverse of `to_json`. KeyError, TypeError or ValueError if `raw` is something else."""
        version = raw["schema_version"]
        if version != SCHEMA_VERSION:
            raise ValueError(
                f"the calibration's schema_version is {version!r}, this code reads {SCHEMA_VERSION}"
            )
        try:
            fits = tuple(map(_fit_from_json, raw["fits"]))
        except OverflowError as error:
            raise ValueError(str(error)) from None
        prints = {name: str(raw["fingerprints"][name]) for name in ("target", "drafter")}
        return cls(fits, prints, tuple(raw["lookup_inputs"]), dict(raw.get("note", {})))

    def save(self, folder: Path) -> None:
        """Write `calibration.json` into `folder`."""
        write_json(folder / CALIBRATION_FILE, self.to_json())

    @classmethod
    def load(cls, folder: Path) -> Calibration | None:
        """The calibration in `folder`, None if there is none; one-line ValueError if it is damaged."""
        path = folder / CALIBRATION_FILE
        if not path.exists():
            return None
        raw = read_json(path, "calibration")
        try:
            return cls.from_json(raw)
        except KeyError as error:
            raise ValueError(f"calibration {path} lacks {error}: calibrate again") from None
        except (TypeError, AttributeError, ValueError) as error:
            raise ValueError(f"calibration {path} cannot be used ({error}): calibrate again") from None


def _fit_from_json(raw: Mapping[str, Any]) -> TemperatureFit:
    return TemperatureFit(
        temperature=float(raw["temperature"]),
        levels=tuple(LevelScale(float(one["kappa"]), float(one["a"])) for one in raw["levels"]),
        lookup=tuple(map(float, raw["lookup"])),
        positions=int(raw["positions"]),
    )


def scorer_at(calibration: Calibration | None, temperature: float) -> Scorer:
    """The scorer of a request; kappa = a = 1 without a calibration."""
    return Scorer(temperature) if calibration is None else calibration.at(temperature)


def with_calibration(fingerprint: str, calibration: Calibration | None) -> str:
    """A drafter's fingerprint: its scores shape the draft, and what a policy sees."""
    return fingerprint if calibration is None else f"{fingerprint}-calibrated-{calibration.digest()}"


def _levels(fits: Sequence[TemperatureFit], temperature: float) -> tuple[LevelScale, ...]:
    low, high, share = _around(fits, temperature)
    held = min(temperature, fits[-1].temperature or temperature)
    levels = []
    for depth in range(max(len(low.levels), len(high.levels))):
        one, other = (fit.levels[min(depth, len(fit.levels) - 1)] for fit in (low, high))
        scale = _mix(one.kappa * (low.temperature or 1.0), other.kappa * (high.temperature or 1.0), share)
        levels.append(LevelScale(scale / (held or 1.0), _mix(one.a, other.a, share)))
    return tuple(levels)


def _lookup(fits: Sequence[TemperatureFit], temperature: float) -> tuple[float, ...]:
    low, high, share = _around(fits, temperature)
    return tuple(_mix(*ends, share) for ends in zip(low.lookup, high.lookup, strict=True))


def _around(
    fits: Sequence[TemperatureFit], temperature: float
) -> tuple[TemperatureFit, TemperatureFit, float]:
    """The fits below and above, and how far it is from one to the other; the same one twice at a fit's own
    temperature and outside of all."""
    place = bisect_left([fit.temperature for fit in fits], temperature)
    nearest = fits[min(place, len(fits) - 1)]
    if place == 0 or nearest.temperature <= temperature:
        return nearest, nearest, 0.0
    low, high = fits[place - 1], fits[place]
    return low, high, (temperature - low.temperature) / (high.temperature - low.temperature)


def _mix(low: float, high: float, share: float) -> float:
    return low + share * (high - low)
