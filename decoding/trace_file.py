"""Traces on disk: one Parquet file, a row a draft, a row group a text, the header as JSON in the metadata.

Rows of survival are not stored: of each, its entropy and its top probability are.
"""

from __future__ import annotations

import json
import math
from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
import pyarrow.parquet as pq

from decoding.artifacts import atomic_path
from decoding.controller import LookupHint, RootChoice
from decoding.traces import Chain, Position
from decoding.tree import DraftTree

SCHEMA_VERSION = 2
_KEY = b"draftpace_trace"
_INTS = pa.list_(pa.int32())
# Not float32: two scores that it cannot tell apart would trade ranks.
_FLOATS = pa.list_(pa.float64())
_SCHEMA = pa.schema(
    [
        pa.field("question_id", pa.string(), nullable=False),
        ("category", pa.string()),
        ("language", pa.string()),
        *(pa.field(name, pa.int32(), nullable=False) for name in ("index", "context_length", "draft_depth")),
        *(pa.field(name, _INTS, nullable=False) for name in ("tokens", "parents", "level_starts")),
        pa.field("scores", _FLOATS, nullable=False),
        *(pa.field(name, _INTS, nullable=False) for name in ("path", "following")),
        *(pa.field(name, pa.float64(), nullable=False) for name in ("root_entropy", "root_margin")),
        ("match_length", pa.int32()),
        ("share", pa.float64()),
        ("agrees", pa.bool_()),
        pa.field("choice", pa.int8(), nullable=False),
        ("chain_tokens", _INTS),
        ("chain_log_survivals", _FLOATS),
        ("chain_nodes", _INTS),
        pa.field("row_depths", _INTS, nullable=False),
        *(pa.field(name, _FLOATS, nullable=False) for name in ("row_entropies", "row_top_probabilities")),
    ]
)


@dataclass(frozen=True, slots=True)
class TraceHeader:
    """What a trace was recorded with.

    Attributes:
        fingerprints: of `target`, `drafter` and `tokenizer`.
        drafter: its name.
        draft_depth: levels that were drafted at every position.
        dtype: of the target, as torch names it without its prefix.
        note: whatever else explains it; for people. JSON values.
        prompts: digest of the prompts of this file's texts, see `recording.digest`; None: unknown, as in
            older recordings.
    """

    fingerprints: Mapping[str, str]
    drafter: str
    draft_depth: int
    temperature: float
    seed: int
    dtype: str
    note: Mapping[str, Any] = field(default_factory=dict)
    schema_version: int = SCHEMA_VERSION
    prompts: str | None = None

    def __post_init__(self) -> None:
        if self.schema_version != SCHEMA_VERSION:
            raise ValueError(f"schema_version is {self.schema_version!r}, must be {SCHEMA_VERSION}")
        if set(self.fingerprints) != {"target", "drafter", "tokenizer"}:
            named = ", ".join(sorted(self.fingerprints)) or "nothing"
            raise ValueError(f"fingerprints are of {named}, must be of target, drafter and tokenizer")
        for name in ("draft_depth", "seed"):
            if type(getattr(self, name)) is not int:
                raise ValueError(f"{name} is {getattr(self, name)!r}, must be a whole number")
        if not isinstance(self.drafter, str):
            raise ValueError(f"drafter is {self.drafter!r}, must be text")
        if not isinstance(self.prompts, str | None):
            raise ValueError(f"prompts is {self.prompts!r}, must be text or null")
        if not 0 <= self.temperature < math.inf or self.temperature > 1e9:  # NaN is in no range
            raise ValueError(f"temperature is {self.temperature}, must be a finite number >= 0")


@dataclass(frozen=True, slots=True)
class LevelCertainty:
    """How sure a drafter was of a level's tokens after the parent that the text followed to, see `OnPath`:
    entropy in nats, and the probability of its best token; both with the noise in them."""

    depth: int
    entropy: float
    top_probability: float


