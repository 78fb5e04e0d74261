"""N-gram lookup: propose what followed the last occurrence of the text's current ending."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from decoding.noise import NoiseStream
from decoding.tree import DraftTree

_NO_LIMIT = 1 << 30


class NgramDrafter:
    """Prompt lookup (Saxena, 2023) over prompt and generated text; a chain.

    Args:
        min_match, max_match: lengths of the ending that is looked up, longest first.
    """

    name = "ngram"
    fused_layers: tuple[int, ...] = ()
    draft_depth = 6
    verification_size = 6

    def __init__(self, min_match: int = 2, max_match: int = 5) -> None:
        if not 1 <= min_match <= max_match:
            raise ValueError(f"min_match {min_match} and max_match {max_match} must satisfy 1 <= min <= max")
        self.min_match = min_match
        self.max_match = max_match

    def start(self, noise: NoiseStream, temperature: float, prompt_length: int) -> NgramState:
        return NgramState(self)

    def fingerprint(self) -> str:
        return f"ngram-{self.min_match}-{self.max_match}"


class NgramState:
    """The index of one request: every n-gram that has a continuation, by where that begins."""

    def __init__(self, drafter: NgramDrafter) -> None:
        self._lengths = range(drafter.max_match, drafter.min_match - 1, -1)
        self._tokens: list[int] = []
        self._following: dict[tuple[int, ...], int] = {}
        self._tree: DraftTree | None = None
        self._next: int | None = None

    def ingest(self, token_ids: Sequence[int], features_RF: torch.Tensor | None) -> None:
        for token in token_ids:
            place = len(self._tokens)
            # The n-grams that end just before this token now have a continuation, and the latest one counts.
            for length in self._lengths:
                if length <= place:
                    self._following[tuple(self._tokens[place - length :])] = place
            self._tokens.append(token)

    def depth_limit(self) -> int:
        return _NO_LIMIT

    def begin(self) -> DraftTree:
        self._tree = DraftTree(self._tokens[-1])
        self._next = None
        for length in self._lengths:
            if length <= len(self._tokens):
                self._next = self._following.get(tuple(self._tokens[-length:]))
                if self._next is not None:
                    break
        return self._tree

    def extend(self) -> bool:
        if self._tree is None or self._next is None:
            return False
        # Past the end of the text the copy reads its own output, which continues a period.
        place = self._next + self._tree.depth
        token = (
            self._tokens[place]
            if place < len(self._tokens)
            else self._tree.tokens[1 + place - len(self._tokens)]
        )
        # Uncalibrated: survival 1 at every node, so that the chain is kept from its beginning.
        self._tree.add_level([token], [self._tree.size], [0.0])
        return True
