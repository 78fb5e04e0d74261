"""Where a cycle's time goes: the head's draft by depth, whole cycles by phase for a few fixed settings."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.measure import Samples, command, interleaved, print_ratios, ratio_with_interval
from decoding.controller import Controller, FixedController, PlainController
from decoding.decoder import SpeculativeDecoder
from decoding.records import CycleRecord
from decoding.timing import PHASES

SETTINGS = ((1, 4), (2, 8), (4, 8), (4, 16), (6, 16))
PROMPTS = (
    "Explain in a few sentences how a sailing boat can move against the wind.",
    "Write a Python function that returns the median of a list, with a docstring.",
    "Repeat this list in alphabetical order: pear, apple, fig, cherry, plum, banana.",
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark."""
    return command("cycle", __doc__, run, arguments)


def run(console: Console, decoder: SpeculativeDecoder, options: argparse.Namespace) -> dict[str, Samples]:
    """Measure and print; returns the samples in milliseconds (cycles: seconds per token)."""
    drafts = interleaved({str(depth): _draft(decoder, depth) for depth in (1, 2, 4, 6)}, options.rounds)
    print_ratios(
        console, "draft by depth, ms (the first level digests what the last cycle committed)", drafts, "1"
    )
    return {"draft_ms": drafts, "cycle_seconds_per_token": _cycles(console, decoder, options.rounds)}


def _draft(decoder: SpeculativeDecoder, depth: int) -> Callable[[], float]:
    """Seconds of drafting `depth` levels, cycle by cycle of a live request that restarts at its end."""
    controller = FixedController(depth, 1)
    state: dict[str, list[CycleRecord]] = {"left": []}

    def measure() -> float:
        if not state["left"]:
            session = decoder.open_session(decoder.as_user(PROMPTS[0]), max_new_tokens=48)
            state["left"] = [r for r in session.run(controller) if r.draft_depth == depth]
        return state["left"].pop().seconds.draft

    return measure


def _cycles(console: Console, decoder: SpeculativeDecoder, rounds: int) -> Samples:
    """Decode the prompts with each setting in turn; print phases and speed."""
    arms: dict[str, Controller] = {"plain": PlainController()}
    arms |= {f"{depth}x{size}": FixedController(depth, size) for depth, size in SETTINGS}
    records: dict[str, list[CycleRecord]] = {name: [] for name in arms}
    samples: Samples = {name: [] for name in arms}
    rng = np.random.default_rng(2)
    for number in range(rounds + 1):
        prompt = decoder.as_user(PROMPTS[number % len(PROMPTS)])
        for name in rng.permutation(list(arms)):
            done = decoder.generate(prompt, max_new_tokens=32, seed=number, controller=arms[name])
            if number:  # round 0 warms every shape
                records[name] += done.cycles
                samples[name].append(1 / done.tokens_per_second)
    table = Table(title="a cycle by phase, ms (temperature 0)")
    for column in ("depth x size", *PHASES, "tau", "tokens/s", "over plain", "95 % interval"):
        table.add_column(column, justify="right")
    for name, cycles in records.items():
        phases = [np.mean([getattr(record.seconds, phase) for record in cycles]) * 1e3 for phase in PHASES]
        emitted = sum(record.emitted for record in cycles)
        speed = emitted / sum(record.seconds.total for record in cycles)
        ratio, low, high = ratio_with_interval(samples["plain"], samples[name])
        table.add_row(
            name,
            *(f"{phase:.2f}" for phase in phases),
            f"{emitted / len(cycles):.2f}",
            f"{speed:.1f}",
            f"{ratio:.2f}",
            f"{low:.2f} .. {high:.2f}",
        )
    console.print(table)
    return samples


if __name__ == "__main__":
    sys.exit(main())
