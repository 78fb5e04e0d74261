"""Draft a tree or a chain with an EAGLE-3 head.

Legend: R rows, H hidden size, F = 3H, V draft vocabulary, T the target's vocabulary, K key positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from decoding.artifacts import fingerprint_weights
from decoding.calibration import Calibration, scorer_at, with_calibration
from decoding.drafters.base import DraftState
from decoding.drafters.beam import Beam
from decoding.drafters.eagle_head import EagleHead, attend
from decoding.fast_forward import FastForward, Scores, SlotCache
from decoding.kv_cache import KVBuffer
from decoding.linear import speed_up_few_rows
from decoding.native import NoNativeCode
from decoding.noise import NoiseStream
from decoding.packed import NoFastPath, PackedProduct, PackedStack
from decoding.survival import Survival
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
        self.host_ids_V = self.target_ids_V.cpu().numpy()
        self.calibration: Calibration | None = None
        self.device = device
        self.fast: FastForward | None = None
        self._fuse: nn.Module | PackedProduct = self.head.fc

    def use_fast_path(self) -> bool:
        """Let native code run the head's layer, where its sizes and the machine allow it. On the CPU in
        fp32; the weights are packed once more: later changes of the head do not count."""
        try:
            self.fast = FastForward(PackedStack.of_head(self.head, self.embeddings), capture=(1,))
            self._fuse = PackedProduct(self.head.fc.weight)
        except (NoFastPath, NoNativeCode):
            return False
        return True

    def fuse(self, features_RF: torch.Tensor) -> torch.Tensor:
        """States (R, H) of the target's features."""
        states_RH: torch.Tensor = self._fuse(features_RF)
        return states_RH

    def new_cache(self) -> KVBuffer | SlotCache:
        """An empty cache for one request."""
        return KVBuffer() if self.fast is None else self.fast.new_cache()

    def start(self, noise: NoiseStream, temperature: float, prompt_length: int) -> EagleState:
        return EagleState(self, noise, temperature, prompt_length)

    @property
    def head_fingerprint(self) -> str:
        """Of the weights alone: what a calibration belongs to."""
        return fingerprint_weights(self.head.state_dict())

    def fingerprint(self) -> str:
        # The beam width is a setting that a policy is trained with: it shapes what the policy sees.
        return with_calibration(f"{self.head_fingerprint}-beam{self.beam_width}", self.calibration)


