"""Loading a language model as drafter: every kind of name; one line where its tokens or files do not fit."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fakes import plain_text, save_tiny_model
from transformers import AutoTokenizer, MistralConfig, MistralForCausalLM

from decoding import builtin
from decoding.controller import FixedController
from decoding.drafters import load
from decoding.drafters.causal_lm import CausalLMDrafter
from decoding.drafters.eagle import EagleDrafter
from decoding.drafters.load import load_drafter
from decoding.drafters.vocabulary import special_ids
from decoding.models import LoadedModel, load_model
from decoding.sampling import Sampling
from decoding.session import Session


@pytest.fixture(scope="module")
def model(folder: Path) -> LoadedModel:
    return load_model(str(folder), "cpu", "float64")


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another model of the same tokenizer."""
    return save_tiny_model(tmp_path_factory.mktemp("other"), seed=9)


@pytest.fixture
def damaged(other: Path, tmp_path: Path) -> Path:
    """A copy of it to be spoilt."""
    return Path(shutil.copytree(other, tmp_path / "damaged"))


def refusal(name: str | Path, model: LoadedModel, match: str) -> str:
    with pytest.raises(ValueError, match=match) as error:
        load_drafter(str(name), model)
    text = str(error.value)
    assert "\n" not in text
    assert str(name) in text
    return text


def edit_json(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | changes), encoding="utf-8")


def test_a_folder_drafts_in_the_targets_dtype_and_changes_no_text(other: Path, model: LoadedModel) -> None:
    model.target.capture((1, 2, 3))
    drafter = load_drafter(str(other), model, beam_width=2)
    assert isinstance(drafter, CausalLMDrafter)
    assert (drafter.model.dtype, drafter.beam_width, drafter.name) == (torch.float64, 2, str(other))
    assert model.target.fused_layers == drafter.fused_layers == ()
    assert drafter.fingerprint() == f"{load_model(str(other), 'cpu', 'float32').target.fingerprint()}-beam2"
    prompt = model.tokenizer("hello")["input_ids"]
    for sampling in (Sampling(), Sampling(1.0)):
        session = Session(
            model.target, drafter, prompt, max_new_tokens=12, end_ids=(), sampling=sampling, seed=3
        )
        depths = [record.draft_depth for record in session.run(FixedController(3, 5))]
        assert depths[0] == 3
        assert session.generated == plain_text(model.target, prompt, 12, sampling, seed=3)


