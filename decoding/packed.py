"""Stacks of layers whose weights lie in the order in which native.c reads them.

Legend: N outputs, K inputs of a product, H hidden size, I MLP size, D head size, T positions, V vocabulary.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import nn

from decoding import native
from decoding.drafters.eagle_head import EagleHead
from decoding.machine import native_threads

# Families whose layer is that of native.c; see `FastForward.check` for who makes sure.
FAMILIES = ("llama", "mistral", "qwen2")
# Rotary angles that depend on the position alone; `dynamic` and `longrope` change with the text's length.
ROTARY = ("default", "linear", "llama3", "yarn")
_FIRST_POSITIONS = 512

Angles = Callable[[int], tuple[torch.Tensor, torch.Tensor]]


class NoFastPath(Exception):
    """Why a model cannot take the fast path."""


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One layer, by the names of `Layer` in native.c: products (N, K), biases (N), norms (H)."""

    qkv: torch.Tensor
    out: torch.Tensor
    gate_up: torch.Tensor
    down: torch.Tensor
    qkv_bias: torch.Tensor | None
    out_bias: torch.Tensor | None
    attention_norm: torch.Tensor
    mlp_norm: torch.Tensor

    @property
    def products(self) -> list[torch.Tensor]:
        return [self.qkv, self.out, self.gate_up, self.down]


