"""Layers that add zero: the same logits, features and texts to the bit, more work, and a mark on it all."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from commands.decoder import load_decoder
from commands.same_models import check_extra_layers, check_same
from configs.schema import Config
from decoding import extra_layers
from decoding.decoder import SpeculativeDecoder
from decoding.drafters.eagle_head import EagleConfig
from decoding.exported import check_models
from decoding.extra_layers import add_extra_layers, extra_layers_of, label, marked, unmarked
from decoding.light import LightTarget
from decoding.models import load_model
from decoding.target import TargetModel
from tests.fakes import save_tiny_head
from tests.fast_world import KINDS, causal_lm, tokens_of
from tests.light_world import save, stamps
from tests.profile_world import PRINTS, small_profile

COUNT = 4


def slowed(kind: str, count: int, fast: bool, dtype: torch.dtype = torch.float32) -> TargetModel:
    model = causal_lm(kind).to(dtype)
    add_extra_layers(model, count)
    target = TargetModel(model, (1, 2, 3), extra_layers=count)
    assert target.use_fast_path() == fast or not fast, target.slow_reason
    if not fast:
        target.fast = None
    return target


def outputs(target: TargetModel) -> list[torch.Tensor]:
    """Of a prefill, of a tree on top of it, and of a cycle after an accepted path."""
    ids, cache, found = tokens_of(3, 40), target.new_cache(), []
    for rows, parents, depths in ((ids[:30], None, None), (ids[30:34], [-1, 0, 0, 2], [0, 1, 1, 2])):
        found.append(target.forward(rows, cache, parents, depths))
    cache.keep(30, [0, 2, 3], target.device)
    found.append(target.forward(ids[34:35], cache))
    features = [one.features_RF for one in found]
    return [*(one.logits_RV for one in found), *(one for one in features if one is not None)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("path", ["fast", "eager", "eager64", "eager16"])
def test_logits_and_features_are_the_same_bits(kind: str, path: str) -> None:
    dtype = {"eager64": torch.float64, "eager16": torch.bfloat16}.get(path, torch.float32)
    plain, slow = (slowed(kind, count, path == "fast", dtype) for count in (0, COUNT))
    ours, theirs = outputs(slow), outputs(plain)
    assert len(ours) == len(theirs) == 6
    for one, other in zip(ours, theirs, strict=True):
        assert torch.equal(one, other)


def test_the_eager_path_runs_them() -> None:
    target, calls = slowed("llama", COUNT, fast=False), list[int]()
    for layer in target.model.get_decoder().layers:
        layer.register_forward_hook(lambda module, *_: calls.append(module.self_attn.layer_idx))
    cache = target.new_cache()
    target.forward([5, 6], cache)
    assert calls == list(range(3 + COUNT))
    assert [layer.buffer.length for layer in cache.layers] == [2] * (3 + COUNT)  # type: ignore[union-attr]


@pytest.mark.parametrize("part", ["self_attn.o_proj", "mlp.down_proj"])
def test_the_fast_path_runs_them(part: str) -> None:
    """Were one of them not zero, it would be seen."""
    target = slowed("llama", COUNT, fast=True)
    assert target.fast is not None
    assert target.fast.packed.stack.layer_count == 3 + COUNT
    before = outputs(target)
    with torch.no_grad():
        target.model.get_decoder().layers[-1].get_submodule(part).weight[0, 0] = 1.0
    assert target.use_fast_path()
    after = outputs(target)
    assert not torch.equal(before[0], after[0])
    assert torch.equal(before[3], after[3])  # features are of the layers before


def test_its_own_layers_are_what_can_be_fused() -> None:
    target = slowed("llama", COUNT, fast=False)
    assert (target.own_layers, target.config.num_hidden_layers) == (3, 3 + COUNT)
    with pytest.raises(ValueError, match=r"fused layer 4 is outside 1\.\.3"):
        target.capture((4,))
    assert EagleConfig.from_target(target, 30) == EagleConfig.from_target(slowed("llama", 0, False), 30)


def test_the_fingerprint_is_marked_and_the_text_s_is_not() -> None:
    plain, few, more = (slowed("llama", count, fast=False) for count in (0, 1, COUNT))
    prints = [one.fingerprint() for one in (plain, few, more)]
    assert prints == [prints[0], f"{prints[0]}+1", f"{prints[0]}+{COUNT}"]
    assert {one.text_fingerprint() for one in (plain, few, more)} == {prints[0]}
    assert slowed("qwen2", COUNT, fast=False).text_fingerprint() != prints[0]
    for count in (0, 1, 30):
        assert (unmarked(marked("ab12", count)), extra_layers_of(marked("ab12", count))) == ("ab12", count)
    assert [label("m", count) for count in (0, 1, 2)] == [
        "m",
        "m + 1 extra layer (synthetic)",
        "m + 2 extra layers (synthetic)",
    ]


@pytest.mark.parametrize("wrong", [-1, 1001, 1.5, True, "2"])
def test_other_counts_are_refused(wrong: Any) -> None:
    with pytest.raises(ValueError, match=r"extra_layers is .*, must be a whole number in 0\.\.1000"):
        load_model("nowhere", "cpu", extra_layers=wrong)


def test_a_layer_that_does_not_only_add_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extra_layers, "_ZEROED", ("self_attn.o_proj",))
    with pytest.raises(ValueError, match="extra layers change what LlamaForCausalLM says"):
        add_extra_layers(causal_lm(), 1)
    monkeypatch.setattr(extra_layers, "_ZEROED", ("attention.dense",))
    with pytest.raises(ValueError, match=r"LlamaForCausalLM has no attention\.dense in its layers: .* leave"):
        add_extra_layers(causal_lm(), 1)


@pytest.mark.usefixtures("own_cache")
@pytest.mark.parametrize("path", ["fast", "eager"])
def test_texts_are_the_same_with_its_head(path: str, tmp_path: Path, own_cache: Path) -> None:
    """A loaded folder: the head and the policy of the target as it is fit it, and a proof is not asked."""
    folder = save(tmp_path / "model")
    head = save_tiny_head(tmp_path / "head", folder)
    kept, texts, cycles = stamps(own_cache), [], []
    for count in (0, COUNT):
        decoder = SpeculativeDecoder.from_pretrained(
            str(folder), f"merged:{head}", device="cpu", dtype="float32", path=path, extra_layers=count
        )
        assert not (count and isinstance(decoder.target, LightTarget))
        for temperature in (0.0, 1.0):
            made = decoder.generate("a bee", max_new_tokens=30, seed=3, temperature=temperature)
            texts.append(made.token_ids)
            cycles.append([one.accepted_by_depth for one in made.cycles])
        assert (decoder.target.fast is not None) == (path == "fast")
    assert texts[:2] == texts[2:]
    assert cycles[:2] == cycles[2:]
    assert decoder.model.name.endswith(f"+ {COUNT} extra layers (synthetic)")
    assert stamps(own_cache) == kept
    config = Config.model_validate(
        {"model": {"target": str(folder), "drafter": "ngram", "path": path, "extra_layers": 1}}
    )
    assert load_decoder(config).target.extra_layers == 1


def test_a_policy_may_be_used_with_a_warning() -> None:
    info = SimpleNamespace(fingerprints={"target": "aa", "drafter": "bb"}, device="cpu", dtype="float32")
    assert check_models(info, "aa", "bb", "cpu", "float32") == []
    (warning,) = check_models(info, "aa+9", "bb", "cpu", "float32")
    assert warning == "the policy was trained on target aa, this is aa+9: its timing may not fit"
    with pytest.raises(ValueError, match="trained for target aa, this is ab"):
        check_models(info, "ab+9", "bb", "cpu", "float32")


def test_recordings_go_with_both_and_profiles_with_one() -> None:
    """What is recorded says nothing of time; what is measured says nothing else."""
    slow = PRINTS | {"target": marked(PRINTS["target"], 2)}
    check_same(PRINTS, slow, "recording x", "this model")
    with pytest.raises(ValueError, match=r"recording x is of target aa, this model of ab\+2"):
        check_same(PRINTS, slow | {"target": "ab+2"}, "recording x", "this model")
    profile = small_profile()
    check_extra_layers(profile, Config())
    slower = Config.model_validate({"model": {"extra_layers": 2}})
    with pytest.raises(ValueError, match=r"measured with 0 extra layers, model\.extra_layers is 2"):
        check_extra_layers(profile, slower)
    with pytest.raises(ValueError, match=r"the profile was measured on target aa, this is aa\+2"):
        profile.check_matches(slow, profile.conditions)


def test_copies_have_weights_of_their_own() -> None:
    """Weights that are shared would be read once, and cost nothing."""
    layers = slowed("llama", 2, fast=False).model.get_decoder().layers
    places = [layer.mlp.gate_proj.weight.data_ptr() for layer in layers]
    assert len(set(places)) == 5
    assert np.all([not layer.mlp.down_proj.weight.any() for layer in layers[3:]])
