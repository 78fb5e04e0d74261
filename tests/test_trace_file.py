"""Traces on disk: what comes back is what was written, and a file is whole or not there."""

from __future__ import annotations

import math
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from decoding.controller import LookupHint
from decoding.trace_file import LevelCertainty, TracedText, TraceHeader, TraceWriter, read_trace
from decoding.traces import OnPath, Position, followed
from decoding.tree import DraftTree
from tests.traced_worlds import MERGED, WORLDS, Case, positions_of

ROOT = Path(__file__).resolve().parent.parent
HEADER = TraceHeader(
    fingerprints={"target": "0a", "drafter": "0b-beam3", "tokenizer": "0c"},
    drafter="eagle3",
    draft_depth=5,
    temperature=0.7,
    seed=2**64 - 1,
    dtype="float64",
    note={"prompts": 3, "why": "a tèst", "levels": [1, 2]},
)


def write(path: Path, texts: dict[str, list[Position]], header: TraceHeader = HEADER) -> Path:
    with TraceWriter(path, header) as writer:
        for number, (question, positions) in enumerate(texts.items()):
            writer.add(question, "code" if number % 2 else None, None if number % 2 else "it", positions)
    return path


def read(path: Path) -> list[TracedText]:
    return list(read_trace(path)[1])


def assert_same(ours: Position, theirs: Position) -> None:
    """All but the rows of survival; floats to the bit, NaN equal to itself."""

    def facts(one: Position) -> list[Any]:
        tree = one.tree
        nodes = (tree.tokens, tree.parents, tree.depths, tree.scores, tree.level_starts, tree.depth)
        numbers = map(repr, (one.root_entropy, one.root_margin))
        drafted = (one.choice, one.chain)
        return [
            one.index,
            one.context_length,
            one.path,
            one.following,
            one.lookup,
            *drafted,
            *numbers,
            *nodes,
        ]

    assert facts(ours) == facts(theirs)
    assert theirs.on_path == ()
    for depth in range(ours.tree.height + 2):
        for size in range(ours.tree.size + 2):
            assert ours.accepted(depth, size) == theirs.accepted(depth, size)


def small_position(index: int = 0, **change: Any) -> Position:
    tree = DraftTree(3)
    tree.add_level([4, 5], [0, 0], [-0.5, -1.0])
    tree.add_level([6], [1], [-1.5])
    whole = Position(index, 7 + index, tree, (1,), (4, 9), 0.25, 1.5, LookupHint(3, 0.75, True))
    return replace(whole, **change)


@pytest.mark.parametrize("name", [*WORLDS, *MERGED])
def test_recorded_texts_come_back(name: str, tmp_path: Path) -> None:
    """In order, each with what it was called, and the header with its note."""
    texts = {f"{name}-{prompt}": positions_of(Case(name, 1.0, 0, prompt)) for prompt in range(4)}
    header, found = read_trace(write(tmp_path / "new" / "trace.parquet", texts))
    assert header == HEADER
    number = -1
    for number, (ours, theirs) in enumerate(zip(texts.items(), found, strict=True)):
        assert theirs.question_id == ours[0]
        named = (theirs.category, theirs.language)
        assert named == (("code", None) if number % 2 else (None, "it"))
        assert theirs.certainty == ((),) * len(ours[1])
        for one, other in zip(ours[1], theirs.positions, strict=True):
            assert_same(one, other)
    assert number == 3


SCORES = st.sampled_from([0.0, -1e-9, -1e-9 - 1e-16, -0.1, -0.1 - 1e-17, -1 / 3, -2.0, -math.inf])


@st.composite
def positions(draw: st.DrawFn) -> Position:
    """Trees of all shapes, levels joined at the end, scores that float32 could not tell apart."""
    drafted, joined = draw(st.integers(0, 3)), draw(st.integers(0, 2))
    tree = DraftTree(draw(st.integers(0, 2**31 - 1)))
    for level in range(drafted + joined):
        above = list(tree.level(level))
        parents = draw(st.lists(st.sampled_from(above), min_size=1, max_size=4))
        losses = draw(st.lists(SCORES, min_size=len(parents), max_size=len(parents)))
        scores = [tree.scores[parent] + loss for parent, loss in zip(parents, losses, strict=True)]
        tokens = draw(st.lists(st.integers(0, 3), min_size=len(parents), max_size=len(parents)))
        tree.add_level(tokens, parents, scores, joined=level >= drafted)
    following = draw(st.lists(st.integers(0, 3), max_size=tree.height))
    share = st.floats(0, 1)
    hint = st.none() | st.builds(LookupHint, st.integers(0, 32), share, st.none() | st.booleans())
    real = st.floats(0, 99) | st.just(math.nan)
    path = followed(tree, following)
    return Position(
        draw(st.integers(0, 9)), 20, tree, path, tuple(following), draw(real), draw(real), draw(hint)
    )


