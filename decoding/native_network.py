"""A policy's small network as one native call: within a cycle every numpy call comes out of memory anew."""

from __future__ import annotations

import ctypes

import numpy as np

from decoding import native
from decoding.exported import Network


class NativeNetwork:
    """Computes what `Network.outputs` does, up to the order of sums. Not for several threads at once.

    Args:
        library: of `native.library`.
        network: fp32.
    """

    def __init__(self, library: ctypes.CDLL, network: Network) -> None:
        self._call = library.perceptron
        widths = network.widths
        # By input, so that the inner loop runs over outputs and each sum has one order.
        layers = [np.concatenate([weight.T.ravel(), bias]) for weight, bias in network.layers]
        self._parameters = np.ascontiguousarray(np.concatenate(layers), dtype=np.float32)
        self._widths = (ctypes.c_int64 * len(widths))(*widths)
        widest = max(widths)
        self._scratch = (ctypes.c_float * (2 * widest))()
        self._inputs = (ctypes.c_float * widths[0])()
        self._outputs = (ctypes.c_float * widths[-1])()
        self._arguments = (
            self._parameters.ctypes.data,
            ctypes.addressof(self._widths),
            len(widths) - 1,
            int(network.activation == "tanh"),
            ctypes.addressof(self._inputs),
            widest,
            ctypes.addressof(self._scratch),
            ctypes.addressof(self._outputs),
        )

    def __call__(self, features: list[float]) -> ctypes.Array[ctypes.c_float]:
        """The outputs; the next call writes over them."""
        self._inputs[:] = features  # type: ignore[assignment] # what ctypes takes, its stubs do not know
        self._call(*self._arguments)
        return self._outputs


def native_network(network: Network) -> NativeNetwork | None:
    """None where this process has no native code: nothing is compiled for a policy."""
    library = native.loaded()
    return None if library is None else NativeNetwork(library, network)
