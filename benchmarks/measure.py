"""Side by side: things called in turn in one run, and ratios of their medians with intervals.

These machines are shared and noisy, so nothing is measured alone: a ratio's 95 % interval is a bootstrap over
rounds, in each of which everything was called once.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table
from scipy.stats import bootstrap

from configs.command import exit_code
from decoding.artifacts import write_json
from decoding.decoder import SpeculativeDecoder
from decoding.machine import use_threads

REST_SECONDS = 0.01

Samples = dict[str, list[float]]
Run = Callable[[Console, SpeculativeDecoder, argparse.Namespace], dict[str, Samples]]


def command(
    prog: str,
    doc: str | None,
    run: Run,
    arguments: Sequence[str] | None,
    flags: Callable[[argparse.ArgumentParser], None] | None = None,
) -> int:
    """A benchmark's command line: load a decoder, measure, print; 2 and one line for a user's mistake.

    Args:
        prog, doc: name and text of the help.
        run: measures and prints; gets a console, the decoder and the options, returns samples for `--json`.
        arguments: as `sys.argv[1:]`; None = these.
        flags: adds flags of the benchmark's own.
    """
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{prog}", description=doc, allow_abbrev=False)
    parser.add_argument("--target", default="smollm2-135m")
    parser.add_argument("--drafter", help="default: the head shipped for the target")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--path", default="auto", help="auto, fast or eager")
    parser.add_argument(
        "--extra-layers", type=int, default=0, help="synthetic: layers that slow the target and add zero"
    )
    parser.add_argument("--threads", type=int)
    parser.add_argument("--rounds", type=int, default=9, help="how often each thing is measured")
    parser.add_argument("--json", help="also write every sample to this file")
    if flags is not None:
        flags(parser)
    options = parser.parse_args(arguments)
    return exit_code(lambda: _measure(run, options), "nothing was written: the same command begins again")


def _measure(run: Run, options: argparse.Namespace) -> None:
    if options.rounds < 3:
        raise ValueError(f"--rounds is {options.rounds}, must be >= 3")
    if options.json:
        check_file(Path(options.json))
    threads = use_threads(options.threads)
    decoder = SpeculativeDecoder.from_pretrained(
        options.target,
        options.drafter,
        device=options.device,
        dtype=options.dtype,
        path=options.path,
        extra_layers=options.extra_layers,
    )
    console, target = wide_console(), decoder.target
    reason = f" ({target.slow_reason})" if target.slow_reason else ""
    console.print(
        f"{decoder.model.name}, {decoder.drafter.name}, {target.device}, "
        f"{str(target.dtype).removeprefix('torch.')}, {'eager' if target.fast is None else 'fast'} path"
        f"{reason}, {threads} threads"
    )
    results = run(console, decoder, options)
    if options.json:
        write_json(Path(options.json), results)


def check_file(path: Path) -> None:
    """ValueError unless `--json` can be written there; to be called before minutes are spent."""
    there = next(one for one in [path, *path.absolute().parents] if one.exists())
    if path.is_dir():
        raise ValueError(f"--json {path} is a folder, must be a file")
    if there != path and not there.is_dir():
        raise ValueError(f"--json {path} cannot be written: {there} is a file")
    if not os.access(there, os.W_OK):
        raise ValueError(f"--json {path} cannot be written: {there} is read-only")


def wide_console() -> Console:
    """Wide enough for the tables where it is no terminal that says how wide it is."""
    return Console() if sys.stdout.isatty() else Console(width=140)


def interleaved(things: dict[str, Callable[[], float]], rounds: int) -> Samples:
    """Call each once unmeasured, then all in turn, `rounds` times in random order; milliseconds.

    Before each a short rest: torch's threads spin for some milliseconds after what they computed, and would
    be measured with whatever comes next.
    """
    rng = np.random.default_rng(0)
    samples: Samples = {name: [] for name in things}
    for thing in things.values():
        thing()
    for _ in range(rounds):
        for name in rng.permutation(list(things)):
            time.sleep(REST_SECONDS)
            samples[name].append(things[name]() * 1e3)
    return samples


def ratio_with_interval(above: Sequence[float], below: Sequence[float]) -> tuple[float, float, float]:
    """Ratio of medians, and its 95 % percentile interval over rounds, which are resampled as pairs."""

    def ratio(a: np.ndarray, b: np.ndarray, axis: int = -1) -> np.ndarray:
        return np.median(a, axis=axis) / np.median(b, axis=axis)

    interval = bootstrap(
        (above, below), ratio, paired=True, vectorized=True, method="percentile", n_resamples=2000, rng=3
    ).confidence_interval
    return float(ratio(np.array(above), np.array(below))), float(interval.low), float(interval.high)


def ratio_of_sums(yardstick_G: np.ndarray, mine_G: np.ndarray) -> tuple[float, float, float]:
    """The yardstick's seconds over mine, with its 95 % percentile interval over groups, as pairs."""

    def ratio(a: np.ndarray, b: np.ndarray, axis: int = -1) -> np.ndarray:
        return a.sum(axis=axis) / b.sum(axis=axis)

    value = float(yardstick_G.sum() / mine_G.sum())
    if len(mine_G) < 2 or np.array_equal(yardstick_G, mine_G):
        return value, value, value
    interval = bootstrap(
        (yardstick_G, mine_G), ratio, paired=True, method="percentile", n_resamples=2000, rng=0
    ).confidence_interval
    return value, float(interval.low), float(interval.high)


def print_ratios(console: Console, title: str, samples: Samples, base: str) -> None:
    """A table of medians, each over the median of `base`."""
    table = Table(title=title)
    for column in ("", "median", "quartiles", f"over {base}", "95 % interval"):
        table.add_column(column, justify="right")
    for name, values in samples.items():
        first, third = np.percentile(values, [25, 75])
        ratio, low, high = ratio_with_interval(values, samples[base])
        table.add_row(
            name,
            f"{np.median(values):.2f}",
            f"{first:.2f} .. {third:.2f}",
            f"{ratio:.2f}",
            f"{low:.2f} .. {high:.2f}",
        )
    console.print(table)
