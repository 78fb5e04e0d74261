"""Full information: a trace tells what every action would have done, so nothing has to be sampled.

PPO tries one action at a question and learns from what follows. Under a recorded text all are known: with
`rate` tokens per second as the worth of a token, a cycle's expected cost under a policy,

    cost(policy) = E[rate * seconds - emitted],

is a sum over the questions of the position, and differentiable in the policy's probabilities. Descending
it at every position at once is policy improvement with exact advantages (the all-action policy gradient:
Sutton, McAllester, Singh, Mansour, NeurIPS 1999, theorem 1). The policy whose own rate makes the mean cost 0
has the best ratio of tokens to seconds (Dinkelbach, 1967): so rounds alternate with measuring the rate.

Legend: P positions, N nodes, A actions, S sizes, F features.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import nn

from decoding.cycle_features import HISTORY_NAMES
from decoding.decision_costs import DecisionCosts
from decoding.decision_table import ROOT_NODE, DecisionTable, Nodes
from decoding.decision_values import decided
from decoding.decision_walk import Decide, DecisionWalk, replay_texts
from decoding.decisions import PLAIN_ACTION, Decisions
from policies.cost_to_go import cycles_of, token_worths, with_worths

_NEVER = -1e9

# After each round: the round, tokens per second of the greedy policy on the training texts.
Progress = Callable[[int, float], None]


@dataclass(frozen=True, slots=True)
class FullInformationSettings:
    """How a policy is fitted.

    Args:
        rounds: times that the policy is replayed, for the rate and the history that it sees itself.
        epochs: passes over the positions in a round.
        batch: positions in a gradient step.
        learning_rate: AdamW's first step size; it falls to 0 over all rounds.
        weight_decay: AdamW's pull of the weights towards 0.
        entropy: worth of a nat of the policy's entropy, in tokens, at the start; it falls to 0. Without it
            the policy settles for the best constant: what it hardly ever does it hardly learns about.
        own_worth: share of the policy's own cost-to-go in what tokens are worth, from the second round on,
            see `cost_to_go.py`; 0 = a token is worth the same everywhere.
    """

    rounds: int = 4
    epochs: int = 12
    batch: int = 2048
    learning_rate: float = 4e-3
    weight_decay: float = 1e-4
    entropy: float = 0.1
    own_worth: float = 0.0

    def __post_init__(self) -> None:
        for name, low in (("rounds", 1), ("epochs", 1), ("batch", 1), ("learning_rate", 0), ("entropy", 0)):
            if not low <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} is {getattr(self, name)}, must be at least {low}")
        if not 0 <= self.own_worth <= 1:
            raise ValueError(f"own_worth is {self.own_worth}, must be in 0..1")


class ExpectedCost:
    """The expected cost of a cycle at recorded positions, in tokens: rate * seconds - emitted.

    Args:
        table, costs: the texts; costs of the same table.

    Attributes:
        features_PNF: that the policy sees.
        worth_PNS: of what a verification emits, in tokens. step_P: of what a plain step does, 1 at first.
    """

    def __init__(self, table: DecisionTable, costs: DecisionCosts) -> None:
        self.decisions: Decisions = table.decisions
        self._nodes = Nodes.of(table.decisions)
        self.features_PNF = torch.tensor(table.features_PNF)
        self._allowed_PNA = torch.tensor(table.allowed_PNA)
        self._emitted_PNS = table.emitted_PNS
        self.worth_PNS = torch.tensor(table.emitted_PNS)
        self.step_P = torch.ones(table.positions)
        self._finish_PNS = torch.tensor(costs.finish_PNS)
        self._arrive_PN = torch.tensor(costs.arrive_PN)
        self._plain_P = torch.tensor(costs.plain_P)
        self._question = costs.question

    def count(self, token_P: np.ndarray) -> None:
        """From now on a token is worth so much at each position."""
        self.worth_PNS = torch.from_numpy(self._emitted_PNS * token_P[:, None, None])
        self.step_P = torch.from_numpy(token_P)

    def of(
        self, logits: Callable[[torch.Tensor], torch.Tensor], places: torch.Tensor, rate: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Of each of these positions, the start of the cycle left out, and the mean entropy of the questions
        there, as the policy meets them; both (len(places),)."""
        decisions, nodes = self.decisions, self._nodes
        logits_BNA = logits(self.features_PNF[places])
        log_BNA = logits_BNA.masked_fill(~self._allowed_PNA[places], _NEVER).log_softmax(dim=-1)
        probs_BNA = log_BNA.exp()
        entropy_BN = -(probs_BNA * log_BNA.clamp(min=-100.0)).sum(dim=-1)
        finish_BNS = rate * (self._finish_PNS[places] + self._question) - self.worth_PNS[places]
        arrive_BN = rate * (self._arrive_PN[places] + self._question)
        verify = slice(decisions.continue_action + 1, None)
        costs: dict[int, torch.Tensor] = {}
        entropies: dict[int, torch.Tensor] = {}
        for node in range(len(nodes) - 1, ROOT_NODE, -1):
            costs[node] = (probs_BNA[:, node, verify] * finish_BNS[:, node]).sum(dim=-1)
            entropies[node] = entropy_BN[:, node]
            after = int(nodes.next_NA[node, decisions.continue_action])
            if after >= 0:
                more_B = probs_BNA[:, node, decisions.continue_action]
                costs[node] = costs[node] + more_B * (arrive_BN[:, after] + costs[after])
                entropies[node] = entropies[node] + more_B * entropies[after]
        plain_B = probs_BNA[:, ROOT_NODE, PLAIN_ACTION]
        cost_B = plain_B * (rate * (self._plain_P[places] + self._question) - self.step_P[places])
        mean_B = entropy_BN[:, ROOT_NODE]
        for choice in decisions.choices:
            drafts_B = probs_BNA[:, ROOT_NODE, decisions.draft_action(choice)]
            first = nodes.choice.index(choice)
            cost_B = cost_B + drafts_B * (arrive_BN[:, first] + costs[first])
            mean_B = mean_B + drafts_B * entropies[first]
        return cost_B, mean_B


