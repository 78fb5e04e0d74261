"""Worlds of a few symbols in exact fractions, and every outcome of the draws of the `rejection` rule in them.

A world gives target and draft distributions for contexts of two tokens. What runs is the code that decodes:
`draft_chain` asks and draws, `accept_rejection` keeps and closes. Only the random numbers are replaced, by
every outcome they can have, each with its probability.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import product
from typing import Any

import numpy as np

from decoding.chain import Drawn, draft_chain
from decoding.controller import DraftView, Question
from decoding.tree import DraftTree
from decoding.verify import Draws, accept_rejection

LENGTH = 3  # tokens whose joint law is compared
DEPTH_LIMIT = 2
Law = dict[tuple[int, ...], Fraction]
Wants = Callable[[DraftView], bool]


def distribution(*weights: int) -> np.ndarray:
    total = sum(weights)
    return np.array([Fraction(weight, total) for weight in weights], dtype=object)


@dataclass(frozen=True)
class World:
    """Distributions after the last two tokens. Each context meets another pair of them."""

    targets: Sequence[np.ndarray]
    drafts: Sequence[np.ndarray | None]
    mask: frozenset[int] = frozenset()

    @property
    def symbols(self) -> int:
        return len(self.targets[0])

    def target(self, context: Sequence[int]) -> np.ndarray:
        return self.masked(self.targets[self._kind(context, len(self.targets))])

    def draft(self, context: Sequence[int]) -> np.ndarray | None:
        return self.drafts[self._kind(context, len(self.drafts))]

    def masked(self, probs_V: np.ndarray) -> np.ndarray:
        allowed = np.array([0 if symbol in self.mask else 1 for symbol in range(self.symbols)])
        return probs_V * allowed / (probs_V * allowed).sum()

    def _kind(self, context: Sequence[int], kinds: int) -> int:
        before, last = context[-2:]
        return (2 * before + last) % kinds

    def law(self) -> Law:
        """The target's own joint law of the first tokens."""
        law: Law = {}
        for text in product(range(self.symbols), repeat=LENGTH):
            probability = Fraction(1)
            for place, symbol in enumerate(text):
                probability *= self.target((0, 0, *text[:place]))[symbol]
            if probability:
                law[text] = probability
        return law


THREE = (distribution(5, 3, 2), distribution(1, 1, 4), distribution(0, 2, 1), distribution(3, 0, 0))
FOUR = (distribution(1, 2, 3, 4), distribution(2, 0, 1, 1), distribution(1, 1, 1, 1))
WORLDS = {
    "other": World(THREE, (distribution(2, 5, 3), distribution(1, 1, 1), distribution(4, 0, 1))),
    "equal": World(THREE, THREE),
    "far": World(THREE, (distribution(0, 0, 1), distribution(0, 1, 0), distribution(1, 0, 0))),
    "lookup": World(THREE, (distribution(0, 1, 0), None, distribution(1, 0, 0))),
    "four": World(FOUR, (distribution(4, 3, 2, 1), distribution(0, 3, 1, 0), distribution(1, 5, 1, 1))),
    "masked": World(
        (distribution(5, 3, 2), distribution(1, 1, 4), distribution(2, 2, 1)),
        (distribution(2, 5, 3), distribution(1, 1, 1)),
        mask=frozenset({1}),
    ),
}


class EnumeratedDraws:
    """Follows a script of outcomes; beyond its end takes the first, and notes what the others would be."""

    def __init__(self, script: Sequence[int]) -> None:
        self.script = list(script)
        self.branches: list[int] = []
        self.taken = 0
        self.probability = Fraction(1)

    def _branch(self, outcomes: Sequence[tuple[Any, Fraction]]) -> Any:
        possible = [(outcome, mass) for outcome, mass in outcomes if mass > 0]
        if self.taken == len(self.script):
            self.script.append(0)
        outcome, mass = possible[self.script[self.taken]]
        self.branches.append(len(possible))
        self.taken += 1
        self.probability *= mass
        return outcome

    def token(self, probs_V: np.ndarray) -> int:
        assert sum(probs_V) == 1
        return int(self._branch(list(enumerate(probs_V))))

    def keeps(self, target: Fraction, draft: Fraction) -> bool:
        assert draft > 0
        kept = min(Fraction(1), target / draft)
        return bool(self._branch([(True, kept), (False, 1 - kept)]))


def every_outcome(play: Callable[[EnumeratedDraws], tuple[int, ...]]) -> Law:
    """The law of what `play` returns, over all outcomes of its draws (depth-first, one replay a leaf)."""
    law: Law = defaultdict(Fraction)
    script: list[int] = []
    while True:
        draws = EnumeratedDraws(script)
        law[play(draws)] += draws.probability
        script = draws.script[: draws.taken]
        while script and script[-1] + 1 == draws.branches[len(script) - 1]:
            script.pop()
        if not script:
            assert sum(law.values()) == 1
            return dict(law)
        script[-1] += 1


@dataclass
class ToyChain:
    """`decoding.chain.Chain` over a world."""

    world: World
    context: list[int]
    tree: DraftTree
    asked: int = field(default=0)

    def next_probs(self) -> np.ndarray | None:
        self.asked += 1
        return self.world.draft(self.context)

    def append(self, token: int, probability: Fraction) -> None:
        self.tree.add_level([token], [self.tree.size], [self.tree.scores[-1] - 0.5])
        self.context.append(token)


Cut = Callable[[list[int], list[np.ndarray]], int]


def keep_all(drafted: list[int], probs: list[np.ndarray]) -> int:
    return len(drafted)


def cycle(world: World, text: list[int], wants: Wants, draws: Draws, cut: Cut = keep_all) -> list[int]:
    """One cycle of the real draft and the real verification. `cut` = how many drawn tokens are verified: the
    rule demands all."""
    tree = DraftTree(text[-1])
    chain = ToyChain(world, list(text), tree)
    view = DraftView(tree, DEPTH_LIMIT, len(text), 99)
    questions = draft_chain(chain, view, draws, lambda phase: None)
    reply: int | None = None
    while True:
        try:
            question: Question = next(questions) if reply is None else questions.send(reply)
        except StopIteration as done:
            drawn: Drawn = done.value
            break
        assert question.kind == ("level" if tree.depth else "draft")
        assert tree.size == tree.depth == len(chain.context) - len(text), (
            "asked before the next token is drawn"
        )
        reply = int(wants(question.view))
    kept = cut(drawn.tokens, drawn.probs)
    drafted = drawn.tokens[:kept]

    def target_probs(row: int) -> np.ndarray:
        return world.target([*text, *drafted[:row]])

    verdict = accept_rejection(drafted, drawn.probs[:kept], target_probs, draws, lambda token: False)
    assert verdict.rows == list(range(len(verdict.emitted)))
    assert sum(verdict.accepted_by_depth) == len(verdict.emitted) - 1
    return verdict.emitted


def decoded_law(world: World, wants: Wants, cut: Cut = keep_all) -> Law:
    """The joint law of the first `LENGTH` tokens that cycle after cycle emits."""

    def play(draws: EnumeratedDraws) -> tuple[int, ...]:
        text = [0, 0]
        while len(text) < 2 + LENGTH:
            text.extend(cycle(world, text, wants, draws, cut))
        return tuple(text[2 : 2 + LENGTH])

    return every_outcome(play)
