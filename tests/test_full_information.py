"""Full information: expected costs are those of all that can happen, and their descent finds the best there
is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from configs.policy_schema import FullInformationSection
from decoding.decision_costs import DecisionCosts
from decoding.decision_table import ROOT_NODE, DecisionTable, Nodes
from decoding.decision_values import decided, realised_costs
from decoding.decision_walk import replay_texts
from decoding.decisions import PLAIN_ACTION
from policies import full_information
from policies.full_information import (
    ExpectedCost,
    FullInformationSettings,
    fit,
    greedy,
    seen_history,
)
from tests.learning import small_net
from tests.random_tables import random_costs, random_table, walk_text

Mix = Callable[[list[tuple[int, float]]], float]


def world(seed: int, texts: int = 3, tokens: int = 6) -> tuple[DecisionTable, DecisionCosts]:
    rng = np.random.default_rng(seed)
    table = random_table(rng, texts, tokens)
    return table, random_costs(rng, table)


def cost_from(
    table: DecisionTable, costs: DecisionCosts, place: int, node: int, rate: float, mix: Callable[..., float]
) -> float:
    """rate * seconds - emitted from a question on, its own asking included. `mix(place, node, values)`: what
    the policy makes of the allowed actions' values."""
    decisions, nodes = table.decisions, Nodes.of(table.decisions)
    values = {}
    for action in np.flatnonzero(table.allowed_PNA[place, node]).tolist():
        after = int(nodes.next_NA[node, action])
        if after >= 0:
            rest = cost_from(table, costs, place, after, rate, mix)
            values[action] = rate * float(costs.arrive_PN[place, after]) + rest
        elif action == PLAIN_ACTION:
            values[action] = rate * float(costs.plain_P[place]) - 1
        else:
            size = action - decisions.continue_action - 1
            seconds = float(costs.finish_PNS[place, node, size])
            values[action] = rate * seconds - int(table.emitted_PNS[place, node, size])
    return rate * costs.question + mix(place, node, values)


def of_actions(actions_PN: np.ndarray) -> Callable[..., float]:
    return lambda place, node, values: values[int(actions_PN[place, node])]


def random_actions(table: DecisionTable, rng: np.random.Generator) -> np.ndarray:
    return np.where(table.allowed_PNA, rng.random(table.allowed_PNA.shape), -1.0).argmax(axis=2)


@given(seed=st.integers(0, 9999), eighths=st.integers(1, 40))
def test_realised_costs_are_those_of_a_plain_recursion(seed: int, eighths: int) -> None:
    table, costs = world(seed)
    rate = eighths / 8
    actions_PN = random_actions(table, np.random.default_rng(seed))
    found = realised_costs(table, costs, actions_PN, rate)
    mix = of_actions(actions_PN)
    for place, node in np.ndindex(found.shape):
        asked = table.allowed_PNA[place, node].any()
        expected = cost_from(table, costs, place, node, rate, mix) if asked else 0.0
        assert found[place, node] == pytest.approx(expected, abs=1e-5)


@given(seed=st.integers(0, 9999), eighths=st.integers(1, 40))
def test_expected_costs_of_a_certain_policy_are_the_realised_ones(seed: int, eighths: int) -> None:
    table, costs = world(seed)
    rng = np.random.default_rng(seed)
    actions_PN = random_actions(table, rng)
    asked = torch.from_numpy(rng.permutation(np.flatnonzero(table.asked_P)))
    logits = 1e4 * torch.nn.functional.one_hot(torch.from_numpy(actions_PN), len(table.decisions)).float()
    found, entropy = ExpectedCost(table, costs).of(lambda _: logits[asked], asked, eighths / 8)
    expected = realised_costs(table, costs, actions_PN, eighths / 8)[asked.numpy(), ROOT_NODE]
    np.testing.assert_allclose(found, expected, atol=1e-4)
    np.testing.assert_allclose(entropy, 0.0, atol=1e-4)


