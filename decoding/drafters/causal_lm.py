"""Draft a tree or a chain with a smaller causal language model of the target's own tokens.

Legend: R rows, V the ids that the drafter can propose, T the target's vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from decoding.calibration import Calibration, scorer_at, with_calibration
from decoding.drafters.base import DraftState
from decoding.drafters.beam import Beam
from decoding.noise import NoiseStream
from decoding.target import TargetModel
from decoding.tree import DraftTree

# Most committed tokens of one forward: after a long prompt the drafter's activations stay small.
_MOST_ROWS = 512


class CausalLMDrafter:
    """A model that reads the text alone; nothing of the target but its vocabulary is used.

    Args:
        model: the drafting model; its token strings and special ids must be the target's. Its embeddings may
            be padded to more rows than the target's, or fewer: ids that either lacks are never proposed.
        target: the model it drafts for.
        beam_width: nodes of a level that the next level grows from; each proposes as many children.
        name: for reports.
    """

    fused_layers: tuple[int, ...] = ()
    # A level costs a forward of a whole model, however few its rows: few levels. A model that is worth this
    # mostly finds the target's token with its first guess: as many nodes as levels is the likeliest chain, or
    # a branch where it is unsure.
    draft_depth = 4
    verification_size = 4

    def __init__(
        self, model: TargetModel, target: TargetModel, beam_width: int = 4, name: str = "causal-lm"
    ) -> None:
        table = model.embeddings.weight
        assert isinstance(table, torch.Tensor)
        self.embedded_ids = len(table)
        proposed = min(self.embedded_ids, model.vocabulary_size, target.vocabulary_size)
        if not 1 <= beam_width <= proposed:
            raise ValueError(f"beam_width is {beam_width}, must be in 1..{proposed}")
        self.name = name
        self.model = model
        self.beam_width = beam_width
        self.ids_V = torch.arange(proposed, device=model.device)
        self.target_vocabulary_size = target.vocabulary_size
        self.target_device = target.device
        self.calibration: Calibration | None = None

    def start(self, noise: NoiseStream, temperature: float, prompt_length: int) -> CausalLMState:
        return CausalLMState(self, noise, temperature, prompt_length)

    @property
    def head_fingerprint(self) -> str:
        """Of the weights alone: what a calibration belongs to."""
        return self.model.fingerprint()

    def fingerprint(self) -> str:
        # The beam width is a setting that a policy is trained with: it shapes what the policy sees.
        return with_calibration(f"{self.head_fingerprint}-beam{self.beam_width}", self.calibration)


class CausalLMState(DraftState):
    """One request: a cache of committed tokens, a queue of those not yet in it, and the draft on top.

    Between cycles the cache holds committed tokens alone, the first `_cached` of the text. `ingest` costs
    nothing: a plain step's token waits for the next draft, which takes all that wait in one forward.
    """

    def __init__(
        self, drafter: CausalLMDrafter, noise: NoiseStream, temperature: float, prompt_length: int
    ) -> None:
        self._drafter = drafter
        self._noise = noise
        self._scorer = scorer_at(drafter.calibration, temperature)
        self._prompt_length = prompt_length
        self._cache = drafter.model.new_cache()
        self._cached = 0
        self._queue: list[int] = []
        self._root_token = -1
        self._root_logits_1V: torch.Tensor | None = None
        self._knows_text = True
        self.beam: Beam | None = None
        self._next_logits_T: torch.Tensor | None = None

    @property
    def _committed(self) -> int:
        return self._cached + len(self._queue)

    def ingest(
        self,
        token_ids: Sequence[int],
        features_RF: torch.Tensor | None,
        rows: Sequence[int] | None = None,
    ) -> None:
        if not token_ids:
            return
        self._drop_draft()
        self._queue.extend(token_ids)
        self._root_token = token_ids[-1]
        # The target's padding holds ids that this model may have no embedding for.
        self._knows_text = self._knows_text and max(token_ids) < self._drafter.embedded_ids

    def depth_limit(self) -> int:
        if not self._committed or not self._knows_text:
            return 0
        # The last level's tokens are proposed, never read: they need no position of their own.
        return max(0, self._drafter.model.context_limit - self._committed + 1)

    def begin(self) -> DraftTree:
        self._drop_draft()
        self.beam = Beam(self._root_token, self._drafter.beam_width)
        self._next_logits_T = None
        return self.beam.tree

    @torch.inference_mode()
    def extend(self) -> bool:
        assert self.beam is not None, "extend before begin"
        logits_RV = self._frontier_logits(self.beam)
        if logits_RV is None:
            return False
        index = self._committed - self._prompt_length + self.beam.tree.depth
        survival = self._scorer.survival(
            logits_RV,
            self.beam.tree.depth + 1,
            self._noise,
            index,
            self._drafter.ids_V,
            width=self._drafter.beam_width,
            fast=self._drafter.model.fast is not None,
        )
        self.beam.grow(survival)
        return True

    @torch.inference_mode()
    def next_logits(self) -> torch.Tensor | None:
        assert self.beam is not None, "next_logits before begin"
        if self._next_logits_T is None:
            logits_RV = self._frontier_logits(self.beam)
            if logits_RV is None:
                return None
            logits_T = logits_RV.new_full((self._drafter.target_vocabulary_size,), -torch.inf)
            logits_T[: logits_RV.shape[1]] = logits_RV[0]
            self._next_logits_T = logits_T.to(self._drafter.target_device)
        return self._next_logits_T

    def append(self, token_id: int, score: float) -> None:
        assert self.beam is not None, "append before begin"
        assert self._next_logits_T is not None, "append before next_logits"
        self.beam.append(token_id, score)
        self._next_logits_T = None

    def _drop_draft(self) -> None:
        self._cache.keep(self._cached, [], self._drafter.model.device)

    def _frontier_logits(self, beam: Beam) -> torch.Tensor | None:
        """Logits (R, V) after each of the frontier's nodes; None where the context has no room."""
        depth = beam.tree.depth
        if depth >= self.depth_limit():
            return None
        if depth == 0:
            self._digest()
            return self._root_logits_1V
        mask = beam.advance()
        output = self._drafter.model.forward(
            beam.tokens, self._cache, depths=[depth - 1] * len(mask), mask=mask
        )
        return output.logits_RV[:, : len(self._drafter.ids_V)]

    def _digest(self) -> None:
        """Run the queued tokens through the model; the last one's logits are the root's."""
        for start in range(0, len(self._queue), _MOST_ROWS):
            rows = self._queue[start : start + _MOST_ROWS]
            output = self._drafter.model.forward(rows, self._cache, last_logits_only=True)
            self._root_logits_1V = output.logits_RV[-1:, : len(self._drafter.ids_V)]
        self._cached += len(self._queue)
        self._queue.clear()
