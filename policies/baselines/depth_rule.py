"""What all rules of other papers share here: they say how deep the head drafts; the rest is constant.

Those rules were made for chains. With trees and merged drafts

- a rule decides the depth of the head, level by level; which nodes are verified is the best path scores', as
  for every arm, and how many of them is a constant, as is what the root drafts with (`Frame`);
- "all drafted tokens were accepted" means: as many as there were levels, whichever nodes they were; what a
  lookup joined below the last level counts as a level that nobody drafted;
- a lookup that drafts alone is not the rule's: such a cycle, as a plain step, teaches it nothing;
- a level cannot be looked at before it is drafted, so that what speaks against a level stops the next one.

A rule's state is one request's. The next cycle's first question brings the last cycle's record, so that what
happened in a request's last cycle is never observed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from decoding.controller import MAX_DRAFT_DEPTH, MAX_VERIFICATION_SIZE, DraftView, RootChoice
from decoding.records import CycleRecord

ROOTS = ("all", "composite", "head")


@dataclass(frozen=True, slots=True)
class Frame:
    """What a rule leaves open.

    Args:
        root: what is drafted with. `all`: whatever the drafter has. `composite`: its lookup alone on a match,
            else all. `head`: the head alone. A drafter that does not merge a lookup offers `all` alone.
        size: `verification_size`.
        max_depth: greatest draft_depth.
    """

    root: str
    size: int
    max_depth: int

    def __post_init__(self) -> None:
        if self.root not in ROOTS:
            raise ValueError(f"root is {self.root!r}, must be one of {', '.join(ROOTS)}")
        check_whole("size", self.size, 1, MAX_VERIFICATION_SIZE)
        check_whole("max_depth", self.max_depth, 1, MAX_DRAFT_DEPTH)

    def choice(self, view: DraftView) -> RootChoice:
        """What to begin a cycle with; `ALL` where the drafter does not offer what is wanted."""
        wanted = RootChoice.ALL
        if self.root == "head":
            wanted = RootChoice.HEAD
        elif self.root == "composite" and view.lookup is not None and view.lookup.match_length > 0:
            wanted = RootChoice.LOOKUP
        return wanted if wanted in view.root_choices else RootChoice.ALL


class DepthRule:
    """A controller for one request. A rule derives from it: `goes_on`, and `observe` if it learns."""

    def __init__(self, frame: Frame) -> None:
        self.frame = frame

    def observe(self, record: CycleRecord) -> None:
        """A cycle that the head drafted in has ended."""

    def goes_on(self, view: DraftView) -> bool:
        """After a level that is not the deepest: draft one more?"""
        raise NotImplementedError

    def wants_draft(self, view: DraftView) -> RootChoice:
        if view.history and view.history[-1].draft_depth:
            self.observe(view.history[-1])
        return self.frame.choice(view)

    def wants_level(self, view: DraftView) -> bool:
        return view.tree.depth < self.frame.max_depth and self.goes_on(view)

    def verification_size(self, view: DraftView) -> int:
        return self.frame.size


def accepted_levels(record: CycleRecord) -> int:
    """Of the levels that were drafted, how many the target followed."""
    return min(record.accepted, record.draft_depth)


def check_whole(name: str, value: Any, low: int, high: int) -> None:
    """ValueError unless it is a whole number in low..high."""
    if type(value) is not int or not low <= value <= high:
        raise ValueError(f"{name} is {value!r}, must be a whole number in {low}..{high}")


def check_number(name: str, value: Any, low: float, high: float) -> None:
    """ValueError unless it is a number in low..high, ends included; NaN is in no range."""
    if type(value) not in (int, float) or not low <= value <= high:
        raise ValueError(f"{name} is {value!r}, must be a number in {low:g}..{high:g}")
