"""The comparison with transformers' generate: its ratios, its turns, and that both sides do the same work."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes import tiny_target
from rich.console import Console
from rich.table import Table

from benchmarks import generate
from benchmarks.generate import OURS, arms_of, main, measure
from decoding.drafters.ngram import NgramDrafter
from decoding.linear import FewRowsLinear
from decoding.models import LoadedModel, load_model

CPU = torch.device("cpu")
PROMPTS = [[5, 9, 31], [7, 8, 9, 10], [3, 4]]


def printed(table: Table) -> str:
    console = Console(width=200)
    with console.capture() as caught:
        console.print(table)
    return caught.get()


def test_the_ratio_is_the_median_of_those_of_the_prompts() -> None:
    """That of the medians, 3 / 2, and that of the sums, 16 / 7, are others."""
    seconds = {OURS: [1.0, 4.0, 2.0], "other": [3.0, 2.0, 11.0]}
    texts = {OURS: [[1], [2], [3]], "other": [[1], [2], [4]]}
    lines = printed(generate.table("made up", seconds, texts, tokens=4)).splitlines()
    row = next(line for line in lines if "other" in line)
    assert [cell.strip() for cell in row.split("│")[2:-1]] == ["750.0", "3.00", "0.50 .. 5.50", "2 of 3"]
    row = next(line for line in lines if OURS in line and "│" in line)
    assert [cell.strip() for cell in row.split("│")[2:-1]] == ["500.0", "", "", "3 of 3"]


def test_every_arm_decodes_every_prompt_twice_and_the_first_round_is_not_counted() -> None:
    calls: list[tuple[str, int]] = []

    def arm(name: str) -> generate.Arm:
        def decode(prompt: list[int], tokens: int) -> list[int]:
            calls.append((name, prompt[0]))
            return [len(calls)] * tokens

        return decode

    seconds, texts = measure({name: arm(name) for name in "abc"}, PROMPTS, 2, CPU)
    turns = [calls[start : start + 3] for start in range(0, 18, 3)]
    assert [prompt for turn in turns for _, prompt in turn] == [p[0] for p in PROMPTS * 2 for _ in "abc"]
    assert all({name for name, _ in turn} == set("abc") for turn in turns)
    assert len({tuple(name for name, _ in turn) for turn in turns}) > 1  # not always in the same order
    assert {name: len(values) for name, values in seconds.items()} == {"a": 3, "b": 3, "c": 3}
    assert sorted(text[0] for many in texts.values() for text in many) == list(range(10, 19))
    with pytest.raises(ValueError, match="a wrote 2 tokens, not 3"):
        measure({"a": lambda prompt, tokens: [1, 1]}, PROMPTS, 3, CPU)


def test_both_sides_write_the_same_tokens_beyond_an_end_token() -> None:
    """Made an end token of what is written second."""
    target = tiny_target(spread=2.0, layers=2)
    theirs = tiny_target(spread=2.0, layers=2).model
    model = LoadedModel("tiny", target, None, frozenset())
    arms = arms_of(model, NgramDrafter(), theirs, static=True)
    assert list(arms) == [OURS, "transformers", "transformers, static cache"]
    second = arms[OURS](PROMPTS[0], 2)[1]
    theirs.generation_config.eos_token_id = second
    model = LoadedModel("tiny", target, None, frozenset({second}))
    for static, count in ((False, 2), (True, 3)):
        _, texts = measure(arms_of(model, NgramDrafter(), theirs, static), PROMPTS, 12, CPU)
        assert len(texts) == count
        assert all(of == texts[OURS] for of in texts.values())


def test_a_static_cache_is_as_long_as_the_request() -> None:
    theirs = tiny_target(layers=1).model
    lengths: list[int] = []
    prepare = theirs._prepare_static_cache

    def watched(*given: Any, **options: Any) -> Any:
        cache = prepare(*given, **options)
        lengths.append(cache.layers[0].max_cache_len)
        return cache

    theirs._prepare_static_cache = watched
    model = LoadedModel("tiny", tiny_target(layers=1), None, frozenset())
    measure(arms_of(model, NgramDrafter(), theirs, static=True), [[1] * 20, [2] * 3], 5, CPU)
    assert lengths == [24, 7] * 2  # the last token is never run


def test_transformers_gets_a_model_of_its_own(folder: Path) -> None:
    model = load_model(str(folder), "cpu", "float64")
    theirs = generate.untouched(str(folder), model)
    assert not [one for one in theirs.modules() if isinstance(one, FewRowsLinear)]
    assert not theirs.training
    assert theirs.dtype == torch.float64
    ours = model.target.model.state_dict()
    assert all(torch.equal(ours[name], value) for name, value in theirs.state_dict().items())


def test_mistakes_are_one_line_before_a_model_is_loaded(capsys: pytest.CaptureFixture[str]) -> None:
    for flags, complaint in (
        (["--prompts", "2"], "--prompts is 2, must be >= 3"),
        (["--new-tokens", "0"], "argument --new-tokens: is 0, must be a whole number >= 1"),
        (["--workload", "nowhere.jsonl"], "workload nowhere.jsonl does not exist"),
        (["--threads", "0"], "threads is 0, must be in"),
    ):
        assert main([*flags, "--target", "/no/such/model"]) == 2
        error = capsys.readouterr().err
        assert error.startswith(f"error: {complaint}")
        assert error.count("\n") == 1


def test_it_runs_on_a_tiny_model_and_writes_every_sample(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    work = tmp_path / "work.jsonl"
    lines = [json.dumps({"question_id": str(place), "turns": [f"say {place}"]}) for place in range(20)]
    work.write_text("\n".join(lines), encoding="utf-8")
    flags = ["--target", str(folder), "--workload", str(work), "--prompts", "3", "--threads", "1"]
    flags += ["--device", "cpu", "--dtype", "float64"]
    assert main([*flags, "--new-tokens", "4", "--static", "--json", str(tmp_path / "all.json")]) == 0
    assert "3 of 3" in capsys.readouterr().out
    written = json.loads((tmp_path / "all.json").read_text(encoding="utf-8"))
    assert len(written["prompts"]) == 3
    assert set(written["seconds"]) == {OURS, "transformers", "transformers, static cache"}
    assert all(len(values) == 3 and min(values) > 0 for values in written["seconds"].values())
    assert main([*flags, "--new-tokens", "510"]) == 2
    assert "--new-tokens 510 after" in capsys.readouterr().err
