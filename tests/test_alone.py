"""One command at a time writes into a folder, and what a killed one leaves blocks nobody."""

from __future__ import annotations

import errno
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from filelock import FileLock

import evaluate
import train
from commands.alone import LOCK_FILE, alone_in, untouched
from tests.test_traces_command import flags

ROOT = Path(__file__).resolve().parent.parent
HOLD = "import sys; from pathlib import Path; from commands.alone import alone_in\n"
HOLD += "with alone_in(Path(sys.argv[1])): print('held', flush=True); sys.stdin.read()"


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that has `run`."""
    pipe = subprocess.PIPE
    arguments = [sys.executable, "-c", HOLD, str(tmp_path / "run")]
    with subprocess.Popen(arguments, cwd=ROOT, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


@pytest.mark.usefixtures("holder")
def test_a_second_command_is_told_so_in_one_line(
    tmp_path: Path, folder: Path, head: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = flags(folder, head, tmp_path / "run")[1:]
    for what in ("texts", "drafter", "calibrate", "profile", "traces", "policy", "export"):
        assert train.main([what, *run]) == 2
        said = capsys.readouterr().err
        assert f"error: another command is writing into {tmp_path / 'run'}: wait until it has ended" in said
        assert said.endswith(", or choose another --out\n")
        assert said.count("\n") == 1
    for more in ([], ["--check-law"], ["--check-text"]):
        assert evaluate.main([*run, *more]) == 2
        assert "another command is writing into" in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "run").iterdir()] == [LOCK_FILE]


def test_a_recording_of_a_training_is_held_as_well(
    tmp_path: Path, folder: Path, head: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recording = tmp_path / "run" / "traces" / "train"
    with alone_in(recording):
        assert train.main(["policy", *flags(folder, head, tmp_path / "run")[1:]]) == 2
    assert f"another command is writing into {recording}: wait" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_killed_command_blocks_nobody(holder: subprocess.Popen[str], tmp_path: Path) -> None:
    out = tmp_path / "run"
    with pytest.raises(ValueError, match="another command is writing into"), alone_in(out):
        pass
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    assert (out / LOCK_FILE).exists()
    with alone_in(out):
        pass
    assert list(out.iterdir()) == []


def test_nothing_stays_of_a_command_that_wrote_nothing(tmp_path: Path) -> None:
    out = tmp_path / "a" / "b"
    assert untouched(out)
    with alone_in(out):
        assert untouched(out)
    with pytest.raises(ValueError, match="no"), alone_in(out):
        raise ValueError("no")
    assert list(tmp_path.iterdir()) == []
    with alone_in(out):
        (out / "result").touch()
        assert not untouched(out)
    assert [path.name for path in out.iterdir()] == ["result"]
    with alone_in(None):
        pass


def test_without_locks_there_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def unable(self: FileLock, **_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(FileLock, "acquire", unable)
    with alone_in(tmp_path / "run"):
        pass
    said = capsys.readouterr().err
    assert said.startswith(f"warning: {tmp_path / 'run'} cannot be locked: see to it that no other command")
