"""The benchmark of replayed decisions runs, on made-up and on recorded texts; no timing is asserted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import replay_walk
from decoding.decision_table import Nodes
from decoding.decision_walk import DecisionWalk, Outcome
from decoding.recording import Prompt, Recorded
from decoding.trace_file import TraceHeader
from decoding.trace_folder import write_traces
from tests.test_decision_walk import tokens_of
from tests.traced_worlds import DEPTH, PROMPTS, Case, positions_of, text_of

HEADER = TraceHeader(
    {"target": "t", "drafter": "d", "tokenizer": "k"},
    "merged-eagle3",
    DEPTH,
    1.0,
    1,
    "float64",
    {"choices": ["all", "lookup", "head"], "max_new_tokens": 22},
)


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay_walk, "BATCHES", 30)
    table = replay_walk.made_up_table(np.random.default_rng(0), 5, 9)
    monkeypatch.setattr(replay_walk, "made_up_table", lambda rng: table)


def record(folder: Path, header: TraceHeader = HEADER) -> Path:
    case = Case("merged-eagle3", 1.0, 1, 1)
    recorded = Recorded(Prompt("q", tuple(PROMPTS[1])), text_of(case), positions_of(case))
    assert tokens_of(case) == 22
    for _ in write_traces(folder, header, [recorded.prompt], lambda lot: [recorded]):
        pass
    return folder


def test_made_up_texts_are_walked_at_random(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """All lanes in every step, texts begun anew, every kind of answer."""
    taken: list[np.ndarray] = []
    finished = 0
    step = DecisionWalk.step

    def watched(walk: DecisionWalk, action_B: np.ndarray) -> Outcome:
        nonlocal finished
        taken.append(action_B.copy())
        outcome = step(walk, action_B)
        finished += int(outcome.finished_B.sum())
        return outcome

    monkeypatch.setattr(DecisionWalk, "step", watched)
    assert replay_walk.main(["--rounds", "4", "--lanes", "7"]) == 0
    assert len(taken) == 5 * 30  # a round before that is not measured
    assert {len(one) for one in taken} == {7}
    table: Any = replay_walk.made_up_table(None)  # type: ignore[arg-type]
    assert set(np.concatenate(taken).tolist()) == set(range(len(table.decisions)))
    assert finished > 7
    printed = " ".join(capsys.readouterr().out.split())
    assert f"5 texts, 45 positions, {len(Nodes.of(table.decisions))} questions, 7 lanes" in printed
    assert "decisions a second" in printed
    assert "a batch of them, us" in printed
    per_second = replay_walk.run(table, 3, 5)
    assert len(per_second) == 5
    assert min(per_second) > 0


def test_a_recording_is_walked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = record(tmp_path / "T1")
    assert replay_walk.main([str(folder), "--rounds", "3", "--lanes", "4"]) == 0
    # The root, the levels of two drafts, the lookup.
    count = len(text_of(Case("merged-eagle3", 1.0, 1, 1)))
    assert f"1 texts, {count} positions, {2 + 2 * DEPTH} questions, 4 lanes" in capsys.readouterr().out


def test_mistakes_are_told_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    silent = record(tmp_path / "silent", replace(HEADER, note={}))
    for flags, message in (
        (["--rounds", "2"], "error: --rounds is 2, must be >= 3\n"),
        (["--lanes", "0"], "error: --lanes is 0, must be >= 1\n"),
        (
            [str(tmp_path)],
            f"error: {tmp_path} holds no recording (traces.json is not there): train.py traces ",
        ),
        ([str(silent)], "error: the trace's note does not say how it was recorded ('choices')\n"),
    ):
        assert replay_walk.main(flags) == 2
        said = capsys.readouterr().err
        assert said.startswith(message)
        assert said.count("\n") == 1
