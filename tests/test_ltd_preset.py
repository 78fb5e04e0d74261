"""configs/ltd.yaml is the published method: read back from the PPO models that it builds, and from what they
are asked."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from stable_baselines3 import PPO

from commands.run import (
    depth_features,
    make_environment,
    ppo_settings,
    size_features,
    usual_partner,
)
from configs.schema import Config
from decoding.controller import DraftView, FixedController, Question
from decoding.exported import Constant, ExportedController, Network
from decoding.published_features import PublishedDepthFeatures, PublishedSizeFeatures
from decoding.session import driven
from envs.live import LiveEnv
from evaluation.chi_square import chi_square
from policies.export import export_policy, network_of
from policies.ppo import build_ppo
from tests.fake_policies import INFO
from tests.ltd_world import SMALL, ltd_config, made_up_sessions

PROGRESS = {0.0: 0.0, 0.005: 0.5e-3, 0.01: 1e-3, 0.5: 1e-3 * 0.5 / 0.99, 1.0: 0.0}


def environment(kind: str, config: Config, **world: Any) -> Any:
    return make_environment(kind, config, made_up_sessions(**world), usual_partner(kind, config))


def built(kind: str) -> PPO:
    config = ltd_config()
    env = environment(kind, config, tokens=3, count=1, depth=12, width=10, max_rows=300)
    return build_ppo(env, ppo_settings(config, kind), 0)


def widths(layers: Any) -> list[int]:
    return [layer.out_features for layer in layers if isinstance(layer, torch.nn.Linear)]


@pytest.mark.parametrize(
    ("kind", "sees", "actions", "net", "discount"),
    [("depth", 102, 2, [1024], 0.999), ("size", 1112, 12, [1024, 256], 0.9)],
)
def test_the_built_models_are_the_published_ones(
    kind: str, sees: int, actions: int, net: list[int], discount: float
) -> None:
    model = built(kind)
    assert (model.n_steps, model.batch_size, model.n_epochs, model.n_envs) == (2048, 256, 20, 1)
    assert (model.gamma, model.ent_coef) == (discount, 0.01)
    assert isinstance(model.action_space, spaces.Discrete)
    assert (model.observation_space.shape, model.action_space.n) == ((sees,), actions)
    extractor = model.policy.mlp_extractor
    assert widths(extractor.policy_net) == net
    assert widths(extractor.value_net) == [1024, 256]
    for layers in (extractor.policy_net, extractor.value_net):
        between = [layer for layer in layers if not isinstance(layer, torch.nn.Linear)]
        assert between
        assert all(type(layer) is torch.nn.ReLU for layer in between)
    assert isinstance(model.policy.optimizer, torch.optim.Adam)
    for done, rate in PROGRESS.items():
        assert model.lr_schedule(1 - done) == pytest.approx(rate, abs=1e-12), done


def test_beam_sizes_partners_and_scores() -> None:
    config = ltd_config()
    assert (config.draft.beam_width, config.draft.max_depth, config.draft.calibrated) == (10, 12, False)
    assert config.policy.size.verification_sizes == list(range(20, 241, 20))
    assert config.policy.rounds >= 1
    env = environment("size", config, tokens=3, count=1, depth=12, width=10, max_rows=300).unwrapped
    assert [env._reply(action) for action in range(12)] == list(range(20, 241, 20))
    partner = usual_partner("depth", config)
    assert isinstance(partner, FixedController)
    assert partner.size == 60
    assert isinstance(depth_features(config), PublishedDepthFeatures)
    assert isinstance(size_features(config), PublishedSizeFeatures)


def test_the_size_policy_meets_depths_uniform_in_1_to_12() -> None:
    config = ltd_config("draft.beam_width=1", "policy.size.verification_sizes=[1,4]")
    env = environment("size", config, tokens=60, depth=12, width=1)
    env.reset(seed=0)
    seen = np.zeros(13, dtype=int)
    for _ in range(3000):
        observation, _, terminated, _, info = env.step(np.int64(0))
        assert terminated  # an episode is a cycle
        assert observation[-2] == np.float32(info["draft_depth"] / 10)
        seen[info["draft_depth"]] += 1
        env.reset()
    law = np.array([0.0, *[1 / 12] * 12])
    assert chi_square(seen, law)[2] > 0.01
    assert seen[1:].min() > 0
    skewed = seen.copy()  # what the test must not let pass
    skewed[12] += 150
    assert chi_square(skewed, law)[2] < 1e-6


class Asked:
    """Wraps an environment's session: notes every question that comes to the agent."""

    def __init__(self, env: LiveEnv) -> None:
        self.kinds: list[tuple[str, int, int]] = []
        asks = env._asks_agent

        def noting(question: Question) -> bool:
            said = asks(question)
            if said:
                view = question.view
                self.kinds.append((question.kind, view.tree.depth, view.context_length))
            return said

        env._asks_agent = noting  # type: ignore[method-assign]


