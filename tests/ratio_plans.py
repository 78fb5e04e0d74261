"""Policies that do the same at every position of a kind, in a world whose positions are drawn anew: what they
come to by each objective, in fractions."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from itertools import product

from envs.synthetic import World
from envs.synthetic_optimum import Plan, emitted_law, expected_tokens, plan_seconds, plans

# None: plain steps; else a plan for each kind of position.
Policy = tuple[Plan, ...] | None


def policies(world: World) -> Iterator[Policy]:
    yield None
    yield from product(plans(world), repeat=len(world.rates))


def mean(numbers: list[Fraction]) -> Fraction:
    return sum(numbers, Fraction(0)) / len(numbers)


def tokens_a_cycle(world: World, policy: Policy) -> Fraction:
    if policy is None:
        return Fraction(1)
    each = zip(world.rates, policy, strict=True)
    return mean([expected_tokens(rate, plan.verification_size) for rate, plan in each])


def ratio_of_sums(world: World, policy: Policy) -> Fraction:
    """Tokens per second of a text without end."""
    seconds = Fraction(1) if policy is None else mean([plan_seconds(world, plan) for plan in policy])
    return tokens_a_cycle(world, policy) / seconds


def mean_of_ratios(world: World, policy: Policy) -> Fraction:
    """The reward `throughput` of a cycle."""
    if policy is None:
        return Fraction(1)
    each = zip(world.rates, policy, strict=True)
    return mean(
        [expected_tokens(rate, plan.verification_size) / plan_seconds(world, plan) for rate, plan in each]
    )


def sum_of_ratios(world: World, policy: Policy) -> Fraction:
    """The rewards `throughput` of a request, per token."""
    return mean_of_ratios(world, policy) / tokens_a_cycle(world, policy)


def text_seconds(world: World, policy: Policy) -> Fraction:
    """Expected, of a whole text: near its end plans are cut to what is left."""
    left = [Fraction(0), Fraction(1)]
    for count in range(2, world.tokens + 1):
        if policy is None:
            left.append(1 + left[-1])
            continue
        totals = []
        for rate, plan in zip(world.rates, policy, strict=True):
            depth = min(plan.draft_depth, count - 1)
            here = Plan(depth, min(plan.verification_size, depth))
            law = emitted_law(rate, here.verification_size)
            after = sum((share * left[-emitted] for emitted, share in enumerate(law, start=1)), Fraction(0))
            totals.append(plan_seconds(world, here) + after)
        left.append(mean(totals))
    return left[world.tokens]
