"""`train.py export`: of the training alone, whole or not at all, and clear about what is missing."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import train
from configs.command import DEFAULT_CONFIG
from configs.loading import load_config
from decoding.artifacts import save_tensors, write_json
from decoding.exported_cycle import ExportedCycle, load_policy
from tests.cycle_world import info, wild_layers

TRAINED = ["--set=draft.max_depth=7", "--set=policy.cycle.seeds=2", "--set=threads=2"]


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """The folder of a finished training, seed 5 drawn."""
    folder = tmp_path / "run"
    trained = load_config(DEFAULT_CONFIG, [one.removeprefix("--set=") for one in TRAINED])
    said = info(training=trained.model_dump(mode="json"), collapse=()).to_json()
    write_json(folder / "training.json", {"seed": 5, "run": {"preset": "default"}, "info": said})
    hidden, _, last = wild_layers(0)
    save_tensors(
        folder / "training" / "policy.safetensors",
        {
            **{f"mlp_extractor.policy_net.0.{name}": value for name, value in hidden.state_dict().items()},
            **{f"action_net.{name}": value for name, value in last.state_dict().items()},
        },
    )
    return folder


def export(out: Path, *more: str) -> int:
    return train.main(["export", *more, "--out", str(out)])


def test_no_flags_take_the_trainings_own(out: Path) -> None:
    assert export(out) == 0
    policy = ExportedCycle.load(out / "policy")
    assert policy.info.training["draft"]["max_depth"] == 7
    assert policy.network.layers[1][1].tolist() == wild_layers(0)[2].state_dict()["bias"].tolist()


@pytest.mark.parametrize("more", ["seed=5", "evaluation.prompts=3", "policy.cycle.reachable_bound=true"])
def test_the_same_flags_and_those_that_change_no_policy_are_taken(more: str, out: Path) -> None:
    assert export(out, *TRAINED, f"--set={more}") == 0


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (["seed=6"], "(seed is 6, was 5): leave --config and --set out"),
        (["draft.max_depth=8"], "(draft.max_depth is 8, was 7)"),
        (["policy.cycle.ppo.learning_rate=0.5"], "(policy.cycle.ppo.learning_rate is 0.5, was "),
        (["model.drafter=ngram"], "(model.drafter is 'ngram', was 'smollm2-135m-eagle3')"),
        (
            ["seed=6", "model.drafter=ngram", "sampling.temperature=1", "draft.min_match=3"],
            "; sampling.temperature is 1.0, was 0.0 and 1 more): leave",
        ),
    ],
)
def test_what_the_policy_was_not_trained_with_is_refused(
    more: list[str], says: str, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert export(out, *TRAINED, *(f"--set={one}" for one in more)) == 2
    said = capsys.readouterr().err
    assert "an export is of what was trained, which had another configuration" in said
    assert says in said
    assert said.count("\n") == 1
    assert not (out / "policy").exists()


def test_what_an_older_training_does_not_say_is_not_compared(out: Path) -> None:
    record = json.loads((out / "training.json").read_text())
    del record["info"]["training"]["draft"]["lookup_depth"], record["info"]["training"]["model"]
    write_json(out / "training.json", record)
    assert export(out, *TRAINED, "--set=draft.lookup_depth=3", "--set=model.drafter=ngram") == 0


def test_what_is_missing_is_named_with_the_command_that_makes_it(
    out: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    empty = tmp_path / "empty"
    for there in (False, True):
        assert export(empty) == 2
        said = capsys.readouterr().err
        assert f"{empty} holds no training (training.json is not there): train.py policy with --out" in said
        assert empty.exists() == there
        empty.mkdir(exist_ok=True)
    write_json(out / "training.json", {"seed": 5, "run": {"preset": "default"}})
    assert export(out) == 2
    assert "finished training: the train.py policy command that began it goes on" in capsys.readouterr().err


def killed_between_renames(out: Path) -> None:
    (out / "policy").rename(out / ".policy.old")
    (out / ".policy.new").mkdir()


def removed(out: Path) -> None:
    (out / "training.json").unlink()


@pytest.mark.parametrize("then", [lambda out: None, removed])
def test_a_killed_export_loses_no_policy(then: Callable[[Path], None], out: Path) -> None:
    assert export(out) == 0
    killed_between_renames(out)
    # Whoever decodes finds it where it is, and moves nothing.
    assert isinstance(load_policy(out / "policy"), ExportedCycle)
    assert isinstance(ExportedCycle.load(out / "policy"), ExportedCycle)
    assert not (out / "policy").exists()
    then(out)
    assert export(out) == (0 if then is not removed else 2)
    assert isinstance(load_policy(out / "policy"), ExportedCycle)
    assert not [path for path in out.iterdir() if path.name.startswith(".")]
