"""The noise, bit by bit: known values, any subset, both ends. Its laws are in test_noise_statistics.py."""

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


@pytest.mark.parametrize(
    ("bits", "expected"), [(0, -math.log(54 * math.log(2))), (2**64 - 1, 53 * math.log(2))]
)
def test_gumbel_values_are_finite_at_both_ends(
    bits: int, expected: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the smallest and the largest uniform."""
    monkeypatch.setattr(NoiseStream, "key", lambda self, index: unmixed(bits))
    before_the_first = torch.tensor([-1])  # adds nothing to the key
    assert NoiseStream(0, [1]).gumbel([0], before_the_first).item() == pytest.approx(expected, rel=1e-14)


def test_the_decoder_draws_from_the_distribution() -> None:
    """Each token at a position of its own, through the chooser."""
    probs = np.array([0.42, 0.25, 0.17, 0.1, 0.04, 0.02])
    count = 40_000
    chooser = TokenChooser(Sampling(1.0), NoiseStream(5, PROMPT))
    drawn = chooser.choose(torch.from_numpy(np.log(probs)).expand(count, -1), range(count))
    counts = np.bincount(drawn, minlength=len(probs))
    assert stats.chisquare(counts, probs * count).pvalue > 1e-3
