"""Log survival of a level's tokens, and the best of them: in torch and in native code.

Legend: R rows of a level's parents, V the drafter's vocabulary, W beam width.
"""

from __future__ import annotations

import math
from array import array
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from decoding import native
from decoding.machine import native_threads


class Survival(Protocol):
    """log c of every token after every parent, see `Scorer`.

    Attributes:
        values: of each parent's W best tokens, best first, equal ones by column; R * W numbers, parent by
            parent.
        columns: the same of their columns in the drafter's vocabulary.
        vocabulary: V.
    """

    values: list[float]
    columns: list[int]
    vocabulary: int

    def __len__(self) -> int:
        """R."""
        ...

    def row(self, row: int) -> torch.Tensor:
        """log c (V) after one parent."""
        ...

    def value(self, row: int, column: int) -> float:
        """log c of one token."""
        ...


class TensorSurvival:
    """`Survival` of log c in a tensor (R, V) on any device; V >= W."""

    def __init__(self, log_c_RV: torch.Tensor, width: int) -> None:
        self._log_c_RV = log_c_RV
        self.vocabulary = log_c_RV.shape[1]
        values_RW, columns_RW = log_c_RV.topk(width, dim=-1)
        both = torch.stack([values_RW.to(torch.float64), columns_RW.to(torch.float64)]).cpu().numpy()
        values, columns = both[0], both[1].astype(np.int64)
        # topk promises no order at ties; a draft must not depend on one.
        order = np.lexsort((columns, -values), axis=-1)
        self.values = np.take_along_axis(values, order, -1).ravel().tolist()
        self.columns = np.take_along_axis(columns, order, -1).ravel().tolist()

    def __len__(self) -> int:
        return len(self._log_c_RV)

    def row(self, row: int) -> torch.Tensor:
        return self._log_c_RV[row]

    def value(self, row: int, column: int) -> float:
        return float(self._log_c_RV[row, column])


@dataclass(frozen=True, slots=True)
class LevelScale:
    """(kappa_d, a_d) of one draft level: what the draft's z is divided by, and the share of the target's
    tokens that the drafter's vocabulary holds."""

    kappa: float = 1.0
    a: float = 1.0


class NativeSurvival:
    """`Survival` by native.c, from fp32 logits (R, V) on the CPU, rows contiguous; V >= W.

    One pass finds the normalisers and the best tokens; the other log c are computed when they are asked for.

    Args:
        z_RV: fp32, logits of the draft at temperature 0, else logits / temperature + noise.
        scale: of the level.
        best: what native.c has found or will find.
    """

    def __init__(self, z_RV: torch.Tensor, scale: LevelScale, best: BestOfRows) -> None:
        self.vocabulary = z_RV.shape[1]
        self.values, self.columns = best.values.tolist(), best.columns.tolist()
        self._z_RV, self._scale, self._normalisers = z_RV, scale, best.normalisers

    @classmethod
    def of(cls, logits_RV: torch.Tensor, scale: LevelScale, width: int) -> NativeSurvival:
        """At temperature 0, of logits that are there already."""
        assert logits_RV.stride(1) == 1, "a row's logits lie together"
        rows, vocabulary = logits_RV.shape
        best = BestOfRows(rows, width)
        native.library().survival_of_rows(
            logits_RV.data_ptr(),
            rows,
            logits_RV.stride(0),
            vocabulary,
            scale.kappa,
            math.log(scale.a),
            width,
            *best.addresses,
        )
        return cls(logits_RV, scale, best)

    @classmethod
    def under_noise(
        cls,
        logits_RV: torch.Tensor,
        scale: LevelScale,
        width: int,
        temperature: float,
        key: int,
        ids_V: torch.Tensor,
    ) -> NativeSurvival:
        """At a temperature > 0; `key`: of the position's noise, `ids_V`: int64, the target's id of each
        column. Noise and z are fp32: within a few 1e-7 of `NoiseStream.gumbel`'s, relative to 1 + |z|."""
        assert logits_RV.stride(1) == ids_V.stride(0) == 1, "a row's logits lie together, and so do the ids"
        rows, vocabulary = logits_RV.shape
        best = BestOfRows(rows, width)
        z_RV = torch.empty(rows + 1, vocabulary)  # the last row is room for the noise
        native.library().survival_under_noise(
            logits_RV.data_ptr(),
            rows,
            logits_RV.stride(0),
            vocabulary,
            temperature,
            key,
            ids_V.data_ptr(),
            scale.kappa,
            math.log(scale.a),
            width,
            z_RV.data_ptr(),
            *best.addresses,
            native_threads(),
        )
        return cls(z_RV, scale, best)

    def __len__(self) -> int:
        return len(self._normalisers) // 2

    def row(self, row: int) -> torch.Tensor:
        return self._log_c(self._z_RV[row], row)

    def value(self, row: int, column: int) -> float:
        return float(self._log_c(self._z_RV[row, column], row))

    def _log_c(self, z: torch.Tensor, row: int) -> torch.Tensor:
        # The order of native.c, in fp32: a token has one log c, whoever asks.
        most, normaliser = self._normalisers[2 * row : 2 * row + 2]
        log_c: torch.Tensor = (z - most) / self._scale.kappa - normaliser + math.log(self._scale.a)
        return log_c


class BestOfRows:
    """Room for what native.c finds in R rows: fp32 normalisers (R, 2), values (R, W), int64 columns (R, W).
    Plain arrays, which cost a cycle less than numpy's."""

    def __init__(self, rows: int, width: int) -> None:
        self.normalisers = array("f", bytes(8 * rows))
        self.values = array("f", bytes(4 * rows * width))
        self.columns = array("q", bytes(8 * rows * width))

    @property
    def addresses(self) -> tuple[int, int, int]:
        """Of the normalisers, the values, the columns; they stay while this object lives."""
        parts = (self.normalisers, self.values, self.columns)
        normalisers, values, columns = (part.buffer_info()[0] for part in parts)
        return normalisers, values, columns
