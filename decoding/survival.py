"""Log survival of a level's tokens, and the best of them: in torch, and in native code at temperature 0.

Legend: R rows of a level's parents, V the drafter's vocabulary, W beam width.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from decoding import native


class Survival(Protocol):
    """log c of every token after every parent, see `Scorer`.

    Attributes:
        values_RW: of each parent's W best tokens, best first; equal ones by column.
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


@dataclass(frozen=True, slots=True)
class LevelScale:
    """(kappa_d, a_d) of one draft level: what the draft's z is divided by, and the share of the target's
    tokens that the drafter's vocabulary holds."""

    kappa: float = 1.0
    a: float = 1.0


class NativeSurvival:
    """`Survival` at temperature 0 by native.c, from fp32 logits (R, V) on the CPU, rows contiguous; V >= W.

    One pass finds the normalisers and the best tokens; the other log c are computed when they are asked for.

    Args:
        logits_RV: of the draft.
        scale: of the level.
        normalisers_R2, values_RW, columns_RW: what native.c has found or will find.
    """

    def __init__(
        self,
        logits_RV: torch.Tensor,
        scale: LevelScale,
        normalisers_R2: np.ndarray,
        values_RW: np.ndarray,
        columns_RW: np.ndarray,
    ) -> None:
        self.vocabulary = logits_RV.shape[1]
        self.values_RW, self.columns_RW = values_RW, columns_RW
        self._logits_RV, self._scale, self._normalisers_R2 = logits_RV, scale, normalisers_R2

    @classmethod
    def of(cls, logits_RV: torch.Tensor, scale: LevelScale, width: int) -> NativeSurvival:
        """Of logits that are there already."""
        assert logits_RV.stride(1) == 1, "a row's logits lie together"
        rows = len(logits_RV)
        normalisers_R2, values_RW, columns_RW = empty_best(rows, width)
        native.library().survival_of_rows(
            logits_RV.data_ptr(),
            rows,
            logits_RV.stride(0),
            logits_RV.shape[1],
            scale.kappa,
            math.log(scale.a),
            width,
            normalisers_R2.ctypes.data,
            values_RW.ctypes.data,
            columns_RW.ctypes.data,
        )
        return cls(logits_RV, scale, normalisers_R2, values_RW, columns_RW)

    def __len__(self) -> int:
        return len(self._logits_RV)

    def row(self, row: int) -> torch.Tensor:
        return self._log_c(self._logits_RV[row], row)

    def value(self, row: int, column: int) -> float:
        return float(self._log_c(self._logits_RV[row, column], row))

    def _log_c(self, logits: torch.Tensor, row: int) -> torch.Tensor:
        # The order of native.c, in fp32: a token has one log c, whoever asks.
        most, normaliser = self._normalisers_R2[row].tolist()
        log_c: torch.Tensor = (logits - most) / self._scale.kappa - normaliser + math.log(self._scale.a)
        return log_c


def empty_best(rows: int, width: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Room for what native.c finds: normalisers (R, 2) and values (R, W) fp32, columns (R, W) int64."""
    return (
        np.empty((rows, 2), dtype=np.float32),
        np.empty((rows, width), dtype=np.float32),
        np.empty((rows, width), dtype=np.int64),
    )
