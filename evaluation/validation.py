"""Score a fresh policy beside a few fixed settings on validation prompts: what its export says of itself."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from decoding.controller import Controller, FixedController, PlainController
from decoding.exported import Constant
from decoding.metrics import merge
from decoding.workload import Request
from evaluation.protocol import Arm, FixedSetting, OpenSession, run_arms


@dataclass(frozen=True, slots=True)
class Validation:
    """`tokens_per_second` by arm; the best of the fixed settings, which the policy falls back to; the name of
    the best that was learned."""

    tokens_per_second: dict[str, float]
    requests: int
    best_fixed: Constant
    best_learned: str


def fixed_arm(drafter: str, draft_depth: int, verification_size: int) -> Arm:
    """The arm of one point of a grid."""
    controller = FixedController(draft_depth, verification_size)
    setting = FixedSetting(drafter, draft_depth, verification_size)
    return Arm(f"fixed {draft_depth}x{verification_size}", lambda: controller, "fixed", setting)


def validate(
    learned: Mapping[str, Controller],
    drafter: str,
    settings: Iterable[tuple[int, int]],
    requests: Sequence[Request],
    open_session: OpenSession,
    rng: np.random.Generator,
) -> Validation:
    """Decode `requests` once: plain, each of `learned`, and the fixed `settings` (depth, size)."""
    fixed = [fixed_arm(drafter, depth, size) for depth, size in settings]
    tried = {
        name: Arm(f"after {name}", partial(_same, controller), "learned")
        for name, controller in learned.items()
    }
    arms = [Arm("plain", PlainController, "plain"), *tried.values(), *fixed]
    observations = run_arms(arms, requests, open_session, 1, rng)
    speeds = {
        arm.name: merge(row.cycles for row in observations if row.arm == arm.name).tokens_per_second
        for arm in arms
    }
    best = max(fixed, key=lambda arm: speeds[arm.name]).setting
    assert best is not None
    chosen = max(tried, key=lambda name: speeds[tried[name].name])
    # Of several the best is named twice: its speed is that of a choice on these very requests.
    speeds = {"plain": speeds["plain"], "learned": speeds[tried[chosen].name], **speeds}
    if len(tried) == 1:
        del speeds[tried[chosen].name]
    constant = Constant(best.draft_depth, best.verification_size)
    return Validation(speeds, len(requests), constant, chosen)


def _same(controller: Controller) -> Controller:
    return controller
