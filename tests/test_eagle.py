"""The EAGLE drafter against a reference that recomputes every path from scratch; purity; files of heads."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from decoding.controller import Controller, FixedController, PlainController
from decoding.drafters import eagle
from decoding.drafters.eagle import EagleDrafter, EagleState
from decoding.drafters.eagle_head import EagleConfig, EagleHead
from decoding.noise import NoiseStream
from decoding.sampling import Sampling
from decoding.session import Session
from decoding.tree import DraftTree
from tests.fakes import ScriptController, draw_chain, tiny_eagle, tiny_head, tiny_target
from tests.reference_head import ReferenceHead

BEAM = 3
PROMPT_LENGTH = 2
TEXT = [5, 9, 31, 12, 30, 4, 17, 8, 21, 13, 39, 30]
TARGET = tiny_target(seed=3)
DRAFTER = tiny_eagle(TARGET, beam_width=BEAM)
NOISE = NoiseStream(0, TEXT[:PROMPT_LENGTH])


def features_of(text: list[int]) -> torch.Tensor:
    features = TARGET.forward(text, TARGET.new_cache()).features_RF
    assert features is not None
    return features


FEATURES = features_of(TEXT)


def state_after(
    length: int,
    cuts: list[int],
    temperature: float = 1.0,
    drafts: int = 0,
    drafter: EagleDrafter = DRAFTER,
    chain: bool = False,
) -> EagleState:
    """A state that took the first `length` tokens of TEXT in pieces, drafting `drafts` levels in between, or
    drawing a chain."""
    state = drafter.start(NOISE, temperature, PROMPT_LENGTH)
    state.ingest(TEXT[:1], None)
    places = sorted({1, *(cut for cut in cuts if 1 < cut < length), length})
    for start, end in pairwise(places):
        state.ingest(TEXT[start:end], FEATURES[start - 1 : end - 1])
        if chain:
            draw_chain(state, drafts, (4, 0))
            continue
        if drafts:
            state.begin()
        for _ in range(drafts):
            state.extend()
    return state


def draft(state: EagleState, levels: int) -> DraftTree:
    tree = state.begin()
    for _ in range(levels):
        assert state.extend()
    return tree


def assert_same(one: DraftTree, other: DraftTree) -> None:
    assert one.tokens == other.tokens
    assert one.parents == other.parents
    np.testing.assert_allclose(one.scores, other.scores, rtol=1e-6, atol=1e-6)


def path_to(tree: DraftTree, node: int) -> list[int]:
    path: list[int] = []
    while node:
        path.insert(0, tree.tokens[node])
        node = tree.parents[node]
    return path


@pytest.mark.parametrize("temperature", [0.0, 1.0, 0.7])
@pytest.mark.parametrize(("length", "cuts"), [(2, []), (7, [3]), (12, [2, 3, 8])])
def test_tree_is_the_references(temperature: float, length: int, cuts: list[int]) -> None:
    """An expanded node's children are its likeliest under calibrated survival; the beam is the best."""
    tree = draft(state_after(length, cuts, temperature), 4)
    reference = ReferenceHead(DRAFTER.head, DRAFTER.embeddings)
    ids = DRAFTER.target_ids_V
    for depth in range(4):
        below = tree.level(depth + 1)
        expanded = sorted({tree.parents[node] for node in below})
        level = list(tree.level(depth))
        assert expanded == sorted(sorted(level, key=lambda node: (-tree.scores[node], node))[:BEAM])
        noise = NOISE.gumbel([length - PROMPT_LENGTH + depth], ids)[0].numpy()
        for parent in expanded:
            path = path_to(tree, parent)
            state = reference.states(TEXT[1:length], FEATURES[: length - 1].numpy(), path)[-1]
            z = reference.logits(state)
            if temperature:
                z = z / temperature + noise
            log_survival = z - np.logaddexp.reduce(z)
            best = np.argsort(-log_survival, kind="stable")[:BEAM]
            children = [node for node in below if tree.parents[node] == parent]
            assert [tree.tokens[node] for node in children] == ids[best].tolist()
            expected = tree.scores[parent] + log_survival[best]
            np.testing.assert_allclose(
                [tree.scores[node] for node in children], expected, rtol=1e-5, atol=1e-5
            )


