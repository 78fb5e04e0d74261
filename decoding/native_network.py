"""A policy's small network and its choice as one native call: within a cycle every numpy call, and every step
of Python, comes out of memory anew."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np

from decoding import native
from decoding.exported import Network


class NativeNetwork:
    """Takes the best allowed action, as `Network.outputs` has it up to the order of sums. Not for several
    threads at once.

    Args:
        library: of `native.library`.
        network: fp32.

    Attributes:
        outputs: of the last call.
    """

    def __init__(self, library: ctypes.CDLL, network: Network) -> None:
        # One that keeps the interpreter's lock: giving it back and taking it takes longer than the network.
        self._call = ctypes.PyDLL(library._name, handle=library._handle).decide
        self._call.restype = ctypes.c_int64  # no argtypes: an address needs no conversion
        widths = network.widths
        # By input, so that the inner loop runs over outputs and each sum has one order.
        layers = [np.concatenate([weight.T.ravel(), bias]) for weight, bias in network.layers]
        self._parameters = np.ascontiguousarray(np.concatenate(layers), dtype=np.float32)
        self._widths = (ctypes.c_int64 * len(widths))(*widths)
        self._scratch = (ctypes.c_float * (2 * max(widths)))()
        self.outputs = (ctypes.c_float * widths[-1])()
        # Both in one array of one type: it is written by one library, and that is the one that calls.
        self._asked = (ctypes.c_float * (widths[0] + widths[-1]))()
        features = ctypes.addressof(self._asked)
        self._decision = native.Decision(
            parameters=self._parameters.ctypes.data,
            widths=ctypes.addressof(self._widths),
            layers=len(widths) - 1,
            widest=max(widths),
            features=features,
            allowed=features + 4 * widths[0],
            scratch=ctypes.addressof(self._scratch),
            outputs=ctypes.addressof(self.outputs),
            smooth=network.activation == "tanh",
        )
        self._argument = ctypes.byref(self._decision)

    def __call__(self, draft: list[float], cycle: list[float], allowed: Sequence[bool]) -> int:
        """An action; -1 if the output of an allowed one is not finite.

        Args:
            draft, cycle: the features, in two parts.
            allowed: one an action, at least one True.
        """
        self._asked[:] = [*draft, *cycle, *allowed]
        return self._call(self._argument)


def native_network(network: Network) -> NativeNetwork | None:
    """None where this process has no native code: nothing is compiled for a policy."""
    library = native.loaded()
    return None if library is None else NativeNetwork(library, network)
