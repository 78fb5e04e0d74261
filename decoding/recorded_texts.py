"""The texts of some recordings in any order, each as a session that replays it: one is read at a time."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import pyarrow.parquet as pq

from decoding.profile import CostProfile
from decoding.replay_session import ReplaySession
from decoding.trace_file import TracedText, TraceHeader, read_text, read_trace
from decoding.trace_folder import complete_shards

_KEPT = 8  # wide and deep trees take a hundred megabytes a text


class RecordedTexts:
    """Numbered texts: those of the first recording, then those of the next.

    Args:
        folders: of one recording each, all of the same models and with the same drafts.
        profile: of the machine that they are replayed on.

    Attributes:
        headers: of each recording.
    """

    def __init__(self, folders: Sequence[Path], profile: CostProfile) -> None:
        self.headers: list[TraceHeader] = []
        self._profile = profile
        self._places: list[tuple[TraceHeader, Path, int]] = []
        for folder in folders:
            for path in complete_shards(folder):
                header, texts = read_trace(path)
                texts.close()
                count = pq.read_metadata(path).num_row_groups
                self._places += [(header, path, number) for number in range(count)]
            self.headers.append(header)
        first = self.headers[0]
        for folder, header in zip(folders, self.headers, strict=True):
            if (header.fingerprints, header.draft_depth) != (first.fingerprints, first.draft_depth):
                raise ValueError(f"recording {folder} is of other models or depths than {folders[0]}")

    def __len__(self) -> int:
        return len(self._places)

    def text(self, number: int) -> TracedText:
        """As it was recorded."""
        _, path, place = self._places[number]
        return _read(path, place)

    def session(self, number: int) -> ReplaySession:
        """A text, at its first root."""
        header, _, _ = self._places[number]
        return ReplaySession(
            self.text(number),
            self._profile,
            max_new_tokens=int(header.note["max_new_tokens"]),
            draft_depth=header.draft_depth,
            composite=header.drafter.startswith("composite"),
        )


@lru_cache(maxsize=_KEPT)
def _read(path: Path, place: int) -> TracedText:
    return read_text(path, place)
