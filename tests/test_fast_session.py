"""On the fast path texts and log-probabilities are plain decoding's to the bit, whoever drafts."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import LlamaConfig, LlamaForCausalLM

from decoding import machine, models
from decoding.controller import PlainController
from decoding.decoder import SpeculativeDecoder
from decoding.drafters.base import Drafter
from decoding.drafters.causal_lm import CausalLMDrafter
from decoding.drafters.composite import CompositeDrafter
from decoding.drafters.merged import MergedDrafter
from decoding.drafters.ngram import NgramDrafter
from decoding.models import load_model
from decoding.sampling import Sampling
from decoding.session import Session
from decoding.target import TargetModel
from tests.fakes import VOCABULARY, ScriptController, save_tiny_head, save_tiny_model
from tests.fast_world import SIZES, causal_lm, fast_eagle

PROMPT = [5, 9, 4, 9, 5, 9, 4, 9, 5]
SAMPLINGS = (
    Sampling(),
    Sampling(temperature=1.0),
    Sampling(temperature=0.8, top_k=7, top_p=0.9),
    Sampling(repetition_penalty=1.3),
)


@cache
def world(name: str) -> tuple[TargetModel, Drafter]:
    """A target on the fast path and a drafter of it, head and small model on the fast path as well."""
    target = TargetModel(causal_lm(half=True))
    assert target.use_fast_path(), target.slow_reason
    lookup = NgramDrafter(1, vocabulary_size=VOCABULARY)
    if name == "ngram":
        return target, lookup
    if name == "causal":
        small = TargetModel(causal_lm("qwen2", seed=4))
        assert small.use_fast_path()
        return target, CausalLMDrafter(small, target, 3, "small")
    head = fast_eagle(target)
    if name == "merged":
        return target, MergedDrafter(head, lookup, lookup_depth=4)
    return target, CompositeDrafter(head, lookup) if name == "composite" else head


def decoded(name: str, sampling: Sampling, seed: int, controller: object) -> tuple[list[int], list[float]]:
    target, drafter = world(name)
    target.capture(drafter.fused_layers)
    session = Session(
        target,
        drafter,
        PROMPT,
        max_new_tokens=24,
        end_ids=(),
        sampling=sampling,
        seed=seed,
        log_probs=True,
    )
    log_probs: list[float] = []
    for record in session.run(controller):  # type: ignore[arg-type]
        log_probs += record.log_probs
        assert session.cache.length == len(session.committed) - 1
    return session.generated, log_probs


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
@pytest.mark.parametrize("name", ["eagle", "causal", "ngram", "merged", "composite"])
@settings(max_examples=6)
@given(
    more=st.lists(st.booleans(), min_size=1, max_size=8),
    sizes=st.lists(st.integers(0, 20), min_size=1, max_size=4),
    seed=st.integers(0, 9),
)
def test_text_and_log_probs_are_plain_decodings(
    name: str, sampling: Sampling, more: list[bool], sizes: list[int], seed: int
) -> None:
    plain = decoded(name, sampling, seed, PlainController())
    assert decoded(name, sampling, seed, ScriptController([True, *more], sizes)) == plain


def save_wide_model(folder: Path) -> Path:
    """The tiny model's tokenizer, with a model of sizes that native code can run."""
    save_tiny_model(folder)
    config = LlamaConfig(**{**SIZES, "vocab_size": 259, "bos_token_id": 1, "eos_token_id": 2})
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def test_a_loaded_decoder_takes_the_fast_path_where_it_can(tmp_path: Path) -> None:
    wide, tiny = save_wide_model(tmp_path / "wide"), save_tiny_model(tmp_path / "tiny")
    assert load_model(str(wide), "cpu", "float32").target.fast is not None
    assert load_model(str(wide), "cpu", "float32", "eager").target.fast is None
    doubled = load_model(str(wide), "cpu", "float64").target
    assert doubled.fast is None
    assert doubled.slow_reason == ""
    slow = load_model(str(tiny), "cpu", "float32").target
    assert slow.fast is None
    assert "is no multiple of" in slow.slow_reason
    with pytest.raises(ValueError, match=r"cannot take the fast path: its .* size .*path eager"):
        load_model(str(tiny), "cpu", "float32", "fast")
    with pytest.raises(ValueError, match=r"cannot take the fast path: it is in torch\.float64"):
        load_model(str(wide), "cpu", "float64", "fast")
    with pytest.raises(ValueError, match="path is 'quick', must be one of auto, fast, eager"):
        load_model(str(wide), "cpu", "float32", "quick")


def test_auto_is_bf16_only_where_native_code_cannot_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a processor that multiplies bf16."""
    wide, tiny = save_wide_model(tmp_path / "wide"), save_tiny_model(tmp_path / "tiny")
    for module in (machine, models):
        monkeypatch.setattr(module, "cpu_has_bfloat16", lambda: True)
    fast = load_model(str(wide), "cpu").target
    assert fast.fast is not None
    assert fast.dtype == torch.float32
    slow = load_model(str(tiny), "cpu").target
    assert slow.fast is None
    assert slow.dtype == torch.bfloat16 == slow.forward([1, 2], slow.new_cache()).logits_RV.dtype
    assert "is no multiple of" in slow.slow_reason
    assert load_model(str(wide), "cpu", path="eager").target.dtype == torch.bfloat16


def test_paths_of_a_decoder_write_the_same_text(tmp_path: Path) -> None:
    folder = save_wide_model(tmp_path / "model")
    head = save_tiny_head(tmp_path / "head", folder)
    texts = []
    for path in ("fast", "eager"):
        decoder = SpeculativeDecoder.from_pretrained(str(folder), str(head), device="cpu", path=path)
        assert (decoder.drafter.fast is not None) == (path == "fast")  # type: ignore[attr-defined]
        texts.append(decoder.generate("a bee", max_new_tokens=20, seed=3, temperature=1.0).text)
    assert texts[0] == texts[1]


def test_without_a_compiler_the_eager_path_decodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from decoding import native

    folder = save_wide_model(tmp_path / "model")
    monkeypatch.setenv("DRAFTPACE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("CC", "no-such-compiler")
    native._found.cache_clear()
    try:
        target = load_model(str(folder), "cpu", "float32").target
        assert target.fast is None
        assert target.slow_reason.startswith("no C compiler: CC names 'no-such-compiler'")
        with pytest.raises(ValueError, match="cannot take the fast path: no C compiler"):
            load_model(str(folder), "cpu", "float32", "fast")
    finally:
        native._found.cache_clear()
