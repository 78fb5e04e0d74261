"""What the policies learn from: recordings and profiles, made first where none are given, as tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.progress import track

from commands.alone import alone_in
from commands.headroom import progress_console
from commands.profile import profile as measure_profile
from commands.same_models import check_extra_layers, check_same
from commands.traces import record_traces
from configs.schema import Config
from decoding.controller import RootChoice
from decoding.cycle_features import CycleFeatures
from decoding.decision_costs import DecisionCosts, decision_costs, joined_costs
from decoding.decision_table import DecisionTable, decision_table, joined_tables
from decoding.decisions import Decisions
from decoding.decoder import SpeculativeDecoder
from decoding.profile import PROFILE_FILE, CostProfile
from decoding.trace_file import TraceHeader
from decoding.trace_folder import count_drafts, read_traces, recorded_seed
from decoding.workload import Request, load_workload, select


@dataclass(frozen=True)
class Recorded:
    """Texts of one or more recordings.

    Attributes:
        table, costs: of all texts.
        by_temperature: the same of the recordings at each.
    """

    table: DecisionTable
    costs: DecisionCosts
    by_temperature: dict[float, tuple[DecisionTable, DecisionCosts]]


def recordings(config: Config, out: Path, keep: Callable[[], None]) -> tuple[Path, Path]:
    """Folders of the training and the validation recordings; those that the configuration does not name are
    made in `out`, or gone on with. `keep` is called where a killed recording would go on."""
    given = config.policy.cycle
    found = []
    for split, path in (("train", given.traces), ("validation", given.validation_traces)):
        if path is None:
            path = out / "traces" / split
            with alone_in(path):
                record_traces(recording_config(config, split), path, keep)
        found.append(path)
    return found[0], found[1]


def recording_config(config: Config, split: str) -> Config:
    """How the recording of a split is made: texts that the target wrote are to learn from alone."""
    update: dict[str, object] = {"split": split}
    if split == "validation":
        most = config.workload.validation_prompts
        update |= {"texts": None, "prompts": config.traces.prompts if most is None else most}
    return config.model_copy(update={"traces": config.traces.model_copy(update=update)})


def begun_seed(out: Path) -> int | None:
    """The seed that recordings in `out` were begun with, None if there are none yet."""
    found = (recorded_seed(path.parent) for path in sorted((out / "traces").glob("*/*/traces.json")))
    return next((seed for seed in found if seed is not None), None)


def live_requests(config: Config, decoder: SpeculativeDecoder) -> tuple[list[Request], list[Request]]:
    """Training and validation prompts of the live phase; ValueError if there are none, or one is too long."""
    workload, limits = load_workload(config.workload.files), config.workload
    train = select(workload, "train", limits.train_prompts, limits.categories, limits.languages)
    held_out = select(workload, "validation", limits.validation_prompts, limits.categories, limits.languages)
    decoder.check_prompts({request.question_id: request.turns[0] for request in [*train, *held_out]})
    return train, held_out


def profiles(config: Config, out: Path, temperatures: list[float]) -> list[CostProfile]:
    """Those that the configuration names, or of the lowest and the highest of these temperatures, measured
    into `out` where they are not there yet."""
    given = config.policy.cycle
    if given.profiles is not None:
        known = [CostProfile.load(path) for path in profile_paths(config)]
        for profile in known:
            check_extra_layers(profile, config)
        return known
    # Whatever the policy may ask to be verified has to have a cost.
    most = max(config.profile.max_size, given.verification_sizes[-1])
    config = config.model_copy(update={"profile": config.profile.model_copy(update={"max_size": most})})
    found = []
    for temperature in sorted({min(temperatures), max(temperatures)}):
        folder = out / "profile" / f"T{temperature:g}"
        if not (folder / PROFILE_FILE).exists():
            sampling = config.sampling.model_copy(update={"temperature": temperature})
            with alone_in(folder):
                measure_profile(config.model_copy(update={"sampling": sampling}), folder)
        found.append(CostProfile.load(folder / PROFILE_FILE))
    return found


def profile_files(config: Config, out: Path, temperatures: Sequence[float]) -> list[Path]:
    """Where `profiles` reads them from."""
    if config.policy.cycle.profiles is not None:
        return profile_paths(config)
    ends = sorted({min(temperatures), max(temperatures)})
    return [out / "profile" / f"T{temperature:g}" / PROFILE_FILE for temperature in ends]


def profile_paths(config: Config) -> list[Path]:
    """Of the profiles that the configuration names."""
    given = config.policy.cycle.profiles
    if given is None:
        return []
    return list(given) if isinstance(given, list) else [given]


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


def decisions_of(config: Config, found: Sequence[TraceHeader]) -> Decisions:
    """What can be decided about the drafter of some recordings, as deep as all of them go; ValueError if they
    are of several drafters."""
    first = found[0].fingerprints["drafter"]
    for header in found:
        tokens_of(header)
        if header.fingerprints["drafter"] != first:
            raise ValueError(
                f"recordings are of drafter {first} and of {header.fingerprints['drafter']}: record them"
                " with one"
            )
    depth = min(config.draft.max_depth, *(header.draft_depth for header in found))
    return Decisions(choices_of(found[0]), depth, tuple(config.policy.cycle.verification_sizes))


def choices_of(header: TraceHeader) -> tuple[RootChoice, ...]:
    """What it was drafted with; ValueError if the recording does not say."""
    try:
        return tuple(RootChoice[str(name).upper()] for name in header.note["choices"])
    except (KeyError, TypeError) as error:
        raise _unknown(error) from None


def tokens_of(header: TraceHeader) -> int:
    """The limit of its texts; ValueError if the recording does not say."""
    try:
        return int(header.note["max_new_tokens"])
    except (KeyError, TypeError, ValueError) as error:
        raise _unknown(error) from None


def _unknown(error: Exception) -> ValueError:
    return ValueError(f"the trace's note does not say how it was recorded ({error}): record again")


def read_recorded(
    folder: Path,
    decisions: Decisions,
    costs: list[CostProfile],
    question_seconds: float,
    temperatures: Sequence[float] | None = None,
) -> Recorded:
    """The tables of every recording in a folder, or of those at `temperatures`.

    Raises:
        ValueError: a recording is of other models than a profile, or lacks what the decisions need; there is
            none at one of the temperatures.
    """
    parts: dict[float, list[tuple[DecisionTable, DecisionCosts]]] = {}
    there = {one: read_traces(one)[0].temperature for one in recording_folders(folder)}
    missing = sorted(set(temperatures or ()) - set(there.values()))
    if missing:
        held = ", ".join(f"{one:g}" for one in sorted(set(there.values())))
        raise ValueError(
            f"{folder} holds recordings at temperatures {held}, none at {missing[0]:g}: record that one too"
        )
    for one in there:
        if temperatures is not None and there[one] not in temperatures:
            continue
        header, texts = read_traces(one)
        profile = nearest(costs, header.temperature)
        check_same(header.fingerprints, profile.fingerprints, f"recording {one}", "the profile")
        check_levels(profile, decisions.max_depth, "the profile")
        features = CycleFeatures(decisions.sizes, decisions.max_depth, header.temperature)
        drafts = count_drafts(one) // len(choices_of(header))
        said = f"reading {one.name}, {drafts} positions"
        shown = track(texts, said, console=progress_console(), transient=True)
        composite = header.drafter.startswith("composite")
        table = decision_table(shown, decisions, features, tokens_of(header), composite)
        largest = int(table.size_PNS.max())
        if largest > profile.max_size:
            raise ValueError(
                f"the profile knows verifications of up to {profile.max_size} nodes, the policy may ask for"
                f" {largest}: profile again with --set profile.max_size={largest}, or lower"
                " policy.cycle.verification_sizes"
            )
        known = table, decision_costs(table, profile, question_seconds)
        parts.setdefault(header.temperature, []).append(known)
    by_temperature = {temperature: _joined(some) for temperature, some in parts.items()}
    return Recorded(*_joined(list(by_temperature.values())), by_temperature)


def _joined(parts: list[tuple[DecisionTable, DecisionCosts]]) -> tuple[DecisionTable, DecisionCosts]:
    tables, seconds = zip(*parts, strict=True)
    return joined_tables(tables), joined_costs(seconds)


def nearest(costs: list[CostProfile], temperature: float) -> CostProfile:
    """The profile measured at the nearest temperature; of equals the first."""
    return min(costs, key=lambda each: abs(each.conditions.temperature - temperature))


def check_levels(profile: CostProfile, depth: int, what: str) -> None:
    """ValueError unless it was measured with as many draft levels as the policy may ask for. How many a
    lookup alone has depends on the texts: `decision_costs` looks at these."""
    known = len(profile.levels[profile.source(False)])
    if known < depth:
        raise ValueError(
            f"{what} knows {known} draft levels, the recordings and draft.max_depth ask for {depth}: profile"
            f" again with --set draft.max_depth={depth}, or set draft.max_depth={known} here"
        )
