"""What a draft is worth at temperatures above 0: candidates chosen with the noise, without it, and drawn.

Under `coupled` the drafter knows the noise that the target will meet. Beside it, on the same texts,
candidates chosen without it: by the same drafter with the same calibration, started with noise that is 0.
Both are replayed on traces. `rejection` draws chains instead; it is decoded live, and its texts are others.

First: the share of positions at which the likeliest candidate after the root is the text's token, 1 of 4: at
which one of the first four is. For `rejection`, first: the share of first drafted tokens that were kept.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict

import torch

from benchmarks.draft_quality import STEPS, Trace, recorded
from benchmarks.prompts import (
    Counted,
    encode,
    estimate,
    header,
    load_requests,
    measured,
    parser_of,
    publish,
    table,
    texts_of,
)
from configs.command import check_out, exit_code, progress
from decoding.controller import FixedController
from decoding.decoder import SpeculativeDecoder, default_drafter
from decoding.drafters.base import Drafter
from decoding.drafters.load import load_drafter
from decoding.machine import use_threads
from decoding.models import load_model
from decoding.noise import NoiseStream
from decoding.target import TargetModel
from decoding.traces import Position

TEMPERATURES = (0.6, 1.0)
SIZES = (4, 8, 16)
CANDIDATES = 4
WITH, WITHOUT, REJECTION = "coupled", "without the noise", "rejection"


class Silence(NoiseStream):
    """Noise that is 0 everywhere: who scores with it chooses by the draft's logits alone."""

    def __init__(self) -> None:
        super().__init__(0, [])

    def gumbel(self, indices: Sequence[int], ids_N: torch.Tensor) -> torch.Tensor:
        return torch.zeros((len(indices), len(ids_N)), dtype=torch.float64, device=ids_N.device)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; 2 and one line for a user's mistake."""
    given = sys.argv[1:] if arguments is None else arguments
    parser = parser_of("temperature", __doc__, max_new_tokens=64)
    parser.add_argument("--drafter", help="default: what decoding uses")
    parser.add_argument("--beam-width", type=int, default=4)
    return exit_code(lambda: run(parser.parse_args(given), given), "nothing was written")


def run(options: argparse.Namespace, arguments: Sequence[str]) -> None:
    """Measure each temperature in turn; print and write one table."""
    check_out(options.out)
    requests = measured(load_requests(options.workload), options.split, options.per_category)
    use_threads(options.threads)
    model = load_model(options.target, options.device, options.dtype)
    name = default_drafter(options.target) if options.drafter is None else options.drafter
    drafter = load_drafter(name, model, options.beam_width)
    decoder = SpeculativeDecoder(model, drafter)
    prompts = encode(model, requests)
    head = header(("temperature", arguments), options, model, [drafter], requests)
    rows: dict[float, list[Counted]] = {temperature: [] for temperature in TEMPERATURES}
    with progress("texts") as show:
        for temperature, counted in rows.items():
            texts = texts_of(model, prompts, temperature, options.seed, options.max_new_tokens)
            for request, prompt, text in zip(requests, prompts, texts, strict=True):
                limit = min(options.max_new_tokens, model.target.context_limit - len(prompt))
                noise = NoiseStream(options.seed, prompt)
                counts = count_coupled(model.target, drafter, prompt, text, limit, temperature, noise)
                counts |= count_rejection(decoder, prompt, limit, temperature, options.seed)
                counted.append(Counted(request.question_id, str(request.category), request.group, counts))
                show(sum(map(len, rows.values())), 2 * len(requests), request.question_id)
    notes = [
        f"{drafter.name}, beam {options.beam_width}, "
        + ("calibrated" if drafter.calibration else "uncalibrated")
        + f"; accepted tokens a cycle: trees of depth {STEPS} and so many nodes, chains of so many tokens",
        "design.md's sounding at temperature 1: first .40, 1 of 4 .64; without the noise 1 of 4 .59",
    ]
    columns = ["temperature", "candidates", *(f"{size} nodes" for size in SIZES), "first", "1 of 4"]
    lines = [line for temperature, counted in rows.items() for line in table_lines(temperature, counted)]
    one_table = table(f"Accepted tokens a cycle, {len(requests)} prompts", columns, lines)
    data = {str(temperature): [asdict(row) for row in counted] for temperature, counted in rows.items()}
    publish("temperature", head, [one_table], notes, {"texts": data}, options.out)


