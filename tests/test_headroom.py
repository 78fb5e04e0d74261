"""What is to be gained: totals by hand, on costs that are made up; the command on a recording."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

import commands.headroom_rules
import train
from decoding.controller import RootChoice
from decoding.setting import Setting
from decoding.trace_file import TraceWriter, read_trace
from evaluation.headroom import Replayed, best_of_each_choice, edges, headroom
from policies.bound import BoundSettings
from policies.full_information import FullInformationSettings
from tests.test_profile_command import flags as profile_flags
from tests.test_traces_command import flags as trace_flags

PLAIN = Setting(RootChoice.PLAIN, 0, 0)
CONSTANTS = {
    PLAIN: np.array([10.0, 10.0, 20.0]),
    Setting(RootChoice.ALL, 1, 4): np.array([6.0, 7.0, 14.0]),
    Setting(RootChoice.ALL, 2, 8): np.array([4.0, 5.0, 22.0]),
    Setting(RootChoice.LOOKUP, 0, 4): np.array([9.0, 4.0, 30.0]),
    Setting(RootChoice.ALL, 1, 4, composite=True): np.array([11.0, 11.0, 21.0]),
}
RULES = {"expected gain": np.array([5.0, 6.0, 14.0]), "reachable": np.array([4.0, 5.0, 14.0])}
TEXTS = Replayed(
    ("code", "code", "chat"), np.array([10, 10, 20]), CONSTANTS, np.array([3.0, 2.0, 13.0]), RULES
)


def test_totals_by_hand() -> None:
    """Plain takes 40; constants 27, 31 and 43; by category 4 + 5 and 14; by prompt 4, 4 and 14; best 18."""
    arms = {arm.name: arm for arm in headroom(TEXTS)}
    assert {name: arm.ratio for name, arm in arms.items()} == pytest.approx(
        {
            "plain": 1,
            "best constant": 40 / 27,
            "best constant of each category": 40 / 23,
            "best constant of each prompt": 40 / 22,
            "expected gain": 40 / 25,
            "reachable": 40 / 23,
            "clairvoyant": 40 / 18,
        }
    )
    assert list(arms)[-3:] == ["expected gain", "reachable", "clairvoyant"]
    assert arms["plain"].tokens_per_second == 1
    assert arms["best constant"].tokens_per_second == pytest.approx(40 / 27)
    assert arms["best constant"].setting == "all 1x4"
    assert all(arm.low <= arm.ratio <= arm.high for arm in arms.values())
    by_choice = {arm.name: (arm.setting, arm.ratio) for arm in best_of_each_choice(TEXTS)}
    assert by_choice == {
        "plain": ("plain", 1),
        "all": ("all 1x4", pytest.approx(40 / 27)),
        "lookup": ("lookup 4", pytest.approx(40 / 43)),
        "composite": ("composite 1x4", pytest.approx(40 / 43)),
    }


def test_shares_are_of_the_seconds_saved_against_the_best_constant() -> None:
    """Of 27 seconds the reachable bound saves 4 and the best schedule 9; expected gain saves 2."""
    plain, *arms = headroom(TEXTS)
    assert {plain.of_reachable, plain.of_clairvoyant} == {None}
    of_reachable = {arm.name: arm.of_reachable for arm in arms}
    of_clairvoyant = {arm.name: arm.of_clairvoyant for arm in arms}
    names = ["best constant", "expected gain", "reachable", "clairvoyant"]
    assert [of_reachable[name] for name in names] == pytest.approx([0, 2 / 4, 1, 9 / 4])
    assert [of_clairvoyant[name] for name in names] == pytest.approx([0, 2 / 9, 4 / 9, 1])


@pytest.mark.parametrize("bound", [None, np.array([6.0, 7.0, 14.0]), np.array([9.0, 9.0, 14.0])])
def test_there_are_no_shares_of_nothing(bound: np.ndarray | None) -> None:
    """Without a bound, or with one that is no better than the best constant."""
    rules = {} if bound is None else {"reachable": bound}
    arms = headroom(Replayed(TEXTS.categories, TEXTS.tokens_T, CONSTANTS, TEXTS.clairvoyant_T, rules))
    assert {arm.of_reachable for arm in arms} == {None}
    assert arms[-1].of_clairvoyant == 1


def test_edges_of_the_grid_are_named() -> None:
    assert edges(TEXTS) == []
    first = {setting: seconds_T[:1] for setting, seconds_T in CONSTANTS.items()}
    (depth, size) = edges(Replayed(("code",), np.array([10]), first, np.array([3.0])))
    assert depth.startswith("the best constant, all 2x8, has the grid's largest draft_depth")
    assert "verification_size" in size


def test_nothing_to_compare_is_refused() -> None:
    nothing = np.array([])
    with pytest.raises(ValueError, match="there are no texts"):
        Replayed((), nothing, CONSTANTS, nothing)
    drafts = {one: seconds_T for one, seconds_T in CONSTANTS.items() if one != PLAIN}
    with pytest.raises(ValueError, match="the plain step is not among the constants"):
        Replayed(TEXTS.categories, TEXTS.tokens_T, drafts, TEXTS.clairvoyant_T)
    free = {one: np.zeros(3) for one in CONSTANTS}
    with pytest.raises(ValueError, match="the profile's costs are 0: profile again"):
        Replayed(TEXTS.categories, TEXTS.tokens_T, free, TEXTS.clairvoyant_T)


@pytest.fixture(scope="module")
def recorded(folder: Path, head: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("headroom")
    assert train.main(profile_flags(folder, head, out, profile__contexts="[16,40]")) == 0
    assert train.main(trace_flags(folder, head, out, traces__temperatures="[0.0]")) == 0
    more = {"traces__temperatures": "[0.0]", "traces__prompts": 9}
    assert train.main(trace_flags(folder, head, out / "train", **more)) == 0
    flat = more | {"traces__draft_depth": 1}
    assert train.main(trace_flags(folder, head, out / "flat", **flat)) == 0
    return out


def test_the_command_prints_a_table_and_json(recorded: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["headroom", str(recorded / "T0"), "--profile", str(recorded / "profile.json")]
    assert train.main(given) == 0
    printed = capsys.readouterr().out
    assert "3 texts" in printed
    for name in ("plain", "best constant", "clairvoyant", "give one with --train"):
        assert name in printed
    assert "expected gain │" not in printed
    assert train.main([*given, "--json"]) == 0
    raw = json.loads(capsys.readouterr().out)
    ratios = [arm["ratio"] for arm in raw["arms"]]
    assert ratios[0] == 1
    # Each knows more than the one before.
    assert all(more >= less - 1e-9 for less, more in pairwise(ratios))


def test_rules_and_the_bound_are_learned_from_another_recording(
    recorded: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    quick = FullInformationSettings(rounds=1, epochs=1)
    monkeypatch.setattr(commands.headroom_rules, "TREES", BoundSettings(trees=5, leaf_rows=5))
    monkeypatch.setattr(commands.headroom_rules, "NETWORK", quick)
    monkeypatch.setattr(commands.headroom_rules, "WIDTH", 8)
    given = ["headroom", str(recorded / "T0"), "--profile", str(recorded / "profile.json")]
    assert train.main([*given, "--train", str(recorded / "train" / "T0"), "--json"]) == 0
    raw = json.loads(capsys.readouterr().out)
    arms = {arm["name"]: arm for arm in raw["arms"]}
    names = ["constant of the training texts", "expected gain", "reachable", "clairvoyant"]
    assert list(arms)[-4:] == names
    # Where nothing is left to gain they are equal, but for the order of the sums.
    assert all(arms["clairvoyant"]["ratio"] >= arms[name]["ratio"] - 1e-6 for name in names), arms
    assert arms["best constant"]["ratio"] >= arms["constant of the training texts"]["ratio"] - 1e-6
    assert raw["note"].startswith("learned on 9 texts, 45 tokens: constant ")


def test_costs_of_other_conditions_are_a_warning(
    recorded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    raw = json.loads((recorded / "profile.json").read_text())
    raw["conditions"] |= {"temperature": 1.0, "drafter": "ngram"}
    raw["note"] |= {"disturbed_share": 1.0}
    other = tmp_path / "other.json"
    other.write_text(json.dumps(raw))
    assert train.main(["headroom", str(recorded / "T0"), "--profile", str(other)]) == 0
    said = capsys.readouterr().err
    assert "measured with temperature 1.0, the trace has 0.0: times may not fit" in said
    assert "measured with drafter ngram" in said
    assert "disturbed 100% of the profile's cycles" in said


def changed(recording: Path, out: Path, cut: bool = False, **fingerprints: str) -> Path:
    """A copy of a recording with other models, or whose last shard lacks its end."""
    shutil.copytree(recording, out)
    (shard,) = out.glob("*.parquet")
    if cut:
        shard.write_bytes(shard.read_bytes()[:-200])
        return out
    header, texts = read_trace(shard)
    kept = list(texts)
    header = replace(header, fingerprints={**header.fingerprints, **fingerprints})
    with TraceWriter(shard, header) as writer:
        for text in kept:
            writer.add(text.question_id, text.category, text.language, text.positions)
    identity = json.loads((out / "traces.json").read_text())
    identity["header"]["fingerprints"] = dict(header.fingerprints)
    (out / "traces.json").write_text(json.dumps(identity))
    return out


def test_files_that_do_not_fit_are_one_line(
    recorded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    profile, mine = recorded / "profile.json", recorded / "T0"
    raw = json.loads(profile.read_text())
    raw["fingerprints"]["target"] = "other"
    other = tmp_path / "other.json"
    other.write_text(json.dumps(raw))
    foreign = changed(mine, tmp_path / "foreign", tokenizer="other")
    drafts = changed(mine, tmp_path / "drafts", drafter="other")
    cut = changed(mine, tmp_path / "cut", cut=True)
    for traces, costs, learned, says in (
        (mine, other, None, "the profile is of target other, "),
        (mine, tmp_path / "none.json", None, "none.json"),
        (tmp_path, profile, None, "holds no recording"),
        (foreign, profile, None, f"{foreign} of other: profile the models of the trace"),
        (cut, profile, None, "it is damaged, truncated or no Parquet file"),
        (mine, profile, tmp_path, "holds no recording"),
        (mine, profile, foreign, f"{foreign} of other: profile the models of the trace"),
        (mine, profile, drafts, f"{drafts} was recorded with drafter other, the texts to replay with"),
        (mine, profile, cut, "it is damaged, truncated or no Parquet file"),
        (mine, profile, recorded / "flat" / "T0", "has 1 levels of all, the texts to replay need 2 of all"),
        (mine, profile, mine, "3 texts are too few to learn from, give at least 8"),
    ):
        flags = ["headroom", str(traces), "--profile", str(costs)]
        assert train.main([*flags, *([] if learned is None else ["--train", str(learned)])]) == 2
        said = capsys.readouterr().err
        assert says in said
        assert said.count("\n") == 1
