"""What one arm did, on all requests and on parts of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from decoding.metrics import CycleSummary, merge
from decoding.records import CycleRecord
from evaluation.latency import action_counts, emitted_counts, latency
from evaluation.protocol import FixedSetting, Observation
from evaluation.schema import ArmResult, ArmSlice
from evaluation.slices import named

Records = Mapping[tuple[str, int], Sequence[CycleRecord]]


class Reported(Protocol):
    """What a report needs of an arm; a `protocol.Arm` has it."""

    @property
    def name(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def setting(self) -> FixedSetting | None: ...


@dataclass(frozen=True)
class Roles:
    """Which arms are compared, by name.

    Attributes:
        best: fixed settings that were chosen before the run, the best first; empty: the fastest fixed arm of
            the run itself, in hindsight.
        again: the first of `best` under a second name.
        overridden: a learned arm that does what the first of `best` does.
        rest: arms that decoded a few prompts only, in repeats of their own.
        repeats: that the main arms decode, from 0 on; later ones are apart, whoever decodes there. None:
            those are apart in which an arm of the rest decodes.
        about: of an arm its source and what was tuned.
    """

    best: tuple[str, ...] = ()
    again: str | None = None
    overridden: str | None = None
    rest: frozenset[str] = frozenset()
    repeats: int | None = None
    about: Mapping[str, tuple[str | None, str | None]] = field(default_factory=dict)


def arm_result(
    arm: Reported,
    observations: Sequence[Observation],
    plain: str,
    roles: Roles,
    records: Records,
) -> ArmResult:
    """An arm on all that it decoded; plain decoding on what the main arms did. ValueError if that is nothing.

    Args:
        plain: name of the arm of plain decoding.
        records: cycles by arm and block; empty: nothing is said of latency and actions.
    """
    seen = observations if arm.name in roles.rest else main_observations(observations, roles)
    rows = [row for row in seen if row.arm == arm.name]
    if not rows:
        raise ValueError(f"arm {arm.name!r} has no observation: nothing can be reported of it")
    texts = {_text(row): row.token_hash for row in observations if row.arm == plain}
    unequal = sum(texts[_text(row)] != row.token_hash for row in rows)
    cycles = merge(row.cycles for row in rows)
    source, tuned = roles.about.get(arm.name, (None, None))
    memory = [row.memory_mb for row in rows if row.memory_mb is not None]
    more: dict[str, Any] = {}
    if records:
        mine = [records[arm.name, row.block] for row in rows]
        flat = [record for some in mine for record in some]
        more = {
            "latency": latency([row.prefill_seconds for row in rows], mine),
            "emitted": emitted_counts(flat),
            "actions": action_counts(flat),
        }
    return ArmResult(
        **_slice(cycles, len(rows), _plain_of(rows, observations, plain)).model_dump(),
        kind=arm.kind,
        policy_overhead_fraction=cycles.policy_overhead,
        text_equal=not unequal,
        texts_unequal=unequal,
        acceptance_rate=list(cycles.acceptance_rate),
        seconds_by_phase=asdict(cycles.seconds),
        source=source,
        tuned=tuned,
        peak_memory_mb=max(memory, default=None),
        **more,
    )


def main_observations(observations: Sequence[Observation], roles: Roles) -> list[Observation]:
    """Without the repeats that the rest decoded, and those in which main arms ran freely."""
    if roles.repeats is not None:
        return [row for row in observations if row.repeat < roles.repeats]
    apart = {row.repeat for row in observations if row.arm in roles.rest}
    return [row for row in observations if row.repeat not in apart]


def _plain_of(rows: Sequence[Observation], observations: Sequence[Observation], plain: str) -> CycleSummary:
    """Plain decoding of the same texts."""
    texts = {_text(row) for row in rows}
    return merge(row.cycles for row in observations if row.arm == plain and _text(row) in texts)


def _slice(cycles: CycleSummary, requests: int, plain: CycleSummary) -> ArmSlice:
    return ArmSlice(
        tokens_per_second=cycles.tokens_per_second,
        speedup_vs_plain=cycles.tokens_per_second / plain.tokens_per_second,
        tau=cycles.acceptance_length,
        requests=requests,
    )


def _summary(arm: str, observations: Sequence[Observation]) -> CycleSummary:
    return merge(row.cycles for row in observations if row.arm == arm)


def by_part(
    key: Callable[[Observation], Hashable],
    arms: Sequence[Reported],
    observations: Sequence[Observation],
    plain: str,
) -> dict[str, dict[str, ArmSlice]]:
    """Every arm on each part of the requests, in the order of the parts' names."""
    parts: dict[str, list[Observation]] = defaultdict(list)
    for row in observations:
        parts[named(key(row))].append(row)
    return {
        name: {
            arm.name: _slice(
                _summary(arm.name, rows), sum(row.arm == arm.name for row in rows), _summary(plain, rows)
            )
            for arm in arms
        }
        for name, rows in sorted(parts.items())
    }


def _text(row: Observation) -> tuple[str, float, int]:
    return row.question_id, row.temperature, row.repeat
