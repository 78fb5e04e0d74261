"""The two commands, end to end on a tiny model: train, export, evaluate, decode, again; and bad input."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from fakes import save_tiny_head, save_tiny_model

import train
from decoding.__main__ import main as decode_main
from evaluate import main as evaluate_main
from evaluation.schema import Report


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `model`, `head` and `prompts.jsonl`."""
    root = tmp_path_factory.mktemp("commands")
    save_tiny_model(root / "model")
    save_tiny_head(root / "head", root / "model")
    lines = [json.dumps({"question_id": str(n), "turns": [f"question {n}"]}) for n in range(60)]
    (root / "prompts.jsonl").write_text("\n".join(lines), encoding="utf-8")
    return root


def flags(place: Path, out: Path) -> list[str]:
    values = {
        "seed": 1,
        "threads": 1,
        "model.target": place / "model",
        "model.drafter": place / "head",
        "workload.files": f"[{place / 'prompts.jsonl'}]",
        "workload.validation_prompts": 2,
        "sampling.max_new_tokens": 8,
        "draft.max_depth": 4,
        "policy.preset": "ltd",
        "policy.depth.timesteps": 64,
        "policy.depth.rollout_steps": 32,
        "policy.depth.minibatch_size": 16,
        "policy.depth.policy_net": "[8]",
        "policy.size.timesteps": 32,
        "policy.size.rollout_steps": 16,
        "policy.size.minibatch_size": 8,
        "policy.size.policy_net": "[8]",
        "evaluation.draft_depths": "[1,2]",
        "evaluation.verification_sizes": "[2,4]",
        "evaluation.prompts": 3,
        "evaluation.max_new_tokens": 8,
        "evaluation.rest_prompts": 2,
        "evaluation.rules": "[]",
        "evaluation.other_cores": 100,
        "traces.max_new_tokens": 8,
        "traces.draft_depth": 4,
        "policy.cycle.verification_sizes": "[1,2,4]",
        "profile.contexts": "[40,120]",
        "profile.max_size": 8,
        "profile.rounds": 3,
    }
    return [*(f"--set={key}={value}" for key, value in values.items()), "--out", str(out)]