@given(seed=st.integers(0, 9999), eighths=st.integers(1, 40))
def test_expected_costs_are_the_mean_over_all_that_can_happen(seed: int, eighths: int) -> None:
    """Of a policy that draws its actions; its entropy likewise, as it meets the questions."""
    table, costs = world(seed)
    rng = np.random.default_rng(seed)
    net = small_net(table, seed)
    asked = torch.from_numpy(np.flatnonzero(table.asked_P))
    with torch.no_grad():
        logits = 4 * net(torch.from_numpy(table.features_PNF))
        found, entropy = ExpectedCost(table, costs).of(lambda seen: 4 * net(seen), asked, eighths / 8)
    weights = np.where(table.allowed_PNA, np.exp(logits.numpy().astype(np.float64)), 0.0)
    probs = weights / np.maximum(weights.sum(axis=2, keepdims=True), 1e-300)

    def expected(place: int, node: int, values: dict[int, float]) -> float:
        return sum(probs[place, node, action] * value for action, value in values.items())

    def entropy_from(place: int, node: int) -> float:
        nodes, total = Nodes.of(table.decisions), 0.0
        for action in np.flatnonzero(table.allowed_PNA[place, node]).tolist():
            share, after = probs[place, node, action], int(nodes.next_NA[node, action])
            total -= share * np.log(share)
            total += share * entropy_from(place, after) if after >= 0 else 0.0
        return total

    some = rng.permutation(len(asked))[:4].tolist()
    for one in some:
        place = int(asked[one])
        whole = cost_from(table, costs, place, ROOT_NODE, eighths / 8, expected)
        assert float(found[one]) == pytest.approx(whole, abs=1e-4)
        assert float(entropy[one]) == pytest.approx(entropy_from(place, ROOT_NODE), abs=1e-4)


@given(seed=st.integers(0, 9999))
def test_what_a_token_is_worth_only_scales_what_is_emitted(seed: int) -> None:
    """Costs are seconds less worths: linear in the worth of a token, place by place."""
    table, costs = world(seed)
    rng, net = np.random.default_rng(seed), small_net(table, seed)
    asked = torch.from_numpy(np.flatnonzero(table.asked_P))
    token_P = rng.uniform(0.2, 3, table.positions).astype(np.float32)

    def found(rate: float, worth_P: np.ndarray | None = None) -> np.ndarray:
        expected = ExpectedCost(table, costs)
        if worth_P is not None:
            expected.count(worth_P)
        with torch.no_grad():
            cost: np.ndarray = expected.of(net, asked, rate)[0].numpy()
        return cost

    ones, none = np.ones_like(token_P), np.zeros_like(token_P)
    np.testing.assert_allclose(found(1.5), found(1.5, ones), atol=1e-5)
    worths = found(0.0) * token_P[asked]
    np.testing.assert_allclose(found(0.0, token_P), worths, atol=1e-4)
    np.testing.assert_allclose(found(1.5, token_P), found(1.5, none) + worths, atol=1e-4)
    assert (found(1.5, none) >= 0).all()


# --- the fit ----------------------------------------------------------------------------------------------


def test_the_fit_finds_the_best_action_at_every_position_of_a_small_table() -> None:
    """Features are drawn at random: each position can be told from the others. The best is found by trying
    every action at every question."""
    table, costs = world(3, texts=4, tokens=9)
    rate = 2.0
    asked = np.flatnonzero(table.asked_P)
    least = [
        cost_from(table, costs, int(place), ROOT_NODE, rate, lambda place, node, values: min(values.values()))
        for place in asked
    ]
    net = small_net(table, 0, width=64)
    before = realised_costs(table, costs, decided(table, greedy(net)), rate)[asked, ROOT_NODE].mean()
    settings = FullInformationSettings(rounds=1, epochs=400, batch=64, learning_rate=1e-2, entropy=0.2)
    fit(net, table, costs, settings, 0, rate)
    after = realised_costs(table, costs, decided(table, greedy(net)), rate)[asked, ROOT_NODE].mean()
    assert np.mean(least) - 1e-5 <= after < np.mean(least) + 0.05 * (before - np.mean(least))
    assert before - np.mean(least) > 0.3


