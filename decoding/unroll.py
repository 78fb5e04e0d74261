"""Attention of training-time test: true pairs under a mask, and on top the drafted pairs of the query's own
path.

Legend: B texts, N pairs, A attention heads, G key/value heads, D head size.
"""

from __future__ import annotations

import torch


def shift(x: torch.Tensor, by: int, dim: int = 1) -> torch.Tensor:
    """Move along `dim` to later positions by `by`, zeros in front."""
    if by == 0:
        return x
    by = min(by, x.shape[dim])  # a batch of short texts has fewer places than that
    front = torch.zeros_like(x.narrow(dim, 0, by))
    return torch.cat([front, x.narrow(dim, 0, x.shape[dim] - by)], dim=dim)


def attend_unrolled(
    queries_BAND: torch.Tensor,
    keys_BGND: torch.Tensor,
    values_BGND: torch.Tensor,
    mask_NN: torch.Tensor,
    drafted: list[tuple[torch.Tensor, torch.Tensor]],
) -> torch.Tensor:
    """Attention over the true pairs under `mask_NN` and, of every drafted step, the pair on the query's
    path."""
    repeat = queries_BAND.shape[1] // keys_BGND.shape[1]
    scale = queries_BAND.shape[-1] ** -0.5
    scores = queries_BAND @ keys_BGND.repeat_interleave(repeat, 1).transpose(2, 3) * scale
    scores = scores.masked_fill(~mask_NN, torch.finfo(scores.dtype).min)
    path = []
    for index, (keys, values) in enumerate(drafted):
        lag = len(drafted) - 1 - index
        path.append([shift(part, lag, dim=2).repeat_interleave(repeat, 1) for part in (keys, values)])
    own = [(queries_BAND * keys).sum(-1, keepdim=True) * scale for keys, _ in path]
    weights = torch.softmax(torch.cat([scores, *own], dim=-1), dim=-1)
    length = mask_NN.shape[1]
    attended = weights[..., :length] @ values_BGND.repeat_interleave(repeat, 1)
    for index, (_, values) in enumerate(path):
        attended = attended + weights[..., length + index, None] * values
    return attended
