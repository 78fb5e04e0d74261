"""Synthetic slowness: a target that takes longer to say the same.

A decoder layer whose two output projections are zero adds exactly zero to the residual stream. Put behind a
target's own layers it changes no logit and no hidden state, not by a bit; it computes and reads its weights
like any other. So what a slower target is worth can be measured without another model, head or text.

Such a target is marked in its fingerprint. What belongs to the text (heads, calibrations, recordings,
policies) belongs to the target with and without the mark; what belongs to its speed (profiles) does not.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

MOST_EXTRA_LAYERS = 1000
_MARK = re.compile(r"\+(\d+)$")
_ZEROED = ("self_attn.o_proj", "mlp.down_proj")


def add_extra_layers(model: Any, count: int) -> None:
    """Put `count` copies of its last layer, output projections zero, behind a transformers model's layers.

    ValueError if they cannot be added, or change what the model says.
    """
    check_count(count)
    if not count:
        return
    layers, config = model.get_decoder().layers, model.config.get_text_config()
    before = _logits(model)
    for index in range(len(layers), len(layers) + count):
        layers.append(_silent_copy(layers[-1], index, type(model).__name__))
    config.num_hidden_layers += count
    kinds = getattr(config, "layer_types", None)
    if kinds:
        config.layer_types = [*kinds, *[kinds[-1]] * count]
    if not torch.equal(_logits(model), before):
        raise ValueError(
            f"extra layers change what {type(model).__name__} says: its layers do not only add to a residual"
        )


def check_count(count: int) -> None:
    """ValueError unless so many can be added."""
    if type(count) is not int or not 0 <= count <= MOST_EXTRA_LAYERS:
        raise ValueError(
            f"extra_layers is {count!r}, must be a whole number in 0..{MOST_EXTRA_LAYERS} (0 = the target as"
            " it is)"
        )


def _silent_copy(layer: nn.Module, index: int, name: str) -> nn.Module:
    """A copy with weights of its own, as dear to read as any layer's."""
    added = copy.deepcopy(layer)
    for module in added.modules():
        if hasattr(module, "layer_idx"):  # its place in the cache
            module.layer_idx = index
    for part in _ZEROED:
        try:
            projection = added.get_submodule(part)
        except AttributeError:
            raise ValueError(
                f"{name} has no {part} in its layers: extra_layers are for Llama-like models, leave them out"
            ) from None
        with torch.no_grad():
            for parameter in projection.parameters():
                parameter.zero_()
    return added


@torch.inference_mode()
def _logits(model: Any) -> torch.Tensor:
    """(4, V) after some tokens."""
    ids = torch.arange(4, device=next(model.parameters()).device)[None]
    logits: torch.Tensor = model(input_ids=ids, use_cache=False).logits[0]
    return logits


def own_weights(model: Any, extra_layers: int) -> Mapping[str, torch.Tensor]:
    """Its state without that of the layers that were added."""
    state: dict[str, torch.Tensor] = model.state_dict()
    if not extra_layers:
        return state
    added = set(model.get_decoder().layers[-extra_layers:])
    prefixes = tuple(f"{name}." for name, module in model.named_modules() if module in added)
    return {name: tensor for name, tensor in state.items() if not name.startswith(prefixes)}


def marked(fingerprint: str, extra_layers: int) -> str:
    """The fingerprint of a target with so many extra layers."""
    return f"{fingerprint}+{extra_layers}" if extra_layers else fingerprint


def unmarked(fingerprint: str) -> str:
    """Of the target that writes the same text without extra layers."""
    return _MARK.sub("", fingerprint)


def extra_layers_of(fingerprint: str) -> int:
    """How many extra layers the target of this fingerprint has."""
    found = _MARK.search(fingerprint)
    return int(found.group(1)) if found else 0


def label(name: str, extra_layers: int) -> str:
    """What such a target is called wherever it is named."""
    if not extra_layers:
        return name
    return f"{name} + {extra_layers} extra layer{'s' if extra_layers > 1 else ''} (synthetic)"
