"""Seconds of a run's parts: over all starts, kills included, mistakes not."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from commands import spent
from commands.alone import LOCK_FILE, alone_in
from commands.spent import Spent


@pytest.fixture(autouse=True)
def _clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second a look."""
    ticks = itertools.count()
    monkeypatch.setattr(spent, "time", SimpleNamespace(monotonic=lambda: float(next(ticks))))


def test_parts_add_up_over_starts_and_kills(tmp_path: Path) -> None:
    path = tmp_path / "seconds.json"
    (tmp_path / "traces").mkdir()
    first = Spent(path)
    with first.on("recording"):
        pass
    with pytest.raises(KeyboardInterrupt), first.on("training"):
        raise KeyboardInterrupt
    second = Spent(path)
    assert second.seconds == {"recording": 1.0, "training": 1.0}
    for _ in range(2):
        with second.on("training"):
            pass
    assert json.loads(path.read_text()) == {"recording": 1.0, "training": 3.0}


def test_a_kill_loses_what_came_after_the_last_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "seconds.json"
    first = Spent(path)
    first.keep()  # nothing runs
    assert not path.exists()

    def fails() -> None:
        for _ in range(2):
            first.keep()
            (tmp_path / "checkpoint").touch()  # what is kept before anything is made waits in memory
        assert Spent(path).seconds == {"training": 2.0}
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"), first.on("training"):
        fails()
    with first.on("training"):
        first.keep()
    first.keep()  # it runs no more
    assert Spent(path).seconds == {"training": 4.0}


def test_a_mistake_counts_nothing(tmp_path: Path) -> None:
    one = Spent(tmp_path / "seconds.json")
    with pytest.raises(ValueError, match="no"), one.on("recording"):
        raise ValueError("no")
    assert one.seconds == {}
    assert not list(tmp_path.iterdir())


def test_no_folder_is_made_for_it_alone(tmp_path: Path) -> None:
    one = Spent(tmp_path / "run" / "seconds.json")
    with one.on("recording"):
        pass
    assert not (tmp_path / "run").exists()
    with alone_in(tmp_path / "run"):
        with one.on("training"):
            pass
        assert [path.name for path in (tmp_path / "run").iterdir()] == [LOCK_FILE]
        (tmp_path / "run" / "training.json").touch()
        with one.on("training"):
            pass
    assert Spent(tmp_path / "run" / "seconds.json").seconds == {"recording": 1.0, "training": 2.0}


@pytest.mark.parametrize("value", ["true", "NaN", "Infinity", "-1", "1" + "0" * 400])
def test_a_damaged_record_is_refused(value: str, tmp_path: Path) -> None:
    path = tmp_path / "seconds.json"
    path.write_text(f'{{"training": {value}}}')
    with pytest.raises(ValueError, match=r"seconds\.json is damaged: remove it"):
        Spent(path)
