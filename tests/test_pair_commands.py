"""`train.py policy` with the published method in replay: from recordings to a policy that decodes; kills and
bad input."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import train
from decoding.__main__ import main as decode_main
from decoding.artifacts import load_tensors
from decoding.exported import WEIGHTS_FILE, ExportedController
from decoding.published_features import PublishedDepthFeatures, PublishedSizeFeatures
from policies import checkpoint
from tests.ltd_world import LTD
from tests.test_traces_command import short_workload


@pytest.fixture(scope="module")
def place(folder: Path, head: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `workload.jsonl`, recordings `train/T0` and `validation/T0`, and `profile.json`."""
    root = tmp_path_factory.mktemp("pair")
    short_workload(root / "workload.jsonl")
    for split in ("train", "validation"):
        given = [f"--set=traces.split={split}", "--set=traces.prompts=3"]
        assert train.main(["traces", *flags(root, folder, head, root / split), *given]) == 0
    assert train.main(["profile", *flags(root, folder, head, root)]) == 0
    return root


def flags(root: Path, folder: Path, head: Path, out: Path, **changed: object) -> list[str]:
    """The published method, scaled down."""
    values: dict[str, object] = {
        "seed": 1,
        "threads": 1,
        "model.target": folder,
        "model.drafter": head,
        "model.dtype": "float32",
        "workload.files": f"[{root / 'workload.jsonl'}]",
        "draft.beam_width": 2,
        "draft.max_depth": 3,
        "evaluation.draft_depths": "[1,2]",
        "policy.preset": "ltd",
        "policy.partner_depth": 2,
        "policy.partner_size": 4,
        "policy.size.verification_sizes": "[2,4,8]",
        "policy.rounds": 1,
        "policy.recordings": root / "train" / "T0",
        "policy.validation_recordings": f"[{root / 'validation' / 'T0'}]",
        "policy.profile_file": root / "profile.json",
        "traces.temperatures": "[0.0]",
        "traces.draft_depth": 3,
        "traces.max_new_tokens": 12,
        "profile.contexts": "[40,120]",
        "profile.max_size": 16,
        "profile.rounds": 3,
    }
    for kind in ("depth", "size"):
        for key, value in (("timesteps", 96), ("rollout_steps", 32), ("minibatch_size", 16), ("epochs", 2)):
            values[f"policy.{kind}.{key}"] = value
        values[f"policy.{kind}.policy_net"] = values[f"policy.{kind}.value_net"] = "[8]"
    values |= {key.replace("__", "."): value for key, value in changed.items()}
    return [f"--config={LTD}", *(f"--set={key}={value}" for key, value in values.items()), "--out", str(out)]


@pytest.mark.slow
def test_from_recordings_to_a_policy_that_decodes(
    place: Path,
    folder: Path,
    head: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert train.main(["policy", *flags(place, folder, head, whole)]) == 0
    printed = capsys.readouterr().out
    assert "training on 3 recorded texts" in printed
    assert "validating 3 pairs on 3 held out" in printed
    record = json.loads((whole / "training.json").read_text(encoding="utf-8"))
    speeds = record["info"]["validation"]["tokens_per_second"]
    after = {name.removeprefix("after "): speed for name, speed in speeds.items() if "after" in name}
    assert set(after) == {"depth", "round-1-size", "round-1-depth"}
    assert speeds["learned"] == max(after.values())
    assert set(record["chosen"]) == {"depth", "size"}
    assert record["info"]["calibration"] is None
    assert train.main(["policy", *flags(place, folder, head, whole)]) == 0
    assert "nothing to do" in capsys.readouterr().out

    # The same after an interrupt in the middle of a round.
    save, left = checkpoint.save, [8]

    def interrupted(*given: object, **more: object) -> None:
        save(*given, **more)  # type: ignore[arg-type]
        left[0] -= 1
        if not left[0]:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "save", interrupted)
        assert train.main(["policy", *flags(place, folder, head, killed)]) == 130
    assert "the same command goes on from the last checkpoint" in capsys.readouterr().err
    assert (killed / "training" / "round-1-size" / "checkpoint.json").exists()
    assert not (killed / "training" / "round-1-depth").exists()
    weights = []
    for out in (whole, killed):
        assert train.main(["policy", *flags(place, folder, head, out)]) == 0
        assert train.main(["export", *flags(place, folder, head, out)]) == 0
        weights.append((out / "policy" / WEIGHTS_FILE).read_bytes())
    assert weights[0] == weights[1]

    info = ExportedController.load(whole / "policy").info
    assert isinstance(info.depth_features, PublishedDepthFeatures)
    assert isinstance(info.size_features, PublishedSizeFeatures)
    # What was chosen is what was exported.
    name = record["chosen"]["size"]
    (trained,) = (whole / "training" / name).glob("*.safetensors")
    bias = load_tensors(trained, "checkpoint")["policy.action_net.bias"]
    exported = load_tensors(whole / "policy" / WEIGHTS_FILE, "policy weights")["size.1.bias"]
    assert bias.tolist() == exported.tolist()
    command = ["hi", "--target", str(folder), "--drafter", str(head), "--max-new-tokens", "8"]
    command += ["--dtype", "float32", "--beam-width", "2", "--policy", str(whole / "policy")]
    assert decode_main(command) == 0


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"policy__profile_file": "null"}, "policy.recordings needs policy.validation_recordings and"),
        ({"policy__profile_file": "none.json"}, "none.json"),
        ({"policy__recordings": "[nowhere]"}, "holds no recording"),
        ({"draft__beam_width": 3}, "the recordings are of drafter"),
        ({"draft__max_depth": 4}, "recordings and profile know 3 draft levels, draft.max_depth is 4"),
        ({"policy__depth__timesteps": 32}, "one rollout: with a linear decay"),
    ],
)
def test_what_does_not_fit_is_one_line(
    changed: dict[str, object],
    says: str,
    place: Path,
    folder: Path,
    head: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert train.main(["policy", *flags(place, folder, head, tmp_path / "run", **changed)]) == 2
    said = capsys.readouterr().err
    assert says in said
    assert said.count("\n") == 1
    assert not (tmp_path / "run" / "training.json").exists()


def test_a_profile_of_too_few_rows_is_refused(
    place: Path, folder: Path, head: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    raw = json.loads((place / "profile.json").read_text(encoding="utf-8"))
    raw |= {"rows": raw["rows"][:6], "verification": raw["verification"][:6]}
    (tmp_path / "few.json").write_text(json.dumps(raw), encoding="utf-8")
    given = flags(place, folder, head, tmp_path / "run", policy__profile_file=tmp_path / "few.json")
    assert train.main(["policy", *given]) == 2
    assert "verifications of up to 5 nodes, the policies use 8: profile again" in capsys.readouterr().err
