"""Texts that a target writes itself: in shards that survive a kill, by a command."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fakes import save_tiny_model

import decoding.self_text
import train
from configs.loading import dump_config, load_config
from decoding.corpus import corpus_digest, load_corpus
from decoding.models import LoadedModel, load_model
from decoding.self_text import (
    TextProgress,
    TextSettings,
    enough_shards,
    recorded_seed,
    shard_path,
    write_texts,
)
from decoding.text_plans import Opening
from decoding.text_rows import RowCache

OPENINGS = [
    Opening("coding", "def f"),
    Opening("prose", "Say", ("Sum: {passage}!", "{passage} ok?")),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def model(folder: Path) -> LoadedModel:
    return load_model(str(folder), "cpu", "float64")


SHARD = 6
SETTINGS = TextSettings(tokens=700, seed=5, max_length=60, batch=6)


@pytest.fixture(scope="module", autouse=True)
def _small_shards() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decoding.self_text, "SHARD_TEXTS", SHARD)
        yield


@pytest.fixture(scope="module")
def whole(model: LoadedModel, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, TextProgress]:
    """An unbroken run's texts, and the last that it said."""
    out = tmp_path_factory.mktemp("whole")
    return out, [*write_texts(model, out, SETTINGS, OPENINGS)][-1]


def arrays(path: Path) -> dict[str, Any]:
    with np.load(path, allow_pickle=False) as archive:
        return {name: archive[name].tolist() for name in archive.files}


def names(path: Path) -> list[str]:
    return sorted(item.name for item in path.iterdir())


def test_a_killed_run_goes_on_and_gives_the_same_texts(
    model: LoadedModel, whole: tuple[Path, TextProgress], tmp_path: Path
) -> None:
    """Killed within the second shard; also with another batch size, since ties do not arise in fp64."""
    unbroken, end = whole
    assert end.shards >= 3
    files = [f"shard-{number:05d}.npz" for number in range(end.shards)]
    assert names(unbroken) == [*files, "texts.json"]
    part = tmp_path / "part"
    assert next(write_texts(model, part, replace(SETTINGS, batch=4), OPENINGS)).shards == 1
    half_written = write_texts(model, part, replace(SETTINGS, tokens=10**9), OPENINGS)
    killed_within_the_second_shard(half_written)
    assert names(part) == [files[0], "texts.json"]
    first = (part / files[0]).read_bytes()
    last = [*write_texts(model, part, SETTINGS, OPENINGS)][-1]
    assert (part / files[0]).read_bytes() == first
    assert (last.shards, last.texts, last.tokens) == (end.shards, end.texts, end.tokens)
    for file in files:
        assert arrays(part / file) == arrays(unbroken / file)
    assert [*write_texts(model, part, SETTINGS, OPENINGS)] == []


def killed_within_the_second_shard(progress: Iterator[object]) -> None:
    feed, left = RowCache.feed, [40]

    def dying(self: RowCache, rows: Any) -> torch.Tensor:
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt
        return feed(self, rows)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RowCache, "feed", dying)
        with pytest.raises(KeyboardInterrupt):
            list(progress)


def test_a_shard_is_a_corpus(model: LoadedModel, whole: tuple[Path, TextProgress]) -> None:
    """Both read back the same texts; progress counts what is there."""
    out, last = whole
    texts = load_corpus(out, model.tokenizer, model.target.vocabulary_size, 60)
    assert last.texts == len(texts) == SHARD * last.shards
    assert last.tokens == sum(map(len, texts)) >= SETTINGS.tokens
    assert 0 <= last.looped <= 1
    assert "texts in" in str(last)
    shards = [arrays(shard_path(out, number)) for number in range(last.shards)]
    with np.load(shard_path(out, 0), allow_pickle=False) as archive:
        assert archive["tokens"].dtype == np.uint16
    expected = [shard["tokens"][start:end] for shard in shards for start, end in pairwise(shard["offsets"])]
    assert [text.tolist() for text in texts] == expected
    assert {temperature for shard in shards for temperature in shard["temperatures"]} >= {0.0, 1.0}
    assert len({tuple(text) for text in expected}) == len(expected), "two texts share their randomness"


def test_as_many_shards_as_hold_the_tokens(whole: tuple[Path, TextProgress], tmp_path: Path) -> None:
    """A folder that grows on gives an earlier run's shards: its checkpoints go on fitting."""
    shutil.copytree(whole[0], tmp_path, dirs_exist_ok=True)
    counts = [arrays(shard_path(tmp_path, number))["offsets"][-1] for number in range(2)]
    for tokens, number in ((1, 1), (counts[0], 1), (counts[0] + 1, 2), (sum(counts), 2)):
        assert enough_shards(tmp_path, tokens) == [shard_path(tmp_path, n) for n in range(number)]
    shards = enough_shards(tmp_path, SETTINGS.tokens)
    assert len(shards) == whole[1].shards
    with pytest.raises(ValueError, match=rf"shard-{len(shards):05d}.npz is missing or damaged"):
        enough_shards(tmp_path, 10**6)
    shards[0].write_bytes(shards[0].read_bytes()[:-40])
    with pytest.raises(ValueError, match=r"shard-00000.npz is missing or damaged .*: remove it"):
        enough_shards(tmp_path, SETTINGS.tokens)


