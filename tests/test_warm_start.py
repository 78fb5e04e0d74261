"""What PPO begins with: the weights that full information found, and a rate no lower than a constant's."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import commands.cycle_policy
from commands.cycle_policy import _warm_start
from configs.schema import Config
from decoding.artifacts import load_tensors
from envs.replay import ReplayVecEnv
from policies.masked_ppo import build_masked_ppo
from policies.ppo import PPOSettings
from tests.test_yardsticks import world

SMALL = PPOSettings(rollout_steps=32, minibatch_size=16, policy_net=(4,), value_net=(4,))


@pytest.mark.parametrize(("share", "expected"), [(0.5, 1.0), (1.25, 1.25)])
def test_rewards_are_measured_against_the_faster_of_policy_and_constant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, share: float, expected: float
) -> None:
    table, costs, best = world().train.table, world().train.costs, world().rate
    valued: list[float] = []
    monkeypatch.setattr(commands.cycle_policy, "fit", lambda *_: share * best)
    monkeypatch.setattr(commands.cycle_policy, "fit_value", lambda *given: valued.append(given[3]))
    model = build_masked_ppo(ReplayVecEnv(table, costs, 4, np.random.default_rng(0)), SMALL, 0)
    for _ in range(2):  # found, then read
        start, rate = _warm_start(Config(), tmp_path, world(), model, 0, {}, lambda: None)
        assert rate == pytest.approx(expected * best, rel=1e-12)
        assert set(start) == set(model.policy.state_dict())
    assert valued == [rate]
    (file,) = tmp_path.iterdir()
    assert float(load_tensors(file, "weights")["rate"]) == rate
