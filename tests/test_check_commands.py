"""`evaluate.py --check-text` and `--check-law`: exit codes, files, and mistakes in one line."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest

import evaluate
from decoding import session, verify
from decoding.verify import Verdict
from evaluation.law_check import Case, Law, check_law


def test_the_command_says_exact_or_exits_with_one(
    folder: Path,
    head: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    prompts = tmp_path / "prompts.jsonl"
    lines = [json.dumps({"question_id": str(n), "turns": [f"question {n}"]}) for n in range(40)]
    prompts.write_text("\n".join(lines), encoding="utf-8")
    values = {
        "seed": 1,
        "threads": 1,
        "model.target": folder,
        "model.drafter": head,
        "workload.files": f"[{prompts}]",
        "draft.max_depth": 4,
        "evaluation.draft_depths": "[1,3]",
        "evaluation.verification_sizes": "[2,8]",
        "evaluation.prompts": 2,
        "evaluation.max_new_tokens": 8,
        "sampling.temperature": "0.7",
    }
    command = ["--check-text", *(f"--set={key}={value}" for key, value in values.items())]
    assert evaluate.main([*command, "--out", str(tmp_path / "run")]) == 0
    written = json.loads((tmp_path / "run" / "text.json").read_text(encoding="utf-8"))
    assert len(written["divergences"]) == 10  # four corners and one at random, of the head and of lookup
    # Believes the first drafted token, whatever the target says.
    monkeypatch.setattr(
        session,
        "accept_coupled",
        lambda selection, choose, ends: Verdict(
            [selection.tokens[-1]], [0], (), finished=ends(selection.tokens[-1])
        ),
    )
    assert evaluate.main(command) == 1
    assert "FAULT" in capsys.readouterr().out
    assert evaluate.main([*command, "--set=model.target=nowhere/at/all"]) == 2


def test_the_law_command_exits_with_one_on_a_fault(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    few = partial(check_law, cases=[Case("rejection", "causal", Law(1.0, top_k=3))])
    monkeypatch.setattr(evaluate, "check_law", few)
    command = ["--check-law", "--samples", "120", "--set=seed=3", "--out", str(tmp_path)]
    assert evaluate.main(command) == 0
    assert json.loads((tmp_path / "law.json").read_text(encoding="utf-8"))["faults"] == 0
    assert "Exact text: all 6 rows follow the target's law" in " ".join(capsys.readouterr().out.split())
    monkeypatch.setattr(verify, "_after_rejection", lambda target_V, draft_V: target_V)
    assert evaluate.main(command) == 1
    assert json.loads((tmp_path / "law.json").read_text(encoding="utf-8"))["faults"] > 0


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--check-law", "--samples", "3"], "samples is 3, must be >= "),
        (["--check-law", "--samples", "-1"], "samples is -1"),
        (["--samples", "9"], "--samples goes with --check-law"),
        ([], "--out is missing"),
        (["--check-text", "--set=model.target=/nowhere"], "/nowhere"),
        (["--check-law", "--policy", "runs/x"], "--policy"),
    ],
)
def test_mistakes_get_one_line(flags: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert evaluate.main(["--set=seed=1", *flags]) == 2
    error = capsys.readouterr().err
    assert says in error
    assert error.count("\n") == 1
