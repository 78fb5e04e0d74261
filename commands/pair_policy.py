"""The depth and the size policy, trained in turns, decoding or in replay, and validated as pairs."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from commands.decoder import load_decoder
from commands.pair_sessions import PairSessions, pair_sessions
from commands.run import (
    INFO_FILE,
    co_training,
    frozen_half,
    make_environment,
    open_request,
    partner_shape,
    policy_info,
    ppo_settings,
    run_identity,
    training_record,
    usual_partner,
)
from configs.command import chosen_seed, progress_bar
from configs.loading import dump_config
from configs.schema import Config
from decoding.artifacts import write_json, write_text
from decoding.controller import FixedController
from decoding.decoder import SpeculativeDecoder
from decoding.exported import Constant, ExportedController, Network
from decoding.machine import use_threads
from decoding.metrics import tokens_per_second
from decoding.workload import load_workload, select
from evaluation.validation import Validation, validate
from policies.co_training import Kind, Turn, TurnProgress, pairs


def train_pair(config: Config, out: Path) -> None:
    """Train both policies in turns; score the pairs on validation and keep the best."""
    record = training_record(out)
    seed = record["seed"] if record and config.seed is None else chosen_seed(config)
    threads = use_threads(config.threads)
    decoder = load_decoder(config)
    sessions = pair_sessions(config, decoder, seed)
    run = run_identity(config, decoder, sessions.identity)
    turns = co_training(config, out, seed, run)
    # Another run's checkpoints are refused here, before its record is written over.
    finished = turns.finished() == len(turns.turns)
    same = bool(record) and (record["seed"], record["run"]) == (seed, run)
    if finished and same and record.get("turns") == len(turns.turns) and "info" in record:
        print(f"the training in {out} is finished already: nothing to do")
        return
    # A resumed run keeps the rewards' divisor of its first start.
    kept = record.get("reference") if same else None
    reference = _reference(config, decoder, sessions) if kept is None else float(kept)
    print(f"training on {sessions.what}, {threads} threads; partner {reference:.1f} tokens/s")
    begun = {"seed": seed, "run": run, "reference": reference, "turns": len(turns.turns)}
    write_json(out / INFO_FILE, begun)
    write_text(out / "config.yaml", dump_config(config))

    def make_env(turn: Turn, partner: Network | None) -> gymnasium.Env[Any, Any]:
        beside = (
            usual_partner(turn.kind, config)
            if partner is None
            else frozen_half(turn.kind, partner, config, decoder)
        )
        return make_environment(turn.kind, config, sessions.open_next, beside)

    with _shown(config) as show:
        networks = turns.train(
            make_env, reference=reference, tensorboard_dir=out / "tensorboard", progress=show
        )
    candidates = pairs(turns.turns)
    result = _validated(config, decoder, sessions, networks, candidates, seed)
    validation = {"tokens_per_second": result.tokens_per_second, "requests": result.requests}
    info = policy_info(config, decoder, validation, result.best_fixed)
    chosen = candidates[result.best_learned]
    write_json(out / INFO_FILE, {**begun, "chosen": chosen, "info": info.to_json()})
    speeds = ", ".join(f"{name} {speed:.1f}" for name, speed in result.tokens_per_second.items())
    print(f"validation on {result.requests} {'prompts' if sessions.live else 'texts'}, tokens/s: {speeds}")
    print(f"wrote {out / INFO_FILE}: export the policy with `python train.py export` and the same flags")


def _reference(config: Config, decoder: SpeculativeDecoder, sessions: PairSessions) -> float:
    """Tokens per second of the fixed partner."""
    if sessions.live:
        print("warming up every shape")
        _warm(decoder, config)
    partner = FixedController(*partner_shape(config))
    return tokens_per_second(record for session in sessions.reference() for record in session.run(partner))


def _validated(
    config: Config,
    decoder: SpeculativeDecoder,
    sessions: PairSessions,
    networks: dict[str, Network],
    candidates: dict[str, dict[Kind, str]],
    seed: int,
) -> Validation:
    """The pairs that stood after each turn, plain decoding and a few fixed settings, on validation."""
    print(f"validating {len(candidates)} pairs on {len(sessions.held_out)} held out")
    info = policy_info(config, decoder, {}, Constant(*partner_shape(config)))
    learned = {
        name: ExportedController(info, networks[pair["depth"]], networks[pair["size"]])
        for name, pair in candidates.items()
    }
    usual = (min(decoder.drafter.draft_depth, config.draft.max_depth), decoder.drafter.verification_size)
    settings = {partner_shape(config), usual, (1, 4), (min(2, config.draft.max_depth), 8)}
    return validate(
        learned,
        decoder.drafter.name,
        sorted(settings),
        sessions.held_out,
        sessions.open_held_out,
        np.random.default_rng([seed, 3]),
    )


@contextmanager
def _shown(config: Config) -> Iterator[TurnProgress]:
    """A bar for each turn that trains."""
    with progress_bar() as bar:

        @functools.cache
        def task(name: str, kind: Kind) -> Any:
            total = ppo_settings(config, kind).total_timesteps
            return bar.add_task(f"{name} policy", total=total, note="")

        def show(turn: Turn, done: int, total: int, speed: float) -> None:
            bar.update(task(turn.name, turn.kind), completed=done, total=total, note=f"{speed:.1f} tokens/s")

        yield show


def _warm(decoder: SpeculativeDecoder, config: Config) -> None:
    """Every shape once, before anything is timed: the reward is wall-clock time."""
    workload = load_workload(config.workload.files)
    (request,) = select(
        workload, "train", 1, categories=config.workload.categories, languages=config.workload.languages
    )
    for size in config.policy.size.verification_sizes:
        controller = FixedController(config.draft.max_depth, size)
        for _ in open_request(decoder, request, config, 8, 0).run(controller):
            pass
