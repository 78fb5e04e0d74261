"""An exported policy decides as the PPO policy did, and never fails a text."""

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from fake_policies import DEPTH, INFO, SIZE, SIZES, Spaces, wild_pair
from fakes import END_ID, tiny_eagle, tiny_target
from gymnasium import spaces
from stable_baselines3 import PPO
from test_features import random_view

from decoding.controller import DraftView, FixedController, PlainController, Question, answer
from decoding.exported import ExportedController, Network
from decoding.features import DepthFeatures, SizeFeatures
from decoding.sampling import Sampling
from decoding.session import Session
from decoding.tree import DraftTree
from policies.export import export_policy, network_of

torch.set_num_threads(1)


@pytest.fixture(scope="module")
def models() -> tuple[PPO, PPO]:
    return wild_pair()


@pytest.fixture
def folder(models: tuple[PPO, PPO], tmp_path: Path) -> Path:
    export_policy(tmp_path / "policy", *models, INFO)
    return tmp_path / "policy"


def margin(model: PPO, observation: np.ndarray) -> float:
    """By how much the best action's logit leads: below rounding error it is a tie."""
    with torch.no_grad():
        tensor, _ = model.policy.obs_to_tensor(observation)
        logits = model.policy.get_distribution(tensor).distribution.logits[0]  # type: ignore[union-attr]
    best = logits.sort(descending=True).values
    return float(best[0] - best[1])


# --- the same decisions -----------------------------------------------------------------------------------


def test_networks_decide_as_the_models_on_thousands_of_observations(models: tuple[PPO, PPO]) -> None:
    rng = np.random.default_rng(0)
    for model in models:
        space = model.observation_space
        assert isinstance(space, spaces.Box)
        observations = rng.uniform(space.low, space.high, (5000, len(space.low))).astype(np.float32)
        expected, _ = model.predict(observations, deterministic=True)
        network = network_of(model)
        decided = np.array([network.action(observation) for observation in observations])
        wrong = [i for i in np.flatnonzero(decided != expected) if margin(model, observations[i]) > 1e-3]
        assert wrong == []
        assert (decided != expected).mean() < 0.001
        assert len(set(expected.tolist())) == model.action_space.n  # type: ignore[attr-defined]


def expected_answer(models: tuple[PPO, PPO], question: Question) -> tuple[int, float]:
    """What the PPO pair says to a question, and by what margin."""
    view = question.view
    if question.kind == "size":
        observation = SIZE(view)
        action, _ = models[1].predict(observation, deterministic=True)
        return SIZES[int(action)], margin(models[1], observation)
    if view.tree.depth == DEPTH.max_depth:
        return 0, 1.0
    observation = DEPTH(view)
    action, _ = models[0].predict(observation, deterministic=True)
    return int(action), margin(models[0], observation)


def test_the_whole_chain_decides_as_the_models(models: tuple[PPO, PPO], folder: Path) -> None:
    controller = ExportedController.load(folder)
    rng = np.random.default_rng(0)
    for _ in range(1000):
        depth = int(rng.integers(0, 5))
        view = random_view(rng, 3, depth)
        for kind in ("draft",) if depth == 0 else ("level", "size"):
            question = Question(kind, view)  # type: ignore[arg-type]
            expected, lead = expected_answer(models, question)
            assert answer(controller, question) == expected or lead < 1e-3
    assert controller.fallbacks == 0


def test_a_session_runs_it_and_meets_the_same_decisions(models: tuple[PPO, PPO], folder: Path) -> None:
    target = tiny_target()
    drafter = tiny_eagle(target, beam_width=3)
    controller = ExportedController.load(folder)

    def start(seed: int) -> Session:
        return Session(
            target,
            drafter,
            [5, 6 + seed],
            max_new_tokens=25,
            end_ids={END_ID},
            sampling=Sampling(0.7),
            seed=seed,
        )

    depths, sizes = set(), set()
    for seed in range(6):
        session, plain = start(seed), start(seed)
        while not session.finished:
            cycle = session.cycle()
            reply: int | None = None
            while True:
                try:
                    question = cycle.send(reply) if reply is not None else next(cycle)
                except StopIteration as done:
                    depths.add(done.value.draft_depth)
                    sizes.add(done.value.verification_size)
                    break
                reply = answer(controller, question)
                expected, lead = expected_answer(models, question)
                assert reply == expected or lead < 1e-3
        list(plain.run(PlainController()))
        assert session.generated == plain.generated
    assert len(depths) > 2
    assert len(sizes) > 2


