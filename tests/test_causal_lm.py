"""A smaller language model as drafter: drafts against full recomputation, purity, exact text, limits."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import cache
from itertools import pairwise, product
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from decoding.controller import Controller, FixedController, PlainController
from decoding.drafters import causal_lm
from decoding.drafters.causal_lm import CausalLMDrafter, CausalLMState
from decoding.noise import NoiseStream
from decoding.records import CycleRecord
from decoding.sampling import Sampling
from decoding.session import Session
from decoding.target import TargetModel
from decoding.tree import DraftTree
from tests.fakes import (
    ScriptController,
    draw_chain,
    plain_text,
    tiny_causal_lm,
    tiny_target,
)

BEAM = 3
PROMPT_LENGTH = 2
TEXT = [5, 9, 31, 12, 30, 4, 17, 8, 21, 13, 39, 30]
PROMPT = (5, 9, 4, 9, 5, 9, 4)
SAMPLINGS = (Sampling(0.0), Sampling(0.7), Sampling(1.0))
NOISE = NoiseStream(0, TEXT[:PROMPT_LENGTH])
TARGET = tiny_target(layers=2)
DRAFTER = tiny_causal_lm(TARGET, beam_width=BEAM)


def near_copy() -> CausalLMDrafter:
    """The target with its weights shaken: often right, often wrong."""
    model = copy.deepcopy(TARGET.model)
    generator = torch.Generator().manual_seed(0)
    for weight in model.parameters():
        noise = torch.randn(weight.shape, generator=generator, dtype=weight.dtype)
        weight.add_(0.3 * weight.abs().mean() * noise)
    return CausalLMDrafter(TargetModel(model), TARGET, BEAM, "near")


NEAR = near_copy()


def recomputed(path: Sequence[int], length: int, drafter: CausalLMDrafter = DRAFTER) -> np.ndarray:
    """Logits after TEXT[:length] and a drafted path, without a cache."""
    with torch.inference_mode():
        ids = torch.tensor([[*TEXT[:length], *path]])
        logits: np.ndarray = drafter.model.model(input_ids=ids, use_cache=False).logits[0, -1].numpy()
        return logits


def state_after(
    length: int,
    cuts: Sequence[int] = (),
    temperature: float = 1.0,
    between: Sequence[tuple[str, int]] = (("nothing", 0),),
    drafter: CausalLMDrafter = DRAFTER,
) -> CausalLMState:
    """A state that took the first `length` tokens of TEXT in pieces; in between it drafted, by turns, what
    `between` says: a tree, a chain or nothing, as in a plain step."""
    state = drafter.start(NOISE, temperature, PROMPT_LENGTH)
    places = sorted({0, *(cut for cut in cuts if cut < length), length})
    for turn, (start, end) in enumerate(pairwise(places)):
        state.ingest(TEXT[start:end], None)
        kind, levels = between[turn % len(between)]
        if kind == "tree":
            draft(state, levels)
        elif kind == "chain":
            draw_chain(state, levels, (4, 0))
    return state


def draft(state: CausalLMState, levels: int) -> DraftTree:
    tree = state.begin()
    for _ in range(levels):
        assert state.extend()
    return tree


def assert_same(one: DraftTree, other: DraftTree) -> None:
    assert one.tokens == other.tokens
    assert one.parents == other.parents
    np.testing.assert_allclose(one.scores, other.scores, rtol=1e-6, atol=1e-6)


def path_to(tree: DraftTree, node: int) -> list[int]:
    return [*path_to(tree, tree.parents[node]), tree.tokens[node]] if node else []


@pytest.mark.parametrize("temperature", [0.0, 1.0, 0.7])
@pytest.mark.parametrize(("length", "cuts"), [(2, []), (7, [3]), (12, [2, 3, 8])])
def test_tree_is_the_references(temperature: float, length: int, cuts: list[int]) -> None:
    """An expanded node's children are its likeliest under calibrated survival; the beam is the best."""
    state = state_after(length, cuts, temperature, [("tree", 2), ("nothing", 0)])
    tree = draft(state, 4)
    for depth in range(4):
        below, level = tree.level(depth + 1), list(tree.level(depth))
        expanded = sorted({tree.parents[node] for node in below})
        assert expanded == sorted(sorted(level, key=lambda node: (-tree.scores[node], node))[:BEAM])
        noise = NOISE.gumbel([length - PROMPT_LENGTH + depth], torch.arange(40))[0].numpy()
        for parent in expanded:
            z = recomputed(path_to(tree, parent), length)
            z = z / temperature + noise if temperature else z
            log_survival = z - np.logaddexp.reduce(z)
            best = np.argsort(-log_survival, kind="stable")[:BEAM]
            children = [node for node in below if tree.parents[node] == parent]
            assert [tree.tokens[node] for node in children] == best.tolist()
            expected = tree.scores[parent] + log_survival[best]
            np.testing.assert_allclose(
                [tree.scores[node] for node in children], expected, rtol=1e-5, atol=1e-5
            )


