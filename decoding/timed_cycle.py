"""One real cycle with the seconds of each draft level, and with what its costs depend on.

Seconds are those of the cycle's own record; only a draft's are split, among its levels, by the times between
the session's questions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from decoding.controller import Controller, Question, answer
from decoding.profile import Source
from decoding.records import CycleRecord
from decoding.session import Session
from decoding.timing import now


@dataclass(frozen=True, slots=True)
class TimedCycle:
    """A cycle with what its costs depend on.

    Attributes:
        emitted_before: tokens committed since the head last drafted.
        source: what drafted; None = a plain step.
        start: seconds of draft work before the first question.
        levels: seconds of each level; these and `start` sum to the record's `draft`.
        questions: that the controller was asked.
        held_out: not for the fit.
        disturbed: other processes took a part of the cores.
    """

    record: CycleRecord
    emitted_before: int
    source: Source | None
    start: float
    levels: tuple[float, ...]
    questions: int
    held_out: bool = False
    disturbed: bool = False

    @property
    def rows(self) -> int:
        return self.record.verification_size + 1


def timed_cycle(
    session: Session,
    controller: Controller,
    device: torch.device,
    source_of: Callable[[Question, int], Source],
    emitted_before: int = 1,
    held_out: bool = False,
) -> TimedCycle:
    """Drive one cycle; the draft's seconds are shared out in proportion to the times between questions.

    `source_of`: what drafts, by the first question and its answer.
    """
    cycle = session.cycle()
    asked: Question | None = None
    source: Source | None = None
    reply: int | None = None
    spans: list[float] = []  # of draft work: before the first question, then each level's, then the ending
    questions = 0
    while True:
        began = now(device)
        try:
            question = cycle.send(reply) if reply is not None else next(cycle)
        except StopIteration as done:
            record: CycleRecord = done.value
            break
        spans.append(now(device) - began)
        questions += 1
        reply = answer(controller, question)
        if asked is None:
            source = source_of(question, reply)
        asked = question
    start, *levels = spans or [1.0]
    # A merged drafter's lookup alone drafts no level: it joins some.
    depth = record.draft_depth or (asked.view.tree.height if asked is not None else 0)
    if not depth:
        return TimedCycle(record, emitted_before, None, record.seconds.draft, (), questions, held_out)
    if record.draft_depth:
        levels = [*levels[: depth - 1], sum(levels[depth - 1 :])]  # the ending is the last level's
    else:
        levels = [sum(levels) / depth] * depth
    scale = record.seconds.draft / ((start + sum(levels)) or 1.0)
    shared = tuple(seconds * scale for seconds in levels)
    return TimedCycle(record, emitted_before, source, start * scale, shared, questions, held_out)
