"""A lookup where the text's ending has occurred before, else a head: one of the two drafts a whole cycle."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from decoding.controller import LookupHint
from decoding.drafters.base import DraftState
from decoding.drafters.ngram import NgramDrafter, NgramState
from decoding.drafters.with_lookup import BeamDrafter, HeadWithLookup
from decoding.noise import NoiseStream
from decoding.tree import DraftTree


class CompositeDrafter(HeadWithLookup):
    """The lookup drafts on a match of its `min_match` tokens or more, else the head.

    Args:
        head: drafts where nothing matches.
        lookup: its `min_match` decides; it takes the head's calibration.
        name: for reports.
    """

    def __init__(self, head: BeamDrafter, lookup: NgramDrafter, name: str = "composite") -> None:
        super().__init__(head, lookup, name)
        self.draft_depth = max(head.draft_depth, 2)

    def start(self, noise: NoiseStream, temperature: float, prompt_length: int) -> CompositeState:
        lookup = self.lookup.start(noise, temperature, prompt_length)
        return CompositeState(self.head.start(noise, temperature, prompt_length), lookup)

    def fingerprint(self) -> str:
        return f"composite-{self.lookup.fingerprint()}-{self.head.fingerprint()}"


class CompositeState(DraftState):
    """One request: both take every committed token, `begin` chooses."""

    def __init__(self, head: DraftState, lookup: NgramState) -> None:
        self._head = head
        self._lookup = lookup
        self._active: DraftState = head

    def ingest(
        self,
        token_ids: Sequence[int],
        features_RF: torch.Tensor | None,
        rows: Sequence[int] | None = None,
    ) -> None:
        self._head.ingest(token_ids, features_RF, rows)
        self._lookup.ingest(token_ids, features_RF, rows)

    def depth_limit(self) -> int:
        return self._active.depth_limit()

    def begin(self) -> DraftTree:
        self._active = self._lookup if self._lookup.match_length else self._head
        return self._active.begin()

    def extend(self) -> bool:
        return self._active.extend()

    def hint(self) -> LookupHint:
        return self._lookup.hint()

    def next_logits(self) -> torch.Tensor | None:
        return self._active.next_logits()

    def append(self, token_id: int, score: float) -> None:
        self._active.append(token_id, score)
