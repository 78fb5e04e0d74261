"""What answers are worth: the default reward sums to the time a text takes, the published one to something
else."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from envs.replay import ReplayVecEnv
from envs.rewards import REWARDS, STEP_REWARDS, Step, episode_of, reward_by_name, step_reward
from envs.synthetic import RATIOS
from envs.synthetic_optimum import Plan, optimal_rate
from tests.random_tables import Taken, random_costs, random_table, walk_text
from tests.ratio_plans import mean_of_ratios, policies, ratio_of_sums, sum_of_ratios, text_seconds

# Three lanes: a level, a cycle of 4 tokens that ends, a plain step.
STEP = Step(np.array([0.5, 0.25, 1.0]), np.array([0.5, 2.0, 1.0]), np.array([0, 4, 1]))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("time_saved", [-1.0, 3.5, -1.0]),
        ("time", [-1.0, -0.5, -2.0]),
        ("throughput", [0.0, 1.0, 0.5]),
        ("acceptance", [0.0, 4.0, 1.0]),
    ],
)
def test_rewards_by_hand(name: str, expected: list[float]) -> None:
    """At 2 tokens per second."""
    assert step_reward(name)(STEP, 2.0).tolist() == expected
    assert step_reward(name)(Step(0.25, 2.0, 4), 2.0) == expected[1]


@pytest.mark.parametrize("look_up", [step_reward, reward_by_name])
def test_unknown_rewards_are_named_in_one_line(look_up: object) -> None:
    with pytest.raises(ValueError, match=r"reward is 'speed', must be one of .*throughput") as error:
        look_up("speed")  # type: ignore[operator]
    assert len(str(error.value).splitlines()) == 1
    assert set(STEP_REWARDS) == {"time_saved", "time", "throughput", "acceptance"}
    assert set(REWARDS) == {"throughput"}


@given(
    seed=st.integers(0, 9999),
    eighths=st.integers(1, 40),
    reward=st.sampled_from(["time_saved", "time", "throughput", "acceptance"]),
)
def test_what_a_request_is_worth_by_any_path(seed: int, eighths: int, reward: str) -> None:
    """Random walks, each followed again by a plain loop in fractions. Costs and the rate are such that no
    digit is lost: the sum of `time_saved` is N - rate * seconds to the last bit."""
    rng = np.random.default_rng(seed)
    table = random_table(rng)
    costs = random_costs(rng, table)
    rate = eighths / 8
    env = ReplayVecEnv(table, costs, 3, np.random.default_rng(seed), reward, rate, "request")
    env.reset()
    sums, chosen = [Fraction(0)] * 3, [dict[tuple[int, int], int]() for _ in range(3)]
    finished = 0
    while finished < 6:
        here = list(zip(env.walk.place_B, env.walk.node_B, strict=True))
        texts = np.searchsorted(table.starts, env.walk.place_B, side="right") - 1
        actions = np.array([rng.choice(np.flatnonzero(row)) for row in env.action_masks()])
        _, rewards, dones, _ = env.step(actions)
        for lane, (place, node) in enumerate(here):
            chosen[lane][int(place), int(node)] = int(actions[lane])
            sums[lane] += Fraction(float(rewards[lane]))
            if not dones[lane]:
                continue
            text = int(texts[lane])
            taken, seconds = walk_text(table, costs, text, answers_of(chosen[lane]))
            tokens = int(table.starts[text + 1] - table.starts[text])
            worth = worth_of(reward, taken, tokens, seconds, Fraction(rate))
            assert sums[lane] == worth if reward != "throughput" else abs(sums[lane] - worth) < 1e-4
            sums[lane], chosen[lane] = Fraction(0), {}
            finished += 1


def answers_of(chosen: dict[tuple[int, int], int]) -> Callable[[int, int], int]:
    return lambda place, node: chosen[place, node]


def worth_of(reward: str, taken: list[Taken], tokens: int, seconds: Fraction, rate: Fraction) -> Fraction:
    if reward == "time_saved":
        return tokens - rate * seconds
    if reward == "time":
        return -rate * seconds
    if reward == "acceptance":
        return Fraction(tokens)
    # Of a last token nobody is asked: it comes with the cycle before.
    tokens -= sum(one.emitted for one in taken)
    seconds -= sum(one.seconds for one in taken)
    total, cycle = Fraction(0), Fraction(0)
    for one in taken:
        cycle += one.seconds
        if one.ends:
            last = one is taken[-1]
            total += (one.emitted + tokens * last) / (rate * (cycle + seconds * last))
            cycle = Fraction(0)
    return total


def test_rewards_of_cycles_end_with_the_cycle() -> None:
    assert {name: episode_of(name) for name in STEP_REWARDS} == {
        "time_saved": "request",
        "time": "request",
        "throughput": "cycle",
        "acceptance": "cycle",
    }
    table = random_table(np.random.default_rng(0))
    costs = random_costs(np.random.default_rng(0), table)
    for name, plain_ends in (("throughput", True), ("time_saved", False)):
        env = ReplayVecEnv(table, costs, 1, np.random.default_rng(1), name)
        env.reset()
        assert env.walk.end_B[0] - env.walk.place_B[0] > 2
        assert env.step(np.array([0]))[2].tolist() == [plain_ends]


# --- the mean of ratios -----------------------------------------------------------------------------------


def test_the_mean_of_ratios_picks_a_worse_policy_than_the_ratio_of_sums() -> None:
    """Exactly: every policy of the world that does the same at every position of a kind."""
    every = list(policies(RATIOS))
    assert len(every) == 1 + 10 * 10
    by_sums = max(every, key=lambda policy: ratio_of_sums(RATIOS, policy))
    by_ratios = max(every, key=lambda policy: mean_of_ratios(RATIOS, policy))
    assert by_sums == (Plan(6, 6), Plan(1, 1))
    assert by_ratios == (Plan(2, 2), Plan(1, 1))
    assert ratio_of_sums(RATIOS, by_sums) == Fraction(243, 121)
    assert ratio_of_sums(RATIOS, by_ratios) == Fraction(41, 23)
    assert mean_of_ratios(RATIOS, by_ratios) == Fraction(7, 4) > mean_of_ratios(RATIOS, by_sums)


def test_the_sum_of_ratios_over_a_request_picks_plain_steps() -> None:
    """So does it in any world in which a cycle takes longer than a plain step: with one kind of position it
    is 1 / seconds of a cycle. And the sum of accepted tokens is the same for every policy."""
    every = list(policies(RATIOS))
    assert max(every, key=lambda policy: sum_of_ratios(RATIOS, policy)) is None
    drafting = max(every[1:], key=lambda policy: sum_of_ratios(RATIOS, policy))
    assert sum_of_ratios(RATIOS, drafting) < sum_of_ratios(RATIOS, None) == 1


def test_policies_by_kind_come_close_to_the_optimum_of_a_text() -> None:
    """The optimum knows how much is left, they do not."""
    best = min(text_seconds(RATIOS, policy) for policy in policies(RATIOS))
    optimum = optimal_rate(RATIOS)
    assert optimum * Fraction(98, 100) < RATIOS.tokens / best <= optimum
    assert text_seconds(RATIOS, None) == RATIOS.tokens
