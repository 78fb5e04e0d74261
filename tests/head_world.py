"""A tiny target, its own texts and trainers of heads for it: what the tests of head training train."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import islice

import numpy as np
import pytest
import torch

from decoding.drafters.eagle_head import EagleHead
from decoding.head_settings import HeadProgress, HeadSettings
from decoding.head_start import initialise_from_target
from decoding.target import TargetModel
from decoding.train_head import HeadTrainer
from tests.fakes import VOCABULARY, plain_text, tiny_head, tiny_target

# So many minutes that the learning rate stands still: steps then do not depend on the clock.
SETTINGS = HeadSettings(minutes=1e9, unroll_steps=3, batch_tokens=64, learning_rate=3e-3, evaluate_every=1000)


@cache
def target() -> TargetModel:
    return tiny_target(seed=6, dtype=torch.float32, layers=2)


@cache
def texts() -> list[np.ndarray]:
    """What the target writes by itself, greedily, after 24 beginnings: of several lengths."""
    return [np.array([first, 7, *plain_text(target(), [first, 7], 8 + first % 9)]) for first in range(10, 34)]


@cache
def many_texts() -> list[np.ndarray]:
    """More than are sorted into batches at once: epochs then differ in their number of batches."""
    rng = np.random.default_rng(0)
    return [rng.integers(10, VOCABULARY, rng.integers(4, 16)) for _ in range(80)]


def fresh_head() -> EagleHead:
    head = tiny_head(target(), draft_vocab_size=VOCABULARY)
    initialise_from_target(head, target())
    return head.requires_grad_(True)


def trainer(settings: HeadSettings = SETTINGS, head: EagleHead | None = None) -> HeadTrainer:
    return HeadTrainer(head or fresh_head(), target(), texts()[4:], texts()[:4], settings)


def trainer_on_many() -> HeadTrainer:
    settings = replace(SETTINGS, batch_tokens=48)
    return HeadTrainer(fresh_head(), target(), many_texts(), texts()[:1], settings)


def steps(run: Iterator[HeadProgress], count: int) -> list[HeadProgress]:
    return list(islice(run, count))


def weights(of: HeadTrainer) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in of.head.parameters()])


def pretend(patch: pytest.MonkeyPatch, of: HeadTrainer, agreements: list[float]) -> None:
    """Steps that write their own number into `fc` and take no time; measurements, one a step, from a list."""
    measured = iter(agreements[of.step :])

    def train_step(numbers: np.ndarray, rate: float) -> float:
        with torch.no_grad():
            of.head.fc.weight.fill_(of.step + 1)
        return 1.0

    patch.setattr(of, "_train_step", train_step)
    patch.setattr(of, "agreement", lambda: (next(measured), 0.1, 0.1))


def fc_of(head: EagleHead) -> float:
    """The number of the step that `pretend` had it trained for."""
    (value,) = head.fc.weight.unique().tolist()
    return float(value)
