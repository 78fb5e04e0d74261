"""A folder of traces: shards of some prompts each, so that a killed recording goes on where it was.

A shard appears when it is complete. Whoever reads the folder gets text after text; never more than one is in
memory.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from decoding.artifacts import read_json, write_json
from decoding.recording import Prompt, Recorded, digest
from decoding.trace_file import TracedText, TraceHeader, TraceWriter, read_trace

SHARD_TEXTS = 32
_IDENTITY = "traces.json"

# Records some prompts, in order.
Record = Callable[[Sequence[Prompt]], Iterable[Recorded]]


@dataclass(frozen=True, slots=True)
class TraceProgress:
    """After some texts: texts of how many are done, this run's positions and speed, and what time is left."""

    texts: int
    of: int
    positions: int
    rate: float
    seconds_left: float

    def __str__(self) -> str:
        return f"{self.positions} positions, {self.rate:.0f}/s, {self.seconds_left / 60:.0f} min left"


def write_traces(
    folder: Path, header: TraceHeader, prompts: Sequence[Prompt], record: Record
) -> Iterator[TraceProgress]:
    """Write the shards that are not there yet; yields after every text.

    Args:
        folder: of this recording alone.
        header: of every shard; each gets the digest of its own prompts.
        prompts: with distinct question ids.
        record: gives the recordings of some of them, in order.

    Raises:
        ValueError: the folder holds a recording of other prompts or with another header, or a shard that is
            damaged or not of this recording; there is no prompt, or a question id comes twice.
    """
    ids = [prompt.question_id for prompt in prompts]
    if len(set(ids)) != len(ids):
        twice = next(name for name in ids if ids.count(name) > 1)
        raise ValueError(f"question id {twice!r} comes twice: a trace could not tell the texts apart")
    if not prompts:
        raise ValueError("there are no prompts to record")
    _check_identity(folder, _identity(header, prompts))
    for path, lot in _shards(folder, prompts):
        if path.exists():
            _check_shard(path, _as_json(header), digest(lot))
    started, positions, mine = time.monotonic(), 0, 0
    done = sum(len(lot) for path, lot in _shards(folder, prompts) if path.exists())
    before = done
    for path, lot in _shards(folder, prompts):
        if path.exists():
            continue
        with TraceWriter(path, replace(header, prompts=digest(lot))) as writer:
            for one in record(lot):
                about = one.prompt
                writer.add(about.question_id, about.category, about.language, one.positions)
                done, mine = done + 1, mine + 1
                positions += len(one.text_ids)
                elapsed = max(1e-9, time.monotonic() - started)
                left = (len(prompts) - done) * elapsed / mine
                yield TraceProgress(done, len(prompts), positions, positions / elapsed, left)
    if done == before:
        yield TraceProgress(done, len(prompts), 0, 0.0, 0.0)


def read_traces(folder: Path) -> tuple[TraceHeader, Iterator[TracedText]]:
    """The header, and the texts one by one in the prompts' order.

    ValueError, one line, if the folder holds no complete recording; a damaged shard is found when it is read.
    """
    paths = complete_shards(folder)
    header, _ = read_trace(paths[0])
    return header, _texts(paths)


def complete_shards(folder: Path) -> list[Path]:
    """Of a complete recording, in order; ValueError as `read_traces`."""
    identity = _read_identity(folder)
    shards, digests = identity["shards"], identity.get("shard_prompts")
    paths: list[Path] = []
    there = sum(1 for _ in folder.glob("shard-*.parquet"))
    if there >= shards:  # else there is nothing to list, and the record may say any number
        paths = [shard_path(folder, number) for number in range(shards)]
        there = sum(path.exists() for path in paths)
    if there < shards:
        raise ValueError(
            f"recording {folder} has {there} of {shards} shards: the command that began it goes on with it"
        )
    for number, path in enumerate(paths):
        _check_shard(path, identity["header"], None if digests is None else digests[number])
    return paths


