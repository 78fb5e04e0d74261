"""`evaluate.py` on tiny models: from a policy to a report; kills, repeats, and what is refused."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import evaluate
import train
from commands import live_part
from commands.alone import alone_in
from evaluation.schema import Report
from tests.cycle_commands import flags, given

pytestmark = pytest.mark.slow

MAIN = [
    *("plain", "usual", "best fixed", "second fixed", "best fixed again", "expected gain"),
    *("learned", "policy overridden"),
]
SHAPE: dict[str, object] = {
    "evaluation__temperatures": "[0,1]",
    "evaluation__prompts": 3,
    "evaluation__rest_prompts": 1,
    "evaluation__repeats": 2,
    "evaluation__draft_depths": "[1,3]",
    "evaluation__other_cores": 100,
    "evaluation__rules": "[svip,ucb]",
    "policy__cycle__seeds": 1,
}


@pytest.fixture(scope="module")
def made(folder: Path, head: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a policy and the report of its evaluation."""
    out = tmp_path_factory.mktemp("evaluation") / "run"
    own = flags(folder, head, out, **SHAPE)
    assert train.main(["policy", *own]) == 0
    assert train.main(["export", *own]) == 0
    assert evaluate.main([*own, "--policy", str(out / "policy")]) == 0
    return out


def again(made: Path, folder: Path, head: Path, out: Path, **changed: object) -> list[str]:
    """Flags of another evaluation, which need not record or profile again."""
    known = {
        "evaluation__traces": made / "traces" / "test",
        "evaluation__validation_traces": made / "traces" / "validation",
    }
    return [
        *flags(folder, head, out, **{**SHAPE, **given(made), **known, **changed}),
        *("--policy", str(made / "policy")),
    ]


def report_of(out: Path) -> Report:
    return Report.model_validate_json((out / "report.json").read_text(encoding="utf-8"))


def test_the_report_holds_replay_and_live_of_every_arm(made: Path) -> None:
    report = report_of(made)
    assert report.replay is not None
    by_speed = [name for name in report.replay.arms if name in ("svip", "ucb")]
    assert len(by_speed) == 2
    main = [*MAIN, by_speed[0]]
    rest = [name for name in report.arms if name.startswith("corner ")]
    assert rest
    rest.append(by_speed[1])
    # 3 prompts, 2 temperatures, 2 repeats; the rest 1 prompt.
    assert {name: arm.requests for name, arm in report.arms.items()} == {
        **dict.fromkeys(main, 12),
        **dict.fromkeys(rest, 2),
    }
    assert report.arms["svip"].source is not None
    assert "2411.18462" in report.arms["svip"].source
    assert "threshold" in (report.arms["svip"].tuned or "")
    assert all(arm.text_equal for arm in report.arms.values())
    assert (report.blocks, report.blocks_planned, report.reruns) == (14, 14, 0)
    assert report.arms["best fixed"].tuned == report.arms["best fixed again"].tuned.split(" once")[0] + (  # type: ignore[union-attr]
        ", the best of validation texts"
    )
    assert list(report.replay.arms) == [
        *("plain", "best fixed", "second fixed", "best fixed in hindsight", "expected gain"),
        *(*by_speed, "learned", "clairvoyant"),
    ]
    speeds = {name: arm.tokens_per_second for name, arm in report.replay.arms.items()}
    assert speeds["clairvoyant"] >= max(speeds.values())
    assert speeds["best fixed in hindsight"] >= speeds["best fixed"]
    grid = [point.tokens_per_second for point in report.replay.grid]
    assert max(grid) == pytest.approx(speeds["best fixed in hindsight"])
    assert report.replay.texts == 6
    assert report.aa is not None
    assert report.overhead is not None
    assert report.collapse is not None
    assert report.reliability
    assert report.sampling.temperatures == [0, 1]
    assert set(report.by_temperature) == {"0", "1"}
    pairs = {(row.a, row.b) for row in report.comparisons}
    others = {"best fixed", "second fixed", "plain", "usual", "expected gain", by_speed[0]}
    assert pairs == {("learned", one) for one in others} | {("best fixed", "plain")}
    for arm in report.arms.values():
        assert arm.latency is not None
        assert arm.latency.ttft.p50 > 0
        assert sum(arm.emitted) == sum(one.cycles for one in arm.actions)
        assert arm.peak_memory_mb is not None
    assert 1 <= len(report.strips) <= 4
    assert any(cycle.tokens for cycle in report.strips[0].cycles)
    rows = pq.read_table(made / "cycles.parquet").to_pylist()
    assert {row["arm"] for row in rows} == set(report.arms)
    assert {row["temperature"] for row in rows} == {0.0, 1.0}


