"""The target model behind one forward: rows of a tree in, logits and fused features out.

Every name that transformers changed between the releases of the pinned range is chosen here and in
`kv_cache.py`, nowhere else.

Legend: R rows of a forward, V vocabulary, H hidden size, F number of fused layers.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import nn

from decoding.artifacts import fingerprint_weights
from decoding.attention_mask import Mask, additive_mask, tree_attention_mask
from decoding.extra_layers import marked, own_weights, unmarked
from decoding.fast_forward import FastForward, Rows
from decoding.kv_cache import TargetCache
from decoding.linear import speed_up_few_rows
from decoding.llama_stack import stack_of_model
from decoding.native import NoNativeCode
from decoding.packed import NoFastPath
from decoding.slot_cache import SlotCache

# Largest difference of a logit between the two paths, as a share of the largest logit; seen: a few 1e-6.
_AGREEMENT = 1e-3


@dataclass(frozen=True, slots=True)
class TargetOutput:
    """What one forward returns: logits (R, V), and features (R, F * H) where layers are captured.

    `best`: the largest logit of each row and its token as `largest_of_rows` gives them, where the forward has
    found them on its way.
    """

    logits_RV: torch.Tensor
    features_RF: torch.Tensor | None
    best: tuple[list[float], list[int]] | None = None


class TargetModel:
    """A causal language model whose hidden states after chosen layers can be captured.

    Args:
        model: a transformers causal LM in evaluation mode; every layer must use full attention.
        fused_layers: indices of the hidden states to capture, in the numbering of transformers
            (0 = embeddings, i = output of layer i - 1); empty = none.
        extra_layers: how many of its layers were added, see `extra_layers.py`; they come last.

    Attributes:
        fast: runs `forward` in native code, see `use_fast_path`; None = transformers does, the eager path.
        slow_reason: why `use_fast_path` left it at the eager one; empty if it did not, or was not asked.
    """

    extra_layers = 0

    def __init__(self, model: Any, fused_layers: Sequence[int] = (), extra_layers: int = 0) -> None:
        if not hasattr(model.get_decoder(), "layers") or model.get_output_embeddings() is None:
            raise ValueError(
                f"{type(model).__name__} is no decoder-only language model with a list of layers"
            )
        if not len(model.get_decoder().layers):
            raise ValueError(f"{type(model).__name__} has no layers: its config says 0")
        speed_up_few_rows(model)
        self._model = model
        self.extra_layers = extra_layers
        self.config = model.config.get_text_config()
        kinds = set(getattr(self.config, "layer_types", None) or ()) - {"full_attention"}
        window = getattr(self.config, "sliding_window", None)
        if window and not getattr(self.config, "layer_types", None):
            kinds = {"sliding_attention"}  # Mistral and its like: one window for all layers
        if kinds:
            raise ValueError(
                f"model uses {', '.join(sorted(kinds))} layers; draftpace needs full attention in every "
                "layer, since it keeps one accepted path of a tree in the cache"
            )
        self.device: torch.device = next(model.parameters()).device
        self.dtype: torch.dtype = next(model.parameters()).dtype
        self.hidden_size: int = self.config.hidden_size
        self.vocabulary_size: int = model.get_output_embeddings().weight.shape[0]
        self.context_limit: int = self.config.max_position_embeddings
        self.fast: FastForward | None = None
        self.slow_reason = ""
        self._captured: dict[int, torch.Tensor] = {}
        self._hooks: list[Any] = []
        self.fused_layers: tuple[int, ...] = ()
        self.capture(fused_layers)

    def capture(self, fused_layers: Sequence[int]) -> None:
        """Choose whose outputs `forward` returns as features; replaces an earlier choice."""
        layers = self.own_layers
        for index in fused_layers:
            if not 1 <= index <= layers:
                raise ValueError(f"fused layer {index} is outside 1..{layers} of this target")
        self.fused_layers = tuple(fused_layers)
        self._hook()
        if self.fast is not None:
            self.fast = FastForward(self.fast.packed, self.fused_layers)

    def _hook(self) -> None:
        """Let the model's own layers keep what is captured, for the eager path and `states`."""
        for hook in self._hooks:
            hook.remove()
        layers = self.model.get_decoder().layers
        self._hooks = [
            layers[index - 1].register_forward_hook(self._keeper(index))
            for index in sorted(set(self.fused_layers))
        ]

    def use_fast_path(self) -> bool:
        """Let native code run `forward` from now on, if this model and machine allow it; else `slow_reason`
        says why not. The weights are packed once more in memory: later changes of the model's own do not
        count."""
        try:
            fast = FastForward(stack_of_model(self.model), self.fused_layers)
        except (NoFastPath, NoNativeCode) as error:
            self.slow_reason = str(error)
            return False
        ids = [token % self.vocabulary_size for token in (1, 11, 111, 1111, 11111)]
        wanted = self.forward(ids, TargetCache(self.config.num_hidden_layers)).logits_RV
        got = fast.forward(Rows(ids, range(len(ids)), fast.new_cache())).logits_RV
        apart = float((got - wanted).abs().max() / wanted.abs().max())
        if not apart <= _AGREEMENT:
            # A family member with a layer of its own: better slow than wrong.
            self.slow_reason = f"its logits there are off by {apart:.0e} of the largest"
            return False
        self.fast, self.slow_reason = fast, ""
        return True

    def _keeper(self, index: int) -> Any:
        def keep(_module: nn.Module, _inputs: Any, output: Any) -> None:
            self._captured[index] = output[0] if isinstance(output, tuple) else output

        return keep

    @property
    def model(self) -> Any:
        """The transformers model."""
        return self._model

    @property
    def own_layers(self) -> int:
        """Layers that the checkpoint has; extra ones are not counted."""
        return int(self.config.num_hidden_layers) - self.extra_layers

    @cached_property
    def cache_name(self) -> str:
        """What the model calls the argument that takes its cache."""
        names = inspect.signature(type(self.model).forward).parameters
        return "cache" if "cache" in names else "past_key_values"

    @property
    def embeddings(self) -> nn.Module:
        """The input embedding, which the EAGLE head shares."""
        embeddings: nn.Module = self.model.get_input_embeddings()
        return embeddings

    def new_cache(self) -> TargetCache | SlotCache:
        """An empty cache for one request."""
        if self.fast is not None:
            return self.fast.new_cache()
        return TargetCache(self.config.num_hidden_layers)

    def forward(
        self,
        token_ids: Sequence[int],
        cache: TargetCache | SlotCache,
        parents: Sequence[int] | None = None,
        depths: Sequence[int] | None = None,
        last_logits_only: bool = False,
        mask: Mask | None = None,
    ) -> TargetOutput:
        """Run R rows on top of the cache, which grows by R positions.

        Args:
            token_ids: R ids. With `parents`, row 0 is the root and the others drafted nodes in an order in
                which parents come first; without, R consecutive tokens.
            cache: extended in place; from `new_cache` of the path that runs now.
            parents: the row of each of the R rows' parent, -1 for the root.
            depths: of the R rows, 0 for the root; with `mask`, each row's position counted from that of the
                first of the K keys.
            last_logits_only: compute logits of the last row alone (prefill).
            mask: instead of `parents`, for rows on top of rows that are no committed text, see `Mask`.
        """
        assert mask is None or (parents is None and depths is not None), "a mask goes with depths alone"
        base = cache.length
        rows = len(token_ids)
        if parents is not None and depths is not None and rows > 1:
            mask = tree_attention_mask(parents)
        before = base if mask is None else base + rows - len(mask[0])
        positions = range(base, base + rows) if depths is None else [before + depth for depth in depths]
        if isinstance(cache, SlotCache):
            assert self.fast is not None, "a cache of the fast path on the eager one"
            rows_here = Rows(token_ids, positions, cache, mask, last_logits_only=last_logits_only)
            output = self.fast.forward(rows_here)
            return TargetOutput(output.logits_RV, output.captured_RF, output.best)
        return self._eager(token_ids, positions, cache, mask, last_logits_only)

    @torch.inference_mode()
    def _eager(
        self,
        token_ids: Sequence[int],
        positions: Sequence[int],
        cache: TargetCache,
        mask: Mask | None,
        last_logits_only: bool,
    ) -> TargetOutput:
        rows = len(token_ids)
        inputs: dict[str, Any] = {
            "input_ids": torch.tensor([list(token_ids)], device=self.device),
            self.cache_name: cache,
            "use_cache": True,
            "logits_to_keep": 1 if last_logits_only else 0,
        }
        # A chain's row sees everything: attention without a mask is the faster one.
        if mask is not None and (rows > 1 or 0 in mask[0]):
            before = cache.length + rows - len(mask[0])
            inputs["attention_mask"] = additive_mask(mask, before, self.dtype, self.device)
        inputs["position_ids"] = torch.tensor([list(positions)], device=self.device)
        logits_RV = self.model(**inputs).logits[0].to(self.device)
        features_RF = None
        if self.fused_layers:
            parts = [self._captured[index][0].to(self.device) for index in self.fused_layers]
            features_RF = torch.cat(parts, dim=-1)
        self._captured.clear()
        return TargetOutput(logits_RV, features_RF)

    @torch.no_grad()
    def states(self, ids_BT: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Features (B, T, F * H) and final normalised states (B, T, H) of whole texts, right-padded, no
        cache."""
        output = self.model.get_decoder()(input_ids=ids_BT, use_cache=False)
        parts = [self._captured[index].to(self.device) for index in self.fused_layers]
        self._captured.clear()
        return torch.cat(parts, dim=-1), output.last_hidden_state.to(self.device)

    def fingerprint(self) -> str:
        """Short hash of architecture and weights, see `fingerprint_weights`; extra layers mark it."""
        keys = ("model_type", "hidden_size", "num_hidden_layers", "vocab_size", "num_attention_heads")
        own = {"num_hidden_layers": self.own_layers}
        shape = json.dumps([own.get(key, getattr(self.config, key, None)) for key in keys])
        weights = own_weights(self.model, self.extra_layers)
        return marked(fingerprint_weights(weights, shape), self.extra_layers)

    def text_fingerprint(self) -> str:
        """The same without the mark: of what it says, which heads, calibrations and policies belong to."""
        return unmarked(self.fingerprint())
