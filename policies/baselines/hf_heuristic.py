"""Longer after a draft that was accepted whole, shorter after any other."""

from __future__ import annotations

from decoding.controller import MAX_DRAFT_DEPTH, DraftView
from decoding.records import CycleRecord
from policies.baselines.depth_rule import DepthRule, Frame, accepted_levels, check_whole


class HfHeuristic(DepthRule):
    """Hugging Face transformers, `num_assistant_tokens_schedule="heuristic_transient"`: the depth grows by 2
    if all drafted tokens were accepted, else falls by 1, never below 1.

    Source: transformers 5.24, `AssistedCandidateGenerator.update_candidate_strategy`. It begins with
    `num_assistant_tokens`: 5 while this schedule was the default; since then 20, with a constant schedule and
    the confidence threshold. There the depth has no upper end; here the frame's, without which a request that
    drafted well would need many failures to come back into the depths that can be drafted.

    Args:
        start: depth of a request's first draft, >= 1.
        up, down: what is added after a full acceptance, and taken away after any other.
    """

    def __init__(self, frame: Frame, start: int = 5, up: int = 2, down: int = 1) -> None:
        super().__init__(frame)
        for name, value in (("start", start), ("up", up), ("down", down)):
            check_whole(name, value, 1, MAX_DRAFT_DEPTH)
        self.depth = min(start, frame.max_depth)
        self._up, self._down = up, down

    def observe(self, record: CycleRecord) -> None:
        if accepted_levels(record) == record.draft_depth:
            self.depth = min(self.depth + self._up, self.frame.max_depth)
        else:
            self.depth = max(self.depth - self._down, 1)

    def goes_on(self, view: DraftView) -> bool:
        return view.tree.depth < self.depth
