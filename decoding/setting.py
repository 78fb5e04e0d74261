"""A constant setting, of every drafter: what a policy is compared with, and falls back to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from decoding.controller import MAX_DRAFT_DEPTH, MAX_VERIFICATION_SIZE, DraftView, QuestionKind, RootChoice
from decoding.decisions import PLAIN_ACTION, DecisionController, Decisions


@dataclass(frozen=True, slots=True)
class Setting:
    """What is drafted, how deep, how much of it is verified. PLAIN has depth and size 0, a lookup depth 0.
    `composite`: the lookup where there is a match, else the head; then `choice` is ALL."""

    choice: RootChoice
    draft_depth: int
    verification_size: int
    composite: bool = False

    def __post_init__(self) -> None:
        for name, most in (("draft_depth", MAX_DRAFT_DEPTH), ("verification_size", MAX_VERIFICATION_SIZE)):
            value = getattr(self, name)
            if type(value) is not int or not 0 <= value <= most:
                raise ValueError(f"a setting's {name} is {value!r}, must be a whole number in 0..{most}")

    def __str__(self) -> str:
        if self.choice == RootChoice.PLAIN:
            return "plain"
        name = "composite" if self.composite else self.choice.name.lower()
        depth = f"{self.draft_depth}x" if self.draft_depth else ""
        return f"{name} {depth}{self.verification_size}"

    def to_json(self) -> dict[str, Any]:
        """The choice by name."""
        return {
            "choice": self.choice.name.lower(),
            "draft_depth": self.draft_depth,
            "verification_size": self.verification_size,
            "composite": self.composite,
        }

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> Setting:
        """The inverse; KeyError or TypeError if `raw` is something else."""
        return cls(**raw | {"choice": RootChoice[str(raw["choice"]).upper()]})


class SettingDecider:
    """Follows a setting as far as it is allowed: a lookup without a match is a plain step, the head alone
    without one is the draft of all, and a size above the draft's is all of it."""

    def __init__(self, setting: Setting, decisions: Decisions) -> None:
        self.setting, self.decisions = setting, decisions

    def decide(self, kind: QuestionKind, view: DraftView, allowed: Sequence[bool]) -> int:
        decisions, setting = self.decisions, self.setting
        if kind == "draft":
            return self._root(view, allowed)
        if view.tree.depth < setting.draft_depth and allowed[decisions.continue_action]:
            return decisions.continue_action
        first = decisions.continue_action + 1
        wanted = decisions.verify_action(setting.verification_size)
        return next((action for action in range(wanted, first, -1) if allowed[action]), first)

    def _root(self, view: DraftView, allowed: Sequence[bool]) -> int:
        matched = view.lookup is not None and view.lookup.match_length > 0
        choice = self.setting.choice
        wanted = [RootChoice.LOOKUP] if self.setting.composite and matched else [choice]
        wanted += [RootChoice.ALL] if choice == RootChoice.HEAD else []
        for one in wanted:
            if one in self.decisions.choices and allowed[self.decisions.draft_action(one)]:
                return self.decisions.draft_action(one)
        return PLAIN_ACTION


def setting_controller(setting: Setting, decisions: Decisions) -> DecisionController:
    """A controller that follows it."""
    return DecisionController(decisions, SettingDecider(setting, decisions))
