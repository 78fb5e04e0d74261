"""How sure a drafter was of a level, read from the tree's path scores: one source for decoding and replay.

A controller sees the same tree in both, so nothing else has to be kept, and who does not ask pays nothing. A
recording's own entropies (`decoding.trace_file.LevelCertainty`) are no such source: they are of the parents
that the text followed to, and one that is missing would tell a rule that the text has left the draft.

A *row* is what is known of the tokens after one parent: the survivals of the children that were drafted,
each given that the parent survived, and what they leave of 1, which counts as one token more. Scores are
calibrated where the drafter is, and hold the noise at temperatures above 0, as every other arm's do.
"""

from __future__ import annotations

import math

from decoding.tree import DraftTree


def best_node(tree: DraftTree, depth: int) -> int:
    """Of level `depth` >= 1 the node with the best path score; of equals the first."""
    return max(tree.level(depth), key=tree.scores.__getitem__)


def confidence(tree: DraftTree, depth: int) -> float:
    """Survival, 0..1, of the level's best node, given that its parent survived."""
    return _survival(tree, best_node(tree, depth))


def entropy(tree: DraftTree, depth: int) -> float:
    """Of the row of the level's best node, in nats; infinite if nothing in it can survive.

    At most the entropy of the drafter's whole distribution there, and below it by no more than the rest's
    share times the log of the tokens that were not drafted.
    """
    parent = tree.parents[best_node(tree, depth)]
    row = [_survival(tree, node) for node in tree.level(depth) if tree.parents[node] == parent]
    drafted = sum(row)
    if not drafted > 0:
        return math.inf
    return -sum([share * math.log(share) for share in (*row, 1.0 - drafted) if share > 0])


def _survival(tree: DraftTree, node: int) -> float:
    score = tree.scores[node]
    return 0.0 if score == -math.inf else math.exp(score - tree.scores[tree.parents[node]])
