"""How close forwards come to their bare matrix products, the floor of what they can cost.

The floor of a row count is the faster of two libraries' products on the same weights: oneDNN with packed
weights, and `torch.compile` with inductor's freezing (on CPUs that multiply bf16 in both formats). Beside it
the project's own native products. Over it: a plain cycle, verifications of 8 and 16 rows with the choice of
tokens, and a level of the head at beam 4 with scores and tree.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import nn

from benchmarks.measure import Samples, command, interleaved, ratio_with_interval
from decoding.controller import PlainController
from decoding.decoder import SpeculativeDecoder
from decoding.drafters.eagle import EagleDrafter
from decoding.machine import cpu_has_bfloat16
from decoding.noise import NoiseStream
from decoding.packed import NoFastPath, PackedProduct
from decoding.sampling import Sampling, TokenChooser
from decoding.timing import now

ROWS = (1, 8, 16)
BEAM = 4
CONTEXT = 200
LIBRARIES = ("packed", "frozen")

Things = dict[str, Callable[[], float]]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark."""

    def flags(parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "--no-frozen", action="store_true", help="leave out torch.compile, which takes a minute or two"
        )

    return command("floor", __doc__, run, arguments, flags)


def run(console: Console, decoder: SpeculativeDecoder, options: argparse.Namespace) -> dict[str, Samples]:
    """Measure and print; returns all samples in milliseconds."""
    if decoder.target.device.type != "cpu":
        raise ValueError(f"the floor is measured on the CPU, this target is on {decoder.target.device}")
    head = decoder.drafter if isinstance(decoder.drafter, EagleDrafter) else None
    things: Things = {f"plain cycle|{ROWS[0]}": _plain_cycle(decoder)}
    for rows in ROWS[1:]:
        things[f"verification|{rows}"] = _verification(decoder, rows)
    weights = {str(rows): (list(fused_weights(decoder.target.model)), rows) for rows in ROWS}
    if head is not None:
        things["draft level|beam 4"] = _level(decoder, head)
        layer = [weight for weight in fused_weights(head.head) if weight is not head.head.fc.weight]
        weights["beam 4"] = (layer, BEAM)
    for place, (matrices, rows) in weights.items():
        things |= {
            f"{name}|{place}": thing
            for name, thing in _products(console, matrices, rows, not options.no_frozen).items()
        }
    samples = interleaved(things, options.rounds)
    _print(console, samples)
    return {"floor_ms": samples}


