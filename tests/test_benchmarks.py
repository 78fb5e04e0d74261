"""The benchmark's arithmetic, and that it runs on any model."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from fakes import save_tiny_head, save_tiny_model, tiny_target

from benchmarks import floor, overhead
from benchmarks.cycle import main
from benchmarks.measure import interleaved, ratio_with_interval
from decoding.decoder import SpeculativeDecoder


def test_a_ratio_of_medians_has_an_interval_around_it() -> None:
    rng = np.random.default_rng(0)
    base = rng.uniform(1, 2, 40)
    ratio, low, high = ratio_with_interval((3 * base).tolist(), base.tolist())
    assert ratio == pytest.approx(3)
    assert low == pytest.approx(3)  # resampled as pairs: what is common to a round cancels
    assert high == pytest.approx(3)
    ratio, low, high = ratio_with_interval(rng.uniform(1, 2, 40).tolist(), base.tolist())
    assert low < ratio < high
    assert low < 1 < high


def test_everything_is_measured_equally_often_after_a_warm_up() -> None:
    calls: list[str] = []

    def thing(name: str) -> float:
        calls.append(name)
        return 0.001

    samples = interleaved({name: partial(thing, name) for name in "abc"}, 5)
    assert {name: len(values) for name, values in samples.items()} == {"a": 5, "b": 5, "c": 5}
    assert samples["a"][0] == pytest.approx(1.0)  # milliseconds
    assert calls[:3] == ["a", "b", "c"]
    assert all(set(calls[start : start + 3]) == set("abc") for start in range(3, 18, 3))


@pytest.mark.slow
def test_the_benchmark_runs_on_a_tiny_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_tiny_model(tmp_path / "model")
    save_tiny_head(tmp_path / "head", tmp_path / "model")
    flags = ["--target", str(tmp_path / "model"), "--drafter", str(tmp_path / "head"), "--threads", "1"]
    assert main([*flags, "--rounds", "3", "--json", str(tmp_path / "samples.json")]) == 0
    assert "a cycle by phase" in capsys.readouterr().out
    samples = json.loads((tmp_path / "samples.json").read_text(encoding="utf-8"))
    assert set(samples) == {"draft_ms", "cycle_seconds_per_token"}
    assert main([*flags, "--rounds", "2"]) == 2
    assert "--rounds is 2" in capsys.readouterr().err


@pytest.mark.slow
def test_floor_and_overhead_run_on_a_tiny_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_tiny_model(tmp_path / "model")
    save_tiny_head(tmp_path / "head", tmp_path / "model")
    flags = ["--target", str(tmp_path / "model"), "--drafter", str(tmp_path / "head"), "--threads", "1"]
    assert floor.main([*flags, "--rounds", "3", "--no-frozen"]) == 0
    said = capsys.readouterr().out
    assert "eager path (its" in said  # and why
    assert said.count("(the floor)") == 4
    assert overhead.main([*flags, "--rounds", "3", "--json", str(tmp_path / "shares.json")]) == 0
    shares = json.loads((tmp_path / "shares.json").read_text(encoding="utf-8"))
    for name, parts in shares.items():
        if name != "features_ms":
            for number in range(3):
                assert sum(parts[part][number] for part in overhead.PARTS) == pytest.approx(1)


def test_products_that_meet_the_same_rows_count_as_one() -> None:
    """q, k, v and gate, up; every weight once."""
    from transformers import LlamaForCausalLM

    target = tiny_target(dtype=torch.float32, layers=2)
    assert isinstance(target.model, LlamaForCausalLM)
    shapes = [tuple(weight.shape) for weight in floor.fused_weights(target.model)]
    assert sorted(shapes) == sorted([(40, 32), *[(64, 32), (32, 32), (96, 32), (32, 48)] * 2])


def test_where_nothing_can_be_written_is_known_before_anything_is_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    for path, says in ((tmp_path, "is a folder"), (tmp_path / "file" / "x.json", "is a file")):
        assert main(["--target", str(tmp_path / "none"), "--json", str(path)]) == 2
        said = capsys.readouterr().err.strip()
        assert said.startswith(f"error: --json {path}")
        assert says in said


def test_an_interrupt_and_a_full_disk_are_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def ends(error: BaseException) -> None:
        def load(*_: object, **__: object) -> None:
            raise error

        monkeypatch.setattr(SpeculativeDecoder, "from_pretrained", load)

    ends(KeyboardInterrupt())
    assert main([]) == 130
    assert "nothing was written" in capsys.readouterr().err
    ends(OSError(28, "No space left on device", "x.json"))
    assert main([]) == 2
    assert capsys.readouterr().err == "error: No space left on device: x.json\n"
