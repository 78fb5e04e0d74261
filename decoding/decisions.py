"""A cycle's decisions as one numbered table: what to draft with, one level more, or verify so many nodes.

| action | asked | means |
|---|---|---|
| `plain` | at the root | a plain step |
| `draft all`, `draft lookup`, `draft head` | at the root | begin such a draft; those that a drafter offers |
| `continue` | after a level | one level more |
| `verify s` | after a level, and of a finished draft | stop, verify the s best nodes, or all there are |
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from decoding.controller import MAX_DRAFT_DEPTH, MAX_VERIFICATION_SIZE, DraftView, QuestionKind, RootChoice

PLAIN_ACTION = 0


@dataclass(frozen=True)
class Decisions:
    """A numbering of decisions.

    Args:
        choices: what may be drafted with, PLAIN left out, at least one.
        max_depth: greatest draft_depth, >= 1.
        sizes: `verification_size` values, strictly increasing.
    """

    choices: tuple[RootChoice, ...]
    max_depth: int
    sizes: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.choices or RootChoice.PLAIN in self.choices or len(set(self.choices)) < len(self.choices):
            raise ValueError(f"choices are {self.choices}, must be drafts, at least one, each once")
        if type(self.max_depth) is not int or not 1 <= self.max_depth <= MAX_DRAFT_DEPTH:
            raise ValueError(
                f"max_depth is {self.max_depth!r}, must be a whole number in 1..{MAX_DRAFT_DEPTH}"
            )
        sizes = self.sizes
        if not sizes or any(type(size) is not int for size in sizes) or list(sizes) != sorted(set(sizes)):
            raise ValueError(f"sizes are {sizes}, must be whole numbers, strictly increasing, at least one")
        if not 1 <= sizes[0] <= sizes[-1] <= MAX_VERIFICATION_SIZE:
            raise ValueError(f"sizes are {sizes}, must be in 1..{MAX_VERIFICATION_SIZE}")

    def __len__(self) -> int:
        return 2 + len(self.choices) + len(self.sizes)

    @property
    def names(self) -> tuple[str, ...]:
        """Of the actions, in order."""
        drafts = (f"draft {choice.name.lower()}" for choice in self.choices)
        return ("plain", *drafts, "continue", *(f"verify {size}" for size in self.sizes))

    @property
    def continue_action(self) -> int:
        return 1 + len(self.choices)

    def draft_action(self, choice: RootChoice) -> int:
        """The action that begins this draft, PLAIN included."""
        return PLAIN_ACTION if choice == RootChoice.PLAIN else 1 + self.choices.index(choice)

    def verify_action(self, size: int) -> int:
        """The action that verifies at least `size` nodes: the least such size, else the largest."""
        place = next((i for i, one in enumerate(self.sizes) if one >= size), len(self.sizes) - 1)
        return self.continue_action + 1 + place

    def size_of(self, action: int) -> int:
        """Nodes that a `verify` action asks for."""
        return self.sizes[action - self.continue_action - 1]

    def choice_of(self, action: int) -> RootChoice:
        """What a root action drafts with."""
        return RootChoice.PLAIN if action == PLAIN_ACTION else self.choices[action - 1]

    def allowed(self, kind: QuestionKind, view: DraftView) -> list[bool]:
        """Which actions answer this question; at least one does.

        Without a match a lookup proposes nothing, and the head alone is the merged draft: these are left out,
        as are sizes that verify no more than a smaller one does. An only choice is always offered.
        """
        drafts, sizes = len(self.choices), self.sizes
        if kind == "draft":
            matched = view.lookup is not None and view.lookup.match_length > 0
            # The head alone is left out for the merged draft's sake: without that it is all there is.
            kept = RootChoice.ALL if RootChoice.ALL in self.choices else RootChoice.HEAD
            offered = [
                choice in view.root_choices and (matched or choice == kept or drafts == 1)
                for choice in self.choices
            ]
            return [True, *offered, False, *[False] * len(sizes)]
        more = kind == "level" and view.tree.depth < self.max_depth
        # What is left of a lookup's chain is joined when the draft is finished: how much is not known before.
        joins = kind == "level" and view.lookup is not None and view.lookup.match_length > 0
        most = MAX_VERIFICATION_SIZE if joins else view.tree.size
        verify = [below < most for below in (0, *sizes[:-1])]
        return [False] * (1 + drafts) + [more, *verify]

    def to_json(self) -> dict[str, Any]:
        """For `policy.json` and identities of runs."""
        return {
            "choices": [choice.name.lower() for choice in self.choices],
            "max_depth": self.max_depth,
            "sizes": list(self.sizes),
        }

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> Decisions:
        """The inverse; KeyError, TypeError or ValueError if `raw` is something else."""
        choices = tuple(RootChoice[str(name).upper()] for name in raw["choices"])
        return cls(choices, raw["max_depth"], tuple(raw["sizes"]))


class Decides(Protocol):
    """Whoever takes numbered decisions."""

    def decide(self, kind: QuestionKind, view: DraftView, allowed: Sequence[bool]) -> int:
        """One of the allowed actions."""
        ...


class DecisionController:
    """A `Controller` that asks for numbered decisions: `verify s` answers two of the session's questions.

    Args:
        decisions: the table.
        decider: who decides.

    Attributes:
        asked: numbered decisions so far.
    """

    def __init__(self, decisions: Decisions, decider: Decides) -> None:
        self.decisions = decisions
        self._decider = decider
        self._size: int | None = None
        self.asked = 0

    def wants_draft(self, view: DraftView) -> RootChoice:
        self._size = None
        return self.decisions.choice_of(self._ask("draft", view))

    def wants_level(self, view: DraftView) -> bool:
        if view.tree.depth >= self.decisions.max_depth:
            return False
        action = self._ask("level", view)
        if action == self.decisions.continue_action:
            return True
        self._size = self.decisions.size_of(action)
        return False

    def verification_size(self, view: DraftView) -> int:
        if self._size is None:
            return self.decisions.size_of(self._ask("size", view))
        return self._size

    def _ask(self, kind: QuestionKind, view: DraftView) -> int:
        self.asked += 1
        return self._decider.decide(kind, view, self.decisions.allowed(kind, view))
