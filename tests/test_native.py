"""Native code is compiled once, found again, made anew when it is damaged, and missed without a fault."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from decoding import native
from decoding.native import NoNativeCode
from decoding.noise import NoiseStream
from decoding.packed import NoFastPath, PackedProduct, are_half, pack
from decoding.sampling import Sampling, TokenChooser

PANEL = native.library().panel()


@pytest.fixture
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty cache, and no library loaded yet; gives the folder that it will be compiled into."""
    monkeypatch.setenv("DRAFTPACE_CACHE", str(tmp_path))
    native._found.cache_clear()
    yield tmp_path / "native"
    native._found.cache_clear()


def test_compiled_once_with_one_line(fresh: Path, capfd: pytest.CaptureFixture[str]) -> None:
    native.library()
    assert capfd.readouterr().err == "compiling the fast path for this machine, once (a few seconds)\n"
    (made,) = fresh.iterdir()
    stamp = made.stat().st_mtime_ns
    native._found.cache_clear()
    native.library()
    assert capfd.readouterr().err == ""
    assert [path.stat().st_mtime_ns for path in fresh.iterdir()] == [stamp]


def test_what_is_loaded_is_known_without_compiling(fresh: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert native.loaded() is None
    assert NoiseStream(0, [1]).winners([0], torch.zeros(1, 3), 1.0) is None
    assert not fresh.exists()
    assert capfd.readouterr().err == ""
    library = native.library()
    assert native.loaded() is library


def test_a_failed_compilation_is_not_tried_again_by_the_noise(
    fresh: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    broken = tmp_path / "broken.c"
    broken.write_text("nothing\n")
    monkeypatch.setattr(native, "SOURCE", broken)
    with pytest.raises(NoNativeCode):
        native.library()
    said = capfd.readouterr().err
    TokenChooser(Sampling(1.0), NoiseStream(0, [1])).choose(torch.zeros(1, 3), [0])
    assert said.count("\n") == 1
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("damage", ["garbage", "empty", "half", "a bit", "another library"])
def test_a_damaged_library_is_made_anew(damage: str, fresh: Path) -> None:
    """The loader takes a truncated one, and the process dies of it later."""
    native.library()
    native._found.cache_clear()
    (path,) = fresh.iterdir()
    whole = path.read_bytes()
    flipped = bytearray(whole)
    flipped[len(whole) // 3] ^= 4
    path.unlink()  # the one that is loaded must not change under this process
    path.write_bytes(
        {
            "garbage": b"\x7fELF and no more",
            "empty": b"",
            "half": whole[: len(whole) // 2],
            "a bit": bytes(flipped),
            "another library": Path(np.linalg._umath_linalg.__file__).read_bytes(),
        }[damage]
    )
    assert native.library().panel() == PANEL
    assert native._is_whole(path)


def test_what_is_missing_is_known_to_who_asked(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    assert native.missing() == ""
    with pytest.raises(NoNativeCode):
        native.library()
    assert "no-such-compiler" in native.missing()


def test_a_library_without_the_functions_is_a_reason(
    fresh: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other.c"
    other.write_text("int nothing_of_ours;\n")
    monkeypatch.setattr(native, "SOURCE", other)
    with pytest.raises(NoNativeCode, match="cannot be compiled to something that loads"):
        native.library()
    assert list(fresh.iterdir()) == []


def fake_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    path = tmp_path / "fake-cc"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    monkeypatch.setenv("CC", str(path))


def test_a_compiler_may_say_anything(fresh: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = native._compiler()[0]
    fake_compiler(tmp_path, monkeypatch, f"printf 'warning \\377' >&2\nexec {real} \"$@\"")
    assert native.library().panel() == PANEL


def test_a_compiler_that_hangs_is_ended_with_its_children(
    fresh: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_compiler(tmp_path, monkeypatch, f"sleep 60 & echo $! > {tmp_path}/child; wait")
    monkeypatch.setattr(native, "_SECONDS", 0.5)
    with pytest.raises(NoNativeCode, match=r"cannot be compiled into .*timed out"):
        native.library()
    child = int((tmp_path / "child").read_text())
    deadline = time.monotonic() + 5
    while Path(f"/proc/{child}").exists() and time.monotonic() < deadline:
        if "Z" in Path(f"/proc/{child}/stat").read_text().split()[2]:
            break
        time.sleep(0.05)
    assert time.monotonic() < deadline


def test_the_library_of_other_source_or_machine_is_not_taken(
    fresh: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = native._path()
    other = tmp_path / "other.c"
    other.write_text(native.SOURCE.read_text() + "\n")
    with monkeypatch.context() as changed:
        changed.setattr(native, "SOURCE", other)
        assert native._path() != ours
    monkeypatch.setattr(native, "_processor", lambda: "another one")
    assert native._path() != ours


def test_no_compiler_is_a_reason_and_no_crash(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    with pytest.raises(NoNativeCode, match="no C compiler: CC names 'no-such-compiler', which is not found"):
        native.library()
    native._found.cache_clear()
    monkeypatch.delenv("CC")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(NoNativeCode, match="gcc, cc and clang not found"):
        native.library()


def test_a_compiler_that_fails_leaves_nothing(
    fresh: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "broken.c"
    broken.write_text("int f(void) { return nothing; }\n")
    monkeypatch.setattr(native, "SOURCE", broken)
    with pytest.raises(NoNativeCode, match=r"cannot compile the fast path: .*error: .nothing. undeclared"):
        native.library()
    assert list(fresh.iterdir()) == []


def test_a_compiler_that_fails_is_asked_once(
    fresh: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CC", "false")
    for _ in range(3):
        with pytest.raises(NoNativeCode, match="false cannot compile the fast path: exit status 1"):
            native.library()
    assert capfd.readouterr().err.count("compiling") == 1
    assert native.loaded() is None


def test_a_compiler_may_be_named_with_arguments(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = native._path()
    monkeypatch.setenv("CC", f"{native._compiler()[0]} -O1")
    assert native._path() != before
    assert native.library().panel() == PANEL


def test_a_cache_that_cannot_be_written_is_a_reason(fresh: Path, tmp_path: Path) -> None:
    (tmp_path / "native").write_text("a file where the folder should be")
    with pytest.raises(NoNativeCode, match="cannot be compiled into"):
        native.library()


def many_products(threads: int, rounds: int, seed: int) -> bool:
    """Whether products by a team of so many threads are those of one thread, to the bit."""
    rng, before = np.random.default_rng(seed), torch.get_num_threads()
    product = PackedProduct(half_weights(rng, 7 * PANEL, 33, half=True))
    x = torch.from_numpy(rng.normal(size=(rounds, 3, 33)).astype(np.float32))
    try:
        torch.set_num_threads(1)
        alone = [product(one) for one in x]
        torch.set_num_threads(threads)
        together = [product(one) for one in x]
    finally:
        torch.set_num_threads(before)
    return all(torch.equal(one, other) for one, other in zip(alone, together, strict=True))


@pytest.mark.parametrize("threads", [2, 3, 7])
def test_a_team_of_any_size_does_the_same(threads: int) -> None:
    """It grows and shrinks between calls; members outside of it miss no round."""
    assert many_products(threads, 200, seed=threads)


def test_a_team_that_slept_wakes_up() -> None:
    assert many_products(2, 1, seed=0)
    time.sleep(0.2)  # longer than its members stay awake
    assert many_products(2, 1, seed=1)


def test_callers_take_turns() -> None:
    """Python threads that call at once: ctypes lets go of the interpreter's lock."""
    with ThreadPoolExecutor(4) as callers:
        assert all(callers.map(lambda seed: many_products(2, 100, seed), range(8)))


@pytest.mark.filterwarnings("ignore:This process")  # Python's own warning of forks beside threads
def test_a_fork_has_a_team_of_its_own() -> None:
    assert many_products(3, 5, seed=0)
    child = os.fork()
    if child == 0:
        os._exit(0 if many_products(3, 5, seed=1) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert many_products(3, 5, seed=2)


def half_weights(rng: np.random.Generator, outputs: int, inputs: int, half: bool) -> torch.Tensor:
    weight = torch.from_numpy(rng.normal(size=(outputs, inputs)).astype(np.float32))
    return weight.to(torch.bfloat16).float() if half else weight


@given(
    panels=st.integers(1, 3),
    short=st.integers(0, 5),
    inputs=st.integers(1, 40),
    half=st.booleans(),
    seed=st.integers(0, 99),
)
def test_packing_puts_every_weight_where_it_is_read(
    panels: int, short: int, inputs: int, half: bool, seed: int
) -> None:
    weight = half_weights(np.random.default_rng(seed), panels * PANEL - short, inputs, half)
    packed = pack(weight, half)
    assert packed.shape == (panels, inputs, PANEL)
    assert packed.dtype == (torch.bfloat16 if half else torch.float32)
    for output in range(panels * PANEL):
        panel, lane = divmod(output, PANEL)
        # Half: lane i of the first vector and of the second share a word, the first in its lower half.
        place = 2 * (lane % (PANEL // 2)) + lane // (PANEL // 2) if half else lane
        wanted = weight[output] if output < len(weight) else torch.zeros(inputs)
        assert torch.equal(packed[panel, :, place].float(), wanted)


def test_weights_are_half_only_if_all_are() -> None:
    weight = half_weights(np.random.default_rng(0), 7, 5, half=True)
    assert are_half([weight, weight])
    weight[6, 4] = 1 + 2**-8  # one bit more than bf16 has
    assert not are_half([half_weights(np.random.default_rng(1), 3, 3, half=True), weight])


@settings(max_examples=60)
@given(
    rows=st.integers(1, 20),
    panels=st.integers(1, 5),
    inputs=st.integers(1, 70),
    half=st.booleans(),
    seed=st.integers(0, 99),
)
def test_a_product_is_the_product(rows: int, panels: int, inputs: int, half: bool, seed: int) -> None:
    rng = np.random.default_rng(seed)
    weight = half_weights(rng, panels * PANEL, inputs, half)
    x = torch.from_numpy(rng.normal(size=(rows, inputs)).astype(np.float32))
    product = PackedProduct(weight)
    assert product.half == half
    torch.testing.assert_close(product(x), (x.double() @ weight.double().t()).float(), rtol=1e-5, atol=1e-5)


@given(rows=st.integers(2, 20), half=st.booleans(), seed=st.integers(0, 99))
def test_a_row_of_a_product_does_not_know_its_neighbours(rows: int, half: bool, seed: int) -> None:
    """The same bits whatever rows come with it."""
    rng = np.random.default_rng(seed)
    product = PackedProduct(half_weights(rng, 2 * PANEL, 50, half))
    x = torch.from_numpy(rng.normal(size=(rows, 50)).astype(np.float32))
    together = product(x)
    assert all(torch.equal(together[row], product(x[row : row + 1])[0]) for row in range(rows))


@given(
    count=st.integers(1, 12),
    chosen=st.sets(st.integers(0, 11), min_size=1),
    threads=st.sampled_from([1, 2, 3]),
    seed=st.integers(0, 99),
)
def test_a_product_of_some_rows_is_that_of_these_alone(
    count: int, chosen: set[int], threads: int, seed: int
) -> None:
    """To the bit, the first ones and others."""
    rng, before = np.random.default_rng(seed), torch.get_num_threads()
    product = PackedProduct(half_weights(rng, 3 * PANEL, 20, half=False))
    x = torch.from_numpy(rng.normal(size=(count, 20)).astype(np.float32))
    rows = sorted({row % count for row in chosen})
    try:
        torch.set_num_threads(threads)
        assert torch.equal(product(x, rows), product(x[torch.tensor(rows)].clone()))
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("rows", [[0, 3], [-1, 0], [3], [0, 1, 2, 3]])
def test_rows_that_are_not_there_are_refused(rows: list[int]) -> None:
    with pytest.raises(ValueError, match=r"must be in 0\.\.2"):
        PackedProduct(torch.ones(PANEL, 8))(torch.ones(3, 8), rows)


def test_outputs_that_fill_no_panel_are_refused() -> None:
    with pytest.raises(NoFastPath, match=rf"outputs are no multiple of {PANEL}"):
        PackedProduct(torch.ones(PANEL + 1, 4))


@pytest.mark.parametrize("odd", [torch.ones(8, PANEL).t(), torch.ones(PANEL, 8, dtype=torch.float64)])
def test_what_native_code_takes_for_granted_is_checked(odd: torch.Tensor) -> None:
    """It would read wrong numbers, or past the end."""
    for use in (lambda: pack(odd, half=False), lambda: are_half([odd])):
        with pytest.raises(
            NoFastPath, match=r"(strided|contiguous) torch\.float\d\d on cpu, not torch\.float32"
        ):
            use()
    with pytest.raises(NoFastPath, match="float64 on cpu"):
        PackedProduct(torch.ones(PANEL, 8))(torch.ones(2, 8, dtype=torch.float64))
