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
from dataclasses import dataclass, field
from typing import Any, Protocol

from decoding.controller import (
    EVERY_CHOICE,
    MAX_DRAFT_DEPTH,
    MAX_VERIFICATION_SIZE,
    USUAL_CHOICES,
    DraftView,
    QuestionKind,
    RootChoice,
)

PLAIN_ACTION = 0

Allowed = tuple[bool, ...]


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
    # What may be answered, made once: a decoder asks between two forwards, where each list costs.
    _roots: tuple[tuple[tuple[RootChoice, ...], tuple[Allowed, Allowed]], ...] = field(
        init=False, repr=False, compare=False
    )
    _stops: tuple[tuple[Allowed, ...], ...] = field(init=False, repr=False, compare=False)

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
        offers = (EVERY_CHOICE, USUAL_CHOICES)
        roots = tuple((one, (self._root(one, False), self._root(one, True))) for one in offers)
        object.__setattr__(self, "_roots", roots)
        nodes = range(sizes[-1] + 1)
        stops = tuple(tuple(self._after(more, most) for most in nodes) for more in (False, True))
        object.__setattr__(self, "_stops", stops)

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

    def allowed(self, kind: QuestionKind, view: DraftView) -> Allowed:
        """Which actions answer this question; at least one does.

        Without a match a lookup proposes nothing, and the head alone is the merged draft: these are left out,
        as are sizes that verify no more than a smaller one does. An only choice is always offered.
        """
        hint, largest = view.lookup, self.sizes[-1]
        matched = hint is not None and hint.match_length > 0
        if kind == "draft":
            for offered, answers in self._roots:
                if view.root_choices == offered:
                    return answers[matched]
            return self._root(view.root_choices, matched)
        nodes = len(view.tree.tokens) - 1
        if kind == "size":
            return self._stops[0][nodes if nodes < largest else largest]
        # What is left of a lookup's chain is joined when the draft is finished: how much is not known before.
        most = largest if matched or nodes > largest else nodes
        return self._stops[view.tree.depth < self.max_depth][most]

    def _root(self, offered: tuple[RootChoice, ...], matched: bool) -> Allowed:
        # The head alone is left out for the merged draft's sake: without that it is all there is.
        kept = RootChoice.ALL if RootChoice.ALL in self.choices else RootChoice.HEAD
        only = len(self.choices) == 1
        drafts = (one in offered and (matched or one == kept or only) for one in self.choices)
        return (True, *drafts, False, *(False for _ in self.sizes))

    def _after(self, more: bool, most: int) -> Allowed:
        """Where at most `most` nodes may be verified."""
        verify = (below < most for below in (0, *self.sizes[:-1]))
        return (False, *(False for _ in self.choices), more, *verify)

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
        # By action; looked up, as between two forwards every property costs.
        self._choices = (RootChoice.PLAIN, *decisions.choices)
        self._continue, self._max_depth = decisions.continue_action, decisions.max_depth
        self._sizes = (*(0 for _ in range(self._continue + 1)), *decisions.sizes)

    def wants_draft(self, view: DraftView) -> RootChoice:
        self._size = None
        self.asked += 1
        return self._choices[self._decider.decide("draft", view, self.decisions.allowed("draft", view))]

    def wants_level(self, view: DraftView) -> bool:
        if view.tree.depth >= self._max_depth:
            return False
        self.asked += 1
        action = self._decider.decide("level", view, self.decisions.allowed("level", view))
        if action == self._continue:
            return True
        self._size = self._sizes[action]
        return False

    def verification_size(self, view: DraftView) -> int:
        if self._size is not None:
            return self._size
        self.asked += 1
        return self._sizes[self._decider.decide("size", view, self.decisions.allowed("size", view))]
