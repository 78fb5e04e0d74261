"""The replay of an evaluation: recordings and profiles, made where none are given, and all arms on them.

Legend: T texts, B questions, F features, A actions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from commands.evaluation_rules import (
    TunedRule,
    expected_gain,
)
from commands.recorded import (
    Recorded,
    check_levels,
    decisions_of,
    headers,
    profile_files,
    profiles,
    read_recorded,
    recording_config,
)
from commands.replayed_arms import (
    clairvoyant,
    constant_arms,
    decide_of,
    decided_seconds,
    expected_gain_arm,
    tuned_arms,
)
from commands.traces import record_traces
from configs.schema import Config
from decoding.decisions import Decisions
from decoding.exported_cycle import Exported, ExportedCycle
from decoding.profile import CostProfile
from decoding.setting import Setting
from decoding.workload import Request, default_group, load_workload
from evaluation.replayed import ReplayedArm, Texts, edge_warnings
from policies.baselines import best_constant
from policies.baselines.offers import Offers

RULES_FILE = "rules.json"


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
        rules: of other papers, tuned, the best on validation texts first. offers: their constants.
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
    rules: list[TunedRule]
    offers: Offers


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
    for profile, file in zip(costs, files, strict=True):
        check_levels(profile, decisions.max_depth, f"profile {file}")
    question = config.policy.cycle.question_microseconds / 1e6
    test, validation = (read_recorded(one, decisions, costs, question, temperatures) for one in folders)
    _, on_validation = best_constant(validation.table, validation.costs)
    plain, *drafting = on_validation
    best = sorted(drafting, key=lambda one: float(on_validation[one].sum()))
    _, grid = best_constant(test.table, test.costs)
    rules = expected_gain(validation, costs, list(cycles.values()))
    arms = [ReplayedArm("plain", "plain", grid[plain])]
    arms += constant_arms(grid, best)
    arms.append(expected_gain_arm(test, costs, rules))
    tuned, offers, ruled = tuned_arms(config, folders, costs, out / RULES_FILE)
    arms += ruled
    for name, policy in cycles.items():
        arms.append(ReplayedArm(name, "learned", decided_seconds(test, decide_of(policy))))
    arms.append(ReplayedArm("clairvoyant", "bound", clairvoyant(test)))
    said = edge_warnings(best[0], list(grid))
    drafter = headers(folders[0])[0].drafter
    return ReplayStage(
        decisions=decisions,
        texts=texts_of(test, load_workload(config.workload.files)),
        arms=arms,
        grid=grid,
        best=best,
        expected_gain=rules,
        costs=costs,
        warnings=said,
        folders=folders,
        profiles=files,
        drafter=drafter,
        rules=tuned,
        offers=offers,
    )


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


def texts_of(recorded: Recorded, workload: Iterable[Request]) -> Texts:
    """The recorded texts, in the groups that the workload gives its questions: those of the live part."""
    table = recorded.table
    known = {request.question_id: request.group for request in workload}
    return Texts(
        table.names,
        tuple(
            known.get(name) or default_group(name, language or None)
            for name, language in zip(table.names, table.languages, strict=True)
        ),
        table.categories,
        np.concatenate([np.full(part.texts, one) for one, (part, _) in recorded.by_temperature.items()]),
        table.starts[1:] - table.starts[:-1],
    )
