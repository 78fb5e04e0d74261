"""The benchmark of a learned policy on the real loop: its arms, and that it runs on a tiny exported one."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import train
from benchmarks import decision, learned
from decoding.exported_cycle import ExportedCycle
from decoding.profile import CostProfile
from decoding.setting import Setting
from tests.cycle_commands import flags
from tests.cycle_world import DECISIONS, NAME, exported
from tests.test_pair_commands import flags as pair_flags
from tests.test_replay_session import profile
from tests.test_traces_command import short_workload
from tests.traced_worlds import CHOICES, Case, session_of, text_of

RULES = {
    temperature: {"rate": 30.0, "growth": growth, "root_actions": [1, 2, 1, 2, 1]}
    for temperature, growth in (("0", 0.2), ("0.7", 0.5), ("1", 0.8))
}


def validation(hindsight: Setting) -> dict[str, object]:
    return {"hindsight_constant": hindsight.to_json(), "expected_gain": RULES}


def test_arms_decode_one_text_and_the_overridden_policy_does_as_the_constant(tmp_path: Path) -> None:
    best, other = Setting(CHOICES[0], 2, 5), Setting(CHOICES[2], 1, 2)
    policy = ExportedCycle.load(exported(tmp_path / "p", validation=validation(other)))
    made: list[object] = []
    arms = {arm.name: arm for arm in learned.arms_of(policy, profile(), 1.0, made)}  # type: ignore[arg-type]
    assert list(arms) == [
        *("plain", "constant", "other constant", "constant again"),
        *("policy overridden", "expected gain", "learned"),
    ]
    cycles = {}
    case = Case(NAME, 1.0, 1, 1)
    for name, arm in arms.items():
        session = session_of(case)
        records = list(session.run(arm.controller_factory()))
        assert session.generated == text_of(case)
        cycles[name] = [(one.draft_depth, one.verification_size) for one in records]
    assert cycles["policy overridden"] == cycles["constant"] == cycles["constant again"]
    assert cycles["constant"] != cycles["learned"] != cycles["plain"]
    assert max(depth for depth, _ in cycles["other constant"]) == 1
    assert len(made) == 1
    # The best in hindsight need not be another.
    same = ExportedCycle.load(exported(tmp_path / "p", validation=validation(best)))
    assert "other constant" not in [arm.name for arm in learned.arms_of(same, profile(), 1.0, [])]


@pytest.mark.parametrize(
    "damaged",
    [{}, {"hindsight_constant": "plain"}, {"expected_gain": {}}, {"expected_gain": {"0": {"x": 1}}}],
)
def test_a_policy_that_does_not_say_its_yardsticks(damaged: dict[str, object], tmp_path: Path) -> None:
    known = validation(Setting(CHOICES[0], 2, 5)) | damaged if damaged else {}
    policy = ExportedCycle.load(exported(tmp_path / "p", validation=known))
    with pytest.raises(
        ValueError, match=r"validation lacks its constant or its rule .*: train and export again"
    ):
        learned.arms_of(policy, profile(), 1.0, [])


def test_the_rule_is_that_of_the_nearest_temperature() -> None:
    for temperature, growth in ((0.0, 0.2), (0.3, 0.2), (0.6, 0.5), (2.0, 0.8)):
        rule = learned.expected_gain_of({"expected_gain": RULES}, DECISIONS, profile(), temperature)
        assert rule.growth == growth
        assert rule.decisions == DECISIONS


@pytest.mark.slow
def test_it_runs_on_a_tiny_policy(
    folder: Path, head: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Beam and lookup as the benchmarks have them: the drafter's own."""
    beam = {"draft__beam_width": 4, "draft__lookup_depth": 6, "policy__cycle__seeds": 1}
    run = flags(folder, head, tmp_path / "run", **beam)
    for what in ("policy", "export"):
        assert train.main([what, *run]) == 0
    capsys.readouterr()
    known = tmp_path / "run" / "profile" / "T0" / "profile.json"
    assert CostProfile.load(known).max_size >= 4
    command = ["--target", str(folder), "--drafter", f"merged:{head}", "--dtype", "float32", "--threads", "1"]
    command += ["--workload", str(folder / "workload.jsonl"), "--prompts", "2", "--max-new-tokens", "8"]
    command += ["--profile", str(known), "--json", str(tmp_path / "seconds.json")]
    assert learned.main([*command, "--policy", str(tmp_path / "run" / "policy")]) == 0
    said = capsys.readouterr().out
    assert "2 prompts" in said
    assert "texts: 2 of 2 equal in all arms" in said
    assert "T 0" in said
    assert "all temperatures" not in said
    for row in ("learned / constant", "constant / constant again", "policy overridden / constant"):
        assert re.search(rf"│ {row} +│ +\d\.\d{{3}} │ +(\d\.\d{{3}} \.\. +\d\.\d{{3}})? *│", said), row
    assert re.search(r"[1-9]\d* decisions of the policy, [1-9]\d* us each", said)
    seconds = json.loads((tmp_path / "seconds.json").read_text())["seconds"]
    assert all(len(values) == 2 and min(values) > 0 for values in seconds.values())
    several = [*command, "--policy", str(tmp_path / "run" / "policy"), "--temperature", "1", "0", "1"]
    assert learned.main(several) == 0
    said = capsys.readouterr().out
    assert "2 prompts, all temperatures" in said
    assert "2 prompts, T 0" in said
    assert "2 prompts, T 1" in said
    assert "texts: 4 of 4 equal in all arms" in said
    assert said.count("texts: 2 of 2 equal in all arms") == 2
    usual = [*command[:8], "--policy", str(tmp_path / "run" / "policy"), "--rounds", "3"]
    assert decision.main([*usual, "--json", str(tmp_path / "decision.json")]) == 0
    assert re.search(r"a decision: [1-9]\d* us on average", capsys.readouterr().out)
    found = json.loads((tmp_path / "decision.json").read_text())
    assert len(found["draft"]["whole"]) == len(found["draft"]["whole, again at once"]) > 0
    assert min(time for parts in found.values() for times in parts.values() for time in times) > 0
    pair = tmp_path / "pair"
    trained = {"policy__recordings": "null", "workload__train_prompts": 2, "workload__validation_prompts": 1}
    shape = {"sampling__max_new_tokens": 8, "evaluation__max_new_tokens": 8}
    short_workload(tmp_path / "workload.jsonl")
    for what in ("policy", "export"):
        assert train.main([what, *pair_flags(tmp_path, folder, head, pair, **trained, **shape)]) == 0
    command += ["--policy", str(tmp_path / "run" / "policy")]
    assert learned.main([*command, "--pair", str(pair / "policy")]) == 0
    said = capsys.readouterr().out
    assert "texts: 2 of 2 equal in all arms" in said
    assert re.search(r"│ learned / pair +│ +\d\.\d{3} │", said)
    assert learned.main([*command, "--pair", str(tmp_path / "run" / "policy")]) == 2
    assert "must hold a pair of policies" in capsys.readouterr().err
    assert learned.main([*command, "--policy", str(tmp_path / "none")]) == 2
    assert "none/policy.json does not exist" in capsys.readouterr().err
