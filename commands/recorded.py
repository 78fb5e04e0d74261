"""What the policies learn from: recordings and profiles, made first where none are given, as tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import track

from commands.profile import profile as measure_profile
from commands.traces import record_traces
from configs.schema import Config
from decoding.controller import RootChoice
from decoding.cycle_features import CycleFeatures
from decoding.decision_costs import DecisionCosts, decision_costs, joined_costs
from decoding.decision_table import DecisionTable, decision_table, joined_tables
from decoding.decisions import Decisions
from decoding.profile import PROFILE_FILE, CostProfile
from decoding.trace_file import TraceHeader
from decoding.trace_folder import count_drafts, read_traces


@dataclass(frozen=True)
class Recorded:
    """Texts of one or more recordings.

    Attributes:
        table, costs: of all texts.
        by_temperature: the same of each recording alone.
    """

    table: DecisionTable
    costs: DecisionCosts
    by_temperature: dict[float, tuple[DecisionTable, DecisionCosts]]


def recordings(config: Config, out: Path) -> tuple[Path, Path]:
    """Folders of the training and the validation recordings; those that the configuration does not name are
    made in `out`, or gone on with."""
    given = config.policy.cycle
    found = []
    for split, path in (("train", given.traces), ("validation", given.validation_traces)):
        if path is None:
            path = out / "traces" / split
            update = {"split": split} | ({"texts": None} if split == "validation" else {})
            record_traces(config.model_copy(update={"traces": config.traces.model_copy(update=update)}), path)
        found.append(path)
    return found[0], found[1]


def profiles(config: Config, out: Path, temperatures: list[float]) -> list[CostProfile]:
    """Those that the configuration names, or of the lowest and the highest of these temperatures, measured
    into `out` where they are not there yet."""
    given = config.policy.cycle.profiles
    if given is not None:
        return [CostProfile.load(path) for path in (given if isinstance(given, list) else [given])]
    found = []
    for temperature in sorted({min(temperatures), max(temperatures)}):
        folder = out / "profile" / f"T{temperature:g}"
        if not (folder / PROFILE_FILE).exists():
            sampling = config.sampling.model_copy(update={"temperature": temperature})
            measure_profile(config.model_copy(update={"sampling": sampling}), folder)
        found.append(CostProfile.load(folder / PROFILE_FILE))
    return found


def recording_folders(folder: Path) -> list[Path]:
    """The recordings in a folder of `train.py traces`, or the folder itself if it is one."""
    if (folder / "traces.json").exists():
        return [folder]
    found = sorted(path.parent for path in folder.glob("*/traces.json"))
    if not found:
        raise ValueError(f"{folder} holds no recording: train.py traces makes one")
    return found


def headers(folder: Path) -> list[TraceHeader]:
    """Of every recording in the folder."""
    return [read_traces(one)[0] for one in recording_folders(folder)]


def decisions_of(config: Config, header: TraceHeader) -> Decisions:
    """What can be decided about the drafter of a recording."""
    try:
        choices = tuple(RootChoice[str(name).upper()] for name in header.note["choices"])
        int(header.note["max_new_tokens"])
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"the trace's note does not say how it was recorded ({error})") from None
    depth = min(config.draft.max_depth, header.draft_depth)
    return Decisions(choices, depth, tuple(config.policy.cycle.verification_sizes))


def read_recorded(
    folder: Path, decisions: Decisions, costs: list[CostProfile], question_seconds: float
) -> Recorded:
    """The tables of every recording in a folder.

    Raises:
        ValueError: a recording is of other models than a profile, or lacks what the decisions need.
    """
    parts: dict[float, tuple[DecisionTable, DecisionCosts]] = {}
    for one in recording_folders(folder):
        header, texts = read_traces(one)
        profile = nearest(costs, header.temperature)
        check_same(header.fingerprints, profile.fingerprints, f"recording {one}", "the profile")
        features = CycleFeatures(decisions.sizes, decisions.max_depth, header.temperature)
        drafts = count_drafts(one) // len(header.note["choices"])
        shown = track(
            texts, f"reading {one.name}, {drafts} positions", console=Console(stderr=True), transient=True
        )
        composite = header.drafter.startswith("composite")
        table = decision_table(shown, decisions, features, int(header.note["max_new_tokens"]), composite)
        parts[header.temperature] = table, decision_costs(table, profile, question_seconds)
    tables, seconds = zip(*parts.values(), strict=True)
    return Recorded(joined_tables(tables), joined_costs(seconds), parts)


def nearest(costs: list[CostProfile], temperature: float) -> CostProfile:
    """The profile measured at the nearest temperature; of equals the first."""
    return min(costs, key=lambda each: abs(each.conditions.temperature - temperature))


def check_same(mine: Mapping[str, str], others: Mapping[str, str], what: str, whose: str) -> None:
    """ValueError unless target and tokenizer are the same; a drafter's name may differ with its parts."""
    for name in ("target", "tokenizer"):
        if mine[name] != others[name]:
            raise ValueError(
                f"{what} is of {name} {mine[name]}, {whose} of {others[name]}: they do not belong together"
            )
