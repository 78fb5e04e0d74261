"""Llama-like models as packed stacks: what their weights are called, and what else a stack needs.

The weights come from a transformers model or from elsewhere by the same names, and are packed layer by layer.

Legend: D head size, T positions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from decoding.packed import LayerWeights, NoFastPath, PackedStack, are_half

# Families whose layer is that of native.c; `TargetModel.use_fast_path` makes sure of it.
FAMILIES = ("llama", "mistral", "qwen2")
# Rotary angles that depend on the position alone; `dynamic` and `longrope` change with the text's length.
ROTARY = ("default", "linear", "llama3", "yarn")
_EMBEDDINGS, _NORM, _OUTPUT = "model.embed_tokens.", "model.norm.", "lm_head."

# The fp32 weights whose names begin with a prefix, by the rest of their names; names as in transformers.
ReadWeights = Callable[[str], Mapping[str, torch.Tensor]]


@dataclass(frozen=True, slots=True)
class StackShape:
    """What a Llama-like stack is beside its weights; all of it can be JSON.

    Attributes:
        layers, heads, kv_heads, eps: of the stack.
        frequencies: of the rotary embedding, radians a position, fp32 numbers.
        scaling: of its cosines and sines.
        tied: whether the output product is by the embeddings.
        half_layers, half_output: whether all of the products' weights are bf16 numbers.
    """

    layers: int
    heads: int
    kv_heads: int
    eps: float
    frequencies: tuple[float, ...]
    scaling: float
    tied: bool
    half_layers: bool
    half_output: bool

    def angles(self, positions: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosines and sines (T, D / 2) of the first T = `positions` positions, as transformers computes
        them."""
        frequencies = torch.tensor(self.frequencies, dtype=torch.float32)
        angles_TD = torch.arange(positions, dtype=torch.float32)[:, None] * frequencies
        return angles_TD.cos() * self.scaling, angles_TD.sin() * self.scaling

    def prefixes(self) -> list[str]:
        """What a stack's weights are read by, in the order in which it reads them."""
        output = [] if self.tied else [_OUTPUT]
        return [_EMBEDDINGS, _NORM, *output, *(f"model.layers.{index}." for index in range(self.layers))]


def stack_of_weights(read: ReadWeights, shape: StackShape) -> PackedStack:
    """A Llama-like model of this shape; layer by layer, so that no second copy of it need be in memory.
    `NoFastPath` says why not."""
    prefixes = iter(shape.prefixes())
    try:
        embeddings = read(next(prefixes))["weight"]
        final_norm = read(next(prefixes))["weight"]
        output = embeddings if shape.tied else read(next(prefixes))["weight"]
        return PackedStack(
            (_model_layer(read(prefix)) for prefix in prefixes),
            embeddings,
            final_norm,
            output,
            layer_count=shape.layers,
            heads=shape.heads,
            kv_heads=shape.kv_heads,
            eps=shape.eps,
            angles=shape.angles,
            half_layers=shape.half_layers,
            half_output=shape.half_output,
        )
    except KeyError as error:
        raise NoFastPath(f"it has no weight {error}") from None


def stack_of_model(model: Any) -> PackedStack:
    """A transformers causal LM on the CPU in fp32; `NoFastPath` says why not."""
    return stack_of_weights(model_weights(model), model_shape(model))


def model_weights(model: Any) -> ReadWeights:
    """How the weights of a transformers causal LM are read."""
    own = {f"model.{name}": tensor for name, tensor in model.get_decoder().state_dict().items()}
    own |= {f"{_OUTPUT}{name}": tensor for name, tensor in model.lm_head.state_dict().items()}

    def read(prefix: str) -> dict[str, torch.Tensor]:
        return {name.removeprefix(prefix): own[name] for name in own if name.startswith(prefix)}

    return read


def model_shape(model: Any) -> StackShape:
    """Of a transformers causal LM on the CPU in fp32; `NoFastPath` says why it cannot be a stack."""
    config, decoder = model.config.get_text_config(), model.get_decoder()
    if config.model_type not in FAMILIES:
        raise NoFastPath(f"it is a {config.model_type}, not one of {', '.join(FAMILIES)}")
    rotary = decoder.rotary_emb
    if rotary.rope_type not in ROTARY:
        raise NoFastPath(f"its rotary embedding is {rotary.rope_type}, not one of {', '.join(ROTARY)}")
    if config.hidden_act != "silu" or model.lm_head.bias is not None:
        raise NoFastPath("its MLP is no SwiGLU, or its output layer has a bias")
    embeddings, output = decoder.embed_tokens.weight, model.lm_head.weight.detach()
    if embeddings.device.type != "cpu" or embeddings.dtype != torch.float32:
        raise NoFastPath(f"it is in {embeddings.dtype} on {embeddings.device}, not in float32 on the CPU")
    products = [weight.detach() for weight in decoder.layers.parameters() if weight.dim() == 2]
    return StackShape(
        layers=len(decoder.layers),
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        eps=config.rms_norm_eps,
        frequencies=tuple(rotary.inv_freq.tolist()),
        scaling=rotary.attention_scaling,
        tied=output.data_ptr() == embeddings.data_ptr(),
        half_layers=are_half(products),
        half_output=are_half([output]),
    )


def _model_layer(weights: Mapping[str, torch.Tensor]) -> LayerWeights:
    """Of one layer's weights, by their names in transformers."""
    if any(name.startswith("mlp.") and name.endswith(".bias") for name in weights):
        raise NoFastPath("its MLP has biases")
    qkv, gate_up = [f"self_attn.{part}_proj" for part in "qkv"], ["mlp.gate_proj", "mlp.up_proj"]
    biases = [weights[f"{part}.bias"] for part in qkv if f"{part}.bias" in weights]
    return LayerWeights(
        qkv=torch.cat([weights[f"{part}.weight"] for part in qkv]),
        out=weights["self_attn.o_proj.weight"],
        gate_up=torch.cat([weights[f"{part}.weight"] for part in gate_up]),
        down=weights["mlp.down_proj.weight"],
        qkv_bias=torch.cat(biases) if biases else None,
        out_bias=weights.get("self_attn.o_proj.bias"),
        attention_norm=weights["input_layernorm.weight"],
        mlp_norm=weights["post_attention_layernorm.weight"],
    )
