"""Progress where standard error is no terminal: lines now and then, and one at the end."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import pytest
from rich.progress import Progress

from configs import plain_progress
from configs.command import progress, progress_bar
from configs.plain_progress import PlainProgress


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds that pass between two looks."""
    step, now = [0.0], itertools.accumulate(itertools.repeat(None), lambda at, _: at + step[0], initial=0.0)
    monkeypatch.setattr(plain_progress, "time", SimpleNamespace(monotonic=lambda: next(now)))
    return step


def test_a_line_after_a_while_and_one_at_the_end(
    clock: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    with progress("evaluating") as show:
        show(1, 90, "plain")
        assert capsys.readouterr().err == ""
        clock[0] = 31.0
        show(2, 90, "plain")
        said = capsys.readouterr()
        assert said.err.startswith("evaluating: 2 of 90, plain")
        assert said.err.count("\n") == 1
        assert said.out == ""
        clock[0] = 0.0
        show(3, 90, "learned")
        show(90, 90, "learned")
        assert capsys.readouterr().err == ""
    assert capsys.readouterr().err == "evaluating: 90 of 90, learned\n"


def test_a_mistake_before_anything_is_done_says_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="no"), progress("evaluating"):
        raise ValueError("no")
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", "")


def test_every_task_has_its_last_line(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    clock[0] = 1.0
    with progress_bar() as bar:
        for name in ("depth", "size"):
            task = bar.add_task(name, total=4, note="")
            for done in (2, 4):
                bar.update(task, completed=done)
        unknown = bar.add_task("more", total=None, note="")
        bar.update(unknown, completed=7)
    assert capsys.readouterr().err == "depth: 4 of 4\nsize: 4 of 4\nmore: 7\n"


def test_what_is_over_at_once_needs_no_line(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    clock[0] = 0.01
    with progress("evaluating") as show:
        show(90, 90, "")
    assert capsys.readouterr().err == ""


def test_a_terminal_has_the_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(progress_bar(), PlainProgress)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    bar = progress_bar()
    assert isinstance(bar, Progress)
    assert not isinstance(bar, PlainProgress)
    assert bar.console.stderr
