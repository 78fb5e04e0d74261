"""The end of a training: a little PPO on the real loop, kept only if it decodes validation prompts faster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import gymnasium
import numpy as np
import torch
from stable_baselines3.common.vec_env import DummyVecEnv

import envs  # noqa: F401 (registers the environments)
from commands.recorded import live_requests
from commands.run import open_request
from configs.command import progress_bar
from configs.schema import Config
from decoding.controller import Controller, PlainController
from decoding.cycle_features import CycleFeatures
from decoding.decoder import SpeculativeDecoder
from decoding.exported_cycle import CyclePolicyInfo, ExportedCycle
from decoding.session import Session
from decoding.timing import now
from decoding.workload import Request
from envs.outliers import Winsoriser
from evaluation.protocol import Arm, run_arms
from policies.export import network_of_layers
from policies.masked_ppo import build_masked_ppo, deciding_layers
from policies.ppo import PPOSettings
from policies.replay_callback import LiveProgress

# Small steps: a few thousand noisy decisions may correct a policy, not make one.
LIVE_ROLLOUT, LIVE_MINIBATCH, LIVE_RATE, LIVE_CLIP = 512, 128, 3e-5, 0.05
REPEATS = 2


@dataclass(frozen=True)
class Trained:
    """A policy: what is known of it, its weights, and the rate its rewards are measured against."""

    info: CyclePolicyInfo
    weights: dict[str, torch.Tensor]
    rate: float


def fine_tune(config: Config, decoder: SpeculativeDecoder, before: Trained, seed: int) -> Trained:
    """PPO on the training prompts with the clock's own seconds, outliers winsorised (`envs/outliers.py`)."""
    requests, held_out = live_requests(config, decoder)

    def open_next(rng: np.random.Generator) -> Session:
        request = requests[rng.integers(len(requests))]
        return open_request(
            decoder, request, config, config.sampling.max_new_tokens, int(rng.integers(2**32))
        )

    outliers, decisions = Winsoriser(), before.info.decisions
    env = gymnasium.make(
        "draftpace/Cycle-v0",
        disable_env_checker=True,
        open_request=open_next,
        decisions=decisions,
        features=CycleFeatures(decisions.sizes, decisions.max_depth, config.sampling.temperature),
        clock=lambda: now(decoder.target.device),
        reward=config.policy.cycle.reward,
        rate=before.rate,
        outliers=outliers,
    )
    total = config.policy.cycle.live_decisions
    rollout = min(LIVE_ROLLOUT, 2 * ((total + 1) // 2))
    changed = {
        "timesteps": total,
        "rollout_steps": rollout,
        "minibatch_size": LIVE_MINIBATCH if rollout % LIVE_MINIBATCH == 0 else rollout,
        "learning_rate": LIVE_RATE,
        "clip_range": LIVE_CLIP,
        # A step size that is small already stays; a decay over one rollout would be refused.
        "warmup_share": 0.0,
        "decay": "none",
    }
    settings = PPOSettings(**config.policy.cycle.ppo.model_dump() | changed)
    model = build_masked_ppo(DummyVecEnv([lambda: env]), settings, seed)
    model.policy.load_state_dict(before.weights)
    with progress_bar() as bar:
        task = bar.add_task("live phase", total=settings.total_timesteps, note="")
        model.learn(settings.total_timesteps, LiveProgress(lambda done: bar.update(task, completed=done)))
    after = {name: tensor.clone() for name, tensor in model.policy.state_dict().items()}
    sound = all(bool(tensor.isfinite().all()) for tensor in after.values())
    # What has diverged decodes nothing: it is not kept, and the policy before it is not lost.
    pair = (before.weights, after)
    ratio = faster(config, decoder, before.info, pair, held_out, seed) if sound else 0.0
    live = {"ratio": ratio, "kept": ratio > 1, "decisions": total, "winsorised": outliers.held}
    info = replace(before.info, validation={**before.info.validation, "live": live})
    return replace(before, info=info, weights=after if ratio > 1 else before.weights)


def faster(
    config: Config,
    decoder: SpeculativeDecoder,
    info: CyclePolicyInfo,
    weights: tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]],
    requests: Sequence[Request],
    seed: int,
) -> float:
    """Tokens per second of the second over those of the first, decoding in turn: the median over prompts, so
    that a disturbed one decides nothing."""

    def arm(name: str, mine: dict[str, torch.Tensor]) -> Arm:
        network = network_of_layers(list(deciding_layers(mine)))

        def make() -> Controller:
            return ExportedCycle(info, network)

        return Arm(name, make, "learned")

    arms = [
        Arm("plain", PlainController, "plain"),
        arm("before", weights[0]),
        arm("after", weights[1]),
    ]
    observations = run_arms(
        arms,
        requests,
        lambda request: open_request(decoder, request, config, config.evaluation.max_new_tokens, seed),
        REPEATS,
        np.random.default_rng([seed, 7]),
    )
    blocks: dict[int, dict[str, float]] = {}
    for row in observations:
        blocks.setdefault(row.block, {})[row.arm] = row.seconds
    return float(np.median([one["before"] / one["after"] for one in blocks.values()]))
