"""Verification: which drafted tokens the text keeps, and the token that closes the cycle.

`coupled`: the target's token at a position is a function of (seed, prompt, position, target distribution),
drawn as plain decoding draws it. A drafted node is accepted if and only if it is that token, so the text
equals plain decoding's (Daliri, Musco, Suresh, arXiv 2408.07978).

`rejection`: a drafted token is kept with probability min(1, target/draft), else replaced by one from what the
draft lacks, so the law equals the target's (Leviathan, Kalman, Matias, ICML 2023, arXiv 2211.17192, section
2.3).

Legend: V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from decoding.tree import Selection

# Called once with each emitted token, in order: does the text end with it?
Ends = Callable[[int], bool]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What verification decided.

    Attributes:
        emitted: tokens to commit: the accepted path and the closing token, cut after one that ends the text.
        rows: the rows whose cache entries stay: the root and the path up to the last emitted token but one.
        accepted_by_depth: see `CycleRecord`.
        finished: a token that ends the text was emitted.
    """

    emitted: list[int]
    rows: list[int]
    accepted_by_depth: tuple[bool, ...]
    finished: bool


def accept_coupled(selection: Selection, choose: Callable[[int, int], int], ends: Ends) -> Verdict:
    """Walk from the root while the target's token is a verified child.

    Args:
        selection: the verified rows.
        choose: `choose(row, depth)` = the target's token after that row; asked only for rows on the path, in
            order.
        ends: see `Ends`.
    """
    children: dict[int, dict[int, int]] = {}
    for row, parent in enumerate(selection.parents):
        if row:
            # Of siblings with one token the first, which ranks highest, stands for all.
            children.setdefault(parent, {}).setdefault(selection.tokens[row], row)
    row, depth = 0, 0
    emitted: list[int] = []
    rows: list[int] = []
    accepted: list[bool] = []
    while True:
        token = choose(row, depth)
        emitted.append(token)
        rows.append(row)
        finished = ends(token)
        below = children.get(row)
        if below is None:
            break
        accepted.append(token in below)
        if token not in below or finished:
            break
        row, depth = below[token], depth + 1
    return Verdict(emitted, rows, tuple(accepted), finished)


@dataclass(frozen=True, slots=True)
class Correction:
    """How `rejection` splits the target's law between the draft and the residual: target = m + Z r.

    Attributes:
        accepted_V: m, the mass that arrives as an accepted draft: min(target, draft).
        rejection: Z, the probability that the drafted token is rejected: 1 - sum of m.
        residual_V: r, the law of the correction token: the positive part of target - draft over Z; None where
            Z = 0, since nothing is ever rejected then.
    """

    accepted_V: Any
    rejection: Any
    residual_V: Any | None


def split_target(target_V: Any, draft_V: Any) -> Correction:
    """m, Z and r of two distributions: tensors, or arrays of any numbers, fractions among them."""
    excess_V = target_V - draft_V
    lacking_V = excess_V * (excess_V > 0)
    rejection = lacking_V.sum()
    return Correction(target_V - lacking_V, rejection, lacking_V / rejection if rejection > 0 else None)


class Draws(Protocol):
    """The randomness of the `rejection` rule: every draw is independent of all that came before."""

    def token(self, probs_V: Any) -> int:
        """A token from this distribution."""
        ...

    def keeps(self, target: Any, draft: Any) -> bool:
        """True with probability min(1, target / draft)."""
        ...


def accept_rejection(
    drafted: Sequence[int],
    draft_probs: Sequence[Any],
    target_probs: Callable[[int], Any],
    draws: Draws,
    ends: Ends,
) -> Verdict:
    """Keep drafted tokens while the draws accept them; close with a correction or a bonus token.

    Args:
        drafted: the chain, every token drawn from its entry of `draft_probs`; all of it is verified.
        draft_probs: a distribution (V) for each drafted token.
        target_probs: `target_probs(row)` = the target's distribution (V) after that row, row 0 being the
            root; asked only for rows whose tokens before were all accepted, in order.
        draws, ends: see there.
    """
    emitted: list[int] = []
    accepted: list[bool] = []
    for row, (token, draft_V) in enumerate(zip(drafted, draft_probs, strict=True)):
        target_V = target_probs(row)
        accepted.append(draws.keeps(target_V[token], draft_V[token]))
        if not accepted[-1]:
            token = draws.token(_after_rejection(target_V, draft_V))
        emitted.append(token)
        finished = ends(token)
        if finished or not accepted[-1]:
            return Verdict(emitted, list(range(row + 1)), tuple(accepted), finished)
    emitted.append(draws.token(target_probs(len(drafted))))
    return Verdict(emitted, list(range(len(emitted))), tuple(accepted), ends(emitted[-1]))


def _after_rejection(target_V: Any, draft_V: Any) -> Any:
    """The residual. Rounding may reject, with probability 1e-16, where nothing is lacking: then the
    target."""
    residual_V = split_target(target_V, draft_V).residual_V
    return target_V if residual_V is None else residual_V
