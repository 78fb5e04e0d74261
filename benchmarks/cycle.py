"""`make bench`: where a cycle's time goes. Everything is measured in one run, interleaved, with intervals.

Prints four tables: the target's matrix products, its forward by rows, the head's draft by depth, whole cycles
by phase for plain decoding and a few fixed settings. Ratios are of medians over rounds; their intervals are
95 % bootstrap percentiles over rounds, since these machines are shared and noisy.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from scipy.stats import bootstrap
from torch.nn import functional as F

from decoding.artifacts import write_json
from decoding.controller import Controller, FixedController, PlainController
from decoding.decoder import SpeculativeDecoder
from decoding.machine import use_threads
from decoding.records import CycleRecord
from decoding.target import TargetModel
from decoding.timing import PHASES, now

ROWS = (1, 2, 4, 8, 16, 24, 32)
SETTINGS = ((1, 4), (2, 8), (4, 8), (4, 16), (6, 16))
PROMPTS = (
    "Explain in a few sentences how a sailing boat can move against the wind.",
    "Write a Python function that returns the median of a list, with a docstring.",
    "Repeat this list in alphabetical order: pear, apple, fig, cherry, plum, banana.",
)
CONTEXT = 200

Samples = dict[str, list[float]]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; 2 and one line for a user's mistake."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.cycle", description=__doc__, allow_abbrev=False
    )
    parser.add_argument("--target", default="smollm2-135m")
    parser.add_argument("--drafter", help="default: the head shipped for the target")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--rounds", type=int, default=9, help="how often each thing is measured")
    parser.add_argument("--json", help="also write every sample to this file")
    options = parser.parse_args(arguments)
    try:
        if options.rounds < 3:
            raise ValueError(f"--rounds is {options.rounds}, must be >= 3")
        threads = use_threads(options.threads)
        decoder = SpeculativeDecoder.from_pretrained(
            options.target, options.drafter, device=options.device, dtype=options.dtype
        )
        results = run(decoder, options.rounds, threads)
        if options.json:
            write_json(Path(options.json), results)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def run(decoder: SpeculativeDecoder, rounds: int, threads: int) -> dict[str, Samples]:
    """Measure and print; returns the samples in milliseconds (cycles: seconds per token)."""
    console = Console()
    target = decoder.target
    dtype = str(target.dtype).removeprefix("torch.")
    console.print(
        f"{decoder.model.name}, {decoder.drafter.name}, {target.device}, {dtype}, {threads} threads"
    )
    products = interleaved(_products(target, few_rows=True) | _products(target, few_rows=False), rounds)
    _print_ratios(console, "the target's matrix products alone, ms", products, "1 row")
    forwards = interleaved({str(rows): _forward(decoder, rows) for rows in ROWS}, rounds)
    _print_ratios(console, f"target forward by rows, context {CONTEXT}, ms", forwards, "1")
    drafts = interleaved({str(depth): _draft(decoder, depth) for depth in (1, 2, 4, 6)}, rounds)
    _print_ratios(
        console, "draft by depth, ms (the first level digests what the last cycle committed)", drafts, "1"
    )
    cycles = _cycles(console, decoder, rounds)
    return {
        "products_ms": products,
        "forward_ms": forwards,
        "draft_ms": drafts,
        "cycle_seconds_per_token": cycles,
    }


def _products(target: TargetModel, few_rows: bool) -> dict[str, Callable[[], float]]:
    """Seconds of all linear layers of the target on random rows: as decoding runs them, or by `F.linear`."""
    layers = [module for module in target.model.modules() if isinstance(module, torch.nn.Linear)]

    def measure(inputs: dict[int, torch.Tensor]) -> float:
        started = now(target.device)
        with torch.inference_mode():
            for layer in layers:
                x = inputs[layer.in_features]
                layer(x) if few_rows else F.linear(x, layer.weight, layer.bias)
        return now(target.device) - started

    things: dict[str, Callable[[], float]] = {}
    for rows in ROWS:
        inputs = {
            width: torch.randn(1, rows, width, device=target.device, dtype=target.dtype)
            for width in {layer.in_features for layer in layers}
        }
        name = f"{rows} row{'s' if rows > 1 else ''}" + ("" if few_rows else ", F.linear")
        things[name] = partial(measure, inputs)
    return things


def interleaved(things: dict[str, Callable[[], float]], rounds: int) -> Samples:
    """Call each once unmeasured, then all in turn, `rounds` times in random order; milliseconds."""
    rng = np.random.default_rng(0)
    samples: Samples = {name: [] for name in things}
    for thing in things.values():
        thing()
    for _ in range(rounds):
        for name in rng.permutation(list(things)):
            samples[name].append(things[name]() * 1e3)
    return samples


def _forward(decoder: SpeculativeDecoder, rows: int) -> Callable[[], float]:
    """Seconds of a forward of `rows` rows (a chain) on top of CONTEXT tokens, cache cut back after it."""
    target = decoder.target
    cache = target.new_cache()
    ids = np.random.default_rng(1).integers(100, target.vocabulary_size, CONTEXT + rows).tolist()
    target.forward(ids[:CONTEXT], cache, last_logits_only=True)
    parents, depths = np.arange(rows) - 1, np.arange(rows)

    def measure() -> float:
        started = now(target.device)
        target.forward(ids[CONTEXT:], cache, parents, depths)
        seconds = now(target.device) - started
        with torch.inference_mode():
            cache.keep(CONTEXT, [], target.device)
        return seconds

    return measure


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


def ratio_with_interval(above: Sequence[float], below: Sequence[float]) -> tuple[float, float, float]:
    """Ratio of medians, and its 95 % percentile interval over rounds, which are resampled as pairs."""

    def ratio(a: np.ndarray, b: np.ndarray, axis: int = -1) -> np.ndarray:
        return np.median(a, axis=axis) / np.median(b, axis=axis)

    interval = bootstrap(
        (above, below), ratio, paired=True, vectorized=True, method="percentile", n_resamples=2000, rng=3
    ).confidence_interval
    return float(ratio(np.array(above), np.array(below))), float(interval.low), float(interval.high)


def _print_ratios(console: Console, title: str, samples: Samples, base: str) -> None:
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


if __name__ == "__main__":
    sys.exit(main())
