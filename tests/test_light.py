"""A proved folder loads without its transformers model, and decodes the same to the bit."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from decoding import builtin, proof
from decoding.decoder import SpeculativeDecoder
from decoding.drafters.eagle_head import EagleConfig
from decoding.drafters.load import load_drafter
from decoding.light import LightTarget
from decoding.models import load_model
from decoding.target import TargetModel
from tests.fakes import save_tiny_head
from tests.light_world import FORMS, IDS, forbid_transformers, is_light, load, outputs, save, stamps

pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.mark.parametrize("form", FORMS)
def test_a_proved_folder_is_the_same_target_without_its_transformers_model(
    form: str, tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = save(tmp_path / "model", form)
    ordinary = load(folder)
    assert type(ordinary.target) is TargetModel
    (stamp,) = stamps(own_cache)
    written = stamp.stat()
    forbid_transformers(monkeypatch)
    for path in ("auto", "fast"):
        light = load(folder, path)
        assert isinstance(light.target, LightTarget)
        for ours, theirs in zip(outputs(light.target), outputs(ordinary.target), strict=True):
            assert torch.equal(ours, theirs)
        for name in ("device", "dtype", "hidden_size", "vocabulary_size", "context_limit", "slow_reason"):
            assert getattr(light.target, name) == getattr(ordinary.target, name)
        ids = torch.tensor(IDS)
        assert torch.equal(light.target.embeddings(ids), ordinary.target.embeddings(ids))
        assert light.target.fingerprint() == ordinary.target.fingerprint()
        assert EagleConfig.from_target(light.target, 9) == EagleConfig.from_target(ordinary.target, 9)
        assert light.tokenizer_fingerprint() == ordinary.tokenizer_fingerprint()
        assert light.end_ids == ordinary.end_ids == {2, 258}
    assert stamps(own_cache) == [stamp]
    assert stamp.stat().st_mtime_ns == written.st_mtime_ns


@pytest.mark.parametrize("drafter", ["head", "small", "ngram"])
def test_texts_are_the_same_whoever_drafts(
    drafter: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = save(tmp_path / "model")
    name = "ngram"
    if drafter == "head":
        name = str(save_tiny_head(tmp_path / "head", folder))
    elif drafter == "small":
        name = str(save(tmp_path / "small", "rotary"))
        load(Path(name))
    load(folder)
    texts = []
    for path in ("light", "ordinary"):
        with monkeypatch.context() as patch:
            if path == "light":
                forbid_transformers(patch)
            else:
                patch.setattr(proof, "find", lambda key: None)
            decoder = SpeculativeDecoder.from_pretrained(str(folder), name, device="cpu", dtype="float32")
        assert isinstance(decoder.target, LightTarget) == (path == "light")
        made = decoder.generate(
            [{"role": "user", "content": "a bee"}], max_new_tokens=30, seed=3, temperature=1
        )
        texts.append(made.token_ids)
    assert texts[0] == texts[1]


def test_the_transformers_model_is_loaded_when_it_is_asked_for(tmp_path: Path) -> None:
    folder = save(tmp_path / "model")
    ordinary, light = load(folder).target, load(folder).target
    assert isinstance(light, LightTarget)
    for target in (ordinary, light):
        target.capture((1, 3))
    ids = torch.tensor([IDS])
    for ours, theirs in zip(light.states(ids), ordinary.states(ids), strict=True):
        assert torch.equal(ours, theirs)
    assert light.model is light.model
    light.capture((2,))
    ordinary.capture((2,))
    assert torch.equal(light.states(ids)[0], ordinary.states(ids)[0])
    assert light.cache_name == ordinary.cache_name
    assert light.fingerprint() == ordinary.fingerprint()
    light.model.lm_head.weight.neg_()
    assert light.fingerprint() != ordinary.fingerprint()


def test_threads_are_as_before(tmp_path: Path) -> None:
    folder = save(tmp_path / "model")
    load(folder)
    torch.set_num_threads(2)
    try:
        assert is_light(folder)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)


def test_a_layer_that_is_not_there_is_refused(tmp_path: Path) -> None:
    folder = save(tmp_path / "model")
    load(folder)
    with pytest.raises(ValueError, match=r"fused layer 4 is outside 1\.\.3"):
        load(folder).target.capture((4,))


@pytest.mark.parametrize("name", ["float64", "bfloat16"])
def test_other_paths_and_dtypes_are_never_light(name: str, tmp_path: Path) -> None:
    folder = save(tmp_path / "model")
    load(folder)
    assert is_light(folder)
    assert type(load(folder, "eager").target) is TargetModel
    assert type(load_model(str(folder), "cpu", name).target) is TargetModel


def test_the_built_in_models_bytes_are_not_hashed_where_a_proof_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = save(tmp_path / "model")
    asked = []

    def convert() -> Path:
        asked.append(1)
        return folder

    monkeypatch.setattr(builtin, "converted_folder", lambda: folder)
    monkeypatch.setattr(builtin, "builtin_folder", convert)
    for _ in range(3):
        model = load_model(builtin.NAME, "cpu", "float32")
    assert isinstance(model.target, LightTarget)
    assert asked == [1]


@pytest.mark.slow
def test_a_light_load_imports_no_model_classes(tmp_path: Path) -> None:
    folder = save(tmp_path / "model")
    head = save_tiny_head(tmp_path / "head", folder)
    code = (
        "import sys\n"
        "from decoding import SpeculativeDecoder\n"
        "decoder = SpeculativeDecoder.from_pretrained(*sys.argv[1:], device='cpu', dtype='float32')\n"
        "decoder.generate('a bee', max_new_tokens=5)\n"
        "print(type(decoder.target).__name__, *sys.modules)"
    )
    run = [sys.executable, "-c", code, str(folder), str(head)]
    root = Path(__file__).resolve().parent.parent
    for kind in ("TargetModel", "LightTarget"):  # a process of its own finds the library in its own cache
        done = subprocess.run(run, cwd=root, capture_output=True, text=True, check=True)
        got, *loaded = done.stdout.split()
        if got == kind == "LightTarget":
            heavy = {"torch._dynamo", "torch.distributed.tensor", "transformers.modeling_utils", "scipy"}
            assert not heavy & set(loaded)
    assert got == "LightTarget"


def test_a_small_language_model_that_drafts_is_light_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, small = save(tmp_path / "model"), save(tmp_path / "small", "rotary")
    load(folder)
    load(small)
    forbid_transformers(monkeypatch)
    drafter = load_drafter(str(small), load(folder))
    assert isinstance(drafter.model, LightTarget)  # type: ignore[attr-defined]
