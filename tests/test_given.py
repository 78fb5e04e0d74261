"""What a training is given is looked at before minutes are spent: levels, threads; and the largest seed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import commands.cycle_policy
import commands.recorded
import commands.traces
import decoding.trace_folder
import train
from benchmarks import ablation
from decoding.artifacts import load_tensors
from decoding.profile import CostProfile
from tests.cycle_commands import PROFILE, flags, given, made_in


@pytest.fixture(scope="module")
def place(folder: Path, head: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Recordings and a profile where a run would have made them."""
    return made_in(folder, head, tmp_path_factory.mktemp("given"))


def altered(place: Path, tmp_path: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    """The profile, changed."""
    raw = json.loads((place / PROFILE).read_text())
    change(raw)
    path = tmp_path / "profile.json"
    path.write_text(json.dumps(raw))
    CostProfile.load(path)  # nothing is wrong with it alone
    return path


def flat(source: str) -> Callable[[dict[str, Any]], None]:
    """With one level of this source."""

    def change(raw: dict[str, Any]) -> None:
        raw["levels"][source] = raw["levels"][source][:1]

    return change


def said_once(capsys: pytest.CaptureFixture[str]) -> str:
    said = capsys.readouterr().err
    assert said.count("\n") == 1, said
    return said


def test_a_profile_of_fewer_levels_than_the_recordings(
    place: Path,
    folder: Path,
    head: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = altered(place, tmp_path, flat("head"))
    changed = given(place) | {"policy__cycle__profiles": path}
    says = f"profile {path} knows 1 draft levels, the recordings and draft.max_depth ask for 3: profile again"
    capsys.readouterr()
    with monkeypatch.context() as patch:
        # Before a table is read, and before anything is recorded.
        patch.setattr(commands.recorded, "decision_table", None)
        patch.setattr(commands.recorded, "record_traces", None)
        for some in (changed, {"policy__cycle__profiles": path}):
            assert train.main(["policy", *flags(folder, head, tmp_path / "run", **some)]) == 2
            assert says in said_once(capsys)
            assert not (tmp_path / "run").exists()
        run = flags(folder, head, tmp_path / "run", **changed)
        assert ablation.main(["--what", "positions", *run]) == 2
        assert "the profile knows 1 draft levels, the recordings and draft.max_depth ask" in said_once(capsys)
    # The way out that the message names.
    more: dict[str, object] = {"draft__max_depth": 1, "policy__partner_depth": 1, "policy__cycle__seeds": 1}
    run = flags(folder, head, tmp_path / "run", policy__cycle__ppo__timesteps=0, **changed, **more)
    assert train.main(["policy", *run]) == 0


def test_a_profile_of_fewer_levels_of_a_lookup_alone(
    place: Path, folder: Path, head: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = altered(place, tmp_path, flat("lookup"))
    capsys.readouterr()
    run = flags(folder, head, tmp_path / "run", **given(place) | {"policy__cycle__profiles": path})
    assert train.main(["policy", *run]) == 2
    assert "the profile knows 1 draft levels of the lookup, the recording has 2: profile" in said_once(capsys)


def test_headroom_says_what_a_profile_of_fewer_levels_leaves_out(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = altered(place, tmp_path, flat("head"))
    assert train.main(["headroom", str(place / "traces" / "train" / "T0"), "--profile", str(path)]) == 0
    said = capsys.readouterr().err
    assert "warning: the profile knows 1 draft levels, the trace has 3: deeper drafts are left out" in said


@pytest.mark.parametrize(
    ("measured", "here", "own", "live", "says"),
    [
        (2, "2", 1, 0, None),  # training alone has one thread
        (1, "2", 1, 0, None),  # evaluate.py decodes with the configuration's
        (2, "1", 1, 0, "was measured with threads 2, this is 1: its times may not fit"),
        (7, "2", 1, 0, "was measured with threads 7, this is 2: its times may not fit"),
        (2, "2", 1, 8, "was measured with threads 2, this is 1: its times may not fit"),
        (2, "2", "null", 8, None),
    ],
)
def test_threads_of_a_profile_are_those_that_will_decode(
    measured: int,
    here: str,
    own: int | str,
    live: int,
    says: str | None,
    place: Path,
    folder: Path,
    head: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = altered(place, tmp_path, lambda raw: raw["conditions"].update(threads=measured))
    changed = given(place) | {"policy__cycle__profiles": path, "policy__cycle__live_decisions": live}
    changed |= {"threads": own, "policy__cycle__verification_sizes": "[1,2,9]"}  # refused after the warnings
    monkeypatch.setenv("OMP_NUM_THREADS", here)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(4)))
    assert train.main(["policy", *flags(folder, head, tmp_path / "run", **changed)]) == 2
    warned = [line for line in capsys.readouterr().err.splitlines() if "threads" in line]
    assert len(warned) == (says is not None)
    assert says is None or says in warned[0]


@pytest.mark.slow
def test_the_largest_seed_has_seeds_after_it(place: Path, folder: Path, head: Path, tmp_path: Path) -> None:
    changed = given(place) | {"seed": 2**32 - 1, "policy__cycle__ppo__timesteps": 32}
    run = flags(folder, head, tmp_path / "run", **changed)
    assert train.main(["policy", *run]) == 0
    record = json.loads((tmp_path / "run" / "training.json").read_text())
    assert list(record["info"]["validation"]["seeds"]) == [str(2**32 - 1), "0"]
    assert train.main(["export", *run]) == 0
    assert load_tensors(tmp_path / "run" / "policy" / "policy.safetensors", "policy weights")


@pytest.mark.slow
def test_seconds_are_on_disk_before_a_part_ends(
    folder: Path, head: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a SIGKILL then leaves."""
    out, found = tmp_path / "run", list[set[str]]()

    def looking(through: Callable[..., Any]) -> Callable[..., Any]:
        def look(*arguments: Any, **more: Any) -> Any:
            path = out / "seconds.json"
            found.append(set(json.loads(path.read_text())) if path.exists() else set())
            return through(*arguments, **more)

        return look

    monkeypatch.setattr(commands.traces, "SHARD_TEXTS", 2)
    monkeypatch.setattr(decoding.trace_folder, "SHARD_TEXTS", 2)
    monkeypatch.setattr(commands.traces, "count_drafts", looking(commands.traces.count_drafts))
    monkeypatch.setattr(commands.cycle_policy, "fit_value", looking(commands.cycle_policy.fit_value))
    run = flags(folder, head, out, policy__cycle__seeds=1, policy__cycle__ppo__timesteps=0)
    assert train.main(["policy", *run]) == 0
    recording, whole = {"recording"}, {"recording", "profile", "training"}
    assert found == [recording, recording, whole]
