"""Blocks of a live comparison on disk: a Parquet file each, written whole, so that a killed run loses one."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from decoding.artifacts import atomic_path
from decoding.metrics import summarise
from decoding.records import CycleRecord, PhaseSeconds
from decoding.timing import PHASES
from evaluation.protocol import Observation, cycle_row

_KEY = b"draftpace block"

CYCLES = pa.schema(
    [
        *((name, pa.string()) for name in ("arm", "question_id", "group", "category", "language")),
        ("temperature", pa.float64()),
        *((name, pa.int32()) for name in ("repeat", "block", "place", "cycle")),
        *((name, pa.int32()) for name in ("draft_depth", "verification_size", "accepted", "emitted")),
        ("context_length", pa.int32()),
        ("accepted_by_depth", pa.list_(pa.bool_())),
        ("token_ids", pa.list_(pa.int32())),
        *((f"{phase}_seconds", pa.float64()) for phase in PHASES),
    ]
)


@dataclass(frozen=True, slots=True)
class Kept:
    """A decoded block.

    Attributes:
        number, temperature: the block's.
        attempts: how often it was decoded.
        other_cores: cores that other processes used meanwhile.
        wall_seconds: that all attempts took, warm-ups and prefills included.
        observations, records: of each arm, in the order of decoding.
    """

    number: int
    temperature: float
    attempts: int
    other_cores: float
    wall_seconds: float
    observations: Sequence[Observation] = field(repr=False)
    records: Sequence[Sequence[CycleRecord]] = field(repr=False)


class BlockStore:
    """A folder of blocks.

    Args:
        folder: made with the first block.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def kept(self) -> dict[int, Kept]:
        """All blocks, by number. ValueError names a file that is damaged."""
        return {one.number: one for one in map(_read, sorted(self._folder.glob("block-*.parquet")))}

    def path(self, number: int) -> Path:
        """Of a block's file."""
        return self._folder / _file_name(number)

    def keep(self, block: Kept, before: Kept | None = None) -> Kept:
        """Write a block; of two attempts the one with the least other load stays. Returns what stays."""
        if before is not None:
            calmer = min(block, before, key=lambda one: one.other_cores)
            wall = block.wall_seconds + before.wall_seconds
            block = replace(calmer, attempts=before.attempts + 1, wall_seconds=wall)
        rows = [
            cycle_row(observation, number, record)
            for observation, records in zip(block.observations, block.records, strict=True)
            for number, record in enumerate(records)
        ]
        about = {
            "number": block.number,
            "temperature": block.temperature,
            "attempts": block.attempts,
            "other_cores": block.other_cores,
            "wall_seconds": block.wall_seconds,
            "observations": [_without_cycles(one) for one in block.observations],
        }
        table = pa.Table.from_pylist(rows, schema=CYCLES.with_metadata({_KEY: json.dumps(about).encode()}))
        with atomic_path(self.path(block.number)) as temporary:
            pq.write_table(table, temporary, compression="zstd")
        return block


def rows_of(blocks: Mapping[int, Kept]) -> list[dict[str, Any]]:
    """Every timed cycle as a flat row (`protocol.cycle_row`), block by block."""
    return [
        cycle_row(observation, number, record)
        for _, block in sorted(blocks.items())
        for observation, records in zip(block.observations, block.records, strict=True)
        for number, record in enumerate(records)
    ]


def _file_name(number: int) -> str:
    return f"block-{number:06}.parquet"


def _without_cycles(observation: Observation) -> dict[str, Any]:
    return {name: value for name, value in asdict(observation).items() if name != "cycles"}


def _read(path: Path) -> Kept:
    try:
        table = pq.read_table(path)
        about = json.loads(table.schema.metadata[_KEY])
        records: dict[str, list[CycleRecord]] = {}
        for row in table.to_pylist():
            records.setdefault(row["arm"], []).append(record_of(row))
        observations = [
            Observation(**one, cycles=summarise(records[one["arm"]])) for one in about.pop("observations")
        ]
        block = Kept(**about, observations=observations, records=[records[one.arm] for one in observations])
        _check(block, path)
        return block
    except (pa.ArrowInvalid, AttributeError, KeyError, TypeError, ValueError, OSError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ValueError(f"block {path} is damaged ({reason}): remove it, and it is decoded again") from None


def _check(block: Kept, path: Path) -> None:
    """ValueError for a number that no clock gives, or a block under another's name."""
    if path.name != _file_name(block.number):
        raise ValueError(f"it holds block {block.number}")
    cycles = [one.seconds.total for some in block.records for one in some]
    prefills = [one.prefill_seconds for one in block.observations]
    if not all(math.isfinite(one) for one in (block.other_cores, block.wall_seconds, *prefills, *cycles)):
        raise ValueError("a time in it is not finite")


def record_of(row: Mapping[str, Any]) -> CycleRecord:
    """The cycle of a flat row, see `protocol.cycle_row`."""
    return CycleRecord(
        draft_depth=row["draft_depth"],
        verification_size=row["verification_size"],
        accepted_by_depth=tuple(row["accepted_by_depth"]),
        token_ids=tuple(row["token_ids"]),
        context_length=row["context_length"],
        seconds=PhaseSeconds(**{phase: row[f"{phase}_seconds"] for phase in PHASES}),
    )
