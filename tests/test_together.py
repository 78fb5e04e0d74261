"""Requests that run together: each gives what it gives alone, in order, and nothing is left running."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from decoding.controller import FixedController
from decoding.drafters.base import Drafter
from decoding.drafters.composite import CompositeDrafter
from decoding.drafters.merged import MergedDrafter
from decoding.drafters.ngram import NgramDrafter
from decoding.fast_forward import FastForward, Rows
from decoding.machine import native_threads
from decoding.sampling import Sampling
from decoding.session import Session
from decoding.target import TargetModel
from decoding.together import Job, Worker, run_together
from tests.fast_world import fast_eagle, fast_target
from tests.test_fast_forward import tokens_of


@pytest.fixture(autouse=True)
def nothing_is_left_running() -> Iterator[None]:
    before = threading.active_count()
    yield
    assert threading.active_count() == before


def drafters() -> list[Drafter]:
    head = fast_eagle(fast_target())
    return [head, CompositeDrafter(head, NgramDrafter(1)), MergedDrafter(head, NgramDrafter(1), 3)]


@given(seed=st.integers(0, 99), most=st.integers(1, 9), temperature=st.sampled_from([0.0, 1.0]))
@settings(max_examples=8)
def test_sessions_together_are_sessions_alone(seed: int, most: int, temperature: float) -> None:
    """Texts, cycles and log-probabilities, of different lengths and drafters."""
    target = fast_target()
    target.capture(fast_eagle(target).fused_layers)
    rng = np.random.default_rng(seed)
    kinds = drafters()

    def session(target: TargetModel, drafter: Drafter, number: int) -> list[object]:
        prompt = tokens_of(number, 1 + number * 7 % 30)
        made = Session(
            target,
            drafter,
            prompt,
            max_new_tokens=4 + number * 5 % 17,
            end_ids=(),
            sampling=Sampling(temperature),
            seed=seed,
            log_probs=True,
        )
        records = list(made.run(FixedController(1 + number % 3, 4)))
        return [(one.token_ids, one.accepted_by_depth, one.log_probs) for one in records]

    order = rng.permutation(11).tolist()

    def job(number: int) -> Job[list[object]]:
        return lambda worker: session(
            worker.target(target), worker.drafter(kinds[number % len(kinds)]), number
        )

    together = list(run_together([job(number) for number in order], most))
    assert together == [session(target, kinds[number % len(kinds)], number) for number in order]


def test_forwards_are_put_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it would be the same texts in the same time; no lot has more rows than a call takes."""
    target = fast_target()
    assert target.fast is not None
    lots: list[list[int]] = []
    forward_many = FastForward.forward_many

    def seen(self: FastForward, requests: list[Rows]) -> object:
        lots.append([len(rows) for rows in requests])
        return forward_many(self, requests)

    monkeypatch.setattr(FastForward, "forward_many", seen)

    def job(worker: Worker) -> int:
        mine = worker.target(target)
        cache = mine.new_cache()
        for length in (50, 1, 1):
            mine.forward(tokens_of(worker.number, length), cache)
        return worker.number

    assert list(run_together([job] * 5, 5)) == [0, 1, 2, 3, 4]
    assert lots == [[50, 50], [50, 50], [50], [1] * 5, [1] * 5]


def test_an_error_of_one_ends_all() -> None:
    target = fast_target()
    finished: list[int] = []

    def job(worker: Worker) -> None:
        mine = worker.target(target)
        cache = mine.new_cache()
        mine.forward([1], cache)
        if worker.number == 1:
            raise ZeroDivisionError("of one")
        mine.forward([1], cache)
        finished.append(worker.number)

    with pytest.raises(ZeroDivisionError, match="of one"):
        list(run_together([job] * 6, 3))
    assert finished == []


def test_bad_rows_are_their_jobs_error_to_the_caller() -> None:
    target = fast_target()

    def job(worker: Worker) -> None:
        mine = worker.target(target)
        mine.forward([99_999], mine.new_cache())

    with pytest.raises(ValueError, match="token ids span"):
        list(run_together([job] * 3, 2))


def test_an_interrupt_in_a_forward_ends_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C comes to the thread that runs the forwards, mostly within one."""
    target = fast_target()

    def interrupted(self: FastForward, requests: list[Rows]) -> object:
        raise KeyboardInterrupt

    def job(worker: Worker) -> None:
        mine = worker.target(target)
        mine.forward([1], mine.new_cache())

    monkeypatch.setattr(FastForward, "forward_many", interrupted)
    with pytest.raises(KeyboardInterrupt):
        list(run_together([job] * 5, 3))


def test_a_job_that_will_not_stop_is_told_again() -> None:
    target = fast_target()

    def job(worker: Worker) -> None:
        mine = worker.target(target)
        cache = mine.new_cache()
        if worker.number == 0:
            mine.forward([1], cache)
            raise ZeroDivisionError
        for _ in range(5):
            with contextlib.suppress(BaseException):
                mine.forward([1], cache)

    with pytest.raises(ZeroDivisionError):
        list(run_together([job] * 2, 2))


def test_who_stops_asking_ends_all() -> None:
    target = fast_target()

    def job(worker: Worker) -> int:
        mine = worker.target(target)
        cache = mine.new_cache()
        for _ in range(3 + 40 * (worker.number > 0)):
            mine.forward([1], cache)
        return worker.number

    results = run_together([job] * 50, 4)
    assert next(results) == 0
    results.close()


def test_jobs_without_forwards_and_no_jobs() -> None:
    assert list(run_together([], 3)) == []
    naps = [0.02, 0.0, 0.01, 0.0]

    def job(worker: Worker) -> int:
        time.sleep(naps[worker.number])
        return worker.number

    jobs = [job] * len(naps)
    assert list(run_together(jobs, 4)) == [0, 1, 2, 3]
    with pytest.raises(ValueError, match="jobs at a time are 0, must be"):
        list(run_together(jobs, 0))


def test_threads_of_torch_are_as_before() -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        seen = list(run_together([lambda worker: (torch.get_num_threads(), native_threads())] * 3, 2))
        assert seen == [(1, 3)] * 3
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)
