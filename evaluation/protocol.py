"""Decode the same requests with every arm, interleaved, and note what each one took."""

from __future__ import annotations

import hashlib
import os
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any, Literal

import numpy as np

from decoding.controller import Controller
from decoding.machine import resident_mb
from decoding.metrics import CycleSummary, summarise
from decoding.records import CycleRecord, PhaseSeconds
from decoding.replay_session import ReplaySession
from decoding.session import Session
from decoding.workload import Request
from evaluation.orders import balanced_orders

OpenSession = Callable[[Request], Session | ReplaySession]
ArmKind = Literal["plain", "fixed", "rule", "learned"]

# The first cycle after a prefill also takes in the prompt; the second has the shapes of all later ones.
WARM_UP_CYCLES = 2


@dataclass(frozen=True, slots=True)
class FixedSetting:
    """A point of the grid. `lookup_depth` is None for a drafter that does no lookup beside its own draft."""

    drafter: str
    draft_depth: int
    verification_size: int
    lookup_depth: int | None = None


@dataclass(frozen=True, slots=True)
class Arm:
    """One way to decode.

    Attributes:
        name: unique in a run.
        controller_factory: makes the controller of one request; called anew for each, nothing carries over.
        kind: what it is to the report; exactly one arm is `plain`.
        setting: where a `fixed` arm stands in the grid; None for other kinds.
        open_session: for an arm with a drafter of its own; None = the run's.
    """

    name: str
    controller_factory: Callable[[], Controller]
    kind: ArmKind
    setting: FixedSetting | None = None
    open_session: OpenSession | None = None


@dataclass(frozen=True, slots=True)
class Observation:
    """One request decoded once by one arm.

    Attributes:
        arm, question_id, group, category, language: what was decoded by whom.
        repeat: 0-based.
        block: 0-based number of (repeat, request); all arms of a block decode one after the other.
        place: 0-based place of the arm in its block.
        prefill_seconds: before the first cycle; part of no other number.
        cycles: sums over the request's cycles, seconds by phase among them.
        token_hash: SHA-256 of the generated ids: equal text, equal hash.
        load: 1-minute load average of the machine when it began.
        temperature: of the text's law.
        memory_mb: resident memory of the process at its end, or the most that its device held; None where the
            machine does not say.
    """

    arm: str
    question_id: str
    group: str
    category: str | None
    language: str | None
    repeat: int
    block: int
    place: int
    prefill_seconds: float
    cycles: CycleSummary
    token_hash: str
    load: float
    temperature: float = 0.0
    memory_mb: float | None = None

    @property
    def emitted(self) -> int:
        return self.cycles.emitted

    @property
    def phase_seconds(self) -> PhaseSeconds:
        return self.cycles.seconds

    @property
    def seconds(self) -> float:
        """Decoding alone: all cycles, features and policy included, prefill excluded."""
        return self.cycles.seconds.total


def run_arms(
    arms: Sequence[Arm],
    requests: Sequence[Request],
    open_session: OpenSession,
    repeats: int,
    rng: np.random.Generator,
    on_progress: Callable[[int, int, Observation], None] | None = None,
    raw: list[dict[str, Any]] | None = None,
    temperature: float = 0.0,
) -> list[Observation]:
    """Decode every request `repeats` times with every arm, in balanced random order within each block.

    Before anything is timed one whole request is decoded and discarded; before an arm is first timed it
    decodes `WARM_UP_CYCLES` cycles, discarded too. An arm that fails ends the run: the error names it.

    Args:
        open_session: a fresh, prefilled session; equal requests must get equal seeds, or texts differ.
        on_progress: called after every observation with (done, total, observation), outside of what is timed.
        raw: every timed cycle is appended here as one flat row, see `cycle_row`.
        temperature: that `open_session` decodes at; noted with every observation.
    """
    _check(arms, requests, repeats)
    warm_up(arms[0], requests[0], open_session, cycles=None)
    warm: set[str] = set()
    observations: list[Observation] = []
    orders = balanced_orders(len(arms), rng)
    blocks = [(repeat, request) for repeat in range(repeats) for request in requests]
    for block, (repeat, request) in enumerate(blocks):
        for place, index in enumerate(next(orders)):
            arm = arms[index]
            if arm.name not in warm:
                warm_up(arm, request, open_session, WARM_UP_CYCLES)
                warm.add(arm.name)
            where = {"repeat": repeat, "block": block, "place": place}
            observation, records = observe(arm, request, open_session, temperature, **where)
            observations.append(observation)
            if raw is not None:
                raw.extend(cycle_row(observation, number, record) for number, record in enumerate(records))
            if on_progress is not None:
                on_progress(len(observations), len(arms) * len(blocks), observation)
    return observations


