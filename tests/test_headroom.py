"""What is to be gained: totals by hand, on costs that are made up; the command on a recording."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

import train
from decoding.controller import RootChoice
from decoding.replay import PLAIN, Action
from evaluation.headroom import TextCosts, best_of_each_choice, edges, headroom
from tests.test_profile_command import flags as profile_flags
from tests.test_traces_command import flags as trace_flags

ACTIONS = (
    PLAIN,
    Action(RootChoice.ALL, 1, 4),
    Action(RootChoice.ALL, 2, 8),
    Action(RootChoice.LOOKUP, 0, 4),
)
TEXTS = [
    TextCosts("a", "code", 10, np.array([10.0, 6.0, 4.0, 9.0]), 3.0),
    TextCosts("b", "code", 10, np.array([10.0, 7.0, 5.0, 4.0]), 2.0),
    TextCosts("c", "chat", 20, np.array([20.0, 14.0, 22.0, 30.0]), 13.0),
]


def test_totals_by_hand() -> None:
    """Plain takes 40; constants 27, 31 and 43; by category 4 + 5 and 14; by prompt 4, 4 and 14; best 18."""
    arms = {arm.name: arm for arm in headroom(TEXTS, ACTIONS)}
    ratios = {name: arm.ratio for name, arm in arms.items()}
    assert ratios == pytest.approx(
        {
            "plain": 1,
            "best constant": 40 / 27,
            "best constant of each category": 40 / 23,
            "best constant of each prompt": 40 / 22,
            "clairvoyant": 40 / 18,
        }
    )
    assert arms["plain"].tokens_per_second == 1
    assert arms["best constant"].tokens_per_second == pytest.approx(40 / 27)
    assert arms["best constant"].setting == "1x4"
    assert all(arm.low <= arm.ratio <= arm.high for arm in arms.values())
    by_choice = {arm.name: (arm.setting, arm.ratio) for arm in best_of_each_choice(TEXTS, ACTIONS)}
    assert by_choice == {
        "plain": ("plain", 1),
        "all": ("1x4", pytest.approx(40 / 27)),
        "lookup": ("lookup 4", pytest.approx(40 / 43)),
    }


def test_edges_of_the_grid_are_named() -> None:
    assert edges(TEXTS, ACTIONS) == []
    (depth, size) = edges(TEXTS[:1], ACTIONS)
    assert depth.startswith("the best constant, 2x8, has the grid's largest draft_depth")
    assert "verification_size" in size


def test_nothing_to_compare_is_refused() -> None:
    with pytest.raises(ValueError, match="there are no texts"):
        headroom([], ACTIONS)
    with pytest.raises(ValueError, match="the first action is 1x4, must be the plain step"):
        headroom(TEXTS, ACTIONS[1:])


@pytest.fixture(scope="module")
def recorded(folder: Path, head: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("headroom")
    assert train.main(profile_flags(folder, head, out, profile__contexts="[16,40]")) == 0
    assert train.main(trace_flags(folder, head, out, traces__temperatures="[0.0]")) == 0
    return out


def test_the_command_prints_a_table_and_json(recorded: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["headroom", str(recorded / "T0"), "--profile", str(recorded / "profile.json")]
    assert train.main(given) == 0
    printed = capsys.readouterr().out
    assert "3 texts" in printed
    for name in ("plain", "best constant", "clairvoyant"):
        assert name in printed
    assert train.main([*given, "--json"]) == 0
    raw = json.loads(capsys.readouterr().out)
    ratios = [arm["ratio"] for arm in raw["arms"]]
    assert ratios[0] == 1
    # Each knows more than the one before.
    assert all(more >= less - 1e-9 for less, more in pairwise(ratios))


def test_costs_of_other_conditions_are_a_warning(
    recorded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    raw = json.loads((recorded / "profile.json").read_text())
    raw["conditions"] |= {"temperature": 1.0, "drafter": "ngram"}
    other = tmp_path / "other.json"
    other.write_text(json.dumps(raw))
    assert train.main(["headroom", str(recorded / "T0"), "--profile", str(other)]) == 0
    said = capsys.readouterr().err
    assert "measured with temperature 1.0, the trace has 0.0: times may not fit" in said
    assert "measured with drafter ngram" in said


def test_files_that_do_not_fit_are_one_line(
    recorded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    profile = recorded / "profile.json"
    raw = json.loads(profile.read_text())
    raw["fingerprints"]["target"] = "other"
    other = tmp_path / "other.json"
    other.write_text(json.dumps(raw))
    for traces, costs, says in (
        (recorded / "T0", other, "the profile is of target other, the trace of"),
        (recorded / "T0", tmp_path / "none.json", "none.json"),
        (tmp_path, profile, "holds no recording"),
    ):
        assert train.main(["headroom", str(traces), "--profile", str(costs)]) == 2
        said = capsys.readouterr().err
        assert says in said
        assert said.count("\n") == 1
