"""What answers and finished cycles are worth, by name.

For a text of N tokens throughput is N / (sum of seconds), so the goal is the total seconds of a request.

- `time_saved`: emitted - rate * seconds, each when it is incurred: the goal. With discount 1 and whole
  requests its optimum is the least total time, for any rate.
- `time`: -rate * seconds: the same optimum, with more variance.
- `throughput`: emitted / seconds of the cycle, at its end: the published one. Its mean over cycles is a mean
  of ratios, which counts long cycles too little; its sum over a request is largest for the shortest cycles,
  so an episode must be a cycle.
- `acceptance`: emitted, at the cycle's end: ignores time, every draft is worth while. Its sum over a request
  is the number of tokens, whatever is done: again an episode must be a cycle.

Legend: B requests side by side.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from decoding.records import CycleRecord

Episode = Literal["request", "cycle"]
Reward = Callable[[CycleRecord], float]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Step:
    """What is known when a decision has had its effect; scalars, or arrays (B).

    Attributes:
        seconds: of the decision alone.
        cycle_seconds: of the cycle so far, the decision included.
        emitted: tokens committed; 0 while the cycle goes on.
    """

    seconds: ArrayLike
    cycle_seconds: ArrayLike
    emitted: ArrayLike


StepReward = Callable[[Step, float], np.ndarray]


def time_saved(step: Step, rate: float) -> np.ndarray:
    """Tokens won over a decoder that emits `rate` tokens a second."""
    return np.asarray(step.emitted) - rate * np.asarray(step.seconds)


def time(step: Step, rate: float) -> np.ndarray:
    """The seconds, as tokens lost."""
    return -rate * np.asarray(step.seconds)


def cycle_throughput(step: Step, rate: float) -> np.ndarray:
    """Tokens per second of a finished cycle, over `rate`."""
    return np.asarray(step.emitted) / (rate * np.asarray(step.cycle_seconds))


def acceptance(step: Step, rate: float) -> np.ndarray:
    """Tokens of a finished cycle."""
    return np.asarray(step.emitted, dtype=np.float64)


STEP_REWARDS: dict[str, StepReward] = {
    "time_saved": time_saved,
    "time": time,
    "throughput": cycle_throughput,
    "acceptance": acceptance,
}


def step_reward(name: str) -> StepReward:
    """Look a reward of decisions up; one-line ValueError for an unknown name."""
    return _named(STEP_REWARDS, name)


def episode_of(name: str) -> Episode:
    """What a reward of decisions is to be summed over."""
    return "cycle" if name in ("throughput", "acceptance") else "request"


def throughput(record: CycleRecord) -> float:
    """Tokens per wall-clock second of the cycle's work: draft, select, verify and commit.

    Without the time that answers took (`PhaseSeconds.work`): while a policy trains, an answer takes as long
    as the training loop does, gradient steps included, which is not what it will cost when it decodes.
    The mean over cycles is not the throughput of a text, a ratio of sums: long cycles count too little.
    """
    return record.emitted / record.seconds.work


REWARDS: dict[str, Reward] = {"throughput": throughput}


def reward_by_name(name: str) -> Reward:
    """Look a finished cycle's reward up; one-line ValueError for an unknown name."""
    return _named(REWARDS, name)


def _named(rewards: dict[str, T], name: str) -> T:
    try:
        return rewards[name]
    except KeyError:
        raise ValueError(f"reward is {name!r}, must be one of {', '.join(sorted(rewards))}") from None
