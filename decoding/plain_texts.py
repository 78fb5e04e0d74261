"""Plain decoding of many prompts at once under the `coupled` rule: the texts that recordings are made of.

Legend: B rows, H hidden size, R rows that choose a token, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import torch

from decoding.noise import NoiseStream
from decoding.sampling import Sampling, TokenChooser
from decoding.session import check_prompt
from decoding.target import TargetModel
from decoding.text_rows import RowCache


@dataclass(slots=True)
class _Row:
    """A prompt and what follows it so far, see `FedRow`; `limit` counts the prompt too."""

    number: int
    context: list[int]
    prompt_length: int
    limit: int
    chooser: TokenChooser
    fed: int = 0


def plain_texts(
    target: TargetModel,
    prompts: Sequence[Sequence[int]],
    sampling: Sampling,
    seed: int,
    *,
    max_new_tokens: int,
    end_ids: Collection[int],
    batch: int = 32,
) -> Iterator[tuple[int, list[int]]]:
    """Yield (number of the prompt, generated ids) as the texts are done; they are begun in order.

    Each text is what `Session` gives with this seed, the ending id included, up to floating-point ties,
    whoever shares the batch. Exact for targets whose logits are those of the output layer, unscaled.

    Args:
        max_new_tokens: most tokens of a text, >= 1; held to what the context leaves.
        end_ids: ids that end a text.
        batch: prompts that are decoded together, >= 1. The cache holds the longest text this many times.

    Raises:
        ValueError: at once, a prompt or a limit that `Session` would refuse, a seed of more than 64 bits, a
            batch below 1, or a law that reads its context; later, logits that no token follows from.
    """
    for number, prompt in enumerate(prompts):
        try:
            check_prompt(prompt, target, max_new_tokens)
        except ValueError as error:
            raise ValueError(f"prompt number {number}: {error}") from None
    if type(seed) is not int or not -(2**63) <= seed < 2**64:
        raise ValueError(f"seed is {seed!r}, must be a whole number of 64 bits")
    if type(batch) is not int or batch < 1:
        raise ValueError(f"batch is {batch!r}, must be a whole number >= 1")
    if sampling.reads_context:
        raise ValueError(
            "the sampling settings hold a repetition penalty or logits processors, which see one text at a "
            "time: leave them out, or decode text by text"
        )
    rows = [
        _Row(
            number,
            list(prompt),
            len(prompt),
            min(len(prompt) + max_new_tokens, target.context_limit),
            TokenChooser(sampling, NoiseStream(seed, prompt)),
        )
        for number, prompt in enumerate(prompts)
    ]
    return _decode(target, rows, frozenset(end_ids), batch)


def _decode(
    target: TargetModel, texts: Sequence[_Row], end_ids: frozenset[int], batch: int
) -> Iterator[tuple[int, list[int]]]:
    if not texts:
        return
    cache = RowCache(target, min(batch, len(texts)), max(row.limit for row in texts))
    waiting = iter(texts)
    rows: list[_Row] = []
    while True:
        while len(rows) < batch and (row := next(waiting, None)) is not None:
            rows.append(row)
        if not rows:
            return
        _choose(cache, cache.feed(rows), rows)
        for row in rows:
            text = row.context[row.prompt_length :]
            if text and (text[-1] in end_ids or len(row.context) == row.limit):
                yield row.number, text
                row.fed = -1
        cache.close_gaps(rows)


def _choose(cache: RowCache, states_BH: torch.Tensor, rows: Sequence[_Row]) -> None:
    """Add the next token to every row whose tokens have all been fed."""
    places = [place for place, row in enumerate(rows) if row.fed == len(row.context)]
    if not places:
        return
    for place, logits_V in zip(places, cache.logits(states_BH, places), strict=True):
        row = rows[place]
        index = len(row.context) - row.prompt_length
        row.context += row.chooser.choose(logits_V[None], [index])