def fit(
    policy: nn.Module,
    table: DecisionTable,
    costs: DecisionCosts,
    settings: FullInformationSettings,
    seed: int,
    rate: float,
    progress: Progress | None = None,
    seconds_T: np.ndarray | None = None,
) -> float:
    """Fit `policy`, a map of float32 (.., F) to logits (.., A), in place.

    Args:
        rate: tokens per second to begin with, e.g. of the best constant.
        seconds_T: of each text with that; None = a token is worth the same at all temperatures.

    Returns:
        Tokens per second of the greedy policy on these texts, which may be fewer than `rate`.
    """
    generator = torch.Generator().manual_seed(seed)
    expected = ExpectedCost(table, costs)
    asked = torch.from_numpy(np.flatnonzero(table.asked_P))
    optimizer = torch.optim.AdamW(
        policy.parameters(), settings.learning_rate, weight_decay=settings.weight_decay
    )
    steps = settings.rounds * settings.epochs * math.ceil(len(asked) / settings.batch)
    decay = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: max(0.0, 1 - step / steps))
    done = 0
    if seconds_T is not None:
        expected.count(token_worths(table, seconds_T))
    for turn in range(settings.rounds):
        if turn:
            rate = _improve(expected, table, costs, policy, rate, settings.own_worth, seconds_T is not None)
        for _ in range(settings.epochs):
            order = asked[torch.randperm(len(asked), generator=generator)]
            for places in order.split(settings.batch):
                cost_B, entropy_B = expected.of(policy, places, rate)
                loss = cost_B.mean() - settings.entropy * (1 - done / steps) * entropy_B.mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                decay.step()
                done += 1
        if progress is not None:
            progress(turn + 1, _speed(table, costs, policy))
    return _speed(table, costs, policy)


def _improve(
    expected: ExpectedCost,
    table: DecisionTable,
    costs: DecisionCosts,
    policy: nn.Module,
    rate: float,
    own_worth: float,
    by_temperature: bool,
) -> float:
    """Set what the policy sees of its own history, and what tokens are worth under it.

    Returns:
        The rate to go on with.
    """
    history, seconds_T = seen_history(table, costs, greedy(policy))
    # A round that failed must not make tokens worth less.
    rate = max(rate, table.positions / float(seconds_T.sum()))
    expected.features_PNF[:, :, -len(HISTORY_NAMES) :] = torch.from_numpy(history)[:, None]
    token_P = np.ones(table.positions, dtype=np.float32)
    if by_temperature:
        token_P = token_worths(table, seconds_T)
        expected.count(token_P)
    if own_worth:
        seen = replace(table, features_PNF=expected.features_PNF.numpy())
        cycles = cycles_of(table, costs, decided(seen, greedy(policy)))
        worths = with_worths(table, cycles, rate, own_worth, token_P)
        expected.worth_PNS = torch.from_numpy(worths.emitted_PNS)
        expected.step_P = torch.from_numpy(own_worth + (1 - own_worth) * token_P)
    return rate


def _speed(table: DecisionTable, costs: DecisionCosts, policy: nn.Module) -> float:
    return table.positions / float(replay_texts(table, costs, greedy(policy)).sum())


def greedy(policy: nn.Module) -> Decide:
    """The policy's likeliest allowed actions."""

    def decide(features_BF: np.ndarray, allowed_BA: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            logits_BA = policy(torch.from_numpy(features_BF))
        actions_B: np.ndarray = np.where(allowed_BA, logits_BA.numpy(), -np.inf).argmax(axis=1)
        return actions_B

    return decide


def seen_history(table: DecisionTable, costs: DecisionCosts, decide: Decide) -> tuple[np.ndarray, np.ndarray]:
    """What a policy sees of its own last cycles when it replays the texts: float32 (P, history's features),
    where no cycle began the ones of the last that did; and (T) its seconds."""
    walk = DecisionWalk(table, costs, table.texts)
    walk.start(np.arange(table.texts), np.arange(table.texts))
    text_B = np.flatnonzero(table.asked_P[table.starts[:-1]])
    walk.keep(text_B)
    seen = np.full((table.positions, len(HISTORY_NAMES)), np.nan, dtype=np.float32)
    seen[table.starts[:-1]] = 0.0
    first_T = table.starts[:-1]
    # Of texts of one token nobody is asked.
    seconds_T = np.where(table.asked_P[first_T], 0.0, costs.start_P[first_T] + costs.plain_P[first_T])
    while len(walk.place_B):
        features_BF = walk.features()
        seen[walk.place_B] = features_BF[:, -len(HISTORY_NAMES) :]
        outcome = walk.step(decide(features_BF, walk.allowed()))
        seconds_T[text_B] += outcome.seconds_B
        going_on = np.flatnonzero(~outcome.finished_B)
        walk.keep(going_on)
        text_B = text_B[going_on]
    known = np.maximum.accumulate(np.where(np.isnan(seen[:, 0]), 0, np.arange(table.positions)))
    return seen[known], seconds_T
