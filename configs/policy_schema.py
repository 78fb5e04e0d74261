"""What the training of policies can be told: a part of `schema.py`."""

import math
from typing import Literal

from pydantic import Field, model_validator

from configs.section import Increasing, Layers, RepoPath, RepoPaths, Section


class PPOSettings(Section):
    """PPO for one policy; the defaults are those of the depth policy."""

    timesteps: int = Field(8192, ge=1, description="decisions to train on, rounded up to whole rollouts")
    rollout_steps: int = Field(512, ge=2, description="decisions between two updates")
    minibatch_size: int = Field(128, ge=2, description="decisions in a gradient step; divides rollout_steps")
    epochs: int = Field(20, ge=1, le=1000, description="passes over a rollout in one update")
    learning_rate: float = Field(1e-3, gt=0, le=1, description="Adam's step size, the greatest if it changes")
    warmup_share: float = Field(0.0, ge=0, le=0.99, description="of the decisions, while it rises from 0")
    decay: Literal["none", "linear"] = Field("none", description="linear: after that it falls to 0")
    discount: float = Field(
        0.999, gt=0, le=1, description="of later rewards; below 1 it biases against depth"
    )
    gae_lambda: float = Field(0.95, ge=0, le=1, description="0 trusts the value net, 1 the sampled return")
    clip_range: float = Field(
        0.2, gt=0, le=1, description="largest change of a probability ratio in an update"
    )
    entropy_coefficient: float = Field(0.01, ge=0, le=1, description="reward for staying undecided")
    policy_net: Layers = Field(
        [64, 64], description="hidden layers of the policy: small, it runs in every cycle"
    )
    value_net: Layers = Field([64, 64], description="hidden layers of the value net, used in training only")

    @model_validator(mode="after")
    def _minibatches_fill_the_rollout(self) -> "PPOSettings":
        steps, size = self.rollout_steps, self.minibatch_size
        if size > steps:
            raise ValueError(
                f"minibatch_size = {size} must be at most rollout_steps = {steps}; lower it, e.g. to {steps}"
            )
        if steps % size:
            raise ValueError(
                f"rollout_steps = {steps} must be a multiple of minibatch_size = {size};"
                f" raise it, e.g. to {steps + size - steps % size}"
            )
        return self


class SizePPOSettings(PPOSettings):
    """PPO for the size policy, which decides once a cycle: each decision is dear, so it trains on fewer."""

    timesteps: int = Field(4096, ge=1, description="decisions to train on, rounded up to whole rollouts")
    discount: float = Field(0.9, gt=0, le=1, description="of later rewards; a decision here ends its cycle")
    verification_sizes: Increasing = Field(
        [1, 2, 4, 8, 16, 32], description="the verification_size values it chooses from, strictly increasing"
    )


class CyclePPOSettings(PPOSettings):
    """PPO for the policy of every decision, in replay: decisions cost microseconds, so it takes many."""

    timesteps: int = Field(500_000, ge=0, description="decisions to train on; 0: full information alone")
    rollout_steps: int = Field(16384, ge=2, description="decisions of all lanes between two updates")
    minibatch_size: int = Field(4096, ge=2, description="decisions in a gradient step; divides rollout_steps")
    epochs: int = Field(4, ge=1, le=1000, description="passes over a rollout in one update")
    learning_rate: float = Field(1e-4, gt=0, le=1, description="Adam's step size")
    discount: float = Field(1.0, gt=0, le=1, description="below 1 it biases against depth")
    clip_range: float = Field(
        0.1, gt=0, le=1, description="largest change of a probability ratio in an update"
    )
    entropy_coefficient: float = Field(0.002, ge=0, le=1, description="reward for staying undecided")


