"""When speculation pays: the tokens that a cycle is expected to emit, over the time that it takes.

The unit of time is one plain step of the target, which emits one token. A cycle that drafts gamma > 0 tokens
emits E of them on average and takes v(gamma) + c gamma + overhead; S = E / time is the speed-up over plain
decoding. Depth 0 is plain decoding itself: E = time = S = 1.

All functions are pure. Numbers may be `fractions.Fraction`, and then results are exact.
`python -m decoding.cost_model` prints the best depths for a few acceptance rates and draft costs.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate
from operator import mul
from typing import NoReturn

from decoding.controller import MAX_DRAFT_DEPTH

Number = float | Fraction


@dataclass(frozen=True, slots=True)
class CycleCost:
    """What a drafting cycle costs, in plain target steps.

    c is the cost coefficient of Leviathan, Kalman, Matias (ICML 2023, arXiv 2211.17192, Definition 3.7);
    their Theorem 3.8 is the case `verification` = 1 and `overhead` = 0.

    Attributes:
        draft: c, the cost of one drafted token (a chain) or level (a tree), >= 0.
        verification: v, the cost of one target forward over the draft: a number > 0, or a function of the
            depth, since a forward over more rows can cost more.
        overhead: what each drafting cycle costs besides (selection, commit, policy), >= 0.
    """

    draft: Number
    verification: Number | Callable[[int], Number] = 1
    overhead: Number = 0

    def __post_init__(self) -> None:
        for name, value in (("draft cost", self.draft), ("overhead", self.overhead)):
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(f"{name} is {value}, must be a finite number >= 0, in plain target steps")
        if not callable(self.verification):
            _check_verification(self.verification)

    def time(self, draft_depth: int) -> Number:
        """Of one cycle, in plain target steps. Depth 0 takes 1: who never drafts pays for nothing else."""
        _check_depth(draft_depth)
        if draft_depth == 0:
            return 1
        verification = self.verification(draft_depth) if callable(self.verification) else self.verification
        _check_verification(verification)
        return verification + self.draft * draft_depth + self.overhead


@dataclass(frozen=True, slots=True)
class Forecast:
    """What a depth comes to: expected tokens `emitted` by a cycle, closing token included, and its `time` in
    plain target steps."""

    draft_depth: int
    emitted: Number
    time: Number

    @property
    def speedup(self) -> Number:
        """S = E / time: tokens per unit of time, over plain decoding's (Leviathan et al., Theorem 3.8)."""
        return self.emitted / self.time


def expected_emitted(acceptance_rate: Number, draft_depth: int) -> Number:
    """E = (1 - a^(g+1)) / (1 - a), and g + 1 at a = 1: Leviathan et al., equation 1.

    It holds if each drafted token is accepted with the same probability a, independently of the others.
    Computed as 1 + a + .. + a^g: the closed form loses its digits near a = 1 and is 0 / 0 there.
    """
    return expected_emitted_from_prefixes(constant_prefixes(acceptance_rate, draft_depth))


def expected_emitted_from_prefixes(prefix_probabilities: Sequence[Number]) -> Number:
    """E = 1 + sum over i = 1..g of P(the first i drafted tokens are all accepted), for any joint law.

    The mean of a count is the sum of its tail probabilities P(accepted >= i); the 1 is the closing token. In
    a tree, read "the accepted path reaches depth i".
    """
    prefixes = tuple(prefix_probabilities)  # an iterator would be used up by the check
    _check_prefixes(prefixes)
    return 1 + sum(prefixes)


def constant_prefixes(acceptance_rate: Number, draft_depth: int) -> tuple[Number, ...]:
    """a, a^2, .., a^g: the prefix probabilities of independent acceptances with one rate."""
    if not 0 <= acceptance_rate <= 1:
        raise ValueError(f"acceptance rate is {acceptance_rate}, must be in 0..1: give accepted / offered")
    _check_depth(draft_depth)
    return tuple(accumulate([acceptance_rate] * draft_depth, mul))


