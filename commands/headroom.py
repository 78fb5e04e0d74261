"""`train.py headroom`: what is to be gained on recorded texts, before anything is trained."""

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

from decoding.controller import RootChoice
from decoding.profile import CostProfile
from decoding.replay import Action, action_grid, text_table
from decoding.trace_file import TraceHeader
from decoding.trace_folder import read_traces
from evaluation.headroom import Arm, TextCosts, best_of_each_choice, edges, headroom, text_costs

SIZES = (1, 2, 3, 4, 5, 6, 8, 12, 16)


def parser() -> argparse.ArgumentParser:
    """Every flag of the command."""
    flags = argparse.ArgumentParser(prog="train.py headroom", description=__doc__, allow_abbrev=False)
    flags.add_argument("traces", type=Path, help="folder of one recording, e.g. runs/traces/T0")
    flags.add_argument("--profile", type=Path, required=True, help="profile.json of train.py profile")
    flags.add_argument("--json", action="store_true", help="print JSON instead of tables")
    return flags


def run(arguments: Sequence[str]) -> None:
    """Read, replay, print."""
    options = parser().parse_args(arguments)
    profile = CostProfile.load(options.profile)
    header, texts = read_traces(options.traces)
    check_pair(profile, header)
    for warning in mismatches(profile, header):
        print(f"warning: {warning}", file=sys.stderr)
    actions = actions_of(profile, header)
    composite = header.drafter.startswith("composite")
    costs = [
        text_costs(text_table(text, actions, int(header.note["max_new_tokens"]), composite), profile)
        for text in track(texts, "replaying", console=Console(stderr=True), transient=True)
    ]
    found = {
        "arms": headroom(costs, actions),
        "best_of_each_choice": best_of_each_choice(costs, actions),
    }
    if options.json:
        print(json.dumps(as_json(found, costs, header), indent=2))
        return
    console = Console() if sys.stdout.isatty() else Console(width=110)
    tokens = sum(one.tokens for one in costs)
    console.print(
        f"{len(costs)} texts, {tokens} tokens, {header.drafter}, temperature {header.temperature:g}; replay"
        f" with the costs of {profile.conditions.device}"
    )
    console.print(_table("over plain decoding (constants in hindsight)", found["arms"]))
    console.print(_table("best constant of each choice at the root", found["best_of_each_choice"]))
    for warning in edges(costs, actions):
        print(f"warning: {warning}", file=sys.stderr)


def check_pair(profile: CostProfile, header: TraceHeader) -> None:
    """ValueError if the profile is of another target or tokenizer than the trace."""
    for what in ("target", "tokenizer"):
        if profile.fingerprints[what] != header.fingerprints[what]:
            raise ValueError(
                f"the profile is of {what} {profile.fingerprints[what]}, the trace of "
                f"{header.fingerprints[what]}: profile the models of the trace"
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


def actions_of(profile: CostProfile, header: TraceHeader) -> tuple[Action, ...]:
    """The grid that trace and profile know both."""
    try:
        choices = [RootChoice[name.upper()] for name in header.note["choices"]]
        int(header.note["max_new_tokens"])
    except (KeyError, AttributeError, TypeError, ValueError) as error:
        raise ValueError(f"the trace's note does not say how it was recorded ({error})") from None
    deepest = min(header.draft_depth, max(len(table) for table in profile.levels.values()))
    sizes = [size for size in SIZES if size <= profile.max_size]
    return action_grid(choices, range(1, deepest + 1), sizes)


def as_json(found: dict[str, list[Arm]], costs: Sequence[TextCosts], header: TraceHeader) -> dict[str, Any]:
    """What `--json` prints."""
    return {
        "texts": len(costs),
        "tokens": sum(one.tokens for one in costs),
        "drafter": header.drafter,
        "temperature": header.temperature,
        **{name: [asdict(arm) for arm in arms] for name, arms in found.items()},
    }


def _table(title: str, arms: Sequence[Arm]) -> Table:
    table = Table(title=title)
    for column in ("", "setting", "tokens/s", "over plain", "95 % interval"):
        table.add_column(column, justify="left" if column in ("", "setting") else "right")
    for arm in arms:
        table.add_row(
            arm.name,
            arm.setting,
            f"{arm.tokens_per_second:.1f}",
            f"{arm.ratio:.3f}",
            f"{arm.low:.3f} .. {arm.high:.3f}",
        )
    return table
