"""Compare plain decoding, the fixed grid and the learned policy, side by side; or check that texts are exact.

`python evaluate.py --config C --policy DIR --out RUN` writes `report.json` and `cycles.parquet` into RUN and
prints the table and the verdict. `--check-law` decodes tiny models thousands of times and tests the law of
what they say, for every rule and drafter. `--check-text` compares the configured model's texts with plain
decoding's, and tells floating-point ties from faults. Both exit with 1 on a fault; with `--out` they write a
JSON file there.
"""

from __future__ import annotations

import signal

if __name__ == "__main__" and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    # An interrupt while modules are imported ends it without a traceback; `exit_code` handles later ones.
    signal.signal(signal.SIGINT, signal.SIG_DFL)

import argparse
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from commands.alone import alone_in
from commands.decoder import decoder_with
from configs.command import add_flags, chosen_seed, exit_code, progress, read_config
from configs.schema import Config
from decoding.artifacts import write_json
from decoding.controller import FixedController, PlainController
from decoding.decoder import SpeculativeDecoder
from decoding.drafters.ngram import NgramDrafter
from decoding.exported_cycle import Exported, load_policy
from decoding.machine import use_threads
from decoding.session import Session
from decoding.workload import Request, load_workload, select
from evaluation.law_check import SAMPLES, check_law
from evaluation.law_table import print_law
from evaluation.protocol import Arm, Observation, run_arms
from evaluation.report import build_report, describe_workload, write_report
from evaluation.schema import Models, SamplingUsed
from evaluation.table import print_report
from evaluation.text_check import RandomController, TextArm, check_texts, print_texts
from evaluation.validation import fixed_arm


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; 2 and one line for a user's mistake."""
    parser = argparse.ArgumentParser(prog="evaluate.py", description=__doc__, allow_abbrev=False)
    add_flags(parser, out_required=False)
    parser.add_argument("--policy", type=Path, help="folder of an exported policy; none = the grid alone")
    parser.add_argument("--check-law", action="store_true", help="test the law of texts; exit 1 on a fault")
    parser.add_argument("--check-text", action="store_true", help="compare texts; exit 1 on a fault")
    parser.add_argument(
        "--samples", type=int, help=f"of --check-law: texts for each row (default: {SAMPLES})"
    )
    options = parser.parse_args(arguments)
    faults = 0

    def run() -> None:
        nonlocal faults
        config = read_config(options)
        if options.check_law and options.check_text:
            raise ValueError("--check-law and --check-text are two commands: give one of them")
        if options.samples is not None and not options.check_law:
            raise ValueError("--samples goes with --check-law")
        if options.check_law and options.policy is not None:
            raise ValueError("--policy does not go with --check-law: its models are tiny ones of its own")
        if options.out is None and not (options.check_law or options.check_text):
            raise ValueError("--out is missing: name a folder for the report")
        with alone_in(options.out):
            if options.check_law:
                samples = SAMPLES if options.samples is None else options.samples
                faults = run_law_check(config, samples, options.out)
            elif options.check_text:
                faults = run_text_check(config, options.policy, options.out)
            else:
                evaluate(config, options.policy, options.out)

    return exit_code(run, "nothing was written: the same command begins again") or int(faults > 0)


def evaluate(config: Config, policy: Path | None, out: Path) -> None:
    """Decode the test prompts with every arm, and report."""
    # Everything that can be wrong is looked at before the minutes of measuring begin.
    requests = test_requests(config)
    controller = load_policy(policy) if policy else None
    seed = chosen_seed(config)
    threads = use_threads(config.threads)
    decoder = decoder_with(config, policy)
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
    with progress("evaluating") as show:

        def on_progress(done: int, total: int, observation: Observation) -> None:
            show(done, total, observation.arm)

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
        sampling=SamplingUsed(
            temperatures=[config.sampling.temperature],
            max_new_tokens=config.evaluation.max_new_tokens,
            **{name: value for name, value in config.sampling.law.items() if name != "temperature"},
        ),
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


def run_law_check(config: Config, samples: int, out: Path | None) -> int:
    """The law of tiny models' texts; returns how many rows are at fault."""
    seed = chosen_seed(config)
    use_threads(1)  # the models are tiny: threads would only wait for each other
    with progress("checking") as show:
        report = check_law(samples, seed, show)
    print_law(report, Console())
    if out is not None:
        write_json(out / "law.json", report.to_json())
        print(f"wrote {out / 'law.json'}")
    return len(report.faults)


def run_text_check(config: Config, policy: Path | None, out: Path | None) -> int:
    """The configured model's texts against plain decoding's; returns how many are at fault."""
    if policy is not None:
        load_policy(policy)  # a mistake in this folder need not wait for the model
    requests = test_requests(config)
    prompts = {request.question_id: request.turns[0] for request in requests}
    seed = chosen_seed(config)
    use_threads(config.threads)
    decoder = decoder_with(config, policy)
    decoder.check_prompts(prompts)
    lookup = SpeculativeDecoder(decoder.model, NgramDrafter())
    drafters = {one.drafter.name: one for one in (decoder, lookup)}

    def opener(decoder: SpeculativeDecoder) -> Callable[[str], Session]:
        def open_session(question: str) -> Session:
            return decoder.open_session(
                decoder.as_user(prompts[question]),
                max_new_tokens=config.evaluation.max_new_tokens,
                seed=seed,
                **config.sampling.law,
            )

        return open_session

    rng = np.random.default_rng([seed, 3])
    arms = [arm for name, one in drafters.items() for arm in text_arms(name, opener(one), config, rng)]
    if policy is not None:
        arms.append(TextArm("learned", opener(decoder), lambda: decoder.controller))
    with progress("checking") as show:
        report = check_texts(decoder.target, opener(decoder), arms, list(prompts), show)
    print_texts(report, Console())
    if out is not None:
        write_json(out / "text.json", report.to_json())
        print(f"wrote {out / 'text.json'}")
    return len(report.faults)


def text_arms(
    drafter: str, open_session: Callable[[str], Session], config: Config, rng: np.random.Generator
) -> list[TextArm]:
    """The corners of the grid, and depths and sizes at random."""
    depths, sizes = config.evaluation.draft_depths, config.evaluation.verification_sizes
    corners = sorted({(depth, size) for depth in (depths[0], depths[-1]) for size in (sizes[0], sizes[-1])})
    arms = [
        TextArm(f"{drafter} {depth}x{size}", open_session, partial(FixedController, depth, size))
        for depth, size in corners
    ]
    at_random = partial(RandomController, config.draft.max_depth, sizes[-1], rng)
    return [*arms, TextArm(f"{drafter} at random", open_session, at_random)]


def test_requests(config: Config) -> list[Request]:
    """The prompts that are evaluated."""
    return select(
        load_workload(config.workload.files),
        "test",
        config.evaluation.prompts,
        config.workload.categories,
        config.workload.languages,
    )


def build_arms(config: Config, drafter: str, controller: Exported | None) -> list[Arm]:
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
        path="eager" if decoder.target.fast is None else "fast",
    )


if __name__ == "__main__":
    sys.exit(main())
