"""Compare plain decoding, fixed settings, rules and learned policies; or check that texts are exact.

`python evaluate.py --config C --policy DIR --out RUN` replays all arms and the whole grid from recordings,
decodes those that matter live, and writes `report.json`, `report.html` and `cycles.parquet` into RUN; a
killed run goes on where it was. `--beside NAME=DIR` adds a policy. `--from report.json` repeats an evaluation
with its configuration, seed and policies. `--check-law` decodes tiny models thousands of times and tests the
law of what they say, for every rule and drafter. `--check-text` compares the configured model's texts with
plain decoding's, and tells floating-point ties from faults. Both exit with 1 on a fault; with `--out` they
write a JSON file there.
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

import numpy as np
from pydantic import ValidationError
from rich.console import Console

from commands.alone import alone_in
from commands.decoder import decoder_with
from commands.evaluation import LEARNED, evaluate, test_requests
from configs.command import add_flags, check_out, chosen_seed, exit_code, progress, read_config
from configs.loading import config_with
from configs.schema import Config
from decoding.artifacts import read_json, write_json
from decoding.controller import FixedController
from decoding.decoder import SpeculativeDecoder
from decoding.drafters.ngram import NgramDrafter
from decoding.exported_cycle import load_policy
from decoding.machine import use_threads
from decoding.session import Session
from evaluation.law_check import SAMPLES, check_law
from evaluation.law_table import print_law
from evaluation.schema import Report
from evaluation.text_check import RandomController, TextArm, check_texts, print_texts


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; 2 and one line for a user's mistake."""
    parser = argparse.ArgumentParser(prog="evaluate.py", description=__doc__, allow_abbrev=False)
    add_flags(parser, out_required=False)
    parser.add_argument("--policy", type=Path, help="folder of an exported policy; none = the grid alone")
    parser.add_argument(
        "--beside",
        type=_named_folder,
        action="append",
        default=[],
        metavar="NAME=DIR",
        help="a further policy, and the name of its arm; may be given several times",
    )
    parser.add_argument(
        "--from", type=Path, dest="report", metavar="REPORT", help="report.json to repeat; --set lays over it"
    )
    parser.add_argument("--check-law", action="store_true", help="test the law of texts; exit 1 on a fault")
    parser.add_argument("--check-text", action="store_true", help="compare texts; exit 1 on a fault")
    parser.add_argument(
        "--samples", type=int, help=f"of --check-law: texts for each row (default: {SAMPLES})"
    )
    options = parser.parse_args(arguments)
    faults = 0

    def run() -> None:
        nonlocal faults
        config = repeated(options) if options.report else read_config(options)
        if options.check_law and options.check_text:
            raise ValueError("--check-law and --check-text are two commands: give one of them")
        if options.samples is not None and not options.check_law:
            raise ValueError("--samples goes with --check-law")
        if options.check_law and options.policy is not None:
            raise ValueError("--policy does not go with --check-law: its models are tiny ones of its own")
        if options.out is None and not (options.check_law or options.check_text):
            raise ValueError("--out is missing: name a folder for the report")
        beside = dict(options.beside)
        if len(beside) < len(options.beside):
            raise ValueError("--beside names one arm twice: give each a name of its own")
        with alone_in(options.out):
            if options.check_law:
                samples = SAMPLES if options.samples is None else options.samples
                faults = run_law_check(config, samples, options.out)
            elif options.check_text:
                faults = run_text_check(config, options.policy, options.out)
            else:
                evaluate(config, options.policy, beside, options.out)

    return exit_code(run, "the same command goes on from there") or int(faults > 0)


def _named_folder(text: str) -> tuple[str, Path]:
    name, equals, folder = text.partition("=")
    if not name or not equals or not folder:
        raise argparse.ArgumentTypeError(f"{text!r} must be NAME=DIR, e.g. ltd=runs/ltd/policy")
    return name, Path(folder)


def repeated(options: argparse.Namespace) -> Config:
    """The configuration of a report, and its policies in the flags that name none."""
    if options.check_law or options.check_text:
        raise ValueError("--from repeats an evaluation: it does not go with --check-law or --check-text")
    check_out(options.out)
    raw = read_json(options.report, "report")
    try:
        report = Report.model_validate(raw)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise ValueError(f"report {options.report} cannot be repeated: {where}: {first['msg']}") from None
    folders = {name: Path(folder) for name, folder in report.policy_folders.items()}
    if options.policy is None:
        options.policy = folders.get(LEARNED)
    if not options.beside:
        options.beside = [(name, folder) for name, folder in folders.items() if name != LEARNED]
    used = dict(options.beside) | ({LEARNED: options.policy} if options.policy else {})
    for name, folder in used.items():
        if folders.get(name) == folder and not folder.exists():
            flag = "--policy DIR" if name == LEARNED else f"--beside {name}=DIR"
            raise ValueError(f"the policy of {options.report} is no longer in {folder}: name it with {flag}")
    return config_with(report.config, str(options.report), options.overrides)


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


if __name__ == "__main__":
    sys.exit(main())
