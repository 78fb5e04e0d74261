"""An evaluation says only what its own blocks hold: nothing of other runs, other texts, freely run arms."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from made_up import LEARNED, PLAIN, by_hand, fixed, report_of
from made_up_whole import whole_report

import evaluate
from commands import evaluation_rules
from commands.evaluation import _begun_seed
from commands.evaluation_arms import check_names, left_out
from commands.evaluation_replay import texts_of
from commands.evaluation_rules import TunedRule, tuned_rules
from commands.live_arms import ArmSpec
from configs.command import DEFAULT_CONFIG
from configs.loading import load_config
from decoding.workload import Request
from evaluation import sentences
from evaluation.arm_results import Roles, main_observations
from evaluation.block_store import BlockStore
from evaluation.blocks import check_kept, plan_blocks
from evaluation.protocol import Observation
from evaluation.roles import roles
from tests.test_blocks import NAMES, QUESTIONS, TEMPERATURES, World, plan
from tests.test_rule_tuning import MERGED_OFFERS, sessions


def test_blocks_of_another_run_are_refused(tmp_path: Path) -> None:
    world, blocks = World(tmp_path), plan(1)
    world.run(blocks[:3])
    check_kept(world.store.kept(), blocks, world.store)
    others = plan_blocks(NAMES, QUESTIONS, TEMPERATURES, [0], np.random.default_rng(8))
    for wrong in (others, blocks[1:], []):
        with pytest.raises(ValueError, match=r"block-000000.parquet is of another run: remove it"):
            check_kept(world.store.kept(), wrong, world.store)
    world.store.path(1).rename(world.store.path(2))
    with pytest.raises(ValueError, match=r"block-000002.parquet is damaged .it holds block 1.: remove it"):
        world.store.kept()


def _not_finite(about: Any, rows: list[dict[str, Any]]) -> Any:
    rows[0]["verify_seconds"] = math.nan
    return about


def _no_load(about: Any, rows: list[dict[str, Any]]) -> Any:
    return {**about, "other_cores": math.nan}


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (_not_finite, "a time in it is not finite"),
        (_no_load, "a time in it is not finite"),
        (lambda about, rows: "nothing", "no attribute"),
    ],
)
def test_damaged_blocks_are_one_line(
    spoil: Callable[[Any, list[dict[str, Any]]], Any], says: str, tmp_path: Path
) -> None:
    world = World(tmp_path)
    world.run(plan(1)[:1])
    path = world.store.path(0)
    table = pq.read_table(path)
    rows = table.to_pylist()
    about = spoil(json.loads(table.schema.metadata[b"draftpace block"]), rows)
    schema = table.schema.with_metadata({b"draftpace block": json.dumps(about).encode()})
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), path)
    with pytest.raises(ValueError, match=f"block-000000.parquet is damaged .*{says}"):
        BlockStore(tmp_path).kept()


def test_main_arms_that_ran_freely_are_apart_without_a_rest() -> None:
    rows = cast(
        "list[Observation]", [SimpleNamespace(arm="learned", repeat=repeat) for repeat in (0, 0, 1, 2)]
    )
    assert main_observations(rows, Roles(repeats=2)) == rows[:3]
    assert main_observations(rows, Roles()) == rows


def test_the_overhead_is_never_a_claim() -> None:
    best, asks = fixed(4, 8), fixed(2, 4)
    speeds = [(PLAIN, 10.0), (best, 15.0), (asks, 12.0), (LEARNED, 17.0)]
    rows = [row for arm, speed in speeds for row in by_hand(arm, [1 / speed] * 20)]
    parts = Roles(best=(best.name,), overridden=asks.name)
    report = report_of([arm for arm, _ in speeds], rows, roles=parts)
    assert report.overhead is not None
    assert report.overhead.ratio == pytest.approx(12 / 15)
    assert not report.overhead.claimed


def test_arms_of_other_texts_take_no_part_in_ranks() -> None:
    whole = whole_report()
    best = roles(whole).best_fixed
    assert best is not None
    corner = whole.arms[best].model_copy(update={"tokens_per_second": 1e4, "tau": 50.0})
    report = whole.model_copy(update={"arms": {**whole.arms, "corner": corner}})
    assert roles(report).best_fixed == best
    assert sentences.speed_and_tau(report) == sentences.speed_and_tau(whole)


def tuned(names: list[str], file: Path) -> list[TunedRule]:
    texts: Any = [SimpleNamespace(sessions=lambda: islice(sessions(), 1))]
    return tuned_rules(names, texts, MERGED_OFFERS, {"costs": [(1, 2)]}, file, lambda *_: None)


def test_what_a_killed_run_tuned_is_read_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "rules.json"
    first = tuned(["accepted-ema"], file)

    def never(*_: Any) -> None:
        raise AssertionError("tuned again")

    monkeypatch.setattr(evaluation_rules, "tune", never)
    again = tuned(["accepted-ema"], file)
    assert again == first
    assert [one.tuned for one in again] == [one.tuned for one in first]
    known = json.loads(file.read_text(encoding="utf-8"))
    good = known["rules"]["accepted-ema"]
    wrong: list[dict[str, Any]] = [{"tried": 3}, {"seconds": math.nan}, {"parameters": {"a": 1}}]
    spoilt: list[Any] = [{}, [], *({**good, **one} for one in wrong)]
    for damaged in spoilt:
        known["rules"]["accepted-ema"] = damaged
        file.write_text(json.dumps(known), encoding="utf-8")
        with pytest.raises(ValueError, match=r"tuned rules .*rules.json are damaged .*: remove the file"):
            tuned(["accepted-ema"], file)
    known["rules"] = None
    file.write_text(json.dumps(known), encoding="utf-8")
    with pytest.raises(AssertionError, match="tuned again"):
        tuned(["accepted-ema"], file)


@pytest.mark.parametrize("name", ["learned", "clairvoyant", "best fixed in hindsight", "corner 1x2", "plain"])
def test_a_policy_beside_needs_a_name_of_its_own(name: str) -> None:
    config = load_config(DEFAULT_CONFIG, [])
    with pytest.raises(ValueError, match=f"--beside {name}=..: an arm has that name already"):
        check_names(config, ["learned", name], [name])
    check_names(config, ["learned", "mine"], ["mine"])


def test_arms_that_are_named_and_not_decoded_are_said() -> None:
    arms = "[learned,corners,svip,ucb,policy overridden]"
    given = [f"evaluation.arms={arms}", "evaluation.rules=[ucb]", "evaluation.rest_prompts=0"]
    config = load_config(DEFAULT_CONFIG, given)
    there = [ArmSpec("plain", "plain"), ArmSpec("learned", "learned")]
    assert [one.removeprefix("evaluation.arms names ") for one in left_out(config, there)] == [
        "'corners', which is not decoded: evaluation.rest_prompts is 0",
        "'svip', which is not decoded: evaluation.rules leaves it out",
        "'ucb', which is not decoded: evaluation.rest_prompts is 0",
        "'policy overridden', which is not decoded: there is no --policy of single cycles",
    ]
    every = [ArmSpec(name, "rule") for name in ("learned", "corner 1x2", "svip", "ucb", "policy overridden")]
    assert left_out(config, every) == []


def test_a_run_killed_before_its_plan_keeps_the_seed_of_its_recordings(tmp_path: Path) -> None:
    assert _begun_seed(tmp_path) is None
    folder = tmp_path / "traces" / "test" / "T0"
    folder.mkdir(parents=True)
    (folder / "traces.json").write_text(json.dumps({"header": {"seed": 11}, "shards": 1}), encoding="utf-8")
    assert _begun_seed(tmp_path) == 11


def test_replay_groups_texts_as_the_workload_does() -> None:
    part = SimpleNamespace(texts=1)
    names, rows = ("en-a", "b", "it-c"), np.array([0, 3, 5, 9])
    table = SimpleNamespace(names=names, languages=("en", "", "it"), categories=("x",) * 3, starts=rows)
    recorded: Any = SimpleNamespace(table=table, by_temperature={0.0: (part, None), 1.0: (part, None)})
    recorded.by_temperature[2.0] = (part, None)
    known = [Request("en-a", ("?",), None, "en", "one"), Request("b", ("?",), None, None, "one")]
    texts = texts_of(recorded, known)
    assert texts.groups == ("one", "one", "c")  # what the workload does not know is named by its question
    assert texts.temperature_T.tolist() == [0, 1, 2]
    assert texts.tokens_T.tolist() == [3, 2, 4]


@pytest.mark.parametrize(("name", "flag"), [("learned", "--policy DIR"), ("ltd", "--beside ltd=DIR")])
def test_a_report_whose_policy_was_moved_says_how_to_name_it(
    name: str, flag: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "report.json"
    folders = {name: str(tmp_path / "gone")}
    path.write_text(whole_report(policy_folders=folders).model_dump_json(), encoding="utf-8")
    assert evaluate.main(["--from", str(path), "--out", str(tmp_path / "out")]) == 2
    assert f"is no longer in {tmp_path / 'gone'}: name it with {flag}" in capsys.readouterr().err
