"""The live arms of an evaluation: described in JSON, so that each repeat can be a process of its own, and
made for a decoder."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from commands.evaluation_rules import rule_at, rule_factory
from commands.recorded import nearest
from configs.schema import Config
from decoding.controller import Controller, DraftView, FixedController, PlainController, QuestionKind
from decoding.cycle_features import CycleFeatures
from decoding.decisions import DecisionController, Decisions
from decoding.decoder import SpeculativeDecoder, default_drafter
from decoding.drafters.load import load_drafter
from decoding.exported import ExportedController
from decoding.exported_cycle import Exported, ExportedCycle, load_policy
from decoding.profile import CostProfile
from decoding.setting import Setting, SettingDecider, setting_controller
from evaluation.protocol import Arm, ArmKind, FixedSetting, OpenSession
from policies.baselines import LiveExpectedGain
from policies.baselines.offers import Offers

Opener = Callable[[SpeculativeDecoder, float], OpenSession]


@dataclass(frozen=True)
class ArmSpec:
    """An arm as JSON.

    Attributes:
        name: unique in a run. kind, setting: as in `protocol.Arm`.
        how: what decides: {"usual": true}, {"setting": ..}, {"expected_gain": ..}, {"rule": name,
            "parameters": ..}, {"policy": folder}, {"overridden": folder, "setting": ..}; empty: plain steps.
        source, tuned: for the report.
        rest: it decodes the rest's prompts alone.
    """

    name: str
    kind: ArmKind
    how: Mapping[str, Any] = field(default_factory=dict)
    setting: FixedSetting | None = None
    source: str | None = None
    tuned: str | None = None
    rest: bool = False

    def to_json(self) -> dict[str, Any]:
        """For the plan of a run."""
        return asdict(self)

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> ArmSpec:
        """The inverse."""
        setting = raw["setting"]
        return cls(**{**raw, "setting": None if setting is None else FixedSetting(**setting)})


class Overridden:
    """Asks a policy and does what a setting says: what the policy costs, and nothing of what it gains."""

    def __init__(self, policy: ExportedCycle, setting: Setting) -> None:
        self._policy = policy
        self._setting = SettingDecider(setting, policy.decisions)

    def decide(self, kind: QuestionKind, view: DraftView, allowed: Sequence[bool]) -> int:
        self._policy.decide(kind, view, allowed)
        return self._setting.decide(kind, view, allowed)


class ArmMaker:
    """Makes arms for one process.

    Args:
        decoder: of all arms but those with a drafter of their own.
        decisions: that constants and rules follow.
        costs: profiles, of which a rule takes that of the nearest temperature.
        opener: opens sessions of a decoder at a temperature.
        offers: what the constants of rules were chosen from.
    """

    def __init__(
        self,
        decoder: SpeculativeDecoder,
        decisions: Decisions,
        costs: Sequence[CostProfile],
        opener: Opener,
        offers: Offers,
    ) -> None:
        self._offers = offers
        self._decoder, self._decisions, self._costs, self._opener = decoder, decisions, list(costs), opener
        self._policies: dict[str, Exported] = {}
        self._decoders: dict[str, SpeculativeDecoder] = {}

    def arm(self, spec: ArmSpec, temperature: float) -> Arm:
        """The arm at this temperature. ValueError as those of loading what it names."""
        make, own = self._controller(spec, temperature), None
        folder = spec.how.get("policy")
        if folder is not None and isinstance(self._policy(folder), ExportedController):
            own = self._opener(self._decoder_of(folder), temperature)
        return Arm(spec.name, make, spec.kind, spec.setting, own)

    def _controller(self, spec: ArmSpec, temperature: float) -> Callable[[], Controller]:
        how = spec.how
        if "usual" in how:
            drafter = self._decoder.drafter
            return partial(FixedController, drafter.draft_depth, drafter.verification_size)
        if "rule" in how:
            # A bandit's controllers share what they learn: one factory for all requests of a repeat.
            return rule_factory(how["rule"], how["parameters"], self._offers)
        if "expected_gain" in how:
            profile = nearest(self._costs, temperature)
            rule = rule_at(how["expected_gain"], self._decisions, profile, temperature)
            # One for all requests: its costs are looked up once.
            features = CycleFeatures(self._decisions.sizes, self._decisions.max_depth, temperature)
            shared = LiveExpectedGain(rule, features)
            return partial(DecisionController, self._decisions, shared)
        if "overridden" in how:
            policy, setting = self._policy(how["overridden"]), Setting.from_json(how["setting"])
            assert isinstance(policy, ExportedCycle)
            return partial(_overridden, policy, setting)
        if "setting" in how:
            return partial(setting_controller, Setting.from_json(how["setting"]), self._decisions)
        if "policy" in how:
            return partial(_fresh, self._policy(how["policy"]))
        return PlainController

    def _policy(self, folder: str) -> Exported:
        if folder not in self._policies:
            self._policies[folder] = load_policy(folder)
        return self._policies[folder]

    def _decoder_of(self, folder: str) -> SpeculativeDecoder:
        if folder not in self._decoders:
            self._decoders[folder] = decoder_of_pair(Path(folder), self._decoder)
        return self._decoders[folder]


def decoder_of_pair(folder: Path, decoder: SpeculativeDecoder) -> SpeculativeDecoder:
    """The same target with the drafter, beam and scores that a pair of policies was trained with."""
    pair = load_policy(folder)
    if not isinstance(pair, ExportedController):
        raise ValueError(f"--pair is {folder}, must hold a pair of policies: train one with configs/ltd.yaml")
    config = Config.model_validate(pair.info.training)
    name = config.model.drafter or default_drafter(config.model.target)
    draft = config.draft
    drafter = load_drafter(name, decoder.model, draft.beam_width, draft.min_match, draft.lookup_depth)
    other = SpeculativeDecoder(decoder.model, drafter)
    for warning in other.use_policy(folder):
        print(f"warning: {warning}", file=sys.stderr)
    return other


def _fresh(policy: Exported) -> Controller:
    """A controller of one request; a pair keeps nothing between requests."""
    return ExportedCycle(policy.info, policy.network) if isinstance(policy, ExportedCycle) else policy


def _overridden(policy: ExportedCycle, setting: Setting) -> Controller:
    return DecisionController(
        policy.info.decisions, Overridden(ExportedCycle(policy.info, policy.network), setting)
    )
