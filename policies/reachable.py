"""The reachable bound of a recording: the better of two large models, trees and a network."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from decoding.decision_costs import decision_costs
from decoding.decision_table import DecisionTable, split_texts
from decoding.decision_walk import Decide, replay_texts
from decoding.profile import CostProfile
from policies.bound import BoundSettings, fit_trees
from policies.full_information import FullInformationSettings, fit, greedy

# Every so manieth text is held out: the two models are compared there.
_HELD_OUT = 8

# What is being done.
Say = Callable[[str], None]


@dataclass(frozen=True)
class Reachable:
    """A large model.

    Attributes:
        decide: its decisions, to be replayed with questions that cost nothing.
        name: which one it is.
        speeds: tokens per second of each on the texts held out.
    """

    decide: Decide
    name: str
    speeds: dict[str, float]


def reachable(
    table: DecisionTable,
    profile: CostProfile,
    rate: float,
    trees: BoundSettings,
    network: FullInformationSettings,
    width: int,
    seed: int,
    say: Say,
) -> Reachable:
    """Train both, keep the better.

    Args:
        table: texts to learn from.
        rate: tokens per second to begin with, e.g. of the best constant.
        width: of the network's two hidden layers.

    Raises:
        ValueError: there are too few texts.
    """
    texts = np.arange(table.texts)
    held_out = texts[_HELD_OUT - 1 :: _HELD_OUT]
    if not len(held_out):
        raise ValueError(f"{table.texts} texts are too few to learn from, give at least {_HELD_OUT}")
    learned = split_texts(table, np.setdiff1d(texts, held_out).tolist())
    rest = split_texts(table, held_out.tolist())
    costs, rest_costs = (decision_costs(one, profile, question_seconds=0.0) for one in (learned, rest))

    def grown(turn: int, speed: float) -> None:
        say(f"trees: round {turn} of {trees.rounds}, {speed:.1f} tokens/s on texts that they did not see")

    def fitted(turn: int, speed: float) -> None:
        say(f"network: round {turn} of {network.rounds}, {speed:.1f} tokens/s")

    net = large_network(learned, width, seed)
    fit(net, learned, costs, network, seed, rate, fitted)
    models: dict[str, Decide] = {
        "trees": fit_trees(learned, costs, profile, rate, trees, seed, grown),
        "network": greedy(net),
    }
    speeds = {
        name: rest.positions / float(replay_texts(rest, rest_costs, decide).sum())
        for name, decide in models.items()
    }
    name = max(speeds, key=lambda one: speeds[one])
    return Reachable(models[name], name, speeds)


def large_network(table: DecisionTable, width: int, seed: int) -> nn.Module:
    """Fresh, from a table's features to its decisions."""
    inputs, outputs = len(table.features.names), len(table.decisions)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Linear(inputs, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, outputs)
        )
