"""The tables of `CycleEnv`'s docstring are the spaces: of the live environment and of its replayed twin."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from gymnasium import spaces

from decoding.cycle_features import CycleFeatures
from decoding.decisions import Decisions
from envs.cycle import CycleEnv
from envs.replay import ReplayVecEnv
from envs.synthetic import World
from tests.random_tables import MERGED, random_costs, random_table

SIZES, COSTS = (2, 5, 9), (0.5, 1.5)
DECISIONS, FEATURES = Decisions(MERGED, 4, SIZES), CycleFeatures(SIZES, 4, 0.0, COSTS)


def docs_table(title: str) -> tuple[str, list[list[str]]]:
    """The space that a section names, and its table's rows."""
    section = (CycleEnv.__doc__ or "").split(f"## {title} space: ")[1].split("\n    ##")[0]
    rows = [line.strip(" |").split(" | ") for line in section.splitlines() if line.strip().startswith("| ")]
    return section.splitlines()[0], rows[1:]


def live() -> CycleEnv:
    def never(rng: np.random.Generator) -> None:
        raise AssertionError("nothing is decoded here")

    return CycleEnv(never, DECISIONS, FEATURES, clock=lambda: 0.0)  # type: ignore[arg-type]


def test_the_observation_table_is_the_observation_space() -> None:
    name, rows = docs_table("Observation")
    expected: list[tuple[str, float, float]] = []
    for entries, low, high, *_ in rows:
        names = entries.split(", for each")[0].split(", ")
        if names == ["expected_s"]:
            names = [f"expected_{size}" for size in SIZES]
        if names == ["cost_i"]:
            names = [f"cost_{place}" for place in range(len(COSTS))]
        bounds = float(low), float(high.replace("D", "4"))
        expected += [(one, *bounds) for one in names]
    space = live().observation_space
    assert isinstance(space, spaces.Box)
    assert expected == list(zip(FEATURES.names, space.low.tolist(), space.high.tolist(), strict=True))
    assert name == "Box((15 + S + costs,), float32)"
    assert space.shape == (15 + len(SIZES) + len(COSTS),)
    assert space.dtype == np.float32


def test_the_action_table_is_the_action_space() -> None:
    name, rows = docs_table("Action")
    assert name == "Discrete(2 + C + S)"
    count, sizes = len(MERGED), len(SIZES)
    assert live().action_space == spaces.Discrete(2 + count + sizes)
    assert [row[0] for row in rows] == ["0", "1 .. C", "C + 1", "C + 2 .. C + 1 + S"]
    assert DECISIONS.names[0] == "plain"
    assert DECISIONS.names[1 : count + 1] == tuple(f"draft {one.name.lower()}" for one in MERGED)
    assert DECISIONS.names[count + 1] == "continue"
    assert DECISIONS.names[count + 2 : count + 2 + sizes] == tuple(f"verify {size}" for size in SIZES)
    assert [DECISIONS.size_of(count + 2 + place) for place in range(sizes)] == list(SIZES)


def test_the_replayed_twin_has_the_same_spaces() -> None:
    rng = np.random.default_rng(0)
    table = random_table(rng, choices=MERGED, depth=4, sizes=SIZES)
    twin = ReplayVecEnv(table, random_costs(rng, table), 2, rng)
    plain = CycleEnv(live()._open, table.decisions, table.features, clock=lambda: 0.0)
    assert (twin.observation_space, twin.action_space) == (plain.observation_space, plain.action_space)


@pytest.mark.parametrize("episode", ["request", "cycle"])
def test_what_a_world_shows_is_in_the_space(episode: object) -> None:
    world = World((Fraction(1, 2),), Fraction(1, 4), (Fraction(1),) * 3, (1, 2), tokens=5)
    table = world.table(3, np.random.default_rng(0))
    env = ReplayVecEnv(table, world.costs(table), 3, np.random.default_rng(0), episode=episode)  # type: ignore[arg-type]
    assert all(env.observation_space.contains(row) for row in env.reset())
