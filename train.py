"""Let a target write texts, train a draft head on them, train the policies, export them for the decoder.

`python train.py {texts,drafter,policy,export} --config C [--set a.b=v] --out DIR`. Each goes on after a kill.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from torch.utils.tensorboard import SummaryWriter

import envs  # noqa: F401 (registers the environments)
from configs.command import add_flags, chosen_seed, exit_code, progress_bar, read_config
from configs.loading import dump_config
from configs.schema import Config
from decoding.artifacts import read_json, write_json, write_text
from decoding.controller import FixedController
from decoding.corpus import corpus_name
from decoding.decoder import SpeculativeDecoder
from decoding.exported import Constant, ExportedController, PolicyInfo
from decoding.features import DepthFeatures, SizeFeatures
from decoding.head_recipe import check_draft_vocabulary, prepare
from decoding.machine import use_threads
from decoding.metrics import tokens_per_second
from decoding.models import LoadedModel, load_model
from decoding.self_text import TextSettings, enough_shards, recorded_seed, write_texts
from decoding.session import Session
from decoding.text_plans import read_openings
from decoding.train_head import HeadSettings, HeadTrainer
from decoding.workload import Request, load_workload, select
from evaluation.validation import validate
from policies.export import export_policy, network_of
from policies.ppo import PPOSettings, is_finished, load_trained, train

INFO_FILE = "training.json"


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; 2 and one line for a user's mistake."""
    parser = argparse.ArgumentParser(prog="train.py", description=__doc__, allow_abbrev=False)
    parser.add_argument("what", choices=["texts", "drafter", "policy", "export"], help="what to do")
    add_flags(parser)
    options = parser.parse_args(arguments)
    commands: dict[str, Callable[[Config, Path], None]] = {
        "texts": write_own_texts,
        "drafter": train_drafter,
        "policy": train_policy,
        "export": export,
    }
    return exit_code(lambda: commands[options.what](read_config(options), options.out))


def write_own_texts(config: Config, out: Path) -> None:
    """Let the target write the texts that its head is trained on, into `out/texts`."""
    threads = use_threads(config.threads)
    _own_texts(
        load_model(config.model.target, config.model.device, "float32"), config, out / "texts", threads
    )
    print(f"wrote {out / 'texts'}: train on it with --set drafter.corpus={out / 'texts'}")


def _own_texts(model: LoadedModel, config: Config, folder: Path, threads: int) -> list[Path]:
    """The shards with `written_tokens` tokens, written where they are not there yet."""
    drafter = config.drafter
    recorded = recorded_seed(folder)
    settings = TextSettings(
        tokens=drafter.written_tokens,
        seed=recorded if recorded is not None and config.seed is None else chosen_seed(config),
        max_length=drafter.max_length,
        temperatures=tuple(drafter.written_temperatures),
        batch=drafter.written_batch,
    )
    for now in write_texts(model, folder, settings, read_openings(drafter.openings)):
        print(f"{now}, {threads} threads", flush=True)
    return enough_shards(folder, drafter.written_tokens)


def train_drafter(config: Config, out: Path) -> None:
    """Train an EAGLE-3 head for the target; the result is the folder `out/head`."""
    settings = config.drafter
    threads = use_threads(config.threads)
    # Training needs fp32, whatever the target will decode in.
    model = load_model(config.model.target, config.model.device, "float32")
    check_draft_vocabulary(model, settings.draft_vocabulary)
    trainer = prepare(
        model,
        settings.corpus or _own_texts(model, config, out / "texts", threads),
        HeadSettings(
            minutes=settings.minutes,
            unroll_steps=settings.unroll_steps,
            batch_tokens=settings.batch_tokens,
            learning_rate=settings.learning_rate,
            weight_decay=settings.weight_decay,
            seed=config.seed or 0,
        ),
        draft_vocabulary=settings.draft_vocabulary,
        max_length=settings.max_length,
        held_out_share=settings.held_out_share,
    )
    if trainer.load_checkpoint(out / "checkpoint"):
        print(f"going on at step {trainer.step}, after {trainer.elapsed / 60:.1f} minutes of training")
    print(f"{trainer.training_tokens} tokens, {settings.minutes:g} minutes, {threads} threads")
    agreement = _run_trainer(trainer, out) or trainer.agreement()
    card = {
        "training_tokens": trainer.training_tokens,
        "training_minutes": round(trainer.elapsed / 60, 1),
        "steps": trainer.step,
        "threads": threads,
        "held_out_agreement_by_step": [round(share, 3) for share in agreement],
        "settings": config.model_dump(mode="json")["drafter"] | {"corpus": corpus_name(settings.corpus)},
        "target": config.model.target,
    }
    trainer.head.save(out / "head", card)
    print(f"held-out agreement by draft step: {' '.join(f'{share:.3f}' for share in agreement)}")
    print(f"wrote {out / 'head'}: use it with --drafter {out / 'head'}")


