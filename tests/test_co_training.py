"""Two policies in turns: who learns beside whom, from which weights; a kill changes nothing."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from commands.run import depth_features, frozen_half, make_environment, size_features, usual_partner
from configs.schema import Config
from decoding.controller import Controller
from decoding.exported import Constant, ExportedController, Network
from envs.partners import UniformDepth
from policies import checkpoint
from policies.co_training import CoTraining, Kind, Turn, pairs, turns
from policies.export import network_of
from policies.ppo import PPOSettings, train
from policies.step_size import step_size
from tests.fake_policies import INFO
from tests.ltd_world import SMALL, ltd_config, made_up_sessions

torch.set_num_threads(1)

CONFIG = ltd_config(*SMALL)
SHORT = PPOSettings(
    timesteps=96,
    rollout_steps=32,
    minibatch_size=16,
    epochs=2,
    policy_net=(8,),
    value_net=(8,),
    warmup_share=0.01,
    decay="linear",
)
SETTINGS: dict[Kind, PPOSettings] = {"depth": SHORT, "size": replace(SHORT, discount=0.9)}
ROUND = ["size", "depth", "round-1-size", "round-1-depth"]


class Killed(BaseException):
    """What a kill looks like from inside."""


class World:
    """Makes environments of made-up texts and keeps what they were made for."""

    def __init__(self, config: Config = CONFIG) -> None:
        self.config = config
        self.made: list[tuple[str, Network | None]] = []
        self.partners: dict[str, Controller] = {}

    def __call__(self, turn: Turn, partner: Network | None) -> gymnasium.Env[Any, Any]:
        self.made.append((turn.name, partner))
        beside: Controller = usual_partner(turn.kind, self.config)
        if partner is not None:
            info = replace(
                INFO,
                depth_features=depth_features(self.config),
                size_features=size_features(self.config),
                verification_sizes=tuple(self.config.policy.size.verification_sizes),
                fallback=Constant(1, 1),
            )
            half = (partner, None) if turn.kind == "size" else (None, partner)
            beside = ExportedController(info, *half)
        self.partners[turn.name] = beside
        return make_environment(turn.kind, self.config, made_up_sessions(), beside)


def co(folder: Path, rounds: int = 1, **changed: Any) -> CoTraining:
    given: dict[str, Any] = {"settings": SETTINGS, "seed": 7, "run": {"world": 1}} | changed
    return CoTraining(folder, rounds=rounds, **given)


def weights(networks: dict[str, Network]) -> dict[str, list[np.ndarray]]:
    return {name: [part for layer in one.layers for part in layer] for name, one in networks.items()}


def same(one: dict[str, Network], other: dict[str, Network]) -> bool:
    a, b = weights(one), weights(other)
    return a.keys() == b.keys() and all(
        np.array_equal(x, y) for name in a for x, y in zip(a[name], b[name], strict=True)
    )


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Network], World]:
    folder, world = tmp_path_factory.mktemp("whole"), World()
    return folder, co(folder).train(world, reference=50.0), world


# --- who learns beside whom -------------------------------------------------------------------------------


def test_the_size_policy_is_first_then_each_beside_the_others_last() -> None:
    assert turns(0) == (Turn("size", "size"), Turn("depth", "depth"))
    assert turns(2)[2:] == (
        Turn("round-1-size", "size", "size", "depth"),
        Turn("round-1-depth", "depth", "depth", "round-1-size"),
        Turn("round-2-size", "size", "round-1-size", "round-1-depth"),
        Turn("round-2-depth", "depth", "round-1-depth", "round-2-size"),
    )
    assert pairs(turns(1)) == {
        "depth": {"size": "size", "depth": "depth"},
        "round-1-size": {"size": "round-1-size", "depth": "depth"},
        "round-1-depth": {"size": "round-1-size", "depth": "round-1-depth"},
    }


def test_partners_are_the_frozen_networks(whole: tuple[Path, dict[str, Network], World]) -> None:
    _, networks, world = whole
    assert [name for name, _ in world.made] == ROUND
    beside = dict(world.made)
    assert (beside["size"], beside["depth"]) == (None, None)
    assert beside["round-1-size"] is networks["depth"]
    assert beside["round-1-depth"] is networks["round-1-size"]
    assert isinstance(world.partners["size"], UniformDepth)
    assert not same({"": networks["size"]}, {"": networks["round-1-size"]})


def test_the_command_runs_a_frozen_half_on_its_own_features(
    whole: tuple[Path, dict[str, Network], World], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "commands.run.policy_info",
        lambda config, *_: replace(
            INFO,
            depth_features=depth_features(config),
            size_features=size_features(config),
            verification_sizes=(1, 2, 4, 8),
        ),
    )
    _, networks, _ = whole
    decoder: Any = None
    for kind, partner in (("size", "depth"), ("depth", "size")):
        half = frozen_half(kind, networks[partner], CONFIG, decoder)
        env = make_environment(kind, CONFIG, made_up_sessions(), half)
        env.reset(seed=0)
        network, calls = networks[partner], 0
        asked = network.action

        def counting(seen: np.ndarray, asked: Any = asked) -> int | None:
            nonlocal calls
            calls += 1
            answer: int | None = asked(seen)
            return answer

        monkeypatch.setattr(network, "action", counting)
        for _ in range(30):
            if env.step(np.int64(0))[2]:
                env.reset()
        assert calls >= 20
        assert half.fallbacks == 0


def test_a_turn_goes_on_from_the_last_weights(
    whole: tuple[Path, dict[str, Network], World], tmp_path: Path
) -> None:
    """With a step size of nearly 0 a round leaves the weights where they were."""
    still = {kind: replace(one, learning_rate=1e-12) for kind, one in SETTINGS.items()}
    networks = co(tmp_path, settings=still).train(World(), reference=50.0)
    first, then = weights(networks)["size"], weights(networks)["round-1-size"]
    assert all(np.allclose(a, b, atol=1e-6) for a, b in zip(first, then, strict=True))
    other = weights(networks)["depth"]
    assert not np.allclose(first[0][:, :2], other[0][:, :2], atol=1e-3)


def test_the_optimisers_state_comes_with_the_weights(
    whole: tuple[Path, dict[str, Network], World], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, networks, _ = whole
    env = World()(Turn("size", "size"), None)
    seen: list[Any] = []

    def stop(*_: Any) -> None:
        raise Killed

    original = checkpoint.start_from

    def keep(source: Path, model: Any) -> None:
        original(source, model)
        seen.append(model)

    monkeypatch.setattr(checkpoint, "start_from", keep)
    with pytest.raises(Killed):
        train(env, SETTINGS["size"], 3, tmp_path, progress=stop, start=folder / "size")
    (model,) = seen
    assert same({"": network_of(model)}, {"": networks["size"]})
    assert all(state["step"] > 0 for state in model.policy.optimizer.state.values())


# --- kill and resume --------------------------------------------------------------------------------------


def kill_after(updates: int, folder: Path) -> str:
    """Dies at the boundary after so many rollouts of the whole run; the turn it died in."""
    left = updates
    died: list[str] = []
    save = checkpoint.save

    def saving(place: Path, *rest: Any, **more: Any) -> None:
        nonlocal left
        save(place, *rest, **more)
        left -= 1
        if left == 0:
            died.append(place.name)
            raise Killed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoint, "save", saving)
        with pytest.raises(Killed):
            co(folder).train(World(), reference=50.0)
    return died[0]


@pytest.mark.parametrize(
    ("updates", "turn"), [(1, "size"), (5, "depth"), (8, "round-1-size"), (11, "round-1-depth")]
)
def test_a_run_killed_in_any_turn_ends_with_the_same_weights(
    updates: int, turn: str, whole: tuple[Path, dict[str, Network], World], tmp_path: Path
) -> None:
    assert kill_after(updates, tmp_path) == turn
    assert co(tmp_path).finished() == ROUND.index(turn)
    torch.rand(3), np.random.rand(3)  # noqa: NPY002 (another process starts from other generators)
    resumed = co(tmp_path).train(World(), reference=50.0)
    assert same(resumed, whole[1])
    assert co(tmp_path).finished() == len(ROUND)


def test_a_finished_run_is_walked_over_and_more_rounds_go_on_with_it(
    whole: tuple[Path, dict[str, Network], World], tmp_path: Path
) -> None:
    folder, networks, _ = whole
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    assert same(co(folder).train(World(), reference=50.0), networks)
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before
    assert co(folder, rounds=2).finished() == 4
    short = co(tmp_path, rounds=0).train(World(), reference=50.0)
    assert same(short, {name: networks[name] for name in ("size", "depth")})
    assert same(co(tmp_path).train(World(), reference=50.0), networks)


def test_a_run_is_a_function_of_its_seed(
    whole: tuple[Path, dict[str, Network], World], tmp_path: Path
) -> None:
    other = co(tmp_path, rounds=0, seed=8).train(World(), reference=50.0)
    assert not same(other, {name: whole[1][name] for name in ("size", "depth")})


def test_another_runs_turns_are_refused_in_one_line(
    whole: tuple[Path, dict[str, Network], World], tmp_path: Path
) -> None:
    folder, _, world = whole
    longer: dict[Kind, PPOSettings] = {**SETTINGS, "depth": replace(SHORT, epochs=3)}
    for changed, words in (
        ({"seed": 8}, "run_seed: 7, not 8"),
        ({"run": {"world": 2}}, "world: 1, not 2"),
        # The size policy's first turn too: its later ones stand beside the depth policy.
        ({"settings": longer}, "depth_policy.epochs: 2, not 3"),
    ):
        with pytest.raises(ValueError, match=words) as error:
            co(folder, **changed).finished()
        assert len(str(error.value).splitlines()) == 1
    env = world(Turn("size", "size"), None)
    assert same({"": network_of(co(folder).load("round-1-size", env))}, {"": whole[1]["round-1-size"]})
    with pytest.raises(ValueError, match="no turn 'round-1-size'"):
        co(folder, rounds=0).load("round-1-size", env)
    with pytest.raises(ValueError, match="is not finished"):
        co(tmp_path).load("round-1-size", env)
    with pytest.raises(ValueError, match="rounds is -1"):
        co(tmp_path, rounds=-1)


def test_a_partner_that_was_trained_anew_makes_it_another_turn(
    whole: tuple[Path, dict[str, Network], World], tmp_path: Path
) -> None:
    shutil.copytree(whole[0], tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "depth")
    other = CoTraining(tmp_path / "run", SETTINGS, 7, {"world": 1})
    other.train(World(ltd_config(*SMALL, "policy.partner_size=2")), reference=50.0)
    with pytest.raises(ValueError, match=r"partner: '\w+', not '\w+'"):
        co(tmp_path / "run").finished()


# --- the step size ----------------------------------------------------------------------------------------


def test_it_rises_and_falls_where_it_is_told_to() -> None:
    both, rise, fall = (
        step_size(2.0, 0.5, "linear"),
        step_size(2.0, 0.5, "none"),
        step_size(2.0, 0.0, "linear"),
    )
    assert callable(both)
    assert callable(rise)
    assert callable(fall)
    assert [both(1 - done) for done in (0, 0.25, 0.5, 0.75, 1)] == pytest.approx([0, 1, 2, 1, 0])
    assert [rise(1 - done) for done in (0, 0.25, 0.5, 1)] == pytest.approx([0, 1, 2, 2])
    assert [fall(1 - done) for done in (0, 0.5, 1)] == pytest.approx([2, 1, 0])
    assert step_size(2.0, 0.0, "none") == 2.0


def test_a_schedule_that_cannot_learn_is_named() -> None:
    with pytest.raises(ValueError, match="timesteps is 32, one rollout: with a linear decay"):
        replace(SHORT, timesteps=32)
    with pytest.raises(ValueError, match="decay is 'cosine', must be one of none, linear"):
        replace(SHORT, decay="cosine")
    with pytest.raises(ValueError, match="warmup_share is 1"):
        replace(SHORT, warmup_share=1.0)
