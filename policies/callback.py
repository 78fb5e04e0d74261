"""Between rollouts a checkpoint, after each its curves, after every episode the progress."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback

from policies import checkpoint

Progress = Callable[[int, int, float], None]


class CycleSums:
    """Totals over cycles, from the infos of their last steps. Ratios are of sums, as a text's speed is."""

    def __init__(self) -> None:
        self.cycles = 0
        self.emitted = 0
        self.seconds: dict[str, float] = {}

    def add(self, info: Mapping[str, Any]) -> None:
        """Count a cycle; infos of other environments, without these keys, count nothing."""
        if "emitted" not in info or "seconds" not in info:
            return
        self.cycles += 1
        self.emitted += info["emitted"]
        for phase, seconds in info["seconds"].items():
            self.seconds[phase] = self.seconds.get(phase, 0.0) + seconds

    @property
    def tokens_per_second(self) -> float:
        """Without the time of answers, which take as long as the training loop; 0 before any cycle."""
        work = sum(self.seconds.values()) - self.seconds.get("policy", 0.0)
        return self.emitted / work if work > 0 else 0.0


class TrainingCallback(BaseCallback):
    """Saves, logs and reports a run of `policies.ppo.train`.

    Args:
        folder, run, reference: see `policies.checkpoint.save`.
        total: decisions in the whole run.
        progress: called with decisions so far, `total` and tokens per second over the rollout so far.
    """

    def __init__(
        self, folder: Path, run: Mapping[str, Any], reference: float, total: int, progress: Progress | None
    ) -> None:
        super().__init__()
        self._folder, self._run, self._reference = folder, run, reference
        self._total, self._progress = total, progress
        self._saved_at = -1
        self._sums = CycleSums()

    def _on_training_start(self) -> None:
        self._saved_at = self.num_timesteps  # nothing yet, or what was restored

    def _on_rollout_start(self) -> None:
        """The boundary: the last update is done and the buffer is empty.

        Every rollout but the very first begins with a reset to a new request, which makes all that follows a
        function of the checkpoint: a request under way could not be saved. It costs one unfinished request a
        rollout; the value of an unfinished cycle is bootstrapped as usual.
        """
        model = self.model
        assert isinstance(model, PPO)
        if model.num_timesteps > self._saved_at:
            checkpoint.save(self._folder, model, self._run, self._reference, finished=False)
            self._saved_at = model.num_timesteps
        if model.num_timesteps:
            self.training_env.set_options({"new_request": True})
            model._last_obs = self.training_env.reset()  # type: ignore[assignment]
            model._last_episode_starts = np.ones(1, dtype=bool)
        self._sums = CycleSums()

    def _on_step(self) -> bool:
        if self.locals["dones"][0]:
            self._sums.add(self.locals["infos"][0])
            self._report()
        return True

    def _report(self) -> None:
        if self._progress is not None:
            self._progress(self.num_timesteps, self._total, self._sums.tokens_per_second)

    def _on_rollout_end(self) -> None:
        self._report()
        sums, logger = self._sums, self.logger
        if sums.cycles:
            logger.record("cycle/tokens_per_second", sums.tokens_per_second)
            logger.record("cycle/emitted", sums.emitted / sums.cycles)
            for phase, seconds in sums.seconds.items():
                logger.record(f"seconds/{phase}", seconds / sums.cycles)
        self._log_actions()

    def _log_actions(self) -> None:
        model = self.model
        assert isinstance(model, PPO)
        assert isinstance(model.action_space, spaces.Discrete)
        buffer = model.rollout_buffer
        actions = buffer.actions.astype(np.int64).ravel()
        counts = np.bincount(actions, minlength=int(model.action_space.n))
        for action, share in enumerate(counts / len(actions)):
            self.logger.record(f"actions/{action}", share)
        self.logger.record("actions/histogram", torch.from_numpy(actions))
        with torch.no_grad():
            observations, _ = model.policy.obs_to_tensor(buffer.observations[:, 0])
            entropy = model.policy.get_distribution(observations).entropy()
        assert entropy is not None
        self.logger.record("actions/entropy", float(entropy.mean()))

    def _on_training_end(self) -> None:
        self.logger.dump(
            self.num_timesteps
        )  # the last update's numbers; `learn` writes those of the one before