def count_coupled(
    target: TargetModel,
    drafter: Drafter,
    prompt: Sequence[int],
    text: Sequence[int],
    limit: int,
    temperature: float,
    noise: NoiseStream,
) -> dict[str, float]:
    """Counts of both ways to choose candidates on the text that `noise` gave."""
    counts: dict[str, float] = {"positions": len(text)}
    for way, heard in ((WITH, noise), (WITHOUT, Silence())):
        (trace,) = recorded(target, drafter, prompt, text, [STEPS], temperature, heard).values()
        for size in SIZES:
            cycles = list(trace.cycles(limit, size))
            counts[f"{way}: cycles {size}"] = len(cycles)
            counts[f"{way}: accepted {size}"] = sum(cycle.accepted for cycle in cycles)
        counts |= {f"{way}: {name}": count for name, count in hits(trace).items()}
    return counts


def hits(trace: Trace) -> dict[str, int]:
    """At how many positions the text's token was the best candidate, and one of the best four."""

    def best(position: Position, count: int) -> list[int]:
        level = position.tree.level(1) if position.tree.height else range(0)
        return sorted(level, key=lambda node: -position.tree.scores[node])[:count]

    return {
        name: sum(bool(one.path) and one.path[0] in best(one, count) for one in trace.positions)
        for name, count in (("first", 1), ("one of four", CANDIDATES))
    }


def count_rejection(
    decoder: SpeculativeDecoder, prompt: Sequence[int], limit: int, temperature: float, seed: int
) -> dict[str, float]:
    """Counts of live sessions that draw chains."""
    counts: dict[str, float] = {}
    decoder.target.capture(decoder.drafter.fused_layers)
    for size in SIZES:
        session = decoder.open_session(
            list(prompt), max_new_tokens=limit, temperature=temperature, rule="rejection", seed=seed
        )
        cycles = list(session.run(FixedController(size, size)))
        counts[f"{REJECTION}: cycles {size}"] = len(cycles)
        counts[f"{REJECTION}: accepted {size}"] = sum(cycle.accepted for cycle in cycles)
        drafted = [cycle.accepted_by_depth[0] for cycle in cycles if cycle.accepted_by_depth]
        counts[f"{REJECTION}: drafted {size}"], counts[f"{REJECTION}: kept {size}"] = (
            len(drafted),
            sum(drafted),
        )
    return counts


def table_lines(temperature: float, rows: Sequence[Counted]) -> list[list[str]]:
    """A line for each way, then two for how the others compare with the drafter as it is."""
    lines = []
    for way in (WITH, WITHOUT, REJECTION):
        accepted = [estimate(rows, [f"{way}: accepted {size}"], [f"{way}: cycles {size}"]) for size in SIZES]
        if way == REJECTION:
            first = estimate(rows, [f"{way}: kept {SIZES[0]}"], [f"{way}: drafted {SIZES[0]}"])
            shares = [str(first), "-"]
        else:
            shares = [
                str(estimate(rows, [f"{way}: {name}"], ["positions"])) for name in ("first", "one of four")
            ]
        lines.append([str(temperature), way, *map(str, accepted), *shares])
    for way in (WITHOUT, REJECTION):
        ratios = [
            estimate(
                rows,
                [f"{way}: accepted {size}", f"{WITH}: cycles {size}"],
                [f"{way}: cycles {size}", f"{WITH}: accepted {size}"],
            )
            for size in SIZES
        ]
        lines.append([str(temperature), f"{way} over {WITH}", *map(str, ratios), "-", "-"])
    return lines


if __name__ == "__main__":
    sys.exit(main())
