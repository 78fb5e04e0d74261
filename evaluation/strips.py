"""A few texts as the learned policy decoded them, cycle by cycle and token by token."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from decoding.records import CycleRecord
from evaluation.block_store import Kept
from evaluation.schema_parts import StripCycle, StripText

TEXTS = 4


def strips(
    arm: str, blocks: Mapping[int, Kept], decode: Callable[[Sequence[int]], str], most: int = TEXTS
) -> list[StripText]:
    """Texts of an arm, each of another category as far as there are, the first decoded first."""
    found: dict[tuple[str, float], StripText] = {}
    seen: set[str | None] = set()
    decoded = [
        (observation, records)
        for _, block in sorted(blocks.items())
        for observation, records in zip(block.observations, block.records, strict=True)
        if observation.arm == arm
    ]
    for other in (False, True):  # first one of each category, then whatever is left
        for observation, records in decoded:
            key = observation.question_id, observation.temperature
            if len(found) < most and key not in found and (other or observation.category not in seen):
                seen.add(observation.category)
                found[key] = StripText(
                    question_id=observation.question_id,
                    category=observation.category,
                    cycles=cycles_of(records, decode),
                )
    return list(found.values())


def cycles_of(records: Sequence[CycleRecord], decode: Callable[[Sequence[int]], str]) -> list[StripCycle]:
    """The cycles with the piece of text that each token adds: a character of several tokens comes with its
    last."""
    ids: list[int] = []
    shown = 0
    cycles = []
    for record in records:
        pieces = []
        for token in record.token_ids:
            ids.append(token)
            text = decode(ids).rstrip("\N{REPLACEMENT CHARACTER}")
            pieces.append(text[shown:])
            shown = max(shown, len(text))
        cycles.append(
            StripCycle(
                draft_depth=record.draft_depth, verification_size=record.verification_size, tokens=pieces
            )
        )
    return cycles
