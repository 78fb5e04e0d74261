"""Where learning pays: recorded texts replayed at the measured costs and at made-up ones.

In each regime constants, expected gain and a policy come from the training recording that the configuration
names, and are replayed on the texts of `--texts`; beside them the policy that was trained for the measured
costs. All but the measured regime are synthetic. A policy is full information's of one seed, without PPO.
Ratios are of tokens per second, geometric means over questions, with 95 % bootstrap intervals.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.box import SIMPLE
from rich.table import Table

from benchmarks.measure import wide_console
from benchmarks.regime_chart import save_chart
from commands.recorded import Recorded, decisions_of, headers, nearest, profiles, read_recorded
from configs.command import add_flags, chosen_seed, exit_code, read_config
from configs.schema import Config
from decoding.artifacts import write_json
from decoding.machine import use_threads
from decoding.profile import CostProfile
from evaluation.regimes import RegimeTexts, cost_regimes
from evaluation.schema_parts import ComparisonResult, Regime
from policies.full_information import FullInformationSettings

DATA, CHART = "regimes.json", "regimes.svg"


def main(arguments: Sequence[str] | None = None) -> int:
    """Replay and print; 2 and one line for a user's mistake."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.regimes", description=__doc__, allow_abbrev=False
    )
    add_flags(parser)
    parser.add_argument("--texts", type=Path, required=True, help="recordings to replay")
    parser.add_argument("--train-texts", type=int, help="learn from no more than so many of a recording")
    options = parser.parse_args(arguments)
    return exit_code(
        lambda: run(read_config(options), options.texts, options.train_texts, options.out),
        "nothing was written",
    )


def run(config: Config, texts: Path, train_texts: int | None, out: Path) -> None:
    """Train, replay, print, and write `OUT/regimes.json` and `OUT/regimes.svg`."""
    given = config.policy.cycle
    if given.traces is None or given.profiles is None:
        raise ValueError("policy.cycle.traces and .profiles must be given: record and profile first")
    decisions = decisions_of(config, [*headers(given.traces), *headers(texts)])
    if train_texts is not None and train_texts < 1:
        raise ValueError(f"--train-texts is {train_texts}, must be at least 1")
    seed = chosen_seed(config)
    use_threads(config.threads)
    costs, question = profiles(config, out, []), given.question_microseconds / 1e6
    train, test = (
        texts_of(read_recorded(one, decisions, costs, question, most_texts=most), costs)
        for one, most in ((given.traces, train_texts), (texts, None))
    )
    settings = FullInformationSettings(**given.full_information.model_dump())
    rows = cost_regimes(train, test, question, settings, seed, lambda said: print(said, file=sys.stderr))
    about = {
        "device": costs[0].conditions.device,
        "train": {"texts": train.table.texts, "positions": train.table.positions},
        "test": {"texts": test.table.texts, "positions": test.table.positions},
        "questions": rows[0].learned.groups,
        "seed": seed,
        "full_information": given.full_information.model_dump(),
        "question_microseconds": given.question_microseconds,
    }
    write_json(out / DATA, {**about, "regimes": [row.model_dump() for row in rows]})
    save_chart(rows, out / CHART)
    console = wide_console()
    console.print(
        f"trained on {train.table.texts} texts, {train.table.positions} tokens; replayed"
        f" {test.table.texts} texts, {test.table.positions} tokens, {rows[0].learned.groups} questions; costs"
        f" from {about['device']}"
    )
    console.print(printed(rows))
    print(f"wrote {out / DATA} and {out / CHART}")


def texts_of(recorded: Recorded, costs: list[CostProfile]) -> RegimeTexts:
    """With the profile of each recording."""
    parts = recorded.by_temperature.items()
    return RegimeTexts(tuple((table, nearest(costs, temperature)) for temperature, (table, _) in parts))


def printed(rows: Sequence[Regime]) -> Table:
    """A line a regime, and beneath it what it is."""
    table = Table(title="tokens/s over the best fixed setting of the training texts", box=SIMPLE)
    columns = ["regime", "best fixed", "over plain", "expected gain", "not retrained", "learned", "95 %"]
    columns += ["in hindsight", "learned over it", "clairvoyant"]
    for column in columns:
        table.add_column(column, justify="left" if column in ("regime", "best fixed") else "right")
    for row in rows:
        table.add_row(
            row.name,
            row.best_fixed,
            f"{row.best_fixed_vs_plain:.3f}",
            _ratio(row.expected_gain),
            _ratio(row.not_retrained),
            _ratio(row.learned),
            _interval(row.learned),
            row.best_hindsight or "",
            _ratio(row.over_hindsight),
            _ratio(row.clairvoyant),
        )
    table.caption = "\n".join(
        f"{row.name}{' (synthetic)' if row.synthetic else ''}: {row.costs}" for row in rows
    )
    return table


def _ratio(found: ComparisonResult | None) -> str:
    return "" if found is None else f"{found.ratio:.3f}{'*' if found.claimed else ''}"


def _interval(found: ComparisonResult) -> str:
    return "" if found.low is None or found.high is None else f"{found.low:.3f} .. {found.high:.3f}"


if __name__ == "__main__":
    sys.exit(main())
