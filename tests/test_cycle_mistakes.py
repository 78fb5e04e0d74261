"""What is wrong with what a training is given is one line, and leaves no run behind."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import commands.recorded
import train
from benchmarks import ablation
from decoding.artifacts import load_tensors, save_tensors
from decoding.trace_folder import read_traces
from tests.cycle_commands import PROFILE, flags, given, made_in
from tests.fakes import save_tiny_head, save_tiny_model


@pytest.fixture(scope="module")
def place(folder: Path, head: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Recordings and a profile where a run would have made them."""
    return made_in(folder, head, tmp_path_factory.mktemp("given"))


def refused(run: list[str], capsys: pytest.CaptureFixture[str], says: str) -> None:
    """In one line, and nothing of a run is there."""
    out = Path(run[-1])
    assert train.main(["policy", *run]) == 2
    said = capsys.readouterr().err.strip()  # a bar may have been there before
    assert says in said
    assert "\n" not in said
    assert not out.exists()


def copied(place: Path, out: Path) -> Path:
    shutil.copytree(place, out)
    return out


def other_note(place: Path, change: Callable[[dict[str, object]], dict[str, object]], split: str) -> None:
    """Give a recording another note, in its shards and in its record."""
    folder = place / "traces" / split / "T0"
    header = read_traces(folder)[0]
    changed = replace(header, note=change(dict(header.note)))
    for path in folder.glob("*.parquet"):
        table = pq.read_table(path)
        metadata = table.schema.metadata
        (key,) = metadata
        raw = json.dumps(asdict(changed)).encode()
        whole = pq.ParquetFile(path)
        groups = [whole.read_row_group(one) for one in range(whole.num_row_groups)]
        schema = whole.schema_arrow.with_metadata({key: raw})
        with pq.ParquetWriter(path, schema, write_page_checksum=True) as writer:
            for group in groups:
                writer.write_table(group.replace_schema_metadata({key: raw}))
    record = json.loads((folder / "traces.json").read_text())
    record["header"] = asdict(changed)
    (folder / "traces.json").write_text(json.dumps(record))