def fused_weights(module: nn.Module) -> Iterator[torch.Tensor]:
    """Weights (N, K) of all linear layers; those that are multiplied by the same rows as one."""
    for part in module.modules():
        taken: set[str] = set()
        for names in (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj")):
            if all(isinstance(getattr(part, name, None), nn.Linear) for name in names):
                taken |= set(names)
                yield torch.cat([getattr(part, name).weight.detach() for name in names])
        for name, child in part.named_children():
            if isinstance(child, nn.Linear) and name not in taken:
                yield child.weight


def _products(console: Console, weights: list[torch.Tensor], rows: int, frozen: bool) -> Things:
    """Seconds of all products with `rows` rows, by whoever computes them."""
    things: Things = {"F.linear": partial(_timed, _linear(weights, rows))}
    for dtype in (torch.float32, torch.bfloat16) if cpu_has_bfloat16() else (torch.float32,):
        suffix = "" if dtype == torch.float32 else " bf16"
        these = [weight.to(dtype) for weight in weights]
        things[f"packed{suffix}"] = partial(_timed, _packed(these, rows))
        if frozen:
            things[f"frozen{suffix}"] = partial(_timed, _frozen(console, these, rows))
    try:
        ours = [PackedProduct(weight) for weight in weights]
        inputs = _inputs(weights, rows)
        things["ours"] = partial(_timed, lambda: [product(inputs[product.inputs]) for product in ours])
    except NoFastPath as error:
        console.print(f"no native products: {error}")
    return things


@torch.inference_mode()
def _timed(compute: Callable[[], Any]) -> float:
    started = time.perf_counter()
    compute()
    return time.perf_counter() - started


def _inputs(weights: Sequence[torch.Tensor], rows: int) -> dict[int, torch.Tensor]:
    widths = {weight.shape[1] for weight in weights}
    return {width: torch.randn(rows, width, dtype=weights[0].dtype) for width in widths}


def _linear(weights: list[torch.Tensor], rows: int) -> Callable[[], Any]:
    inputs = _inputs(weights, rows)
    return lambda: [nn.functional.linear(inputs[weight.shape[1]], weight) for weight in weights]


def _packed(weights: list[torch.Tensor], rows: int) -> Callable[[], Any]:
    """oneDNN's operators, as inductor calls them; the packing depends on the number of rows."""
    inputs, operators = _inputs(weights, rows), torch.ops.mkldnn
    packed = [
        (weight.shape[1], operators._reorder_linear_weight(weight.contiguous(), rows)) for weight in weights
    ]
    return lambda: [
        operators._linear_pointwise(inputs[width], weight, None, "none", [], "") for width, weight in packed
    ]


class _Frozen(nn.Module):
    def __init__(self, weights: list[torch.Tensor]) -> None:
        super().__init__()
        self.weights = nn.ParameterList([nn.Parameter(weight, requires_grad=False) for weight in weights])

    def forward(self, inputs: dict[int, torch.Tensor]) -> list[torch.Tensor]:
        return [nn.functional.linear(inputs[weight.shape[1]], weight) for weight in self.weights]


def _frozen(console: Console, weights: list[torch.Tensor], rows: int) -> Callable[[], Any]:
    inputs, started = _inputs(weights, rows), time.perf_counter()
    torch._dynamo.reset()
    compiled = torch.compile(_Frozen(weights).eval(), dynamic=False, options={"freezing": True})
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compiled(inputs)
    console.print(f"compiled {len(weights)} products of {rows} rows in {time.perf_counter() - started:.0f} s")

    def compute() -> Any:
        with torch.inference_mode(False), torch.no_grad():  # as it was compiled
            return compiled(inputs)

    return compute


def _plain_cycle(decoder: SpeculativeDecoder) -> Callable[[], float]:
    """Seconds of a whole plain cycle around CONTEXT tokens."""
    rng = np.random.default_rng(1)
    state: dict[str, list[float]] = {"left": []}

    def measure() -> float:
        if not state["left"]:
            ids = rng.integers(100, decoder.target.vocabulary_size, CONTEXT).tolist()
            session = decoder.open_session(ids, max_new_tokens=8)
            state["left"] = [record.seconds.total for record in session.run(PlainController())]
        return state["left"].pop()

    return measure


def _verification(decoder: SpeculativeDecoder, rows: int) -> Callable[[], float]:
    """Seconds of a forward of a chain on top of CONTEXT tokens, and of the choice after every row."""
    target = decoder.target
    cache = target.new_cache()
    ids = np.random.default_rng(1).integers(100, target.vocabulary_size, CONTEXT + rows).tolist()
    target.forward(ids[:CONTEXT], cache, last_logits_only=True)
    parents, depths = range(-1, rows - 1), range(rows)
    chooser = TokenChooser(Sampling(), NoiseStream(0, ids))

    def measure() -> float:
        started = now(target.device)
        output = target.forward(ids[CONTEXT:], cache, parents, depths)
        chooser.choose(output.logits_RV, range(rows))
        seconds = now(target.device) - started
        with torch.inference_mode():
            cache.keep(CONTEXT, [], target.device)
        return seconds

    return measure


def _level(decoder: SpeculativeDecoder, drafter: EagleDrafter) -> Callable[[], float]:
    """Seconds of the second level of a draft: BEAM rows through the head, scores, tree."""
    ids = np.random.default_rng(1).integers(100, decoder.target.vocabulary_size, CONTEXT).tolist()
    features = decoder.target.forward(ids[:-1], decoder.target.new_cache(), last_logits_only=True)
    state = drafter.start(NoiseStream(0, ids), 0.0, len(ids))
    state.ingest(ids[:1], None)
    state.ingest(ids[1:], features.features_RF)

    def measure() -> float:
        state.begin()
        state.extend()
        started = now(drafter.device)
        state.extend()
        return now(drafter.device) - started

    return measure


def _print(console: Console, samples: Samples) -> None:
    table = Table(title=f"forwards over their products, context {CONTEXT}, medians")
    for column in ("rows", "what", "ms", "over the floor", "95 % interval", "over our products"):
        table.add_column(column, justify="right")
    medians = {name: float(np.median(values)) for name, values in samples.items()}
    for place in dict.fromkeys(name.partition("|")[2] for name in samples):
        here = [name for name in samples if name.partition("|")[2] == place]
        libraries = [name for name in here if name.startswith(LIBRARIES)]
        floor = min(libraries, key=lambda name: medians[name])
        for name in here:
            what = name.partition("|")[0] + (" (the floor)" if name == floor else "")
            ratio, low, high = ratio_with_interval(samples[name], samples[floor])
            ours = f"{medians[name] / medians[f'ours|{place}']:.2f}" if f"ours|{place}" in medians else "-"
            table.add_row(
                place, what, f"{medians[name]:.2f}", f"{ratio:.2f}", f"{low:.2f} .. {high:.2f}", ours
            )
    console.print(table)


if __name__ == "__main__":
    sys.exit(main())
