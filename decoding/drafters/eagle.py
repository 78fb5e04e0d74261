"""Draft a tree or a chain with an EAGLE-3 head.

Legend: R rows, H hidden size, F = 3H, V draft vocabulary, T the target's vocabulary, K key positions.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from decoding.artifacts import fingerprint_weights
from decoding.calibration import Calibration, scorer_at, with_calibration
from decoding.drafters.base import DraftState
from decoding.drafters.beam import Beam
from decoding.drafters.eagle_head import EagleHead, attend
from decoding.kv_cache import KVBuffer
from decoding.linear import speed_up_few_rows
from decoding.noise import NoiseStream
from decoding.tree import DraftTree

_NO_LIMIT = 1 << 30
# Plain steps only queue their features; past this many they are digested, so that the queue stays small.
_MOST_PENDING = 256


class EagleDrafter:
    """A head with the target's embedding. All of its tensors take the target's device and dtype.

    Args:
        head: the network.
        embeddings: the target's input embedding.
        device, dtype: the target's.
        beam_width: nodes of a level that the next level grows from; each proposes as many children.
        name: for reports.
    """

    def __init__(
        self,
        head: EagleHead,
        embeddings: nn.Module,
        device: torch.device,
        dtype: torch.dtype,
        beam_width: int = 4,
        name: str = "eagle3",
    ) -> None:
        if not 1 <= beam_width <= head.config.draft_vocab_size:
            raise ValueError(f"beam_width is {beam_width}, must be in 1..{head.config.draft_vocab_size}")
        self.name = name
        self.head = head.to(device, dtype).eval().requires_grad_(False)
        speed_up_few_rows(self.head)
        self.embeddings = embeddings
        self.beam_width = beam_width
        self.fused_layers: tuple[int, ...] = head.config.fused_layers
        self.draft_depth = head.config.draft_depth
        self.verification_size = head.config.verification_size
        self.target_ids_V = self.head.target_ids_V
        self.calibration: Calibration | None = None
        self.device = device

    def start(self, noise: NoiseStream, temperature: float, prompt_length: int) -> EagleState:
        return EagleState(self, noise, temperature, prompt_length)

    @property
    def head_fingerprint(self) -> str:
        """Of the weights alone: what a calibration belongs to."""
        return fingerprint_weights(self.head.state_dict())

    def fingerprint(self) -> str:
        # The beam width is a setting that a policy is trained with: it shapes what the policy sees.
        return with_calibration(f"{self.head_fingerprint}-beam{self.beam_width}", self.calibration)


class EagleState(DraftState):
    """One request: a cache of committed pairs, and the draft on top of it.

    Pair i is (token i + 1, the target's features at position i). Its state predicts token i + 2. What
    drafting appends to the cache comes from the head's own states and is dropped at `begin`.
    """

    def __init__(
        self, drafter: EagleDrafter, noise: NoiseStream, temperature: float, prompt_length: int
    ) -> None:
        self._drafter = drafter
        self._head = drafter.head
        self._noise = noise
        self._scorer = scorer_at(drafter.calibration, temperature)
        self._cache = KVBuffer()
        self._pairs = 0
        self._pending: list[tuple[list[int], torch.Tensor]] = []
        self._pending_rows = 0
        self._committed = 0
        self._prompt_length = prompt_length
        self._root_token = -1
        self._root_state_1H: torch.Tensor | None = None
        self.beam: Beam | None = None
        # The states that the last level, or the chain's last token, was drafted from.
        self._states_RH = torch.empty(0)
        self._next_logits_T: torch.Tensor | None = None

    def ingest(self, token_ids: Sequence[int], features_RF: torch.Tensor | None) -> None:
        if not token_ids:
            return
        self._committed += len(token_ids)
        self._root_token = token_ids[-1]
        if features_RF is None:
            return
        if len(features_RF) != len(token_ids):
            raise ValueError(f"{len(token_ids)} tokens came with features of {len(features_RF)} positions")
        self._pending.append((list(token_ids), features_RF))
        self._pending_rows += len(token_ids)
        if self._pending_rows > _MOST_PENDING:
            self._cache.length = self._pairs
            self._digest()

    def depth_limit(self) -> int:
        return _NO_LIMIT if self._pairs + self._pending_rows else 0

    def begin(self) -> DraftTree:
        self._cache.length = self._pairs
        self.beam = Beam(self._root_token, self._drafter.beam_width)
        self._next_logits_T = None
        return self.beam.tree

    @torch.inference_mode()
    def extend(self) -> bool:
        assert self.beam is not None, "extend before begin"
        if not self._step():
            return False
        index = self._committed - self._prompt_length + self.beam.tree.depth
        ids_V = self._drafter.target_ids_V
        logits_RV = self._head.logits(self._states_RH)
        level = self.beam.tree.depth + 1
        self.beam.grow(self._scorer.log_survival(logits_RV, level, self._noise, index, ids_V), ids_V)
        return True

    @torch.inference_mode()
    def next_logits(self) -> torch.Tensor | None:
        assert self.beam is not None, "next_logits before begin"
        if self._next_logits_T is None and self._step():
            logits_V = self._head.logits(self._states_RH)[0]
            logits_T = logits_V.new_full((self._head.config.vocab_size,), -torch.inf)
            logits_T[self._drafter.target_ids_V] = logits_V
            self._next_logits_T = logits_T
        return self._next_logits_T

    def append(self, token_id: int, score: float) -> None:
        assert self.beam is not None, "append before begin"
        assert self._next_logits_T is not None, "append before next_logits"
        self.beam.append(token_id, score)
        self._next_logits_T = None

    def _step(self) -> bool:
        """Compute the states that the next level or token is drafted from; False if there is nothing."""
        assert self.beam is not None
        if self.beam.tree.depth:
            self._states_RH = self._advance(self.beam)
            return True
        self._digest()
        if self._root_state_1H is None:
            return False
        self._states_RH = self._root_state_1H
        return True

    @torch.inference_mode()
    def _digest(self) -> None:
        """Run the queued pairs through the head; the last one's state is the root's."""
        if not self._pending:
            return
        tokens = [token for ids, _ in self._pending for token in ids]
        features_RF = torch.cat([features for _, features in self._pending])
        self._pending.clear()
        self._pending_rows = 0
        rows, device = len(tokens), self._drafter.device
        states = self._head.fc(features_RF.to(device))
        positions = torch.arange(self._pairs, self._pairs + rows, device=device)
        mask_RK = None
        if rows > 1:
            keys = torch.arange(self._pairs + rows, device=device)
            mask_RK = keys[None, :] <= positions[:, None]
        out_RH = self._layer(tokens, states, positions, mask_RK)
        self._pairs += rows
        self._root_state_1H = out_RH[-1:]

    def _layer(
        self,
        tokens: list[int],
        states_RH: torch.Tensor,
        positions_R: torch.Tensor,
        mask_RK: torch.Tensor | None,
    ) -> torch.Tensor:
        layer = self._head.midlayer
        embedded = self._drafter.embeddings(torch.tensor([tokens], device=self._drafter.device))
        queries, keys, values = layer.project(embedded, states_RH[None], positions_R)
        keys, values = self._cache.append(keys, values)
        return layer.finish(states_RH[None], attend(queries, keys, values, mask_RK))[0]

    def _advance(self, beam: Beam) -> torch.Tensor:
        """States of the frontier's nodes, each seeing the committed pairs and its own ancestors."""
        seen_RK = torch.from_numpy(beam.advance())
        rows, device = len(seen_RK), self._drafter.device
        committed = torch.ones((rows, self._pairs), dtype=torch.bool)
        mask_RK = torch.cat([committed, seen_RK], dim=1).to(device)
        positions_R = torch.full((rows,), self._pairs + beam.tree.depth - 1, device=device)
        states_RH = self._states_RH[torch.tensor(beam.parent_rows, device=device)]
        return self._layer(beam.tokens, states_RH, positions_R, mask_RK)
