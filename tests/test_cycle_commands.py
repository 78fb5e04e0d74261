"""`train.py policy`, preset default: from nothing to a policy that decodes; kills, and what goes on after."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import commands.cycle_policy
import commands.live_phase
import commands.recorded
import decoding.trace_folder
import evaluate
import train
from decoding.__main__ import main as decode_main
from decoding.artifacts import load_tensors, save_tensors
from decoding.exported import WEIGHTS_FILE
from decoding.exported_cycle import ExportedCycle
from decoding.profile import CostProfile
from decoding.trace_file import TraceWriter
from policies import checkpoint
from tests.cycle_commands import flags, given

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def made(folder: Path, head: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that recorded and profiled by itself, and trained."""
    out = tmp_path_factory.mktemp("cycle") / "run"
    assert train.main(["policy", *flags(folder, head, out)]) == 0
    return out


def exported(folder: Path, head: Path, out: Path, **changed: object) -> bytes:
    """The weights, after `train.py export`."""
    assert train.main(["export", *flags(folder, head, out, **changed)]) == 0
    return (out / "policy" / WEIGHTS_FILE).read_bytes()


def test_from_nothing_to_a_policy_that_decodes(
    made: Path, folder: Path, head: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert {path.name for path in made.iterdir()} == {
        *("config.yaml", "profile", "seconds.json", "tensorboard", "traces", "training", "training.json")
    }
    record = json.loads((made / "training.json").read_text(encoding="utf-8"))
    found = record["info"]["validation"]
    assert set(found["seeds"]) == {"1", "2"}
    kept = max(max(pair) for pair in found["seeds"].values())
    assert found["over_constant"] == kept == max(found["seeds"][str(found["seed"])])
    assert (found["texts"], list(found["by_temperature"])) == (2, ["0"])  # workload.validation_prompts
    assert found["by_temperature"]["0"] == pytest.approx(found["over_constant"])
    assert found["over_hindsight_constant"] <= found["over_constant"] * (1 + 1e-9)
    assert set(found["seconds"]) == {"recording", "profile", "training"}
    assert min(found["seconds"].values()) > 0
    assert 0 < found["over_clairvoyant"] <= 1
    curves = EventAccumulator(str(made / "tensorboard" / "cycle-1"))
    curves.Reload()
    tags = {"seconds/draft", "validation/over_constant", "validation/over_clairvoyant"}
    assert tags <= set(curves.Tags()["scalars"])
    assert CostProfile.load(made / "profile" / "T0" / "profile.json").max_size == 8
    # What was chosen is what is exported, and what decodes.
    exported(folder, head, made)
    said = capsys.readouterr().out
    assert ("collapsed" in said) == bool(record["info"]["collapse"])
    trained = load_tensors(made / "training" / WEIGHTS_FILE, "weights")["action_net.bias"]
    policy = load_tensors(made / "policy" / WEIGHTS_FILE, "weights")
    assert policy["cycle.1.bias"].tolist() == trained.tolist()
    info = ExportedCycle.load(made / "policy").info
    assert info.decisions.names[:5] == ("plain", "draft all", "draft lookup", "draft head", "continue")
    assert info.training["seed"] == 1
    command = ["hi hi hi", "--target", str(folder), "--drafter", f"merged:{head}", "--max-new-tokens", "8"]
    command += ["--dtype", "float32", "--beam-width", "2", "--lookup-depth", "3", "--seed", "1"]
    for temperature in ("0", "1"):
        texts = []
        for policy_flags in (["--policy", str(made / "policy")], []):
            assert decode_main([*command, "--temperature", temperature, *policy_flags]) == 0
            texts.append(capsys.readouterr().out.rpartition("\n\n")[0])
        assert texts[0] == texts[1] != ""
    report = tmp_path / "report"
    given_flags = flags(folder, head, report)
    assert evaluate.main([*given_flags, "--policy", str(made / "policy")]) == 0
    arms = json.loads((report / "report.json").read_text(encoding="utf-8"))["arms"]
    assert arms["learned"]["text_equal"]


def test_again_there_is_nothing_to_do_and_another_run_is_refused(
    made: Path, folder: Path, head: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (made / "training.json").read_bytes()
    looks: dict[str, object] = {"policy__cycle__reachable_bound": "true"}  # nothing is learned from it
    for changes in ({"seed": 1}, {"seed": "null"}, looks):
        assert train.main(["policy", *flags(folder, head, made, **changes)]) == 0
        assert "finished already: nothing to do" in capsys.readouterr().out
    refusals: list[tuple[dict[str, object], str]] = [
        ({"seed": 2}, "was begun with seed 1, not 2: choose another --out"),
        ({"policy__cycle__ppo__timesteps": 64}, "is of another run: choose another --out"),
        ({"policy__cycle__live_decisions": 64}, "is of another run"),
        ({"policy__cycle__full_information__own_worth": 0.5}, "is of another run"),
        ({"traces__prompts": 2}, "was begun with other prompts"),
        ({"policy__preset": "ltd"}, "holds the training of another preset"),
    ]
    for changed, says in refusals:
        assert train.main(["policy", *flags(folder, head, made, **changed)]) == 2
        said = capsys.readouterr().err
        assert says in said
        assert said.count("\n") == 1
    assert (made / "training.json").read_bytes() == before


def trained(out: Path) -> dict[str, list[list[float]]]:
    """The last layer of each seed's policy after PPO."""
    return {
        path.parent.name: load_tensors(path, "checkpoint")["policy.action_net.weight"].tolist()
        for path in out.glob("training/cycle-*/checkpoint-*.safetensors")
    }


class AfterSome:
    """Calls through, and interrupts at the end of call number `left`."""

    def __init__(self, through: Callable[..., Any], left: int) -> None:
        self.through, self.left = through, left

    def __call__(self, *args: Any, **more: Any) -> Any:
        found = self.through(*args, **more)
        self.left -= 1
        if not self.left:
            raise KeyboardInterrupt
        return found


@pytest.mark.parametrize(
    ("place", "name", "left"),
    [
        (commands.cycle_policy, "fit_value", 1),  # the first warm start was not written yet
        (commands.cycle_policy, "_warm_start", 1),  # it was, with the rate that PPO is to take from it
        (checkpoint, "save", 2),  # in the middle of PPO of the first seed
        (commands.cycle_policy, "train_one", 1),  # between the seeds
        (checkpoint, "save", 5),  # in the second
        (commands.cycle_policy, "finish", 1),  # all trained, nothing chosen
        (commands.cycle_policy, "save_tensors", 3),  # the weights are there, their record is not
    ],
)
def test_a_killed_training_ends_as_one_that_was_not(
    made: Path,
    folder: Path,
    head: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    place: Any,
    name: str,
    left: int,
) -> None:
    run = flags(folder, head, tmp_path / "killed", **given(made))
    with monkeypatch.context() as patch:
        patch.setattr(place, name, AfterSome(getattr(place, name), left))
        assert train.main(["policy", *run]) == 130
    assert "interrupted; the same command goes on from the last checkpoint" in capsys.readouterr().err
    assert train.main(["export", *run]) == 2
    assert "says of no finished training: the train.py policy command that" in capsys.readouterr().err
    spent = json.loads((tmp_path / "killed" / "seconds.json").read_text(encoding="utf-8"))["training"]
    assert train.main(["policy", *run]) == 0
    record = json.loads((tmp_path / "killed" / "training.json").read_text(encoding="utf-8"))
    assert record["info"]["validation"]["seconds"]["training"] > spent
    # Of every seed, also of one that is not the one that was kept.
    assert trained(tmp_path / "killed") == trained(made)
    assert exported(folder, head, tmp_path / "killed", **given(made)) == exported(folder, head, made)


def test_a_killed_recording_goes_on_with_its_seed(
    folder: Path,
    head: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Without a seed of its own: a fresh one would be refused by the recording that was begun."""
    run = flags(folder, head, tmp_path / "run", seed="null", policy__cycle__seeds=1)
    monkeypatch.setattr(decoding.trace_folder, "SHARD_TEXTS", 2)
    with monkeypatch.context() as patch:
        patch.setattr(TraceWriter, "__exit__", _interrupting(TraceWriter.__exit__))
        assert train.main(["policy", *run]) == 130
    assert "the same command goes on" in capsys.readouterr().err
    assert not (tmp_path / "run" / "training.json").exists()
    first = tmp_path / "run" / "traces" / "train" / "T0" / "shard-00000.parquet"
    assert not first.exists()
    begun = json.loads((first.parent / "traces.json").read_text(encoding="utf-8"))["header"]["seed"]
    with monkeypatch.context() as patch:
        patch.setattr(commands.recorded, "measure_profile", _interrupt)
        assert train.main(["policy", *run]) == 130
    written = first.stat().st_mtime_ns
    capsys.readouterr()
    assert train.main(["policy", *run]) == 0
    assert first.stat().st_mtime_ns == written
    record = json.loads((tmp_path / "run" / "training.json").read_text(encoding="utf-8"))
    assert record["seed"] == begun
    assert "fresh" not in capsys.readouterr().out


def _interrupt(*_: Any) -> None:
    raise KeyboardInterrupt


def _interrupting(through: Callable[..., Any]) -> Callable[..., Any]:
    def leave(self: TraceWriter, *error: Any) -> None:
        interrupt = KeyboardInterrupt()
        through(self, KeyboardInterrupt, interrupt, None)
        raise interrupt

    return leave


@pytest.mark.parametrize("faster", [1.1, 0.9])
def test_a_live_phase_is_kept_only_if_it_decodes_faster(
    made: Path,
    folder: Path,
    head: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    faster: float,
) -> None:
    found: list[float] = []
    measure = commands.live_phase.faster

    def measured(*args: Any) -> float:
        found.append(measure(*args))
        return faster

    monkeypatch.setattr(commands.live_phase, "faster", measured)
    more: dict[str, object] = {
        "policy__cycle__seeds": 1,
        "policy__cycle__live_decisions": 64,
        "policy__cycle__ppo__timesteps": 64,
        "policy__cycle__ppo__decay": "linear",  # of one rollout it would leave nothing: a live phase has none
    }
    run = flags(folder, head, tmp_path / "run", **given(made), **more)
    with monkeypatch.context() as patch:
        patch.setattr(commands.cycle_policy, "fine_tune", AfterSome(commands.live_phase.fine_tune, 1))
        assert train.main(["policy", *run]) == 130
    assert train.main(["policy", *run]) == 0
    assert 0.2 < found[0] < 5
    kept = "kept" if faster > 1 else "not kept"
    assert f"live phase: {faster:.4f} of the speed before, {kept}" in " ".join(
        capsys.readouterr().out.split()
    )
    record = json.loads((tmp_path / "run" / "training.json").read_text(encoding="utf-8"))
    live = record["info"]["validation"]["live"]
    assert (live["ratio"], live["kept"], live["decisions"]) == (faster, faster > 1, 64)
    assert record["info"]["validation"]["seconds"]["live phase"] > 0
    weights = load_tensors(tmp_path / "run" / "training" / WEIGHTS_FILE, "weights")
    folder_of_one = tmp_path / "run" / "training" / "cycle-1"
    (trained,) = folder_of_one.glob("checkpoint-*.safetensors")
    (warm,) = folder_of_one.glob("start-*.safetensors")
    choices = [load_tensors(trained, "weights")["policy.action_net.bias"].tolist()]
    choices.append(load_tensors(warm, "weights")["action_net.bias"].tolist())
    assert (weights["action_net.bias"].tolist() in choices) == (faster < 1)
    exported(folder, head, tmp_path / "run", **given(made), **more)


def test_a_live_phase_that_diverges_leaves_the_policy_as_it_was(
    made: Path, folder: Path, head: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def diverge(model: Any, *_: Any, **__: Any) -> Any:
        for parameter in model.policy.parameters():
            parameter.data.fill_(float("nan"))
        return model

    monkeypatch.setattr(commands.live_phase, "LiveProgress", lambda progress: None)
    build = commands.live_phase.build_masked_ppo

    def built(*arguments: Any) -> Any:
        model = build(*arguments)
        monkeypatch.setattr(model, "learn", partial(diverge, model))
        return model

    monkeypatch.setattr(commands.live_phase, "build_masked_ppo", built)
    more: dict[str, object] = {
        "policy__cycle__seeds": 1,
        "policy__cycle__live_decisions": 64,
        "policy__cycle__ppo__timesteps": 0,
    }
    run = flags(folder, head, tmp_path / "run", **given(made), **more)
    assert train.main(["policy", *run]) == 0
    record = json.loads((tmp_path / "run" / "training.json").read_text(encoding="utf-8"))
    assert record["info"]["validation"]["live"]["kept"] is False
    exported(folder, head, tmp_path / "run", **given(made), **more)


def test_full_information_alone_is_a_policy_too(
    made: Path, folder: Path, head: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more: dict[str, object] = {"policy__cycle__ppo__timesteps": 0, "policy__cycle__seeds": 1}
    run = flags(folder, head, tmp_path / "run", **given(made), **more)
    assert train.main(["policy", *run]) == 0
    (left,) = (tmp_path / "run" / "training" / "cycle-1").iterdir()
    exported(folder, head, tmp_path / "run", **given(made), **more)
    # Of another run nothing is taken, even where somebody removed the record.
    (tmp_path / "run" / "training.json").unlink()
    more["policy__cycle__full_information__rounds"] = 3
    assert train.main(["policy", *flags(folder, head, tmp_path / "run", **given(made), **more)]) == 0
    assert len(list(left.parent.iterdir())) == 2


def test_a_damaged_training_is_not_exported(
    made: Path, folder: Path, head: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    (out / "training").mkdir(parents=True)
    record = json.loads((made / "training.json").read_text(encoding="utf-8"))
    whole = load_tensors(made / "training" / WEIGHTS_FILE, "weights")
    without = {name: tensor for name, tensor in whole.items() if name != "action_net.weight"}
    odd = whole | {"action_net.bias": whole["action_net.bias"][:2]}
    for tensors in (without, odd):
        (out / "training.json").write_text(json.dumps(record), encoding="utf-8")
        save_tensors(out / "training" / WEIGHTS_FILE, tensors)
        assert train.main(["export", *flags(folder, head, out)]) == 2
        said = capsys.readouterr().err
        assert "is damaged" in said
        assert said.count("\n") == 1
    ratios = record["info"] | {"features": record["info"]["features"] | {"cost_ratios": [10**400]}}
    for info in (3, {"kind": "cycle"}, {"kind": "cycle", "schema_version": 9}, ratios):
        (out / "training.json").write_text(json.dumps(record | {"info": info}), encoding="utf-8")
        assert train.main(["export", *flags(folder, head, out)]) == 2
        assert "is damaged" in capsys.readouterr().err
    save_tensors(out / "training" / WEIGHTS_FILE, whole)
    bad = record["info"] | {"validation": {"over_constant": float("nan")}}
    (out / "training.json").write_text(json.dumps(record | {"info": bad}), encoding="utf-8")
    assert train.main(["export", *flags(folder, head, out)]) == 2
    assert "policy.json is not written: it would hold a number that is not finite" in capsys.readouterr().err
    assert not (out / "policy").exists()
    marked = record["info"] | {"collapse": ["[/red]"]}
    (out / "training.json").write_text(json.dumps(record | {"info": marked}), encoding="utf-8")
    assert train.main(["export", *flags(folder, head, out)]) == 0
    assert "collapsed: [/red]" in capsys.readouterr().out
    shutil.rmtree(out / "policy")
    (out / "training.json").unlink()
    assert train.main(["export", *flags(folder, head, out)]) == 2
    assert "holds no training (training.json is not there)" in capsys.readouterr().err
    assert not (out / "policy").exists()
