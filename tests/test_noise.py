"""The noise: reproducible bit by bit, uniform, independent, and Gumbel once its logarithms are taken."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from decoding.noise import NoiseStream
from decoding.sampling import Sampling, TokenChooser
from tests.test_plain import reference_uniform

PROMPT = [11, 0, 49151, 7]
# NoiseStream(7, [1, 2, 3]), generated tokens 0 and 5, ids 0 and 49151
KNOWN = [[0.867047399759818, 0.14668971168955935], [0.12083487840172902, 0.4939324276931737]]


def unmixed(output: int) -> int:
    """The state that SplitMix64 mixes to `output`, as a signed integer."""
    z = output ^ (output >> 31) ^ (output >> 62)
    z = z * pow(0x94D049BB133111EB, -1, 2**64) % 2**64
    z ^= (z >> 27) ^ (z >> 54)
    z = z * pow(0xBF58476D1CE4E5B9, -1, 2**64) % 2**64
    z ^= (z >> 30) ^ (z >> 60)
    return z - 2**64 if z >= 2**63 else z


@given(
    seed=st.one_of(st.integers(-5, 5), st.integers(-(2**63), 2**64 - 1)),
    prompt=st.lists(st.integers(0, 200_000), min_size=1, max_size=6),
    index=st.integers(0, 2**40),
    tokens=st.lists(st.integers(0, 2**31), min_size=1, max_size=6),
)
def test_uniforms_are_known_values(seed: int, prompt: list[int], index: int, tokens: list[int]) -> None:
    """The same doubles as SplitMix64 over SHA-256 in Python's integers."""
    drawn = NoiseStream(seed, prompt).uniforms([index], torch.tensor(tokens))[0].tolist()
    assert drawn == [reference_uniform(seed, prompt, index, token) for token in tokens]


def test_uniforms_never_change_between_releases() -> None:
    """Values written down: recorded traces and published seeds rest on them."""
    drawn = NoiseStream(7, [1, 2, 3]).uniforms([0, 5], torch.tensor([0, 49151]))
    assert drawn.tolist() == KNOWN


@given(st.data())
def test_any_subset_in_any_order_has_the_same_bits(data: st.DataObject) -> None:
    noise = NoiseStream(3, PROMPT)
    full = noise.uniforms(range(6), torch.arange(50))
    indices = data.draw(st.lists(st.integers(0, 5), min_size=1, max_size=6))
    tokens = data.draw(st.lists(st.integers(0, 49), min_size=1, max_size=20))
    part = noise.uniforms(indices, torch.tensor(tokens))
    assert part.dtype == torch.float64
    assert torch.equal(part, full[indices][:, tokens])


def test_streams_differ_by_seed_by_prompt_and_by_its_order() -> None:
    ids = torch.arange(100)
    streams = [
        NoiseStream(0, [1, 2]),
        NoiseStream(1, [1, 2]),
        NoiseStream(0, [2, 1]),
        NoiseStream(0, [1, 2, 0]),
    ]
    drawn = torch.cat([stream.uniforms([0, 1], ids) for stream in streams])
    assert len(drawn.unique()) == drawn.numel()


@pytest.mark.parametrize(("bits", "expected"), [(0, 2.0**-54), (2**64 - 1, 1 - 2.0**-53)])
def test_uniforms_lie_strictly_inside_0_and_1(
    bits: int, expected: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the states that mix to all zeros and to all ones too; the Gumbel value stays finite."""
    noise = NoiseStream(0, [1])
    monkeypatch.setattr(NoiseStream, "key", lambda self, index: unmixed(bits))
    before_the_first = torch.tensor([-1])  # adds nothing to the key
    assert noise.uniforms([0], before_the_first).item() == expected
    assert math.isfinite(noise.gumbel([0], before_the_first).item())


def test_uniforms_are_uniform() -> None:
    """Chi-square over 64 bins and Kolmogorov-Smirnov, over tokens and over positions."""
    noise = NoiseStream(1, PROMPT)
    for drawn in (
        noise.uniforms([0, 1, 2, 3], torch.arange(50_000)),
        noise.uniforms(range(20_000), torch.tensor([0, 1, 49_151])),
    ):
        values = drawn.flatten().numpy()
        assert values.min() > 0
        assert values.max() < 1
        counts = np.bincount((values * 64).astype(int), minlength=64)
        assert stats.chisquare(counts).pvalue > 1e-3
        assert stats.kstest(values, "uniform").pvalue > 1e-3


def test_neighbours_are_independent() -> None:
    """Neighbouring tokens and neighbouring positions: pairs fill a 16 x 16 table evenly."""
    drawn = NoiseStream(2, PROMPT).uniforms(range(60), torch.arange(2000)).numpy()
    for first, second in (
        (drawn[:, :-1], drawn[:, 1:]),
        (drawn[:-1], drawn[1:]),
        (drawn[:-1, 1:], drawn[1:, :-1]),
    ):
        cells = (first * 16).astype(int) * 16 + (second * 16).astype(int)
        assert stats.chisquare(np.bincount(cells.ravel(), minlength=256)).pvalue > 1e-3
        assert abs(np.corrcoef(first.ravel(), second.ravel())[0, 1]) < 4 / math.sqrt(first.size)


def draws(probs: np.ndarray, seed: int, count: int) -> np.ndarray:
    """`count` tokens drawn as the decoder draws them, each at a position of its own."""
    chooser = TokenChooser(Sampling(1.0), NoiseStream(seed, PROMPT))
    logits = torch.from_numpy(np.log(probs)).expand(count, -1)
    return np.array(chooser.choose(logits, range(count)))


def test_gumbel_argmax_draws_from_the_distribution() -> None:
    probs = np.array([0.42, 0.25, 0.17, 0.1, 0.04, 0.02])
    count = 40_000
    counts = np.bincount(draws(probs, 5, count), minlength=len(probs))
    assert stats.chisquare(counts, probs * count).pvalue > 1e-3


def test_two_laws_under_one_noise_agree_as_often_as_theory_says() -> None:
    """P(v wins under both) = 1 / sum_w max(p_w / p_v, q_w / q_v), within 4 standard errors."""
    one = np.array([0.42, 0.25, 0.17, 0.1, 0.04, 0.02])
    two = np.array([0.1, 0.3, 0.05, 0.15, 0.2, 0.2])
    count = 40_000
    under_one, under_two = draws(one, 9, count), draws(two, 9, count)
    for token in range(len(one)):
        expected = 1 / np.maximum(one / one[token], two / two[token]).sum()
        share = float(((under_one == token) & (under_two == token)).mean())
        assert abs(share - expected) < 4 * math.sqrt(expected * (1 - expected) / count)
