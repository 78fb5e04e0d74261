"""A merged drafter in a session: exact text under any choices, whoever decides; what it may be asked for."""

from __future__ import annotations

from collections import Counter
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import envs  # noqa: F401 (registers the environments)
from decoding.controller import Controller, DraftView, FixedController, RootChoice
from decoding.drafters.base import Drafter
from decoding.drafters.merged import MergedDrafter
from decoding.drafters.ngram import NgramDrafter
from decoding.records import CycleRecord
from decoding.sampling import Sampling
from decoding.session import Session
from tests.fakes import (
    plain_text,
    shared_target,
    tiny_causal_lm,
    tiny_target,
)
from tests.merged_world import CALIBRATIONS, HEADS, merged

PROMPTS = ([5, 9, 4, 9, 5, 9, 4], [17], [30, 11, 12, 13, 30, 11, 12, 13, 30, 11], [3, 3, 3, 3])
TOKENS = 16


@cache
def plain(prompt: tuple[int, ...], sampling: Sampling, seed: int) -> list[int]:
    return plain_text(shared_target(), prompt, TOKENS, sampling, seed)


class AnyChoice:
    """Answers at random, of what is offered; looks at all that it is shown."""

    def __init__(self, seed: int, deepest: int = 5) -> None:
        self._rng = np.random.default_rng(seed)
        self._deepest = deepest
        self.choices: Counter[RootChoice] = Counter()
        self._choice = RootChoice.PLAIN

    def wants_draft(self, view: DraftView) -> RootChoice:
        assert view.lookup is None or view.lookup.agrees is None
        self._choice = view.root_choices[self._rng.integers(len(view.root_choices))]
        self.choices[self._choice] += 1
        return self._choice

    def wants_level(self, view: DraftView) -> bool:
        assert self._choice in (RootChoice.ALL, RootChoice.HEAD)
        assert 1 <= view.tree.depth == view.tree.height
        if len(view.root_choices) == len(RootChoice):
            assert view.lookup is not None
            assert (view.lookup.agrees is None) == (view.lookup.match_length == 0)
        return bool(view.tree.depth < self._deepest and self._rng.random() < 0.7)

    def verification_size(self, view: DraftView) -> int:
        return int(self._rng.integers(0, 14))


def start(drafter: Drafter, prompt: list[int], **changed: Any) -> Session:
    given: dict[str, Any] = {"max_new_tokens": TOKENS, "end_ids": (), "sampling": Sampling(), "seed": 0}
    return Session(shared_target(), drafter, prompt, **given | changed)


def decode(session: Session, controller: Controller) -> list[CycleRecord]:
    records = []
    for record in session.run(controller):
        records.append(record)
        assert session.cache.length == len(session.committed) - 1
        assert 1 <= record.emitted <= len(record.accepted_by_depth) + 1
    return records


def periodic(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    """The text goes on as it did three tokens before."""
    return torch.full_like(scores, -torch.inf).index_fill(1, ids[0, -3:-2], 0.0)


PERIODIC = Sampling(processors=(periodic,))


@settings(max_examples=40)
@given(
    head=st.sampled_from(HEADS),
    prompt=st.sampled_from(PROMPTS),
    temperature=st.sampled_from([0.0, 0.4, 1.0]),
    calibration=st.sampled_from(CALIBRATIONS),
    lookup_depth=st.integers(1, 7),
    seed=st.integers(0, 10**6),
)
def test_the_text_is_plain_decodings(
    head: str, prompt: list[int], temperature: float, calibration: Any, lookup_depth: int, seed: int
) -> None:
    drafter = merged(head, 3, lookup_depth, calibration)
    sampling = Sampling(temperature)
    session = start(drafter, prompt, sampling=sampling, seed=seed % 7)
    decode(session, AnyChoice(seed))
    assert session.generated == plain(tuple(prompt), sampling, seed % 7)


@pytest.mark.parametrize("head", HEADS)
def test_all_four_choices_are_offered_and_the_limit_is_kept(head: str) -> None:
    """No draft, joined levels included, is longer than the tokens left but one."""
    chosen: Counter[RootChoice] = Counter()

    class Checked(AnyChoice):
        def verification_size(self, view: DraftView) -> int:
            assert view.tree.height <= view.depth_limit == view.tokens_left - 1
            assert view.tree.depth <= view.tree.height
            heights[view.tree.height - view.tree.depth] += 1
            return super().verification_size(view)

    heights: Counter[int] = Counter()
    for seed in range(12):
        controller = Checked(seed)
        session = start(merged(head, 3, 7), [5, 9, 31, 12, 9, 31], sampling=PERIODIC)
        decode(session, controller)
        assert session.generated == [12, 9, 31] * 5 + [12]
        chosen += controller.choices
    assert set(chosen) == set(RootChoice)
    assert len(heights) >= 5


class Chooses(FixedController):
    """Always the same root choice."""

    def __init__(self, choice: int, depth: int, size: int) -> None:
        super().__init__(depth, size)
        self._choice: Any = choice

    def wants_draft(self, view: DraftView) -> Any:
        return self._choice


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize(
    ("choice", "depth", "accepted"),
    [(RootChoice.ALL, 1, 5), (RootChoice.ALL, 3, 5), (RootChoice.LOOKUP, 0, 5)],
)
def test_a_text_that_repeats_itself_is_accepted_beyond_the_heads_levels(
    head: str, choice: RootChoice, depth: int, accepted: int
) -> None:
    session = start(merged(head, 3, 5), [5, 9, 31, 12, 9, 31], sampling=PERIODIC)
    first = decode(session, Chooses(choice, depth, 40))[0]
    assert (first.draft_depth, first.accepted, first.emitted) == (depth, accepted, accepted + 1)
    assert first.verification_size == (5 if choice == RootChoice.LOOKUP else first.verification_size)


def test_head_alone_joins_nothing() -> None:
    session = start(merged("eagle", 3, 5), [5, 9, 31, 12, 9, 31], sampling=PERIODIC)
    for record in decode(session, Chooses(RootChoice.HEAD, 1, 40)):
        assert record.verification_size in (0, 3)


def test_the_chain_goes_on_past_a_small_models_context() -> None:
    head = tiny_causal_lm(tiny_target(layers=2), context=8)
    drafter = MergedDrafter(head, NgramDrafter(1), lookup_depth=4)
    prompt = [5, 9, 31, 12, 9, 31]
    for choice, tokens in ((RootChoice.ALL, 4), (RootChoice.LOOKUP, 4)):
        session = start(drafter, prompt, sampling=PERIODIC)
        records = decode(session, Chooses(choice, 2, 40))
        assert session.generated == [12, 9, 31] * 5 + [12]
        beyond = [record for record in records if record.context_length > 8][:-1]
        assert {record.draft_depth for record in beyond} == {0}
        assert {record.accepted for record in beyond} == {tokens}
    session = start(drafter, [5, 6, 7, 8, 9, 10, 11, 12], max_new_tokens=3)
    assert decode(session, Chooses(RootChoice.ALL, 2, 9))[0].context_length == 8
    assert session.generated == plain_text(shared_target(), [5, 6, 7, 8, 9, 10, 11, 12], 3)
