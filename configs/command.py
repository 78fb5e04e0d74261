"""What the two commands share: their flags, the seed, and one line with exit code 2 for a user's mistake."""

import argparse
import os
import secrets
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from configs.loading import load_config
from configs.plain_progress import PlainProgress
from configs.schema import Config
from configs.section import REPO_ROOT
from configs.signals import Terminated, orderly_ends

DEFAULT_CONFIG = REPO_ROOT / "configs" / "default.yaml"
MISTAKE = 2
INTERRUPTED = 130
TERMINATED = 143


def add_flags(parser: argparse.ArgumentParser, out_required: bool = True) -> None:
    """`--config`, `--set` and `--out`."""
    parser.add_argument(
        "--config", type=Path, default=DEFAULT_CONFIG, help="YAML file (default: configs/default.yaml)"
    )
    parser.add_argument(
        "--set", action="append", default=[], metavar="a.b=v", dest="overrides", help="lay a value over it"
    )
    parser.add_argument("--out", type=_path, required=out_required, help="folder that the results go to")


def _path(text: str) -> Path:
    if not text:
        raise argparse.ArgumentTypeError("it is empty: name a folder")
    return Path(text)


def read_config(options: argparse.Namespace) -> Config:
    """The configuration that the flags name. `--out`, where there is one, must not be a file."""
    check_out(options.out)
    return load_config(options.config, options.overrides)


def says_nothing(options: argparse.Namespace) -> bool:
    """Whether the flags leave the configuration as it is without any."""
    return options.config == DEFAULT_CONFIG and not options.overrides


def check_out(out: Path | None) -> None:
    """ValueError unless a folder of this name can be written to; to be called before minutes are spent."""
    if out is None:
        return
    if out.exists() and not out.is_dir():
        raise ValueError(f"--out {out} is a file, must be a folder")
    there = next(folder for folder in [out, *out.absolute().parents] if folder.exists())
    if not there.is_dir():
        raise ValueError(f"--out {out} cannot be a folder: {there} is a file")
    if not os.access(there, os.W_OK):
        raise ValueError(f"--out {out} cannot be written: {there} is read-only")


def chosen_seed(config: Config) -> int:
    """The configuration's seed, else a fresh one, printed."""
    if config.seed is not None:
        return config.seed
    seed = secrets.randbits(32)
    print(f"seed {seed} (fresh; repeat the run with --set seed={seed})")
    return seed


def exit_code(
    command: Callable[[], None], interrupted: str = "the same command goes on from the last checkpoint"
) -> int:
    """Run a command; a user's mistake becomes one line on standard error and exit code 2.

    `interrupted` says what an interrupt leaves; SIGTERM ends it likewise.
    """
    try:
        with orderly_ends():
            command()
    except ValueError as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return MISTAKE
    except OSError as error:
        print(f"error: {error.strerror or error}: {error.filename or ''}".rstrip(": "), file=sys.stderr)
        return MISTAKE
    except KeyboardInterrupt as interrupt:
        print(f"\ninterrupted; {interrupted}", file=sys.stderr)
        return TERMINATED if isinstance(interrupt, Terminated) else INTERRUPTED
    return 0


@contextmanager
def progress(what: str) -> Iterator[Callable[[int, int, str], None]]:
    """A bar to call with (done, total, note); it appears with the first call, after all refusals."""
    bar = progress_bar()
    task = bar.add_task(what, total=None, note="")

    def show(done: int, total: int, note: str) -> None:
        if not bar.live.is_started:
            bar.start()
        bar.update(task, completed=done, total=total, note=note)

    try:
        yield show
    finally:
        bar.stop()


def progress_bar() -> Progress:
    """A bar with what is done and what time is left, on standard error; lines where that is no terminal.
    Tasks carry a `note`, "" for none."""
    if not sys.stderr.isatty():
        return PlainProgress()
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
        console=Console(stderr=True),
        redirect_stdout=sys.stdout.isatty(),  # what goes into a file stays there
    )