@settings(max_examples=30)
@given(
    length=st.integers(2, len(TEXT)),
    cuts=st.lists(st.integers(2, len(TEXT)), max_size=5),
    temperature=st.sampled_from([0.0, 1.0]),
    drafts=st.integers(0, 3),
    chain=st.booleans(),
    pending=st.sampled_from([1, 3, 256]),
)
def test_draft_is_pure(
    length: int, cuts: list[int], temperature: float, drafts: int, chain: bool, pending: int
) -> None:
    """Any cycle boundaries, any drafts before, any length of the queue: the same tree, the same chain."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(eagle, "_MOST_PENDING", pending)
        with_history = state_after(length, cuts, temperature, drafts, chain=chain)
        fresh = state_after(length, [], temperature)
        assert_same(draft(with_history, 3), draft(fresh, 3))
        for ours, theirs in zip(draw_chain(with_history, 3)[1], draw_chain(fresh, 3)[1], strict=True):
            torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize(("length", "cuts"), [(2, []), (7, [3]), (12, [2, 3, 8])])
def test_chain_is_the_references(length: int, cuts: list[int]) -> None:
    """Logits of a path recomputed from scratch, at their places in the target's vocabulary."""
    tree, asked = draw_chain(state_after(length, cuts), 5, ranks=(0, 7, 29))
    reference = ReferenceHead(DRAFTER.head, DRAFTER.embeddings)
    assert tree.parents == list(range(-1, 5))
    assert tree.scores == [0, -0.5, -1, -1.5, -2, -2.5]
    for depth, logits in enumerate(asked):
        path = tree.tokens[1 : 1 + depth]
        state = reference.states(TEXT[1:length], FEATURES[: length - 1].numpy(), path)[-1]
        expected = np.full(40, -np.inf)
        expected[DRAFTER.target_ids_V] = reference.logits(state)
        np.testing.assert_allclose(logits.numpy(), expected, rtol=1e-9, atol=1e-9)


def test_asking_for_logits_again_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    state = state_after(6, [])
    calls: list[int] = []
    layer = state._layer

    def counted(tokens: list[int], *args: Any) -> Any:
        calls.append(len(tokens))
        return layer(tokens, *args)

    monkeypatch.setattr(state, "_layer", counted)
    state.begin()
    for asked in range(3):
        assert state.next_logits() is state.next_logits() is not None
        assert calls == [5, 1, 1][: asked + 1]
        state.append(30, -1.0)


def drafts_by_length(controller: Controller, sampling: Sampling) -> tuple[dict[int, DraftTree], int]:
    """Drafts after each cycle of a request, by committed tokens; and the longest accepted path."""
    session = Session(
        TARGET, DRAFTER, TEXT[:PROMPT_LENGTH], max_new_tokens=24, end_ids=(), sampling=sampling, seed=1
    )
    drafts, longest = {}, 0
    for record in session.run(controller):
        assert isinstance(session._draft, EagleState)
        drafts[len(session.committed)] = draft(session._draft, 3)
        longest = max(longest, record.accepted)
    return drafts, longest


def test_draft_is_the_same_after_every_history_of_cycles() -> None:
    """Plain steps, depths 1 to 4, both in turn: equal drafts wherever the committed text is as long."""
    sampling = Sampling(1.0)
    plain, _ = drafts_by_length(PlainController(), sampling)
    deepest = 0
    for controller in (
        FixedController(1, 3),
        FixedController(2, 20),
        FixedController(4, 30),
        ScriptController([True, True, False, False, True, False], [9, 0, 2]),
    ):
        drafts, longest = drafts_by_length(controller, sampling)
        deepest = max(deepest, longest)
        assert drafts.keys() <= plain.keys()
        for length, tree in drafts.items():
            assert_same(tree, plain[length])
    assert deepest >= 2, "no path was accepted: nothing was proven of them"


