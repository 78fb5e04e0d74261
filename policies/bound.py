"""The reachable bound: what a large model on every feature can gain over recorded texts, its own time free.

Backwards over a cycle: what a verification gains; then, from the deepest level up, what one level more costs
beyond stopping there; then what each draft costs beyond a plain step. The targets are realised costs under
the plans below, as these are and not as they hope to be: each part of the texts is planned by the regressors
that did not see it (cross-fitting).

Rounds are steps of policy iteration: after each, tokens are worth the seconds that the policy itself would
take for them, see `cost_to_go.py`.

Legend: P positions, N nodes, S sizes, F features, T texts, Q questions.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from sklearn.ensemble import HistGradientBoostingRegressor

from decoding.cycle_features import HISTORY_NAMES
from decoding.decision_costs import DecisionCosts
from decoding.decision_table import ROOT_NODE, DecisionTable, Nodes
from decoding.decision_values import realised_costs
from decoding.profile import CostProfile
from policies.cost_to_go import cycles_of, history_of, speed_of, with_worths
from policies.tree_rule import Member, Regressor, TreeRule, begin_inputs, increment_inputs

# After each round: the round, tokens per second on the training texts, each planned by others' regressors.
Progress = Callable[[int, float], None]


@dataclass(frozen=True, slots=True)
class BoundSettings:
    """How the trees are grown.

    Args:
        rounds: steps of policy iteration.
        folds: parts of the texts, at least 2; each is planned by the regressors of all others.
        trees, leaves, leaf_rows, learning_rate: of a regressor.
        most_rows: of the regressor of increments; drawn at random where there are more.
        own_worth: share of the policy's own cost-to-go in what tokens are worth, from the second round on.
    """

    rounds: int = 2
    folds: int = 2
    trees: int = 60
    leaves: int = 15
    leaf_rows: int = 300
    learning_rate: float = 0.08
    most_rows: int = 300_000
    own_worth: float = 0.7

    def __post_init__(self) -> None:
        least = {"rounds": 1, "folds": 2, "trees": 1, "leaves": 2, "leaf_rows": 1, "most_rows": 1}
        for name, low in least.items():
            if type(getattr(self, name)) is not int or getattr(self, name) < low:
                raise ValueError(f"{name} is {getattr(self, name)!r}, must be a whole number >= {low}")
        if not 0 < self.learning_rate < math.inf:
            raise ValueError(f"learning_rate is {self.learning_rate}, must be a number > 0")
        if not 0 <= self.own_worth <= 1:
            raise ValueError(f"own_worth is {self.own_worth}, must be in 0..1")


def fit_trees(
    table: DecisionTable,
    costs: DecisionCosts,
    profile: CostProfile,
    rate: float,
    settings: BoundSettings,
    seed: int,
    progress: Progress | None = None,
) -> TreeRule:
    """The rule of the last round.

    Args:
        costs: of the same table; with questions that cost nothing for a bound.
        profile: that they are from.
        rate: tokens per second to begin with, e.g. of the best constant.

    Raises:
        ValueError: there are fewer texts than folds.
    """
    if table.texts < settings.folds:
        raise ValueError(f"{table.texts} texts are too few for {settings.folds} folds: record more")
    rng = np.random.default_rng(seed)
    fold_T = rng.permutation(table.texts) % settings.folds
    worths = table
    for turn in range(settings.rounds):
        rounds_rule = TreeRule(
            table.features, table.decisions, profile, rate, [Member() for _ in range(settings.folds)]
        )
        training = _Round(rounds_rule, worths, costs, fold_T, settings, rng)
        actions_PN = training.fit()
        cycles = cycles_of(table, costs, actions_PN)
        speed = speed_of(table, cycles)
        if progress is not None:
            progress(turn + 1, speed)
        rate = speed
        features_PNF = table.features_PNF.copy()
        features_PNF[:, :, -len(HISTORY_NAMES) :] = history_of(table, cycles)[:, None]
        worths = replace(with_worths(table, cycles, rate, settings.own_worth), features_PNF=features_PNF)
    return rounds_rule


class _Round:
    """One fit of all regressors, with a table whose `emitted_PNS` are worths; fills the rule's members in."""

    def __init__(
        self,
        rule: TreeRule,
        table: DecisionTable,
        costs: DecisionCosts,
        fold_T: np.ndarray,
        settings: BoundSettings,
        rng: np.random.Generator,
    ) -> None:
        self._rule, self._table, self._costs = rule, table, costs
        self._settings, self._rng = settings, rng
        self._alone = [rule.alone(member) for member in rule.members]
        self._fold_P = np.repeat(fold_T, np.diff(table.starts))
        self._nodes = Nodes.of(table.decisions)
        self._more = table.decisions.continue_action
        # Questions of a draft that is not on offer are never asked.
        self._asked_PN = np.array(table.allowed_PNA.any(axis=2))
        for choice in table.decisions.choices:
            offered_P = table.allowed_PNA[:, ROOT_NODE, table.decisions.draft_action(choice)]
            those = [node for node in range(1, len(self._nodes)) if self._nodes.choice[node] == choice]
            self._asked_PN[:, those] &= offered_P[:, None]
        self._actions_PN = np.zeros(self._asked_PN.shape, dtype=np.int64)

    def fit(self) -> np.ndarray:
        """(P, N) actions, of every text by those that did not see it."""
        self._fit_increments()
        for node in range(1, len(self._nodes)):
            places = np.flatnonzero(self._asked_PN[:, node])
            self._actions_PN[places, node] = self._decided(TreeRule.stop, places, node)
        stop_PN = self._realised()
        for depth in range(self._table.decisions.max_depth - 1, 0, -1):
            self._fit_level(depth, stop_PN)
        self._fit_begin()
        places = np.flatnonzero(self._asked_PN[:, ROOT_NODE])
        self._actions_PN[places, ROOT_NODE] = self._decided(TreeRule.begin, places, ROOT_NODE)
        return self._actions_PN

    def _fit_increments(self) -> None:
        table, sizes = self._table, len(self._table.decisions.sizes)
        asked = np.argwhere(self._asked_PN & (np.arange(len(self._nodes)) != ROOT_NODE))
        for fold, member in enumerate(self._rule.members):
            mine = asked[self._fold_P[asked[:, 0]] != fold]
            most = max(1, self._settings.most_rows // sizes)
            if len(mine) > most:
                mine = mine[np.sort(self._rng.choice(len(mine), most, replace=False))]
            place_Q, node_Q = mine.T
            verify_QS = table.allowed_PNA[place_Q, node_Q, self._more + 1 :]
            at_R, size_R = np.nonzero(verify_QS)
            inputs, expected = increment_inputs(
                table.features, table.features_PNF[place_Q, node_Q], at_R, size_R
            )
            # Beyond the closing token, which every verification brings.
            gains_QS = np.diff(table.emitted_PNS[place_Q, node_Q], axis=1, prepend=1)
            # Rows of one question are much alike.
            member.increments = self._regressor(inputs, gains_QS[at_R, size_R] - expected, alike=4)

    def _fit_level(self, depth: int, stop_PN: np.ndarray) -> None:
        """One level more against stopping at this depth, of all drafts."""
        features_PNF, costs = self._table.features_PNF, self._costs
        cost_PN, parts = self._realised(), []
        nodes = [n for n in range(1, len(self._nodes)) if self._nodes.depth[n] == depth]
        for node in nodes:
            places = self._may_go_on(node)
            after = self._nodes.next_NA[node, self._more]
            beyond = self._rule.rate * (costs.arrive_PN[places, after] + costs.question)
            beyond = beyond + cost_PN[places, after] - stop_PN[places, node]
            parts.append((features_PNF[places, node], beyond, self._fold_P[places]))
        inputs, targets, folds = map(np.concatenate, zip(*parts, strict=True))
        for fold, member in enumerate(self._rule.members):
            if (folds != fold).any():
                member.levels[depth] = self._regressor(inputs[folds != fold], targets[folds != fold])
        for node in nodes:
            places = self._may_go_on(node)
            goes_on = self._decided(TreeRule.goes_on, places, node) > 0
            self._actions_PN[places[goes_on], node] = self._more

    def _fit_begin(self) -> None:
        """Each draft against a plain step."""
        table, costs, rate = self._table, self._costs, self._rule.rate
        cost_PN, parts = self._realised(), []
        for choice in table.decisions.choices:
            action, node = table.decisions.draft_action(choice), self._nodes.choice.index(choice)
            places = np.flatnonzero(table.allowed_PNA[:, ROOT_NODE, action])
            beyond = rate * costs.arrive_PN[places, node] + cost_PN[places, node]
            beyond = beyond - (rate * costs.plain_P[places] - 1.0)
            inputs = begin_inputs(table.features_PNF[places, ROOT_NODE], action)
            parts.append((inputs, beyond, self._fold_P[places]))
        inputs, targets, folds = map(np.concatenate, zip(*parts, strict=True))
        for fold, member in enumerate(self._rule.members):
            member.begin = self._regressor(inputs[folds != fold], targets[folds != fold])

    def _may_go_on(self, node: int) -> np.ndarray:
        """Positions where this node's question has the answer `continue`."""
        return np.flatnonzero(self._asked_PN[:, node] & self._table.allowed_PNA[:, node, self._more])

    def _decided(
        self, ask: Callable[[TreeRule, np.ndarray, np.ndarray], np.ndarray], places: np.ndarray, node: int
    ) -> np.ndarray:
        """What the rule of each position's own fold answers there: it was not trained on it."""
        answers = np.zeros(len(places), dtype=np.int64)
        for fold, rule in enumerate(self._alone):
            those = np.flatnonzero(self._fold_P[places] == fold)
            if len(those):
                at = places[those]
                features_PNF, allowed_PNA = self._table.features_PNF, self._table.allowed_PNA
                answers[those] = ask(rule, features_PNF[at, node], allowed_PNA[at, node])
        return answers

    def _realised(self) -> np.ndarray:
        return realised_costs(self._table, self._costs, self._actions_PN, self._rule.rate)

    def _regressor(self, inputs: np.ndarray, targets: np.ndarray, alike: int = 1) -> Regressor:
        settings = self._settings
        trees = HistGradientBoostingRegressor(
            max_iter=settings.trees,
            max_leaf_nodes=settings.leaves,
            min_samples_leaf=settings.leaf_rows * alike,
            learning_rate=settings.learning_rate,
            l2_regularization=1.0,
            early_stopping=False,
            random_state=int(self._rng.integers(2**31)),
        )
        predict: Regressor = trees.fit(inputs, targets).predict
        return predict