def test_rounds_raise_the_rate_and_say_how_fast_they_are() -> None:
    table, costs = world(5, texts=6, tokens=9)
    net, rounds = small_net(table, 1, width=32), []
    settings = FullInformationSettings(rounds=3, epochs=40, batch=16)
    rate = fit(net, table, costs, settings, 0, 0.1, lambda *report: rounds.append(report))
    speed = table.positions / replay_texts(table, costs, greedy(net)).sum()
    assert [turn for turn, _ in rounds] == [1, 2, 3]
    assert rounds[-1][1] == pytest.approx(speed)
    assert rate == pytest.approx(speed)
    assert speed > 0.1
    same = small_net(table, 1, width=32)
    assert fit(same, table, costs, settings, 0, 0.1) == rate  # a function of its arguments
    assert all(map(torch.equal, net.state_dict().values(), same.state_dict().values()))
    # Its own also where it is slower than what it began with.
    slow = small_net(table, 1)
    own = fit(slow, table, costs, settings, 0, 1e3)
    assert own == pytest.approx(table.positions / replay_texts(table, costs, greedy(slow)).sum())
    assert own < 1e3


def test_what_the_policy_takes_itself_counts_from_the_second_round_on() -> None:
    table, costs = world(5, texts=6, tokens=9)

    def fitted(**more: float) -> list[torch.Tensor]:
        net = small_net(table, 1)
        fit(net, table, costs, FullInformationSettings(epochs=2, batch=16, **more), 0, 1.0)  # type: ignore[arg-type]
        return list(net.state_dict().values())

    assert all(map(torch.equal, fitted(rounds=1), fitted(rounds=1, own_worth=0.5)))
    some, more, none = (fitted(rounds=2, own_worth=share) for share in (0.5, 1.0, 0.0))
    assert not any(map(torch.equal, some, more))
    assert not any(map(torch.equal, some, none))
    assert all(map(torch.equal, none, fitted(rounds=2)))


def replayed_in_between(
    table: DecisionTable, costs: DecisionCosts, settings: FullInformationSettings, given: np.ndarray
) -> list[float]:
    """(T) seconds under a net after the first of two rounds: the steps of both are planned from the start, so
    that it is stopped, not fitted for one round."""
    net = small_net(table, 1)
    seen: list[list[float]] = []

    def look(turn: int, speed: float) -> None:
        seen.append(replay_texts(table, costs, greedy(net)).tolist())

    fit(net, table, costs, settings, 0, 1.0, look, given)
    return seen[0]


def test_tokens_are_worth_what_they_take_at_their_temperature(monkeypatch: pytest.MonkeyPatch) -> None:
    """First as whoever calls says, then as the policy itself decodes; of several rounds the last two."""
    table, costs = world(5, texts=6, tokens=9)
    given, seen = np.linspace(1, 2, 6), []
    usual = full_information.token_worths

    def watched(table: DecisionTable, seconds_T: np.ndarray) -> np.ndarray:
        seen.append(seconds_T.copy())
        return usual(table, seconds_T)

    monkeypatch.setattr(full_information, "token_worths", watched)
    settings = FullInformationSettings(rounds=2, epochs=1, batch=16)
    first, again, alike = (small_net(table, 1) for _ in range(3))
    fit(first, table, costs, replace(settings, rounds=1), 0, 1.0, seconds_T=given)
    assert [one.tolist() for one in seen] == [given.tolist()]
    fit(again, table, costs, settings, 0, 1.0, seconds_T=given)
    assert len(seen) == 3
    assert seen[2] == pytest.approx(replayed_in_between(table, costs, settings, given))
    fit(alike, table, costs, replace(settings, rounds=1), 0, 1.0)
    # What it says is what is fitted to.
    worths = iter([usual(table, given), np.ones(table.positions, np.float32)])
    monkeypatch.setattr(full_information, "token_worths", lambda *_: next(worths))
    flat = small_net(table, 1)
    fit(flat, table, costs, settings, 0, 1.0, seconds_T=given)
    for one, other in ((first, alike), (again, flat)):
        assert not all(map(torch.equal, one.state_dict().values(), other.state_dict().values()))


