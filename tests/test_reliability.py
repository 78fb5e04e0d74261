"""What scores promised beside what came of it: by hand, and against a plain loop."""

from __future__ import annotations

import io
import math

import numpy as np
import pytest
from rich.console import Console

from decoding.traces import Position
from decoding.tree import DraftTree
from evaluation.reliability import Bin, accepted_lengths, node_predictions, reliability
from evaluation.reliability_table import SHOWN, look_at, print_looks


def position(path: tuple[int, ...], following: tuple[int, ...]) -> Position:
    """Below the root 5 (.5) and 6 (.25); below 5 again 7 (.4 in all) and 8 (.1); below 7 then 9 (.3)."""
    tree = DraftTree(4)
    tree.add_level([5, 6], [0, 0], [math.log(0.5), math.log(0.25)])
    tree.add_level([7, 8], [1, 1], [math.log(0.4), math.log(0.1)])
    tree.add_level([9], [3], [math.log(0.3)])
    return Position(0, 9, tree, path, following, math.nan, math.nan, None)


def test_bins_error_and_loss_by_hand() -> None:
    predicted, happened = np.array([0.05, 0.15, 0.95, 1.0]), np.array([0.0, 1.0, 1.0, 1.0])
    found = reliability(predicted, happened)
    assert [(one.low, one.high, one.count) for one in found.bins] == [
        (pytest.approx(low), pytest.approx(high), count)
        for low, high, count in ((0.0, 0.1, 1), (0.1, 0.2, 1), (0.9, 1.0, 2))
    ]
    assert [one.predicted for one in found.bins] == pytest.approx([0.05, 0.15, 0.975])
    assert [one.happened for one in found.bins] == [0, 1, 1]
    assert found.error == pytest.approx((0.05 + 0.85 + 2 * 0.025) / 4)
    assert found.log_loss == pytest.approx(-(math.log(0.95) + math.log(0.15) + math.log(0.95)) / 4, abs=1e-8)
    assert found.count == 4


def test_a_certainty_that_fails_costs_much_but_not_everything() -> None:
    found = reliability(np.array([1.0, 0.0]), np.array([0.0, 1.0]), bins=2)
    assert found.log_loss == pytest.approx(-math.log(1e-9), rel=1e-6)
    assert found.error == 1
    assert found.bins == (Bin(0.0, 0.5, 1, 0.0, 1.0), Bin(0.5, 1.0, 1, 1.0, 0.0))
    with pytest.raises(ValueError, match="no predictions"):
        reliability(np.array([]), np.array([]))


def test_nodes_below_the_end_of_the_text_say_nothing() -> None:
    whole, cut, short = position((1, 3), (5, 7, 2)), position((1,), (5, 9)), position((), (6,))
    predicted, happened = node_predictions([whole, cut, short])
    assert predicted.tolist() == pytest.approx([0.5, 0.25, 0.4, 0.1, 0.3, 0.5, 0.25, 0.4, 0.1, 0.5, 0.25])
    assert happened.tolist() == [1, 0, 1, 0, 0, 1, 0, 0, 0, 0, 0]


@pytest.mark.parametrize(
    ("depth", "size", "expected", "realised"),
    [
        (1, 1, 0.5, 2 / 3),
        (1, 4, 0.75, 2 / 3),
        (2, 2, 0.9, 1),
        (3, 3, 1.2, 1),
        (9, 9, 1.55, 1),  # no deeper than the tree
    ],
)
def test_accepted_lengths_by_hand(depth: int, size: int, expected: float, realised: float) -> None:
    """The fourth text ends too soon to tell of 2 levels; the third followed nothing of the draft."""
    positions = [position((1, 3), (5, 7, 2)), position((1,), (5, 9, 3)), position((), (7, 7, 7))]
    found = accepted_lengths([*positions, position((), ())], depth, size)
    assert found == pytest.approx((expected, realised))
    with pytest.raises(ValueError, match="no position is followed by 2 tokens"):
        accepted_lengths([position((), ())], 2, 1)


def test_a_realised_length_is_cut_by_the_size() -> None:
    """The text takes 6, which is second: among one node it is not."""
    assert accepted_lengths([position((2,), (6, 3, 3))], 1, 1) == pytest.approx((0.5, 0))
    assert accepted_lengths([position((2,), (6, 3, 3))], 1, 2) == pytest.approx((0.75, 1))


def test_a_look_leaves_out_what_no_text_tells() -> None:
    """A tree of three levels has no lengths at depth 4 and 6; a row has the rest."""
    look = look_at("after", 0.5, [position((1, 3), (5, 7, 2))])
    assert [(depth, size) for depth, size, *_ in look.lengths] == [one for one in SHOWN if one[0] <= 3]
    assert look.lengths[0][2:] == pytest.approx((0.75, 1.0))
    console = Console(width=120, file=io.StringIO())
    print_looks([look], console)
    said = console.file.getvalue()  # type: ignore[attr-defined]
    assert "0.75/1.00" in said
    assert said.count("0.5 ") == 1
