"""A policy's network in native code: what numpy computes, faults included."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from decoding import native
from decoding.exported import Network
from decoding.native_network import NativeNetwork, native_network


def network_of(widths: list[int], activation: str, seed: int) -> Network:
    rng = np.random.default_rng(seed)
    layers = [
        (rng.normal(size=(out, wide)).astype(np.float32) / 3, rng.normal(size=out).astype(np.float32))
        for wide, out in itertools.pairwise(widths)
    ]
    return Network(layers, activation)


def outputs(mine: NativeNetwork, features: list[float], allowed: list[bool] | None = None) -> list[float]:
    """In two parts, as a controller has them."""
    mine(features[:1], features[1:], [True] * len(mine.outputs) if allowed is None else allowed)
    return list(mine.outputs)


def exact(network: Network, features: np.ndarray) -> np.ndarray:
    """In float64, by a plain loop."""
    x = [float(one) for one in features]
    for place, (weight, bias) in enumerate(network.layers):
        x = [
            sum(float(w) * v for w, v in zip(row, x, strict=True)) + float(b)
            for row, b in zip(weight, bias, strict=True)
        ]
        if place < len(network.layers) - 1:
            x = [max(0.0, v) if network.activation == "relu" else float(np.tanh(v)) for v in x]
    return np.array(x)


@pytest.mark.parametrize("activation", ["relu", "tanh"])
@pytest.mark.parametrize("widths", [[3, 2], [5, 7, 4], [23, 64, 64, 13], [4, 1, 9, 2, 6]])
def test_it_computes_the_network(widths: list[int], activation: str) -> None:
    network = network_of(widths, activation, len(widths))
    mine = NativeNetwork(native.library(), network)
    rng = np.random.default_rng(1)
    for _ in range(5):
        features = rng.normal(size=widths[0]).astype(np.float32)
        np.testing.assert_allclose(
            outputs(mine, features.tolist()), exact(network, features), rtol=1e-4, atol=1e-5
        )


@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_what_is_no_number_stays_none(poison: float) -> None:
    """A controller looks for it, and falls back."""
    network = network_of([4, 8, 3], "relu", 0)
    network.layers[0][1][:] = poison
    mine = NativeNetwork(native.library(), network)
    assert not np.isfinite(outputs(mine, [0.0] * 4)).any()


def chosen(bias: list[float], allowed: list[bool]) -> int:
    """Of a network whose outputs these are."""
    layer = (np.zeros((len(bias), 2), dtype=np.float32), np.array(bias, dtype=np.float32))
    return NativeNetwork(native.library(), Network([layer], "relu"))([0.5], [0.25], allowed)


def test_the_best_allowed_is_taken_and_the_first_of_equals() -> None:
    assert chosen([1, 4, 3, 4], [True] * 4) == 1
    assert chosen([1, 4, 3, 4], [True, False, True, True]) == 3
    assert chosen([1, 4, 3, 4], [True, False, True, False]) == 2
    assert chosen([-3, -2, -1, 0], [True, True, False, False]) == 1
    assert chosen([-3, -2, -1, 0], [True, False, False, False]) == 0


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", range(3))
def test_an_allowed_output_that_is_no_number_leaves_no_choice(poison: float, place: int) -> None:
    """Wherever it stands; of what is not allowed it is nothing."""
    bias = [1.0, 2.0, 3.0]
    bias[place] = poison
    assert chosen(bias, [True] * 3) == -1
    others = [one for one in range(3) if one != place]
    assert chosen(bias, [one != place for one in range(3)]) == others[-1]


def test_nothing_is_compiled_for_a_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "loaded", lambda: None)
    assert native_network(network_of([2, 2], "relu", 0)) is None
