"""PPO for one policy: settings, training with checkpoints, and what TensorBoard shows of it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import gymnasium
import torch
from gymnasium.wrappers import TransformReward
from stable_baselines3 import PPO
from stable_baselines3.common.logger import KVWriter, Logger, TensorBoardOutputFormat
from stable_baselines3.common.monitor import Monitor

from policies import checkpoint
from policies.callback import Progress, TrainingCallback
from policies.step_size import DECAYS, step_size


@dataclass(frozen=True)
class PPOSettings:
    """How one policy learns. Names and limits as in the configuration; the defaults are the depth policy's.

    Args:
        timesteps: decisions to train on, rounded up to whole rollouts.
        rollout_steps: decisions between two updates.
        minibatch_size: decisions in a gradient step; divides rollout_steps.
        epochs: passes over a rollout in one update.
        learning_rate: Adam's step size, the greatest where it changes.
        warmup_share: of the decisions, over which the step size rises from 0.
        decay: "linear", after the rise down to 0, or "none".
        discount: of later rewards, per decision.
        gae_lambda: 0 trusts the value net, 1 the sampled return.
        clip_range: largest change of a probability ratio in an update.
        entropy_coefficient: reward for staying undecided.
        policy_net, value_net: hidden layers, with ReLU between them.
    """

    timesteps: int = 8192
    rollout_steps: int = 512
    minibatch_size: int = 128
    epochs: int = 20
    learning_rate: float = 1e-3
    discount: float = 0.999
    gae_lambda: float = 0.95
    clip_range: float = 0.2
    entropy_coefficient: float = 0.01
    policy_net: tuple[int, ...] = (64, 64)
    value_net: tuple[int, ...] = (64, 64)
    warmup_share: float = 0.0
    decay: str = "none"

    def __post_init__(self) -> None:
        for name, low, high in (
            ("timesteps", 1, 10**12),
            ("rollout_steps", 2, 10**9),
            ("minibatch_size", 2, self.rollout_steps),
            ("epochs", 1, 1000),
            ("learning_rate", 0, 1),
            ("discount", 0, 1),
            ("gae_lambda", 0, 1),
            ("clip_range", 0, 1),
            ("entropy_coefficient", 0, 1),
            ("warmup_share", 0, 0.99),
        ):
            value = getattr(self, name)
            if not low <= value <= high:
                raise ValueError(f"{name} is {value}, must be in {low}..{high}")
        for name in ("learning_rate", "discount", "clip_range"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} is {getattr(self, name)}, must be above 0")
        if self.rollout_steps % self.minibatch_size:
            raise ValueError(
                f"rollout_steps is {self.rollout_steps}, must be a multiple of minibatch_size = "
                f"{self.minibatch_size}"
            )
        if self.decay not in DECAYS:
            raise ValueError(f"decay is {self.decay!r}, must be one of {', '.join(DECAYS)}")
        if self.decay == "linear" and self.total_timesteps == self.rollout_steps:
            raise ValueError(
                f"timesteps is {self.timesteps}, one rollout: with a linear decay its only update has step "
                f"size 0; raise timesteps above rollout_steps = {self.rollout_steps}"
            )
        for name in ("policy_net", "value_net"):
            object.__setattr__(self, name, tuple(getattr(self, name)))  # YAML gives lists
            widths = getattr(self, name)
            if not widths or min(widths) < 1:
                raise ValueError(f"{name} is {widths}, must hold at least one width, each >= 1")

    @property
    def total_timesteps(self) -> int:
        """Decisions in whole rollouts."""
        return math.ceil(self.timesteps / self.rollout_steps) * self.rollout_steps


def build_ppo(
    env: gymnasium.Env[Any, Any],
    settings: PPOSettings,
    seed: int,
    tensorboard_dir: Path | None = None,
    *,
    reference: float = 1.0,
) -> PPO:
    """A PPO model on the CPU whose rewards are divided by `reference` tokens per second.

    The environment's own rewards stay tokens per second; a value net learns numbers around 1. The divisor is
    fixed: a running one would have to be part of every checkpoint and would move the goal during training.
    Seeds Python's, numpy's and torch's global generators, from which Stable-Baselines3 draws.
    """
    if not (math.isfinite(reference) and reference > 0):
        raise ValueError(f"reference is {reference} tokens per second, must be finite and above 0")
    scaled = TransformReward(Monitor(env), lambda reward: float(reward) / reference)
    model = PPO(
        "MlpPolicy",
        scaled,
        n_steps=settings.rollout_steps,
        **learning_arguments(settings),
        seed=seed,
        device="cpu",  # nets of this size lose more in transfers than they gain
    )
    outputs: list[KVWriter] = [TensorBoardOutputFormat(str(tensorboard_dir))] if tensorboard_dir else []
    model.set_logger(Logger(str(tensorboard_dir) if tensorboard_dir else None, outputs))
    return model


def learning_arguments(settings: PPOSettings) -> dict[str, Any]:
    """What PPO and MaskablePPO take under the same names."""
    return {
        "learning_rate": step_size(settings.learning_rate, settings.warmup_share, settings.decay),
        "batch_size": settings.minibatch_size,
        "n_epochs": settings.epochs,
        "gamma": settings.discount,
        "gae_lambda": settings.gae_lambda,
        "clip_range": settings.clip_range,
        "ent_coef": settings.entropy_coefficient,
        "policy_kwargs": {
            "net_arch": {"pi": list(settings.policy_net), "vf": list(settings.value_net)},
            "activation_fn": torch.nn.ReLU,
        },
    }


def train(
    env: gymnasium.Env[Any, Any],
    settings: PPOSettings,
    seed: int,
    folder: Path,
    *,
    reference: float = 1.0,
    tensorboard_dir: Path | None = None,
    progress: Progress | None = None,
    run: Mapping[str, Any] | None = None,
    start: Path | None = None,
) -> PPO:
    """Train to the end of `settings`, from the checkpoint in `folder` if there is one.

    Args:
        env: a `draftpace/*` environment, or any with a Discrete action space.
        settings, seed: with `run`, what the checkpoint must have been made with.
        folder: where checkpoints go; one run a folder.
        reference: tokens per second that rewards are divided by, e.g. of the best fixed setting. It is
            measured, so a resumed run keeps the one of its first start, whatever is given.
        tensorboard_dir: where the curves go; None for nowhere.
        progress: called after every episode and rollout with decisions so far, their total, and tokens per
            second over the rollout so far.
        run: whatever else makes the run this run (models, partner, features); JSON values.
        start: folder of a finished training whose weights and optimiser it begins with; None: fresh ones.

    Returns:
        The trained model; at once if the checkpoint is finished. ValueError if it is of another run.
    """
    identity = identity_of(settings, seed, run)
    header = checkpoint.read_header(folder, identity)
    if header is not None:
        reference = header.reference
    done = header is not None and header.finished
    model = build_ppo(env, settings, seed, None if done else tensorboard_dir, reference=reference)
    if header is not None:
        checkpoint.restore(folder, header, model)
    elif start is not None:
        checkpoint.start_from(start, model)
    total = settings.total_timesteps
    if done:
        return model
    callback = TrainingCallback(folder, identity, reference, total, progress)
    try:
        model.learn(total - model.num_timesteps, callback, reset_num_timesteps=header is None)
    finally:
        model.logger.close()
    checkpoint.save(folder, model, identity, reference, finished=True)
    return model


def identity_of(settings: PPOSettings, seed: int, run: Mapping[str, Any] | None) -> dict[str, Any]:
    """What a checkpoint is of."""
    return {**(run or {}), "settings": asdict(settings), "seed": seed}


def is_finished(
    settings: PPOSettings, seed: int, folder: Path, *, run: Mapping[str, Any] | None = None
) -> bool:
    """Whether `folder` holds the finished training that `train` would be asked for.

    ValueError if it holds another run's: ask before anything is written.
    """
    header = checkpoint.read_header(folder, identity_of(settings, seed, run))
    return header is not None and header.finished


def load_trained(
    env: gymnasium.Env[Any, Any],
    settings: PPOSettings,
    seed: int,
    folder: Path,
    *,
    run: Mapping[str, Any] | None = None,
) -> PPO:
    """The finished model in `folder`, as `train` was asked for it; ValueError if there is none."""
    header = checkpoint.read_header(folder, identity_of(settings, seed, run))
    if header is None or not header.finished:
        raise ValueError(f"the training in {folder} is not finished: run it again to go on, then export")
    model = build_ppo(env, settings, seed, reference=header.reference)
    checkpoint.restore(folder, header, model)
    return model
