"""N-gram lookup: propose what followed earlier occurrences of the text's current ending.

Legend: T the target's vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from decoding.calibration import Calibration, scorer_at, with_calibration
from decoding.controller import LookupHint
from decoding.drafters.base import DraftState
from decoding.drafters.ngram_index import LONGEST_MATCH, Match, NgramIndex
from decoding.noise import NoiseStream
from decoding.scoring import HeadOpinion
from decoding.tree import DraftTree

_NO_LIMIT = 1 << 30
_MOST = {"min_match": LONGEST_MATCH, "recent": 64, "branches": 32}


@dataclass(frozen=True, slots=True)
class Continuation:
    """A token that some of the matches behind a node propose next.

    Attributes:
        token: its id.
        depth: its level in the tree, 1 = right after the text.
        match_length: of the longest of them, in tokens before the root, 1..LONGEST_MATCH.
        share: their weight over that of all matches behind the node, in (0, 1]; a match weighs its length.
        weight: theirs.
    """

    token: int
    depth: int
    match_length: int
    share: float
    weight: int


def uncalibrated(continuation: Continuation) -> float:
    """log P(this token is the target's, given that its parent is), below 0.

    Uncalibrated: the token's weight over that of all matches and 1, since the target may leave them all.
    """
    total = round(continuation.weight / continuation.share)  # exact: weights are small whole numbers
    return math.log(continuation.weight / (total + 1))


class NgramDrafter:
    """Prompt lookup (Saxena, 2023) over prompt and generated text, by every recent match of its ending.

    Args:
        min_match: shortest ending that is looked up, 1..32 tokens.
        recent: latest places that are looked at for each hashed length, 1..64.
        branches: most nodes of a level, 1..32; 1 = a chain.
        vocabulary_size: the target's; None will do where no distribution is asked for (the `coupled` rule).
        device: of the distributions, the target's.

    Raises:
        ValueError: a setting is no whole number in its range.
    """

    name = "ngram"
    fused_layers: tuple[int, ...] = ()
    draft_depth = 6
    verification_size = 6

    def __init__(
        self,
        min_match: int = 2,
        recent: int = 4,
        branches: int = 3,
        vocabulary_size: int | None = None,
        device: torch.device | None = None,
    ) -> None:
        for setting, value in (("min_match", min_match), ("recent", recent), ("branches", branches)):
            if type(value) is not int or not 1 <= value <= _MOST[setting]:
                raise ValueError(f"{setting} is {value!r}, must be a whole number in 1..{_MOST[setting]}")
        self.min_match = min_match
        self.recent = recent
        self.branches = branches
        self.vocabulary_size = vocabulary_size
        self.device = device or torch.device("cpu")
        self.calibration: Calibration | None = None

    def start(self, noise: NoiseStream, temperature: float, prompt_length: int) -> NgramState:
        return NgramState(self, noise, temperature, prompt_length)

    def fingerprint(self) -> str:
        settings = f"ngram-match{self.min_match}-recent{self.recent}-branches{self.branches}"
        return with_calibration(settings, self.calibration)


@dataclass(frozen=True, slots=True)
class _Branch:
    """A drafted path and the matches (best first) that agree with it: what a node grows from."""

    path: tuple[int, ...]
    matches: list[Match]


_Child = tuple[float, Continuation, _Branch]  # with its log survival


class NgramState(DraftState):
    """The index of one request, and a draft on top of it."""

    def __init__(
        self, drafter: NgramDrafter, noise: NoiseStream, temperature: float, prompt_length: int
    ) -> None:
        self._drafter = drafter
        self._noise = noise
        self._scorer = scorer_at(drafter.calibration, temperature)
        self._prompt_length = prompt_length
        self._index = NgramIndex(drafter.min_match, drafter.recent)
        self._matches: list[Match] | None = None
        self._tree: DraftTree | None = None
        self._frontier: list[tuple[int, _Branch]] | None = None  # nodes of the last level; None = the root
        self._next_logits_T: torch.Tensor | None = None

    def ingest(
        self,
        token_ids: Sequence[int],
        features_RF: torch.Tensor | None,
        rows: Sequence[int] | None = None,
    ) -> None:
        self._index.extend(token_ids)
        self._matches = None
        self._tree = None

    def depth_limit(self) -> int:
        return _NO_LIMIT

    @property
    def match_length(self) -> int:
        """Tokens of the longest match of the text's ending, at most LONGEST_MATCH; 0 without a match."""
        matches = self._root_matches()
        return matches[0].length if matches else 0

    def hint(self) -> LookupHint:
        matches = self._root_matches()
        if not matches:
            return LookupHint()
        return LookupHint(matches[0].length, self._children(_Branch((), matches))[0][1].share)

    def log_survival(self, continuation: Continuation, opinion: HeadOpinion | None) -> float:
        """log P(this token is the target's, given that its parent is), at most 0; `opinion`: a head's."""
        if not self._scorer.lookup:
            return uncalibrated(continuation)
        gumbel = 0.0
        if self._scorer.temperature > 0:
            index = len(self._index) - self._prompt_length + continuation.depth - 1
            gumbel = float(self._noise.gumbel([index], torch.tensor([continuation.token]))[0, 0])
        return self._scorer.log_lookup(continuation, opinion, gumbel)

    def continuations(self, path: Sequence[int]) -> list[Continuation]:
        """What the matches that agree with a drafted path propose after it, the likeliest first."""
        matches = self._root_matches()
        for depth, token in enumerate(path):
            matches = [match for match in matches if self._proposed(match, path[:depth]) == token]
        return [one for _, one, _ in self._children(_Branch(tuple(path), matches))]

    def best_chain(self, depth: int) -> list[Continuation]:
        """What follows the text by the best child at every node, at most `depth` tokens; empty without a
        match. The draft is not touched, nor need there be one."""
        chain: list[Continuation] = []
        branch = _Branch((), self._root_matches())
        while branch.matches and len(chain) < depth:
            _, continuation, branch = self._children(branch)[0]
            chain.append(continuation)
        return chain

    def begin(self) -> DraftTree:
        self._tree = DraftTree(self._index.token(len(self._index) - 1))
        self._frontier = None
        self._next_logits_T = None
        return self._tree

    def extend(self) -> bool:
        assert self._tree is not None, "extend before begin"
        scores = self._tree.scores
        grown = [
            (scores[node] + survival, node, child)
            for node, branch in self._growing()
            for survival, _, child in self._children(branch)
        ]
        # Parents come in level order and the children of one best first, which a stable sort keeps at ties.
        best = sorted(grown, key=lambda one: -one[0])[: self._drafter.branches]
        if not best:
            return False
        level = self._tree.add_level(
            [child.path[-1] for _, _, child in best],
            [node for _, node, _ in best],
            [score for score, _, _ in best],
        )
        self._frontier = [(node, child) for node, (_, _, child) in zip(level, best, strict=True)]
        return True

    def next_logits(self) -> torch.Tensor | None:
        """float32 (T): the log of the weight of each token that lookup proposes, -infinity elsewhere."""
        assert self._tree is not None, "next_logits before begin"
        size = self._drafter.vocabulary_size
        if size is None:
            raise ValueError(
                "lookup was built without a vocabulary size, so it has no distribution to draw from: use "
                "NgramDrafter(vocabulary_size=target.vocabulary_size) or load_drafter('ngram', model)"
            )
        if self._next_logits_T is None:
            growing = self._growing()
            if not growing:
                return None
            ((_, branch),) = growing
            proposed = [continuation for _, continuation, _ in self._children(branch)]
            device = self._drafter.device
            logits_T = torch.full((size,), -torch.inf, device=device)
            tokens = torch.tensor([one.token for one in proposed], device=device)
            weights = torch.tensor([one.weight for one in proposed], dtype=torch.float32, device=device)
            logits_T[tokens] = weights.log()
            self._next_logits_T = logits_T
        return self._next_logits_T

    def append(self, token_id: int, score: float) -> None:
        assert self._tree is not None, "append before begin"
        assert self._next_logits_T is not None, "append before next_logits"
        assert self._tree.size == self._tree.depth, "a chain's node on a tree that has grown by levels"
        ((node, branch),) = self._growing()
        agreeing = [match for match in branch.matches if self._proposed(match, branch.path) == token_id]
        (node,) = self._tree.add_level([token_id], [node], [score])
        self._frontier = [(node, _Branch((*branch.path, token_id), agreeing))] if agreeing else []
        self._next_logits_T = None

    def _root_matches(self) -> list[Match]:
        # Found at first use: a plain step begins a draft too and never asks.
        if self._matches is None:
            self._matches = self._index.matches()
        return self._matches

    def _growing(self) -> list[tuple[int, _Branch]]:
        """The nodes that the next level grows from, each with a match at least."""
        if self._frontier is None:
            matches = self._root_matches()
            self._frontier = [(0, _Branch((), matches))] if matches else []
        return self._frontier

    def _children(self, branch: _Branch) -> list[_Child]:
        """The branch's matches grouped by the token that each proposes next: the likelier group first, then
        the one seen more recently."""
        groups: dict[int, list[Match]] = {}
        for match in branch.matches:
            groups.setdefault(self._proposed(match, branch.path), []).append(match)
        total = sum([match.length for match in branch.matches])
        children: list[_Child] = []
        for token, matches in groups.items():
            path = (*branch.path, token)
            weight = sum([match.length for match in matches])
            continuation = Continuation(token, len(path), matches[0].length, weight / total, weight)
            children.append((self.log_survival(continuation, None), continuation, _Branch(path, matches)))
        if len(children) > 1:
            children.sort(key=lambda child: (-child[0], -max(match.place for match in child[2].matches)))
        return children

    def _proposed(self, match: Match, path: Sequence[int]) -> int:
        """The token after `path` by `match`."""
        place = match.place + len(path)
        past = place - len(self._index)
        # Past the end of the text the copy reads its own output, which continues a period.
        return path[past] if past >= 0 else self._index.token(place)
