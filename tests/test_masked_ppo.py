"""MaskablePPO over the replay goes on after a kill as if there had been none, and begins with a value net
that knows the policy."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sb3_contrib import MaskablePPO
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from decoding.decision_table import ROOT_NODE
from envs.replay import ReplayVecEnv
from envs.synthetic import World
from policies.masked_ppo import build_masked_ppo, deciding_net, fit_value, train_masked, value_net
from policies.ppo import PPOSettings
from policies.replay_callback import EVALUATE_EVERY, information_of
from tests.random_tables import random_costs, random_table

LANES = 4
SHORT = PPOSettings(
    timesteps=150,
    rollout_steps=32,
    minibatch_size=16,
    epochs=2,
    discount=1.0,
    policy_net=(8,),
    value_net=(8, 4),
)
TOTAL = 160


def replay(lanes: int = LANES, rate: float = 2.0, **more: Any) -> ReplayVecEnv:
    """Episodes of a few decisions: a rollout ends in the middle of some."""
    rng = np.random.default_rng(0)
    table = random_table(rng, texts=6, tokens=9)
    costs = random_costs(rng, table)
    return ReplayVecEnv(table, costs, lanes, np.random.default_rng(11), rate=rate, **more)


def weights(model: MaskablePPO) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in model.policy.state_dict().items()}


def assert_same_weights(one: MaskablePPO, other: MaskablePPO) -> None:
    for name, tensor in weights(one).items():
        assert torch.equal(tensor, weights(other)[name]), name


class Killed(BaseException):
    """What a kill looks like from inside."""


def train_and_kill(folder: Path, after: int, **more: Any) -> None:
    def die(done: int, total: int, speed: float) -> None:
        if done > after:
            raise Killed

    with pytest.raises(Killed):
        train_masked(more.pop("env", replay()), SHORT, 7, folder, progress=die, **more)


def fail(*_: Any) -> None:
    raise AssertionError("it trained")


# --- kill and resume --------------------------------------------------------------------------------------


@pytest.mark.parametrize("episode", ["request", "cycle"])
@pytest.mark.parametrize("after", [0, 32, 96, 130])
def test_a_killed_run_goes_on_as_if_there_had_been_none(after: int, episode: Any, tmp_path: Path) -> None:
    whole = train_masked(replay(episode=episode), SHORT, 7, tmp_path / "whole")
    train_and_kill(tmp_path / "killed", after, env=replay(episode=episode))
    torch.rand(3), np.random.rand(3)  # noqa: NPY002 (another process starts from other generators)
    resumed_from: list[int] = []
    fresh = replay(episode=episode)
    fresh.rng.random(5)
    resumed = train_masked(
        fresh if after >= 32 else replay(episode=episode),
        SHORT,
        7,
        tmp_path / "killed",
        progress=lambda done, *_: resumed_from.append(done),
    )
    assert resumed_from[0] == after // 32 * 32 + 32
    assert whole.num_timesteps == resumed.num_timesteps == TOTAL
    assert whole._n_updates == resumed._n_updates
    assert_same_weights(whole, resumed)
    first, second = (model.policy.optimizer.state_dict()["state"] for model in (whole, resumed))
    assert all(torch.equal(first[i]["exp_avg"], second[i]["exp_avg"]) for i in first)


def test_runs_are_a_function_of_their_seed(tmp_path: Path) -> None:
    models = [train_masked(replay(), SHORT, seed, tmp_path / str(i)) for i, seed in enumerate((7, 7, 8))]
    assert_same_weights(models[0], models[1])
    with pytest.raises(AssertionError):
        assert_same_weights(models[0], models[2])


def test_a_finished_run_is_not_trained_again(tmp_path: Path) -> None:
    first = train_masked(replay(), SHORT, 7, tmp_path)
    before = {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    again = train_masked(replay(), SHORT, 7, tmp_path, progress=fail)
    assert_same_weights(first, again)
    # Who only wants its net may bring another replay.
    assert_same_weights(first, train_masked(replay(lanes=1), SHORT, 7, tmp_path, progress=fail))
    assert {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == before


def test_a_folder_of_another_run_is_refused_in_one_line(tmp_path: Path) -> None:
    run = {"profile": "ab", "drafter": {"name": "eagle"}}
    train_and_kill(tmp_path, 40, run=run)
    for settings, seed, changed, words in (
        (replace(SHORT, epochs=3), 7, {}, "settings.epochs: 2, not 3"),
        (SHORT, 8, {}, "seed: 7, not 8"),
        (SHORT, 7, {"profile": "cd"}, "profile: 'ab', not 'cd'"),
        (SHORT, 7, {"drafter": {"name": "ngram"}}, "drafter.name: 'eagle', not 'ngram'"),
    ):
        with pytest.raises(ValueError, match=words) as error:
            train_masked(replay(), settings, seed, tmp_path, run=run | changed, progress=fail)
        assert len(str(error.value).splitlines()) == 1


def test_a_run_of_other_lanes_is_refused_in_one_line(tmp_path: Path) -> None:
    train_and_kill(tmp_path, 40)
    with pytest.raises(ValueError, match="had 4 lanes, this one has 8") as error:
        train_masked(replay(lanes=8), SHORT, 7, tmp_path)
    assert len(str(error.value).splitlines()) == 1
    with pytest.raises(ValueError, match="rollout_steps is 32, must be a multiple of the 5 lanes"):
        build_masked_ppo(replay(lanes=5), SHORT, 7)


def test_a_resumed_run_keeps_the_rate_of_its_first_start(tmp_path: Path) -> None:
    whole = train_masked(replay(), SHORT, 7, tmp_path / "whole")
    train_and_kill(tmp_path / "killed", 40)
    other = replay(rate=5.0)
    assert_same_weights(whole, train_masked(other, SHORT, 7, tmp_path / "killed"))
    assert other.rate == 2.0


def test_a_run_begins_with_the_weights_it_is_given(tmp_path: Path) -> None:
    start = weights(build_masked_ppo(replay(), SHORT, 3))
    seen: list[dict[str, torch.Tensor]] = []

    def look(net: torch.nn.Module) -> dict[str, float]:
        seen.append({name: tensor.clone() for name, tensor in net.state_dict().items()})
        return {}

    train_masked(replay(), SHORT, 7, tmp_path / "given", start, evaluate=look)
    assert torch.equal(seen[0]["0.weight"], start["mlp_extractor.policy_net.0.weight"])
    assert torch.equal(seen[0]["2.bias"], start["action_net.bias"])
    # A kill, and what was given is no longer asked for.
    whole = train_masked(replay(), SHORT, 7, tmp_path / "whole", start)
    train_and_kill(tmp_path / "killed", 40, start=start)
    other = {name: tensor + 1 for name, tensor in start.items()}
    assert_same_weights(whole, train_masked(replay(), SHORT, 7, tmp_path / "killed", other))


# --- what is built and shown ------------------------------------------------------------------------------


def test_the_model_is_what_the_settings_say() -> None:
    settings = replace(SHORT, learning_rate=0.002, gae_lambda=0.7, clip_range=0.3, entropy_coefficient=0.04)
    model = build_masked_ppo(replay(), settings, 0)
    assert (model.n_steps, model.batch_size, model.n_epochs) == (8, 16, 2)
    assert (model.learning_rate, model.gamma, model.gae_lambda) == (0.002, 1.0, 0.7)
    clip_range: Any = model.clip_range
    assert (clip_range(1.0), model.ent_coef) == (0.3, 0.04)
    kinds = [[type(layer).__name__ for layer in net(model)] for net in (deciding_net, value_net)]
    assert kinds == [["Linear", "ReLU", "Linear"], ["Linear", "ReLU", "Linear", "ReLU", "Linear"]]
    widths = [[layer.out_features for layer in list(net(model))[::2]] for net in (deciding_net, value_net)]
    assert widths == [[8, len(replay().walk.table.decisions)], [8, 4, 1]]


def test_the_nets_are_the_models_own() -> None:
    model = build_masked_ppo(replay(), SHORT, 0)
    seen = torch.randn(5, model.observation_space.shape[0])  # type: ignore[index]
    distribution = model.policy.get_distribution(seen).distribution.logits  # type: ignore[union-attr]
    assert torch.allclose(deciding_net(model)(seen).log_softmax(-1), distribution, atol=1e-6)
    assert torch.allclose(value_net(model)(seen), model.policy.predict_values(seen))


def test_curves_show_speeds_actions_and_evaluations(tmp_path: Path) -> None:
    reports: list[tuple[int, int, float]] = []
    settings = replace(SHORT, timesteps=32 * (EVALUATE_EVERY + 1))
    asked: list[int] = []

    def evaluate(net: torch.nn.Module) -> dict[str, float]:
        asked.append(len(reports))
        return {"validation/speed": 3.5}

    env = replay()
    train_masked(
        env,
        settings,
        7,
        tmp_path / "run",
        tensorboard_dir=tmp_path / "curves",
        progress=lambda *report: reports.append(report),
        evaluate=evaluate,
    )
    assert [report[:2] for report in reports] == [
        (32 * turn, settings.total_timesteps) for turn in range(1, EVALUATE_EVERY + 2)
    ]
    assert asked == [0, EVALUATE_EVERY]
    curves = EventAccumulator(str(tmp_path / "curves"))
    curves.Reload()

    def curve(name: str) -> list[float]:
        return [event.value for event in curves.Scalars(name)]

    assert curve("cycle/tokens_per_second") == pytest.approx([report[2] for report in reports])
    assert curve("cycle/over_reference") == pytest.approx([report[2] / 2.0 for report in reports])
    per_second = np.divide(curve("cycle/emitted"), curve("cycle/seconds"))
    np.testing.assert_allclose(per_second, curve("cycle/tokens_per_second"), rtol=1e-5)
    phases = [curve(f"seconds/{phase}") for phase in ("draft", "select", "verify", "commit", "policy")]
    np.testing.assert_allclose(np.sum(phases, axis=0), curve("cycle/seconds"), rtol=1e-5)
    shares = [curve(f"actions/{action}") for action in range(len(env.walk.table.decisions))]
    np.testing.assert_allclose(np.sum(shares, axis=0), 1.0, rtol=1e-5)
    assert set(curve("validation/speed")) == {3.5}
    assert min(curve("actions/entropy")) > 0 <= min(curve("actions/mutual_information"))
    assert "actions/histogram" in curves.Tags()["histograms"]


def test_entropy_and_information_by_hand() -> None:
    """Two questions of one kind with opposite certain answers, one undecided question of another kind."""
    probs = np.array([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.5, 0.5]])
    masks = np.array([[1, 1, 0], [1, 1, 0], [0, 1, 1]])
    entropy, information = information_of(probs, masks)
    assert entropy == pytest.approx(np.log(2) / 3)
    assert information == pytest.approx(np.log(2) * 2 / 3)
    alike = information_of(np.array([[0.3, 0.7], [0.3, 0.7]]), np.ones((2, 2)))
    assert alike[1] == pytest.approx(0.0, abs=1e-12)


# --- the value net ----------------------------------------------------------------------------------------


def test_the_value_net_learns_what_the_policy_gets() -> None:
    """Of a policy that nearly always takes plain steps, at a rate of 3 tokens per step: each loses 2, so that
    a question with n tokens to come is worth -2 n; and `tokens_left` is a feature."""
    world = World((Fraction(1, 2),), Fraction(1, 2), (Fraction(1),) * 4, (3,), tokens=8)
    table = world.table(3000, np.random.default_rng(0))
    costs = world.costs(table)
    env = ReplayVecEnv(table, costs, 4, np.random.default_rng(0), rate=3.0)
    model = build_masked_ppo(env, replace(SHORT, value_net=(64, 64)), 0)
    with torch.no_grad():
        policy: Any = model.policy
        policy.action_net.bias[0] = 60.0
    kept = {name: tensor.clone() for name, tensor in deciding_net(model).state_dict().items()}
    explained = fit_value(model, table, costs, rate=3.0, seed=5)
    assert explained > 0.95
    for name, tensor in deciding_net(model).state_dict().items():
        assert torch.equal(tensor, kept[name])
    roots = table.features_PNF[:7, ROOT_NODE].copy()
    roots[1:, -2:] = 0.25  # one token in every cycle, of four at most
    values = value_net(model)(torch.from_numpy(roots))[:, 0].detach().numpy()
    worth = -2.0 * np.arange(8, 1, -1)
    np.testing.assert_allclose(values, worth, atol=1.0)
    assert explained == pytest.approx(1 - (values - worth).var() / worth.var(), abs=0.01)
