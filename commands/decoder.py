"""The decoder that a configuration names."""

from __future__ import annotations

import sys
from pathlib import Path

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


def decoder_with(config: Config, policy: Path | None) -> SpeculativeDecoder:
    """The configured models, with the policy if there is one; its warnings go to standard error."""
    decoder = load_decoder(config)
    if policy is not None:
        for warning in decoder.use_policy(policy):
            print(f"warning: {warning}", file=sys.stderr)
    return decoder
