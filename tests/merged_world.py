"""A merged draft by plain loops: every row of the head recomputed from scratch, the chain found by a search.

Legend: V the target's vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache

import numpy as np
import torch

from decoding.calibration import Calibration
from decoding.drafters.causal_lm import CausalLMDrafter
from decoding.drafters.eagle import EagleDrafter
from decoding.drafters.merged import MergedDrafter
from decoding.drafters.ngram import Continuation, NgramDrafter
from decoding.noise import NoiseStream
from decoding.scoring import LevelScale
from tests.fakes import VOCABULARY, shared_target, tiny_calibration, tiny_causal_lm, tiny_eagle, tiny_target
from tests.reference_head import ReferenceHead
from tests.test_ngram import groups, weight
from tests.test_ngram_index import reference as matches_of

PROMPT_LENGTH = 3
HEADS = ("eagle", "causal")
Opinion = tuple[float, bool]  # log c of the token, and whether it is the head's best
CALIBRATIONS = (None, tiny_calibration(shift=-1.5), tiny_calibration(shift=1.5))


@cache
def head_called(name: str, width: int) -> EagleDrafter | CausalLMDrafter:
    if name == "eagle":
        return tiny_eagle(shared_target(), beam_width=width)
    return tiny_causal_lm(tiny_target(layers=2), beam_width=width)


def merged(
    name: str, width: int = 3, lookup_depth: int = 4, calibration: Calibration | None = None
) -> MergedDrafter:
    """A drafter for `shared_target()`; its head is shared, so only the latest one's calibration counts."""
    head = head_called(name, width)
    head.calibration = calibration
    return MergedDrafter(head, NgramDrafter(1, vocabulary_size=VOCABULARY), lookup_depth)


def random_text(rng: np.random.Generator) -> list[int]:
    """Of few tokens, so that a lookup finds something; the EAGLE head cannot draft those below 10."""
    pool = rng.choice(VOCABULARY, int(rng.integers(2, 6)), replace=False)
    return [int(token) for token in rng.choice(pool, int(rng.integers(5, 17)))]


@cache
def features_of(text: tuple[int, ...]) -> torch.Tensor:
    head_called("eagle", 3)  # makes the target capture
    features = shared_target().forward(list(text), shared_target().new_cache()).features_RF
    assert features is not None
    return features


@cache
def reference_of(head: EagleDrafter) -> ReferenceHead:
    return ReferenceHead(head.head, head.embeddings)


@dataclass
class World:
    """One root: the text so far, the head's settings, the scores' settings."""

    text: list[int]
    drafter: MergedDrafter
    temperature: float
    noise: NoiseStream = field(init=False)

    def __post_init__(self) -> None:
        self.noise = NoiseStream(0, self.text[:PROMPT_LENGTH])

    def _gumbel(self, depth: int) -> np.ndarray:
        index = len(self.text) - PROMPT_LENGTH + depth - 1
        found: np.ndarray = self.noise.gumbel([index], torch.arange(VOCABULARY))[0].numpy()
        return found

    def _logits(self, path: Sequence[int]) -> np.ndarray:
        """(V) after text and path, -infinity where the head drafts nothing."""
        head = self.drafter.head
        logits_V = np.full(VOCABULARY, -np.inf)
        if isinstance(head, EagleDrafter):
            reference = reference_of(head)
            features = features_of(tuple(self.text))[: len(self.text) - 1].numpy()
            state = reference.states(self.text[1:], features, path)[-1]
            logits_V[head.target_ids_V] = reference.logits(state)
        else:
            ids = torch.tensor([[*self.text, *path]])
            with torch.inference_mode():
                logits_V[:] = head.model.model(input_ids=ids, use_cache=False).logits[0, -1].numpy()
        return logits_V

    def survival(self, path: Sequence[int]) -> np.ndarray:
        """log c (V) of the tokens after a drafted path."""
        depth, calibration = len(path) + 1, self.drafter.calibration
        scale = LevelScale()
        if calibration is not None:
            fit = next(fit for fit in calibration.fits if fit.temperature == self.temperature)
            scale = fit.levels[min(depth, len(fit.levels)) - 1]
        z_V = self._logits(path)
        if self.temperature:
            z_V = z_V / self.temperature + self._gumbel(depth)
        z_V = z_V / scale.kappa
        total = np.log(np.exp(z_V - z_V.max()).sum()) + z_V.max()
        survival_V: np.ndarray = z_V - total + math.log(scale.a)
        return survival_V

    def looked(self, one: Continuation, opinion: Opinion | None) -> float:
        """log survival of a looked-up token."""
        calibration = self.drafter.calibration
        if calibration is None:
            return math.log(one.weight / (one.weight / one.share + 1))
        fit = next(fit for fit in calibration.fits if fit.temperature == self.temperature)
        noise = self._gumbel(one.depth)[one.token] if self.temperature else 0.0
        x = np.dot(
            fit.lookup[:6],
            [1, math.log2(one.match_length), one.share, one.depth / 4, one.depth == 1, np.clip(noise, -2, 6)],
        )
        if opinion is not None:
            c = math.exp(opinion[0])
            logit = -6.0 if c < 1e-4 else np.clip(math.log(c / (1 - c)), -6, 6)
            x += np.dot(fit.lookup[6:], [1, opinion[1], logit])
        return math.log(1 / (1 + math.exp(-x)))

    def chain(self) -> list[Continuation]:
        """The best child of every node, by plain search."""
        lookup = self.drafter.lookup
        matches = matches_of(self.text, lookup.min_match, lookup.recent)
        found: list[Continuation] = []
        while matches and len(found) < self.drafter.lookup_depth:
            options = []
            for token, group in groups(self.text, [one.token for one in found], matches).items():
                share, longest = weight(group) / weight(matches), max(match.length for match in group)
                one = Continuation(token, len(found) + 1, longest, share, weight(group))
                latest = max(match.place for match in group)
                options.append((self.looked(one, None), latest, one, group))
            _, _, one, matches = max(options, key=lambda option: option[:2])
            found.append(one)
        return found