@pytest.mark.parametrize("split", ["train", "validation"])
def test_a_recording_that_does_not_say_how_it_was_made(
    split: str,
    place: Path,
    folder: Path,
    head: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    damaged = copied(place, tmp_path / "given")
    other_note(damaged, lambda note: {key: note[key] for key in note if key != "max_new_tokens"}, split)
    # Before minutes are spent on a profile.
    monkeypatch.setattr(commands.recorded, "measure_profile", None)
    recorded = {key: value for key, value in given(damaged).items() if "traces" in key}
    run = flags(folder, head, tmp_path / "run", **recorded)
    refused(run, capsys, "the trace's note does not say how it was recorded ('max_new_tokens'): record again")
    for choices in (None, ["some"]):
        other_note(damaged, lambda note, choices=choices: {"max_new_tokens": 12, "choices": choices}, split)  # type: ignore[misc]
        refused(run, capsys, "the trace's note does not say how it was recorded")


@pytest.mark.parametrize("split", ["train", "validation"])
def test_a_truncated_recording(
    split: str, place: Path, folder: Path, head: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damaged = copied(place, tmp_path / "given")
    (path,) = (damaged / "traces" / split / "T0").glob("*.parquet")
    path.write_bytes(path.read_bytes()[:-100])
    run = flags(folder, head, tmp_path / "run", **given(damaged))
    refused(run, capsys, "shard-00000.parquet cannot be used, it is damaged, truncated or no Parquet file")
    path.unlink()
    refused(run, capsys, "has 0 of 1 shards: the command that began it goes on with it")


def test_a_damaged_page_is_found_before_a_run_begins(
    place: Path, folder: Path, head: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damaged = copied(place, tmp_path / "given")
    (path,) = (damaged / "traces" / "validation" / "T0").glob("*.parquet")
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 3] ^= 0xFF
    path.write_bytes(bytes(raw))
    run = flags(folder, head, tmp_path / "run", **given(damaged))
    assert train.main(["policy", *run]) == 2
    assert "is damaged" in capsys.readouterr().err
    assert not (tmp_path / "run" / "training.json").exists()


def test_folders_without_a_recording(
    place: Path, folder: Path, head: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for key in ("policy__cycle__traces", "policy__cycle__validation_traces"):
        run = flags(folder, head, tmp_path / "run", **given(place) | {key: tmp_path / "none"})
        refused(run, capsys, f"{tmp_path / 'none'} holds no recording: train.py traces makes one")


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"draft__beam_width": 3}, "record its texts, with the same beam, lookup and draft.calibrated"),
        ({"draft__lookup_depth": 2}, "is of drafter merged-3-"),
        ({"policy__cycle__profiles": "none.json"}, "none.json does not exist"),
        (
            {"policy__cycle__verification_sizes": "[1,2,9]"},
            "up to 8 nodes, the policy may ask for 9: profile again",
        ),
        ({"policy__cycle__lanes": 5}, "lanes = 5 must divide ppo.rollout_steps = 32; lower it, e.g. to 1"),
        (
            {"policy__cycle__live_decisions": 8, "workload__categories": "[poems]"},
            "category 'poems'",
        ),
    ],
)
def test_what_does_not_fit(
    changed: dict[str, object],
    says: str,
    place: Path,
    folder: Path,
    head: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    refused(flags(folder, head, tmp_path / "run", **given(place) | changed), capsys, says)


def test_recordings_and_profiles_of_other_models(
    place: Path, folder: Path, head: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = save_tiny_model(tmp_path / "model", seed=3)
    other_head = save_tiny_head(tmp_path / "head", other)
    run = flags(other, other_head, tmp_path / "run", **given(place))
    refused(run, capsys, "this model of ")
    only_profile = {"policy__cycle__profiles": place / PROFILE}
    refused(
        flags(other, other_head, tmp_path / "run", **only_profile), capsys, f"profile {place / PROFILE} is of"
    )
    another = save_tiny_head(tmp_path / "another", folder, seed=5)
    refused(flags(folder, another, tmp_path / "run", **given(place)), capsys, "is of drafter merged-3-")


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-1.0", '"fast"'])
def test_costs_that_are_no_seconds(
    value: str, place: Path, folder: Path, head: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    raw = json.loads((place / PROFILE).read_text())
    raw["verification"][2][0] = "here"
    (tmp_path / "profile.json").write_text(json.dumps(raw).replace('"here"', value))
    changed = given(place) | {"policy__cycle__profiles": tmp_path / "profile.json"}
    run = flags(folder, head, tmp_path / "run", **changed)
    refused(run, capsys, "must be finite numbers >= 0): profile again")


def test_a_workload_all_in_one_split_is_found_before_anything_is_recorded(
    folder: Path, head: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [{"question_id": f"q{n}", "turns": [f"ab{n}"], "group": "one"} for n in range(30)]
    (tmp_path / "one.jsonl").write_text("\n".join(map(json.dumps, lines)))
    for more in ({}, {"policy__cycle__live_decisions": 64}):
        changed = {"workload__files": f"[{tmp_path / 'one.jsonl'}]"} | more
        run = flags(folder, head, tmp_path / "run", **changed)
        refused(run, capsys, "split of 30 requests is empty: give more, or filter less")


def test_too_few_texts_for_a_reachable_bound_are_found_before_a_run_begins(
    place: Path, folder: Path, head: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: dict[str, object] = {"policy__cycle__reachable_bound": "true"}
    run = flags(folder, head, tmp_path / "run", **given(place), **asked)
    refused(run, capsys, "texts are too few to learn from, give at least 8")


def test_a_prompt_that_is_too_long_for_the_live_phase(
    place: Path, folder: Path, head: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [{"question_id": f"q{n}", "turns": [f"ab{n}" * 300]} for n in range(30)]
    (tmp_path / "long.jsonl").write_text("\n".join(map(json.dumps, lines)))
    changed: dict[str, object] = {
        "policy__cycle__live_decisions": 8,
        "workload__files": f"[{tmp_path / 'long.jsonl'}]",
    }
    run = flags(folder, head, tmp_path / "run", **given(place) | changed)
    refused(run, capsys, "tokens, the context holds 512: shorten it")


def test_a_damaged_record_of_times(
    place: Path, folder: Path, head: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "seconds.json").write_text('{"training": "long"}')
    assert train.main(["policy", *flags(folder, head, tmp_path / "run", **given(place))]) == 2
    assert "seconds.json is damaged: remove it" in capsys.readouterr().err


@pytest.mark.parametrize(("column", "value"), [("scores", "NaN"), ("share", "Infinity"), ("index", "-1")])
def test_numbers_that_no_drafter_says(
    column: str,
    value: str,
    place: Path,
    folder: Path,
    head: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    damaged = copied(place, tmp_path / "given")
    (path,) = (damaged / "traces" / "validation" / "T0").glob("*.parquet")
    whole = pq.ParquetFile(path)
    groups = [whole.read_row_group(one).to_pylist() for one in range(whole.num_row_groups)]
    wrong = int(value) if column == "index" else float(value)
    groups[1][2][column] = [wrong] * len(groups[1][2]["scores"]) if column == "scores" else wrong
    with pq.ParquetWriter(path, whole.schema_arrow, write_page_checksum=True) as writer:
        for rows in groups:
            writer.write_table(pa.Table.from_pylist(rows, schema=whole.schema_arrow))
    run = flags(folder, head, tmp_path / "run", **given(damaged))
    refused(run, capsys, f"text number 1 is damaged ({column} holds {wrong}, must be a number >= ")


def test_conditions_of_a_profile_that_are_not_these_are_warned_of(
    place: Path, folder: Path, head: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    raw = json.loads((place / PROFILE).read_text())
    raw["conditions"] |= {"threads": 7, "drafter": "another", "temperature": 0.7}
    raw["note"] |= {"disturbed_share": 1.0}
    (tmp_path / "profile.json").write_text(json.dumps(raw))
    changed = given(place) | {"policy__cycle__profiles": tmp_path / "profile.json"}
    run = flags(folder, head, tmp_path / "run", policy__cycle__ppo__timesteps=0, **changed)
    assert train.main(["policy", *run]) == 0
    said = capsys.readouterr().err
    assert "profile.json: the profile was measured with threads 7, this is 1: its times may not fit" in said
    assert "was measured with drafter another, this is merged" in said
    assert "disturbed 100% of the profile's cycles" in said
    assert "temperature" not in said


def test_costs_in_whole_numbers(place: Path, folder: Path, head: Path, tmp_path: Path) -> None:
    raw = json.loads((place / PROFILE).read_text())
    (tmp_path / "profile.json").write_text(json.dumps(raw | {"selection": [0, 0, 0], "commit": [0, 0]}))
    changed = given(place) | {"policy__cycle__profiles": tmp_path / "profile.json"}
    run = flags(folder, head, tmp_path / "run", policy__cycle__ppo__timesteps=0, **changed)
    assert train.main(["policy", *run]) == 0


@pytest.mark.parametrize("damage", ["rate", "shape", "nan"])
def test_a_damaged_warm_start(
    damage: str, place: Path, folder: Path, head: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changed = given(place) | {"policy__cycle__ppo__timesteps": 0}
    run = flags(folder, head, tmp_path / "run", **changed)
    assert train.main(["policy", *run]) == 0
    path = next((tmp_path / "run" / "training").glob("cycle-1/start-*.safetensors"))
    tensors = load_tensors(path, "warm start")
    if damage == "rate":
        del tensors["rate"]
    elif damage == "shape":
        tensors["action_net.weight"] = tensors["action_net.weight"][:2]
    else:
        tensors["action_net.bias"] *= float("nan")
    save_tensors(path, tensors)
    (tmp_path / "run" / "training" / "policy.safetensors").unlink()
    capsys.readouterr()
    assert train.main(["policy", *run]) == 2
    said = capsys.readouterr().err.strip()
    assert f"warm start {path} is damaged" in said
    assert said.endswith("remove it to start again")
    assert "\n" not in said


def test_recordings_of_two_drafters_are_no_training_and_validation(
    place: Path, folder: Path, head: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other"
    beam = {"traces__split": "validation", "draft__beam_width": 3}
    assert train.main(["traces", *flags(folder, head, other, **beam)]) == 0
    changed = given(place) | {"policy__cycle__validation_traces": other}
    run = flags(folder, head, tmp_path / "run", **changed)
    capsys.readouterr()
    assert ablation.main(["--what", "positions", *run]) == 2
    said = capsys.readouterr().err
    assert "recordings are of drafter merged-3-" in said
    assert "record them with one" in said
