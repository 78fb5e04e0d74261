"""Folders that can be proved, and what is compared once they are loaded."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import transformers

from decoding.light import LightTarget
from decoding.models import LoadedModel, load_model
from decoding.target import TargetModel
from tests.fakes import save_tiny_model
from tests.fast_world import causal_lm

IDS = [5, 9, 4, 9, 5, 250, 3]
FORMS = {
    "biases": ("llama", torch.float32, "5GB"),
    "tied, bf16": ("tied", torch.bfloat16, "5GB"),
    "tied, shards": ("tied", torch.float32, "50KB"),
    "mistral, fp16": ("mistral", torch.float16, "5GB"),
    "qwen2, bf16, shards": ("qwen2", torch.bfloat16, "50KB"),
    "rotary": ("llama3 rotary", torch.float32, "5GB"),
}


def save(folder: Path, form: str = "biases") -> Path:
    """A model that native code can run, with a tokenizer."""
    kind, dtype, shard = FORMS[form]
    save_tiny_model(folder)
    (folder / "model.safetensors").unlink()
    model = causal_lm(kind, vocab_size=259).to(dtype)  # the tokenizer's
    model.config.bos_token_id, model.config.eos_token_id = 1, 2
    model.generation_config.eos_token_id = [2, 258]
    model.save_pretrained(folder, max_shard_size=shard)
    assert (folder / "model.safetensors").exists() == (shard == "5GB")
    return folder


def load(folder: Path, path: str = "auto") -> LoadedModel:
    return load_model(str(folder), "cpu", "float32", path)


def is_light(folder: Path) -> bool:
    return isinstance(load(folder).target, LightTarget)


def stamps(cache: Path) -> list[Path]:
    return sorted(cache.glob("proved/*"))


def forbid_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise AssertionError("transformers was asked for a model or a tokenizer")

    for name in ("AutoModelForCausalLM", "AutoTokenizer", "AutoConfig"):
        monkeypatch.setattr(getattr(transformers, name), "from_pretrained", fail)


def outputs(target: TargetModel) -> tuple[torch.Tensor, torch.Tensor]:
    """Of a chain and a tree on top of it, with features."""
    target.capture((1, 3))
    cache = target.new_cache()
    first = target.forward(IDS, cache)
    tree = target.forward([7, 8, 9], cache, [-1, 0, 0], [0, 1, 1])
    assert first.features_RF is not None
    assert tree.features_RF is not None
    return torch.cat([first.logits_RV, tree.logits_RV]), torch.cat([first.features_RF, tree.features_RF])
