"""The vectorised replay: twins are equal, states come back, texts have their turns, mistakes take a line."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.utils.env_checker import check_env as gymnasium_check
from stable_baselines3.common.env_checker import check_env
from stable_baselines3.common.vec_env import VecCheckNan, VecMonitor

from decoding.decision_costs import DecisionCosts
from decoding.decision_table import ROOT_NODE, DecisionTable
from decoding.records import PhaseSeconds
from envs.replay import ReplayVecEnv, check_finite
from tests.random_tables import random_costs, random_table

Steps = list[tuple[np.ndarray, ...]]


def world(seed: int = 0, texts: int = 6, tokens: int = 9) -> tuple[DecisionTable, DecisionCosts]:
    rng = np.random.default_rng(seed)
    table = random_table(rng, texts, tokens)
    return table, random_costs(rng, table)


def env_of(seed: int = 0, lanes: int = 4, **more: Any) -> ReplayVecEnv:
    return ReplayVecEnv(*world(), lanes, np.random.default_rng(seed), rate=2.0, **more)


def some_actions(masks_BA: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return np.array([rng.choice(np.flatnonzero(row)) for row in masks_BA])


def step(env: ReplayVecEnv, actions_B: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, Any]:
    """What `VecEnv` types as observations of any kind are arrays here."""
    found: Any = env.step(actions_B)
    return found


def roll(env: ReplayVecEnv, rng: np.random.Generator, steps: int) -> Steps:
    """Of each step the masks, the actions and what they led to."""
    found: Steps = []
    for _ in range(steps):
        masks_BA = env.action_masks()
        actions_B = some_actions(masks_BA, rng)
        seen, rewards, dones, infos = step(env, actions_B)
        last = [info.get("terminal_observation", np.zeros(1)) for info in infos]
        found.append((masks_BA, actions_B, seen.copy(), rewards, dones, np.concatenate(last)))
    return found


def assert_equal(one: Steps, other: Steps) -> None:
    for here, there in zip(one, other, strict=True):
        for array, twin in zip(here, there, strict=True):
            np.testing.assert_array_equal(array, twin)
            assert array.dtype == twin.dtype


@pytest.mark.parametrize("episode", ["request", "cycle"])
def test_twins_with_one_seed_are_equal(episode: Any) -> None:
    envs = [env_of(seed, episode=episode) for seed in (3, 3, 4)]
    first = [env.reset() for env in envs]
    np.testing.assert_array_equal(first[0], first[1])
    rolls = [roll(env, np.random.default_rng(1), 120) for env in envs]
    assert_equal(rolls[0], rolls[1])
    assert any(dones.any() for *_, dones, _ in rolls[0])
    with pytest.raises(AssertionError):
        assert_equal(rolls[0], rolls[2])


@pytest.mark.parametrize("after", [0, 1, 7, 40])
def test_a_saved_state_goes_on_the_same(after: int) -> None:
    env = env_of(3)
    env.reset()
    roll(env, np.random.default_rng(1), after)
    state, random = env.export_state(), env.rng.bit_generator.state
    kept = {name: array.copy() for name, array in state.items()}
    starts = env.episode_starts()
    goes_on = roll(env, np.random.default_rng(2), 60)
    for name, array in kept.items():
        np.testing.assert_array_equal(array, state[name], err_msg=f"{name} was saved as a view")
    other = env_of(99)
    other.reset()
    roll(other, np.random.default_rng(5), 13)
    other.rng.bit_generator.state = random
    pending = other.restore_state(state)
    np.testing.assert_array_equal(pending, other.walk.features())
    np.testing.assert_array_equal(other.episode_starts(), starts)
    assert_equal(goes_on, roll(other, np.random.default_rng(2), 60))
    for name, array in kept.items():
        np.testing.assert_array_equal(array, state[name], err_msg=f"{name} was restored as a view")


@pytest.mark.parametrize("episode", ["request", "cycle"])
def test_episodes_begin_where_the_one_before_ended(episode: Any) -> None:
    """What a resumed run works out from the lanes is what the uninterrupted one was told."""
    env = env_of(1, episode=episode)
    env.reset()
    assert env.episode_starts().all()
    cycles = 0
    for _ in range(80):
        before = env.walk.cycles_B.copy()
        _, _, dones, _ = env.step(some_actions(env.action_masks(), np.random.default_rng(cycles)))
        np.testing.assert_array_equal(dones, env.episode_starts())
        ended = (env.walk.cycles_B != before) | dones
        cycles += int(ended.sum())
        assert (ended & ~dones).any() <= (episode == "request")
    assert cycles > 80


@pytest.mark.parametrize("lanes", [1, 3, 8])
def test_each_text_comes_once_before_any_comes_again(lanes: int) -> None:
    table, costs = world()
    env = ReplayVecEnv(table, costs, lanes, np.random.default_rng(0))
    asked = table.asked_P[table.starts[:-1]].nonzero()[0].tolist()
    assert asked == [0, 1, 2, 3, 4]  # the last text has one token: nothing is asked
    env.reset()
    order = [table.starts.tolist().index(place) for place in env.walk.place_B]
    rng = np.random.default_rng(1)
    while len(order) < 60:
        _, _, dones, _ = env.step(some_actions(env.action_masks(), rng))
        order += [table.starts.tolist().index(place) for place in env.walk.place_B[dones]]
    rounds = [tuple(order[start : start + 5]) for start in range(0, 60, 5)]
    assert all(sorted(one) == asked for one in rounds)
    assert len(set(rounds)) > 3  # in another order every time


def test_a_finished_episode_gives_its_last_observation() -> None:
    env = env_of(2)
    before = env.reset()
    rng = np.random.default_rng(1)
    finished = 0
    for _ in range(40):
        before = before.copy()
        seen, _, dones, infos = step(env, some_actions(env.action_masks(), rng))
        for lane, info in enumerate(infos):
            assert set(info) == ({"terminal_observation"} if dones[lane] else set())
            if dones[lane]:
                np.testing.assert_array_equal(info["terminal_observation"], before[lane])
        assert (env.walk.node_B[dones] == ROOT_NODE).all()
        finished += int(dones.sum())
        before = seen
    assert finished > 3


def test_sums_are_those_of_the_steps_since_they_were_taken() -> None:
    env = env_of(2, reward="time")
    env.reset()
    for steps in (0, 25, 12):
        found = roll(env, np.random.default_rng(steps), steps)
        spent = -sum(float(rewards.sum()) for _, _, _, rewards, *_ in found) / 2.0
        emitted, seconds, cycles = env.take_sums()
        assert seconds.total == pytest.approx(spent)
        assert seconds.policy == pytest.approx(steps * env.num_envs * env.walk.costs.question)
        assert (emitted >= cycles > 0) == (steps > 0)
    assert env.take_sums() == (0, PhaseSeconds(), 0)


def test_sums_count_a_whole_pass_exactly() -> None:
    table, costs = world()
    env = ReplayVecEnv(table, costs, 1, np.random.default_rng(0))
    env.reset()
    cycles = finished = 0
    rng = np.random.default_rng(1)
    while finished < 5:
        actions = some_actions(env.action_masks(), rng)
        ends = env.walk._next_NA[env.walk.node_B, actions] < 0
        cycles += int(ends.sum())
        finished += int(env.step(actions)[2].sum())
    emitted, _, counted = env.take_sums()
    assert (emitted, counted) == (table.positions - 1, cycles)


# --- spaces and interfaces --------------------------------------------------------------------------------


def test_spaces_are_those_of_the_features_and_decisions() -> None:
    env = env_of()
    features, decisions = env.walk.table.features, env.walk.table.decisions
    assert isinstance(env.observation_space, spaces.Box)
    assert isinstance(env.action_space, spaces.Discrete)
    assert env.observation_space.dtype == np.float32
    np.testing.assert_array_equal(env.observation_space.low, features.low)
    np.testing.assert_array_equal(env.observation_space.high, features.high)
    assert env.observation_space.shape == (len(features.names),)
    assert env.action_space.n == len(decisions.names) == len(decisions)
    seen = env.reset()
    assert (seen.shape, seen.dtype) == ((4, len(features.names)), np.float32)
    for _, _, row, rewards, dones, _ in roll(env, np.random.default_rng(0), 30):
        assert all(env.observation_space.contains(one) for one in row)
        assert (rewards.shape, rewards.dtype, dones.shape, dones.dtype) == ((4,), np.float32, (4,), bool)


class OneLane(gymnasium.Env[np.ndarray, np.int64]):
    """A lane as an environment of its own: what the checkers can look at. They know no masks: an action that
    is not allowed is the first that is."""

    def __init__(self) -> None:
        self.lanes = env_of(lanes=1)
        self.observation_space = self.lanes.observation_space
        self.action_space = self.lanes.action_space

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.lanes.rng = np.random.default_rng(seed)
        self.lanes._waiting = self.lanes._waiting[:0]
        return self.lanes.reset()[0], {}

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        allowed = self.lanes.action_masks()[0]
        taken = action if allowed[action] else allowed.argmax()
        seen, rewards, dones, infos = step(self.lanes, np.array([taken]))
        return seen[0], float(rewards[0]), bool(dones[0]), False, dict(infos[0])


def test_the_checkers_find_nothing_wrong_with_a_lane() -> None:
    check_env(OneLane())
    gymnasium_check(OneLane(), skip_render_check=True)


def test_wrappers_of_vectorised_environments_work() -> None:
    env = VecCheckNan(VecMonitor(env_of(2)), raise_exception=True)
    env.reset()
    rng, lengths = np.random.default_rng(1), []
    for _ in range(60):
        masks_BA = np.stack(env.env_method("action_masks"))
        _, _, _, infos = env.step(some_actions(masks_BA, rng))
        lengths += [info["episode"]["l"] for info in infos if "episode" in info]
    assert len(lengths) > 3


def test_what_a_lane_does_not_have() -> None:
    env = env_of()
    assert env.has_attr("action_masks")
    assert not env.has_attr("np_random")
    assert env.get_attr("render_mode") == [None] * 4
    assert env.env_is_wrapped(VecMonitor) == [False] * 4
    assert env.seed(5) == [None] * 4
    for call in (
        lambda: env.get_attr("np_random"),
        lambda: env.set_attr("rate", 2.0),
        lambda: env.env_method("reset"),
    ):
        with pytest.raises(AttributeError, match="share one table"):
            call()
    env.close()


# --- mistakes ---------------------------------------------------------------------------------------------


def refused(words: str, build: Callable[[], Any]) -> None:
    with pytest.raises(ValueError, match=words) as error:
        build()
    assert len(str(error.value).splitlines()) == 1


@pytest.mark.parametrize("rate", [0.0, -1.0, np.inf, np.nan])
def test_rates_that_are_none(rate: float) -> None:
    rng = np.random.default_rng(0)
    refused("must be finite and above 0", lambda: ReplayVecEnv(*world(), 2, rng, rate=rate))


def test_arguments_that_are_none() -> None:
    table, costs = world()
    rng = np.random.default_rng(0)
    refused("lanes is 0", lambda: ReplayVecEnv(table, costs, 0, rng))
    refused("reward is 'speed'", lambda: ReplayVecEnv(table, costs, 1, rng, "speed"))
    wrong: Any = "text"
    refused("episode is 'text'", lambda: ReplayVecEnv(table, costs, 1, rng, episode=wrong))
    silent = replace(table, asked_P=np.zeros_like(table.asked_P))
    refused("record longer texts", lambda: ReplayVecEnv(silent, costs, 1, rng))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_numbers_that_are_not_finite(value: float) -> None:
    table, costs = world()
    check_finite(table, costs)
    features = table.features_PNF.copy()
    features[2, 1, 3] = value
    broken = replace(table, features_PNF=features)
    refused("features that are not finite", lambda: ReplayVecEnv(broken, costs, 1, np.random.default_rng(0)))
    numbers = [one for one in fields(costs) if not isinstance(getattr(costs, one.name), bool)]
    assert len(numbers) == 8
    for one in numbers:
        array = np.array(getattr(costs, one.name))
        array.reshape(-1)[-1] = value
        changed: dict[str, Any] = {one.name: array if array.ndim else float(array)}
        wrong = replace(costs, **changed)
        refused("costs that are not finite", partial(check_finite, table, wrong))


def test_actions_that_are_not_allowed_are_refused() -> None:
    env = env_of()
    env.reset()
    refused("is not allowed at its question", lambda: env.step(np.full(4, len(env.walk.table.decisions) - 1)))


def test_states_of_other_lanes_or_texts_are_refused() -> None:
    env = env_of(lanes=4)
    env.reset()
    state = env.export_state()
    refused("had 4 lanes, this one has 3", lambda: env_of(lanes=3).restore_state(state))
    beyond = {**state, "place_B": state["place_B"] + 1000}
    refused("of other texts", lambda: env_of(lanes=4).restore_state(beyond))
