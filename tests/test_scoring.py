"""Survival of nodes against plain numpy; the lookup's logistic function against sums by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from decoding.drafters.ngram import Continuation
from decoding.noise import NoiseStream
from decoding.scoring import (
    LOOKUP_INPUTS,
    HeadOpinion,
    LevelScale,
    Scorer,
    log_sigmoid,
    lookup_inputs,
    perturbed,
)

NOISE = NoiseStream(3, [5, 9, 31])
LEVELS = (LevelScale(1.7, 0.9), LevelScale(0.6, 0.75), LevelScale())
TEMPERATURES = st.sampled_from([0.0, 0.3, 1.0, 2.5])


def by_hand(logits_RV: np.ndarray, temperature: float, gumbel_V: np.ndarray, scale: LevelScale) -> np.ndarray:
    """log(a * softmax(z / kappa)), row by row."""
    rows = []
    for logits_V in logits_RV:
        z = logits_V / temperature + gumbel_V if temperature else logits_V
        weights = np.exp(z / scale.kappa - (z / scale.kappa).max())
        rows.append(np.log(scale.a * weights / weights.sum()))
    return np.array(rows)


@given(
    seed=st.integers(0, 99),
    temperature=TEMPERATURES,
    depth=st.integers(1, 6),
    index=st.integers(0, 9),
    rows=st.integers(1, 4),
)
def test_survival_is_the_calibrated_softmax(
    seed: int, temperature: float, depth: int, index: int, rows: int
) -> None:
    """Levels deeper than those that were fitted take the last one's; ids choose the noise, not columns."""
    rng = np.random.default_rng(seed)
    logits_RV = rng.normal(0, 3, (rows, 7))
    ids_V = torch.from_numpy(np.sort(rng.choice(1000, 7, replace=False)))
    for fitted in (1, 2, 3):
        found = Scorer(temperature, LEVELS[:fitted]).log_survival(
            torch.from_numpy(logits_RV), depth, NOISE, index, ids_V
        )
        gumbel_V = -np.log(-np.log(NOISE.uniforms([index], ids_V)[0].numpy()))
        expected = by_hand(logits_RV, temperature, gumbel_V, LEVELS[min(depth, fitted) - 1])
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-5, atol=1e-5)
        assert found.dtype == (torch.float64 if temperature else torch.float32)
        assert float(found.max()) <= 0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_half_precision_logits_are_widened_before_anything_is_done_to_them(dtype: torch.dtype) -> None:
    logits_RV = torch.randn((2, 5), generator=torch.Generator().manual_seed(0)).to(dtype)
    before, ids_V = logits_RV.clone(), torch.arange(5)
    for temperature in (0.0, 0.7):
        z_RV = perturbed(logits_RV, temperature, NOISE, 2, ids_V)
        wide = logits_RV.double()
        expected = wide / temperature + NOISE.gumbel([2], ids_V) if temperature else wide
        torch.testing.assert_close(z_RV.double(), expected, rtol=1e-6, atol=1e-6)
    assert torch.equal(logits_RV, before), "they are the model's own"


def test_without_a_calibration_it_is_the_softmax_itself() -> None:
    logits_RV = torch.tensor([[0.0, math.log(3.0), -math.inf]])
    log_c_RV = Scorer(0.0).log_survival(logits_RV, 9, NOISE, 0, torch.arange(3))
    assert log_c_RV.exp().tolist() == [pytest.approx([0.25, 0.75, 0.0])]


@given(
    logits=st.lists(st.sampled_from([-math.inf, -1e4, -1.0, 0.0, 1e-3, 30.0, 1e4]), min_size=1, max_size=6),
    temperature=TEMPERATURES,
    kappa=st.sampled_from([0.05, 1.0, 20.0]),
    a=st.sampled_from([1e-6, 0.5, 1.0]),
)
def test_survival_is_never_above_zero_nor_above_a(
    logits: list[float], temperature: float, kappa: float, a: float
) -> None:
    scorer = Scorer(temperature, (LevelScale(kappa, a),))
    logits[0] = 0.0  # a row of nothing but -infinity has no softmax
    log_c_RV = scorer.log_survival(torch.tensor([logits]), 1, NOISE, 0, torch.arange(len(logits)))
    assert float(log_c_RV.max()) <= min(0.0, math.log(a) + 1e-6)
    assert float(log_c_RV.double().exp().sum()) == pytest.approx(a)


# --- the lookup -------------------------------------------------------------------------------------------

