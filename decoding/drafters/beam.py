"""The draft on top of a drafter's cache: beam search over path scores, and who sees which drafted row.

Shared by the drafters that run a network: a level costs one forward over the frontier, each of whose rows
sees what is committed and its own drafted ancestors.

Legend: R rows of the frontier, K drafted cache rows up to and with theirs, V the drafter's vocabulary, W beam
width.
"""

from __future__ import annotations

import numpy as np
import torch

from decoding.noise import NoiseStream
from decoding.tree import DraftTree


def log_survival(
    logits_RV: torch.Tensor, temperature: float, noise: NoiseStream, index: int, ids_V: torch.Tensor
) -> torch.Tensor:
    """log c(v) = log softmax(z / kappa) + log a over the drafter's vocabulary, (R, V); uncalibrated, kappa =
    a = 1. float32 at temperature 0, else float64.

    z is the draft's logit at temperature 0, else logit / temperature + the noise that the target will meet at
    this position: a candidate that the noise favours is likelier to be the target's token.

    Args:
        logits_RV: of the draft, no temperature in them.
        index: of the generated token that these rows predict, 0 = the first after the prompt.
        ids_V: int64, the target's id of each column.
    """
    if temperature == 0:
        return torch.log_softmax(logits_RV.float(), dim=-1)
    noise_1V = noise.gumbel([index], ids_V)
    return torch.log_softmax(logits_RV.to(torch.float64) / temperature + noise_1V, dim=-1)


class Beam:
    """A tree below the last committed token, and its frontier: the nodes that the next level grows from.

    Args:
        root_token: the last committed token.
        width: nodes of a level that the next level grows from; each proposes as many children.

    Attributes:
        tree: the draft; at first the root alone.
        frontier: R nodes of the tree's last level, at first the root.
        parent_rows: for each of them the row of its parent in the frontier before.
    """

    def __init__(self, root_token: int, width: int) -> None:
        self.tree = DraftTree(root_token)
        self.frontier: list[int] = [0]
        self.parent_rows: list[int] = [0]
        self._width = width
        self._seen_RK = np.zeros((1, 0), dtype=bool)

    @property
    def tokens(self) -> list[int]:
        """Token ids (R) of the frontier."""
        return [self.tree.tokens[node] for node in self.frontier]

    def advance(self) -> np.ndarray:
        """Put the frontier's rows behind the drafted cache rows; return bool (R, K), which of these each row
        may attend to: its ancestors and itself. The root is no drafted row."""
        own_RR = np.eye(len(self.frontier), dtype=bool)
        self._seen_RK = np.concatenate([self._seen_RK[self.parent_rows], own_RR], axis=1)
        return self._seen_RK

    def grow(self, survival_RV: torch.Tensor, ids_V: torch.Tensor | None = None) -> None:
        """Add the frontier's best children, and make the best of the whole level the next frontier.

        Args:
            survival_RV: log survival given the parent, see `log_survival`; V >= W.
            ids_V: int64, the target's id of each column; None = the column itself.
        """
        assert len(survival_RV) == len(self.frontier), "rows and frontier differ"
        values_RW, ids_RW = survival_RV.topk(self._width, dim=-1)
        if ids_V is not None:
            ids_RW = ids_V[ids_RW]
        both = torch.stack([values_RW.to(torch.float64), ids_RW.to(torch.float64)]).cpu().numpy()
        values, ids = both[0], both[1].astype(np.int64)
        # topk promises no order at ties; a draft must not depend on one.
        order = np.lexsort((ids, -values), axis=-1)
        values, ids = np.take_along_axis(values, order, -1), np.take_along_axis(ids, order, -1)
        path = values + np.array([self.tree.scores[node] for node in self.frontier])[:, None]
        parents = np.repeat(self.frontier, self._width).tolist()
        level = self.tree.add_level(ids.ravel().tolist(), parents, path.ravel().tolist())
        scores = np.asarray(self.tree.scores[level.start :])
        best = np.sort(np.argsort(-scores, kind="stable")[: self._width])
        self.frontier = (best + level.start).tolist()
        self.parent_rows = (best // self._width).tolist()

    def append(self, token_id: int, score: float) -> None:
        """Add a chain's next node, and make it the frontier; `score` is its path score."""
        assert self.tree.size == self.tree.depth, "a chain's node on a tree that has grown by levels"
        self.frontier = list(self.tree.add_level([token_id], self.frontier, [score]))
        self.parent_rows = [0]
