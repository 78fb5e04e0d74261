"""The product for few rows is the same function as `nn.Linear`, and reaches every plain linear layer."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from decoding.linear import MOST_ROWS, FewRowsLinear, speed_up_few_rows


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("rows", [1, 2, 3, 8, MOST_ROWS, MOST_ROWS + 1])
def test_it_is_the_same_function(rows: int, bias: bool) -> None:
    torch.manual_seed(0)
    plain = nn.Linear(24, 10, bias=bias, dtype=torch.float64)
    model = nn.Sequential(nn.Linear(24, 10, bias=bias, dtype=torch.float64))
    model[0].load_state_dict(plain.state_dict())
    speed_up_few_rows(model)
    x = torch.randn(1, rows, 24, dtype=torch.float64)
    out = model(x)
    torch.testing.assert_close(out, plain(x), rtol=1e-13, atol=1e-13)
    assert out.is_contiguous()
    assert out.shape == (1, rows, 10)


def test_half_precision_takes_the_ordinary_way() -> None:
    layer = nn.Linear(8, 4, dtype=torch.bfloat16)
    x = torch.randn(1, 3, 8, dtype=torch.bfloat16)
    expected = layer(x)
    speed_up_few_rows(layer)
    assert torch.equal(layer(x), expected)


def test_plain_layers_change_and_subclasses_do_not() -> None:
    class Quantised(nn.Linear):
        pass

    model = nn.ModuleDict({"plain": nn.Linear(4, 4), "own": Quantised(4, 4)})
    names = list(model.state_dict())
    speed_up_few_rows(model)
    assert type(model["plain"]) is FewRowsLinear
    assert type(model["own"]) is Quantised
    assert list(model.state_dict()) == names
