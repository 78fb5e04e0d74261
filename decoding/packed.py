"""Stacks of layers whose weights lie in the order in which native.c reads them.

Legend: N outputs, K inputs of a product, H hidden size, I MLP size, D head size, T positions, V vocabulary.
"""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields

import torch
from torch import nn

from decoding import native
from decoding.drafters.eagle_head import EagleHead
from decoding.machine import native_threads

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

    def shapes(self) -> dict[str, tuple[int, ...]]:
        tensors = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: tuple(tensor.shape) for name, tensor in tensors.items() if tensor is not None}


class PackedStack:
    """Layers, final norm and output product, packed; and the C structure that points at them.

    Args:
        layers: `layer_count` of them, at least one; each is packed before the next is asked for.
        embeddings: (V, H), contiguous fp32; not copied.
        final_norm: (H).
        output: (N, H): the logits' product.
        heads, kv_heads, eps: of all layers.
        angles: `angles(T)` = cosines and sines (T, D / 2) of the first T positions.
        half_layers, half_output: whether all of their products' weights are bf16 numbers.
        embedding_norm: (H) where a layer reads [embedding, state], as an EAGLE head's; the states are then
            what `forward` is given.

    Attributes:
        stack: for native.c.
        embeddings: as given; `known_ids` of them.
        outputs: columns of the logits; the stack may have more, which are padding.
        packed_bytes: memory of all weights but the embeddings.
    """

    def __init__(
        self,
        layers: Iterable[LayerWeights],
        embeddings: torch.Tensor,
        final_norm: torch.Tensor,
        output: torch.Tensor,
        *,
        layer_count: int,
        heads: int,
        kv_heads: int,
        eps: float,
        angles: Angles,
        half_layers: bool,
        half_output: bool,
        embedding_norm: torch.Tensor | None = None,
    ) -> None:
        panel = native.library().panel()
        self.embeddings = embeddings
        # What the structures point at must live as long as they do.
        self._held: list[torch.Tensor] = []
        self._structures = (native.Layer * layer_count)()
        expected: dict[str, tuple[int, ...]] = {}
        hidden, inputs = len(final_norm), len(final_norm) * (1 if embedding_norm is None else 2)
        head_dim = intermediate = 0
        for structure, layer in zip(self._structures, layers, strict=True):
            if not expected:
                head_dim, intermediate = layer.out.shape[1] // heads, layer.down.shape[1]
                _check_panels(panel, hidden, intermediate, head_dim)
                expected = _shapes(hidden, intermediate, heads, kv_heads, head_dim, inputs)
            self._fill(structure, layer, expected, half_layers)
        if embeddings.shape[1:] != (hidden,) or output.shape[1:] != (hidden,):
            raise NoFastPath("its embeddings or its output layer are of another width")
        if heads % kv_heads:
            raise NoFastPath(f"its {heads} heads are no multiple of its {kv_heads} key/value heads")
        packed_output = pack(output, half_output)
        self.stack = native.Stack(
            layers=ctypes.cast(self._structures, ctypes.POINTER(native.Layer)),
            embeddings=address(embeddings),
            embedding_norm=self._hold(embedding_norm),
            final_norm=self._hold(final_norm),
            logits=self._hold(packed_output),
            layer_count=layer_count,
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
        self.known_ids, self.outputs = len(embeddings), len(output)
        self.packed_bytes = sum(tensor.nbytes for tensor in self._held)
        self._angles = angles
        self._cos_TD = self._sin_TD = torch.empty(0, head_dim // 2)

    def _fill(
        self, structure: native.Layer, layer: LayerWeights, expected: dict[str, tuple[int, ...]], half: bool
    ) -> None:
        for name, shape in layer.shapes().items():
            if shape != expected[name]:
                raise NoFastPath(f"a layer's {name} is of shape {shape}, not {expected[name]}")
            tensor = getattr(layer, name)
            setattr(structure, name, self._hold(pack(tensor, half) if tensor.dim() == 2 else tensor))

    def _hold(self, tensor: torch.Tensor | None) -> int | None:
        if tensor is None:
            return None
        self._held.append(tensor.contiguous())
        kind = torch.bfloat16 if tensor.dtype == torch.bfloat16 and tensor.dim() == 3 else torch.float32
        return address(self._held[-1], kind)

    def angles(self, positions: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosines and sines (>= positions, D / 2), fp32."""
        if len(self._cos_TD) < positions:
            size = max(_FIRST_POSITIONS, positions, 2 * len(self._cos_TD))
            cos_TD, sin_TD = self._angles(size)
            self._cos_TD, self._sin_TD = cos_TD.float().contiguous(), sin_TD.float().contiguous()
        return self._cos_TD, self._sin_TD

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
        output = head.lm_head.weight.detach()
        return cls(
            [weights],
            table.detach(),
            head.norm.weight.detach(),
            output,
            layer_count=1,
            heads=config.num_attention_heads,
            kv_heads=config.num_key_value_heads,
            eps=config.rms_norm_eps,
            angles=attention.angles,
            half_layers=are_half(weights.products),
            half_output=are_half([output]),
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

    def __call__(self, x_RK: torch.Tensor, rows: Sequence[int] | None = None) -> torch.Tensor:
        """Of these rows of x, which ascend; None = all."""
        x_RK = x_RK.contiguous()
        count = len(x_RK) if rows is None else len(rows)
        y_RN = torch.empty(count, self.outputs)
        places, gathered_RK = None, None
        if rows and not 0 <= min(rows) <= max(rows) < len(x_RK):
            raise ValueError(f"rows are {min(rows)}..{max(rows)}, must be in 0..{len(x_RK) - 1}")
        if rows and rows[-1] != count - 1:  # as often as not they are the first ones: nothing is copied
            places, gathered_RK = array("q", rows), torch.empty(count, self.inputs)
        self._native.product(
            self.packed.data_ptr(),
            self.half,
            address(x_RK),
            None if places is None else places.buffer_info()[0],
            None if gathered_RK is None else gathered_RK.data_ptr(),
            count,
            self.inputs,
            self.outputs,
            y_RN.data_ptr(),
            native_threads(),
        )
        return y_RN


def _check_panels(panel: int, hidden: int, intermediate: int, head_dim: int) -> None:
    for what, size in (("hidden", hidden), ("MLP", intermediate), ("attention head", head_dim)):
        if size % panel:
            raise NoFastPath(f"its {what} size {size} is no multiple of {panel}")


def _shapes(
    hidden: int, intermediate: int, heads: int, kv_heads: int, head_dim: int, inputs: int
) -> dict[str, tuple[int, ...]]:
    """What native.c takes for granted of every layer."""
    rows = (heads + 2 * kv_heads) * head_dim
    return {
        "qkv": (rows, inputs),
        "out": (hidden, heads * head_dim),
        "gate_up": (2 * intermediate, hidden),
        "down": (hidden, intermediate),
        "qkv_bias": (rows,),
        "out_bias": (hidden,),
        "attention_norm": (hidden,),
        "mlp_norm": (hidden,),
    }


def _joined(*parts: nn.Linear) -> torch.Tensor:
    return torch.cat([part.weight.detach() for part in parts])


def address(tensor: torch.Tensor, dtype: torch.dtype = torch.float32) -> int:
    """Where native code reads a tensor: it takes for granted what is checked here."""
    if tensor.dtype != dtype or tensor.device.type != "cpu" or not tensor.is_contiguous():
        how = "contiguous" if tensor.is_contiguous() else "strided"
        raise NoFastPath(
            f"a weight or input is {how} {tensor.dtype} on {tensor.device}, not {dtype} on the CPU"
        )
    return tensor.data_ptr()


def are_half(weights: Sequence[torch.Tensor]) -> bool:
    """Whether all of these contiguous fp32 tensors are bf16 numbers: then half the memory holds the same."""
    is_half = native.library().is_half
    return all(is_half(address(weight), weight.numel()) for weight in weights)


def pack(weight_NK: torch.Tensor, half: bool) -> torch.Tensor:
    """(N, K) contiguous fp32 -> (panels, K, panel), see `pack` in native.c; bf16 if `half`, else fp32."""
    outputs, inputs = weight_NK.shape
    panel = native.library().panel()
    dtype = torch.bfloat16 if half else torch.float32
    packed = torch.empty(-(-outputs // panel), inputs, panel, dtype=dtype)
    native.library().pack(address(weight_NK), outputs, inputs, half, packed.data_ptr(), native_threads())
    return packed
