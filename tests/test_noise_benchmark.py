"""The noise's benchmark runs, prints and writes what it says; no timing is asserted."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.noise import main, median_with_interval
from decoding import native
from decoding.noise import NoiseStream

TINY = ["--vocabulary", "60", "--draft-vocabulary", "9", "--rounds", "3", "--threads", "1", "--device", "cpu"]
SETTINGS = {"whole vocabulary", "support of 50", "draft vocabulary"} | {
    f"{setting}{top_k}"
    for setting in ("plain", "depth 2", "depth 4", "depth 6")
    for top_k in ("", ", top-k 50")
}


def test_it_prints_its_tables_and_writes_every_sample(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*TINY, "--json", str(tmp_path / "samples.json")]) == 0
    printed = capsys.readouterr()
    assert "one position, us" in printed.out
    assert "a cycle, us" in printed.out
    assert "native_uniforms" in printed.out
    assert "choosing a token, us" in printed.out
    assert not printed.err
    written = json.loads((tmp_path / "samples.json").read_text(encoding="utf-8"))
    assert written["settings"]["vocabulary"] == 60
    assert written["settings"]["threads"] == 1
    for generator in ("noise_us", "stateful_us"):
        assert set(written[generator]) == SETTINGS
        assert all(len(values) == 3 and min(values) > 0 for values in written[generator].values())


def test_each_setting_draws_the_rows_it_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes drawn for each setting, 60 in the vocabulary, 9 in the draft's; never one position twice."""
    drawn: dict[NoiseStream, list[tuple[int, int]]] = {}

    def gumbel(self: NoiseStream, indices: list[int], ids_N: torch.Tensor) -> torch.Tensor:
        assert len(ids_N.unique()) == len(ids_N)
        drawn.setdefault(self, []).extend((index, len(ids_N)) for index in indices)
        return ids_N

    monkeypatch.setattr(NoiseStream, "gumbel", gumbel)
    assert main(TINY) == 0
    settings = []
    for draws in drawn.values():
        assert [index for index, _ in draws] == list(range(len(draws)))
        repeats = 1 + 3  # the warm-up and the rounds
        settings.append({size: n / repeats for size, n in Counter(size for _, size in draws).items()})
    parts = [{60: 1}, {50: 1}, {9: 1}]
    cycles = [{60: 1}, {50: 1}, {60: 2, 9: 2}, {50: 2, 9: 2}, {60: 3, 9: 4}, {50: 3, 9: 4}]
    cycles += [{60: 3, 9: 6}, {50: 3, 9: 6}]
    chosen_from_all = [{60: 1}, {60: 1}]
    assert settings == parts + cycles + chosen_from_all


def test_without_native_code_it_says_why_and_measures_the_rest(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing() -> None:
        raise native.NoNativeCode("no C compiler")

    monkeypatch.setattr(native, "library", missing)
    monkeypatch.setattr(native, "loaded", lambda: None)
    assert main(TINY) == 0
    printed = capsys.readouterr()
    assert printed.err == "no C compiler\n"
    assert "cpu_uniforms" in printed.out
    assert "choosing a token" not in printed.out


def test_a_median_has_an_interval_around_it() -> None:
    median, low, high = median_with_interval(np.random.default_rng(0).uniform(1, 2, 50).tolist())
    assert 1 < low < median < high < 2


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--rounds", "2"], "--rounds is 2, must be >= 3"),
        (["--rounds", "many"], "argument --rounds: invalid int value: 'many'"),
        (["--vocabulary", "0"], "--vocabulary is 0, must be in 1.."),
        (["--draft-vocabulary", "61"], "--draft-vocabulary is 61, must be in 1..60"),
        (["--draft-vocabulary", "0"], "--draft-vocabulary is 0, must be in 1..60"),
        (["--threads", "0"], "threads is 0, must be in 1.."),
        (["--device", "gpu"], "unknown device 'gpu'"),
        (["--speed", "9"], "unrecognized arguments: --speed 9"),
        (["--json", "/dev/null/samples.json"], "/dev/null"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_wrong_flag_is_one_line_and_exit_2(
    flags: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*TINY, *flags]) == 2
    errors = capsys.readouterr().err
    assert errors.count("\n") == 1
    assert message in errors
