"""N-gram lookup: propose what followed the last occurrence of the text's current ending.

Legend: T the target's vocabulary.
"""

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
        vocabulary_size: the target's; None will do where no distribution is asked for (the `coupled` rule).
        device: of the distributions, the target's.
    """

    name = "ngram"
    fused_layers: tuple[int, ...] = ()
    draft_depth = 6
    verification_size = 6

    def __init__(
        self,
        min_match: int = 2,
        max_match: int = 5,
        vocabulary_size: int | None = None,
        device: torch.device | None = None,
    ) -> None:
        if not 1 <= min_match <= max_match:
            raise ValueError(f"min_match {min_match} and max_match {max_match} must satisfy 1 <= min <= max")
        self.min_match = min_match
        self.max_match = max_match
        self.vocabulary_size = vocabulary_size
        self.device = device or torch.device("cpu")

    def start(self, noise: NoiseStream, temperature: float, prompt_length: int) -> NgramState:
        return NgramState(self)

    def fingerprint(self) -> str:
        return f"ngram-{self.min_match}-{self.max_match}"


class NgramState:
    """The index of one request: every n-gram that has a continuation, by where that begins."""

    def __init__(self, drafter: NgramDrafter) -> None:
        self._drafter = drafter
        self._lengths = range(drafter.max_match, drafter.min_match - 1, -1)
        self._tokens: list[int] = []
        self._following: dict[tuple[int, ...], int] = {}
        self._tree: DraftTree | None = None
        self._next: int | None = None
        self._next_logits_T: torch.Tensor | None = None

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
        self._next_logits_T = None
        for length in self._lengths:
            if length <= len(self._tokens):
                self._next = self._following.get(tuple(self._tokens[-length:]))
                if self._next is not None:
                    break
        return self._tree

    def extend(self) -> bool:
        token = self._proposal()
        if self._tree is None or token is None:
            return False
        # Uncalibrated: survival 1 at every node, so that the chain is kept from its beginning.
        self._tree.add_level([token], [self._tree.size], [0.0])
        return True

    def next_logits(self) -> torch.Tensor | None:
        """float32 (T): 0 at the token that lookup proposes, -infinity elsewhere."""
        size = self._drafter.vocabulary_size
        if size is None:
            raise ValueError(
                "lookup was built without a vocabulary size, so it has no distribution to draw from: use "
                "NgramDrafter(vocabulary_size=target.vocabulary_size) or load_drafter('ngram', model)"
            )
        token = self._proposal()
        if token is not None and self._next_logits_T is None:
            self._next_logits_T = torch.full((size,), -torch.inf, device=self._drafter.device)
            self._next_logits_T[token] = 0.0
        return self._next_logits_T

    def append(self, token_id: int, score: float) -> None:
        assert self._tree is not None, "append before begin"
        assert self._next_logits_T is not None, "append before next_logits"
        self._tree.add_level([token_id], [self._tree.size], [score])
        self._next_logits_T = None

    def _proposal(self) -> int | None:
        """The token after the chain drafted so far; None without a match."""
        if self._tree is None or self._next is None:
            return None
        # Past the end of the text the copy reads its own output, which continues a period.
        place = self._next + self._tree.depth
        if place < len(self._tokens):
            return self._tokens[place]
        return self._tree.tokens[1 + place - len(self._tokens)]
