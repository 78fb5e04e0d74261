"""A world small enough for its exact law: a real target of five tokens, its drafters, its joint law.

The models are transformers' own with random weights of a fixed seed, in fp64; nothing is loaded. The joint
law comes from plain forwards without a cache and a softmax of its own: no line of it is shared with what
decodes.

Legend: T texts, V vocabulary, G key/value heads, D head size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import torch

from decoding.attention_mask import Mask
from decoding.drafters.base import Drafter
from decoding.drafters.causal_lm import CausalLMDrafter
from decoding.drafters.composite import CompositeDrafter
from decoding.drafters.eagle import EagleDrafter
from decoding.drafters.eagle_head import EagleConfig, EagleHead
from decoding.drafters.merged import MergedDrafter
from decoding.drafters.ngram import NgramDrafter
from decoding.kv_cache import TargetCache
from decoding.slot_cache import SlotCache
from decoding.target import TargetModel, TargetOutput

VOCABULARY = 5
DRAFTERS = ("eagle", "causal", "ngram")
# Every token has followed another one: lookup has something to propose after any text.
PROMPT = (4, 3, 1, 1, 2, 2, 3, 0, 2)
_BEAM = 2
_HIDDEN = 8


@dataclass(frozen=True, slots=True)
class World:
    """The target and its drafters by name, which share what it captures."""

    target: TargetModel
    drafters: dict[str, Drafter]


def tiny_world() -> World:
    """Always the same weights: seeds and scales under which no law is flat or sure, the law depends on more
    than the last token, and every drafter is accepted at some times and rejected at others, greedily too."""
    with torch.random.fork_rng(devices=[]):
        target = _RememberingTarget(_llama(seed=78, layers=2, sureness=0.6))
        small = _RememberingTarget(_llama(seed=1, layers=1, sureness=1.0))
        torch.manual_seed(15)
        head = EagleHead(EagleConfig.from_target(target, VOCABULARY - 1))
        head.requires_grad_(False)
        for parameter in head.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0, 0.25)
    head.set_vocabulary(torch.arange(1, VOCABULARY))
    eagle = EagleDrafter(head, target.embeddings, target.device, target.dtype, _BEAM, DRAFTERS[0])
    target.capture(eagle.fused_layers)
    causal = CausalLMDrafter(small, target, _BEAM, DRAFTERS[1])
    ngram = NgramDrafter(1, vocabulary_size=VOCABULARY)
    joined = (MergedDrafter(eagle, ngram, 2), CompositeDrafter(causal, ngram))
    return World(target, {drafter.name: drafter for drafter in (eagle, causal, ngram, *joined)})


def exact_law(
    model: Any, prompt: Sequence[int], length: int, temperature: float, top_k: int | None
) -> np.ndarray:
    """float64 (V ** length): the probability of every text of so many tokens, in the order of `product`.

    Args:
        model: a transformers causal LM over V tokens.
        temperature: 0 = all mass on the likeliest next token, ties to the lowest id.
        top_k: only the k likeliest tokens can follow; None = all.
    """
    law_T = np.ones(1)
    for place in range(length):
        texts = product(range(model.config.vocab_size), repeat=place)
        ids_TP = torch.tensor([[*prompt, *text] for text in texts])
        with torch.inference_mode():
            logits_TV = model(input_ids=ids_TP, use_cache=False).logits[:, -1].numpy()
        law_T = (law_T[:, None] * _next_probs(logits_TV, temperature, top_k)).reshape(-1)
    return law_T


def _next_probs(logits_TV: np.ndarray, temperature: float, top_k: int | None) -> np.ndarray:
    if temperature == 0:
        return np.eye(logits_TV.shape[1])[logits_TV.argmax(axis=1)]
    scaled_TV = logits_TV / temperature
    if top_k is not None:
        kth_T1 = np.sort(scaled_TV, axis=1)[:, -top_k, None]
        scaled_TV = np.where(scaled_TV < kth_T1, -np.inf, scaled_TV)
    weights_TV = np.exp(scaled_TV - scaled_TV.max(axis=1, keepdims=True))
    return np.asarray(weights_TV / weights_TV.sum(axis=1, keepdims=True))


def _llama(seed: int, layers: int, sureness: float) -> Any:
    """Random weights; `sureness` scales the logits."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=_HIDDEN,
        intermediate_size=2 * _HIDDEN,
        num_hidden_layers=layers,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=64,
        tie_word_embeddings=False,
        initializer_range=0.6,
    )
    model = LlamaForCausalLM(config).eval().requires_grad_(False).double()
    model.lm_head.weight.mul_(sureness)
    return model


class _RememberingTarget(TargetModel):
    """Computes a forward once for every different input *and content of the cache*.

    Thousands of texts of a tiny vocabulary ask for the same few forwards, which are two thirds of a text's
    time. What is remembered is looked up by the very bytes of the cache: one that holds a wrong path gets the
    wrong answer that a real forward would give.
    """

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        shape = (1, self.config.num_key_value_heads, 0, self.config.head_dim)
        self._nothing = torch.empty(shape, dtype=self.dtype)  # (1, G, 0, D)
        self._known: dict[tuple[Any, ...], tuple[TargetOutput, list[tuple[torch.Tensor, ...]]]] = {}

    @torch.inference_mode()
    def forward(
        self,
        token_ids: Sequence[int],
        cache: TargetCache | SlotCache,
        parents: Sequence[int] | None = None,
        depths: Sequence[int] | None = None,
        last_logits_only: bool = False,
        mask: Mask | None = None,
    ) -> TargetOutput:
        """See `TargetModel.forward`."""
        assert isinstance(cache, TargetCache), "the tiny worlds are in fp64, on the eager path"
        before = cache.length
        content = tuple(part.numpy().tobytes() for layer in self._held(cache) for part in layer)
        lists = tuple(None if part is None else tuple(part) for part in (parents, depths, mask))
        key = (tuple(token_ids), content, lists, last_logits_only, self.fused_layers)
        known = self._known.get(key)
        if known is None:
            output = super().forward(token_ids, cache, parents, depths, last_logits_only, mask)
            added = [tuple(part[:, :, before:].clone() for part in layer) for layer in self._held(cache)]
            self._known[key] = output, added
            return output
        output, added = known
        for layer, (keys, values) in zip(cache.layers, added, strict=True):
            layer.buffer.append(keys, values)
        return output

    def _held(self, cache: TargetCache) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Keys and values (1, G, positions, D) of each layer."""
        return [layer.buffer.append(self._nothing, self._nothing) for layer in cache.layers]
