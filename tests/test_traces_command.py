"""`train.py traces`, end to end on a tiny model: folders, what goes on, interrupts, and bad input."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import commands.traces
import train
from decoding.controller import RootChoice
from decoding.self_text import read_prompts
from decoding.trace_folder import read_traces


def short_workload(path: Path) -> Path:
    """A tiny model reads a character a token."""
    lines = [{"question_id": f"q{n}", "turns": [f"ab{n} " * 3], "category": "code"} for n in range(30)]
    path.write_text("\n".join(map(json.dumps, lines)))
    return path


def flags(folder: Path, head: Path, out: Path, **changed: object) -> list[str]:
    values: dict[str, object] = {
        "workload.files": f"[{short_workload(out.parent / 'workload.jsonl')}]",
        "seed": 1,
        "threads": 1,
        "model.target": folder,
        "model.drafter": head,
        "model.dtype": "float32",
        "traces.temperatures": "[0.0,1.0]",
        "traces.prompts": 3,
        "traces.max_new_tokens": 5,
        "traces.draft_depth": 2,
    }
    values |= {key.replace("__", "."): value for key, value in changed.items()}
    return ["traces", *(f"--set={key}={value}" for key, value in values.items()), "--out", str(out)]


def written_texts(folder: Path, ids: list[list[int]], lengths: list[int]) -> Path:
    """A shard as `train.py texts` writes it."""
    folder.mkdir()
    np.savez(
        folder / "shard-00000.npz",
        tokens=np.concatenate([np.array(one, dtype=np.uint16) for one in ids]),
        offsets=np.cumsum([0, *map(len, ids)]),
        prompt_lengths=np.array(lengths),
        kinds=np.array(["free"] * len(ids)),
    )
    return folder


def test_traces_are_written_and_left_alone_the_next_time(
    folder: Path, head: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    assert train.main(flags(folder, head, out)) == 0
    assert "recording 3 prompts at [0.0, 1.0], seed 1" in capsys.readouterr().out
    assert sorted(path.name for path in out.iterdir()) == ["T0", "T1"]
    for name, temperature in (("T0", 0.0), ("T1", 1.0)):
        header, texts = read_traces(out / name)
        assert (header.temperature, header.seed, header.draft_depth) == (temperature, 1, 2)
        assert header.note["choices"] == ["all"]
        found = list(texts)
        assert len(found) == 3
        assert all(1 <= len(one.positions) <= 5 for one in found)
        assert all(one.category for one in found)
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*")}
    assert train.main(flags(folder, head, out)) == 0
    assert before == {path: path.stat().st_mtime_ns for path in out.rglob("*")}


def test_prompts_of_written_texts_and_all_choices_of_a_merged_drafter(
    folder: Path, head: Path, tmp_path: Path
) -> None:
    texts = written_texts(tmp_path / "texts", [[5, 6, 5, 6, 9], [7, 8, 9]], [4, 2])
    assert read_prompts(texts, 40)[0] == ("shard-00000-0", (5, 6, 5, 6), "free")
    wanted = {"traces__texts": texts, "model__drafter": f"merged:{head}", "traces__temperatures": "[0.0]"}
    assert train.main(flags(folder, head, tmp_path / "run", **wanted)) == 0
    header, found = read_traces(tmp_path / "run" / "T0")
    assert header.note["choices"] == ["all", "lookup", "head"]
    one, other = found
    assert [position.choice for position in one.positions[:3]] == list(RootChoice)[1:]
    assert one.positions[0].context_length == 4
    assert (other.question_id, other.category, other.language) == ("shard-00000-1", "free", None)


def test_the_seed_of_a_begun_recording_counts(
    folder: Path, head: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A fresh one would refuse its own folder."""
    assert train.main(flags(folder, head, tmp_path, seed="null")) == 0
    seed = read_traces(tmp_path / "T0")[0].seed
    capsys.readouterr()
    assert train.main(flags(folder, head, tmp_path, seed="null")) == 0
    assert f"seed {seed}" in capsys.readouterr().out
    assert train.main(flags(folder, head, tmp_path, seed=(seed + 1) % 2**32)) == 2
    assert "was begun with other seed" in capsys.readouterr().err


def test_an_interrupt_says_how_to_go_on(
    folder: Path,
    head: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(commands.traces, "write_traces", interrupted)
    assert train.main(flags(folder, head, tmp_path)) == 130
    said = capsys.readouterr().err.strip()
    assert said == "interrupted; the same command goes on from the last checkpoint"


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("traces.temperatures", "[]", "traces.temperatures"),
        ("traces.temperatures", "[-1.0]", "must be greater than or equal to 0"),
        ("traces.temperatures", "[0.7,0.70000001]", "has two of one name: leave one out"),
        ("traces.batch", "0", "traces.batch = 0 must be greater than or equal to 1"),
        ("traces.split", "all", "traces.split"),
        ("traces.texts", "/nowhere", "/nowhere holds no texts"),
        ("model.drafter", "none", "unknown drafter 'none'"),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_written(
    key: str,
    value: str,
    says: str,
    folder: Path,
    head: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "run"
    assert train.main([*flags(folder, head, out), f"--set={key}={value}"]) == 2
    said = capsys.readouterr().err
    assert says in said
    assert said.count("\n") == 1
    assert not out.exists()


def test_texts_of_another_model_and_damaged_ones_are_refused(tmp_path: Path) -> None:
    texts = written_texts(tmp_path / "texts", [[5, 999]], [1])
    with pytest.raises(ValueError, match=r"token ids 5\.\.999, the target's end at 39: it is another"):
        read_prompts(texts, 40)
    for number, (lengths, says) in enumerate((([0], "are 0..0"), ([3], "are 3..3"), ([-1], "are -1..-1"))):
        with pytest.raises(ValueError, match=rf"prompt_lengths {says}, must be within the texts"):
            read_prompts(written_texts(tmp_path / f"texts{number}", [[5, 9]], lengths), 40)
    (texts / "shard-00000.npz").write_bytes(b"no archive")
    with pytest.raises(ValueError, match=r"shard .* is missing or damaged"):
        read_prompts(texts, 40)