@dataclass
class HandTree:
    """Parallel lists over nodes, node 0 the root.

    Attributes:
        fates: of the chain's tokens, in order: shared, beside, unheld (beside, the head cannot draft it),
            cold (its parent was not run) or below (the last drafted level).
        grown: nodes that the head drafted on from.
    """

    tokens: list[int]
    parents: list[int] = field(default_factory=lambda: [-1])
    scores: list[float] = field(default_factory=lambda: [0.0])
    depths: list[int] = field(default_factory=lambda: [0])
    fates: list[str] = field(default_factory=list)
    grown: set[int] = field(default_factory=set)

    def path(self, node: int) -> list[int]:
        return [*self.path(self.parents[node]), self.tokens[node]] if node else []

    def add(self, token: int, parent: int, score: float) -> int:
        self.tokens.append(token)
        self.parents.append(parent)
        self.scores.append(min(score, self.scores[parent]))
        self.depths.append(self.depths[parent] + 1)
        return len(self.tokens) - 1


def tree_by_hand(world: World, levels: int, limit: int, chain: Sequence[Continuation] = ()) -> HandTree:
    """The head's levels with the chain joined, then what is left of it, to at most `limit` levels."""
    tree, width = HandTree(world.text[-1:]), world.drafter.head.beam_width
    rows: Callable[[int], np.ndarray] = cache(lambda node: world.survival(tree.path(node)))
    frontier, joined, left = [0], 0, list(chain)
    for _ in range(levels):
        start = len(tree.tokens)
        looked = left.pop(0) if left else None
        added = None
        tree.grown |= set(frontier)
        for node in frontier:
            best = np.argsort(-rows(node), kind="stable")[:width]
            for token in map(int, best):
                score = rows(node)[token]
                if looked is not None and (node, token) == (joined, looked.token):
                    score = world.looked(looked, (rows(node)[token], token == best[0]))
                    added = len(tree.tokens)
                    tree.fates.append("shared")
                tree.add(token, node, tree.scores[node] + score)
        if looked is not None:
            if added is None:
                opinion, fate = None, "cold"
                if joined in frontier:
                    c = float(rows(joined)[looked.token])
                    opinion, fate = (c, False), "beside" if c > -math.inf else "unheld"
                added = tree.add(looked.token, joined, tree.scores[joined] + world.looked(looked, opinion))
                tree.fates.append(fate)
            joined = added
        open_to = [node for node in range(start, len(tree.tokens)) if tree.parents[node] in frontier]
        frontier = sorted(sorted(open_to, key=lambda node: (-tree.scores[node], node))[:width])
    for looked in left[: max(0, limit - levels)]:
        joined = tree.add(looked.token, joined, tree.scores[joined] + world.looked(looked, None))
        tree.fates.append("below")
    return tree