WEIGHTS = (-0.9, 0.5, 0.8, -0.7, 0.15, 0.4, 0.25, 0.6, 0.35)
HALF = HeadOpinion(math.log(0.5), best=True)


def looked(depth: int = 1, match_length: int = 1, share: float = 1.0) -> Continuation:
    return Continuation(token=7, depth=depth, match_length=match_length, share=share, weight=3)


@pytest.mark.parametrize(
    ("one", "opinion", "noise", "expected"),
    [
        (looked(), None, 0.0, [1, 0, 1, 0.25, 1, 0, 0, 0, 0]),
        (looked(2, 8, 0.5), None, 1.5, [1, 3, 0.5, 0.5, 0, 1.5, 0, 0, 0]),
        (looked(6, 32, 0.25), HALF, -1.9, [1, 5, 0.25, 1.5, 0, -1.9, 1, 1, 0]),
        (looked(), HeadOpinion(math.log(0.8), False), 0.0, [1, 0, 1, 0.25, 1, 0, 1, 0, math.log(4)]),
        (looked(), HeadOpinion(-math.inf, False), -9.0, [1, 0, 1, 0.25, 1, -2, 1, 0, -6]),
        (looked(), HeadOpinion(0.0, True), 9.0, [1, 0, 1, 0.25, 1, 6, 1, 1, 6]),
    ],
)
def test_inputs_by_hand(
    one: Continuation, opinion: HeadOpinion | None, noise: float, expected: Sequence[float]
) -> None:
    assert len(LOOKUP_INPUTS) == len(expected)
    assert lookup_inputs(one, opinion, noise).tolist() == pytest.approx(expected)
    x = sum(weight * value for weight, value in zip(WEIGHTS, expected, strict=True))
    log_p = Scorer(1.0, lookup=WEIGHTS).log_lookup(one, opinion, noise)
    assert math.exp(log_p) == pytest.approx(1 / (1 + math.exp(-x)))


@given(probability=st.floats(0, 1), below=st.floats(0, 1))
def test_a_heads_logit_is_held_between_minus_six_and_six_and_rises(probability: float, below: float) -> None:
    """Also next to the ends, where 1 - c is lost in c."""

    def logit(c: float) -> float:
        return float(lookup_inputs(looked(), HeadOpinion(math.log(c) if c else -math.inf, True), 0.0)[-1])

    if 1e-12 < probability < 1 - 1e-12:
        exact = math.log(probability) - math.log1p(-probability)
        assert logit(probability) == pytest.approx(min(6, max(-6, exact)), abs=1e-9)
    assert -6 <= logit(probability) <= 6
    assert logit(probability * below) <= logit(probability)


@pytest.mark.parametrize(("log_c", "expected"), [(-1e-9, 6), (-1e-300, 6), (-700.0, -6), (math.nan, -6)])
def test_a_sure_head_and_one_at_fault(log_c: float, expected: float) -> None:
    assert lookup_inputs(looked(), HeadOpinion(log_c, False), 0.0)[-1] == expected


@given(
    one=st.builds(looked, st.integers(1, 64), st.integers(1, 32), st.floats(0.01, 1)),
    opinion=st.none() | st.builds(HeadOpinion, st.floats(-50, 0) | st.just(-math.inf), st.booleans()),
    noise=st.floats(-10, 60),
    weights=st.lists(st.floats(-1e3, 1e3), min_size=len(LOOKUP_INPUTS), max_size=len(LOOKUP_INPUTS)),
)
def test_a_lookups_survival_is_never_above_zero(
    one: Continuation, opinion: Any, noise: float, weights: list[float]
) -> None:
    assert -math.inf < Scorer(1.0, lookup=tuple(weights)).log_lookup(one, opinion, noise) <= 0


@given(st.floats(-30, 30))
def test_log_sigmoid_is_the_log_of_the_sigmoid(x: float) -> None:
    assert log_sigmoid(x) == pytest.approx(math.log(1 / (1 + math.exp(-x))), rel=1e-9, abs=1e-12)
    assert math.exp(log_sigmoid(x)) + math.exp(log_sigmoid(-x)) == pytest.approx(1)


def test_log_sigmoid_far_out() -> None:
    assert [log_sigmoid(x) for x in (-1e308, -math.inf, math.inf, 1e308)] == [-1e308, -math.inf, 0, 0]
    assert log_sigmoid(-800.0) == -800
    assert log_sigmoid(40.0) == pytest.approx(-math.exp(-40), rel=1e-9), "not lost beside 1"
