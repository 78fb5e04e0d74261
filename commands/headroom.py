"""`train.py headroom`: what is to be gained on recorded texts, before a policy is trained."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track
from rich.table import Table

from commands.profile_table import doubts
from decoding.controller import RootChoice
from decoding.cycle_features import CycleFeatures
from decoding.decision_costs import DecisionCosts, decision_costs
from decoding.decision_schedule import shortest_seconds
from decoding.decision_table import DecisionTable, decision_table
from decoding.decisions import Decisions
from decoding.profile import CostProfile
from decoding.trace_file import TraceHeader
from decoding.trace_folder import read_traces
from evaluation.headroom import Arm, Replayed, best_of_each_choice, edges, headroom
from policies.baselines import best_constant

SIZES = (1, 2, 3, 4, 5, 6, 8, 12, 16)
ADVICE = "expected gain and the reachable bound are learned from another recording: give one with --train"


def parser() -> argparse.ArgumentParser:
    """Every flag of the command."""
    flags = argparse.ArgumentParser(prog="train.py headroom", description=__doc__, allow_abbrev=False)
    flags.add_argument("traces", type=Path, help="folder of one recording, e.g. runs/traces/T0")
    flags.add_argument("--profile", type=Path, required=True, help="profile.json of train.py profile")
    flags.add_argument("--train", type=Path, help="folder of a recording that rules and bound learn from")
    flags.add_argument("--json", action="store_true", help="print JSON instead of tables")
    return flags


def run(arguments: Sequence[str]) -> None:
    """Read, replay, print."""
    options = parser().parse_args(arguments)
    profile = CostProfile.load(options.profile)
    header, _ = read_traces(options.traces)
    check_pair(profile, header, options.traces)
    decisions = decisions_of(profile, header)
    if options.train is not None:
        check_training(profile, options.train, header, decisions)
    for warning in [*mismatches(profile, header), *left_out(decisions, header)]:
        print(f"warning: {warning}", file=sys.stderr)
    table = read_table(options.traces, decisions)
    costs = decision_costs(table, profile)
    learned: dict[str, Any] = {}
    note = ADVICE
    if options.train is not None:
        from commands.headroom_rules import learned_rules

        learned, note = learned_rules(read_table(options.train, decisions), table, profile)
    found = replayed(table, costs, profile, learned)
    arms = {"arms": headroom(found), "best_of_each_choice": best_of_each_choice(found)}
    if options.json:
        print(json.dumps(as_json(arms, table, header, note), indent=2))
        return
    console = Console() if sys.stdout.isatty() else Console(width=120)
    console.print(
        f"{table.texts} texts, {table.positions} tokens, {header.drafter}, temperature"
        f" {header.temperature:g}; replay with the costs of {profile.conditions.device}"
    )
    console.print(_table("over plain decoding (constants in hindsight)", arms["arms"]))
    console.print(note, soft_wrap=True)
    console.print(_table("best constant of each choice at the root", arms["best_of_each_choice"]))
    for warning in [*edges(found), *doubts(profile)]:
        print(f"warning: {warning}", file=sys.stderr)


def replayed(
    table: DecisionTable, costs: DecisionCosts, profile: CostProfile, rules: dict[str, Any]
) -> Replayed:
    """Constants and the best schedule, which asks nobody and pays for no question."""
    _, constants = best_constant(table, costs)
    free = decision_costs(table, profile, question_seconds=0.0)
    lengths_T = table.starts[1:] - table.starts[:-1]
    return Replayed(table.categories, lengths_T, constants, shortest_seconds(table, free), rules)


def read_table(folder: Path, decisions: Decisions) -> DecisionTable:
    """Of one recording."""
    header, texts = read_traces(folder)
    shown = track(texts, f"reading {folder}", console=progress_console(), transient=True)
    features = CycleFeatures(decisions.sizes, decisions.max_depth, header.temperature)
    composite = header.drafter.startswith("composite")
    return decision_table(shown, decisions, features, _most_tokens(header), composite)


def progress_console() -> Console:
    """What shows progress; into a file nothing is written, not even the line that rich ends it with."""
    return Console(stderr=True, quiet=not sys.stderr.isatty())


def check_pair(profile: CostProfile, header: TraceHeader, traces: Path | str = "the trace") -> None:
    """ValueError if the profile is of another target or tokenizer than the recording."""
    for what in ("target", "tokenizer"):
        if profile.fingerprints[what] != header.fingerprints[what]:
            raise ValueError(
                f"the profile is of {what} {profile.fingerprints[what]}, {traces} of "
                f"{header.fingerprints[what]}: profile the models of the trace"
            )


def check_training(profile: CostProfile, folder: Path, header: TraceHeader, decisions: Decisions) -> None:
    """ValueError if what is learned from this recording cannot decide about one with that header."""
    own, _ = read_traces(folder)
    check_pair(profile, own, folder)
    if own.fingerprints["drafter"] != header.fingerprints["drafter"]:
        raise ValueError(
            f"{folder} was recorded with drafter {own.fingerprints['drafter']}, the texts to replay with "
            f"{header.fingerprints['drafter']}: record the same drafts"
        )
    missing = [one.name.lower() for one in decisions.choices if one not in _choices(own)]
    if own.draft_depth < decisions.max_depth or missing:
        raise ValueError(
            f"{folder} has {own.draft_depth} levels of {', '.join(own.note['choices'])}, the texts to replay"
            f" need {decisions.max_depth} of {', '.join(one.name.lower() for one in decisions.choices)}"
        )


def mismatches(profile: CostProfile, header: TraceHeader) -> list[str]:
    """In which ways the profile's costs may not be those of the trace's cycles."""
    about = profile.conditions
    pairs = (
        ("drafter", about.drafter, header.drafter),
        ("temperature", about.temperature, header.temperature),
        ("dtype", about.dtype, header.dtype),
    )
    said = [
        f"the profile was measured with {name} {measured}, the trace has {recorded}: times may not fit"
        for name, measured, recorded in pairs
        if measured != recorded
    ]
    looks_up = any(word in header.drafter for word in ("merged", "composite", "ngram"))
    if looks_up and "lookup" not in profile.levels:
        said.append("the profile has no costs of a lookup alone: it is charged as the head's levels")
    return said


def left_out(decisions: Decisions, header: TraceHeader) -> list[str]:
    """What of the recording is not compared, as the profile has no costs of it."""
    if decisions.max_depth == header.draft_depth:
        return []
    return [
        f"the profile knows {decisions.max_depth} draft levels, the trace has {header.draft_depth}: deeper"
        f" drafts are left out; profile again with --set draft.max_depth={header.draft_depth}"
    ]


def decisions_of(profile: CostProfile, header: TraceHeader) -> Decisions:
    """What trace and profile know both."""
    deepest = min(header.draft_depth, len(profile.levels[profile.source(False)]))
    sizes = tuple(size for size in SIZES if size <= profile.max_size)
    _most_tokens(header)
    return Decisions(_choices(header), deepest, sizes)


def _choices(header: TraceHeader) -> tuple[RootChoice, ...]:
    try:
        return tuple(RootChoice[str(name).upper()] for name in header.note["choices"])
    except (KeyError, TypeError) as error:
        raise ValueError(f"the trace's note does not say how it was recorded ({error})") from None


def _most_tokens(header: TraceHeader) -> int:
    try:
        return int(header.note["max_new_tokens"])
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"the trace's note does not say how it was recorded ({error})") from None


def as_json(
    found: dict[str, list[Arm]], table: DecisionTable, header: TraceHeader, note: str
) -> dict[str, Any]:
    """What `--json` prints."""
    return {
        "texts": table.texts,
        "tokens": table.positions,
        "drafter": header.drafter,
        "temperature": header.temperature,
        "note": note,
        **{name: [asdict(arm) for arm in arms] for name, arms in found.items()},
    }


def _table(title: str, arms: Sequence[Arm]) -> Table:
    table = Table(title=title)
    shares = any(arm.of_clairvoyant is not None for arm in arms)
    columns = ["", "setting", "tokens/s", "over plain", "95 % interval"]
    columns += ["of reachable", "of clairvoyant"] if shares else []
    for column in columns:
        table.add_column(column, justify="left" if column in ("", "setting") else "right")
    for arm in arms:
        row = [arm.name, arm.setting, f"{arm.tokens_per_second:.1f}", f"{arm.ratio:.3f}"]
        row.append(f"{arm.low:.3f} .. {arm.high:.3f}")
        both = (arm.of_reachable, arm.of_clairvoyant) if shares else ()
        table.add_row(*row, *("" if share is None else f"{share:.0%}" for share in both))
    return table
