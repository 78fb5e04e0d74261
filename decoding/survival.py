"""Log survival of a level's tokens, and the best of them: in torch, and in native code at temperature 0.

Legend: R rows of a level's parents, V the drafter's vocabulary, W beam width.
"""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np
import torch

from decoding import native


class Survival(Protocol):
    """log c of every token after every parent, see `Scorer`.

    Attributes:
        values_RW: float64, of each parent's W best tokens, best first; equal ones by column.
        columns_RW: int64, their columns of the drafter's vocabulary.
        vocabulary: V.
    """

    values_RW: np.ndarray
    columns_RW: np.ndarray
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
        self.values_RW = np.take_along_axis(values, order, -1)
        self.columns_RW = np.take_along_axis(columns, order, -1)

    def __len__(self) -> int:
        return len(self._log_c_RV)

    def row(self, row: int) -> torch.Tensor:
        return self._log_c_RV[row]

    def value(self, row: int, column: int) -> float:
        return float(self._log_c_RV[row, column])


class NativeSurvival:
    """`Survival` at temperature 0 by native.c, from fp32 logits (R, V) on the CPU, rows contiguous; V >= W.

    One pass finds the normalisers and the best tokens; the other log c are computed when they are asked for.
    """

    def __init__(self, logits_RV: torch.Tensor, kappa: float, a: float, width: int) -> None:
        rows, self.vocabulary = logits_RV.shape
        assert logits_RV.stride(1) == 1, "a row's logits lie together"
        self._logits_RV = logits_RV
        self._kappa, self._log_a = np.float32(kappa), np.float32(math.log(a))
        self._normalisers_R2 = np.empty((rows, 2), dtype=np.float32)
        values_RW = np.empty((rows, width), dtype=np.float32)
        self.columns_RW = np.empty((rows, width), dtype=np.int64)
        native.library().survival(
            logits_RV.data_ptr(),
            rows,
            logits_RV.stride(0),
            self.vocabulary,
            self._kappa,
            self._log_a,
            width,
            self._normalisers_R2.ctypes.data,
            values_RW.ctypes.data,
            self.columns_RW.ctypes.data,
        )
        self.values_RW = values_RW.astype(np.float64)

    def __len__(self) -> int:
        return len(self._logits_RV)

    def row(self, row: int) -> torch.Tensor:
        return self._log_c(self._logits_RV[row], row)

    def value(self, row: int, column: int) -> float:
        return float(self._log_c(self._logits_RV[row, column], row))

    def _log_c(self, logits: torch.Tensor, row: int) -> torch.Tensor:
        # The order of native.c: a token has one log c, whoever asks.
        most, normaliser = self._normalisers_R2[row].tolist()
        log_c: torch.Tensor = (logits - most) / float(self._kappa) - normaliser + float(self._log_a)
        return log_c
