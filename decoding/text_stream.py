"""Turn a growing list of token ids into pieces of text that never split a character."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class TextStream:
    """Incremental detokenisation.

    A token may hold part of a character, and decoding may depend on the token before. So each piece is what
    the new tokens add to the decoding of a short window, less replacement characters at its end: those may be
        a
    character whose other tokens are still to come.
    """

    def __init__(self, tokenizer: Any, prompt_ids: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._ids = list(prompt_ids)[-1:]
        # A prompt that ends inside a character is no context: the text would begin within its last one.
        if self._decode(self._ids).endswith("\ufffd"):
            self._ids = []
        self._window = 0
        self._read = len(self._ids)
        self._given = len(self._decode(self._ids))

    def push(self, token_ids: Sequence[int], last: bool = False) -> str:
        """Add tokens; return the text that is now complete (all of it when `last`)."""
        self._ids.extend(token_ids)
        text = self._decode(self._ids[self._window :])
        whole = text if last else text.rstrip("\ufffd")
        piece = whole[self._given :]
        self._given = max(self._given, len(whole))
        if piece and len(whole) == len(text):  # nothing waits: the next window may begin later
            self._window, self._read = self._read, len(self._ids)
            self._given = len(self._decode(self._ids[self._window :]))
        return piece

    def _decode(self, ids: list[int]) -> str:
        text: str = self._tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return text
