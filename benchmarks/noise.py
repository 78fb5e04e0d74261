"""What the counter-based noise costs, part by part and a cycle, against a stateful generator's.

Everything is measured in one run, interleaved, on synchronised clocks. The stateful generator is `torch.rand`
and the same two logarithms, in the same number of calls over the same sizes. On a CPU with native code tokens
are also chosen at temperature 1, with noise for the few that can win and with noise for all. Times are
medians over rounds, ratios are of medians; in brackets 95 % bootstrap percentiles over rounds.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from scipy.stats import bootstrap

from benchmarks.measure import Samples, interleaved, ratio_with_interval
from decoding import native
from decoding.artifacts import write_json
from decoding.machine import resolve_device, use_threads
from decoding.noise import NoiseStream, cpu_uniforms, device_uniforms, native_uniforms
from decoding.sampling import Sampling, TokenChooser
from decoding.timing import now

TOP_K = 50
# Draft depth -> rows of the target that are evaluated: the accepted tokens and the closing one, rounded up
# from the tau of 1.7 to 2.5 that the log reports at depth 4.
ROWS_BY_DEPTH = {2: 2, 4: 3, 6: 3}

# (keys, ids N) -> uniforms (P, N)
Uniforms = Callable[[Sequence[int], torch.Tensor], torch.Tensor]

MOST_TOKENS = 10_000_000  # beyond any tokenizer; more would only fill the memory


@dataclass(frozen=True, slots=True)
class Draws:
    """What one setting asks of the noise, in calls of one position each."""

    name: str
    over_vocabulary: int = 0
    over_draft_vocabulary: int = 0
    over_top_k: int = 0


class _ForAll(NoiseStream):
    """The same noise, drawn for every token when one is chosen: what a subclass draws is not foreseen."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ValueError(message)  # one line, without the usage


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; 2 and one line for a user's mistake."""
    parser = _Parser(prog="python -m benchmarks.noise", description=__doc__, allow_abbrev=False)
    parser.add_argument("--vocabulary", type=int, default=49152, help="the target's tokens")
    parser.add_argument("--draft-vocabulary", type=int, default=6144, help="the drafter's tokens")
    parser.add_argument("--rounds", type=int, default=30, help="how often each thing is measured")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--json", help="also write every sample to this file")
    try:
        options = parser.parse_args(arguments)
        if options.rounds < 3:
            raise ValueError(f"--rounds is {options.rounds}, must be >= 3")
        if not 1 <= options.vocabulary <= MOST_TOKENS:
            raise ValueError(f"--vocabulary is {options.vocabulary}, must be in 1..{MOST_TOKENS}")
        if not 1 <= options.draft_vocabulary <= options.vocabulary:
            raise ValueError(
                f"--draft-vocabulary is {options.draft_vocabulary}, must be in 1..{options.vocabulary}"
            )
        device, threads = resolve_device(options.device), use_threads(options.threads)
        samples = run(options.vocabulary, options.draft_vocabulary, options.rounds, device, threads)
        if options.json:
            write_json(Path(options.json), {"settings": vars(options) | {"threads": threads}, **samples})
    except (ValueError, OSError) as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    return 0


def run(
    vocabulary: int, draft_vocabulary: int, rounds: int, device: torch.device, threads: int
) -> dict[str, Samples]:
    """Measure and print the tables; returns the samples of both generators, in microseconds."""
    ids = {
        "over_vocabulary": torch.arange(vocabulary, device=device),
        "over_draft_vocabulary": _some_ids(vocabulary, draft_vocabulary, device),
        "over_top_k": _some_ids(vocabulary, min(TOP_K, vocabulary), device),
    }
    parts, cycles = _parts(), _cycles()
    things: dict[str, Callable[[], float]] = {}
    for setting in parts + cycles:
        sizes = [ids_N for name, ids_N in ids.items() for _ in range(getattr(setting, name))]
        things[setting.name] = _counter_based(sizes)
        things[f"{setting.name}, stateful"] = _stateful(sizes)
    paths = _paths(device)
    for setting in parts:
        (ids_N,) = (ids[name] for name in ids if getattr(setting, name))
        for path in paths:
            things[f"{setting.name}, {path.__name__}"] = _uniforms(path, ids_N)
    if native_uniforms in paths:
        for name, logits_1V in _logits(vocabulary).items():
            things[name] = _choosing(NoiseStream(0, [1, 2, 3]), logits_1V)
            things[f"{name}, for all"] = _choosing(_ForAll(0, [1, 2, 3]), logits_1V)
    samples = {
        name: [milliseconds * 1e3 for milliseconds in values]
        for name, values in interleaved(things, rounds).items()
    }
    console = Console()
    console.print(f"{vocabulary} tokens, {draft_vocabulary} in the draft, {device}, {threads} threads, us")
    rows = "/".join(str(rows) for rows in ROWS_BY_DEPTH.values())
    _print(console, "one position, us", parts, samples)
    _print(console, f"a cycle, us; the target's rows (1 plain, then {rows}) one by one", cycles, samples)
    _print_paths(console, paths, parts, samples)
    if native_uniforms in paths:
        pairs = {name: (samples[name], samples[f"{name}, for all"]) for name in _logits(vocabulary)}
        _print_pairs(console, "choosing a token, us; noise drawn", ("for few", "for all"), pairs)
    return {
        "noise_us": {setting.name: samples[setting.name] for setting in parts + cycles},
        "stateful_us": {setting.name: samples[f"{setting.name}, stateful"] for setting in parts + cycles},
    }


