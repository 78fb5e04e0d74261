"""The live environment of every decision: clean by the checker, and the twin of the vectorised replay."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.utils.env_checker import check_env as gymnasium_check
from hypothesis import given, settings
from hypothesis import strategies as st

import envs  # noqa: F401 (registers the environments)
from decoding.controller import RootChoice
from decoding.cycle_features import CycleFeatures
from decoding.decision_costs import decision_costs
from decoding.decision_table import ROOT_NODE
from decoding.decisions import Decisions
from decoding.records import CycleRecord, PhaseSeconds
from decoding.replay_session import ReplaySession
from decoding.session import Session
from envs.cycle import CycleEnv, Request
from envs.outliers import Winsoriser
from envs.replay import ReplayVecEnv
from envs.rewards import STEP_REWARDS
from tests.cycle_world import DECISIONS, NAME, SIZES, case_table
from tests.test_decision_walk import tokens_of
from tests.test_replay_session import profile
from tests.test_replay_table import traced
from tests.traced_worlds import CHOICES, DEPTH, MERGED, PROMPTS, WORLDS, Case, session_of

FEATURES = CycleFeatures(SIZES, DEPTH)
Open = Callable[[np.random.Generator], Request]


def live(rng: np.random.Generator) -> Session:
    """A request of the merged world, drawn from the generator."""
    return session_of(Case(NAME, 0.0, int(rng.integers(3)), int(rng.integers(len(PROMPTS)))))


def make(open_request: Open = live, **changed: Any) -> CycleEnv:
    given: dict[str, Any] = {"decisions": DECISIONS, "features": FEATURES, "clock": lambda: 0.0}
    return CycleEnv(open_request, **(given | changed))


class Allowed(spaces.Discrete):
    """Samples among what the environment allows: the checker knows nothing of masks."""

    def __init__(self, env: CycleEnv, actions: int) -> None:
        super().__init__(actions)
        self.env = env

    def sample(self, mask: Any = None, probability: Any = None) -> np.int64:
        return super().sample(mask=self.env.action_masks().astype(np.int8))


def test_the_checker_has_nothing_to_say() -> None:
    # Warnings are errors in this suite.
    env = gymnasium.make(
        "draftpace/Cycle-v0", open_request=live, decisions=DECISIONS, features=FEATURES, clock=lambda: 0.0
    ).unwrapped
    assert isinstance(env, CycleEnv)
    env.action_space = Allowed(env, len(DECISIONS))
    gymnasium_check(env)
    spec = gymnasium.spec("draftpace/Cycle-v0")
    assert spec.nondeterministic
    assert spec.entry_point == "envs.cycle:CycleEnv"


# --- episodes ---------------------------------------------------------------------------------------------


def rollout(env: CycleEnv, seed: int, steps: int) -> list[Any]:
    """Actions drawn among the allowed ones; all that is seen."""
    rng = np.random.default_rng(seed)
    observation, info = env.reset(seed=seed)
    seen: list[Any] = [observation.tolist(), info["action_mask"].tolist()]
    for _ in range(steps):
        masks = env.action_masks()
        assert masks.dtype == bool
        assert masks.any()
        action = rng.choice(np.flatnonzero(masks))
        observation, _, terminated, truncated, info = env.step(action)
        assert env.observation_space.contains(observation)
        assert not truncated
        assert (info["action_mask"] == env.action_masks()).all()
        seen += [observation.tolist(), info["action_mask"].tolist(), terminated, info.get("emitted")]
        if terminated:
            assert info["action_mask"].all()
            with pytest.raises(ValueError, match="after the end of an episode: call reset"):
                env.step(action)
            observation, _ = env.reset()
            seen.append(observation.tolist())
    return seen


def test_seeded_twins_go_the_same_way() -> None:
    one, other = (rollout(make(), 3, 60) for _ in range(2))
    assert one == other
    assert one != rollout(make(), 4, 60)


def test_requests_are_decoded_to_their_ends() -> None:
    opened: list[Session] = []

    def counting(rng: np.random.Generator) -> Session:
        opened.append(live(rng))
        return opened[-1]

    env = make(counting)
    emitted, done = 0, 0
    env.reset(seed=1)
    rng = np.random.default_rng(0)
    while done < 5:
        *_, terminated, _, info = env.step(rng.choice(np.flatnonzero(env.action_masks())))
        if "emitted" in info:
            assert info["tokens_per_second"] > 0
            assert set(info["seconds"]) == {"draft", "select", "verify", "commit", "policy"}
            emitted += info["emitted"]
        if terminated:
            assert opened[-1].finished
            # What the last cycle emits unasked, and the first after one token, is in no cycle's own numbers.
            assert len(opened[-1].generated) - emitted in (0, 1, 2)
            emitted, done = 0, done + 1
            env.reset()
    assert len(opened) == 6
    env.close()
    env.close()
    with pytest.raises(ValueError, match="call reset"):
        env.step(np.int64(0))


# --- the twin ---------------------------------------------------------------------------------------------


@given(
    name=st.sampled_from([*WORLDS, *MERGED, *MERGED]),
    temperature=st.sampled_from([0.0, 1.0]),
    prompt=st.integers(0, len(PROMPTS) - 1),
    max_depth=st.integers(1, DEPTH),
    reward=st.sampled_from(sorted(STEP_REWARDS)),
    seed=st.integers(0, 99),
)
@settings(max_examples=30)
def test_it_is_the_twin_of_the_vectorised_replay(
    name: str, temperature: float, prompt: int, max_depth: int, reward: str, seed: int
) -> None:
    """The same observations, masks and tokens, and the same sum of rewards over each cycle."""
    case, rng = Case(name, temperature, 1, prompt), np.random.default_rng(seed)
    decisions = Decisions(CHOICES if name in MERGED else CHOICES[:1], max_depth, SIZES)
    records = case_table(case, decisions)
    costs = decision_costs(records, profile(0.004), question_seconds=0.0)
    many = ReplayVecEnv(records, costs, 1, np.random.default_rng(0), reward, 30.0)

    session = ReplaySession(
        traced(case),
        profile(0.004),
        max_new_tokens=tokens_of(case),
        draft_depth=DEPTH,
        composite=name.startswith("composite"),
        temperature=temperature,
    )
    ticks = itertools.count(step=1e-9)  # levels take next to nothing: what they cost is in the cycle's record
    env = make(
        lambda _: session,
        decisions=decisions,
        features=records.features,
        reward=reward,
        rate=30.0,
        clock=lambda: float(next(ticks)),
    )
    observation, _ = env.reset(seed=seed)
    (twin,) = many.reset()
    sums, emitted = [0.0, 0.0], [0, 0]

    def over() -> bool:
        return session.finished

    while not over():
        np.testing.assert_array_equal(observation, twin)
        np.testing.assert_array_equal(env.action_masks(), many.action_masks()[0])
        action = rng.choice(np.flatnonzero(env.action_masks()))
        observation, gained, terminated, _, info = env.step(action)
        (twin,), (theirs,), (done,), _ = many.step(np.array([action]))
        sums[0] += gained
        sums[1] += theirs
        while many.walk.node_B[0] != ROOT_NODE and not _asks(many):
            # A draft that found nothing: nobody is asked there in a session.
            only = np.flatnonzero(many.action_masks()[0])
            (twin,), (theirs,), (done,), _ = many.step(only)
            sums[1] += theirs
        assert done == terminated
        if "emitted" in info:
            assert sums[0] == pytest.approx(sums[1], rel=2e-5, abs=2e-5)
            sums, tokens = [0.0, 0.0], many.take_sums()[0]
            emitted[0] += info["emitted"]
            emitted[1] += tokens
            # Of a text's last token nobody is asked.
            assert emitted[1] - emitted[0] == (over() and tokens > info["emitted"])
            if terminated and not over():  # the episode was a cycle
                observation, _ = env.reset()
    assert emitted[1] == len({one.index for one in traced(case).positions})


def _asks(env: ReplayVecEnv) -> bool:
    walk = env.walk
    return bool(walk.table.size_PNS[walk.place_B[0], walk.node_B[0]].any())


# --- rewards of the clock ---------------------------------------------------------------------------------


def test_levels_are_charged_when_they_are_drafted_and_the_sum_is_the_cycles() -> None:
    """A clock that moves on by a second a look: 1 s a level, the rest of the cycle at its end."""
    ticks = itertools.count()
    env = make(clock=lambda: float(next(ticks)), rate=2.0)
    env.reset(seed=0)
    while not env.action_masks()[DECISIONS.draft_action(RootChoice.ALL)]:
        env.reset()
    rewards = [env.step(np.int64(DECISIONS.draft_action(RootChoice.ALL)))[1]]
    rewards.append(env.step(np.int64(DECISIONS.continue_action))[1])
    _, last, _, _, info = env.step(np.int64(DECISIONS.continue_action + 1))
    assert rewards == [-2.0, -2.0]
    work = sum(info["seconds"].values()) - info["seconds"]["policy"]
    assert sum(rewards) + last == pytest.approx(info["emitted"] - 2.0 * work)


def test_a_request_left_in_the_middle_of_a_draft_owes_nothing() -> None:
    """The next request's first cycle is charged for itself alone."""
    ticks = itertools.count()
    env = make(clock=lambda: float(next(ticks)))
    env.reset(seed=0)
    env.step(np.int64(1))
    env.reset(seed=0)
    _, reward, _, _, info = env.step(np.int64(0))
    work = sum(info["seconds"].values()) - info["seconds"]["policy"]
    assert reward == pytest.approx(info["emitted"] - work)
    assert work < 0.5