def mixed_prefixes(*kinds: Sequence[Number]) -> tuple[Number, ...]:
    """Prefix probabilities when each cycle is of one of these kinds, equally often.

    The mean over the kinds, by the law of total probability. By Jensen's inequality (a^i is convex in a) a
    mixture of constant rates emits more than the mean of the rates would: E is equal at depth 1 and larger
    from depth 2 on, if the rates differ.
    """
    depths = [len(kind) for kind in kinds]
    if len(set(depths)) != 1:
        raise ValueError(f"the kinds reach depths {depths}: give at least one, and all to the same depth")
    for kind in kinds:
        _check_prefixes(kind)
    return tuple(sum(column) / len(kinds) for column in zip(*kinds, strict=True))


def measured_prefixes(accepted_by_depth: Iterable[Sequence[bool]]) -> tuple[Fraction, ...]:
    """P(the first i drafted tokens are all accepted) from `CycleRecord.accepted_by_depth` of many cycles.

    A cycle that drafted d levels says nothing about depth d + 1: it is censored. So each depth has its own
    rate, accepted / offered, and their products are the estimate (the product-limit estimator of Kaplan and
    Meier, Journal of the American Statistical Association 53, 1958). It ends at the deepest depth ever
    offered.

    It is right only if the depth was chosen without regard to what would be accepted next: fixed, or drawn at
    random. A controller that drafts deeper where it expects success makes deep levels look better than they
    are.
    """
    offered: list[int] = []
    accepted: list[int] = []
    for cycle in accepted_by_depth:
        if not all(cycle[:-1]):
            raise ValueError(f"accepted_by_depth is {tuple(cycle)}: only its last entry can be False")
        for index, hit in enumerate(cycle):
            if index == len(offered):
                offered.append(0)
                accepted.append(0)
            offered[index] += 1
            accepted[index] += bool(hit)
    return tuple(accumulate(map(Fraction, accepted, offered), mul))


def forecast(prefix_probabilities: Sequence[Number], cost: CycleCost, draft_depth: int) -> Forecast:
    """Tokens and time of a cycle that drafts `draft_depth`, which is at most as deep as the probabilities
    go."""
    _check_depth(draft_depth)
    if draft_depth > len(prefix_probabilities):
        raise ValueError(
            f"draft_depth is {draft_depth}, must be <= {len(prefix_probabilities)}: "
            "give the prefix probabilities of deeper levels"
        )
    emitted = expected_emitted_from_prefixes(prefix_probabilities[:draft_depth])
    return Forecast(draft_depth, emitted, cost.time(draft_depth))


def best_depth(
    prefix_probabilities: Sequence[Number], cost: CycleCost, depths: Iterable[int] | None = None
) -> Forecast:
    """The depth of the largest S, by trying all `depths`; ties go to the smaller.

    `depths` is by default 0 .. the number of probabilities: 0, plain decoding, wins where no draft pays.
    """
    tried = range(len(prefix_probabilities) + 1) if depths is None else sorted(set(depths))
    if not tried:
        raise ValueError("depths is empty, must hold at least one: give range(17) for 0..16")
    return max((forecast(prefix_probabilities, cost, depth) for depth in tried), key=lambda row: row.speedup)


def worth_one_more(next_probability: Number, extra_time: Number, rate: Number) -> bool:
    """The marginal rule: draft one more token iff what it is expected to add is worth more than its time.

    At the cycle's own rate, E / time so far, this is exactly "S would rise": a quotient of sums rises iff
    what is added exceeds it. Where cycles differ and each chooses its own depth, that rate is the wrong
    price. The run's throughput is sum of E / sum of time, and its largest value is the rate at which the best
    choices come to sum of (E - rate * time) = 0 (Dinkelbach, Management Science 13, 1967): use that one.

    Args:
        next_probability: P(it and all before it are accepted), which is what it adds to E.
        extra_time: what it adds to the cycle's time, verification included; can be negative.
        rate: tokens that a unit of time is worth, >= 0.
    """
    if not 0 <= next_probability <= 1:
        raise ValueError(f"next_probability is {next_probability}, must be in 0..1")
    if not math.isfinite(extra_time):
        raise ValueError(f"extra_time is {extra_time}, must be a finite number of plain target steps")
    if not (math.isfinite(rate) and rate >= 0):
        raise ValueError(f"rate is {rate}, must be a finite number >= 0 of tokens per plain target step")
    return next_probability > rate * extra_time


