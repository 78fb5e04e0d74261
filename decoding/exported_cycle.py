"""Decode with an exported policy that takes every decision of a cycle: one small network in numpy.

A folder like that of `exported.py`: `policy.safetensors` holds `cycle.{layer}.{weight,bias}`, and
`policy.json` has "kind": "cycle".
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from decoding.artifacts import read_json
from decoding.calibration import Calibration
from decoding.controller import DraftView, QuestionKind
from decoding.cycle_features import CycleFeatures
from decoding.decisions import DecisionController, Decisions
from decoding.exported import (
    INFO_FILE,
    WEIGHTS_FILE,
    ExportedController,
    Network,
    check_models,
    read_network,
    read_weights,
)
from decoding.native_network import NativeNetwork, native_network
from decoding.setting import Setting, SettingDecider
from decoding.whole_folder import whole_folder

SCHEMA_VERSION = 1
KIND = "cycle"
_FINGERPRINTS = ("target", "drafter", "tokenizer")


@dataclass(frozen=True)
class CyclePolicyInfo:
    """What is known of a policy besides its weights.

    Attributes:
        decisions: its action table.
        features: what the network sees; the temperature is the request's.
        fingerprints, device, dtype, training, validation, calibration: as in `exported.PolicyInfo`.
        fallback: the best constant setting of the training texts.
        collapse: what the check for a collapsed policy found; empty: nothing.
    """

    decisions: Decisions
    features: CycleFeatures
    fingerprints: Mapping[str, str]
    device: str
    dtype: str
    training: Mapping[str, Any]
    validation: Mapping[str, Any]
    fallback: Setting
    calibration: Calibration | None = None
    collapse: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if (self.features.sizes, self.features.max_depth) != (self.decisions.sizes, self.decisions.max_depth):
            raise ValueError("its features and its decisions are of other sizes or depths")
        missing = [name for name in _FINGERPRINTS if not isinstance(self.fingerprints.get(name), str)]
        if missing:
            raise ValueError(f"fingerprints lack {', '.join(missing)}")

    def to_json(self) -> dict[str, Any]:
        """The content of `policy.json` without its `networks`."""
        return {
            "schema_version": SCHEMA_VERSION,
            "kind": KIND,
            "features": {
                "names": list(self.features.names),
                "cost_ratios": list(self.features.cost_ratios),
            },
            "decisions": self.decisions.to_json(),
            "actions": list(self.decisions.names),
            "fingerprints": dict(self.fingerprints),
            "device": self.device,
            "dtype": self.dtype,
            "training": dict(self.training),
            "validation": dict(self.validation),
            "fallback": self.fallback.to_json(),
            "calibration": None if self.calibration is None else self.calibration.to_json(),
            "collapse": list(self.collapse),
        }

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> CyclePolicyInfo:
        """The inverse of `to_json`. KeyError, TypeError or ValueError if `raw` is something else."""
        version = raw["schema_version"]
        if version != SCHEMA_VERSION:
            raise ValueError(f"schema_version is {version!r}, this code reads {SCHEMA_VERSION}: export again")
        decisions = Decisions.from_json(raw["decisions"])
        ratios = tuple(raw["features"]["cost_ratios"])
        features = CycleFeatures(decisions.sizes, decisions.max_depth, cost_ratios=ratios)
        # The names are the contract: the same code under other features would decide on other numbers.
        if tuple(raw["features"]["names"]) != features.names or tuple(raw["actions"]) != decisions.names:
            raise ValueError("its features or actions are not those that this code has: export again")
        return cls(
            decisions=decisions,
            features=features,
            fingerprints=dict(raw["fingerprints"]),
            device=str(raw["device"]),
            dtype=str(raw["dtype"]),
            training=dict(raw["training"]),
            validation=dict(raw["validation"]),
            fallback=Setting.from_json(raw["fallback"]),
            calibration=None if raw["calibration"] is None else Calibration.from_json(raw["calibration"]),
            collapse=tuple(str(one) for one in raw["collapse"]),
        )


class ExportedCycle(DecisionController):
    """Runs an exported policy greedily; a `decoding.controller.Controller`.

    Args:
        info: what the network sees and chooses from.
        network: the network.

    Attributes:
        fallbacks: decisions that could not be computed and were taken by `info.fallback` instead.
    """

    def __init__(self, info: CyclePolicyInfo, network: Network) -> None:
        check_ends(info, network)
        super().__init__(info.decisions, self)
        self.info = info
        self.network = network
        self.fallbacks = 0
        self._features: dict[float, CycleFeatures] = {}
        self._constant = SettingDecider(info.fallback, info.decisions)
        self._native: NativeNetwork | None = None
        self._view: DraftView | None = None  # of this cycle, with what all its questions share
        self._now, self._cycle = info.features, list[float]()

    @classmethod
    def load(cls, folder: Path | str) -> ExportedCycle:
        """Read a policy folder; one-line ValueError if it is missing, damaged or of another schema."""
        folder = whole_folder(Path(folder))
        raw = read_json(folder / INFO_FILE, "policy")
        try:
            info = CyclePolicyInfo.from_json(raw)
            widths, activation = list(raw["networks"][KIND]["widths"]), raw["networks"][KIND]["activation"]
        except KeyError as error:
            raise ValueError(f"policy {folder / INFO_FILE} lacks {error}: export it again") from None
        except (TypeError, AttributeError, ValueError) as error:
            raise ValueError(f"policy {folder / INFO_FILE} cannot be used: {error}") from None
        weights = read_weights(folder)
        try:
            return cls(info, read_network(weights, KIND, widths, activation))
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(
                f"policy weights {folder / WEIGHTS_FILE} do not fit {INFO_FILE}: {error}"
            ) from None

    def check(self, target_fingerprint: str, drafter_fingerprint: str, device: str, dtype: str) -> list[str]:
        """Refuse other models than it was trained for; return one warning for each other difference."""
        return check_models(self.info, target_fingerprint, drafter_fingerprint, device, dtype)

    def decide(self, kind: QuestionKind, view: DraftView, allowed: Sequence[bool]) -> int:
        if kind == "draft" or view is not self._view:
            features = self._features.get(view.temperature)
            if features is None:
                features = self._begin(view.temperature)
            self._view, self._now, self._cycle = view, features, features.of_cycle(view)
        draft = self._now.of_draft(view)
        if self._native is not None:
            action = self._native(draft, self._cycle, allowed)
        else:
            action = self._best([*draft, *self._cycle], allowed)
        if action < 0:
            self.fallbacks += 1
            return self._constant.decide(kind, view, allowed)
        return action

    def _begin(self, temperature: float) -> CycleFeatures:
        """The first decision at a temperature."""
        if not self._features:  # not before: a decoder loads native code with its target
            self._native = native_network(self.network)
        features = replace(self.info.features, temperature=temperature)
        self._features[temperature] = features
        return features

    def _best(self, entries: list[float], allowed: Sequence[bool]) -> int:
        """Without native code: what it decides, see `native_code/decision.h`."""
        outputs = self.network.outputs(np.array(entries, dtype=np.float32)).tolist()
        best, value = -1, -math.inf
        for action, output in enumerate(outputs):
            if not allowed[action]:
                continue
            if not -math.inf < output < math.inf:  # one that overflowed may have been the best, or the worst
                return -1
            if output > value:  # of equals the first, as in training
                best, value = action, output
        return best


def check_ends(info: CyclePolicyInfo, network: Network) -> None:
    """ValueError unless the network takes the features of `info` and gives one output an action."""
    ends = (network.widths[0], network.widths[-1])
    wanted = (len(info.features.names), len(info.decisions))
    if ends != wanted:
        raise ValueError(f"it maps {ends[0]} features to {ends[1]} actions, not {wanted[0]} to {wanted[1]}")


Exported = ExportedController | ExportedCycle


def load_policy(folder: Path | str) -> Exported:
    """A policy folder of either kind; one-line ValueError as theirs."""
    kind = read_json(whole_folder(Path(folder)) / INFO_FILE, "policy").get("kind", "pair")
    if kind not in ("pair", KIND):
        raise ValueError(f"policy {Path(folder) / INFO_FILE} is of kind {kind!r}, must be pair or {KIND}")
    return ExportedCycle.load(folder) if kind == KIND else ExportedController.load(folder)
