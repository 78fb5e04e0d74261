"""Counter-based Gumbel noise: a function of (seed, prompt, index of the generated token, token id) alone.

A position's key is the first 64 bits of SHA-256(SHA-256(seed, prompt ids), index). The uniform of a token is
the SplitMix64 output (Steele, Lea, Flood, OOPSLA 2014) at state `key + (id + 1) * golden ratio`, its upper 53
bits. All of it is wrapping 64-bit integer arithmetic, so the uniforms are the same bits on every device and
for any subset of tokens; the two logarithms after it may differ by ulps between devices.

Legend: P positions, N token ids.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
import torch


def _signed(value: int) -> int:
    """The int64 with the same 64 bits: torch has no shifts and products of uint64."""
    value &= 2**64 - 1
    return value - 2**64 if value >= 2**63 else value


_GOLDEN = _signed(0x9E3779B97F4A7C15)
_MIX_1 = _signed(0xBF58476D1CE4E5B9)
_MIX_2 = _signed(0x94D049BB133111EB)


class NoiseStream:
    """The noise of one request.

    Args:
        seed: any integer of 64 bits, signed or not.
        prompt_ids: the prompt's token ids: with the seed they key the stream, so that a conversation whose
            history is trimmed does not meet its own noise again.
    """

    def __init__(self, seed: int, prompt_ids: Sequence[int]) -> None:
        ids = np.asarray(prompt_ids, dtype="<i8").tobytes()
        self._digest = hashlib.sha256(f"draftpace noise 1 {seed}:".encode() + ids).digest()

    def key(self, index: int) -> int:
        """int64 key of the generated token number `index` (0 = the first after the prompt)."""
        digest = hashlib.sha256(self._digest + index.to_bytes(8, "little")).digest()
        return int.from_bytes(digest[:8], "little", signed=True)

    def uniforms(self, indices: Sequence[int], ids_N: torch.Tensor) -> torch.Tensor:
        """float64 (P, N) in (0, 1) on the device of `ids_N` (int64 token ids)."""
        keys_P = torch.tensor([self.key(index) for index in indices], device=ids_N.device)
        state = keys_P[:, None] + (ids_N + 1)[None, :] * _GOLDEN
        state ^= _shift_right(state, 30)
        state *= _MIX_1
        state ^= _shift_right(state, 27)
        state *= _MIX_2
        state ^= _shift_right(state, 31)
        bits = _shift_right(state, 11).to(torch.float64)
        # 0 would make the Gumbel value -infinity; half of the smallest step stands in for it.
        return bits.clamp_(min=0.5).mul_(2.0**-53)

    def gumbel(self, indices: Sequence[int], ids_N: torch.Tensor) -> torch.Tensor:
        """float64 (P, N): standard Gumbel values, -log(-log(uniform)), always finite."""
        return self.uniforms(indices, ids_N).log_().neg_().log_().neg_()


def _shift_right(x: torch.Tensor, by: int) -> torch.Tensor:
    """Logical shift of an int64: torch's own copies the sign bit in."""
    return (x >> by) & (2 ** (64 - by) - 1)
