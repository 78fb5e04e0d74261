"""What a request may ask for, and what comes of it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TypedDict

from decoding.records import CycleRecord
from decoding.sampling import LogitsProcessor
from decoding.session import FinishReason, Rule


class Options(TypedDict, total=False):
    """What a request may ask for; meanings and defaults are those of `SpeculativeDecoder.open_session`."""

    max_new_tokens: int
    temperature: float
    top_k: int | None
    top_p: float | None
    min_p: float | None
    repetition_penalty: float | None
    logits_processors: Sequence[LogitsProcessor] | None
    stop: str | Sequence[str] | None
    stop_token_ids: Collection[int] | None
    log_probs: bool
    rule: Rule


@dataclass(frozen=True, slots=True)
class Generation:
    """A finished text.

    Attributes:
        text: what was generated, special tokens left out, a stop string that ended it too.
        token_ids: ids generated, an end-of-text id included.
        cycles: a record per cycle.
        prefill_seconds: wall-clock time before the first cycle.
        seed: the seed that reproduces it.
        finish_reason: `end_token`, `stop_string`, or `length` where a limit cut the text.
        log_probs: of each token, see `CycleRecord.log_probs`; None unless asked for.
    """

    text: str
    token_ids: list[int]
    cycles: list[CycleRecord]
    prefill_seconds: float
    seed: int
    finish_reason: FinishReason
    log_probs: list[float] | None = None

    @property
    def tokens_per_second(self) -> float:
        """Generated tokens over the seconds of all cycles, prefill excluded."""
        return len(self.token_ids) / sum(record.seconds.total for record in self.cycles)

    @property
    def acceptance_length(self) -> float:
        """Mean emitted tokens of a cycle (tau); plain decoding = 1."""
        return len(self.token_ids) / len(self.cycles)


@dataclass(frozen=True, slots=True)
class StreamPiece:
    """One cycle of a stream.

    Attributes:
        text: what the cycle completed; may be empty.
        cycle: its record.
        seed: the seed that reproduces the text.
        finish_reason: as in `Generation`; None but for the last piece.
    """

    text: str
    cycle: CycleRecord
    seed: int
    finish_reason: FinishReason | None


def checked_processors(processors: Sequence[LogitsProcessor] | None) -> tuple[LogitsProcessor, ...]:
    """The processors, of several or none; ValueError if it is no list."""
    if processors is None:
        return ()
    if not isinstance(processors, Sequence):
        raise ValueError(f"logits_processors is {processors!r}, must be a list of them")
    return tuple(processors)


def checked_token_ids(ids: Collection[int] | None, vocabulary_size: int) -> frozenset[int]:
    """The ids that end a text, of several or none; ValueError if they are no token ids."""
    if ids is None:
        return frozenset()
    if not isinstance(ids, Collection):
        raise ValueError(f"stop_token_ids is {ids!r}, must be a list of token ids")
    for token in ids:
        if isinstance(token, bool) or not isinstance(token, int):
            raise ValueError(f"a stop token id is {token!r}, must be a whole number (strings go to `stop`)")
        if not 0 <= token < vocabulary_size:
            raise ValueError(f"a stop token id is {token}, must be in 0..{vocabulary_size - 1}")
    return frozenset(ids)
