"""How the next token follows from target logits: temperature, top-k, top-p, then argmax under the noise.

Legend: R rows, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from decoding.noise import NoiseStream


@dataclass(frozen=True, slots=True)
class Sampling:
    """Settings of the target distribution. Temperature 0 = greedy; then top-k and top-p change nothing."""

    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None

    def __post_init__(self) -> None:
        for name, kinds in (("temperature", (int, float)), ("top_k", int), ("top_p", (int, float))):
            value = getattr(self, name)
            absent = value is None and name != "temperature"
            if not absent and (isinstance(value, bool) or not isinstance(value, kinds)):
                raise ValueError(f"{name} is {value!r}, must be a number")
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise ValueError(f"temperature is {self.temperature}, must be a finite number >= 0")
        if self.top_k is not None and self.top_k < 1:
            raise ValueError(f"top_k is {self.top_k}, must be >= 1 (leave it out to switch it off)")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise ValueError(f"top_p is {self.top_p}, must be in (0, 1] (leave it out to switch it off)")


def scaled_logits(logits_RV: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    """float64 (R, V): logits / temperature, -infinity outside top-k and top-p. Needs temperature > 0.

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
    return scaled_RV


class TokenChooser:
    """Chooses the target's token at a position, the same for plain and speculative decoding.

    `argmax(log target_probs + noise)`, ties to the lowest id; at temperature 0 the argmax alone.
    """

    def __init__(self, sampling: Sampling, noise: NoiseStream) -> None:
        self.sampling = sampling
        self.noise = noise

    def choose(self, logits_RV: torch.Tensor, indices: Sequence[int]) -> list[int]:
        """Token ids (R) for rows that predict the generated tokens number `indices` (R).

        One read-back for all rows. ValueError if a row holds NaN or nothing but -infinity.
        """
        if self.sampling.temperature == 0:
            values_R, ids_R = logits_RV.max(dim=-1)
        else:
            scaled_RV = scaled_logits(logits_RV, self.sampling)
            values_R, ids_R = self._perturbed(scaled_RV, indices)
        values_and_ids = torch.stack([values_R.to(torch.float64), ids_R.to(torch.float64)]).tolist()
        for value, index in zip(values_and_ids[0], indices, strict=True):
            if not math.isfinite(value):
                raise ValueError(
                    f"the target's logits for generated token {index} have no finite maximum ({value}): the "
                    "weights are damaged, or the dtype overflows; try dtype bfloat16 or float32"
                )
        return [int(token) for token in values_and_ids[1]]

    def _perturbed(
        self, scaled_RV: torch.Tensor, indices: Sequence[int]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        narrowed = self.sampling.top_k is not None or self.sampling.top_p is not None
        if scaled_RV.device.type == "cpu" and narrowed and not scaled_RV.isnan().any():
            # Noise is the dearest part of a row: draw it for the few tokens that can win.
            best = [
                self._perturbed_support(row_V, index) for row_V, index in zip(scaled_RV, indices, strict=True)
            ]
            values, ids = zip(*best, strict=True)
            return torch.stack(values), torch.stack(ids)
        ids_V = torch.arange(scaled_RV.shape[-1], device=scaled_RV.device)
        return (scaled_RV + self.noise.gumbel(indices, ids_V)).max(dim=-1)

    def _perturbed_support(self, scaled_V: torch.Tensor, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        # +infinity stays in: it is a fault, to be reported and not passed over.
        support_S = (scaled_V > -torch.inf).nonzero()[:, 0]
        if not len(support_S):
            return scaled_V[0], torch.zeros((), dtype=torch.int64)
        value, place = (scaled_V[support_S] + self.noise.gumbel([index], support_S)[0]).max(dim=-1)
        return value, support_S[place]
