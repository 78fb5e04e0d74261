"""The benchmark of logistic scorers: inputs by hand, laws of rescoring, and a whole run on tiny models."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks import head_scorer
from benchmarks.head_scorer import INPUTS, SETS, Recorded, fates, fit_sets, inputs_of, measure, rescored
from decoding.noise import NoiseStream
from decoding.traces import OnPath, Position, record_text
from decoding.tree import DraftTree
from decoding.workload import Request
from tests.fakes import plain_text, tiny_eagle, tiny_target

HALF, THIRD = math.log(0.5), math.log(1 / 3)


def position(path: tuple[int, ...], following: tuple[int, ...], row: list[float], column: int) -> Position:
    """Below the root 5 (.5) and 6 (1/3); below 5 again 7 (1/3) and 8 (.5)."""
    tree = DraftTree(4)
    tree.add_level([5, 6], [0, 0], [HALF, THIRD])
    tree.add_level([7, 8], [1, 1], [HALF + THIRD, HALF + HALF])
    rows = (OnPath(1, torch.tensor(row).log(), column),)
    return Position(0, 9, tree, path, following, 1.5, 0.2, None, rows)


def test_inputs_by_hand() -> None:
    one = position((1, 4), (5, 8), [0.5, 0.5], 0)
    margin = math.log(0.5 / (1 / 3))
    odds = math.log(0.5)  # of a third
    expected = [
        [1, 0, 0.25, 1, 0, 1, margin, math.log(2), 1, 1.5],
        [1, odds, 0.25, 1, 0.25, 0, -margin, math.log(2), 1, 1.5],
        [1, odds, 0.5, 0, 0.25, 0, -margin, math.log(2), 1, 1.5],
        [1, 0, 0.5, 0, 0, 1, margin, math.log(2), 1, 1.5],
    ]
    np.testing.assert_allclose(inputs_of(one, 1.0), expected, atol=1e-6)


def test_a_fate_is_that_of_the_heads_best_token_at_the_root_before() -> None:
    right = position((1,), (5,), [0.7, 0.3], 0)
    wrong, absent = position((), (9,), [0.7, 0.3], 1), position((), (9,), [0.7, 0.3], -1)
    assert fates([right, wrong, right, absent, right]) == [0.5, 1, 0, 1, 0]
    assert fates([]) == []


def test_log_odds_alone_give_the_same_scores_and_a_better_scorer_more_accepted_tokens() -> None:
    weights = np.zeros(len(INPUTS))
    weights[INPUTS.index("log_odds")] = 1
    one = position((2,), (6, 3), [0.5, 0.5], 0)
    again = rescored(one, 0.5, weights)
    np.testing.assert_allclose(again.tree.scores, one.tree.scores, atol=1e-12)
    assert (again.tree.tokens, again.tree.parents) == (one.tree.tokens, one.tree.parents)
    assert one.accepted(1, 1) == again.accepted(1, 1) == 0
    weights[INPUTS.index("rank")] = 8  # whoever stands second
    assert rescored(one, 0.5, weights).accepted(1, 1) == 1


def test_only_children_of_what_the_text_followed_count_and_a_set_ignores_later_inputs() -> None:
    """The text always takes the second child of the root; the second level is never reached."""
    request = Request("1", ("x",), "chat", None, "1")
    seen = [Recorded(request, [position((2,), (6, 3), [0.5, 0.5], 0)] * 50)]
    weights = fit_sets(seen)
    assert list(weights) == list(SETS)
    for name, last in SETS.items():
        assert not weights[name][INPUTS.index(last) + 1 :].any()
    survival = np.exp(rescored(seen[0].positions[0], 0.5, weights["and rank"]).tree.scores)
    assert survival[1] < 0.1 < 0.9 < survival[2]
    lines, data = measure(seen, weights)
    assert [line[0] for line in lines] == ["calibrated", *SETS]
    counts = data["texts"][0]["counts"]
    assert (counts["calibrated: 1x4"], counts["and rank: 1x4"]) == (50, 50)


def test_the_trees_of_a_recording_are_read_as_they_were_drafted() -> None:
    target = tiny_target(spread=1.5, layers=2)
    text = plain_text(target, [5, 9, 31], 12)
    recording = record_text(
        target,
        tiny_eagle(target),
        [5, 9, 31],
        text,
        draft_depth=3,
        temperature=0.0,
        noise=NoiseStream(0, [5, 9, 31]),
        keep_rows=True,
    )
    for one in recording:
        inputs = inputs_of(one, 0.5)
        assert len(inputs) == one.tree.size
        scores = one.tree.scores
        log_c = [scores[node] - scores[one.tree.parents[node]] for node in range(1, one.tree.size + 1)]
        expected = [value - math.log(-math.expm1(value)) for value in log_c]
        np.testing.assert_allclose(inputs[:, 1], np.clip(expected, -12, 12), rtol=1e-6, atol=1e-9)


def test_by_command(folder: Path, head: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"question_id": str(n), "turns": [f"abab {n}"], "category": "chat"} for n in range(6)]
    path = tmp_path / "w.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    flags = ["--target", str(folder), "--workload", str(path), "--out", str(tmp_path / "out")]
    more = "--split all --per-category 2 --fit 3 --max-new-tokens 7 --threads 1 --temperatures 0 1"
    flags += more.split()
    for wrong, says in (
        ("--fit=0", "argument --fit: is 0, must be a whole number >= 1"),
        ("--temperatures=nan", "argument --temperatures: is nan, must be a finite number >= 0"),
        ("--max-new-tokens=0", "argument --max-new-tokens: is 0, must be a whole number >= 1"),
        ("--beam-width=x", "argument --beam-width: is x, must be a whole number >= 1"),
    ):
        assert head_scorer.main([*flags, wrong]) == 2
        said = capsys.readouterr().err
        assert says in said
        assert said.count("\n") == 1
    for name in ("ngram", f"merged:{head}"):
        assert head_scorer.main([*flags, "--drafter", name]) == 2
        assert "has no nodes of its own alone to score" in capsys.readouterr().err
    assert head_scorer.main([*flags, "--drafter", str(head)]) == 0
    assert "error" not in capsys.readouterr().err
    result = json.loads((tmp_path / "out" / "head_scorer.json").read_text(encoding="utf-8"))
    assert set(result["1.0"]["weights"]) == set(SETS)
    assert len(result["0.0"]["texts"]) == 2
    text = (tmp_path / "out" / "head_scorer.md").read_text(encoding="utf-8")
    assert "fitted on 3 other prompts" in text
    assert text.count("| and last fate |") == 2
