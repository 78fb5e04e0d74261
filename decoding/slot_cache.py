"""The cache of one request for native.c.

Legend: G key/value heads, T slots, D head size, P slots of a panel.
"""

from __future__ import annotations

from ctypes import byref

import numpy as np
import torch

from decoding import native
from decoding.packed import PackedStack

_FIRST_SLOTS = 256


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
