"""The target's forward over trees and chains, its captured features, its fingerprint and its refusals."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from decoding.target import TargetModel
from decoding.tree import DraftTree
from tests.fakes import tiny_target

PROMPT = [5, 9, 4, 31]
TARGET = tiny_target(seed=2)
TARGET.capture((1, 2, 4))


@settings(max_examples=25)
@given(
    parents=st.lists(st.integers(0, 5), min_size=0, max_size=8),
    tokens=st.lists(st.integers(0, 39), min_size=8, max_size=8),
    cached=st.integers(0, 3),
)
def test_each_row_of_a_tree_is_the_end_of_its_own_text(
    parents: list[int], tokens: list[int], cached: int
) -> None:
    """Logits and features of every row equal those of the path to it, run alone without a cache."""
    tree = DraftTree(PROMPT[cached])
    # The drawn numbers become parents level by level: each node hangs on one of the level before.
    for depth, start in enumerate(range(0, len(parents), 3)):
        above = tree.level(depth)
        chosen = [above[number % len(above)] for number in parents[start : start + 3]]
        tree.add_level(tokens[start : start + len(chosen)], chosen, [-1.0] * len(chosen))
    selection = tree.select(tree.size)
    cache = TARGET.new_cache()
    if cached:
        TARGET.forward(PROMPT[:cached], cache)
    output = TARGET.forward(selection.tokens, cache, selection.parents, selection.depths)
    assert cache.length == cached + len(selection.tokens)
    assert output.features_RF is not None
    for row in range(len(selection.tokens)):
        path: list[int] = []
        ancestor = row
        while ancestor >= 0:
            path.insert(0, selection.tokens[ancestor])
            ancestor = int(selection.parents[ancestor])
        with torch.inference_mode():
            alone = TARGET.model(
                input_ids=torch.tensor([PROMPT[:cached] + path]), use_cache=False, output_hidden_states=True
            )
        torch.testing.assert_close(output.logits_RV[row], alone.logits[0, -1])
        low, middle = alone.hidden_states[1][0, -1], alone.hidden_states[2][0, -1]
        torch.testing.assert_close(output.features_RF[row, :64], torch.cat([low, middle]))


@settings(max_examples=25)
@given(
    cached=st.integers(0, 4),
    first=st.lists(st.integers(0, 39), min_size=1, max_size=3),
    second=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 39)), min_size=1, max_size=3),
    third=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 39)), min_size=1, max_size=3),
)
def test_each_row_under_a_mask_is_the_end_of_its_own_text(
    cached: int, first: list[int], second: list[tuple[int, int]], third: list[tuple[int, int]]
) -> None:
    """Three levels, each on top of the rows of the one before in the cache: logits are those of the path."""
    cache = TARGET.new_cache()
    if cached:
        TARGET.forward(PROMPT[:cached], cache)
    paths: list[list[int]] = [[]]
    seen = np.zeros((1, 0), dtype=bool)
    for depth, level in enumerate(([(0, token) for token in first], second, third)):
        parents = [number % len(paths) for number, _ in level]
        paths = [[*paths[parent], token] for parent, (_, token) in zip(parents, level, strict=True)]
        seen = np.concatenate([seen[parents], np.eye(len(level), dtype=bool)], axis=1)
        tokens, mask = [token for _, token in level], [row.tobytes() for row in seen]
        output = TARGET.forward(tokens, cache, depths=[depth] * len(level), mask=mask)
        assert cache.length == cached + seen.shape[1]
        for row, path in enumerate(paths):
            with torch.inference_mode():
                alone = TARGET.model(input_ids=torch.tensor([PROMPT[:cached] + path]), use_cache=False)
            torch.testing.assert_close(output.logits_RV[row], alone.logits[0, -1])


def test_last_features_are_those_before_the_final_norm() -> None:
    """Layer 4 of 4: transformers reports its output normalised, the head reads it as it is."""
    output = TARGET.forward(PROMPT, TARGET.new_cache())
    assert output.features_RF is not None
    normalised = TARGET.model.model.norm(output.features_RF[:, 64:])
    torch.testing.assert_close(TARGET.model.lm_head(normalised), output.logits_RV)


def test_prefill_computes_the_last_logits_alone() -> None:
    full = TARGET.forward(PROMPT, TARGET.new_cache())
    last = TARGET.forward(PROMPT, TARGET.new_cache(), last_logits_only=True)
    assert last.logits_RV.shape == (1, 40)
    torch.testing.assert_close(last.logits_RV[0], full.logits_RV[-1])
    torch.testing.assert_close(last.features_RF, full.features_RF)


def test_states_of_padded_texts_are_those_of_each_alone() -> None:
    batch = torch.tensor([[*PROMPT], [7, 8, 0, 0]])
    features, finals = TARGET.states(batch)
    for row, length in ((0, 4), (1, 2)):
        alone = TARGET.forward(batch[row, :length].tolist(), TARGET.new_cache())
        torch.testing.assert_close(features[row, :length], alone.features_RF)
        torch.testing.assert_close(TARGET.model.lm_head(finals[row, :length]), alone.logits_RV)


def test_capture_can_be_changed_and_switched_off() -> None:
    target = tiny_target(layers=2)
    assert target.forward(PROMPT, target.new_cache()).features_RF is None
    for layers in ((1,), (2, 1), (1, 1, 2)):
        target.capture(layers)
        features = target.forward(PROMPT, target.new_cache()).features_RF
        assert features is not None
        assert features.shape == (4, 32 * len(layers))
    target.capture(())
    assert target.forward(PROMPT, target.new_cache()).features_RF is None


@pytest.mark.parametrize("index", [0, 5, -1])
def test_a_layer_that_is_not_there_cannot_be_fused(index: int) -> None:
    with pytest.raises(ValueError, match=rf"fused layer {index} is outside 1\.\.4 of this target"):
        tiny_target().capture((1, index, 2))


SMALL = {
    "vocab_size": 20,
    "hidden_size": 8,
    "intermediate_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 64,
}


def test_sliding_windows_are_refused() -> None:
    """Named by layer (Qwen2), or one window for all (Mistral): a tree's rows would ignore it."""
    by_layer = Qwen2Config(**SMALL, use_sliding_window=True, sliding_window=4, max_window_layers=1)
    for model in (Qwen2ForCausalLM(by_layer), MistralForCausalLM(MistralConfig(**SMALL, sliding_window=4))):
        with pytest.raises(
            ValueError, match="model uses sliding_attention layers; draftpace needs full"
        ) as caught:
            TargetModel(model)
        assert "\n" not in str(caught.value)


