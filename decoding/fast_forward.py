"""Forwards of a packed stack by native.c.

Legend: R rows, H hidden size, F number of captured layers, V vocabulary.
"""

from __future__ import annotations

import ctypes
import math
import threading
from array import array
from collections.abc import Sequence
from ctypes import byref
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np
import torch

from decoding import native
from decoding.attention_mask import Mask
from decoding.machine import native_threads
from decoding.packed import PackedStack, address
from decoding.slot_cache import SlotCache
from decoding.survival import BestOfRows, LevelScale, NativeSurvival

# Rows of one call: their activations stay in the processor's cache while the weights pass by.
MOST_ROWS = 128


@dataclass(frozen=True, slots=True)
class Rows:
    """R rows of one request, to run on top of its cache, which grows by R slots.

    Attributes:
        token_ids: R ids.
        positions: each row's.
        cache: of the stack that is to run them.
        mask: of the last slots, these R among them. None: each row attends to all slots up to its own.
        states_H: fp32 (any, H), what goes into the first layer; None = the tokens' embeddings.
        state_rows: for each of the R rows its row of `states_H`; None = row by row.
        last_logits_only: logits of the last row alone.
    """

    token_ids: Sequence[int]
    positions: Sequence[int]
    cache: SlotCache
    mask: Mask | None = None
    states_H: torch.Tensor | None = None
    state_rows: Sequence[int] | None = None
    last_logits_only: bool = False

    def __len__(self) -> int:
        return len(self.token_ids)

    def states(self) -> torch.Tensor:
        """fp32 (R, H), row by row."""
        assert self.states_H is not None, "these rows have no states"
        if self.state_rows is None:
            return self.states_H
        return self.states_H[torch.tensor(self.state_rows)]


@dataclass(frozen=True, slots=True)
class Forwarded:
    """What a forward returns: logits (R or 1, V), the captured outputs (R, F * H) if layers are captured, and
    of each row the largest logit and its token, see `largest_of_rows`, or the survival that was asked for."""

    logits_RV: torch.Tensor
    captured_RF: torch.Tensor | None
    best: tuple[list[float], list[int]]
    survival: NativeSurvival | None = None


@dataclass(frozen=True, slots=True)
class Scores:
    """Asks for the survival of a level's tokens beside the logits, at temperature 0: its scale, and how many
    of each row's best."""

    scale: LevelScale
    width: int


