"""Any chain and any trust in it, joined as plain loops join it: what texts alone would seldom bring about."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from decoding.controller import RootChoice
from decoding.drafters.ngram import Continuation, NgramState
from decoding.scoring import HeadOpinion
from tests.merged_world import HEADS, HandTree, Opinion, World, merged, random_text, tree_by_hand
from tests.test_merged import assert_same, check_whatever_a_tree_is, draft, state_after

WIDTH = 3
# Ranks of the head's tokens that a chain may take: its candidates, and what is none.
RANKS = [0, 1, 2, 5, 20]


def any_chain(world: World, rng: np.random.Generator, depth: int) -> list[Continuation]:
    """Tokens that the head likes best, less, or cannot draft, each after those before it."""
    chain: list[Continuation] = []
    while len(chain) < depth:
        order = np.argsort(-world.survival([one.token for one in chain]), kind="stable")
        token = int(order[rng.choice([*RANKS, -1])])
        chain.append(Continuation(token, len(chain) + 1, 3, 0.5, 3))
    return chain


def tempts(tree: HandTree, levels: int) -> int:
    """Nodes whose parent was not run, and whose score is among the best of a level that was drafted from."""
    count = 0
    for depth in range(1, levels):
        level = [node for node, at in enumerate(tree.depths) if at == depth]
        best = sorted(level, key=lambda node: -tree.scores[node])[:WIDTH]
        count += sum(tree.parents[node] not in tree.grown for node in best)
    return count


class Trust:
    """Stands in for a fitted lookup: a number for each depth, and a part of what the head thinks."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._by_depth = [float(rng.choice([-4.0, -2.5, -0.5])), *rng.choice([-4.0, -0.05, -0.01], size=6)]

    def __call__(self, one: Continuation, opinion: Opinion | None) -> float:
        log_p = float(self._by_depth[one.depth - 1])
        return log_p if opinion is None else log_p + 0.3 * opinion[1] + 0.02 * max(opinion[0], -20.0)


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_any_chain_is_joined_as_the_reference_joins_it(
    head: str, temperature: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trusted little at first and much further down: a token whose parent was not run is among the best."""
    fates: Counter[str] = Counter()
    for seed in range(16):
        rng = np.random.default_rng(seed)
        world = World(random_text(rng), merged(head, WIDTH, 6), temperature)
        chain, trust = any_chain(world, rng, int(rng.integers(3, 7))), Trust(rng)
        patched(monkeypatch, world, chain, trust)
        levels = int(rng.integers(3, 5))
        expected = tree_by_hand(world, levels, 9, chain)
        tree = draft(state_after(world.text, world.drafter, temperature), RootChoice.ALL, levels, 9)
        assert_same(tree, expected, (seed, expected.fates))
        check_whatever_a_tree_is(tree)
        fates.update(expected.fates)
        fates["tempting"] += tempts(expected, levels)
    wanted = {"shared", "beside", "cold", "below", "tempting", *(["unheld"] if head == "eagle" else [])}
    assert not [fate for fate in wanted if fates[fate] < 1], fates


def patched(patch: pytest.MonkeyPatch, world: World, chain: list[Continuation], trust: Trust) -> None:
    """Decoding and reference take this chain, and trust it so."""

    def log_survival(state: NgramState, one: Continuation, opinion: HeadOpinion | None) -> float:
        return trust(one, None if opinion is None else (opinion.log_c, opinion.best))

    patch.setattr(NgramState, "best_chain", lambda state, depth: chain[:depth])
    patch.setattr(NgramState, "log_survival", log_survival)
    patch.setattr(world, "looked", trust)