def test_a_killed_run_goes_on_and_another_plan_is_refused(
    made: Path, folder: Path, head: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    shutil.copytree(made, out)
    own = flags(folder, head, out, **SHAPE)
    blocks = sorted((out / "live" / "blocks").iterdir())
    before = {path: path.read_bytes() for path in blocks}
    blocks[3].unlink()
    blocks[-1].unlink()
    (out / "report.json").unlink()
    # Where files lie is no part of the plan: the folder was moved.
    command = [*own, "--policy", str(made / "policy")]
    assert evaluate.main([one.replace("seed=1", "seed=null") for one in command]) == 0
    assert all(path.read_bytes() == before[path] for path in blocks[:3])
    assert report_of(out).blocks == 14
    capsys.readouterr()
    other = tmp_path / "policy"
    shutil.copytree(made / "policy", other)
    raw = json.loads((other / "policy.json").read_text(encoding="utf-8"))
    raw["validation"]["note"] = "another"
    (other / "policy.json").write_text(json.dumps(raw), encoding="utf-8")
    assert evaluate.main([*own, "--policy", str(other)]) == 2
    assert "was begun with other arms, policy: " in capsys.readouterr().err
    assert evaluate.main([*command, "--set=evaluation.repeats=1"]) == 2
    said = capsys.readouterr().err
    assert (
        "was begun with other blocks, config, rules" in said or "was begun with other blocks, config" in said
    )
    assert "give another --out" in said


def test_a_repeat_ends_with_its_evaluation_and_trusts_no_other_policy(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    live = tmp_path / "live"
    shutil.copytree(made / "live", live)
    blocks = sorted((live / "blocks").iterdir())
    for path in blocks[:3]:
        path.unlink()
    plan, me = live / "plan.json", os.getppid()
    assert live_part.main([str(plan), "0", str(me + 1)]) == 130
    assert [path.exists() for path in blocks[:4]] == [True, False, False, True]
    with alone_in(live):
        assert live_part.main([str(plan), "0", str(me)]) == 2
    assert f"another command is writing into {live}" in capsys.readouterr().err
    raw = json.loads(plan.read_text(encoding="utf-8"))
    raw["digests"] = {
        path: "0" * 64 if path.endswith("policy") else one for path, one in raw["digests"].items()
    }
    plan.write_text(json.dumps(raw), encoding="utf-8")
    assert live_part.main([str(plan), "0", str(me)]) == 2
    assert "policy was changed while it was evaluated" in capsys.readouterr().err
    assert not blocks[1].exists()


def test_where_time_ran_out_the_rest_is_left_out(
    made: Path, folder: Path, head: Path, tmp_path: Path
) -> None:
    shape: dict[str, Any] = {
        "evaluation__arms": "[learned,corners]",
        "evaluation__rules": "[]",
        "evaluation__minutes": 1e-4,
    }
    assert evaluate.main(again(made, folder, head, tmp_path / "run", **shape)) == 0
    report = report_of(tmp_path / "run")
    assert {name: arm.requests for name, arm in report.arms.items()} == {"plain": 2, "learned": 2}
    assert report.blocks == 2


def test_freely_run_arms_are_apart_also_without_a_rest(
    made: Path, folder: Path, head: Path, tmp_path: Path
) -> None:
    shape = {"evaluation__arms": "[usual]", "evaluation__rules": "[]", "evaluation__repeats": 1}
    run = again(made, folder, head, tmp_path / "run", model__dtype="bfloat16", **shape)
    assert evaluate.main(run) == 0
    report = report_of(tmp_path / "run")
    assert report.forced_text
    assert {name: arm.requests for name, arm in report.arms.items()} == {"plain": 6, "usual": 6}
    assert {name: arm.requests for name, arm in report.free_running.items()} == {"plain": 2, "usual": 2}
    assert report.policy_folders == {"learned": str(made / "policy")}


def test_an_evaluation_is_repeated_from_its_report(made: Path, tmp_path: Path) -> None:
    out = tmp_path / "again"
    few = ["--set=evaluation.prompts=1", "--set=evaluation.repeats=1", "--set=evaluation.arms=[learned]"]
    known = [
        f"--set=evaluation.traces={made / 'traces' / 'test'}",
        f"--set=evaluation.validation_traces={made / 'traces' / 'validation'}",
        f"--set=policy.cycle.profiles={made / 'profile' / 'T0' / 'profile.json'}",
    ]
    command = ["--from", str(made / "report.json"), "--out", str(out), *few, *known]
    assert evaluate.main(command) == 0
    report = report_of(out)
    assert list(report.arms) == ["plain", "learned"]
    assert report.config["seed"] == 1
    assert report.verdict.startswith("Nothing can be said: on 1 independent question")


@pytest.mark.parametrize(
    ("changed", "extra", "says"),
    [
        ({"evaluation__arms": "[learnt]"}, [], "unknown arm 'learnt'; there are plain, usual, best fixed"),
        ({"evaluation__rules": "[svpi]"}, [], "there is no rule 'svpi', known are hf-heuristic"),
        ({"evaluation__repeats": 0}, [], "evaluation.repeats = 0 must be greater than or equal to 1"),
        ({"evaluation__prompts": 0}, [], "must be greater than or equal to 1"),
        ({}, ["--beside", "plain={policy}"], "--beside plain=..: an arm has that name already"),
        ({}, ["--beside", "x={nowhere}"], "policy.json does not exist"),
        ({}, ["--beside", "x={policy}", "--beside", "x={policy}"], "--beside names one arm twice"),
        ({"evaluation__temperatures": "[0.5]"}, [], "none at 0.5: record that one too"),
        ({"evaluation__regimes": "{made}/training.json"}, [], "holds no such rows (regimes:"),
        ({"evaluation__cross_check": "{made}/policy/policy.json"}, [], "holds no such rows (cross_check:"),
        ({"workload__categories": "[none]"}, [], "none"),
        ({"policy__cycle__profiles": "nowhere.json"}, [], "does not exist"),
    ],
)
def test_mistakes_are_one_line(
    made: Path,
    folder: Path,
    head: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    changed: dict[str, Any],
    extra: list[str],
    says: str,
) -> None:
    changed = {name: str(value).replace("{made}", str(made)) for name, value in changed.items()}
    command = again(made, folder, head, tmp_path / "out", **changed)
    command += [one.format(policy=made / "policy", nowhere=tmp_path / "nowhere") for one in extra]
    capsys.readouterr()
    assert evaluate.main(command) == 2
    said = capsys.readouterr().err
    assert says in said
    assert "Traceback" not in said
    assert not (tmp_path / "out" / "report.json").exists()


@pytest.mark.parametrize("damage", ["{}", "[]", "nonsense"])
def test_a_report_that_is_none(damage: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "report.json"
    path.write_text(damage, encoding="utf-8")
    assert evaluate.main(["--from", str(path), "--out", str(tmp_path / "out")]) == 2
    assert f"report {path}" in capsys.readouterr().err
    assert evaluate.main(["--from", str(path), "--check-law"]) == 2


def test_another_models_policy_is_refused(
    made: Path, folder: Path, head: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "policy"
    shutil.copytree(made / "policy", other)
    raw = json.loads((other / "policy.json").read_text(encoding="utf-8"))
    raw["fingerprints"]["target"] = "0" * 64
    (other / "policy.json").write_text(json.dumps(raw), encoding="utf-8")
    command = again(made, folder, head, tmp_path / "out")
    command[command.index("--policy") + 1] = str(other)
    assert evaluate.main(command) == 2
    assert "trained for target" in capsys.readouterr().err
