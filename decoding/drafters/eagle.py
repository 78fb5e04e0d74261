"""Draft a tree or a chain with an EAGLE-3 head.

Legend: R rows, H hidden size, F = 3H, V draft vocabulary, T the target's vocabulary, K key positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from decoding.artifacts import fingerprint_weights
from decoding.attention_mask import Mask, array_of
from decoding.calibration import Calibration, scorer_at, with_calibration
from decoding.drafters.base import DraftState
from decoding.drafters.beam import Beam
from decoding.drafters.eagle_head import EagleHead, attend
from decoding.fast_forward import FastForward, Rows, Scores
from decoding.kv_cache import KVBuffer
from decoding.linear import speed_up_few_rows
from decoding.native import NoNativeCode
from decoding.noise import NoiseStream
from decoding.packed import NoFastPath, PackedProduct, PackedStack
from decoding.slot_cache import SlotCache
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
        self.host_ids: list[int] = self.target_ids_V.tolist()
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

    def fuse(self, features_RF: torch.Tensor, rows: Sequence[int] | None = None) -> torch.Tensor:
        """States (R, H) of the target's features, of these rows or of all."""
        if isinstance(self._fuse, PackedProduct):
            return self._fuse(features_RF, rows)
        states_RH: torch.Tensor = self._fuse(_rows_of(features_RF, rows).to(self.device))
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
    """Rows of the head.

    Attributes:
        states_RH: of these rows, and perhaps of rows before them.
        logits_RV: of these.
        first: the place of their first in `states_RH`.
        survival: what the logits come to, where it came along.
    """

    states_RH: torch.Tensor
    logits_RV: torch.Tensor
    first: int = 0
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
        self._pending: list[tuple[list[int], torch.Tensor, Sequence[int] | None]] = []
        self._pending_rows = 0
        self._committed = 0
        self._prompt_length = prompt_length
        self._root_token = -1
        self._root: _Rows | None = None
        self.beam: Beam | None = None
        # What the last level, or the chain's last token, was drafted from.
        self._rows: _Rows | None = None
        self._next_logits_T: torch.Tensor | None = None

    def ingest(
        self,
        token_ids: Sequence[int],
        features_RF: torch.Tensor | None,
        rows: Sequence[int] | None = None,
    ) -> None:
        if not token_ids:
            return
        self._committed += len(token_ids)
        self._root_token = token_ids[-1]
        if features_RF is None:
            return
        positions = len(features_RF if rows is None else rows)
        if positions != len(token_ids):
            raise ValueError(f"{len(token_ids)} tokens came with features of {positions} positions")
        self._pending.append((list(token_ids), features_RF, rows))
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
                fast=self._drafter.fast is not None,
            )
        self.beam.grow(survival, self._drafter.host_ids)
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

    def _digest(self) -> None:
        """Run the queued pairs through the head; the last one's state is the root's."""
        if not self._pending:
            return
        tokens, features_RF, rows = self._pending[0]
        if len(self._pending) > 1:
            tokens = [token for ids, _, _ in self._pending for token in ids]
            features_RF = torch.cat([_rows_of(features, some) for _, features, some in self._pending])
            rows = None
        self._pending.clear()
        self._pending_rows = 0
        positions = range(self._pairs, self._pairs + len(tokens))
        self._root = self._layer(tokens, self._drafter.fuse(features_RF, rows), positions, None)
        self._pairs += len(tokens)

    def _advance(self, beam: Beam) -> _Rows:
        """The frontier's nodes, each seeing the committed pairs and its own ancestors."""
        assert self._rows is not None
        mask, depth = beam.advance(), beam.tree.depth
        positions = [self._pairs + depth - 1] * len(mask)
        parent_rows = [self._rows.first + row for row in beam.parent_rows]
        return self._layer(beam.tokens, self._rows.states_RH, positions, mask, parent_rows, depth + 1)

    def _scores(self, level: int) -> Scores | None:
        """What native code is asked beside the logits: at temperature 0 it finds the best children too."""
        if self._scorer.temperature:
            return None
        return Scores(self._scorer.scale(level), self._drafter.beam_width)

    def _layer(
        self,
        tokens: list[int],
        states_RH: torch.Tensor,
        positions: Sequence[int],
        mask: Mask | None,
        parent_rows: list[int] | None = None,
        level: int = 1,
    ) -> _Rows:
        """Run rows on top of the cache. `mask`: of the last cache rows; None = the rows are consecutive
        pairs, and logits of the last alone are wanted. `parent_rows`: for each row its row of `states_RH`,
        None = its own. `level`: that the rows' children will be."""
        if isinstance(self._cache, SlotCache):
            assert self._drafter.fast is not None
            rows = Rows(tokens, positions, self._cache, mask, states_RH, parent_rows, mask is None)
            output = self._drafter.fast.forward(rows, self._scores(level))
            assert output.captured_RF is not None, "the head captures its layer"
            first = len(tokens) - 1 if mask is None else 0
            return _Rows(output.captured_RF, output.logits_RV, first, output.survival)
        return self._eager_layer(tokens, states_RH, positions, self._cache, mask, parent_rows)

    @torch.inference_mode()
    def _eager_layer(
        self,
        tokens: list[int],
        states_RH: torch.Tensor,
        positions: Sequence[int],
        cache: KVBuffer,
        mask: Mask | None,
        parent_rows: list[int] | None,
    ) -> _Rows:
        if parent_rows is not None:
            states_RH = states_RH[torch.tensor(parent_rows, device=states_RH.device)]
        device, layer = self._drafter.device, self._head.midlayer
        embedded = self._drafter.embeddings(torch.tensor([tokens], device=device))
        positions_R = torch.tensor(list(positions), device=device)
        queries, keys, values = layer.project(embedded, states_RH[None], positions_R)
        keys, values = cache.append(keys, values)
        length, rows = cache.length, len(tokens)
        seen = None
        if mask is not None:
            before = torch.ones((rows, length - len(mask[0])), dtype=torch.bool)
            seen = torch.cat([before, torch.from_numpy(array_of(mask))], dim=1).to(device)
        elif rows > 1:
            seen = torch.arange(length, device=device)[None, :] <= positions_R[:, None]
        out_RH = layer.finish(states_RH[None], attend(queries, keys, values, seen))[0]
        if mask is None:
            out_RH = out_RH[-1:]
        return _Rows(out_RH, self._head.logits(out_RH))


def _rows_of(features_RF: torch.Tensor, rows: Sequence[int] | None) -> torch.Tensor:
    return features_RF if rows is None else features_RF[torch.tensor(rows, device=features_RF.device)]
