"""The decoder that a configuration names."""

from __future__ import annotations

from configs.schema import Config
from decoding.decoder import SpeculativeDecoder


def load_decoder(config: Config) -> SpeculativeDecoder:
    """Target and drafter, loaded with what `model` and `draft` say."""
    decoder = SpeculativeDecoder.from_pretrained(
        config.model.target,
        config.model.drafter,
        device=config.model.device,
        dtype=config.model.dtype,
        path=config.model.path,
        extra_layers=config.model.extra_layers,
        beam_width=config.draft.beam_width,
        min_match=config.draft.min_match,
        lookup_depth=config.draft.lookup_depth,
    )
    if not config.draft.calibrated:
        decoder.drafter.calibration = None
    return decoder
