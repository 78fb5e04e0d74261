"""`train.py policy`: the training of the preset that the configuration names."""

from __future__ import annotations

from pathlib import Path

from commands.pair_policy import train_pair
from configs.schema import Config


def train_policy(config: Config, out: Path) -> None:
    """Train into `out`."""
    train_pair(config, out)