def test_a_wider_beam_holds_a_narrower_ones_first_level() -> None:
    wide = tiny_eagle(TARGET, beam_width=5)
    narrow = draft(state_after(6, []), 1)
    assert draft(state_after(6, [], drafter=wide), 1).tokens[: BEAM + 1] == narrow.tokens


def test_nothing_is_drafted_without_a_feature() -> None:
    state = DRAFTER.start(NOISE, 0.0, 1)
    state.ingest([5], None)
    assert state.depth_limit() == 0
    state.begin()
    assert not state.extend()
    assert state.next_logits() is None


def test_misuse_is_refused() -> None:
    state = DRAFTER.start(NOISE, 0.0, 1)
    with pytest.raises(ValueError, match="3 tokens came with features of 2 positions"):
        state.ingest([1, 2, 3], FEATURES[:2])
    for width in (0, 31):
        with pytest.raises(ValueError, match=rf"beam_width is {width}, must be in 1\.\.30"):
            tiny_eagle(TARGET, beam_width=width)
    with pytest.raises(ValueError, match="draft vocabulary has 2 distinct ids, not 30"):
        tiny_head(TARGET).set_vocabulary(torch.tensor([3, 4, 3]))


def test_vocabulary_maps_are_those_of_public_checkpoints() -> None:
    """`d2t` holds differences, `t2d` marks the ids; unsorted input is sorted."""
    head = EagleHead(EagleConfig.from_target(TARGET, 4))
    head.set_vocabulary(torch.tensor([30, 2, 9, 11]))
    assert head.d2t.tolist() == [2, 8, 9, 27]
    assert head.target_ids_V.tolist() == [2, 9, 11, 30]
    assert head.t2d.nonzero()[:, 0].tolist() == [2, 9, 11, 30]


def test_a_head_survives_its_file(tmp_path: Path) -> None:
    """Keys as in public EAGLE-3 checkpoints; weights, config and vocabulary come back."""
    head = tiny_head(TARGET)
    head.save(tmp_path, card={"trained": "never"}, dtype=torch.float64)
    loaded = EagleHead.load(tmp_path)
    assert loaded.config == head.config
    ours, theirs = head.state_dict(), loaded.double().state_dict()
    assert {name.split(".")[0] for name in ours} == {"fc", "midlayer", "norm", "lm_head", "d2t", "t2d"}
    for name, tensor in ours.items():
        torch.testing.assert_close(theirs[name], tensor.to(theirs[name].dtype), rtol=1e-6, atol=1e-6)
    assert json.loads((tmp_path / "config.json").read_text())["card"] == {"trained": "never"}


def test_damaged_head_files_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"drafter config .* does not exist"):
        EagleHead.load(tmp_path)
    tiny_head(TARGET).save(tmp_path)
    config_file, weights_file = tmp_path / "config.json", tmp_path / "model.safetensors"
    config, weights = json.loads(config_file.read_text()), weights_file.read_bytes()
    for change, message in (
        ({"hidden_size": None}, "lacks or mistypes"),
        ({"fused_layers": 3}, "lacks or mistypes"),
        ({"intermediate_size": 47}, "do not fit their config"),
    ):
        config_file.write_text(json.dumps(config | change))
        with pytest.raises(ValueError, match=message) as caught:
            EagleHead.load(tmp_path)
        assert "\n" not in str(caught.value)
    config_file.write_text(json.dumps({key: value for key, value in config.items() if key != "fused_layers"}))
    with pytest.raises(ValueError, match="lacks or mistypes"):
        EagleHead.load(tmp_path)
    config_file.write_text(json.dumps(config))
    weights_file.write_bytes(weights[:-9])
    with pytest.raises(ValueError, match=r"drafter weights .* is damaged or truncated") as caught:
        EagleHead.load(tmp_path)
    assert "\n" not in str(caught.value)
