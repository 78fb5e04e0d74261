"""The two benchmarks of costs, on a tiny model: cost regimes in replay, and the cross-check live."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import train
from benchmarks import cross_check, regimes
from decoding.extra_layers import extra_layers_of
from decoding.profile import CostProfile
from tests.cycle_commands import flags, given

# As the live benchmark loads them.
BEAM = {"draft__beam_width": 4, "draft__lookup_depth": 6}


@pytest.fixture(scope="module")
def made(folder: Path, head: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recording of training and of validation prompts, and a profile."""
    out = tmp_path_factory.mktemp("regimes") / "run"
    short = {"policy__cycle__seeds": 1, "policy__cycle__ppo__timesteps": 0}
    assert train.main(["policy", *flags(folder, head, out, **BEAM, **short)]) == 0
    return out


@pytest.mark.slow
def test_regimes_are_replayed_and_drawn(
    made: Path, folder: Path, head: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "r"
    mine = flags(folder, head, out, **BEAM, **given(made))
    capsys.readouterr()
    assert regimes.main([*mine, "--texts", str(made / "traces" / "validation")]) == 0
    said = capsys.readouterr().out
    assert "2 questions" in said
    assert "slow drafter (synthetic): levels x 3" in said
    found = json.loads((out / "regimes.json").read_text())
    assert [row["name"] for row in found["regimes"]] == [
        "measured",
        "flat",
        "cliff",
        "slow drafter",
        "slow target",
    ]
    assert [row["synthetic"] for row in found["regimes"]] == [False, True, True, True, True]
    assert all(row["best_fixed_vs_plain"] >= 0.5 for row in found["regimes"])
    assert found["seed"] == 1
    assert (out / "regimes.svg").read_text().startswith("<?xml")
    unnamed = flags(folder, head, tmp_path / "n", **BEAM)
    assert regimes.main([*unnamed, "--texts", str(made / "traces" / "validation")]) == 2
    assert "must be given: record and profile first" in capsys.readouterr().err


@pytest.mark.slow
def test_a_profile_of_a_slower_target_is_not_taken_for_this_one_s(
    made: Path, folder: Path, head: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And recordings are taken for both."""
    slow = {"model__extra_layers": 2}
    measured = tmp_path / "slow"
    assert train.main(["profile", *flags(folder, head, measured, **BEAM, **slow)]) == 0
    assert "2 extra layers (synthetic)" in capsys.readouterr().out
    slower = CostProfile.load(measured / "profile.json")
    assert extra_layers_of(slower.fingerprints["target"]) == 2
    assert slower.note["synthetic"] == "2 layers that add zero"
    mixed = given(made) | {"policy__cycle__profiles": measured / "profile.json"}
    texts = ["--texts", str(made / "traces" / "validation")]
    assert regimes.main([*flags(folder, head, tmp_path / "r", **BEAM, **mixed), *texts]) == 2
    assert "measured with 2 extra layers, model.extra_layers is 0" in capsys.readouterr().err
    short = {"policy__cycle__seeds": 1, "policy__cycle__ppo__timesteps": 0}
    mine = flags(folder, head, tmp_path / "p", **BEAM, **slow, **short, **mixed)
    assert train.main(["policy", *mine]) == 0
    assert train.main(["export", *mine]) == 0


@pytest.mark.slow
@pytest.mark.parametrize("layers", [0, 2])
def test_predictions_beside_what_was_measured(
    layers: int, folder: Path, head: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    slow = {"model__extra_layers": layers, "profile__max_size": 4}
    assert train.main(["profile", *flags(folder, head, tmp_path, **BEAM, **slow)]) == 0
    command = ["--target", str(folder), "--drafter", f"merged:{head}", "--dtype", "float32", "--threads", "1"]
    command += ["--profile", str(tmp_path / "profile.json"), "--depths", "0", "1", "3", "--size", "4"]
    command += ["--workload", str(folder / "workload.jsonl"), "--prompts", "2", "--max-new-tokens", "8"]
    mine = [*command, "--extra-layers", str(layers), "--json", str(tmp_path / "check.json")]
    capsys.readouterr()
    assert cross_check.main(mine) == 0
    said = capsys.readouterr().out
    assert ("2 extra layers (synthetic)" in said) == bool(layers)
    assert re.search(r"texts: 16 of 16 are the recorded ones", said)
    assert len(re.findall("mean error of the drafting depths: joint prefixes", said)) == 3
    found = json.loads((tmp_path / "check.json").read_text())
    assert list(found) == ["head", "composite", "merged"]
    for some in found.values():
        assert some["draft_depth"] == [0, 1, 3]
        assert some["joint"][0] == some["theorem"][0] == 1
        assert min(some["measured"]) > 0
        assert all(
            low <= value <= high
            for low, value, high in zip(some["low"], some["measured"], some["high"], strict=True)
        )
        assert some["emitted"][2] >= some["emitted"][1] >= 1
    other = [*command, "--extra-layers", str(1 - min(layers, 1))]
    assert cross_check.main(other) == 2
    assert "the profile was measured on target" in capsys.readouterr().err
    assert cross_check.main([*mine, "--depths", "0"]) == 2
    assert "one of them at least 1" in capsys.readouterr().err
