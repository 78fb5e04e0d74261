"""A profile made by hand, and worlds in which all costs are known: made-up cycles, and a clock that real
sessions move on by what their work is said to cost."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from decoding import timing
from decoding.drafters.eagle import EagleState
from decoding.kv_cache import TargetCache
from decoding.profile import Conditions, CostProfile
from decoding.records import CycleRecord, PhaseSeconds
from decoding.target import TargetModel
from decoding.timed_cycle import TimedCycle

PRINTS = {"target": "aa", "drafter": "bb", "tokenizer": "cc"}
CONDITIONS = Conditions("a machine", "float32", "fast", 2, 0.0, "eagle", 4)


def small_profile() -> CostProfile:
    """Two contexts, five row counts of which 2 and 3 are dear, two levels."""
    return CostProfile(
        fingerprints=PRINTS,
        conditions=CONDITIONS,
        contexts=(10, 110),
        rows=(1, 2, 3, 4, 5),
        start=(0.001, 0.002),
        levels={"head": ((0.01, 0.02), (0.03, 0.03))},
        digest_tokens=(1, 3),
        digest=(0.0, 0.004),
        selection=(0.001, 0.0001, 0.00001),
        verification=((0.1, 0.2), (0.5, 0.6), (0.45, 0.5), (0.2, 0.3), (0.25, 0.35)),
        verification_token=0.0005,
        commit=(0.002, 0.0003),
        policy=0.0001,
    )


def law_of_rows(rows: int, context: int) -> float:
    """Seconds of a verification: 2 rows cost more than 8, and context costs more where rows are many."""
    return 0.01 + 0.001 * rows + (0.02 if rows == 2 else 0.0) + 1e-6 * rows * context


def law_of_level(level: int, context: int, tokens: int) -> float:
    """Seconds of a draft level; the first digests `tokens` tokens."""
    return 0.002 + 0.0005 * level + 1e-6 * context + (0.0003 * (tokens - 1) if level == 1 else 0.0)


def made_up_cycle(
    depth: int, rows: int, context: int, before: int, emitted: int, slow: float = 1.0, **more: Any
) -> TimedCycle:
    """A cycle as the laws say, `slow` times as long."""
    levels = tuple(slow * law_of_level(level, context, before) for level in range(1, depth + 1))
    start, questions = 0.0001 * slow, depth + 2 if depth else 1
    seconds = PhaseSeconds(
        draft=start + sum(levels),
        select=slow * (5e-5 + 1e-5 * depth + 2e-6 * (rows - 1)),
        verify=slow * (law_of_rows(rows, context) + 2e-4 * (emitted - 1)),
        commit=slow * (1e-4 + 3e-5 * (emitted - 1)),
        policy=slow * 4e-5 * questions,
    )
    record = CycleRecord(depth, rows - 1, (True,) * (emitted - 1), (7,) * emitted, context, seconds)
    return TimedCycle(record, before, "head" if depth else None, start, levels, questions, **more)


def made_up_cycles(
    rng: np.random.Generator, contexts: tuple[int, ...], most_rows: int = 18, slow_share: float = 0.0
) -> list[TimedCycle]:
    """Of every row count near every context; `slow_share` of them take three times as long."""
    cycles = []
    for context in contexts:
        for rows in range(1, most_rows + 1):
            for _ in range(16):
                depth = int(rng.integers(1, 5)) if rows > 1 else 0
                at = int(rng.integers(context * 7 // 8, context * 9 // 8 + 1))
                before, emitted = int(rng.integers(1, 9)), int(rng.integers(1, depth + 2))
                slow = 3.0 if rng.random() < slow_share else 1.0
                cycles.append(made_up_cycle(depth, rows, at, before, emitted, slow))
    return cycles


@contextmanager
def known_costs(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Sessions on a clock that stands still but for target forwards and draft levels, which move it on by
    their laws. Only for targets and heads on the eager path."""
    seconds = 0.0

    def spend(cost: float) -> None:
        nonlocal seconds
        seconds += cost

    forward, extend = TargetModel.forward, EagleState.extend

    def timed_forward(self: TargetModel, token_ids: Any, cache: TargetCache, *rest: Any, **more: Any) -> Any:
        spend(law_of_rows(len(token_ids), cache.length + 1))
        return forward(self, token_ids, cache, *rest, **more)

    def timed_extend(self: EagleState) -> bool:
        assert self.beam is not None
        spend(law_of_level(self.beam.tree.depth + 1, self._committed, self._pending_rows))
        return extend(self)

    with monkeypatch.context() as patched:
        patched.setattr(timing, "time", SimpleNamespace(perf_counter=lambda: seconds))
        patched.setattr(TargetModel, "forward", timed_forward)
        patched.setattr(EagleState, "extend", timed_extend)
        yield


def held_out(cycle: TimedCycle) -> TimedCycle:
    return replace(cycle, held_out=True)
