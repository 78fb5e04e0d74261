"""Made-up recorded texts with trees of any width and depth, right to a depth that their scores hint at, and
configurations of the published method that fit them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from configs.loading import load_config
from configs.schema import Config
from configs.section import REPO_ROOT
from decoding.profile import CostProfile
from decoding.replay_session import ReplaySession
from decoding.trace_file import TracedText
from decoding.traces import Position, followed
from decoding.tree import DraftTree
from envs.live import OpenSession
from tests.test_replay_session import profile

LTD = REPO_ROOT / "configs" / "ltd.yaml"
SMALL = (
    "draft.beam_width=2",
    "draft.max_depth=4",
    "policy.partner_depth=2",
    "policy.partner_size=4",
    "policy.size.verification_sizes=[1,2,4,8]",
    "evaluation.draft_depths=[1,2]",
)


def ltd_config(*overrides: str) -> Config:
    return load_config(LTD, overrides)


def grown(root: int, following: list[int], depth: int, width: int, rng: np.random.Generator) -> DraftTree:
    """`following` is drafted to a random level; nodes of its path score well, and siblings stand out of
    order."""
    tree, frontier, right = DraftTree(root), [0], int(rng.integers(0, depth + 1))
    for level in range(1, depth + 1):
        alive = level <= min(right, len(following))
        tokens, parents, scores = [], [], []
        for place, parent in enumerate(frontier):
            for branch in range(width):
                hit = alive and place == 0 and branch == 0
                tokens.append(following[level - 1] if hit else 30 + branch)
                parents.append(parent)
                loss = 0.1 if hit else 0.5 + rng.random() * 2
                scores.append(tree.scores[parent] - loss)
        nodes = list(tree.add_level(tokens, parents, scores))
        frontier = [nodes[0], *nodes[1:width]] if level == 1 else [nodes[0], *nodes[width : 2 * width - 1]]
    return tree


def made_up_text(seed: int, tokens: int = 24, depth: int = 4, width: int = 2) -> TracedText:
    """Of so many positions, each with a whole tree."""
    rng = np.random.default_rng(seed)
    text = [int(one) for one in rng.integers(3, 12, tokens)]
    positions = []
    for place in range(tokens):
        following = text[place : place + depth]
        tree = grown(text[place - 1] if place else 2, following, depth, width, rng)
        path = tuple(followed(tree, following))
        positions.append(Position(place, 10 + place, tree, path, tuple(following), 1.0, 1.0, None))
    return TracedText(str(seed), None, None, tuple(positions), ((),) * tokens)


def costs(max_rows: int) -> CostProfile:
    """Of `profile()`, with more rows."""
    rows = tuple(range(1, max_rows + 1))
    table = tuple((0.01 + 0.0005 * row, 0.02 + 0.0005 * row) for row in rows)
    return replace(profile(), rows=rows, verification=table)


def made_up_sessions(count: int = 3, max_rows: int = 25, **shape: Any) -> OpenSession:
    """Draws one of so many texts; their ends are far, so nothing cuts a draft."""
    texts = [made_up_text(seed, **shape) for seed in range(count)]
    known = costs(max_rows)

    def open_next(rng: np.random.Generator) -> ReplaySession:
        text = texts[int(rng.integers(count))]
        return ReplaySession(text, known, max_new_tokens=1000, draft_depth=shape.get("depth", 4))

    return open_next
