"""What many cycles come to: throughput, acceptance and where the time went. Sessions yield; this counts.

All of these are ratios of sums over cycles, never means of a cycle's ratio: a cycle counts by its length.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from itertools import zip_longest

from decoding.records import CycleRecord, PhaseSeconds


@dataclass(frozen=True, slots=True)
class CycleSummary:
    """Sums over cycles; sums of summaries are summaries (`merge`).

    Attributes:
        cycles: how many, plain steps included.
        emitted: tokens committed, closing tokens included.
        drafted_levels: sum of `draft_depth`.
        verified_nodes: sum of `verification_size`.
        offered_by_depth: entry d - 1: cycles with a verified candidate at depth d after an accepted path.
        accepted_by_depth: entry d - 1: those in which one was accepted there.
        seconds: wall-clock seconds by phase.
    """

    cycles: int = 0
    emitted: int = 0
    drafted_levels: int = 0
    verified_nodes: int = 0
    offered_by_depth: tuple[int, ...] = ()
    accepted_by_depth: tuple[int, ...] = ()
    seconds: PhaseSeconds = field(default_factory=PhaseSeconds)

    @property
    def tokens_per_second(self) -> float:
        """Emitted tokens / seconds of all phases (drafting, policy and features included, prefill not)."""
        if not self.seconds.total > 0:
            raise ValueError(
                f"{self.cycles} cycles took {self.seconds.total} seconds: no throughput to state"
            )
        return self.emitted / self.seconds.total

    @property
    def acceptance_length(self) -> float:
        """tau: emitted tokens / cycles, closing tokens included; plain decoding = 1."""
        if not self.cycles:
            raise ValueError("no cycles: no acceptance length to state")
        return self.emitted / self.cycles

    @property
    def acceptance_rate(self) -> tuple[float, ...]:
        """alpha per depth, entry d - 1 for depth d: accepted / offered. A depth never offered has none."""
        pairs = zip(self.accepted_by_depth, self.offered_by_depth, strict=True)
        return tuple(accepted / offered for accepted, offered in pairs)

    @property
    def policy_overhead(self) -> float:
        """Share of the seconds that went into answering questions: the controller with its features, 0..1."""
        if not self.seconds.total > 0:
            raise ValueError(f"{self.cycles} cycles took {self.seconds.total} seconds: no share to state")
        return self.seconds.policy / self.seconds.total


def summarise(records: Iterable[CycleRecord]) -> CycleSummary:
    """Sum up cycles."""
    return merge(
        CycleSummary(
            cycles=1,
            emitted=record.emitted,
            drafted_levels=record.draft_depth,
            verified_nodes=record.verification_size,
            offered_by_depth=(1,) * len(record.accepted_by_depth),
            accepted_by_depth=tuple(map(int, record.accepted_by_depth)),
            seconds=record.seconds,
        )
        for record in records
    )


def merge(summaries: Iterable[CycleSummary]) -> CycleSummary:
    """The summary of all cycles of `summaries`."""
    rows = list(summaries)
    return CycleSummary(
        cycles=sum(row.cycles for row in rows),
        emitted=sum(row.emitted for row in rows),
        drafted_levels=sum(row.drafted_levels for row in rows),
        verified_nodes=sum(row.verified_nodes for row in rows),
        offered_by_depth=_add_rows(row.offered_by_depth for row in rows),
        accepted_by_depth=_add_rows(row.accepted_by_depth for row in rows),
        seconds=PhaseSeconds(
            **{
                phase.name: sum(getattr(row.seconds, phase.name) for row in rows)
                for phase in fields(PhaseSeconds)
            }
        ),
    )


def tokens_per_second(records: Iterable[CycleRecord]) -> float:
    """Emitted tokens / seconds, see `CycleSummary.tokens_per_second`."""
    return summarise(records).tokens_per_second


def acceptance_length(records: Iterable[CycleRecord]) -> float:
    """tau, see `CycleSummary.acceptance_length`."""
    return summarise(records).acceptance_length


def acceptance_rate(records: Iterable[CycleRecord]) -> tuple[float, ...]:
    """alpha per depth, see `CycleSummary.acceptance_rate`."""
    return summarise(records).acceptance_rate


def _add_rows(rows: Iterable[tuple[int, ...]]) -> tuple[int, ...]:
    return tuple(sum(column) for column in zip_longest(*rows, fillvalue=0))