def test_the_built_in_model_and_a_hub_id_draft_too(
    other: Path, head: Path, model: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a hub id the config alone is fetched first: it says which loader fetches the rest."""
    monkeypatch.setattr(builtin, "builtin_folder", lambda: other)
    assert isinstance(load_drafter(builtin.NAME, model), CausalLMDrafter)
    fetched: list[list[str]] = []
    hub = {"org/model": other, "org/head": head}

    def snapshot(name: str, allow_patterns: list[str]) -> str:
        fetched.append(allow_patterns)
        return str(hub[name])

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot)
    monkeypatch.setattr(load, "load_model", lambda name, *place: load_model(str(hub[name]), *place))
    assert isinstance(load_drafter("org/model", model), CausalLMDrafter)
    assert fetched == [["config.json"]]
    single = load_model(model.name, "cpu", "float32")
    assert isinstance(load_drafter("org/head", single), EagleDrafter)
    assert fetched[1:] == [["config.json"], ["config.json", "model.safetensors"]]


@pytest.mark.parametrize("drop", ["draft_vocab_size", "architectures"])
def test_a_public_head_that_names_a_model_type_is_a_head(
    drop: str, head: Path, model: LoadedModel, tmp_path: Path
) -> None:
    copy = Path(shutil.copytree(head, tmp_path / "head"))
    config = json.loads((copy / "config.json").read_text(encoding="utf-8")) | {"model_type": "llama"}
    del config[drop]
    (copy / "config.json").write_text(json.dumps(config), encoding="utf-8")
    if drop == "architectures":
        assert isinstance(load_drafter(str(copy), model), EagleDrafter)
    else:
        refusal(copy, model, "lacks or mistypes")


def test_vocabularies_of_another_size_are_refused(damaged: Path, model: LoadedModel) -> None:
    tokenizer = AutoTokenizer.from_pretrained(damaged)
    tokenizer.add_tokens(["longer"])
    tokenizer.save_pretrained(damaged)
    text = refusal(damaged, model, "another vocabulary than .*: 260 token strings, that of .* has 259")
    assert model.name in text


def test_as_many_other_strings_are_refused(damaged: Path, model: LoadedModel) -> None:
    file = damaged / "tokenizer.json"
    vocabulary = json.loads(file.read_text(encoding="utf-8"))
    strings = vocabulary["model"]["vocab"]
    strings["newer"] = strings.pop("b")
    strings["!"], strings["A"] = strings["A"], strings["!"]
    file.write_text(json.dumps(vocabulary), encoding="utf-8")
    first = model.tokenizer.get_vocab()["!"]
    text = refusal(damaged, model, rf"token {first} is 'A', that of .* is '!'")
    assert model.name in text


def test_other_special_ids_are_refused(damaged: Path, model: LoadedModel) -> None:
    tokenizer = AutoTokenizer.from_pretrained(damaged)
    assert tokenizer.get_vocab() == model.tokenizer.get_vocab()
    tokenizer.add_special_tokens({"pad_token": "b"})
    tokenizer.save_pretrained(damaged)
    number = model.tokenizer.get_vocab()["b"]
    text = refusal(damaged, model, f"other special tokens than .*: token {number}, 'b', is special in")
    assert model.name in text


def test_special_are_ids_with_a_role_and_added_tokens_flagged_so() -> None:
    added = {3: SimpleNamespace(special=True), 4: SimpleNamespace(special=False)}
    tokenizer = SimpleNamespace(all_special_ids=[1], added_tokens_decoder=added)
    assert special_ids(tokenizer) == {1, 3}
    assert special_ids(SimpleNamespace(all_special_ids=[1])) == {1}


def test_a_sliding_window_is_refused_as_the_drafters(damaged: Path, model: LoadedModel) -> None:
    config = MistralConfig(
        vocab_size=259,
        hidden_size=8,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        sliding_window=4,
    )
    MistralForCausalLM(config).save_pretrained(damaged)
    refusal(damaged, model, "drafter .*: model uses sliding_attention layers")


def test_damaged_folders_and_files_are_one_line(damaged: Path, model: LoadedModel, tmp_path: Path) -> None:
    weights = damaged / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    refusal(damaged, model, "drafter .* is damaged, truncated")
    weights.unlink()
    refusal(damaged, model, "drafter .* is damaged, truncated")
    edit_json(damaged / "config.json", model_type="no-such-kind")
    refusal(damaged, model, "drafter .* is damaged, truncated or of an unsupported kind")
    (damaged / "config.json").write_text("{", encoding="utf-8")
    refusal(damaged, model, "drafter config .* is not readable JSON")
    (damaged / "config.json").unlink()
    refusal(damaged, model, "drafter config .* does not exist")
    refusal(tmp_path / "none.gguf", model, "drafter .*: GGUF file .* does not exist")
    (tmp_path / "no.gguf").write_bytes(b"no, not this")
    refusal(tmp_path / "no.gguf", model, "drafter .*: .* is not a GGUF file")


def test_a_model_without_its_tokenizer_is_one_line(damaged: Path, model: LoadedModel) -> None:
    for file in damaged.glob("tokenizer*"):
        file.unlink()
    refusal(damaged, model, "drafter ")


@pytest.mark.parametrize("name", ["", "x" * 5000, "a\0b", "none", "a/b/c"])
def test_what_is_no_name_says_what_is_known(name: str, model: LoadedModel) -> None:
    with pytest.raises(
        ValueError, match=r"unknown drafter .*: not one of ngram, .*smollm2-135m, and"
    ) as error:
        load_drafter(name, model)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 200
