"""Where the fast path ends: what it refuses, odd numbers, and callers at once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from decoding.llama_stack import stack_of_model
from decoding.packed import NoFastPath
from decoding.target import TargetModel
from tests.fast_world import causal_lm, close, fast_target, tokens_of


def test_large_and_damaged_numbers_end_as_in_eager_code() -> None:
    """Scores far apart give a softmax of one term, NaN stays NaN and never becomes a token."""
    model = causal_lm()
    model.model.layers[0].self_attn.q_proj.weight.mul_(300)
    target = TargetModel(model)
    assert target.use_fast_path(), target.slow_reason
    twin = TargetModel(causal_lm().double())
    twin.model.model.layers[0].self_attn.q_proj.weight.mul_(300)
    ids = tokens_of(5, 20)
    ours = target.forward(ids, target.new_cache()).logits_RV
    close(ours, twin.forward(ids, twin.new_cache()).logits_RV)
    model.model.embed_tokens.weight[9] = torch.nan
    assert target.forward([3, 9], target.new_cache()).logits_RV[1].isnan().all()


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"head_dim": 8}, "its attention head size 8 is no multiple of"),
        ({"intermediate_size": 100}, "its MLP size 100 is no multiple of"),
        ({"hidden_act": "gelu"}, "no SwiGLU"),
        ({"mlp_bias": True}, "its MLP has biases"),
        (
            {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}},
            "its rotary embedding is dynamic",
        ),
    ],
)
def test_what_native_code_cannot_run_says_why(changed: dict[str, object], reason: str) -> None:
    target = TargetModel(causal_lm(**changed))  # type: ignore[arg-type]
    assert not target.use_fast_path()
    assert target.fast is None
    assert reason in target.slow_reason
    assert target.forward([1, 2], target.new_cache()).logits_RV.shape == (2, 40)


def test_other_families_and_dtypes_stay_eager() -> None:
    model = causal_lm()
    with pytest.raises(NoFastPath, match=r"not in float32 on the CPU"):
        stack_of_model(model.double())
    model.config.model_type = "gemma"
    with pytest.raises(NoFastPath, match="it is a gemma, not one of llama, mistral, qwen2"):
        stack_of_model(model)


def test_a_relative_with_another_layer_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """It claims to be a Llama, but its norm adds one to the weights, as Gemma's does."""
    model = causal_lm()
    norm = type(model.model.norm)
    plain = norm.forward
    monkeypatch.setattr(norm, "forward", lambda self, x: plain(self, x) * (1 + 1 / self.weight))
    target = TargetModel(model)
    assert not target.use_fast_path()
    assert "its logits there are off by" in target.slow_reason


def test_capturing_other_layers_later_is_heard() -> None:
    target = TargetModel(causal_lm(), (1,))
    assert target.use_fast_path()
    first = target.forward([3, 4], target.new_cache()).features_RF
    target.capture((3, 1, 1))
    both = target.forward([3, 4], target.new_cache()).features_RF
    assert first is not None
    assert both is not None
    assert torch.equal(both[:, 64:128], first)
    assert torch.equal(both[:, 128:], first)
    target.capture(())
    assert target.forward([3], target.new_cache()).features_RF is None


@pytest.mark.parametrize("ids", [[3, 40], [-1, 3]])
def test_ids_without_an_embedding_are_refused(ids: list[int]) -> None:
    """Native code would read whatever lies there."""
    target = fast_target()
    cache = target.new_cache()
    with pytest.raises(ValueError, match=rf"token ids span {min(ids)}\.\.{max(ids)}, must be in 0\.\.39"):
        target.forward(ids, cache)
    assert cache.length == 0


def test_padding_is_never_the_best_token() -> None:
    """Its logits are 0: with all others below, they would win."""
    model = causal_lm()
    ids = tokens_of(9, 6)
    state_H = model.model(input_ids=torch.tensor([ids])).last_hidden_state[0, -1]
    model.lm_head.weight.copy_(-torch.linspace(1, 2, 40)[:, None] * state_H)
    target = TargetModel(model)
    assert target.use_fast_path(), target.slow_reason
    output = target.forward(ids, target.new_cache(), last_logits_only=True)
    assert output.logits_RV.max() < 0
    assert output.best == ([output.logits_RV.max().item()], [0])


def test_a_gate_far_outside_of_what_exp_can_say() -> None:
    """silu(-1e4) is 0 and silu(1e4) is 1e4: no infinity, no NaN."""
    model, twin = causal_lm(), causal_lm().double()
    for one in (model, twin):
        one.model.layers[0].mlp.gate_proj.weight.mul_(3000)
    target, reference = TargetModel(model), TargetModel(twin)
    assert target.use_fast_path(), target.slow_reason
    ids = tokens_of(10, 20)
    ours = target.forward(ids, target.new_cache()).logits_RV
    theirs = reference.forward(ids, reference.new_cache()).logits_RV
    assert (ours - theirs).abs().max() <= 1e-3 * theirs.abs().max()


@pytest.mark.parametrize("threads", [1, 2])
def test_callers_at_once_do_not_meet(threads: int) -> None:
    """Four Python threads on one target, prompts of different lengths: each gets what it gets alone."""
    target, before = fast_target(), torch.get_num_threads()

    def decode(seed: int) -> torch.Tensor:
        torch.set_num_threads(threads)  # OpenMP keeps it for each thread
        cache = target.new_cache()
        target.forward(tokens_of(seed, 20 + 90 * (seed % 3)), cache)
        return torch.cat([target.forward([token], cache).logits_RV for token in tokens_of(seed, 30)])

    try:
        alone = [decode(seed) for seed in range(8)]
        with ThreadPoolExecutor(4) as callers:
            together = list(callers.map(decode, range(8)))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(one, other) for one, other in zip(alone, together, strict=True))
