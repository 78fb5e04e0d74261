"""The draft of the `rejection` rule: a chain whose tokens are drawn, each after the decision to verify it.

The order keeps the law exact. Whether token k + 1 will be verified may depend on the tokens drawn so far, on
the draft distribution of token k + 1 and on independent randomness, never on token k + 1 itself. So: draft
distribution, decision, draw; and whatever was drawn is verified.

Legend: V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from decoding.controller import DraftView, Question
from decoding.drafters.base import DraftState
from decoding.noise import NoiseStream
from decoding.sampling import Sampling, token_probs
from decoding.verify import Draws

# An id that no vocabulary has, put before the prompt: it keys a stream apart from the request's noise.
_NO_TOKEN = -1
_BLOCK = 256


class Chain(Protocol):
    """What `draft_chain` draws from."""

    def next_probs(self) -> Any | None:
        """The draft distribution (V) of the next token; None if there is nothing to propose. Asking again
        before `append` costs nothing."""
        ...

    def append(self, token: int, probability: Any) -> None:
        """Add the token drawn, and its probability in that distribution."""
        ...


@dataclass(frozen=True, slots=True)
class Drawn:
    """A chain of tokens, and for each the distribution (V) that it was drawn from."""

    tokens: list[int]
    probs: list[Any]


def draft_chain(
    chain: Chain, view: DraftView, draws: Draws, lap: Callable[[str], None]
) -> Generator[Question, int, Drawn]:
    """Draft until the controller stops, the limit is reached or there is nothing to propose.

    Yields a question before each draw: `draft` before the first, `level` before every later one. The view's
    `next_probs` then gives the distribution that would be drawn from; it is computed when somebody asks.

    Returns:
        What was drawn. Kept here and not read from the view: a controller that wrote into the tree it is
        shown must not decide what is verified.
    """
    drawn = Drawn([], [])
    limit = view.depth_limit
    while len(drawn.tokens) < limit:

        def look() -> Any | None:
            lap("policy")
            probs_V = chain.next_probs()
            lap("draft")  # the draft's time, whoever wanted to look
            return None if probs_V is None else probs_V + 0  # a copy: what is drawn from stays as it is

        view.next_probs = look
        more = yield Question("level" if drawn.tokens else "draft", view)
        view.next_probs = None  # it speaks of this token; a later one has another
        lap("policy")
        if not more:
            break
        probs_V = chain.next_probs()
        if probs_V is None:
            break
        token = draws.token(probs_V)
        chain.append(token, probs_V[token])
        drawn.tokens.append(token)
        drawn.probs.append(probs_V)
        lap("draft")
    return drawn


class ModelChain:
    """A drafter's chain under the target's sampling settings: temperature, filters and processors alike.

    Args:
        draft: the request's drafter, its draft begun.
        sampling: of the request.
        committed: token ids of prompt and text.
    """

    def __init__(self, draft: DraftState, sampling: Sampling, committed: Sequence[int]) -> None:
        self._draft = draft
        self._sampling = sampling
        self._context = list(committed)
        self._path_score = 0.0
        self._probs_V: torch.Tensor | None = None
        self._asked = False

    def next_probs(self) -> torch.Tensor | None:
        """float64 (V); None where the drafter has nothing to propose, or nothing that the filters allow."""
        if not self._asked:
            logits_V = self._draft.next_logits()
            self._probs_V = None if logits_V is None else token_probs(logits_V, self._sampling, self._context)
            self._asked = True
        return self._probs_V

    def append(self, token: int, probability: torch.Tensor) -> None:
        # The draft's own probability of a path is the usual guess at how long the target follows it.
        self._path_score += math.log(float(probability))
        self._draft.append(token, self._path_score)
        self._context.append(token)
        self._asked = False


class SeededDraws:
    """Draws from a stream of its own for (seed, prompt), each used once.

    Never keyed by position: a position may be drafted again in a later cycle, and a controller may have seen,
    and acted on, what was drawn there before.
    """

    def __init__(self, seed: int, prompt_ids: Sequence[int]) -> None:
        self._stream = NoiseStream(seed, [_NO_TOKEN, *prompt_ids])
        self._ids_N = torch.arange(_BLOCK)
        self._blocks = 0
        self._unused: list[float] = []

    def _uniform(self) -> float:
        if not self._unused:
            # In blocks: one number costs nearly as much as many. Last first, since a list pops from its end.
            block_N = self._stream.uniforms([self._blocks], self._ids_N)[0]
            self._unused = block_N.flip(0).tolist()
            self._blocks += 1
        return self._unused.pop()

    def token(self, probs_V: torch.Tensor) -> int:
        """Inverse CDF, over tokens of positive probability alone."""
        reached_V = probs_V.cumsum(dim=0)
        hit_V = (reached_V > self._uniform() * reached_V[-1]) & (probs_V > 0)
        # A sum in another order, as on a GPU, may fall short of the last value by an ulp: then the likeliest.
        token = torch.where(hit_V.any(), hit_V.to(torch.uint8).argmax(), probs_V.argmax())
        return int(token.item())

    def keeps(self, target: torch.Tensor, draft: torch.Tensor) -> bool:
        return bool((self._uniform() * draft < target).item())
