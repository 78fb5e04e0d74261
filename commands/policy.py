"""`train.py policy`: the training of the preset that the configuration names."""

from __future__ import annotations

from pathlib import Path

from configs.schema import Config


def train_policy(config: Config, out: Path) -> None:
    """Train into `out`."""
    if config.policy.preset == "default":
        from commands.cycle_policy import train_cycle_policy

        train_cycle_policy(config, out)
    else:
        from commands.pair_policy import train_pair

        train_pair(config, out)