@settings(max_examples=40)
@given(written=st.lists(st.lists(positions(), min_size=1, max_size=3), max_size=3))
def test_any_positions_come_back(
    written: list[list[Position]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    texts = {str(number): text for number, text in enumerate(written)}
    path = write(tmp_path_factory.mktemp("trace") / "trace.parquet", texts)
    for ours, theirs in zip(written, read(path), strict=True):
        for one, other in zip(ours, theirs.positions, strict=True):
            assert_same(one, other)


def test_of_kept_rows_the_certainty_comes_back(tmp_path: Path) -> None:
    even, sure = torch.full((8,), -math.log(16)), torch.tensor([-0.1, -50.0, -50.0])
    rows = (OnPath(1, even, -1), OnPath(3, sure, 0))
    path = write(tmp_path / "t.parquet", {"a": [small_position(), small_position(1, on_path=rows)]})
    (text,) = read(path)
    assert text.certainty[0] == ()
    found = text.certainty[1]
    assert found == tuple(LevelCertainty(row.depth, row.entropy, row.top_probability) for row in rows)
    # Half of the first row's mass is outside its vocabulary: the entropy is of what is inside.
    assert found[0].entropy == pytest.approx(math.log(8), rel=1e-6)
    assert found[0].top_probability == pytest.approx(1 / 16, rel=1e-6)
    assert found[1].entropy == pytest.approx(0, abs=1e-6)
    assert found[1].top_probability == pytest.approx(math.exp(-0.1), rel=1e-6)


def test_texts_are_read_one_by_one(tmp_path: Path) -> None:
    path = write(tmp_path / "t.parquet", {"a": [small_position()] * 3, "b": [small_position()]})
    with pq.ParquetFile(path) as file:
        groups = [file.metadata.row_group(number).num_rows for number in range(file.num_row_groups)]
    assert groups == [3, 1]
    _, texts = read_trace(path)
    assert next(texts).question_id == "a"
    assert next(texts).question_id == "b"
    assert list(texts) == []
    assert read(write(tmp_path / "none.parquet", {})) == []


# --- damage -----------------------------------------------------------------------------------------------


def refusal(path: Path) -> str:
    with pytest.raises(ValueError, match=r"\A[^\n]+\Z") as caught:
        read(path)
    assert path.name in str(caught.value)
    return str(caught.value)


def test_a_truncated_file_is_one_line(tmp_path: Path) -> None:
    path = write(tmp_path / "t.parquet", {"a": [small_position()] * 20})
    content = path.read_bytes()
    for length in (0, 3, 11, len(content) // 2, len(content) - 9, len(content) - 1):
        path.write_bytes(content[:length])
        assert "damaged, truncated or no Parquet file" in refusal(path)


def test_a_flipped_bit_never_goes_unseen(tmp_path: Path) -> None:
    """In the pages of data: nowhere near the footer, which Arrow reads as it likes."""
    path = write(tmp_path / "t.parquet", {"a": [small_position(n) for n in range(20)]})
    with pq.ParquetFile(path) as file:
        group = file.metadata.row_group(0)
        scores = next(
            column
            for column in map(group.column, range(group.num_columns))
            if column.path_in_schema.startswith("scores")
        )
    content = path.read_bytes()
    end = scores.data_page_offset + scores.total_compressed_size
    for place in range(end - 40, end):
        path.write_bytes(content[:place] + bytes([content[place] ^ 4]) + content[place + 1 :])
        assert "text number 0 is damaged" in refusal(path)


def rewritten(path: Path, change: dict[str, Any], header: bytes | None = None) -> Path:
    """The file with other columns, as a program at fault would have written it."""
    table = pq.read_table(path)
    for name, values in change.items():
        column = table.schema.get_field_index(name)
        kind = table.schema.field(name)
        table = table.set_column(column, kind, pa.array([values], kind.type))
    metadata = dict(table.schema.metadata)
    if header is not None:
        metadata[b"draftpace_trace"] = header
    pq.write_table(table.replace_schema_metadata(metadata), path)
    return path


@pytest.mark.parametrize(
    "change",
    [
        {"parents": [-1, 0, 0, 9]},
        {"parents": [-1, 0, 0, 0]},
        {"parents": [-1, 0, 0]},
        {"scores": [0.0, -0.5, -1.0]},
        {"tokens": []},
        {"level_starts": [0, 1, None]},
        {"scores": [0.0, -0.5, None, -1.5]},
    ],
    ids=str,
)
def test_a_tree_that_is_none_is_refused(change: dict[str, Any], tmp_path: Path) -> None:
    path = rewritten(write(tmp_path / "t.parquet", {"a": [small_position()]}), change)
    assert "text number 0 is damaged" in refusal(path)


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (b"{", "its header is not understood"),
        (b"[1]", "its header is not understood"),
        (b"{}", "its header is not understood"),
        (b'{"schema_version": 2}', "its header is not understood"),
        (b'{"schema_version": 1, "unheard": 1}', "schema_version is 1, this code reads 2"),
    ],
)
def test_another_header_is_refused(header: bytes, message: str, tmp_path: Path) -> None:
    path = write(tmp_path / "t.parquet", {"a": [small_position()]})
    assert message in refusal(rewritten(path, {}, header))


def test_other_files_are_refused(tmp_path: Path) -> None:
    missing = tmp_path / "missing.parquet"
    assert refusal(missing) == f"trace {missing} does not exist"
    assert "cannot be used" in refusal(tmp_path)
    foreign = tmp_path / "foreign.parquet"
    pq.write_table(pa.table({"a": [1]}), foreign)
    assert "is a Parquet file, but no trace of draftpace" in refusal(foreign)
    path = write(tmp_path / "t.parquet", {"a": [small_position()]})
    table = pq.read_table(path)
    pq.write_table(table.drop_columns(["scores"]), path)
    assert "its columns are not those of schema version 2" in refusal(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"fingerprints": {"target": "a"}}, "fingerprints are of target, must be of target, drafter and"),
        ({"draft_depth": 2.0}, r"draft_depth is 2\.0, must be a whole number"),
        ({"temperature": -1.0}, r"temperature is -1\.0, must be a finite number >= 0"),
        ({"temperature": math.nan}, "temperature is nan, must be a finite number >= 0"),
        ({"schema_version": 3}, "schema_version is 3, must be 2"),
    ],
)
def test_a_header_that_says_nonsense_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(HEADER, **change)


