"""Decisions a second of replayed texts: many requests side by side, each question answered at random.

What training in replay waits for: features, masks and a step of all lanes, a text begun anew where one has
ended. On made-up tables, or on a recording of `train.py traces`; with made-up costs, which change no speed.
Quartiles are over rounds.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.measure import interleaved
from decoding.controller import RootChoice
from decoding.cycle_features import CycleFeatures
from decoding.decision_costs import DecisionCosts
from decoding.decision_table import DecisionTable, Nodes, decision_table
from decoding.decision_walk import DecisionWalk
from decoding.decisions import Decisions
from decoding.trace_folder import read_traces

LANES = 256
BATCHES = 100  # of questions, in a round
SIZES = (1, 2, 3, 4, 6, 8, 12, 16)
DEPTH = 6
MADE_UP_TEXTS, MADE_UP_TOKENS = 500, 128
RECORDED_TEXTS = 500  # at most: making the table takes milliseconds a position


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; 2 and one line for a user's mistake."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.replay_walk", description=__doc__, allow_abbrev=False
    )
    parser.add_argument(
        "traces", type=Path, nargs="?", help="folder of one recording; default: made-up texts"
    )
    parser.add_argument("--lanes", type=int, default=LANES, help="requests side by side")
    parser.add_argument("--rounds", type=int, default=30, help="how often it is measured")
    options = parser.parse_args(arguments)
    try:
        if options.rounds < 3:
            raise ValueError(f"--rounds is {options.rounds}, must be >= 3")
        if options.lanes < 1:
            raise ValueError(f"--lanes is {options.lanes}, must be >= 1")
        rng = np.random.default_rng(0)
        table = made_up_table(rng) if options.traces is None else recorded_table(options.traces)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    run(table, options.lanes, options.rounds)
    return 0


def run(table: DecisionTable, lanes: int, rounds: int) -> list[float]:
    """Measure and print; returns decisions a second of each round."""
    costs = made_up_costs(table, np.random.default_rng(1))
    measured = interleaved({"walk": _walking(table, costs, lanes)}, rounds)["walk"]
    per_second = [lanes * BATCHES / ms * 1e3 for ms in measured]
    about = f"{table.texts} texts, {table.positions} positions, {len(Nodes.of(table.decisions))} questions"
    shown = Table(title=f"{about}, {lanes} lanes")
    for column in ("", "median", "quartiles"):
        shown.add_column(column, justify="right")
    per_batch = [ms * 1e3 / BATCHES for ms in measured]
    for name, values in (("decisions a second", per_second), ("a batch of them, us", per_batch)):
        first, median, third = np.percentile(values, [25, 50, 75])
        shown.add_row(name, f"{median:,.0f}", f"{first:,.0f} .. {third:,.0f}")
    Console().print(shown)
    return per_second


def recorded_table(folder: Path) -> DecisionTable:
    """Of the recording's first texts, with all that it was recorded with."""
    header, texts = read_traces(folder)
    try:
        choices = tuple(RootChoice[name.upper()] for name in header.note["choices"])
        max_new_tokens = int(header.note["max_new_tokens"])
    except (KeyError, AttributeError, TypeError, ValueError) as error:
        raise ValueError(f"the trace's note does not say how it was recorded ({error})") from None
    decisions = Decisions(choices, header.draft_depth, SIZES)
    return decision_table(
        islice(texts, RECORDED_TEXTS),
        decisions,
        CycleFeatures(SIZES, header.draft_depth, header.temperature),
        max_new_tokens,
        header.drafter.startswith("composite"),
    )


def made_up_table(
    rng: np.random.Generator, texts: int = MADE_UP_TEXTS, tokens: int = MADE_UP_TOKENS
) -> DecisionTable:
    """A merged drafter's: at every question everything is allowed that can be, and some of it accepted."""
    decisions = Decisions((RootChoice.ALL, RootChoice.LOOKUP, RootChoice.HEAD), DEPTH, SIZES)
    features, nodes = CycleFeatures(SIZES, DEPTH), Nodes.of(decisions)
    places = texts * tokens
    shape = (places, len(nodes), len(SIZES))
    allowed_NA = nodes.next_NA >= 0
    allowed_NA[0, 0] = True
    allowed_NA[1:, decisions.continue_action + 1 :] = True
    left_P = np.tile(np.arange(tokens, 0, -1), texts)
    emitted_PNS = np.minimum(rng.geometric(0.5, shape), left_P[:, None, None])
    looks_N = np.array([choice == RootChoice.LOOKUP for choice in nodes.choice])
    return DecisionTable(
        decisions,
        features,
        tuple(f"made up {number}" for number in range(texts)),
        ("",) * texts,
        ("",) * texts,
        starts=np.arange(texts + 1) * tokens,
        context_P=np.tile(np.arange(tokens, dtype=np.int32), texts) + 100,
        features_PNF=rng.random((*shape[:2], len(features.names)), dtype=np.float32),
        allowed_PNA=np.tile(allowed_NA, (places, 1, 1)),
        emitted_PNS=emitted_PNS.astype(np.int16),
        size_PNS=np.tile(np.array(SIZES, dtype=np.int16), (*shape[:2], 1)),
        levels_PN=np.tile(np.array(nodes.depth, dtype=np.int16), (places, 1)),
        lookup_PN=np.tile(looks_N, (places, 1)),
        asked_P=left_P > 1,
    )


def made_up_costs(table: DecisionTable, rng: np.random.Generator) -> DecisionCosts:
    """Random seconds of everything."""

    def seconds(*shape: int) -> np.ndarray:
        return rng.random(shape, dtype=np.float32)

    places, nodes, sizes = table.emitted_PNS.shape
    longest = int(np.diff(table.starts).max())
    return DecisionCosts(
        seconds(places),
        seconds(places),
        seconds(places, nodes),
        seconds(places, nodes, sizes),
        seconds(longest + 1),
        0.001,
    )


def _walking(table: DecisionTable, costs: DecisionCosts, lanes: int) -> Callable[[], float]:
    """Seconds of some batches; each call goes on where the last one was."""
    rng = np.random.default_rng(2)
    texts = np.flatnonzero(table.asked_P[table.starts[:-1]])
    if not len(texts):
        raise ValueError("no recorded text has a position to draft at: record longer texts")
    walk = DecisionWalk(table, costs, lanes)
    walk.start(np.arange(lanes), rng.choice(texts, lanes))

    def measure() -> float:
        started = time.perf_counter()
        for _ in range(BATCHES):
            walk.features()
            allowed_BA = walk.allowed()
            outcome = walk.step(np.where(allowed_BA, rng.random(allowed_BA.shape), -1.0).argmax(axis=1))
            if outcome.finished_B.any():
                finished = np.flatnonzero(outcome.finished_B)
                walk.start(finished, rng.choice(texts, len(finished)))
        return time.perf_counter() - started

    return measure


if __name__ == "__main__":
    sys.exit(main())
