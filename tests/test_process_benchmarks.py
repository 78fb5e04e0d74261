"""The benchmarks of a fresh process: start-up and memory. Arithmetic, mistakes, and that they run."""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from fakes import tiny_target
from rich.console import Console
from rich.table import Table

from benchmarks import memory, startup
from decoding.target import TargetModel
from tests.fast_world import causal_lm

NEEDS_PROC = pytest.mark.skipif(not memory.STATUS.is_file(), reason="reads /proc, which is Linux's")


def cells(table: Table, row: str) -> list[list[str]]:
    console = Console(width=200)
    with console.capture() as caught:
        console.print(table)
    lines = [line for line in caught.get().splitlines() if line.startswith(f"│ {row} ")]
    return [[cell.strip() for cell in line.split("│")[2:-1]] for line in lines]


# --- start-up ---------------------------------------------------------------------------------------------


def test_the_first_byte_is_waited_for_and_the_end_apart() -> None:
    slow = "import time; print('x', end='', flush=True); time.sleep(0.4); print('y')"
    first, whole = startup.seconds_to_text([sys.executable, "-c", slow])
    assert 0 < first < whole - 0.35


def test_a_process_that_fails_is_a_mistake_of_one_line() -> None:
    fails = "import sys; print('error: no such thing', file=sys.stderr); sys.exit(2)"
    with pytest.raises(ValueError, match="ended with 2: no such thing"):
        startup.seconds_to_text([sys.executable, "-c", fails])
    with pytest.raises(ValueError, match="ended with 1: never"):
        startup.run_python("raise ValueError('never')")


def test_what_a_process_says_last_is_read() -> None:
    said = startup.run_python("import json, sys; print('other'); print(json.dumps(sys.argv[1:]))", "a", "b")
    assert said == ["a", "b"]


def test_the_table_has_median_and_longest() -> None:
    assert cells(startup.table("made up", {"one": [3.0, 1.0, 2.5]}), "one") == [["2.50", "3.00"]]


@pytest.mark.parametrize(
    ("main", "flags", "complaint"),
    [
        (startup.main, ["--rounds", "0"], "argument --rounds: is 0, must be a whole number >= 1"),
        (startup.main, ["--round", "2"], "unrecognized arguments: --round 2"),
        (memory.main, ["--context", "no"], "argument --context: is no, must be a whole number >= 1"),
        (memory.main, ["--new-tokens", "0"], "argument --new-tokens: is 0, must be a whole number >= 1"),
    ],
)
def test_mistakes_are_one_line(
    main: Callable[[list[str]], int], flags: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(flags) == 2
    assert capsys.readouterr().err == f"error: {complaint}\n"


@pytest.mark.slow
def test_start_up_is_measured_on_a_tiny_model(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "samples.json"
    assert startup.main(["--target", str(folder), "--rounds", "1", "--json", str(path)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "first text" in said
    assert "first cycle" in said
    written = json.loads(path.read_text(encoding="utf-8"))
    assert 0 < written["seconds"]["first text"][0] < written["seconds"]["whole command"][0]
    (stages,) = written["stages"]
    assert min(stages["seconds"].values()) > 0
    assert not set(stages["imported"]["after the first words"]) & set(startup.UNWANTED)


# --- memory -----------------------------------------------------------------------------------------------


def test_the_rest_is_what_weights_and_caches_leave() -> None:
    """And caches are none while a model is loaded; the limit is asked of what late imports leave."""
    made_up = {"imports": 9, "late_imports": 50e6, "weights": 500e6, "caches": 40e6}
    results = {"an arm": {name: int(value) for name, value in made_up.items()}}
    results["an arm"] |= {"loading": 751_000_000, "decoding": 790_000_000}
    assert cells(memory.table("made up", results), "an arm") == [
        ["loading", "751", "500", "0", "251", "50", "NO"],
        ["decoding", "790", "500", "40", "250", "50", "yes"],
    ]


def test_weights_are_counted_once_and_caches_with_their_room() -> None:
    gc.collect()  # what other tests left must not vanish in between
    weights, caches = memory.weight_bytes(), memory.cache_bytes()
    target = tiny_target(dtype=torch.float32, layers=2)
    target.model.lm_head.weight = target.model.get_input_embeddings().weight  # tied
    own = {id(one): one.nbytes for one in (*target.model.parameters(), *target.model.buffers())}
    assert memory.weight_bytes() - weights == sum(own.values())
    cache = target.new_cache()
    target.forward([1, 2, 3], cache)
    room = 2 * 2 * 256 * 2 * 8 * 4  # layers, keys and values, positions, heads, head size, bytes
    assert memory.cache_bytes() - caches == room


def test_packed_weights_and_slots_count_too() -> None:
    gc.collect()  # what other tests left must not vanish in between
    target = TargetModel(causal_lm("tied", seed=5))
    weights, caches = memory.weight_bytes(), memory.cache_bytes()
    assert target.use_fast_path()
    assert target.fast is not None
    norms = (2 * 3 + 1) * 64 * 4  # the model's own
    assert memory.weight_bytes() - weights == target.fast.packed.packed_bytes - norms > 0
    cache = target.new_cache()
    target.forward([1, 2, 3], cache)
    assert memory.cache_bytes() - caches == 3 * 2 * 256 * 2 * 32 * 4
    del cache


@NEEDS_PROC
def test_the_peak_is_the_highest_since_it_was_set_back() -> None:
    memory.set_back_peak()
    before, size = memory.peak(), 64_000_000
    block = bytearray(b"1") * size
    assert memory.resident() >= before + 0.9 * size
    del block
    assert memory.peak() >= before + 0.9 * size
    memory.set_back_peak()
    assert memory.peak() < before + 0.5 * size


@pytest.mark.slow
@NEEDS_PROC
def test_memory_is_measured_on_a_tiny_model(
    folder: Path, head: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "bytes.json"
    flags = ["--target", str(folder), "--drafter", str(head), "--threads", "1", "--dtype", "float32"]
    assert memory.main([*flags, "--context", "20", "--new-tokens", "5", "--json", str(path)]) == 0
    assert "fixed 2x8" in capsys.readouterr().out
    written = json.loads(path.read_text(encoding="utf-8"))
    assert set(written) == set(memory.ARMS)
    plain, fixed = written["plain, eager"], written["fixed 2x8, eager"]
    assert plain["late_imports"] > 0
    assert written["plain"]["late_imports"] == 0
    assert 0 < plain["weights"] < fixed["weights"]  # the head's are weights too
    assert plain["caches"] == 4 * 2 * 256 * 2 * 8 * 4 < fixed["caches"]
    assert memory.main([*flags, "--context", "2000"]) == 2
    assert "the prompt has 2000 tokens" in capsys.readouterr().err
