"""What a decision of an exported policy costs in the live loop, and what its parts do.

Between two forwards code and data come out of memory, so that nothing of this shows in a tight loop. Each
question of some texts is answered whole under a clock, or one part alone is computed under it first: which of
them is drawn at random, question by question. A whole answer is then taken again at once, for comparison.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table
from scipy.stats import bootstrap

from benchmarks.cycle import PROMPTS
from benchmarks.measure import Samples, command
from decoding.controller import DraftView, Question, QuestionKind, RootChoice, answer
from decoding.decoder import SpeculativeDecoder
from decoding.exported_cycle import ExportedCycle
from decoding.native_network import native_network

TOKENS = 96
KINDS: tuple[QuestionKind, ...] = ("draft", "level", "size")
WHOLE, AGAIN, PARTS = "whole", "whole, again at once", ("mask", "features", "network")


class Watched:
    """A `Controller`: the policy, with a clock.

    Args:
        policy: who answers.
        temperature: of the requests.
        samples: gets microseconds by kind of question and part.
    """

    def __init__(self, policy: ExportedCycle, temperature: float, samples: dict[str, Samples]) -> None:
        self._policy, self._samples, self._random = policy, samples, random.Random(0)
        self._features = replace(policy.info.features, temperature=temperature)
        self._network = native_network(policy.network)
        self._zeros = [0.0] * len(self._features.names)

    def wants_draft(self, view: DraftView) -> RootChoice:
        return RootChoice(self._answer("draft", view))

    def wants_level(self, view: DraftView) -> bool:
        return bool(self._answer("level", view))

    def verification_size(self, view: DraftView) -> int:
        return self._answer("size", view)

    def _answer(self, kind: QuestionKind, view: DraftView) -> int:
        question, before = Question(kind, view), self._policy.asked
        part = self._random.choice((WHOLE, WHOLE, *PARTS))
        allowed = self._policy.decisions.allowed(kind, view) if part == "network" else ()
        spent = 0.0
        if part != WHOLE:
            spent = _microseconds(lambda: self._part(part, kind, view, allowed))
        started = time.perf_counter()
        said = answer(self._policy, question)
        whole = (time.perf_counter() - started) * 1e6
        if self._policy.asked == before:  # it was answered before, or need not be asked
            return said
        times = self._samples[kind]
        if part == WHOLE:
            times[WHOLE].append(whole)
            times[AGAIN].append(_microseconds(lambda: answer(self._policy, question)))
        else:
            times[part].append(spent)
        return said

    def _part(self, part: str, kind: QuestionKind, view: DraftView, allowed: Sequence[bool]) -> None:
        if part == "mask":
            self._policy.decisions.allowed(kind, view)
        elif part == "network" and self._network is not None:
            self._network(self._zeros, [], allowed)
        elif part == "network":
            self._policy.network.outputs(np.array(self._zeros, dtype=np.float32))
        else:
            self._features.of_draft(view)
            if kind == "draft":
                self._features.of_cycle(view)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark."""
    return command("decision", __doc__, run, arguments, flags)


def flags(parser: argparse.ArgumentParser) -> None:
    """Beside the usual ones; a round is one text."""
    parser.add_argument("--policy", type=Path, required=True, help="folder of train.py export")
    parser.add_argument("--temperature", type=float, default=0.0)


def run(console: Console, decoder: SpeculativeDecoder, options: argparse.Namespace) -> dict[str, Samples]:
    """Measure and print; returns microseconds by kind of question and part."""
    for warning in decoder.use_policy(options.policy):
        print(f"warning: {warning}", file=sys.stderr)
    policy = ExportedCycle.load(options.policy)
    samples: dict[str, Samples] = {kind: {part: [] for part in (WHOLE, AGAIN, *PARTS)} for kind in KINDS}
    watched = Watched(policy, options.temperature, samples)
    for number in range(options.rounds):
        session = decoder.open_session(
            decoder.as_user(PROMPTS[number % len(PROMPTS)]),
            max_new_tokens=TOKENS,
            temperature=options.temperature,
            seed=number,
        )
        for _ in session.run(watched):
            pass
    console.print(_table(samples))
    every = [one for times in samples.values() for one in times[WHOLE]]
    if every:
        console.print(f"a decision: {np.mean(every):.0f} us on average, {np.median(every):.0f} in the median")
    return samples


def _microseconds(what: Callable[[], object]) -> float:
    started = time.perf_counter()
    what()
    return (time.perf_counter() - started) * 1e6


def _table(samples: dict[str, Samples]) -> Table:
    table = Table(title="a decision and its parts in the live loop, microseconds")
    for column in ("question", "", "median", "95 % interval", "quartiles", "times"):
        table.add_column(column, justify="left" if column in ("question", "") else "right")
    for kind, times in samples.items():
        for part, values in times.items():
            if len(values) < 3:
                continue
            first, middle, third = np.percentile(values, [25, 50, 75])
            low, high = bootstrap(
                (values,), np.median, method="percentile", n_resamples=2000, rng=0
            ).confidence_interval
            interval, quartiles = f"{low:.1f} .. {high:.1f}", f"{first:.1f} .. {third:.1f}"
            table.add_row(kind, part, f"{middle:.1f}", interval, quartiles, str(len(values)))
        table.add_section()
    return table


if __name__ == "__main__":
    sys.exit(main())