class OneStep:
    """A request of plain steps that take as long as they are told."""

    def __init__(self, seconds: list[float]) -> None:
        self.left = list(seconds)

    @property
    def finished(self) -> bool:
        return not self.left

    def cycle(self) -> Any:
        yield next(session_of(Case(NAME, 0.0, 0, 1)).cycle())
        return CycleRecord(0, 0, (), (7,), 10, PhaseSeconds(verify=self.left.pop(0), policy=99.0))


def test_outliers_of_the_clock_are_held() -> None:
    usual = [1.0, 1.2, 1.4, 1.6] * 5
    outliers = Winsoriser()
    env = make(lambda rng: OneStep([*usual, 50.0]), outliers=outliers)
    env.reset(seed=0)
    rewards = [env.step(np.int64(0))[1] for _ in range(21)]
    assert rewards[:20] == pytest.approx([1 - one for one in usual])
    assert -2.0 < rewards[20] < -1.0
    assert outliers.held == 1
    env = make(lambda rng: OneStep([50.0]))
    env.reset(seed=0)
    assert env.step(np.int64(0))[1] == -49.0


def test_levels_are_judged_each_by_its_own_kind() -> None:
    """Half as dear after the first: by all levels together the first ones would be held to the others."""
    kinds: list[str] = []

    def noting(kind: str, seconds: float) -> float:
        kinds.append(kind)
        return seconds

    env = make(outliers=noting)
    env.reset(seed=0)
    while not env.action_masks()[DECISIONS.draft_action(RootChoice.ALL)]:
        env.reset()
    for action in (1, DECISIONS.continue_action, DECISIONS.continue_action, len(DECISIONS) - 5):
        env.step(np.int64(action))
    assert kinds == ["draft all after 0", "continue after 1", "continue after 2", "3x1"]


