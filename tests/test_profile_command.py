"""`train.py profile`, end to end on a tiny model: the file, the table, interrupts, and bad input."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import commands.profile
import train
from decoding.profile import PROFILE_FILE, CostProfile


def flags(folder: Path, head: Path, out: Path, **changed: object) -> list[str]:
    values: dict[str, object] = {
        "seed": 1,
        "threads": 1,
        "model.target": folder,
        "model.drafter": head,
        "model.dtype": "float32",
        "draft.max_depth": 3,
        "policy.partner_depth": 2,
        "evaluation.draft_depths": "[1,2]",
        "profile.contexts": "[40,120]",
        "profile.max_size": 9,
        "profile.rounds": 3,
    }
    values |= {key.replace("__", "."): value for key, value in changed.items()}
    return ["profile", *(f"--set={key}={value}" for key, value in values.items()), "--out", str(out)]


def test_a_profile_is_written_printed_and_checked(
    folder: Path, head: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    assert train.main(flags(folder, head, out)) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "Predicted against measured, all held-out cycles" in printed
    assert "verify 10 rows" in printed
    assert "head, level 3" in printed
    assert [path.name for path in out.iterdir()] == [PROFILE_FILE]
    profile = CostProfile.load(out / PROFILE_FILE)
    assert profile.contexts == (40, 120)
    assert profile.rows == tuple(range(1, 11))
    assert profile.conditions.threads == 1
    assert (profile.conditions.dtype, profile.conditions.path) == ("float32", "eager")
    error = profile.note["held_out"]
    assert error["cycles"] > 20
    assert 0 <= error["low"] <= error["median"] <= error["high"] < 10
    assert profile.note["seed"] == 1


def test_an_interrupt_is_one_line_and_leaves_the_older_file(
    folder: Path,
    head: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    (tmp_path / PROFILE_FILE).write_text("older", encoding="utf-8")
    monkeypatch.setattr(commands.profile, "measure_cycles", interrupted)
    assert train.main(flags(folder, head, tmp_path)) == 130
    assert capsys.readouterr().err.strip() == "interrupted; nothing was written: profile begins again"
    assert [path.name for path in tmp_path.iterdir()] == [PROFILE_FILE]
    assert (tmp_path / PROFILE_FILE).read_text(encoding="utf-8") == "older"


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("profile.contexts", "[120,40]", "profile.contexts = [120, 40] must be strictly increasing"),
        ("profile.contexts", "[8]", "must be greater than or equal to 16"),
        ("profile.contexts", "[40,500]", "contexts reach 500 tokens, must be <= 377: the model holds 512"),
        ("profile.rounds", "2", "profile.rounds = 2 must be greater than or equal to 3"),
        ("profile.max_size", "0", "profile.max_size = 0 must be greater than or equal to 1"),
        ("profile.max_sise", "1", "did you mean profile.max_size?"),
        ("model.drafter", "none", "unknown drafter 'none'"),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_written(
    key: str,
    value: str,
    says: str,
    folder: Path,
    head: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "run"
    assert train.main([*flags(folder, head, out), f"--set={key}={value}"]) == 2
    captured = capsys.readouterr().err
    assert says in captured
    assert captured.count("\n") == 1
    assert not out.exists()


def test_the_file_is_plain_json(folder: Path, head: Path, tmp_path: Path) -> None:
    assert train.main(flags(folder, head, tmp_path, profile__contexts="[40]")) == 0
    raw = json.loads((tmp_path / PROFILE_FILE).read_text(encoding="utf-8"))
    assert raw["schema_version"] == 1
    assert set(raw["fingerprints"]) == {"target", "drafter", "tokenizer"}
