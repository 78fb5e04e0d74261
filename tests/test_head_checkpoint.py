"""A head's checkpoint: a killed run goes on as if nothing had happened, and another run is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from decoding.artifacts import load_tensors, save_tensors
from tests.head_world import SETTINGS, fc_of, pretend, steps, trainer, trainer_on_many, weights


@pytest.mark.parametrize("killed_after", [7, 37])
def test_a_killed_run_goes_on_as_if_nothing_had_happened(tmp_path: Path, killed_after: int) -> None:
    """Also across epochs of unequal numbers of batches: weights equal an uninterrupted run's."""
    whole, first, second = trainer_on_many(), trainer_on_many(), trainer_on_many()
    expected = steps(whole.run(), 42)
    assert not first.load_checkpoint(tmp_path)
    steps(first.run(), killed_after)
    first.save_checkpoint(tmp_path)
    assert second.load_checkpoint(tmp_path)
    assert torch.equal(weights(second), weights(first))
    assert (second.step, second.elapsed) == (killed_after, first.elapsed)
    rest = steps(second.run(), 42 - killed_after)
    assert [one.step for one in rest] == list(range(killed_after + 1, 43))
    assert [one.epoch for one in rest] == [one.epoch for one in expected[killed_after:]]
    np.testing.assert_allclose(
        [one.loss for one in rest], [one.loss for one in expected[killed_after:]], rtol=1e-3
    )
    torch.testing.assert_close(weights(second), weights(whole), rtol=1e-3, atol=1e-4)


def test_a_killed_run_keeps_its_best_weights_and_how_long_ago_they_were(tmp_path: Path) -> None:
    """Real measurements, seven in all, killed between two of them: the best is that of an unbroken run."""
    settings = replace(SETTINGS, evaluate_every=3)
    whole, first, second = trainer(settings), trainer(settings), trainer(settings)
    steps(whole.run(), 21)
    steps(first.run(), 17)
    first.save_checkpoint(tmp_path)
    assert second.load_checkpoint(tmp_path)
    assert (second.best.step, second.best.since) == (first.best.step, first.best.since)
    assert second.best_agreement == first.best_agreement
    steps(second.run(), 4)
    assert (second.best.step, second.best.since) == (whole.best.step, whole.best.since)
    np.testing.assert_allclose(second.best_agreement or (), whole.best_agreement or (), atol=0.02)
    for training in (second, whole):
        training.use_best()
    torch.testing.assert_close(weights(second), weights(whole), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("killed_after", [2, 3, 4])
def test_patience_counts_on_after_a_kill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed_after: int
) -> None:
    """More patience may be asked for: a training that had stopped then goes on."""
    agreements = [0.2, 0.4, 0.3, 0.3, 0.3, 0.1, 0.5]
    settings = replace(SETTINGS, evaluate_every=1, patience=3)
    first, second, third = trainer(settings), trainer(settings), trainer(replace(settings, patience=5))
    pretend(monkeypatch, first, agreements)
    steps(first.run(), killed_after)
    first.save_checkpoint(tmp_path)
    assert second.load_checkpoint(tmp_path)
    pretend(monkeypatch, second, agreements)
    assert [one.step for one in second.run()] == list(range(killed_after + 1, 6))
    assert (second.best.step, second.stopped) == (2, "early")
    second.save_checkpoint(tmp_path)
    second.use_best()
    assert fc_of(second.head) == 2
    assert third.load_checkpoint(tmp_path)
    pretend(monkeypatch, third, agreements)
    assert [one.step for one in steps(third.run(), 2)] == [6, 7]
    assert (third.best.step, third.best.since) == (7, 0)


def test_a_checkpoint_of_before_the_best_step_was_kept_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    training, again = (
        trainer(replace(SETTINGS, evaluate_every=1)),
        trainer(replace(SETTINGS, evaluate_every=1)),
    )
    pretend(monkeypatch, training, [0.2, 0.1])
    steps(training.run(), 2)
    training.save_checkpoint(tmp_path)
    header = tmp_path / "checkpoint.json"
    older = json.loads(header.read_text())
    del older["best_step"]
    header.write_text(json.dumps(older))
    assert again.load_checkpoint(tmp_path)
    assert (again.best.step, again.best.since, again.best_agreement) == (None, 1, (0.2, 0.1, 0.1))


def test_only_one_checkpoint_is_kept(tmp_path: Path) -> None:
    training = trainer()
    run = training.run()
    for _ in range(3):
        next(run)
        (tmp_path / ".checkpoint-9.safetensors.x.tmp").touch()  # what a kill left of another
        training.save_checkpoint(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint-3.safetensors", "checkpoint.json"]


def test_a_checkpoint_of_other_settings_or_a_damaged_one_is_refused(tmp_path: Path) -> None:
    """Other minutes and patience may be asked for; anything else is another run."""
    training = trainer()
    next(training.run())
    training.save_checkpoint(tmp_path)
    assert trainer(replace(SETTINGS, minutes=5.0, patience=2)).load_checkpoint(tmp_path)
    with pytest.raises(ValueError, match="was trained with other learning_rate, seed; choose another --out"):
        trainer(replace(SETTINGS, learning_rate=1.0, seed=3)).load_checkpoint(tmp_path)
    (file,) = tmp_path.glob("*.safetensors")
    file.write_bytes(file.read_bytes()[:-5])
    with pytest.raises(ValueError, match=r"head checkpoint .* is damaged or truncated"):
        trainer().load_checkpoint(tmp_path)


@pytest.mark.parametrize("lost", ["best.fc.weight", "head.fc.weight"])
def test_a_checkpoint_without_some_weights_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    training = trainer(replace(SETTINGS, evaluate_every=1))
    pretend(monkeypatch, training, [0.2])
    steps(training.run(), 1)
    training.save_checkpoint(tmp_path)
    file = tmp_path / "checkpoint-1.safetensors"
    tensors = load_tensors(file, "checkpoint")
    del tensors[lost]
    save_tensors(file, tensors)
    with pytest.raises(ValueError, match="does not fit this head: remove it"):
        trainer(replace(SETTINGS, evaluate_every=1)).load_checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("elapsed", "NaN", "elapsed is nan, must be a number >= 0"),  # its minutes would never be spent
        ("elapsed", "Infinity", "elapsed is inf"),
        ("elapsed", "-1.0", "elapsed is -1.0"),
        ("step", "-1", "step is -1"),
        ("step", "1e999", "cannot convert float infinity to integer"),
        ("since_best", "-1", "since_best is -1"),
    ],
)
def test_numbers_that_no_training_has_are_refused(field: str, value: str, says: str, tmp_path: Path) -> None:
    training = trainer()
    next(training.run())
    training.save_checkpoint(tmp_path)
    header = tmp_path / "checkpoint.json"
    raw = json.loads(header.read_text()) | {field: "here"}
    header.write_text(json.dumps(raw).replace('"here"', value))
    with pytest.raises(ValueError, match="is damaged") as error:
        trainer().load_checkpoint(tmp_path)
    assert says in str(error.value)
