"""Recordings: each text is what it is alone; a folder of them goes on after a kill, and names faults."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch

from decoding import trace_folder
from decoding.controller import PlainController, RootChoice
from decoding.drafters.merged import MergedDrafter
from decoding.drafters.ngram import NgramDrafter
from decoding.noise import NoiseStream
from decoding.recording import Prompt, Recorded, Recording, record
from decoding.sampling import Sampling
from decoding.session import Session
from decoding.target import TargetModel
from decoding.trace_file import TracedText, TraceHeader, read_trace
from decoding.trace_folder import Record, count_drafts, read_traces, recorded_seed, shard_path, write_traces
from decoding.traces import record_text
from tests.fakes import tiny_eagle, tiny_target
from tests.fast_world import fast_eagle, fast_target
from tests.test_fast_forward import tokens_of

CHOICES = (RootChoice.ALL, RootChoice.LOOKUP, RootChoice.HEAD)
HEADER = TraceHeader({"target": "t", "drafter": "d", "tokenizer": "k"}, "merged", 3, 0.0, 7, "float32")


def pair(fast: bool) -> tuple[TargetModel, MergedDrafter]:
    target = fast_target() if fast else tiny_target(spread=1.5)
    head = fast_eagle(target) if fast else tiny_eagle(target, beam_width=2)
    target.capture(head.fused_layers)
    return target, MergedDrafter(head, NgramDrafter(1), 3)


def prompts(count: int) -> list[Prompt]:
    return [
        Prompt(f"q{number}", tuple(tokens_of(number, 1 + 5 * number % 13)), "code" if number % 2 else None)
        for number in range(count)
    ]


@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_each_recording_is_its_own(fast: bool, temperature: float) -> None:
    """Text and drafts are what a session and `record_text` give for the prompt alone, in order."""
    target, drafter = pair(fast)
    recording = Recording(Sampling(temperature), 7, 9, 3, CHOICES, batch=4)
    found = list(record(target, drafter, {3}, prompts(6), recording))
    assert [one.prompt for one in found] == prompts(6)
    for one in found:
        ids = list(one.prompt.token_ids)
        session = Session(
            target,
            NgramDrafter(),
            ids,
            max_new_tokens=9,
            end_ids={3},
            sampling=Sampling(temperature),
            seed=7,
        )
        for _ in session.run(PlainController()):
            pass
        assert one.text_ids == session.generated
        alone = record_text(
            target,
            drafter,
            ids,
            one.text_ids,
            draft_depth=3,
            temperature=temperature,
            noise=NoiseStream(7, ids),
            choices=CHOICES,
        )
        for ours, theirs in zip(one.positions, alone, strict=True):
            assert (ours.tree.tokens, ours.tree.parents) == (theirs.tree.tokens, theirs.tree.parents)
            # Natively a row's bits do not depend on how a text is cut into forwards.
            scores = theirs.tree.scores if fast else pytest.approx(theirs.tree.scores, abs=1e-5)
            assert ours.tree.scores == scores
            no_law = replace(theirs, root_entropy=0.0, root_margin=0.0)
            assert replace(ours, tree=theirs.tree, root_entropy=0.0, root_margin=0.0) == no_law
            assert ours.root_entropy == pytest.approx(theirs.root_entropy, nan_ok=True)
            assert ours.root_margin == pytest.approx(theirs.root_margin, abs=1e-5, nan_ok=True)


def test_a_prompt_that_cannot_be_decoded_is_named() -> None:
    target, drafter = pair(True)
    bad = [*prompts(2), Prompt("too big", (99_999,))]
    with pytest.raises(ValueError, match="question 'too big': the prompt has a token id outside"):
        list(record(target, drafter, (), bad, Recording(Sampling(), 1, 3, 2)))


def test_choices_that_a_drafter_lacks_are_refused() -> None:
    target, drafter = pair(False)
    with pytest.raises(ValueError, match=r"does not draft with .*HEAD.*, it offers ALL"):
        list(record(target, drafter.head, (), prompts(1), Recording(Sampling(), 1, 3, 2, CHOICES[2:])))


# --- the folder -------------------------------------------------------------------------------------------


def recorder(asked: list[str] | None = None, fail_at: str | None = None) -> Record:
    """Records lots of prompts, notes whose, and is killed at one."""
    target, drafter = pair(False)
    made = partial(record, target, drafter, {3}, recording=Recording(Sampling(), 7, 4, 3, CHOICES))

    def run(lot: Sequence[Prompt]) -> Iterator[Recorded]:
        for one in made(lot):
            if one.prompt.question_id == fail_at:
                raise KeyboardInterrupt
            if asked is not None:
                asked.append(one.prompt.question_id)
            yield one

    return run


@pytest.fixture(autouse=True)
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_folder, "SHARD_TEXTS", 3)


def test_a_killed_recording_goes_on(tmp_path: Path) -> None:
    """Whole shards stay; the result is that of an unbroken run, to the byte of every text."""
    with pytest.raises(KeyboardInterrupt):
        list(write_traces(tmp_path / "a", HEADER, prompts(8), recorder(fail_at="q4")))
    assert [path.name for path in sorted((tmp_path / "a").iterdir())] == [
        "shard-00000.parquet",
        "traces.json",
    ]
    with pytest.raises(ValueError, match="has 1 of 3 shards"):
        read_traces(tmp_path / "a")
    asked: list[str] = []
    steps = list(write_traces(tmp_path / "a", HEADER, prompts(8), recorder(asked)))
    assert asked == [f"q{number}" for number in range(3, 8)]
    assert [(one.texts, one.of) for one in steps] == [(number, 8) for number in range(4, 9)]
    list(write_traces(tmp_path / "b", HEADER, prompts(8), recorder()))
    for number in range(3):
        ours, theirs = (list(read_trace(shard_path(tmp_path / name, number))[1]) for name in "ab")
        assert [repr(vars_of(one)) for one in ours] == [repr(vars_of(one)) for one in theirs]
    header, texts = read_traces(tmp_path / "a")
    assert replace(header, prompts=None) == HEADER
    read = list(texts)
    assert [one.question_id for one in read] == [f"q{number}" for number in range(8)]
    assert [one.category for one in read[:2]] == [None, "code"]
    assert count_drafts(tmp_path / "a") == sum(len(one.positions) for one in read)
    assert recorded_seed(tmp_path / "a") == 7
    assert recorded_seed(tmp_path / "c") is None


def vars_of(text: TracedText) -> list[object]:
    positions = text.positions
    return [
        (one.index, one.choice, one.tree.tokens, one.tree.scores, one.path, one.chain) for one in positions
    ]


def test_a_finished_recording_is_left_alone(tmp_path: Path) -> None:
    list(write_traces(tmp_path, HEADER, prompts(4), recorder()))
    before = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    asked: list[str] = []
    (last,) = write_traces(tmp_path, HEADER, prompts(4), recorder(asked))
    assert (asked, last.texts, last.of) == ([], 4, 4)
    assert before == {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}


@pytest.mark.parametrize(
    ("header", "count", "changed"),
    [
        (replace(HEADER, seed=8), 4, "seed"),
        (replace(HEADER, temperature=1.0), 4, "temperature"),
        (replace(HEADER, fingerprints={**HEADER.fingerprints, "target": "other"}), 4, "fingerprints"),
        (replace(HEADER, note={"max_new_tokens": 5}), 4, "note"),
        (HEADER, 5, "prompts"),
    ],
)
def test_another_recording_in_the_folder_is_refused(
    header: TraceHeader, count: int, changed: str, tmp_path: Path
) -> None:
    list(write_traces(tmp_path, HEADER, prompts(4), recorder()))
    with pytest.raises(ValueError, match=f"was begun with other {changed}.*: choose another --out"):
        list(write_traces(tmp_path, header, prompts(count), recorder()))


def test_shards_that_do_not_belong_are_found(tmp_path: Path) -> None:
    list(write_traces(tmp_path / "a", HEADER, prompts(4), recorder()))
    list(write_traces(tmp_path / "b", replace(HEADER, seed=8), prompts(4), recorder()))
    shard_path(tmp_path / "b", 1).replace(shard_path(tmp_path / "a", 1))
    with pytest.raises(ValueError, match=r"shard-00001\.parquet is of a recording with other seed"):
        list(read_traces(tmp_path / "a")[1])
    with pytest.raises(ValueError, match="is of a recording with other seed: remove it"):
        list(write_traces(tmp_path / "a", HEADER, prompts(4), recorder()))
    content = shard_path(tmp_path / "a", 0).read_bytes()
    shard_path(tmp_path / "a", 0).write_bytes(content[: len(content) // 2])
    with pytest.raises(ValueError, match="truncated or no Parquet file"):
        read_traces(tmp_path / "a")


def test_shards_of_other_prompts_are_found(tmp_path: Path) -> None:
    """Under the same header; also one of the same recording in another's place."""
    others = [replace(one, token_ids=(*one.token_ids, 5)) for one in prompts(7)]
    list(write_traces(tmp_path / "a", HEADER, prompts(7), recorder()))
    list(write_traces(tmp_path / "b", HEADER, others, recorder()))
    own = shard_path(tmp_path / "a", 1).read_bytes()
    for wrong in (shard_path(tmp_path / "b", 1), shard_path(tmp_path / "a", 0)):
        shard_path(tmp_path / "a", 1).write_bytes(wrong.read_bytes())
        for use in (
            lambda: read_traces(tmp_path / "a"),
            lambda: list(write_traces(tmp_path / "a", HEADER, prompts(7), recorder())),
        ):
            with pytest.raises(ValueError, match=r"00001\.parquet is of a recording with other prompts"):
                use()
    shard_path(tmp_path / "a", 1).write_bytes(own)
    assert len(list(read_traces(tmp_path / "a")[1])) == 7


