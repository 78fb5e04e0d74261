"""What a report may hold, what the table shows of it, and whether the verdict is honest."""

import json
import math
from pathlib import Path

import pytest
import torch
from jsonschema import Draft202012Validator
from made_up import made_up, printed
from made_up_whole import whole_report
from pydantic import ValidationError

from evaluation.report import write_report
from evaluation.schema import Report, json_schema
from evaluation.schema_parts import ComparisonResult, SameArm
from evaluation.verdict import verdict


def test_a_report_refuses_unknown_keys_and_numbers_that_are_not_finite() -> None:
    good = made_up(3, plain=10, learned=12).model_dump(mode="json")
    assert Report.model_validate(good).model_dump(mode="json") == good
    for spoil in (
        lambda row: row.update(extra=1),
        lambda row: row["machine"].update(extra=1),
        lambda row: row["arms"]["plain"].update(tokens_per_second=math.nan),
        lambda row: row["config"].update(deep=[{"rate": math.inf}]),
        lambda row: row.update(aa={}),
        lambda row: row.pop("verdict"),
    ):
        bad = json.loads(json.dumps(good))
        spoil(bad)
        with pytest.raises(ValidationError):
            Report.model_validate(bad)


def test_the_schema_is_closed_and_names_what_is_promised() -> None:
    schema = json_schema()
    promised = (
        "machine versions models dtype sampling workload arms grid comparisons bound verdict config policy "
        "seeds aa by_category by_language reliability collapse"
    )
    assert set(promised.split()) <= set(schema["properties"])
    parts = {name: part for name, part in schema["$defs"].items() if part.get("type") == "object"}
    assert all(part["additionalProperties"] is False for part in [schema, *parts.values()])
    arm = {
        "tokens_per_second",
        "speedup_vs_plain",
        "tau",
        "policy_overhead_fraction",
        "requests",
        "text_equal",
    }
    assert arm <= set(parts["ArmResult"]["properties"])
    report = made_up(3, plain=10)
    assert (report.bound, report.aa, report.reliability, report.collapse) == (None,) * 4


def test_the_published_schema_is_this_one() -> None:
    published = Path(__file__).parent.parent / "docs" / "report.schema.json"
    assert json.loads(published.read_text(encoding="utf-8")) == json_schema(), (
        "docs/report.schema.json is old: .venv/bin/python -m evaluation.schema > docs/report.schema.json"
    )


@pytest.mark.parametrize("report", [whole_report(), made_up(8, plain=10, fixed=15, learned=17)])
def test_a_written_report_fits_the_published_schema(report: Report, tmp_path: Path) -> None:
    write_report(tmp_path, report, [])
    written = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    check = Draft202012Validator(json_schema())
    check.validate(written)
    assert list(check.iter_errors(written | {"extra": 1}))
    assert list(check.iter_errors({**written, "confidence": 2}))


def test_the_machine_and_its_load_are_recorded() -> None:
    report = made_up(3, plain=10)
    assert report.machine.threads == torch.get_num_threads()
    assert (report.machine.load_mean, report.machine.load_max) == (101.0, 102.0)
    assert report.versions["torch"] == torch.__version__
    assert report.machine.cpu


# --- the table --------------------------------------------------------------------------------------------


def test_the_table_says_the_same_numbers_as_the_report() -> None:
    report = made_up(8, plain=10, fixed=15, weaker=14, learned=17)
    text = printed(report)
    cells = [[cell.strip() for cell in line.split("│")[1:-1]] for line in text.splitlines()]
    rows = {row[0]: row[1:] for row in cells if row}
    for name, arm in report.arms.items():
        assert rows[name] == [
            f"{arm.tokens_per_second:.1f}",
            f"{arm.speedup_vs_plain:.2f}",
            f"{arm.tau:.2f}",
            f"{arm.policy_overhead_fraction * 100:.2f}",
            "yes",
        ]
    grid = {(point.draft_depth, point.verification_size): point.tokens_per_second for point in report.grid}
    assert rows["4"] == ["-", f"{grid[4, 8]:.1f}"]
    assert rows["2"] == [f"{grid[2, 4]:.1f}", "-"]
    assert report.arms["learned"].policy_overhead_fraction == pytest.approx(0.1)
    assert report.verdict in " ".join(text.split())
    assert "every arm wrote the same tokens" in text
    assert "busy with other work (load average up to 107.0" in text


# --- the verdict ------------------------------------------------------------------------------------------


