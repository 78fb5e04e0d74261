"""What a cycle does outside the models' forwards: every part, and its share of the cycle.

Decodes with the parts wrapped in clocks: plain, the drafter's usual setting and 4x8, at temperature 0 and at
1 without top-k, where noise is drawn for whole vocabularies. A second table times what a policy asks for:
its features at the root and after a level.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import numpy as np
from rich.console import Console
from rich.table import Table
from scipy.stats import bootstrap

import decoding.target
from benchmarks.cycle import PROMPTS
from benchmarks.measure import Samples, command
from decoding.controller import Controller, DraftView, FixedController, PlainController
from decoding.decoder import SpeculativeDecoder
from decoding.drafters.beam import Beam
from decoding.drafters.eagle import EagleDrafter, EagleState
from decoding.features import DepthFeatures, SizeFeatures
from decoding.sampling import TokenChooser
from decoding.scoring import Scorer
from decoding.timing import PHASES, now

TOKENS = 48
FORWARDS = ("target forward", "head forward")
# In the order of a cycle. "Other" is what is left of a phase beside its own parts.
PARTS = (
    *FORWARDS,
    "scores (noise at T 1)",
    "tree",
    "draft, other",
    "selection",
    "mask",
    "choice of tokens (noise at T 1)",
    "verify, other",
    "commit: caches, features",
    "controller",
    "outside of phases",
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark."""
    return command("overhead", __doc__, run, arguments)


def run(console: Console, decoder: SpeculativeDecoder, options: argparse.Namespace) -> dict[str, Samples]:
    """Measure and print; returns each part's share of the cycle, by arm and round."""
    drafter = decoder.drafter
    arms: dict[str, tuple[float, Controller]] = {}
    for temperature in (0.0, 1.0):
        arms[f"plain, T {temperature:g}"] = (temperature, PlainController())
        for depth, size in dict.fromkeys(((drafter.draft_depth, drafter.verification_size), (4, 8))):
            arms[f"{depth}x{size}, T {temperature:g}"] = (temperature, FixedController(depth, size))
    samples: dict[str, Samples] = {name: defaultdict(list) for name in arms}
    rng = np.random.default_rng(0)
    for number in range(options.rounds + 1):
        prompt = PROMPTS[number % len(PROMPTS)]
        for name in rng.permutation(list(arms)):
            seconds, cycles = decode(decoder, prompt, *arms[name], seed=number)
            if number:  # round 0 warms every shape
                total = sum(seconds.values())
                samples[name]["cycle_ms"].append(total / cycles * 1e3)
                for part in PARTS:
                    samples[name][part].append(seconds[part] / total)
                outside = 1 - sum(seconds[part] for part in FORWARDS) / total
                samples[name]["outside the forwards"].append(outside)
    console.print(_table(samples))
    features = _features(console, decoder)
    return {name: dict(parts) for name, parts in samples.items()} | {"features_ms": features}


@contextmanager
def timed(owner: Any, name: str, seconds: dict[str, float], part: str) -> Iterator[None]:
    """Charge the calls of `owner.name` to `part`."""
    function: Callable[..., Any] = getattr(owner, name)

    def call(*args: Any, **kwargs: Any) -> Any:
        started = time.perf_counter()
        try:
            return function(*args, **kwargs)
        finally:
            seconds[part] += time.perf_counter() - started

    with mock.patch.object(owner, name, call):
        yield


