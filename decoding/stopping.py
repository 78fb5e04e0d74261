"""Stop strings: the text ends before the first of them, wherever the borders of tokens and cycles fall."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from decoding.text_stream import TextStream


class StopStrings:
    """Reads a text token by token and says when a stop string is complete.

    Args:
        strings: what ends the text; none of them empty.
        tokenizer: the target's.
        prompt_ids: the prompt; a stop string within it does not count.

    Attributes:
        text: the text so far, without a stop string that ended it. The last characters may still be missing,
            if their tokens are not complete.
        found: the stop string that ended the text, None so far.
    """

    def __init__(self, strings: Sequence[str], tokenizer: Any, prompt_ids: Sequence[int]) -> None:
        self.strings = check_stop_strings(strings)
        self.text = ""
        self.found: str | None = None
        self._stream = TextStream(tokenizer, prompt_ids)
        self._longest = max(len(string) for string in self.strings)
        self._given = 0

    def push(self, token_id: int) -> bool:
        """Add a token; is a stop string complete?"""
        return self._read(self._stream.push([token_id]))

    def finish(self) -> None:
        """Take what is left of a character whose tokens ended with the text."""
        if self.found is None:
            self._read(self._stream.push([], last=True))

    def take(self, last: bool) -> str:
        """The text since the last call that no stop string can take back (all of it when `last`)."""
        until = len(self.text) if last or self.found else len(self.text) - self._beginning()
        piece = self.text[self._given : until]
        self._given += len(piece)
        return piece

    def _read(self, piece: str) -> bool:
        # Anything that began earlier would have been found with an earlier token.
        new = max(0, len(self.text) - self._longest + 1)
        self.text += piece
        places = {string: self.text.find(string, new) for string in self.strings}
        hits = [(place, -len(string), string) for string, place in places.items() if place >= 0]
        if hits:
            place, _, self.found = min(hits)
            self.text = self.text[:place]
        return bool(hits)

    def _beginning(self) -> int:
        """Length of the longest ending of the text that a stop string could begin with."""
        for length in range(min(self._longest - 1, len(self.text) - self._given), 0, -1):
            if any(string.startswith(self.text[-length:]) for string in self.strings):
                return length
        return 0


def check_stop_strings(strings: str | Sequence[str] | None) -> tuple[str, ...]:
    """The strings, of one or several or none; ValueError if one is empty or no text."""
    if strings is None:
        return ()
    if isinstance(strings, str):
        strings = [strings]
    if not isinstance(strings, Sequence):
        raise ValueError(f"stop is {strings!r}, must be a string or a list of strings")
    for string in strings:
        if not isinstance(string, str) or not string:
            raise ValueError(f"a stop string is {string!r}, must be text of at least one character")
        if any("\ud800" <= character <= "\udfff" for character in string):
            raise ValueError(f"the stop string {string!r} is no valid UTF-8 text: no token could complete it")
    return tuple(strings)
