"""`train.py policy`, preset default: one policy for every decision, learned from recordings."""

from __future__ import annotations

import hashlib
import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sb3_contrib import MaskablePPO

from commands.cycle_outcome import Candidate, after_live, finish, print_outcome
from commands.decoder import load_decoder
from commands.given import check_given
from commands.live_phase import fine_tune
from commands.profile import fingerprints
from commands.profile_table import doubts
from commands.recorded import (
    begun_seed,
    decisions_of,
    headers,
    profiles,
    read_recorded,
    recording_folders,
    recordings,
)
from commands.run import INFO_FILE, training_record
from commands.spent import Spent
from commands.yardsticks import World, make_world, with_reachable
from configs.command import chosen_seed, progress_bar
from configs.loading import dump_config
from configs.schema import Config
from decoding.artifacts import load_tensors, save_tensors, write_json, write_text
from decoding.decoder import SpeculativeDecoder
from decoding.machine import use_threads
from decoding.profile import CostProfile
from decoding.trace_folder import recording_identity
from envs.replay import ReplayVecEnv
from policies.full_information import FullInformationSettings, fit, greedy
from policies.masked_ppo import (
    build_masked_ppo,
    deciding_net,
    fit_value,
    train_masked,
)
from policies.ppo import PPOSettings

POLICY_WEIGHTS = "policy.safetensors"
SECONDS_FILE = "seconds.json"


def train_cycle_policy(config: Config, out: Path) -> None:
    """Record and profile what is not given, train, choose, check, and leave what `train.py export` needs."""
    record = training_record(out)
    seed = run_seed(config, out, record)
    threads = use_threads(config.threads)
    config = config.model_copy(update={"seed": seed})
    decoder = load_decoder(config)
    for warning in check_given(config, decoder):
        print(f"warning: {warning}", file=sys.stderr)
    spent = Spent(out / SECONDS_FILE)
    with spent.on("recording"):
        folders = recordings(config, out, spent.keep)
    found = [header for folder in folders for header in headers(folder)]
    decisions = decisions_of(config, found)
    with spent.on("profile"):
        costs = profiles(config, out, [one.temperature for one in headers(folders[0])])
    run = identity(config, decoder, costs, folders)
    if record.get("run") not in (None, run):
        raise ValueError(f"{out / INFO_FILE} is of another run: choose another --out or remove that folder")
    if "info" in record and (out / "training" / POLICY_WEIGHTS).exists():
        print(f"the training in {out} is finished already: nothing to do")
        return
    question = config.policy.cycle.question_microseconds / 1e6
    train, validation = (read_recorded(one, decisions, costs, question) for one in folders)
    world = make_world(train, validation, costs)
    if config.policy.cycle.reachable_bound:
        with spent.on("reachable bound"):
            world = with_reachable(world, costs, out / "training" / f"reachable-{_digest(run)}.json")
    # All that can be wrong with what was given has been read by now: a mistake leaves no run behind.
    write_json(out / INFO_FILE, {"seed": seed, "run": run})
    write_text(out / "config.yaml", dump_config(config))
    print(
        f"training on {world.train.table.texts} texts, {world.train.table.positions} positions,"
        f" {threads} threads; best constant {world.constant}, {world.rate:.1f} tokens/s"
    )
    candidates = []
    for number in range(config.policy.cycle.seeds):
        with spent.on("training"):
            # The largest seed is followed by the smallest: there is none above it.
            own = (seed + number) % 2**32
            candidates.append(train_one(config, out, world, own, run, spent.keep))
    best = max(candidates, key=lambda one: one.best[1])
    done = finish(config, decoder, world, candidates, best, spent.seconds)
    if config.policy.cycle.live_decisions:
        with spent.on("live phase"):
            done = after_live(world, fine_tune(config, decoder, done, seed))
        done.info.validation["seconds"].update(spent.seconds)
    save_tensors(out / "training" / POLICY_WEIGHTS, done.weights)
    write_json(out / INFO_FILE, {"seed": seed, "run": run, "info": done.info.to_json()})
    print_outcome(done.info)
    for warning in dict.fromkeys(one for profile in costs for one in doubts(profile)):
        print(f"warning: {warning}", file=sys.stderr)
    print(f"wrote {out / INFO_FILE}: export the policy with `python train.py export` and the same flags")


def run_seed(config: Config, out: Path, record: dict[str, Any]) -> int:
    """The configuration's, else the one that a killed run here began with, else a fresh one, printed."""
    begun = record["seed"] if record else begun_seed(out)
    if begun is None:
        return chosen_seed(config)
    if config.seed not in (None, begun):
        raise ValueError(f"{out} was begun with seed {begun}, not {config.seed}: choose another --out")
    return int(begun)