@dataclass(frozen=True, slots=True)
class TracedText:
    """A text's positions in order; `certainty` has an entry for each, empty where no rows were kept."""

    question_id: str
    category: str | None
    language: str | None
    positions: tuple[Position, ...]
    certainty: tuple[tuple[LevelCertainty, ...], ...]

    def by_place(self) -> list[dict[RootChoice, Position]]:
        """The drafts of each position, by what they were drafted with; ValueError if a position lacks."""
        places: dict[int, dict[RootChoice, Position]] = {}
        for one in self.positions:
            places.setdefault(one.index, {})[one.choice] = one
        if sorted(places) != list(range(len(places))):
            raise ValueError(f"the trace of question {self.question_id!r} has gaps between its positions")
        return [places[place] for place in range(len(places))]


class TraceWriter:
    """Context manager: the file appears at a clean end, and until then an older one stays as it is."""

    def __init__(self, path: Path, header: TraceHeader) -> None:
        self._path = path
        self._header = header
        self._writer: pq.ParquetWriter | None = None
        self._open = ExitStack()

    def __enter__(self) -> Self:
        header = json.dumps(asdict(self._header), ensure_ascii=False, allow_nan=False)
        with ExitStack() as stack:
            temporary = stack.enter_context(atomic_path(self._path))
            self._writer = stack.enter_context(
                pq.ParquetWriter(
                    temporary,
                    _SCHEMA.with_metadata({_KEY: header.encode()}),
                    compression="zstd",
                    # Bounds of token ids help nobody, and thousands of row groups would each have them.
                    write_statistics=False,
                    # Scores hardly repeat, but their high bytes do: two thirds of a dictionary's size.
                    use_dictionary=["question_id", "category", "language"],
                    use_byte_stream_split=["scores.list.element"],
                    write_page_checksum=True,
                )
            )
            self._open = stack.pop_all()
        return self

    def __exit__(self, *error: Any) -> None:
        self._writer = None
        self._open.__exit__(*error)

    def add(
        self, question_id: str, category: str | None, language: str | None, positions: Sequence[Position]
    ) -> None:
        """Write one text, as a row group. ValueError if it has no positions."""
        assert self._writer is not None, "add outside the with block"
        if not positions:
            raise ValueError(f"the text of question {question_id!r} has no positions: leave it out")
        about = {"question_id": question_id, "category": category, "language": language}
        rows = [about | _row(position) for position in positions]
        self._writer.write_table(pa.Table.from_pylist(rows, schema=_SCHEMA), row_group_size=len(rows))


def read_trace(path: Path) -> tuple[TraceHeader, Generator[TracedText, None, None]]:
    """The header, and the texts one by one, in the order they were written in.

    ValueError, one line, if the file is missing, damaged, no trace, or of another schema version; the pages
    of a text are checked when it is read.
    """
    header, file = _open(path)
    return header, _texts(path, file)


def read_text(path: Path, number: int) -> TracedText:
    """The text of this number in a trace, the first is 0; ValueError as `read_trace`."""
    _, file = _open(path)
    with file:
        return _read_group(path, file, number)


def _open(path: Path) -> tuple[TraceHeader, pq.ParquetFile]:
    try:
        file = pq.ParquetFile(path, page_checksum_verification=True)
    except FileNotFoundError:
        raise ValueError(f"trace {path} does not exist") from None
    except (pa.ArrowException, OSError) as error:
        raise _unusable(path, "it is damaged, truncated or no Parquet file", error) from None
    written = (file.schema_arrow.metadata or {}).get(_KEY)
    if written is None:
        file.close()
        raise ValueError(f"{path} is a Parquet file, but no trace of draftpace")
    try:
        raw = json.loads(written)
        if raw["schema_version"] != SCHEMA_VERSION:
            raise ValueError(f"schema_version is {raw['schema_version']!r}, this code reads {SCHEMA_VERSION}")
        header = TraceHeader(**raw)
        if not file.schema_arrow.equals(_SCHEMA):
            raise ValueError(f"its columns are not those of schema version {SCHEMA_VERSION}")
    except (TypeError, ValueError, KeyError) as error:
        file.close()
        raise _unusable(path, "its header is not understood", error) from None
    return header, file


def _texts(path: Path, file: pq.ParquetFile) -> Generator[TracedText, None, None]:
    with file:
        for group in range(file.num_row_groups):
            yield _read_group(path, file, group)


def _read_group(path: Path, file: pq.ParquetFile, group: int) -> TracedText:
    try:
        table = file.read_row_group(group)
        _check_numbers(table)
        return _text(table.to_pylist())
    except (pa.ArrowException, OSError, ValueError, IndexError, TypeError) as error:
        raise _unusable(path, f"text number {group} is damaged", error) from None


