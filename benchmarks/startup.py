"""How long one waits for the first words of `python -m decoding`, and what the wait consists of.

The command runs in fresh processes: seconds from the start of a process to the first byte of the text on its
standard output, and to its end. After each of them another process goes through the same steps one after the
other and times them; what two libraries import is charged to the first. A run of both before the first round
is not counted: it reads the files from the disk, and does what is still to do once: converting the built-in
model, compiling the native code, proving that the target may be loaded the light way.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

# benchmarks.memory imports this file into the processes that it measures: what is heavy is imported late.

ROOT = Path(__file__).resolve().parent.parent
PROMPT, NEW_TOKENS = "hi", 4
# Decoding must not need the first four; the others are watched, since transformers imports what it finds. A
# light load needs none of them.
UNWANTED = ("gymnasium", "stable_baselines3", "matplotlib", "tensorboard")
WATCHED = (*UNWANTED, "pandas", "scipy", "sklearn", "torch._dynamo", "transformers.modeling_utils")

STAGES = """
import json, sys, time

last, (target, drafter, prompt, tokens, watched) = float(sys.argv[1]), sys.argv[2:]
seconds, imported = {}, {}

def stage(name):
    global last
    seconds[name], last = time.time() - last, time.time()

def look(when):
    imported[when] = [name for name in watched.split() if name in sys.modules]

stage("Python itself")
import torch
stage("import torch")
import transformers.cache_utils
stage("import transformers")
from decoding import SpeculativeDecoder
stage("import the decoder")
look("after the imports")
from decoding.decoder import default_drafter
from decoding.drafters.load import load_drafter
from decoding.machine import use_threads
from decoding.models import load_model
use_threads(None)
model = load_model(target)
stage("load the model")
decoder = SpeculativeDecoder(model, load_drafter(drafter or default_drafter(target), model))
stage("load the drafter")
pieces = decoder.stream(decoder.as_user(prompt), max_new_tokens=int(tokens), seed=0)
stage("prefill")
next(pieces)
stage("first cycle")
look("after the first words")
print(json.dumps({"seconds": seconds, "imported": imported}))
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; 2 and one line for a user's mistake."""
    from benchmarks.prompts import Parser, count
    from configs.command import exit_code

    parser = Parser(prog="python -m benchmarks.startup", description=__doc__, allow_abbrev=False)
    parser.add_argument("--target", default="smollm2-135m")
    parser.add_argument("--drafter", help="default: the head shipped for the target")
    parser.add_argument("--rounds", type=count, default=5, help="how often it is started")
    parser.add_argument("--json", type=Path, help="also write every sample to this file")
    return exit_code(lambda: run(parser.parse_args(arguments)), "nothing was written")


def run(options: argparse.Namespace) -> None:
    """Measure and print."""
    from decoding.artifacts import write_json

    command = [sys.executable, "-m", "decoding", PROMPT, "--max-new-tokens", str(NEW_TOKENS)]
    command += ["--target", options.target]
    if options.drafter:
        command += ["--drafter", options.drafter]
    waits: dict[str, list[float]] = {"first text": [], "whole command": []}
    stages: list[dict[str, Any]] = []
    for number in range(options.rounds + 1):
        first, whole = seconds_to_text(command)
        given = (options.target, options.drafter or "", PROMPT, str(NEW_TOKENS), " ".join(WATCHED))
        stage = run_python(STAGES, repr(time.time()), *given)
        if number:
            waits["first text"].append(first)
            waits["whole command"].append(whole)
            stages.append(stage)
    console = Console()
    parts = {name: [one["seconds"][name] for one in stages] for name in stages[0]["seconds"]}
    parts["together"] = [sum(one["seconds"].values()) for one in stages]
    console.print(table(f"python -m decoding {PROMPT}, seconds", waits))
    console.print(table("the same steps one after the other, seconds", parts))
    for when, names in stages[0]["imported"].items():
        console.print(f"{when} imported of {', '.join(WATCHED)}: {', '.join(names) or 'none'}")
    if options.json:
        write_json(options.json, {"seconds": waits, "stages": stages})


def seconds_to_text(command: Sequence[str]) -> tuple[float, float]:
    """Seconds until the command has written the first byte, and until it has ended."""
    started = time.perf_counter()
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0
    ) as process:
        assert process.stdout is not None
        process.stdout.read(1)
        first = time.perf_counter() - started
        _, complaint = process.communicate()
        whole = time.perf_counter() - started
    _check(process.returncode, complaint.decode(errors="replace"))
    return first, whole


def run_python(code: str, *arguments: str) -> Any:
    """Run `code` in a fresh process, in the checkout; what its last line of output says in JSON."""
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    _check(done.returncode, done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def _check(code: int, complaint: str) -> None:
    if code:
        last = (complaint.strip().splitlines() or ["it says nothing"])[-1]
        reason = last.removeprefix("error: ").removeprefix("ValueError: ")
        raise ValueError(f"a process that was measured ended with {code}: {reason}")


def table(title: str, samples: dict[str, list[float]]) -> Table:
    """Median and longest of each."""
    lines = Table(title=title)
    for column in ("", "median", "longest"):
        lines.add_column(column, justify="right" if column else "left")
    for name, values in samples.items():
        lines.add_row(name, f"{median(values):.2f}", f"{max(values):.2f}")
    return lines


if __name__ == "__main__":
    sys.exit(main())
