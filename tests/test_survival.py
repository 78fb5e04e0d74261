"""The best tokens of a level in torch and in native code: the same order, ties and faults included."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from decoding import native
from decoding.noise import NoiseStream
from decoding.sampling import largest_of_rows
from decoding.scoring import LevelScale, Scorer
from decoding.survival import NativeSurvival, TensorSurvival

LIBRARY = native.library()
# Few values, so that ties are common; sizes on both sides of a vector's.
LOGITS = st.integers(1, 70).flatmap(
    lambda n: st.lists(
        st.lists(st.sampled_from([-3.0, -1.5, 0.0, 0.25, 2.0, 7.5]), min_size=n, max_size=n),
        min_size=1,
        max_size=4,
    )
)
ODD = st.lists(
    st.sampled_from([-math.inf, math.inf, math.nan, 0.0, 1.0, 1.0, -2.0, 2.0**127, -(2.0**127)]),
    min_size=1,
    max_size=40,
)


def reference(logits: list[float], kappa: float, a: float, width: int) -> tuple[list[int], list[float]]:
    """Columns of the best, lower ones first among equals, and their log c."""
    z = np.array(logits) / kappa
    log_c = z - np.logaddexp.reduce(z) + math.log(a)
    order = sorted(range(len(logits)), key=lambda column: (-logits[column], column))[:width]
    return order, log_c[order].tolist()


@given(
    rows=LOGITS,
    kappa=st.sampled_from([0.5, 1.0, 1.7]),
    a=st.sampled_from([1.0, 0.8]),
    fast=st.booleans(),
    data=st.data(),
)
def test_best_tokens_and_their_values(
    rows: list[list[float]], kappa: float, a: float, fast: bool, data: st.DataObject
) -> None:
    width = data.draw(st.integers(1, min(6, len(rows[0]))))
    logits_RV = torch.tensor(rows)
    scorer = Scorer(0.0, (LevelScale(kappa, a),))
    ids_V = torch.arange(logits_RV.shape[1])
    survival = scorer.survival(logits_RV, 1, NoiseStream(0, [1]), 0, ids_V, width=width, fast=fast)
    assert type(survival) is (NativeSurvival if fast else TensorSurvival)
    assert len(survival) == len(rows)
    assert survival.vocabulary == len(rows[0])
    for row, logits in enumerate(rows):
        columns, values = reference(logits, kappa, a, width)
        mine = slice(row * width, (row + 1) * width)
        found = survival.columns[mine]
        # Which of equals makes it into the W best is torch's to choose; the order among those is not.
        assert found == (columns if fast else sorted(found, key=lambda place: (-logits[place], place)))
        np.testing.assert_allclose(survival.values[mine], values, rtol=1e-5, atol=1e-5)
        whole = survival.row(row)
        assert whole.exp().sum().item() == pytest.approx(a, rel=1e-5)
        for column, value in zip(found, survival.values[mine], strict=True):
            # To the bit: a node's score and the row that a trace keeps are one number.
            assert survival.value(row, column) == value == float(whole[column])


def test_rows_may_be_padded() -> None:
    """Logits of native code are a view of wider rows; what lies in the padding is nobody's token."""
    wide_RV = torch.tensor([[1.0, 2.0, 9.0], [4.0, 3.0, 9.0]])
    survival = NativeSurvival.of(wide_RV[:, :2], LevelScale(), 1)
    assert survival.columns == [1, 0]
    assert survival.values == pytest.approx([-math.log1p(math.exp(-1))] * 2, rel=1e-6)
    assert largest_of_rows(wide_RV[:, :2]) == ([2.0, 4.0], [1, 0])


@given(logits=ODD)
def test_damaged_logits_give_a_level_all_the_same(logits: list[float]) -> None:
    """As many distinct columns as asked for; scores that are no numbers are the tree's to deal with."""
    width = min(4, len(logits))
    survival = NativeSurvival.of(torch.tensor([logits]), LevelScale(), width)
    assert len(set(survival.columns)) == width
    assert all(0 <= column < len(logits) for column in survival.columns)
    expected = torch.tensor(logits).double().log_softmax(dim=-1)
    if bool(expected.isnan().any()):
        assert np.isnan(survival.values).all()
    else:
        best = expected.sort(descending=True).values[:width]
        best[best < -(2.0**127)] = -torch.inf  # no fp32 number
        np.testing.assert_allclose(survival.values, best, rtol=1e-5, atol=1e-5)


@example(rows=[[1.0, math.nan, 0.5]])
@example(rows=[[0.5] * 18 + [math.nan]])
@example(rows=[[-math.inf] * 5])
@given(rows=st.one_of(LOGITS, ODD.map(lambda row: [row])))
def test_the_largest_of_a_row_is_torchs(rows: list[list[float]]) -> None:
    """Lowest place at ties; a NaN anywhere is the value, since no token follows from such a row."""
    logits_RV = torch.tensor(rows)
    values, places = largest_of_rows(logits_RV)
    for row, value, place in zip(rows, values, places, strict=True):
        if any(math.isnan(x) for x in row):
            assert math.isnan(value)
        else:
            assert value == max(row) == row[place]
            assert max(row) not in row[:place]
    doubled = largest_of_rows(logits_RV.double())
    np.testing.assert_array_equal(doubled[0], values)


def test_the_first_of_many_equals_is_the_largest() -> None:
    """Far apart, in blocks that are searched one after the other; and all of them the same."""
    logits_RV = torch.zeros(3, 1500)
    logits_RV[0, [700, 1400]] = 5
    logits_RV[1, [3, 1499]] = 5
    assert largest_of_rows(logits_RV) == ([5.0, 5.0, 0.0], [700, 3, 0])
