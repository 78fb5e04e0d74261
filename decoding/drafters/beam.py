"""The draft on top of a drafter's cache: beam search over path scores, and who sees which drafted row.

Shared by the drafters that run a network: a level costs one forward over the frontier, each of whose rows
sees what is committed and its own drafted ancestors.

Legend: R rows of the frontier, V the drafter's vocabulary, W beam width.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from decoding.attention_mask import Mask
from decoding.survival import Survival
from decoding.tree import DraftTree


class Guest(Protocol):
    """A chain of tokens from elsewhere that is joined into the tree, a node a level.

    Attributes:
        node: index in the tree of its last joined node, at first 0, the root.
    """

    node: int

    def join(self, level: Candidates) -> int | None:
        """Add its next token to the candidates, or rescore the one that has the same token and parent; return
        its place among them, None if the chain has ended."""
        ...


@dataclass(slots=True)
class Candidates:
    """The nodes of a level before it is added to the tree, best first below each parent.

    Attributes:
        tokens, parents, scores, rows: parallel lists; `rows` is the row of the parent in the frontier, -1
            where the parent is not in it.
        frontier: nodes (R).
        tree: the tree so far.
        survival, ids: see `Beam.grow`.
    """

    tokens: list[int]
    parents: list[int]
    scores: list[float]
    rows: list[int]
    frontier: list[int]
    tree: DraftTree
    survival: Survival
    ids: Sequence[int] | None


class Beam:
    """A tree below the last committed token, and its frontier: the nodes that the next level grows from.

    Args:
        root_token: the last committed token.
        width: nodes of a level that the next level grows from; each proposes as many children.

    Attributes:
        tree: the draft; at first the root alone.
        frontier: R nodes of the tree's last level, at first the root.
        parent_rows: for each of them the row of its parent in the frontier before.
        guest: joined into every level; None = nobody.
    """

    def __init__(self, root_token: int, width: int) -> None:
        self.tree = DraftTree(root_token)
        self.frontier: list[int] = [0]
        self.parent_rows: list[int] = [0]
        self.guest: Guest | None = None
        self._grown_from: list[int] = []
        self._survival: Survival | None = None
        self._ids: Sequence[int] | None = None
        self._width = width
        self._seen: Mask = [b""]

    @property
    def tokens(self) -> list[int]:
        """Token ids (R) of the frontier."""
        return [self.tree.tokens[node] for node in self.frontier]

    def advance(self) -> Mask:
        """Put the frontier's rows behind the drafted cache rows; return which of these each row may attend
        to: its ancestors and itself. The root is no drafted row."""
        rows = len(self.frontier)
        own = [bytes(place == row for place in range(rows)) for row in range(rows)]
        self._seen = [self._seen[parent] + one for parent, one in zip(self.parent_rows, own, strict=True)]
        return self._seen

    def grow(self, survival: Survival, ids: Sequence[int] | None = None) -> None:
        """Add the frontier's best children, and make the best of the whole level the next frontier.

        Args:
            survival: of the frontier's children; its W is the beam's width.
            ids: the target's id of each column (V), ascending; None = the column itself.
        """
        assert len(survival) == len(self.frontier), "rows and frontier differ"
        self._grown_from, self._survival, self._ids = self.frontier, survival, ids
        # Lists: at these sizes a numpy call costs more than all that it would compute.
        columns, scores = survival.columns, self.tree.scores
        parents = [node for node in self.frontier for _ in range(self._width)]
        level = Candidates(
            tokens=list(columns) if ids is None else [ids[column] for column in columns],
            parents=parents,
            scores=[scores[node] + value for node, value in zip(parents, survival.values, strict=True)],
            rows=[row for row in range(len(self.frontier)) for _ in range(self._width)],
            frontier=self.frontier,
            tree=self.tree,
            survival=survival,
            ids=ids,
        )
        place = None if self.guest is None else self.guest.join(level)
        added = self.tree.add_level(level.tokens, level.parents, level.scores)
        if self.guest is not None and place is not None:
            self.guest.node = added[place]
        # Where its parent was not run, nothing can be drafted after a node.
        open_to_growth = [place for place, row in enumerate(level.rows) if row >= 0]
        open_to_growth.sort(key=lambda place: -scores[added.start + place])
        best = sorted(open_to_growth[: self._width])
        self.frontier = [added.start + place for place in best]
        self.parent_rows = [level.rows[place] for place in best]

    def row_of(self, node: int) -> torch.Tensor | None:
        """Log survival (V) after a node that the last level grew from; None if it is none of these."""
        if self._survival is None or node not in self._grown_from:
            return None
        return self._survival.row(self._grown_from.index(node))

    def column(self, token: int) -> int:
        """Where the drafter's vocabulary holds a token of the target; -1 where it does not."""
        return -1 if self._survival is None else column_of(token, self._ids, self._survival.vocabulary)

    def append(self, token_id: int, score: float) -> None:
        """Add a chain's next node, and make it the frontier; `score` is its path score."""
        assert self.tree.size == self.tree.depth, "a chain's node on a tree that has grown by levels"
        self.frontier = list(self.tree.add_level([token_id], self.frontier, [score]))
        self.parent_rows = [0]


def column_of(token: int, ids: Sequence[int] | None, size: int) -> int:
    """Place of a target's id in ascending `ids` (None = all ids below `size`); -1 if it is not there."""
    if ids is None:
        return token if token < size else -1
    column = bisect_left(ids, token)
    return column if column < len(ids) and ids[column] == token else -1
