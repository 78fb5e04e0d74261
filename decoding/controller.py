"""Controllers answer three questions in every cycle: draft at all, one level more, verify how many nodes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np

from decoding.records import CycleRecord
from decoding.tree import DraftTree

HISTORY = 4


class RootChoice(IntEnum):
    """What a cycle drafts with. Only a drafter that merges a lookup with a head offers the last two; for the
    others ALL is a draft."""

    PLAIN = 0
    ALL = 1
    LOOKUP = 2
    HEAD = 3


USUAL_CHOICES = (RootChoice.PLAIN, RootChoice.ALL)
EVERY_CHOICE = tuple(RootChoice)


@dataclass(frozen=True, slots=True)
class LookupHint:
    """What a lookup in the text itself says at the root.

    Attributes:
        match_length: tokens of the longest match of the text's ending; 0 = none.
        share: of the matches' weight, how much is behind the token that they propose; 0 without a match.
        agrees: whether a head's best token is that one; None before a level was drafted, or without a head.
    """

    match_length: int = 0
    share: float = 0.0
    agrees: bool | None = None


@dataclass(slots=True)
class DraftView:
    """What is known when a question is asked. A controller reads it and changes nothing.

    Attributes:
        tree: drafted so far; its depth is 0 before any draft work.
        depth_limit: the depth that tokens left and context allow in this cycle.
        context_length: committed tokens, the prompt included.
        tokens_left: tokens that the request may still emit.
        history: the request's last cycles, oldest first, at most `HISTORY`.
        next_probs: under the `rejection` rule, while a question about a draft is open: a function that
            returns the draft distribution, float64 (vocabulary), of the token that would be drawn next, or
            None if there is nothing to propose. That token itself must not be known: it would bias the text.
            None under `coupled`, where whole levels are drafted and anything may be looked at.
        root_choices: what may be answered to `draft`.
        lookup: None for a drafter that does not look up.
        temperature: of the request's law.
    """

    tree: DraftTree
    depth_limit: int
    context_length: int
    tokens_left: int
    history: Sequence[CycleRecord] = field(default_factory=lambda: deque(maxlen=HISTORY))
    next_probs: Callable[[], Any | None] | None = None
    root_choices: tuple[RootChoice, ...] = USUAL_CHOICES
    lookup: LookupHint | None = None
    temperature: float = 0.0


QuestionKind = Literal["draft", "level", "size"]


class Question(NamedTuple):
    """`draft`: begin a draft (1), a plain step (0), or another `RootChoice`? `level`: one more level
    (1) or stop (0)? `size`: how many of the drafted nodes to verify (0 = none: a plain step)? Not asked under
    `rejection`."""

    kind: QuestionKind
    view: DraftView


class Asked(NamedTuple):
    """A cycle's questions, made at once: one by one each would bring what makes it out of memory again."""

    draft: Question
    level: Question
    size: Question

    @classmethod
    def of(cls, view: DraftView) -> Asked:
        """About a view that stays the cycle's."""
        return cls(Question("draft", view), Question("level", view), Question("size", view))


class Controller(Protocol):
    """Decides draft depth and verification size, cycle by cycle. Cannot change the text."""

    def wants_draft(self, view: DraftView) -> bool | RootChoice:
        """Before any draft work: begin a draft, or take a plain step? Of `view.root_choices`."""
        ...

    def wants_level(self, view: DraftView) -> bool:
        """After a level: draft one more?"""
        ...

    def verification_size(self, view: DraftView) -> int:
        """How many of the best drafted nodes to verify; held to 0..tree size by the session."""
        ...


_WHOLE = (int, np.integer, np.bool_)


def answer(controller: Controller, question: Question) -> int:
    """Put a question to a controller; ValueError if its answer is no truth value or whole number."""
    # Between two forwards code and names come out of memory: the usual way is short, and the rest elsewhere.
    kind, view = question
    said: Any
    if kind == "level":
        said = controller.wants_level(view)
        if said is True or said is False:
            return said
    elif kind == "size":
        said = controller.verification_size(view)
    else:
        said = controller.wants_draft(view)
        if type(said) is RootChoice and said in view.root_choices:
            return said
    if not isinstance(said, _WHOLE) or (kind == "draft" and said not in view.root_choices):
        raise _refused(controller, question, said)
    return int(said)


def _refused(controller: Controller, question: Question, said: Any) -> ValueError:
    begins = f"{type(controller).__name__} answered {said!r} to {question.kind!r}"
    if not isinstance(said, _WHOLE):
        wanted = {"size": "a whole number", "draft": "True, False or a RootChoice"}
        return ValueError(f"{begins}, must be {wanted.get(question.kind, 'True or False')}")
    offered = ", ".join(f"{int(choice)} ({choice.name})" for choice in question.view.root_choices)
    return ValueError(f"{begins}, this drafter offers {offered}")


class PlainController:
    """Never drafts: plain decoding."""

    def wants_draft(self, view: DraftView) -> bool:
        return False

    def wants_level(self, view: DraftView) -> bool:
        return False

    def verification_size(self, view: DraftView) -> int:
        return 0


class FixedController:
    """The same depth and size in every cycle.

    Args:
        draft_depth: levels to draft, >= 0; 0 = plain decoding.
        verification_size: nodes to verify, >= 1.
    """

    def __init__(self, draft_depth: int, verification_size: int) -> None:
        for name, value in (("draft_depth", draft_depth), ("verification_size", verification_size)):
            if type(value) is not int:
                raise ValueError(f"{name} is {value!r}, must be a whole number")
        if not 0 <= draft_depth <= MAX_DRAFT_DEPTH:
            raise ValueError(f"draft_depth is {draft_depth}, must be in 0..{MAX_DRAFT_DEPTH}")
        if not 1 <= verification_size <= MAX_VERIFICATION_SIZE:
            raise ValueError(
                f"verification_size is {verification_size}, must be in 1..{MAX_VERIFICATION_SIZE}"
            )
        self.draft_depth = draft_depth
        self.size = verification_size

    def wants_draft(self, view: DraftView) -> bool:
        return self.draft_depth > 0

    def wants_level(self, view: DraftView) -> bool:
        return view.tree.depth < self.draft_depth

    def verification_size(self, view: DraftView) -> int:
        return self.size


# Far beyond what pays anywhere; they keep a typing mistake from allocating a tree of millions of nodes.
MAX_DRAFT_DEPTH = 64
MAX_VERIFICATION_SIZE = 1024
