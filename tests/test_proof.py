"""When a folder counts as proved: never on another's word, and not once anything has changed."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from decoding import models, native, proof
from decoding.artifacts import load_tensors, save_tensors
from decoding.light import LightTarget
from decoding.models import LoadedModel
from decoding.target import TargetModel
from decoding.weight_files import WeightFiles
from tests.fakes import save_tiny_model
from tests.light_world import is_light, load, outputs, save, stamps

pytestmark = pytest.mark.usefixtures("own_cache")

# --- proved anew ------------------------------------------------------------------------------------------


def other_weights(folder: Path) -> None:
    """Of the same size, with the old time of change."""
    path = folder / "model.safetensors"
    before = path.stat()
    weights = load_tensors(path, "weights")
    weights["model.norm.weight"].neg_()
    save_tensors(path, weights)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_size == before.st_size
    assert path.stat().st_mtime_ns == before.st_mtime_ns


def other_json(name: str, key: str, value: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        raw = json.loads((folder / name).read_text(encoding="utf-8"))
        assert raw[key] != value
        (folder / name).write_text(json.dumps(raw | {key: value}), encoding="utf-8")

    return change


def other_template(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text("{{ messages[0]['content'] }}!", encoding="utf-8")


@pytest.mark.parametrize(
    "change",
    [
        other_weights,
        other_json("config.json", "rms_norm_eps", 0.5),
        other_json("generation_config.json", "eos_token_id", 7),
        other_json("tokenizer_config.json", "eos_token", "<s>"),
        other_template,
    ],
)
def test_a_changed_folder_is_proved_anew(
    change: Callable[[Path], None], tmp_path: Path, own_cache: Path
) -> None:
    folder = save(tmp_path / "model")
    load(folder)
    before = load(folder)
    change(folder)
    ordinary, light = load(folder), load(folder)
    assert type(ordinary.target) is TargetModel
    assert isinstance(light.target, LightTarget)
    assert len(stamps(own_cache)) == 2
    assert torch.equal(outputs(light.target)[0], outputs(ordinary.target)[0])
    assert light.end_ids == ordinary.end_ids
    messages = [{"role": "user", "content": "hi"}]

    def seen(model: LoadedModel) -> tuple[object, ...]:
        rendered = model.tokenizer.apply_chat_template(messages, tokenize=False)
        eps, first = model.target.config.rms_norm_eps, float(outputs(model.target)[0][0, 0])
        return (rendered, model.tokenizer.eos_token, model.end_ids, eps, first)

    assert seen(light) == seen(ordinary) != seen(before)


def test_other_code_or_libraries_need_another_proof(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = save(tmp_path / "model")
    keys = [proof.key_of(folder)]
    with monkeypatch.context() as patch:
        patch.setattr(proof._LIBRARIES[1], "__version__", "5.99")
        keys.append(proof.key_of(folder))
    with monkeypatch.context() as patch:
        patch.setattr(proof, "_SOURCES", proof._SOURCES[1:])
        keys.append(proof.key_of(folder))
    with monkeypatch.context() as patch:
        patch.setattr(native.library(), "_name", "other.so")
        keys.append(proof.key_of(folder))
    assert len({*keys}) == 4, keys
    assert proof.key_of(folder) == keys[0]
    assert proof.key_of(tmp_path / "nowhere") is None


def edited(text: str) -> str:
    stamp = json.loads(text)
    stamp["facts"]["shape"]["eps"] *= 2
    return json.dumps(stamp)


@pytest.mark.parametrize(
    "damage", [lambda text: text[:100], lambda text: "", lambda text: "[]", lambda text: "{}", edited]
)
def test_a_damaged_stamp_is_none(damage: Callable[[str], str], tmp_path: Path, own_cache: Path) -> None:
    folder = save(tmp_path / "model")
    load(folder)
    (stamp,) = stamps(own_cache)
    whole = stamp.read_text(encoding="utf-8")
    stamp.write_text(damage(whole), encoding="utf-8")
    assert not is_light(folder)
    assert stamp.read_text(encoding="utf-8") == whole
    assert is_light(folder)


def test_another_folders_stamp_is_none(tmp_path: Path, own_cache: Path) -> None:
    one, other = save(tmp_path / "one"), save(tmp_path / "other", "rotary")
    load(one)
    (stamp,) = stamps(own_cache)
    load(other)
    (second,) = set(stamps(own_cache)) - {stamp}
    second.write_bytes(stamp.read_bytes())
    assert not is_light(other)


def test_a_cache_that_cannot_be_written_is_no_error(
    tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = save(tmp_path / "model")
    with monkeypatch.context() as patch:
        patch.setattr(os, "access", lambda *_: False)
        patch.setattr(proof, "_difference", lambda *_: pytest.fail("proved in vain"))
        assert not is_light(folder)
    (own_cache / "proved").rmdir()
    (own_cache / "proved").write_text("a file", encoding="utf-8")
    assert not is_light(folder)
    assert not is_light(folder)


def test_a_folder_that_changes_while_it_is_proved_is_not(
    tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = save(tmp_path / "model")
    compare = proof._difference

    def meanwhile(*given: Any) -> str:
        found = compare(*given)
        (folder / "chat_template.jinja").write_text("other", encoding="utf-8")
        return found

    monkeypatch.setattr(proof, "_difference", meanwhile)
    load(folder)
    assert stamps(own_cache) == []


def test_stamps_of_folders_that_are_gone_are_removed(tmp_path: Path, own_cache: Path) -> None:
    one = save(tmp_path / "one")
    load(one)
    (stamp,) = stamps(own_cache)
    one.rename(tmp_path / "two")
    load(tmp_path / "two")
    assert len(stamps(own_cache)) == 1
    assert not stamp.exists()


def test_a_slow_target_has_no_stamp(tmp_path: Path, own_cache: Path) -> None:
    load(save_tiny_model(tmp_path / "tiny"))
    assert stamps(own_cache) == []


def test_only_a_large_model_is_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    load(save(tmp_path / "one"))
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(proof, "_LARGE_BYTES", 1000)
    load(save(tmp_path / "two"))
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("checking that this model may be loaded a faster way")
    assert said.err.count("\n") == 1


# --- not the same -----------------------------------------------------------------------------------------


def refused(folder: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """What differs, after a load that decodes all the same; the next load does not try again."""
    assert not is_light(folder)
    (stamp,) = stamps(own_cache)
    monkeypatch.setattr(proof, "prove", lambda *_: pytest.fail("tried again"))
    assert not is_light(folder)
    raw = json.loads(stamp.read_text(encoding="utf-8"))
    assert raw["facts"] is None
    return str(raw["differs"])


def test_a_weight_that_transformers_does_not_use_is_not_used(
    tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = save(tmp_path / "model", "rotary")
    path = folder / "model.safetensors"
    bias = {"model.layers.1.self_attn.o_proj.bias": torch.ones(64)}
    save_tensors(path, load_tensors(path, "weights") | bias)
    assert refused(folder, own_cache, monkeypatch) == "the weights model.layers.1.*"


def test_weights_that_transformers_changes_are_refused(
    tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ordinary = models._load_ordinary

    def changed(*given: Any) -> Any:
        tokenizer, model = ordinary(*given)
        model.get_decoder().layers[2].mlp.down_proj.weight[0, 0] += 1e-6
        return tokenizer, model

    monkeypatch.setattr(models, "_load_ordinary", changed)
    assert refused(save(tmp_path / "model"), own_cache, monkeypatch) == "the weights model.layers.2.*"


def test_a_tokenizer_that_differs_is_refused(
    tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    light = proof.load_tokenizer

    def other(*given: Any) -> Any:
        tokenizer = light(*given)
        tokenizer.add_tokens(["sky"])
        return tokenizer

    monkeypatch.setattr(proof, "load_tokenizer", other)
    assert refused(save(tmp_path / "model"), own_cache, monkeypatch) == "the tokenizer's state"


def test_a_tokenizer_of_ones_own_code_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"class os\.system is not transformers' own"):
        proof.load_tokenizer(tmp_path, "os", "system")


def test_numbers_of_another_kind_are_refused(
    tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = save(tmp_path / "model")
    path = folder / "model.safetensors"
    weights = load_tensors(path, "weights")
    save_tensors(path, {name: tensor.double() for name, tensor in weights.items()})
    assert "is in torch.float64" in refused(folder, own_cache, monkeypatch)


# --- damaged ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["biases", "tied, shards"])
@pytest.mark.parametrize("unnoticed", [False, True])
def test_damaged_weights_are_the_ordinary_loads_one_line(
    form: str, unnoticed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the key, against all odds, is the same."""
    folder = save(tmp_path / "model", form)
    load(folder)
    if unnoticed:
        key = proof.key_of(folder)
        monkeypatch.setattr(proof, "key_of", lambda _: key)
    path = sorted(folder.glob("*.safetensors"))[0]
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(ValueError, match="is damaged, truncated or of an unsupported kind") as error:
        load(folder)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("change", ["missing", "shape"])
