"""Arms of an evaluation's replay: what each takes for every recorded text.

Legend: T texts, B questions, F features, A actions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from commands.evaluation_rules import (
    EXPECTED_GAIN,
    EXPECTED_GAIN_SOURCE,
    TunedRule,
    offers_of,
    rule_at,
    rule_factory,
    seconds_of_rule,
    tuned_rules,
)
from commands.recorded import Recorded, nearest, recording_folders
from commands.recorded_sessions import recorded_texts
from configs.command import progress
from configs.schema import Config
from decoding.decision_costs import DecisionCosts
from decoding.decision_schedule import shortest_seconds
from decoding.decision_table import DecisionTable
from decoding.decision_walk import Decide, replay_texts
from decoding.exported import Network
from decoding.exported_cycle import ExportedCycle
from decoding.profile import CostProfile
from decoding.setting import Setting
from decoding.trace_folder import recording_identity
from evaluation.replayed import ReplayedArm
from policies.baselines import constant
from policies.baselines.offers import Offers
from policies.baselines.rules import RULES


def tuned_arms(
    config: Config, folders: tuple[Path, Path], costs: list[CostProfile], file: Path
) -> tuple[list[TunedRule], Offers, list[ReplayedArm]]:
    """Rules tuned on the validation recordings, the best first, and replayed on the test recordings."""
    question = config.policy.cycle.question_microseconds / 1e6
    temperatures = config.evaluation.used_temperatures(config.sampling.temperature)
    test, validation = (recorded_texts(one, costs, temperatures, question) for one in folders)
    identity = {
        "recordings": [recording_identity(one) for one in recording_folders(folders[1])],
        "costs": [one.to_json() for one in costs],
        "question": question,
        "temperatures": temperatures,
    }
    names = list(RULES) if config.evaluation.rules is None else list(dict.fromkeys(config.evaluation.rules))
    offers = offers_of(validation, min(one.max_size for one in costs))
    with progress("tuning rules") as show:
        tuned = tuned_rules(names, validation, offers, identity, file, show)
    tuned.sort(key=lambda one: one.seconds)
    arms = [
        ReplayedArm(
            one.name,
            "rule",
            seconds_of_rule(rule_factory(one.name, one.parameters, offers), test),
            one.source,
            one.tuned,
        )
        for one in tuned
    ]
    return tuned, offers, arms


def decide_of(policy: ExportedCycle) -> Decide:
    """An exported policy's answers to many questions at once; what it cannot compute its constant takes."""
    fallback = constant(policy.info.features, policy.info.decisions, policy.info.fallback)

    def decide(features_BF: np.ndarray, allowed_BA: np.ndarray) -> np.ndarray:
        outputs_BA = batch_outputs(policy.network, features_BF)
        sound_B = np.logical_and.reduce(np.isfinite(outputs_BA) | ~allowed_BA, axis=1)
        best_B = np.where(allowed_BA & sound_B[:, None], outputs_BA, -np.inf).argmax(axis=1)
        if sound_B.all():
            return best_B
        actions_B: np.ndarray = np.where(sound_B, best_B, fallback(features_BF, allowed_BA))
        return actions_B

    return decide


def batch_outputs(network: Network, features_BF: np.ndarray) -> np.ndarray:
    """(B, A) of `Network.outputs`."""
    x = features_BF.astype(np.float32)
    with np.errstate(all="ignore"):
        for number, (weight, bias) in enumerate(network.layers):
            if number:
                x = np.maximum(x, 0.0) if network.activation == "relu" else np.tanh(x)
            x = x @ weight.T + bias
    return x


def decided_seconds(recorded: Recorded, decide: Decide) -> np.ndarray:
    """(T) of all texts under these decisions."""
    return over_parts(recorded, lambda table, costs, _: replay_texts(table, costs, decide))


def over_parts(
    recorded: Recorded, seconds_of: Callable[[DecisionTable, DecisionCosts, float], np.ndarray]
) -> np.ndarray:
    """(T) of all temperatures, in the order of the joined table."""
    parts = recorded.by_temperature.items()
    return np.concatenate([seconds_of(table, costs, temperature) for temperature, (table, costs) in parts])


def clairvoyant(recorded: Recorded) -> np.ndarray:
    """(T) seconds of the best schedule, which knows the text and asks nobody."""
    return over_parts(recorded, lambda table, costs, _: shortest_seconds(table, replace(costs, question=0.0)))


def constant_arms(grid: Mapping[Setting, np.ndarray], best: Sequence[Setting]) -> list[ReplayedArm]:
    """The best two of the validation texts, and the best of these very texts."""
    hindsight = min(grid, key=lambda one: float(grid[one].sum()))
    names = [("best fixed", best[0]), *([("second fixed", best[1])] if len(best) > 1 else [])]
    return [
        *(ReplayedArm(name, "fixed", grid[one], tuned=f"{one}, by validation texts") for name, one in names),
        ReplayedArm("best fixed in hindsight", "fixed", grid[hindsight], tuned=f"{hindsight}, in hindsight"),
    ]


def expected_gain_arm(
    test: Recorded, costs: list[CostProfile], fitted: dict[str, dict[str, Any]]
) -> ReplayedArm:
    """The rule, at each temperature as it was fitted at the nearest."""

    def seconds(table: DecisionTable, own: DecisionCosts, temperature: float) -> np.ndarray:
        rule = rule_at(fitted, table.decisions, nearest(costs, temperature), temperature)
        return replay_texts(table, own, rule)

    growths = ", ".join(f"T {name}: {one['growth']:g}" for name, one in fitted.items())
    return ReplayedArm(
        EXPECTED_GAIN, "rule", over_parts(test, seconds), EXPECTED_GAIN_SOURCE, f"growth by {growths}"
    )
