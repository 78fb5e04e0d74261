"""A learned policy on the real loop beside plain decoding, two constants and expected gain.

The arms decode the same prompts in random order, block by block; a ratio is of tokens per second, paired by
question, with a bootstrap over questions. The policy's own cost is measured by an arm that asks the
policy and then does what the constant does, over the constant itself.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.measure import Samples, command
from commands.live_arms import Overridden, decoder_of_pair
from decoding.controller import Controller, PlainController
from decoding.cycle_features import CycleFeatures
from decoding.decisions import DecisionController, Decisions
from decoding.decoder import SpeculativeDecoder
from decoding.exported_cycle import ExportedCycle
from decoding.profile import CostProfile
from decoding.setting import Setting, setting_controller
from decoding.workload import load_workload, select
from evaluation.protocol import Arm, Observation, OpenSession, run_arms
from evaluation.statistics import compare
from policies.baselines import ExpectedGain
from policies.baselines.live_expected_gain import LiveExpectedGain

SHIPPED = ["configs/prompts/mixed.jsonl", "configs/prompts/multilingual.jsonl"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark."""
    return command("learned", __doc__, run, arguments, flags)


def flags(parser: argparse.ArgumentParser) -> None:
    """Beside the usual ones; --rounds are repeats of every prompt."""
    parser.add_argument("--policy", type=Path, required=True, help="folder of train.py export")
    parser.add_argument("--profile", type=Path, required=True, help="profile.json, for expected gain")
    parser.add_argument("--pair", type=Path, help="also a folder of train.py export with the preset ltd")
    parser.add_argument(
        "--temperature", type=float, nargs="+", default=[0.0], help="several: every prompt at each of them"
    )
    parser.add_argument("--workload", nargs="+", default=SHIPPED, help="JSONL files")
    parser.add_argument("--split", default="test")
    parser.add_argument("--prompts", type=int, help="at most so many; default: all of the split")
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=1)


def run(console: Console, decoder: SpeculativeDecoder, options: argparse.Namespace) -> dict[str, Samples]:
    """Measure and print; returns seconds by arm."""
    for warning in decoder.use_policy(options.policy):
        print(f"warning: {warning}", file=sys.stderr)
    policy = ExportedCycle.load(options.policy)
    workload = load_workload([Path(one) for one in options.workload])
    requests = select(workload, options.split, options.prompts)
    decoder.check_prompts({request.question_id: request.turns[0] for request in requests})
    made: list[DecisionController] = []
    profile = CostProfile.load(options.profile)
    other = decoder_of_pair(options.pair, decoder) if options.pair is not None else None
    rng, observations = np.random.default_rng(0), list[Observation]()
    for temperature in sorted(set(options.temperature)):
        opener = partial(opened_by, options.max_new_tokens, temperature)
        arms = arms_of(policy, profile, temperature, made)
        if other is not None:
            pair = partial(getattr, other, "controller")
            arms.append(Arm("pair", pair, "learned", open_session=opener(other)))
        observations += run_arms(
            arms, requests, opener(decoder), options.repeats, rng, temperature=temperature
        )
    for title, rows in slices(observations).items():
        print_arms(console, arms, rows, f"{len(requests)} prompts, {title}")
        print_ratios(console, arms, rows)
    asked = sum(one.asked for one in made)
    console.print(
        f"{asked} decisions of the policy, {sum_policy(observations) / max(1, asked) * 1e6:.0f} us each"
    )
    return {
        "seconds": {arm.name: [row.seconds for row in observations if row.arm == arm.name] for arm in arms}
    }


def opened_by(max_new_tokens: int, temperature: float, by: SpeculativeDecoder) -> OpenSession:
    """Opens requests with this decoder."""
    return lambda request: by.open_session(
        by.as_user(request.turns[0]), max_new_tokens=max_new_tokens, temperature=temperature, seed=1
    )


def slices(observations: Sequence[Observation]) -> dict[str, Sequence[Observation]]:
    """All of them, and if there are several temperatures those of each, by title."""
    every = sorted({row.temperature for row in observations})
    each: dict[str, Sequence[Observation]] = {
        f"T {one:g}": [row for row in observations if row.temperature == one] for one in every
    }
    return each if len(each) == 1 else {"all temperatures": observations, **each}


