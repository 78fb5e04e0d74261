"""How Adam's step size changes over a training, as Stable-Baselines3 asks for it."""

from __future__ import annotations

from collections.abc import Callable

DECAYS = ("none", "linear")


def step_size(greatest: float, warmup_share: float, decay: str) -> Callable[[float], float] | float:
    """As a function of the share of decisions that remain, 1 at the start: up from 0 over `warmup_share` of
    them, then constant, or down to 0 in a line."""
    if not warmup_share and decay == "none":
        return greatest

    def at(remaining: float) -> float:
        done = 1.0 - remaining
        if done < warmup_share:
            return greatest * done / warmup_share
        return greatest * remaining / (1.0 - warmup_share) if decay == "linear" else greatest

    return at