class FastForward:
    """Runs rows through a packed stack.

    Args:
        packed: the stack.
        capture: layers whose outputs `forward` returns, 1 = the first layer's.
    """

    def __init__(self, packed: PackedStack, capture: Sequence[int] = ()) -> None:
        self.packed = packed
        self.capture = np.array(capture, dtype=np.int64)
        self._native = native.library()
        self._workspace = torch.empty(0)
        # Native code runs without the interpreter's lock: two callers must not share the workspace.
        self._lock = threading.Lock()

    def new_cache(self) -> SlotCache:
        """An empty cache for one request."""
        return SlotCache(self.packed)

    def forward(self, rows: Rows, scores: Scores | None = None) -> Forwarded:
        """Run the rows; `scores` asks for `survival`, of the rows that have logits."""
        if rows.mask is not None or len(rows) <= MOST_ROWS:
            return self._call([rows], rows.last_logits_only, scores)
        assert rows.state_rows is None, "rows of states are for the few of a level"
        parts = []
        for start in range(0, len(rows), MOST_ROWS):
            piece = slice(start, start + MOST_ROWS)
            states = None if rows.states_H is None else rows.states_H[piece]
            some = replace(
                rows, token_ids=rows.token_ids[piece], positions=rows.positions[piece], states_H=states
            )
            wanted = start + MOST_ROWS >= len(rows) or not rows.last_logits_only
            parts.append(self._call([some], some.last_logits_only, scores if wanted else None, wanted))
        captured = [part.captured_RF for part in parts if part.captured_RF is not None]
        captured_RF = torch.cat(captured) if captured else None
        if rows.last_logits_only:
            return replace(parts[-1], captured_RF=captured_RF)
        values, tokens = zip(*(part.best for part in parts), strict=True)
        best = (list(chain.from_iterable(values)), list(chain.from_iterable(tokens)))
        return Forwarded(torch.cat([part.logits_RV for part in parts]), captured_RF, best)

    def forward_many(self, requests: Sequence[Rows]) -> list[Forwarded]:
        """`forward` of several requests at once, each on a cache of its own, at most MOST_ROWS rows in all:
        the same bits in less time."""
        if len(requests) == 1:
            return [self.forward(requests[0])]
        together = self._call(requests, any(rows.last_logits_only for rows in requests), None)
        values, tokens = together.best
        results, row, scored = [], 0, 0
        for rows in requests:
            mine = slice(scored, scored + (1 if rows.last_logits_only else len(rows)))
            captured = together.captured_RF
            results.append(
                Forwarded(
                    together.logits_RV[mine],
                    None if captured is None else captured[row : row + len(rows)],
                    (values[mine], tokens[mine]),
                )
            )
            row, scored = row + len(rows), mine.stop
        return results

    def _call(
        self,
        requests: Sequence[Rows],
        some_rows: bool,
        scores: Scores | None,
        wanted: bool = True,
    ) -> Forwarded:
        """`some_rows`: not all of them need logits; none do if not `wanted`."""
        stack = self.packed.stack
        tokens = [token for rows in requests for token in rows.token_ids]
        positions = [position for rows in requests for position in rows.positions]
        known, count = self.packed.known_ids, len(tokens)
        if not 0 <= min(tokens) <= max(tokens) < known:
            raise ValueError(f"token ids span {min(tokens)}..{max(tokens)}, must be in 0..{known - 1}")
        scored = _scored(requests, wanted) if some_rows else range(count)
        states_H, state_rows = _states(requests)
        # One array for all whole numbers, and none of numpy's: what a cycle asks of Python comes out of
        # memory each time, since the weights have pushed it out of the processor's caches.
        whole_numbers = array("q", [*tokens, *positions, *scored, *state_rows])
        wholes = whole_numbers.buffer_info()[0]
        cos_TD, sin_TD = self.packed.angles(max(positions) + 1)
        logits_RV = torch.empty(len(scored), stack.vocabulary)
        best = BestOfRows(len(scored), 1 if scores is None else scores.width)
        normalisers, values, columns = best.addresses
        call = native.Call(
            parts=_parts(requests),
            tokens=wholes,
            positions=wholes + 8 * count,
            cos=cos_TD.data_ptr(),
            sin=sin_TD.data_ptr(),
            scored=wholes + 16 * count,
            logits=logits_RV.data_ptr(),
            best=values,
            best_tokens=columns,
            normalisers=normalisers,
            rows=count,
            part_count=len(requests),
            scored_count=len(scored),
            capture_count=len(self.capture),
            outputs=self.packed.outputs,
            threads=native_threads(),
        )
        if scores is not None:
            call.width, call.kappa, call.log_a = scores.width, scores.scale.kappa, math.log(scores.scale.a)
        if states_H is not None:
            states_H = states_H.contiguous()
            call.states = address(states_H)
        if state_rows:
            call.state_rows = wholes + 8 * (2 * count + len(scored))
        captured_RF = None
        if len(self.capture):
            captured_RF = torch.empty(count, len(self.capture) * stack.hidden)
            call.captured, call.capture = captured_RF.data_ptr(), self.capture.ctypes.data
        self._run(call)
        for rows in requests:
            rows.cache.length += len(rows)
        if stack.vocabulary != self.packed.outputs:
            logits_RV = logits_RV[:, : self.packed.outputs]
        if scores is None:
            return Forwarded(logits_RV, captured_RF, (best.values.tolist(), best.columns.tolist()))
        return Forwarded(logits_RV, captured_RF, ([], []), NativeSurvival(logits_RV, scores.scale, best))

    def _run(self, call: native.Call) -> None:
        stack = self.packed.stack
        needed = self._native.workspace_floats(byref(stack), byref(call))
        with self._lock:
            if len(self._workspace) < needed:
                self._workspace = torch.empty(needed)
            call.workspace = self._workspace.data_ptr()
            self._native.forward(byref(stack), byref(call))


def _parts(requests: Sequence[Rows]) -> ctypes.Array[native.Part]:
    """Where each request's rows and cache lie; caches have room for them afterwards."""
    parts = (native.Part * len(requests))()
    first = 0
    for part, rows in zip(parts, requests, strict=True):
        cache, count = rows.cache, len(rows)
        cache.make_room(cache.length + count)
        slots = cache.slots
        part.keys, part.values, part.slots = slots.keys, slots.values, slots.slots
        part.first, part.rows, part.length = first, count, cache.length
        if rows.mask is not None:
            part.mask, part.seen = b"".join(rows.mask), len(rows.mask[0])
        first += count
    return parts


def _scored(requests: Sequence[Rows], wanted: bool) -> list[int]:
    """The rows that need logits."""
    scored: list[int] = []
    first = 0
    for rows in requests if wanted else ():
        end = first + len(rows)
        scored += [end - 1] if rows.last_logits_only else range(first, end)
        first = end
    return scored


def _states(requests: Sequence[Rows]) -> tuple[torch.Tensor | None, Sequence[int]]:
    """States and for each row its row of them; none of these = row by row."""
    if len(requests) == 1:
        return requests[0].states_H, requests[0].state_rows or ()
    if requests[0].states_H is None:
        return None, ()
    return torch.cat([rows.states() for rows in requests]), ()
