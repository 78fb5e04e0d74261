"""The figures of docs/: the same bytes on every run, and numbers that are computed, not drawn."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks import figures


def test_the_figures_are_drawn_the_same_twice(tmp_path: Path) -> None:
    for name in ("once", "again"):
        assert figures.main(["--out", str(tmp_path / name)]) == 0
    names = sorted(path.name for path in (tmp_path / "once").iterdir())
    assert names == ["acceptance-processes.svg", "reliability.svg", "three-symbols.svg"]
    for name in names:
        once = (tmp_path / "once" / name).read_bytes()
        assert once == (tmp_path / "again" / name).read_bytes()
        assert b"dc:date" not in once
        assert ElementTree.fromstring(once).tag.endswith("svg")


def test_the_figures_need_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    assert figures.main(["--out", str(tmp_path / "file")]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_the_three_symbols_come_to_the_numbers_of_the_page() -> None:
    world = figures.three_symbols()
    assert world.accepted == (Fraction(1, 5), Fraction(3, 10), Fraction(1, 5))
    assert world.rejected == Fraction(3, 10)
    assert world.residual == (Fraction(1), Fraction(0), Fraction(0))
    assert world.law == world.target
    assert world.wrong_law == (Fraction(35, 100), Fraction(39, 100), Fraction(26, 100))
    assert world.wrong_by == Fraction(15, 100)
