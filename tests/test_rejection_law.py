"""The `rejection` rule: its exact law in worlds of three and four symbols, every draw enumerated in
fractions.

The joint law of the first tokens must be the target's, to the last digit; and each way to get the rule wrong
must show in the same test.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from decoding import verify
from decoding.chain import draft_chain
from decoding.controller import DraftView
from decoding.tree import DraftTree
from decoding.verify import split_target
from tests.toy_world import (
    LENGTH,
    WORLDS,
    Cut,
    EnumeratedDraws,
    Law,
    ToyChain,
    Wants,
    World,
    cycle,
    decoded_law,
    distribution,
    every_outcome,
    keep_all,
)


def always(view: DraftView) -> bool:
    return True


def never(view: DraftView) -> bool:
    return False


def by_value(view: DraftView) -> bool:
    """Stops on what was drawn, which is allowed: it will be verified."""
    return view.tree.tokens[-1] != 1


def by_position(view: DraftView) -> bool:
    return (view.context_length + view.tree.depth) % 2 == 0


def by_entropy(view: DraftView) -> bool:
    """Looks at the distribution that would be drawn from next, as entropy rules do."""
    assert view.next_probs is not None
    probs_V = view.next_probs()
    return probs_V is not None and sum(probability**2 for probability in probs_V) > Fraction(2, 5)


CONTROLLERS = {rule.__name__: rule for rule in (always, never, by_value, by_position, by_entropy)}


@pytest.mark.parametrize("wants", CONTROLLERS.values(), ids=CONTROLLERS.keys())
@pytest.mark.parametrize("world", WORLDS.values(), ids=WORLDS.keys())
def test_joint_law_is_the_targets_exactly(world: World, wants: Wants) -> None:
    assert decoded_law(world, wants) == world.law()


def total_variation(law: Law, other: Law) -> Fraction:
    texts = law.keys() | other.keys()
    return (
        sum((abs(law.get(text, Fraction(0)) - other.get(text, Fraction(0))) for text in texts), Fraction(0))
        / 2
    )


def first_token(law: Law) -> list[Fraction]:
    symbols = 1 + max(text[0] for text in law)
    return [
        sum((mass for text, mass in law.items() if text[0] == symbol), Fraction(0))
        for symbol in range(symbols)
    ]


def law_of_one(world: World, cut: Cut = keep_all) -> list[Fraction]:
    """The law of the first token of a cycle that drafts one token if it may."""

    def play(draws: EnumeratedDraws) -> tuple[int, ...]:
        return (cycle(world, [0, 0], lambda view: view.tree.depth == 0, draws, cut)[0],)

    return first_token(every_outcome(play))


TARGET, DRAFT = distribution(5, 3, 2), distribution(2, 5, 3)
PAIR = World((TARGET,), (DRAFT,))


def tenths(*values: int) -> list[Fraction]:
    return [Fraction(value, 100) for value in values]


def test_mass_table_of_three_symbols() -> None:
    """design.md section 4: m = (1/5, 3/10, 1/5), Z = 3/10, r = (1, 0, 0), and target = m + Z r."""
    split = split_target(TARGET, DRAFT)
    assert list(split.accepted_V) == [Fraction(1, 5), Fraction(3, 10), Fraction(1, 5)]
    assert split.rejection == Fraction(3, 10)
    assert split.residual_V is not None
    assert list(split.residual_V) == [1, 0, 0]
    assert list(split.accepted_V + split.rejection * split.residual_V) == list(TARGET)
    assert law_of_one(PAIR) == list(TARGET)


def test_falling_back_to_the_target_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its law is (.35, .39, .26) instead of (.5, .3, .2): .15 away."""
    monkeypatch.setattr(verify, "_after_rejection", lambda target_V, draft_V: target_V)
    assert law_of_one(PAIR) == tenths(35, 39, 26)
    assert decoded_law(WORLDS["other"], always) != WORLDS["other"].law()


