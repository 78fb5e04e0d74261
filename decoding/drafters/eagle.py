"""Draft a tree with an EAGLE-3 head: beam search over calibrated survival, level by level.

Legend: R rows, H hidden size, F = 3H, V draft vocabulary, W beam width, K key positions.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import nn

from decoding.artifacts import fingerprint_weights
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
        self.device = device

    def start(self, noise: NoiseStream, temperature: float, prompt_length: int) -> EagleState:
        return EagleState(self, noise, temperature, prompt_length)

    def fingerprint(self) -> str:
        # The beam width is a setting that a policy is trained with: it shapes what the policy sees.
        return f"{fingerprint_weights(self.head.state_dict())}-beam{self.beam_width}"


class EagleState:
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
        self._temperature = temperature
        self._cache = KVBuffer()
        self._pairs = 0
        self._pending: list[tuple[list[int], torch.Tensor]] = []
        self._pending_rows = 0
        self._committed = 0
        self._prompt_length = prompt_length
        self._root_token = -1
        self._root_state_1H: torch.Tensor | None = None
        self._tree: DraftTree | None = None
        # The level that the next one grows from: its nodes, their rows in the level before, their states
        # there, and which drafted cache rows each row of that level saw.
        self._frontier: list[int] = []
        self._frontier_parents: list[int] = []
        self._states_RH = torch.empty(0)
        self._seen_RK = torch.empty(0, dtype=torch.bool)

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
        self._tree = DraftTree(self._root_token)
        return self._tree

    @torch.inference_mode()
    def extend(self) -> bool:
        assert self._tree is not None, "extend before begin"
        if self._tree.depth == 0:
            self._digest()
            if self._root_state_1H is None:
                return False
            states_RH = self._root_state_1H
            parents = [0]
        else:
            states_RH = self._advance()
            parents = self._frontier
        self._grow(states_RH, parents)
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

    def _advance(self) -> torch.Tensor:
        """States of the frontier's nodes, each seeing the committed pairs and its own ancestors."""
        assert self._tree is not None
        rows, device = len(self._frontier), self._drafter.device
        own = torch.eye(rows, dtype=torch.bool)
        if self._tree.depth > 1:
            seen = torch.cat([self._seen_RK[self._frontier_parents], own], dim=1)
        else:
            seen = own
        committed = torch.ones((rows, self._pairs), dtype=torch.bool)
        mask = torch.cat([committed, seen], dim=1).to(device)
        position = self._pairs + self._tree.depth - 1
        positions = torch.full((rows,), position, device=device)
        tokens = [self._tree.tokens[node] for node in self._frontier]
        states_RH = self._states_RH[torch.tensor(self._frontier_parents, device=device)]
        self._seen_RK = seen
        return self._layer(tokens, states_RH, positions, mask)

    def _grow(self, states_RH: torch.Tensor, parents: list[int]) -> None:
        """Add each parent's best children, and make the best of the whole level the next frontier."""
        assert self._tree is not None
        width = self._drafter.beam_width
        survival_RV = self._log_survival(states_RH, self._tree.depth)
        values_RW, draft_ids_RW = survival_RV.topk(width, dim=-1)
        target_ids_RW = self._drafter.target_ids_V[draft_ids_RW]
        both = torch.stack([values_RW.to(torch.float64), target_ids_RW.to(torch.float64)]).cpu().numpy()
        values, ids = both[0], both[1].astype(np.int64)
        # topk promises no order at ties; a draft must not depend on one.
        order = np.lexsort((ids, -values), axis=-1)
        values, ids = np.take_along_axis(values, order, -1), np.take_along_axis(ids, order, -1)
        path = values + np.array([self._tree.scores[parent] for parent in parents])[:, None]
        level = self._tree.add_level(
            ids.ravel().tolist(), np.repeat(parents, width).tolist(), path.ravel().tolist()
        )
        scores = np.asarray(self._tree.scores[level.start :])
        best = np.sort(np.argsort(-scores, kind="stable")[:width])
        self._frontier = (best + level.start).tolist()
        self._frontier_parents = (best // width).tolist()
        self._states_RH = states_RH

    def _log_survival(self, states_RH: torch.Tensor, depth: int) -> torch.Tensor:
        """log c(v) = log softmax(z / kappa) + log a over the draft vocabulary, (R, V); uncalibrated, kappa =
        a = 1.

        z is the draft's logit at temperature 0, else logit / temperature + the noise that the target will
        meet at this position: a candidate that the noise favours is likelier to be the target's token.
        """
        logits_RV = self._head.logits(states_RH)
        if self._temperature == 0:
            return torch.log_softmax(logits_RV.float(), dim=-1)
        index = self._committed - self._prompt_length + depth
        noise_1V = self._noise.gumbel([index], self._drafter.target_ids_V)
        return torch.log_softmax(logits_RV.to(torch.float64) / self._temperature + noise_1V, dim=-1)
