"""What is known of a trained policy of the default preset: what validation says, and the collapse check."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from rich.console import Console

from commands.live_phase import Trained
from commands.profile import fingerprints
from commands.yardsticks import World
from configs.schema import Config
from decoding.decoder import SpeculativeDecoder
from decoding.exported_cycle import CyclePolicyInfo
from decoding.setting import Setting
from policies.collapse import behaviour, collapse
from policies.full_information import greedy
from policies.masked_ppo import deciding_layers


@dataclass(frozen=True)
class Candidate:
    """A trained policy: over the best constant on validation, before PPO and after it."""

    seed: int
    full_information: float
    ppo: float
    weights: dict[str, torch.Tensor]
    warm: dict[str, torch.Tensor]

    @property
    def best(self) -> tuple[str, float, dict[str, torch.Tensor]]:
        """What of it is kept: PPO's result, unless full information alone is faster."""
        if self.ppo >= self.full_information:
            return "ppo", self.ppo, self.weights
        return "full information", self.full_information, self.warm


def examined(world: World, weights: Mapping[str, torch.Tensor]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """What replay of the validation texts says of a policy, JSON values, and what is wrong with it."""
    decide = greedy(deciding_layers(weights))
    seen = behaviour(world.validation.table, world.validation.costs, decide)
    compared = world.compared(float(seen.seconds_T.sum()))
    measured = {
        **compared,
        "information": seen.information,
        "by_temperature": world.by_temperature(decide),
    }
    return measured, collapse(seen, compared["over_constant"] - 1)


def finish(
    config: Config,
    decoder: SpeculativeDecoder,
    world: World,
    candidates: list[Candidate],
    best: Candidate,
    seconds: dict[str, float],
) -> Trained:
    """Check the best one for collapse, and say what is known of it."""
    kept, _, weights = best.best
    measured, collapsed = examined(world, weights)
    validation = {
        **measured,
        "kept": kept,
        "seed": best.seed,
        "hindsight_constant": world.hindsight.to_json(),
        "expected_gain": world.rules,
        "texts": world.validation.table.texts,
        "positions": world.train.table.positions,
        "seeds": {str(one.seed): [one.full_information, one.ppo] for one in candidates},
        "seconds": dict(seconds),
    }
    info = CyclePolicyInfo(
        decisions=world.train.table.decisions,
        features=world.train.table.features,
        fingerprints=fingerprints(decoder),
        device=decoder.target.device.type,
        dtype=str(decoder.target.dtype).removeprefix("torch."),
        training=config.model_dump(mode="json"),
        validation=validation,
        fallback=world.constant,
        calibration=decoder.drafter.calibration,
        collapse=collapsed,
    )
    return Trained(info, weights, world.rate)


def after_live(world: World, done: Trained) -> Trained:
    """Examined again where the live phase was kept: what is exported is another policy than before it.
    `validation["live"]["before"]` keeps what was said of that one."""
    validation = done.info.validation
    if not validation["live"]["kept"]:
        return done
    measured, collapsed = examined(world, done.weights)
    before = {name: validation[name] for name in validation if name in measured}
    before["collapse"] = list(done.info.collapse)
    live = {**validation["live"], "before": before}
    info = replace(done.info, validation={**validation, **measured, "live": live}, collapse=collapsed)
    return replace(done, info=info)


def print_outcome(info: CyclePolicyInfo) -> None:
    """What validation said, and in red what is wrong."""
    console, found = Console(), info.validation
    console.print(
        f"validation, {found['texts']} texts in replay: {found['over_constant']:.4f} of the best constant's"
        f" speed ({info.fallback}), {found['over_hindsight_constant']:.4f} of the one best in hindsight"
        f" ({Setting.from_json(found['hindsight_constant'])}); kept: {found['kept']}, seed {found['seed']}"
    )
    if "live" in found:
        console.print(
            f"live phase: {found['live']['ratio']:.4f} of the speed before,"
            f" {'kept' if found['live']['kept'] else 'not kept'}"
        )
    for warning in info.collapse:
        console.print(f"collapsed: {warning}", style="bold red", markup=False)
    console.print(", ".join(f"{name} {value:.0f} s" for name, value in found["seconds"].items()))
