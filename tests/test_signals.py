"""Ctrl-C and SIGTERM: a line and no traceback, whenever they come, and the next start goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import commands.traces
import train
from commands.alone import LOCK_FILE
from configs.command import exit_code
from configs.signals import Terminated, orderly_ends
from decoding.trace_folder import read_traces
from tests.test_traces_command import flags

ROOT = Path(__file__).resolve().parent.parent

INTERRUPTED_IMPORT = """
import builtins, os, runpy, signal, sys

signal.signal(signal.SIGINT, signal.default_int_handler)  # whatever the tests were started with
plain = builtins.__import__

def importing(name, *more, **named):
    if name == "argparse":
        os.kill(os.getpid(), signal.SIGINT)
    return plain(name, *more, **named)

builtins.__import__ = importing
sys.argv = ["it"]
"""


@pytest.mark.parametrize(
    "entry",
    [
        "runpy.run_path('train.py', run_name='__main__')",
        "runpy.run_path('evaluate.py', run_name='__main__')",
        "runpy.run_module('decoding.__main__', run_name='__main__')",
    ],
)
def test_an_interrupt_between_imports_is_no_traceback(entry: str) -> None:
    code = [sys.executable, "-c", INTERRUPTED_IMPORT + entry]
    done = subprocess.run(code, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stderr) == (-signal.SIGINT, "")


def test_sigterm_ends_a_command_as_an_interrupt_does(capsys: pytest.CaptureFixture[str]) -> None:
    before = signal.getsignal(signal.SIGTERM)
    assert exit_code(lambda: signal.raise_signal(signal.SIGTERM), "all is well") == 143
    assert capsys.readouterr().err.strip() == "interrupted; all is well"
    assert signal.getsignal(signal.SIGTERM) is before


def test_handlers_are_those_that_were_there_again(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # as an entry point leaves it
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        with pytest.raises(KeyboardInterrupt) as came, orderly_ends():
            _both()
        assert not isinstance(came.value, Terminated)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_DFL
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)


def _both() -> None:
    signal.raise_signal(signal.SIGTERM)  # which the parent ignores, and so does the command
    signal.raise_signal(signal.SIGINT)


def test_a_command_runs_in_another_thread_too() -> None:
    codes: list[int] = []
    thread = threading.Thread(target=lambda: codes.append(exit_code(lambda: None)))
    thread.start()
    thread.join()
    assert codes == [0]


def test_a_terminated_recording_says_how_to_go_on(
    folder: Path,
    head: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = flags(folder, head, tmp_path / "run", traces__temperatures="[0.0]")
    plain = commands.traces.record

    def terminated(*given: Any, **more: Any) -> Any:
        yield next(plain(*given, **more))
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(60)  # it is heard before this ends

    with monkeypatch.context() as patch:
        patch.setattr(commands.traces, "record", terminated)
        assert train.main(run) == 143
    said = capsys.readouterr().err
    assert said.endswith("interrupted; the same command goes on from the last checkpoint\n")
    assert not (tmp_path / "run" / LOCK_FILE).exists()
    assert train.main(run) == 0
    assert len(list(read_traces(tmp_path / "run" / "T0")[1])) == 3
