"""Where a text's current ending occurred before: hashed n-grams, at a cost that is flat in its length.

A place is the index of the token that follows an occurrence: there a copy of what came next would begin.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

LONGEST_MATCH = 32  # beyond it no place is better than another: what is counted costs a comparison a token
_HASHED = (4, 8)  # besides the shortest: a common short ending has too many places to find the longest by


@dataclass(frozen=True, slots=True)
class Match:
    """An earlier occurrence of the text's ending.

    Attributes:
        place: index of the token that follows it; below the text's length.
        length: tokens that agree, going back from there and from the text's end, at most LONGEST_MATCH.
    """

    place: int
    length: int


class NgramIndex:
    """A text that grows, and its n-grams of a few lengths by where they ended.

    A function of the tokens alone: how `extend` was cut up leaves no trace.

    Args:
        min_match: shortest match that counts, 1..LONGEST_MATCH tokens.
        recent: latest places that are looked at for an n-gram of each length.
    """

    def __init__(self, min_match: int, recent: int = 4) -> None:
        lengths = {min_match, *(length for length in _HASHED if length >= min_match)}
        self._tokens: list[int] = []
        self._recent = recent
        self._tables = [_Places(length) for length in sorted(lengths, reverse=True)]

    def __len__(self) -> int:
        return len(self._tokens)

    def token(self, place: int) -> int:
        """The token at `place`, 0 <= place < len."""
        return self._tokens[place]

    def extend(self, token_ids: Sequence[int]) -> None:
        """Append tokens."""
        for token in token_ids:
            # Only now do the n-grams that ended at the text's end have a continuation.
            for table in self._tables:
                table.enter(self._tokens)
            self._tokens.append(token)

    def matches(self) -> list[Match]:
        """Matches of the text's present ending, each place once: longer first, then later.

        Bounded work: `recent` places for each hashed length, LONGEST_MATCH comparisons for each place.
        """
        lengths: dict[int, int] = {}
        for table in self._tables:
            for place in table.latest(self._tokens, self._recent):
                if place not in lengths:
                    lengths[place] = self._match_length(place, table.length)
        found = [Match(place, length) for place, length in lengths.items()]
        return sorted(found, key=lambda match: (-match.length, -match.place))

    def _match_length(self, place: int, known: int) -> int:
        """Tokens that agree before `place` and before the end, of which `known` are known to."""
        tokens, end, length = self._tokens, len(self._tokens), known
        most = min(place, LONGEST_MATCH)
        while length < most and tokens[place - 1 - length] == tokens[end - 1 - length]:
            length += 1
        return length


class _Places:
    """The places of the n-grams of one length, chained from the latest back.

    Chained and not in a list for each n-gram: most occur once, and entering one is then two writes, however
    many places are looked at.
    """

    def __init__(self, length: int) -> None:
        self.length = length
        self._latest: dict[tuple[int, ...], int] = {}
        self._earlier: list[int | None] = []  # of place `length` + i: the same n-gram's place before it

    def enter(self, tokens: Sequence[int]) -> None:
        """Enter the n-gram at the end of `tokens`, whose continuation will have index len(tokens)."""
        place = len(tokens)
        if place < self.length:
            return
        key = tuple(tokens[place - self.length :])
        self._earlier.append(self._latest.get(key))
        self._latest[key] = place

    def latest(self, tokens: Sequence[int], count: int) -> Iterator[int]:
        """At most `count` places of the n-gram at the end of `tokens`, latest first."""
        place = self._latest.get(tuple(tokens[-self.length :]))
        while place is not None and count > 0:
            yield place
            place = self._earlier[place - self.length]
            count -= 1
