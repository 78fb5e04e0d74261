"""Measure what cycles cost: real sessions, driven through depths, sizes and contexts in random order.

Whatever a cycle meets in life, cold caches too, is in its seconds, see `timed_cycle.py`.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch

from decoding.controller import Controller, DraftView, FixedController, Question, RootChoice
from decoding.decoder import SpeculativeDecoder
from decoding.drafters.merged import MergedDrafter
from decoding.drafters.ngram import NgramDrafter
from decoding.other_load import OtherLoad
from decoding.profile import Source
from decoding.profile_plan import Setting, blocks_of_cycles, contexts_between
from decoding.sampling import Sampling
from decoding.session import Session
from decoding.timed_cycle import TimedCycle, timed_cycle

Show = Callable[[int, int, str], None]

# Own-written; repeated and cut anywhere it makes prompts of any length in which a lookup finds matches.
_TEXT = (
    "The keeper of the lighthouse wrote down the weather every evening, and every morning he read aloud what "
    "he had written. Wind from the west, four; sea slight; one ship, far out, bound north. When the lamp was "
    "lit he counted the seconds of its turning, though he had known them for thirty years: one, two, three, "
    "four, dark. His sister sent him flour, lamp oil and letters. He answered each on the day it came, and "
    "waited for the boat, which came on the first Tuesday of the month unless the sea said no. "
)
_WARM_UP = 2
_PROBES = 3
_DISTURBANCE = 0.15  # cores that others may take of those that are measured on
_ROOM = 40  # tokens: more than any cycle emits


class LookupOnly:
    """Drafts with the lookup alone, as a merged drafter offers, and verifies `size` of its nodes."""

    def __init__(self, size: int) -> None:
        self._size = size

    def wants_draft(self, view: DraftView) -> RootChoice:
        return RootChoice.LOOKUP

    def wants_level(self, view: DraftView) -> bool:
        return False

    def verification_size(self, view: DraftView) -> int:
        return self._size


class Bench:
    """A session at about `context` tokens, opened anew where it has grown too far from it.

    Args:
        decoder: its drafter drafts, its sampling is `sampling`.
        context: tokens.
        sampling, rng: of all texts.
    """

    def __init__(
        self, decoder: SpeculativeDecoder, context: int, sampling: Sampling, rng: np.random.Generator
    ) -> None:
        self._decoder, self._sampling, self._rng = decoder, sampling, rng
        self._drift = drift(context)
        self._first = max(2, context - self._drift // 2)
        self._opened = 0
        self._emitted_before = 1
        self._session: Session | None = None

    def cycle(self, controller: Controller, held_out: bool = False) -> TimedCycle:
        """One more cycle, with every shape that is not its own warm."""
        if self._session is None or self._session.tokens_left <= _ROOM:
            self._session = self._open()
            self._emitted_before = self._session.prompt_length
            for _ in range(_WARM_UP):  # the first digests the prompt
                self._timed(FixedController(1, 1), False)
        return self._timed(controller, held_out)

    def most_nodes(self, controller: Controller) -> int:
        """The most that a few cycles of this controller verify."""
        return max(self.cycle(controller).record.verification_size for _ in range(_PROBES))

    def _open(self) -> Session:
        ids = self._decoder.encode(_TEXT)[: max(self._first // 2, 1)]  # repeated in the shortest prompt too
        start = int(self._rng.integers(len(ids)))
        repeats = -(-(start + self._first) // len(ids))
        prompt = (ids * repeats)[start : start + self._first]
        self._opened += 1
        if self._opened % 2 == 0:  # nothing for a lookup to find
            prompt = self._rng.permutation(prompt).tolist()
        return Session(
            self._decoder.target,
            self._decoder.drafter,
            prompt,
            max_new_tokens=self._drift + _ROOM,
            end_ids=(),  # the text is nobody's: an early end would only cost a prefill
            sampling=self._sampling,
            seed=int(self._rng.integers(2**32)),
        )

    def _timed(self, controller: Controller, held_out: bool) -> TimedCycle:
        assert self._session is not None
        before = self._emitted_before
        timed = timed_cycle(
            self._session, controller, self._decoder.target.device, self._source, before, held_out
        )
        emitted = timed.record.emitted
        self._emitted_before = emitted if timed.source == "head" else before + emitted
        return timed

    def _source(self, question: Question, reply: int) -> Source:
        view = question.view
        if RootChoice.LOOKUP in view.root_choices:  # merged: a level costs what the head's and the join cost
            return "lookup" if reply == RootChoice.LOOKUP else "head"
        if isinstance(self._decoder.drafter, NgramDrafter):
            return "lookup"
        return "lookup" if view.lookup is not None and view.lookup.match_length else "head"


def drift(context: int) -> int:
    """Tokens that a session may emit around `context` before it is opened anew."""
    return max(32, context // 4)


def measure_cycles(
    decoder: SpeculativeDecoder,
    *,
    contexts: Sequence[int],
    rows: Sequence[int],
    max_depth: int,
    rounds: int,
    sampling: Sampling,
    rng: np.random.Generator,
    show: Show = lambda done, total, note: None,
) -> list[TimedCycle]:
    """Cycles of every row count at every context, `rounds` of each, and held-out ones among them.

    Args:
        contexts: ascending, at most `longest_context`.
        rows: see `row_counts`; counts that no draft reaches are left out.
        max_depth: levels.
        show: called with blocks done, blocks in all, and a note.
    """
    check_contexts(decoder, contexts)
    benches = {
        context: Bench(decoder, context, sampling, rng)
        for context in {*contexts, *contexts_between(contexts)}
    }
    first = benches[contexts[0]]
    nodes = {depth: first.most_nodes(FixedController(depth, rows[-1])) for depth in range(1, max_depth + 1)}
    merged = isinstance(decoder.drafter, MergedDrafter)
    blocks = blocks_of_cycles(contexts, rows, nodes, rounds, rng, with_lookup=merged)
    return _measured(benches, blocks, show)


def _measured(
    benches: Mapping[int, Bench], blocks: Sequence[Sequence[Setting]], show: Show
) -> list[TimedCycle]:
    """The blocks' cycles. A block that other processes disturbed is measured again at the end, at most twice,
    and of all blocks at most half; what stays disturbed is kept, and marked."""
    waiting = deque((block, 0) for block in blocks)
    reruns, done = len(blocks) // 2, 0
    cycles: list[TimedCycle] = []
    while waiting:
        block, tries = waiting.popleft()
        show(done, len(blocks), f"{block[0].context} tokens")
        others = OtherLoad()
        timed = _block(benches[block[0].context], block)
        disturbed = others.cores() > spare_cores() + _DISTURBANCE
        if disturbed and reruns and tries < 2:
            reruns -= 1
            waiting.append((block, tries + 1))
            continue
        done += 1
        cycles.extend(replace(one, disturbed=disturbed) for one in timed)
    show(done, len(blocks), "")
    return cycles


def _block(bench: Bench, block: Sequence[Setting]) -> list[TimedCycle]:
    bench.cycle(_controller(block[0]))  # another context was at work: its first cycle is not a usual one
    timed = [(setting, bench.cycle(_controller(setting), setting.held_out)) for setting in block]
    # Where the depths differ, the drafter had nothing more to propose.
    return [one for setting, one in timed if one.record.draft_depth == setting.draft_depth]


def spare_cores() -> int:
    """Cores that other processes may use beside this one's threads."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(cores - torch.get_num_threads(), 0)


def longest_context(decoder: SpeculativeDecoder) -> int:
    """The most tokens at which cycles can be measured: what they emit must fit the model's context too."""
    left = decoder.target.context_limit - _ROOM
    return min(left - drift(0), left * 4 // 5)


def check_contexts(decoder: SpeculativeDecoder, contexts: Sequence[int]) -> None:
    """ValueError if a context is too long to be measured."""
    longest = longest_context(decoder)
    if contexts[-1] > longest:
        raise ValueError(
            f"contexts reach {contexts[-1]} tokens, must be <= {longest}: the model holds "
            f"{decoder.target.context_limit}, and cycles must fit behind them"
        )


def _controller(setting: Setting) -> Controller:
    size = max(setting.size, 1)
    return LookupOnly(size) if setting.lookup else FixedController(setting.draft_depth, size)
