"""The live environments: one loop with decoding, the reward of the clock, clean by both checkers."""

import re
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from fakes import END_ID, OracleDrafter, tiny_eagle, tiny_target
from gymnasium.utils.env_checker import check_env as gymnasium_check
from stable_baselines3.common.env_checker import check_env as sb3_check

import envs
from decoding.controller import DraftView, FixedController, PlainController
from decoding.features import DepthFeatures, SizeFeatures
from decoding.records import CycleRecord, PhaseSeconds
from decoding.sampling import Sampling
from decoding.session import Session
from envs.live import DepthEnv, LiveEnv, SizeEnv
from envs.rewards import REWARDS, reward_by_name, throughput

torch.set_num_threads(1)

SIZES = (1, 3, 9)
Open = Callable[[np.random.Generator], Session]


@pytest.fixture(scope="module")
def open_session() -> Open:
    """Requests of a tiny model and a random head, their prompts drawn from the generator."""
    target = tiny_target()
    drafter = tiny_eagle(target, beam_width=3)

    def open_next(rng: np.random.Generator) -> Session:
        prompt = rng.integers(3, 40, size=int(rng.integers(1, 6))).tolist()
        limit = int(rng.integers(1, 12))
        return Session(
            target, drafter, prompt, max_new_tokens=limit, end_ids={END_ID}, sampling=Sampling(0.0), seed=0
        )

    return open_next


def make(kind: str, open_session: Open, **more: Any) -> Any:
    arguments: dict[str, Any] = {
        "open_session": open_session,
        "partner": FixedController(3, 4),
        "max_depth": 4,
    }
    arguments |= {"beam_width": 3} if kind == "Depth" else {"verification_sizes": SIZES}
    return gymnasium.make(f"draftpace/{kind}-v0", **(arguments | more))


@pytest.mark.parametrize("kind", ["Depth", "Size"])
def test_both_checkers_have_nothing_to_say(kind: str, open_session: Open) -> None:
    # warnings are errors in this suite
    gymnasium_check(make(kind, open_session).unwrapped)
    sb3_check(make(kind, open_session).unwrapped)
    env = make(kind, open_session)  # through gym.make's own wrappers as well
    env.reset(seed=1)
    for _ in range(60):
        _, _, terminated, truncated, _ = env.step(env.action_space.sample())
        if terminated or truncated:
            env.reset()
    env.close()
    env.close()


@pytest.mark.parametrize("kind", ["Depth", "Size"])
def test_they_are_registered_as_what_the_clock_makes_them(kind: str) -> None:
    spec = gymnasium.spec(f"draftpace/{kind}-v0")
    assert spec.nondeterministic
    assert spec.entry_point == f"envs.live:{kind}Env"
    assert envs.__doc__


# --- the docstrings' tables -------------------------------------------------------------------------------


def table(env: type[LiveEnv], title: str) -> tuple[str, list[list[str]]]:
    """The space that a docstring's section names, and its table's rows."""
    section = (env.__doc__ or "").split(f"## {title} space: ")[1].split("##")[0]
    rows = [line.strip(" |").split(" | ") for line in section.splitlines() if line.strip().startswith("| ")]
    return section.splitlines()[0], rows[1:]


@pytest.mark.parametrize(
    ("env", "features", "given"),
    [
        (DepthEnv, DepthFeatures(3, 4), {"W^2": 9}),
        (SizeEnv, SizeFeatures(SIZES[-1], 4), {"S": SIZES[-1]}),
    ],
)
def test_the_observation_table_is_the_observation_space(
    env: type[LiveEnv], features: DepthFeatures | SizeFeatures, given: dict[str, int], open_session: Open
) -> None:
    name, rows = table(env, "Observation")
    made = make(env.__name__.removesuffix("Env"), open_session)
    (size_name, count), (sum_name, extra) = (
        next(iter(given.items())),
        name.split("(")[2].split(",")[0].split(" + "),
    )
    assert size_name == sum_name
    assert made.observation_space.shape == (count + int(extra),)
    assert name.endswith(f"{made.observation_space.dtype})")
    expected: list[tuple[str, float, float]] = []
    for entry, low, high, *_ in rows:
        names = [entry]
        if " .. " in entry:
            stem = entry.split(" .. ")[0].removesuffix("0")
            assert entry == f"{stem}0 .. {stem}{{{size_name}-1}}"
            names = [f"{stem}{i}" for i in range(count)]
        expected += [(each, float(low), float(high)) for each in names]
    space = made.observation_space
    assert expected == list(zip(features.names, space.low.tolist(), space.high.tolist(), strict=True))


