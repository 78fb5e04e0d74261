"""What a forward and a draft cost, against context, rows, beam, depth and draft vocabulary.

Random tokens at temperature 0: costs do not depend on what the tokens are. All points of a curve are measured
in one run, in random order.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from rich.console import Console

from benchmarks.measure import Samples, command, interleaved, print_ratios
from decoding.decoder import SpeculativeDecoder
from decoding.drafters.eagle import EagleDrafter, EagleState
from decoding.drafters.eagle_head import EagleHead
from decoding.fast_forward import FastForward, Rows
from decoding.noise import NoiseStream
from decoding.timing import now

CONTEXT = 200
CONTEXTS = (64, 256, 1024, 4096, 1 << 62)  # the last is held to the model's limit
CONTEXT_ROWS = (1, 5, 17)
ROWS = (1, 2, 3, 4, 5, 6, 8, 9, 12, 16, 17, 24, 32, 48, 64, 96, 128)
REQUESTS = (1, 2, 4, 6, 8, 12, 16, 24, 32)
BEAMS = (1, 2, 4, 6, 8, 12, 16)
DEPTHS = (1, 2, 4, 6, 8)
VOCABULARIES = (1024, 4096, 8192, 16384, 32768, 49152)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark."""
    return command("curves", __doc__, run, arguments)


def run(console: Console, decoder: SpeculativeDecoder, options: argparse.Namespace) -> dict[str, Samples]:
    """Measure and print; returns the samples of each curve in milliseconds."""
    results: dict[str, Samples] = {}

    def measure(name: str, title: str, things: dict[str, Callable[[], float]]) -> None:
        results[name] = interleaved(things, options.rounds)
        print_ratios(console, title, results[name], next(iter(things)))

    rows_cost = _Forwards(decoder, CONTEXT + max(ROWS))
    measure(
        "rows",
        f"target forward by rows, context {CONTEXT}, ms",
        {str(rows): partial(rows_cost, CONTEXT, rows) for rows in ROWS},
    )
    if decoder.target.fast is not None:
        together = _Requests(decoder.target.fast, max(REQUESTS))
        measure(
            "requests",
            f"one token for each of several requests, context {CONTEXT}, ms",
            {str(count): partial(together, count) for count in REQUESTS},
        )
    limit = decoder.target.context_limit - max(CONTEXT_ROWS)
    contexts = sorted({min(context, limit) for context in CONTEXTS})
    console.print(f"prefilling {contexts[-1]} tokens")
    context_cost = _Forwards(decoder, contexts[-1] + max(CONTEXT_ROWS))
    for rows in CONTEXT_ROWS:
        measure(
            f"context_{rows}_rows",
            f"target forward of {rows} row{'s' if rows > 1 else ''} by context, ms",
            {str(context): partial(context_cost, context, rows) for context in contexts},
        )
    drafter = decoder.drafter
    if isinstance(drafter, EagleDrafter):
        beams = {width: _another(decoder, drafter, width) for width in BEAMS}
        measure("beam", "second level by beam width, ms", {
            str(width): _Levels(decoder, one, 2) for width, one in beams.items()
        })  # fmt: skip
        measure("depth", f"draft by depth, beam {drafter.beam_width}, ms", {
            str(depth): _Levels(decoder, drafter, depth, whole=True) for depth in DEPTHS
        })  # fmt: skip
        sizes = [size for size in VOCABULARIES if size <= decoder.target.vocabulary_size]
        heads = {size: _another(decoder, drafter, drafter.beam_width, size) for size in sizes}
        measure("vocabulary", f"second level by draft vocabulary, beam {drafter.beam_width}, ms", {
            str(size): _Levels(decoder, one, 2) for size, one in heads.items()
        })  # fmt: skip
    return results


class _Forwards:
    """Seconds of a forward of `rows` rows, a chain, on top of `context` tokens."""

    def __init__(self, decoder: SpeculativeDecoder, most: int) -> None:
        self._target = decoder.target
        rng = np.random.default_rng(1)
        self._ids: list[int] = rng.integers(0, self._target.vocabulary_size, most).tolist()
        self._cache = self._target.new_cache()
        self._target.forward(self._ids, self._cache, last_logits_only=True)

    @torch.inference_mode()
    def __call__(self, context: int, rows: int) -> float:
        self._cache.keep(context, [], self._target.device)  # what lies above stays written
        started = now(self._target.device)
        self._target.forward(
            self._ids[context : context + rows], self._cache, range(-1, rows - 1), range(rows)
        )
        seconds = now(self._target.device) - started
        # The rows are those that lay there before, so that every context remains a prefill's.
        self._cache.keep(len(self._ids), [], self._target.device)
        return seconds


class _Requests:
    """Seconds of a forward of one row for each of `count` requests, each on a cache of CONTEXT tokens."""

    def __init__(self, fast: FastForward, most: int) -> None:
        self._fast = fast
        ids = np.random.default_rng(1).integers(0, fast.packed.known_ids, CONTEXT).tolist()
        self._caches = [fast.new_cache() for _ in range(most)]
        for cache in self._caches:
            fast.forward(Rows(ids, range(CONTEXT), cache, last_logits_only=True))

    def __call__(self, count: int) -> float:
        requests = [Rows([1], [CONTEXT], cache) for cache in self._caches[:count]]
        started = time.perf_counter()
        self._fast.forward_many(requests)
        seconds = time.perf_counter() - started
        for rows in requests:
            rows.cache.length = CONTEXT
        return seconds


class _Levels:
    """Seconds of level `depth` of a draft, or of the `whole` draft to it, on top of CONTEXT tokens."""

    def __init__(
        self, decoder: SpeculativeDecoder, drafter: EagleDrafter, depth: int, whole: bool = False
    ) -> None:
        ids = np.random.default_rng(1).integers(0, decoder.target.vocabulary_size, CONTEXT).tolist()
        features = decoder.target.forward(ids[:-1], decoder.target.new_cache(), last_logits_only=True)
        self._device, self._depth, self._whole = drafter.device, depth, whole
        self._state: EagleState = drafter.start(NoiseStream(0, ids), 0.0, len(ids))
        self._state.ingest(ids[:1], None)
        self._state.ingest(ids[1:], features.features_RF)

    def __call__(self) -> float:
        self._state.begin()
        started = now(self._device)
        for level in range(1, self._depth + 1):
            if level == self._depth and not self._whole:
                started = now(self._device)
            self._state.extend()
        return now(self._device) - started


def _another(
    decoder: SpeculativeDecoder, drafter: EagleDrafter, beam_width: int, vocabulary: int | None = None
) -> EagleDrafter:
    """The drafter with another beam, or with a random head that drafts `vocabulary` ids."""
    head, target = drafter.head, decoder.target
    if vocabulary is not None:
        head = EagleHead(replace(head.config, draft_vocab_size=vocabulary)).requires_grad_(False)
        for weights in head.parameters():
            if weights.dim() == 2:
                weights.normal_(0, 0.02, generator=torch.Generator().manual_seed(0))
                weights.copy_(weights.to(torch.bfloat16).float())  # read as the shipped head's are
        head.set_vocabulary(torch.arange(vocabulary))
    one = EagleDrafter(head, target.embeddings, target.device, target.dtype, beam_width, drafter.name)
    if drafter.fast is not None and not one.use_fast_path():
        raise ValueError(f"a head of {vocabulary} ids cannot take the fast path")
    return one


if __name__ == "__main__":
    sys.exit(main())