def recorded_seed(folder: Path) -> int | None:
    """The seed of the recording in `folder`, None where there is none."""
    if not (folder / _IDENTITY).exists():
        return None
    seed = _read_identity(folder)["header"].get("seed")
    return seed if type(seed) is int else None


def count_drafts(folder: Path) -> int:
    """Drafts that the complete shards hold: positions, times the choices of each."""
    paths = sorted(folder.glob("shard-*.parquet"))
    return sum(pq.read_metadata(path).num_rows for path in paths)


def shard_path(folder: Path, number: int) -> Path:
    """Where a shard is, or will be."""
    return folder / f"shard-{number:05d}.parquet"


def _texts(paths: Sequence[Path]) -> Iterator[TracedText]:
    for path in paths:
        yield from read_trace(path)[1]


def _check_shard(path: Path, header: Mapping[str, Any], prompts: str | None) -> None:
    """ValueError if it is damaged, of a recording with another header, or known to be of other prompts."""
    own, texts = read_trace(path)
    texts.close()
    known = {key: value for key, value in _as_json(own).items() if key != "prompts"}
    changed = [key for key, value in known.items() if header.get(key) != value]
    if None not in (own.prompts, prompts) and own.prompts != prompts:
        changed.append("prompts")
    if changed:
        raise ValueError(f"trace {path} is of a recording with other {', '.join(changed)}: remove it")


def _as_json(header: TraceHeader) -> dict[str, Any]:
    """As a file gives it back."""
    found: dict[str, Any] = json.loads(json.dumps(asdict(header)))
    return found


def _shards(folder: Path, prompts: Sequence[Prompt]) -> Iterator[tuple[Path, Sequence[Prompt]]]:
    for number, start in enumerate(range(0, len(prompts), SHARD_TEXTS)):
        yield shard_path(folder, number), prompts[start : start + SHARD_TEXTS]


def _identity(header: TraceHeader, prompts: Sequence[Prompt]) -> dict[str, Any]:
    lots = [prompts[start : start + SHARD_TEXTS] for start in range(0, len(prompts), SHARD_TEXTS)]
    return {
        "header": _as_json(header),
        "prompts": digest(prompts),
        "shards": len(lots),
        "shard_texts": SHARD_TEXTS,
        "shard_prompts": [digest(lot) for lot in lots],
    }


def _check_identity(folder: Path, identity: dict[str, Any]) -> None:
    if not (folder / _IDENTITY).exists():
        if any(folder.glob("shard-*.parquet")):
            raise ValueError(f"{folder} holds shards of a recording without its {_IDENTITY}: remove them")
        write_json(folder / _IDENTITY, identity)
        return
    recorded = _read_identity(folder)
    changed = [key for key in ("prompts", "shards", "shard_texts") if recorded.get(key) != identity[key]]
    header = recorded["header"]
    changed += [key for key, value in identity["header"].items() if header.get(key) != value]
    if changed:
        raise ValueError(
            f"the recording in {folder} was begun with other {', '.join(changed)}: choose another --out"
        )


def recording_identity(folder: Path) -> dict[str, Any]:
    """What the recording in `folder` is, its prompts included; ValueError if there is none."""
    return _read_identity(folder)


def _read_identity(folder: Path) -> dict[str, Any]:
    if not (folder / _IDENTITY).exists():
        raise ValueError(f"{folder} holds no recording ({_IDENTITY} is not there): train.py traces makes one")
    identity: dict[str, Any] = read_json(folder / _IDENTITY, "record of traces")
    shards, digests = identity.get("shards"), identity.get("shard_prompts")
    counted = type(shards) is int and shards >= 1
    # Recordings of before have no digests.
    digested = digests is None or (isinstance(digests, list) and len(digests) == shards)
    if not isinstance(identity.get("header"), dict) or not counted or not digested:
        raise ValueError(f"record of traces {folder / _IDENTITY} is damaged: remove the folder")
    return identity
