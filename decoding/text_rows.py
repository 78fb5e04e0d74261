"""Many texts at once by one target: a static cache, and a new text in a row as soon as its last one is done.

Every forward feeds one token a row, given or chosen: on a CPU a large batch is bound by arithmetic, so that a
given token costs what it would in a prefill, and rows at different places of different texts go together.

Legend: B rows, P tokens of a row in one forward, W positions that attention reads, V vocabulary, H hidden
size, G key/value heads, D head size, R rows that are chosen for alike, K tokens that they may choose from.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

import numpy as np
import torch

from decoding.kv_cache import KVBuffer, TargetCache
from decoding.repetition import loop_cut
from decoding.sampling import Sampling, no_distribution
from decoding.target import TargetModel

Result = TypeVar("Result")

# A row whose last tokens are this much of a loop is stopped: what would follow is cut anyway.
_HOPELESS_LOOP = 48
_LOOP_CHECK_EVERY = 8


@dataclass(frozen=True, slots=True)
class Draw:
    """How a stretch of text is chosen: temperature (0 = greedy), top-k, at most `limit` tokens, and the ids
    that end it, which are not part of it."""

    temperature: float
    top_k: int | None
    limit: int
    stop_ids: frozenset[int]


@dataclass(frozen=True, slots=True)
class Ask:
    """What a script wants next: `given` tokens after what is there (`fresh`: after the prefix alone), then a
    stretch of the target's own."""

    given: Sequence[int]
    draw: Draw
    fresh: bool = False


@dataclass(frozen=True, slots=True)
class Written:
    """The target's answer to an `Ask`; `stop` is the id that ended it, None at the limit or in a loop."""

    tokens: list[int]
    stop: int | None


# A text's own program: asks, reads what was written, returns its result.
Script = Generator[Ask, Written, Result]


