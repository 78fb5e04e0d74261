"""Scores of a level under the noise in native code: the reference's values, whatever the team."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from decoding import native
from decoding.drafters.beam import Beam
from decoding.machine import native_threads
from decoding.noise import NoiseStream
from decoding.scoring import LevelScale, Scorer
from decoding.survival import NativeSurvival, TensorSurvival
from tests.test_contenders import lucky

native.library()
PROMPT = [3, 1, 4]


class ForTorch(NoiseStream):
    """The same noise, of which native code must suppose that it is another."""


def both(
    logits_RV: torch.Tensor,
    temperature: float,
    scale: LevelScale,
    index: int,
    ids_V: torch.Tensor,
    width: int,
) -> tuple[NativeSurvival, TensorSurvival]:
    scorer, found = Scorer(temperature, (scale,)), []
    for noise in (NoiseStream(7, PROMPT), ForTorch(7, PROMPT)):
        found.append(scorer.survival(logits_RV, 1, noise, index, ids_V, width=width, fast=True))
    ours, theirs = found
    assert isinstance(ours, NativeSurvival)
    assert isinstance(theirs, TensorSurvival)
    return ours, theirs


@given(
    rows=st.integers(1, 5),
    vocabulary=st.integers(1, 90),
    temperature=st.sampled_from([0.05, 0.6, 1.0, 1.9, 30.0]),
    kappa=st.sampled_from([0.5, 1.0, 1.7]),
    a=st.sampled_from([1.0, 0.8]),
    seed=st.integers(0, 9999),
    data=st.data(),
)
def test_values_are_those_of_fp64(
    rows: int,
    vocabulary: int,
    temperature: float,
    kappa: float,
    a: float,
    seed: int,
    data: st.DataObject,
) -> None:
    rng = np.random.default_rng(seed)
    width = data.draw(st.integers(1, min(6, vocabulary)))
    logits_RV = torch.from_numpy(rng.normal(0, 4, (rows, vocabulary)).astype(np.float32))
    ids_V = torch.from_numpy(np.sort(rng.choice(50_000, vocabulary, replace=False)))
    ours, theirs = both(logits_RV, temperature, LevelScale(kappa, a), seed, ids_V, width)
    assert (len(ours), ours.vocabulary) == (rows, vocabulary)
    for row in range(rows):
        mine = slice(row * width, (row + 1) * width)
        whole = ours.row(row)
        assert len(whole) == vocabulary
        # fp32: relative to the size of z, which a small temperature makes large.
        size = 1 + float(logits_RV.abs().max()) / temperature / kappa
        torch.testing.assert_close(whole.double(), theirs.row(row), rtol=0, atol=3e-6 * size)
        assert whole.exp().sum().item() == pytest.approx(a, rel=1e-5)
        assert ours.values[mine] == sorted(ours.values[mine], reverse=True)
        gap = np.abs(np.array(ours.values[mine]) - np.array(theirs.values[mine])).max()
        assert gap < 6e-6 * size
        for column, value in zip(ours.columns[mine], ours.values[mine], strict=True):
            assert ours.value(row, column) == value == float(whole[column])


def gumbel_under(steps: list[int]) -> np.ndarray:
    """What native code makes of uniforms of so many steps of 2^-53, found by turning the mixing round."""
    found = []
    for step in steps:
        key = lucky(0, step << 11)
        survival = NativeSurvival.under_noise(
            torch.zeros(1, 1), LevelScale(), 1, 1.0, key, torch.zeros(1, dtype=torch.int64)
        )
        found.append(float(survival._z_RV[0, 0]))
    return np.array(found)


HALF = 2**52


@example(steps=[0, 1, 2, HALF - 1, HALF, HALF + 1, 2**53 - 1, 2**53 - 2])
@given(
    steps=st.lists(
        st.integers(0, 2**53 - 1)
        | st.integers(0, 53).map(lambda n: max(0, 2**n - 1))
        | st.integers(0, 53).map(lambda n: 2**53 - 2**n)
        | st.integers(-999, 999).map(lambda n: HALF + n),
        min_size=1,
        max_size=9,
    )
)
def test_noise_of_every_size_is_gumbels(steps: list[int]) -> None:
    """From the least uniform to the greatest, and where the two ways to take its logarithm meet."""
    uniforms = [max(step, 0.5) * 2.0**-53 for step in steps]
    rest = [(2**53 - step) * 2.0**-53 for step in steps]
    inner = [-math.log(u) if u < 0.5 else -math.log1p(-w) for u, w in zip(uniforms, rest, strict=True)]
    wanted = np.array([-math.log(one) for one in inner])
    np.testing.assert_allclose(gumbel_under(steps), wanted, rtol=4e-7, atol=4e-7)


def test_any_team_finds_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    logits_RV, ids_V = torch.randn(5, 333) * 3, torch.arange(333)
    before = torch.get_num_threads()
    found = []
    try:
        for threads in (1, 2, 3, 7):
            torch.set_num_threads(threads)
            assert native_threads() == threads
            one = both(logits_RV, 0.7, LevelScale(1.3, 0.9), 4, ids_V, 4)[0]
            found.append((one.values, one.columns, one.row(2).tolist()))
    finally:
        torch.set_num_threads(before)
    assert all(one == found[0] for one in found)


def test_padded_rows_and_equal_scores() -> None:
    """Rows of native logits may be wider than the vocabulary; of equal scores the lower column is first."""
    wide_RV = torch.full((2, 9), 99.0)
    wide_RV[:, :4] = torch.tensor([[0.0, 1e30, 1e30, 0.0], [2e30, 0.0, 0.0, 2e30]])  # no noise is left of it
    survival = both(wide_RV[:, :4], 1.0, LevelScale(), 0, torch.arange(4), 2)[0]
    assert survival.columns == [1, 2, 0, 3]
    assert survival.vocabulary == 4


@pytest.mark.parametrize("damage", [math.nan, math.inf, -math.inf])
def test_damage_gives_a_level_all_the_same(damage: float) -> None:
    """As many distinct columns as asked for, and a tree that stands."""
    logits_RV = torch.randn(1, 40)
    logits_RV[0, 7] = damage
    survival = NativeSurvival.under_noise(logits_RV, LevelScale(), 4, 1.0, 5, torch.arange(40))
    assert len(set(survival.columns)) == 4
    beam = Beam(1, 4)
    beam.grow(survival)
    assert beam.tree.select(4).verification_size == 4
    assert all(score <= 0 for score in beam.tree.scores)


def test_other_noise_is_asked_itself() -> None:
    """A subclass may draw otherwise: its own Gumbel values are in the scores."""

    class Favourite(NoiseStream):
        def gumbel(self, indices: object, ids_N: torch.Tensor) -> torch.Tensor:
            return (ids_N == 17).double()[None] * 50

    survival = Scorer(1.0).survival(
        torch.zeros(1, 30), 1, Favourite(0, [1]), 0, torch.arange(30), width=1, fast=True
    )
    assert survival.columns == [17]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_level_has_its_own_scale(temperature: float) -> None:
    """The last one's, where there are fewer."""
    scales = (LevelScale(1.5, 0.9), LevelScale(0.7, 0.6), LevelScale(1.0, 0.3))
    scorer, logits_RV = Scorer(temperature, scales), torch.zeros(1, 9)
    for depth, scale in enumerate((*scales, scales[-1]), start=1):
        noise = NoiseStream(7, PROMPT)
        survival = scorer.survival(logits_RV, depth, noise, 4, torch.arange(9), width=2, fast=True)
        alone = Scorer(temperature, (scale,)).log_survival(logits_RV, 1, noise, 4, torch.arange(9))
        torch.testing.assert_close(survival.row(0).double(), alone[0].double(), rtol=0, atol=1e-5)
