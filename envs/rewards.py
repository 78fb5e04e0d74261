"""What a finished cycle is worth, by name."""

from __future__ import annotations

from collections.abc import Callable

from decoding.records import CycleRecord

Reward = Callable[[CycleRecord], float]


def throughput(record: CycleRecord) -> float:
    """Tokens per wall-clock second of the cycle's work: draft, select, verify and commit.

    Without the time that answers took (`PhaseSeconds.work`): while a policy trains, an answer takes as long
    as the training loop does, gradient steps included, which is not what it will cost when it decodes.
    The mean over cycles is not the throughput of a text, a ratio of sums: long cycles count too little.
    """
    return record.emitted / record.seconds.work


REWARDS: dict[str, Reward] = {"throughput": throughput}


def reward_by_name(name: str) -> Reward:
    """Look a reward up; one-line ValueError for an unknown name."""
    try:
        return REWARDS[name]
    except KeyError:
        raise ValueError(f"reward is {name!r}, must be one of {', '.join(sorted(REWARDS))}") from None
