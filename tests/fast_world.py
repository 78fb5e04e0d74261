"""Tiny models whose sizes native code can run: in fp32, every size a multiple of 32."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from decoding.drafters.eagle import EagleDrafter
from decoding.target import TargetModel
from tests.fakes import VOCABULARY, tiny_head

SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,  # no multiple: the logits' product is padded
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 1024,
    "tie_word_embeddings": False,
    "initializer_range": 0.15,
}
KINDS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "llama": (LlamaForCausalLM, LlamaConfig, {"attention_bias": True}),
    "tied": (LlamaForCausalLM, LlamaConfig, {"tie_word_embeddings": True}),
    "mistral": (MistralForCausalLM, MistralConfig, {"sliding_window": None, "num_key_value_heads": 4}),
    "qwen2": (Qwen2ForCausalLM, Qwen2Config, {"num_attention_heads": 2, "num_key_value_heads": 1}),
    "llama3 rotary": (
        LlamaForCausalLM,
        LlamaConfig,
        {
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 10_000.0,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            }
        },
    ),
}


def causal_lm(kind: str = "llama", seed: int = 0, half: bool = False, **changed: Any) -> Any:
    """A random transformers model; `half`: all its weights are bf16 numbers, kept in fp32."""
    model_class, config_class, own = KINDS[kind]
    torch.manual_seed(seed)
    model = model_class(config_class(**{**SIZES, **own, **changed})).eval().requires_grad_(False)
    for name, parameter in model.named_parameters():
        if name.endswith(("bias", "norm.weight")):
            parameter.add_(0.2 * torch.randn(parameter.shape))  # transformers begins at 0 and at 1
        if half:
            parameter.copy_(parameter.to(torch.bfloat16).float())
    return model


@cache
def fast_target(kind: str = "llama", half: bool = False) -> TargetModel:
    """On the fast path; it captures what `fast_eagle` reads."""
    target = TargetModel(causal_lm(kind, half=half), (1, 2, 3))
    assert target.use_fast_path(), target.slow_reason
    return target


@cache
def eager_twin(kind: str = "llama", half: bool = False) -> TargetModel:
    """The same weights on the eager path, in fp64: what the fast one is compared with."""
    return TargetModel(causal_lm(kind, half=half).double(), (1, 2, 3))


def fast_eagle(target: TargetModel, beam_width: int = 3) -> EagleDrafter:
    """A random head for a target of these sizes, on the fast path."""
    head = tiny_head(target)
    drafter = EagleDrafter(head, target.embeddings, target.device, target.dtype, beam_width)
    assert drafter.use_fast_path()
    target.capture(drafter.fused_layers)
    return drafter


def close(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    torch.testing.assert_close(ours.double(), theirs.double(), rtol=1e-4, atol=1e-4)


def tokens_of(seed: int, count: int) -> list[int]:
    return np.random.default_rng(seed).integers(0, 40, count).tolist()
