"""Depth by size: the speed of fixed settings, and what an arm's cycles did."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from evaluation.schema_parts import ActionCount, GridPoint

# A live grid of three points in a corner is no map: so many of its cells must be there.
_FILLED = 0.5


@dataclass(frozen=True, slots=True)
class Cell:
    """`shade` from 0 to 1; an empty text: not there."""

    text: str
    shade: float = 0.0
    best: bool = False


@dataclass(frozen=True, slots=True)
class HeatMap:
    """A row for each draft depth, a column for each verification size."""

    title: str
    sizes: tuple[int, ...]
    rows: tuple[tuple[int, tuple[Cell, ...]], ...]
    best: str
    warning: str = ""


def grids(points: Iterable[GridPoint]) -> list[HeatMap]:
    """One for each drafter that has points enough to fill it."""
    drafters: dict[tuple[str, int | None], dict[tuple[int, int], float]] = {}
    for point in points:
        rates = drafters.setdefault((point.drafter, point.lookup_depth), {})
        rates[point.draft_depth, point.verification_size] = point.tokens_per_second
    return [
        _grid(drafter, lookup_depth, rates)
        for (drafter, lookup_depth), rates in drafters.items()
        if len(rates) > 1 and len(rates) >= _FILLED * len(_depths(rates)) * len(_sizes(rates))
    ]


def actions(name: str, counts: Sequence[ActionCount]) -> HeatMap:
    """Shares of an arm's cycles."""
    cycles: dict[tuple[int, int], int] = {}
    for count in counts:
        key = count.draft_depth, count.verification_size
        cycles[key] = cycles.get(key, 0) + count.cycles
    total, most = sum(cycles.values()) or 1, max(cycles.values()) or 1
    common = max(cycles, key=lambda key: cycles[key])
    return HeatMap(
        title=name,
        sizes=_sizes(cycles),
        rows=_rows(
            cycles,
            {key: _share(count / total) for key, count in cycles.items()},
            {key: count / most for key, count in cycles.items()},
            common,
        ),
        best=f"Commonest: {_spell(*common)}, {_share(cycles[common] / total)} of {total} cycles.",
    )


def _grid(drafter: str, lookup_depth: int | None, rates: Mapping[tuple[int, int], float]) -> HeatMap:
    best = max(rates, key=lambda key: rates[key])
    slowest, span = min(rates.values()), (max(rates.values()) - min(rates.values())) or 1.0
    return HeatMap(
        title=drafter + ("" if lookup_depth is None else f", lookup depth {lookup_depth}"),
        sizes=_sizes(rates),
        rows=_rows(
            rates,
            {key: f"{rate:.1f}" for key, rate in rates.items()},
            {key: (rate - slowest) / span for key, rate in rates.items()},
            best,
        ),
        best=f"Best: {_spell(*best)}, {rates[best]:.1f} tokens/s.",
        warning=_edge(best, _depths(rates), _sizes(rates)),
    )


def _edge(best: tuple[int, int], depths: Sequence[int], sizes: Sequence[int]) -> str:
    """A warning if the best point may lie outside of the grid."""
    beyond = [
        f"{side} {axis}"
        for axis, value, values in (("depths", best[0], depths), ("sizes", best[1], sizes))
        for side, edge in (("larger", values[-1]), ("smaller", values[0]))
        if len(values) > 1 and value == edge and not (side == "smaller" and edge <= 1)
    ]
    if not beyond:
        return ""
    return f"The best lies on the edge of the grid: {' and '.join(beyond)} were not tried."


def _rows(
    keys: Iterable[tuple[int, int]],
    texts: Mapping[tuple[int, int], str],
    shades: Mapping[tuple[int, int], float],
    best: tuple[int, int],
) -> tuple[tuple[int, tuple[Cell, ...]], ...]:
    there = list(keys)
    return tuple(
        (
            depth,
            tuple(
                Cell(texts[key], round(shades[key], 3), key == best) if key in texts else Cell("")
                for key in ((depth, size) for size in _sizes(there))
            ),
        )
        for depth in _depths(there)
    )


def _spell(depth: int, size: int) -> str:
    return f"depth {depth}, size {size}" if depth or size else "a plain step"


def _share(share: float) -> str:
    return f"{share * 100:.0f} %" if share >= 0.01 else "<1 %"


def _depths(keys: Iterable[tuple[int, int]]) -> tuple[int, ...]:
    return tuple(sorted({depth for depth, _ in keys}))


def _sizes(keys: Iterable[tuple[int, int]]) -> tuple[int, ...]:
    return tuple(sorted({size for _, size in keys}))
