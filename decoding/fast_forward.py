"""Forwards of a packed stack by native.c, and the cache that they use.

Legend: R rows, H hidden size, F number of captured layers, V vocabulary, G key/value heads, T slots, D head
size, P slots of a panel.
"""

from __future__ import annotations

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
from decoding.survival import BestOfRows, LevelScale, NativeSurvival

_FIRST_SLOTS = 256
# Rows of one call: their activations stay in the processor's cache while the weights pass by.
_MOST_ROWS = 128


class SlotCache:
    """Keys and values of one request for native.c, all layers in two tensors; grown by doubling.

    Attributes:
        length: slots that count.
    """

    def __init__(self, packed: PackedStack) -> None:
        self._packed = packed
        self._native = native.library()
        self.length = 0
        self.slots = native.Slots(None, None, 0)
        self._keys = self._values = torch.empty(0)

    def make_room(self, needed: int) -> None:
        """Have at least so many slots, the first `length` as they were."""
        if needed <= self.slots.slots:
            return
        stack = self._packed.stack
        layers, heads, size = stack.layer_count, stack.kv_heads, stack.head_dim
        panel = self._native.panel()
        slots = max(_FIRST_SLOTS, needed, 2 * self.slots.slots)
        slots += -slots % panel
        keys = torch.empty(layers, heads, slots // panel, size, panel)
        values = torch.empty(layers, heads, slots, size)
        if self.length:
            used = -(-self.length // panel)
            keys[:, :, :used] = self._keys[:, :, :used]
            values[:, :, : self.length] = self._values[:, :, : self.length]
        self._keys, self._values = keys, values
        self.slots = native.Slots(keys.data_ptr(), values.data_ptr(), slots)

    def keep(self, base: int, rows: list[int], device: torch.device | None = None) -> None:
        """Keep `base` slots and then the slots `base + rows`, in that order; rows ascend."""
        if rows and rows[-1] != len(rows) - 1:
            rows_K = np.array(rows, dtype=np.int64)
            self._native.keep(
                byref(self._packed.stack), byref(self.slots), base, rows_K.ctypes.data, len(rows)
            )
        self.length = base + len(rows)


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

    def forward(
        self,
        token_ids: Sequence[int],
        positions: Sequence[int],
        cache: SlotCache,
        *,
        mask: Mask | None = None,
        states_H: torch.Tensor | None = None,
        state_rows: Sequence[int] | None = None,
        last_logits_only: bool = False,
        scores: Scores | None = None,
    ) -> Forwarded:
        """Run R rows on top of the cache, which grows by R slots.

        Args:
            token_ids: R ids.
            positions: each row's.
            cache: of this stack.
            mask: of the last slots, these R among them. None: each row attends to all slots up to its own.
            states_H: fp32 (any, H), what goes into the first layer; None = the tokens' embeddings.
            state_rows: for each of the R rows its row of `states_H`; None = row by row.
            last_logits_only: logits of the last row alone.
            scores: asks for `survival`; of the last row alone where `last_logits_only`.
        """
        rows = len(token_ids)
        if mask is not None or rows <= _MOST_ROWS:
            return self._call(
                token_ids, positions, cache, mask, states_H, state_rows, last_logits_only, scores
            )
        assert state_rows is None, "rows of states are for the few of a level"
        parts = []
        for start in range(0, rows, _MOST_ROWS):
            piece = slice(start, start + _MOST_ROWS)
            states = None if states_H is None else states_H[piece]
            parts.append(
                self._call(
                    token_ids[piece], positions[piece], cache, None, states, None, last_logits_only, scores
                )
            )
        captured = [part.captured_RF for part in parts if part.captured_RF is not None]
        captured_RF = torch.cat(captured) if captured else None
        if last_logits_only:
            return replace(parts[-1], captured_RF=captured_RF)
        values, tokens = zip(*(part.best for part in parts), strict=True)
        best = (list(chain.from_iterable(values)), list(chain.from_iterable(tokens)))
        return Forwarded(torch.cat([part.logits_RV for part in parts]), captured_RF, best)

    def _call(
        self,
        token_ids: Sequence[int],
        positions: Sequence[int],
        cache: SlotCache,
        mask: Mask | None,
        states_H: torch.Tensor | None,
        state_rows: Sequence[int] | None,
        last_logits_only: bool,
        scores: Scores | None,
    ) -> Forwarded:
        stack, rows = self.packed.stack, len(token_ids)
        cache.make_room(cache.length + rows)
        known = self.packed.known_ids
        if not 0 <= min(token_ids) <= max(token_ids) < known:
            raise ValueError(f"token ids span {min(token_ids)}..{max(token_ids)}, must be in 0..{known - 1}")
        # One array for the rows' whole numbers, and none of numpy's: what a cycle asks of Python comes out of
        # memory each time, since the weights have pushed it out of the processor's caches.
        whole_numbers = array("q", [*token_ids, *positions, *(state_rows or ())])
        wholes, row_bytes = whole_numbers.buffer_info()[0], 8 * rows
        cos_TD, sin_TD = self.packed.angles(max(positions) + 1)
        scored = 1 if last_logits_only else rows
        logits_RV = torch.empty(scored, stack.vocabulary)
        best = BestOfRows(scored, 1 if scores is None else scores.width)
        normalisers, values, columns = best.addresses
        call = native.Call(
            tokens=wholes,
            positions=wholes + row_bytes,
            cos=cos_TD.data_ptr(),
            sin=sin_TD.data_ptr(),
            logits=logits_RV.data_ptr(),
            best=values,
            best_tokens=columns,
            normalisers=normalisers,
            rows=rows,
            length=cache.length,
            capture_count=len(self.capture),
            outputs=self.packed.outputs,
            last_logits_only=last_logits_only,
            threads=native_threads(),
        )
        if scores is not None:
            call.width, call.kappa, call.log_a = scores.width, scores.scale.kappa, math.log(scores.scale.a)
        if states_H is not None:
            states_H = states_H.contiguous()
            call.states = address(states_H)
        if state_rows is not None:
            call.state_rows = wholes + 2 * row_bytes
        if mask is not None:
            call.mask, call.seen = b"".join(mask), len(mask[0])
        captured_RF = None
        if len(self.capture):
            captured_RF = torch.empty(rows, len(self.capture) * stack.hidden)
            call.captured, call.capture = captured_RF.data_ptr(), self.capture.ctypes.data
        self._run(call, cache)
        if stack.vocabulary != self.packed.outputs:
            logits_RV = logits_RV[:, : self.packed.outputs]
        if scores is None:
            return Forwarded(logits_RV, captured_RF, (best.values.tolist(), best.columns.tolist()))
        return Forwarded(logits_RV, captured_RF, ([], []), NativeSurvival(logits_RV, scores.scale, best))

    def _run(self, call: native.Call, cache: SlotCache) -> None:
        stack = self.packed.stack
        needed = self._native.workspace_floats(byref(stack), byref(call))
        with self._lock:
            if len(self._workspace) < needed:
                self._workspace = torch.empty(needed)
            call.workspace = self._workspace.data_ptr()
            self._native.forward(byref(stack), byref(cache.slots), byref(call))
        cache.length += call.rows
