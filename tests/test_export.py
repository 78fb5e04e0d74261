"""The folder of an exported policy: whole or not at all, refused where it does not fit, clear about why."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from fake_policies import DEPTH, INFO, SIZES, Spaces, wild_pair, wild_ppo
from stable_baselines3 import PPO

from decoding.artifacts import load_tensors, save_tensors
from decoding.exported import INFO_FILE, WEIGHTS_FILE, ExportedController
from policies.export import export_policy, network_of_layers

torch.set_num_threads(1)


@pytest.fixture(scope="module")
def models() -> tuple[PPO, PPO]:
    return wild_pair()


@pytest.fixture
def folder(models: tuple[PPO, PPO], tmp_path: Path) -> Path:
    export_policy(tmp_path / "policy", *models, INFO)
    return tmp_path / "policy"


# --- the folder -------------------------------------------------------------------------------------------


def test_what_is_exported_is_what_is_loaded(folder: Path) -> None:
    assert sorted(path.name for path in folder.iterdir()) == [INFO_FILE, WEIGHTS_FILE]
    controller = ExportedController.load(str(folder))
    assert controller.info == INFO
    raw = json.loads((folder / INFO_FILE).read_text())
    assert raw["schema_version"] == 2
    assert raw["features"]["depth"] == {"beam_width": 3, "max_depth": 4, "names": list(DEPTH.names)}
    assert raw["actions"] == {"depth": ["stop", "continue"], "verification_sizes": list(SIZES)}
    assert raw["networks"]["size"] == {"widths": [20, 64, 32, 5], "activation": "relu"}
    assert raw["fallback"] == {"draft_depth": 2, "verification_size": 4}
    tensors = load_tensors(folder / WEIGHTS_FILE, "policy weights")
    assert {tensor.dtype for tensor in tensors.values()} == {torch.float32}
    assert len(tensors) == 12  # no value net


def test_other_models_are_refused_and_another_machine_is_warned_of(folder: Path) -> None:
    controller = ExportedController.load(folder)
    assert controller.check("aa", "bb", "cpu", "float32") == []
    warned = controller.check("aa", "bb", "cuda", "bfloat16")
    assert len(warned) == 2
    assert "device cpu, this is cuda" in warned[0]
    assert "dtype float32, this is bfloat16" in warned[1]
    for target, drafter, words in (
        ("zz", "bb", "target aa, this is zz"),
        ("aa", "zz", "drafter bb, this is zz"),
    ):
        with pytest.raises(ValueError, match=words) as error:
            controller.check(target, drafter, "cpu", "float32")
        assert len(str(error.value).splitlines()) == 1


def refused(folder: Path, words: str) -> None:
    with pytest.raises(ValueError, match=words) as error:
        ExportedController.load(folder)
    assert len(str(error.value).splitlines()) == 1
    assert str(folder) in str(error.value)


def test_missing_and_damaged_files_are_named(folder: Path, tmp_path: Path) -> None:
    refused(tmp_path / "nowhere", "does not exist")
    weights, info = folder / WEIGHTS_FILE, folder / INFO_FILE
    whole, text = weights.read_bytes(), info.read_text()
    weights.write_bytes(whole[: len(whole) // 2])
    refused(folder, "damaged or truncated")
    weights.unlink()
    refused(folder, "does not exist")
    weights.write_bytes(whole)
    info.write_text(text[:100])
    refused(folder, "not readable JSON")
    info.write_text("[]")
    refused(folder, "not a JSON object")
    info.unlink()
    refused(folder, "does not exist")


def change(raw: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    changed: dict[str, Any] = json.loads(json.dumps(raw))
    *parents, last = path.split(".")
    place = changed
    for key in parents:
        place = place[key]
    if value is None:
        del place[last]
    else:
        place[last] = value
    return changed


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("schema_version", 1, "schema_version is 1, this code reads 2"),
        ("schema_version", None, "lacks 'schema_version'"),
        ("networks", None, "lacks 'networks'"),
        ("networks.depth.activation", "gelu", "must be relu or tanh"),
        ("networks.depth.widths", [14, 64, 2], "do not fit"),
        ("networks.depth.widths", [14], "do not fit"),
        ("networks.depth.widths", "abc", "do not fit"),
        ("networks.depth.widths", 3, "cannot be used"),
        ("networks", [], "cannot be used"),
        ("features.depth", 3, "cannot be used"),
        ("features.depth.beam_width", 4, "depth features are not those"),
        ("features.depth.beam_width", "3", "beam_width is '3'"),
        ("features.size.names", ["a"], "size features are not those"),
        ("features.size.unknown", 1, "unknown"),
        ("actions.depth", ["go"], "depth actions"),
        ("actions.verification_sizes", [1, 2, 4, 8], "do not fit"),
        ("actions.verification_sizes", [1, 2, 4, 8, 5000], "5000"),
        ("actions.verification_sizes", [], "empty"),
        ("actions.verification_sizes", ["a"], "cannot be used"),
        ("fingerprints", {"target": "aa"}, "fingerprints lack drafter, tokenizer"),
        ("fallback.draft_depth", -1, "draft_depth is -1"),
        ("fallback", None, "lacks 'fallback'"),
        ("calibration", None, "lacks 'calibration'"),
        ("calibration", 3, "cannot be used"),
        ("calibration", {"fits": []}, "lacks 'schema_version'"),
        ("calibration", {"schema_version": 9}, "the calibration's schema_version is 9, this code reads 1"),
    ],
)
def test_an_info_that_says_something_else_is_refused(folder: Path, path: str, value: Any, words: str) -> None:
    raw = json.loads((folder / INFO_FILE).read_text())
    (folder / INFO_FILE).write_text(json.dumps(change(raw, path, value)))
    refused(folder, words)


def test_weights_that_do_not_fit_or_are_not_finite_are_refused(folder: Path) -> None:
    tensors = load_tensors(folder / WEIGHTS_FILE, "policy weights")
    for changed, words in (
        ({key: value for key, value in tensors.items() if key != "size.1.bias"}, "size.1.bias"),
        (tensors | {"depth.0.weight": torch.zeros(3, 3)}, "layer 0 of depth is"),
        (tensors | {"depth.0.bias": torch.full_like(tensors["depth.0.bias"], torch.nan)}, "not finite"),
    ):
        save_tensors(folder / WEIGHTS_FILE, changed)
        refused(folder, words)


# --- exporting --------------------------------------------------------------------------------------------


def test_exporting_replaces_a_policy_and_nothing_else(models: tuple[PPO, PPO], folder: Path) -> None:
    export_policy(folder, *models, replace(INFO, device="cuda"))
    assert ExportedController.load(folder).info.device == "cuda"
    assert [path.name for path in folder.parent.iterdir()] == ["policy"]
    (folder / "letter.txt").write_text("dear")
    with pytest.raises(ValueError, match=r"no exported policy \(letter.txt\)"):
        export_policy(folder, *models, INFO)
    assert (folder / "letter.txt").read_text() == "dear"
    assert ExportedController.load(folder).info.device == "cuda"
    file = folder.parent / "file"
    file.write_text("dear")
    with pytest.raises(ValueError, match="no exported policy"):
        export_policy(file, *models, INFO)


def test_an_export_that_fails_leaves_the_old_policy(
    models: tuple[PPO, PPO], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("policies.export.write_json", fail)
    with pytest.raises(OSError, match="disk full"):
        export_policy(folder, *models, replace(INFO, device="cuda"))
    assert ExportedController.load(folder).info == INFO
    assert [path.name for path in folder.parent.iterdir()] == ["policy"]


def test_what_cannot_be_exported_is_named(models: tuple[PPO, PPO], tmp_path: Path) -> None:
    depth, size = models
    with pytest.raises(ValueError, match="depth maps 20 features to 5 actions, not 14 to 2"):
        export_policy(tmp_path / "p", size, depth, INFO)
    with pytest.raises(ValueError, match="size maps 20 features to 5 actions, not 20 to 2"):
        export_policy(tmp_path / "p", depth, size, replace(INFO, verification_sizes=(1, 2)))
    diverged = wild_ppo(DEPTH, 2, 0)
    assert isinstance(diverged.policy.action_net, torch.nn.Linear)
    with torch.no_grad():
        diverged.policy.action_net.bias[0] = torch.nan
    with pytest.raises(ValueError, match="diverged"):
        export_policy(tmp_path / "p", diverged, size, INFO)
    other = PPO(
        "MlpPolicy",
        Spaces(DEPTH, 2),
        n_steps=16,
        batch_size=16,
        device="cpu",
        policy_kwargs={"activation_fn": torch.nn.ELU},
    )
    with pytest.raises(ValueError, match="a policy with ELU"):
        export_policy(tmp_path / "p", other, size, INFO)
    assert not (tmp_path / "p").exists()
    with pytest.raises(ValueError, match="a layer of 4 outputs before one of 5 inputs"):
        network_of_layers([torch.nn.Linear(20, 4), torch.nn.ReLU(), torch.nn.Linear(5, 10)])