def test_the_action_tables_are_the_action_spaces(open_session: Open) -> None:
    name, rows = table(DepthEnv, "Action")
    space = make("Depth", open_session).action_space
    assert name == repr(space) == "Discrete(2)"
    assert [int(row[0]) for row in rows] == list(range(int(space.n)))
    name, rows = table(SizeEnv, "Action")
    assert name == "Discrete(n)"
    assert make("Size", open_session).action_space.n == len(SIZES)
    assert [row[0] for row in rows] == ["i"]


# --- episodes and cycles ----------------------------------------------------------------------------------


class Tape(FixedController):
    """A fixed controller that writes down what it is asked."""

    def __init__(self, draft_depth: int, verification_size: int) -> None:
        super().__init__(draft_depth, verification_size)
        self.asked: list[tuple[str, int]] = []

    def wants_draft(self, view: DraftView) -> bool:
        self.asked.append(("draft", view.tree.depth))
        return super().wants_draft(view)

    def wants_level(self, view: DraftView) -> bool:
        self.asked.append(("level", view.tree.depth))
        return super().wants_level(view)

    def verification_size(self, view: DraftView) -> int:
        self.asked.append(("size", view.tree.depth))
        return super().verification_size(view)


def oracle_opener(new_tokens: int = 30, wrong: frozenset[int] = frozenset()) -> Open:
    """One request over and over; drafts are right but at `wrong`."""
    target = tiny_target()
    plain = Session(
        target, OracleDrafter([]), [5, 6], max_new_tokens=60, end_ids=(), sampling=Sampling(0.0), seed=0
    )
    list(plain.run(PlainController()))
    drafter = OracleDrafter(plain.generated, wrong)
    return lambda rng: Session(
        target, drafter, [5, 6], max_new_tokens=new_tokens, end_ids=(), sampling=Sampling(0.0), seed=0
    )


@pytest.mark.parametrize("depth", range(5))
def test_depth_is_what_the_agent_says_and_it_is_asked_up_to_max_depth(depth: int) -> None:
    partner = Tape(2, 2)
    env = DepthEnv(oracle_opener(), partner, beam_width=1, max_depth=4)
    env.reset(seed=0)
    seen: list[float] = []
    while True:
        observation, reward, terminated, truncated, info = env.step(np.int64(len(seen) < depth))
        assert not truncated
        seen.append(observation[1] * 4)
        if terminated:
            break
        assert reward == 0.0
        assert info == {}
    # asked at the root and after each level, but at max_depth there is nothing left to ask
    assert len(seen) == min(depth + 1, 4)
    assert info["draft_depth"] == depth
    assert partner.asked == ([("size", depth)] if depth else [])
    assert info["verification_size"] == min(depth, 2)
    assert info["emitted"] == min(depth, 2) + 1
    assert info["accepted"] == min(depth, 2)


@pytest.mark.parametrize("action", range(len(SIZES)))
def test_size_is_what_the_agent_says(action: int) -> None:
    partner = Tape(4, 1)
    env = SizeEnv(oracle_opener(), partner, SIZES, max_depth=4)
    observation, _ = env.reset(seed=0)
    np.testing.assert_allclose(observation[:4], [-0.05, -0.1, -0.15, -0.2], rtol=1e-6)
    _, reward, terminated, _, info = env.step(np.int64(action))
    assert terminated
    assert info["verification_size"] == min(SIZES[action], 4)
    assert partner.asked == [("draft", 0), ("level", 1), ("level", 2), ("level", 3), ("level", 4)]
    assert reward == info["tokens_per_second"] > 0


def test_the_reward_is_tokens_per_second_without_the_time_of_answers() -> None:
    seconds = PhaseSeconds(draft=1.0, select=0.5, verify=2.0, commit=0.5, policy=100.0)
    record = CycleRecord(2, 3, (True, False), (7, 8), 10, seconds)
    assert throughput(record) == pytest.approx(0.5)
    assert reward_by_name("throughput") is throughput
    with pytest.raises(ValueError, match="reward is 'speed', must be one of throughput"):
        reward_by_name("speed")
    assert set(REWARDS) == {"throughput"}


