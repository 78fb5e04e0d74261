"""MaskablePPO (sb3-contrib) for the policy that takes every decision of a cycle, in a vectorised replay.

It begins with what full information has found; see `full_information.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from sb3_contrib import MaskablePPO
from stable_baselines3.common.logger import KVWriter, Logger, TensorBoardOutputFormat
from stable_baselines3.common.vec_env import VecEnv
from torch import nn

from decoding.decision_costs import DecisionCosts
from decoding.decision_table import DecisionTable
from decoding.decision_walk import DecisionWalk
from decoding.records import PhaseSeconds
from policies import checkpoint
from policies.ppo import PPOSettings, identity_of, learning_arguments
from policies.replay_callback import Evaluate, Progress, ReplayCallback

_VALUE_EPOCHS, _VALUE_BATCH, _VALUE_RATE = 8, 4096, 2e-3
_LEAST_STEPS = 32  # of an epoch, in which few texts would else be one step


class ReplayEnv(Protocol):
    """What training needs of `envs.replay.ReplayVecEnv`, beside being a `VecEnv`."""

    num_envs: int
    rate: float
    rng: np.random.Generator

    def take_sums(self) -> tuple[int, PhaseSeconds, int]: ...


def build_masked_ppo(
    env: VecEnv, settings: PPOSettings, seed: int, tensorboard_dir: Path | None = None
) -> MaskablePPO:
    """A fresh model on the CPU. `settings.rollout_steps` counts the decisions of all lanes.

    ValueError if they are not a multiple of the lanes. Seeds the global generators, as SB3 does.
    """
    if settings.rollout_steps % env.num_envs:
        raise ValueError(
            f"rollout_steps is {settings.rollout_steps}, must be a multiple of the {env.num_envs} lanes"
        )
    model = MaskablePPO(
        "MlpPolicy",
        env,
        n_steps=settings.rollout_steps // env.num_envs,
        **learning_arguments(settings),
        seed=seed,
        device="cpu",
    )
    outputs: list[KVWriter] = [TensorBoardOutputFormat(str(tensorboard_dir))] if tensorboard_dir else []
    model.set_logger(Logger(str(tensorboard_dir) if tensorboard_dir else None, outputs))
    return model


def deciding_net(model: MaskablePPO) -> nn.Sequential:
    """The part that decides, features to logits: the model's own layers, not copies."""
    return nn.Sequential(*model.policy.mlp_extractor.policy_net, model.policy.action_net)


def deciding_layers(weights: Mapping[str, torch.Tensor]) -> nn.Sequential:
    """The same of a model's saved weights; KeyError if they are something else."""
    prefix = "mlp_extractor.policy_net."
    indices = {int(name.removeprefix(prefix).split(".")[0]) for name in weights if name.startswith(prefix)}
    modules: list[nn.Module] = []
    for name in (*(f"{prefix}{index}" for index in sorted(indices)), "action_net"):
        weight = weights[f"{name}.weight"]
        layer = nn.Linear(weight.shape[1], weight.shape[0])
        layer.load_state_dict({"weight": weight, "bias": weights[f"{name}.bias"]})
        modules += [layer, nn.ReLU()]
    return nn.Sequential(*modules[:-1])


def value_net(model: MaskablePPO) -> nn.Sequential:
    """The part that values, likewise."""
    return nn.Sequential(*model.policy.mlp_extractor.value_net, model.policy.value_net)


def train_masked(
    env: VecEnv,
    settings: PPOSettings,
    seed: int,
    folder: Path,
    start: Mapping[str, torch.Tensor] | None = None,
    *,
    tensorboard_dir: Path | None = None,
    progress: Progress | None = None,
    evaluate: Evaluate | None = None,
    run: Mapping[str, Any] | None = None,
) -> MaskablePPO:
    """Train to the end of `settings`, from the checkpoint in `folder` if there is one.

    Args:
        env: a `ReplayVecEnv`. Its rate may be measured: a resumed run keeps the one of its first start.
        settings, seed: with `run`, what the checkpoint must have been made with.
        start: weights of the whole policy to begin with.
        evaluate: measures the policy now and then, see `ReplayCallback`.
        run: whatever else makes the run this run; JSON values.

    Returns:
        The trained model; at once if the checkpoint is finished. ValueError if it is of another run.
    """
    identity = identity_of(settings, seed, run)
    header = checkpoint.read_header(folder, identity)
    done = header is not None and header.finished
    model = build_masked_ppo(env, settings, seed, None if done else tensorboard_dir)
    if start is not None:
        model.policy.load_state_dict(dict(start))
    if header is not None:
        checkpoint.restore(folder, header, model)
    if done:
        return model
    replay: Any = env
    if header is not None:
        replay.rate = header.reference
    rate, total = float(replay.rate), settings.total_timesteps
    callback = ReplayCallback(folder, identity, rate, total, progress, evaluate)
    try:
        model.learn(total - model.num_timesteps, callback, reset_num_timesteps=header is None)
    finally:
        model.logger.close()
    checkpoint.save(folder, model, identity, rate, finished=True)
    return model


def fit_value(
    model: MaskablePPO, table: DecisionTable, costs: DecisionCosts, rate: float, seed: int
) -> float:
    """Fit the value net to what the policy, sampled, gets with the reward `time_saved` and discount 1, once
    through every text: PPO's first advantages would else undo a policy that begins well.

    Returns:
        The share of the returns' variance that it explains there.
    """
    rng = np.random.default_rng(seed)
    policy, values = deciding_net(model), value_net(model)
    seen, rewards, lanes = [], [], []
    walk = DecisionWalk(table, costs, table.texts)
    walk.start(np.arange(table.texts), np.arange(table.texts))
    open_T = np.flatnonzero(table.asked_P[table.starts[:-1]])
    walk.keep(open_T)
    while len(open_T):
        features_BF, allowed_BA = walk.features(), walk.allowed()
        with torch.no_grad():
            logits_BA = policy(torch.from_numpy(features_BF)).numpy()
        noise_BA = rng.gumbel(size=logits_BA.shape)
        outcome = walk.step(np.where(allowed_BA, logits_BA + noise_BA, -np.inf).argmax(axis=1))
        seen.append(features_BF)
        lanes.append(open_T)
        rewards.append(outcome.emitted_B - rate * outcome.seconds_B)
        walk.keep(np.flatnonzero(~outcome.finished_B))
        open_T = open_T[~outcome.finished_B]
    left_T = np.zeros(table.texts)
    returns = []
    for lane_B, reward_B in zip(reversed(lanes), reversed(rewards), strict=True):
        left_T[lane_B] += reward_B
        returns.append(left_T[lane_B])
    x = torch.from_numpy(np.concatenate(seen))
    y = torch.from_numpy(np.concatenate(returns[::-1]).astype(np.float32))
    optimizer = torch.optim.Adam(values.parameters(), _VALUE_RATE)
    generator = torch.Generator().manual_seed(seed)
    batch = max(1, min(_VALUE_BATCH, len(y) // _LEAST_STEPS))
    for _ in range(_VALUE_EPOCHS):
        for some in torch.randperm(len(y), generator=generator).split(batch):
            loss = (values(x[some])[:, 0] - y[some]).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    with torch.no_grad():
        left = (values(x)[:, 0] - y).var() / y.var().clamp(min=1e-9)
    return float(1 - left)