@pytest.mark.slow
def test_the_whole_road(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    assert train.main(["export", *flags(place, out)]) == 2  # nothing trained yet
    assert f"{out} holds no training (training.json is not there): train.py policy" in capsys.readouterr().err
    assert train.main(["policy", *flags(place, out)]) == 0
    assert train.main(["export", *flags(place, out)]) == 0
    assert evaluate_main([*flags(place, out), "--policy", str(out / "policy")]) == 0
    assert "tokens per second" in capsys.readouterr().out
    report = Report.model_validate_json((out / "report.json").read_text(encoding="utf-8"))
    main = {"plain", "usual", "best fixed", "second fixed", "best fixed again", "expected gain", "learned"}
    assert main < set(report.arms)
    assert all(name.startswith("corner all ") for name in set(report.arms) - main)
    assert all(arm.text_equal for arm in report.arms.values())
    command = [
        "hi",
        "--target",
        str(place / "model"),
        "--drafter",
        str(place / "head"),
        "--max-new-tokens",
        "8",
    ]
    assert decode_main([*command, "--policy", str(out / "policy")]) == 0
    # A second run reuses the finished training: the weights stay the same bytes.
    weights = (out / "policy" / "policy.safetensors").read_bytes()
    assert train.main(["policy", *flags(place, out)]) == 0
    assert train.main(["export", *flags(place, out)]) == 0
    assert (out / "policy" / "policy.safetensors").read_bytes() == weights
    # A refused command leaves the finished run as it was.
    record = (out / "training.json").read_bytes()
    assert train.main(["policy", *flags(place, out), "--set=seed=2"]) == 2
    assert (out / "training.json").read_bytes() == record
    assert train.main(["export", *flags(place, out)]) == 0
    # Another head is another drafter: its checkpoints and its policy are refused.
    save_tiny_head(place / "head2", place / "model", seed=9)
    capsys.readouterr()
    other = [*flags(place, out), f"--set=model.drafter={place / 'head2'}"]
    assert train.main(["policy", *other]) == 2
    assert evaluate_main([*other, "--policy", str(out / "policy")]) == 2
    assert "trained for drafter" in capsys.readouterr().err


@pytest.mark.slow
def test_a_head_trains_and_resumes_by_command(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = np.random.default_rng(0)
    texts = [rng.integers(3, 250, 24) for _ in range(60)]
    offsets = np.cumsum([0, *map(len, texts)])
    np.savez(place / "corpus.npz", tokens=np.concatenate(texts).astype(np.uint16), offsets=offsets)
    command = ["drafter", *flags(place, tmp_path), f"--set=drafter.corpus={place / 'corpus.npz'}"]
    command += ["--set=drafter.draft_vocabulary=50", "--set=drafter.minutes=0.05"]
    assert train.main(command) == 0
    card = json.loads((tmp_path / "head" / "config.json").read_text(encoding="utf-8"))["card"]
    assert card["steps"] > 0
    assert train.main(command) == 0  # finished: nothing is trained again
    again = json.loads((tmp_path / "head" / "config.json").read_text(encoding="utf-8"))["card"]
    assert again["steps"] == card["steps"]
    save_tiny_model(place / "model2", seed=5)
    for other in (f"model.target={place / 'model2'}", "drafter.draft_vocabulary=40", "drafter.max_length=20"):
        assert train.main([*command, f"--set={other}"]) == 2
    assert "was trained with other max_length" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("extra", "says"),
    [
        (["--config", "none.yaml"], "none.yaml"),
        (["--set=draft.max_dpeth=3"], "did you mean draft.max_depth?"),
        (["--set=model.target=./none"], "does not exist"),
        (["--set=model.drafter=none"], "unknown drafter 'none'"),
        (["--set=workload.files=[none.jsonl]"], "does not exist"),
        (["--set=workload.categories=[poetry]"], "poetry"),
        (["--set=policy.depth.minibatch_size=7"], "minibatch_size = 7"),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_written(
    extra: list[str], says: str, place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    for command in (lambda a: train.main(["policy", *a]), evaluate_main):
        assert command([*flags(place, out), *extra]) == 2
        captured = capsys.readouterr().err
        assert says in captured
        assert captured.count("\n") == 1
        assert not out.exists()


def test_a_bad_workload_line_is_named_with_its_number(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"question_id": "1", "turns": ["x"]}\n{"question_id": "2"}\n', encoding="utf-8")
    assert evaluate_main([*flags(place, tmp_path / "run"), f"--set=workload.files=[{bad}]"]) == 2
    assert f"{bad}, line 2" in capsys.readouterr().err


def test_an_out_that_is_a_file_and_a_draft_vocabulary_too_large_are_refused(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    assert train.main(["policy", *flags(place, tmp_path / "file")]) == 2
    assert "is a file" in capsys.readouterr().err
    assert train.main(["drafter", *flags(place, tmp_path / "run")]) == 2
    assert "draft vocabulary of 6144 is outside" in capsys.readouterr().err


def test_a_prompt_over_the_context_is_found_before_anything_is_measured(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    long = tmp_path / "long.jsonl"
    lines = [json.dumps({"question_id": str(n), "turns": [f"{n} " + "x" * 600]}) for n in range(60)]
    long.write_text("\n".join(lines), encoding="utf-8")
    for command in (lambda a: train.main(["policy", *a]), evaluate_main):
        assert command([*flags(place, tmp_path / "run"), f"--set=workload.files=[{long}]"]) == 2
        assert "the context holds 512" in capsys.readouterr().err


def test_a_damaged_training_record_is_named(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for record in (
        '{"info": {}}',
        '{"seed": 1, "run": {}, "info": "x"}',
        '{"seed": 1, "run": {}, "info": {}}',
    ):
        (tmp_path / "training.json").write_text(record, encoding="utf-8")
        assert train.main(["export", *flags(place, tmp_path)]) == 2
        assert "damaged" in capsys.readouterr().err
