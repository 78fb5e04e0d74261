"""Hand-written rules in an evaluation: how they were fitted, and as what they decide."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from commands.recorded import Recorded, choices_of, nearest
from commands.recorded_sessions import RecordedTexts
from decoding.artifacts import read_json, write_json
from decoding.cycle_features import CycleFeatures
from decoding.decisions import Decisions
from decoding.exported_cycle import ExportedCycle
from decoding.profile import CostProfile
from policies.baselines import ExpectedGain, best_constant, fit_expected_gain
from policies.baselines.offers import Offers
from policies.baselines.rules import RULES, Factory, rule_called
from policies.baselines.tuning import Trial, tune

EXPECTED_GAIN = "expected gain"
EXPECTED_GAIN_SOURCE = "CAST, arXiv 2510.26577; vLLM's adaptive verification"


def expected_gain(
    validation: Recorded, costs: Sequence[CostProfile], policies: Sequence[ExportedCycle]
) -> dict[str, dict[str, Any]]:
    """The rule by temperature: as it was fitted on the training texts of a policy, which are more, else on
    the validation texts."""
    for policy in policies:
        fitted = policy.info.validation.get("expected_gain")
        if isinstance(fitted, dict) and fitted:
            return dict(fitted)
    rules = {}
    for temperature, (table, seconds) in validation.by_temperature.items():
        chosen, constants = best_constant(table, seconds)
        rate = table.positions / float(constants[chosen].sum())
        rule = fit_expected_gain(table, seconds, nearest(list(costs), temperature), rate)
        rules[f"{temperature:g}"] = rule.fitted
    return rules


def rule_at(
    fitted: Mapping[str, Mapping[str, Any]], decisions: Decisions, profile: CostProfile, temperature: float
) -> ExpectedGain:
    """Expected gain as it was fitted at the nearest temperature; ValueError if it is not such a rule."""
    try:
        own = fitted[min(fitted, key=lambda one: abs(float(one) - temperature))]
        features = CycleFeatures(decisions.sizes, decisions.max_depth, temperature)
        return ExpectedGain(features, decisions, profile, **own)
    except (TypeError, ValueError) as error:
        raise ValueError(f"the policy's expected-gain rule is damaged ({error}): train again") from None


@dataclass(frozen=True)
class TunedRule:
    """A rule of another paper or decoder as it was tuned on validation texts.

    Attributes:
        parameters, seconds: the chosen ones, and what all validation texts take with them.
        tried: how many candidates were.
    """

    name: str
    parameters: Mapping[str, Any]
    seconds: float
    tried: int

    @property
    def source(self) -> str:
        """Where it comes from."""
        return RULES[self.name].source

    @property
    def tuned(self) -> str:
        """What was chosen, for a report."""
        own = ", ".join(f"{name} {_spelled(value)}" for name, value in self.parameters.items())
        return f"{own}; the best of {self.tried} on validation texts"


def tuned_rules(
    names: Sequence[str],
    validation: Sequence[RecordedTexts],
    offers: Offers,
    identity: Mapping[str, Any],
    file: Path,
    say: Callable[[int, int, str], None],
) -> list[TunedRule]:
    """Tune each rule; what a killed run tuned already is read back.

    Args:
        offers: constants to choose from.
        identity: of the recordings and costs; a file that was begun with others is begun anew.
        say: called with (rules done, rules, what is tried).
    """
    rules = [rule_called(name) for name in names]
    # As JSON says it, where a tuple is a list: what is read back must equal what was written.
    wanted = _as_json(dict(identity) | {"offers": repr(offers)})
    known: dict[str, Any] = read_json(file, "tuned rules") if file.exists() else {}
    if known.get("identity") != wanted or not isinstance(known.get("rules"), dict):
        known = {"identity": wanted, "rules": {}}
    for done, rule in enumerate(rules):
        if rule.name in known["rules"]:
            continue

        def tell(trial: Trial, done: int = done, name: str = rule.name) -> None:
            say(done, len(rules), f"{name} {trial.parameters}")

        one = tune(rule, lambda: chain.from_iterable(one.sessions() for one in validation), offers, tell)
        known["rules"][rule.name] = _as_json(one.to_json())
        write_json(file, known)
    try:
        return [_tuned(rule.name, known["rules"][rule.name], offers) for rule in rules]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"tuned rules {file} are damaged ({error}): remove the file, and they are tuned again"
        ) from None


def _tuned(name: str, raw: Mapping[str, Any], offers: Offers) -> TunedRule:
    rule_factory(name, raw["parameters"], offers)()
    found = TunedRule(name, raw["parameters"], float(raw["seconds"]), len(raw["tried"]))
    if not 0 < found.seconds < math.inf:
        raise ValueError(f"{name} takes {found.seconds} seconds")
    return found


def _as_json(value: Any) -> Any:
    return json.loads(json.dumps(value))


def offers_of(texts: Sequence[RecordedTexts], most: int) -> Offers:
    """What rules choose their constants from: sizes whose costs are known, up to `most`."""
    deepest = min(one.header.draft_depth for one in texts)
    usual = Offers.of(choices_of(texts[0].header), deepest)
    return replace(usual, sizes=tuple(size for size in usual.sizes if size <= most) or (most,))


def rule_factory(name: str, parameters: Mapping[str, Any], offers: Offers) -> Factory:
    """Controllers of a rule whose parameters come from JSON."""
    own = {key: tuple(value) if isinstance(value, list) else value for key, value in parameters.items()}
    return rule_called(name).make(own, offers)


def seconds_of_rule(make: Factory, texts: Sequence[RecordedTexts]) -> np.ndarray:
    """(T) of all texts, each with a controller of its own."""
    return np.array(
        [
            sum(record.seconds.total for record in session.run(make()))
            for one in texts
            for session in one.sessions()
        ]
    )


def _spelled(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
