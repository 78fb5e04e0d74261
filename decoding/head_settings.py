"""How a head is trained, and what a step of the training says of itself."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HeadSettings:
    """How to train.

    Attributes:
        minutes: time of the training steps, over which the learning rate decays; measuring is not counted.
        unroll_steps: draft levels that are trained, each on the states of the one before.
        step_weight: weight of a level's loss relative to the level before.
        evaluate_every: steps between two measurements on held-out texts.
        patience: measurements in a row without a better one after which training stops, at least 1; None =
            the minutes are used up.
        freeze_output: leave the output rows as they are, the target's own in a fresh head. Fewer weights to
            fit to few texts, and the draft vocabulary can be chosen anew after training.
        seed: of the order of the texts.
    """

    minutes: float = 15.0
    unroll_steps: int = 2
    batch_tokens: int = 1024
    learning_rate: float = 1e-3
    weight_decay: float = 0.05
    step_weight: float = 0.8
    evaluate_every: int = 100
    patience: int | None = None
    freeze_output: bool = True
    seed: int = 0

    def learning_rate_at(self, step: int, elapsed: float) -> float:
        """Of step `step`, after `elapsed` seconds: up over 40 steps, then down a cosine to a twentieth."""
        warm = min(1.0, (step + 1) / 40)
        progress = min(1.0, elapsed / (self.minutes * 60))
        return self.learning_rate * warm * (0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * progress)))


@dataclass(frozen=True, slots=True)
class HeadProgress:
    """One training step, on texts of `tokens` tokens, `elapsed` seconds of training after the start.

    `agreement` (held-out share of top-1 hits, per draft step) only where it was measured.
    """

    step: int
    epoch: float
    elapsed: float
    loss: float
    learning_rate: float
    tokens: int
    agreement: tuple[float, ...] | None
