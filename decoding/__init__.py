"""Speculative decoding with a draft length that is decided cycle by cycle. Knows nothing of learning."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from decoding.controller import (
        Controller,
        DraftView,
        FixedController,
        LookupHint,
        PlainController,
        RootChoice,
    )
    from decoding.decoder import SpeculativeDecoder
    from decoding.exported import ExportedController
    from decoding.generation import Generation, Options, StreamPiece
    from decoding.records import CycleRecord, PhaseSeconds
    from decoding.sampling import Sampling
    from decoding.session import Session

__all__ = [
    "Controller",
    "CycleRecord",
    "DraftView",
    "ExportedController",
    "FixedController",
    "Generation",
    "LookupHint",
    "Options",
    "PhaseSeconds",
    "PlainController",
    "RootChoice",
    "Sampling",
    "Session",
    "SpeculativeDecoder",
    "StreamPiece",
]

_HOME = {
    "controller": (
        "Controller",
        "DraftView",
        "FixedController",
        "LookupHint",
        "PlainController",
        "RootChoice",
    ),
    "decoder": ("SpeculativeDecoder",),
    "exported": ("ExportedController",),
    "generation": ("Generation", "Options", "StreamPiece"),
    "records": ("CycleRecord", "PhaseSeconds"),
    "sampling": ("Sampling",),
    "session": ("Session",),
}


def __getattr__(name: str) -> Any:
    # Imported when asked for: whoever runs an exported policy need not wait for transformers.
    for module, names in _HOME.items():
        if name in names:
            return getattr(import_module(f"decoding.{module}"), name)
    raise AttributeError(f"module 'decoding' has no attribute {name!r}")
