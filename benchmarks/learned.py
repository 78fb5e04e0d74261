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
from configs.schema import Config
from decoding.controller import Controller, DraftView, PlainController, QuestionKind
from decoding.cycle_features import CycleFeatures
from decoding.decisions import DecisionController, Decisions
from decoding.decoder import SpeculativeDecoder, default_drafter
from decoding.drafters.load import load_drafter
from decoding.exported import ExportedController
from decoding.exported_cycle import ExportedCycle, load_policy
from decoding.profile import CostProfile
from decoding.setting import Setting, SettingDecider, setting_controller
from decoding.workload import load_workload, select
from evaluation.protocol import Arm, Observation, OpenSession, run_arms
from evaluation.statistics import compare
from policies.baselines import ExpectedGain
from policies.baselines.live_expected_gain import LiveExpectedGain

SHIPPED = ["configs/prompts/mixed.jsonl", "configs/prompts/multilingual.jsonl"]


class Overridden:
    """Asks a policy and does what a setting says: what the policy costs, and nothing of what it gains."""

    def __init__(self, policy: ExportedCycle, setting: Setting) -> None:
        self._policy = policy
        self._setting = SettingDecider(setting, policy.decisions)

    def decide(self, kind: QuestionKind, view: DraftView, allowed: Sequence[bool]) -> int:
        self._policy.decide(kind, view, allowed)
        return self._setting.decide(kind, view, allowed)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark."""
    return command("learned", __doc__, run, arguments, flags)


def flags(parser: argparse.ArgumentParser) -> None:
    """Beside the usual ones; --rounds are repeats of every prompt."""
    parser.add_argument("--policy", type=Path, required=True, help="folder of train.py export")
    parser.add_argument("--profile", type=Path, required=True, help="profile.json, for expected gain")
    parser.add_argument("--pair", type=Path, help="also a folder of train.py export with the preset ltd")
    parser.add_argument("--temperature", type=float, default=0.0)
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
    arms = arms_of(policy, CostProfile.load(options.profile), options.temperature, made)

    def opener(by: SpeculativeDecoder) -> OpenSession:
        return lambda request: by.open_session(
            by.as_user(request.turns[0]),
            max_new_tokens=options.max_new_tokens,
            temperature=options.temperature,
            seed=1,
        )

    if options.pair is not None:
        other = decoder_of_pair(options.pair, decoder)
        arms.append(Arm("pair", lambda: other.controller, "learned", open_session=opener(other)))
    rng = np.random.default_rng(0)
    observations = run_arms(arms, requests, opener(decoder), options.repeats, rng)
    print_arms(console, arms, observations, len(requests))
    print_ratios(console, arms, observations)
    asked = sum(one.asked for one in made)
    console.print(
        f"{asked} decisions of the policy, {sum_policy(observations) / max(1, asked) * 1e6:.0f} us each"
    )
    return {
        "seconds": {arm.name: [row.seconds for row in observations if row.arm == arm.name] for arm in arms}
    }


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


def decoder_of_pair(folder: Path, decoder: SpeculativeDecoder) -> SpeculativeDecoder:
    """The same target with the drafter, beam and scores that a pair of policies was trained with."""
    pair = load_policy(folder)
    if not isinstance(pair, ExportedController):
        raise ValueError(f"--pair is {folder}, must hold a pair of policies: train one with configs/ltd.yaml")
    config = Config.model_validate(pair.info.training)
    name = config.model.drafter or default_drafter(config.model.target)
    draft = config.draft
    drafter = load_drafter(name, decoder.model, draft.beam_width, draft.min_match, draft.lookup_depth)
    other = SpeculativeDecoder(decoder.model, drafter)
    for warning in other.use_policy(folder):
        print(f"warning: {warning}", file=sys.stderr)
    return other


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
    console: Console, arms: Sequence[Arm], observations: Sequence[Observation], prompts: int
) -> None:
    """Tokens per second and tokens a cycle of each; and whether all texts are one."""
    table = Table(title=f"{prompts} prompts")
    for column in ("", "tokens/s", "tau", "policy share"):
        table.add_column(column, justify="left" if not column else "right")
    for arm in arms:
        rows = [row for row in observations if row.arm == arm.name]
        seconds, emitted = sum(row.seconds for row in rows), sum(row.emitted for row in rows)
        policy = sum(row.phase_seconds.policy for row in rows) / seconds
        tau = emitted / sum(row.cycles.cycles for row in rows)
        table.add_row(arm.name, f"{emitted / seconds:.1f}", f"{tau:.2f}", f"{policy:.2%}")
    console.print(table)
    texts = {(row.question_id, row.repeat): set[str]() for row in observations}
    for row in observations:
        texts[row.question_id, row.repeat].add(row.token_hash)
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
