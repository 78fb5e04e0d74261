"""`evaluate.py --check-text`: is every text plain decoding's, and where not, is that rounding or a fault?

A forward over several rows rounds differently from a forward over one, most of all in half precision. Where
two tokens are closer than that, texts may part: a tie. So the first token at which a text parts from plain
decoding's is examined. The logits of plain decoding there are computed once more, and the smallest error of a
logit that would let plain decoding choose the other token is compared with the error that this target really
makes, in this dtype, on this machine. More than that is a fault of the program.

Legend: V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from decoding.controller import Controller, DraftView, PlainController
from decoding.session import Session
from decoding.target import TargetModel
from evaluation.ties import ROWS, grouped_logits, half_range, measured_error, needed_error

OpenSession = Callable[[str], Session]

# Beyond so many measured errors it is a fault however much more it is.
_FARTHEST = 64.0


@dataclass(frozen=True, slots=True)
class TextArm:
    """One way to decode: sessions by question, and a controller for each."""

    name: str
    open_session: OpenSession
    controller_factory: Callable[[], Controller]


class RandomController:
    """Answers at random: depths up to `max_depth`, plain steps among them, sizes up to `max_size`."""

    def __init__(self, max_depth: int, max_size: int, rng: np.random.Generator) -> None:
        self._max_depth, self._max_size, self._rng = max_depth, max_size, rng
        self._depth = 0

    def wants_draft(self, view: DraftView) -> bool:
        self._depth = int(self._rng.integers(0, self._max_depth + 1))
        return self._depth > 0

    def wants_level(self, view: DraftView) -> bool:
        return view.tree.depth < self._depth

    def verification_size(self, view: DraftView) -> int:
        return int(self._rng.integers(0, self._max_size + 1))


@dataclass(frozen=True, slots=True)
class Divergence:
    """Where a text first parts from plain decoding's.

    Attributes:
        arm, question_id: whose text.
        position: 0-based index of the generated token.
        plain_token, other_token: ids; None where that text had ended.
        needed_error: smallest error of a logit with which plain decoding could choose the other token;
            infinite if none below 64 times the measured one does.
        measured_error: largest error of a logit that was measured, see `measured_error`.
    """

    arm: str
    question_id: str
    position: int
    plain_token: int | None
    other_token: int | None
    needed_error: float
    measured_error: float

    @property
    def kind(self) -> Literal["tie", "fault"]:
        return "tie" if self.needed_error <= self.measured_error else "fault"


@dataclass(frozen=True, slots=True)
class TextReport:
    """The divergences of every arm; arms without any have an empty list."""

    texts: int
    measured_error: float
    measured_positions: int
    divergences: dict[str, list[Divergence]]

    @property
    def ties(self) -> list[Divergence]:
        return [one for arm in self.divergences.values() for one in arm if one.kind == "tie"]

    @property
    def faults(self) -> list[Divergence]:
        return [one for arm in self.divergences.values() for one in arm if one.kind == "fault"]

    def to_json(self) -> dict[str, Any]:
        """Numbers, lists and dicts alone; an infinite error is null."""

        def plain(one: Divergence) -> dict[str, Any]:
            finite = one.needed_error if math.isfinite(one.needed_error) else None
            return {**asdict(one), "needed_error": finite, "kind": one.kind}

        return {
            "texts": self.texts,
            "measured_error": self.measured_error,
            "measured_positions": self.measured_positions,
            "divergences": {name: [plain(one) for one in arm] for name, arm in self.divergences.items()},
        }


def check_texts(
    target: TargetModel,
    plain: OpenSession,
    arms: Sequence[TextArm],
    questions: Sequence[str],
    on_progress: Callable[[int, int, str], None] | None = None,
) -> TextReport:
    """Decode every question with plain decoding and every arm, and examine where texts part.

    Args:
        target: the model behind all sessions.
        plain: opens plain decoding's session for a question, under the `coupled` rule; arms' sessions must
            have its prompt, seed and sampling.
        arms: see `TextArm`; names are unique.
        questions: at least one.
        on_progress: called with (texts done, texts in all, arm).
    """
    if not questions or not arms:
        raise ValueError(f"{len(questions)} questions and {len(arms)} arms: give at least one of each")
    sessions: dict[str, Session] = {}
    done, total = 0, len(questions) * (len(arms) + 1)

    def decode(question: str, name: str, open_session: OpenSession, controller: Controller) -> Session:
        nonlocal done
        session = open_session(question)
        for _ in session.run(controller):
            pass
        done += 1
        if on_progress is not None:
            on_progress(done, total, name)
        return session

    for question in questions:
        sessions[question] = decode(question, "plain", plain, PlainController())
    error, positions = measured_error(target, list(sessions.values()))
    divergences: dict[str, list[Divergence]] = {arm.name: [] for arm in arms}
    for question, session in sessions.items():
        for arm in arms:
            other = decode(question, arm.name, arm.open_session, arm.controller_factory())
            if other.generated != session.generated:
                found = examine(target, session, other.generated, error)
                divergences[arm.name].append(replace(found, arm=arm.name, question_id=question))
    return TextReport(len(questions), error, positions, divergences)


def examine(target: TargetModel, plain: Session, other: Sequence[int], error: float) -> Divergence:
    """The first token at which `other` parts from the text of `plain`; arm and question are left empty."""
    text = plain.generated
    position = next(
        (index for index, (a, b) in enumerate(zip(text, other, strict=False)) if a != b),
        min(len(text), len(other)),
    )
    needed = math.inf
    # Else one ended where the other went on, which no rounding explains.
    if position < min(len(text), len(other)):
        context = plain.committed[: plain.prompt_length + position]
        start, ids = plain.prompt_length - 1, [*context, 0]
        *_, logits_V = grouped_logits(target, ids, start, 1)
        needed = needed_error(logits_V, plain.chooser, position, context, other[position], _FARTHEST * error)
        if needed > error:
            # It may be a token far from the best, whose logit is rougher: then these two are measured here.
            pair = [text[position], other[position]]
            for rows in ROWS:
                *_, other_V = grouped_logits(target, ids, start, rows)
                error = max(error, half_range(other_V[pair] - logits_V[pair]))
    return Divergence(
        arm="",
        question_id="",
        position=position,
        plain_token=text[position] if position < len(text) else None,
        other_token=other[position] if position < len(other) else None,
        needed_error=needed,
        measured_error=error,
    )


def print_texts(report: TextReport, console: Console) -> None:
    """A row an arm, a line a fault, and the sentence that sums up."""
    table = Table(title=f"{report.texts} texts an arm against plain decoding")
    table.add_column("arm")
    for heading in ("equal", "ties", "faults", "largest needed error"):
        table.add_column(heading, justify="right")
    for name, found in report.divergences.items():
        faults = sum(one.kind == "fault" for one in found)
        largest = max((one.needed_error for one in found), default=None)
        table.add_row(
            escape(name),
            str(report.texts - len(found)),
            str(len(found) - faults),
            str(faults),
            "-" if largest is None else f"{largest:.2g}",
            style="red" if faults else "",
        )
    console.print(table)
    for one in report.faults:
        console.print(
            Text(
                f"FAULT: {one.arm}, question {one.question_id}, generated token {one.position}: "
                f"{one.other_token} instead of {one.plain_token}; logits would have to be off by "
                f"{one.needed_error:.2g}",
                "red",
            )
        )
    texts, ties, faults = report.texts * len(report.divergences), len(report.ties), len(report.faults)
    console.print(
        Text(
            f"Exact text: {texts - ties - faults} of {texts} texts equal plain decoding's, {ties} part at a "
            f"tie, {faults} at a fault. A logit of this target is off by up to {report.measured_error:.2g} "
            f"between forwards of 1 and of {', '.join(map(str, ROWS))} rows ({report.measured_positions} "
            "positions)."
        )
    )