class RowsBuffer(KVBuffer):
    """Keys and values of B rows of fixed capacity, each written at its own positions."""

    def __init__(self, place: _Place, capacity: int) -> None:
        super().__init__()
        self._place = place
        self._capacity = capacity
        self.keys_BGTD = self.values_BGTD = torch.empty(0)

    def append(self, keys_BGPD: torch.Tensor, values_BGPD: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        place = self._place
        if not self.keys_BGTD.numel():
            _, heads, _, size = keys_BGPD.shape
            self.keys_BGTD = keys_BGPD.new_zeros((place.capacity_rows, heads, self._capacity, size))
            self.values_BGTD = torch.zeros_like(self.keys_BGTD)
        rows = len(place.positions_BP)
        where = (place.rows_B[:rows, None], slice(None), place.positions_BP)
        self.keys_BGTD[where] = keys_BGPD.transpose(1, 2)
        self.values_BGTD[where] = values_BGPD.transpose(1, 2)
        return self.keys_BGTD[:rows, :, : place.width], self.values_BGTD[:rows, :, : place.width]


@dataclass(slots=True)
class _Place:
    """Where the rows of the forward in progress are written."""

    capacity_rows: int
    rows_B: torch.Tensor
    positions_BP: torch.Tensor
    width: int = 0


class FedRow(Protocol):
    """A text in the making: `context` holds all its tokens, the first `fed` of them are in the cache; a
    negative `fed` marks a text that is done."""

    context: list[int]
    fed: int


FedRowT = TypeVar("FedRowT", bound=FedRow)


class RowCache:
    """A target's static cache for `rows` rows of `capacity` positions, and the forward that fills it."""

    def __init__(self, target: TargetModel, rows: int, capacity: int) -> None:
        self._target = target
        self._place = _Place(rows, torch.arange(rows, device=target.device), torch.zeros((0, 0)))
        self._cache = TargetCache(target.config.num_hidden_layers)
        self._buffers = [RowsBuffer(self._place, capacity) for _ in self._cache.layers]
        for layer, buffer in zip(self._cache.layers, self._buffers, strict=True):
            layer.buffer = buffer

    @torch.inference_mode()
    def forward(self, tokens_BP: Sequence[Sequence[int]], starts_B: Sequence[int]) -> torch.Tensor:
        """Final states (B, P, H) of the first B rows, each fed P tokens from position `starts_B` on."""
        device = self._target.device
        ids_BP = torch.tensor(tokens_BP, device=device)
        steps_P = torch.arange(ids_BP.shape[1], device=device)
        positions_BP = torch.tensor(starts_B, device=device)[:, None] + steps_P
        width = max(starts_B) + ids_BP.shape[1]
        self._place.positions_BP, self._place.width = positions_BP, width
        later_BPW = torch.arange(width, device=device) > positions_BP[:, :, None]
        mask_B1PW = torch.zeros(later_BPW.shape, dtype=self._target.dtype, device=device)
        mask_B1PW = mask_B1PW.masked_fill_(later_BPW, torch.finfo(self._target.dtype).min)[:, None]
        output = self._target.model.get_decoder()(
            input_ids=ids_BP,
            attention_mask=mask_B1PW,
            position_ids=positions_BP,
            use_cache=True,
            **{self._target.cache_name: self._cache},
        )
        states_BPH: torch.Tensor = output.last_hidden_state
        return states_BPH

    def feed(self, rows: Sequence[FedRow]) -> torch.Tensor:
        """Feed each of the first B rows its next token; final states (B, H)."""
        states_BPH = self.forward([[row.context[row.fed]] for row in rows], [row.fed for row in rows])
        for row in rows:
            row.fed += 1
        return states_BPH[:, 0]

    @torch.inference_mode()
    def logits(self, states_BH: torch.Tensor, places: Sequence[int]) -> torch.Tensor:
        """The output layer (R, V) for the rows that a token is chosen for; the others need none."""
        head = self._target.model.get_output_embeddings()
        logits_RV: torch.Tensor = head(states_BH[torch.tensor(places, device=states_BH.device)])
        return logits_RV

    def close_gaps(self, rows: list[FedRowT]) -> None:
        """Move the last rows into the places of those that are done."""
        for place in reversed(range(len(rows))):
            if rows[place].fed < 0:
                last = rows.pop()
                if place < len(rows):
                    rows[place] = last
                    self.set_row(place, self.row(len(rows), last.fed))

    def row(self, row: int, length: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """A copy of the first `length` positions of a row, by layer."""
        return [
            (buffer.keys_BGTD[row, :, :length].clone(), buffer.values_BGTD[row, :, :length].clone())
            for buffer in self._buffers
        ]

    @torch.inference_mode()
    def set_row(self, row: int, copy: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
        """Put a copy at the beginning of a row."""
        for buffer, (keys_GTD, values_GTD) in zip(self._buffers, copy, strict=True):
            buffer.keys_BGTD[row, :, : keys_GTD.shape[1]] = keys_GTD
            buffer.values_BGTD[row, :, : values_GTD.shape[1]] = values_GTD


@dataclass(slots=True)
class _Row(Generic[Result]):
    """One text in the making, see `FedRow`."""

    number: int
    script: Script[Result]
    rng: np.random.Generator
    context: list[int] = field(default_factory=list)
    fed: int = 0
    draw: Draw = Draw(0.0, None, 0, frozenset())
    written_from: int = 0


class RowWriter:
    """Runs scripts on the target, `batch` at a time.

    Args:
        prefix: tokens that every context begins with, at least one; computed once.
        capacity: tokens that a context can hold; scripts must not ask for more.

    A row's uniforms come from its own generator, one a chosen token (none where greedy): its text is a
    function of its script and that generator, up to floating-point ties, whoever shares the batch.
    `fed_tokens` counts what was fed since the beginning.
    """

    def __init__(self, target: TargetModel, prefix: Sequence[int], batch: int, capacity: int) -> None:
        if capacity > target.context_limit:
            raise ValueError(
                f"texts of {capacity} tokens do not fit the target's context of {target.context_limit}: "
                "lower max_length"
            )
        self._target = target
        self._prefix = list(prefix)
        self._batch = batch
        self._capacity = capacity
        self._cache = RowCache(target, batch, capacity)
        self._prefix_copy: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.fed_tokens = 0

    def run(
        self, scripts: Sequence[tuple[Script[Result], np.random.Generator]]
    ) -> Iterator[tuple[int, Result]]:
        """Yield (place in `scripts`, result) as the texts are done; they are begun in order."""
        if not self._prefix_copy and len(self._prefix) > 1:
            # The last token of the prefix is fed by each row, so that a row may choose its very first token.
            self._cache.forward([self._prefix[:-1]], [0])
            self._prefix_copy = self._cache.row(0, len(self._prefix) - 1)
        waiting = iter(enumerate(scripts))
        rows: list[_Row[Result]] = []
        while True:
            while len(rows) < self._batch and (entry := next(waiting, None)) is not None:
                number, (script, rng) = entry
                rows.append(_Row(number, script, rng))
                self._begin(len(rows) - 1, rows[-1], next(script))
            if not rows:
                return
            states_BH = self._cache.feed(rows)
            self.fed_tokens += len(rows)
            choosing = [place for place, row in enumerate(rows) if row.fed == len(row.context)]
            for place, token in zip(choosing, self._choose(states_BH, rows, choosing), strict=True):
                row = rows[place]
                written = self._take(row, token)
                if written is None:
                    continue
                try:
                    self._begin(place, row, row.script.send(written))
                except StopIteration as finished:
                    yield row.number, finished.value
                    row.fed = -1
            self._cache.close_gaps(rows)

    def _begin(self, place: int, row: _Row[Result], ask: Ask) -> None:
        """Take up what a script asks for; every script's first ask begins afresh."""
        if ask.fresh or not row.context:
            row.context, row.fed = list(self._prefix), len(self._prefix) - 1
            if self._prefix_copy:
                self._cache.set_row(place, self._prefix_copy)
        row.context += ask.given
        # Where the target ended a stretch and nothing is given, its last token is fed once more.
        row.fed = min(row.fed, len(row.context) - 1)
        row.draw, row.written_from = ask.draw, len(row.context)
        assert len(row.context) + ask.draw.limit <= self._capacity, "a script asks for more than fits"

    @torch.inference_mode()
    def _choose(self, states_BH: torch.Tensor, rows: list[_Row[Result]], choosing: list[int]) -> list[int]:
        """The next token of each row in `choosing`; the others need no logits."""
        if not choosing:
            return []
        logits_RV = self._cache.logits(states_BH, choosing)
        draws = [rows[place].draw for place in choosing]
        uniforms = [rows[place].rng.random() if rows[place].draw.temperature else 0.0 for place in choosing]
        return choose_tokens(logits_RV, draws, uniforms)

    def _take(self, row: _Row[Result], token: int) -> Written | None:
        """Add a chosen token; what was written, if this ends the stretch."""
        if token in row.draw.stop_ids:
            return Written(row.context[row.written_from :], token)
        row.context.append(token)
        count = len(row.context) - row.written_from
        if count >= row.draw.limit or (
            count % _LOOP_CHECK_EVERY == 0
            and loop_cut(row.context[row.written_from :], least=_HOPELESS_LOOP) is not None
        ):
            return Written(row.context[row.written_from :], None)
        return None


def choose_tokens(logits_BV: torch.Tensor, draws: Sequence[Draw], uniforms: Sequence[float]) -> list[int]:
    """A token for each row by its own `Draw`: the best, or the one at its uniform's place in the law."""
    chosen = [0] * len(draws)
    groups: dict[tuple[bool, int | None], list[int]] = {}
    for place, draw in enumerate(draws):
        groups.setdefault((draw.temperature == 0, draw.top_k if draw.temperature else None), []).append(place)
    for (greedy, top_k), places in groups.items():
        logits_RV = logits_BV[torch.tensor(places, device=logits_BV.device)]
        best_R, tokens_R = logits_RV.max(dim=-1)
        if not torch.isfinite(best_R).all():
            raise no_distribution(0, Sampling())
        if not greedy:
            values_RK, ids_RK = logits_RV, None
            if top_k is not None and top_k < logits_RV.shape[-1]:
                values_RK, ids_RK = logits_RV.topk(top_k, dim=-1)
            heat_R1 = [[draws[place].temperature] for place in places]
            scaled_RK = values_RK.double() / values_RK.new_tensor(heat_R1, dtype=torch.float64)
            mass_RK = scaled_RK.softmax(dim=-1).cumsum(dim=-1)
            at_R1 = mass_RK.new_tensor([[uniforms[place]] for place in places]) * mass_RK[:, -1:]
            # The first whose mass exceeds the uniform: never one of probability 0.
            index_R1 = (mass_RK <= at_R1).sum(dim=-1, keepdim=True)
            tokens_R = (index_R1 if ids_RK is None else ids_RK.gather(-1, index_R1))[:, 0]
        for place, token in zip(places, tokens_R.tolist(), strict=True):
            chosen[place] = token
    return chosen