def _run_trainer(trainer: HeadTrainer, out: Path) -> tuple[float, ...] | None:
    """Drive the trainer: progress bar, TensorBoard, a checkpoint a minute."""
    agreement, saved = None, time.monotonic()
    writer = SummaryWriter(str(out / "tensorboard"))
    with progress_bar() as bar:
        seconds = round(trainer.settings.minutes * 60)
        task = bar.add_task("head", total=seconds, completed=min(seconds, round(trainer.elapsed)), note="")
        for progress in trainer.run():
            writer.add_scalar("head/loss", progress.loss, progress.step)
            writer.add_scalar("head/learning_rate", progress.learning_rate, progress.step)
            if progress.agreement is not None:
                agreement = progress.agreement
                for step, share in enumerate(agreement, start=1):
                    writer.add_scalar(f"head/held_out_agreement_{step}", share, progress.step)
            note = f"epoch {progress.epoch:.2f} loss {progress.loss:.2f}"
            bar.update(task, completed=min(seconds, round(progress.elapsed)), note=note)
            if time.monotonic() - saved > 60:
                trainer.save_checkpoint(out / "checkpoint")
                saved = time.monotonic()
    trainer.save_checkpoint(out / "checkpoint")
    writer.close()
    return agreement


def train_policy(config: Config, out: Path) -> None:
    """Train the depth policy, then the size policy, on the real loop; score the pair on validation."""
    workload = load_workload(config.workload.files)
    picks = {"categories": config.workload.categories, "languages": config.workload.languages}
    requests = select(workload, "train", config.workload.train_prompts, **picks)
    held_out = select(workload, "validation", config.workload.validation_prompts, **picks)
    record = _training_record(out)
    seed = record["seed"] if record and config.seed is None else chosen_seed(config)
    threads = use_threads(config.threads)
    decoder = _decoder(config)
    decoder.check_prompts({request.question_id: request.turns[0] for request in [*requests, *held_out]})
    run = _identity(config, decoder)
    # Another run's checkpoints are refused here, before its record is written over.
    finished = [
        is_finished(_settings(config, kind), seed, out / "training" / kind, run=run)
        for kind in ("depth", "size")
    ]
    if all(finished) and "info" in record and (record["seed"], record["run"]) == (seed, run):
        print(f"the training in {out} is finished already: nothing to do")
        return
    print("warming up every shape")
    _warm(decoder, requests[0], config)
    partner = FixedController(*_partner(config))
    reference = tokens_per_second(
        record
        for request in requests[:2]
        for record in _open(decoder, request, config, config.sampling.max_new_tokens, seed).run(partner)
    )
    print(f"training on {len(requests)} prompts, {threads} threads; partner {reference:.1f} tokens/s")
    write_json(out / INFO_FILE, {"seed": seed, "run": run})
    write_text(out / "config.yaml", dump_config(config))

    def open_session(rng: np.random.Generator) -> Session:
        request = requests[rng.integers(len(requests))]
        return _open(decoder, request, config, config.sampling.max_new_tokens, int(rng.integers(2**32)))

    models = {}
    for kind in ("depth", "size"):
        settings = _settings(config, kind)
        with progress_bar() as bar:
            task = bar.add_task(f"{kind} policy", total=settings.total_timesteps, note="")

            def on_progress(done: int, total: int, speed: float, bar: Any = bar, task: Any = task) -> None:
                bar.update(task, completed=done, total=total, note=f"{speed:.1f} tokens/s")

            models[kind] = train(
                _env(kind, config, open_session),
                settings,
                seed,
                out / "training" / kind,
                reference=reference,
                tensorboard_dir=out / "tensorboard" / kind,
                progress=on_progress,
                run=run,
            )
            bar.update(task, completed=settings.total_timesteps)
    info = _info(config, decoder, {}, Constant(*_partner(config)))
    controller = ExportedController(info, network_of(models["depth"]), network_of(models["size"]))
    print(f"validating on {len(held_out)} prompts")
    usual = (decoder.drafter.draft_depth, decoder.drafter.verification_size)
    result = validate(
        controller,
        decoder.drafter.name,
        sorted({_partner(config), usual, (1, 4), (2, 8)}),
        held_out,
        lambda request: _open(decoder, request, config, config.evaluation.max_new_tokens, seed),
        np.random.default_rng([seed, 3]),
    )
    validation = {"tokens_per_second": result.tokens_per_second, "requests": result.requests}
    info = _info(config, decoder, validation, result.best_fixed)
    write_json(out / INFO_FILE, {"seed": seed, "run": run, "info": info.to_json()})
    speeds = ", ".join(f"{name} {speed:.1f}" for name, speed in result.tokens_per_second.items())
    print(f"validation on {result.requests} prompts, tokens/s: {speeds}")
    print(f"wrote {out / INFO_FILE}: export the policy with `python train.py export` and the same flags")