def arms_of(
    policy: ExportedCycle, profile: CostProfile, temperature: float, made: list[DecisionController]
) -> list[Arm]:
    """Plain, the best constants of the training and validation texts, expected gain, the policy, the policy
    overridden by the first constant, and that constant once more: the A/A pair."""
    info = policy.info
    try:
        chosen, hindsight = info.fallback, Setting.from_json(info.validation["hindsight_constant"])
        rule = expected_gain_of(info.validation, info.decisions, profile, temperature)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(
            f"the policy's validation lacks its constant or its rule ({error}): train and export again"
        ) from None
    features = CycleFeatures(info.decisions.sizes, info.decisions.max_depth, temperature)

    def learned() -> Controller:
        one = ExportedCycle(info, policy.network)
        made.append(one)
        return one

    def overridden() -> Controller:
        return DecisionController(info.decisions, Overridden(ExportedCycle(info, policy.network), chosen))

    rules = LiveExpectedGain(rule, features)  # one for all requests: its costs are looked up once

    def ruled() -> Controller:
        return DecisionController(info.decisions, rules)

    arms = [
        Arm("plain", PlainController, "plain"),
        Arm("constant", partial(setting_controller, chosen, info.decisions), "rule"),
        Arm("constant again", partial(setting_controller, chosen, info.decisions), "rule"),
        Arm("policy overridden", overridden, "rule"),
        Arm("expected gain", ruled, "rule"),
        Arm("learned", learned, "learned"),
    ]
    if hindsight != chosen:
        arms.insert(2, Arm("other constant", partial(setting_controller, hindsight, info.decisions), "rule"))
    return arms


def expected_gain_of(
    validation: Any, decisions: Decisions, profile: CostProfile, temperature: float
) -> ExpectedGain:
    """The rule as it was fitted on the training texts of the nearest temperature."""
    fitted = validation["expected_gain"]
    nearest = min(fitted, key=lambda one: abs(float(one) - temperature))
    return ExpectedGain(
        CycleFeatures(decisions.sizes, decisions.max_depth, temperature),
        decisions,
        profile,
        **fitted[nearest],
    )


def print_arms(
    console: Console, arms: Sequence[Arm], observations: Sequence[Observation], title: str
) -> None:
    """Tokens per second and tokens a cycle of each; and whether all texts are one."""
    table = Table(title=title)
    for column in ("", "tokens/s", "tau", "policy share"):
        table.add_column(column, justify="left" if not column else "right")
    for arm in arms:
        rows = [row for row in observations if row.arm == arm.name]
        seconds, emitted = sum(row.seconds for row in rows), sum(row.emitted for row in rows)
        policy = sum(row.phase_seconds.policy for row in rows) / seconds
        tau = emitted / sum(row.cycles.cycles for row in rows)
        table.add_row(arm.name, f"{emitted / seconds:.1f}", f"{tau:.2f}", f"{policy:.2%}")
    console.print(table)
    texts: dict[tuple[str, float, int], set[str]] = {}
    for row in observations:
        texts.setdefault((row.question_id, row.temperature, row.repeat), set()).add(row.token_hash)
    console.print(f"texts: {sum(len(one) == 1 for one in texts.values())} of {len(texts)} equal in all arms")


def print_ratios(console: Console, arms: Sequence[Arm], observations: Sequence[Observation]) -> None:
    """Of the learned policy over each, and the checks of the measurement itself."""
    pairs = [("learned", arm.name) for arm in arms if arm.name not in ("learned", "constant again")]
    pairs += [("constant", "constant again"), ("policy overridden", "constant"), ("constant", "plain")]
    table = Table(title="ratios of tokens per second, paired by question")
    for column in ("", "ratio", "95 % interval", "ratio of sums"):
        table.add_column(column, justify="left" if not column else "right")
    for a, b in pairs:
        found = compare(a, b, observations, np.random.default_rng(1))
        interval = "" if found.low is None else f"{found.low:.3f} .. {found.high:.3f}"
        table.add_row(f"{a} / {b}", f"{found.ratio:.3f}", interval, f"{found.ratio_of_sums:.3f}")
    console.print(table)


def sum_policy(observations: Sequence[Observation]) -> float:
    """Seconds in the learned policy's answers."""
    return sum(row.phase_seconds.policy for row in observations if row.arm == "learned")


if __name__ == "__main__":
    sys.exit(main())