def test_info_holds_the_cycle_and_its_time() -> None:
    env = SizeEnv(oracle_opener(), FixedController(2, 2), SIZES, max_depth=4)
    env.reset(seed=0)
    *_, info = env.step(np.int64(1))
    assert set(info) == {
        "tokens_per_second",
        "emitted",
        "draft_depth",
        "verification_size",
        "accepted",
        "seconds",
    }
    work = sum(info["seconds"].values()) - info["seconds"]["policy"]
    assert info["tokens_per_second"] == pytest.approx(info["emitted"] / work)
    assert min(info["seconds"].values()) > 0


def test_reset_goes_on_with_the_request_and_opens_the_next_when_it_is_done() -> None:
    opened: list[Session] = []
    opener = oracle_opener(new_tokens=5)

    def counting(rng: np.random.Generator) -> Session:
        opened.append(opener(rng))
        return opened[-1]

    env = DepthEnv(counting, FixedController(0, 1), beam_width=1, max_depth=4)
    env.reset(seed=0)
    for cycle in range(4):  # plain steps, the fifth token is the request's last: it asks nothing
        assert len(opened) == 1
        assert len(opened[0].generated) == cycle
        env.step(np.int64(0))
        _, info = env.reset()
    assert opened[0].finished
    assert len(opened) == 2
    assert [each["emitted"] for each in info["unasked"]] == [1]
    env.reset(seed=0)
    assert len(opened) == 3


def test_an_abandoned_cycle_leaves_no_trace() -> None:
    """Reset in the middle of a draft, as at the end of a rollout: the text stays the target's."""
    sessions: list[Session] = []
    target = tiny_target()
    drafter = tiny_eagle(target, beam_width=2)

    def start(rng: np.random.Generator | None) -> Session:
        sessions.append(
            Session(target, drafter, [5, 6], max_new_tokens=20, end_ids=(), sampling=Sampling(0.0), seed=0)
        )
        return sessions[-1]

    env = DepthEnv(start, FixedController(0, 3), beam_width=2, max_depth=4)
    env.reset(seed=0)
    rng = np.random.default_rng(0)
    while not sessions[0].finished:
        _, _, terminated, _, _ = env.step(np.int64(rng.random() < 0.7))
        if terminated or rng.random() < 0.3:
            env.reset()
    plain = start(None)
    list(plain.run(PlainController()))
    assert sessions[0].generated == plain.generated


def test_the_seed_decides_the_requests(open_session: Open) -> None:
    def lengths(seed: int) -> list[float]:
        env = make("Size", open_session)
        seen = [env.reset(seed=seed)[0]]
        for _ in range(12):
            env.step(env.action_space.start)
            seen.append(env.reset()[0])
        return np.concatenate(seen).tolist()

    assert lengths(3) == lengths(3)
    assert lengths(3) != lengths(4)


def test_a_partner_that_never_drafts_is_named_not_waited_for() -> None:
    env = SizeEnv(oracle_opener(), PlainController(), SIZES, max_depth=4)
    with pytest.raises(ValueError, match="asked nothing in 1000 cycles"):
        env.reset(seed=0)


def test_wrong_arguments_are_named() -> None:
    opener = oracle_opener()
    for sizes in ((), (4, 2), (2, 2)):
        with pytest.raises(ValueError, match="must be strictly increasing"):
            SizeEnv(opener, PlainController(), sizes, max_depth=4)
    with pytest.raises(ValueError, match="verification_size is 0, must be in"):
        SizeEnv(opener, PlainController(), (0, 2), max_depth=4)
    env = DepthEnv(opener, PlainController(), beam_width=1, max_depth=4)
    with pytest.raises(ValueError, match="call reset"):
        env.step(np.int64(0))
    env.reset(seed=0)
    with pytest.raises(ValueError, match=re.escape("must be in Discrete(2)")):
        env.step(np.int64(2))
    env.step(np.int64(0))
    with pytest.raises(ValueError, match="call reset"):
        env.step(np.int64(0))
