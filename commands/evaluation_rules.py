"""Hand-written rules in an evaluation: how they were fitted, and as what they decide."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from commands.recorded import Recorded, nearest
from decoding.cycle_features import CycleFeatures
from decoding.decisions import Decisions
from decoding.exported_cycle import ExportedCycle
from decoding.profile import CostProfile
from policies.baselines import ExpectedGain, best_constant, fit_expected_gain

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
