"""From a model and texts to a trainer: what is held out, what it starts from, what is refused beforehand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from decoding.drafters.eagle_head import EagleHead
from decoding.head_recipe import check_start, prepare
from decoding.models import LoadedModel, load_model
from decoding.train_head import HeadTrainer
from tests.head_world import SETTINGS


@pytest.fixture(scope="module")
def model(folder: Path) -> LoadedModel:
    return load_model(str(folder), "cpu", "float32")


def write_texts(path: Path, low: int, high: int, count: int = 200) -> Path:
    """Texts of 8 ids in low..high - 1."""
    tokens = np.random.default_rng(low).integers(low, high, 8 * count)
    np.savez(path, tokens=tokens.astype(np.uint16), offsets=np.arange(count + 1) * 8)
    return path


def prepared(model: LoadedModel, corpus: list[Path], vocabulary: int = 60, **more: Any) -> HeadTrainer:
    return prepare(
        model, corpus, SETTINGS, draft_vocabulary=vocabulary, max_length=64, held_out_share=0.3, **more
    )


def test_held_out_texts_come_from_every_source(model: LoadedModel, tmp_path: Path) -> None:
    """Two sources, the second half as large: so are their shares of the sixty."""
    few = write_texts(tmp_path / "a.npz", 10, 60), write_texts(tmp_path / "b.npz", 100, 150, count=100)
    held_out = prepared(model, [*few])._held_out_texts
    assert len(held_out) == 60
    of_second = sum(int(text.min()) >= 100 for text in held_out)
    assert 12 <= of_second <= 28
    assert len({text.tobytes() for text in held_out}) == 60
    small = prepared(model, [write_texts(tmp_path / "c.npz", 10, 60, count=40)])
    assert len(small._held_out_texts) == 40 - small.training_texts


def test_a_head_is_fresh_or_goes_on_with_the_vocabulary_of_the_texts(
    model: LoadedModel, head: Path, tmp_path: Path
) -> None:
    corpus = [write_texts(tmp_path / "a.npz", 100, 140)]
    started = prepared(model, corpus, vocabulary=41, start_from=head)
    old = EagleHead.load(head)  # drafts 60..159
    assert started.head.target_ids_V.tolist() == [2, *range(100, 140)]  # with the end token
    assert torch.equal(started.head.lm_head.weight[1:], old.lm_head.weight[40:80])
    assert torch.equal(started.head.fc.weight, old.fc.weight)
    fresh = prepared(model, corpus, vocabulary=41)
    assert torch.equal(fresh.head.lm_head.weight, model.target.model.lm_head.weight[[2, *range(100, 140)]])
    # Checkpoints of the two do not fit each other, nor those of another start or other layers.
    moved = tmp_path / "moved"
    old.fc.weight.data.mul_(2)
    old.save(moved)
    others = (
        prepared(model, corpus, vocabulary=41, start_from=moved),
        prepared(model, corpus, vocabulary=41, fused_layers=(1, 2, 4)),
    )
    assert others[1].head.config.fused_layers == model.target.fused_layers == (1, 2, 4)
    identities = [str(training._identity) for training in (started, fresh, *others)]
    assert len(set(identities)) == 4


def test_what_cannot_be_started_from_is_refused_beforehand(
    model: LoadedModel, head: Path, tmp_path: Path
) -> None:
    assert check_start(model, None, None) is None
    assert check_start(model, None, (1, 2, 4)) is None
    assert model.target.fused_layers == ()
    start = check_start(model, head, None)
    assert start is not None
    with pytest.raises(ValueError, match=r"fused layer 5 is outside 1\.\.4 of this target"):
        check_start(model, None, (1, 2, 5))
    with pytest.raises(ValueError, match=r"reads layers \[2, 2, 1\], not \[1, 2, 4\]"):
        check_start(model, head, (1, 2, 4))
    start.config = replace(start.config, fused_layers=(1, 2, 9))
    start.save(tmp_path)
    with pytest.raises(ValueError, match=r"fused layer 9 is outside 1\.\.4 of this target"):
        check_start(model, tmp_path, None)
