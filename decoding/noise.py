"""Counter-based Gumbel noise: a function of (seed, prompt, index of the generated token, token id) alone.

A position's key is the first 64 bits of SHA-256(SHA-256(seed, prompt ids), index). The uniform of a token is
the SplitMix64 output (Steele, Lea, Flood, OOPSLA 2014) at state `key + (id + 1) * golden ratio`, its upper 53
bits. All of it is wrapping 64-bit integer arithmetic, so the uniforms are the same bits on every device and
for any subset of tokens; the two logarithms after it may differ by ulps between devices.

Legend: P positions, N token ids.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence

import numpy as np
import torch

from decoding import native
from decoding.machine import native_threads

_GOLDEN = 0x9E3779B97F4A7C15
_MIX_1 = 0xBF58476D1CE4E5B9
_MIX_2 = 0x94D049BB133111EB
_STEP = 2.0**-53
# In steps. 0 would make the Gumbel value -infinity; half of the smallest step stands in for it.
_LEAST = 0.5
# Tokens of a row that may win, by thread: a dozen do where logits are a model's.
_ROOM = 128


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
        """float64 (P, N) in (0, 1) on the device of `ids_N` (int64 token ids, else TypeError)."""
        if ids_N.dtype != torch.int64:
            raise TypeError(f"token ids are {ids_N.dtype}, must be torch.int64")
        keys = [self.key(index) for index in indices]
        if ids_N.device.type != "cpu":
            return device_uniforms(keys, ids_N)
        # benchmarks.noise prints what each of the three paths costs.
        return (native_uniforms if native.loaded() else cpu_uniforms)(keys, ids_N)

    def gumbel(self, indices: Sequence[int], ids_N: torch.Tensor) -> torch.Tensor:
        """float64 (P, N): standard Gumbel values, -log(-log(uniform)), always finite."""
        return _gumbel(self.uniforms(indices, ids_N))

    def winners(
        self, indices: Sequence[int], logits_PV: torch.Tensor, temperature: float
    ) -> tuple[list[float], list[int]] | None:
        """Of each row a number that is finite if and only if its best logit / temperature + Gumbel value is
        (NaN is the best of all), and that value's token (P), the lowest of ties.

        Few tokens have large noise, and a bound without logarithms says which: a dozen of tens of thousands.
        None where native code is not loaded, or cannot tell for these logits.
        """
        library = native.loaded()
        fit = logits_PV.device.type == "cpu" and logits_PV.dtype != torch.float64
        # A subclass may have other Gumbel values, of which the bound says nothing.
        if library is None or not fit or type(self) is not NoiseStream:
            return None
        values, tokens = [], []
        threads = native_threads()
        for index, logits_V in zip(indices, logits_PV, strict=True):
            logits_V = logits_V.float().contiguous()
            ids = array("q", bytes(8 * _ROOM * threads))
            scaled, uniforms = array("d", bytes(8 * _ROOM * threads)), array("d", bytes(8 * _ROOM * threads))
            into = (part.buffer_info()[0] for part in (ids, scaled, uniforms))
            kept = library.contenders(
                logits_V.data_ptr(), len(logits_V), temperature, self.key(index), _ROOM, *into, threads
            )
            if kept < 0:
                return None
            place = 0
            if kept > 1:  # a race too close for logarithms that may differ from torch's by ulps
                gumbel = _gumbel(torch.tensor(uniforms[:kept], dtype=torch.float64))
                place = int((torch.tensor(scaled[:kept], dtype=torch.float64) + gumbel).argmax())
            values.append(scaled[place])
            tokens.append(ids[place])
        return values, tokens


def native_uniforms(keys: Sequence[int], ids_N: torch.Tensor) -> torch.Tensor:
    """`NoiseStream.uniforms` of these P int64 keys in native code; `ids_N` on the CPU."""
    keys_P, ids_N = np.array(keys, dtype=np.int64), ids_N.contiguous()
    uniforms_PN = torch.empty(len(keys), len(ids_N), dtype=torch.float64)
    into = uniforms_PN.data_ptr()
    native.library().uniforms(keys_P.ctypes.data, len(keys), ids_N.data_ptr(), len(ids_N), into)
    return uniforms_PN


def cpu_uniforms(keys: Sequence[int], ids_N: torch.Tensor) -> torch.Tensor:
    """`NoiseStream.uniforms` of these P int64 keys in numpy's uint64; `ids_N` on the CPU."""
    keys_P = np.array(keys, dtype=np.int64).view(np.uint64)
    state_PN = keys_P[:, None] + (ids_N.numpy().view(np.uint64) + 1) * _GOLDEN
    uniforms_PN = np.empty(state_PN.shape)
    shifted_PN = uniforms_PN.view(np.uint64)  # scratch until the uniforms are written
    state_PN ^= np.right_shift(state_PN, 30, out=shifted_PN)
    state_PN *= _MIX_1
    state_PN ^= np.right_shift(state_PN, 27, out=shifted_PN)
    state_PN *= _MIX_2
    state_PN ^= np.right_shift(state_PN, 31, out=shifted_PN)
    state_PN >>= 11
    np.maximum(state_PN, _LEAST, out=uniforms_PN)
    uniforms_PN *= _STEP
    return torch.from_numpy(uniforms_PN)


def device_uniforms(keys: Sequence[int], ids_N: torch.Tensor) -> torch.Tensor:
    """`NoiseStream.uniforms` of these P int64 keys in torch's int64, on any device."""
    keys_P = torch.tensor(keys, dtype=torch.int64, device=ids_N.device)
    state_PN = keys_P[:, None] + (ids_N + 1)[None, :] * _signed(_GOLDEN)
    state_PN ^= _shift_right(state_PN, 30)
    state_PN *= _signed(_MIX_1)
    state_PN ^= _shift_right(state_PN, 27)
    state_PN *= _signed(_MIX_2)
    state_PN ^= _shift_right(state_PN, 31)
    return _shift_right(state_PN, 11).to(torch.float64).clamp_(min=_LEAST).mul_(_STEP)


def _gumbel(uniforms: torch.Tensor) -> torch.Tensor:
    """Gumbel values, in place of the uniforms."""
    return uniforms.log_().neg_().log_().neg_()


def _signed(value: int) -> int:
    """The int64 with the same 64 bits: torch has no shifts and products of uint64."""
    return value - 2**64 if value >= 2**63 else value


def _shift_right(x: torch.Tensor, by: int) -> torch.Tensor:
    """Logical shift of an int64: torch's own copies the sign bit in."""
    return (x >> by) & (2 ** (64 - by) - 1)
