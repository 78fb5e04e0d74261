"""Texts replayed without a model: what every action accepts at every position, from a trace, and what it
costs, from a profile.

Under the `coupled` rule the text is the same whatever is drafted: a schedule of actions is a walk over its
positions, where an action at position p costs its seconds and goes on at p + emitted.

Legend: P positions of a text, A actions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from decoding.controller import RootChoice
from decoding.profile import CostProfile
from decoding.trace_file import TracedText
from decoding.traces import followed
from decoding.tree import DraftTree


@dataclass(frozen=True, slots=True)
class Action:
    """What a cycle does. PLAIN has depth and size 0, a lookup alone depth 0: it is joined, not drafted."""

    choice: RootChoice
    draft_depth: int
    verification_size: int

    def __post_init__(self) -> None:
        drafts = self.choice != RootChoice.PLAIN
        levels = self.choice in (RootChoice.ALL, RootChoice.HEAD)
        if (self.verification_size > 0) != drafts or (self.draft_depth > 0) != levels:
            raise ValueError(
                f"{self}: a plain step has depth and size 0, a lookup alone depth 0, all others at least 1"
            )

    def __str__(self) -> str:
        if self.choice == RootChoice.PLAIN:
            return "plain"
        name = "" if self.choice == RootChoice.ALL else f"{self.choice.name.lower()} "
        depth = f"{self.draft_depth}x" if self.draft_depth else ""
        return f"{name}{depth}{self.verification_size}"


PLAIN = Action(RootChoice.PLAIN, 0, 0)


def action_grid(
    choices: Sequence[RootChoice], draft_depths: Sequence[int], sizes: Sequence[int]
) -> tuple[Action, ...]:
    """The plain step, then every choice with every depth and size that it has."""
    actions = [PLAIN]
    for choice in choices:
        depths = [0] if choice == RootChoice.LOOKUP else draft_depths
        actions += [Action(choice, depth, size) for depth in depths for size in sizes]
    return tuple(actions)


@dataclass(frozen=True, slots=True)
class TextTable:
    """A text of P tokens under A actions.

    Attributes:
        question_id, category, language: of the text.
        actions: A.
        emitted_PA: int64, tokens that the action commits there, >= 1.
        depth_PA: int64, levels that are drafted, or joined by a lookup alone.
        size_PA: int64, nodes that are verified.
        lookup_PA: bool, whether the lookup drafts alone: the action's choice, or a composite drafter's own.
        context_P: int64, committed tokens.
    """

    question_id: str
    category: str | None
    language: str | None
    actions: tuple[Action, ...]
    emitted_PA: np.ndarray
    depth_PA: np.ndarray
    size_PA: np.ndarray
    lookup_PA: np.ndarray
    context_P: np.ndarray

    @property
    def tokens(self) -> int:
        return len(self.context_P)


def text_table(
    text: TracedText, actions: Sequence[Action], max_new_tokens: int, composite: bool = False
) -> TextTable:
    """What each action does at each position of a traced text.

    Args:
        max_new_tokens: that the text was decoded with: near that limit drafts are shorter.
        composite: a match at the root means that the lookup drafts alone.

    Raises:
        ValueError: the trace lacks a choice or a depth that an action needs.
    """
    by_place = text.by_place()
    count = len(by_place)
    emitted_PA, depth_PA, size_PA = (np.zeros((count, len(actions)), dtype=np.int64) for _ in range(3))
    lookup_PA = np.zeros((count, len(actions)), dtype=bool)
    emitted_PA[:] = 1
    for place, drafts in enumerate(by_place):
        limit = max_new_tokens - place - 1
        columns: dict[tuple[RootChoice, int], list[int]] = {}
        for column, action in enumerate(actions):
            columns.setdefault((action.choice, action.draft_depth), []).append(column)
        for (choice, depth), those in columns.items():
            if choice == RootChoice.PLAIN or limit <= 0:
                continue
            here = drafts.get(choice)
            if here is None:
                raise ValueError(f"the trace of question {text.question_id!r} has no {choice.name} drafts")
            tree = here.tree_at(depth, limit)
            ranks = path_ranks(tree, here.following)
            sizes = np.minimum([actions[column].verification_size for column in those], tree.size)
            accepted = np.searchsorted(ranks, sizes, side="right")
            emitted_PA[place, those] = np.minimum(accepted + 1, count - place)
            size_PA[place, those] = sizes
            alone = choice == RootChoice.LOOKUP
            depth_PA[place, those] = tree.height if alone else tree.depth
            matched = here.lookup is not None and here.lookup.match_length > 0
            lookup_PA[place, those] = alone or (composite and matched)
    return TextTable(
        text.question_id,
        text.category,
        text.language,
        tuple(actions),
        emitted_PA,
        depth_PA,
        size_PA,
        lookup_PA,
        np.array([next(iter(drafts.values())).context_length for drafts in by_place]),
    )


def path_ranks(tree: DraftTree, following: Sequence[int]) -> np.ndarray:
    """Of the nodes that the text followed, the smallest size that holds each; ascending, since a parent ranks
    before its children."""
    rank_of = {node: rank for rank, node in enumerate(tree.ranked(), start=1)}
    return np.array([rank_of[node] for node in followed(tree, following)], dtype=np.int64)


def seconds_of_actions(table: TextTable, profile: CostProfile, emitted_before: int = 1) -> np.ndarray:
    """(P, A) seconds of each action at each position; `emitted_before`: see `CostProfile.level_seconds`.

    ValueError if the profile was not measured for what the actions do.
    """
    context_PA = np.broadcast_to(table.context_P[:, None], table.emitted_PA.shape)
    seconds_PA = np.zeros(table.emitted_PA.shape)
    questions_PA = np.where(table.depth_PA > 0, table.depth_PA + 2, 1)
    for alone, those_PA in ((False, ~table.lookup_PA), (True, table.lookup_PA)):
        if not those_PA.any():
            continue
        seconds_PA[those_PA] = profile.cycle_seconds(
            table.depth_PA[those_PA],
            table.size_PA[those_PA],
            context_PA[those_PA],
            emitted_before,
            table.emitted_PA[those_PA],
            profile.source(alone),
            questions_PA[those_PA],
        )
    return seconds_PA


def constant_seconds(table: TextTable, seconds_PA: np.ndarray) -> np.ndarray:
    """(A) seconds of the whole text with the same action in every cycle."""
    total_A = np.zeros(seconds_PA.shape[1])
    place_A = np.zeros(seconds_PA.shape[1], dtype=np.int64)
    every_A = np.arange(seconds_PA.shape[1])
    while (open_A := place_A < table.tokens).any():
        at, those = place_A[open_A], every_A[open_A]
        total_A[open_A] += seconds_PA[at, those]
        place_A[open_A] += table.emitted_PA[at, those]
    return total_A


def shortest_seconds(table: TextTable, seconds_PA: np.ndarray) -> tuple[float, list[int]]:
    """Seconds of the best schedule of all, which knows the text: the clairvoyant bound. With it the action
    (a column) of each of its cycles.

    A shortest path, backwards: from p the best of seconds + what is left from p + emitted; of equals the
    first.
    """
    count = table.tokens
    left = np.zeros(count + 1)
    best = np.zeros(count, dtype=np.int64)
    for place in range(count - 1, -1, -1):
        totals_A = seconds_PA[place] + left[place + table.emitted_PA[place]]
        best[place] = int(totals_A.argmin())
        left[place] = totals_A[best[place]]
    schedule, place = [], 0
    while place < count:
        schedule.append(int(best[place]))
        place += int(table.emitted_PA[place, best[place]])
    return float(left[0]), schedule