def test_dropping_the_first_token_for_its_value_is_wrong() -> None:
    """Looks at the drawn token, and takes a plain step where it is the third symbol: 7/50 away."""

    def plain_if_third(drafted: list[int], probs: list[np.ndarray]) -> int:
        return 0 if drafted[:1] == [2] else len(drafted)

    law = law_of_one(PAIR, plain_if_third)
    assert sum(abs(mine - its) for mine, its in zip(law, TARGET, strict=True)) / 2 == Fraction(7, 50)
    assert decoded_law(WORLDS["other"], always, plain_if_third) != WORLDS["other"].law()


@pytest.mark.parametrize("symbol", range(3))
def test_dropping_the_second_token_for_its_value_is_wrong(symbol: int) -> None:
    def without(drafted: list[int], probs: list[np.ndarray]) -> int:
        return 1 if drafted[1:] == [symbol] else len(drafted)

    law, right = decoded_law(WORLDS["other"], always, without), WORLDS["other"].law()
    assert total_variation(law, right) > Fraction(1, 100)
    # What it does to the second token does not reach the first.
    assert first_token(law) == first_token(right)


def test_dropping_whatever_its_value_is_right() -> None:
    """The control: what goes wrong above is the choice by value, not that fewer tokens are verified."""
    world = WORLDS["other"]
    assert decoded_law(world, always, lambda drafted, probs: min(1, len(drafted))) == world.law()


def test_a_mask_after_the_correction_is_wrong() -> None:
    """Accepts and corrects by the unmasked target; only what is drawn is masked, and so never forbidden."""
    right, late = WORLDS["masked"], World(WORLDS["masked"].targets, WORLDS["masked"].drafts)

    @dataclass
    class MaskingDraws:
        inner: EnumeratedDraws

        def token(self, probs_V: np.ndarray) -> int:
            return self.inner.token(right.masked(probs_V))

        def keeps(self, target: Fraction, draft: Fraction) -> bool:
            return self.inner.keeps(target, draft)

    def play(draws: EnumeratedDraws) -> tuple[int, ...]:
        text = [0, 0]
        while len(text) < 2 + LENGTH:
            text.extend(cycle(late, text, always, MaskingDraws(draws)))
        return tuple(text[2 : 2 + LENGTH])

    law = every_outcome(play)
    assert law.keys() == right.law().keys(), "no forbidden symbol is ever emitted"
    assert total_variation(law, right.law()) > Fraction(1, 100)


def test_draft_without_what_the_target_wants() -> None:
    """Draft 0, target > 0: the symbol arrives by the residual alone. Target 0, draft > 0: always rejected."""
    target, draft = distribution(1, 1, 0), distribution(0, 1, 1)
    split = split_target(target, draft)
    assert list(split.accepted_V) == [0, Fraction(1, 2), 0]
    assert split.rejection == Fraction(1, 2)
    assert split.residual_V is not None
    assert list(split.residual_V) == [1, 0, 0]
    assert law_of_one(World((target,), (draft,))) == [Fraction(1, 2), Fraction(1, 2)]


def test_equal_laws_never_evaluate_the_residual(monkeypatch: pytest.MonkeyPatch) -> None:
    def never_called(target_V: Any, draft_V: Any) -> Any:
        raise AssertionError("nothing can be rejected")

    assert split_target(TARGET, TARGET).residual_V is None
    assert split_target(TARGET, TARGET).rejection == 0
    monkeypatch.setattr(verify, "_after_rejection", never_called)
    assert decoded_law(WORLDS["equal"], always) == WORLDS["equal"].law()


def test_a_proposal_is_computed_when_somebody_looks_and_not_before() -> None:
    """A fixed depth must not pay for a distribution that it will not draw from."""
    tree = DraftTree(0)
    chain = ToyChain(PAIR, [0, 0], tree)
    view = DraftView(tree, 9, 2, 99)
    questions = draft_chain(chain, view, EnumeratedDraws([]), lambda phase: None)
    next(questions)
    assert chain.asked == 0
    questions.send(1)
    questions.send(1)
    assert chain.asked == tree.depth == 2
    assert view.next_probs is not None
    view.next_probs()
    assert chain.asked == 3
    with pytest.raises(StopIteration):
        questions.send(0)
    assert view.next_probs is None, "it must not be asked once the question is closed"