def test_every_setting_can_be_configured() -> None:
    assert set(FullInformationSection.model_fields) == {one.name for one in fields(FullInformationSettings)}
    assert FullInformationSection().own_worth == FullInformationSettings().own_worth == 0


def test_a_later_round_sees_its_own_history(monkeypatch: pytest.MonkeyPatch) -> None:
    table, costs = world(5, texts=6, tokens=9)
    seen: list[torch.Tensor] = []

    class Looks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = small_net(table, 1)

        def forward(self, features: torch.Tensor) -> torch.Tensor:
            if features.dim() == 3:
                seen.append(features[:, :, -2:].clone())
            logits: torch.Tensor = self.net(features)
            return logits

    fit(Looks(), table, costs, FullInformationSettings(rounds=2, epochs=1, batch=1000), 0, 1.0)
    first, second = seen
    assert not first.any()
    assert second.any()
    assert (second == second[:, :1]).all()  # at every question of a position the same


@given(seed=st.integers(0, 9999))
def test_the_history_that_a_policy_sees_is_that_of_a_plain_loop(seed: int) -> None:
    table, costs = world(seed, texts=4, tokens=9)
    answers = random_actions(table, np.random.default_rng(seed))
    at = {row.tobytes(): action for row, action in zip(*rows_and_actions(table, answers), strict=True)}

    def decide(features_BF: np.ndarray, allowed_BA: np.ndarray) -> np.ndarray:
        blank = features_BF.copy()
        blank[:, -2:] = 0.0
        return np.array([at[row.tobytes()] for row in blank])

    found, seconds_T = seen_history(table, costs, decide)
    expected = np.zeros_like(found)
    for text in range(table.texts):
        taken, seconds = walk_text(table, costs, text, lambda place, node: int(answers[place, node]))
        assert seconds_T[text] == pytest.approx(float(seconds))
        recent: list[int] = []
        for one in taken:
            if one.node == ROOT_NODE:
                last, some = (recent[-1], recent[-4:]) if recent else (0, [0])
                history = np.minimum(np.array([last, np.mean(some)]) / (table.decisions.max_depth + 1), 1)
                expected[one.place : table.starts[text + 1]] = history
            recent += [one.emitted] * one.ends
    np.testing.assert_allclose(found, expected, atol=1e-6)


def rows_and_actions(table: DecisionTable, answers: np.ndarray) -> tuple[list[np.ndarray], list[int]]:
    rows = table.features_PNF.reshape(-1, table.features_PNF.shape[2])
    return list(rows), answers.ravel().tolist()


def test_greedy_is_the_likeliest_allowed_action() -> None:
    net = nn.Linear(2, 3, bias=False)
    with torch.no_grad():
        net.weight.copy_(torch.tensor([[1.0, 0.0], [0.0, 1.0], [2.0, 2.0]]))
    seen = np.array([[3.0, 1.0], [1.0, 3.0], [1.0, 3.0]], dtype=np.float32)
    allowed = np.array([[True, True, False], [True, True, False], [True, True, True]])
    assert greedy(net)(seen, allowed).tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("rounds", 0),
        ("epochs", 0),
        ("batch", 0),
        ("learning_rate", -1.0),
        ("entropy", float("nan")),
        ("own_worth", 1.1),
    ],
)
def test_settings_that_are_none(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"{name} is") as error:
        FullInformationSettings(**{name: value})  # type: ignore[arg-type]
    assert len(str(error.value).splitlines()) == 1
