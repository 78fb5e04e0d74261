"""The draft tree: nodes in level order with path scores, and the selection of those that are verified.

Legend: N nodes with the root as node 0, S selected nodes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Selection:
    """What the target verifies: rows in level order, row 0 the root.

    Attributes:
        tokens: ids of the rows; the root's is the last committed token.
        parents: the row of each row's parent, -1 for the root.
        depths: 0 for the root.
    """

    tokens: list[int]
    parents: list[int]
    depths: list[int]

    @classmethod
    def of(cls, tokens: list[int], parents: Sequence[int]) -> Selection:
        """Rows in an order in which parents come first."""
        depths = [0] * len(tokens)
        for row, parent in enumerate(parents[1:], start=1):
            depths[row] = depths[parent] + 1
        return cls(tokens, list(parents), depths)

    @property
    def verification_size(self) -> int:
        return len(self.tokens) - 1


class DraftTree:
    """A tree below the last committed token. Node 0 is the root, with path score 0.

    Attributes:
        tokens, parents, depths, scores: parallel lists over nodes; `scores` are path scores, estimates of
            log P(node is on the accepted path), never above the parent's.
        level_starts: index of the first node of each level; level d is `level_starts[d]` onwards.
        depth: levels drafted below the root: `draft_depth`. Those that were joined to a finished draft, which
            cost no draft work, lie below and are not counted.
    """

    def __init__(self, root_token: int) -> None:
        self.tokens: list[int] = [root_token]
        self.parents: list[int] = [-1]
        self.depths: list[int] = [0]
        self.scores: list[float] = [0.0]
        self.level_starts: list[int] = [0]
        self.depth = 0

    @property
    def height(self) -> int:
        """All levels below the root."""
        return len(self.level_starts) - 1

    @property
    def size(self) -> int:
        """Drafted nodes, root excluded."""
        return len(self.tokens) - 1

    def add_level(
        self,
        tokens: Sequence[int],
        parents: Sequence[int],
        scores: Sequence[float],
        joined: bool = False,
    ) -> range:
        """Append one level; return its node indices. Scores are held to the parent's, and NaN (a drafter at
        fault) becomes -infinity: a bad score may cost speed, never the tree.

        `joined`: it was not drafted, but joined to a finished draft; see `depth`.
        """
        start, depth = len(self.tokens), self.height + 1
        for parent, score in zip(parents, scores, strict=True):
            if self.depths[parent] != depth - 1:
                raise ValueError(f"node {parent} is at depth {self.depths[parent]}, not at {depth - 1}")
            self.scores.append(min(score, self.scores[parent]) if score == score else -math.inf)
        self.tokens.extend(tokens)
        self.parents.extend(parents)
        self.depths.extend([depth] * len(tokens))
        self.level_starts.append(start)
        self.depth += not joined
        return range(start, len(self.tokens))

    def upto(self, height: int) -> DraftTree:
        """A copy of the first levels; those that were joined to the finished draft stay joined ones."""
        tree = DraftTree(self.tokens[0])
        levels = max(0, min(height, self.height))
        stop = len(self.tokens) if levels == self.height else self.level_starts[levels + 1]
        tree.tokens, tree.parents = self.tokens[:stop], self.parents[:stop]
        tree.depths, tree.scores = self.depths[:stop], self.scores[:stop]
        tree.level_starts = self.level_starts[: levels + 1]
        tree.depth = min(levels, self.depth)
        return tree

    def level(self, depth: int) -> range:
        """Node indices of level `depth`, 0 = the root alone."""
        ends = [*self.level_starts[1:], len(self.tokens)]
        return range(self.level_starts[depth], ends[depth])

    def ranked(self) -> list[int]:
        """Drafted nodes, best path score first, equal scores in level order."""
        return sorted(range(1, len(self.tokens)), key=self.scores.__getitem__, reverse=True)

    def select(self, size: int) -> Selection:
        """Keep the `size` best nodes (all, if fewer). Since no score exceeds its parent's and the order is
        stable, a node's parent always ranks above it: the selection is a tree."""
        if size < 0:
            raise ValueError(f"verification_size is {size}, must be >= 0")
        nodes = [0, *sorted(self.ranked()[:size])]
        row_of = {node: row for row, node in enumerate(nodes)}
        parents = [row_of[self.parents[node]] if node else -1 for node in nodes]
        return Selection.of([self.tokens[node] for node in nodes], parents)
