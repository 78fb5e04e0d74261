"""The fast path computes what the eager one does; a tree's rows, to the bit, what plain decoding does."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from decoding import fast_forward
from decoding.fast_forward import FastForward
from decoding.slot_cache import SlotCache
from decoding.target import TargetModel, TargetOutput
from tests.fast_world import KINDS, close, eager_twin, fast_eagle, fast_target, tokens_of

WORLDS = [*((kind, False) for kind in KINDS), ("llama", True)]


def parents_of(links: list[int]) -> list[int]:
    """Row i + 1 hangs on one of the rows before it."""
    return [-1, *(link % (row + 1) for row, link in enumerate(links))]


def depths_of(parents: list[int]) -> list[int]:
    depths = [0] * len(parents)
    for row, parent in enumerate(parents[1:], start=1):
        depths[row] = depths[parent] + 1
    return depths


def path_to(parents: list[int], row: int) -> list[int]:
    path = [row]
    while parents[path[0]] >= 0:
        path.insert(0, int(parents[path[0]]))
    return path


@pytest.mark.parametrize(("kind", "half"), WORLDS)
@settings(max_examples=8)
@given(context=st.integers(0, 70), links=st.lists(st.integers(0, 30), max_size=12), seed=st.integers(0, 99))
def test_logits_and_features_are_the_eager_ones(
    kind: str, half: bool, context: int, links: list[int], seed: int
) -> None:
    """Of a whole prefill, and of a tree on top of it."""
    fast, eager, parents = fast_target(kind, half), eager_twin(kind, half), parents_of(links)
    assert fast.fast is not None
    assert bool(fast.fast.packed.stack.half_layers) == half
    ids = tokens_of(seed, context + len(parents))
    outputs: list[list[TargetOutput]] = []
    for target in (fast, eager):
        cache = target.new_cache()
        first = [target.forward(ids[:context], cache)] if context else []
        outputs.append([*first, target.forward(ids[context:], cache, parents, depths_of(parents))])
        assert cache.length == len(ids)
    for ours, theirs in zip(*outputs, strict=True):
        assert ours.logits_RV.dtype == torch.float32
        close(ours.logits_RV, theirs.logits_RV)
        assert ours.features_RF is not None
        assert theirs.features_RF is not None
        close(ours.features_RF, theirs.features_RF)


def one_by_one(target: TargetModel, ids: list[int]) -> list[TargetOutput]:
    """Plain decoding of these tokens."""
    cache = target.new_cache()
    return [target.forward([token], cache) for token in ids]


@pytest.mark.parametrize(("kind", "half"), [("llama", False), ("qwen2", False), ("llama", True)])
@settings(max_examples=15)
@given(
    context=st.integers(0, 50),
    links=st.lists(st.integers(0, 30), min_size=1, max_size=20),
    seed=st.integers(0, 99),
)
def test_a_trees_row_has_the_bits_of_plain_decoding(
    kind: str, half: bool, context: int, links: list[int], seed: int
) -> None:
    target, parents = fast_target(kind, half), parents_of(links)
    ids = tokens_of(seed, context + len(parents))
    cache = target.new_cache()
    if context:
        target.forward(ids[:context], cache)
    tree = target.forward(ids[context:], cache, parents, depths_of(parents))
    for row in range(len(parents)):
        path = [ids[context + step] for step in path_to(parents, row)]
        plain = one_by_one(target, ids[:context] + path)[-1]
        assert torch.equal(tree.logits_RV[row], plain.logits_RV[0])
        assert tree.features_RF is not None
        assert plain.features_RF is not None
        assert torch.equal(tree.features_RF[row], plain.features_RF[0])


@settings(max_examples=15)
@given(
    context=st.integers(1, 40),
    links=st.lists(st.integers(0, 30), min_size=1, max_size=20),
    last=st.integers(0, 20),
    seed=st.integers(0, 99),
)
def test_a_cache_cut_to_a_path_has_the_bits_of_that_text(
    context: int, links: list[int], last: int, seed: int
) -> None:
    """What follows an accepted path cannot tell that there was a tree."""
    target, parents = fast_target(), parents_of(links)
    ids = tokens_of(seed, context + len(parents))
    cache = target.new_cache()
    target.forward(ids[:context], cache)
    target.forward(ids[context:], cache, parents, depths_of(parents))
    rows = path_to(parents, last % len(parents))
    cache.keep(context, rows, target.device)
    assert cache.length == context + len(rows)
    after = target.forward([7], cache)
    text = ids[:context] + [ids[context + row] for row in rows]
    assert torch.equal(after.logits_RV, one_by_one(target, [*text, 7])[-1].logits_RV)


@settings(max_examples=15)
@given(
    committed=st.integers(0, 20),
    levels=st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=4), min_size=1, max_size=4),
    seed=st.integers(0, 99),
)
def test_rows_under_a_mask_on_top_of_uncommitted_rows(
    committed: int, levels: list[list[int]], seed: int
) -> None:
    """As a drafter's beam calls it, level by level: each row is the end of its own path."""
    target, rng = fast_target(), np.random.default_rng(seed)
    ids = rng.integers(0, 40, committed).tolist()
    cache = target.new_cache()
    if ids:
        target.forward(ids, cache)
    paths: list[list[int]] = [[]]
    seen = np.zeros((1, 0), dtype=bool)
    for depth, links in enumerate(levels):
        parents = [link % len(paths) for link in links]
        tokens = rng.integers(0, 40, len(links)).tolist()
        paths = [[*paths[parent], token] for parent, token in zip(parents, tokens, strict=True)]
        seen = np.concatenate([seen[parents], np.eye(len(links), dtype=bool)], axis=1)
        mask = [row.tobytes() for row in seen]
        output = target.forward(tokens, cache, depths=[depth] * len(links), mask=mask)
        for row, path in enumerate(paths):
            assert torch.equal(output.logits_RV[row], one_by_one(target, ids + path)[-1].logits_RV[0])


