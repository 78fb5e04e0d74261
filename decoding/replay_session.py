"""One traced text as a request: the session's questions and records, without a model.

What was drafted comes from the trace, what it costs from the profile. Whoever drives a `Session` drives this:
the same questions in the same order, the same views, records with predicted seconds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator
from dataclasses import replace

from decoding.controller import HISTORY, Controller, DraftView, Question, RootChoice
from decoding.profile import CostProfile, Source
from decoding.records import CycleRecord, PhaseSeconds
from decoding.remembered_costs import RememberedCosts
from decoding.session import Cycle, driven
from decoding.trace_file import TracedText
from decoding.traces import Position
from decoding.tree import DraftTree, Selection

UNKNOWN_TOKEN = -1


class ReplaySession:
    """A text of a trace, at its first root.

    Args:
        text: with its positions in order.
        profile: of the machine that it is to be replayed on; its remembered costs where texts are replayed
            many times.
        max_new_tokens: that the text was decoded with.
        draft_depth: that it was recorded to; nothing deeper can be asked for.
        composite: a match at the root means that the lookup drafts alone.
        temperature: of the recording.

    Attributes:
        generated: tokens emitted so far. The text's last one is known only where a draft reached it, and
            `UNKNOWN_TOKEN` elsewhere.
        prefill_seconds: 0, there is none.
    """

    prefill_seconds = 0.0

    def __init__(
        self,
        text: TracedText,
        profile: CostProfile | RememberedCosts,
        *,
        max_new_tokens: int,
        draft_depth: int,
        composite: bool = False,
        temperature: float = 0.0,
    ) -> None:
        self._temperature = temperature
        self._drafts = text.by_place()
        self._profile = profile
        self._max_new_tokens, self._draft_depth, self._composite = max_new_tokens, draft_depth, composite
        self._tokens = _tokens_of(self._drafts)
        self._place = 0
        self._since_draft = 1
        self._history: deque[CycleRecord] = deque(maxlen=HISTORY)
        self.root_choices = (RootChoice.PLAIN, *self._drafts[0])

    @property
    def finished(self) -> bool:
        return self._place == len(self._tokens)

    @property
    def tokens_left(self) -> int:
        return self._max_new_tokens - self._place

    @property
    def generated(self) -> list[int]:
        return self._tokens[: self._place]

    def run(self, controller: Controller) -> Iterator[CycleRecord]:
        """Replay to the end, every question put to `controller`."""
        while not self.finished:
            yield driven(self.cycle(), controller)

    def cycle(self) -> Cycle:
        """See `Session.cycle`."""
        if self.finished:
            raise ValueError("the text is at its end")
        drafts = self._drafts[self._place]
        first = next(iter(drafts.values()))
        limit = self.tokens_left - 1
        view = DraftView(
            DraftTree(first.tree.tokens[0]),
            min(limit, self._draft_depth),
            first.context_length,
            self.tokens_left,
            self._history,
            root_choices=self.root_choices,
            temperature=self._temperature,
        )
        # What the head thinks of the lookup's token is known after its first level.
        view.lookup = None if first.lookup is None else replace(first.lookup, agrees=None)
        here, asked = yield from self._draft_levels(view, drafts)
        size = 0
        if view.tree.size:
            size = max(0, min(view.tree.size, (yield Question("size", view))))
            asked += 1
        selection = view.tree.select(size)
        accepted = _accepted_by_depth(selection, self._tokens[self._place :])
        emitted = min(sum(accepted) + 1, len(self._tokens) - self._place)
        record = CycleRecord(
            draft_depth=view.tree.depth,
            verification_size=selection.verification_size,
            accepted_by_depth=accepted,
            token_ids=tuple(self._tokens[self._place : self._place + emitted]),
            context_length=first.context_length,
            seconds=self._seconds(view, here, selection, emitted, asked),
        )
        self._place += emitted
        self._history.append(record)
        return record

    def _draft_levels(
        self, view: DraftView, drafts: dict[RootChoice, Position]
    ) -> Generator[Question, int, tuple[Position | None, int]]:
        """Leaves the finished tree in the view; the draft it comes from, and questions asked."""
        if view.depth_limit <= 0:
            return None, 0
        choice = RootChoice((yield Question("draft", view)))
        if choice == RootChoice.PLAIN:
            return None, 1
        here, asked, depth = drafts[choice], 1, 0
        while choice != RootChoice.LOOKUP:
            extended = depth < here.tree.depth
            depth += extended
            view.tree, view.lookup = here.tree.upto(depth), here.lookup
            if not extended or depth >= view.depth_limit:
                break
            asked += 1
            if not (yield Question("level", view)):
                break
        view.tree, view.lookup = here.tree_at(depth, self.tokens_left - 1), here.lookup
        return here, asked

    def _seconds(
        self, view: DraftView, here: Position | None, selection: Selection, emitted: int, asked: int
    ) -> PhaseSeconds:
        profile, context, tree = self._profile, view.context_length, view.tree
        draft, depth = float(profile.start_seconds(context)), tree.depth
        if here is not None:
            source = self._source(here)
            depth = tree.height if here.choice == RootChoice.LOOKUP else tree.depth
            if depth:
                levels = range(1, depth + 1)
                draft += float(profile.level_seconds(levels, context, self._since_draft, source).sum())
            self._since_draft = 0 if source == "head" and depth else self._since_draft
        self._since_draft += emitted
        size = selection.verification_size
        return PhaseSeconds(
            draft=draft,
            select=float(profile.selection_seconds(depth, size)),
            verify=float(profile.verification_seconds(size + 1, context, emitted)),
            commit=float(profile.commit_seconds(emitted)),
            policy=profile.policy * asked,
        )

    def _source(self, here: Position) -> Source:
        matched = self._composite and here.lookup is not None and here.lookup.match_length > 0
        return self._profile.source(here.choice == RootChoice.LOOKUP or matched)


def _tokens_of(drafts: list[dict[RootChoice, Position]]) -> list[int]:
    """The text: each position's root is the token before; drafts of the last ones say what the end is."""
    count = len(drafts)
    tokens = [next(iter(drafts[place].values())).tree.tokens[0] for place in range(1, count)]
    last = UNKNOWN_TOKEN
    for place in range(count):
        for one in drafts[place].values():
            if place + len(one.following) == count:
                last = one.following[-1]
    return [*tokens, last]


def _accepted_by_depth(selection: Selection, following: list[int]) -> tuple[bool, ...]:
    """As `accept_coupled` finds them; the text's last token ends it."""
    children: dict[tuple[int, int], int] = {}
    for row, (parent, token) in enumerate(zip(selection.parents, selection.tokens, strict=True)):
        if row:
            children.setdefault((parent, token), row)
    parents = set(selection.parents)
    row, accepted = 0, []
    for place, token in enumerate(following):
        if row not in parents:
            break
        accepted.append((row, token) in children)
        if not accepted[-1] or place + 1 == len(following):
            break
        row = children[row, token]
    return tuple(accepted)