@pytest.mark.parametrize("depth", [1, 2, 5, 12])
def test_depth_is_decided_after_every_level_and_never_before_the_first(depth: int) -> None:
    config = ltd_config("draft.beam_width=1", "policy.partner_size=12")
    env = environment("depth", config, tokens=200, count=1, depth=12, width=1)
    asked = Asked(env.unwrapped)
    observation, _ = env.reset(seed=0)
    for _ in range(4):
        asked.kinds[:-1] = []
        lengths = []
        while True:
            lengths.append((observation[-2], observation[-1]))
            now = len(lengths)
            observation, reward, terminated, _, info = env.step(np.int64(now < depth))
            assert (reward > 0) == terminated
            if terminated:
                break
        assert info["draft_depth"] == depth
        # At 12 there is nothing left to decide.
        assert [kind[:2] for kind in asked.kinds] == [("level", d) for d in range(1, min(depth, 11) + 1)]
        wanted = [(np.float32(d / 10), np.float32(length / 1000)) for _, d, length in asked.kinds]
        assert lengths == wanted
        assert reward == info["tokens_per_second"]
        observation, _ = env.reset()


class Counting(Network):
    """Continues to a depth that it reads off its features; counts what it is asked."""

    def __init__(self, stop: int) -> None:
        super().__init__([(np.zeros((2, 102), np.float32), np.zeros(2, np.float32))], "relu")
        self.stop, self.seen = stop, []  # type: ignore[var-annotated]

    def action(self, features: np.ndarray) -> int:
        depth = round(float(features[-2]) * 10)
        self.seen.append(depth)
        return int(depth < self.stop)


@pytest.mark.parametrize("depth", [1, 5, 12])
def test_decoding_asks_as_training_does(depth: int) -> None:
    config = ltd_config("draft.beam_width=1")
    info = INFO.__class__(
        **{**vars(INFO), "depth_features": depth_features(config), "size_features": size_features(config)}
    )
    network = Counting(depth)
    controller = ExportedController(info, network, None)
    session = made_up_sessions(tokens=40, count=1, depth=12, width=1)(np.random.default_rng(0))
    for _ in range(3):
        network.seen.clear()
        record = driven(session.cycle(), controller)
        assert record.draft_depth == depth
        assert network.seen == list(range(1, min(depth, 11) + 1))


def test_an_exported_pair_decides_as_the_models(tmp_path: Any) -> None:
    config = ltd_config(*SMALL)
    models = {
        kind: build_ppo(environment(kind, config), ppo_settings(config, kind), seed)
        for seed, kind in enumerate(("depth", "size"))
    }
    info = INFO.__class__(
        **{
            **vars(INFO),
            "depth_features": depth_features(config),
            "size_features": size_features(config),
            "verification_sizes": (1, 2, 4, 8),
            "fallback": Constant(1, 1),
        }
    )
    export_policy(tmp_path / "policy", models["depth"], models["size"], info)
    controller = ExportedController.load(tmp_path / "policy")
    assert controller.info == info
    decided: Counter[str] = Counter()

    class Watching(ExportedController):
        def wants_draft(self, view: DraftView) -> bool:
            assert super().wants_draft(view) is True
            return True

        def wants_level(self, view: DraftView) -> bool:
            said = super().wants_level(view)
            if view.tree.depth < 4:
                expected, _ = models["depth"].predict(depth_features(config)(view), deterministic=True)
                assert said == expected
                decided["depth"] += 1
            return said

        def verification_size(self, view: DraftView) -> int:
            expected, _ = models["size"].predict(size_features(config)(view), deterministic=True)
            said = super().verification_size(view)
            assert said == (1, 2, 4, 8)[int(expected)]
            decided["size"] += 1
            return said

    watching = Watching(info, network_of(models["depth"]), network_of(models["size"]))
    session = made_up_sessions(tokens=60)(np.random.default_rng(0))
    list(session.run(watching))
    assert decided["depth"] > 10
    assert decided["size"] > 10
    assert watching.fallbacks == 0
