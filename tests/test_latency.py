"""Latencies, counts and strips of cycles made by hand."""

from __future__ import annotations

import numpy as np
import pytest

from decoding.records import CycleRecord, PhaseSeconds
from evaluation.latency import action_counts, emitted_counts, latency
from evaluation.strips import cycles_of


def cycle(seconds: float, tokens: tuple[int, ...], depth: int = 0, size: int = 0) -> CycleRecord:
    return CycleRecord(depth, size, (), tokens, 10, PhaseSeconds(verify=seconds))


def test_a_cycles_tokens_arrive_together() -> None:
    first = [cycle(0.010, (1, 2)), cycle(0.030, (3, 4, 5)), cycle(0.020, (6,))]
    second = [cycle(0.040, (1,))]
    found = latency([0.1, 0.2], [first, second])
    assert found.ttft.p50 == pytest.approx((110 + 240) / 2)
    assert found.total.p50 == pytest.approx((160 + 240) / 2)
    assert found.itl_cycle.p50 == pytest.approx(25)  # gaps of 30 and 20 ms
    assert found.itl_amortised.p50 == pytest.approx(np.percentile([10, 10, 10, 20], 50))
    assert found.itl_amortised.p99 == pytest.approx(np.percentile([10, 10, 10, 20], 99))
    assert found.itl_cycle.p95 == pytest.approx(np.percentile([30, 20], 95))


def test_a_text_of_one_cycle_has_a_gap_all_the_same() -> None:
    found = latency([0.1], [[cycle(0.04, (1, 2))]])
    assert found.itl_cycle.p50 == pytest.approx(40)
    assert found.itl_amortised.p50 == pytest.approx(20)


def test_counts() -> None:
    some = [cycle(1, (1,), 2, 4), cycle(1, (1, 2, 3), 2, 4), cycle(1, (1,), 0, 3), cycle(1, (1,))]
    assert emitted_counts(some) == [0, 3, 0, 1]
    assert [(one.draft_depth, one.verification_size, one.cycles) for one in action_counts(some)] == [
        (2, 4, 2),
        (0, 0, 1),
        (0, 3, 1),
    ]


def test_a_character_of_several_tokens_comes_with_its_last() -> None:
    raw = "aé€b".encode()

    def decode(ids: object) -> str:
        return bytes(ids).decode("utf-8", errors="replace")  # type: ignore[call-overload]

    records = [cycle(1, tuple(raw[:2]), 1, 2), cycle(1, tuple(raw[2:5])), cycle(1, tuple(raw[5:]))]
    pieces = [one.tokens for one in cycles_of(records, decode)]
    assert pieces == [["a", ""], ["é", "", ""], ["€", "b"]]
    assert [one.draft_depth for one in cycles_of(records, decode)] == [1, 0, 0]
