"""Linear layers for the few rows of a verification on CPUs.

A forward of 2 to 32 rows is bound by reading the weights, but BLAS libraries treat the rows as the long side
of the product. Computing the transposed product, weights first, costs about half as much for 2 to 4 rows
where it was measured, about as much for others (`make bench` prints both); it is the same sum of products in
another order.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

FEWEST_ROWS, MOST_ROWS = 2, 32


class FewRowsLinear(nn.Linear):
    """An `nn.Linear` that computes (weight @ x^T)^T where x has 2 to 32 rows on a CPU, in fp32 or fp64."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = x.numel() // self.in_features
        if (
            not FEWEST_ROWS <= rows <= MOST_ROWS
            or x.device.type != "cpu"
            or x.dtype not in (torch.float32, torch.float64)
        ):
            return F.linear(x, self.weight, self.bias)
        product = torch.mm(self.weight, x.reshape(rows, self.in_features).t()).t()
        if self.bias is not None:
            product = product + self.bias
        return product.contiguous().view(*x.shape[:-1], self.out_features)


def speed_up_few_rows(model: nn.Module) -> None:
    """Let every plain `nn.Linear` of a model use `FewRowsLinear`'s forward; weights and names stay."""
    for module in model.modules():
        # Only the class itself: a subclass, quantised say, has a forward of its own.
        if type(module) is nn.Linear:
            module.__class__ = FewRowsLinear