@pytest.mark.parametrize(("length", "cuts"), [(1, []), (7, [3]), (12, [2, 3, 8])])
def test_chain_is_the_references(length: int, cuts: list[int]) -> None:
    tree, asked = draw_chain(state_after(length, cuts, between=[("chain", 3)]), 5, ranks=(0, 7, 39))
    assert tree.parents == list(range(-1, 5))
    assert tree.scores == [0, -0.5, -1, -1.5, -2, -2.5]
    for depth, logits in enumerate(asked):
        expected = recomputed(tree.tokens[1 : 1 + depth], length)
        np.testing.assert_allclose(logits.numpy(), expected, rtol=1e-9, atol=1e-9)


@settings(max_examples=40)
@given(
    length=st.integers(2, len(TEXT)),
    cuts=st.lists(st.integers(2, len(TEXT)), max_size=6),
    temperature=st.sampled_from([0.0, 1.0]),
    between=st.lists(
        st.tuples(st.sampled_from(["nothing", "tree", "chain"]), st.integers(0, 3)), min_size=1, max_size=4
    ),
    piece=st.sampled_from([1, 3, 512]),
)
def test_draft_is_pure(
    length: int, cuts: list[int], temperature: float, between: list[tuple[str, int]], piece: int
) -> None:
    """Any cycle boundaries, any drafts between, any size of a piece: the same tree, the same chain."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(causal_lm, "_MOST_ROWS", piece)
        history = state_after(length, cuts, temperature, between)
        fresh = state_after(length, [], temperature)
        assert_same(draft(history, 3), draft(fresh, 3))
        for ours, theirs in zip(draw_chain(history, 3)[1], draw_chain(fresh, 3)[1], strict=True):
            torch.testing.assert_close(ours, theirs)


def test_forwards_are_one_a_level_and_bounded_in_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """`ingest` costs none; whatever waits is one forward, or pieces; asking for logits again costs none."""
    rows: list[int] = []
    forward = DRAFTER.model.forward

    def counted(tokens: Sequence[int], *args: Any, **kwargs: Any) -> Any:
        rows.append(len(tokens))
        return forward(tokens, *args, **kwargs)

    monkeypatch.setattr(DRAFTER.model, "forward", counted)
    state = state_after(7, [2, 3, 4])
    assert rows == []
    draft(state, 3)
    draft(state, 1)
    assert rows == [7, BEAM, BEAM]
    state.ingest(TEXT[7:8], None)
    state.ingest(TEXT[8:12], None)
    state.begin()
    for token in (3, 5):
        assert state.next_logits() is state.next_logits() is not None
        state.append(token, -1.0)
    assert rows == [7, BEAM, BEAM, 5, 1]
    rows.clear()
    monkeypatch.setattr(causal_lm, "_MOST_ROWS", 5)
    draft(state_after(12), 1)
    assert rows == [5, 5, 2]


@cache
def plain(sampling: Sampling) -> list[int]:
    return plain_text(TARGET, PROMPT, 7, sampling)


def start(drafter: CausalLMDrafter, target: TargetModel = TARGET, **changed: Any) -> Session:
    request: dict[str, Any] = {"max_new_tokens": 7, "end_ids": (), "sampling": Sampling(), "seed": 0}
    return Session(target, drafter, PROMPT, **request | changed)


def decode(session: Session, controller: Controller) -> list[CycleRecord]:
    """Run to the end; between cycles the drafter's cache holds committed tokens, with their own keys."""
    records = []
    state = session._draft
    assert isinstance(state, CausalLMState)
    for record in session.run(controller):
        records.append(record)
        assert state._cache.length == state._cached
        assert state._committed == len(session.committed)
        if record.draft_depth:
            assert state._cached == len(session.committed) - record.emitted
    return records


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=lambda one: f"T{one.temperature}")
def test_text_is_plain_decodings_at_every_depth_and_size(sampling: Sampling) -> None:
    accepted = 0
    for depth, size in product(range(6), range(1, 13)):
        session = start(NEAR if size % 2 else DRAFTER, sampling=sampling)
        records = decode(session, FixedController(depth, size))
        assert session.generated == plain(sampling), (depth, size)
        accepted += sum(record.accepted for record in records)
    assert accepted > 50, "hardly anything was accepted: the sweep proves little"


