"""Caches that are cut to a path and grow: always the rows that were kept, in order."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from decoding import kv_cache
from decoding.kv_cache import KVBuffer, TargetCache

CPU = torch.device("cpu")


def rows(first: int, count: int) -> torch.Tensor:
    """(1, 2, count, 3): every position told apart by its value."""
    return torch.arange(first, first + count, dtype=torch.float64)[None, None, :, None].expand(1, 2, count, 3)


@st.composite
def cycles(draw: st.DrawFn) -> list[tuple[int, list[int]]]:
    """Forwards of 1 to 9 rows, each with the ascending rows that are kept, the root always."""
    plan = []
    for _ in range(draw(st.integers(1, 8))):
        count = draw(st.integers(1, 9))
        kept = draw(st.sets(st.integers(1, count - 1))) if count > 1 else set()
        plan.append((count, [0, *sorted(kept)]))
    return plan


@given(cycles(), st.integers(1, 6))
def test_kept_rows_are_those_of_a_plain_list(plan: list[tuple[int, list[int]]], capacity: int) -> None:
    """Against a list, while the buffer grows from a capacity of a few positions."""
    original, kv_cache._FIRST_CAPACITY = kv_cache._FIRST_CAPACITY, capacity
    try:
        cache = TargetCache(2)
        expected: list[int] = []
        first = 0
        for count, kept in plan:
            base = cache.length
            for offset, layer in enumerate(cache.layers):
                keys, values = layer.update(rows(first + offset, count), -rows(first + offset, count))
                assert keys.shape == (1, 2, base + count, 3)
                held = [place + offset for place in (*expected, *range(first, first + count))]
                assert keys[0, 1, :, 2].tolist() == held
                assert values[0, 0, :, 0].tolist() == [-place for place in held]
            cache.keep(base, kept, CPU)
            expected += [first + row for row in kept]
            assert cache.length == len(expected) == cache.get_seq_length()
            first += count
    finally:
        kv_cache._FIRST_CAPACITY = original


def test_growth_doubles_and_keeps_the_positions() -> None:
    """Appending one by one reallocates a few times, not at every step."""
    buffer = KVBuffer()
    addresses = set()
    for place in range(600):
        keys, _ = buffer.append(rows(place, 1), rows(place, 1))
        addresses.add(keys.data_ptr())
    assert keys[0, 0, :, 0].tolist() == list(range(600))
    assert len(addresses) <= 3


def test_a_row_may_move_onto_one_that_is_read_later() -> None:
    buffer = KVBuffer()
    buffer.append(rows(0, 6), rows(0, 6))
    buffer.keep(2, torch.tensor([1, 2, 3]), 3)
    keys, values = buffer.append(rows(9, 1), rows(9, 1))
    assert keys[0, 0, :, 0].tolist() == values[0, 1, :, 1].tolist() == [0, 1, 3, 4, 5, 9]


def test_rows_in_place_move_nothing() -> None:
    buffer = KVBuffer()
    buffer.append(rows(0, 5), rows(0, 5))
    buffer.keep(2, None, 2)
    keys, _ = buffer.append(rows(7, 1), rows(7, 1))
    assert keys[0, 0, :, 0].tolist() == [0, 1, 2, 3, 7]
