"""A training's policies beside constants, the rule and the bounds, in replay, on recorded texts of any split.

The configuration names what was trained on, as for `train.py policy`; `--run` is what that command wrote.
Constants and expected gain come from the same training texts. Every ratio is of tokens per second, of all
texts together, paired, with a 95 % bootstrap interval over questions: a question's translations and its
recordings at several temperatures are drawn together.

Legend: T texts, G groups of texts (questions).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from benchmarks.measure import ratio_of_sums, wide_console
from commands.cycle_policy import POLICY_WEIGHTS
from commands.headroom import progress_console
from commands.headroom_rules import NETWORK, SEED, TREES, WIDTH
from commands.recorded import Recorded, decisions_of, headers, nearest, profiles, read_recorded
from commands.yardsticks import World, make_world
from configs.command import add_flags, exit_code, read_config
from configs.schema import Config
from decoding.artifacts import load_tensors, write_json
from decoding.cycle_features import CycleFeatures
from decoding.decision_costs import DecisionCosts, decision_costs
from decoding.decision_schedule import shortest_seconds
from decoding.decision_table import DecisionTable
from decoding.decision_walk import Decide, replay_texts
from decoding.decisions import Decisions
from decoding.machine import use_threads
from decoding.profile import PROFILE_FILE, CostProfile
from decoding.setting import Setting
from decoding.workload import default_group
from policies.baselines import ExpectedGain, constant
from policies.full_information import greedy
from policies.masked_ppo import deciding_layers
from policies.reachable import reachable

CONSTANT = "constant of training"
HINDSIGHT = "constant in hindsight"
LEARNED = "learned"
FULL, PPO = "full information", "PPO"  # of all seeds
REACHABLE, CLAIRVOYANT = "reachable bound", "clairvoyant"

Part = tuple[DecisionTable, DecisionCosts]


@dataclass(frozen=True)
class Arms:
    """What was replayed.

    Attributes:
        seconds_T: of each arm, by name; the first is plain decoding.
        groups_T: the question of each text. temperature_T: of its recording.
    """

    seconds_T: dict[str, np.ndarray]
    groups_T: np.ndarray
    temperature_T: np.ndarray


def main(arguments: Sequence[str] | None = None) -> int:
    """Replay and print; 2 and one line for a user's mistake."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.replayed", description=__doc__, allow_abbrev=False
    )
    add_flags(parser)
    parser.add_argument("--run", type=Path, required=True, help="folder that train.py policy wrote to")
    parser.add_argument("--texts", type=Path, help="recordings to replay; default: those of validation")
    parser.add_argument("--bound", action="store_true", help="also train the reachable bound: minutes")
    options = parser.parse_args(arguments)
    return exit_code(
        lambda: run(read_config(options), options.run, options.texts, options.bound, options.out),
        "nothing was written",
    )


def run(config: Config, folder: Path, texts: Path | None, bound: bool, out: Path) -> None:
    """Measure, print, and write `OUT/replayed.json`."""
    config = with_made(config, folder)
    given = config.policy.cycle
    texts = texts or given.validation_traces
    if given.traces is None or texts is None or given.profiles is None:
        raise ValueError("policy.cycle.traces, .validation_traces and .profiles must be given: record first")
    decisions = decisions_of(config, [*headers(given.traces), *headers(texts)])
    nets = trained(folder, decisions)
    use_threads(config.threads)
    costs = profiles(config, out, [])
    question = given.question_microseconds / 1e6
    train, held_out = (read_recorded(one, decisions, costs, question) for one in (given.traces, texts))
    world = make_world(train, held_out, costs)
    arms = replayed(world, costs, nets, bound)
    console = wide_console()
    console.print(
        f"trained on {train.table.texts} texts, {train.table.positions} positions; constant of these"
        f" {world.constant}, best in hindsight {world.hindsight}"
    )
    found = {name: rows_of(arms, some_T) for name, some_T in parts_of(arms)}
    for name, rows in found.items():
        print_rows(console, f"{name}: {next(iter(rows.values()))['texts']} texts", rows)
    write_json(out / "replayed.json", found)
    print(f"wrote {out / 'replayed.json'}")


def with_made(config: Config, folder: Path) -> Config:
    """Recordings and profiles that the configuration does not name and that `train.py policy` made in its
    folder."""
    given = config.policy.cycle
    update: dict[str, Any] = {}
    for name, split in (("traces", "train"), ("validation_traces", "validation")):
        made = folder / "traces" / split
        if getattr(given, name) is None and made.exists():
            update[name] = made
    measured = sorted((folder / "profile").glob(f"*/{PROFILE_FILE}"))
    if given.profiles is None and measured:
        update["profiles"] = measured
    cycle = given.model_copy(update=update)
    return config.model_copy(update={"policy": config.policy.model_copy(update={"cycle": cycle})})