def test_an_episode_may_be_a_cycle_and_a_reset_goes_on_with_the_request() -> None:
    """For the rewards that mean something by the cycle alone; a seed begins anew, as does a draft left."""
    opened: list[Session] = []

    def counting(rng: np.random.Generator) -> Session:
        opened.append(session_of(Case(NAME, 0.0, 1, 1)))
        return opened[-1]

    assert make(counting, reward="acceptance")._by_cycle
    assert not make(counting)._by_cycle
    env = make(counting, episode="cycle")
    env.reset(seed=0)
    for cycle in range(1, 4):
        _, _, terminated, _, info = env.step(np.int64(0))
        assert terminated
        assert info["action_mask"].all()
        assert len(opened[0].generated) == cycle
        with pytest.raises(ValueError, match="after the end of an episode: call reset"):
            env.step(np.int64(0))
        _, info = env.reset()
        assert info["action_mask"].tolist() == env.action_masks().tolist()
        assert not info["action_mask"].all()
    assert len(opened) == 1
    env.step(np.int64(0))
    env.reset(seed=0)
    assert len(opened) == 2
    env.step(np.int64(1))
    env.reset()
    assert len(opened) == 3
    with pytest.raises(ValueError, match="episode is 'day', must be request or cycle"):
        make(episode="day")


def test_wrong_arguments_are_named() -> None:
    with pytest.raises(ValueError, match=r"the features are of \(1, 2\) and 5, not"):
        make(features=CycleFeatures((1, 2), DEPTH))
    for rate in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match=f"rate is {rate} tokens per second"):
            make(rate=rate)
    with pytest.raises(ValueError, match="reward is 'speed', must be one of acceptance"):
        make(reward="speed")
    env = make()
    with pytest.raises(ValueError, match="before reset"):
        env.step(np.int64(0))
    env.reset(seed=0)
    for action in (DECISIONS.continue_action, len(DECISIONS), -1):
        with pytest.raises(ValueError, match=re.escape(f"action is {np.int64(action)!r}, allowed are [0 1")):
            env.step(np.int64(action))
    silent = make(lambda rng: OneStep([]))
    with pytest.raises(ValueError, match="1000 requests asked nothing: give requests of more than one token"):
        silent.reset(seed=0)
