"""A profile's costs, each asked of it once: replaying the same texts many times asks for the same few."""

from __future__ import annotations

from functools import cache

import numpy as np

from decoding.profile import CostProfile, Source


class RememberedCosts:
    """What a replayed session asks of a profile: the same numbers, most of them looked up.

    Arguments of `level_seconds`: several levels as a range. What it returns is shared: read it only.
    """

    def __init__(self, profile: CostProfile) -> None:
        self.policy = profile.policy
        self.source = profile.source
        self.start_seconds = cache(profile.start_seconds)
        self.selection_seconds = cache(profile.selection_seconds)
        self.verification_seconds = cache(profile.verification_seconds)
        self.commit_seconds = cache(profile.commit_seconds)
        self._levels = cache(profile.level_seconds)

    def level_seconds(self, level: range, context: int, emitted_before: int, source: Source) -> np.ndarray:
        """See `CostProfile.level_seconds`."""
        return self._levels(level, context, emitted_before, source)
