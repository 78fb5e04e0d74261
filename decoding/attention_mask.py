"""Which rows of a forward see which: as byte strings, that cost a cycle less than arrays, and as tensors.

Legend: R rows of a forward, K last key positions (cached rows, then these R), which a mask speaks of.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

# R byte strings of K bytes, 1 where the row may attend. All positions before the K are open.
Mask = list[bytes]


def tree_attention_mask(parents: Sequence[int]) -> Mask:
    """R by R: each row may attend to itself and its ancestors. Parents come first; the root's is -1."""
    mask: Mask = []
    for row, parent in enumerate(parents):
        seen = bytearray(mask[parent]) if parent >= 0 else bytearray(len(parents))
        seen[row] = 1
        mask.append(bytes(seen))
    return mask


def array_of(mask: Mask) -> np.ndarray:
    """Bool (R, K), its own."""
    return np.frombuffer(bytearray().join(mask), dtype=bool).reshape(len(mask), -1)


def additive_mask(mask: Mask, before: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Float (1, 1, R, before + K): 0 where a row may attend, the dtype's lowest value elsewhere.

    Additive rather than boolean since eager attention adds it and SDPA takes either.
    """
    blocked_RK = ~array_of(mask)
    rows, keys = blocked_RK.shape
    full = torch.zeros((rows, before + keys), dtype=dtype, device=device)
    full[:, before:].masked_fill_(torch.from_numpy(blocked_RK).to(device), torch.finfo(dtype).min)
    return full[None, None]