def trained(folder: Path, decisions: Decisions) -> dict[str, list[Decide]]:
    """The policies of a training, by arm; ValueError if there is none, or not of these decisions."""
    ends = len(CycleFeatures(decisions.sizes, decisions.max_depth).names), len(decisions)
    training = folder / "training"
    kept = training / POLICY_WEIGHTS
    if not kept.exists():
        raise ValueError(f"{folder} holds no finished training: train.py policy makes one")
    files = {
        LEARNED: [kept],
        FULL: sorted(training.glob("cycle-*/start-*.safetensors")),
        PPO: sorted(training.glob("cycle-*/checkpoint-*-finished.safetensors")),
    }
    found: dict[str, list[Decide]] = {}
    for name, paths in files.items():
        for path in paths:
            tensors = load_tensors(path, "policy weights")
            weights = {key.removeprefix("policy."): tensor for key, tensor in tensors.items()}
            try:
                layers = deciding_layers(weights)
                linear = [one for one in layers if isinstance(one, torch.nn.Linear)]
                mine = linear[0].in_features, linear[-1].out_features
                if mine != ends:
                    raise ValueError(
                        f"it maps {mine[0]} features to {mine[1]} actions, not {ends[0]} to {ends[1]}: give"
                        " the configuration that it was trained with"
                    )
                found.setdefault(name, []).append(greedy(layers))
            except (KeyError, RuntimeError, ValueError) as error:
                raise ValueError(f"{path} holds no policy of these decisions ({error})") from None
    return found


def replayed(world: World, costs: list[CostProfile], nets: dict[str, list[Decide]], bound: bool) -> Arms:
    """Every arm on every text, recording by recording, as in the joined table."""
    parts = world.validation.by_temperature
    bounds = _bounds(world, costs) if bound else {}
    names: dict[str, list[np.ndarray]] = {}
    for temperature, part in parts.items():
        for name, seconds_T in _arms_of(world, costs, nets, temperature, part):
            names.setdefault(name, []).append(seconds_T)
        if bound:
            profile = nearest(costs, temperature)
            free = part[0], decision_costs(part[0], profile, question_seconds=0.0)
            decide = bounds[min(bounds, key=lambda one: abs(one - temperature))]
            names.setdefault(REACHABLE, []).append(replay_texts(*free, decide))
    table = world.validation.table
    groups = [
        default_group(name, language or None)
        for name, language in zip(table.names, table.languages, strict=True)
    ]
    return Arms(
        {name: np.concatenate(seconds) for name, seconds in names.items()},
        np.unique(groups, return_inverse=True)[1],
        np.concatenate([np.full(part[0].texts, temperature) for temperature, part in parts.items()]),
    )


def _arms_of(
    world: World, costs: list[CostProfile], nets: dict[str, list[Decide]], temperature: float, part: Part
) -> Iterator[tuple[str, np.ndarray]]:
    """All but the bound that is learned. Of several seeds the mean."""
    table, seconds = part
    features, decisions = table.features, table.decisions

    def fixed(setting: Setting) -> np.ndarray:
        return replay_texts(table, seconds, constant(features, decisions, setting))

    plain = next(iter(world.seconds))
    yield str(plain), fixed(plain)
    yield CONSTANT, fixed(world.constant)
    yield HINDSIGHT, fixed(world.hindsight)
    yield "the same, of each T", fixed(best_here(world, temperature))
    for name, settings in kinds(world).items():
        yield f"the same, {name}", fixed(min(settings, key=lambda one: world.seconds[one].sum()))
    profile = nearest(costs, temperature)
    rule = _rule(world, table.features, profile, temperature)
    yield "expected gain", replay_texts(table, seconds, rule)
    for name, decides in nets.items():
        yield name, np.mean([replay_texts(table, seconds, decide) for decide in decides], axis=0)
    free = decision_costs(table, profile, question_seconds=0.0)
    yield CLAIRVOYANT, shortest_seconds(table, free)


def best_here(world: World, temperature: float) -> Setting:
    """The constant that is best on the texts of one temperature alone."""
    begin = 0
    for one, (table, _) in world.validation.by_temperature.items():
        if one == temperature:
            some = slice(begin, begin + table.texts)
            return min(world.seconds, key=lambda setting: float(world.seconds[setting][some].sum()))
        begin += table.texts
    raise AssertionError("every part is one of the world's")


