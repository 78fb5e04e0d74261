"""A text token by token: how deep each cycle drafted, and what of it came into the text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from evaluation.schema_parts import StripCycle, StripText


@dataclass(frozen=True, slots=True)
class Cycle:
    """`lead`: blanks before the first word, which stand before the bar so that lines break there. `accepted`:
    drafted text that the target kept; `closing`: the token of its own; `shade` from 0 to 1."""

    draft_depth: int
    shade: float
    lead: str
    accepted: str
    closing: str
    said: str


@dataclass(frozen=True, slots=True)
class Strip:
    """A text, and what its cycles come to."""

    title: str
    summary: str
    cycles: tuple[Cycle, ...]


def strips(texts: Sequence[StripText]) -> list[Strip]:
    """All share one scale of depth."""
    deepest = max((cycle.draft_depth for text in texts for cycle in text.cycles), default=0) or 1
    return [
        Strip(
            title=text.question_id + (f" ({text.category})" if text.category else ""),
            summary=_summary(text.cycles),
            cycles=tuple(_cycle(cycle, deepest) for cycle in text.cycles),
        )
        for text in texts
    ]


def depths(texts: Sequence[StripText]) -> list[int]:
    """From 0 to the deepest: the legend."""
    return list(range(1 + max((cycle.draft_depth for text in texts for cycle in text.cycles), default=0)))


def _cycle(cycle: StripCycle, deepest: int) -> Cycle:
    *accepted, closing = cycle.tokens or [""]
    did = (
        f"drafted {cycle.draft_depth} {'level' if cycle.draft_depth == 1 else 'levels'}, "
        f"verified {cycle.verification_size}"
        if cycle.draft_depth or cycle.verification_size
        else "plain step"
    )
    kept = "".join(accepted)
    text = kept or closing
    lead = text[: len(text) - len(text.lstrip(" "))] if text.strip(" ") else ""
    return Cycle(
        draft_depth=cycle.draft_depth,
        shade=round(cycle.draft_depth / deepest, 3),
        lead=lead,
        accepted=_visible(kept.removeprefix(lead)),
        closing=_visible(closing if kept else closing.removeprefix(lead)),
        said=f"{did}, accepted {len(accepted)}, committed {len(cycle.tokens)}",
    )


def _summary(cycles: Sequence[StripCycle]) -> str:
    tokens = sum(len(cycle.tokens) for cycle in cycles)
    if not tokens:
        return "no token"
    plain = sum(not (cycle.draft_depth or cycle.verification_size) for cycle in cycles)
    mean = sum(cycle.draft_depth for cycle in cycles) / len(cycles)
    return (
        f"{tokens} tokens in {len(cycles)} cycles (tau {tokens / len(cycles):.2f}), "
        f"{mean:.1f} levels drafted in the mean, {plain} plain {'step' if plain == 1 else 'steps'}"
    )


def _visible(text: str) -> str:
    """A line's end is a token too: it must be seen."""
    return text.replace("\n", "↵\n")