@pytest.mark.parametrize("activation", [torch.nn.ReLU, torch.nn.Tanh])
def test_one_layer_several_and_none_between(activation: type[torch.nn.Module]) -> None:
    rng = np.random.default_rng(0)
    for hidden in ([], [5], [7, 6, 5]):
        model = PPO(
            "MlpPolicy",
            Spaces(DEPTH, 2),
            n_steps=16,
            batch_size=16,
            device="cpu",
            policy_kwargs={"net_arch": {"pi": hidden, "vf": [3]}, "activation_fn": activation},
        )
        observations = rng.uniform(DEPTH.low, DEPTH.high, (200, len(DEPTH.low))).astype(np.float32)
        network = network_of(model)
        assert network.widths == [len(DEPTH.low), *hidden, 2]
        for observation in observations:
            action, _ = model.predict(observation, deterministic=True)
            assert network.action(observation) == action or margin(model, observation) < 1e-5


def test_training_on_leaves_a_network_that_was_taken_as_it_is() -> None:
    model, _ = wild_pair()
    network = network_of(model)
    before = [weight.copy() for weight, _ in network.layers]
    with torch.no_grad():
        for parameter in model.policy.parameters():
            parameter.mul_(2)
    assert all((weight == old).all() for (weight, _), old in zip(network.layers, before, strict=True))


def test_the_first_of_equal_outputs_wins_as_in_torch() -> None:
    network = Network([(np.zeros((4, 3), np.float32), np.array([1, 2, 2, 0], np.float32))], "relu")
    assert network.action(np.ones(3, np.float32)) == 1 == int(torch.tensor([1.0, 2, 2, 0]).argmax())


def test_it_stops_at_its_depth_without_asking_the_network() -> None:
    always = Network([(np.zeros((2, len(DEPTH.names)), np.float32), np.array([0, 1], np.float32))], "relu")
    controller = ExportedController(INFO, always, always)
    rng = np.random.default_rng(0)
    assert controller.wants_draft(random_view(rng, 3, 0))
    assert [controller.wants_level(random_view(rng, 3, depth)) for depth in (1, 3, 4, 5)] == [
        True,
        True,
        False,
        False,
    ]


# --- what cannot be decided -------------------------------------------------------------------------------


def huge(features: DepthFeatures | SizeFeatures, actions: int) -> Network:
    """Finite weights whose outputs are not: infinity less infinity."""
    first = np.full((2, len(features.names)), -3e38, np.float32)
    second = np.array([[1, -1]] * actions, np.float32)
    return Network([(first, np.zeros(2, np.float32)), (second, np.zeros(actions, np.float32))], "relu")


def test_where_nothing_can_be_computed_the_constant_decides() -> None:
    controller = ExportedController(INFO, huge(DEPTH, 2), huge(SIZE, len(SIZES)))
    constant = FixedController(INFO.fallback.draft_depth, INFO.fallback.verification_size)
    rng = np.random.default_rng(0)
    for depth in range(4):
        view = random_view(rng, 3, depth)
        asked: list[tuple[Callable[[DraftView], int], Callable[[DraftView], int]]] = [
            (controller.verification_size, constant.verification_size),
            (controller.wants_level, constant.wants_level)
            if depth
            else (controller.wants_draft, constant.wants_draft),
        ]
        for exported, fixed in asked:
            assert exported(view) == fixed(view)
    assert controller.fallbacks == 8


def test_a_broken_policy_costs_speed_never_the_text() -> None:
    target = tiny_target()
    drafter = tiny_eagle(target, beam_width=3)
    broken = ExportedController(INFO, huge(DEPTH, 2), huge(SIZE, len(SIZES)))
    texts = []
    for controller in (broken, PlainController()):
        session = Session(
            target, drafter, [5, 6], max_new_tokens=20, end_ids=(), sampling=Sampling(0.0), seed=0
        )
        records = list(session.run(controller))
        texts.append(session.generated)
        if controller is broken:
            assert {record.draft_depth for record in records} >= {2}
    assert texts[0] == texts[1]
    assert broken.fallbacks > 0


# --- without the libraries --------------------------------------------------------------------------------

ALONE = """
import sys
sys.modules.update(dict.fromkeys(("gymnasium", "stable_baselines3")))
from decoding.controller import DraftView
from decoding.exported import ExportedController
from decoding.tree import DraftTree
controller = ExportedController.load(sys.argv[1])
print(controller.wants_draft(DraftView(DraftTree(1), 4, 16, 9)))
"""


def test_it_runs_where_no_learning_library_is_installed(folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", ALONE, str(folder)],
        cwd=Path(__file__).parent.parent,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    expected = ExportedController.load(folder).wants_draft(DraftView(DraftTree(1), 4, 16, 9))
    assert done.stdout.strip() == str(expected)


def test_a_decision_costs_less_than_a_tenth_of_a_millisecond(folder: Path) -> None:
    controller = ExportedController.load(folder)
    view = random_view(np.random.default_rng(0), 3, 3)
    for decide in (controller.wants_level, controller.verification_size):
        best = float("inf")
        for _ in range(300):  # the least of many: the machine may be busy
            start = time.perf_counter()
            decide(view)
            best = min(best, time.perf_counter() - start)
        assert best < 100e-6