def test_a_win_names_the_best_fixed_setting_and_plain() -> None:
    said = made_up(8, plain=10, fixed=15, weaker=14, learned=18).verdict
    assert said.startswith("The learned policy won: it decoded ")
    assert "(eagle, draft depth 4, size 8; chosen in hindsight on these prompts, which favours it)" in said
    assert "than plain decoding" in said
    assert said.count("which excludes 0") == 2
    assert ", and " in said
    assert said.endswith("; 8 independent questions are few.")
    assert ". " not in said  # one sentence


def test_a_loss_is_called_a_loss() -> None:
    report = made_up(30, plain=10, fixed=18, learned=15)
    assert report.verdict.startswith("The learned policy lost: it decoded ")
    assert " fewer tokens per second than the best fixed setting" in report.verdict
    assert " more tokens per second than plain decoding" in report.verdict
    assert "are few" not in report.verdict
    ratio = report.comparisons[0].ratio
    assert f"{(1 - ratio) * 100:.1f} % fewer" in report.verdict


def test_plain_decoding_is_the_one_to_beat_where_it_is_fastest() -> None:
    said = made_up(8, plain=20, fixed=10, learned=15).verdict
    assert said.startswith("The learned policy lost: ")
    assert ", but " in said
    assert said.index("than plain decoding") < said.index("than the best fixed setting")


def test_what_chance_may_explain_is_undecided() -> None:
    said = made_up(8, plain=10, fixed=15, learned=15.001).verdict
    assert said.startswith("Undecided: the learned policy decoded ")
    assert "which includes 0" in said


def test_too_few_prompts_say_nothing() -> None:
    report = made_up(3, plain=10, fixed=15, learned=30)
    assert report.verdict.startswith(
        "Nothing can be said: on 3 independent questions, too few for an interval"
    )
    assert "(no interval)" in report.verdict
    assert not any(row.claimed for row in report.comparisons)


def test_without_a_policy_the_best_fixed_setting_meets_plain() -> None:
    assert made_up(8, plain=10, fixed=15).verdict.startswith(
        "The best fixed setting (eagle, draft depth 4, size 8"
    )
    assert made_up(8, plain=10).verdict == "Only plain decoding was measured, so there is nothing to compare."


def test_a_policy_that_never_drafts_is_called_plain_decoding() -> None:
    row = ComparisonResult(
        a="learned", b="plain", ratio=1.0, low=0.9, high=1.1, claimed=False, ratio_of_sums=1.0, groups=30,
        p_value=0.9,
    )  # fmt: skip
    arms = {"plain": "plain", "learned": "learned", "best_fixed": None}
    for never, says in ((True, True), (False, False)):
        said = verdict({"plain": 10, "learned": 10}, [row], **arms, never_drafted=never)  # type: ignore[arg-type]
        assert ("plain decoding under another name" in said) == says


def test_what_only_holds_without_holm_is_not_claimed() -> None:
    row = ComparisonResult(
        a="learned", b="plain", ratio=1.03, low=1.01, high=1.05, claimed=False, ratio_of_sums=1.03, groups=30,
        p_value=0.03,
    )  # fmt: skip
    said = verdict(
        {"plain": 10, "learned": 10.3}, [row, row], plain="plain", learned="learned", best_fixed=None
    )
    assert said == (
        "Undecided: the learned policy decoded 3.0 % more tokens per second than plain decoding (95 % "
        "interval +1.0 % to +5.0 %, which excludes 0, but not after Holm's correction for 2 comparisons)."
    )


@pytest.mark.parametrize(
    ("usable", "half_width", "says"),
    [
        (False, 0.001, "but this run shows nothing"),
        (True, 0.04, "but one arm measured twice differs from itself by as much"),
        (True, 0.001, "but not after Holm's correction for 1 comparisons"),
    ],
)
def test_why_a_difference_is_no_claim(usable: bool, half_width: float, says: str) -> None:
    row = ComparisonResult(
        a="learned", b="plain", ratio=1.03, low=1.01, high=1.05, claimed=False, ratio_of_sums=1.03, groups=30,
        p_value=0.03,
    )  # fmt: skip
    same = SameArm(a="x", b="y", ratio=1.02, low=1.01, high=1.03, half_width=half_width, usable=usable)
    said = verdict(
        {"plain": 10, "learned": 10.3}, [row], plain="plain", learned="learned", best_fixed=None, same=same
    )
    assert says in said
    assert said.startswith("Unusable: one arm measured twice differs from itself by +2.0 %") != usable
