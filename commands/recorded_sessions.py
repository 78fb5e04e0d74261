"""Recordings replayed one cycle at a time: for controllers that are no function of a policy's features."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from commands.recorded import nearest, recording_folders, tokens_of
from decoding.profile import CostProfile
from decoding.remembered_costs import RememberedCosts
from decoding.replay_session import ReplaySession
from decoding.trace_file import TracedText, TraceHeader
from decoding.trace_folder import read_traces


@dataclass(frozen=True)
class RecordedTexts:
    """One recording in memory, and how it is replayed."""

    header: TraceHeader
    texts: list[TracedText]
    costs: RememberedCosts

    def sessions(self) -> Iterator[ReplaySession]:
        """Every text anew, in the recording's order."""
        for text in self.texts:
            yield ReplaySession(
                text,
                self.costs,
                max_new_tokens=tokens_of(self.header),
                draft_depth=self.header.draft_depth,
                composite=self.header.drafter.startswith("composite"),
                temperature=self.header.temperature,
            )


def recorded_texts(
    folder: Path,
    costs: Sequence[CostProfile],
    temperatures: Sequence[float] | None = None,
    question_seconds: float | None = None,
) -> list[RecordedTexts]:
    """The recordings in a folder, or those at `temperatures`, by temperature; costs of the nearest profile.

    Args:
        question_seconds: of each question; None = what a fixed controller takes, the profile's own.
    """
    found = []
    for one in recording_folders(folder):
        header, texts = read_traces(one)
        if temperatures is None or header.temperature in temperatures:
            profile = nearest(list(costs), header.temperature)
            if question_seconds is not None:
                profile = replace(profile, policy=question_seconds)
            found.append(RecordedTexts(header, list(texts), RememberedCosts(profile)))
    # As the tables of these recordings are joined: by temperature in the order of their first one.
    order = list(dict.fromkeys(one.header.temperature for one in found))
    return sorted(found, key=lambda one: order.index(one.header.temperature))