def test_a_prefill_in_pieces_and_a_cache_that_grows_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """300 tokens: more than one call's rows, more than the first slots and angles."""
    target = fast_target()
    ids = tokens_of(3, 600)
    cache = target.new_cache()
    whole = target.forward(ids, cache)
    assert whole.features_RF is not None
    assert isinstance(cache, SlotCache)
    assert cache.slots.slots >= 600
    last = target.forward(ids, target.new_cache(), last_logits_only=True)
    assert torch.equal(last.logits_RV, whole.logits_RV[-1:])
    assert last.features_RF is not None
    assert torch.equal(last.features_RF, whole.features_RF)
    plain = one_by_one(target, ids)
    for row in (0, 127, 128, 255, 256, 511, 512, 599):
        features = plain[row].features_RF
        assert features is not None
        assert torch.equal(whole.logits_RV[row], plain[row].logits_RV[0])
        assert torch.equal(whole.features_RF[row], features[0])
    monkeypatch.setattr(fast_forward, "MOST_ROWS", 7)
    assert torch.equal(target.forward(ids, target.new_cache()).logits_RV, whole.logits_RV)


def test_threads_change_no_bit() -> None:
    target, parents = fast_target(), parents_of([0, 0, 1, 1, 2, 5])
    ids, before = tokens_of(4, 30), torch.get_num_threads()
    outputs = []
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            cache = target.new_cache()
            target.forward(ids[:23], cache)
            outputs.append(target.forward(ids[23:], cache, parents, depths_of(parents)).logits_RV)
    finally:
        torch.set_num_threads(before)
    assert torch.equal(outputs[0], outputs[1])
    assert torch.equal(outputs[0], outputs[2])


def test_a_head_drafts_what_it_drafts_in_eager_code() -> None:
    """States and logits of the root and of two levels below it."""
    from decoding.drafters.eagle import EagleDrafter
    from decoding.noise import NoiseStream

    target = fast_target()
    fast = fast_eagle(target)
    eager = EagleDrafter(fast.head, target.embeddings, target.device, target.dtype, beam_width=3)
    ids = tokens_of(6, 40)
    features = target.forward(ids[:-1], target.new_cache()).features_RF
    trees, states = [], []
    for drafter in (fast, eager):
        state = drafter.start(NoiseStream(0, ids), 0.0, len(ids))
        state.ingest(ids[:1], None)
        state.ingest(ids[1:], features)
        trees.append(state.begin())
        for _ in range(3):
            assert state.extend()
        assert state._rows is not None
        states.append(state._rows)
    assert trees[0].tokens == trees[1].tokens
    assert trees[0].parents == trees[1].parents
    np.testing.assert_allclose(trees[0].scores, trees[1].scores, rtol=1e-4)
    close(states[0].logits_RV, states[1].logits_RV)
    close(states[0].states_RH, states[1].states_RH)


@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize("parts", [1, 2])
def test_a_head_reads_the_rows_that_were_accepted(fast: bool, parts: int) -> None:
    """Of the features of a verified tree, when they are digested at once and when others wait with them."""
    from decoding.drafters.eagle import EagleDrafter
    from decoding.noise import NoiseStream

    target, ids = fast_target(), tokens_of(8, 12)
    drafter = fast_eagle(target)
    if not fast:
        drafter = EagleDrafter(drafter.head, target.embeddings, target.device, target.dtype, beam_width=3)
    features = target.forward(ids[:-1], target.new_cache()).features_RF
    assert features is not None
    rows, trees = [0, 2, 3, 6], []
    for whole in (True, False):
        state = drafter.start(NoiseStream(0, ids), 0.0, len(ids))
        state.ingest(ids[:1], None)
        for part in range(parts):
            tokens = ids[1 + 4 * part : 5 + 4 * part]
            state.ingest(tokens, *((features, rows) if whole else (features[rows], None)))
        trees.append(state.begin())
        for _ in range(2):
            assert state.extend()
    assert trees[0].tokens == trees[1].tokens
    assert trees[0].scores == trees[1].scores


def test_the_cache_of_a_stack_is_for_its_sizes_alone() -> None:
    """`keep` moves rows forward over each other, in every layer and head."""
    target = fast_target()
    assert target.fast is not None
    fast: FastForward = target.fast
    cache = fast.new_cache()
    target.forward(tokens_of(8, 12), cache)
    keys = cache._keys.permute(0, 1, 2, 4, 3).reshape(3, 2, -1, 32).clone()  # (layers, G, T, D)
    values = cache._values.clone()
    cache.keep(4, [0, 2, 3, 7], target.device)
    moved = cache._keys.permute(0, 1, 2, 4, 3).reshape(3, 2, -1, 32)
    order = [0, 1, 2, 3, 4, 6, 7, 11]
    assert torch.equal(moved[:, :, :8], keys[:, :, order])
    assert torch.equal(cache._values[:, :, :8], values[:, :, order])
