"""The reachable bound: what a large model on every feature can gain over recorded texts, its own time left out.

One regressor per action was worse than a constant: the best of many noisy predictions is an optimistic one.
So there is structure (Legend: P positions, N nodes, A actions, S sizes, F features, T texts, B questions):

- the worth of a verification grows with its size by what the next nodes bring: one regressor, shared over
  sizes and depths, corrects the increments that the calibrated scores expect; the plan is exact in its costs;
- from the deepest level back, a regressor tells what one level more saves over stopping there, from what it
  saved: with the plans below it as they are, not as they hope to be;
- so at the root, over plain and each draft.

Plans that serve as targets are made by regressors that did not see the text (cross-fitting).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from sklearn.ensemble import HistGradientBoostingRegressor

from decoding.controller import HISTORY
from decoding.cycle_features import HISTORY_NAMES, CycleFeatures
from decoding.decision_costs import DecisionCosts
from decoding.decision_table import ROOT_NODE, DecisionTable, Nodes
from decoding.decision_values import realised_costs
from decoding.decisions import PLAIN_ACTION, Decisions
from decoding.features import CONTEXT_MIDDLE, CONTEXT_SCALE
from decoding.profile import CostProfile


@dataclass(frozen=True, slots=True)
class BoundSettings:
    """How the trees are grown.

    Args:
        rounds: times that all is fitted anew, with the rate, worths and history of the round before.
        folds: parts of the texts; each is planned by regressors of the others.
        iterations, leaves, least, learning_rate: of gradient boosting: trees, leaves of one, rows of a leaf.
        rows: most rows of the regressor of increments; drawn at random if there are more.
        trust: of a round's own cost-to-go in the worth of tokens; 0: a token is worth the same everywhere.
    """

    rounds: int = 3
    folds: int = 2
    iterations: int = 100
    leaves: int = 31
    least: int = 100
    learning_rate: float = 0.05
    rows: int = 600_000
    trust: float = 0.0


@dataclass
class Fold:
    increments: HistGradientBoostingRegressor | None = None
    levels: dict[int, HistGradientBoostingRegressor] | None = None
    begin: HistGradientBoostingRegressor | None = None


class TreeBound:
    def __init__(self, features: CycleFeatures, decisions: Decisions, profile: CostProfile, rate: float, folds: Sequence[Fold]) -> None:
        self.features, self.decisions, self.profile, self.rate = features, decisions, profile, rate
        self.folds = folds
        names = features.names
        self._root, self._depth, self._context = (names.index(n) for n in ("at_root", "draft_depth", "log2_context_length"))
        first = names.index(f"expected_{features.sizes[0]}")
        self._expected = slice(first, first + len(features.sizes))
        self._rows = np.array(features.sizes) + 1

    def stop_costs(self, features_BF: np.ndarray, folds: Sequence[Fold]) -> np.ndarray:
        context_B = np.rint(2.0 ** (features_BF[:, self._context] * CONTEXT_SCALE + CONTEXT_MIDDLE))
        context_B = np.maximum(1, context_B).astype(np.int64)
        seconds_BS = self.profile.verification_seconds(self._rows[None], context_B[:, None])
        seconds_BS = seconds_BS + self.profile.selection_seconds(0, self._rows - 1)
        expected_BS = features_BF[:, self._expected]
        steps_BS = np.diff(expected_BS, axis=1, prepend=0.0)
        count, sizes = steps_BS.shape
        inputs = increment_inputs(np.repeat(features_BF, sizes, axis=0), np.tile(np.arange(sizes), count), steps_BS.ravel())
        more = np.mean([fold.increments.predict(inputs) for fold in folds], axis=0)
        # committing a token costs too
        worth = 1.0 - self.rate * (self.profile.verification_token + self.profile.commit[1])
        gains_BS = np.cumsum(steps_BS + more.reshape(count, sizes), axis=1)
        return self.rate * seconds_BS - worth * gains_BS

    def stop(self, features_BF, allowed_BA, folds):
        first = self.decisions.continue_action + 1
        costs_BS = self.stop_costs(features_BF, folds)
        return first + np.where(allowed_BA[:, first:], costs_BS, np.inf).argmin(axis=1)

    def goes_on(self, features_BF, allowed_BA, folds):
        more_B = allowed_BA[:, self.decisions.continue_action].copy()
        depth_B = np.rint(features_BF[:, self._depth] * self.features.max_depth).astype(np.int64)
        for depth in np.unique(depth_B[more_B]).tolist():
            those = np.flatnonzero(more_B & (depth_B == depth))
            known = [fold.levels[depth] for fold in folds if depth in fold.levels]
            more_B[those] = np.mean([one.predict(features_BF[those]) for one in known], axis=0) < 0 if known else False
        return more_B

    def begin(self, features_BF, allowed_BA, folds):
        costs = np.full((len(features_BF), 1 + len(self.decisions.choices)), np.inf)
        costs[:, PLAIN_ACTION] = 0.0
        for number, choice in enumerate(self.decisions.choices):
            those = np.flatnonzero(allowed_BA[:, self.decisions.draft_action(choice)])
            if len(those):
                inputs = begin_inputs(features_BF[those], np.full(len(those), number))
                costs[those, 1 + number] = np.mean([fold.begin.predict(inputs) for fold in folds], axis=0)
        return costs.argmin(axis=1)

    def __call__(self, features_BF, allowed_BA):
        actions = np.zeros(len(features_BF), dtype=np.int64)
        root_B = features_BF[:, self._root] > 0
        if root_B.any():
            actions[root_B] = self.begin(features_BF[root_B], allowed_BA[root_B], self.folds)
        if not root_B.all():
            f, a = features_BF[~root_B], allowed_BA[~root_B]
            more = self.goes_on(f, a, self.folds)
            out = np.full(len(f), self.decisions.continue_action)
            if not more.all():
                out[~more] = self.stop(f[~more], a[~more], self.folds)
            actions[~root_B] = out
        return actions


def increment_inputs(features, size, step):
    return np.column_stack([features, size, step])

def begin_inputs(features, number):
    return np.column_stack([features, number])


def path_of(table, emitted_P):
    """History features (P, 2) and visited."""
    seen = np.zeros((table.positions, 2), dtype=np.float32)
    visited = np.zeros(table.positions, dtype=bool)
    most = table.decisions.max_depth + 1
    for t in range(table.texts):
        p, end = int(table.starts[t]), int(table.starts[t + 1])
        recent = []
        while p < end:
            last = recent[-HISTORY:]
            e = int(emitted_P[p])
            h = (last[-1] / most, sum(last) / len(last) / most) if last else (0, 0)
            stop = min(p + e, end)
            seen[p:stop] = np.minimum(h, 1.0)
            visited[p] = True
            recent.append(e)
            p = stop
    return seen, visited


def cost_to_go(table, seconds_P, emitted_P):
    """(P + texts...) V with index p; V at text end is 0: returned array length P+1 addressing helper."""
    left = np.zeros(table.positions)
    ends_P = np.repeat(table.starts[1:], np.diff(table.starts))
    for p in range(table.positions - 1, -1, -1):
        q = p + int(emitted_P[p])
        left[p] = seconds_P[p] + (left[q] if q < ends_P[p] else 0.0)
    return left, ends_P


def fit_trees(table: DecisionTable, costs: DecisionCosts, profile: CostProfile, rate: float, settings: BoundSettings, seed: int, log=lambda *a: None, emitted_P=None):
    rng = np.random.default_rng(seed)
    fold_T = rng.permutation(table.texts) % settings.folds
    fold_P = np.repeat(fold_T, np.diff(table.starts))
    nodes = Nodes.of(table.decisions)
    dec = table.decisions
    more = dec.continue_action
    worth = table.emitted_PNS.astype(np.float32)
    feats = table.features_PNF.copy()
    if emitted_P is not None:
        feats[:, :, -2:] = path_of(table, emitted_P)[0][:, None]
    root_allowed = table.allowed_PNA[:, ROOT_NODE]
    reach = table.allowed_PNA.any(axis=2)
    for one in dec.choices:
        for n in range(len(nodes)):
            if n and nodes.choice[n] == one:
                reach[:, n] &= root_allowed[:, dec.draft_action(one)]
    make = lambda scale=1: HistGradientBoostingRegressor(max_iter=settings.iterations, max_leaf_nodes=settings.leaves, min_samples_leaf=settings.least * scale, learning_rate=settings.learning_rate, early_stopping=False, random_state=int(seed), l2_regularization=1.0)
    for turn in range(settings.rounds):
        folds = [Fold(None, {}, None) for _ in range(settings.folds)]
        bound = TreeBound(table.features, dec, profile, rate, folds)
        worthy = replace(table, emitted_PNS=worth)
        # increments
        pn = np.argwhere(reach & (np.arange(len(nodes)) > 0))
        S = len(dec.sizes)
        for k, fold in enumerate(folds):
            mine = pn[fold_P[pn[:, 0]] != k] if settings.folds > 1 else pn
            want = settings.rows // S
            if len(mine) > want:
                mine = mine[np.sort(rng.choice(len(mine), want, replace=False))]
            f = feats[mine[:, 0], mine[:, 1]]
            w = worth[mine[:, 0], mine[:, 1]]
            # masked sizes say nothing new
            ok = table.allowed_PNA[mine[:, 0], mine[:, 1], more + 1:]
            steps = np.diff(f[:, bound._expected], axis=1, prepend=0.0)
            gains = np.diff(w, axis=1, prepend=1.0)
            idx = np.argwhere(ok)
            inputs = increment_inputs(f[idx[:, 0]], idx[:, 1], steps[idx[:, 0], idx[:, 1]])
            fold.increments = make(4).fit(inputs, (gains - steps)[idx[:, 0], idx[:, 1]])
        actions = np.zeros(reach.shape, dtype=np.int64)
        allf = table.allowed_PNA.any(axis=2)
        P = np.arange(table.positions)
        def oof(fn, places, node, *rest):
            out = np.zeros(len(places), dtype=np.int64)
            for k, fold in enumerate(folds):
                those = fold_P[places] == k
                if those.any():
                    out[those] = fn(feats[places[those], node], table.allowed_PNA[places[those], node], [fold])
            return out
        for node in range(1, len(nodes)):
            places = np.flatnonzero(reach[:, node])
            actions[places, node] = oof(bound.stop, places, node)
        stops = actions.copy()
        stop_cost = realised_costs(worthy, costs, stops, rate)
        # levels backward
        for depth in range(dec.max_depth - 1, 0, -1):
            at = [n for n in range(1, len(nodes)) if nodes.depth[n] == depth and nodes.next_NA[n, more] >= 0]
            cost = realised_costs(worthy, costs, actions, rate)
            X, y, fp = [], [], []
            for n in at:
                places = np.flatnonzero(reach[:, n] & table.allowed_PNA[:, n, more])
                nxt = nodes.next_NA[n, more]
                go = rate * (costs.arrive_PN[places, nxt] + costs.question) + cost[places, nxt]
                X.append(feats[places, n]); y.append(go - stop_cost[places, n]); fp.append(fold_P[places])
            X, y, fp = map(np.concatenate, (X, y, fp))
            for k, fold in enumerate(folds):
                mine = fp != k if settings.folds > 1 else fp == k
                if mine.sum() > 2 * settings.least:
                    fold.levels[depth] = make().fit(X[mine], y[mine])
            for n in at:
                places = np.flatnonzero(reach[:, n] & table.allowed_PNA[:, n, more])
                go = oof(bound.goes_on, places, n) > 0
                actions[places[go], n] = more
        cost = realised_costs(worthy, costs, actions, rate)
        X, y, fp = [], [], []
        for number, choice in enumerate(dec.choices):
            places = np.flatnonzero(root_allowed[:, dec.draft_action(choice)])
            n = nodes.choice.index(choice)
            d = rate * costs.arrive_PN[places, n] + cost[places, n] - (rate * costs.plain_P[places] - 1.0)
            X.append(begin_inputs(feats[places, ROOT_NODE], np.full(len(places), number))); y.append(d); fp.append(fold_P[places])
        X, y, fp = map(np.concatenate, (X, y, fp))
        for k, fold in enumerate(folds):
            mine = fp != k if settings.folds > 1 else fp == k
            fold.begin = make().fit(X[mine], y[mine])
        places = np.flatnonzero(allf[:, ROOT_NODE])
        actions[places, ROOT_NODE] = oof(bound.begin, places, ROOT_NODE)
        emitted = -realised_costs(table, costs, actions, 0.0)[:, 0]
        seconds = realised_costs(table, costs, actions, 1.0)[:, 0] + emitted + costs.start_P
        lost = ~allf[:, 0]
        emitted[lost] = 1; seconds[lost] = (costs.start_P + costs.plain_P)[lost]
        emitted = np.rint(emitted).astype(int)
        left, ends = cost_to_go(table, seconds, emitted)
        total = left[table.starts[:-1]].sum()
        rate = table.positions / total
        log(turn, "oof speed", rate)
        hist, visited = path_of(table, emitted)
        feats[:, :, -2:] = hist[:, None]
        bound.rate = bound.rate
        if settings.trust:
            pad = np.append(left, 0.0)
            def V(q):
                return np.where(q < ends[:, None, None], pad[np.minimum(q, table.positions)], 0.0)
            q = P[:, None, None] + table.emitted_PNS
            q1 = (P + 1)[:, None, None]
            own = 1 + rate * (V(q1) - V(q))
            worth = (settings.trust * own + (1 - settings.trust) * table.emitted_PNS).astype(np.float32)
        yield_bound = bound
        log.last = yield_bound if hasattr(log, "last") else None
    return bound
