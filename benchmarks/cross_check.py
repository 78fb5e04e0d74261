"""What the cost model predicts of fixed draft depths, beside what they do on the clock.

In one run: prompts are decoded plainly and drafted at every position (the recording that predictions come
from), then decoded live with every depth, interleaved, beside plain decoding. Predicted is what the joint
prefix probabilities and the costs of `--profile` say; beside it what one acceptance rate says, with the same
costs and by the published formula (a verification as dear as a plain step). Ratios are of tokens per second,
of all prompts together, with 95 % bootstrap intervals over questions. Depth 0 is plain decoding once more:
what the measurement alone makes of no difference.

With `--drafter merged` its head alone, a composite of its parts and the merged tree are checked, each.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from rich.console import Console

from benchmarks.cross_check_table import errors, numbers, printed
from benchmarks.learned import SHIPPED
from benchmarks.measure import Samples, command, ratio_of_sums
from commands.profile import fingerprints
from configs.command import progress
from decoding.artifacts import write_json
from decoding.controller import PlainController, RootChoice
from decoding.cycle_features import CycleFeatures
from decoding.decision_table import DecisionTable, decision_table
from decoding.decisions import Decisions
from decoding.decoder import SpeculativeDecoder
from decoding.machine import device_name
from decoding.noise import NoiseStream
from decoding.profile import Conditions, CostProfile
from decoding.recording import Prompt, Recorded, Recording, record
from decoding.sampling import Sampling
from decoding.session import Session
from decoding.setting import Setting, setting_controller
from decoding.trace_file import TracedText
from decoding.workload import Request, load_workload, select
from evaluation.cross_check import Bounds, cross_check, fixed_settings
from evaluation.protocol import Arm, Observation, run_arms

PLAIN, AGAIN = "plain", "plain again"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark."""
    return command("cross_check", __doc__, run, arguments, flags)


def flags(parser: argparse.ArgumentParser) -> None:
    """Beside the usual ones; --rounds is not used: prompts and repeats are."""
    parser.add_argument("--profile", type=Path, required=True, help="profile.json of these very models")
    parser.add_argument("--depths", type=int, nargs="+", default=list(range(7)), help="gammas, or levels")
    parser.add_argument("--size", type=int, default=8, help="nodes verified, of all drafted ones")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--workload", nargs="+", default=SHIPPED, help="JSONL files")
    parser.add_argument("--split", default="test")
    parser.add_argument("--prompts", type=int, default=20, help="at most so many of the split")
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rows", type=Path, help="JSON file for evaluation.cross_check, a report's section")


def run(console: Console, decoder: SpeculativeDecoder, options: argparse.Namespace) -> dict[str, Samples]:
    """Record, predict, measure and print; returns the rows' numbers by kind of draft."""
    profile = CostProfile.load(options.profile)
    for warning in profile.check_matches(fingerprints(decoder), _conditions(profile, decoder, options)):
        print(f"warning: {warning}", file=sys.stderr)
    depths = sorted(set(options.depths))
    if depths[0] < 0 or not depths[-1]:
        raise ValueError(f"--depths are {depths}, must be 0 (plain) or more, one of them at least 1")
    requests = select(load_workload([Path(one) for one in options.workload]), options.split, options.prompts)
    decoder.check_prompts({request.question_id: request.turns[0] for request in requests})
    decisions = Decisions(_choices(decoder), depths[-1], (options.size,))
    recorded = recordings(decoder, requests, decisions, options)
    table = table_of(decoder, recorded, decisions, options)
    kinds = fixed_settings(decisions.choices, depths, options.size, decoder.drafter.name)
    with progress("decoding") as show:
        observations = run_arms(
            arms_of(kinds, decisions, depths[0] == 0),
            requests,
            opener(decoder, options),
            options.repeats,
            np.random.default_rng(options.seed),
            lambda done, total, one: show(done, total, one.arm),
        )
    rows = {
        name: cross_check(table, profile, settings, *measured(observations, name, depths), drafter=name)
        for name, settings in kinds.items()
    }
    for name, some in rows.items():
        console.print(printed(f"{name}, {len(requests)} prompts, {options.size} nodes verified", some))
        console.print(errors(some))
    console.print(same_texts(recorded, observations))
    if options.rows is not None:
        flat = [row.model_dump() for some in rows.values() for row in some]
        write_json(options.rows, {"cross_check": flat})
    return {name: numbers(some) for name, some in rows.items()}


