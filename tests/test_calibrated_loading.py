"""Drafters by name that join a lookup to a head; the calibration beside the weights; the one of a policy."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fake_policies import INFO, wild_pair

from decoding import FixedController, PlainController, SpeculativeDecoder
from decoding.__main__ import main
from decoding.calibration import CALIBRATION_FILE, Calibration
from decoding.drafters import load
from decoding.drafters.causal_lm import CausalLMDrafter
from decoding.drafters.composite import CompositeDrafter
from decoding.drafters.eagle import EagleDrafter
from decoding.drafters.load import load_drafter
from decoding.drafters.merged import MergedDrafter
from decoding.drafters.ngram import NgramDrafter
from decoding.exported import INFO_FILE, ExportedController
from decoding.generation import Options
from decoding.models import LoadedModel, load_model
from policies.export import export_policy
from tests.fakes import save_tiny_head, tiny_calibration


@pytest.fixture(scope="module")
def model(folder: Path) -> LoadedModel:
    return load_model(str(folder), "cpu", "float64")


@pytest.fixture
def calibrated(head: Path, model: LoadedModel, tmp_path: Path) -> Path:
    """A copy of the head with a calibration of its own."""
    copy = Path(shutil.copytree(head, tmp_path / "calibrated"))
    own(str(copy), model).save(copy)
    return copy


def own(name: str, model: LoadedModel) -> Calibration:
    """A calibration that claims to be of this head or language model."""
    drafter = load_drafter(name, model)
    assert isinstance(drafter, EagleDrafter | CausalLMDrafter)
    prints = {"target": model.target.fingerprint(), "drafter": drafter.head_fingerprint}
    return replace(tiny_calibration(), fingerprints=prints)


def refusal(name: str, model: LoadedModel, match: str) -> None:
    with pytest.raises(ValueError, match=match) as caught:
        load_drafter(name, model)
    assert "\n" not in str(caught.value)


# --- by name ----------------------------------------------------------------------------------------------


def test_a_lookup_is_joined_to_any_head(head: Path, folder: Path, model: LoadedModel) -> None:
    merged = load_drafter(f"merged:{head}", model, beam_width=2, min_match=3, lookup_depth=5)
    assert isinstance(merged, MergedDrafter)
    assert (merged.lookup_depth, merged.lookup.min_match, merged.head.beam_width) == (5, 3, 2)
    assert merged.name == f"merged:{head}"
    assert isinstance(merged.head, EagleDrafter)
    assert model.target.fused_layers == merged.fused_layers == merged.head.fused_layers != ()
    assert merged.lookup.vocabulary_size == model.target.vocabulary_size
    composite = load_drafter(f"composite:{folder}", model, beam_width=3, min_match=1)
    assert isinstance(composite, CompositeDrafter)
    assert isinstance(composite.head, CausalLMDrafter)
    assert (composite.lookup.min_match, composite.head.beam_width) == (1, 3)
    assert model.target.fused_layers == composite.fused_layers == ()


def test_every_setting_is_in_the_fingerprint(head: Path, folder: Path, model: LoadedModel) -> None:
    prints = [
        load_drafter(f"{kind}:{name}", model, width, match, depth).fingerprint()
        for kind, name, width, match, depth in (
            ("merged", head, 4, 2, 6),
            ("merged", head, 3, 2, 6),
            ("merged", head, 4, 1, 6),
            ("merged", head, 4, 2, 5),
            ("merged", folder, 4, 2, 6),
            ("composite", head, 4, 2, 6),
            ("composite", head, 3, 2, 6),
            ("composite", head, 4, 1, 6),
            ("composite", folder, 4, 2, 6),
        )
    ]
    assert len(set(prints)) == len(prints)


@pytest.mark.parametrize("kind", ["merged", "composite"])
def test_names_that_are_no_head_are_one_line(kind: str, model: LoadedModel) -> None:
    refusal(f"{kind}:ngram", model, "drafter 'ngram' is no head: after the colon name a head")
    refusal(f"{kind}:{kind}", model, f"drafter '{kind}' is no head")
    refusal(f"{kind}:composite:x", model, "drafter 'composite:x' is no head")
    refusal(f"{kind}:./nowhere", model, r"unknown drafter './nowhere': not one of ngram, composite, merged")
    refusal(kind, model, f"drafter {kind} needs a head, and none is shipped for .*: name one, {kind}:FOLD")
    refusal(f"{kind}:", model, f"drafter '{kind}:' names no head: {kind}:NAME, or {kind} for the shipped one")


@pytest.mark.parametrize("depth", [0, 65, -1, True, 2.0, None])
def test_a_lookup_depth_out_of_range_is_refused(depth: int, head: Path, model: LoadedModel) -> None:
    with pytest.raises(ValueError, match=r"lookup_depth is .*, must be a whole number in 1\.\.64"):
        load_drafter(f"merged:{head}", model, lookup_depth=depth)


@pytest.mark.parametrize("kind", ["merged", "composite"])
def test_the_command_line_drafts_with_both(
    kind: str, folder: Path, head: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--target", str(folder), "--dtype", "float64", "--max-new-tokens", "12", "--compare"]
    assert main(["ab ab ab ab", *flags, "--drafter", f"{kind}:{head}"]) == 0
    assert "same text" in capsys.readouterr().out
    assert main(["hi", *flags, "--drafter", kind]) == 2
    captured = capsys.readouterr()
    assert f"drafter {kind} needs a head" in captured.err
    assert captured.err.count("\n") == 1


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--beam-width", "0"], "beam_width is 0"),
        (["--min-match", "33"], "min_match is 33"),
        (["--lookup-depth", "65"], "lookup_depth is 65"),
    ],
)
def test_the_command_line_takes_the_drafts_settings(
    flags: list[str], says: str, folder: Path, head: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["hi", "--target", str(folder), "--drafter", f"merged:{head}", *flags]) == 2
    captured = capsys.readouterr()
    assert says in captured.err
    assert captured.err.count("\n") == 1


# --- the calibration beside the weights -------------------------------------------------------------------


def test_a_heads_calibration_is_taken_over_by_all_that_use_it(calibrated: Path, model: LoadedModel) -> None:
    expected = Calibration.load(calibrated)
    assert expected is not None
    assert load_drafter(str(calibrated), model).calibration == expected
    for kind in ("merged", "composite"):
        drafter = load_drafter(f"{kind}:{calibrated}", model)
        assert isinstance(drafter, MergedDrafter | CompositeDrafter)
        assert drafter.calibration == drafter.head.calibration == drafter.lookup.calibration == expected
        assert drafter.fingerprint().count(expected.digest()) == 2


def test_a_language_models_too(folder: Path, model: LoadedModel, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(folder, tmp_path / "small"))
    assert load_drafter(str(copy), model).calibration is None
    own(str(copy), model).save(copy)
    assert load_drafter(f"merged:{copy}", model).calibration == Calibration.load(copy)


def test_a_lookup_takes_that_of_the_head_shipped_for_its_target(
    calibrated: Path, model: LoadedModel, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert load_drafter("ngram", model).calibration is None
    monkeypatch.setattr(load, "ASSETS", calibrated.parent)
    expected = Calibration.load(calibrated)
    lookup = load_drafter("ngram", model, min_match=3)
    assert isinstance(lookup, NgramDrafter)
    assert (lookup.calibration, lookup.min_match) == (expected, 3)
    merged = load_drafter("merged", model)
    assert isinstance(merged, MergedDrafter)
    assert (merged.name, merged.head.name, merged.calibration) == ("merged", "calibrated", expected)
    (calibrated / CALIBRATION_FILE).unlink()
    assert load_drafter("ngram", model).calibration is None


def test_one_of_another_head_or_target_is_refused(calibrated: Path, folder: Path, model: LoadedModel) -> None:
    file = calibrated / CALIBRATION_FILE
    own_prints = json.loads(file.read_text(encoding="utf-8"))["fingerprints"]
    raw = json.loads(file.read_text(encoding="utf-8"))
    file.write_text(json.dumps(raw | {"fingerprints": own_prints | {"target": "zz"}}), encoding="utf-8")
    refusal(str(calibrated), model, f"was measured on target zz, this is {own_prints['target']}: run train")
    file.write_text(json.dumps(raw), encoding="utf-8")
    save_tiny_head(calibrated, folder, seed=7)
    for name in (str(calibrated), f"merged:{calibrated}", f"composite:{calibrated}"):
        refusal(name, model, f"calibration in {calibrated} was measured on drafter {own_prints['drafter']}, ")


def test_a_damaged_one_is_named(calibrated: Path, model: LoadedModel) -> None:
    (calibrated / CALIBRATION_FILE).write_text("{}", encoding="utf-8")
    for name in (str(calibrated), f"composite:{calibrated}"):
        refusal(name, model, f"calibration {calibrated / CALIBRATION_FILE} lacks 'schema_version'")


# --- the calibration of a policy --------------------------------------------------------------------------


def policy(folder: Path, decoder: SpeculativeDecoder, **info: Any) -> Path:
    """A policy that says it was trained with the decoder as it is."""
    prints = {
        "target": decoder.target.fingerprint(),
        "drafter": decoder.drafter.fingerprint(),
        "tokenizer": decoder.model.tokenizer_fingerprint(),
    }
    known = {"fingerprints": prints, "calibration": decoder.drafter.calibration, "dtype": "float64"}
    depth, size = wild_pair()
    export_policy(folder, depth, size, replace(INFO, **(known | info)))
    return folder


@pytest.mark.parametrize("kind", ["", "merged:", "composite:"])
def test_a_policy_brings_the_scores_it_was_trained_on(
    kind: str, calibrated: Path, model: LoadedModel
) -> None:
    """Whatever is beside the head by now; without a calibration it brings none."""
    decoder = SpeculativeDecoder(model, load_drafter(f"{kind}{calibrated}", model, beam_width=3))
    drafter, beside = decoder.drafter, decoder.drafter.calibration
    assert beside is not None
    with_it = policy(calibrated.parent / "with", decoder)
    drafter.calibration = None
    without = policy(calibrated.parent / "without", decoder)
    newer = replace(beside, fits=tiny_calibration(shift=0.7).fits)
    for given, expected in ((with_it, beside), (without, None), (with_it, beside)):
        drafter.calibration = newer
        assert decoder.use_policy(given) == []
        assert drafter.calibration == expected
        assert isinstance(decoder.controller, ExportedController)
        assert decoder.controller.info.calibration == expected
        if isinstance(drafter, MergedDrafter | CompositeDrafter):
            assert drafter.head.calibration == drafter.lookup.calibration == expected
        options: Options = {"max_new_tokens": 10, "temperature": 1.0}
        text = decoder.generate("ab ab ab", seed=1, **options).token_ids
        assert text == decoder.generate("ab ab ab", seed=1, controller=PlainController(), **options).token_ids


@pytest.mark.parametrize("wrong", ["target", "drafter"])
def test_a_policy_that_is_refused_leaves_calibration_and_controller(
    wrong: str, calibrated: Path, model: LoadedModel
) -> None:
    usual = FixedController(1, 2)
    decoder = SpeculativeDecoder(model, load_drafter(f"merged:{calibrated}", model, beam_width=3), usual)
    before = decoder.drafter.calibration
    prints = {"target": decoder.target.fingerprint(), "drafter": decoder.drafter.fingerprint()}
    other = policy(
        calibrated.parent / "other",
        decoder,
        calibration=tiny_calibration(shift=2.0),
        fingerprints=prints | {wrong: "zz", "tokenizer": "t"},
    )
    with pytest.raises(ValueError, match=f"trained for {'drafter' if wrong == 'drafter' else 'target'}"):
        decoder.use_policy(other)
    assert decoder.controller is usual
    assert isinstance(decoder.drafter, MergedDrafter)
    assert decoder.drafter.calibration == decoder.drafter.lookup.calibration == before
    file = other / INFO_FILE
    raw = json.loads(file.read_text(encoding="utf-8"))
    raw["calibration"]["fits"][0]["positions"] = math.inf
    file.write_text(json.dumps(raw), encoding="utf-8")
    with pytest.raises(ValueError, match=r"policy .* cannot be used: .*infinity") as caught:
        decoder.use_policy(other)
    assert "\n" not in str(caught.value)
    assert decoder.drafter.calibration == before