def _paths(device: torch.device) -> list[Uniforms]:
    """The code paths of the uniforms on this machine, whose bits are equal; the first is what runs."""
    if device.type != "cpu":
        return [device_uniforms]
    try:
        native.library()
    except native.NoNativeCode as error:
        print(error, file=sys.stderr)
        return [cpu_uniforms, device_uniforms]
    return [native_uniforms, cpu_uniforms, device_uniforms]


def _logits(vocabulary: int) -> dict[str, torch.Tensor]:
    """float32 (1, vocabulary): about as uneven as a model's, and the hardest to tell apart."""
    spread = np.random.default_rng(1).normal(0, 3, vocabulary).astype(np.float32)
    return {"uneven logits": torch.from_numpy(spread)[None], "equal logits": torch.zeros(1, vocabulary)}


def _parts() -> list[Draws]:
    return [
        Draws("whole vocabulary", over_vocabulary=1),
        Draws(f"support of {TOP_K}", over_top_k=1),
        Draws("draft vocabulary", over_draft_vocabulary=1),
    ]


def _cycles() -> list[Draws]:
    settings = [
        Draws("plain", over_vocabulary=1),
        Draws(f"plain, top-k {TOP_K}", over_top_k=1),
    ]
    for depth, rows in ROWS_BY_DEPTH.items():
        name = f"depth {depth}"
        settings.append(Draws(name, over_vocabulary=rows, over_draft_vocabulary=depth))
        settings.append(Draws(f"{name}, top-k {TOP_K}", over_top_k=rows, over_draft_vocabulary=depth))
    return settings


def _some_ids(vocabulary: int, count: int, device: torch.device) -> torch.Tensor:
    """int64 (count): distinct ids in ascending order."""
    chosen = np.random.default_rng(0).choice(vocabulary, count, replace=False)
    return torch.from_numpy(np.sort(chosen)).to(device)


def _counter_based(ids: Sequence[torch.Tensor]) -> Callable[[], float]:
    """Seconds of one call for each of `ids`, every call at a position that was never drawn before."""
    noise, positions, device = NoiseStream(0, [1, 2, 3]), itertools.count(), ids[0].device

    def measure() -> float:
        started = now(device)
        for ids_N in ids:
            noise.gumbel([next(positions)], ids_N)
        return now(device) - started

    return measure


def _stateful(ids: Sequence[torch.Tensor]) -> Callable[[], float]:
    """Seconds of `torch.rand` and two logarithms for each of `ids`."""
    device = ids[0].device
    generator = torch.Generator(device).manual_seed(0)
    sizes = [(1, len(ids_N)) for ids_N in ids]

    def measure() -> float:
        started = now(device)
        for size in sizes:
            uniforms_1N = torch.rand(size, generator=generator, dtype=torch.float64, device=device)
            uniforms_1N.log_().neg_().log_().neg_()
        return now(device) - started

    return measure


def _choosing(noise: NoiseStream, logits_1V: torch.Tensor) -> Callable[[], float]:
    """Seconds of one choice at temperature 1, every call at a position that was never drawn before."""
    chooser, positions = TokenChooser(Sampling(1.0), noise), itertools.count()

    def measure() -> float:
        started = now(logits_1V.device)
        chooser.choose(logits_1V, [next(positions)])
        return now(logits_1V.device) - started

    return measure


def _uniforms(path: Uniforms, ids_N: torch.Tensor) -> Callable[[], float]:
    """Seconds of one position's uniforms by one of the code paths."""

    def measure() -> float:
        started = now(ids_N.device)
        path([7], ids_N)
        return now(ids_N.device) - started

    return measure


def median_with_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Median, and its 95 % percentile interval over rounds."""
    interval = bootstrap(
        (values,), np.median, vectorized=True, method="percentile", n_resamples=2000, rng=4
    ).confidence_interval
    return float(np.median(values)), float(interval.low), float(interval.high)


def _print(console: Console, title: str, settings: Sequence[Draws], samples: Samples) -> None:
    _print_pairs(
        console,
        title,
        ("noise", "torch.rand"),
        {one.name: (samples[one.name], samples[f"{one.name}, stateful"]) for one in settings},
    )


def _print_paths(
    console: Console, paths: Sequence[Uniforms], parts: Sequence[Draws], samples: Samples
) -> None:
    """Each code path of the uniforms against the next."""
    for path, slower in itertools.pairwise(paths):
        pairs = {
            one.name: (samples[f"{one.name}, {path.__name__}"], samples[f"{one.name}, {slower.__name__}"])
            for one in parts
        }
        _print_pairs(console, "uniforms of one position, us", (path.__name__, slower.__name__), pairs)


def _print_pairs(
    console: Console,
    title: str,
    columns: tuple[str, str],
    pairs: Mapping[str, tuple[Sequence[float], Sequence[float]]],
) -> None:
    table = Table(title=title)
    for column in ("", *columns, "ratio"):
        table.add_column(column, justify="right")
    for name, pair in pairs.items():
        times = ("{:.0f} ({:.0f}..{:.0f})".format(*median_with_interval(values)) for values in pair)
        table.add_row(name, *times, "{:.2f} ({:.2f}..{:.2f})".format(*ratio_with_interval(*pair)))
    console.print(table)


if __name__ == "__main__":
    sys.exit(main())