# NaN of a text's first token.
_UNKNOWN = ("root_entropy", "root_margin")
# What the numbers of a column must be at least; floats may be no NaN, and below infinity.
_LEAST = {"index": 0, "context_length": 1, "draft_depth": 0, "match_length": 0, "share": 0.0}


def _check_numbers(table: pa.Table) -> None:
    """ValueError for what no drafter says: from there on nobody looks, and a policy would learn from it."""
    for column in table.schema:
        values = table[column.name].combine_chunks()
        values = values.flatten() if pa.types.is_list(column.type) else values
        checked = pa.types.is_floating(values.type) or column.name in _LEAST
        if not checked or column.name in _UNKNOWN:
            continue
        some = values.drop_null().to_numpy(zero_copy_only=False)
        least = _LEAST.get(column.name, -math.inf)
        if not ((some >= least) & (some < math.inf)).all():  # NaN is in no range
            wrong = some[~((some >= least) & (some < math.inf))][0]
            raise ValueError(f"{column.name} holds {wrong}, must be a number >= {least}")


def _unusable(path: Path, what: str, error: Exception) -> ValueError:
    cause = " ".join(str(error).split())  # Arrow's own messages may have several lines
    return ValueError(f"trace {path} cannot be used, {what} ({cause}): record it anew")


def _row(position: Position) -> dict[str, Any]:
    tree, lookup, rows, chain = position.tree, position.lookup, position.on_path, position.chain
    return {
        "index": position.index,
        "context_length": position.context_length,
        "draft_depth": tree.depth,
        "tokens": tree.tokens,
        "parents": tree.parents,
        "level_starts": tree.level_starts,
        "scores": tree.scores,
        "path": position.path,
        "following": position.following,
        "root_entropy": position.root_entropy,
        "root_margin": position.root_margin,
        "match_length": None if lookup is None else lookup.match_length,
        "share": None if lookup is None else lookup.share,
        "agrees": None if lookup is None else lookup.agrees,
        "choice": int(position.choice),
        "chain_tokens": None if chain is None else chain.tokens,
        "chain_log_survivals": None if chain is None else chain.log_survivals,
        "chain_nodes": None if chain is None else chain.nodes,
        "row_depths": [row.depth for row in rows],
        "row_entropies": [row.entropy for row in rows],
        "row_top_probabilities": [row.top_probability for row in rows],
    }


def _text(rows: Sequence[Mapping[str, Any]]) -> TracedText:
    questions = {(row["question_id"], row["category"], row["language"]) for row in rows}
    ((question_id, category, language),) = questions
    certainty = [
        tuple(map(LevelCertainty, row["row_depths"], row["row_entropies"], row["row_top_probabilities"]))
        for row in rows
    ]
    return TracedText(question_id, category, language, tuple(map(_position, rows)), tuple(certainty))


def _position(row: Mapping[str, Any]) -> Position:
    lookup = None
    if row["match_length"] is not None:
        lookup = LookupHint(row["match_length"], row["share"], row["agrees"])
    return Position(
        index=row["index"],
        context_length=row["context_length"],
        tree=_tree(row),
        path=tuple(row["path"]),
        following=tuple(row["following"]),
        root_entropy=row["root_entropy"],
        root_margin=row["root_margin"],
        lookup=lookup,
        choice=RootChoice(row["choice"]),
        chain=_chain(row),
    )


def _chain(row: Mapping[str, Any]) -> Chain | None:
    if row["chain_tokens"] is None:
        return None
    return Chain(*(tuple(row[f"chain_{part}"]) for part in ("tokens", "log_survivals", "nodes")))


def _tree(row: Mapping[str, Any]) -> DraftTree:
    tokens, parents, scores = row["tokens"], row["parents"], row["scores"]
    tree = DraftTree(tokens[0])
    # Levels that were joined to a finished draft lie below the drafted ones.
    for level, (start, end) in enumerate(pairwise([*row["level_starts"][1:], len(tokens)]), start=1):
        joined = level > row["draft_depth"]
        tree.add_level(tokens[start:end], parents[start:end], scores[start:end], joined)
    return tree