def test_full_attention_models_are_taken() -> None:
    for model in (
        Qwen2ForCausalLM(Qwen2Config(**SMALL)),
        MistralForCausalLM(MistralConfig(**SMALL, sliding_window=None)),
        LlamaForCausalLM(LlamaConfig(**SMALL)),
    ):
        target = TargetModel(model.eval())
        assert target.forward([1, 2, 3], target.new_cache()).logits_RV.shape == (3, 20)
        assert (target.vocabulary_size, target.context_limit, target.hidden_size) == (20, 64, 8)


def test_fingerprint_is_of_the_weights_not_of_their_dtype() -> None:
    """For weights that bf16 holds exactly; other weights, or another shape, are another target."""
    model = tiny_target().model.to(torch.bfloat16)
    prints = {
        TargetModel(model.to(dtype)).fingerprint() for dtype in (torch.bfloat16, torch.float32, torch.float64)
    }
    (print_,) = prints
    assert len(print_) == 16
    assert int(print_, 16) >= 0
    assert TargetModel(tiny_target().model.to(torch.bfloat16)).fingerprint() == print_
    others = [tiny_target(seed=1), tiny_target(layers=3)]
    assert len({print_, *(other.fingerprint() for other in others)}) == 3
    with torch.no_grad():
        model.model.layers[2].mlp.up_proj.weight[0, 0] *= -1
    assert TargetModel(model).fingerprint() != print_
