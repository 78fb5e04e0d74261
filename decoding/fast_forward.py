"""Forwards of a packed stack by native.c, and the cache that they use.

Legend: R rows, H hidden size, F number of captured layers, V vocabulary, G key/value heads, T slots, D head
size, P slots of a panel, K last slots, which a mask speaks of.
"""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import byref

import numpy as np
import torch

from decoding import native
from decoding.machine import native_threads
from decoding.packed import PackedStack

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

    def new_cache(self) -> SlotCache:
        """An empty cache for one request."""
        return SlotCache(self.packed)

    def forward(
        self,
        token_ids: Sequence[int],
        positions_R: np.ndarray,
        cache: SlotCache,
        *,
        mask_RK: np.ndarray | None = None,
        states_RH: torch.Tensor | None = None,
        last_logits_only: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Run R rows on top of the cache, which grows by R slots.

        Args:
            token_ids: R ids.
            positions_R: int64, each row's position.
            cache: of this stack.
            mask_RK: which of the last K slots (these R among them) each row attends to; all before are open.
                None: each row attends to all slots up to its own.
            states_RH: fp32, what goes into the first layer; None = the tokens' embeddings.
            last_logits_only: logits of the last row alone.

        Returns:
            logits (R or 1, V), and the captured outputs (R, F * H) if layers are captured.
        """
        rows = len(token_ids)
        if mask_RK is not None or rows <= _MOST_ROWS:
            return self._call(token_ids, positions_R, cache, mask_RK, states_RH, last_logits_only)
        parts = []
        for start in range(0, rows, _MOST_ROWS):
            piece = slice(start, start + _MOST_ROWS)
            states = None if states_RH is None else states_RH[piece]
            # Logits of a piece before the last would be thrown away, and they are a fifth of the work.
            parts.append(
                self._call(token_ids[piece], positions_R[piece], cache, None, states, last_logits_only)
            )
        captured = [part for _, part in parts if part is not None]
        logits = parts[-1][0] if last_logits_only else torch.cat([part for part, _ in parts])
        return logits, torch.cat(captured) if captured else None

    def _call(
        self,
        token_ids: Sequence[int],
        positions_R: np.ndarray,
        cache: SlotCache,
        mask_RK: np.ndarray | None,
        states_RH: torch.Tensor | None,
        last_logits_only: bool,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        stack, rows = self.packed.stack, len(token_ids)
        cache.make_room(cache.length + rows)
        tokens_R = np.array(token_ids, dtype=np.int64)
        positions_R = np.ascontiguousarray(positions_R, dtype=np.int64)
        cos_TD, sin_TD = self.packed.angles(int(positions_R.max()) + 1)
        logits_RV = torch.empty(1 if last_logits_only else rows, stack.vocabulary)
        call = native.Call(
            tokens=tokens_R.ctypes.data,
            positions=positions_R.ctypes.data,
            cos=cos_TD.data_ptr(),
            sin=sin_TD.data_ptr(),
            logits=logits_RV.data_ptr(),
            rows=rows,
            length=cache.length,
            capture_count=len(self.capture),
            last_logits_only=last_logits_only,
            threads=native_threads(),
        )
        if states_RH is not None:
            states_RH = states_RH.contiguous()
            call.states = states_RH.data_ptr()
        if mask_RK is not None:
            mask_RK = np.ascontiguousarray(mask_RK, dtype=np.uint8)
            call.mask, call.seen = mask_RK.ctypes.data, mask_RK.shape[1]
        captured_RF = None
        if len(self.capture):
            captured_RF = torch.empty(rows, len(self.capture) * stack.hidden)
            call.captured, call.capture = captured_RF.data_ptr(), self.capture.ctypes.data
        needed = self._native.workspace_floats(byref(stack), byref(call))
        if len(self._workspace) < needed:
            self._workspace = torch.empty(needed)
        call.workspace = self._workspace.data_ptr()
        self._native.forward(byref(stack), byref(cache.slots), byref(call))
        cache.length += rows
        return logits_RV[:, : self.packed.outputs], captured_RF
