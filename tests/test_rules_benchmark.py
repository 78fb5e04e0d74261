"""The benchmark that tunes the rules and replays them beside plain decoding, a constant and expected gain."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from benchmarks import rules
from decoding.controller import PlainController
from decoding.recording import Prompt, Recorded
from decoding.trace_file import TraceHeader
from decoding.trace_folder import write_traces
from policies.baselines.tuning import BUDGET
from tests.test_replay_session import profile, replayed
from tests.traced_worlds import CHOICES, DEPTH, PROMPTS, TOKENS, Case, positions_of, text_of

CASES = {f"q{prompt}": Case("merged-eagle3", 0.0, 1, prompt) for prompt in (1, 2)}


def recorded(folder: Path) -> Path:
    """Two texts of a tiny merged drafter."""
    header = TraceHeader(
        profile().fingerprints,
        "merged",
        DEPTH,
        0.0,
        1,
        "float64",
        {"choices": [choice.name.lower() for choice in CHOICES], "max_new_tokens": TOKENS},
    )

    def record(lot: Sequence[Prompt]) -> Iterator[Recorded]:
        for prompt in lot:
            case = CASES[prompt.question_id]
            yield Recorded(prompt, text_of(case), positions_of(case))

    prompts = [Prompt(name, tuple(PROMPTS[case.prompt])) for name, case in CASES.items()]
    list(write_traces(folder, header, prompts, record))
    return folder


@pytest.fixture(scope="module")
def flags(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    place = tmp_path_factory.mktemp("rules")
    profile().save(place)
    known, other = recorded(place / "validation"), recorded(place / "test")
    return ["--validation", str(known), "--texts", str(other), "--profile", str(place / "profile.json")]


def test_tuned_rules_beside_the_others(
    flags: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert rules.main([*flags, "--rules", "svip", "ucb", "--out", str(tmp_path / "out")]) == 0
    found = json.loads((tmp_path / "out" / "rules.json").read_text())
    validation, test = found["tokens_per_second"].values()
    assert validation == test  # the same texts
    names = list(validation)
    assert names[1].startswith("constant: ")
    assert [names[0], *names[2:]] == ["plain", "expected gain", "svip", "ucb"]
    plain = [one for case in CASES.values() for one in replayed(case).run(PlainController())]
    tokens = sum(len(text_of(case)) for case in CASES.values())
    assert validation["plain"] == pytest.approx(tokens / sum(one.seconds.total for one in plain))
    for name in ("svip", "ucb"):
        tuned = found["tuned"][name]
        assert tuned["tokens"] == tokens
        assert validation[name] == pytest.approx(tokens / tuned["seconds"])
        assert 1 < len(tuned["tried"]) <= BUDGET
    printed = capsys.readouterr().out
    assert "threshold" in printed
    assert "exploration" in printed


def test_mistakes_are_one_line(flags: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert rules.main([*flags, "--rules", "svpi", "--out", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: there is no rule 'svpi', known are hf-heuristic")
    assert said.count("\n") == 1
    assert not list(tmp_path.iterdir())
