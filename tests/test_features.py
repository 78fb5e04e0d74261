"""What a policy sees: the same numbers as a plain reading of the draft, always finite, always cheap."""

import math
import time
from collections import deque

import numpy as np
import pytest

from decoding.controller import DraftView
from decoding.features import DepthFeatures, SizeFeatures
from decoding.records import CycleRecord, PhaseSeconds
from decoding.tree import DraftTree


def record(emitted: int) -> CycleRecord:
    return CycleRecord(0, 0, (), tuple(range(emitted)), 10, PhaseSeconds(verify=1.0))


def random_view(rng: np.random.Generator, beam_width: int, depth: int) -> DraftView:
    """A draft as a beam search grows it, with a history of 0 to 4 cycles."""
    tree = DraftTree(1)
    parents = [0]
    for _ in range(depth):
        grown = [(p, tree.scores[p] - rng.exponential(2.0)) for p in parents for _ in range(beam_width)]
        level = tree.add_level([3] * len(grown), [p for p, _ in grown], [score for _, score in grown])
        parents = sorted(level, key=lambda node: -tree.scores[node])[:beam_width]
    history = deque((record(int(n)) for n in rng.integers(1, 8, size=rng.integers(0, 5))), maxlen=4)
    return DraftView(tree, 8, int(rng.integers(1, 5000)), int(rng.integers(1, 40)), history)


def plain_scores(scores: list[float], count: int) -> list[float]:
    """The definition, entry by entry: best first, held to -20, the absent at -20, all divided by 10."""
    best = sorted((max(score, -20.0) for score in scores), reverse=True)[:count]
    return [score / 10 for score in best + [-20.0] * (count - len(best))]


def plain_common(view: DraftView, max_depth: int) -> list[float]:
    emitted = [len(one.token_ids) for one in view.history]
    last = emitted[-1] if emitted else 0
    mean = sum(emitted[-4:]) / len(emitted[-4:]) if emitted else 0
    return [
        view.tree.depth / max_depth,
        (math.log2(view.context_length) - 8) / 4,
        min(1, last / (max_depth + 1)),
        min(1, mean / (max_depth + 1)),
    ]


@pytest.mark.parametrize("seed", range(40))
def test_features_are_what_the_definition_says(seed: int) -> None:
    rng = np.random.default_rng(seed)
    depth = int(rng.integers(0, 6))
    view = random_view(rng, 3, depth)
    level = [view.tree.scores[node] for node in view.tree.level(depth)] if depth else []
    left = min(1, view.tokens_left / 12)
    np.testing.assert_allclose(
        DepthFeatures(3, 5)(view), [*plain_scores(level, 9), *plain_common(view, 5), left], rtol=1e-6
    )
    np.testing.assert_allclose(
        SizeFeatures(12, 5)(view),
        [*plain_scores(view.tree.scores[1:], 12), *plain_common(view, 5)],
        rtol=1e-6,
    )


def test_a_history_of_more_than_four_cycles_counts_the_last_four() -> None:
    view = DraftView(DraftTree(1), 4, 16, 9, [record(n) for n in (7, 7, 1, 2, 3, 4)])
    features = dict(zip(DepthFeatures(1, 9).names, DepthFeatures(1, 9)(view), strict=True))
    assert features["emitted_last"] == pytest.approx(0.4)
    assert features["emitted_mean_4"] == pytest.approx(0.25)


@pytest.mark.parametrize("score", [-math.inf, math.nan, -1e300, math.inf])
@pytest.mark.parametrize("features", [DepthFeatures(2, 3), SizeFeatures(5, 3)])
def test_no_score_escapes_the_bounds(score: float, features: DepthFeatures | SizeFeatures) -> None:
    tree = DraftTree(1)
    tree.add_level([3, 4], [0, 0], [-1.0, -2.0])
    tree.scores[1] = score  # past the tree's own guard
    seen = features(DraftView(tree, 4, 1, 1 << 40, [record(500)]))
    assert np.isfinite(seen).all()
    assert (features.low <= seen).all()
    assert (seen <= features.high).all()
    # what is no number is no node, never the best one
    assert seen[0] == pytest.approx(0.0 if score > 0 else -0.2)


@pytest.mark.parametrize("features", [DepthFeatures(3, 4), SizeFeatures(20, 4)])
def test_every_view_lies_within_the_bounds(features: DepthFeatures | SizeFeatures) -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        # wider and deeper than the features expect, too
        view = random_view(rng, int(rng.integers(1, 6)), int(rng.integers(0, 7)))
        view.context_length = int(2 ** rng.uniform(0, 40))
        seen = features(view)
        assert seen.dtype == np.float32
        assert seen.shape == features.low.shape == features.high.shape == (len(features.names),)
        assert (features.low <= seen).all()
        assert (seen <= features.high).all()


def test_scores_are_read_best_first_whatever_their_order() -> None:
    tree = DraftTree(1)
    tree.add_level([3, 4, 5], [0, 0, 0], [-5.0, -1.0, -3.0])
    view = DraftView(tree, 4, 16, 9)
    np.testing.assert_allclose(DepthFeatures(2, 3)(view)[:4], [-0.1, -0.3, -0.5, -2.0], rtol=1e-6)
    np.testing.assert_allclose(SizeFeatures(2, 3)(view)[:2], [-0.1, -0.3], rtol=1e-6)


def test_two_of_the_same_shape_are_equal_and_cannot_be_changed() -> None:
    features = DepthFeatures(2, 3)
    assert features == DepthFeatures(2, 3) != DepthFeatures(2, 4)
    assert len(set(features.names)) == len(features.names) == 9
    with pytest.raises(ValueError, match="read-only"):
        features.low[0] = 7
    with pytest.raises(AttributeError):
        features.max_depth = 7  # type: ignore[misc]


@pytest.mark.parametrize("wrong", [0, -1, 2.0, True, "3", 5000])
def test_a_shape_that_cannot_be_is_named(wrong: object) -> None:
    for make in (
        lambda: DepthFeatures(wrong, 3),  # type: ignore[arg-type]
        lambda: SizeFeatures(3, wrong),  # type: ignore[arg-type]
    ):
        with pytest.raises(ValueError, match=r"is .*, must be a whole number in 1\.\.1024"):
            make()


def test_features_cost_a_few_microseconds() -> None:
    view = random_view(np.random.default_rng(0), 4, 6)  # 84 nodes
    for features in (DepthFeatures(4, 6), SizeFeatures(32, 6)):
        best = math.inf
        for _ in range(200):  # the least of many: the machine may be busy
            start = time.perf_counter()
            features(view)
            best = min(best, time.perf_counter() - start)
        assert best < 60e-6
