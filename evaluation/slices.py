"""One comparison by category, language and temperature, and the questions that every language has."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import asdict

import numpy as np

from evaluation.protocol import Observation
from evaluation.schema import Slices
from evaluation.schema_parts import ComparisonResult
from evaluation.statistics import compare_all

Pairs = Sequence[tuple[str, str]]


def slices(
    pairs: Pairs, observations: Sequence[Observation], rng: np.random.Generator, confidence: float
) -> Slices:
    """Each pair of arms within each part; claims are adjusted by Holm within a part's table alone, and are
    there to be looked at: a report's own claims are over all of it."""

    def by(key: Callable[[Observation], Hashable]) -> dict[str, list[ComparisonResult]]:
        parts: dict[str, list[Observation]] = defaultdict(list)
        for row in observations:
            parts[named(key(row))].append(row)
        flat = {name: compare_all(pairs, rows, rng, confidence) for name, rows in sorted(parts.items())}
        return {name: [ComparisonResult(**asdict(one)) for one in rows] for name, rows in flat.items()}

    return Slices(
        by_category=by(lambda row: row.category),
        by_language=by(lambda row: row.language),
        by_temperature=by(lambda row: row.temperature),
    )


def named(value: Hashable) -> str:
    """Of a part; requests without a category or language have one of their own."""
    if value is None:
        return "(none)"
    return f"{value:g}" if isinstance(value, float) else str(value)


def shared_questions(observations: Sequence[Observation]) -> list[Observation]:
    """Those of groups that have every language which any group of two or more has; none with less than two
    languages."""
    languages: dict[str, set[str | None]] = defaultdict(set)
    for row in observations:
        languages[row.group].add(row.language)
    every: set[str | None] = set().union(*(some for some in languages.values() if len(some) > 1))
    return [row for row in observations if every and languages[row.group] >= every]
