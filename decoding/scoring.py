"""How likely a drafted node survives verification, given that its parent did.

A node of a head's or language model's draft: c(v) = a_d * softmax_v(z / kappa_d) over the drafter's
vocabulary, where z is the draft's logit at temperature 0, else logit / temperature + the noise that the
target will meet at that position. A node of a lookup: a logistic function of what the match looks like. Both
are fitted by maximum likelihood, see `calibration.py`; without a calibration kappa = a = 1 and the lookup's
own estimate counts. Path scores are sums of log c.

Legend: R rows of a level's parents, V the drafter's vocabulary, K inputs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from decoding.noise import NoiseStream
from decoding.survival import LevelScale, NativeSurvival, Survival, TensorSurvival


class Looked(Protocol):
    """What is known of a token that a lookup proposes (`ngram.Continuation`)."""

    @property
    def depth(self) -> int: ...
    @property
    def match_length(self) -> int: ...
    @property
    def share(self) -> float: ...


@dataclass(frozen=True, slots=True)
class HeadOpinion:
    """What a head thinks of a token that a lookup proposes: log c, -infinity where it cannot draft it, and
    whether it is the head's best after that parent."""

    log_c: float
    best: bool


LOOKUP_INPUTS = (
    "one",
    "log2_match",
    "share",
    "depth",
    "first",
    "noise",
    "head_asked",
    "head_best",
    "head_logit",
)
_NOISE_LOW, _NOISE_HIGH = -2.0, 6.0
_LOGIT = 6.0


def lookup_inputs(looked: Looked, opinion: HeadOpinion | None, noise: float) -> np.ndarray:
    """The inputs (K) of the lookup's logistic function.

    Args:
        looked: match length at the root, share of the matches' weight that agrees, depth >= 1.
        opinion: the head's; None where no head was asked.
        noise: Gumbel noise of this token at this position; 0 at temperature 0.
    """
    inputs = np.zeros(len(LOOKUP_INPUTS))
    inputs[:6] = (
        1.0,
        math.log2(looked.match_length),
        looked.share,
        looked.depth / 4,
        looked.depth == 1,
        min(max(noise, _NOISE_LOW), _NOISE_HIGH),
    )
    if opinion is not None:
        inputs[6:] = (1.0, opinion.best, _logit(opinion.log_c))
    return inputs


def _logit(log_c: float) -> float:
    """log(c / (1 - c)), held to -6..6; NaN (a drafter at fault) is -6."""
    rest = -math.expm1(log_c)
    return _LOGIT if rest <= 0 else min(_LOGIT, max(-_LOGIT, log_c - math.log(rest)))


@dataclass(frozen=True, slots=True)
class Scorer:
    """The survival of nodes at one temperature.

    Args:
        temperature: of the request.
        levels: (kappa_d, a_d) for depth 1, 2, ...; deeper levels take the last one's.
        lookup: weights (K) of the lookup's logistic function; empty = not calibrated.
    """

    temperature: float
    levels: tuple[LevelScale, ...] = (LevelScale(),)
    lookup: tuple[float, ...] = ()

    def scale(self, depth: int) -> LevelScale:
        """That of a level, depth >= 1."""
        return self.levels[min(depth, len(self.levels)) - 1]

    def log_survival(
        self, logits_RV: torch.Tensor, depth: int, noise: NoiseStream, index: int, ids_V: torch.Tensor
    ) -> torch.Tensor:
        """log c of every token after every parent, (R, V); float32 at temperature 0, else float64.

        Args:
            logits_RV: of the draft, no temperature in them.
            depth: level of these tokens, >= 1.
            index: of the generated token that they stand for, 0 = the first after the prompt.
            ids_V: int64, the target's id of each column.
        """
        scale = self.scale(depth)
        z_RV = perturbed(logits_RV, self.temperature, noise, index, ids_V)
        log_c_RV = torch.log_softmax(z_RV if scale.kappa == 1 else z_RV / scale.kappa, dim=-1)
        return log_c_RV if scale.a == 1 else log_c_RV + math.log(scale.a)

    def survival(
        self,
        logits_RV: torch.Tensor,
        depth: int,
        noise: NoiseStream,
        index: int,
        ids_V: torch.Tensor,
        *,
        width: int,
        fast: bool = False,
    ) -> Survival:
        """`log_survival` and the `width` best tokens of each row. `fast`: the logits come from native code,
        which may go on with them: values differ from `log_survival`'s in the last bits of fp32."""
        if fast and self.temperature == 0:
            return NativeSurvival.of(logits_RV, self.scale(depth), width)
        # A subclass may have other Gumbel values.
        if fast and type(noise) is NoiseStream:
            scale, key = self.scale(depth), noise.key(index)
            return NativeSurvival.under_noise(logits_RV, scale, width, self.temperature, key, ids_V)
        return TensorSurvival(self.log_survival(logits_RV, depth, noise, index, ids_V), width)

    def log_lookup(self, looked: Looked, opinion: HeadOpinion | None, noise: float) -> float:
        """log survival of a looked-up token, <= 0; needs weights. Arguments: see `lookup_inputs`."""
        return log_sigmoid(float(lookup_inputs(looked, opinion, noise) @ np.array(self.lookup)))


def perturbed(
    logits_RV: torch.Tensor, temperature: float, noise: NoiseStream, index: int, ids_V: torch.Tensor
) -> torch.Tensor:
    """z (R, V): the draft's logits at temperature 0 (float32), else logit / temperature + noise (float64)."""
    if temperature == 0:
        return logits_RV.float()
    return logits_RV.to(torch.float64) / temperature + noise.gumbel([index], ids_V)


def log_sigmoid(x: float) -> float:
    """log(1 / (1 + e^-x)), exact for large |x|."""
    return -math.log1p(math.exp(-x)) if x > 0 else x - math.log1p(math.exp(x))
