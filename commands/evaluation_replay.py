"""The replay of an evaluation: recordings and profiles, made where none are given, and all arms on them.

Legend: T texts, B questions, F features, A actions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from commands.evaluation_rules import EXPECTED_GAIN, EXPECTED_GAIN_SOURCE, expected_gain, rule_at
from commands.recorded import (
    Recorded,
    decisions_of,
    headers,
    nearest,
    profile_files,
    profiles,
    read_recorded,
    recording_config,
)
from commands.traces import record_traces
from configs.schema import Config
from decoding.decision_costs import DecisionCosts
from decoding.decision_schedule import shortest_seconds
from decoding.decision_table import DecisionTable
from decoding.decision_walk import Decide, replay_texts
from decoding.decisions import Decisions
from decoding.exported import Network
from decoding.exported_cycle import Exported, ExportedCycle
from decoding.profile import CostProfile
from decoding.setting import Setting
from decoding.workload import default_group
from evaluation.replayed import ReplayedArm, Texts, edge_warnings
from policies.baselines import best_constant, constant

Part = tuple[DecisionTable, DecisionCosts]


@dataclass(frozen=True)
class ReplayStage:
    """What replay found.

    Attributes:
        decisions: that constants and rules follow.
        texts, arms, grid: of the test recordings; arms with plain decoding first.
        best: the constants best on validation texts, the best first, plain decoding left out.
        expected_gain: `ExpectedGain.fitted` by temperature.
        costs: profiles. warnings: one line each.
        folders: of the test recordings, and of the validation recordings.
        profiles: files of `costs`. drafter: name of the recordings'.
    """

    decisions: Decisions
    texts: Texts
    arms: list[ReplayedArm]
    grid: dict[Setting, np.ndarray]
    best: list[Setting]
    expected_gain: dict[str, dict[str, Any]]
    costs: list[CostProfile]
    warnings: list[str]
    folders: tuple[Path, Path]
    profiles: list[Path]
    drafter: str


def recorded_folders(config: Config, out: Path) -> tuple[Path, Path]:
    """Folders of the test and the validation recordings; those that are not named are made in `out`."""
    given = config.evaluation
    found = []
    for split, path in (("test", given.traces), ("validation", given.validation_traces)):
        if path is None:
            path = out / "traces" / split
            own = recording_config(config, split)
            update: dict[str, Any] = {"temperatures": given.used_temperatures(config.sampling.temperature)}
            if split == "test":
                update |= {"prompts": given.prompts, "texts": None}
            record_traces(own.model_copy(update={"traces": own.traces.model_copy(update=update)}), path)
        found.append(path)
    return found[0], found[1]


def replay_stage(config: Config, out: Path, policies: Mapping[str, Exported]) -> ReplayStage:
    """Record and profile what is missing, and replay every arm that needs no clock.

    Args:
        policies: by the name of their arm; pairs are left out, they decide on other features.
    """
    folders = recorded_folders(config, out)
    temperatures = config.evaluation.used_temperatures(config.sampling.temperature)
    costs = profiles(config, out, temperatures)
    files = profile_files(config, out, temperatures)
    cycles = {name: one for name, one in policies.items() if isinstance(one, ExportedCycle)}
    decisions = grid_decisions(config, folders, list(cycles.values()))
    question = config.policy.cycle.question_microseconds / 1e6
    test, validation = (read_recorded(one, decisions, costs, question, temperatures) for one in folders)
    _, on_validation = best_constant(validation.table, validation.costs)
    plain, *drafting = on_validation
    best = sorted(drafting, key=lambda one: float(on_validation[one].sum()))
    _, grid = best_constant(test.table, test.costs)
    rules = expected_gain(validation, costs, list(cycles.values()))
    arms = [ReplayedArm("plain", "plain", grid[plain])]
    arms += _constants(grid, best)
    arms.append(_ruled(test, costs, rules))
    for name, policy in cycles.items():
        arms.append(ReplayedArm(name, "learned", decided_seconds(test, decide_of(policy))))
    arms.append(ReplayedArm("clairvoyant", "bound", clairvoyant(test)))
    said = edge_warnings(best[0], list(grid))
    drafter = headers(folders[0])[0].drafter
    return ReplayStage(decisions, _texts(test), arms, grid, best, rules, costs, said, folders, files, drafter)


def grid_decisions(config: Config, folders: Sequence[Path], policies: Sequence[ExportedCycle]) -> Decisions:
    """The policies' own, else those of the configuration, as deep as the recordings go; ValueError if the
    policies do not agree."""
    found = [header for folder in folders for header in headers(folder)]
    own = decisions_of(config, found)
    known = {one.info.decisions for one in policies}
    if len(known) > 1:
        raise ValueError("the policies choose from different actions: evaluate them one by one")
    if not known:
        return own
    wanted = known.pop()
    deepest = min(header.draft_depth for header in found)
    if wanted.max_depth > deepest:
        raise ValueError(
            f"the policy drafts up to {wanted.max_depth} levels, the recordings {deepest}: record them with"
            f" --set traces.draft_depth={wanted.max_depth}"
        )
    return wanted


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


def _constants(grid: Mapping[Setting, np.ndarray], best: Sequence[Setting]) -> list[ReplayedArm]:
    """The best two of the validation texts, and the best of these very texts."""
    hindsight = min(grid, key=lambda one: float(grid[one].sum()))
    names = [("best fixed", best[0]), *([("second fixed", best[1])] if len(best) > 1 else [])]
    return [
        *(ReplayedArm(name, "fixed", grid[one], tuned=f"{one}, by validation texts") for name, one in names),
        ReplayedArm("best fixed in hindsight", "fixed", grid[hindsight], tuned=f"{hindsight}, in hindsight"),
    ]


def _ruled(test: Recorded, costs: list[CostProfile], fitted: dict[str, dict[str, Any]]) -> ReplayedArm:
    def seconds(table: DecisionTable, own: DecisionCosts, temperature: float) -> np.ndarray:
        rule = rule_at(fitted, table.decisions, nearest(costs, temperature), temperature)
        return replay_texts(table, own, rule)

    growths = ", ".join(f"T {name}: {one['growth']:g}" for name, one in fitted.items())
    return ReplayedArm(
        EXPECTED_GAIN, "rule", over_parts(test, seconds), EXPECTED_GAIN_SOURCE, f"growth by {growths}"
    )


def _texts(recorded: Recorded) -> Texts:
    table = recorded.table
    return Texts(
        table.names,
        tuple(
            default_group(name, language or None)
            for name, language in zip(table.names, table.languages, strict=True)
        ),
        table.categories,
        np.concatenate([np.full(part.texts, one) for one, (part, _) in recorded.by_temperature.items()]),
        table.starts[1:] - table.starts[:-1],
    )
