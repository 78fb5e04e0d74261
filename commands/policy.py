"""`train.py policy`: the training of the preset that the configuration names."""

from __future__ import annotations

from pathlib import Path

from commands.run import training_record
from configs.schema import Config


def train_policy(config: Config, out: Path) -> None:
    """Train into `out`; ValueError if the other kind of training has begun there."""
    record = training_record(out)
    if record and (record["run"].get("preset") == "default") != (config.policy.preset == "default"):
        raise ValueError(f"{out} holds the training of another preset: choose another --out")
    if config.policy.preset == "default":
        from commands.cycle_policy import train_cycle_policy

        train_cycle_policy(config, out)
    else:
        from commands.pair_policy import train_pair

        train_pair(config, out)