class FullInformationSection(Section):
    """The warm start: a trace tells what every action would have done."""

    rounds: int = Field(4, ge=1, le=100, description="times that the policy is replayed")
    epochs: int = Field(6, ge=1, le=1000, description="passes over the positions in a round")
    batch: int = Field(2048, ge=1, description="positions in a gradient step")
    learning_rate: float = Field(4e-3, gt=0, le=1, description="AdamW's first step size; it falls to 0")
    weight_decay: float = Field(1e-4, ge=0, le=1, description="AdamW's pull of the weights towards 0")
    entropy: float = Field(0.1, ge=0, le=10, description="worth of a nat of entropy at first, in tokens")
    own_worth: float = Field(
        0.0,
        ge=0,
        le=1,
        description="share of the policy's own cost-to-go in what tokens are worth; 0: all alike",
    )


class CyclePolicySettings(Section):
    """The default preset: one policy for every decision of a cycle, learned from recordings."""

    traces: RepoPath | None = Field(
        None, description="folder of recordings (train.py traces); null: recorded first, as `traces` says"
    )
    validation_traces: RepoPath | None = Field(
        None, description="the same of prompts that it is chosen on; null: the workload's validation split"
    )
    profiles: RepoPaths | None = Field(
        None,
        description="profile.json files; a recording takes that of the nearest temperature; null: measured"
        " first, at the lowest and the highest",
    )
    verification_sizes: Increasing = Field(
        [1, 2, 3, 4, 5, 6, 8, 12], max_length=10, description="what it chooses from, strictly increasing"
    )
    question_microseconds: float = Field(
        60.0, ge=0, le=1e6, description="what replay charges for a decision, features and network included"
    )
    lanes: int = Field(256, ge=1, le=65536, description="requests side by side; divides rollout_steps")
    seeds: int = Field(3, ge=1, le=100, description="trainings; the one best on validation is kept")
    reward: Literal["time_saved", "time", "throughput", "acceptance"] = Field(
        "time_saved", description="of PPO; the others are for comparison"
    )
    live_decisions: int = Field(
        0, ge=0, description="decisions of fine-tuning on the real loop, kept only if better; 0: none"
    )
    reachable_bound: bool = Field(
        False,
        description="learn what a large model reaches and show the distance to it: minutes",
    )
    full_information: FullInformationSection = Field(
        default_factory=FullInformationSection, description="the warm start"
    )
    ppo: CyclePPOSettings = Field(default_factory=CyclePPOSettings, description="PPO in replay")

    @model_validator(mode="after")
    def _lanes_fill_the_rollout(self) -> "CyclePolicySettings":
        if self.ppo.timesteps and self.ppo.rollout_steps % self.lanes:
            raise ValueError(
                f"lanes = {self.lanes} must divide ppo.rollout_steps = {self.ppo.rollout_steps};"
                f" lower it, e.g. to {math.gcd(self.lanes, self.ppo.rollout_steps)}"
            )
        return self


class PolicySettings(Section):
    """What learns: a preset, and its settings."""

    preset: Literal["default", "ltd"] = Field(
        "default",
        description="default: one policy for every decision, from recordings; ltd: the published pair",
    )
    cycle: CyclePolicySettings = Field(default_factory=CyclePolicySettings, description="the preset default")
    depth: PPOSettings = Field(default_factory=PPOSettings, description="PPO for the depth policy")
    size: SizePPOSettings = Field(default_factory=SizePPOSettings, description="PPO for the size policy")
    partner_depth: int = Field(4, ge=1, le=32, description="fixed draft_depth while the size policy trains")
    partner_size: int = Field(
        16, ge=1, le=1024, description="fixed verification_size while the depth policy trains"
    )
    partner_depths: Literal["fixed", "uniform"] = Field(
        "fixed",
        description="uniform: instead, one in 1..draft.max_depth anew in every cycle",
    )
    reward: Literal["throughput"] = Field("throughput", description="tokens per wall-clock second of a cycle")
    features: Literal["full", "published"] = Field(
        "full",
        description="published: scores, depth and length alone; the first level is never asked for",
    )
    rounds: int = Field(0, ge=0, le=100, description="of training each policy beside the other, frozen")
    recordings: RepoPaths | None = Field(
        None, description="folders of train.py traces to train on instead of decoding; null: decode"
    )
    validation_recordings: RepoPaths | None = Field(None, description="the same of validation prompts")
    profile_file: RepoPath | None = Field(None, description="profile.json with a recording's costs")
