"""Recorded texts as arrays: at every position each question that can be asked, and what each answer does.

A position's questions are nodes of a small graph, the same everywhere: the root, after each level of each
draft, and the size of a lookup alone. A table holds what no policy and no machine changes;
`decision_costs.py` adds the seconds.

Legend: P positions of all texts, T texts, N nodes, A actions, S sizes, F features.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from decoding.controller import DraftView, QuestionKind, RootChoice
from decoding.cycle_features import HISTORY_NAMES, CycleFeatures
from decoding.decisions import Decisions
from decoding.replay import path_ranks
from decoding.trace_file import TracedText
from decoding.traces import Position
from decoding.tree import DraftTree

ROOT_NODE = 0
_LEVELS = (RootChoice.ALL, RootChoice.HEAD)


@dataclass(frozen=True)
class Nodes:
    """The graph of questions of one cycle.

    Attributes:
        choice: of each node but the root, what is drafted with.
        depth: levels drafted there; 0 at the root and of a lookup alone.
        next_NA: node that an action leads to; -1: it ends the cycle, or is not asked there.
    """

    choice: tuple[RootChoice, ...]
    depth: tuple[int, ...]
    next_NA: np.ndarray

    @classmethod
    def of(cls, decisions: Decisions) -> Nodes:
        """Those that these decisions can lead to."""
        choice, depth = [RootChoice.PLAIN], [0]
        for one in decisions.choices:
            levels = range(1, decisions.max_depth + 1) if one in _LEVELS else [0]
            choice += [one] * len(levels)
            depth += levels
        next_NA = np.full((len(choice), len(decisions)), -1, dtype=np.int64)
        for one in decisions.choices:
            next_NA[ROOT_NODE, decisions.draft_action(one)] = choice.index(one)
        for node in range(1, len(choice) - 1):
            if choice[node + 1] == choice[node]:
                next_NA[node, decisions.continue_action] = node + 1
        return cls(tuple(choice), tuple(depth), next_NA)

    def __len__(self) -> int:
        return len(self.choice)


@dataclass(frozen=True)
class DecisionTable:
    """T texts, one after the other.

    Attributes:
        decisions, features: what the arrays are of.
        names: question ids; categories, languages: of the texts, "" where unknown.
        starts: (T + 1) first position of each text.
        context_P: committed tokens.
        features_PNF: float32, the history's entries 0.
        allowed_PNA: bool, see `Decisions.allowed`. A draft that found nothing allows the first size alone.
        emitted_PNS: int16, tokens that a verification commits, >= 1.
        size_PNS: int16, nodes that it verifies.
        levels_PN: int16, levels that were drafted or looked up there.
        lookup_PN: bool, whether a lookup drafted them alone.
        asked_P: bool; at a text's last token nothing can be drafted, and nobody is asked.
    """

    decisions: Decisions
    features: CycleFeatures
    names: tuple[str, ...]
    categories: tuple[str, ...]
    languages: tuple[str, ...]
    starts: np.ndarray
    context_P: np.ndarray
    features_PNF: np.ndarray
    allowed_PNA: np.ndarray
    emitted_PNS: np.ndarray
    size_PNS: np.ndarray
    levels_PN: np.ndarray
    lookup_PN: np.ndarray
    asked_P: np.ndarray

    @property
    def texts(self) -> int:
        return len(self.names)

    @property
    def positions(self) -> int:
        return len(self.context_P)


ARRAYS = (
    "context_P",
    "features_PNF",
    "allowed_PNA",
    "emitted_PNS",
    "size_PNS",
    "levels_PN",
    "lookup_PN",
    "asked_P",
)


def decision_table(
    texts: Iterable[TracedText],
    decisions: Decisions,
    features: CycleFeatures,
    max_new_tokens: int,
    composite: bool = False,
) -> DecisionTable:
    """The table of recorded texts.

    Args:
        max_new_tokens: that the texts were decoded with: near that limit drafts are shorter.
        composite: a match at the root means that the lookup drafts alone.

    Raises:
        ValueError: there is no text; one is longer than `max_new_tokens`; a trace lacks a choice that the
            decisions offer; features and decisions are of other sizes or depths.
    """
    if (features.sizes, features.max_depth) != (decisions.sizes, decisions.max_depth):
        raise ValueError(f"the features are of {features.sizes} and {features.max_depth}, not {decisions}")
    nodes = Nodes.of(decisions)
    about, parts, starts = [], [], [0]
    for text in texts:
        builder = _TextBuilder(text, decisions, features, nodes, max_new_tokens, composite)
        parts.append(builder.build())
        about.append((text.question_id, text.category or "", text.language or ""))
        starts.append(starts[-1] + builder.count)
    if not parts:
        raise ValueError("there are no texts: the recording is empty")
    names, categories, languages = zip(*about, strict=True)
    joined = {name: np.concatenate([part[name] for part in parts]) for name in ARRAYS}
    return DecisionTable(decisions, features, names, categories, languages, np.array(starts), **joined)


class _TextBuilder:
    """The arrays of one text."""

    def __init__(
        self,
        text: TracedText,
        decisions: Decisions,
        features: CycleFeatures,
        nodes: Nodes,
        max_new_tokens: int,
        composite: bool,
    ) -> None:
        self._by_place = text.by_place()
        self._question_id = text.question_id
        self._decisions, self._features, self._nodes = decisions, features, nodes
        self._max_new_tokens, self._composite = max_new_tokens, composite
        self.count = len(self._by_place)
        shape = (self.count, len(nodes))
        sizes = (*shape, len(decisions.sizes))
        self._arrays = {
            "context_P": np.zeros(self.count, dtype=np.int32),
            "features_PNF": np.zeros((*shape, len(features.names)), dtype=np.float32),
            "allowed_PNA": np.zeros((*shape, len(decisions)), dtype=bool),
            "emitted_PNS": np.ones(sizes, dtype=np.int16),
            "size_PNS": np.zeros(sizes, dtype=np.int16),
            "levels_PN": np.zeros(shape, dtype=np.int16),
            "lookup_PN": np.zeros(shape, dtype=bool),
            "asked_P": np.zeros(self.count, dtype=bool),
        }

    def build(self) -> dict[str, np.ndarray]:
        if self.count > self._max_new_tokens:
            raise ValueError(
                f"question {self._question_id!r} has {self.count} tokens, more than max_new_tokens, "
                f"{self._max_new_tokens}: give the limit that it was recorded with"
            )
        for place, drafts in enumerate(self._by_place):
            limit = self._max_new_tokens - place - 1
            self._arrays["context_P"][place] = next(iter(drafts.values())).context_length
            if limit > 0:
                self._arrays["asked_P"][place] = True
                self._add_root(place, drafts, limit)
                for choice in self._decisions.choices:
                    if choice not in drafts:
                        raise ValueError(
                            f"the trace of question {self._question_id!r} has no {choice.name} drafts"
                        )
                    self._add_draft(place, drafts[choice], limit)
        return self._arrays

    def _view(
        self, here: Position, tree: DraftTree, limit: int, choices: tuple[RootChoice, ...]
    ) -> DraftView:
        view = DraftView(tree, limit, here.context_length, limit + 1, root_choices=choices)
        view.lookup = here.lookup
        return view

    def _add_root(self, place: int, drafts: dict[RootChoice, Position], limit: int) -> None:
        here = next(iter(drafts.values()))
        choices = (RootChoice.PLAIN, *drafts)
        view = self._view(here, DraftTree(here.tree.tokens[0]), limit, choices)
        view.lookup = None if here.lookup is None else replace(here.lookup, agrees=None)
        self._add_question(place, ROOT_NODE, "draft", view)

    def _add_draft(self, place: int, here: Position, limit: int) -> None:
        nodes, levels = self._nodes, here.choice in _LEVELS
        matched = here.lookup is not None and here.lookup.match_length > 0
        for node in range(nodes.choice.index(here.choice), len(nodes)):
            if nodes.choice[node] != here.choice:
                break
            depth = nodes.depth[node]
            finished = here.tree_at(depth, limit)
            if levels and depth > limit:
                break
            extended = here.tree.depth >= depth
            # As a session asks: of the level, while there may be more; else of the finished draft.
            asks_level = levels and extended and depth < min(limit, self._decisions.max_depth)
            tree = here.tree.upto(depth) if asks_level else finished
            view = self._view(here, tree, limit, (RootChoice.PLAIN,))
            self._add_question(place, node, "level" if asks_level else "size", view)
            self._arrays["levels_PN"][place, node] = (
                min(depth, here.tree.depth) if levels else finished.height
            )
            self._arrays["lookup_PN"][place, node] = not levels or (self._composite and matched)
            self._add_outcomes(place, node, here, finished)
            if not extended:
                break

    def _add_question(self, place: int, node: int, kind: QuestionKind, view: DraftView) -> None:
        allowed = list(self._decisions.allowed(kind, view))
        if not any(allowed):  # nothing was found: nobody is asked, and the cycle is a plain step
            allowed[self._decisions.continue_action + 1] = True
        self._arrays["allowed_PNA"][place, node] = allowed
        entries = self._features.of_position(view)
        self._arrays["features_PNF"][place, node, : -len(HISTORY_NAMES)] = entries

    def _add_outcomes(self, place: int, node: int, here: Position, finished: DraftTree) -> None:
        sizes = np.minimum(self._decisions.sizes, finished.size)
        accepted = np.searchsorted(path_ranks(finished, here.following), sizes, side="right")
        self._arrays["emitted_PNS"][place, node] = np.minimum(accepted + 1, self.count - place)
        self._arrays["size_PNS"][place, node] = sizes


def split_texts(table: DecisionTable, wanted: Sequence[int]) -> DecisionTable:
    """The table of some of its texts, in this order; shares nothing with it."""
    those = np.concatenate([np.arange(table.starts[one], table.starts[one + 1]) for one in wanted])
    lengths = [int(table.starts[one + 1] - table.starts[one]) for one in wanted]
    return DecisionTable(
        table.decisions,
        table.features,
        tuple(table.names[one] for one in wanted),
        tuple(table.categories[one] for one in wanted),
        tuple(table.languages[one] for one in wanted),
        np.concatenate([[0], np.cumsum(lengths)]),
        **{name: getattr(table, name)[those] for name in ARRAYS},
    )


def joined_tables(tables: Sequence[DecisionTable]) -> DecisionTable:
    """One table of all their texts; ValueError if their decisions differ. Features may differ in constants
    (temperature, costs), which are in the arrays; those of the first are kept."""
    first = tables[0]
    for one in tables[1:]:
        if one.decisions != first.decisions or one.features.names != first.features.names:
            raise ValueError(f"a table of {one.decisions} cannot be joined to one of {first.decisions}")
    offsets = np.cumsum([0, *(one.positions for one in tables)])
    starts = [one.starts[:-1] + offset for one, offset in zip(tables, offsets[:-1], strict=True)]
    return DecisionTable(
        first.decisions,
        first.features,
        tuple(name for one in tables for name in one.names),
        tuple(name for one in tables for name in one.categories),
        tuple(name for one in tables for name in one.languages),
        np.concatenate([*starts, offsets[-1:]]),
        **{name: np.concatenate([getattr(one, name) for one in tables]) for name in ARRAYS},
    )