def train_one(
    config: Config, out: Path, world: World, seed: int, run: dict[str, Any], keep: Callable[[], None]
) -> Candidate:
    """Full information, then PPO, of one seed; goes on where a killed run was. `keep` is called after every
    round of either."""
    settings = config.policy.cycle
    ppo = PPOSettings(**settings.ppo.model_dump() | {"timesteps": max(1, settings.ppo.timesteps)})
    folder = out / "training" / f"cycle-{seed}"
    table, costs = world.train.table, world.train.costs

    def environment(rate: float) -> ReplayVecEnv:
        rng = np.random.default_rng([seed, 5])
        return ReplayVecEnv(table, costs, settings.lanes, rng, settings.reward, rate)

    model = build_masked_ppo(environment(world.rate), ppo, seed)
    start, rate = _warm_start(config, folder, world, model, seed, run, keep)
    model.policy.load_state_dict(start)
    warm = world.measured(greedy(deciding_net(model)))["over_constant"]
    if settings.ppo.timesteps:
        with progress_bar() as bar:
            task = bar.add_task(f"PPO, seed {seed}", total=ppo.total_timesteps, note="")

            def on_progress(done: int, total: int, speed: float) -> None:
                bar.update(task, completed=done, note=f"{speed:.1f} tokens/s")
                keep()

            model = train_masked(
                environment(rate),
                ppo,
                seed,
                folder,
                start,
                tensorboard_dir=out / "tensorboard" / f"cycle-{seed}",
                progress=on_progress,
                evaluate=lambda net: _logged(world.measured(greedy(net))),
                run=run,
            )
    after = world.measured(greedy(deciding_net(model)))["over_constant"]
    print(f"seed {seed}: over the best constant on validation {warm:.4f} warm, {after:.4f} after PPO")
    weights = {name: tensor.clone() for name, tensor in model.policy.state_dict().items()}
    return Candidate(seed, warm, after, weights, start)


def _logged(measured: dict[str, float]) -> dict[str, float]:
    return {f"validation/{name}": value for name, value in measured.items()}


def _warm_start(
    config: Config,
    folder: Path,
    world: World,
    model: MaskablePPO,
    seed: int,
    run: dict[str, Any],
    keep: Callable[[], None],
) -> tuple[dict[str, torch.Tensor], float]:
    """The weights that full information finds, and the rate that rewards are measured against: theirs, or the
    best constant's if that is higher. Kept in a file for a resumed run."""
    # Named after the run: where only its record was removed, another must not start from these.
    file = folder / f"start-{_digest(run)}.safetensors"
    settings = FullInformationSettings(**config.policy.cycle.full_information.model_dump())
    if file.exists():
        return _known_start(file, model)
    with progress_bar() as bar:
        task = bar.add_task(f"full information, seed {seed}", total=settings.rounds, note="")

        def on_progress(done: int, speed: float) -> None:
            bar.update(task, completed=done, note=f"{speed:.1f} tokens/s")
            keep()

        speed = fit(
            deciding_net(model),
            world.train.table,
            world.train.costs,
            settings,
            seed,
            world.rate,
            on_progress,
            world.seconds_T,
        )
    rate = max(world.rate, speed)
    fit_value(model, world.train.table, world.train.costs, rate, seed)
    start = {name: tensor.clone() for name, tensor in model.policy.state_dict().items()}
    save_tensors(file, start | {"rate": torch.tensor(rate, dtype=torch.float64)})
    return start, rate


def _known_start(file: Path, model: MaskablePPO) -> tuple[dict[str, torch.Tensor], float]:
    """What `_warm_start` left; ValueError if it is damaged."""
    tensors = load_tensors(file, "warm start")
    try:
        rate = float(tensors.pop("rate"))
        model.policy.load_state_dict(tensors)
        if not (math.isfinite(rate) and rate > 0 and all(one.isfinite().all() for one in tensors.values())):
            raise ValueError("it holds numbers that are not finite")
    except (KeyError, ValueError, RuntimeError) as error:
        raise ValueError(f"warm start {file} is damaged ({error}): remove it to start again") from None
    return tensors, rate


def identity(
    config: Config, decoder: SpeculativeDecoder, costs: list[CostProfile], folders: tuple[Path, Path]
) -> dict[str, Any]:
    """What a training must have been begun with to be gone on with."""
    whole = config.model_dump(mode="json")
    del whole["policy"]["cycle"]["reachable_bound"]  # it is looked at, nothing learns from it
    live = {name: whole[name] for name in ("sampling", "workload")}
    return {
        "preset": config.policy.preset,
        "cycle": whole["policy"]["cycle"],
        "max_depth": config.draft.max_depth,
        "fingerprints": fingerprints(decoder),
        "recordings": [[recording_identity(one) for one in recording_folders(folder)] for folder in folders],
        "profiles": [_digest(one.to_json()) for one in costs],
        "live": live if config.policy.cycle.live_decisions else None,
    }


def _digest(value: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]