def _conditions(profile: CostProfile, decoder: SpeculativeDecoder, options: argparse.Namespace) -> Conditions:
    """What times are measured in here, as far as they can differ from the profile's for the same models."""
    return replace(
        profile.conditions,
        device=device_name(decoder.target.device),
        dtype=str(decoder.target.dtype).removeprefix("torch."),
        path="eager" if decoder.target.fast is None else "fast",
        threads=torch.get_num_threads(),
        temperature=options.temperature,
    )


def _choices(decoder: SpeculativeDecoder) -> tuple[RootChoice, ...]:
    offered = decoder.drafter.start(NoiseStream(0, [0]), 0.0, 1).root_choices
    return tuple(choice for choice in offered if choice != RootChoice.PLAIN)


def recordings(
    decoder: SpeculativeDecoder,
    requests: Sequence[Request],
    decisions: Decisions,
    options: argparse.Namespace,
) -> list[Recorded]:
    """The texts, with what every depth and size accepts at each of their positions."""
    how = Recording(
        Sampling(options.temperature),
        options.seed,
        options.max_new_tokens,
        decisions.max_depth,
        decisions.choices,
    )
    prompts = [
        Prompt(
            request.question_id,
            tuple(decoder.encode(decoder.as_user(request.turns[0]))),
            request.category,
            request.language,
        )
        for request in requests
    ]
    return list(record(decoder.target, decoder.drafter, decoder.model.end_ids, prompts, how))


def table_of(
    decoder: SpeculativeDecoder,
    recorded: Sequence[Recorded],
    decisions: Decisions,
    options: argparse.Namespace,
) -> DecisionTable:
    """Of recordings that were never a file."""
    texts = [
        TracedText(one.prompt.question_id, one.prompt.category, one.prompt.language, tuple(one.positions), ())
        for one in recorded
    ]
    features = CycleFeatures(decisions.sizes, decisions.max_depth, options.temperature)
    composite = decoder.drafter.name.startswith("composite")
    return decision_table(texts, decisions, features, options.max_new_tokens, composite)


def arms_of(kinds: Mapping[str, Mapping[int, Setting]], decisions: Decisions, again: bool) -> list[Arm]:
    """Plain decoding, twice if depth 0 is asked for, and every setting."""
    arms = [Arm(PLAIN, PlainController, "plain")]
    arms += [Arm(AGAIN, PlainController, "rule")] * again
    for name, settings in kinds.items():
        arms += [
            Arm(arm_name(name, depth), partial(setting_controller, setting, decisions), "rule")
            for depth, setting in settings.items()
        ]
    return arms


def arm_name(kind: str, depth: int) -> str:
    """Of a fixed depth."""
    return f"{kind} {depth}" if depth else AGAIN


def opener(decoder: SpeculativeDecoder, options: argparse.Namespace) -> Callable[[Request], Session]:
    """A fresh session of a request."""
    return lambda request: decoder.open_session(
        decoder.as_user(request.turns[0]),
        max_new_tokens=options.max_new_tokens,
        temperature=options.temperature,
        seed=options.seed,
    )


def measured(
    observations: Sequence[Observation], kind: str, depths: Sequence[int]
) -> tuple[dict[int, float], dict[int, Bounds]]:
    """By depth, tokens per second over plain decoding's, and the interval."""
    plain = _by_question(observations, PLAIN)
    ratios = {
        depth: ratio_of_sums(plain, _by_question(observations, arm_name(kind, depth))) for depth in depths
    }
    return (
        {depth: ratio for depth, (ratio, _, _) in ratios.items()},
        {depth: (low, high) for depth, (_, low, high) in ratios.items()},
    )


def _by_question(observations: Sequence[Observation], arm: str) -> np.ndarray:
    """Seconds a token of each question, in order, weighed by the tokens of plain decoding: texts that differ
    by a tie may have other lengths."""
    groups = sorted({row.group for row in observations})
    seconds, emitted, plain = (dict.fromkeys(groups, 0.0) for _ in range(3))
    for row in observations:
        if row.arm == arm:
            seconds[row.group] += row.seconds
            emitted[row.group] += row.emitted
        if row.arm == PLAIN:
            plain[row.group] += row.emitted
    return np.array([seconds[group] * plain[group] / emitted[group] for group in groups])


def same_texts(recorded: Sequence[Recorded], observations: Sequence[Observation]) -> str:
    """How many of the live texts are the recorded ones."""
    hashes = {
        one.prompt.question_id: hashlib.sha256(array("q", one.text_ids).tobytes()).hexdigest()
        for one in recorded
    }
    same = sum(row.token_hash == hashes[row.question_id] for row in observations)
    return f"texts: {same} of {len(observations)} are the recorded ones"


if __name__ == "__main__":
    sys.exit(main())
