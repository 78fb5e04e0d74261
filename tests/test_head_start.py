"""Where a head starts: its vocabulary, the target's last layer, a head that was trained before."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from decoding.drafters.eagle_head import EagleConfig
from decoding.head_start import frequent_vocabulary, go_on_from, load_start
from tests.fakes import VOCABULARY, tiny_head, tiny_target
from tests.head_world import fresh_head, target


def test_frequent_vocabulary() -> None:
    """The most frequent and those always wanted, ascending; ties to the lower id."""
    counted = [np.array([5, 5, 5, 2, 2, 8, 7])]
    assert frequent_vocabulary(counted, 4, 10, always=[9]).tolist() == [2, 5, 7, 9]
    assert frequent_vocabulary(counted, 10, 10, always=[]).tolist() == list(range(10))
    for size in (0, 11):
        with pytest.raises(ValueError, match=rf"draft vocabulary of {size} is outside 1\.\.10"):
            frequent_vocabulary(counted, size, 10, always=[9])


def test_a_fresh_head_starts_as_the_targets_last_layer() -> None:
    head = fresh_head()
    last = target().model.model.layers[-1]
    assert torch.equal(head.midlayer.mlp.up_proj.weight, last.mlp.up_proj.weight)
    assert torch.equal(head.midlayer.self_attn.k_proj.weight[:, 32:], last.self_attn.k_proj.weight)
    assert torch.equal(head.lm_head.weight, target().model.lm_head.weight[head.target_ids_V])
    features = torch.randn(2, 96)
    torch.testing.assert_close(head.fc(features), features[:, 64:])
    assert EagleConfig.from_target(target(), 8).target_fingerprint == target().fingerprint()


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A head that drafts 20..39 and has been trained: its output rows are its own."""
    head = tiny_head(target(), draft_vocab_size=20)
    head.config = replace(head.config, draft_depth=3)
    head.save(tmp_path / "head")
    return tmp_path / "head"


def test_going_on_with_the_same_vocabulary_is_the_same_head(saved: Path) -> None:
    old = load_start(saved, target())
    new = go_on_from(old, target(), torch.arange(20, 40))
    assert new.config == old.config
    assert new.config.draft_depth == 3
    assert new.state_dict().keys() == old.state_dict().keys()
    for name, tensor in new.state_dict().items():
        assert torch.equal(tensor, old.state_dict()[name]), name


def test_going_on_with_another_vocabulary_keeps_the_rows_of_ids_it_had(saved: Path) -> None:
    """Ids 5..29: of 20..29 its own rows; 30..39 are gone, all else stays."""
    old = load_start(saved, target())
    new = go_on_from(old, target(), torch.arange(5, 30))
    assert new.config == replace(old.config, draft_vocab_size=25)
    assert new.target_ids_V.tolist() == list(range(5, 30))
    assert new.t2d.nonzero().flatten().tolist() == list(range(5, 30))
    assert torch.equal(new.lm_head.weight[15:], old.lm_head.weight[:10])
    output = {"lm_head.weight", "d2t", "t2d"}
    for name in new.state_dict().keys() - output:
        assert torch.equal(new.state_dict()[name], old.state_dict()[name]), name


def test_new_ids_get_the_targets_rows_as_training_would_have_left_them() -> None:
    """It shrank and moved the rows that the head has: the other two are shrunk and moved alike."""
    sure = tiny_target(seed=6, dtype=torch.float32, layers=2, spread=30.0)
    rows = sure.model.lm_head.weight
    trained = 0.3 * rows + 0.7
    old = tiny_head(sure, draft_vocab_size=38)
    old.lm_head.weight.copy_(trained[2:])
    new = go_on_from(old, sure, torch.arange(VOCABULARY)).lm_head.weight.detach()
    assert torch.equal(new[2:], trained[2:])
    assert (new[:2] - trained[:2]).norm() < 0.12 * (rows[:2] - trained[:2]).norm()


def test_a_head_that_names_no_target_becomes_this_ones(saved: Path) -> None:
    """Public checkpoints name none."""
    config = json.loads((saved / "config.json").read_text())
    (saved / "config.json").write_text(json.dumps(config | {"target_fingerprint": None}))
    old = load_start(saved, target())
    assert old.config.target_fingerprint is None
    assert go_on_from(old, target(), torch.arange(9)).config.target_fingerprint == target().fingerprint()


def test_a_start_that_cannot_be_gone_on_from_is_one_line(saved: Path) -> None:
    assert load_start(saved, target(), fused_layers=(2, 1, 1)).config.fused_layers == (2, 1, 1)
    other = tiny_target(seed=7, dtype=torch.float32, layers=2)
    weights = saved / "model.safetensors"
    for folder, of, layers, says in (
        (saved / "none", target(), None, r"drafter config .*none/config.json does not exist"),
        (saved, other, None, rf"its fingerprint is \w+, the target's is {other.fingerprint()}; train a"),
        (
            saved,
            target(),
            (1, 2, 2),
            r"head .* reads layers \[2, 1, 1\], not \[1, 2, 2\]: leave fused_layers",
        ),
    ):
        with pytest.raises(ValueError, match=says) as caught:
            load_start(folder, of, layers)
        assert "\n" not in str(caught.value)
    weights.write_bytes(weights.read_bytes()[:-9])
    with pytest.raises(ValueError, match=r"drafter weights .* is damaged or truncated"):
        load_start(saved, target())
