"""What is said of a trained policy is said of the one that is exported, also after a live phase."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import commands.cycle_policy
import train
from commands.cycle_outcome import after_live, examined
from commands.live_phase import Trained
from configs.schema import Config
from decoding.decoder import SpeculativeDecoder
from tests.cycle_commands import flags
from tests.cycle_world import info, wild_layers
from tests.test_yardsticks import world


def looking() -> dict[str, torch.Tensor]:
    """Weights, under the names of a trained model, of a policy that looks."""
    layers = wild_layers(0).state_dict()
    names = {"0": "mlp_extractor.policy_net.0", "2": "action_net"}
    return {f"{names[key[0]]}{key[1:]}": tensor.clone() for key, tensor in layers.items()}


def collapsed(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The same answers whatever it sees."""
    return {name: torch.zeros_like(one) if "action" in name else one for name, one in weights.items()}


def before(kept: bool, weights: dict[str, torch.Tensor]) -> Trained:
    """What a live phase hands on: what was known before it, and weights."""
    measured, found = examined(world(), looking())
    live = {"ratio": 1.1, "kept": kept}
    validation = {**measured, "seed": 3, "live": live}
    return Trained(replace(info(), validation=validation, collapse=found), weights, 2.0)


def test_a_policy_that_looks_has_not_collapsed_into_one_answer() -> None:
    measured, found = examined(world(), looking())
    assert measured["information"] > 0.2
    assert not [said for said in found if "answers alike" in said]
    assert bool(found) == (measured["over_constant"] <= 1)
    assert set(measured["by_temperature"]) == {"0", "1"}
    measured, found = examined(world(), collapsed(looking()))
    assert measured["information"] == 0
    assert "answers alike" in found[0]


def test_a_collapse_in_the_live_phase_is_found() -> None:
    was = before(kept=True, weights=collapsed(looking()))
    now = after_live(world(), was)
    measured, found = examined(world(), collapsed(looking()))
    assert now.info.collapse == found
    assert "answers alike" in found[0]
    validation = dict(now.info.validation)
    assert {name: validation[name] for name in measured} == measured
    assert validation["seed"] == 3
    old, said = examined(world(), looking())
    assert validation["live"] == {"ratio": 1.1, "kept": True, "before": {**old, "collapse": list(said)}}
    assert now.weights is was.weights


def test_nothing_is_said_anew_of_a_live_phase_that_was_not_kept() -> None:
    was = before(kept=False, weights=looking())
    assert after_live(world(), was) is was


@pytest.mark.slow
def test_the_collapse_of_a_live_phase_is_shown_and_exported(
    folder: Path,
    head: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    informed: list[float] = []

    def collapsing(_: Config, __: SpeculativeDecoder, done: Trained, *more: Any) -> Trained:
        informed.append(done.info.validation["information"])
        validation = {**done.info.validation, "live": {"ratio": 1.2, "kept": True}}
        return replace(
            done, info=replace(done.info, validation=validation, collapse=()), weights=collapsed(done.weights)
        )

    monkeypatch.setattr(commands.cycle_policy, "fine_tune", collapsing)
    more: dict[str, object] = {
        "policy__cycle__seeds": 1,
        "policy__cycle__live_decisions": 64,
        "policy__cycle__ppo__timesteps": 0,
    }
    run = flags(folder, head, tmp_path / "run", **more)
    assert train.main(["policy", *run]) == 0
    assert "collapsed: it answers alike whatever it sees" in " ".join(capsys.readouterr().out.split())
    record = json.loads((tmp_path / "run" / "training.json").read_text(encoding="utf-8"))["info"]
    assert record["validation"]["information"] == 0
    assert record["validation"]["live"]["before"]["information"] == informed[0]
    assert train.main(["export", *run]) == 0
    policy = json.loads((tmp_path / "run" / "policy" / "policy.json").read_text(encoding="utf-8"))
    assert policy["collapse"] == record["collapse"]
    assert "answers alike" in policy["collapse"][0]
