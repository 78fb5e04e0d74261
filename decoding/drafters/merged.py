"""A lookup's chain joined into a head's tree: one draft of both.

`draft_depth` counts the head's levels. A looked-up token that the head proposes too, after the same parent,
is one node; one that it does not propose stands beside the head's candidates, and the head drafts on after it
where its score is among the best. What is left of the chain below the head's last level is joined when the
draft is finished: it costs no draft work.

Legend: R rows of a level's parents, V the drafter's vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch

from decoding.controller import LookupHint, RootChoice
from decoding.drafters.base import DraftState
from decoding.drafters.beam import Beam, Candidates, column_of
from decoding.drafters.causal_lm import CausalLMState
from decoding.drafters.eagle import EagleState
from decoding.drafters.ngram import Continuation, NgramDrafter, NgramState
from decoding.drafters.with_lookup import BeamDrafter, HeadWithLookup
from decoding.noise import NoiseStream
from decoding.scoring import HeadOpinion
from decoding.tree import DraftTree


class MergedDrafter(HeadWithLookup):
    """A head, or a smaller language model, with a lookup joined to it.

    Args:
        head: drafts the tree.
        lookup: finds the chain; it takes the head's calibration.
        lookup_depth: most tokens of the chain, >= 1.
        name: for reports.
    """

    def __init__(
        self, head: BeamDrafter, lookup: NgramDrafter, lookup_depth: int = 6, name: str = "merged"
    ) -> None:
        if type(lookup_depth) is not int or not 1 <= lookup_depth <= 64:
            raise ValueError(f"lookup_depth is {lookup_depth!r}, must be a whole number in 1..64")
        super().__init__(head, lookup, name)
        self.lookup_depth = lookup_depth
        self.verification_size = max(head.verification_size, lookup_depth)

    def start(self, noise: NoiseStream, temperature: float, prompt_length: int) -> MergedState:
        head, lookup = (part.start(noise, temperature, prompt_length) for part in (self.head, self.lookup))
        assert isinstance(head, EagleState | CausalLMState)
        assert isinstance(lookup, NgramState)
        return MergedState(head, lookup, self.lookup_depth)

    def fingerprint(self) -> str:
        return f"merged-{self.lookup_depth}-{self.lookup.fingerprint()}-{self.head.fingerprint()}"


class MergedState(DraftState):
    """One request. Under the `rejection` rule, which drafts chains, the head drafts alone."""

    root_choices = tuple(RootChoice)

    def __init__(self, head: EagleState | CausalLMState, lookup: NgramState, lookup_depth: int) -> None:
        self._head = head
        self._lookup = lookup
        self._lookup_depth = lookup_depth
        self._chain: JoinedChain | None = None
        self._choice = RootChoice.ALL
        self._agrees: bool | None = None

    def ingest(
        self,
        token_ids: Sequence[int],
        features_RF: torch.Tensor | None,
        rows: Sequence[int] | None = None,
    ) -> None:
        self._head.ingest(token_ids, features_RF, rows)
        self._lookup.ingest(token_ids, features_RF, rows)

    def depth_limit(self) -> int:
        # The chain goes on where the head cannot: past a small model's context, after ids that it lacks.
        return (self._lookup if self._lookup.match_length else self._head).depth_limit()

    def begin(self) -> DraftTree:
        tree = self._head.begin()
        self._chain = JoinedChain(self._lookup, self._lookup.best_chain(self._lookup_depth))
        self._agrees = None
        self.choose(RootChoice.ALL)
        return tree

    def choose(self, choice: RootChoice) -> None:
        assert self._head.beam is not None, "choose before begin"
        self._choice = choice
        self._head.beam.guest = self._chain if choice == RootChoice.ALL else None

    @property
    def chain(self) -> JoinedChain | None:
        """What is joined to the draft that was begun last; None where it is of one part alone."""
        return self._chain if self._choice == RootChoice.ALL else None

    @property
    def beam(self) -> Beam | None:
        """The head's."""
        return self._head.beam

    def extend(self) -> bool:
        if not self._head.extend():
            return False
        assert self._head.beam is not None, "extend before begin"
        assert self._chain is not None, "extend before begin"
        tree, first = self._head.beam.tree, self._chain.first
        if tree.depth == 1 and first is not None:
            self._agrees = tree.tokens[1] == first  # the head's best child of the root is node 1
        return True

    def finish(self, limit: int) -> None:
        assert self._head.beam is not None, "finish before begin"
        assert self._chain is not None, "finish before begin"
        tree = self._head.beam.tree
        if self._choice == RootChoice.ALL:
            self._chain.join_rest(tree, limit)
        elif self._choice == RootChoice.LOOKUP:
            looked = self._lookup.begin()
            while looked.depth < min(limit, self._lookup_depth) and self._lookup.extend():
                level = slice(looked.level_starts[-1], None)
                tree.add_level(looked.tokens[level], looked.parents[level], looked.scores[level], joined=True)

    def hint(self) -> LookupHint:
        return replace(self._lookup.hint(), agrees=self._agrees)

    def next_logits(self) -> torch.Tensor | None:
        return self._head.next_logits()

    def append(self, token_id: int, score: float) -> None:
        self._head.append(token_id, score)


class JoinedChain:
    """The guest of a head's beam: what a lookup proposes, token by token.

    Attributes:
        nodes: in the tree, of its tokens that have been joined, in order; `node`: see `Guest`.
        first: its first token; None if it is empty.
    """

    def __init__(self, lookup: NgramState, chain: list[Continuation]) -> None:
        self.nodes: list[int] = []
        self.first = chain[0].token if chain else None
        self._lookup = lookup
        self._chain = chain
        self._joined = 0

    @property
    def node(self) -> int:
        return self.nodes[-1] if self.nodes else 0

    @node.setter
    def node(self, node: int) -> None:
        self.nodes.append(node)

    def tokens(self) -> tuple[int, ...]:
        """All of it, joined or not."""
        return tuple(looked.token for looked in self._chain)

    def log_survivals(self) -> tuple[float, ...]:
        """Of each token after the one before, where no head was asked."""
        return tuple(self._lookup.log_survival(looked, None) for looked in self._chain)

    def join(self, level: Candidates) -> int | None:
        if self._joined == len(self._chain):
            return None
        looked = self._chain[self._joined]
        self._joined += 1
        row = level.frontier.index(self.node) if self.node in level.frontier else -1
        opinion = None if row < 0 else _opinion(level, row, looked.token)
        score = level.tree.scores[self.node] + self._lookup.log_survival(looked, opinion)
        for place, (token, parent) in enumerate(zip(level.tokens, level.parents, strict=True)):
            if token == looked.token and parent == self.node:
                level.scores[place] = score
                return place
        level.tokens.append(looked.token)
        level.parents.append(self.node)
        level.scores.append(score)
        level.rows.append(row)
        return len(level.tokens) - 1

    def join_rest(self, tree: DraftTree, limit: int) -> None:
        """Add what is left below the last level, to at most `limit` levels in all."""
        for looked in self._chain[self._joined : limit]:
            score = tree.scores[self.node] + self._lookup.log_survival(looked, None)
            self.nodes += tree.add_level([looked.token], [self.node], [score], joined=True)
            self._joined += 1


def _opinion(level: Candidates, row: int, token: int) -> HeadOpinion:
    """What the head thinks of a token after the node of a row."""
    column = column_of(token, level.ids, level.survival.vocabulary)
    log_c = level.survival.value(row, column) if column >= 0 else -math.inf
    return HeadOpinion(log_c, best=level.tokens[level.rows.index(row)] == token)
