"""Decode a text that is known: the same computation, and tokens that are given.

In half precision a forward of other rows rounds otherwise, so that arms come to different texts, and then to
different amounts of work. On a forced text all of them commit the same tokens: a drafted token is accepted if
and only if the given text has it, and the target's own choice is computed all the same.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from decoding.sampling import TokenChooser
from decoding.session import Session


class ForcedChooser(TokenChooser):
    """Chooses as another does, and says what is given.

    Args:
        chooser: computes the target's own choice.
        token_ids: of the generated tokens from the first on; beyond them the own choice is said.

    Attributes:
        disagreements: rows on which the own choice was another.
    """

    def __init__(self, chooser: TokenChooser, token_ids: Sequence[int]) -> None:
        super().__init__(chooser.sampling, chooser.noise)
        self._token_ids = tuple(token_ids)
        self.disagreements = 0

    def choose(
        self,
        logits_RV: torch.Tensor,
        indices: Sequence[int],
        contexts: Sequence[Sequence[int]] | None = None,
        best: tuple[list[float], list[int]] | None = None,
    ) -> list[int]:
        own = super().choose(logits_RV, indices, contexts, best)
        known = len(self._token_ids)
        said = [
            self._token_ids[index] if index < known else token
            for index, token in zip(indices, own, strict=True)
        ]
        self.disagreements += sum(one != other for one, other in zip(own, said, strict=True))
        return said


def forced(session: Session, token_ids: Sequence[int]) -> Session:
    """Let a session that has not begun say this text.

    Raises:
        ValueError: it has begun, or verifies by rejection, where no text is known beforehand.
    """
    if session.generated:
        raise ValueError(f"the session has generated {len(session.generated)} tokens: force a text before")
    if session.rule != "coupled":
        raise ValueError(f"a text cannot be forced under the rule {session.rule!r}: use coupled")
    session.chooser = ForcedChooser(session.chooser, token_ids)
    return session
