"""The `coupled` rule: follow the target's own tokens through the verified tree, and close.

The target's token at a position is a function of (seed, prompt, position, target distribution), drawn as
plain decoding draws it. A drafted node is accepted if and only if it is that token, so the text equals plain
decoding's (Daliri, Musco, Suresh, arXiv 2408.07978).
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from decoding.tree import Selection


@dataclass(frozen=True, slots=True)
class Verdict:
    """What verification decided.

    Attributes:
        emitted: tokens to commit: the accepted path and the closing token, cut after an end-of-text.
        rows: the rows whose cache entries stay: the root and the path up to the last emitted token but one.
        accepted_by_depth: see `CycleRecord`.
        finished: an end-of-text token was emitted.
    """

    emitted: list[int]
    rows: list[int]
    accepted_by_depth: tuple[bool, ...]
    finished: bool


def accept_coupled(
    selection: Selection, choose: Callable[[int, int], int], end_ids: Collection[int]
) -> Verdict:
    """Walk from the root while the target's token is a verified child.

    Args:
        selection: the verified rows.
        choose: `choose(row, depth)` = the target's token after that row; asked only for rows on the path.
        end_ids: ids that end the text.
    """
    children: dict[int, dict[int, int]] = {}
    for row, parent in enumerate(selection.parents.tolist()):
        if row:
            # Of siblings with one token the first, which ranks highest, stands for all.
            children.setdefault(parent, {}).setdefault(selection.tokens[row], row)
    row, depth = 0, 0
    emitted: list[int] = []
    rows: list[int] = []
    accepted: list[bool] = []
    finished = False
    while True:
        token = choose(row, depth)
        if not finished:
            emitted.append(token)
            rows.append(row)
            finished = token in end_ids
        below = children.get(row)
        if below is None:
            break
        accepted.append(token in below)
        if token not in below or finished:
            break
        row, depth = below[token], depth + 1
    return Verdict(emitted, rows, tuple(accepted), finished)