def older(folder: Path) -> None:
    """As recordings were before their shards named their prompts."""
    identity = json.loads((folder / "traces.json").read_text())
    del identity["shard_prompts"], identity["header"]["prompts"]
    (folder / "traces.json").write_text(json.dumps(identity))
    for path in folder.glob("*.parquet"):
        whole = pq.ParquetFile(path)
        ((key, raw),) = whole.schema_arrow.metadata.items()
        header = json.loads(raw)
        del header["prompts"]
        schema = whole.schema_arrow.with_metadata({key: json.dumps(header).encode()})
        groups = [whole.read_row_group(number) for number in range(whole.num_row_groups)]
        with pq.ParquetWriter(path, schema, write_page_checksum=True) as writer:
            for group in groups:
                writer.write_table(group.replace_schema_metadata(schema.metadata))


def test_a_recording_without_digests_is_read_and_gone_on_with(tmp_path: Path) -> None:
    list(write_traces(tmp_path, HEADER, prompts(7), recorder()))
    older(tmp_path)
    header, texts = read_traces(tmp_path)
    assert (header, len(list(texts))) == (HEADER, 7)
    shard_path(tmp_path, 1).unlink()
    asked: list[str] = []
    list(write_traces(tmp_path, HEADER, prompts(7), recorder(asked)))
    assert asked == ["q3", "q4", "q5"]
    assert [one.question_id for one in read_traces(tmp_path)[1]] == [f"q{number}" for number in range(7)]


