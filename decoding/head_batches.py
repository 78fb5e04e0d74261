"""What a head trains on: padded texts with the target's states, computed once and kept in memory and on disk.

Legend: B texts, N pairs of a text (token i + 1, state of position i), H hidden size, F = 3H.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from decoding.artifacts import load_tensors, save_tensors
from decoding.target import TargetModel

_MEMORY_BYTES = 4 * 2**30

# Fused features of positions 0..T-2, final states of positions 1..T-1.
States = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True, slots=True)
class Batch:
    """Padded texts: tokens (B, N), features (B, N, F), the target's final states (B, N, H), lengths (B,)."""

    tokens_BN: torch.Tensor
    features_BNF: torch.Tensor
    finals_BNH: torch.Tensor
    lengths_B: torch.Tensor


class StateCache:
    """A target's states of texts, as bf16: computing them costs more than a training step on them.

    Args:
        target: captures the layers whose outputs are the features.
        folder: where states are kept for later runs, about (F + H) * 2 bytes a token; None = in memory alone.

    What does not fit into 4 GiB of memory is read from the folder, or computed, again.
    """

    def __init__(self, target: TargetModel, folder: Path | None) -> None:
        self._target = target
        self._folder = folder
        self._kept: dict[str, States] = {}
        self._bytes = 0
        layers = ",".join(map(str, target.fused_layers))
        self._salt = f"{target.text_fingerprint()} {layers}:".encode()

    def states(self, texts: Sequence[np.ndarray]) -> list[States]:
        """Of each text of T token ids: features (T - 1, F) and final states (T - 1, H), on the CPU."""
        keys = [hashlib.sha1(self._salt + text.astype("<i8").tobytes()).hexdigest() for text in texts]
        found = {key: states for key in keys if (states := self._find(key)) is not None}
        missing = {key: text for key, text in zip(keys, texts, strict=True) if key not in found}
        for key, states in zip(missing, self._compute(list(missing.values())), strict=True):
            found[key] = states
            self._keep(key, states)
            if self._folder is not None:
                tensors = dict(zip(("features", "finals"), states, strict=True))
                save_tensors(self._folder / f"{key}.safetensors", tensors)
        return [found[key] for key in keys]

    def _find(self, key: str) -> States | None:
        if key in self._kept:
            return self._kept[key]
        if self._folder is None:
            return None
        with suppress(ValueError, KeyError):  # not there, or damaged: computed, and written over it
            tensors = load_tensors(self._folder / f"{key}.safetensors", "states of a text")
            states = (tensors["features"], tensors["finals"])
            self._keep(key, states)
            return states
        return None

    def _keep(self, key: str, states: States) -> None:
        size = sum(part.numel() * part.element_size() for part in states)
        if self._bytes + size <= _MEMORY_BYTES:
            self._kept[key] = states
            self._bytes += size

    @torch.no_grad()
    def _compute(self, texts: Sequence[np.ndarray]) -> list[States]:
        if not texts:
            return []
        longest = max(map(len, texts))
        ids_BT = torch.zeros((len(texts), longest), dtype=torch.int64)
        for row, text in enumerate(texts):
            ids_BT[row, : len(text)] = torch.from_numpy(text)
        features, finals = self._target.states(ids_BT.to(self._target.device))
        keep = torch.bfloat16
        return [
            (features[row, : len(text) - 1].to("cpu", keep), finals[row, 1 : len(text)].to("cpu", keep))
            for row, text in enumerate(texts)
        ]


def make_batch(texts: Sequence[np.ndarray], states: Sequence[States], device: torch.device) -> Batch:
    """Pad texts of at least two tokens, and their states, to the longest."""
    lengths_B = torch.tensor([len(text) - 1 for text in texts], device=device)
    tokens_BN = torch.zeros((len(texts), int(lengths_B.max())), dtype=torch.int64)
    for row, text in enumerate(texts):
        tokens_BN[row, : len(text) - 1] = torch.from_numpy(text[1:])
    features, finals = (
        torch.nn.utils.rnn.pad_sequence([one[part] for one in states], batch_first=True).to(device).float()
        for part in (0, 1)
    )
    return Batch(tokens_BN.to(device), features, finals, lengths_B)


def group_alike(texts: Sequence[np.ndarray], order: np.ndarray, batch_tokens: int) -> list[np.ndarray]:
    """Batches of text numbers of about `batch_tokens` tokens, alike in length so that little is padding."""
    batches: list[np.ndarray] = []
    for start in range(0, len(order), 64):
        chunk = sorted(order[start : start + 64], key=lambda n: len(texts[n]))
        current: list[int] = []
        for number in chunk:
            if current and (len(current) + 1) * len(texts[number]) > batch_tokens:
                batches.append(np.array(current))
                current = []
            current.append(int(number))
        batches.append(np.array(current))
    return batches
