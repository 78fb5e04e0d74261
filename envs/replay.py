"""Recorded texts as a vectorised environment: a policy that takes every decision learns without a model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from stable_baselines3.common.vec_env.base_vec_env import VecEnv, VecEnvStepReturn

from decoding.decision_costs import DecisionCosts
from decoding.decision_table import ROOT_NODE, DecisionTable
from decoding.decision_walk import DecisionWalk, Outcome
from decoding.records import PhaseSeconds
from envs.rewards import Episode, Step, episode_of, step_reward

_ACTION_MASKS = "action_masks"


class ReplayVecEnv(VecEnv):
    """Many requests side by side; the twin of `draftpace/Cycle-v0` with predicted seconds.

    An episode is a request, or a cycle. Texts come in random order, each once before any comes again; a lane
    that ends one goes on with the next. Observations, actions and masks are those of `CycleEnv`
    (`envs/cycle.py`).

    Args:
        table, costs: the texts; costs of the same table.
        lanes: requests side by side.
        rng: draws the order of the texts.
        reward: a name of `envs.rewards.STEP_REWARDS`.
        rate: tokens per second that rewards are measured against; see there.
        episode: None = what the reward is meant for, see `envs.rewards.episode_of`.

    Raises:
        ValueError: features, costs or rate are not finite, no text asks anything, there are no lanes, or the
            episode is none of these.
    """

    def __init__(
        self,
        table: DecisionTable,
        costs: DecisionCosts,
        lanes: int,
        rng: np.random.Generator,
        reward: str = "time_saved",
        rate: float = 1.0,
        episode: Episode | None = None,
    ) -> None:
        if lanes < 1:
            raise ValueError(f"lanes is {lanes}, must be at least 1")
        episode = episode_of(reward) if episode is None else episode
        if episode not in ("request", "cycle"):
            raise ValueError(f"episode is {episode!r}, must be request or cycle")
        if not (np.isfinite(rate) and rate > 0):
            raise ValueError(f"rate is {rate} tokens per second, must be finite and above 0")
        check_finite(table, costs)
        features = table.features
        super().__init__(
            lanes,
            spaces.Box(features.low, features.high, dtype=np.float32),
            spaces.Discrete(len(table.decisions)),
        )
        self.walk = DecisionWalk(table, costs, lanes)
        self.rng = rng
        self.rate = rate
        self.emitted, self.seconds, self.cycles = 0, PhaseSeconds(), 0
        self._reward = step_reward(reward)
        self._by_cycle = episode == "cycle"
        self._texts = np.flatnonzero(table.asked_P[table.starts[:-1]])
        if not len(self._texts):
            raise ValueError("no recorded text has a position to draft at: record longer texts")
        self._waiting = np.zeros(0, dtype=np.int64)
        self._actions = np.zeros(lanes, dtype=np.int64)
        self._seen = np.zeros((lanes, len(features.names)), dtype=np.float32)
        self._quiet: list[dict[str, Any]] = [{} for _ in range(lanes)]

    def reset(self) -> np.ndarray:
        lanes = np.arange(self.num_envs)
        self.walk.start(lanes, self._next_texts(len(lanes)))
        return self._observe()

    def step_async(self, actions: np.ndarray) -> None:
        self._actions = np.asarray(actions)

    def step_wait(self) -> VecEnvStepReturn:
        outcome = self.walk.step(self._actions)
        step = Step(outcome.seconds_B, self.walk.cycle_seconds_B, outcome.emitted_B)
        rewards = self._reward(step, self.rate).astype(np.float32)
        self.emitted += int(outcome.emitted_B.sum())
        self.seconds = added(self.seconds, outcome, self.walk.costs.question)
        self.cycles += int(outcome.ended_B.sum())
        infos = self._quiet
        done_B = outcome.ended_B if self._by_cycle else outcome.finished_B
        if done_B.any():
            infos = list(infos)
            for lane, row in zip(np.flatnonzero(done_B), self._seen[done_B], strict=True):
                infos[lane] = {"terminal_observation": row}  # a text's end has no question of its own
        if outcome.finished_B.any():
            finished = np.flatnonzero(outcome.finished_B)
            self.walk.start(finished, self._next_texts(len(finished)))
        return self._observe(), rewards, done_B, infos

    def take_sums(self) -> tuple[int, PhaseSeconds, int]:
        """Tokens, seconds and cycles since the last call."""
        sums = self.emitted, self.seconds, self.cycles
        self.emitted, self.seconds, self.cycles = 0, PhaseSeconds(), 0
        return sums

    def action_masks(self) -> np.ndarray:
        """bool (lanes, actions) of the pending questions."""
        return self.walk.allowed()

    def export_state(self) -> dict[str, np.ndarray]:
        """Where every lane stands and which texts wait; with `rng` all that the rest depends on."""
        return {**self.walk.export_state(), "waiting": self._waiting.copy()}

    def restore_state(self, state: dict[str, np.ndarray]) -> np.ndarray:
        """The inverse; returns the pending observations. ValueError if it is of other lanes or texts."""
        lanes, places_B = len(state["place_B"]), state["place_B"]
        if lanes != self.num_envs:
            raise ValueError(f"the saved replay had {lanes} lanes, this one has {self.num_envs}")
        if not 0 <= places_B.min() <= places_B.max() < self.walk.table.positions:
            raise ValueError("the saved replay was of other texts than this one")
        self._waiting = state["waiting"].copy()
        self.walk.restore_state(state)
        return self._observe()

    def episode_starts(self) -> np.ndarray:
        """bool (lanes), which stand at the beginning of an episode."""
        walk = self.walk
        return (walk.node_B == ROOT_NODE) & ((walk.cycles_B == 0) | self._by_cycle)

    def _observe(self) -> np.ndarray:
        self._seen = self.walk.features()
        return self._seen

    def _next_texts(self, count: int) -> np.ndarray:
        while len(self._waiting) < count:
            self._waiting = np.concatenate([self._waiting, self.rng.permutation(self._texts)])
        taken, self._waiting = self._waiting[:count], self._waiting[count:]
        return taken

    def close(self) -> None:
        return None

    def has_attr(self, attr_name: str) -> bool:
        return attr_name == _ACTION_MASKS

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        if attr_name == "render_mode":
            return [None] * self.num_envs
        raise AttributeError(f"the lanes share one table: there is no {attr_name} of each")

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        raise AttributeError("the lanes share one table: nothing of them can be set")

    def env_method(self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any) -> list[Any]:
        if method_name != _ACTION_MASKS:
            raise AttributeError(f"the lanes share one table: there is no {method_name} of each")
        return list(self.action_masks())

    def env_is_wrapped(self, wrapper_class: type, indices: Any = None) -> list[bool]:
        return [False] * self.num_envs

    def seed(self, seed: int | None = None) -> Sequence[int | None]:
        """Seeds nothing: the order of the texts is drawn with the generator that was given."""
        return [None] * self.num_envs


def added(sums: PhaseSeconds, outcome: Outcome, question: float) -> PhaseSeconds:
    """The sums with a step of all lanes, each of which answered a question that takes so many seconds."""
    draft, select, commit = (
        float(one.sum()) for one in (outcome.draft_B, outcome.select_B, outcome.commit_B)
    )
    policy = question * len(outcome.seconds_B)
    verify = float(outcome.seconds_B.sum()) - draft - select - commit - policy
    return PhaseSeconds(
        draft=sums.draft + draft,
        select=sums.select + select,
        verify=sums.verify + verify,
        commit=sums.commit + commit,
        policy=sums.policy + policy,
    )


def check_finite(table: DecisionTable, costs: DecisionCosts) -> None:
    """ValueError where a feature or a cost is no finite number."""
    if not np.isfinite(table.features_PNF).all():
        raise ValueError("the recording has features that are not finite: record again")
    arrays = (costs.start_P, costs.plain_P, costs.arrive_PN, costs.finish_PNS, costs.digest_C)
    if not all(np.isfinite(one).all() for one in (*arrays, costs.question, costs.selection, costs.commit)):
        raise ValueError("the profile has costs that are not finite: profile again")