# --- whole or not at all ----------------------------------------------------------------------------------


def test_a_failure_leaves_what_was_there(tmp_path: Path) -> None:
    """Nothing, or the older file; no temporary either way."""
    path = tmp_path / "t.parquet"
    for expected in ([], [path]):
        with pytest.raises(ValueError, match="the text of question 'b' has no positions: leave it out"):
            write(path, {"a": [small_position()] * 9, "b": []})
        assert list(tmp_path.iterdir()) == expected
        before = write(path, {"old": [small_position()]}).read_bytes()
        assert path.read_bytes() == before
    with pytest.raises(ValueError, match="Out of range float values are not JSON compliant"):
        write(path, {}, replace(HEADER, note={"nan": math.nan}))
    assert [text.question_id for text in read(path)] == ["old"]


KILLED = """
import os, signal, sys
from pathlib import Path
from tests.test_trace_file import HEADER, small_position
from decoding.trace_file import TraceWriter

with TraceWriter(Path(sys.argv[1]), HEADER) as writer:
    for number in range(50):
        writer.add(str(number), None, None, [small_position()] * 50)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_kill_in_the_middle_leaves_no_file(tmp_path: Path) -> None:
    """But its temporary, which a later write clears once it is old."""
    path = tmp_path / "t.parquet"
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(path)], cwd=ROOT, capture_output=True, timeout=300, check=False
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    (left,) = tmp_path.iterdir()
    assert left.suffix == ".tmp"
    assert "damaged, truncated or no Parquet file" in refusal(left)


@pytest.mark.parametrize("changed", [{"drafter": 5}, {"temperature": 10**400}, {"temperature": math.nan}])
def test_a_header_that_says_no_drafter_or_temperature(changed: dict[str, Any]) -> None:
    about: dict[str, Any] = {
        "fingerprints": {"target": "a", "drafter": "b", "tokenizer": "c"},
        "drafter": "b",
        "draft_depth": 2,
        "temperature": 0.0,
        "seed": 1,
        "dtype": "float32",
    }
    TraceHeader(**about)
    with pytest.raises(ValueError, match=r"drafter is 5|temperature is "):
        TraceHeader(**about | changed)
