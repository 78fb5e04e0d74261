"""Speculative decoding with a draft length that is decided cycle by cycle. Knows nothing of learning."""

from decoding.controller import Controller, FixedController, PlainController
from decoding.decoder import Generation, SpeculativeDecoder, StreamPiece
from decoding.records import CycleRecord, PhaseSeconds
from decoding.sampling import Sampling
from decoding.session import Session

__all__ = [
    "Controller",
    "CycleRecord",
    "FixedController",
    "Generation",
    "PhaseSeconds",
    "PlainController",
    "Sampling",
    "Session",
    "SpeculativeDecoder",
    "StreamPiece",
]
