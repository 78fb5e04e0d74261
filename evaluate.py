"""Compare plain decoding, the fixed grid and the learned policy, side by side.

`python evaluate.py --config C --policy DIR --out RUN` writes `report.json` and `cycles.parquet` into RUN and
prints the table and the verdict.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from configs.command import add_flags, chosen_seed, exit_code, progress_bar, read_config
from configs.schema import Config
from decoding.controller import PlainController
from decoding.decoder import SpeculativeDecoder
from decoding.exported import ExportedController
from decoding.machine import use_threads
from decoding.session import Session
from decoding.workload import Request, load_workload, select
from evaluation.protocol import Arm, Observation, run_arms
from evaluation.report import build_report, describe_workload, write_report
from evaluation.schema import Models, SamplingUsed
from evaluation.table import print_report
from evaluation.validation import fixed_arm


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; 2 and one line for a user's mistake."""
    parser = argparse.ArgumentParser(prog="evaluate.py", description=__doc__, allow_abbrev=False)
    add_flags(parser)
    parser.add_argument("--policy", type=Path, help="folder of an exported policy; none = the grid alone")
    options = parser.parse_args(arguments)
    return exit_code(lambda: evaluate(read_config(options), options.policy, options.out))


def evaluate(config: Config, policy: Path | None, out: Path) -> None:
    """Decode the test prompts with every arm, and report."""
    # Everything that can be wrong is looked at before the minutes of measuring begin.
    requests = select(
        load_workload(config.workload.files),
        "test",
        config.evaluation.prompts,
        config.workload.categories,
        config.workload.languages,
    )
    controller = ExportedController.load(policy) if policy else None
    seed = chosen_seed(config)
    threads = use_threads(config.threads)
    decoder = SpeculativeDecoder.from_pretrained(
        config.model.target,
        config.model.drafter,
        device=config.model.device,
        dtype=config.model.dtype,
        beam_width=config.draft.beam_width,
    )
    if controller and policy:
        for warning in decoder.use_policy(policy):
            print(f"warning: {warning}", file=sys.stderr)
    decoder.check_prompts({request.question_id: request.turns[0] for request in requests})
    arms = build_arms(config, decoder.drafter.name, controller)
    print(f"{len(arms)} arms x {len(requests)} prompts x {config.evaluation.repeats} on {threads} threads")

    def open_session(request: Request) -> Session:
        return decoder.open_session(
            decoder.as_user(request.turns[0]),
            max_new_tokens=config.evaluation.max_new_tokens,
            seed=seed,
            **config.sampling.law,
        )

    raw: list[dict[str, Any]] = []
    with progress_bar() as bar:
        task = bar.add_task("evaluating", total=None, note="")

        def on_progress(done: int, total: int, observation: Observation) -> None:
            bar.update(task, completed=done, total=total, note=observation.arm)

        observations = run_arms(
            arms,
            requests,
            open_session,
            config.evaluation.repeats,
            np.random.default_rng([seed, 1]),
            on_progress,
            raw,
        )
    report = build_report(
        arms,
        observations,
        workload=describe_workload(
            config.model_dump(mode="json")["workload"]["files"], "test", requests, config.evaluation.repeats
        ),
        models=models_used(decoder),
        dtype=str(decoder.target.dtype).removeprefix("torch."),
        sampling=SamplingUsed(max_new_tokens=config.evaluation.max_new_tokens, **config.sampling.law),
        config=config.model_dump(mode="json"),
        policy=controller.info.to_json() if controller else None,
        seeds={"noise": seed, "order": seed, "bootstrap": seed},
        rng=np.random.default_rng([seed, 2]),
        device=decoder.target.device,
        confidence=config.evaluation.confidence,
    )
    write_report(out, report, raw)
    print_report(report, Console())
    print(f"wrote {out / 'report.json'} and {out / 'cycles.parquet'}")


def build_arms(config: Config, drafter: str, controller: ExportedController | None) -> list[Arm]:
    """Plain decoding, every point of the grid, and the learned policy if there is one."""
    arms = [Arm("plain", PlainController, "plain")]
    for depth in config.evaluation.draft_depths:
        arms += [fixed_arm(drafter, depth, size) for size in config.evaluation.verification_sizes]
    if controller is not None:
        arms.append(Arm("learned", lambda: controller, "learned"))
    return arms


def models_used(decoder: SpeculativeDecoder) -> Models:
    """Names and fingerprints of what decodes."""
    return Models(
        target=decoder.model.name,
        drafter=decoder.drafter.name,
        target_fingerprint=decoder.target.fingerprint(),
        drafter_fingerprint=decoder.drafter.fingerprint(),
        tokenizer_fingerprint=decoder.model.tokenizer_fingerprint(),
    )


if __name__ == "__main__":
    sys.exit(main())