def test_texts_of_another_run_are_refused(model: LoadedModel, folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "texts"
    assert recorded_seed(out) is None
    next(write_texts(model, out, SETTINGS, OPENINGS))
    assert recorded_seed(out) == 5
    other_seed = replace(SETTINGS, seed=6)
    next(write_texts(model, tmp_path / "seed", other_seed, OPENINGS))
    assert arrays(shard_path(out, 0))["tokens"] != arrays(shard_path(tmp_path / "seed", 0))["tokens"]
    other = load_model(str(save_tiny_model(tmp_path / "other", seed=8)), "cpu", "float64")
    for of, settings, openings, changed in (
        (model, replace(SETTINGS, seed=6), OPENINGS, "seed"),
        (model, replace(SETTINGS, max_length=80, temperatures=(0.0,)), OPENINGS, "max_length, temperatures"),
        (model, SETTINGS, OPENINGS[:1], "openings"),
        (other, SETTINGS, OPENINGS, "target"),
    ):
        with pytest.raises(ValueError, match=f"were written with other {changed}: choose another --out"):
            next(write_texts(of, out, settings, openings))
    (out / "texts.json").write_text('{"seed": "x"}')
    with pytest.raises(ValueError, match=r"record of texts .*texts.json is damaged"):
        recorded_seed(out)


def test_texts_and_a_head_by_command(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`texts` writes what `drafter` then finds; without a seed each goes on with the recorded one."""
    flags = [
        f"--set=model.target={folder}",
        "--set=model.device=cpu",
        "--set=threads=1",
        "--out",
        str(tmp_path),
    ]
    flags += [f"--set=drafter.{key}" for key in ("written_tokens=450", "written_batch=6", "max_length=60")]
    flags += [
        f"--set=drafter.{key}" for key in ("draft_vocabulary=99", "minutes=0.001", "held_out_share=0.3")
    ]
    assert train.main(["texts", *flags]) == 0
    said = capsys.readouterr().out
    assert re.search(r"12 texts in 2 shards and one begun, \d+ tokens, .* 1 threads\n", said)
    assert re.search(r"seed \d+ \(fresh", said)
    written = {name: (tmp_path / "texts" / name).stat().st_mtime_ns for name in names(tmp_path / "texts")}
    assert train.main(["drafter", *flags]) == 0
    assert "(fresh" not in capsys.readouterr().out
    assert written == {
        name: (tmp_path / "texts" / name).stat().st_mtime_ns for name in names(tmp_path / "texts")
    }
    card = json.loads((tmp_path / "head" / "config.json").read_text(encoding="utf-8"))["card"]
    assert card["settings"]["corpus"] == "written by the target itself"
    assert card["training_tokens"] > 0
    place = json.loads((tmp_path / "checkpoint" / "checkpoint.json").read_text(encoding="utf-8"))
    both_shards = [shard_path(tmp_path / "texts", number) for number in range(2)]
    assert place["settings"]["corpus"] == corpus_digest(both_shards)
    # Before anything is written for it.
    assert (
        train.main(["drafter", *flags, "--set=drafter.draft_vocabulary=9999", "--out", f"{tmp_path}/x"]) == 2
    )
    assert "draft vocabulary of 9999 is outside 1..259" in capsys.readouterr().err
    assert not (tmp_path / "x").exists()
    # More corpora at once: another corpus, so another run.
    both = f"--set=drafter.corpus=[{tmp_path / 'texts'},{shard_path(tmp_path / 'texts', 0)}]"
    assert train.main(["drafter", *flags, both]) == 2
    assert "was trained with other corpus" in capsys.readouterr().err
    assert train.main(["drafter", *flags, both, "--out", str(tmp_path / "both")]) == 0


def test_one_corpus_or_several_can_be_named() -> None:
    default = Path(train.__file__).parent / "configs" / "default.yaml"
    several = load_config(default, ["drafter.corpus=[a.npz,/b]"]).drafter.corpus
    assert isinstance(several, list)
    assert [path.name for path in several] == ["a.npz", "b"]
    assert "- a.npz" in dump_config(load_config(default, ["drafter.corpus=[a.npz,/b]"]))
    for value in ("5", "[]", "[5]", "[null]", "true", "{a: b}"):
        with pytest.raises(ValueError, match=r"drafter\.corpus.* must be a path") as caught:
            load_config(default, [f"drafter.corpus={value}"])
        assert "\n" not in str(caught.value)
