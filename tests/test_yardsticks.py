"""What policies are measured against: constants and bounds, shares by hand, the reachable bound's file."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import policies.reachable
from commands import yardsticks
from commands.recorded import Recorded
from commands.yardsticks import World, make_world, with_reachable
from decoding.decision_costs import decision_costs, joined_costs
from decoding.decision_schedule import shortest_seconds
from decoding.decision_table import DecisionTable, joined_tables
from decoding.decision_walk import replay_texts
from decoding.profile import CostProfile
from policies.baselines import constant
from policies.full_information import greedy
from tests.cycle_world import CASES, DECISIONS, case_table, wild_layers
from tests.test_replay_session import profile

QUESTION = 0.002


def profile_at(temperature: float) -> CostProfile:
    whole = profile()
    return replace(whole, conditions=replace(whole.conditions, temperature=temperature))


COSTS = [profile_at(0.0), profile_at(1.0)]


def recorded(temperatures: tuple[float, ...]) -> Recorded:
    """Texts of the merged world, by temperature."""
    parts = {}
    for temperature in temperatures:
        table = joined_tables([case_table(case) for case in CASES if case.temperature == temperature])
        parts[temperature] = table, decision_costs(table, profile(), QUESTION)
    tables, costs = zip(*parts.values(), strict=True)
    return Recorded(joined_tables(tables), joined_costs(costs), parts)


@cache
def world() -> World:
    return make_world(recorded((0.0,)), recorded((0.0, 1.0)), COSTS)


def test_the_bound_of_the_best_schedule_pays_for_no_question() -> None:
    table, costs = world().validation.table, world().validation.costs
    assert costs.question == QUESTION
    free = replace(costs, question=0.0)
    assert world().bounds == {"clairvoyant": pytest.approx(shortest_seconds(table, free).sum())}
    assert world().bounds["clairvoyant"] < shortest_seconds(table, costs).sum()


def test_the_rule_begins_with_the_rate_of_its_own_temperature(monkeypatch: pytest.MonkeyPatch) -> None:
    rates = {}

    def fitted(table: DecisionTable, costs: object, profile: CostProfile, rate: float) -> SimpleNamespace:
        rates[profile.conditions.temperature] = rate
        return SimpleNamespace(fitted={})

    monkeypatch.setattr(yardsticks, "fit_expected_gain", fitted)
    train = recorded((0.0, 1.0))
    here = make_world(train, recorded((0.0,)), COSTS)
    for temperature, (table, costs) in train.by_temperature.items():
        fixed = constant(table.features, DECISIONS, here.constant)
        speed = table.positions / replay_texts(table, costs, fixed).sum()
        assert rates[temperature] == pytest.approx(speed, rel=1e-6)
    assert rates[0.0] != pytest.approx(rates[1.0], rel=1e-3)


def test_constants_are_nowhere_on_the_way_to_a_bound() -> None:
    here, features = world(), world().validation.table.features
    found = here.measured(constant(features, DECISIONS, here.hindsight))
    assert found["over_hindsight_constant"] == pytest.approx(1)
    assert found["of_clairvoyant"] == pytest.approx(0, abs=1e-6)
    assert found["over_clairvoyant"] < 1
    chosen = here.measured(constant(features, DECISIONS, here.constant))
    assert chosen["over_constant"] == pytest.approx(1)
    assert found["over_constant"] >= chosen["over_constant"] * (1 - 1e-6)
    assert here.by_temperature(constant(features, DECISIONS, here.constant)) == {"0": 1, "1": 1}


def test_a_policy_is_compared_with_all_of_them_by_hand() -> None:
    """The constants take 40 and 36 seconds, the bounds 20 and 30, a policy 33."""
    here = world()
    other = next(one for one in here.seconds if one != here.constant)
    seconds = {here.constant: np.array([15.0, 25.0]), other: np.array([20.0, 16.0])}
    made = replace(
        here,
        seconds=seconds,
        hindsight=other,
        bounds={"clairvoyant": 20.0, "reachable": 30.0, "no bound": 36.0},
    )
    assert made.compared(33.0) == pytest.approx(
        {
            "over_constant": 40 / 33,
            "over_hindsight_constant": 36 / 33,
            "over_clairvoyant": 20 / 33,
            "of_clairvoyant": 3 / 16,
            "over_reachable": 30 / 33,
            "of_reachable": 3 / 6,
            "over_no bound": 36 / 33,
        }
    )


def test_the_reachable_bound_is_learned_at_the_nearest_temperature_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    learned: list[tuple[DecisionTable, float]] = []
    decide = greedy(wild_layers(0))

    def reachable(table: DecisionTable, costs: CostProfile, *_: Any) -> SimpleNamespace:
        learned.append((table, costs.conditions.temperature))
        return SimpleNamespace(decide=decide)

    monkeypatch.setattr(policies.reachable, "reachable", reachable)
    file = tmp_path / "new" / "reachable.json"
    found = with_reachable(world(), COSTS, file)
    only, _ = world().train.by_temperature[0.0]
    assert [temperature for _, temperature in learned] == [0.0, 0.0]
    assert all(table is only for table, _ in learned)
    free = replace(world().validation.costs, question=0.0)
    total = replay_texts(world().validation.table, free, decide).sum()
    assert found.bounds == {**world().bounds, "reachable": pytest.approx(total)}
    # A resumed run reads it.
    assert with_reachable(world(), COSTS, file).bounds == found.bounds
    assert len(learned) == 2
    for damage in ('{"seconds": "1"}', "{}", '{"seconds": -1.0}'):
        file.write_text(damage, encoding="utf-8")
        with pytest.raises(ValueError, match=r"reachable bound .* is damaged: remove it"):
            with_reachable(world(), COSTS, file)


def test_too_few_texts_to_learn_a_bound_from_leave_no_file(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="texts are too few to learn from"):
        with_reachable(world(), COSTS, tmp_path / "reachable.json")
    assert not list(tmp_path.iterdir())