@dataclass(frozen=True, slots=True)
class _Rows:
    """The head's states (R, H), their logits (R, V), and the survival of these where it came along."""

    states_RH: torch.Tensor
    logits_RV: torch.Tensor
    survival: Survival | None = None


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
        self._cache = drafter.new_cache()
        self._pairs = 0
        self._pending: list[tuple[list[int], torch.Tensor]] = []
        self._pending_rows = 0
        self._committed = 0
        self._prompt_length = prompt_length
        self._root_token = -1
        self._root: _Rows | None = None
        self.beam: Beam | None = None
        # What the last level, or the chain's last token, was drafted from.
        self._rows: _Rows | None = None
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
        rows = self._step()
        if rows is None:
            return False
        survival = rows.survival
        if survival is None:
            survival = self._scorer.survival(
                rows.logits_RV,
                self.beam.tree.depth + 1,
                self._noise,
                self._committed - self._prompt_length + self.beam.tree.depth,
                self._drafter.target_ids_V,
                width=self._drafter.beam_width,
            )
        self.beam.grow(survival, self._drafter.host_ids_V)
        return True

    @torch.inference_mode()
    def next_logits(self) -> torch.Tensor | None:
        assert self.beam is not None, "next_logits before begin"
        if self._next_logits_T is None and (rows := self._step()) is not None:
            logits_T = rows.logits_RV.new_full((self._head.config.vocab_size,), -torch.inf)
            logits_T[self._drafter.target_ids_V] = rows.logits_RV[0]
            self._next_logits_T = logits_T
        return self._next_logits_T

    def append(self, token_id: int, score: float) -> None:
        assert self.beam is not None, "append before begin"
        assert self._next_logits_T is not None, "append before next_logits"
        self.beam.append(token_id, score)
        self._next_logits_T = None

    def _step(self) -> _Rows | None:
        """Compute what the next level or token is drafted from; None if there is nothing."""
        assert self.beam is not None
        if self.beam.tree.depth:
            self._rows = self._advance(self.beam)
        else:
            self._digest()
            self._rows = self._root
        return self._rows

    @torch.inference_mode()
    def _digest(self) -> None:
        """Run the queued pairs through the head; the last one's state is the root's."""
        if not self._pending:
            return
        tokens = [token for ids, _ in self._pending for token in ids]
        parts = [features for _, features in self._pending]
        features_RF = parts[0] if len(parts) == 1 else torch.cat(parts)
        self._pending.clear()
        self._pending_rows = 0
        states_RH = self._drafter.fuse(features_RF.to(self._drafter.device))
        positions_R = np.arange(self._pairs, self._pairs + len(tokens))
        self._root = self._layer(tokens, states_RH, positions_R, None)
        self._pairs += len(tokens)

    def _advance(self, beam: Beam) -> _Rows:
        """The frontier's nodes, each seeing the committed pairs and its own ancestors."""
        assert self._rows is not None
        mask_RK = beam.advance()
        positions_R = np.full(len(mask_RK), self._pairs + beam.tree.depth - 1)
        return self._layer(
            beam.tokens, self._rows.states_RH, positions_R, mask_RK, beam.parent_rows, beam.tree.depth + 1
        )

    def _scores(self, level: int) -> Scores | None:
        """What native code is asked beside the logits: at temperature 0 it finds the best children too."""
        if self._scorer.temperature:
            return None
        return Scores(self._scorer.scale(level), self._drafter.beam_width)

    def _layer(
        self,
        tokens: list[int],
        states_RH: torch.Tensor,
        positions_R: np.ndarray,
        mask_RK: np.ndarray | None,
        parent_rows: list[int] | None = None,
        level: int = 1,
    ) -> _Rows:
        """Run rows on top of the cache. `mask_RK` is over the last K cache rows, and those before it are
        open; None = the rows are consecutive pairs, of which the last alone is returned. `parent_rows`: for
        each row its row of `states_RH`; None = row by row. `level`: that the rows' children will be."""
        if isinstance(self._cache, SlotCache):
            assert self._drafter.fast is not None
            output = self._drafter.fast.forward(
                tokens,
                positions_R,
                self._cache,
                mask_RK=mask_RK,
                states_H=states_RH,
                state_rows=parent_rows,
                last_logits_only=mask_RK is None,
                scores=self._scores(level),
            )
            assert output.captured_RF is not None, "the head captures its layer"
            kept = slice(-1, None) if mask_RK is None else slice(None)
            return _Rows(output.captured_RF[kept], output.logits_RV, output.survival)
        if parent_rows is not None:
            states_RH = states_RH[torch.tensor(parent_rows, device=states_RH.device)]
        device, layer = self._drafter.device, self._head.midlayer
        embedded = self._drafter.embeddings(torch.tensor([tokens], device=device))
        positions = torch.from_numpy(positions_R).to(device)
        queries, keys, values = layer.project(embedded, states_RH[None], positions)
        keys, values = self._cache.append(keys, values)
        length, rows = self._cache.length, len(tokens)
        seen = None
        if mask_RK is not None:
            before = torch.ones((rows, length - mask_RK.shape[1]), dtype=torch.bool)
            seen = torch.cat([before, torch.from_numpy(mask_RK)], dim=1).to(device)
        elif rows > 1:
            seen = torch.arange(length, device=device)[None, :] <= positions[:, None]
        out_RH = layer.finish(states_RH[None], attend(queries, keys, values, seen))[0]
        if mask_RK is None:
            out_RH = out_RH[-1:]
        return _Rows(out_RH, self._head.logits(out_RH))
