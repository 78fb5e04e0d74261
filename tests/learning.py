"""Learning in made-up worlds, and how far from the optimum it ends: what the slow tests and the fast ones
share."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from decoding.decision_costs import DecisionCosts
from decoding.decision_table import DecisionTable
from decoding.decision_walk import Decide, replay_texts
from envs.replay import ReplayVecEnv
from envs.synthetic import World
from policies.baselines import best_constant
from policies.full_information import FullInformationSettings, fit, greedy
from policies.masked_ppo import deciding_net, train_masked
from policies.ppo import PPOSettings

LANES = 64
PPO = PPOSettings(
    timesteps=32_768,
    rollout_steps=1024,
    minibatch_size=256,
    epochs=6,
    learning_rate=3e-3,
    discount=1.0,
    gae_lambda=0.9,
    entropy_coefficient=0.06,
    policy_net=(16,),
    value_net=(16,),
)
FULL = FullInformationSettings(rounds=3, epochs=3, batch=512, entropy=0.2)


@cache
def texts_of(world: World, texts: int = 384) -> tuple[DecisionTable, DecisionCosts, float]:
    """Texts, their costs, tokens per second of the best constant."""
    table = world.table(texts, np.random.default_rng(0))
    costs = world.costs(table)
    setting, seconds = best_constant(table, costs)
    return table, costs, table.positions / float(seconds[setting].sum())


@cache
def fresh_texts(world: World, texts: int = 512) -> tuple[DecisionTable, DecisionCosts]:
    """Texts that nobody trains on."""
    table = world.table(texts, np.random.default_rng(10_000))
    return table, world.costs(table)


def speed(world: World, decide: Decide) -> float:
    """Tokens per second on fresh texts."""
    table, costs = fresh_texts(world)
    return table.positions / float(replay_texts(table, costs, decide).sum())


def speed_of_ppo(world: World, seed: int, folder: Path, steps: int = PPO.timesteps, **more: Any) -> float:
    """Of the greedy policy that MaskablePPO learns from nothing; `more`: of `ReplayVecEnv`."""
    table, costs, rate = texts_of(world)
    env = ReplayVecEnv(table, costs, LANES, np.random.default_rng(seed), rate=rate, **more)
    model = train_masked(env, replace(PPO, timesteps=steps), seed, folder)
    return speed(world, greedy(deciding_net(model)))


def speed_of_full_information(world: World, seed: int) -> float:
    """Of the greedy policy that full information learns from nothing."""
    table, costs, rate = texts_of(world)
    net = small_net(table, seed)
    fit(net, table, costs, FULL, seed, rate)
    return speed(world, greedy(net))


def small_net(table: DecisionTable, seed: int, width: int = 16) -> nn.Sequential:
    torch.manual_seed(seed)
    first = nn.Linear(len(table.features.names), width)
    return nn.Sequential(first, nn.ReLU(), nn.Linear(width, len(table.decisions)))
