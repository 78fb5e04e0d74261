"""A replay says in which phase of a cycle its seconds fell."""

from __future__ import annotations

from dataclasses import asdict, replace

import numpy as np
import pytest

from decoding.decision_costs import DecisionCosts
from envs.replay import ReplayVecEnv
from tests.test_replay_env import roll, world


def test_seconds_fall_where_they_belong() -> None:
    """What replay takes with the costs of one phase alone is that phase's seconds; walks do not see costs."""
    table, costs = world()
    nothing = replace(
        costs,
        start_P=np.zeros_like(costs.start_P),
        plain_P=np.zeros_like(costs.plain_P),
        arrive_PN=np.zeros_like(costs.arrive_PN),
        finish_PNS=np.zeros_like(costs.finish_PNS),
        digest_C=np.zeros_like(costs.digest_C),
        question=0.0,
    )
    selected_PNS = 0.5 + 0.25 * table.levels_PN[:, :, None] + 0.125 * table.size_PNS
    alone: dict[str, DecisionCosts] = {
        "draft": replace(nothing, start_P=costs.start_P, arrive_PN=costs.arrive_PN, digest_C=costs.digest_C),
        "verify": replace(nothing, finish_PNS=costs.finish_PNS, plain_P=costs.plain_P),
        "select": replace(
            nothing,
            finish_PNS=selected_PNS.astype(np.float32),
            plain_P=nothing.plain_P + 0.5,
            selection=(0.5, 0.25, 0.125),
        ),
        "commit": replace(
            nothing,
            finish_PNS=(2.0 + 0.5 * (table.emitted_PNS - 1)).astype(np.float32),
            plain_P=nothing.plain_P + 2.0,
            commit=(2.0, 0.5),
        ),
        "policy": replace(nothing, question=0.25),
    }
    for phase, these in alone.items():
        env = ReplayVecEnv(table, these, 4, np.random.default_rng(2))
        env.reset()
        roll(env, np.random.default_rng(3), 60)
        seconds = asdict(env.take_sums()[1])
        assert seconds.pop(phase) > 1
        assert seconds == pytest.approx(dict.fromkeys(seconds, 0.0), abs=1e-5)