@pytest.mark.parametrize("shards", [0, -1, True, 10**9, 10**30])
def test_a_record_of_any_number_of_shards_is_one_line_at_once(shards: int, tmp_path: Path) -> None:
    list(write_traces(tmp_path, HEADER, prompts(4), recorder()))
    identity = json.loads((tmp_path / "traces.json").read_text())
    for digests in (None, ["0"]):
        changed = json.dumps(identity | {"shards": shards, "shard_prompts": digests})
        (tmp_path / "traces.json").write_text(changed)
        with pytest.raises(ValueError, match=f"is damaged: remove|has 2 of {shards} shards: the command"):
            read_traces(tmp_path)


def test_folders_that_hold_no_recording(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="holds no recording"):
        read_traces(tmp_path)
    (tmp_path / "traces.json").write_text(json.dumps({"header": 3}))
    with pytest.raises(ValueError, match="is damaged: remove the folder"):
        read_traces(tmp_path)


def test_shards_without_their_record_are_no_recording(tmp_path: Path) -> None:
    """Who would know what they are of?"""
    list(write_traces(tmp_path, HEADER, prompts(4), recorder()))
    (tmp_path / "traces.json").unlink()
    with pytest.raises(ValueError, match=r"holds shards of a recording without its traces\.json"):
        list(write_traces(tmp_path, replace(HEADER, seed=9), prompts(4), recorder()))
    with pytest.raises(ValueError, match="there are no prompts"):
        list(write_traces(tmp_path / "new", HEADER, [], recorder()))


def test_a_question_that_comes_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="question id 'q0' comes twice"):
        list(write_traces(tmp_path, HEADER, [*prompts(2), *prompts(1)], recorder()))
    assert list(tmp_path.iterdir()) == []


def test_recordings_take_no_gradients() -> None:
    target, drafter = pair(False)
    recording = Recording(Sampling(), 7, 4, 3)
    list(record(target, drafter, {3}, prompts(1), recording))
    assert not torch.is_inference_mode_enabled()
