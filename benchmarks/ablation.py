"""What a learned policy owes to its reward, its features and its data, in replay.

`--what rewards`: PPO without a warm start under each reward. `--what features`: full information without a
group of features. `--what positions`: full information on fewer and fewer texts. `--what states`: with a
linear map of the target's hidden states at the root as features, its own time left out. Each row is tokens
per second on the validation texts over those of the best constant of the training texts, with an interval
over texts. Recordings and profiles are those that the configuration names.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from rich.table import Table

from benchmarks.hidden_states import explained, outcomes, predicted, states_of, with_columns
from benchmarks.measure import ratio_of_sums, wide_console
from commands.decoder import load_decoder
from commands.recorded import Recorded, decisions_of, headers, profiles, read_recorded, recording_config
from commands.traces import chosen_prompts
from configs.command import add_flags, exit_code, read_config
from configs.schema import Config
from decoding.artifacts import write_json
from decoding.decision_costs import DecisionCosts, joined_costs
from decoding.decision_table import joined_tables, split_texts
from decoding.decision_walk import replay_texts
from decoding.machine import use_threads
from decoding.setting import Setting
from envs.replay import ReplayVecEnv
from envs.rewards import STEP_REWARDS
from policies.baselines import best_constant, constant
from policies.constant_seconds import ConstantSeconds
from policies.full_information import FullInformationSettings, fit, greedy
from policies.masked_ppo import build_masked_ppo, deciding_net
from policies.ppo import PPOSettings

GROUPS = {
    "nothing": (),
    "the level's scores": ("level_best", "level_second", "level_sum", "level_margin"),
    "expected tokens by size": ("expected_",),
    "the match": ("match_length", "match_share"),
    "agreement of head and lookup": ("agrees",),
    "history": ("emitted_last", "emitted_mean_4"),
    "context, tokens left, temperature": ("log2_context_length", "tokens_left", "temperature"),
}
SHARES = (1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the ablation; 2 and one line for a user's mistake."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.ablation", description=__doc__, allow_abbrev=False
    )
    parser.add_argument("--what", choices=list(ROWS), required=True)
    add_flags(parser)
    options = parser.parse_args(arguments)
    return exit_code(lambda: run(options.what, read_config(options), options.out), "nothing was written")


def run(what: str, config: Config, out: Path) -> None:
    """Measure, print, and write `OUT/ablation-WHAT.json`."""
    given = config.policy.cycle
    if given.traces is None or given.validation_traces is None or given.profiles is None:
        raise ValueError("policy.cycle.traces, .validation_traces and .profiles must be given: record first")
    use_threads(config.threads)
    decisions = decisions_of(config, [*headers(given.traces), *headers(given.validation_traces)])
    costs = profiles(config, out, [])
    question = given.question_microseconds / 1e6
    train, validation = (
        read_recorded(folder, decisions, costs, question)
        for folder in (given.traces, given.validation_traces)
    )
    chosen, seconds = best_constant(train.table, train.costs)
    rate = train.table.positions / float(seconds[chosen].sum())
    yardstick = replay_texts(
        validation.table, validation.costs, constant(train.table.features, decisions, chosen)
    )
    console = wide_console()
    table = Table(
        title=f"{what}: over the best constant ({chosen}), {validation.table.texts} validation texts"
    )
    for column in ("", "ratio", "95 % interval"):
        table.add_column(column, justify="left" if not column else "right")
    found = {}
    for name, mine in ROWS[what](config, train, validation, (chosen, rate)):
        found[name] = ratio_of_sums(yardstick, mine)
        table.add_row(name, f"{found[name][0]:.4f}", f"{found[name][1]:.4f} .. {found[name][2]:.4f}")
    console.print(table)
    write_json(out / f"ablation-{what}.json", {"constant": chosen.to_json(), "over_constant": found})
    print(f"wrote {out / f'ablation-{what}.json'}")


Rows = Iterator[tuple[str, np.ndarray]]
Best = tuple[Setting, float]  # the best constant of the training texts, and its tokens per second


def _rewards(config: Config, train: Recorded, validation: Recorded, best: Best) -> Rows:
    settings = config.policy.cycle
    for reward in STEP_REWARDS:
        for seed in range(settings.seeds):
            env = ReplayVecEnv(
                train.table, train.costs, settings.lanes, np.random.default_rng(seed), reward, best[1]
            )
            model = build_masked_ppo(env, PPOSettings(**settings.ppo.model_dump()), seed)
            model.learn(settings.ppo.timesteps)
            net = deciding_net(model)
            yield f"{reward}, seed {seed}", replay_texts(validation.table, validation.costs, greedy(net))


def _features(config: Config, train: Recorded, validation: Recorded, best: Best) -> Rows:
    names = train.table.features.names
    for group, prefixes in GROUPS.items():
        gone = [place for place, name in enumerate(names) if prefixes and name.startswith(prefixes)]
        for seed in range(config.policy.cycle.seeds):
            yield f"without {group}, seed {seed}", _fitted(config, train, validation, best, seed, gone)


def _positions(config: Config, train: Recorded, validation: Recorded, best: Best) -> Rows:
    for share in SHARES:
        some = _share_of(train, share)
        for seed in range(config.policy.cycle.seeds):
            name = f"{some.table.positions} positions, seed {seed}"
            yield name, _fitted(config, some, validation, best, seed, [])


def _states(config: Config, train: Recorded, validation: Recorded, best: Best) -> Rows:
    given = config.policy.cycle
    assert given.traces is not None
    assert given.validation_traces is not None
    decoder = load_decoder(config)
    print("reading the recorded texts with the target: minutes")
    states = [
        states_of(decoder.target, folder, chosen_prompts(decoder, recording_config(config, split)))
        for folder, split in ((given.traces, "train"), (given.validation_traces, "validation"))
    ]
    mapped = predicted(states[0], train.table, states[1])
    shares = explained(outcomes(validation.table), mapped[1])
    names = [choice.name.lower() for choice in train.table.decisions.choices]
    said = ", ".join(f"{name} {share:.2f}" for name, share in zip(names, shares, strict=True))
    print(f"variance of emitted tokens that the map explains on validation: {said}")
    more = [
        replace(one, table=with_columns(one.table, columns))
        for one, columns in zip((train, validation), mapped, strict=True)
    ]
    for seed in range(given.seeds):
        yield f"without, seed {seed}", _fitted(config, train, validation, best, seed, [])
        yield f"with the map, seed {seed}", _fitted(config, more[0], more[1], best, seed, [])


def _share_of(train: Recorded, share: float) -> Recorded:
    """Of every recording the first texts."""
    parts = {}
    for temperature, (table, costs) in train.by_temperature.items():
        some = list(range(max(1, round(table.texts * share))))
        end = int(table.starts[len(some)])
        parts[temperature] = split_texts(table, some), _first(costs, end)
    tables, seconds = zip(*parts.values(), strict=True)
    return Recorded(joined_tables(tables), joined_costs(seconds), parts)


def _first(costs: DecisionCosts, positions: int) -> DecisionCosts:
    names = ("start_P", "plain_P", "arrive_PN", "finish_PNS")
    return replace(costs, **{name: getattr(costs, name)[:positions] for name in names})


def _fitted(
    config: Config, train: Recorded, validation: Recorded, best: Best, seed: int, gone: list[int]
) -> np.ndarray:
    """Seconds of the validation texts under a policy fitted without the features in `gone`."""
    settings = config.policy.cycle
    layers: list[torch.nn.Module] = []
    widths = [train.table.features_PNF.shape[-1], *settings.ppo.policy_net]
    torch.manual_seed(seed)
    for inputs, outputs in pairwise(widths):
        layers += [torch.nn.Linear(inputs, outputs), torch.nn.ReLU()]
    policy = torch.nn.Sequential(
        _Without(gone), *layers, torch.nn.Linear(widths[-1], len(train.table.decisions))
    )
    fit(
        policy,
        train.table,
        train.costs,
        FullInformationSettings(**settings.full_information.model_dump()),
        seed,
        best[1],
        seconds_T=ConstantSeconds(train.table, train.costs)(best[0]),
    )
    return replay_texts(validation.table, validation.costs, greedy(policy))


ROWS: dict[str, Callable[[Config, Recorded, Recorded, Best], Rows]] = {
    "rewards": _rewards,
    "features": _features,
    "positions": _positions,
    "states": _states,
}


class _Without(torch.nn.Module):
    """Features with some of them 0."""

    def __init__(self, gone: Sequence[int]) -> None:
        super().__init__()
        self._gone = list(gone)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        if not self._gone:
            return features
        kept = torch.ones(features.shape[-1])
        kept[self._gone] = 0.0
        return features * kept


if __name__ == "__main__":
    sys.exit(main())
