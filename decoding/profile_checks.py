"""What a cost profile's numbers must be: every refusal is one line with the value and its limit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

_MOST = 2**31 - 1


def whole(name: str, value: ArrayLike, low: int, high: int | None = None) -> np.ndarray:
    """As an array; ValueError unless whole numbers in low..high; `high` is the most that was measured."""
    given = np.asarray(value)
    if not np.issubdtype(given.dtype, np.integer):
        raise ValueError(f"{name} is of {given.dtype}, must be whole numbers")
    if given.size and (given.min() < low or (high is not None and given.max() > high)):
        limit = f">= {low}" if high is None else f"in {low}..{high}, what was measured: profile more of them"
        raise ValueError(f"{name} spans {given.min()}..{given.max()}, must be {limit}")
    return given


def check_counts(name: str, values: Sequence[Any]) -> None:
    """ValueError unless ascending whole numbers >= 1, at least one."""
    good = all(type(value) is int and 1 <= value <= _MOST for value in values)
    if not good or not values or list(values) != sorted(set(values)):
        raise ValueError(f"{name} is {list(values)}, must be ascending whole numbers in 1..{_MOST}")


def check_numbers(name: str, values: Sequence[Any], count: int) -> None:
    """ValueError unless `count` finite numbers >= 0."""
    if len(values) != count:
        raise ValueError(f"{name} has {len(values)} numbers, must have {count}")
    for value in values:
        if type(value) not in (int, float) or not 0 <= value < _MOST:  # NaN is in no range
            raise ValueError(f"{name} holds {repr(value)[:40]}, must be finite numbers >= 0")


def check_table(name: str, table: Sequence[Any], rows: int, columns: int) -> None:
    """ValueError unless `rows` >= 1 rows of `columns` finite numbers >= 0."""
    if len(table) != rows or not rows:
        raise ValueError(f"{name} has {len(table)} rows, must have {max(rows, 1)}")
    for row in table:
        check_numbers(name, row, columns)


def tuples(value: Any) -> Any:
    """JSON's lists as tuples, at every depth."""
    if isinstance(value, list):
        return tuple(map(tuples, value))
    return {key: tuples(item) for key, item in value.items()} if isinstance(value, dict) else value
