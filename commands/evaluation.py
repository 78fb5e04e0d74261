"""`evaluate.py`: all arms in replay, those that matter live, and a report."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console

from commands.decoder import decoder_with
from commands.evaluation_arms import check_names, left_out, live_arms
from commands.evaluation_replay import ReplayStage, replay_stage
from commands.evaluation_report import report_of, shown_files
from commands.live_part import BLOCKS_FOLDER, PLAN_FILE, Plan, without_paths
from commands.recorded import begun_seed
from configs.command import INTERRUPTED, TERMINATED, chosen_seed
from configs.schema import Config
from decoding.artifacts import read_json, write_json
from decoding.exported_cycle import Exported, load_policy
from decoding.machine import use_threads
from decoding.workload import Request, load_workload, select
from evaluation.block_store import BlockStore, rows_of
from evaluation.blocks import Rules, check_kept, plan_blocks
from evaluation.html import write_html
from evaluation.report import write_report
from evaluation.table import print_report

LIVE_FOLDER = "live"
LEARNED = "learned"


def evaluate(config: Config, policy: Path | None, beside: Mapping[str, Path], out: Path) -> None:
    """Replay, decode and report into `out`; a killed run goes on where it was.

    Args:
        policy: folder of the policy that the report is about; None: settings and rules alone.
        beside: folders of further policies, by the name of their arm.
    """
    # Everything that can be wrong is looked at before the minutes of measuring begin.
    requests = test_requests(config)
    folders = ({LEARNED: policy} if policy else {}) | dict(beside)
    policies = {name: load_policy(folder) for name, folder in folders.items()}
    check_names(config, policies, beside)
    shown_files(config)
    seed = _begun_seed(out) if config.seed is None else None
    config = config.model_copy(update={"seed": chosen_seed(config) if seed is None else seed})
    use_threads(config.threads)
    decoder = decoder_with(config, policy)
    decoder.check_prompts({request.question_id: request.turns[0] for request in requests})
    stage = replay_stage(config, out, policies)
    half = decoder.target.dtype in (torch.float16, torch.bfloat16)
    plan = make_plan(config, requests, stage, folders, policies, half)
    for warning in (*stage.warnings, *left_out(config, plan.arms)):
        print(f"warning: {warning}", file=sys.stderr)
    decode_live(plan, out / LIVE_FOLDER)
    kept = BlockStore(out / LIVE_FOLDER / BLOCKS_FOLDER).kept()
    report = report_of(config, decoder, requests, stage, plan, kept, policies.get(LEARNED), out)
    write_report(out, report, rows_of(kept))
    write_html(out, report)
    print_report(report, Console())
    print(f"wrote {out / 'report.html'}, {out / 'report.json'} and {out / 'cycles.parquet'}")


def make_plan(
    config: Config,
    requests: list[Request],
    stage: ReplayStage,
    folders: Mapping[str, Path],
    policies: Mapping[str, Exported],
    half: bool,
) -> Plan:
    """What is decoded live: the main arms on all prompts, the rest on the first few, in a repeat apart.

    Args:
        half: the target computes in half precision: the main arms decode on forced texts, and beside the
            rest they run freely too.
    """
    given, seed = config.evaluation, config.seed
    assert seed is not None
    arms = live_arms(config, stage, folders, policies)
    temperatures = given.used_temperatures(config.sampling.temperature)
    questions = [request.question_id for request in requests]
    main = [arm.name for arm in arms if not arm.rest]
    rng = np.random.default_rng([seed, 1])
    blocks = plan_blocks(main, questions, temperatures, range(given.repeats), rng)
    rest = [arm.name for arm in arms if arm.rest]
    free = [name for name in main if name != "plain"] if half and given.rest_prompts else []
    if rest or free:
        blocks += plan_blocks(
            ["plain", *free, *rest],
            questions[: given.rest_prompts],
            temperatures,
            [given.repeats],
            rng,
            first=len(blocks),
        )
    return Plan(
        config=config,
        seed=seed,
        decisions=stage.decisions,
        offers=stage.offers,
        profiles=tuple(str(path) for path in stage.profiles),
        policy=None if LEARNED not in folders else str(folders[LEARNED].absolute()),
        arms=tuple(arms),
        blocks=tuple(blocks),
        rules=Rules(given.other_cores, given.reruns, given.minutes, given.repeats if half else 0),
    )


def decode_live(plan: Plan, folder: Path) -> None:
    """Each repeat in a process of its own. ValueError if the folder was begun with another plan, or a process
    fails."""
    file = folder / PLAN_FILE
    wanted = plan.to_json()
    if file.exists():
        begun, mine = (without_paths(one) for one in (read_json(file, "plan"), wanted))
        other = sorted(name for name in mine if begun.get(name) != mine[name])
        if other:
            raise ValueError(
                f"{folder} was begun with other {', '.join(other)}: give another --out, or remove it to begin"
                " again"
            )
    store = BlockStore(folder / BLOCKS_FOLDER)
    check_kept(store.kept(), plan.blocks, store)
    folder.mkdir(parents=True, exist_ok=True)
    write_json(file, wanted)
    repeats = sorted({block.repeat for block in plan.blocks})
    print(f"{len(plan.arms)} arms, {len(plan.blocks)} blocks, {len(repeats)} processes, live in {folder}")
    for repeat in repeats:
        part = [str(file.absolute()), str(repeat), str(os.getpid())]
        command = [sys.executable, "-m", "commands.live_part", *part]
        code = subprocess.run(command, cwd=Path(__file__).parent.parent, check=False).returncode
        if code in (INTERRUPTED, -signal.SIGINT):
            raise KeyboardInterrupt
        if code < 0 or code == TERMINATED:
            name = "SIGTERM" if code == TERMINATED else signal.Signals(-code).name
            raise ValueError(f"repeat {repeat + 1} was killed ({name}): the same command goes on from there")
        if code:
            raise ValueError(f"repeat {repeat + 1} of the live part ended with exit code {code}, see above")


def test_requests(config: Config) -> list[Request]:
    """The prompts that are evaluated."""
    return select(
        load_workload(config.workload.files),
        "test",
        config.evaluation.prompts,
        config.workload.categories,
        config.workload.languages,
    )


def _begun_seed(out: Path) -> int | None:
    """The seed that the live part in `out` was begun with, else recordings there; None if there are none."""
    file = out / LIVE_FOLDER / PLAN_FILE
    seed: Any = read_json(file, "plan").get("seed") if file.exists() else None
    return seed if isinstance(seed, int) else begun_seed(out)