def cycle_row(observation: Observation, number: int, record: CycleRecord) -> dict[str, Any]:
    """A cycle as one flat row: whose it is, what it did, its seconds by phase."""
    return {
        "arm": observation.arm,
        "question_id": observation.question_id,
        "group": observation.group,
        "category": observation.category,
        "language": observation.language,
        "temperature": observation.temperature,
        "repeat": observation.repeat,
        "block": observation.block,
        "place": observation.place,
        "cycle": number,
        "draft_depth": record.draft_depth,
        "verification_size": record.verification_size,
        "accepted": record.accepted,
        "emitted": record.emitted,
        "context_length": record.context_length,
        "accepted_by_depth": list(record.accepted_by_depth),
        "token_ids": list(record.token_ids),
        **{f"{phase}_seconds": seconds for phase, seconds in asdict(record.seconds).items()},
    }


def warm_up(arm: Arm, request: Request, open_session: OpenSession, cycles: int | None) -> None:
    """Decode so many cycles (None = to the end) and keep nothing."""
    with _named(arm, request):
        session = (arm.open_session or open_session)(request)
        for _ in islice(session.run(arm.controller_factory()), cycles):
            pass


def observe(
    arm: Arm,
    request: Request,
    open_session: OpenSession,
    temperature: float,
    *,
    repeat: int,
    block: int,
    place: int,
) -> tuple[Observation, list[CycleRecord]]:
    """Decode a request to its end."""
    load = os.getloadavg()[0]
    with _named(arm, request):
        session = (arm.open_session or open_session)(request)
        records = list(session.run(arm.controller_factory()))
    observation = Observation(
        arm=arm.name,
        question_id=request.question_id,
        group=request.group,
        category=request.category,
        language=request.language,
        repeat=repeat,
        block=block,
        place=place,
        prefill_seconds=session.prefill_seconds,
        cycles=summarise(records),
        token_hash=hashlib.sha256(array("q", session.generated).tobytes()).hexdigest(),
        load=load,
        temperature=temperature,
        memory_mb=resident_mb(),
    )
    return observation, records


@contextmanager
def _named(arm: Arm, request: Request) -> Iterator[None]:
    """Say in an error which arm failed where: in a ValueError's one line, in the notes of any other."""
    where = f"arm {arm.name!r} on question {request.question_id!r}"
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error
    except Exception as error:
        error.add_note(f"while decoding with {where}")
        raise


def _check(arms: Sequence[Arm], requests: Sequence[Request], repeats: int) -> None:
    names = [arm.name for arm in arms]
    plain = [arm.name for arm in arms if arm.kind == "plain"]
    if len(set(names)) < len(names):
        raise ValueError(f"arms need names of their own, got {', '.join(names)}")
    if len(plain) != 1:
        raise ValueError(f"exactly one arm must be plain decoding, got {len(plain)} of {len(arms)}")
    for arm in arms:
        if (arm.kind == "fixed") != (arm.setting is not None):
            raise ValueError(f"arm {arm.name!r} is {arm.kind}: a setting goes with fixed arms, and only them")
    if not requests:
        raise ValueError("no requests to evaluate: give at least one")
    if repeats < 1:
        raise ValueError(f"repeats is {repeats}, must be >= 1")
