"""What a drafter is to a session: a factory of per-request states that propose a tree, level by level.

Drafters are pure: the same committed prefix and the same noise give the same draft, whatever the history of
cycle boundaries was.

Legend: R rows, F width of the target's fused features, V the target's vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch

from decoding.calibration import Calibration
from decoding.controller import USUAL_CHOICES, LookupHint, RootChoice
from decoding.noise import NoiseStream
from decoding.tree import DraftTree


class DraftState(Protocol):
    """One request's drafter. Derive from it: `choose`, `finish` and `hint` have what most drafters need.

    Attributes:
        root_choices: what it can draft with, see `RootChoice`.
    """

    root_choices: tuple[RootChoice, ...] = USUAL_CHOICES

    def ingest(
        self,
        token_ids: Sequence[int],
        features_RF: torch.Tensor | None,
        rows: Sequence[int] | None = None,
    ) -> None:
        """Take newly committed tokens. `features_RF` has the target's at the position *before* each token, in
        those of its rows that `rows` names, None = its rows in order. No features: the drafter captures no
        layers, or it is a prompt's first token, which has no such position."""
        ...

    def depth_limit(self) -> int:
        """Levels that can be drafted at this root; 0 if it has nothing to draft from."""
        ...

    def begin(self) -> DraftTree:
        """Forget an earlier draft; return a tree that holds the root alone."""
        ...

    def choose(self, choice: RootChoice) -> None:
        """Draft with this, one of `root_choices` and not PLAIN; called after `begin`, before any level."""
        return None

    def finish(self, limit: int) -> None:
        """No further level will be drafted: join what costs no draft work, to at most `limit` levels."""
        return None

    def hint(self) -> LookupHint | None:
        """What a lookup says at this root, after `begin`; None for a drafter that does not look up."""
        return None

    def extend(self) -> bool:
        """Add a level to the tree; False, and nothing added, if the drafter has nothing more to propose."""
        ...

    def next_logits(self) -> torch.Tensor | None:
        """For the `rejection` rule, which drafts chains: logits (V) of the token after the chain drafted
        since `begin`, -infinity outside the drafter's vocabulary; None if it has nothing to propose.

        Neither the noise nor a temperature is in them. Asking again before `append` costs nothing.
        """
        ...

    def append(self, token_id: int, score: float) -> None:
        """Add the token that was drawn from the distribution of `next_logits` as the chain's next node;
        `score` is its path score."""
        ...


class Drafter(Protocol):
    """Shared by all requests; holds weights and settings."""

    name: str
    fused_layers: tuple[int, ...]
    draft_depth: int
    verification_size: int
    calibration: Calibration | None

    def start(self, noise: NoiseStream, temperature: float, prompt_length: int) -> DraftState:
        """A fresh state for one request."""
        ...

    def fingerprint(self) -> str:
        """Short hash of everything that its drafts depend on but the target: weights, settings,
        calibration."""
        ...
