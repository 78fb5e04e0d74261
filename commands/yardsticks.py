"""What a policy of the default preset is measured against on validation texts: constants, and the bounds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from commands.headroom import progress_console
from commands.recorded import Recorded, nearest
from decoding.artifacts import read_json, write_json
from decoding.decision_schedule import shortest_seconds
from decoding.decision_walk import Decide, replay_texts
from decoding.profile import CostProfile
from decoding.setting import Setting
from evaluation.headroom import share_of_saving
from policies.baselines import best_constant, constant, fit_expected_gain

CLAIRVOYANT, REACHABLE = "clairvoyant", "reachable"


@dataclass(frozen=True)
class World:
    """What is trained on, and chosen on.

    Attributes:
        train, validation: the recordings.
        constant: the best constant of the training texts; its rate there, tokens per second, and its seconds
            of each of them.
        hindsight: the best constant of the validation texts.
        seconds: of each constant on the validation texts.
        rules: expected gain as it was fitted on the training texts, by temperature.
        bounds: seconds of the validation texts under each bound, all of them together; neither pays for
            questions.
    """

    train: Recorded
    validation: Recorded
    constant: Setting
    rate: float
    seconds_T: np.ndarray
    hindsight: Setting
    seconds: dict[Setting, np.ndarray]
    rules: dict[str, dict[str, Any]]
    bounds: Mapping[str, float]

    def measured(self, decide: Decide) -> dict[str, float]:
        """What `compared` says of these decisions."""
        return self.compared(float(replay_texts(self.validation.table, self.validation.costs, decide).sum()))

    def compared(self, seconds: float) -> dict[str, float]:
        """Of a policy that takes so many seconds for all validation texts.

        Returns:
            `over_..`: its tokens per second over those of the constant of the training texts, of the one that
            is best in hindsight, and of each bound. `of_..`: the share that it saves of what a bound saves,
            against the constant that is best in hindsight; not there where the bound saves nothing.
        """
        best = float(self.seconds[self.hindsight].sum())
        found = {
            "over_constant": float(self.seconds[self.constant].sum()) / seconds,
            "over_hindsight_constant": best / seconds,
        }
        for name, bound in self.bounds.items():
            found[f"over_{name}"] = bound / seconds
            share = share_of_saving(best, seconds, bound)
            if share is not None:
                found[f"of_{name}"] = share
        return found

    def by_temperature(self, decide: Decide) -> dict[str, float]:
        """`over_constant` of each validation recording alone."""
        yardstick = constant(self.train.table.features, self.train.table.decisions, self.constant)
        return {
            f"{temperature:g}": float(
                replay_texts(table, costs, yardstick).sum() / replay_texts(table, costs, decide).sum()
            )
            for temperature, (table, costs) in self.validation.by_temperature.items()
        }


def make_world(train: Recorded, validation: Recorded, costs: list[CostProfile]) -> World:
    """With the constants, the rule and the clairvoyant bound: seconds of work. The reachable bound takes
    minutes, see `reachable_seconds`."""
    chosen, on_training = best_constant(train.table, train.costs)
    hindsight, on_validation = best_constant(validation.table, validation.costs)
    rate = train.table.positions / float(on_training[chosen].sum())
    rules, begin = {}, 0
    for temperature, (table, seconds) in train.by_temperature.items():
        # Of this temperature alone: at another a token takes longer, or less.
        own = float(on_training[chosen][begin : begin + table.texts].sum())
        profile = nearest(costs, temperature)
        rules[f"{temperature:g}"] = fit_expected_gain(table, seconds, profile, table.positions / own).fitted
        begin += table.texts
    free = replace(validation.costs, question=0.0)
    bounds = {CLAIRVOYANT: float(shortest_seconds(validation.table, free).sum())}
    return World(
        train, validation, chosen, rate, on_training[chosen], hindsight, on_validation, rules, bounds
    )


def with_reachable(world: World, costs: list[CostProfile], file: Path) -> World:
    """The same with the reachable bound, which is kept in a file for a run that is resumed.

    Raises:
        ValueError: there are too few texts to learn from, or the file is damaged.
    """
    if not file.exists():
        found = reachable_seconds(world, costs)
        file.parent.mkdir(parents=True, exist_ok=True)
        write_json(file, {"seconds": found})
    seconds = read_json(file, "reachable bound").get("seconds")
    if type(seconds) is not float or not seconds > 0:
        raise ValueError(f"reachable bound {file} is damaged: remove it")
    return replace(world, bounds={**world.bounds, REACHABLE: seconds})


def reachable_seconds(world: World, costs: list[CostProfile]) -> float:
    """Of all validation texts under large models, one for each temperature, that learn from the training
    recording of the nearest."""
    # Not at the top: scikit-learn takes a second, and few runs ask for this.
    from commands.headroom_rules import NETWORK, SEED, TREES, WIDTH
    from policies.reachable import reachable

    total = 0.0
    for temperature, (table, own) in world.validation.by_temperature.items():
        learned = min(world.train.by_temperature, key=lambda each: abs(each - temperature))
        texts, _ = world.train.by_temperature[learned]
        profile = nearest(costs, learned)
        with progress_console().status("reachable bound") as status:
            bound = reachable(texts, profile, world.rate, TREES, NETWORK, WIDTH, SEED, status.update)
        total += float(replay_texts(table, replace(own, question=0.0), bound.decide).sum())
    return total
