"""Tables of made-up questions and answers, whose numbers are multiples of 1/64: sums of them are exact; and
the walk over a text as a plain loop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from decoding.controller import RootChoice
from decoding.cycle_features import HISTORY_NAMES, CycleFeatures
from decoding.decision_costs import DecisionCosts
from decoding.decision_table import ROOT_NODE, DecisionTable, Nodes
from decoding.decisions import PLAIN_ACTION, Decisions

MERGED = (RootChoice.ALL, RootChoice.LOOKUP, RootChoice.HEAD)
SIZES = (1, 3, 4)
DEPTH = 3


def random_table(
    rng: np.random.Generator,
    texts: int = 3,
    tokens: int = 7,
    choices: tuple[RootChoice, ...] = MERGED,
    depth: int = DEPTH,
    sizes: tuple[int, ...] = SIZES,
) -> DecisionTable:
    """Texts of up to so many tokens, the last of one token if there is more than one; features at random."""
    decisions, features = Decisions(choices, depth, sizes), CycleFeatures(sizes, depth)
    nodes = Nodes.of(decisions)
    lengths = [int(rng.integers(2, tokens + 1)) for _ in range(max(1, texts - 1))] + [1] * (texts > 1)
    left_P = np.concatenate([np.arange(length, 0, -1) for length in lengths])
    positions, questions = len(left_P), len(nodes)
    table = DecisionTable(
        decisions,
        features,
        names=tuple(f"text {text}" for text in range(texts)),
        categories=("",) * texts,
        languages=("",) * texts,
        starts=np.cumsum([0, *lengths]),
        context_P=np.arange(10, 10 + positions, dtype=np.int32),
        features_PNF=_features(rng, features, (positions, questions)),
        allowed_PNA=np.zeros((positions, questions, len(decisions)), dtype=bool),
        emitted_PNS=np.ones((positions, questions, len(sizes)), dtype=np.int16),
        size_PNS=np.zeros((positions, questions, len(sizes)), dtype=np.int16),
        levels_PN=np.tile(np.array(nodes.depth, dtype=np.int16), (positions, 1)),
        lookup_PN=np.tile(np.array([one == RootChoice.LOOKUP for one in nodes.choice]), (positions, 1)),
        asked_P=left_P > 1,
    )
    for place in np.flatnonzero(table.asked_P):
        _fill(rng, table, nodes, int(place), int(left_P[place]))
    _show(table, nodes)
    return table


def _features(rng: np.random.Generator, features: CycleFeatures, shape: tuple[int, int]) -> np.ndarray:
    seen = rng.uniform(features.low, features.high, (*shape, len(features.names))).astype(np.float32)
    seen[..., -len(HISTORY_NAMES) :] = 0.0
    return seen


def _show(table: DecisionTable, nodes: Nodes) -> None:
    """Where a question is asked, as real features do."""
    names = table.features.names
    table.features_PNF[:, :, names.index("at_root")] = np.arange(len(nodes)) == ROOT_NODE
    depths = np.array(nodes.depth) / table.decisions.max_depth
    table.features_PNF[:, :, names.index("draft_depth")] = depths
    if RootChoice.LOOKUP in table.decisions.choices:
        offered_P = table.allowed_PNA[:, ROOT_NODE, table.decisions.draft_action(RootChoice.LOOKUP)]
        table.features_PNF[:, :, names.index("match_length")] *= offered_P[:, None]


def _fill(rng: np.random.Generator, table: DecisionTable, nodes: Nodes, place: int, left: int) -> None:
    """The questions of one position."""
    decisions = table.decisions
    more = decisions.continue_action
    allowed_NA = table.allowed_PNA[place]
    allowed_NA[ROOT_NODE, PLAIN_ACTION] = True
    for choice in decisions.choices:
        offered = choice == RootChoice.ALL or rng.random() < 0.6
        allowed_NA[ROOT_NODE, decisions.draft_action(choice)] = offered
        deepest = int(rng.integers(1, min(decisions.max_depth, left - 1) + 1))
        for node in range(1, len(nodes)):
            if nodes.choice[node] != choice or nodes.depth[node] > deepest:
                continue
            allowed_NA[node, more] = 0 < nodes.depth[node] < deepest
            allowed_NA[node, more + 1 :] = np.arange(len(decisions.sizes)) <= rng.integers(
                len(decisions.sizes)
            )
            most = min(nodes.depth[node] + 2, left)
            table.emitted_PNS[place, node] = np.sort(rng.integers(1, most + 1, len(decisions.sizes)))


def random_costs(rng: np.random.Generator, table: DecisionTable) -> DecisionCosts:
    """At most a second each."""
    positions, nodes = table.levels_PN.shape

    def some(*shape: int) -> np.ndarray:
        return (rng.integers(1, 65, shape) / 64).astype(np.float32)

    digest_C = np.concatenate([[0.0], np.cumsum(some(4)) - 1 / 64]).astype(np.float32)
    return DecisionCosts(
        start_P=some(positions),
        plain_P=some(positions),
        arrive_PN=some(positions, nodes),
        finish_PNS=some(positions, nodes, len(table.decisions.sizes)),
        digest_C=digest_C,
        question=float(rng.integers(0, 9)) / 64,
    )


@dataclass(frozen=True, slots=True)
class Taken:
    """A decision of a walk: where, which, and its seconds and tokens; `ends`: the cycle."""

    place: int
    node: int
    action: int
    seconds: Fraction
    emitted: int
    ends: bool


def walk_text(
    table: DecisionTable, costs: DecisionCosts, text: int, choose: Callable[[int, int], int]
) -> tuple[list[Taken], Fraction]:
    """The decisions of a text, and its seconds, by a plain loop. `choose`: (place, node) -> action."""
    nodes, first_size = Nodes.of(table.decisions), table.decisions.continue_action + 1
    place, end = int(table.starts[text]), int(table.starts[text + 1])
    since, taken, total = 1, [], Fraction(0)
    while place < end:
        node, emitted, seconds = ROOT_NODE, 0, Fraction(float(costs.start_P[place]))
        if not table.asked_P[place]:
            total += seconds + Fraction(float(costs.plain_P[place]))
            place += 1
            continue
        while not emitted:
            action = choose(place, node)
            assert table.allowed_PNA[place, node, action]
            seconds += Fraction(costs.question)
            after = int(nodes.next_NA[node, action])
            if after >= 0:
                seconds += Fraction(float(costs.arrive_PN[place, after]))
                if node == ROOT_NODE and not table.lookup_PN[place, after]:
                    seconds += Fraction(float(costs.digest_C[min(since, len(costs.digest_C) - 1)]))
                    since = 0
            elif node == ROOT_NODE:
                emitted, seconds = 1, seconds + Fraction(float(costs.plain_P[place]))
            else:
                size = action - first_size
                emitted = int(table.emitted_PNS[place, node, size])
                seconds += Fraction(float(costs.finish_PNS[place, node, size]))
            taken.append(Taken(place, node, action, seconds, emitted, after < 0))
            total, seconds, node = total + seconds, Fraction(0), after
        place += emitted
        since += emitted
    return taken, total
