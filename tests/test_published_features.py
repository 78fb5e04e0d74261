"""What the published method's policies see: that and nothing else, in training and in decoding alike."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from decoding.controller import DraftView
from decoding.exported import PolicyInfo
from decoding.features import DepthFeatures, SizeFeatures
from decoding.published_features import PublishedDepthFeatures, PublishedSizeFeatures, drafted_nodes
from decoding.tree import DraftTree
from tests.fake_policies import INFO
from tests.test_features import random_view, record

DEPTH, SIZE = PublishedDepthFeatures(3, 4), PublishedSizeFeatures(drafted_nodes(3, 4), 4)


@pytest.mark.parametrize("seed", range(20))
def test_they_are_log_probabilities_depth_and_length(seed: int) -> None:
    rng = np.random.default_rng(seed)
    view = random_view(rng, 3, int(rng.integers(1, 5)))
    tree, tail = view.tree, [view.tree.depth / 10, view.context_length / 1000]
    level = [tree.scores[node] for node in tree.level(tree.depth)]
    np.testing.assert_allclose(DEPTH(view), [*level, *[0] * (9 - len(level)), *tail], rtol=1e-6)
    whole = tree.scores[1:]
    np.testing.assert_allclose(SIZE(view), [*whole, *[0] * (30 - len(whole)), *tail], rtol=1e-6)


def test_nothing_else_is_seen() -> None:
    rng = np.random.default_rng(0)
    view = random_view(rng, 3, 2)
    other = replace(view, tokens_left=1, history=[record(7)], depth_limit=2)
    assert DEPTH(view).tolist() == DEPTH(other).tolist()
    assert SIZE(view).tolist() == SIZE(other).tolist()
    assert DepthFeatures(3, 4)(view).tolist() != DepthFeatures(3, 4)(other).tolist()
    longer = replace(view, context_length=view.context_length + 1)
    for features in (DEPTH, SIZE):
        moved = np.flatnonzero(features(longer) != features(view))
        assert [features.names[place] for place in moved] == ["context_length_thousands"]


@pytest.mark.parametrize("depth", [1, 3])
@pytest.mark.parametrize("width", [1, 2, 10])
def test_a_whole_draft_fits(width: int, depth: int) -> None:
    view = random_view(np.random.default_rng(0), width, depth)
    assert view.tree.size == drafted_nodes(width, depth)
    features = PublishedSizeFeatures(drafted_nodes(width, depth), depth)
    assert features(view)[-3] == np.float32(view.tree.scores[-1])


def test_the_published_shape() -> None:
    assert len(PublishedDepthFeatures(10, 12).names) == 100 + 2
    assert len(PublishedSizeFeatures(drafted_nodes(10, 12), 12).names) == 10 + 11 * 100 + 2


@pytest.mark.parametrize("score", [-math.inf, math.nan, -1e300, math.inf])
def test_no_score_escapes_the_bounds(score: float) -> None:
    tree = DraftTree(1)
    tree.add_level([3, 4], [0, 0], [-1.0, -2.0])
    tree.scores[1] = score
    for features in (DEPTH, SIZE):
        seen = features(DraftView(tree, 4, 1 << 40, 9))
        assert seen.dtype == np.float32
        assert ((features.low <= seen) & (seen <= features.high)).all()
        assert seen[0] == (0.0 if score > 0 else -1000.0)


def test_a_policy_says_by_names_which_it_sees() -> None:
    info = replace(INFO, depth_features=DEPTH, size_features=SIZE)
    raw = json.loads(json.dumps(info.to_json()))
    back = PolicyInfo.from_json(raw)
    assert back == info
    assert type(back.depth_features) is PublishedDepthFeatures
    assert type(back.size_features) is PublishedSizeFeatures
    assert PolicyInfo.from_json(INFO.to_json()).depth_features == DepthFeatures(3, 4)
    assert DepthFeatures(3, 4) != DEPTH
    assert SizeFeatures(30, 4) != SIZE
    raw["features"]["depth"]["names"][-1] = "length"
    with pytest.raises(ValueError, match="depth features are not those"):
        PolicyInfo.from_json(raw)
