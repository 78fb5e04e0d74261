"""What the best policy reaches in a made-up world, exactly: from its probabilities, not from texts.

A cycle's acceptance depends on nothing but the position's kind, so the best policy is found backwards over
the tokens that are left. Numbers are fractions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from envs.synthetic import World


@dataclass(frozen=True, slots=True)
class Plan:
    """A drafting cycle: levels drafted, nodes verified, at most as many."""

    draft_depth: int
    verification_size: int


def plans(world: World, left: int | None = None) -> Iterator[Plan]:
    """Every drafting cycle with `left` tokens to come, None: with no end in sight."""
    deepest = world.max_depth if left is None else min(world.max_depth, left - 1)
    for depth in range(1, deepest + 1):
        for size in sorted({min(size, depth) for size in world.sizes}):
            yield Plan(depth, size)


def plan_seconds(world: World, plan: Plan) -> Fraction:
    """Of a drafting cycle."""
    return world.level * plan.draft_depth + world.verification[plan.verification_size]


def emitted_law(rate: Fraction, size: int) -> list[Fraction]:
    """P(a cycle that verifies `size` tokens emits 1, 2, .., size + 1)."""
    return [*(rate**count * (1 - rate) for count in range(size)), rate**size]


def expected_tokens(rate: Fraction, size: int) -> Fraction:
    """Of a cycle that verifies `size` tokens."""
    return sum((count * share for count, share in enumerate(emitted_law(rate, size), start=1)), Fraction(0))


def optimal_seconds(world: World) -> Fraction:
    """Least expected seconds of a text; of kinds that texts are of, the mean."""
    kinds = [(rate,) for rate in world.rates] if world.by_text else [world.rates]
    return sum((_least(world, rates) for rates in kinds), Fraction(0)) / len(kinds)


def optimal_rate(world: World) -> Fraction:
    """Largest expected tokens per second: tokens over expected seconds, each kind of text equally often."""
    return world.tokens / optimal_seconds(world)


def _least(world: World, rates: tuple[Fraction, ...]) -> Fraction:
    """Where a position's rate is one of these, which is seen once a level is drafted."""
    left = [Fraction(0), Fraction(1)]  # a last token is a plain step
    for count in range(2, world.tokens + 1):
        drafted = [min(_cost(world, rate, plan, left) for plan in plans(world, count)) for rate in rates]
        left.append(min(1 + left[-1], sum(drafted, Fraction(0)) / len(rates)))
    return left[world.tokens]


def _cost(world: World, rate: Fraction, plan: Plan, left: list[Fraction]) -> Fraction:
    """Expected seconds of a cycle and of all after it; `left`: of 0, 1, .. tokens, one less than now."""
    law = emitted_law(rate, plan.verification_size)
    after = sum((share * left[-count] for count, share in enumerate(law, start=1)), Fraction(0))
    return plan_seconds(world, plan) + after