class PackedStack:
    """Layers, final norm and output product, packed; and the C structure that points at them.

    Args:
        layers: at least one.
        embeddings: (V, H), contiguous fp32; not copied.
        final_norm: (H).
        output: (N, H): the logits' product.
        heads, kv_heads, eps: of all layers.
        angles: `angles(T)` = cosines and sines (T, D / 2) of the first T positions.
        embedding_norm: (H) where a layer reads [embedding, state], as an EAGLE head's; the states are then
            what `forward` is given.

    Attributes:
        stack: for native.c.
        outputs: columns of the logits; the stack may have more, which are padding.
        packed_bytes: memory taken beside the model's own.
    """

    def __init__(
        self,
        layers: Sequence[LayerWeights],
        embeddings: torch.Tensor,
        final_norm: torch.Tensor,
        output: torch.Tensor,
        *,
        heads: int,
        kv_heads: int,
        eps: float,
        angles: Angles,
        embedding_norm: torch.Tensor | None = None,
    ) -> None:
        first = layers[0]
        hidden, head_dim, intermediate = len(final_norm), first.out.shape[1] // heads, first.down.shape[1]
        panel = native.library().panel()
        for what, size in (("hidden", hidden), ("MLP", intermediate), ("attention head", head_dim)):
            if size % panel:
                raise NoFastPath(f"its {what} size {size} is no multiple of {panel}")
        half_layers = are_half([weight for layer in layers for weight in layer.products])
        half_output = are_half([output])
        # What the structures point at must live as long as they do.
        self._held: list[Any] = [embeddings]
        self._structures = (native.Layer * len(layers))()
        for structure, layer in zip(self._structures, layers, strict=True):
            for field in fields(layer):
                tensor = getattr(layer, field.name)
                if tensor is not None and tensor.dim() == 2:
                    tensor = pack(tensor, half_layers)
                setattr(structure, field.name, self._hold(tensor))
        packed_output = pack(output, half_output)
        self.stack = native.Stack(
            layers=ctypes.cast(self._structures, ctypes.POINTER(native.Layer)),
            embeddings=embeddings.data_ptr(),
            embedding_norm=self._hold(embedding_norm),
            final_norm=self._hold(final_norm),
            logits=self._hold(packed_output),
            layer_count=len(layers),
            hidden=hidden,
            intermediate=intermediate,
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            vocabulary=len(packed_output) * panel,
            half_layers=half_layers,
            half_logits=half_output,
            eps=eps,
        )
        self.outputs = len(output)
        self.packed_bytes = sum(tensor.nbytes for tensor in self._held[1:])
        self._angles = angles
        self._cos_TD = self._sin_TD = torch.empty(0, head_dim // 2)

    def _hold(self, tensor: torch.Tensor | None) -> int | None:
        if tensor is None:
            return None
        self._held.append(tensor.contiguous())
        return int(self._held[-1].data_ptr())

    def angles(self, positions: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosines and sines (>= positions, D / 2), fp32."""
        if len(self._cos_TD) < positions:
            size = max(_FIRST_POSITIONS, positions, 2 * len(self._cos_TD))
            cos_TD, sin_TD = self._angles(size)
            self._cos_TD, self._sin_TD = cos_TD.float().contiguous(), sin_TD.float().contiguous()
        return self._cos_TD, self._sin_TD

    @classmethod
    def of_model(cls, model: Any) -> PackedStack:
        """A transformers causal LM on the CPU in fp32; `NoFastPath` says why not."""
        config, decoder, output = model.config.get_text_config(), model.get_decoder(), model.lm_head
        if config.model_type not in FAMILIES:
            raise NoFastPath(f"it is a {config.model_type}, not one of {', '.join(FAMILIES)}")
        rotary = decoder.rotary_emb
        if rotary.rope_type not in ROTARY:
            raise NoFastPath(f"its rotary embedding is {rotary.rope_type}, not one of {', '.join(ROTARY)}")
        if config.hidden_act != "silu" or output.bias is not None:
            raise NoFastPath("its MLP is no SwiGLU, or its output layer has a bias")
        weight = decoder.embed_tokens.weight
        if weight.device.type != "cpu" or weight.dtype != torch.float32:
            raise NoFastPath(f"it is in {weight.dtype} on {weight.device}, not in float32 on the CPU")

        def angles(positions: int) -> tuple[torch.Tensor, torch.Tensor]:
            cos_1TD, sin_1TD = rotary(weight, torch.arange(positions)[None])
            return cos_1TD[0].chunk(2, dim=-1)[0], sin_1TD[0].chunk(2, dim=-1)[0]

        return cls(
            [_model_layer(layer) for layer in decoder.layers],
            weight.detach(),
            decoder.norm.weight.detach(),
            output.weight.detach(),
            heads=config.num_attention_heads,
            kv_heads=config.num_key_value_heads,
            eps=config.rms_norm_eps,
            angles=angles,
        )

    @classmethod
    def of_head(cls, head: EagleHead, embeddings: nn.Module) -> PackedStack:
        """An EAGLE head over its target's embeddings; `NoFastPath` says why not."""
        config, layer, table = head.config, head.midlayer, embeddings.weight
        assert isinstance(table, torch.Tensor)
        attention, mlp = layer.self_attn, layer.mlp
        weights = LayerWeights(
            qkv=_joined(attention.q_proj, attention.k_proj, attention.v_proj),
            out=attention.o_proj.weight.detach(),
            gate_up=_joined(mlp.gate_proj, mlp.up_proj),
            down=mlp.down_proj.weight.detach(),
            qkv_bias=None,
            out_bias=None,
            attention_norm=layer.hidden_norm.weight.detach(),
            mlp_norm=layer.post_attention_layernorm.weight.detach(),
        )
        return cls(
            [weights],
            table.detach(),
            head.norm.weight.detach(),
            head.lm_head.weight.detach(),
            heads=config.num_attention_heads,
            kv_heads=config.num_key_value_heads,
            eps=config.rms_norm_eps,
            angles=attention.angles,
            embedding_norm=layer.input_layernorm.weight.detach(),
        )


class PackedProduct:
    """One product y (R, N) = x (R, K) W^T in native code; W is fp32, N a multiple of a panel."""

    def __init__(self, weight_NK: torch.Tensor) -> None:
        self._native = native.library()
        self.outputs, self.inputs = weight_NK.shape
        if self.outputs % self._native.panel():
            raise NoFastPath(f"a product's {self.outputs} outputs are no multiple of {self._native.panel()}")
        weight_NK = weight_NK.detach().contiguous()
        self.half = are_half([weight_NK])
        self.packed = pack(weight_NK, self.half)

    def __call__(self, x_RK: torch.Tensor) -> torch.Tensor:
        x_RK = x_RK.contiguous()
        y_RN = torch.empty(len(x_RK), self.outputs)
        self._native.product(
            self.packed.data_ptr(),
            self.half,
            x_RK.data_ptr(),
            len(x_RK),
            self.inputs,
            self.outputs,
            y_RN.data_ptr(),
            native_threads(),
        )
        return y_RN


def _model_layer(layer: Any) -> LayerWeights:
    attention, mlp = layer.self_attn, layer.mlp
    if any(part.bias is not None for part in (mlp.gate_proj, mlp.up_proj, mlp.down_proj)):
        raise NoFastPath("its MLP has biases")
    parts = (attention.q_proj, attention.k_proj, attention.v_proj)
    biases = [part.bias for part in parts if part.bias is not None]
    return LayerWeights(
        qkv=_joined(*parts),
        out=attention.o_proj.weight.detach(),
        gate_up=_joined(mlp.gate_proj, mlp.up_proj),
        down=mlp.down_proj.weight.detach(),
        qkv_bias=torch.cat(biases).detach() if biases else None,
        out_bias=attention.o_proj.bias,
        attention_norm=layer.input_layernorm.weight.detach(),
        mlp_norm=layer.post_attention_layernorm.weight.detach(),
    )


def _joined(*parts: nn.Linear) -> torch.Tensor:
    return torch.cat([part.weight.detach() for part in parts])


def are_half(weights: Sequence[torch.Tensor]) -> bool:
    """Whether all of these contiguous fp32 tensors are bf16 numbers: then half the memory holds the same."""
    is_half = native.library().is_half
    return all(is_half(weight.data_ptr(), weight.numel()) for weight in weights)


def pack(weight_NK: torch.Tensor, half: bool) -> torch.Tensor:
    """(N, K) contiguous fp32 -> (panels, K, panel), see `pack` in native.c; bf16 if `half`, else fp32."""
    outputs, inputs = weight_NK.shape
    panel = native.library().panel()
    dtype = torch.bfloat16 if half else torch.float32
    packed = torch.empty(-(-outputs // panel), inputs, panel, dtype=dtype)
    native.library().pack(weight_NK.data_ptr(), outputs, inputs, half, packed.data_ptr(), native_threads())
    return packed
