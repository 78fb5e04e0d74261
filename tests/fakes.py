"""Tiny random models and a byte tokenizer: everything the tests decode with. No downloads, no weights on disk."""

from __future__ import annotations

from typing import Any

import torch

from decoding.drafters.eagle import EagleDrafter
from decoding.drafters.eagle_head import EagleConfig, EagleHead
from decoding.target import TargetModel

VOCABULARY = 40
END_ID = 2


def tiny_target(seed: int = 0, dtype: torch.dtype = torch.float64, context: int = 256, spread: float = 1.0) -> TargetModel:
    """A four-layer Llama with grouped-query attention, 40 tokens. Larger `spread` = surer distributions."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=context,
        bos_token_id=1,
        eos_token_id=END_ID,
        tie_word_embeddings=False,
        initializer_range=0.2,
    )
    model = LlamaForCausalLM(config).eval().requires_grad_(False).to(dtype)
    model.lm_head.weight.mul_(spread)
    return TargetModel(model)


def tiny_head(target: TargetModel, draft_vocab_size: int = 30, seed: int = 1) -> EagleHead:
    """A random head that fits `target`, drafting all ids but the first few odd ones."""
    torch.manual_seed(seed)
    head = EagleHead(EagleConfig.from_target(target, draft_vocab_size))
    with torch.no_grad():
        for parameter in head.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0, 0.3)
    head.set_vocabulary(torch.arange(VOCABULARY - draft_vocab_size, VOCABULARY))
    return head.to(target.dtype).eval().requires_grad_(False)


def tiny_eagle(target: TargetModel, beam_width: int = 3, **head: Any) -> EagleDrafter:
    """A drafter with a random head; makes the target capture its layers."""
    drafter = EagleDrafter(tiny_head(target, **head), target.embeddings, target.device, target.dtype, beam_width)
    target.capture(drafter.fused_layers)
    return drafter


class OracleDrafter:
    """Drafts the target's own continuation, with a mistake wherever `wrong` says so: acceptance at will.

    Args:
        text: the tokens that plain decoding emits after the prompt.
        wrong: positions of that text at which a wrong token is drafted.
    """

    name = "oracle"
    fused_layers: tuple[int, ...] = ()
    draft_depth = 4
    verification_size = 4

    def __init__(self, text: list[int], wrong: frozenset[int] = frozenset()) -> None:
        self.text = text
        self.wrong = wrong

    def start(self, noise: Any, temperature: float, prompt_length: int) -> OracleState:
        return OracleState(self, prompt_length)


class OracleState:
    def __init__(self, drafter: OracleDrafter, prompt_length: int) -> None:
        from decoding.tree import DraftTree

        self._drafter = drafter
        self._generated = -prompt_length
        self._tree_type = DraftTree
        self._last = 0
        self.levels_drafted = 0

    def ingest(self, token_ids: Any, features_RF: Any) -> None:
        self._generated += len(token_ids)
        self._last = token_ids[-1]

    def depth_limit(self) -> int:
        return 1 << 30

    def begin(self) -> Any:
        self._tree = self._tree_type(self._last)
        return self._tree

    def extend(self) -> bool:
        place = self._generated + self._tree.depth
        if place >= len(self._drafter.text):
            return False
        token = self._drafter.text[place]
        if place in self._drafter.wrong:
            token = (token + 1) % VOCABULARY
        self._tree.add_level([token], [self._tree.size], [self._tree.scores[-1] - 0.5])
        self.levels_drafted += 1
        return True