def marginal_depth(prefix_probabilities: Sequence[Number], cost: CycleCost, start: int = 0) -> Forecast:
    """The first depth from `start` on at which the marginal rule, at the cycle's own rate, says stop.

    That is the first depth that the next does not beat. It is the best of all from `start` on iff no later
    depth is better; so it is if S, once it has failed to rise, never rises again. That holds whenever
    `cost.time` is convex from `start` on: prefix probabilities never rise and steps never get cheaper, so a
    step that does not pay is followed by none that does.

    From `start` = 0 a constant verification and overhead are convex only if they sum to 1 or less. What
    exceeds 1 falls on the first token, and the rule can stop before it though more would pay; start at 1
    then, and compare the result with plain decoding. A verification that jumps at some row count, or is
    dearer for few rows than for many, can defeat the rule from any start: use `best_depth`.
    """
    here = forecast(prefix_probabilities, cost, start)
    for depth in range(start + 1, len(prefix_probabilities) + 1):
        deeper = forecast(prefix_probabilities, cost, depth)
        if not worth_one_more(prefix_probabilities[depth - 1], deeper.time - here.time, here.speedup):
            break
        here = deeper
    return here


def _check_depth(draft_depth: int) -> None:
    if type(draft_depth) is not int or draft_depth < 0:
        raise ValueError(f"draft_depth is {draft_depth!r}, must be a whole number >= 0 (0 = plain decoding)")


def _check_verification(value: Number) -> None:
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"verification cost is {value}, must be a finite number > 0, in plain target steps")


def _check_prefixes(probabilities: Sequence[Number]) -> None:
    before: Number = 1
    for depth, value in enumerate(probabilities, 1):
        if not 0 <= value <= 1:
            raise ValueError(f"prefix probability at depth {depth} is {value}, must be in 0..1")
        if value > before:
            raise ValueError(
                f"prefix probability at depth {depth} is {value} after {before}, must not rise: "
                "give P(the first i are all accepted), not the rate at depth i"
            )
        before = value


class _OneLineParser(argparse.ArgumentParser):
    """argparse prints its usage above a mistake; here a mistake is one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"error: {message}\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the scan; 2 and one line on standard error for a user's mistake."""
    parser = _OneLineParser(
        prog="python -m decoding.cost_model",
        description="The best draft depth by acceptance rate and draft cost, tokens a cycle, speed-up.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--alpha", type=float, nargs="+", default=[0.3, 0.7, 0.9], help="acceptance rates, 0..1"
    )
    parser.add_argument(
        "--draft-cost", type=float, nargs="+", default=[0.05, 0.2], help="of one token, in plain target steps"
    )
    parser.add_argument("--verification", type=float, default=1.0, help="cost of a verification, same unit")
    parser.add_argument("--overhead", type=float, default=0.0, help="further cost of a cycle, same unit")
    parser.add_argument("--max-depth", type=int, default=16, help="draft depths tried: 1 up to this")
    options = parser.parse_args(arguments)
    try:
        lines = _scan(options)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    try:
        print("\n".join(lines), flush=True)
    except OSError as error:
        # The reader went away, or the disk is full; a second failure at exit would print a traceback.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        print(f"error: cannot print: {error.strerror}", file=sys.stderr)
        return 1
    return 0


def _scan(options: argparse.Namespace) -> list[str]:
    if not 1 <= options.max_depth <= MAX_DRAFT_DEPTH:
        raise ValueError(f"--max-depth is {options.max_depth}, must be in 1..{MAX_DRAFT_DEPTH}")
    lines = [
        f"best draft depth of 1..{options.max_depth}; costs in plain target steps: "
        f"verification {options.verification:g}, overhead {options.overhead:g}",
        "alpha  draft cost  best depth          E  speed-up  plain wins",
    ]
    for alpha in options.alpha:
        prefixes = constant_prefixes(alpha, options.max_depth)
        for draft in options.draft_cost:
            cost = CycleCost(draft, options.verification, options.overhead)
            best = best_depth(prefixes, cost, range(1, options.max_depth + 1))
            plain = "yes" if best_depth(prefixes, cost).draft_depth == 0 else "no"
            lines.append(
                f"{alpha:5g}  {draft:10g}  {best.draft_depth:10}  {best.emitted:9.6f}"
                f"  {best.speedup:8.3f}  {plain:>10}"
            )
    return lines


if __name__ == "__main__":
    sys.exit(main())
