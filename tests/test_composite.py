"""Lookup on a match, else the head: exactly the one's draft or the other's; pure; exact text and law."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from decoding.controller import USUAL_CHOICES, FixedController, LookupHint
from decoding.drafters.base import DraftState
from decoding.drafters.composite import CompositeDrafter, CompositeState
from decoding.drafters.ngram import NgramDrafter
from decoding.noise import NoiseStream
from decoding.sampling import Sampling
from decoding.session import Rule
from decoding.tree import DraftTree
from evaluation import law_check
from evaluation.law_check import Case, Law, check_law
from evaluation.law_controllers import CONTROLLERS
from evaluation.tiny_world import World, tiny_world
from tests.fakes import VOCABULARY, draw_chain, tiny_calibration
from tests.merged_world import CALIBRATIONS, HEADS, PROMPT_LENGTH, features_of, head_called
from tests.test_merged_session import PERIODIC, PROMPTS, AnyChoice, decode, plain, start
from tests.test_ngram_index import reference as matches_of


def composite(head: str, min_match: int = 1, calibration: Any = None) -> CompositeDrafter:
    own = head_called(head, 3)
    own.calibration = calibration
    return CompositeDrafter(own, NgramDrafter(min_match, vocabulary_size=VOCABULARY))


def random_text(rng: np.random.Generator) -> list[int]:
    """Long enough for a match now and then, of enough tokens for none as often."""
    return [int(token) for token in rng.integers(3, 15, int(rng.integers(4, 18)))]


def fill(state: DraftState, text: Sequence[int], cuts: Sequence[int] = (), drafts: int = 0) -> None:
    """Let it take `text` in pieces, drafting in between, by turns by levels and as a chain."""
    features = features_of(tuple(text))
    state.ingest(text[:1], None)
    places = sorted({1, *(cut for cut in cuts if PROMPT_LENGTH <= cut < len(text)), len(text)})
    for turn, (start_, end) in enumerate(pairwise(places)):
        state.ingest(text[start_:end], features[start_ - 1 : end - 1])
        if turn % 3 == 1:
            draw_chain(state, drafts, (2, 0))
        elif turn % 3 == 2:
            drafted(state, drafts)


def drafted(state: DraftState, levels: int) -> DraftTree:
    tree = state.begin()
    for _ in range(min(levels, state.depth_limit())):
        if not state.extend():
            break
    state.finish(levels)
    return tree


def begun(drafter: Any, text: Sequence[int], temperature: float) -> Any:
    return drafter.start(NoiseStream(0, text[:PROMPT_LENGTH]), temperature, PROMPT_LENGTH)


@pytest.mark.parametrize("head", HEADS)
def test_draft_is_the_lookups_on_a_match_else_the_heads(head: str) -> None:
    """Trees and chains, whatever was drafted before by whom."""
    used: Counter[str] = Counter()
    for seed in range(32):
        rng = np.random.default_rng(seed)
        text, min_match = random_text(rng), int(rng.integers(1, 4))
        temperature, calibration = float(rng.integers(0, 2)), CALIBRATIONS[seed % len(CALIBRATIONS)]
        drafter = composite(head, min_match, calibration)
        state: CompositeState = begun(drafter, text, temperature)
        fill(state, text, rng.integers(PROMPT_LENGTH, len(text) + 1, 6).tolist(), int(rng.integers(1, 4)))
        matches = matches_of(text, min_match, drafter.lookup.recent)
        used["lookup" if matches else "head"] += 1
        single = begun(drafter.lookup if matches else drafter.head, text, temperature)
        fill(single, text)
        ours, theirs = drafted(state, 3), drafted(single, 3)
        assert (ours.tokens, ours.parents, ours.depth) == (theirs.tokens, theirs.parents, theirs.depth), seed
        np.testing.assert_allclose(ours.scores, theirs.scores, rtol=1e-6, atol=1e-6)
        assert ours.depth == ours.height == 3
        (chain, asked), (expected, wanted) = draw_chain(state, 4, (1, 0)), draw_chain(single, 4, (1, 0))
        assert chain.tokens == expected.tokens
        for one, other in zip(asked, wanted, strict=True):
            torch.testing.assert_close(one, other)
        hint = state.hint()
        assert hint.match_length == (matches[0].length if matches else 0)
        assert hint.agrees is None
        assert (hint == LookupHint()) == (not matches)
        assert state.root_choices == USUAL_CHOICES
    assert min(used["lookup"], used["head"]) >= 8, used


@pytest.mark.parametrize("head", HEADS)
def test_every_root_chooses_anew_and_both_know_the_whole_text(head: str) -> None:
    """Token by token through a text that now matches and now does not."""
    text = [11, 12, 13, 11, 14, 12, 15, 16, 11, 17, 18, 14, 19]
    drafter, features, used = composite(head), features_of(tuple(text)), []
    state = begun(drafter, text, 1.0)
    fill(state, text[:PROMPT_LENGTH])
    for length in range(PROMPT_LENGTH, len(text) + 1):
        found = bool(matches_of(text[:length], 1, 4))
        single = begun(drafter.lookup if found else drafter.head, text, 1.0)
        fill(single, text[:length])
        ours, theirs = drafted(state, 2), drafted(single, 2)
        assert (ours.tokens, ours.parents) == (theirs.tokens, theirs.parents)
        np.testing.assert_allclose(ours.scores, theirs.scores, rtol=1e-6, atol=1e-6)
        used.append(found)
        if length < len(text):
            state.ingest(text[length : length + 1], features[length - 1 : length])
    assert used == [False, True, False, True, False, False, True, False, False, True, False]


@settings(max_examples=20)
@given(
    head=st.sampled_from(HEADS),
    prompt=st.sampled_from(PROMPTS),
    temperature=st.sampled_from([0.0, 0.4, 1.0]),
    calibration=st.sampled_from(CALIBRATIONS),
    min_match=st.integers(1, 3),
    seed=st.integers(0, 10**6),
)
def test_the_text_is_plain_decodings(
    head: str, prompt: list[int], temperature: float, calibration: Any, min_match: int, seed: int
) -> None:
    sampling = Sampling(temperature)
    session = start(composite(head, min_match, calibration), prompt, sampling=sampling, seed=seed % 7)
    decode(session, AnyChoice(seed))
    assert session.generated == plain(tuple(prompt), sampling, seed % 7)


def test_the_lookup_takes_over_where_the_text_repeats_itself() -> None:
    """The first three tokens are new; from then on each draft is the lookup's, and right."""
    session = start(composite("eagle", 2), [5, 9, 31], sampling=PERIODIC, max_new_tokens=30)
    records = decode(session, FixedController(4, 4))
    assert session.generated == [5, 9, 31] * 10
    assert [record.accepted for record in records[-4:-1]] == [4, 4, 4]


