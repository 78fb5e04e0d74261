"""Between the rollouts of a replay a checkpoint; after each what TensorBoard shows of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sb3_contrib import MaskablePPO
from stable_baselines3.common.callbacks import BaseCallback
from torch import nn

from policies import checkpoint

Progress = Callable[[int, int, float], None]
# From the deciding net to numbers by name, e.g. its speed on validation texts.
Evaluate = Callable[[nn.Module], Mapping[str, float]]
EVALUATE_EVERY = 8


class ReplayCallback(BaseCallback):
    """Saves, logs and reports a run of `policies.masked_ppo.train_masked`.

    Args:
        folder, run, reference: see `policies.checkpoint.save`.
        total: decisions in the whole run.
        progress: called with decisions so far, `total` and the rollout's tokens per second.
        evaluate: called with the deciding net every 8 rollouts; what it returns is logged.
    """

    def __init__(
        self,
        folder: Path,
        run: Mapping[str, Any],
        reference: float,
        total: int,
        progress: Progress | None,
        evaluate: Evaluate | None,
    ) -> None:
        super().__init__()
        self._folder, self._run, self._reference = folder, run, reference
        self._total, self._progress, self._evaluate = total, progress, evaluate
        self._saved_at = -1
        self._rollouts = 0

    def _on_training_start(self) -> None:
        self._saved_at = self.num_timesteps

    def _on_rollout_start(self) -> None:
        model = self.model
        assert isinstance(model, MaskablePPO)
        if model.num_timesteps > self._saved_at:
            checkpoint.save(self._folder, model, self._run, self._reference, finished=False)
            self._saved_at = model.num_timesteps

    def _on_step(self) -> bool:
        return True

    def _on_rollout_end(self) -> None:
        env: Any = self.training_env
        emitted, seconds, cycles = env.take_sums()
        speed = emitted / seconds.total if cycles else 0.0
        self.logger.record("cycle/tokens_per_second", speed)
        self.logger.record("cycle/over_reference", speed / self._reference)
        if cycles:
            self.logger.record("cycle/emitted", emitted / cycles)
            self.logger.record("cycle/seconds", seconds.total / cycles)
            for phase, spent in asdict(seconds).items():
                self.logger.record(f"seconds/{phase}", spent / cycles)
        self._log_actions()
        if self._evaluate is not None and self._rollouts % EVALUATE_EVERY == 0:
            policy: Any = self.model.policy
            net = nn.Sequential(*policy.mlp_extractor.policy_net, policy.action_net)
            for name, value in self._evaluate(net).items():
                self.logger.record(name, value)
        self._rollouts += 1
        if self._progress is not None:
            self._progress(self.num_timesteps, self._total, speed)

    def _log_actions(self) -> None:
        model = self.model
        assert isinstance(model, MaskablePPO)
        buffer: Any = model.rollout_buffer
        actions = buffer.actions.astype(np.int64).ravel()
        counts = np.bincount(actions, minlength=buffer.action_masks.shape[-1])
        for action, share in enumerate(counts / len(actions)):
            self.logger.record(f"actions/{action}", share)
        self.logger.record("actions/histogram", torch.from_numpy(actions))
        observations = torch.from_numpy(buffer.observations.reshape(-1, buffer.observations.shape[-1]))
        masks = buffer.action_masks.reshape(len(observations), -1)
        with torch.no_grad():
            distribution: Any = model.policy.get_distribution(observations, action_masks=masks)
        probs = distribution.distribution.probs
        entropy, information = information_of(probs.numpy(), masks)
        self.logger.record("actions/entropy", entropy)
        self.logger.record("actions/mutual_information", information)

    def _on_training_end(self) -> None:
        self.logger.dump(self.num_timesteps)


class LiveProgress(BaseCallback):
    """Tells how many decisions have been taken."""

    def __init__(self, progress: Callable[[int], None]) -> None:
        super().__init__()
        self._progress = progress

    def _on_step(self) -> bool:
        self._progress(self.num_timesteps)
        return True


def information_of(probs_QA: np.ndarray, masks_QA: np.ndarray) -> tuple[float, float]:
    """Mean entropy of a policy's answers, and the mutual information of features and actions among questions
    that allow the same actions, in nats: what may be done says nothing of what is seen."""
    entropy = float(_entropy(probs_QA).mean())
    kinds, of = np.unique(masks_QA.astype(bool), axis=0, return_inverse=True)
    marginal = 0.0
    for kind in range(len(kinds)):
        there = of.ravel() == kind
        marginal += there.mean() * float(_entropy(probs_QA[there].mean(axis=0)))
    return entropy, max(0.0, marginal - entropy)


def _entropy(probs: np.ndarray) -> np.ndarray:
    terms: np.ndarray = -(probs * np.log(np.maximum(probs, 1e-30))).sum(axis=-1)
    return terms
