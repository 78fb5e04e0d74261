"""Repetition loops: what a small model's texts, greedy ones above all, fall into."""

from __future__ import annotations

from collections.abc import Sequence

LONGEST_PERIOD = 32


def loop_cut(tokens: Sequence[int], longest: int = LONGEST_PERIOD, least: int = 0) -> int | None:
    """How much to keep of a text that ends in a loop, None where it does not.

    A loop is the same n-gram, n up to `longest`, three or more times in a row at the very end (the last time
    perhaps in part), over at least `least` tokens in all. What is kept ends with its second occurrence.
    """
    count = len(tokens)
    for period in range(1, min(longest, count // 3) + 1):
        same = 0
        while same + period < count and tokens[count - 1 - same] == tokens[count - 1 - same - period]:
            same += 1
        run = same + period
        if run >= max(3 * period, least):
            return count - run + 2 * period
    return None