def test_settings_and_the_calibration_it_starts_with() -> None:
    drafter = composite("eagle", 2, tiny_calibration())
    assert drafter.lookup.calibration == drafter.head.calibration == drafter.calibration == tiny_calibration()
    assert drafter.fused_layers == drafter.head.fused_layers != ()
    assert drafter.draft_depth == max(drafter.head.draft_depth, 2)
    assert drafter.fingerprint().startswith("composite-ngram-match2")
    drafter.calibration = None
    assert drafter.lookup.calibration is drafter.head.calibration is None


@pytest.mark.parametrize(
    ("name", "rule", "controller"),
    [
        ("merged", "coupled", "value"),
        ("merged", "coupled", "entropy"),
        ("composite", "coupled", "value"),
        ("composite", "rejection", "entropy"),
    ],
)
def test_a_drafter_with_a_lookup_keeps_the_law(
    name: str, rule: Rule, controller: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chi-square over three tokens of a tiny world."""
    monkeypatch.setattr(law_check, "tiny_world", world)
    chosen = {controller: CONTROLLERS[controller]}
    report = check_law(170, cases=[Case(rule, name, Law(1.0))], controllers=chosen)
    assert not report.faults
    assert all(0.1 < row.acceptance_rate < 0.95 and row.tau > 1 for row in report.rows)


@cache
def world() -> World:
    return tiny_world()
