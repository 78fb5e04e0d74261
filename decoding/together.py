"""Many requests at once: each runs in a thread of its own, with code that knows of no other, and whenever all
of them wait for a forward their rows go through the weights together.

A forward of 16 rows costs a fraction of 16 forwards of one row (`python -m benchmarks.curves`), and a row's
bits do not depend on its neighbours: a recording made in this way is the one that its requests make alone.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any, TypeVar

import torch

from decoding.drafters.base import Drafter
from decoding.drafters.causal_lm import CausalLMDrafter
from decoding.drafters.eagle import EagleDrafter
from decoding.drafters.with_lookup import HeadWithLookup
from decoding.fast_forward import MOST_ROWS, FastForward, Forwarded, Rows, Scores
from decoding.machine import native_alone
from decoding.target import TargetModel

Result = TypeVar("Result")
AnyTarget = TypeVar("AnyTarget", bound=TargetModel)
AnyDrafter = TypeVar("AnyDrafter", bound=Drafter)

# What a job does, given who puts its forwards together with those of others.
Job = Callable[["Worker"], Result]


class _Stopped(BaseException):
    """Ends a job from outside; nothing that a job calls may take it for an error of its own."""


@dataclass(slots=True)
class _Waiting:
    """Rows that a worker wants to be run by a stack."""

    worker: Worker
    fast: FastForward
    rows: Rows


@dataclass(slots=True)
class _Done:
    """A worker's result, or what it raised."""

    worker: Worker
    result: Any = None
    error: BaseException | None = None


@dataclass(slots=True, eq=False)
class Worker:
    """One job's thread, as its job sees it."""

    number: int
    _inbox: SimpleQueue[_Waiting | _Done]
    _replies: SimpleQueue[Forwarded | None] = field(default_factory=SimpleQueue)

    def forward(self, fast: FastForward, rows: Rows) -> Forwarded:
        """Wait until the rows have been run."""
        self._inbox.put(_Waiting(self, fast, rows))
        reply = self._replies.get()
        if reply is None:
            raise _Stopped
        return reply

    def target(self, target: AnyTarget) -> AnyTarget:
        """The same target, its forwards through this worker."""
        mine = copy.copy(target)
        mine.fast = None if target.fast is None else SharedForward(target.fast, self)
        return mine

    def drafter(self, drafter: AnyDrafter) -> AnyDrafter:
        """The same drafter, its forwards through this worker."""
        mine: Any = copy.copy(drafter)
        if isinstance(mine, HeadWithLookup):
            mine.head = self.drafter(mine.head)
        elif isinstance(mine, CausalLMDrafter):
            mine.model = self.target(mine.model)
        elif isinstance(mine, EagleDrafter) and mine.fast is not None:
            mine.fast = SharedForward(mine.fast, self)
        made: AnyDrafter = mine
        return made

    def _run(self, job: Job[Any], threads: int) -> None:
        torch.set_num_threads(threads)  # a new thread has torch's own number
        done = _Done(self)
        try:
            with native_alone():
                done.result = job(self)
        except BaseException as error:  # the caller's to raise: here nobody would see it
            done.error = error
        self._inbox.put(done)


class SharedForward(FastForward):
    """A stack's forwards, put together with those of other workers; scores are left to the caller."""

    def __init__(self, fast: FastForward, worker: Worker) -> None:
        self.packed, self.capture = fast.packed, fast.capture
        self._fast, self._worker = fast, worker

    def forward(self, rows: Rows, scores: Scores | None = None) -> Forwarded:
        return self._worker.forward(self._fast, rows)


def run_together(jobs: Iterable[Job[Result]], most: int) -> Generator[Result, None, None]:
    """The jobs' results in the jobs' order, `most` jobs at a time; an error of a job ends all and is raised.

    Jobs without forwards through their workers run one after the other, as Python's threads do.
    """
    if type(most) is not int or most < 1:
        raise ValueError(f"jobs at a time are {most!r}, must be a whole number >= 1")
    inbox: SimpleQueue[_Waiting | _Done] = SimpleQueue()
    threads = torch.get_num_threads()
    numbered = enumerate(jobs)
    live: dict[Worker, threading.Thread] = {}
    waiting: dict[Worker, _Waiting] = {}
    results: dict[int, Any] = {}
    given = 0
    try:
        while True:
            while len(live) < most and (following := next(numbered, None)) is not None:
                worker = Worker(following[0], inbox)
                live[worker] = threading.Thread(target=worker._run, args=(following[1], threads), daemon=True)
                live[worker].start()
            if not live:
                return
            if len(waiting) == len(live):
                _serve(waiting)
            said = inbox.get()
            if isinstance(said, _Waiting):
                waiting[said.worker] = said
                continue
            live.pop(said.worker).join()
            if said.error is not None:
                raise said.error
            results[said.worker.number] = said.result
            while given in results:
                yield results.pop(given)
                given += 1
    finally:
        _stop(live, waiting, inbox)


def _serve(waiting: dict[Worker, _Waiting]) -> None:
    """Run what most workers wait for, a single stack, and tell them. The others wait on: until more of them
    want the same, so that few forwards are of few rows."""
    by_stack: dict[int, list[_Waiting]] = {}
    for one in sorted(waiting.values(), key=lambda one: one.worker.number):
        by_stack.setdefault(id(one.fast), []).append(one)
    for lot in _lots(max(by_stack.values(), key=len)):
        outputs = lot[0].fast.forward_many([one.rows for one in lot])
        for one, output in zip(lot, outputs, strict=True):
            del waiting[one.worker]  # not before: if this lot fails, `_stop` must find who waits
            one.worker._replies.put(output)


def _lots(asked: Sequence[_Waiting]) -> Iterator[list[_Waiting]]:
    """In order, each of as many as one forward takes."""
    lot: list[_Waiting] = []
    for one in asked:
        if lot and sum(len(other.rows) for other in lot) + len(one.rows) > MOST_ROWS:
            yield lot
            lot = []
        lot.append(one)
    yield lot


def _stop(
    live: dict[Worker, threading.Thread],
    waiting: dict[Worker, _Waiting],
    inbox: SimpleQueue[_Waiting | _Done],
) -> None:
    """End what still runs: each worker at its next forward."""
    for worker in waiting:
        worker._replies.put(None)
    while live:
        said = inbox.get()
        if isinstance(said, _Waiting):  # perhaps again: a job may swallow even this
            said.worker._replies.put(None)
        else:
            live.pop(said.worker).join()
