"""`train.py drafter`: an EAGLE-3 head, trained for the target."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from torch.utils.tensorboard import SummaryWriter

from commands.texts import own_texts
from configs.command import progress_bar
from configs.schema import Config, DrafterSettings
from decoding.artifacts import fingerprint_weights
from decoding.calibration import CALIBRATION_FILE, Calibration
from decoding.corpus import corpus_name
from decoding.drafters.eagle_head import EagleHead
from decoding.head_recipe import check_draft_vocabulary, check_start, prepare
from decoding.head_settings import HeadProgress, HeadSettings
from decoding.machine import use_threads
from decoding.models import LoadedModel, load_model
from decoding.train_head import HeadTrainer


def train_drafter(config: Config, out: Path) -> None:
    """Train an EAGLE-3 head for the target; the folder `out/head` holds its best held-out weights."""
    settings = config.drafter
    threads = use_threads(config.threads)
    # Training needs fp32, whatever the target will decode in.
    model = load_model(config.model.target, config.model.device, "float32", "eager")
    check_draft_vocabulary(model, settings.draft_vocabulary)
    start = check_start(model, settings.start_from, _fused_layers(settings))
    trainer = _trainer(model, config, out, threads)
    resumed = trainer.load_checkpoint(out / "checkpoint")
    if trainer.stopped is not None:
        print(f"nothing left to train after {_done(trainer)}: {_why(trainer)}")
    else:
        if resumed:
            print(f"going on after {_done(trainer)}")
        print(f"{trainer.training_tokens} tokens, {settings.minutes:g} minutes, {threads} threads")
        _train(trainer, out, measure_start=start is not None)
        print(f"stopped after {_done(trainer)}: {_why(trainer)}")
    agreement = trainer.best_agreement or trainer.measure()
    trainer.use_best()
    trainer.head.save(out / "head", _card(trainer, config, start, threads))
    _drop_calibration(out / "head", fingerprint_weights(trainer.head.state_dict()))
    print(f"best measurement, at step {trainer.best.step}: {_in_words(agreement)}")
    print(f"wrote {out / 'head'}: use it with --drafter {out / 'head'}")


def _drop_calibration(folder: Path, head_fingerprint: str) -> None:
    """Remove that of other weights: with it beside them the head would be refused."""
    try:
        calibration = Calibration.load(folder)
    except ValueError:
        calibration = None
    stale = calibration is None or calibration.fingerprints["drafter"] != head_fingerprint
    if (folder / CALIBRATION_FILE).exists() and stale:
        (folder / CALIBRATION_FILE).unlink()
        print(f"removed an older head's {CALIBRATION_FILE}: run train.py calibrate again")


def _trainer(model: LoadedModel, config: Config, out: Path, threads: int) -> HeadTrainer:
    settings = config.drafter
    return prepare(
        model,
        settings.corpus or own_texts(model, config, out / "texts", threads),
        HeadSettings(
            minutes=settings.minutes,
            unroll_steps=settings.unroll_steps,
            batch_tokens=settings.batch_tokens,
            learning_rate=settings.learning_rate,
            weight_decay=settings.weight_decay,
            evaluate_every=settings.evaluate_every,
            patience=settings.patience,
            freeze_output=settings.freeze_output,
            seed=config.seed or 0,
        ),
        draft_vocabulary=settings.draft_vocabulary,
        max_length=settings.max_length,
        held_out_share=settings.held_out_share,
        fused_layers=_fused_layers(settings),
        start_from=settings.start_from,
        states_folder=out / "states" if settings.keep_states else None,
    )


def _fused_layers(settings: DrafterSettings) -> tuple[int, int, int] | None:
    if settings.fused_layers is None:
        return None
    low, middle, high = settings.fused_layers
    return low, middle, high


def _train(trainer: HeadTrainer, out: Path, measure_start: bool) -> None:
    """Drive the trainer: progress bar, TensorBoard, a checkpoint a minute and at every measurement."""
    saved = time.monotonic()
    seconds = round(trainer.settings.minutes * 60)
    curves = _Curves(out / "tensorboard", trainer)
    with closing(curves), progress_bar() as bar, _interrupts_between_steps() as interrupted:
        if measure_start and trainer.best_agreement is None:
            # A head that more text only makes worse stays as it was.
            curves.agreement(trainer.measure(), trainer.step)
            trainer.save_checkpoint(out / "checkpoint")
        task = bar.add_task("head", total=seconds, completed=min(seconds, round(trainer.elapsed)), note="")
        for progress in trainer.run():
            curves.step(progress)
            note = f"epoch {progress.epoch:.2f} loss {progress.loss:.2f}"
            bar.update(task, completed=min(seconds, round(progress.elapsed)), note=note)
            measured, leave = progress.agreement is not None, interrupted()
            if measured or leave or time.monotonic() - saved > 60:
                trainer.save_checkpoint(out / "checkpoint")
                saved = time.monotonic()
            if leave:
                signal.raise_signal(leave)  # to whom it would have gone


class _Curves:
    """The TensorBoard curves of a run; what a killed run wrote after its last checkpoint is hidden."""

    def __init__(self, folder: Path, trainer: HeadTrainer) -> None:
        self._writer = SummaryWriter(str(folder), purge_step=trainer.step + 1)
        self._elapsed = trainer.elapsed

    def close(self) -> None:
        self._writer.close()

    def step(self, progress: HeadProgress) -> None:
        self._writer.add_scalar("head/loss", progress.loss, progress.step)
        self._writer.add_scalar("head/learning_rate", progress.learning_rate, progress.step)
        rate = progress.tokens / (progress.elapsed - self._elapsed)
        self._writer.add_scalar("head/training_tokens_per_second", rate, progress.step)
        self._elapsed = progress.elapsed
        if progress.agreement is not None:
            self.agreement(progress.agreement, progress.step)

    def agreement(self, shares: tuple[float, ...], step: int) -> None:
        for level, share in enumerate(shares, start=1):
            self._writer.add_scalar(f"head/held_out_agreement_{level}", share, step)


@contextmanager
def _interrupts_between_steps() -> Iterator[Callable[[], int]]:
    """The signal that came, 0 if none did: half a step is no place to go on from. A second ends at once."""
    came = 0

    def note(number: int, _frame: object) -> None:
        nonlocal came
        came = number
        give_back()

    def give_back() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    # Who ignores a signal goes on ignoring it: it is raised again below.
    heard = [one for one in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(one) is not signal.SIG_IGN]
    before = {number: signal.signal(number, note) for number in heard}
    try:
        yield lambda: came
    finally:
        give_back()


def _card(trainer: HeadTrainer, config: Config, start: EagleHead | None, threads: int) -> dict[str, Any]:
    settings = config.drafter
    # Names alone: folders would tell of the machine.
    started_from, names = None, {"corpus": corpus_name(settings.corpus)}
    if start is not None and settings.start_from is not None:
        names["start_from"] = settings.start_from.name
        fingerprint = fingerprint_weights(start.state_dict())
        started_from = {"name": settings.start_from.name, "fingerprint": fingerprint}
    return {
        "texts": trainer.training_texts,
        "training_tokens": trainer.training_tokens,
        "training_minutes": round(trainer.elapsed / 60, 1),
        "steps": trainer.step,
        "epochs": round(trainer.epochs, 2),
        "threads": threads,
        "stopped": trainer.stopped,
        "best_step": trainer.best.step,
        "best_agreement": [round(share, 3) for share in trainer.best_agreement or ()],
        "started_from": started_from,
        "settings": config.model_dump(mode="json")["drafter"] | names,
        "target": config.model.target,
    }


def _done(trainer: HeadTrainer) -> str:
    return f"{trainer.step} steps, {trainer.elapsed / 60:.1f} minutes of training"


def _why(trainer: HeadTrainer) -> str:
    if trainer.stopped == "early":
        return f"{trainer.best.since} measurements without a better one; a greater drafter.patience goes on"
    return f"the {trainer.settings.minutes:g} minutes are spent; a greater drafter.minutes goes on"


def _in_words(agreement: tuple[float, ...]) -> str:
    shares = " ".join(f"{share:.3f}" for share in agreement)
    return f"held-out agreement by draft step {shares}"
