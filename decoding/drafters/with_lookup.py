"""What drafters share that add a lookup to a head: both parts, and one calibration for the two."""

from __future__ import annotations

from decoding.calibration import Calibration
from decoding.drafters.causal_lm import CausalLMDrafter
from decoding.drafters.eagle import EagleDrafter
from decoding.drafters.ngram import NgramDrafter

BeamDrafter = EagleDrafter | CausalLMDrafter


class HeadWithLookup:
    """A head, or a smaller language model, and a lookup, which takes the head's calibration.

    Args:
        name: for reports.
    """

    def __init__(self, head: BeamDrafter, lookup: NgramDrafter, name: str) -> None:
        self.name = name
        self.head = head
        self.lookup = lookup
        self.calibration = head.calibration
        self.fused_layers = head.fused_layers
        self.draft_depth = head.draft_depth
        self.verification_size = head.verification_size

    @property
    def calibration(self) -> Calibration | None:
        """Of head and lookup."""
        return self.head.calibration

    @calibration.setter
    def calibration(self, calibration: Calibration | None) -> None:
        self.head.calibration = self.lookup.calibration = calibration
