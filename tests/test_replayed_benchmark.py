"""The benchmark that replays a training's policies beside constants, the rule and the bounds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import train
from benchmarks import replayed
from benchmarks.measure import ratio_of_sums
from tests.cycle_commands import flags, given

SECONDS = {
    "plain": [4.0, 8.0, 4.0],
    replayed.CONSTANT: [2.0, 5.0, 3.0],
    replayed.HINDSIGHT: [3.0, 3.0, 3.0],
    replayed.LEARNED: [2.0, 4.0, 2.0],
    replayed.CLAIRVOYANT: [1.0, 3.0, 1.0],
}


def arms(**changed: list[float]) -> replayed.Arms:
    seconds = {name: np.array(values) for name, values in (SECONDS | changed).items()}
    return replayed.Arms(seconds, np.array([0, 1, 0]), np.array([0.0, 0.0, 1.0]))


def test_rows_are_ratios_of_sums_and_shares_of_what_a_bound_saves() -> None:
    parts = dict(replayed.parts_of(arms()))
    assert {name: some.tolist() for name, some in parts.items()} == {
        "all": [True, True, True],
        "T 0": [True, True, False],
        "T 1": [False, False, True],
    }
    every = replayed.rows_of(arms(), parts["all"])
    learned = every[replayed.LEARNED]
    assert (learned["texts"], learned["groups"]) == (3, 2)
    assert learned["over_plain"][0] == 16 / 8
    assert learned["over_constant"][0] == 10 / 8
    assert every["plain"]["learned_over_it"][0] == 16 / 8
    assert learned["share_of_clairvoyant"] == (9 - 8) / (9 - 5)
    assert "share_of_reachable" not in learned
    assert every[replayed.CONSTANT]["over_constant"] == (1.0, 1.0, 1.0)
    one = replayed.rows_of(arms(), parts["T 1"])
    assert one[replayed.LEARNED]["over_plain"] == (2.0, 2.0, 2.0)  # one question has no interval
    # A bound that saves nothing has no shares.
    slow = arms(**{replayed.CLAIRVOYANT: [9.0, 9.0, 9.0]})
    assert "share_of_clairvoyant" not in replayed.rows_of(slow, parts["all"])[replayed.LEARNED]


def test_texts_of_one_question_are_drawn_together() -> None:
    """Two texts that differ the other way cancel within their question, and there is no spread left."""
    rows = replayed.rows_of(
        arms(plain=[1.0, 4.0, 7.0], **{replayed.LEARNED: [3.0, 2.0, 1.0]}), np.ones(3, dtype=bool)
    )
    assert rows[replayed.LEARNED]["over_plain"] == (2.0, 2.0, 2.0)


def test_the_interval_holds_the_ratio_and_narrows_with_more_texts() -> None:
    rng = np.random.default_rng(0)
    mine = rng.uniform(1, 2, 400)
    other = mine * rng.uniform(1.0, 1.2, 400)
    few, many = ratio_of_sums(other[:20], mine[:20]), ratio_of_sums(other, mine)
    for value, low, high in (few, many):
        assert low < value < high
        assert low < 1.1 < high
    assert many[2] - many[1] < few[2] - few[1]


@pytest.fixture(scope="module")
def made(folder: Path, head: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished training and what it was trained on."""
    out = tmp_path_factory.mktemp("replayed") / "run"
    assert train.main(["policy", *flags(folder, head, out)]) == 0
    return out


@pytest.mark.slow
def test_it_says_of_a_training_what_the_training_said_of_itself(
    made: Path, folder: Path, head: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = flags(folder, head, tmp_path / "r", **given(made))
    capsys.readouterr()
    assert replayed.main([*mine, "--run", str(made)]) == 0
    said = capsys.readouterr().out
    assert "T 0: 2 texts" in said
    found: dict[str, Any] = json.loads((tmp_path / "r" / "replayed.json").read_text())["T 0"]
    trained = json.loads((made / "training.json").read_text())["info"]["validation"]
    assert found[replayed.LEARNED]["over_constant"][0] == pytest.approx(trained["over_constant"], rel=1e-6)
    hindsight = found[replayed.HINDSIGHT]["learned_over_it"][0]
    assert hindsight == pytest.approx(trained["over_hindsight_constant"], rel=1e-6)
    clairvoyant = found[replayed.CLAIRVOYANT]["learned_over_it"][0]
    assert clairvoyant == pytest.approx(trained["over_clairvoyant"], rel=1e-6)
    for place, name in enumerate((replayed.FULL, replayed.PPO)):
        slowness = np.mean([1 / pair[place] for pair in trained["seeds"].values()])
        assert found[name]["over_constant"][0] == pytest.approx(1 / slowness, rel=1e-6)
    over = found[replayed.PPO]["over_constant"][0] / found[replayed.FULL]["over_constant"][0]
    assert found[replayed.PPO]["over_full_information"][0] == pytest.approx(over, rel=1e-6)
    speeds = {name: row["over_plain"][0] for name, row in found.items()}
    assert max(speeds.values()) == speeds[replayed.CLAIRVOYANT]
    # Recordings and profiles that the training made itself need not be named.
    own = flags(folder, head, tmp_path / "own")
    assert replayed.main([*own, "--run", str(made)]) == 0
    assert json.loads((tmp_path / "own" / "replayed.json").read_text())["T 0"] == found
    # What a profile of this moment says may make plain decoding the best constant.
    constants = [value for name, value in speeds.items() if name.startswith(("the same, ", "plain"))]
    assert max(constants) == pytest.approx(speeds[replayed.HINDSIGHT], rel=1e-6)


@pytest.mark.slow
def test_mistakes_are_one_line(
    made: Path, folder: Path, head: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = flags(folder, head, tmp_path / "r", **given(made))
    unnamed = flags(folder, head, tmp_path / "r")
    cases = [
        ([*mine, "--run", str(tmp_path)], "holds no finished training: train.py policy makes one"),
        ([*unnamed, "--run", str(tmp_path)], "must be given: record first"),
        ([*mine, "--run", str(made), "--texts", str(tmp_path)], "holds no recording"),
        (
            [*mine, "--set=policy.cycle.verification_sizes=[1,2]", "--run", str(made)],
            "it maps 18 features to 8 actions, not 17 to 7: give the configuration that it was trained with",
        ),
        ([*mine, "--run", str(made), "--bound"], "texts are too few to learn from"),
    ]
    capsys.readouterr()
    for command, expected in cases:
        assert replayed.main(command) == 2
        lines = capsys.readouterr().err.splitlines()
        # What this machine was busy with while it was profiled may be warned of.
        said = [line for line in lines if not line.startswith("warning: ")]
        assert len(said) == 1
        assert expected in said[0]
    assert not (tmp_path / "r").exists()
