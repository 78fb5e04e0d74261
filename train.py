"""Let a target write texts, train a draft head on them, calibrate its scores, profile the machine, record
traces, train the policies, export them for the decoder.

`python train.py {texts,drafter,calibrate,profile,traces,policy,export} --config C [--set a.b=v] --out DIR`.
All but `calibrate` and `profile` go on after a kill; these take minutes and begin again.
`python train.py headroom TRACES --profile FILE [--json]` says what is to be gained on recorded texts.
"""

from __future__ import annotations

import signal

if __name__ == "__main__" and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    # An interrupt while modules are imported ends it without a traceback; `exit_code` handles later ones.
    signal.signal(signal.SIGINT, signal.SIG_DFL)

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from commands.alone import alone_in
from configs.command import add_flags, exit_code, read_config, says_nothing
from configs.schema import Config


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; 2 and one line for a user's mistake."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given[:1] == ["headroom"]:
        return exit_code(partial(_headroom, given[1:]), interrupted="nothing was written")
    parser = argparse.ArgumentParser(prog="train.py", description=__doc__, allow_abbrev=False)
    parser.add_argument(
        "what",
        choices=["texts", "drafter", "calibrate", "profile", "traces", "policy", "export"],
        help="what to do",
    )
    add_flags(parser)
    options = parser.parse_args(given)
    command = partial(_run_named, options)
    if options.what in _BEGIN_AGAIN:
        return exit_code(command, interrupted=f"nothing was written: {options.what} begins again")
    return exit_code(command)


_BEGIN_AGAIN = ("calibrate", "profile")


def _headroom(arguments: Sequence[str]) -> None:
    from commands.headroom import run

    run(arguments)


def _run_named(options: argparse.Namespace) -> None:
    config = read_config(options)
    with alone_in(options.out):
        if options.what == "export":
            from commands.export import export

            export(None if says_nothing(options) else config, options.out)
        else:
            _run(options.what, config, options.out)


def _run(what: str, config: Config, out: Path) -> None:
    """The command's body; each imports only what it needs, as learning libraries are slow to import."""
    if what == "texts":
        from commands.texts import write_own_texts

        write_own_texts(config, out)
    elif what == "drafter":
        from commands.drafter import train_drafter

        train_drafter(config, out)
    elif what == "calibrate":
        from commands.calibrate import calibrate

        calibrate(config, out)
    elif what == "traces":
        from commands.traces import record_traces

        record_traces(config, out)
    elif what == "profile":
        from commands.profile import profile

        profile(config, out)
    else:
        from commands.policy import train_policy

        train_policy(config, out)


if __name__ == "__main__":
    sys.exit(main())
