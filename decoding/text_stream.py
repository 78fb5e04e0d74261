"""Turn a growing list of token ids into pieces of text that never split a character."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class TextStream:
    """Incremental detokenisation.

    A token may hold part of a character, and decoding may depend on the token before. So each piece is the
    difference between decoding a short window with and without the new tokens, and a piece that ends in the
    replacement character waits for the rest.
    """

    def __init__(self, tokenizer: Any, prompt_ids: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._ids = list(prompt_ids)[-1:]
        self._window = 0
        self._read = len(self._ids)

    def push(self, token_ids: Sequence[int], last: bool = False) -> str:
        """Add tokens; return the text that is now complete (all of it when `last`)."""
        self._ids.extend(token_ids)
        before = self._decode(self._ids[self._window : self._read])
        text = self._decode(self._ids[self._window :])
        if len(text) <= len(before) or (text.endswith("\ufffd") and not last):
            return ""
        self._window, self._read = self._read, len(self._ids)
        return text[len(before) :]

    def _decode(self, ids: list[int]) -> str:
        text: str = self._tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return text