def test_unnoticed_changes_of_shape_never_reach_native_code(
    change: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = save(tmp_path / "model")
    load(folder)
    key = proof.key_of(folder)
    monkeypatch.setattr(proof, "key_of", lambda _: key)
    path = folder / "model.safetensors"
    weights = load_tensors(path, "weights")
    name = "model.layers.1.mlp.down_proj.weight"
    weights[name] = weights[name][:, :64]
    if change == "missing":
        del weights[name]
    save_tensors(path, weights)
    with pytest.raises(ValueError, match=r"damaged, truncated|lacks 1 weights"):
        load(folder)


@pytest.mark.parametrize(
    ("index", "complaint"),
    [
        ("{}", "has no weight_map"),
        ('{"weight_map": {}}', "has no weight_map"),
        ('{"weight_map": {"a": "../b.safetensors"}}', "is no file beside it"),
        ('{"weight_map": {"a": 3}}', "3 is no file beside it"),
        ("{", "is not readable JSON"),
    ],
)
def test_a_damaged_index_is_one_line(index: str, complaint: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="does not exist"):
        WeightFiles(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text(index, encoding="utf-8")
    with pytest.raises(ValueError, match=complaint):
        WeightFiles(tmp_path)


def test_what_was_read_does_not_change_with_the_file(tmp_path: Path) -> None:
    """Nor keep it in memory."""
    path = tmp_path / "model.safetensors"
    save_tensors(path, {"a.weight": torch.ones(1000)})
    read = WeightFiles(tmp_path).read("a.")["weight"]
    with path.open("r+b") as file:
        file.seek(-4000, os.SEEK_END)
        file.write(bytes(4000))
    assert torch.equal(read, torch.ones(1000))


def test_a_missing_shard_and_a_weight_it_lacks_are_one_line(tmp_path: Path) -> None:
    index = {"weight_map": {"a": "one.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    with pytest.raises(ValueError, match=r"one\.safetensors do not exist"):
        WeightFiles(tmp_path).read("a")
    save_tensors(tmp_path / "one.safetensors", {"b": torch.zeros(1)})
    with pytest.raises(ValueError, match="damaged or truncated"):
        WeightFiles(tmp_path).read("a")
