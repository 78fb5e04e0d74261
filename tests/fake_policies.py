"""Untrained policies with strong opinions, and what an exported one says of itself."""

from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3 import PPO
from test_features import random_view

from decoding.exported import Constant, PolicyInfo
from decoding.features import DepthFeatures, SizeFeatures
from policies.ppo import PPOSettings, build_ppo

DEPTH, SIZE = DepthFeatures(3, 4), SizeFeatures(16, 4)
SIZES = (1, 2, 4, 8, 16)
INFO = PolicyInfo(
    depth_features=DEPTH,
    size_features=SIZE,
    verification_sizes=SIZES,
    fingerprints={"target": "aa", "drafter": "bb", "tokenizer": "cc"},
    device="cpu",
    dtype="float32",
    training={"seed": 3, "depth": {"timesteps": 8192}},
    validation={"tokens_per_second": 31.5},
    fallback=Constant(2, 4),
)


class Spaces(gymnasium.Env[np.ndarray, np.int64]):
    """Only the spaces of an environment: enough to build a policy."""

    def __init__(self, features: DepthFeatures | SizeFeatures, actions: int) -> None:
        self.observation_space = spaces.Box(features.low, features.high, dtype=np.float32)
        self.action_space = spaces.Discrete(actions)


def wild_ppo(features: DepthFeatures | SizeFeatures, actions: int, seed: int, **nets: Any) -> PPO:
    """An untrained policy made so opinionated that it takes every action somewhere, in small texts too."""
    settings = PPOSettings(rollout_steps=16, minibatch_size=16, **nets)
    model = build_ppo(Spaces(features, actions), settings, seed)
    rng = np.random.default_rng(seed)
    views = [random_view(rng, 3, int(rng.integers(0, 5))) for _ in range(200)]
    for view in views:
        view.context_length = int(rng.integers(2, 40))
    network = model.policy.action_net
    assert isinstance(network, torch.nn.Linear)
    with torch.no_grad():
        network.weight.mul_(300)
        for module in model.policy.mlp_extractor.modules():
            if isinstance(module, torch.nn.Linear):
                module.bias.normal_(0, 0.3)
        observations = torch.from_numpy(np.stack([features(view) for view in views]))
        network.bias.sub_(network(model.policy.mlp_extractor.forward_actor(observations)).mean(dim=0))
    return model


def wild_pair() -> tuple[PPO, PPO]:
    """A depth and a size policy that fit `INFO`."""
    return wild_ppo(DEPTH, 2, 7), wild_ppo(SIZE, len(SIZES), 1, policy_net=(64, 32), value_net=(16,))
