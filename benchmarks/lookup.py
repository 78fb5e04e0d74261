"""What lookup costs a cycle, by the length of the text; it should not depend on that.

Two things at every length: a cycle that drafts (take 3 tokens, begin, 6 levels), and a plain step, where the
drafter only keeps up (take 1 token, begin). All lengths are measured in one run, interleaved, on a made-up
text that repeats itself as real ones do. Quartiles are over rounds.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from benchmarks.measure import Samples, interleaved
from decoding.drafters.ngram import NgramDrafter, NgramState
from decoding.noise import NoiseStream
from decoding.timing import now

LENGTHS = (64, 256, 1024, 4096, 16384)
TAKEN, LEVELS = 3, 6  # of a cycle that drafts
VOCABULARY = 8192
CPU = torch.device("cpu")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; 2 and one line for a user's mistake."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.lookup", description=__doc__, allow_abbrev=False
    )
    parser.add_argument("--rounds", type=int, default=300, help="how often each thing is measured")
    options = parser.parse_args(arguments)
    if options.rounds < 3:
        print(f"error: --rounds is {options.rounds}, must be >= 3", file=sys.stderr)
        return 2
    run(LENGTHS, options.rounds)
    return 0


def run(lengths: Sequence[int], rounds: int) -> dict[str, Samples]:
    """Measure and print; returns microseconds of the `cycle` and the `step`, by text length."""
    things: dict[str, Callable[[], float]] = {}
    for length in lengths:
        things[f"cycle {length}"] = _cycle(length, TAKEN, LEVELS)
        things[f"step {length}"] = _cycle(length, 1, 0)
    measured = interleaved(things, rounds)
    samples = {
        name: {str(length): [ms * 1e3 for ms in measured[f"{name} {length}"]] for length in lengths}
        for name in ("cycle", "step")
    }
    console = Console()
    _print(console, f"a cycle: {TAKEN} tokens taken, begin, {LEVELS} levels, us", samples["cycle"])
    _print(console, "a plain step: 1 token taken, begin, us", samples["step"])
    return samples


def repetitive_text(length: int, rng: np.random.Generator) -> list[int]:
    """Tokens of a Zipf law, about half of them in copies of 4 to 24 tokens of earlier text."""
    weights = 1 / (np.arange(VOCABULARY) + 10.0)
    new = iter(rng.choice(VOCABULARY, length, p=weights / weights.sum()).tolist())
    text: list[int] = []
    while len(text) < length:
        text.append(next(new))
        if rng.random() < 1 / 14:
            start = int(rng.integers(len(text)))
            text.extend(text[start : start + int(rng.integers(4, 25))])
    return text[:length]


def _cycle(length: int, taken: int, levels: int) -> Callable[[], float]:
    """Seconds of a cycle that takes so many tokens and drafts so many levels, at a text of about `length`
    tokens: when the text has grown by a sixteenth, another one is begun. Cycles without a match are passed
    over: they cost little, and a short text has more of them."""
    rng = np.random.default_rng(length)
    longest = length + max(length // 16, taken)
    ahead: list[int] = []
    state: NgramState

    def measure() -> float:
        nonlocal ahead, state
        while True:
            if len(ahead) < taken:
                text = repetitive_text(longest, rng)
                state = NgramDrafter().start(NoiseStream(0, text[:1]), 0.0, length)
                state.ingest(text[:length], None)
                ahead = text[length:]
            tokens, ahead = ahead[:taken], ahead[taken:]
            started = now(CPU)
            state.ingest(tokens, None)
            tree = state.begin()
            for _ in range(levels):
                state.extend()
            seconds = now(CPU) - started
            if tree.depth == levels:
                return seconds

    return measure


def _print(console: Console, title: str, samples: Samples) -> None:
    table = Table(title=title)
    for column in ("tokens of text", "median", "quartiles"):
        table.add_column(column, justify="right")
    for name, values in samples.items():
        first, median, third = np.percentile(values, [25, 50, 75])
        table.add_row(name, f"{median:.1f}", f"{first:.1f} .. {third:.1f}")
    console.print(table)


if __name__ == "__main__":
    sys.exit(main())
