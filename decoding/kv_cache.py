"""Key/value caches that keep a path of a verified tree: preallocated, grown by doubling, cut in place.

Legend: B batch (1), G key/value heads, T positions, D head size, R rows of one forward.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers.cache_utils import Cache, CacheLayerMixin

_FIRST_CAPACITY = 256


class KVBuffer:
    """Keys and values of one attention layer, shape (B, G, capacity, D), of which `length` positions
    count."""

    def __init__(self) -> None:
        self.length = 0
        self._keys_BGTD: torch.Tensor | None = None
        self._values_BGTD: torch.Tensor | None = None

    def append(self, keys_BGRD: torch.Tensor, values_BGRD: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Add R positions; return views of all positions so far, (B, G, length, D) each."""
        end = self.length + keys_BGRD.shape[2]
        self._keys_BGTD = self._with_room(self._keys_BGTD, keys_BGRD, end)
        self._values_BGTD = self._with_room(self._values_BGTD, values_BGRD, end)
        self._keys_BGTD[:, :, self.length : end] = keys_BGRD
        self._values_BGTD[:, :, self.length : end] = values_BGRD
        self.length = end
        return self._keys_BGTD[:, :, :end], self._values_BGTD[:, :, :end]

    def keep(self, base: int, rows_K: torch.Tensor | None, count: int) -> None:
        """Keep the first `base` positions and then the `count` positions `base + rows_K`, in that order.

        `rows_K` None means the first `count` rows, which are in place already: nothing moves.
        """
        if rows_K is not None and self._keys_BGTD is not None and self._values_BGTD is not None:
            for buffer in (self._keys_BGTD, self._values_BGTD):
                # index_select copies first, so that a row may move onto one that is read later.
                buffer[:, :, base : base + count] = buffer.index_select(2, rows_K + base)
        self.length = base + count

    def _with_room(self, buffer: torch.Tensor | None, new: torch.Tensor, needed: int) -> torch.Tensor:
        if buffer is not None and buffer.shape[2] >= needed:
            return buffer
        capacity = max(_FIRST_CAPACITY, needed, 2 * buffer.shape[2] if buffer is not None else 0)
        grown = new.new_empty((new.shape[0], new.shape[1], capacity, new.shape[3]))
        if buffer is not None:
            grown[:, :, : self.length] = buffer[:, :, : self.length]
        return grown


class _Layer(CacheLayerMixin):
    """A `KVBuffer` in the shape that transformers asks of a cache layer."""

    is_sliding = False

    def __init__(self) -> None:
        super().__init__()
        self.buffer = KVBuffer()
        self.is_initialized = True

    def lazy_initialization(self, *args: Any, **kwargs: Any) -> None:
        """Nothing: the buffer allocates at the first `append`, when it knows shape, dtype and device."""

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return self.buffer.append(key_states, value_states)

    def get_mask_sizes(self, query_length: Any) -> tuple[int, int]:
        # Releases before 5.2x pass positions, later ones a count.
        rows = query_length if isinstance(query_length, int) else query_length.shape[0]
        return self.buffer.length + rows, 0

    def get_seq_length(self) -> int:
        return self.buffer.length

    def get_max_length(self) -> int:
        return -1

    # The name of `get_max_length` in the older releases of the pinned range.
    get_max_cache_shape = get_max_length


class TargetCache(Cache):
    """The target's cache: one `KVBuffer` a layer, cut to the accepted path after every verification."""

    def __init__(self, num_layers: int) -> None:
        super().__init__(layers=[_Layer() for _ in range(num_layers)])

    @property
    def length(self) -> int:
        """Committed positions held; after every cycle this is the number of committed tokens - 1."""
        return int(self.layers[0].buffer.length)

    @torch.inference_mode()
    def keep(self, base: int, rows: list[int], device: torch.device) -> None:
        """Keep `base` positions and the rows of the last forward that lie on the accepted path."""
        in_place = rows == list(range(len(rows)))
        by_device: dict[torch.device, torch.Tensor] = {}
        for layer in self.layers:
            rows_K = None
            if not in_place:
                home = layer.buffer._keys_BGTD.device if layer.buffer._keys_BGTD is not None else device
                if home not in by_device:
                    by_device[home] = torch.tensor(rows, device=home)
                rows_K = by_device[home]
            layer.buffer.keep(base, rows_K, len(rows))