@settings(max_examples=40)
@given(
    drafter=st.sampled_from([NEAR, DRAFTER]),
    sampling=st.sampled_from(SAMPLINGS),
    script=st.lists(st.booleans(), min_size=1, max_size=12),
    sizes=st.lists(st.sampled_from([0, 1, 2, 3, 5, 9, 40, 10**9, -7]), min_size=1, max_size=5),
)
def test_text_is_plain_decodings_whatever_the_controller_says(
    drafter: CausalLMDrafter, sampling: Sampling, script: list[bool], sizes: list[int]
) -> None:
    session = start(drafter, sampling=sampling)
    # A script of True alone would never plain-step; one of False alone never drafts.
    decode(session, ScriptController([*script, True, False], sizes))
    assert session.generated == plain(sampling)


def test_draft_is_the_same_after_every_history_of_cycles() -> None:
    """Plain steps, fixed depths, both in turn: equal drafts wherever the committed text is as long."""
    deepest = 0
    seen: dict[int, DraftTree] = {}
    for controller in (
        PlainController(),
        FixedController(1, 3),
        FixedController(4, 30),
        ScriptController([True, True, False, False, True, False], [9, 0, 2]),
    ):
        session = start(NEAR, sampling=Sampling(1.0), max_new_tokens=16)
        for record in session.run(controller):
            assert isinstance(session._draft, CausalLMState)
            tree = draft(session._draft, 3)
            assert_same(tree, seen.setdefault(len(session.committed), tree))
            deepest = max(deepest, record.accepted)
    assert deepest >= 2, "no path was accepted: nothing was proven of them"


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=lambda one: f"T{one.temperature}")
@pytest.mark.parametrize("depth", [1, 3, 5])
def test_the_target_itself_as_drafter_is_never_wrong(sampling: Sampling, depth: int) -> None:
    """Under the noise too: the drafter meets the target's own."""
    session = start(CausalLMDrafter(TARGET, TARGET, beam_width=1), sampling=sampling, max_new_tokens=30)
    for record in decode(session, FixedController(depth, depth)):
        assert record.accepted == record.draft_depth == min(depth, record.emitted - 1)


def test_the_drafters_own_context_limits_depth_not_text() -> None:
    """Past it the text goes on by plain steps; no row is run at a position that the drafter lacks."""
    drafter = tiny_causal_lm(TARGET, context=11)
    state = state_after(11, drafter=drafter)
    assert [state_after(n, drafter=drafter).depth_limit() for n in (1, 10, 11, 12)] == [11, 2, 1, 0]
    assert draft(state, 1).depth == 1
    assert not state.extend()
    tree, asked = draw_chain(state, 9)
    assert (tree.depth, len(asked)) == (1, 1)
    state.ingest([3], None)
    assert state.depth_limit() == 0
    state.begin()
    assert state.next_logits() is None
    assert not state.extend()
    for sampling in SAMPLINGS:
        session = start(drafter, sampling=sampling)
        records = decode(session, FixedController(3, 9))
        assert session.generated == plain(sampling)
        assert records[0].draft_depth == 3
        assert records[-1].draft_depth == 0


@pytest.mark.parametrize("vocabulary", [30, 40, 48])
def test_a_padded_vocabulary_is_never_proposed(vocabulary: int) -> None:
    """Narrower or wider than the target's 40; an id without an embedding in the text ends the drafting."""
    drafter = tiny_causal_lm(TARGET, beam_width=12, vocabulary=vocabulary)
    shared = min(vocabulary, 40)
    known = [token for token in TEXT if token < 30]
    state = drafter.start(NOISE, 1.0, PROMPT_LENGTH)
    state.ingest(known, None)
    tree = draft(state, 3)
    assert max(tree.tokens) < shared
    assert max(tree.tokens) >= shared - 4, "a wide beam meets the last ids"
    _, asked = draw_chain(state, 3)
    for logits in asked:
        assert logits.shape == (40,)
        assert (logits > -torch.inf).tolist() == [number < shared for number in range(40)]
    state.ingest([39], None)
    assert (state.depth_limit() > 0) == (vocabulary > 39)
    state.ingest([3], None)
    assert (state.depth_limit() > 0) == (vocabulary > 39), "the text still holds it"
    for sampling in SAMPLINGS:
        session = start(drafter, sampling=sampling)
        decode(session, FixedController(2, 9))
        assert session.generated == plain(sampling)


def test_beam_width_and_fingerprint() -> None:
    assert DRAFTER.fingerprint() == f"{DRAFTER.model.fingerprint()}-beam{BEAM}"
    for width in (0, 31):
        with pytest.raises(ValueError, match=rf"beam_width is {width}, must be in 1\.\.30"):
            tiny_causal_lm(TARGET, beam_width=width, vocabulary=30)