def kinds(world: World) -> dict[str, list[Setting]]:
    """Constants by what they draft with."""
    found: dict[str, list[Setting]] = {}
    for setting in list(world.seconds)[1:]:
        name = "composite" if setting.composite else f"{setting.choice.name.lower()} alone"
        found.setdefault("merged" if name == "all alone" else name, []).append(setting)
    return found


def _rule(world: World, features: CycleFeatures, profile: CostProfile, temperature: float) -> ExpectedGain:
    fitted = world.rules[min(world.rules, key=lambda one: abs(float(one) - temperature))]
    return ExpectedGain(features, world.train.table.decisions, profile, **fitted)


def _bounds(world: World, costs: list[CostProfile]) -> dict[float, Decide]:
    """The reachable bound of each temperature that was trained on."""
    found = {}
    train: Recorded = world.train
    for temperature, (table, _) in train.by_temperature.items():
        profile = nearest(costs, temperature)
        with progress_console().status("learning the bound") as status:
            bound = reachable(table, profile, world.rate, TREES, NETWORK, WIDTH, SEED, status.update)
        print(f"T {temperature:g}: the reachable bound is {bound.name}, tokens/s held out {bound.speeds}")
        found[temperature] = bound.decide
    return found


def parts_of(arms: Arms) -> list[tuple[str, np.ndarray]]:
    """All texts, and if there are several temperatures those of each."""
    every = np.ones(len(arms.temperature_T), dtype=bool)
    values = np.unique(arms.temperature_T)
    if len(values) == 1:
        return [(f"T {values[0]:g}", every)]
    return [("all", every), *((f"T {one:g}", arms.temperature_T == one) for one in values)]


def rows_of(arms: Arms, some_T: np.ndarray) -> dict[str, dict[str, Any]]:
    """Of each arm its speed over plain decoding and over the constant, and the learned policy's over it."""
    seconds = {
        name: grouped(values[some_T], arms.groups_T[some_T]) for name, values in arms.seconds_T.items()
    }
    plain, saved = next(iter(seconds.values())), seconds[HINDSIGHT].sum()
    rows = {}
    for name, mine in seconds.items():
        rows[name] = {
            "texts": int(some_T.sum()),
            "groups": len(mine),
            "over_plain": ratio_of_sums(plain, mine),
            "over_constant": ratio_of_sums(seconds[CONSTANT], mine),
            "learned_over_it": ratio_of_sums(mine, seconds[LEARNED]),
        }
        for bound in (REACHABLE, CLAIRVOYANT):
            if bound in seconds and seconds[bound].sum() < saved:
                share = (saved - mine.sum()) / (saved - seconds[bound].sum())
                rows[name][f"share_of_{bound.split()[0]}"] = float(share)
    if FULL in seconds and PPO in seconds:
        rows[PPO]["over_full_information"] = ratio_of_sums(seconds[FULL], seconds[PPO])
    return rows


def grouped(seconds_T: np.ndarray, groups_T: np.ndarray) -> np.ndarray:
    """Seconds of each question, (G): those that occur, in order."""
    _, places_T = np.unique(groups_T, return_inverse=True)
    return np.bincount(places_T, weights=seconds_T)


def print_rows(console: Console, title: str, rows: dict[str, dict[str, Any]]) -> None:
    """As a table."""
    table = Table(title=title, box=SIMPLE)
    columns = ["", "over plain", "95 %", "over the constant", "95 %", "learned over it", "95 %"]
    shares = [name for name in ("share_of_reachable", "share_of_clairvoyant") if name in rows[LEARNED]]
    for column in [*columns, *(name.replace("share_of_", "of ") for name in shares)]:
        table.add_column(column, justify="right" if column else "left", no_wrap=not column)
    for name, row in rows.items():
        cells = [name]
        for what in ("over_plain", "over_constant", "learned_over_it"):
            ratio, low, high = row[what]
            cells += [f"{ratio:.3f}", "" if low == high else f"{low:.3f} .. {high:.3f}"]
        table.add_row(*cells, *(f"{row[share]:.0%}" for share in shares))
    console.print(table)
    if "over_full_information" in rows.get(PPO, {}):
        ratio, low, high = rows[PPO]["over_full_information"]
        console.print(
            f"PPO over full information, the mean of all seeds: {ratio:.4f} ({low:.4f} .. {high:.4f})"
        )


if __name__ == "__main__":
    sys.exit(main())
