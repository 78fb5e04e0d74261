"""PPO learns what can be learnt, and goes on after a kill as if there had been none."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from fakes import OracleDrafter, tiny_target
from gymnasium import spaces
from stable_baselines3 import PPO

from decoding.controller import FixedController
from decoding.sampling import Sampling
from decoding.session import Session
from envs.live import DepthEnv
from policies import checkpoint
from policies.callback import CycleSums
from policies.ppo import PPOSettings, build_ppo, load_trained, train

torch.set_num_threads(1)

SHORT = PPOSettings(
    timesteps=100, rollout_steps=32, minibatch_size=16, epochs=2, policy_net=(8,), value_net=(8, 4)
)


class ChooseTheLargest(gymnasium.Env[np.ndarray, np.int64]):
    """Three numbers; the best action names the largest. A closed-form optimum: reward 1 in every episode.

    Episodes of `length` steps: a rollout boundary falls into the middle of one.
    """

    def __init__(self, length: int = 5, reward: float = 1.0) -> None:
        self.observation_space = spaces.Box(0.0, 1.0, (3,), np.float32)
        self.action_space = spaces.Discrete(3)
        self.length, self.reward = length, reward

    def _draw(self) -> np.ndarray:
        self._numbers = self.np_random.random(3).astype(np.float32)
        return self._numbers

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self._steps = 0
        return self._draw(), {}

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        right = int(action) == int(self._numbers.argmax())
        self._steps += 1
        return self._draw(), self.reward * right, self._steps == self.length, False, {}


def weights(model: PPO) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in model.policy.state_dict().items()}


def assert_same_weights(one: PPO, other: PPO) -> None:
    for name, tensor in weights(one).items():
        assert torch.equal(tensor, weights(other)[name]), name


class Killed(BaseException):
    """What a kill looks like from inside."""


def train_and_kill(folder: Path, after: int, settings: PPOSettings = SHORT, **more: Any) -> None:
    """A run that dies at its first step past `after` decisions."""

    def die(done: int, total: int, speed: float) -> None:
        if done > after:
            raise Killed

    with pytest.raises(Killed):
        train(ChooseTheLargest(), settings, 7, folder, progress=die, **more)


# --- learning ---------------------------------------------------------------------------------------------


def test_ppo_finds_a_known_optimum_through_scaled_rewards(tmp_path: Path) -> None:
    settings = PPOSettings(
        timesteps=2048, rollout_steps=256, minibatch_size=64, epochs=10, learning_rate=5e-3, discount=0.5
    )
    model = train(ChooseTheLargest(reward=40.0), settings, 0, tmp_path, reference=40.0)
    observations = np.random.default_rng(1).random((2000, 3)).astype(np.float32)
    actions, _ = model.predict(observations, deterministic=True)
    assert (actions == observations.argmax(axis=1)).mean() > 0.9  # 1/3 is chance
    assert abs(model.rollout_buffer.rewards.max() - 1.0) < 1e-6


def test_the_environments_own_reward_stays_what_it_is(tmp_path: Path) -> None:
    model = train(ChooseTheLargest(reward=40.0), SHORT, 0, tmp_path, reference=20.0)
    assert set(np.unique(model.rollout_buffer.rewards)) == {0.0, 2.0}
    assert model.ep_info_buffer is not None
    assert max(episode["r"] for episode in model.ep_info_buffer) % 40 == 0


# --- kill and resume --------------------------------------------------------------------------------------


@pytest.mark.parametrize("after", [32, 50, 96])
def test_a_killed_run_goes_on_as_if_there_had_been_none(after: int, tmp_path: Path) -> None:
    whole = train(ChooseTheLargest(), SHORT, 7, tmp_path / "whole")
    train_and_kill(tmp_path / "killed", after)
    torch.rand(3), np.random.rand(3)  # noqa: NPY002 (another process starts from other generators)
    resumed_from = []
    resumed = train(
        ChooseTheLargest(), SHORT, 7, tmp_path / "killed", progress=lambda done, *_: resumed_from.append(done)
    )
    assert resumed_from[0] > after // 32 * 32  # and not from the beginning
    assert whole.num_timesteps == resumed.num_timesteps == SHORT.total_timesteps == 128
    assert whole._n_updates == resumed._n_updates
    assert_same_weights(whole, resumed)


def test_runs_are_a_function_of_their_seed(tmp_path: Path) -> None:
    models = [train(ChooseTheLargest(), SHORT, seed, tmp_path / str(i)) for i, seed in enumerate((7, 7, 8))]
    assert_same_weights(models[0], models[1])
    with pytest.raises(AssertionError):
        assert_same_weights(models[0], models[2])


def test_a_finished_run_is_not_trained_again(tmp_path: Path) -> None:
    first = train(ChooseTheLargest(), SHORT, 7, tmp_path)
    before = sorted(path.stat().st_mtime_ns for path in tmp_path.iterdir())

    def fail(*_: Any) -> None:
        raise AssertionError("it trained")

    again = train(ChooseTheLargest(), SHORT, 7, tmp_path, progress=fail)
    assert_same_weights(first, again)
    assert_same_weights(first, load_trained(ChooseTheLargest(), SHORT, 7, tmp_path))
    with pytest.raises(ValueError, match="is not finished"):
        load_trained(ChooseTheLargest(), SHORT, 7, tmp_path / "nowhere")
    assert sorted(path.stat().st_mtime_ns for path in tmp_path.iterdir()) == before


def test_a_resumed_run_keeps_the_reference_of_its_first_start(tmp_path: Path) -> None:
    train_and_kill(tmp_path, 40, reference=2.0)
    model = train(ChooseTheLargest(), SHORT, 7, tmp_path, reference=5.0)
    assert model.rollout_buffer.rewards.max() == 0.5


def test_a_checkpoint_of_another_run_is_refused_in_one_line(tmp_path: Path) -> None:
    train_and_kill(tmp_path, 40, run={"partner": "fixed", "target": {"fingerprint": "ab"}})
    for settings, seed, run, words in (
        (replace(SHORT, epochs=3), 7, {}, "settings.epochs: 2, not 3"),
        (replace(SHORT, policy_net=(9,)), 7, {}, r"settings.policy_net: \[8\], not \[9\]"),
        (SHORT, 8, {}, "seed: 7, not 8"),
        (SHORT, 7, {"partner": "learned"}, "partner: 'fixed', not 'learned'"),
        (SHORT, 7, {"target": {"fingerprint": "cd"}}, "target.fingerprint: 'ab', not 'cd'"),
    ):
        same = {"partner": "fixed", "target": {"fingerprint": "ab"}}
        with pytest.raises(ValueError, match=words) as error:
            train(ChooseTheLargest(), settings, seed, tmp_path, run=same | run)
        assert len(str(error.value).splitlines()) == 1


def test_damaged_checkpoints_are_refused_in_one_line(tmp_path: Path) -> None:
    train(ChooseTheLargest(), SHORT, 7, tmp_path)
    header = tmp_path / checkpoint.HEADER_FILE
    (tensors,) = tmp_path.glob("*.safetensors")
    whole, text = tensors.read_bytes(), header.read_text()
    fields = json.loads(text)

    def refused(words: str) -> None:
        with pytest.raises(ValueError, match=words) as error:
            train(ChooseTheLargest(), SHORT, 7, tmp_path)
        assert len(str(error.value).splitlines()) == 1

    tensors.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    refused("damaged")
    tensors.unlink()
    refused("does not exist")
    tensors.write_bytes(whole)
    for changed, words in (
        (text[:50], "not readable JSON"),
        (json.dumps(fields | {"schema_version": 99}), "schema_version 99"),
        (json.dumps({key: value for key, value in fields.items() if key != "updates"}), "damaged"),
        (json.dumps(fields | {"extra": 1}), "damaged"),
        (json.dumps(fields | {"run": 3}), "damaged"),
        (json.dumps(fields | {"env_random": {"bit_generator": "PCG64"}}), "damaged|does not fit"),
        (json.dumps(fields | {"numpy_random": [1]}), "damaged|does not fit"),
    ):
        header.write_text(changed)
        refused(words)


def test_a_kill_while_a_checkpoint_is_written_leaves_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = train(ChooseTheLargest(), SHORT, 7, tmp_path / "whole")
    folder = tmp_path / "killed"
    write_json = checkpoint.write_json
    written: list[Path] = []

    def die(path: Path, value: Any) -> None:
        if written:
            raise Killed
        written.append(path)
        write_json(path, value)

    monkeypatch.setattr(checkpoint, "write_json", die)
    with pytest.raises(Killed):
        train(ChooseTheLargest(), SHORT, 7, folder)
    assert len(list(folder.glob("*.safetensors"))) == 2  # the second never got its header
    monkeypatch.undo()
    assert_same_weights(whole, train(ChooseTheLargest(), SHORT, 7, folder))
    assert len(list(folder.glob("*.safetensors"))) == 1


# --- what it shows ----------------------------------------------------------------------------------------


def live_env() -> DepthEnv:
    target = tiny_target()
    drafter = OracleDrafter([5] * 40)
    return DepthEnv(
        lambda rng: Session(
            target,
            drafter,
            [5, int(rng.integers(3, 40))],
            max_new_tokens=12,
            end_ids=(),
            sampling=Sampling(0.0),
            seed=0,
        ),
        FixedController(0, 3),
        beam_width=1,
        max_depth=3,
    )


def test_tensorboard_shows_speed_phases_actions_and_entropy(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    curves = tmp_path / "curves"
    reports: list[tuple[int, int, float]] = []
    train(
        live_env(),
        SHORT,
        0,
        tmp_path / "run",
        tensorboard_dir=curves,
        progress=lambda *report: reports.append(report),
    )
    events = EventAccumulator(str(curves))
    events.Reload()
    phases = {f"seconds/{phase}" for phase in ("draft", "select", "verify", "commit", "policy")}
    wanted = {
        "cycle/tokens_per_second",
        "cycle/emitted",
        "actions/0",
        "actions/1",
        "actions/entropy",
        *phases,
    }
    scalars = set(events.Tags()["scalars"])
    assert wanted | {"train/value_loss", "rollout/ep_rew_mean"} <= scalars
    assert "actions/histogram" in events.Tags()["histograms"]
    assert [event.step for event in events.Scalars("cycle/emitted")][:4] == [32, 64, 96, 128]
    assert 0 < events.Scalars("actions/entropy")[0].value <= np.log(2) + 1e-6
    shares = [events.Scalars(f"actions/{action}")[0].value for action in (0, 1)]
    assert sum(shares) == pytest.approx(1.0)
    assert reports[-1][:2] == (128, 128)
    assert [done for done, *_ in reports] == sorted(done for done, *_ in reports)
    assert reports[-1][2] > 0


def test_speed_is_a_ratio_of_sums_without_the_time_of_answers() -> None:
    sums = CycleSums()
    assert sums.tokens_per_second == 0.0
    sums.add({"emitted": 1, "seconds": {"verify": 1.0, "policy": 50.0}})
    sums.add({"emitted": 5, "seconds": {"verify": 2.0, "policy": 50.0}})
    sums.add({"other": 1})
    assert sums.tokens_per_second == pytest.approx(2.0)  # the mean of the ratios is 1.75
    assert sums.cycles == 2


def test_no_curves_without_a_folder() -> None:
    assert build_ppo(ChooseTheLargest(), SHORT, 0).logger.output_formats == []


# --- settings ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong",
    [
        {"timesteps": 0},
        {"rollout_steps": 1},
        {"minibatch_size": 1},
        {"minibatch_size": 1024},
        {"minibatch_size": 100},
        {"epochs": 0},
        {"learning_rate": 0.0},
        {"learning_rate": float("nan")},
        {"discount": 1.5},
        {"discount": 0.0},
        {"gae_lambda": -0.1},
        {"clip_range": 0.0},
        {"entropy_coefficient": -1.0},
        {"policy_net": ()},
        {"value_net": (64, 0)},
    ],
)
def test_impossible_settings_are_named(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        PPOSettings(**wrong)


def test_settings_reach_ppo() -> None:
    settings = PPOSettings(
        rollout_steps=64,
        minibatch_size=32,
        epochs=3,
        learning_rate=0.01,
        discount=0.8,
        gae_lambda=0.7,
        clip_range=0.1,
        entropy_coefficient=0.02,
        policy_net=(5, 6),
        value_net=(7,),
    )
    model = build_ppo(ChooseTheLargest(), settings, 3)
    assert (model.n_steps, model.batch_size, model.n_epochs) == (64, 32, 3)
    assert (model.gamma, model.gae_lambda, model.ent_coef) == (0.8, 0.7, 0.02)
    assert model.clip_range(1.0) == 0.1  # type: ignore[operator]
    assert model.lr_schedule(0.0) == model.lr_schedule(1.0) == 0.01
    assert (model.seed, model.device.type) == (3, "cpu")
    extractor = model.policy.mlp_extractor
    assert [layer.out_features for layer in extractor.policy_net if hasattr(layer, "out_features")] == [5, 6]
    assert [layer.out_features for layer in extractor.value_net if hasattr(layer, "out_features")] == [7]
    assert isinstance(extractor.policy_net[1], torch.nn.ReLU)


@pytest.mark.parametrize("reference", [0.0, -1.0, float("nan"), float("inf")])
def test_an_impossible_reference_is_named(reference: float) -> None:
    with pytest.raises(ValueError, match="reference is"):
        build_ppo(ChooseTheLargest(), SHORT, 0, reference=reference)


def test_lists_from_yaml_are_settings_too() -> None:
    nets: Any = [64, 64]
    assert PPOSettings(policy_net=nets) == PPOSettings()
    assert PPOSettings(timesteps=513, rollout_steps=512).total_timesteps == 1024