def decode(
    decoder: SpeculativeDecoder, prompt: str, temperature: float, controller: Controller, seed: int
) -> tuple[dict[str, float], int]:
    """Seconds of each part over one text, and its cycles."""
    device = decoder.target.device
    session = decoder.open_session(
        decoder.as_user(prompt), max_new_tokens=TOKENS, temperature=temperature, seed=seed
    )
    seconds: dict[str, float] = defaultdict(float)
    with ExitStack() as clocks:
        parts: list[tuple[Any, str, str]] = [
            (decoder.target, "forward", "target forward"),
            (decoding.target, "tree_attention_mask", "mask"),
            (Scorer, "survival", "scores (noise at T 1)"),
            (Beam, "grow", "tree"),
            (TokenChooser, "choose", "choice of tokens (noise at T 1)"),
        ]
        if isinstance(decoder.drafter, EagleDrafter):
            parts += [(EagleState, "_layer", "head forward"), (decoder.drafter, "fuse", "head forward")]
        for owner, name, part in parts:
            clocks.enter_context(timed(owner, name, seconds, part))
        started = now(device)
        records = list(session.run(controller))
        wall = now(device) - started
    phases = {name: sum(getattr(record.seconds, name) for record in records) for name in PHASES}
    seconds["target forward"] -= seconds["mask"]  # it is built inside
    drafting = seconds["head forward"] + seconds["scores (noise at T 1)"] + seconds["tree"]
    verifying = seconds["target forward"] + seconds["mask"] + seconds["choice of tokens (noise at T 1)"]
    seconds["draft, other"] = phases["draft"] - drafting
    seconds["verify, other"] = phases["verify"] - verifying
    seconds["selection"], seconds["controller"] = phases["select"], phases["policy"]
    seconds["commit: caches, features"] = phases["commit"]
    seconds["outside of phases"] = wall - sum(phases.values())
    return seconds, len(records)


def _table(samples: dict[str, Samples]) -> Table:
    table = Table(title="a cycle's parts, % of it (medians; 95 % interval of the sum outside the forwards)")
    table.add_column("")
    for name in samples:
        table.add_column(name, justify="right")
    for part in PARTS:
        table.add_row(part, *(f"{100 * np.median(parts[part]):.2f}" for parts in samples.values()))
    table.add_section()
    sums, intervals = [], []
    for parts in samples.values():
        values = parts["outside the forwards"]
        low, high = bootstrap(
            (values,), np.median, method="percentile", n_resamples=2000, rng=0
        ).confidence_interval
        sums.append(f"{100 * np.median(values):.2f}")
        intervals.append(f"{100 * low:.2f} .. {100 * high:.2f}")
    table.add_row("outside the forwards", *sums)
    table.add_row("95 % interval", *intervals)
    table.add_row("cycle, ms", *(f"{np.median(parts['cycle_ms']):.2f}" for parts in samples.values()))
    return table


class _Watching(FixedController):
    """Computes a policy's features at every question, twice, and takes both times: the first where the models
    have left little else in the processor's caches, the second with code and data at hand."""

    def __init__(self, beam_width: int) -> None:
        super().__init__(4, 8)
        self._depth, self._size = DepthFeatures(beam_width, 8), SizeFeatures(32, 8)
        kinds = ("depth, at the root", "depth, after a level", "size")
        self.first: Samples = {kind: [] for kind in kinds}
        self.again: Samples = {kind: [] for kind in kinds}

    def _time(self, which: str, features: Callable[[DraftView], Any], view: DraftView) -> None:
        for times in (self.first, self.again):
            started = time.perf_counter()
            features(view)
            times[which].append((time.perf_counter() - started) * 1e3)

    def wants_draft(self, view: DraftView) -> bool:
        self._time("depth, at the root", self._depth, view)
        return super().wants_draft(view)

    def wants_level(self, view: DraftView) -> bool:
        self._time("depth, after a level", self._depth, view)
        return super().wants_level(view)

    def verification_size(self, view: DraftView) -> int:
        self._time("size", self._size, view)
        return super().verification_size(view)


def _features(console: Console, decoder: SpeculativeDecoder) -> Samples:
    """Milliseconds of each kind of features in the cycles of a text."""
    watching = _Watching(getattr(decoder.drafter, "beam_width", 1))
    for number, prompt in enumerate(PROMPTS):
        message = decoder.as_user(prompt)
        decoder.generate(message, max_new_tokens=2 * TOKENS, seed=number, controller=watching)
    table = Table(title="features of a policy, within a cycle of 4x8, microseconds")
    for column in ("", "median", "quartiles", "again at once", "quartiles", "calls"):
        table.add_column(column, justify="right")
    for name, values in watching.first.items():
        cells = []
        for times in (values, watching.again[name]):
            low, middle, high = np.percentile(times, [25, 50, 75]) * 1e3
            cells += [f"{middle:.0f}", f"{low:.0f} .. {high:.0f}"]
        table.add_row(name, *cells, str(len(values)))
    console.print(table)
    return watching.first


if __name__ == "__main__":
    sys.exit(main())
