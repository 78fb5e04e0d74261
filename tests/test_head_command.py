"""`train.py drafter` end to end on a tiny model: it stops, goes on, survives kills, keeps the best."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import train
from decoding.artifacts import fingerprint_weights, load_tensors
from decoding.drafters.eagle_head import EagleHead
from decoding.train_head import HeadTrainer
from tests.fakes import save_tiny_model

ROOT = Path(train.__file__).parent


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """60 texts of 24 ids."""
    tokens = np.random.default_rng(0).integers(3, 250, 60 * 24)
    path = tmp_path_factory.mktemp("corpus") / "texts.npz"
    np.savez(path, tokens=tokens.astype(np.uint16), offsets=np.arange(61) * 24)
    return path


def command(folder: Path, out: Path, corpus: Path | None = None, **settings: Any) -> list[str]:
    values: dict[str, Any] = {
        "draft_vocabulary": 50,
        "minutes": 0.01,
        "evaluate_every": 5,
        "patience": "null",
    }
    values |= {"corpus": corpus} if corpus else {}
    flags = [f"--set=drafter.{key}={value}" for key, value in (values | settings).items()]
    model = [f"--set=model.target={folder}", "--set=model.device=cpu", "--set=threads=1", "--set=seed=1"]
    return ["drafter", *model, *flags, "--out", str(out)]


def card_of(out: Path) -> dict[str, Any]:
    card: dict[str, Any] = json.loads((out / "head" / "config.json").read_text(encoding="utf-8"))["card"]
    return card


def place_of(out: Path) -> dict[str, Any]:
    place: dict[str, Any] = json.loads((out / "checkpoint" / "checkpoint.json").read_text(encoding="utf-8"))
    return place


def files_in(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    """Measurements to come, in their order; a step writes its number into `fc` and takes no time."""
    to_come: list[float] = []

    def train_step(self: HeadTrainer, numbers: np.ndarray, rate: float) -> float:
        with torch.no_grad():
            self.head.fc.weight.fill_(self.step + 1)
        return 1.0

    monkeypatch.setattr(HeadTrainer, "_train_step", train_step)
    monkeypatch.setattr(HeadTrainer, "agreement", lambda self: (to_come.pop(0), 0.1))
    yield to_come
    assert not to_come, "fewer measurements than expected"


def test_a_finished_training_is_not_repeated_and_goes_on_with_more_minutes(
    folder: Path, corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    interrupts = signal.getsignal(signal.SIGINT)
    assert train.main(command(folder, tmp_path, corpus)) == 0
    assert signal.getsignal(signal.SIGINT) is interrupts
    said = capsys.readouterr().out
    card, place, head = card_of(tmp_path), place_of(tmp_path), files_in(tmp_path / "head")
    assert place["step"] == card["steps"] > 0
    assert card["best_step"] in {*range(5, card["steps"], 5), card["steps"]}
    assert f"best measurement, at step {card['best_step']}: held-out agreement by draft step 0." in said
    assert f"stopped after {card['steps']} steps" in said
    assert "the 0.01 minutes are spent; a greater drafter.minutes goes on" in said
    assert card["stopped"] == "minutes"
    assert card["started_from"] is None
    assert card["training_tokens"] == 24 * card["texts"]
    assert len(card["best_agreement"]) == card["settings"]["unroll_steps"] == 2
    assert card["epochs"] > 0
    assert "licence" not in card
    assert len(list((tmp_path / "states").glob("*.safetensors"))) > 0
    curves = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert set(curves.Tags()["scalars"]) == {
        *(f"head/{name}" for name in ("loss", "learning_rate", "training_tokens_per_second")),
        *(f"head/held_out_agreement_{level}" for level in range(1, 3)),
    }
    assert all(event.value > 0 for event in curves.Scalars("head/training_tokens_per_second"))
    assert train.main(command(folder, tmp_path, corpus)) == 0
    assert f"nothing left to train after {card['steps']} steps" in capsys.readouterr().out
    assert (place_of(tmp_path), files_in(tmp_path / "head")) == (place, head)
    assert train.main(command(folder, tmp_path, corpus, minutes=0.02)) == 0
    assert f"going on after {card['steps']} steps" in capsys.readouterr().out
    assert card_of(tmp_path)["steps"] > card["steps"]


def test_the_best_weights_are_saved_and_patience_ends_the_training(
    folder: Path, corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], measured: list[float]
) -> None:
    """Also when the same command comes again; more patience goes on."""
    measured += [0.3, 0.5, 0.4, 0.5]
    assert train.main(command(folder, tmp_path, corpus, patience=2, minutes=9)) == 0
    said = capsys.readouterr().out
    assert "best measurement, at step 10: held-out agreement by draft step 0.500 0.100" in said
    assert "stopped after 20 steps, 0.0 minutes of training: 2 measurements without a better one" in said
    assert (card_of(tmp_path)["stopped"], card_of(tmp_path)["best_agreement"]) == ("early", [0.5, 0.1])
    assert EagleHead.load(tmp_path / "head").fc.weight.unique().tolist() == [10]
    head = files_in(tmp_path / "head")
    (tmp_path / "head" / "model.safetensors").unlink()  # killed before it was written
    assert train.main(command(folder, tmp_path, corpus, patience=2, minutes=99)) == 0
    said = capsys.readouterr().out
    assert "nothing left to train after 20 steps, 0.0 minutes of training: 2 measurements without" in said
    assert files_in(tmp_path / "head")["model.safetensors"] == head["model.safetensors"]
    measured += [0.6, 0.1, 0.1, 0.1]
    assert train.main(command(folder, tmp_path, corpus, patience=3, minutes=9)) == 0
    assert EagleHead.load(tmp_path / "head").fc.weight.unique().tolist() == [25]


def test_a_head_goes_on_with_more_text_and_stays_as_it_was_where_that_is_worse(
    folder: Path,
    head: Path,
    corpus: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    measured: list[float],
) -> None:
    measured += [0.4, 0.3, 0.2]
    more = tmp_path / "more.jsonl"
    more.write_text("\n".join(json.dumps({"text": f"line {number}"}) for number in range(40)))
    sources = f"[{corpus},{more}]"
    settings: dict[str, Any] = {"start_from": head, "corpus": sources, "patience": 2}
    settings |= {"draft_vocabulary": 100, "minutes": 9}
    assert train.main(command(folder, tmp_path / "out", **settings)) == 0
    assert "best measurement, at step 0: held-out agreement by draft step 0.400" in capsys.readouterr().out
    old, new = EagleHead.load(head), EagleHead.load(tmp_path / "out" / "head")
    assert torch.equal(new.fc.weight, old.fc.weight.bfloat16().float())
    card = card_of(tmp_path / "out")
    fingerprint = fingerprint_weights(old.state_dict())
    assert card["started_from"] == {"name": head.name, "fingerprint": fingerprint}
    assert card["settings"]["start_from"] == head.name
    assert card["settings"]["corpus"] == "texts.npz, more.jsonl"
    assert str(tmp_path) not in json.dumps(card)
    # A fresh head in the same folder would be another run.
    del settings["start_from"]
    assert train.main(command(folder, tmp_path / "out", **settings)) == 2
    assert "was trained with other start_from; choose another --out" in capsys.readouterr().err


def test_an_interrupt_saves_a_checkpoint_first(
    folder: Path,
    corpus: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    """It comes within the third step, which is finished; a second one does not wait."""
    # A shell lets what it starts in the background ignore interrupts: these tests may be such a process.
    for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGTERM, signal.SIG_DFL)):
        request.addfinalizer(partial(signal.signal, number, signal.signal(number, handler)))
    before, plain_step = signal.getsignal(signal.SIGINT), HeadTrainer._train_step
    settings: dict[str, Any] = {"evaluate_every": 100, "keep_states": "false"}
    settings |= {"freeze_output": "false", "unroll_steps": 3}
    run = command(folder, tmp_path, corpus, minutes=5, **settings)

    def interrupted(times: int, at: int, number: signal.Signals = signal.SIGINT) -> int:
        def train_step(self: HeadTrainer, numbers: np.ndarray, rate: float) -> float:
            for _ in range(times if self.step + 1 == at else 0):
                signal.raise_signal(number)
            return plain_step(self, numbers, rate)

        with monkeypatch.context() as patch:
            patch.setattr(HeadTrainer, "_train_step", train_step)
            code = train.main(run)
        assert signal.getsignal(signal.SIGINT) is before
        return code

    assert interrupted(1, at=3) == 130
    assert "interrupted; the same command goes on from the last checkpoint" in capsys.readouterr().err
    assert place_of(tmp_path)["step"] == 3
    assert interrupted(2, at=5) == 130
    assert place_of(tmp_path)["step"] == 3
    assert interrupted(1, at=5, number=signal.SIGTERM) == 143
    assert "going on after 3 steps" in capsys.readouterr().out
    place = place_of(tmp_path)
    assert (place["step"], place["best_agreement"]) == (5, None)
    assert (place["settings"]["freeze_output"], place["settings"]["unroll_steps"]) == (False, 3)
    assert not (tmp_path / "states").exists()
    # Fewer minutes than were spent: nothing to train, and the weights as they are, measured.
    assert train.main(command(folder, tmp_path, corpus, minutes=1e-9, **settings)) == 0
    assert "nothing left to train after 5 steps" in capsys.readouterr().out
    assert (card_of(tmp_path)["best_step"], card_of(tmp_path)["stopped"]) == (5, "minutes")
    weights = load_tensors(tmp_path / "checkpoint" / "checkpoint-5.safetensors", "checkpoint")
    head = EagleHead.load(tmp_path / "head")
    assert torch.equal(head.fc.weight, weights["head.fc.weight"].bfloat16().float())


@pytest.mark.slow
def test_the_same_command_goes_on_after_kill_9(folder: Path, corpus: Path, tmp_path: Path) -> None:
    run = [sys.executable, str(ROOT / "train.py"), *command(folder, tmp_path, corpus, minutes=0.15)]
    header = tmp_path / "checkpoint" / "checkpoint.json"
    killed = subprocess.Popen(run, cwd=ROOT, stdout=subprocess.DEVNULL)
    while not header.exists() and killed.poll() is None:
        time.sleep(0.01)
    killed.kill()
    assert killed.wait() == -signal.SIGKILL
    step = place_of(tmp_path)["step"]
    assert not (tmp_path / "head").exists()
    done = subprocess.run(run, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert f"going on after {step} steps" in done.stdout
    assert card_of(tmp_path)["steps"] > step


def test_a_start_that_does_not_fit_is_one_line_and_nothing_is_written(
    folder: Path, head: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before the target writes texts for it."""
    (tmp_path / "damaged").mkdir()
    for name, content in files_in(head).items():
        (tmp_path / "damaged" / name).write_bytes(content[:-9] if name == "model.safetensors" else content)
    other = save_tiny_model(tmp_path / "other", seed=3)
    for target, settings, says in (
        (folder, {"start_from": tmp_path / "none"}, "none/config.json does not exist"),
        (folder, {"start_from": tmp_path / "damaged"}, "is damaged or truncated"),
        (other, {"start_from": head}, "belongs to another target: its fingerprint is"),
        (folder, {"start_from": head, "fused_layers": "[1,2,3]"}, "reads layers [2, 2, 1], not [1, 2, 3]"),
        (folder, {"fused_layers": "[1,2,5]"}, "fused layer 5 is outside 1..4 of this target"),
    ):
        assert train.main(command(target, tmp_path / "out", written_tokens=99, **settings)) == 2
        said = capsys.readouterr().err
        assert says in said
        assert said.count("\n") == 1
        assert not (tmp_path / "out").exists()
