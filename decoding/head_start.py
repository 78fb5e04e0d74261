"""Where a head's training starts: at the target's last layer, or at a head that was trained before."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from decoding.drafters.eagle_head import EagleHead
from decoding.target import TargetModel


def frequent_vocabulary(
    texts: list[np.ndarray], size: int, vocabulary_size: int, always: list[int]
) -> torch.Tensor:
    """The `size` most frequent ids of the texts plus `always`; ties and unseen ids in ascending order."""
    if not len(always) <= size <= vocabulary_size:
        raise ValueError(f"draft vocabulary of {size} is outside {len(always)}..{vocabulary_size}")
    counts = np.zeros(vocabulary_size, dtype=np.int64)
    for text in texts:
        counts += np.bincount(text, minlength=vocabulary_size)
    counts[always] = counts.max() + 1
    return torch.from_numpy(np.sort(np.argsort(-counts, kind="stable")[:size]))


@torch.no_grad()
def initialise_from_target(head: EagleHead, target: TargetModel) -> None:
    """Start as the target's last layer over its high fused state; the embedding half starts at zero."""
    last = target.model.get_decoder().layers[-1]
    layer, size = head.midlayer, head.config.hidden_size
    head.fc.weight.zero_()
    head.fc.weight[:, 2 * size :].copy_(torch.eye(size))
    for name in ("q_proj", "k_proj", "v_proj"):
        wide = getattr(layer.self_attn, name).weight
        wide.zero_()
        wide[:, size:].copy_(getattr(last.self_attn, name).weight)
    layer.self_attn.o_proj.weight.copy_(last.self_attn.o_proj.weight)
    for name in ("gate_proj", "up_proj", "down_proj"):
        getattr(layer.mlp, name).weight.copy_(getattr(last.mlp, name).weight)
    layer.hidden_norm.weight.copy_(last.input_layernorm.weight)
    layer.post_attention_layernorm.weight.copy_(last.post_attention_layernorm.weight)
    head.norm.weight.copy_(target.model.get_decoder().norm.weight)
    head.lm_head.weight.copy_(
        target.model.get_output_embeddings().weight[head.target_ids_V.to(target.device)]
    )
    # Embedding columns of exactly zero would leave queries and keys blind to the token for many steps.
    generator = torch.Generator().manual_seed(0)
    for name in ("q_proj", "k_proj", "v_proj"):
        wide = getattr(layer.self_attn, name).weight
        wide[:, :size].copy_(torch.randn(wide[:, :size].shape, generator=generator) * 0.02)


def load_start(
    folder: Path, target: TargetModel, fused_layers: tuple[int, int, int] | None = None
) -> EagleHead:
    """The head in `folder`, to go on from.

    ValueError, in one line, if it is missing, damaged, of another target or, where `fused_layers` are given,
    reads other layers.
    """
    head = EagleHead.load(folder, target.own_layers)
    config = head.config
    if misfit := config.misfit(target):
        raise ValueError(f"head {folder} belongs to another target: {misfit}; train a fresh one")
    if fused_layers is not None and fused_layers != config.fused_layers:
        raise ValueError(
            f"head {folder} reads layers {list(config.fused_layers)}, not {list(fused_layers)}: leave "
            "fused_layers out, or train a fresh head"
        )
    return head


@torch.no_grad()
def go_on_from(old: EagleHead, target: TargetModel, vocabulary: torch.Tensor) -> EagleHead:
    """A head of `target` with the weights of `old` and the draft vocabulary `vocabulary`: int64 target ids.

    Output rows of ids that `old` could draft are its own; those of new ids are the target's, taken through
    the affine map that fits the rows of the ids that both have. The target's rows as they are would outbid
    the head's own, which have learned how rare they are: held-out agreement fell from .50 to .30.
    """
    size, fingerprint = len(vocabulary), target.text_fingerprint()
    head = EagleHead(replace(old.config, draft_vocab_size=size, target_fingerprint=fingerprint))
    head.set_vocabulary(vocabulary)
    weights = old.state_dict()
    rows = target.model.get_output_embeddings().weight.detach().cpu().float().clone()
    trained = weights["lm_head.weight"].float()
    rows = _mapped(rows, rows[old.target_ids_V], trained)
    rows[old.target_ids_V] = trained
    own = {"lm_head.weight": rows[head.target_ids_V], "d2t": head.d2t, "t2d": head.t2d}
    head.load_state_dict(weights | own)
    return head


def _mapped(rows: torch.Tensor, known: torch.Tensor, trained: torch.Tensor) -> torch.Tensor:
    """`rows` through the affine map that takes `known` to `trained` (all (.., H)), by ridge regression."""
    inputs = torch.cat([known, torch.ones(len(known), 1)], dim=1)
    square = inputs.T @ inputs
    square += 3e-4 * square.diagonal().mean() * torch.eye(len(square))
    weights = torch.linalg.solve(square, inputs.T @ trained)
    return torch.cat([rows, torch.ones(len(rows), 1)], dim=1) @ weights
