"""How the next token follows from target logits: processors, temperature, filters, argmax under the noise.

The order is that of transformers' `generate`: repetition penalty, the caller's logits processors,
temperature, top-k, top-p, min-p. Plain and speculative decoding both come here, so that they follow one law.

Legend: R rows, V vocabulary, S the tokens of a row that can be chosen, L tokens of a context.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from decoding import native
from decoding.noise import NoiseStream

# Called as transformers calls its own: (ids (1, L), scores (1, V)) -> scores (1, V).
LogitsProcessor = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


@dataclass(frozen=True, slots=True)
class Sampling:
    """Settings of the target distribution.

    Args:
        temperature: 0 = greedy; then top_k, top_p and min_p change nothing.
        top_k: keep the k likeliest tokens, and those that tie with the k-th.
        top_p: keep the likeliest tokens up to this mass, in (0, 1].
        min_p: keep tokens at least this share as likely as the likeliest, in [0, 1] (Nguyen et al.,
            arXiv 2407.01082).
        repetition_penalty: divides positive and multiplies negative logits of every token that prompt or text
            holds (Keskar et al., arXiv 1909.05858); 1 = none.
        processors: logits processors, of transformers or alike, applied in this order, at temperature 0 too.
            Under `coupled` each sees the calls that plain decoding would make, one a token, in order. Under
            `rejection` it is asked about drafted contexts as well and must be a function of its arguments.
    """

    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    processors: tuple[LogitsProcessor, ...] = ()

    def __post_init__(self) -> None:
        for name in ("temperature", "top_k", "top_p", "min_p", "repetition_penalty"):
            value = getattr(self, name)
            kinds = int if name == "top_k" else (int, float)
            absent = value is None and name != "temperature"
            if not absent and (isinstance(value, bool) or not isinstance(value, kinds)):
                raise ValueError(f"{name} is {value!r}, must be a number")
            if isinstance(value, int) and abs(value) >= 2**63:
                raise ValueError(f"{name} is {str(value)[:40]}, must be below 2^63")
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise ValueError(f"temperature is {self.temperature}, must be a finite number >= 0")
        if self.top_k is not None and self.top_k < 1:
            raise ValueError(f"top_k is {self.top_k}, must be >= 1 (leave it out to switch it off)")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise ValueError(f"top_p is {self.top_p}, must be in (0, 1] (leave it out to switch it off)")
        if self.min_p is not None and not 0 <= self.min_p <= 1:
            raise ValueError(f"min_p is {self.min_p}, must be in [0, 1] (leave it out to switch it off)")
        penalty = self.repetition_penalty
        if penalty is not None and not (math.isfinite(penalty) and penalty > 0):
            raise ValueError(f"repetition_penalty is {penalty}, must be a finite number > 0 (1 = none)")
        for processor in self.processors:
            if not callable(processor):
                raise ValueError(f"a logits processor is {processor!r}, must be callable with (ids, scores)")

    @property
    def reads_context(self) -> bool:
        """Whether the law depends on the tokens before, other than through the logits."""
        return bool(self.processors) or self.repetition_penalty not in (None, 1)

    @property
    def narrows(self) -> bool:
        """Whether top-k, top-p or min-p may leave few tokens to choose from."""
        return not (self.top_k is self.top_p is self.min_p is None)


def processed_logits(logits_1V: torch.Tensor, sampling: Sampling, context: Sequence[int]) -> torch.Tensor:
    """(1, V), float32 or float64: logits after repetition penalty and processors, before temperature.

    Args:
        logits_1V: of one row; left as they are.
        context: the L token ids that the row has seen, prompt included.
    """
    wide = torch.promote_types(logits_1V.dtype, torch.float32)
    scores_1V = logits_1V.to(wide, copy=True)  # processors may write into what they are given
    ids_1L = torch.tensor([list(context)], device=logits_1V.device)
    for processor in (*_penalty(sampling), *sampling.processors):
        scores_1V = processor(ids_1L, scores_1V)
        _check_scores(scores_1V, logits_1V, processor)
    return scores_1V


def _check_scores(scores_1V: Any, logits_1V: torch.Tensor, processor: LogitsProcessor) -> None:
    said = f"logits processor {_name(processor)} returned"
    if not isinstance(scores_1V, torch.Tensor) or scores_1V.shape != logits_1V.shape:
        shape = tuple(getattr(scores_1V, "shape", ()))
        raise ValueError(
            f"{said} {type(scores_1V).__name__} {shape}, must be a tensor {tuple(logits_1V.shape)}"
        )
    if not scores_1V.is_floating_point() or scores_1V.device != logits_1V.device:
        raise ValueError(
            f"{said} {scores_1V.dtype} on {scores_1V.device}, must be floating-point numbers on "
            f"{logits_1V.device}"
        )


def scaled_logits(logits_RV: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    """float64 (R, V): logits / temperature, -infinity outside top-k, top-p and min-p. Needs temperature > 0.

    A function of each row alone. Tokens that tie with the k-th best all stay, as in transformers; top-p keeps
    the smallest set of best tokens (ties: lower id first) whose probability reaches p, at least one.
    """
    scaled_RV = logits_RV.to(torch.float64) / sampling.temperature
    if sampling.top_k is not None and sampling.top_k < scaled_RV.shape[-1]:
        kth_R1 = scaled_RV.topk(sampling.top_k, dim=-1).values[:, -1:]
        scaled_RV = scaled_RV.masked_fill(scaled_RV < kth_R1, -torch.inf)
    if sampling.top_p is not None and sampling.top_p < 1:
        ordered_RV, order_RV = scaled_RV.sort(dim=-1, descending=True, stable=True)
        probs_RV = ordered_RV.softmax(dim=-1)
        outside_RV = probs_RV.cumsum(dim=-1) - probs_RV >= sampling.top_p
        scaled_RV = scaled_RV.masked_fill(outside_RV.scatter(-1, order_RV, outside_RV), -torch.inf)
    if sampling.min_p:
        least_R1 = scaled_RV.amax(dim=-1, keepdim=True) + math.log(sampling.min_p)
        scaled_RV = scaled_RV.masked_fill(scaled_RV < least_R1, -torch.inf)
    return scaled_RV


def token_probs(logits_V: torch.Tensor, sampling: Sampling, context: Sequence[int]) -> torch.Tensor | None:
    """float64 (V): the distribution of the next token; at temperature 0 all mass on the best, lowest id.

    None if the logits are damaged or forbid every token: no distribution follows from them.
    """
    logits_1V = logits_V[None]
    if sampling.reads_context:
        logits_1V = processed_logits(logits_1V, sampling, context)
    if sampling.temperature == 0:
        best, token = logits_1V[0].max(dim=-1)
        if not math.isfinite(best.item()):
            return None
        return torch.zeros_like(logits_1V[0], dtype=torch.float64).index_fill_(0, token, 1.0)
    probs_V = scaled_logits(logits_1V, sampling).softmax(dim=-1)[0]
    return probs_V if math.isfinite(probs_V.sum().item()) else None


class TokenChooser:
    """Chooses the target's token at a position, the same for plain and speculative decoding.

    `argmax(log target_probs + noise)`, ties to the lowest id; at temperature 0 the argmax alone.
    """

    def __init__(self, sampling: Sampling, noise: NoiseStream) -> None:
        self.sampling = sampling
        self.noise = noise

    def choose(
        self,
        logits_RV: torch.Tensor,
        indices: Sequence[int],
        contexts: Sequence[Sequence[int]] | None = None,
        best: tuple[list[float], list[int]] | None = None,
    ) -> list[int]:
        """Token ids (R) for rows that predict the generated tokens number `indices` (R).

        One read-back for all rows. `contexts` (R) are the tokens that each row has seen; needed where
        `sampling.reads_context`. `best`: `largest_of_rows` of the logits, if somebody knows it already.
        ValueError if a row holds NaN or nothing but -infinity.
        """
        if self.sampling.reads_context:
            assert contexts is not None, "the law reads the context"
            rows = zip(logits_RV, contexts, strict=True)
            logits_RV = torch.cat([processed_logits(row[None], self.sampling, seen) for row, seen in rows])
        if self.sampling.temperature == 0:
            known = None if self.sampling.reads_context else best
            values, tokens = largest_of_rows(logits_RV) if known is None else known
        else:
            values, tokens = self._perturbed(logits_RV, indices)
        for value, index in zip(values, indices, strict=True):
            if not math.isfinite(value):
                raise no_distribution(index, self.sampling)
        return tokens

    def _perturbed(self, logits_RV: torch.Tensor, indices: Sequence[int]) -> tuple[list[float], list[int]]:
        """Of each row a number that is finite if and only if its best scaled logit + noise is, and that
        value's id (R), the lowest of ties."""
        few = None
        if self.sampling.narrows:
            few = self._few(logits_RV, indices) if logits_RV.device.type == "cpu" else None
        elif won := self.noise.winners(indices, logits_RV, self.sampling.temperature):
            return won
        if few is None:
            ids_V = torch.arange(logits_RV.shape[-1], device=logits_RV.device)
            scaled_RV = scaled_logits(logits_RV, self.sampling)
            return _read_back(*(scaled_RV + self.noise.gumbel(indices, ids_V)).max(dim=-1))
        values_and_places = [values_S.max(dim=-1) for _, values_S in few]
        ids = [ids_S[place] for (ids_S, _), (_, place) in zip(few, values_and_places, strict=True)]
        return _read_back(torch.stack([value for value, _ in values_and_places]), torch.stack(ids))

    def _few(
        self, logits_RV: torch.Tensor, indices: Sequence[int]
    ) -> list[tuple[torch.Tensor, torch.Tensor]] | None:
        """Ids (S) of the tokens that the filters leave of each row, at least one, and their scaled logits +
        noise: the dearest part of a row. Damage stays in, to be reported; None where it is NaN."""
        scaled_RV = scaled_logits(logits_RV, self.sampling)
        if scaled_RV.isnan().any():
            return None
        few = []
        for scaled_V, index in zip(scaled_RV, indices, strict=True):
            ids_S = (scaled_V > -torch.inf).nonzero()[:, 0]
            ids_S = ids_S if len(ids_S) else torch.zeros(1, dtype=torch.int64)
            few.append((ids_S, scaled_V[ids_S] + self.noise.gumbel([index], ids_S)[0]))
        return few


