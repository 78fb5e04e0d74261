"""Fit a calibration by maximum likelihood on recordings of uncalibrated drafts.

(kappa_d, a_d): the text's token has likelihood a_d * softmax(z / kappa_d) at its place in the drafter's
vocabulary, and 1 - a_d outside it; the z of a row are known up to a constant from its log survival, which is
all that a softmax needs. The lookup: logistic regression of "the text's token is this one" on
`scoring.LOOKUP_INPUTS`, over everything that a lookup proposes after a prefix that the text followed.

Legend: N samples, V the drafter's vocabulary, K lookup inputs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from scipy.optimize import minimize, minimize_scalar
from scipy.special import expit, log_expit

from decoding.calibration import TemperatureFit
from decoding.drafters.ngram import Continuation, NgramDrafter
from decoding.noise import NoiseStream
from decoding.scoring import HeadOpinion, LevelScale, lookup_inputs
from decoding.traces import OnPath, Position

_KAPPA_RANGE = (0.05, 20.0)
# A prior worth a sample or so: an input that never varies keeps the weight 0, and no weight runs off.
_RIDGE = 0.5


@dataclass(frozen=True, slots=True)
class Proposed:
    """A looked-up token after a prefix that the text followed.

    Attributes:
        continuation: what the lookup says.
        noise: Gumbel noise of the token there, 0 at temperature 0.
        hit: whether the text has it.
        row: the head's, where the head drafts after the same prefix.
        column: of the token in that row, -1 if the head cannot draft it.
    """

    continuation: Continuation
    noise: float
    hit: bool
    row: OnPath | None
    column: int


@dataclass(slots=True)
class Samples:
    """What was recorded at one temperature."""

    rows: list[OnPath] = field(default_factory=list)
    proposed: list[Proposed] = field(default_factory=list)
    positions: int = 0


def observe(
    samples: Samples,
    positions: Iterable[Position],
    lookup: NgramDrafter,
    committed: Sequence[int],
    temperature: float,
    noise: NoiseStream,
    columns: dict[int, int],
) -> None:
    """Add the positions of one text.

    Args:
        positions: recorded with `keep_rows`, by an uncalibrated drafter.
        lookup: asked at the same positions.
        committed: token ids of prompt and text.
        temperature, noise: of the text.
        columns: place of every target id in the rows.
    """
    prompt_length = 0
    state = None
    for position in positions:
        if state is None:
            prompt_length = position.context_length - position.index
            state = lookup.start(noise, temperature, prompt_length)
            state.ingest(committed[: position.context_length], None)
        else:
            state.ingest(committed[position.context_length - 1 : position.context_length], None)
        samples.positions += 1
        samples.rows += position.on_path
        rows = {row.depth: row for row in position.on_path}
        following = committed[position.context_length : position.context_length + position.tree.height]
        for depth, token in enumerate(following, start=1):
            proposals = state.continuations(following[: depth - 1])
            if not proposals:
                break
            for one in proposals:
                gumbel = 0.0
                if temperature > 0:
                    at = torch.tensor([one.token])
                    gumbel = float(noise.gumbel([position.index + depth - 1], at)[0, 0])
                column = columns.get(one.token, -1)
                samples.proposed.append(Proposed(one, gumbel, one.token == token, rows.get(depth), column))


def fit(samples: Samples, temperature: float) -> TemperatureFit:
    """The maximum of the likelihood at one temperature. ValueError if nothing was recorded."""
    if not samples.positions:
        raise ValueError(f"nothing was recorded at temperature {temperature}: give prompts")
    levels: list[LevelScale] = []
    for depth in sorted({row.depth for row in samples.rows}):
        rows = [row for row in samples.rows if row.depth == depth]
        if len(rows) < 20 and levels:
            break  # too few to tell from the level above, which then stands for it
        levels.append(fit_scale(rows))
    weights = fit_logistic(*lookup_table(samples.proposed, levels)) if samples.proposed else ()
    return TemperatureFit(temperature, tuple(levels), weights, samples.positions)


def fit_scale(rows: Sequence[OnPath]) -> LevelScale:
    """(kappa, a) of one level."""
    inside = [row for row in rows if row.column >= 0]
    # Never quite 0 or 1: half a sample stays on either side.
    a = (len(inside) + 0.5) / (len(rows) + 1)
    if not inside:
        return LevelScale(1.0, a)
    z_NV = torch.stack([row.survival_V.float() for row in inside])
    z_NV = z_NV.clamp_min(-1e4)  # -infinity / kappa is no number to differentiate
    columns_N1 = torch.tensor([[row.column] for row in inside])
    own_N = z_NV.gather(1, columns_N1)[:, 0]

    def loss(log_kappa: float) -> float:
        beta = math.exp(-log_kappa)
        return float((torch.logsumexp(z_NV * beta, dim=1) - own_N * beta).double().mean())

    bounds = tuple(map(math.log, _KAPPA_RANGE))
    found = minimize_scalar(loss, bounds=bounds, method="bounded", options={"xatol": 1e-4})
    return LevelScale(math.exp(float(found.x)), a)


def lookup_table(proposed: Sequence[Proposed], levels: Sequence[LevelScale]) -> tuple[np.ndarray, np.ndarray]:
    """Inputs (N, K) and hits (N,): every proposal as a lookup alone meets it, and with the head's calibrated
    opinion where there is one."""
    inputs, hits = [], []
    for one in proposed:
        inputs.append(lookup_inputs(one.continuation, None, one.noise))
        hits.append(one.hit)
        if one.row is not None:
            inputs.append(lookup_inputs(one.continuation, _opinion(one, levels), one.noise))
            hits.append(one.hit)
    return np.array(inputs), np.array(hits, dtype=float)


def _opinion(one: Proposed, levels: Sequence[LevelScale]) -> HeadOpinion:
    assert one.row is not None
    scale = levels[min(one.row.depth, len(levels)) - 1]
    if one.column < 0:
        return HeadOpinion(-math.inf, best=False)
    log_c_V = (one.row.survival_V / scale.kappa).log_softmax(dim=-1)
    return HeadOpinion(float(log_c_V[one.column]) + math.log(scale.a), int(log_c_V.argmax()) == one.column)


def fit_logistic(inputs_NK: np.ndarray, hits_N: np.ndarray) -> tuple[float, ...]:
    """Weights (K) of the logistic regression, with a weak ridge."""

    def loss(weights_K: np.ndarray) -> tuple[float, np.ndarray]:
        x_N = inputs_NK @ weights_K
        value = -(hits_N * log_expit(x_N) + (1 - hits_N) * log_expit(-x_N)).sum()
        gradient_K = inputs_NK.T @ (expit(x_N) - hits_N)
        return value + _RIDGE * weights_K @ weights_K / 2, gradient_K + _RIDGE * weights_K

    found = minimize(loss, np.zeros(inputs_NK.shape[1]), jac=True, method="L-BFGS-B")
    return tuple(map(float, found.x))