def export(config: Config, out: Path) -> None:
    """Write the trained pair to `out/policy`, which a decoder loads."""
    record = _training_record(out)
    if "info" not in record:
        raise ValueError(f"{out / INFO_FILE} says of no finished training: run train.py policy first")
    try:
        info = PolicyInfo.from_json(record["info"])
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"{out / INFO_FILE} is damaged ({error}): remove it, run train.py policy") from None

    def never(rng: np.random.Generator) -> Session:
        raise AssertionError("an export decodes nothing")

    models = [
        load_trained(
            _env(kind, config, never),
            _settings(config, kind),
            record["seed"],
            out / "training" / kind,
            run=record["run"],
        )
        for kind in ("depth", "size")
    ]
    export_policy(out / "policy", models[0], models[1], info)
    print(f"wrote {out / 'policy'}: decode with python -m decoding PROMPT --policy {out / 'policy'}")


def _training_record(out: Path) -> dict[str, Any]:
    """What an earlier start wrote of this run; empty if there was none."""
    path = out / INFO_FILE
    if not path.exists():
        return {}
    record = read_json(path, "training record")
    if type(record.get("seed")) is not int or not isinstance(record.get("run"), dict):
        raise ValueError(f"training record {path} is damaged: remove it")
    return record


def _decoder(config: Config) -> SpeculativeDecoder:
    return SpeculativeDecoder.from_pretrained(
        config.model.target,
        config.model.drafter,
        device=config.model.device,
        dtype=config.model.dtype,
        beam_width=config.draft.beam_width,
    )


def _open(decoder: SpeculativeDecoder, request: Request, config: Config, tokens: int, seed: int) -> Session:
    return decoder.open_session(
        decoder.as_user(request.turns[0]), max_new_tokens=tokens, seed=seed, **config.sampling.law
    )


def _partner(config: Config) -> tuple[int, int]:
    return config.policy.partner_depth, config.policy.partner_size


def _settings(config: Config, kind: str) -> PPOSettings:
    values = getattr(config.policy, kind).model_dump()
    values.pop("verification_sizes", None)
    return PPOSettings(**values)


def _env(kind: str, config: Config, open_session: Callable[[np.random.Generator], Session]) -> gymnasium.Env:
    shape: dict[str, Any] = {"max_depth": config.draft.max_depth, "reward": config.policy.reward}
    if kind == "depth":
        shape["beam_width"] = config.draft.beam_width
    else:
        shape["verification_sizes"] = config.policy.size.verification_sizes
    return gymnasium.make(
        f"draftpace/{kind.capitalize()}-v0",
        disable_env_checker=True,  # it is checked by the tests; here it would only slow every step
        open_session=open_session,
        partner=FixedController(*_partner(config)),
        **shape,
    )


def _identity(config: Config, decoder: SpeculativeDecoder) -> dict[str, Any]:
    """What a checkpoint must have been trained with, besides its own settings and seed."""
    whole = config.model_dump(mode="json")
    return {
        "draft": whole["draft"],
        "sampling": whole["sampling"],
        "workload": whole["workload"],
        "partner": list(_partner(config)),
        "verification_sizes": config.policy.size.verification_sizes,
        "reward": config.policy.reward,
        "device": decoder.target.device.type,
        "dtype": str(decoder.target.dtype),
        "target": decoder.target.fingerprint(),
        "drafter": decoder.drafter.fingerprint(),
    }


def _info(
    config: Config, decoder: SpeculativeDecoder, validation: dict[str, Any], fallback: Constant
) -> PolicyInfo:
    sizes = tuple(config.policy.size.verification_sizes)
    return PolicyInfo(
        depth_features=DepthFeatures(config.draft.beam_width, config.draft.max_depth),
        size_features=SizeFeatures(sizes[-1], config.draft.max_depth),
        verification_sizes=sizes,
        fingerprints={
            "target": decoder.target.fingerprint(),
            "drafter": decoder.drafter.fingerprint(),
            "tokenizer": decoder.model.tokenizer_fingerprint(),
        },
        device=decoder.target.device.type,
        dtype=str(decoder.target.dtype).removeprefix("torch."),
        training=config.model_dump(mode="json"),
        validation=validation,
        fallback=fallback,
    )


def _warm(decoder: SpeculativeDecoder, request: Request, config: Config) -> None:
    """Every shape once, before anything is timed: the reward is wall-clock time."""
    for size in config.policy.size.verification_sizes:
        for _ in _open(decoder, request, config, 8, 0).run(FixedController(config.draft.max_depth, size)):
            pass


if __name__ == "__main__":
    sys.exit(main())