def largest_of_rows(logits_RV: torch.Tensor) -> tuple[list[float], list[int]]:
    """The largest logit (R) of each row and its id, the lowest at ties; NaN if the row holds any."""
    library = native.loaded()
    if library is None or logits_RV.device.type != "cpu" or logits_RV.dtype != torch.float32:
        return _read_back(*logits_RV.max(dim=-1))
    # torch would wake its threads for this, which can take longer than the work.
    logits_RV = logits_RV if logits_RV.stride(1) == 1 else logits_RV.contiguous()
    rows, columns = logits_RV.shape
    values_R, ids_R = np.empty(rows, dtype=np.float32), np.empty(rows, dtype=np.int64)
    library.largest_of_rows(
        logits_RV.data_ptr(), rows, logits_RV.stride(0), columns, values_R.ctypes.data, ids_R.ctypes.data
    )
    return values_R.tolist(), ids_R.tolist()


def _read_back(values_R: torch.Tensor, ids_R: torch.Tensor) -> tuple[list[float], list[int]]:
    values, ids = torch.stack([values_R.to(torch.float64), ids_R.to(torch.float64)]).tolist()
    return values, [int(token) for token in ids]


def no_distribution(index: int, sampling: Sampling) -> ValueError:
    """The error for logits from which no token can be chosen."""
    cause = "the weights are damaged, or the dtype overflows; try dtype bfloat16 or float32"
    if sampling.temperature > 0 or sampling.repetition_penalty is not None:
        cause += f"; or temperature {sampling.temperature:g}"
        if sampling.repetition_penalty is not None:
            cause += f" or repetition_penalty {sampling.repetition_penalty:g}"
        cause += " is too extreme"
    if sampling.processors:
        names = ", ".join(_name(processor) for processor in sampling.processors)
        cause += f"; or the logits processors leave nothing to choose ({names})"
    return ValueError(f"the target's logits for generated token {index} have no finite maximum: {cause}")


def _penalty(sampling: Sampling) -> list[LogitsProcessor]:
    if sampling.repetition_penalty in (None, 1):
        return []
    # Imported when needed: it takes a moment, and most requests have no penalty.
    from transformers import RepetitionPenaltyLogitsProcessor

    return [RepetitionPenaltyLogitsProcessor(float(sampling.repetition_penalty))]


def _name(processor: LogitsProcessor) -> str:
    return getattr(processor, "__name__", type(processor).__name__)
