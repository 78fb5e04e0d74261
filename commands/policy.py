"""`train.py policy`: the depth and the size policy, trained on the real loop and validated as a pair."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from commands.decoder import load_decoder
from commands.run import (
    INFO_FILE,
    make_environment,
    open_request,
    partner_shape,
    policy_info,
    ppo_settings,
    run_identity,
    training_record,
)
from configs.command import chosen_seed, progress_bar
from configs.loading import dump_config
from configs.schema import Config
from decoding.artifacts import write_json, write_text
from decoding.controller import FixedController
from decoding.decoder import SpeculativeDecoder
from decoding.exported import Constant, ExportedController
from decoding.machine import use_threads
from decoding.metrics import tokens_per_second
from decoding.session import Session
from decoding.workload import Request, load_workload, select
from evaluation.validation import validate
from policies.export import network_of
from policies.ppo import is_finished, train


def train_policy(config: Config, out: Path) -> None:
    """Train the depth policy, then the size policy, on the real loop; score the pair on validation."""
    if config.policy.preset == "default":
        from commands.cycle_policy import train_cycle_policy

        train_cycle_policy(config, out)
        return
    workload = load_workload(config.workload.files)
    picks = {"categories": config.workload.categories, "languages": config.workload.languages}
    requests = select(workload, "train", config.workload.train_prompts, **picks)
    held_out = select(workload, "validation", config.workload.validation_prompts, **picks)
    record = training_record(out)
    seed = record["seed"] if record and config.seed is None else chosen_seed(config)
    threads = use_threads(config.threads)
    decoder = load_decoder(config)
    decoder.check_prompts({request.question_id: request.turns[0] for request in [*requests, *held_out]})
    run = run_identity(config, decoder)
    # Another run's checkpoints are refused here, before its record is written over.
    finished = [
        is_finished(ppo_settings(config, kind), seed, out / "training" / kind, run=run)
        for kind in ("depth", "size")
    ]
    if all(finished) and "info" in record and (record["seed"], record["run"]) == (seed, run):
        print(f"the training in {out} is finished already: nothing to do")
        return
    print("warming up every shape")
    _warm(decoder, requests[0], config)
    partner = FixedController(*partner_shape(config))
    reference = tokens_per_second(
        record
        for request in requests[:2]
        for record in open_request(decoder, request, config, config.sampling.max_new_tokens, seed).run(
            partner
        )
    )
    print(f"training on {len(requests)} prompts, {threads} threads; partner {reference:.1f} tokens/s")
    write_json(out / INFO_FILE, {"seed": seed, "run": run})
    write_text(out / "config.yaml", dump_config(config))

    def open_session(rng: np.random.Generator) -> Session:
        request = requests[rng.integers(len(requests))]
        return open_request(
            decoder, request, config, config.sampling.max_new_tokens, int(rng.integers(2**32))
        )

    models = {}
    for kind in ("depth", "size"):
        settings = ppo_settings(config, kind)
        with progress_bar() as bar:
            task = bar.add_task(f"{kind} policy", total=settings.total_timesteps, note="")

            def on_progress(done: int, total: int, speed: float, bar: Any = bar, task: Any = task) -> None:
                bar.update(task, completed=done, total=total, note=f"{speed:.1f} tokens/s")

            models[kind] = train(
                make_environment(kind, config, open_session),
                settings,
                seed,
                out / "training" / kind,
                reference=reference,
                tensorboard_dir=out / "tensorboard" / kind,
                progress=on_progress,
                run=run,
            )
            bar.update(task, completed=settings.total_timesteps)
    info = policy_info(config, decoder, {}, Constant(*partner_shape(config)))
    controller = ExportedController(info, network_of(models["depth"]), network_of(models["size"]))
    print(f"validating on {len(held_out)} prompts")
    usual = (decoder.drafter.draft_depth, decoder.drafter.verification_size)
    result = validate(
        controller,
        decoder.drafter.name,
        sorted({partner_shape(config), usual, (1, 4), (2, 8)}),
        held_out,
        lambda request: open_request(decoder, request, config, config.evaluation.max_new_tokens, seed),
        np.random.default_rng([seed, 3]),
    )
    validation = {"tokens_per_second": result.tokens_per_second, "requests": result.requests}
    info = policy_info(config, decoder, validation, result.best_fixed)
    write_json(out / INFO_FILE, {"seed": seed, "run": run, "info": info.to_json()})
    speeds = ", ".join(f"{name} {speed:.1f}" for name, speed in result.tokens_per_second.items())
    print(f"validation on {result.requests} prompts, tokens/s: {speeds}")
    print(f"wrote {out / INFO_FILE}: export the policy with `python train.py export` and the same flags")


def _warm(decoder: SpeculativeDecoder, request: Request, config: Config) -> None:
    """Every shape once, before anything is timed: the reward is wall-clock time."""
    for size in config.policy.size.verification_sizes:
        for _ in open_request(decoder, request, config, 8, 0).run(
            FixedController(config.draft.max_depth, size)
        ):
            pass
